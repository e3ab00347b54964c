"""Needle in a haystack (paper, section 3.1): eight of the thirteen tasks.

A prompt of `{base: niah_multikey_1, num_keys: 2}` in 256 tokens, its lines wrapped:

    A special magic number is hidden within the following text. Make sure to memorize it. I will
    quiz you about the number afterwards.
    One of the special magic numbers for merciful-typewriter is: 8760371. In early summer, the
    field books were brought out of the ridge and counted in the open air. One of the special
    magic numbers for magnificent-messy is: 2629859. Every generation believes that it discovered
    confidence. They used to keep the tracing paper at the mountain
    What is the special magic number for magnificent-messy mentioned in the provided text? The
    special magic number for magnificent-messy mentioned in the provided text is

References: 2629859.

Lines end after the opening and after the context; needles stand between sentences of the essay,
whose end is cut at a word.
"""

import re
import uuid
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from math import inf
from random import Random
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.generation.corpora import Words, load
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.pieces import PieceEncoder, Units, encode_units
from rulerkit.generation.tasks.base import (
    MOST,
    CorpusName,
    FailureRule,
    Growth,
    JudgedAnswer,
    Positive,
    Task,
    distinct,
    shuffled_alike,
)
from rulerkit.generation.tasks.haystacks import (
    fill_with_essay,
    fill_with_needles,
    fill_with_sentences,
    pool_size,
)

_ONE = (
    "A special magic {type} is hidden within the following text. Make sure to memorize it. I will "
    "quiz you about the {type} afterwards.\n",
    "What is the special magic {type} for {query} mentioned in the provided text?",
    " The special magic {type} for {query} mentioned in the provided text is",
)
_SEVERAL = (
    "Some special magic {types} are hidden within the following text. Make sure to memorize it. I "
    "will quiz you about the {types} afterwards.\n",
    "What are all the special magic {types} for {query} mentioned in the provided text?",
    " The special magic {types} for {query} mentioned in the provided text are",
)
_EVEN_DEPTHS = 40
Kind = Literal["words", "numbers", "uuids"]
NEAR = 256
"""How many tokens from the needle asked for a distractor is near it: about ten lines of needles."""
_SHORTEST_UUID = 8
NEEDLE = "One of the special magic {types} for {key} is: {value}."


# --- failures -------------------------------------------------------------------------------------


def _value_of_other_key(answer: JudgedAnswer, within: float = inf) -> str | None:
    """The value of a key that was not asked for, the nearest to a needle whose value is missing."""
    # Where the needles stand whose values were not written.
    missed = []
    for piece, start in answer.needles:
        if piece.role == "needle" and piece.value in answer.missing:
            missed.append(start)

    nearest, other_key = inf, None
    written = answer.text.lower()
    for piece, start in answer.needles:
        if piece.role == "distractor" and str(piece.value).lower() in written:
            distance = min((abs(start - needle) for needle in missed), default=inf)
            if distance < nearest:
                nearest, other_key = distance, piece.key
    if other_key is None or nearest > within:
        return None
    # The key first, so that a count of these texts says which distractor confuses.
    return f"{other_key}, {nearest} tokens away"


def _incomplete_uuid(answer: JudgedAnswer) -> str | None:
    # Long runs of hexadecimal digits in the answer, against each UUID that is missing.
    parts = re.findall(rf"[0-9a-f-]{{{_SHORTEST_UUID},}}", answer.text.lower())
    for part, missing in product(parts, answer.missing):
        if not re.fullmatch(r"[\da-fA-F-]{36}", missing):
            continue

        # Hyphens may be left out; a UUID that was begun rightly counts, too.
        digits = part.replace("-", "")
        wanted = missing.replace("-", "").lower()
        same_start = digits[:_SHORTEST_UUID] == wanted[:_SHORTEST_UUID]
        if len(digits) < len(wanted) and (digits in wanted or same_start):
            return str(part)
    return None


# --- the family -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Needles(Task):
    """Retrieve the values of the queried keys from essays, repeated sentences, or a haystack made
    of other needles."""

    family = "niah"
    category = "niah"
    short_name = "niah"
    nothing = "not found"
    new_tokens = (128, 4)
    question_form = (
        r"What (?:is|are all) the special magic (\w+?)s? for (.+?) "
        r"mentioned in the provided text\?"
    )
    failure_rules = (
        FailureRule(
            "near distractor",
            f"The value of another key whose needle stands within {NEAR} tokens of the one asked "
            "for.",
            partial(_value_of_other_key, within=NEAR),
        ),
        FailureRule(
            "other key", "The value of another key, from farther away.", _value_of_other_key
        ),
        FailureRule(
            "incomplete uuid", "A part of the UUID asked for, not all 32 digits.", _incomplete_uuid
        ),
    )

    haystack: Literal["essay", "noise", "needle"] = "essay"
    key: Kind = "words"
    value: Kind = "numbers"
    num_keys: Positive = 1
    """Needles with different keys; `haystack: needle` fills the whole context with such needles."""
    num_values: Positive = 1
    num_queries: Positive = 1
    essays: CorpusName = "paul_graham"
    """The corpus behind `haystack: essay`: `paul_graham`, `prose` (synthetic) or a path."""
    words: CorpusName = "wonderwords"
    """The list behind keys and values that are words: `wonderwords` or a path."""
    depth: Annotated[float, Field(ge=0, le=100)] | None = None
    """Percent of the context at which every needle asked for stands; None draws depths evenly from
    0 to 100 %, and the protocols `paper` and `upstream` take 40 fixed ones in essays."""

    def __post_init__(self) -> None:
        is_even = self.protocol != "clean" and self.haystack == "essay"
        most_needles = _EVEN_DEPTHS if is_even else MOST
        needles = max(self.num_keys, self.num_queries) * self.num_values
        if needles > most_needles:
            raise ValueError(
                f"num_keys and num_queries ask for {needles} needles, num_values for each: at most "
                f"{most_needles} are possible (essays in the protocols `paper` and `upstream` have "
                f"{_EVEN_DEPTHS} places)"
            )

    @property
    def num_items(self) -> int:
        return self.num_queries * self.num_values

    @property
    def corpora(self) -> tuple[tuple[str, str], ...]:
        read = []
        if self.haystack == "essay":
            read.append(("essay", "essays"))
        if "words" in (self.key, self.value):
            read.append(("words", "words"))
        return tuple(read)

    def make(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        words = load("words", self.words)
        num_keys = max(self.num_keys, self.num_queries)
        keys = distinct(num_keys, partial(draw_text, random, words, self.key))
        values = distinct(num_keys * self.num_values, partial(draw_text, random, words, self.value))
        queried = random.sample(keys, self.num_queries)

        if self.protocol == "clean":
            depths = [random.random() for _ in values]
        else:
            depths = self._upstreams_depths(stream, len(values))

        # A needle for each value; `depth` moves only those that are asked for.
        needles = []
        for number, (value, depth) in enumerate(zip(values, depths, strict=True)):
            key = keys[number // self.num_values]
            role = "needle" if key in queried else "distractor"
            if role == "needle" and self.depth is not None:
                depth = self.depth / 100
            text = NEEDLE.format(types=self.value, key=key, value=value)
            needles.append(Piece(text, role, key=key, value=value, depth=depth))

        # The wording of upstream: one value, or several.
        *others, last = queried
        query = f"{', '.join(others)}, and {last}" if others else last
        forms = _ONE if self.num_items == 1 else _SEVERAL
        opening, question, prefix = (
            form.format(type=self.value[:-1], types=self.value, query=query) for form in forms
        )

        # References in the order of the question, as upstream lists them.
        references = []
        for key in queried:
            references += [str(needle.value) for needle in needles if needle.key == key]
        return Draft(opening, question, prefix, tuple(references), hidden=needles)

    def _upstreams_depths(self, stream: ExampleStream, count: int) -> list[float]:
        """The depths of the needles as upstream draws them."""
        if self.haystack != "essay":
            drawn = [stream.random.random() for _ in range(count)]
        else:
            # Upstream has even depths in essays, rounded to whole percents.
            steps = stream.random.sample(range(_EVEN_DEPTHS), count)
            drawn = [round(100 * step / (_EVEN_DEPTHS - 1)) / 100 for step in steps]

        # Upstream shuffles the needles with one seed, so that their order in the text is one for
        # all examples, and counts the places of lines from the end.
        depths = [0.0] * count
        places = sorted(drawn, reverse=self.haystack != "essay")
        for number, place in zip(shuffled_alike(count, stream.seed), places, strict=True):
            depths[number] = place
        return depths

    def growth(self, draft: Draft, length: int) -> Growth:
        # Words of essays, or lines.
        step = 25 if length >= 4096 else 5
        if self.haystack == "essay":
            step = 500
        return Growth(step, step, " ".join(draft.references))

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        if self.haystack == "essay":
            return fill_with_essay(draft.hidden, budget, load("essay", self.essays))
        lines = [replace(needle, text=needle.text + "\n") for needle in draft.hidden]
        if self.haystack == "noise":
            return fill_with_sentences(lines, budget)
        before, between, end = NEEDLE.format(types=self.value, key="|", value="|").split("|")

        words = load("words", self.words)
        keys = _pool(self.key, words, budget.length, "", budget.encoder)
        values = _pool(self.value, words, budget.length, end + "\n", budget.encoder)
        taken = [f" {needle.key}" for needle in draft.hidden]
        taken += [f" {needle.value}{end}\n" for needle in draft.hidden]
        frames = (before.rstrip(), between.rstrip())
        return fill_with_needles(lines, budget, frames, keys, values, taken)

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        kind, query = question.groups()
        needles = re.findall(rf"special magic {kind}s for (.+?) is: ([^.\n]+)\.", text)
        queries = re.split(r", and |, ", query)
        return [value for query_key in queries for key, value in needles if key == query_key]


# --- keys and values ------------------------------------------------------------------------------


def draw_text(random: Random, words: Words, kind: Kind = "words") -> str:
    """A key or a value. What is called words is an adjective and a noun, joined by a hyphen."""
    if kind == "numbers":
        return str(random.randrange(10**6, 10**7))
    if kind == "uuids":
        return str(uuid.UUID(int=random.getrandbits(128), version=4))
    return f"{random.choice(words.adjectives)}-{random.choice(words.nouns)}"


@lru_cache(maxsize=16)
def _pool(kind: Kind, words: Words, length: int, ending: str, encoder: PieceEncoder) -> Units:
    """The first keys or values of an endless row, with their counts: twice as many as any context
    of `length` holds."""
    size = pool_size(length, 32 if kind == "uuids" else 8)
    texts = distinct(size, partial(draw_text, Random(f"pool of {kind}"), words, kind))
    return encode_units([f" {text}{ending}" for text in texts], encoder)

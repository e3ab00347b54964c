"""Needle in a haystack (paper, section 3.1): eight of the thirteen tasks."""

import re
import uuid
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import compress, product
from math import inf
from operator import itemgetter
from random import Random
from typing import Any, Literal

from rulerkit.generation.answers import named_items
from rulerkit.generation.corpora import Words, load
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.pieces import PieceEncoder, Units, encode_units
from rulerkit.generation.tasks.base import (
    MOST,
    Growth,
    JudgedAnswer,
    Reading,
    Rule,
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
_WORDS_ADDED, _LINES_ADDED, _FEW_LINES_ADDED = 500, 25, 5
"""By how much upstream lengthens essays and lines, and lines below 4096 tokens."""
_SHORT = 4096
_DRAWS = 9
"""The examples that may be the first one: their lines or words decide how many fit."""
Kind = Literal["words", "numbers", "uuids"]
NEAR = 256
"""How many tokens from the needle asked for a distractor may stand to be near it: about ten lines
of needles."""
_SHORTEST_UUID = 8
NEEDLE = "One of the special magic {types} for {key} is: {value}."


# --- failures -------------------------------------------------------------------------------------


def _value_of_other_key(answer: JudgedAnswer, within: float = inf) -> str | None:
    """The value of a key that was not asked for, the nearest to a needle whose value is missing."""
    written = {*answer.words, *(item.strip(".") for item in named_items(answer.text))}

    # Where the needles stand whose values were not written.
    missed = [
        start
        for piece, start in answer.needles
        if piece.role == "needle" and piece.value in answer.missing
    ]

    # How far from the nearest of them each wrong value stands that was written.
    distances = [
        (min(abs(start - needle) for needle in missed), piece.value)
        for piece, start in answer.needles
        if missed and piece.role == "distractor" and str(piece.value).lower() in written
    ]
    distance, value = min(distances, key=itemgetter(0), default=(inf, None))
    return f"{value}, {distance} tokens from the needle" if value and distance <= within else None


def _incomplete_uuid(answer: JudgedAnswer) -> str | None:
    # Long runs of hexadecimal digits in the answer, against each UUID that is missing.
    parts = re.findall(rf"[0-9a-f-]{{{_SHORTEST_UUID},}}", answer.text.lower())
    for part, missing in product(parts, answer.missing):
        if not re.fullmatch(r"[\da-fA-F-]{36}", missing):
            continue

        # Hyphens may be left out; a UUID that was begun rightly counts, too.
        digits, wanted = part.replace("-", ""), missing.replace("-", "").lower()
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
    new_tokens = (128, 4)
    question_form = (
        r"What (?:is|are all) the special magic (\w+?)s? for (.+?) "
        r"mentioned in the provided text\?"
    )
    failure_rules = (
        Rule(
            "near distractor",
            f"The value of another key whose needle stands within {NEAR} tokens of the one asked "
            "for.",
            partial(_value_of_other_key, within=NEAR),
        ),
        Rule("other key", "The value of another key, from farther away.", _value_of_other_key),
        Rule(
            "incomplete uuid",
            "A part of the UUID asked for, not all of its 32 digits.",
            _incomplete_uuid,
        ),
    )

    haystack: Literal["essay", "noise", "needle"] = "essay"
    key: Kind = "words"
    value: Kind = "numbers"
    num_keys: int = 1
    """Needles with different keys; `haystack: needle` fills the whole context with such needles."""
    num_values: int = 1
    num_queries: int = 1
    essays: str = "paul_graham"
    """The corpus behind `haystack: essay`: `paul_graham`, `prose` (its stand-in) or a path."""
    words: str = "wonderwords"
    """The list behind keys and values that are words: `wonderwords` or a path."""
    depths: Literal["free", "even"] = "free"
    """`free` draws depths evenly from 0 to 100 %; `even` takes upstream's 40 fixed depths, as the
    protocols `paper` and `upstream` do in essays."""
    depth: float | None = None
    """Percent of the context at which every needle asked for stands, instead of `depths`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most_needles = _EVEN_DEPTHS if self._even_depths else MOST
        self.check(
            max(self.num_keys, self.num_queries) * self.num_values <= most_needles,
            "num_keys",
            f"such that it and num_queries ask for at most {most_needles} needles in all, "
            "num_values for "
            "each (`depths: even` and `protocol: paper` or `upstream` have 40 places)",
        )
        in_range = type(self.depth) in (int, float) and 0 <= float(self.depth or 0) <= 100
        self.check(self.depth is None or in_range, "depth", "percent of the context, 0 to 100")

    @property
    def num_items(self) -> int:
        return self.num_queries * self.num_values

    def settings(self) -> dict[str, Any]:
        settings = super().settings()
        if self.depth is None:  # a record names only a depth that was asked for
            del settings["depth"]
        return settings

    @property
    def corpora(self) -> tuple[tuple[str, str], ...]:
        # A task that does not read a corpus does not depend on which one is chosen.
        read = self.haystack == "essay", "words" in (self.key, self.value)
        return tuple(compress((("essay", "essays"), ("words", "words")), read))

    def draft(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        draw = partial(_draw, random, load("words", self.words))
        keys = distinct(max(self.num_keys, self.num_queries), partial(draw, self.key))
        values = distinct(len(keys) * self.num_values, partial(draw, self.value))
        queried = random.sample(keys, self.num_queries)

        # A needle for each value; `depth` moves only those that are asked for.
        needles = []
        depths = self._depths(random, len(values))
        if self.protocol != "clean":
            depths = self._in_upstreams_order(depths, stream.seed)
        for number, (value, depth) in enumerate(zip(values, depths, strict=True)):
            key, role = keys[number // self.num_values], "distractor"
            if key in queried:
                role = "needle"
                depth = depth if self.depth is None else self.depth / 100
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
        return Draft(
            instruction=opening,
            question=question,
            answer_prefix=prefix,
            references=tuple(
                str(needle.value) for key in queried for needle in needles if needle.key == key
            ),
            plan=needles,
        )

    def growth(self, draft: Draft, length: int) -> Growth:
        step = _LINES_ADDED if length >= _SHORT else _FEW_LINES_ADDED
        if self.haystack == "essay":
            step = _WORDS_ADDED
        if self.protocol != "paper":
            return Growth(step, step, searched=True, draws=_DRAWS)
        answer = " ".join(draft.references)
        return Growth(step, step, answer=answer, draws=_DRAWS)

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        return self._filled(draft, budget)

    def fill_with(self, draft: Draft, budget: ContextBudget, size: int) -> list[Piece] | None:
        return self._filled(draft, budget, size)

    def _filled(
        self, draft: Draft, budget: ContextBudget, size: int | None = None
    ) -> list[Piece] | None:
        """The haystack with the needles: as much as fits, or so many words or lines."""
        if self.haystack == "essay":
            essays = load("essay", self.essays)
            return fill_with_essay(draft.plan, budget, essays, size)
        lines = [replace(needle, text=needle.text + "\n") for needle in draft.plan]
        if self.haystack == "noise":
            return fill_with_sentences(lines, budget, size=size)
        before, between, end = NEEDLE.format(types=self.value, key="|", value="|").split("|")

        # Lines of needles are made of the texts around key and value, and of pools of both.
        words = load("words", self.words)
        keys = _pool(self.key, words, budget.length, "", budget.encoder)
        values = _pool(self.value, words, budget.length, end + "\n", budget.encoder)
        return fill_with_needles(
            lines,
            budget,
            (before.rstrip(), between.rstrip()),
            keys,
            values,
            (
                [f" {needle.key}" for needle in draft.plan],
                [f" {needle.value}{end}\n" for needle in draft.plan],
            ),
            size,
        )

    @staticmethod
    def read_context(text: str, question: re.Match[str]) -> Reading:
        kind, query = question.groups()
        queries = re.split(r", and |, ", query)

        # A reader knows the form of a needle, and nothing else.
        needle = re.compile(rf"special magic {kind}s for (.+?) is: (?P<item>[^.\n]+)\.")
        needles = needle.findall(text)
        return Reading(
            "niah",
            items=[value for query_key in queries for key, value in needles if key == query_key],
            others=[value for key, value in needles if key not in queries],
            occurrences=partial(needle.finditer, text),
            empty="not found",
        )

    @property
    def _even_depths(self) -> bool:
        return self.depths == "even" or (self.protocol != "clean" and self.haystack == "essay")

    def _in_upstreams_order(self, depths: list[float], seed: int) -> list[float]:
        """The depths of the needles, whose order in the text is one for all examples: upstream
        shuffles them with one seed, and counts the places of lines from the end."""
        places = sorted(depths, reverse=self.haystack != "essay")
        order = shuffled_alike(len(depths), seed)
        ranked = dict(zip(order, places, strict=True))
        return [ranked[number] for number in range(len(depths))]

    def _depths(self, random: Random, count: int) -> list[float]:
        if not self._even_depths:
            # Ours: anywhere, evenly.
            return [random.random() for _ in range(count)]
        steps = random.sample(range(_EVEN_DEPTHS), count)
        depths = [step / (_EVEN_DEPTHS - 1) for step in steps]
        # Upstream rounds its depths to whole percents.
        if self.protocol != "clean":
            depths = [round(100 * depth) / 100 for depth in depths]
        return depths


# --- keys and values ------------------------------------------------------------------------------


def draw_pair(random: Random, words: Words) -> str:
    """An adjective and a noun, joined by a hyphen."""
    return f"{random.choice(words.adjectives)}-{random.choice(words.nouns)}"


def _draw(random: Random, words: Words, kind: Kind) -> str:
    if kind == "numbers":
        return str(random.randrange(10**6, 10**7))
    if kind == "uuids":
        return str(uuid.UUID(int=random.getrandbits(128), version=4))
    return draw_pair(random, words)


@lru_cache(maxsize=16)
def _pool(kind: Kind, words: Words, length: int, ending: str, encoder: PieceEncoder) -> Units:
    """The first keys or values of an endless row, with their counts: twice as many as any context
    of `length` holds."""
    size = pool_size(length, 32 if kind == "uuids" else 8)
    texts = distinct(size, partial(_draw, Random(f"pool of {kind}"), words, kind))
    return encode_units([f" {text}{ending}" for text in texts], encoder)

"""Needle in a haystack (paper, section 3.1): eight of the thirteen tasks."""

import re
import uuid
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from random import Random
from typing import ClassVar, Self

from rulerkit.corpora import Source, load_haystack, load_words
from rulerkit.example import ContextBudget, Draft, ExampleStream, Passage, Piece
from rulerkit.pieces import PieceEncoder, Units, encode_units
from rulerkit.tasks.base import (
    MOST,
    JudgedAnswer,
    Reading,
    Rule,
    Task,
    distinct,
    in_proportion,
    named_items,
    too_short,
)
from rulerkit.tasks.haystacks import (
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
_KINDS = ("words", "numbers", "uuids")
NEAR = 256
"""How many tokens from the needle asked for a distractor may stand to be near it: about ten lines
of needles."""
_SHORTEST_UUID = 8
NEEDLE = "One of the special magic {types} for {key} is: {value}."


@dataclass(frozen=True, kw_only=True)
class Needles(Task):
    """Retrieve the values of the queried keys from essays, repeated sentences, or a haystack made
    of other needles."""

    family = "niah"
    category = "niah"
    corpus_knob = "essays"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "haystack": ("essay", "noise", "needle"),
        "key": _KINDS,
        "value": _KINDS,
        "depths": ("free", "even"),
    }

    short_name = "niah"
    answer_prefix_form = r"mentioned in the provided text (?:is|are)"
    failure_rules = (
        Rule(
            "near distractor",
            f"The value of another key whose needle stands within {NEAR} tokens of the one asked "
            "for.",
            lambda answer: _value_of_other_key(answer, NEAR),
        ),
        Rule(
            "other key",
            "The value of another key, from farther away.",
            lambda answer: _value_of_other_key(answer),
        ),
        Rule(
            "incomplete uuid",
            "A part of the UUID asked for, not all of its 32 digits.",
            lambda answer: _incomplete_uuid(answer),
        ),
    )

    haystack: str = "essay"
    key: str = "words"
    value: str = "numbers"
    num_keys: int = 1
    """Needles with different keys; `haystack: needle` fills the whole context with such needles."""
    num_values: int = 1
    num_queries: int = 1
    essays: str = "paul_graham"
    """The corpus behind `haystack: essay`: `paul_graham` or `prose`, its stand-in."""
    depths: str = "free"
    """`free` draws depths evenly from 0 to 100 %; `even` takes upstream's 40 fixed depths, as the
    protocol `paper` does in essays."""

    def __post_init__(self) -> None:
        super().__post_init__()
        most = _EVEN_DEPTHS if self._even_depths else MOST
        self.check(
            max(self.num_keys, self.num_queries) * self.num_values <= most,
            "num_keys",
            f"such that it and num_queries ask for at most {most} needles in all, num_values for "
            "each (`depths: even` and `protocol: paper` have 40 places)",
        )

    @property
    def default_new_tokens(self) -> int:
        return in_proportion(128, self.num_queries * self.num_values, 4)

    def with_corpora(self, kind: str) -> Self:
        return super().with_corpora(kind) if self.haystack == "essay" else self

    def sources(self) -> dict[str, Source]:
        return {"essays": load_haystack(self.essays).source} if self.haystack == "essay" else {}

    def draft(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        keys = distinct(max(self.num_keys, self.num_queries), partial(_draw, random, self.key))
        drawn = distinct(len(keys) * self.num_values, partial(_draw, random, self.value))
        queries = random.sample(range(len(keys)), self.num_queries)
        values = [drawn[k * self.num_values : (k + 1) * self.num_values] for k in range(len(keys))]
        depths = iter(self._depths(random, len(drawn)))
        needles = [
            Passage(
                "needle" if k in queries else "distractor",
                NEEDLE.format(types=self.value, key=key, value=value),
                key,
                value,
                next(depths),
            )
            for k, key in enumerate(keys)
            for value in values[k]
        ]
        *asked, last = [keys[k] for k in queries]
        query = f"{', '.join(asked)}, and {last}" if asked else last
        forms = _ONE if self.num_queries * self.num_values == 1 else _SEVERAL
        opening, question, prefix = (
            form.format(type=self.value[:-1], types=self.value, query=query) for form in forms
        )
        return Draft(
            head=(Passage("instruction", opening),),
            tail=(Passage("question", question),),
            answer_prefix=prefix,
            references=tuple(value for k in queries for value in values[k]),
            plan=needles,
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece]:
        lines = [replace(needle, text=needle.text + "\n") for needle in draft.plan]
        if self.haystack == "essay":
            pieces = fill_with_essay(draft.plan, budget, self.essays)
        elif self.haystack == "noise":
            pieces = fill_with_sentences(lines, budget)
        else:
            first, second, end = NEEDLE.format(types=self.value, key="|", value="|").split("|")
            keys = _pool(self.key, budget.length, "", budget.encoder)
            values = _pool(self.value, budget.length, end + "\n", budget.encoder)
            before = (first.rstrip(), second.rstrip())
            pieces = fill_with_needles(lines, budget, before, keys, values)
        if pieces is None:
            raise too_short(self, budget, lines)
        return pieces

    @staticmethod
    def read(text: str) -> Reading | None:
        form = r"What (?:is|are all) the special magic (\w+?)s? for (.+?) mentioned in the provided text\?"
        questions = re.findall(form, text)
        if not questions:
            return None
        kind, query = questions[-1]
        asked = re.split(r", and |, ", query)
        needle = re.compile(rf"special magic {kind}s for (.+?) is: (?P<item>[^.\n]+)\.")
        needles = needle.findall(text)
        return Reading(
            "niah",
            items=[value for wanted in asked for key, value in needles if key == wanted],
            others=[value for key, value in needles if key not in asked],
            occurrences=partial(needle.finditer, text),
            empty="not found",
        )

    @property
    def _even_depths(self) -> bool:
        return self.depths == "even" or (self.protocol == "paper" and self.haystack == "essay")

    def _depths(self, random: Random, count: int) -> list[float]:
        if not self._even_depths:
            return [random.random() for _ in range(count)]
        return [step / (_EVEN_DEPTHS - 1) for step in random.sample(range(_EVEN_DEPTHS), count)]


# --- failures -------------------------------------------------------------------------------------


def _value_of_other_key(answer: JudgedAnswer, within: int | None = None) -> str | None:
    """The value of a key not asked for that was written, nearest to a needle that was missed."""
    written = {*answer.words, *(item.strip(".") for item in named_items(answer.text))}
    missed = [
        start
        for piece, start in answer.needles
        if piece.role == "needle" and piece.value in answer.missing
    ]
    distances = [
        (min(abs(start - needle) for needle in missed), str(piece.value))
        for piece, start in answer.needles
        if missed and piece.role == "distractor" and (piece.value or "").lower() in written
    ]
    distance, value = min(distances, key=lambda pair: pair[0], default=(None, ""))
    if distance is None or (within is not None and distance > within):
        return None
    return f"{value}, {distance} tokens from the needle"


def _incomplete_uuid(answer: JudgedAnswer) -> str | None:
    wanted = [
        r.replace("-", "").lower() for r in answer.missing if re.fullmatch(r"[0-9a-fA-F-]{36}", r)
    ]
    for run in re.findall(rf"[0-9a-f-]{{{_SHORTEST_UUID},}}", answer.text.lower()):
        digits = run.replace("-", "")
        for whole in wanted:
            if len(digits) < len(whole) and (
                digits in whole or digits[:_SHORTEST_UUID] == whole[:_SHORTEST_UUID]
            ):
                return str(run)
    return None


# --- keys and values ------------------------------------------------------------------------------


@cache
def _key_words() -> tuple[list[str], list[str]]:
    words = load_words()
    return sorted(set(words.adjectives)), sorted(set(words.nouns))


def draw_pair(random: Random) -> str:
    """An adjective and a noun, joined by a hyphen."""
    return "-".join(words[random.randrange(len(words))] for words in _key_words())


def _draw(random: Random, kind: str) -> str:
    if kind == "numbers":
        return str(random.randrange(10**6, 10**7))
    if kind == "uuids":
        return str(uuid.UUID(int=random.getrandbits(128), version=4))
    return draw_pair(random)


@lru_cache(maxsize=16)
def _pool(kind: str, length: int, ending: str, encoder: PieceEncoder) -> Units:
    """The first keys or values of an endless row, with their counts: twice as many as any context
    of `length` holds."""
    texts = _pool_texts(kind, pool_size(length, 32 if kind == "uuids" else 8))
    return encode_units([f" {text}{ending}" for text in texts], encoder, keep=True)


@lru_cache(maxsize=16)
def _pool_texts(kind: str, size: int) -> list[str]:
    return distinct(size, partial(_draw, Random(f"pool of {kind}"), kind))

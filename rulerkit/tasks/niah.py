"""Needle in a haystack (paper, section 3.1): eight of the thirteen tasks."""

import re
import uuid
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from random import Random
from typing import ClassVar, Self

import numpy as np

from rulerkit.corpora import Source, load_haystack, load_words
from rulerkit.errors import UserError
from rulerkit.example import ContextBudget, Draft, ExampleStream, Passage, Piece, passage
from rulerkit.pieces import PieceEncoder, Units
from rulerkit.tasks.base import (
    MOST,
    JudgedAnswer,
    Reading,
    Rule,
    Task,
    cached_units,
    in_proportion,
    named_items,
    too_short,
)
from rulerkit.tasks.haystacks import PlacedPassage, fill_with_lines, fill_with_sentences, pool_size

_ONE = (
    "A special magic {type} is hidden within the following text. Make sure to memorize it. I will "
    "quiz you about the "
    "{type} afterwards.\n",
    "What is the special magic {type} for {query} mentioned in the provided text?",
    " The special magic {type} for {query} mentioned in the provided text is",
)
_SEVERAL = (
    "Some special magic {types} are hidden within the following text. Make sure to memorize it. I "
    "will quiz you about the "
    "{types} afterwards.\n",
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

    family: ClassVar[str] = "niah"
    category: ClassVar[str] = "niah"
    match: ClassVar[str] = "all"
    corpus_knob: ClassVar[str | None] = "essays"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "haystack": ("essay", "noise", "needle"),
        "key": _KINDS,
        "value": _KINDS,
        "depths": ("free", "even"),
    }

    short_name: ClassVar[str] = "niah"
    answer_prefix_form: ClassVar[str] = r"mentioned in the provided text (?:is|are)"
    failure_rules: ClassVar[tuple[Rule, ...]] = (
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
        needles = max(self.num_keys, self.num_queries) * self.num_values
        self._check_items("num_keys, num_queries and num_values", needles, MOST)
        if self._even_depths and needles > _EVEN_DEPTHS:
            raise UserError(
                f"{self.name} has {needles} needles: `depths: even` and `protocol: paper` have "
                f"places for {_EVEN_DEPTHS}; "
                "ask for fewer"
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
        keys = _distinct(random, self.key, max(self.num_keys, self.num_queries))
        values = _distinct(random, self.value, len(keys) * self.num_values)
        queries = random.sample(range(len(keys)), self.num_queries)
        needles = [
            (k, values[k * self.num_values + v])
            for k in range(len(keys))
            for v in range(self.num_values)
        ]
        items = []
        for depth, (k, value) in zip(self._depths(random, len(needles)), needles, strict=True):
            text = NEEDLE.format(types=self.value, key=keys[k], value=value)
            role = "needle" if k in queries else "distractor"
            items.append(PlacedPassage(depth, passage(role, text, key=keys[k], value=value)))
        asked = [keys[k] for k in queries]
        query = asked[0] if len(asked) == 1 else ", ".join(asked[:-1]) + ", and " + asked[-1]
        forms = _ONE if self.num_queries * self.num_values == 1 else _SEVERAL
        opening, question, prefix = (
            f.format(type=self.value[:-1], types=self.value, query=query) for f in forms
        )
        references = tuple(
            values[k * self.num_values + v] for k in queries for v in range(self.num_values)
        )
        head, tail = (passage("instruction", opening),), (passage("question", question),)
        return Draft(head, tail, prefix, references, items)

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece]:
        items: list[PlacedPassage] = draft.plan
        if self.haystack == "essay":
            pieces = fill_with_essay(items, budget, self.essays)
        else:
            lines = [PlacedPassage(i.depth, _line(i.passage)) for i in items]
            if self.haystack == "noise":
                pieces = fill_with_sentences(lines, budget)
            else:
                frame = NEEDLE.format(types=self.value, key="\0", value="\0").split("\0")
                keys = _pool(self.key, budget.length, "", budget.encoder)
                values = _pool(self.value, budget.length, frame[2] + "\n", budget.encoder)
                pieces = fill_with_lines(
                    lines, budget, (frame[0].rstrip(), frame[1].rstrip()), keys, values
                )
        if pieces is None:
            raise too_short(
                self, budget, sum(budget.piece(_line(item.passage)).num_tokens for item in items)
            )
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


def _line(needle: Passage) -> Passage:
    return Passage(
        needle.role, (*needle.parts[:-1], needle.parts[-1] + "\n"), needle.key, needle.value
    )


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


def _one(random: Random, kind: str) -> str:
    if kind == "numbers":
        return str(random.randrange(10**6, 10**7))
    if kind == "uuids":
        return str(uuid.UUID(int=random.getrandbits(128), version=4))
    adjectives, nouns = _key_words()
    return f"{adjectives[random.randrange(len(adjectives))]}-{nouns[random.randrange(len(nouns))]}"


def _distinct(random: Random, kind: str, count: int) -> list[str]:
    """Keys or values, none twice (upstream draws with replacement)."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[_one(random, kind)] = None
    return list(found)


@lru_cache(maxsize=16)
def _pool(kind: str, length: int, ending: str, encoder: PieceEncoder) -> Units:
    """The first keys or values of an endless row, with their counts: twice as many as any context
    of `length` holds."""
    size = pool_size(length, 32 if kind == "uuids" else 8)
    return cached_units([f" {text}{ending}" for text in _pool_texts(kind, size)], encoder)


@lru_cache(maxsize=16)
def _pool_texts(kind: str, size: int) -> list[str]:
    return _distinct(Random(f"pool of {kind}"), kind, size)


# --- essays ---------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _essay_units(name: str, encoder: PieceEncoder, passes: int) -> tuple[Units, np.ndarray]:
    """The words of a corpus, each with the blank before it, and where sentences start; later passes
    begin at the second essay, so that the opening comes only once."""
    corpus = load_haystack(name)
    words, starts = list(corpus.words), [np.asarray(corpus.sentence_starts)]
    again = starts[0][starts[0] >= corpus.restart]
    for _ in range(passes - 1):
        starts.append(again - corpus.restart + len(words))
        words += corpus.words[corpus.restart :]
    return cached_units([" " + word for word in words], encoder), np.concatenate(starts)


def fill_with_essay(
    items: list[PlacedPassage], budget: ContextBudget, corpus: str
) -> list[Piece] | None:
    """As many words of the essays as fit, with each needle at the sentence boundary nearest to its
    depth in tokens."""
    encoder, passes = budget.encoder, 1
    units, starts = _essay_units(corpus, encoder, passes)
    while units.offsets[-1] < budget.tokens:
        passes *= 2
        units, starts = _essay_units(corpus, encoder, passes)
    items = sorted(items, key=lambda item: item.depth)
    needles = sum(len(encoder(" " + item.passage.text)) for item in items)
    words = int(np.searchsorted(units.offsets, budget.tokens - needles, side="right")) + 2
    while (words := words - 1) >= 0:
        boundaries = _boundaries(items, units, starts, words)
        ends = _at_the_ends(items, boundaries, units, words, encoder)
        if int(units.offsets[words]) + needles + ends <= budget.tokens:
            return _with_needles(items, boundaries, units, words, encoder)
    return None


def _at_the_ends(
    items: list[PlacedPassage],
    boundaries: list[int],
    units: Units,
    words: int,
    encoder: PieceEncoder,
) -> int:
    """How many tokens more the context has because it begins without a blank and ends with a
    newline."""
    texts = [units.texts[0], units.texts[words - 1]] if words else ["", ""]
    if items and (not words or boundaries[0] == 0):
        texts[0] = " " + items[0].passage.text
    if items and (not words or boundaries[-1] == words):
        texts[1] = " " + items[-1].passage.text
    first, last = texts
    if words + len(items) <= 1:
        return len(encoder(first[1:] + "\n")) - len(encoder(first))
    return (
        len(encoder(first[1:]))
        - len(encoder(first))
        + len(encoder(last + "\n"))
        - len(encoder(last))
    )


def _boundaries(
    items: list[PlacedPassage], units: Units, starts: np.ndarray, words: int
) -> list[int]:
    """For each needle the word before which it stands: distinct boundaries while there are
    enough."""
    allowed = np.append(starts[: np.searchsorted(starts, words)], words)
    at = units.offsets[allowed]
    nearest = []
    for item in items:
        target = item.depth * at[-1]
        right = min(int(np.searchsorted(at, target)), len(at) - 1)
        nearest.append(
            right - 1 if right and target - at[right - 1] < at[right] - target else right
        )
    if len(items) <= len(allowed):
        for i in range(1, len(nearest)):
            nearest[i] = max(nearest[i], nearest[i - 1] + 1)
        for i in range(len(nearest) - 1, -1, -1):
            nearest[i] = min(nearest[i], len(allowed) - (len(nearest) - i))
    return [int(allowed[i]) for i in nearest]


def _with_needles(
    items: list[PlacedPassage],
    boundaries: list[int],
    units: Units,
    words: int,
    encoder: PieceEncoder,
) -> list[Piece]:
    """Essay and needles in turn, joined by blanks; the last of them ends with the newline before
    the question."""
    pieces: list[Piece] = []
    at = 0
    for item, boundary in zip(items, boundaries, strict=True):
        if boundary > at:
            pieces.append(_stretch(units, at, boundary, encoder, first=not pieces, last=False))
        needle, last = item.passage, boundary == words and item is items[-1]
        text = (" " if pieces else "") + needle.text + ("\n" if last else "")
        pieces.append(Piece(text, needle.role, encoder(text), needle.key, needle.value))
        at = boundary
    if words > at:
        pieces.append(_stretch(units, at, words, encoder, first=not pieces, last=True))
    return pieces


def _stretch(
    units: Units, start: int, stop: int, encoder: PieceEncoder, first: bool, last: bool
) -> Piece:
    """The words from `start` up to `stop`; without the blank before the first, with a newline
    behind the last."""
    text, ids = units.text(start, stop), units.span(start, stop)
    if first and last and stop - start == 1:
        text = text[1:] + "\n"
        return Piece(text, "haystack", encoder(text))
    if first:
        text = text[1:]
        ids = np.concatenate([encoder(units.texts[start][1:]), ids[units.counts[start] :]])
    if last:
        text += "\n"
        ids = np.concatenate(
            [ids[: len(ids) - units.counts[stop - 1]], encoder(units.texts[stop - 1] + "\n")]
        )
    return Piece(text, "haystack", ids)

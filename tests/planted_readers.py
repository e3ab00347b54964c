"""Reference readers with planted effects: faults of known size that make a reader err as real models
do (paper, section 5); tables, figures and claims must then show them.

A plug-in: `plugins: [tests.planted_readers]`. The readers of `planted/params/models` come with it.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Literal, NamedTuple

import numpy as np

from rulerkit.common.settings import Length, ReaderKeys, Share, Tokens
from rulerkit.generation.example import copy_beginning
from rulerkit.generation.prompt_format import DIRECT
from rulerkit.generation.tasks import all_families
from rulerkit.generation.tasks.base import Task
from rulerkit.generation.tasks.common_words import WordCount
from rulerkit.inference.readers import Reader, window_words

project = Path(__file__).parent / "planted"

_CHUNK = 64
_COPIED_WORDS = 40
_MARKS = 8  # tokens that the marks of a thought may take
_NEIGHBOURS = 2
"""How many values on either side of an item `_confuse` chooses from."""


class PlantedKeys(ReaderKeys):
    """Reference readers with planted effects."""

    copies: Share
    """a share from 0 to 1: how often it answers with the demonstration's answer"""
    copy_from: Tokens
    """a number of tokens: it does not copy in shorter prompts"""
    fade: Length
    """a number of tokens (at least 1): at this distance from the end it finds half of the items"""
    drop: Share
    """a share from 0 to 1: how often it leaves out an item of an answer"""
    thought: Length
    """a number of tokens (at least 1): each so many tokens of thought halve the share `drop`"""
    confuse: Share
    """a share from 0 to 1: how often it takes a neighbouring item instead, where there is one"""
    memory: Share
    """a share from 0 to 1: of the questions about documents, those answered without reading"""
    floor: Literal["copy"]
    """copy: it does not read, and answers with the beginning of the context"""


KEYS = ("copies", "copy_from", "fade", "drop", "thought", "confuse", "memory", "floor")


class Planted(Reader):
    """A reader with the effects of its spec. Its answers and records are those of engine `reader`,
    which had these effects once."""

    keys = PlantedKeys

    def __init__(self, spec):
        super().__init__(spec)
        self.engine = "reader"
        self._thought = spec.get("thinking_tokens", 0)

    def identity(self):
        return super().identity() | self.given(KEYS)

    def answer_text(self, example):
        """The answer, with the thought before it where the reader thinks."""
        text = self._text_after_thought(example)
        if "thought" in self.spec and self._thought > _MARKS:
            thought = " hm" * (self._thought - _MARKS)
            text = f"<think>{thought}</think>{text}"
        return text

    def _text_after_thought(self, example):
        tokenizer = self.prompt_format.tokenizer
        if "floor" in self.spec:
            return copy_beginning(example, tokenizer)
        ids = self.visible(example)
        text = tokenizer.decode(ids) if len(ids) else ""
        if (reading := read(text)) is None:
            return ""

        # Each effect has a random stream of its own, keyed by the text that was read: answers
        # repeat exactly in every process, and effects are independent of each other.
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        distances = partial(tokens_to_end, ids, tokenizer)
        for key, (effect, _) in _EFFECTS.items():
            too_short = key == "copies" and len(ids) < self.spec.get("copy_from", 0)
            if key in self.spec and isinstance(reading, Reading) and not too_short:
                random, size = Random(f"{self.name}/{key}/{digest}"), self.spec[key]
                if key == "drop" and "thought" in self.spec:
                    size *= 2 ** (-self._thought / self.spec["thought"])
                reading = effect(reading, size, random, distances)
        return reading.text

    def _label(self):
        """The name of a reader in tables and figures: what is wrong with it."""
        if "floor" in self.spec:
            return "floor (beginning copied)"
        effects = [(words, self.spec.get(key)) for key, (_, words) in _EFFECTS.items()]
        parts = [words.format(tokens=n, percent=100 * n) for words, n in effects if n is not None]
        if not parts:
            return super()._label()
        if self.window is not None:
            parts.insert(0, window_words(self.window))
        return f"reader ({', '.join(parts)})"


engines = {"planted": Planted}


def tokens_to_end(ids, tokenizer, positions):
    """How many tokens before the end of a prompt these characters stand, to a few tokens."""
    # Decoding token by token would take far longer; chunks are near enough.
    starts = range(0, len(ids), _CHUNK)
    characters = [len(tokenizer.decode(ids[start : start + _CHUNK])) for start in starts]
    before = np.interp(positions, [0, *accumulate(characters)], [*starts, len(ids)])
    return [len(ids) - tokens for tokens in before]


@dataclass(frozen=True)
class Reading:
    """What a prompt asks: the items of its answer, what could be confused with them, and at which
    character each of these stands: the mean for a word that occurs often, 0 for one that occurs
    nowhere (yes and no are answers of HotpotQA)."""

    family: type[Task]
    items: Sequence[str]
    others: Sequence[str]
    places: Mapping[str, int]
    copied: str
    """The answer of the solved example, or else the beginning of the context."""
    question: str

    @property
    def text(self):
        return self.family.join(self.items) or self.family.nothing


_OPENINGS = {"variable_tracking": "Memorize and track", "common_words": "Memorize the ones"}


def read(text):
    """The reading of a prompt of any family; None where the text is none."""
    readings = [(family, family.read(text)) for family in all_families()]
    family, items = next(((f, items) for f, items in readings if items is not None), (None, []))
    if family is None:
        return None
    asked = list(re.finditer(family.question_form, text))[-1]

    # The last opening is that of the question; a solved example may stand before it.
    opening = text.rfind(_OPENINGS.get(family.family, "coded words."))
    start = max(0, opening)
    context = text[start : asked.start()]
    patterns = {
        "niah": r"special magic \w+s for .+? is: (?P<item>[^.\n]+)\.",
        "variable_tracking": r"VAR (?P<item>[A-Z]+) = \S",
    }
    one_of_items = f"(?P<item>{'|'.join(map(re.escape, items)) or '(?!)'})"
    counted = family.entry if issubclass(family, WordCount) else one_of_items
    pattern = patterns.get(family.family, counted)
    starts = defaultdict(list)
    for match in re.finditer(pattern, context):
        starts[match["item"]].append(start + match.start())

    # Of the words of a list or text the most frequent ones could be confused.
    others = sorted(set(starts) - set(items), key=lambda one: (-len(starts[one]), starts[one][0]))
    others = others if family.family in patterns else others[: len(items)]
    places = {one: int(np.mean(starts[one] or [0])) for one in (*items, *others)}
    copied = ""
    if family.family in _OPENINGS:
        shown = text[:start].rpartition(":")[2].split()
        beginning = context.partition("\n")[2].split() if opening >= 0 else []
        copied = " ".join(shown or beginning[:_COPIED_WORDS])
    said = next(iter(asked.groups("")), "")
    question = re.split(rf"{re.escape(DIRECT)}| Answer:|<\|", said)[0].strip()
    return Reading(family, items, others, places, copied, question)


class Fixed(NamedTuple):
    """An answer that stands in place of what was read; no other effect changes it."""

    text: str


def _copy(reading, share, random, distances):
    """Answers with the demonstration's answer; without a demonstration, with the beginning of the
    context."""
    return Fixed(reading.copied) if reading.copied and random.random() < share else reading


def _fade(reading, half, random, distances):
    """Finds an item that stands d tokens before the end with probability 2 ** (-d / half)."""
    away = distances([reading.places[item] for item in reading.items])
    items = [
        item
        for item, tokens in zip(reading.items, away, strict=True)
        if random.random() < 2 ** (-tokens / half)
    ]
    return replace(reading, items=items)


def _drop(reading, share, random, distances):
    """Leaves out each item with the same probability."""
    return replace(reading, items=[item for item in reading.items if random.random() >= share])


def _confuse(reading, share, random, distances):
    """Replaces an item by one of its nearest neighbours: another key's value (for several values,
    also one already given), another chain's variable, a less frequent word."""
    given = []

    # Values that were given stay candidates only where one key has several values.
    for item in reading.items:
        confused = random.random() < share
        repeatable = given if reading.family.family == "niah" else []
        others = [*repeatable, *(other for other in reading.others if other not in given)]
        near = _nearest(item, others, reading.places)
        given.append(random.choice(near) if confused and near else item)
    return replace(reading, items=given)


def _remember(reading, share, random, distances):
    """Answers a share of the invented questions from memory; where it reads no answer, it guesses,
    always the same."""
    if reading.question not in _answers():
        return reading
    answer, guess = _remembered(reading.question)
    if Random(f"known/{reading.question}").random() < share:
        return Fixed(answer)
    return reading if reading.items else Fixed(guess)


_EFFECTS = {
    "copies": (_copy, "copies {percent:g}%"),
    "fade": (_fade, "fades by half every {tokens} tokens"),
    "drop": (_drop, "drops {percent:g}%"),
    "confuse": (_confuse, "confuses {percent:g}%"),
    "memory": (_remember, "remembers {percent:g}%"),
}
"""Key of a spec -> its effect and the words of a label, in the order in which effects apply."""


def _nearest(item, others, positions):
    """The others that stand nearest to an item, at most `_NEIGHBOURS` on either side."""
    place = positions[item]
    nearest = sorted(others, key=lambda other: abs(positions[other] - place))
    before = [other for other in nearest if positions[other] < place]
    after = [other for other in nearest if positions[other] >= place]
    return before[:_NEIGHBOURS] + after[:_NEIGHBOURS]


@cache
def _answers():
    """All questions of the invented worlds with their answers."""
    from rulerkit.generation.corpora import load

    questions = [*load("qa", "fictional").questions, *load("qa", "fictional_two_hop").questions]
    return {question.text: question.answers for question in questions}


@cache
def _remembered(question):
    """The answer to a question, and the wrong guess of a reader that does not know it: another
    question's answer."""
    # The guess must be wrong, and must not hold the answer by chance either.
    answers, random = _answers()[question], Random(f"guess/{question}")
    others = list(_answers().values())
    while True:
        guess = random.choice(others)[0]
        if not any(answer.lower() in guess.lower() for answer in answers):
            return answers[0], guess

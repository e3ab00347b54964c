"""Endless prose: the `essay` haystack that needs no download and no licence; and the dice that all stand-ins share.

Sentence forms and words are a data file of this package. Random choices use `random()` alone, whose stream Python
keeps from version to version, so every machine writes the same text.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from random import Random
from typing import TypeVar

T = TypeVar("T")

_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")
_SLOT = re.compile(r"\{(\w+?)2?\}")
_ALTERNATIVES = ("adj", "abstract", "time", "timeof", "tail", "view", "folk", "relative")
_SENTENCE_WORDS = range(6, 31)
_MEMORY = 100_000  # sentences remembered, so that none comes back soon


class Dice:
    """Random choices from one stream, the same on every machine and Python version."""

    def __init__(self, seed: str) -> None:
        self.random = Random(seed).random

    def below(self, n: int) -> int:
        return int(self.random() * n)

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self.random() * len(items))]

    def some(self, items: Sequence[T], n: int) -> list[T]:
        """n distinct items (all, if there are fewer) in random order."""
        pool = list(items)
        n = min(n, len(pool))
        for i in range(n):
            j = i + self.below(len(pool) - i)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:n]


class Form:
    """A sentence with {slots}, each filled from the word list of that name; `{word2}` fills `{word}` a second time."""

    def __init__(self, text: str) -> None:
        self.slots: list[str] = _SLOT.findall(text)
        self.template = _SLOT.sub("%s", text)

    def fill(self, words: dict[str, Sequence[str]], random: Dice) -> str:
        """The sentence with words from the lists, no word twice."""
        pick = random.pick
        while True:
            chosen = [pick(words[slot]) for slot in self.slots]
            if len(set(chosen)) == len(chosen):
                sentence = _ARTICLE.sub(r"\1n ", self.template % tuple(chosen))
                return sentence[0].upper() + sentence[1:]


def sections(name: str) -> dict[str, list[str]]:
    """A data file of the package: the lines under each [heading], in order."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in (resources.files("rulerkit") / "data" / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


def listed(line: str) -> list[str]:
    """The entries of a line, between semicolons if it has any, else between commas."""
    return [entry.strip() for entry in line.split(";" if ";" in line else ",")]


@cache
def prose_tables() -> tuple[dict[str, list[Form]], dict[str, Sequence[str]], list[dict[str, Sequence[str]]]]:
    """Sentence forms by place in the paragraph, the words that any topic uses, and each topic's own words."""
    table = sections("prose.txt")
    forms = {place: [Form(line) for line in table[place]] for place in ("open", "body", "thought", "close")}
    forms["longer"] = [Form(line) for line in _longer(table["body"])]
    shared: dict[str, Sequence[str]] = {name: listed(table[name][0]) for name in _ALTERNATIVES}
    topics: list[dict[str, Sequence[str]]] = []
    for heading, lines in table.items():
        if heading.startswith("topic "):
            topics.append({name: listed(words) for name, words in (line.split(": ", 1) for line in lines)})
    return forms, shared, topics


def _longer(lines: list[str]) -> Iterator[str]:
    """Longer forms of plain sentences: with a clause behind, with a view or a time before."""
    for line in lines:
        if "{tail}" not in line and ";" not in line:
            yield f"{line[:-1]}, {{tail}}."
        if not line.startswith(("{", "I ")):
            start = line[0].lower() + line[1:]
            yield from (f"{{view}} {start}", f"{{time}}, {start}")


def prose_essays(seed: str = "prose") -> Iterator[list[str]]:
    """Essays without end, each a list of sentences (6 to 30 words) on one topic; no sentence comes back for as long as
    `_MEMORY` sentences. Nothing in them looks like a needle: no digits, no names."""
    dice = Dice(seed)
    forms, shared, topics = prose_tables()
    seen: set[str] = set()
    previous = None
    while True:
        topic = dice.pick(topics)
        if topic is previous:
            continue
        previous = topic
        if len(seen) > _MEMORY:
            seen.clear()
        essay: list[str] = []
        for _ in range(8 + dice.below(12)):  # paragraphs
            essay += _paragraph(dice, forms, shared | topic, seen)
        yield essay


def _paragraph(dice: Dice, forms: dict[str, list[Form]], words: dict[str, Sequence[str]], seen: set[str]) -> list[str]:
    """An opening, four to eight sentences and often a closing one, about a few of the topic's people and things."""
    words = words | {"who": dice.some(words["who"], 3), "place": dice.some(words["place"], 3)}
    middle = ("thought", "body", "body", "longer", "longer")
    places = ["open", *(dice.pick(middle) for _ in range(4 + dice.below(5)))]
    if dice.random() < 0.6:
        places.append("close")
    sentences = []
    for place in places:
        while True:
            sentence = dice.pick(forms[place]).fill(words, dice)
            if sentence not in seen and sentence.count(" ") + 1 in _SENTENCE_WORDS:
                break
        seen.add(sentence)
        sentences.append(sentence)
    return sentences


def prose_words(at_least: int) -> tuple[list[str], int]:
    """Whole essays until there are `at_least` words; the words, and the index where the second essay begins."""
    words: list[str] = []
    restart = 0
    for essay in prose_essays():
        words += " ".join(essay).split()
        restart = restart or len(words)
        if len(words) >= at_least and len(words) > restart:
            return words, restart
    raise AssertionError("the essays have no end")

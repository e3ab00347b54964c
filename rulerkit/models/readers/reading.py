"""What a reader sees in the text of a prompt, taken apart: the items of the answer with their places, and what could be
taken for them. Written for readers with planted effects (`effects`); without effects it says what the families' own
rules say.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from rulerkit.corpora.fictional import answer_fictional
from rulerkit.tasks.base import from_words
from rulerkit.tokenizers import Ids, Tokenizer

_CHUNK = 64


class Item(NamedTuple):
    """Something found in the text: what a reader would say, and the character at which it stands (the mean of all places
    for a word that stands in many)."""

    value: str
    place: int


@dataclass(frozen=True)
class Reading:
    """What a prompt asks and what of it was found."""

    family: str
    items: tuple[Item, ...]
    others: tuple[Item, ...] = ()
    """What could be taken for an item: values of other keys, other chains' variables, less frequent words."""
    demonstration: str | None = None
    """The answer of the solved example, where the text still holds one."""
    opening: str | None = None
    """How the list or text begins, where this family usually has a demonstration and this whole prompt has none."""
    question: str | None = None
    said: str | None = None
    """An answer that is given whatever the items are."""

    @property
    def text(self) -> str:
        """The answer, in the form that the family's rule gives it."""
        if self.said is not None:
            return self.said
        values = [item.value for item in self.items]
        if not values:
            return "not found" if self.family in ("niah", "question_answering") else ""
        if self.family == "common_words":
            return numbered(values)
        return (" " if self.family == "variable_tracking" else ", ").join(values)


def numbered(words: list[str]) -> str:
    """`1. this 2. that`."""
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))


def read_items(text: str) -> Reading | None:
    """The reading of a prompt's text, whatever family it is; None where it is no prompt of ours."""
    return next((reading for reader in _READERS if (reading := reader(text)) is not None), None)


class Distance:
    """How many tokens from the end of a prompt a character of its text stands, to a few tokens."""

    def __init__(self, ids: Ids, tokenizer: Tokenizer) -> None:
        starts = range(0, len(ids), _CHUNK)
        self.total = len(ids)
        self.ends = list(accumulate(len(tokenizer.decode(ids[start : start + _CHUNK])) for start in starts))

    def __call__(self, place: int) -> float:
        chunk = min(bisect_right(self.ends, place), len(self.ends) - 1)
        before = self.ends[chunk - 1] if chunk else 0
        part = min(1.0, (place - before) / max(1, self.ends[chunk] - before))
        size = min(_CHUNK, self.total - chunk * _CHUNK)
        return self.total - chunk * _CHUNK - part * size


# --- families ---------------------------------------------------------------------------------------------------------


def _niah(text: str) -> Reading | None:
    form = r"What (?:is|are all) the special magic (\w+?)s? for (.+?) mentioned in the provided text\?"
    asked = list(re.finditer(form, text))
    if not asked:
        return None
    kind, query = asked[-1][1], asked[-1][2]
    found = list(re.finditer(rf"special magic {kind}s for (.+?) is: (.+?)\.", text[: asked[-1].start()]))
    keys = re.split(r", and |, ", query)
    items = [Item(each[2], each.start()) for key in keys for each in found if each[1] == key]
    others = [Item(each[2], each.start()) for each in found if each[1] not in keys]
    return Reading("niah", tuple(items), tuple(others))


def _variable_tracking(text: str) -> Reading | None:
    asked = re.findall(r"Find all variables that are assigned the value (\d+) in the text", text)
    if not asked:
        return None
    begins = text.rfind("Memorize and track the chain(s) of variable assignment")
    start = max(0, begins)
    solved = re.findall(r"they are:\s+([A-Z]+(?: [A-Z]+)+)", text[:start])
    held: dict[str, tuple[str, int]] = {}
    for each in re.finditer(r"VAR ([A-Z]+) = (?:VAR ([A-Z]+)|(\d+))", text[start:]):
        held[each[1]] = each[3] or held.get(each[2], ("", 0))[0], start + each.start()
    items = [Item(name, place) for name, (value, place) in held.items() if value == asked[-1]]
    others = [Item(name, place) for name, (value, place) in held.items() if value not in (asked[-1], "")]
    opening = None if solved or begins < 0 else _beginning(text[start:])
    return Reading("variable_tracking", tuple(items), tuple(others), solved[-1] if solved else None, opening)


def _common_words(text: str) -> Reading | None:
    asked = re.findall(r"Question: What are the (\w+) most common words in the above list\?", text)
    if not asked:
        return None
    begins = text.rfind("Below is a numbered list of words.")
    start = max(0, begins)
    solved = re.findall(r"appear most often in the list are:\s*(1\. .+)", text[:start])
    words = text[start : text.rfind("\nQuestion: What are the")]
    line = words.rfind("\n") + 1
    found = ((each[1], start + line + each.start()) for each in re.finditer(r"\d+\. (.+?)(?= \d+\. |$)", words[line:]))
    items, others = _counted(found, int(asked[-1]))
    opening = None if solved or begins < 0 else _beginning(words[line:])
    return Reading("common_words", items, others, solved[-1].strip() if solved else None, opening)


def _frequent_words(text: str) -> Reading | None:
    asked = re.findall(r"What are the (\w+) most frequently appeared words in the above coded text\?", text)
    if not asked:
        return None
    end = text.rfind("\nQuestion: ")
    start = text.rfind("coded words.", 0, max(0, end))
    start = 0 if start < 0 else start + len("coded words.")
    found = ((each[0], start + each.start()) for each in re.finditer(r"\S+", text[start:end]) if each[0] != "...")
    items, others = _counted(found, from_words(asked[-1]))
    return Reading("frequent_words", items, others)


def _question_answering(text: str) -> Reading | None:
    before, found, question = text.rpartition("\n\nQuestion: ")
    if not found or "do not output any other words." not in text:
        return None
    question = question.partition("\n")[0].partition(" Answer:")[0].partition("<|")[0].strip()
    answer = answer_fictional(before, question)
    items = () if answer is None else (Item(answer, max(0, before.find(answer))),)
    return Reading("question_answering", items, question=question)


def _counted(found: Iterable[tuple[str, int]], most: int) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """The `most` most frequent words and as many behind them; equally frequent ones in the order of their first place."""
    places: dict[str, list[int]] = {}
    for word, place in found:
        places.setdefault(word, []).append(place)
    ranked = sorted(places.items(), key=lambda entry: -len(entry[1]))
    items = [Item(word, sum(at) // len(at)) for word, at in ranked[: 2 * most]]
    return tuple(items[:most]), tuple(items[most:])


def _beginning(text: str) -> str:
    """The first forty words."""
    return " ".join(text.split()[:40])


_READERS: tuple[Callable[[str], Reading | None], ...] = (
    _niah,
    _variable_tracking,
    _common_words,
    _frequent_words,
    _question_answering,
)

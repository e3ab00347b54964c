"""Planted effects: small faults of known size that make a reference reader err as real models do (Section 5).

Each effect is a value. Whatever is left to chance comes from a random stream keyed by the model's name, the effect and
the prompt's text, so answers repeat exactly and effects do not disturb each other.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, ClassVar, Protocol

from rulerkit.models.readers.reading import Distance, Item, Reading, read_items
from rulerkit.models.spec import Key, tokens

NEAREST = 2
"""How many needles on either side of the one asked for a confused reader may take for it."""


def share(value: Any) -> float:
    """A number from 0 to 1."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise ValueError


def some(value: Any) -> int:
    """A number of tokens, at least one."""
    if number := tokens(value):
        return number
    raise ValueError


_SHARE = "a share from 0 to 1"
KEYS = {
    "copy": Key(f"{_SHARE}: how often the demonstration's answer is given for one's own", share),
    "copy_from": Key("a number of tokens: shorter prompts are not answered by copying", tokens),
    "fade": Key("a number of tokens (at least 1): at this distance from the end half of the items are found", some),
    "drop": Key(f"{_SHARE}: how often an item of an answer is left out", share),
    "confuse": Key(f"{_SHARE}: how often an item is mixed up with a neighbour, where there is one", share),
    "memory": Key(f"{_SHARE}: of the questions about documents, those answered from memory, without reading", share),
}
"""The keys of a spec that plant effects, in the order in which these work."""


class Effect(Protocol):
    """One fault: makes another reading of a reading, by its own random stream."""

    name: ClassVar[str]

    def apply(self, reading: Reading, random: Random, distance: Callable[[], Distance]) -> Reading: ...

    def words(self) -> str: ...


@dataclass(frozen=True)
class Copy:
    """Answers with the demonstration's answer; without a demonstration with the beginning of the text."""

    name: ClassVar[str] = "copy"
    rate: float
    least: int = 0

    def apply(self, reading: Reading, random: Random, distance: Callable[[], Distance]) -> Reading:
        copied = reading.demonstration or reading.opening
        long_enough = not self.least or distance().total >= self.least
        return replace(reading, said=copied) if copied and random.random() < self.rate and long_enough else reading

    def words(self) -> str:
        return f"copies {100 * self.rate:g}%"


@dataclass(frozen=True)
class Memory:
    """Knows a share of the invented questions by heart, and guesses, always the same, where nothing was found."""

    name: ClassVar[str] = "memory"
    rate: float

    def apply(self, reading: Reading, random: Random, distance: Callable[[], Distance]) -> Reading:
        if not reading.question or reading.question not in _answers():
            return reading
        known, guess = _remembered(reading.question)
        if Random(f"known/{reading.question}").random() < self.rate:
            return replace(reading, said=known)
        return reading if reading.items else replace(reading, said=guess)

    def words(self) -> str:
        return f"remembers {100 * self.rate:g}%"


@dataclass(frozen=True)
class Fade:
    """Finds an item that stands d tokens before the end with probability 2 ** (-d / half)."""

    name: ClassVar[str] = "fade"
    half: int

    def apply(self, reading: Reading, random: Random, distance: Callable[[], Distance]) -> Reading:
        away = distance()
        kept = [item for item in reading.items if random.random() < 2 ** (-away(item.place) / self.half)]
        return replace(reading, items=tuple(kept))

    def words(self) -> str:
        return f"fades by half every {self.half} tokens"


@dataclass(frozen=True)
class Drop:
    """Leaves out each item with one probability."""

    name: ClassVar[str] = "drop"
    rate: float

    def apply(self, reading: Reading, random: Random, distance: Callable[[], Distance]) -> Reading:
        return replace(reading, items=tuple(item for item in reading.items if random.random() >= self.rate))

    def words(self) -> str:
        return f"drops {100 * self.rate:g}%"


@dataclass(frozen=True)
class Confuse:
    """Gives, in place of an item, one of the nearest other ones: a neighbouring key's value (or one said already, as of
    several values), another chain's variable, a less frequent word. An item without such neighbours stays."""

    name: ClassVar[str] = "confuse"
    rate: float

    def apply(self, reading: Reading, random: Random, distance: Callable[[], Distance]) -> Reading:
        said: list[Item] = []
        for item in reading.items:
            mixed_up = random.random() < self.rate
            again = said if reading.family == "niah" else []
            near = _nearest(item, [*again, *(other for other in reading.others if other not in said)])
            said.append(random.choice(near) if mixed_up and near else item)
        return replace(reading, items=tuple(said))

    def words(self) -> str:
        return f"confuses {100 * self.rate:g}%"


def effects_of(spec: Mapping[str, Any]) -> tuple[Effect, ...]:
    """The effects that a checked spec plants, in the order in which they work; none where it names none."""
    makers: dict[str, Callable[[Any], Effect]] = {
        "copy": lambda rate: Copy(rate, spec.get("copy_from", 0)),
        "fade": Fade,
        "drop": Drop,
        "confuse": Confuse,
        "memory": Memory,
    }
    return tuple(make(spec[key]) for key, make in makers.items() if key in spec)


def answer_with(effects: Sequence[Effect], text: str, name: str, distance: Callable[[], Distance]) -> str | None:
    """What a reader called `name` with these effects answers to a text; None where it is no prompt of ours."""
    reading = read_items(text)
    if reading is None:
        return None
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    for effect in effects:
        if reading.said is None:
            reading = effect.apply(reading, Random(f"{name}/{effect.name}/{digest}"), distance)
    return reading.text


def _nearest(item: Item, others: list[Item]) -> list[Item]:
    """The others that stand nearest to an item, at most NEAREST on either side."""
    before = sorted((o for o in others if o.place < item.place), key=lambda o: -o.place)[:NEAREST]
    return before + sorted((o for o in others if o.place >= item.place), key=lambda o: o.place)[:NEAREST]


# --- memory -----------------------------------------------------------------------------------------------------------


@cache
def _answers() -> dict[str, tuple[str, ...]]:
    """All questions of the invented worlds with their answers."""
    return dict(_questions())


def _questions() -> Iterator[tuple[str, tuple[str, ...]]]:
    from rulerkit.corpora import load_qa

    for name in ("fictional", "fictional_two_hop"):
        yield from ((question.text, question.answers) for question in load_qa(name).questions)


@cache
def _remembered(question: str) -> tuple[str, str]:
    """The answer to a question, and the wrong one that is guessed by whoever does not know it: another question's."""
    answers, random = _answers()[question], Random(f"guess/{question}")
    others = list(_answers())
    while True:
        guess = _answers()[others[random.randrange(len(others))]][0]
        if not any(answer.lower() in guess.lower() for answer in answers):
            return answers[0], guess

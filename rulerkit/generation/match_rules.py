"""Match rules: what an answer scores against its references. A family names one of MATCH_RULES, or
brings a `score` of its own.

Both are RULER's, unchanged: they look for the references anywhere in the answer, and know no
question whose right answer is nothing.
"""

import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rulerkit.generation.answers import comparable, named_items, plain

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Strict(NamedTuple):
    """Judged by all that was said, each 0..1; `exact` asks for everything right and nothing
    else."""

    precision: float
    f1: float
    exact: float


# --- all and part: RULER's rules ------------------------------------------------------------------


def string_match_all(prediction: str, references: Collection[str]) -> float:
    """Share (0..1) of the references that occur in the prediction, whatever their case: niah, vt,
    cwe, fwe."""
    answer = prediction.lower()
    return sum(reference.lower() in answer for reference in references) / len(references)


def string_match_part(prediction: str, references: Collection[str]) -> float:
    """1 if any of the references occurs in the prediction, whatever its case, else 0: question
    answering."""
    answer = prediction.lower()
    return float(any(reference.lower() in answer for reference in references))


def not_written(text: str, references: Iterable[str]) -> tuple[str, ...]:
    """The references that occur nowhere in a text, whatever their case."""
    answer = text.lower()
    return tuple(r for r in references if r.lower() not in answer)


def strict_items(prediction: str, references: Iterable[str], blanks: bool = False) -> Strict:
    """Precision and F1 over the distinct items named: a wrong word costs, and so does a sentence
    around the answer. `blanks`: whether blanks, too, stand between items."""
    named = named_items(prediction)
    wanted = []
    for reference in references:
        # Most references are one word, of which nothing is to be taken off.
        is_word = reference.isascii() and reference.isalnum()
        item = reference.casefold() if is_word else comparable(plain(reference))
        if item:
            wanted.append(item)

    # Some words of a list are two: "contact lens".
    if blanks:
        text = " ".join(named)
        for item in wanted:
            text = text.replace(item, item.replace(" ", "\0"))
        named = [item.replace("\0", " ") for item in text.split() if item != "="]
    said, right = set(named), set(wanted)
    return strict_share(len(said & right), said, right)


def strict_answer(prediction: str, references: Iterable[str]) -> Strict:
    """SQuAD's normalised exact match and F1 over words, the best over the references."""
    said = _squad_words(prediction)
    return max(
        (overlap(said, _squad_words(reference)) for reference in references),
        key=lambda s: (s.f1, s.exact),
    )


def _squad_words(text: str) -> list[str]:
    return [w for w in text.lower().translate(_PUNCTUATION).split() if w not in ("a", "an", "the")]


def overlap(said: Sequence[str], wanted: Sequence[str]) -> Strict:
    """Judged by the items that both sides hold."""
    # Counted with repetition: a word said twice is right twice only if it is wanted
    # twice.
    right = (Counter(said) & Counter(wanted)).total()
    return strict_share(right, said, wanted)


def strict_share(right: int, said: Collection[str], wanted: Collection[str]) -> Strict:
    """The strict score of so many right items; both sides empty is right."""
    if not said or not wanted:
        same = float(said == wanted)
        return Strict(same, same, same)
    return Strict(right / len(said), 2 * right / (len(said) + len(wanted)), float(said == wanted))


# --- the registry ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatchRule:
    """One rule: functions of the text that is judged and the references."""

    score: Callable[..., float]
    """0..1"""
    strict: Callable[..., Strict]
    """Also takes `blanks`, whether blanks stand between items."""
    missing: Callable[..., tuple[str, ...]]
    """The references that were not given."""
    allows_nothing: bool = False
    """Whether there may be no references, because nothing is a right answer."""
    any_is_enough: bool = False
    """Whether the references are alternatives, of which one is enough."""
    is_in_context: bool = False
    """Whether every reference stands in the context word for word."""

    def can_judge(self, references: Collection[str] | None) -> bool:
        """Whether there are references, none of them empty: an empty text is in every answer."""
        if not references:
            return self.allows_nothing and references is not None
        return all(map(str.strip, references))


MATCH_RULES: dict[str, MatchRule] = {
    "all": MatchRule(string_match_all, strict_items, not_written, is_in_context=True),
    "part": MatchRule(
        string_match_part,
        lambda text, references, blanks: strict_answer(text, references),
        not_written,
        any_is_enough=True,
    ),
}
"""Name -> rule. `all`: share of the references found; `part`: 1 if any is found."""
OWN = "own"
"""What `match` of a family says that brings a `score` of its own; another word says which."""


def own_rule(score: Callable[[str, Sequence[str]], float]) -> MatchRule:
    """The rule of a family with a `score` of its own, of which nothing else is known."""

    def strict(text: str, references: Sequence[str], blanks: bool) -> Strict:
        value = score(text, references)
        return Strict(value, value, float(value == 1))

    return MatchRule(
        score=score,
        strict=strict,
        missing=lambda text, references: () if score(text, references) == 1 else tuple(references),
        allows_nothing=True,
    )


class Judging(Protocol):
    """What scoring needs of a task."""

    @property
    def rule(self) -> MatchRule:
        """The rule, with what it says of references."""

    def score(self, text: str, references: Sequence[str], /) -> float:
        """0..1"""

    def strict(self, text: str, references: Sequence[str], /) -> Strict:
        """By all that was said."""

    def missing(self, text: str, references: Sequence[str], /) -> tuple[str, ...]:
        """The references that were not given."""

    def in_another_form(self, text: str, references: Sequence[str], /) -> bool:
        """Whether an answer that is not right holds all references in a form that the rule does not
        see."""


@dataclass(frozen=True)
class Judge:
    """Judges the answers of a task by its rule alone, where its family is not here."""

    rule: MatchRule

    def score(self, text: str, references: Sequence[str], /) -> float:
        return self.rule.score(text, references)

    def strict(self, text: str, references: Sequence[str], /) -> Strict:
        return self.rule.strict(text, references, False)

    def missing(self, text: str, references: Sequence[str], /) -> tuple[str, ...]:
        return self.rule.missing(text, references)

    def in_another_form(self, text: str, references: Sequence[str], /) -> bool:
        return False

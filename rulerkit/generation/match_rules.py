"""Match rules: what an answer scores against its references. A family names one of MATCH_RULES, or
brings a `score` of its own.

`all` and `part` are RULER's, unchanged: they look for the references anywhere in the answer, and
know no question whose right answer is nothing. The others judge a last line `Final Answer: ...`, or
what follows a hash. With them silence is never right, not even where nothing is the right answer.
"""

import string
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any, NamedTuple, Protocol

from rulerkit.generation.answers import (
    ItemForm,
    comparable,
    final_items,
    named_items,
    plain,
    said_number,
    stand_at_the_end,
)

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_FAR = 1000
"""A distance at which `count` gives nothing that a float holds beside other scores."""


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
    wanted = _wanted_items(references)

    # Some words of a list are two: "contact lens".
    if blanks:
        text = " ".join(named)
        for item in wanted:
            text = text.replace(item, item.replace(" ", "\0"))
        named = [item.replace("\0", " ") for item in text.split()]
    return _overlap(sorted({*named}), sorted(wanted))


def strict_answer(prediction: str, references: Iterable[str]) -> Strict:
    """SQuAD's normalised exact match and F1 over words, the best over the references."""
    said = _squad_words(prediction)
    return max(
        (_overlap(said, _squad_words(reference)) for reference in references),
        key=lambda s: (s.f1, s.exact),
    )


def _squad_words(text: str) -> list[str]:
    return [w for w in text.lower().translate(_PUNCTUATION).split() if w not in ("a", "an", "the")]


def _overlap(said: Sequence[str], wanted: Sequence[str]) -> Strict:
    # Counted with repetition: a word said twice is right twice only if it is wanted
    # twice.
    right = (Counter(said) & Counter(wanted)).total()
    return _strict(right, said, wanted)


def _strict(right: int, said: Sequence[str], wanted: Sequence[str]) -> Strict:
    """The strict score of so many right items; both sides empty is right."""
    if not said or not wanted:
        same = float(said == wanted)
        return Strict(same, same, same)
    return Strict(right / len(said), 2 * right / (len(said) + len(wanted)), float(said == wanted))


# --- lists ---------------------------------------------------------------------------------------


def _wanted_items(references: Iterable[str], item_form: ItemForm = comparable) -> list[str]:
    items = (comparable(plain(reference)) for reference in references)
    forms = dict.fromkeys(item_form(item) for item in items if item)
    return [form for form in forms if form is not None]


def _strict_list(
    text: str, references: Sequence[str], item_form: ItemForm, in_order: bool = False
) -> Strict:
    """Precision and F1 over the items of the answer line; `in_order` counts those of the longest
    common subsequence alone."""
    said, wanted = (final_items(text, item_form), _wanted_items(references, item_form))
    if said is None:
        return Strict(0.0, 0.0, 0.0)
    if in_order:
        return _strict(_longest_common(said, wanted), said, wanted)
    return _overlap(sorted(said), sorted(wanted))


def _longest_common(said: Sequence[str], wanted: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    # Row by row of the usual table: lengths[i] belongs to the first i items that are wanted.
    lengths = [0] * (len(wanted) + 1)
    for item in said:
        before = 0
        for place, other in enumerate(wanted, start=1):
            above = lengths[place]
            if item == other:
                lengths[place] = before + 1
            else:
                lengths[place] = max(above, lengths[place - 1])
            before = above
    return lengths[-1]


def _missing_items(text: str, references: Sequence[str], item_form: ItemForm) -> tuple[str, ...]:
    """The references that are no item of the answer line."""
    said = final_items(text, item_form) or []
    missing = []
    for reference in references:
        wanted = _wanted_items([reference], item_form)
        if not set(wanted) <= set(said):
            missing.append(reference)
    return tuple(missing)


# --- count and ratio ------------------------------------------------------------------------------


def match_count(text: str, references: Iterable[str]) -> float:
    """0.75 to the power of the distance from the right number, as Oolong (arXiv 2511.02817); 0
    without a number."""
    said = said_number(text)
    if said is None:
        return 0.0
    distance = min(abs(said - int(reference)) for reference in references)
    return float(0.75 ** min(distance, _FAR))


def match_ratio(text: str, references: Iterable[str]) -> float:
    """How alike a passage is that was to be copied behind a hash, 0..1, as in MRCR: the ratio of
    difflib, the best over the references. A reference is the hash, a blank and the passage.

    Without the hash 0. Passages of less than 300 characters are better judged otherwise: difflib
    treats texts of 200 characters or more differently.
    """
    return max(_ratio(text, reference) for reference in references)


def _ratio(text: str, reference: str) -> float:
    hash_, _, passage = reference.partition(" ")
    _, seen, copied = text.rpartition(hash_)
    if not seen:
        return 0.0
    # The order of the two matters: difflib looks for frequent letters in the second alone.
    return SequenceMatcher(a=passage.strip(), b=copied.strip()).ratio()


# --- the registry ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatchRule:
    """One rule. All its functions take the text that is judged, the references and the form of
    items; `blanks` of `strict` says whether blanks stand between items."""

    score: Callable[[str, Sequence[str], ItemForm], float]
    """0..1"""
    strict: Callable[[str, Sequence[str], ItemForm, bool], Strict]
    missing: Callable[[str, Sequence[str], ItemForm], tuple[str, ...]]
    """The references that were not given."""
    allows_nothing: bool = False
    """Whether there may be no references, because nothing is a right answer."""
    any_is_enough: bool = False
    """Whether the references are alternatives, of which one is enough."""
    is_in_context: bool = False
    """Whether every reference stands in the context word for word."""
    in_order: bool = False
    """Whether the references must be given in their order."""
    written: Callable[[Sequence[str]], str] | None = None
    """A right answer, written down from the references."""

    def can_judge(self, references: Collection[str] | None) -> bool:
        """Whether there are references, none of them empty: an empty text is in every answer."""
        if not references:
            return self.allows_nothing and references is not None
        return all(map(str.strip, references))


def _substrings(
    score: Callable[[str, Collection[str]], float],
    strict: Callable[[str, Sequence[str], bool], Strict],
    any_is_enough: bool = False,
) -> MatchRule:
    return MatchRule(
        score=lambda text, references, _: score(text, references),
        strict=lambda text, references, _, blanks: strict(text, references, blanks),
        missing=lambda text, references, _: not_written(text, references),
        any_is_enough=any_is_enough,
        is_in_context=not any_is_enough,
    )


def _lists(score: Callable[[Strict], float], in_order: bool = False) -> MatchRule:
    strict = partial(_strict_list, in_order=in_order)
    return MatchRule(
        score=lambda text, references, form: score(strict(text, references, form)),
        strict=lambda text, references, form, _: strict(text, references, form),
        missing=_missing_items,
        allows_nothing=True,
        in_order=in_order,
        written=lambda references: f"Final Answer: [{', '.join(references)}]",
    )


def _whole_answers(
    score: Callable[[str, Sequence[str]], float],
    written: Callable[[Sequence[str]], str] | None = None,
) -> MatchRule:
    """A rule that judges an answer as a whole: its strict scores are the score."""
    return MatchRule(
        score=lambda text, references, _: score(text, references),
        strict=lambda text, references, *_: Strict(*3 * [score(text, references)]),
        missing=lambda text, references, _: (
            () if score(text, references) == 1 else tuple(references)
        ),
        any_is_enough=True,
        written=written,
    )


MATCH_RULES: dict[str, MatchRule] = {
    "all": _substrings(string_match_all, strict_items),
    "part": _substrings(
        string_match_part,
        lambda text, references, _: strict_answer(text, references),
        any_is_enough=True,
    ),
    "f1": _lists(lambda strict: strict.f1),
    "exact": _lists(lambda strict: strict.exact),
    "ordered": _lists(lambda strict: strict.f1, in_order=True),
    "ratio": _whole_answers(match_ratio),
    "count": _whole_answers(
        match_count,
        written=lambda references: f"Final Answer: {references[0]}",
    ),
}
"""Name -> rule. `all`: share of the references found; `part`: 1 if any is found; `f1`: F1 over the
items of the answer line; `exact`: 1 for exactly the right ones in any order; `ordered`: 2 LCS /
(said + right), which minds the order; `ratio`: likeness of a copied passage; `count`: nearness of a
number."""
OWN = "own"
"""What `match` of a family says that brings a `score` of its own."""


def own_rule(score: Callable[[str, Sequence[str]], float]) -> MatchRule:
    """The rule of a family with a `score` of its own, of which nothing else is known."""

    def strict(text: str, references: Sequence[str], *_: Any) -> Strict:
        value = score(text, references)
        return Strict(value, value, float(value == 1))

    return MatchRule(
        score=lambda text, references, _: score(text, references),
        strict=strict,
        missing=lambda text, references, _: (
            () if score(text, references) == 1 else tuple(references)
        ),
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


@dataclass(frozen=True)
class Judge:
    """Judges the answers of a task by its rule alone, where its family is not here."""

    rule: MatchRule

    def score(self, text: str, references: Sequence[str], /) -> float:
        return self.rule.score(text, references, comparable)

    def strict(self, text: str, references: Sequence[str], /) -> Strict:
        return self.rule.strict(text, references, comparable, False)

    def missing(self, text: str, references: Sequence[str], /) -> tuple[str, ...]:
        return self.rule.missing(text, references, comparable)


def in_another_form(judge: Judging, text: str, references: Sequence[str]) -> bool:
    """Whether an answer that is not right has all references at its end, and the rule, which judges
    an answer line, does not see them: a form that nobody thought of, or no answer line."""
    if judge.rule.written is None or judge.score(text, references) == 1:
        return False
    if references and not judge.missing(text, references):
        return False
    wanted = _wanted_items(references)
    return stand_at_the_end(text, wanted, judge.rule.in_order)

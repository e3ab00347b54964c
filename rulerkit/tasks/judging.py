"""How an answer is judged: the two matching rules of the benchmark, and the rules that say what
went wrong with it.

Rules of one family stand in its file; those that hold for every family stand in
`rulerkit.failures`.
"""

import re
import string
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from rulerkit.example import Example, Piece

_FEW_BORDERS = re.compile(r"[,;\n]")
_OTHER_BORDERS = re.compile(r"and\s|(?<!\d)\d{1,3}[.)]\s")
_ITEM_BORDER = re.compile(r"[,;\n]|\s+and\s+|(?:^|(?<=\s))(?:and\s+|\d{1,3}[.)](?=\s))")
_AROUND_ITEM = string.whitespace + "\"'`*.“”‘’"


def string_match_all(prediction: str, references: Iterable[str]) -> float:
    """Share (0..1) of the references that occur in the prediction, whatever their case: niah, vt,
    cwe, fwe."""
    answer = prediction.lower()
    present = [reference.lower() in answer for reference in references]
    return sum(present) / len(present)


def string_match_part(prediction: str, references: Iterable[str]) -> float:
    """1 if any of the references occurs in the prediction, whatever its case, else 0: question
    answering."""
    answer = prediction.lower()
    return float(any(reference.lower() in answer for reference in references))


def named_items(prediction: str) -> list[str]:
    """The distinct items that a prediction lists, lower case, in order: without numbering, quotes
    and full stops."""
    border = (
        _ITEM_BORDER if _OTHER_BORDERS.search(prediction) else _FEW_BORDERS
    )  # which is ten times as fast
    items = (item.strip(_AROUND_ITEM).lower() for item in border.split(prediction))
    return list(dict.fromkeys(item for item in items if item))


@dataclass(frozen=True)
class JudgedAnswer:
    """One answer: its text as it is judged, the references, and the example, which is made when a
    rule needs it."""

    text: str
    references: tuple[str, ...]
    score: float
    finish_reason: str
    in_thought: bool
    settings: Mapping[str, Any]
    """The task's settings, as its record holds them."""
    make: Callable[[], Example]
    without_context: str | None = None
    """What the same model answered to the question alone."""

    @cached_property
    def example(self) -> Example:
        return self.make()

    @cached_property
    def missing(self) -> tuple[str, ...]:
        """The references that were not written."""
        return tuple(r for r in self.references if r.lower() not in self.text.lower())

    @cached_property
    def words(self) -> list[str]:
        return [word.lower() for word in re.findall(r"\w+(?:-\w+)*", self.text)]

    @cached_property
    def needles(self) -> list[tuple[Piece, int]]:
        """Needles and distractors with the tokens before them, those of runs of lines included."""
        before, pieces = 0, []
        for piece in self.example.pieces:
            if piece.role in ("needle", "distractor"):
                pieces.append((piece, before))
            before += piece.num_tokens
        return pieces


class Rule(NamedTuple):
    """A label, its definition in one sentence, and its test: the detail that was seen, or None
    where it does not fit."""

    label: str
    definition: str
    test: Callable[[JudgedAnswer], str | None]


def _less_frequent(answer: JudgedAnswer) -> str | None:
    entries = (
        re.sub(r"^\d+\. ", "", piece.text.strip()).lower() for piece in answer.example.pieces[1:]
    )
    others = set(entries) - {reference.lower() for reference in answer.references}
    listed = [item for item in named_items(answer.text) if item in others]
    listed = listed or [word for word in dict.fromkeys(answer.words) if word in others]
    return " ".join(listed) or None


LESS_FREQUENT_WORD = Rule(
    "less frequent word", "A word of the list or text that stands there less often.", _less_frequent
)
"""The rule of both families that count words."""

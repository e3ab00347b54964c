"""By what rule an answer gets its label: what went wrong with it, seen from the example's pieces and what was written.

Labels exclude each other: an answer gets the first one, in the order of `RULES`, that fits.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from rulerkit import scoring
from rulerkit.example import Example, Piece

NEAR = 256
"""How many tokens from the needle asked for a distractor may stand to be near it: about ten lines of needles."""

_SHORTEST_COPY = 20
_COPIED_WORDS, _FEWEST_WORDS = 8, 4
_BEGINNING = 200
_SHORTEST_UUID = 8
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "the a an and or of to in on at by for from with as is are was were be been it its this that these those he she they "
        "we you i not no yes so if but there here his her their our your my me him them us do does did has have had will",
    )
)
_DECLINED = re.compile(
    r"\bnot (?:found|mentioned|provided|given|stated|contained|available|specified)\b"
    r"|\b(?:cannot|can't|could not|couldn't|unable to) (?:find|answer|determine|provide)"
    r"|\bno (?:information|answer|mention|such)\b|\bdo(?:es)? not (?:know|mention|contain|provide)|\bdon't know\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Case:
    """One answer: what was written (as it is judged), what was asked for, and the example, made when a rule needs it."""

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

    @property
    def family(self) -> str:
        return str(self.settings.get("family", ""))

    @cached_property
    def needles(self) -> list[tuple[Piece, int]]:
        """Needles and distractors with the tokens before them, those of runs of lines included."""
        before, found = 0, []
        for piece in self.example.pieces:
            if piece.role in ("needle", "distractor"):
                found.append((piece, before))
            before += piece.num_tokens
        return found


class Rule(NamedTuple):
    """A label, its definition in one sentence, and what finds it: the detail that was seen, or None."""

    label: str
    definition: str
    find: Callable[[Case], str | None]


def _complete(case: Case) -> str | None:
    return "" if case.score == 1 else None


def _cut_in_thought(case: Case) -> str | None:
    return "" if case.in_thought else None


def _empty(case: Case) -> str | None:
    return "" if not case.text else None


def _refused(case: Case) -> str | None:
    if case.finish_reason == "refused":
        return "refused by the service"
    found = _DECLINED.search(case.text) if case.score == 0 else None
    return found[0] if found else None


def _demonstration(case: Case) -> str | None:
    if not case.settings.get("demonstration"):
        return None
    shown = case.example.text_of("demonstration")
    written = _squeezed(case.text)
    stretch = len(written) >= _SHORTEST_COPY and written in _squeezed(shown)
    if stretch and written not in _squeezed(case.example.context_text):  # noise stands in both
        return written
    answer = re.split(r"(?:they are|in the list are):", shown)[-1]
    items = {word.lower() for word in re.findall(r"[^\W\d]\w*(?:-\w+)*", answer)}
    copied = [word for word in dict.fromkeys(case.words) if word in items]
    return " ".join(copied) if len(copied) >= max(2, len(items) / 2) else None


def _beginning(case: Case) -> str | None:
    written = _squeezed(case.text).split()[:_COPIED_WORDS]
    text = " ".join(written)
    if len(written) < (_COPIED_WORDS if case.family == "question_answering" else _FEWEST_WORDS):  # answers are quotes
        return None
    before = case.example.text_of("demonstration", "instruction") + case.example.context_text[: 20 * _BEGINNING]
    inputs = (before, case.example.context_text[: 20 * _BEGINNING])
    return text if any(text in " ".join(each.split()[:_BEGINNING]).lower() for each in inputs) else None


def _parametric(case: Case) -> str | None:
    words = [word for word in case.words if not word.isdigit()]
    known = all(word in _FUNCTION_WORDS or (len(word) == 1 and word.isalpha()) for word in words)
    return " ".join(dict.fromkeys(words)) if words and known else None


def _no_context(case: Case) -> str | None:
    if not case.without_context or case.settings.get("context") == "none":
        return None
    return case.without_context if _plain(case.without_context) == _plain(case.text) else None


def _duplicated(case: Case) -> str | None:
    if case.family == "question_answering" or len(case.references) < 2:
        return None
    twice = (r for r in case.references if r not in case.missing and len(_standing(r, case.text)) > 1)
    return next(twice, None)


def _near_distractor(case: Case) -> str | None:
    return next((f"{v}, {d} tokens from the needle" for v, d in _other_values(case) if d <= NEAR), None)


def _other_key(case: Case) -> str | None:
    return next((f"{v}, {d} tokens from the needle" for v, d in _other_values(case)), None)


def _other_values(case: Case) -> Iterator[tuple[str, int]]:
    """The values of keys not asked for that were written, with their distance from the nearest needle missed."""
    if case.family != "niah":
        return
    written = {*case.words, *(item.strip(".") for item in scoring.named_items(case.text))}
    said = [(p.value, at) for p, at in case.needles if p.role == "distractor" and (p.value or "").lower() in written]
    wanted = [at for p, at in case.needles if p.role == "needle" and p.value in case.missing]
    yield from sorted(((str(v), min(abs(at - w) for w in wanted)) for v, at in said if wanted), key=lambda e: e[1])


def _wrong_chain(case: Case) -> str | None:
    if case.family != "variable_tracking":
        return None
    others = {str(p.key).lower(): p.key for p, _ in case.needles if p.role == "distractor"}
    found = [str(others[word]) for word in dict.fromkeys(case.words) if word in others]
    return " ".join(found) or None


def _less_frequent(case: Case) -> str | None:
    if case.family not in ("common_words", "frequent_words"):
        return None
    context = (re.sub(r"^\d+\. ", "", piece.text.strip()).lower() for piece in case.example.pieces[1:])
    listed = set(context) - {reference.lower() for reference in case.references}
    found = [item for item in scoring.named_items(case.text) if item in listed]
    found = found or [word for word in dict.fromkeys(case.words) if word in listed]
    return " ".join(found) or None


def _other_document(case: Case) -> str | None:
    if case.family != "question_answering" or not (written := _plain(case.text)):
        return None
    blocks = case.example.blocks[slice(*case.example.context)]
    heads = (b.text.partition("\n")[0].strip(":") for b in blocks if b.role != "needle" and _stands(written, b.text))
    return next(heads, None)


def _incomplete_uuid(case: Case) -> str | None:
    wanted = [r.replace("-", "").lower() for r in case.missing if re.fullmatch(r"[0-9a-fA-F-]{36}", r)]
    for run in re.findall(rf"[0-9a-f-]{{{_SHORTEST_UUID},}}", case.text.lower()):
        digits = run.replace("-", "")
        for whole in wanted:
            if len(digits) < len(whole) and (digits in whole or digits[:_SHORTEST_UUID] == whole[:_SHORTEST_UUID]):
                return str(run)
    return None


def _cut_off(case: Case) -> str | None:
    return "" if case.finish_reason == "length" else None


def _partial(case: Case) -> str | None:
    found = len(case.references) - len(case.missing)
    return f"{found} of {len(case.references)}" if found > 0 else None


def _nothing(case: Case) -> str | None:
    return ""


RULES = (
    Rule("complete", "Everything asked for was written.", _complete),
    Rule("cut in its thought", "The thought of a thinking model never ended, so there is no answer.", _cut_in_thought),
    Rule("empty", "Nothing was written.", _empty),
    Rule("refused", "The model declined, or said that the answer is not there.", _refused),
    Rule(
        "copied demonstration",
        "The answer of the solved example, at least half of its items, or another stretch of it word for word.",
        _demonstration,
    ),
    Rule(
        "copied beginning",
        f"Its first {_COPIED_WORDS} words stand together in the first {_BEGINNING} words of the input or of its context.",
        _beginning,
    ),
    Rule("parametric words", "Nothing but function words (the, an, a) or letters of the alphabet.", _parametric),
    Rule("no-context answer", "A wrong answer, the same that the model gives to the question alone.", _no_context),
    Rule("duplicated values", "A right answer stands there twice while another one is missing.", _duplicated),
    Rule(
        "near distractor",
        f"The value of another key whose needle stands within {NEAR} tokens of the one asked for.",
        _near_distractor,
    ),
    Rule("other key", "The value of another key, from farther away.", _other_key),
    Rule("wrong chain", "A variable of another chain.", _wrong_chain),
    Rule("less frequent word", "A word of the list or text that stands there less often.", _less_frequent),
    Rule("other document", "What was written stands in a document that does not hold the answer.", _other_document),
    Rule("incomplete uuid", "A part of the UUID asked for, not all of its 32 digits.", _incomplete_uuid),
    Rule("cut off", "The answer was cut at its last token, and none of the labels above fits.", _cut_off),
    Rule("partial", "A part of what was asked for, and nothing wrong that is recognised.", _partial),
    Rule("nothing recognised", "Nothing of what was asked for, and nothing that is recognised.", _nothing),
)


def find(case: Case) -> tuple[str, str]:
    """The label of an answer and what was seen."""
    return next((rule.label, detail) for rule in RULES if (detail := rule.find(case)) is not None)


def _squeezed(text: str) -> str:
    return " ".join(text.lower().split())


def _plain(text: str) -> str:
    """Words alone, lower case, without articles and punctuation."""
    return " ".join(word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the"))


def _stands(plain: str, text: str) -> bool:
    return f" {plain} " in f" {_plain(text)} "


def _standing(item: str, text: str) -> list[str]:
    return re.findall(rf"(?<!\w){re.escape(item)}(?!\w)", text, re.IGNORECASE)

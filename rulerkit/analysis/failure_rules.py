"""The labels for what went wrong, and the rules that give them (Section 5 of the paper).

An answer gets one label, the first that fits in the order of `definitions`: rules for every family,
rules of its own family, and what is left. A rule is a function from a `JudgedAnswer` to what it
saw, or None where its label does not fit.
"""

import re

from rulerkit.common.plugins import errors_of
from rulerkit.generation.tasks import all_families
from rulerkit.generation.tasks.base import FailureRule, JudgedAnswer

OTHER_FORM = "right, in another form"

_SHORTEST_COPY = 20  # characters: less may stand in a demonstration by chance
_COPIED_WORDS = 8
_BEGINNING = 200  # words
_ROOM_FOR_A_WORD = 20  # characters: more than words of any text have on average

_FUNCTION_WORDS = (
    "the a an this that these those here there and or but so if as of to in on at by for from with "
    "is are was were be been do does did has have had will i you he she it we they me him them us "
    "its my your his her our their yes no not"
)
_DECLINED = re.compile(
    r"\bnot (?:found|mentioned|provided|given|stated|contained|available|specified)\b"
    r"|\b(?:cannot|can't|could not|couldn't|unable to) (?:find|answer|determine|provide)"
    r"|\bno (?:information|answer|mention|such)\b"
    r"|\bdo(?:es)? not (?:know|mention|contain|provide)"
    r"|\bdon't know\b",
    re.IGNORECASE,
)
_WORD = re.compile(r"[^\W\d]\w*(?:-\w+)*")  # begins with a letter: no numbers of a list


# --- rules for every family, in their order -------------------------------------------------------


def _refused(answer: JudgedAnswer) -> str | None:
    # An answer that is partly right may say of the rest that it is not there
    if answer.score > 0:
        return None
    match = _DECLINED.search(answer.text)
    return match[0] if match else None


def _demonstration(answer: JudgedAnswer) -> str | None:
    if not answer.settings.get("demonstration"):
        return None

    # a stretch of the demonstration word for word; noise stands in the context too
    shown = _squeezed(answer.example.text_of("demonstration"))
    written = _squeezed(answer.text)
    is_stretch = len(written) >= _SHORTEST_COPY and written in shown
    if is_stretch and written not in _squeezed(answer.example.context_text):
        return written

    # items of its answer: half of them, as a word or two of them may be right by chance
    solved = answer.judge.read(answer.example.text_of("demonstration")) or []
    items = set(_WORD.findall(" ".join(solved).lower()))
    least = 1.0
    if len(items) > 1:
        least = max(2, len(items) / 2)
    written_words = dict.fromkeys(answer.words)  # each once
    copied = [word for word in written_words if word in items]
    return " ".join(copied) if len(copied) >= least else None


def _beginning(answer: JudgedAnswer) -> str | None:
    words = _squeezed(answer.text).split()[:_COPIED_WORDS]
    # a few words of the text are no copy: an answer may quote them
    if len(words) < _COPIED_WORDS:
        return None

    # the beginning of the input with its solved example, or that of its context
    context = answer.example.context_text[: _ROOM_FOR_A_WORD * _BEGINNING]
    opening = answer.example.text_of("demonstration", "instruction")
    written = " ".join(words)
    for text in (opening + context, context):
        beginning = " ".join(text.split()[:_BEGINNING])
        if written in _squeezed(beginning):
            return written
    return None


def _function_words(answer: JudgedAnswer) -> str | None:
    words = [word for word in answer.words if not word.isdigit()]
    is_other = not words or set(words) - set(_FUNCTION_WORDS.split())
    return None if is_other else " ".join(dict.fromkeys(words))


def _other_form(answer: JudgedAnswer) -> str | None:
    is_right = answer.judge.in_another_form(answer.text, answer.references)
    return answer.text[-40:] if is_right else None


def _duplicated(answer: JudgedAnswer) -> str | None:
    # of several right answers to a question one is enough
    if answer.judge.any_is_enough or len(answer.references) < 2:
        return None
    for reference in answer.references:
        # as a word of its own: a number may stand within a longer one
        pattern = rf"(?<!\w){re.escape(reference)}(?!\w)"
        matches = re.findall(pattern, answer.text, re.IGNORECASE)
        if len(matches) > 1:
            return reference
    return None


def _partial(answer: JudgedAnswer) -> str | None:
    num_references = len(answer.references)
    num_written = num_references - len(answer.missing)
    return f"{num_written} of {num_references}" if num_written > 0 else None


def _squeezed(text: str) -> str:
    """A text in lower case with single spaces, so that line breaks do not hide a copy."""
    return " ".join(text.lower().split())


_FIRST_RULES = (
    FailureRule(
        "complete", "Everything asked for was written.", lambda a: "" if a.score == 1 else None
    ),
    FailureRule(
        "cut in its thought",
        "The thought of a thinking model never ended, so there is no answer.",
        lambda a: "" if a.in_thought else None,
    ),
    FailureRule("empty", "Nothing was written.", lambda a: None if a.text else ""),
    FailureRule(
        OTHER_FORM,
        "All that was asked for stands at the end, in a form that is not judged as right.",
        _other_form,
    ),
    FailureRule("refused", "The model declined, or said that the answer is not there.", _refused),
    FailureRule(
        "copied demonstration",
        "The answer of the solved example, at least half of its items, or another stretch of it "
        "word for word.",
        _demonstration,
    ),
    FailureRule(
        "copied beginning",
        f"Its first {_COPIED_WORDS} words stand together in the first {_BEGINNING} words of the "
        "input or of its context.",
        _beginning,
    ),
    FailureRule(
        "function words",
        "Nothing but function words (the, an, a).",
        _function_words,
    ),
    FailureRule(
        "duplicated values",
        "A right answer stands there twice while another one is missing.",
        _duplicated,
    ),
)
# after those of the family, which know better what a cut or partial answer is
_LAST_RULES = (
    FailureRule(
        "cut off",
        "The answer was cut at its last token, and none of the labels above fits.",
        lambda a: "" if a.finish_reason == "length" else None,
    ),
    FailureRule(
        "partial", "A part of what was asked for, and nothing wrong that is recognised.", _partial
    ),
    FailureRule(
        "nothing recognised",
        "Nothing of what was asked for, and nothing that is recognised.",
        lambda _: "",
    ),
)


def definitions() -> dict[str, str]:
    """Every label with its definition: those of all families, those of one family, plug-ins
    included, and what is left; in the order in which they are tried."""
    rules = [*_FIRST_RULES]
    for family in all_families():
        rules += family.failure_rules
    return {rule.label: rule.definition for rule in (*rules, *_LAST_RULES)}


def find_label(answer: JudgedAnswer) -> tuple[str, str]:
    """The label of an answer, the first that fits, and what was seen."""
    # files of other programs name no family
    rules_of_family = answer.judge.failure_rules if answer.settings["family"] else ()
    for rule in (*_FIRST_RULES, *rules_of_family, *_LAST_RULES):
        with errors_of(type(answer.judge), f"the failure rule {rule.label!r}"):
            detail = rule.test(answer)
        if detail is not None:
            return rule.label, detail
    raise AssertionError("the last rule fits every answer")

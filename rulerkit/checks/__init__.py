"""What can be wrong with a prompt before it reaches a model: one small function per fault.

A check looks at a `Case` (a model, and one of its examples) and says what it saw and how to mend
it; None where it does not apply. What should stand in the prompt is taken from the task's draft,
not from the prompt itself.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from rulerkit.errors import UserError
from rulerkit.example import Draft, Example, ExampleStream
from rulerkit.generation import Examples
from rulerkit.models import Model
from rulerkit.prompt_format import PromptFormat
from rulerkit.tasks import Task
from rulerkit.tokenizers import Ids, Tokenizer, load_tokenizer

OK, NOTE, FAIL = "ok", "note", "FAIL"
LEAST_FILL = 0.97
_COARSE_BELOW = 4096  # here one document more or less is more than three percent


class Finding(NamedTuple):
    """What a check saw: `ok`, `note` (worth knowing) or `FAIL` (scores would be wrong), and how to
    mend it."""

    level: str
    name: str
    seen: str
    mend: str = ""
    where: str = ""


@dataclass(frozen=True)
class Case:
    """One example of a model, and what it should hold."""

    model: Model
    task: Task
    example: Example
    draft: Draft

    @property
    def form(self) -> PromptFormat:
        return self.model.prompt_format

    @property
    def tokenizer(self) -> Tokenizer:
        return self.form.tokenizer

    @property
    def where(self) -> str:
        return f"{self.example.task} at {self.example.length}, example {self.example.index}"

    @cached_property
    def text_ids(self) -> Ids:
        """The ids of the prompt's text as the tokenizer itself makes them, without BOS."""
        return self.tokenizer.encode(self.example.prompt)

    @cached_property
    def decoded(self) -> str:
        """The text that a model sees: what the ids stand for."""
        return self.tokenizer.decode(self.example.ids)

    @cached_property
    def tail(self) -> str | None:
        """What stands behind the question; None where the question is not in the prompt."""
        question = "".join(passage.text for passage in self.draft.tail)
        _, found, tail = self.example.prompt.rpartition(question)
        return tail if found else None

    @property
    def spec(self) -> Mapping[str, Any]:
        return getattr(self.model, "spec", {})


def case(model: Model, examples: Examples, index: int) -> Case:
    """The case of one example."""
    draft = examples.task.draft(
        ExampleStream(examples.seed, examples.task.name, index), examples.length
    )
    return Case(model, examples.task, examples[index], draft)


Check = Callable[[Case], Finding | None]


def short(text: str) -> str:
    """A text as it is quoted in a finding."""
    return repr(text if len(text) <= 40 else f"{text[:26]} ... {text[-9:]}")


# --- room -----------------------------------------------------------------------------------------


def budget(case: Case) -> Finding | None:
    """Template, prompt, answer and thinking together stay within the length."""
    example, kept = case.example, case.form.thinking_tokens
    used = len(example.ids) + example.max_new_tokens + kept
    parts = f"{len(example.ids)} + {example.max_new_tokens} for the answer" + (
        f" + {kept} to think" if kept else ""
    )
    if used > example.length:
        seen = f"{parts} are {used}, more than {example.length}"
        return Finding(
            FAIL,
            "budget",
            seen,
            "count the template, BOS and thinking too, with the model's own tokenizer",
        )
    return Finding(OK, "budget", f"{parts} within {example.length}")


def fill(case: Case) -> Finding | None:
    """The length is filled: a score at 128K says something about 128K."""
    example, (first, last) = case.example, case.example.context
    if first == last and not case.draft.head:
        return None  # a question without context
    share = (len(example.ids) + example.max_new_tokens + case.form.thinking_tokens) / example.length
    if share >= LEAST_FILL:
        return Finding(OK, "fill", f"{100 * share:.1f} %")
    advice, level = "generate the examples with this model's own tokenizer", FAIL
    if case.task.category == "qa" and example.length < _COARSE_BELOW:
        advice, level = "documents are coarse at short lengths", NOTE
    if case.task.protocol == "paper":
        advice, level = (
            "the protocol paper keeps one layout for all examples, as upstream does",
            NOTE,
        )
    return Finding(level, "fill", f"{100 * share:.1f} % of {example.length} tokens", advice)


def length(case: Case) -> Finding | None:
    """The model can be given the length, and claims it."""
    claimed, asked = case.model.claimed_length, case.example.length
    if reason := case.model.too_long(asked):
        return Finding(NOTE, "length", f"{asked} will not be run: {reason}")
    if claimed and asked > claimed:
        return Finding(NOTE, "length", f"{asked} is more than the {claimed} that the model claims")
    return Finding(OK, "length", f"{asked} can be run")


def spoken(task: Task, references: tuple[str, ...]) -> str:
    """A whole answer as the task's demonstration writes it."""
    if task.match == "part":
        return min(references, key=len)
    if task.family == "common_words":
        return " ".join(f"{i}. {word}" for i, word in enumerate(references, 1))
    return (" " if task.family == "variable_tracking" else ", ").join(references)


def answer_room(case: Case) -> Finding | None:
    """A complete answer fits into `max_new_tokens`; else the table measures that limit."""
    need = case.tokenizer.count(" " + spoken(case.task, case.draft.references))
    most = case.example.max_new_tokens
    if need > most:
        seen = f"a complete answer has {need} tokens, max_new_tokens is {most}"
        return Finding(
            FAIL, "answer room", seen, f"give the task max_new_tokens: {need + need // 4} or more"
        )
    return Finding(OK, "answer room", f"{need} tokens of {most}")


def stop_strings(case: Case) -> Finding | None:
    """No stop string stands inside a complete answer."""
    answer = spoken(case.task, case.draft.references)
    stops = list(_stops(case.spec))
    if not stops:
        return None
    if bad := [stop for stop in stops if stop in answer]:
        return Finding(
            FAIL,
            "stop strings",
            f"{bad[0]!r} stands inside the answer {short(answer)}",
            "take it out",
        )
    return Finding(OK, "stop strings", f"none of {len(stops)} inside an answer")


def _stops(settings: Mapping[str, Any]) -> Iterator[str]:
    """The stop strings anywhere in a spec."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _stops(value)
        elif key in ("stop", "stop_strings", "stop_sequences"):
            yield from (
                [value]
                if isinstance(value, str)
                else [each for each in value if isinstance(each, str)]
            )


# --- ids ------------------------------------------------------------------------------------------


def ids_of_text(case: Case) -> Finding | None:
    """The ids are those of the whole text."""
    want = np.concatenate([np.array(case.form.bos, dtype=np.int32), case.text_ids])
    ids = case.example.ids
    if np.array_equal(ids, want):
        return Finding(OK, "ids", "those of the whole text")
    same = min(len(ids), len(want))
    at = next(iter(np.flatnonzero(ids[:same] != want[:same])), same)
    seen = f"{len(ids)} ids, the text has {len(want)}; they differ from token {at} on"
    return Finding(
        FAIL, "ids", seen, "encode the whole text anew; if rulerkit made these ids, report it"
    )


def needles(case: Case) -> Finding | None:
    """Every reference in the prompt is still there when the ids are read back."""
    prompt, family = case.example.prompt, case.task.family
    keys = [b.key for b in case.example.blocks if family == "niah" and b.role == "needle" and b.key]
    wanted = dict.fromkeys([*case.draft.references, *keys])
    mend = "this tokenizer changes what it encodes (case, blanks, accents): no score of this task would mean anything"
    if lost := [text for text in wanted if text in prompt and text not in case.decoded]:
        return Finding(
            FAIL,
            "needles",
            f"{len(lost)} of {len(wanted)} are lost in encoding: {short(lost[0])}",
            mend,
        )
    absent = [text for text in wanted if text not in prompt]
    if case.task.match == "all" and absent:
        return Finding(
            FAIL,
            "needles",
            f"{short(absent[0])} is not in the prompt",
            "nobody can find it: make it anew",
        )
    return Finding(
        OK, "needles", f"{len(wanted) - len(absent)} found again after decode(encode(.))"
    )


def tokenizer_own(case: Case) -> Finding | None:
    """The tokenizer is the checkpoint's: no id beyond its vocabulary, and the same ids as its own
    tokenizer."""
    checkpoint, highest = getattr(case.model, "checkpoint", None), int(case.example.ids.max())
    if checkpoint is None:
        return None
    config = checkpoint.config.get("text_config") or checkpoint.config
    size = config.get("vocab_size")
    mend = f"drop `tokenizer: {case.tokenizer.name}`, or name the model's own"
    if size and highest >= size:
        return Finding(
            FAIL, "tokenizer", f"id {highest} is beyond the model's vocabulary of {size}", mend
        )
    try:
        own = load_tokenizer(checkpoint.tokenizer_spec())
    except UserError as error:
        return Finding(
            NOTE,
            "tokenizer",
            f"the model's own was not found ({error})",
            "only ids could be compared",
        )
    if own.fingerprint != case.tokenizer.fingerprint and not np.array_equal(
        own.encode(case.example.prompt), case.text_ids
    ):
        return Finding(
            FAIL, "tokenizer", f"{case.tokenizer.name} gives other ids than {own.name}", mend
        )
    return Finding(
        OK,
        "tokenizer",
        f"{case.tokenizer.name}: highest id {highest}" + (f" of {size}" if size else ""),
    )

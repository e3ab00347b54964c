"""Faults that would make scores wrong, detected before a GPU is used.

`check` looks at a model's prompts, one function per fault; where that is cheap it also sends the
model two short examples.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.evaluation.study import Study
from rulerkit.generation.example import Example
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat, ends_thought
from rulerkit.generation.tasks import Task, task
from rulerkit.generation.tokenizers import Tokenizer, load_tokenizer
from rulerkit.inference.model import Answer, Failure, Model, load_model

OK, NOTE, FAIL = "ok", "note", "FAIL"
EXAMPLES = 3
"""How many examples are checked at the shortest length; at the longest, or a long one, one is."""
_WELL_FILLED, _POORLY_FILLED = 0.97, 0.9
BY_DESIGN = "by design: this protocol keeps one layout for all examples, as upstream does"
_COARSE_BELOW = 4096  # here one document more or less is more than three percent
_LONG = 32768
_CHEAP = ("reader", "function", "openai")  # engines that answer without loading anything
_SERVICE_FRAME = 32  # tokens that a chat service adds around a message


class Finding(NamedTuple):
    """What a check saw, at which level (`ok`, `note`: worth knowing, `FAIL`: scores would be
    wrong), and how to fix it."""

    seen: str
    fix: str = ""
    level: str = FAIL
    name: str = ""
    where: str = ""


CheckResult = Finding | str | None
"""What a check returns: a fault, or what it saw where all is well; None where it does not apply."""
Checks = Mapping[str, Callable[..., CheckResult]]
"""Name -> check, in the order in which they are printed."""


def run_checks(checks: Checks, where: str, *subject: Any) -> Iterator[Finding]:
    """The findings on one subject: the example or the row that `where` names."""
    for name, check in checks.items():
        seen = check(*subject)
        if isinstance(seen, str):
            seen = Finding(seen, level=OK)
        if seen:
            yield seen._replace(name=name, where=where)


def summary_lines(findings: Iterable[Finding]) -> list[str]:
    """One line a check: the worst that it saw, where, and how often."""
    by_name: dict[str, list[Finding]] = {}
    for finding in findings:
        by_name.setdefault(finding.name, []).append(finding)
    lines = []
    for name, group in by_name.items():
        level = max((finding.level for finding in group), key=(OK, NOTE, FAIL).index)
        worst = [finding for finding in group if finding.level == level]
        line = f"{level:4}  {name:15} {worst[0].seen}"
        if level != OK and worst[0].where:
            line += f" ({worst[0].where}; {len(worst)} of {len(group)})"
        if worst[0].fix:
            line += f"; {worst[0].fix}"
        lines.append(line)
    return lines


@dataclass(frozen=True)
class Case:
    """One example of a model, and what it should hold."""

    model: Model
    task: Task
    example: Example

    @property
    def form(self) -> PromptFormat:
        return self.model.prompt_format

    @property
    def tokenizer(self) -> Tokenizer:
        return self.form.tokenizer

    @property
    def where(self) -> str:
        return f"{self.example.task} at {self.example.length}, example {self.example.index}"

    @property
    def complete_answer(self) -> str:
        """The references as the family writes them; of several alternatives the shortest."""
        references = self.example.references
        if self.task.any_is_enough:
            return min(references, key=len)
        return self.task.join(references)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:26]} ... {text[-9:]}")


# --- the template ---------------------------------------------------------------------------------


def tokenizer_match(case: Case) -> CheckResult:
    """The tokenizer is the checkpoint's: no id beyond its vocabulary, and the same ids."""
    checkpoint = getattr(case.model, "checkpoint", None)
    if checkpoint is None:
        return None
    name, highest, size = (case.tokenizer.name, int(case.example.ids.max()), checkpoint.vocab_size)

    # An id beyond the vocabulary ends a GPU kernel without a message.
    fix = f"drop `tokenizer: {name}`, or name the model's own"
    if size and highest >= size:
        return Finding(f"id {highest} is beyond the model's vocabulary of {size}", fix)
    try:
        expected = load_tokenizer(checkpoint.tokenizer_spec())
    except UserError as error:
        seen = f"the model's own was not found ({error})"
        return Finding(seen, "only ids could be compared", NOTE)

    # Two vocabularies of one size may still be different ones.
    prompt = case.example.prompt
    if not np.array_equal(expected.encode(prompt), case.tokenizer.encode(prompt)):
        return Finding(f"{name} gives other ids than {expected.name}", fix)
    return f"{name}: the model's own ids, the highest is {highest}"


_MARK = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Za-z]*(?:INST|MASK|PROMPT|RESULTS)\]|<[a-zA-Z]+_[a-zA-Z_]+>|</?s>|<[be]os>|<sop>"
)


def template(case: Case) -> CheckResult:
    """The marks of the template are single tokens; those of another model's template are not."""
    before, after = case.form.around
    counts = {mark: case.tokenizer.count(mark) for mark in _MARK.findall(before + after)}

    # A mark that is several tokens was never seen in training.
    broken = [f"{mark} is {count} tokens" for mark, count in counts.items() if count != 1]
    if not broken:
        return f"{_short(case.form.template)}: {_short(before)} ... {_short(after)}"
    seen = ", ".join(broken[:3])
    if case.form.template == "auto" or not case.tokenizer.chat_template:
        return Finding(seen, "right only for a model that was trained so", NOTE)
    return Finding(seen, "the template is another model's: take `template: auto`, or its own name")


def thinking(case: Case) -> CheckResult:
    """A model that thinks has tokens for it and begins to think; one that should not does not."""
    form, after = case.form, case.form.around[1]
    opened = form.opens_thought
    closed = not opened and ends_thought(after, form.thinking_marks)

    # Without tokens for a thought, the template must not begin one.
    if not form.thinking_tokens:
        answers = closed or not form.thought or form.prefix_in == "assistant"
        if answers and not opened:
            return None
        seen = "the model may think before it answers, and no token is kept free for it"
        fix = "set thinking_tokens, or enable_thinking: false"
        return Finding(seen, fix, FAIL if opened else NOTE)

    # With tokens for a thought, nothing may have ended it already.
    if closed:
        seen = f"the template ends the thought before it begins: {_short(after)}"
        return Finding(seen, "set enable_thinking: true, or drop thinking_tokens")
    if form.prefix_in == "assistant":
        seen = "the answer prefix opens the assistant's turn: the model answers without a thought"
        return Finding(seen, "drop prefix_in, or drop thinking_tokens")
    return f"{form.thinking_tokens} tokens {form.thinking_room} the length"


def one_bos(case: Case) -> CheckResult:
    """What the tokenizer puts before a text, mostly a beginning-of-sequence token, exactly once and
    first, where the template does not leave it out; two move VT at 128K by 17 points."""
    tokenizer, ids = case.tokenizer, case.example.ids
    if not tokenizer.leading_ids:
        return "the tokenizer adds none"
    name = "".join(tokenizer.leading_tokens)
    leading = case.form.leading_ids
    places = np.flatnonzero(ids == tokenizer.leading_ids[0])
    begins = ids[: len(leading)].tolist() == list(leading)
    if places.tolist() == [0] and begins:
        return f"{name} once, first"
    if not places.size and case.form.lacks_bos:
        seen = f"no {name}, because the chat template writes none; vLLM sends none either"
        fix = "if the model was trained with one, give a template that writes it"
        return Finding(seen, fix, NOTE)
    seen = f"{name} {len(places)} times, not once and first"
    return Finding(seen, "either the template or the tokenizer must write it")


def needles(case: Case) -> CheckResult:
    """Every reference is in the prompt, and is still there when the ids are decoded; of tasks whose
    answers need not stand in the prompt, those that do."""
    example, references = case.example, case.example.references
    if case.task.match != "all":
        references = tuple(text for text in references if text in example.prompt)
    decoded = case.tokenizer.decode(example.ids)
    lost = [text for text in references if text not in decoded]
    if not lost:
        return f"{len(references)} found again after decode(encode(.))"
    seen = (
        f"{len(lost)} of {len(references)} are not there after decode(encode(.)): {_short(lost[0])}"
    )
    if lost[0] in example.prompt:
        return Finding(seen, "this tokenizer changes what it encodes: no score would mean anything")
    return Finding(seen, "they are not in the prompt either: make it anew")


# --- lengths --------------------------------------------------------------------------------------


def budget(case: Case) -> CheckResult:
    """Prompt, answer and thought together stay within the length and fill it: a score at 128K says
    something about 128K. A question without context fills nothing."""
    example, task, length = case.example, case.task, case.example.length
    used = len(example.ids) + example.max_new_tokens + case.form.thinking_inside
    if used <= length and not example.context_blocks:
        return None
    share = used / length
    if share > 1:
        fix = "count template, BOS and thought too, with the model's own tokenizer"
        return Finding(f"{used} tokens with the answer, more than {length}", fix)
    seen = f"{used} tokens with the answer, {100 * share:.1f} % of {length}"
    if share >= _WELL_FILLED:
        return seen
    if task.protocol != "clean":
        return Finding(seen, BY_DESIGN, NOTE)
    if task.category == "qa" and length < _COARSE_BELOW:
        return Finding(seen, "documents are coarse at short lengths", NOTE)
    fix = "a score says less about this length than its name: generate with the model's tokenizer"
    return Finding(seen, fix, NOTE if share >= _POORLY_FILLED else FAIL)


def length(case: Case) -> CheckResult:
    """The model can be given the length, and claims it."""
    claimed, asked = case.model.claimed_length, case.example.length
    if reason := case.model.too_long(asked):
        return Finding(f"{asked} will not be run: {reason}", level=NOTE)
    if claimed and asked > claimed:
        return Finding(f"{asked} is more than the {claimed} that the model claims", level=NOTE)
    return f"{asked} can be run"


def answer_room(case: Case) -> CheckResult:
    """A complete answer fits into `max_new_tokens`; else the table measures that limit."""
    need = case.tokenizer.count(" " + case.complete_answer)
    most = case.example.max_new_tokens
    if need > most:
        seen = f"a complete answer has {need} tokens, max_new_tokens is {most}"
        return Finding(seen, f"give the task max_new_tokens: {need + need // 4} or more")
    return f"{need} tokens of {most}"


CHECKS: Checks = {
    "tokenizer": tokenizer_match,
    "template": template,
    "thinking": thinking,
    "BOS": one_bos,
    "needles": needles,
    "budget": budget,
    "length": length,
    "answer room": answer_room,
}


# --- models ---------------------------------------------------------------------------------------


def check(study: Study, ask: bool | None = None) -> dict[str, list[Finding]]:
    """Findings by model: every check of every task at the shortest and the longest length. An error
    of a model's files is one of them.

    With `ask` two short examples are sent to each model, by default only where that is cheap.
    """
    findings_of = {}
    for described in study.models:
        with closing(load_model(described)) as model:
            findings_of[model.name] = list(_findings(study, model, ask))
    return findings_of


def _findings(study: Study, model: Model, ask: bool | None) -> Iterator[Finding]:
    try:
        yield from check_model(model, study.tasks, study.lengths, study.seed)
        if ask is None:
            ask = model.engine in _CHEAP
        if ask:
            yield from check_answers(model, study.lengths[0], study.seed)
    except UserError as error:
        yield Finding(str(error), name="model")


def check_model(
    model: Model, tasks: Iterable[Task], lengths: Sequence[int], seed: int = 42
) -> Iterator[Finding]:
    """Every check of a few examples of each task at the shortest and the longest length."""
    # A template that fails is one error, not one for each task.
    _ = model.prompt_format.around
    for length, asked in product(sorted({min(lengths), max(lengths)}), tasks):
        count = EXAMPLES if length == min(lengths) < _LONG else 1
        examples = generate(asked, length, count, seed, model.prompt_format)
        try:
            for index in range(count):
                yield from check_case(Case(model, asked, examples[index]))
        except UserError as error:
            where = f"{asked.name} at {length_name(length)}"
            yield Finding(str(error), name="fits", where=where)


def check_case(case: Case) -> list[Finding]:
    """All findings on one example."""
    return list(run_checks(CHECKS, case.where, case))


# --- what the model answers -----------------------------------------------------------------------


def check_answers(model: Model, length: int, seed: int = 42) -> Iterator[Finding]:
    """Two short examples sent to the model: it answers the whole prompt, and nothing else.

    The needle of one stands at the beginning, that of the other at the end, so a prompt cut at its
    front is seen even where the engine does not count tokens for us.
    """
    if model.too_long(length) or length > (model.claimed_length or length):
        yield Finding(f"nothing: {length} is more than the model takes", level=NOTE, name="asked")
        return

    # A server that cuts the front of a prompt loses the first needle, one that cuts the
    # end the question.
    right = []
    for depth in (0, 100):
        asked = task({"base": "niah_single_1", "depth": depth})
        (example,) = generate(asked, length, 1, seed, model.prompt_format)
        case = Case(model, asked, example)
        try:
            ((_, answer),) = model.answer([case.example])
        except UserError as error:
            answer = Failure(str(error))
        if isinstance(answer, Failure):
            yield Finding(answer.reason, name="asked", where=case.where)
            return
        yield from run_checks(ANSWER_CHECKS, case.where, case, answer)
        right.append(all(reference in answer.text for reference in case.example.references))
    yield from run_checks({"both ends": both_ends}, "", *right)


def both_ends(first: bool, last: bool) -> CheckResult:
    """The needles at the beginning and at the end are found: the prompt is read whole."""
    if first and last:
        return "needles at 0 % and 100 % found"
    if last:
        seen = "the needle at 100 % is found, that at 0 % is not"
        return Finding(seen, "the prompt seems to lose its front: look for truncation")
    return Finding("a needle at a short length was not found", "see the answer", NOTE)


def new_text(case: Case, answer: Answer) -> CheckResult:
    """The answer is not empty; one that repeats the prompt was refused by the engine."""
    text = answer.text
    # An empty answer is most often a stop token that is part of the template.
    if not text.strip():
        seen = f"the answer is empty ({answer.finish_reason}, {answer.num_tokens} tokens)"
        level = NOTE if case.model.engine == "reader" else FAIL
        return Finding(seen, "check stop strings, refusals and the template", level)
    return f"text: {_short(text)}"


def token_count(case: Case, answer: Answer) -> CheckResult:
    """The engine counts as many prompt tokens as were sent: nothing added, nothing cut."""
    counted, sent = ((answer.usage or {}).get("prompt_tokens"), case.example.num_tokens)
    if not isinstance(counted, int):
        return None

    # Any other number means that the model did not read what was sent.
    if counted == sent:
        return f"{counted} prompt tokens, as sent"
    level = FAIL
    if counted < sent:
        fix = "the prompt was cut: raise the server's context length and switch its truncation off"
    elif case.form.prefix_in == "user" and counted <= sent + _SERVICE_FRAME:
        fix, level = "the service's own frame: keep as many tokens of the length free", NOTE
    else:
        fix = (
            "the server adds a second BOS or a second template: send ids or raw text, drop the "
            "template, or switch add_special_tokens off"
        )
    return Finding(f"the engine read {counted} tokens, {sent} were sent", fix, level)


ANSWER_CHECKS: Checks = {"answer": new_text, "engine's count": token_count}

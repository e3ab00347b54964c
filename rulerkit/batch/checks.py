"""Faults that would make scores wrong, detected before a GPU is used.

`check` looks at a model's prompts, one function per fault; where that is cheap it also sends the
model two short examples.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import product
from typing import NamedTuple

import numpy as np

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.evaluation.study import Study
from rulerkit.generation.example import Example
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import ends_thought
from rulerkit.generation.tasks import Task, task
from rulerkit.generation.tokenizers import load_tokenizer
from rulerkit.inference.model import Failure, Model, load_model

OK, NOTE, FAIL = "ok", "note", "FAIL"
EXAMPLES = 3
"""How many examples are checked at the shortest length; at the longest, or a long one, one is."""
_LONG = 32768
_FILLED = 0.75  # of its length; less says nothing about the length
_CHEAP = ("reader", "function", "openai")  # engines that answer without loading anything
_SERVICE_FRAME = 32  # tokens that a chat service adds around a message


class Finding(NamedTuple):
    """What a check saw, at which level (`ok`, `note`: worth knowing, `FAIL`: scores would be
    wrong), how to fix it, and in which example."""

    name: str
    level: str
    seen: str
    fix: str = ""
    where: str = ""


class Case(NamedTuple):
    """One example of a model, and the task that it is of."""

    model: Model
    task: Task
    example: Example


def check(study: Study, ask: bool | None = None) -> dict[str, list[Finding]]:
    """Findings by model: every check of every task at the shortest and the longest length. An error
    of a model's files is one of them.

    With `ask` two short examples are sent to each model, by default only where that is cheap.
    """
    findings_of = {}
    for described in study.models:
        with closing(load_model(described)) as model:
            found = findings_of[model.name] = list[Finding]()
            is_asked = model.engine in _CHEAP if ask is None else ask
            first = study.lengths[0]
            try:
                found.extend(check_model(model, study.tasks, study.lengths, study.seed))
                found.extend(check_answers(model, first, study.seed) if is_asked else ())
            except UserError as error:
                found.append(Finding("model", FAIL, str(error)))
    return findings_of


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
            yield Finding("fits", FAIL, str(error), where=where)


def check_case(case: Case) -> list[Finding]:
    """All findings on one example."""
    example = case.example
    where = f"{example.task} at {example.length}, example {example.index}"
    found = [look(case) for look in (tokenizer, template, thinking, bos, needles, budget, room)]
    return [finding._replace(where=where) for finding in found if finding]


# --- prompts --------------------------------------------------------------------------------------


def tokenizer(case: Case) -> Finding | None:
    """The tokenizer is the checkpoint's: no id beyond its vocabulary, and the same ids."""
    checkpoint = getattr(case.model, "checkpoint", None)
    if checkpoint is None:
        return None
    ours = case.model.prompt_format.tokenizer
    highest, size = int(case.example.ids.max()), checkpoint.vocab_size

    # An id beyond the vocabulary ends a GPU kernel without a message.
    fix = f"drop `tokenizer: {ours.name}`, or name the model's own"
    if size and highest >= size:
        seen = f"id {highest} is beyond the model's vocabulary of {size}"
        return Finding("tokenizer", FAIL, seen, fix)
    try:
        expected = load_tokenizer(checkpoint.tokenizer_spec())
    except UserError as error:
        seen = f"the model's own was not found ({error})"
        return Finding("tokenizer", NOTE, seen, "only ids could be compared")

    # Two vocabularies of one size may still be different ones.
    prompt = case.example.prompt
    if not np.array_equal(expected.encode(prompt), ours.encode(prompt)):
        return Finding("tokenizer", FAIL, f"{ours.name} gives other ids than {expected.name}", fix)
    return Finding("tokenizer", OK, f"{ours.name}: the model's own ids, the highest is {highest}")


_MARK = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Za-z]*(?:INST|MASK|PROMPT|RESULTS)\]|<[a-zA-Z]+_[a-zA-Z_]+>|</?s>|<[be]os>|<sop>"
)


def template(case: Case) -> Finding:
    """The marks of the template are single tokens; those of another model's template are not."""
    form = case.model.prompt_format
    before, after = form.around

    # A mark that is several tokens was never seen in training.
    broken = []
    for mark in _MARK.findall(before + after):
        count = form.tokenizer.count(mark)
        if count != 1:
            broken.append(f"{mark} is {count} tokens")
    if not broken:
        seen = f"{_short(form.template)}: {_short(before)} ... {_short(after)}"
        return Finding("template", OK, seen)
    seen = ", ".join(broken[:3])
    if form.template == "auto" or not form.tokenizer.chat_template:
        return Finding("template", NOTE, seen, "right only for a model that was trained so")
    fix = "the template is another model's: take `template: auto`, or its own name"
    return Finding("template", FAIL, seen, fix)


def thinking(case: Case) -> Finding | None:
    """A model that thinks has tokens for it and begins to think; one that should not does not."""
    form = case.model.prompt_format
    after = form.around[1]
    opened = form.opens_thought
    closed = not opened and ends_thought(after, form.thinking_marks)

    # Without tokens for a thought, the template must not begin one.
    if not form.thinking_tokens:
        if not opened and (closed or not form.thought or form.prefix_in == "assistant"):
            return None
        seen = "the model may think before it answers, and no token is kept free for it"
        fix = "set thinking_tokens, or enable_thinking: false"
        return Finding("thinking", FAIL if opened else NOTE, seen, fix)

    # With tokens for a thought, nothing may have ended it already.
    if closed:
        seen = f"the template ends the thought before it begins: {_short(after)}"
        return Finding("thinking", FAIL, seen, "set enable_thinking: true, or drop thinking_tokens")
    if form.prefix_in == "assistant":
        seen = "the answer prefix opens the assistant's turn: the model answers without a thought"
        return Finding("thinking", FAIL, seen, "drop prefix_in, or drop thinking_tokens")
    return Finding("thinking", OK, f"{form.thinking_tokens} tokens {form.thinking_room} the length")


def bos(case: Case) -> Finding:
    """What the tokenizer puts before a text, mostly a beginning-of-sequence token, exactly once and
    first, where the template does not leave it out; two move VT at 128K by 17 points."""
    form, ids = case.model.prompt_format, case.example.ids
    if not form.tokenizer.leading_ids:
        return Finding("BOS", OK, "the tokenizer adds none")
    name = "".join(form.tokenizer.leading_tokens)
    leading = list(form.leading_ids)
    places = np.flatnonzero(ids == form.tokenizer.leading_ids[0])
    if places.tolist() == [0] and ids[: len(leading)].tolist() == leading:
        return Finding("BOS", OK, f"{name} once, first")
    if not places.size and form.lacks_bos:
        seen = f"no {name}, because the chat template writes none; vLLM sends none either"
        fix = "if the model was trained with one, give a template that writes it"
        return Finding("BOS", NOTE, seen, fix)
    seen = f"{name} {len(places)} times, not once and first"
    return Finding("BOS", FAIL, seen, "either the template or the tokenizer must write it")


def needles(case: Case) -> Finding:
    """Every reference is in the prompt, and is still there when the ids are decoded; of tasks whose
    answers need not stand in the prompt, those that do."""
    example, references = case.example, case.example.references
    if case.task.match != "all":
        references = tuple(text for text in references if text in example.prompt)
    decoded = case.model.prompt_format.tokenizer.decode(example.ids)
    lost = [text for text in references if text not in decoded]
    if not lost:
        return Finding("needles", OK, f"{len(references)} found again after decode(encode(.))")
    seen = f"{len(lost)} of {len(references)} are lost in decode(encode(.)): {_short(lost[0])}"
    fix = "they are not in the prompt either: make it anew"
    if lost[0] in example.prompt:
        fix = "this tokenizer changes what it encodes: no score would mean anything"
    return Finding("needles", FAIL, seen, fix)


def budget(case: Case) -> Finding | None:
    """Prompt, answer and thought together stay within the length and fill it: a score at 128K says
    something about 128K. A question without context fills nothing."""
    example, length = case.example, case.example.length
    form = case.model.prompt_format
    used = len(example.ids) + example.max_new_tokens + form.thinking_inside
    if used > length:
        seen = f"{used} tokens with the answer, more than {length}"
        fix = "count template, BOS and thought too, with the model's own tokenizer"
        return Finding("budget", FAIL, seen, fix)
    if not example.context_blocks:
        return None
    share = used / length
    seen = f"{used} tokens with the answer, {100 * share:.1f} % of {length}"
    # As upstream does, protocols other than `clean` keep one layout for all examples.
    if share >= _FILLED or case.task.protocol != "clean":
        return Finding("budget", OK, seen)
    return Finding("budget", FAIL, seen, "generate with the model's tokenizer")


def room(case: Case) -> Finding:
    """A complete answer fits into `max_new_tokens`; else the table measures that limit. Of several
    alternatives the shortest counts."""
    example = case.example
    answer = case.task.join(example.references)
    if case.task.any_is_enough:
        answer = min(example.references, key=len)
    need = case.model.prompt_format.tokenizer.count(" " + answer)
    if need > example.max_new_tokens:
        seen = f"a complete answer has {need} tokens, max_new_tokens is {example.max_new_tokens}"
        fix = f"give the task max_new_tokens: {need + need // 4} or more"
        return Finding("answer room", FAIL, seen, fix)
    return Finding("answer room", OK, f"{need} tokens of {example.max_new_tokens}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:26]} ... {text[-9:]}")


# --- what the model answers -----------------------------------------------------------------------


def check_answers(model: Model, length: int, seed: int = 42) -> Iterator[Finding]:
    """Two short examples sent to the model: it answers the whole prompt, and nothing else.

    The needle of one stands at the beginning, that of the other at the end, so a prompt cut at its
    front is seen even where the engine does not count tokens for us.
    """
    if model.too_long(length) or length > (model.claimed_length or length):
        yield Finding("asked", NOTE, f"nothing: {length} is more than the model takes")
        return

    right = []
    for depth in (0, 100):
        asked = task({"base": "niah_single_1", "depth": depth})
        (example,) = generate(asked, length, 1, seed, model.prompt_format)
        try:
            ((_, answer),) = model.answer([example])
        except UserError as error:
            answer = Failure(str(error))
        if isinstance(answer, Failure):
            yield Finding("asked", FAIL, answer.reason)
            return

        if answer.text.strip():
            yield Finding("answer", OK, f"text: {_short(answer.text)}")
        else:
            # An empty answer is most often a stop token that is part of the template.
            seen = f"the answer is empty ({answer.finish_reason}, {answer.num_tokens} tokens)"
            level = NOTE if model.engine == "reader" else FAIL
            yield Finding("answer", level, seen, "check stop strings, refusals and the template")
        counted = (answer.usage or {}).get("prompt_tokens")
        if isinstance(counted, int):
            yield token_count(model, counted, example.num_tokens)
        right.append(all(reference in answer.text for reference in example.references))

    # A server that cuts the front of a prompt loses the first needle, one that cuts the
    # end the question.
    if all(right):
        yield Finding("both ends", OK, "needles at 0 % and 100 % found")
    elif right[1]:
        seen = "the needle at 100 % is found, that at 0 % is not"
        fix = "the prompt seems to lose its front: look for truncation"
        yield Finding("both ends", FAIL, seen, fix)
    else:
        seen = "a needle at a short length was not found"
        yield Finding("both ends", NOTE, seen, "see the answer")


def token_count(model: Model, counted: int, sent: int) -> Finding:
    """The engine counts as many prompt tokens as were sent; any other number means that the model
    did not read what was sent."""
    if counted == sent:
        return Finding("engine's count", OK, f"{counted} prompt tokens, as sent")
    level = FAIL
    if counted < sent:
        fix = "the prompt was cut: raise the server's context length and switch its truncation off"
    elif model.prompt_format.prefix_in == "user" and counted <= sent + _SERVICE_FRAME:
        fix, level = "the service's own frame: keep as many tokens of the length free", NOTE
    else:
        fix = (
            "the server adds a second BOS or a second template: send ids or raw text, drop the "
            "template, or switch add_special_tokens off"
        )
    return Finding("engine's count", level, f"the engine read {counted} tokens, {sent} sent", fix)

"""Faults that would make scores wrong, detected before a GPU is used.

`check` looks at a model's prompts, one function per fault. What a server does to them is seen by
its engine, at each answer.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import product
from typing import NamedTuple

import numpy as np

from rulerkit.common.errors import UserError, shortened
from rulerkit.common.lengths import length_name
from rulerkit.evaluation.study import Study
from rulerkit.generation.example import Example
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import ends_thought
from rulerkit.generation.tasks import Task
from rulerkit.generation.tokenizers import load_tokenizer
from rulerkit.inference.model import Model, load_model


class Finding(NamedTuple):
    """A fault by the name of its check: what was seen, how to fix it, and in which example."""

    name: str
    seen: str
    fix: str = ""
    where: str = ""


class Case(NamedTuple):
    """One example of a model, and the task that it is of."""

    model: Model
    task: Task
    example: Example


def check(study: Study) -> dict[str, list[Finding]]:
    """Findings by model: every check of every task at the shortest and the longest length."""
    findings_of = {}
    for described in study.models:
        with closing(load_model(described)) as model:
            found = check_model(model, study.tasks, study.lengths, study.seed)
            findings_of[model.name] = list(found)
    return findings_of


def summary_lines(findings: Iterable[Finding]) -> list[str]:
    """One line a check that failed: what it saw first, where, and how often."""
    by_name: dict[str, list[Finding]] = {}
    for finding in findings:
        by_name.setdefault(finding.name, []).append(finding)
    lines = []
    for name, group in by_name.items():
        first = group[0]
        line = f"FAIL  {name:15} {first.seen}"
        if first.where:
            line += f" ({first.where}; {len(group)} in all)"
        if first.fix:
            line += f"; {first.fix}"
        lines.append(line)
    return lines or ["ok    no fault was found"]


def check_model(
    model: Model, tasks: Iterable[Task], lengths: Sequence[int], seed: int = 42
) -> Iterator[Finding]:
    """Every check of one example of each task at the shortest and the longest length. An example
    that cannot be made, or a template that fails, is a finding, too."""
    for length, asked in product(sorted({min(lengths), max(lengths)}), tasks):
        try:
            (example,) = generate(asked, length, 1, seed, model.prompt_format)
            yield from check_case(Case(model, asked, example))
        except UserError as error:
            yield Finding("prompt", str(error), where=f"{asked.name} at {length_name(length)}")


def check_case(case: Case) -> list[Finding]:
    """All findings on one example."""
    example = case.example
    where = f"{example.task} at {example.length}, example {example.index}"
    found = [look(case) for look in (tokenizer, template, thinking, bos, needles, budget, room)]
    return [finding._replace(where=where) for finding in found if finding]


def tokenizer(case: Case) -> Finding | None:
    """A tokenizer that a model file names gives the same ids as the checkpoint's own. Two
    vocabularies of one size may still be different ones."""
    checkpoint = getattr(case.model, "checkpoint", None)
    if checkpoint is None or "tokenizer" not in case.model.spec:
        return None
    ours, prompt = case.model.prompt_format.tokenizer, case.example.prompt
    # A checkpoint may have none of its own.
    with suppress(UserError):
        own = load_tokenizer(checkpoint.tokenizer_spec())
        if not np.array_equal(own.encode(prompt), ours.encode(prompt)):
            fix = f"drop `tokenizer: {ours.name}`, or name the model's own"
            return Finding("tokenizer", f"{ours.name} gives other ids than {own.name}", fix)
    return None


_MARK = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Za-z]*(?:INST|MASK|PROMPT|RESULTS)\]|<[a-zA-Z]+_[a-zA-Z_]+>|</?s>|<[be]os>|<sop>"
)


def template(case: Case) -> Finding | None:
    """The marks of a named template are single tokens, where the tokenizer has a template of its
    own: a mark that is several tokens was never seen in training."""
    form = case.model.prompt_format
    if form.template == "auto" or not form.tokenizer.chat_template:
        return None
    for mark in _MARK.findall("".join(form.around)):
        count = form.tokenizer.count(mark)
        if count != 1:
            fix = "the template is another model's: take `template: auto`, or its own name"
            return Finding("template", f"{mark} is {count} tokens", fix)
    return None


def thinking(case: Case) -> Finding | None:
    """A model that thinks has tokens for it and begins to think; one that should not does not."""
    form = case.model.prompt_format
    after = form.around[1]
    if form.opens_thought and not form.thinking_tokens:
        seen = "the template begins a thought, and no token is kept free for it"
        return Finding("thinking", seen, "set thinking_tokens, or enable_thinking: false")
    if not form.thinking_tokens:
        return None

    # With tokens for a thought, nothing may have ended it already.
    if not form.opens_thought and ends_thought(after, form.thinking_marks):
        seen = f"the template ends the thought before it begins: {shortened(after)}"
        return Finding("thinking", seen, "set enable_thinking: true, or drop thinking_tokens")
    if form.prefix_in == "assistant":
        seen = "the answer prefix opens the assistant's turn: the model answers without a thought"
        return Finding("thinking", seen, "drop prefix_in, or drop thinking_tokens")
    return None


def bos(case: Case) -> Finding | None:
    """What the tokenizer puts before a text, mostly a beginning-of-sequence token, exactly once and
    first, where the template does not leave it out; two move VT at 128K by 17 points."""
    form, ids = case.model.prompt_format, case.example.ids
    if not form.tokenizer.leading_ids:
        return None
    places = np.flatnonzero(ids == form.tokenizer.leading_ids[0]).tolist()
    if places == [0] or (not places and form.lacks_bos):
        return None
    seen = f"{''.join(form.tokenizer.leading_tokens)} {len(places)} times, not once and first"
    return Finding("BOS", seen, "either the template or the tokenizer must write it")


def needles(case: Case) -> Finding | None:
    """Every reference is in the prompt, and is still there when the ids are decoded; of tasks whose
    answers need not stand in the prompt, those that do."""
    example, references = case.example, case.example.references
    if case.task.match != "all":
        references = tuple(text for text in references if text in example.prompt)
    decoded = case.model.prompt_format.tokenizer.decode(example.ids)
    lost = [text for text in references if text not in decoded]
    if not lost:
        return None
    seen = f"{len(lost)} of {len(references)} are lost in decode(encode(.)): {shortened(lost[0])}"
    fix = "they are not in the prompt either: make it anew"
    if lost[0] in example.prompt:
        fix = "this tokenizer changes what it encodes: no score would mean anything"
    return Finding("needles", seen, fix)


def budget(case: Case) -> Finding | None:
    """Prompt, answer and thought together stay within the length."""
    example = case.example
    inside = case.model.prompt_format.thinking_inside
    used = len(example.ids) + example.max_new_tokens + inside
    if used <= example.length:
        return None
    fix = "count template, BOS and thought too, with the model's own tokenizer"
    return Finding("budget", f"{used} tokens with the answer, more than {example.length}", fix)


def room(case: Case) -> Finding | None:
    """A complete answer fits into `max_new_tokens`; else the table measures that limit. Of several
    alternatives the shortest counts."""
    example = case.example
    answer = case.task.join(example.references)
    if case.task.any_is_enough:
        answer = min(example.references, key=len)
    need = case.model.prompt_format.tokenizer.count(" " + answer)
    if need <= example.max_new_tokens:
        return None
    seen = f"a complete answer has {need} tokens, max_new_tokens is {example.max_new_tokens}"
    return Finding("answer room", seen, f"give the task max_new_tokens: {need + need // 4} or more")

"""Faults that would make scores wrong, detected before a GPU is used.

`check` looks at a model's prompts, one function per fault; where that is cheap it also sends the
model two short examples, and for vLLM it builds vLLM's own configuration, without weights or GPU.
What should stand in a prompt is taken from the task's draft, not from the prompt itself.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from rulerkit.errors import UserError
from rulerkit.example import Draft, Example, ExampleStream
from rulerkit.generation import Examples, generate
from rulerkit.models import Answer, Failure, Model, load_model, num_shares
from rulerkit.models.server import Vllm
from rulerkit.prompt_format import DIRECT, THOUGHTS, PromptFormat, opens_thought
from rulerkit.settings import JSON, Spec
from rulerkit.studies import Study, bills
from rulerkit.tasks import Task, task
from rulerkit.tokenizers import Ids, Tokenizer, load_tokenizer

OK, NOTE, FAIL = "ok", "note", "FAIL"
LEAST_FILL = 0.97
EXAMPLES = 3
"""How many examples are checked at the shortest length; at the longest, or a long one, one is."""
GPUS_PER_NODE = 8
"""The largest common node, where params/site.yaml does not give `whole_nodes`."""
_COARSE_BELOW = 4096  # here one document more or less is more than three percent
_LONG = 32768
_CHEAP = ("reader", "function", "openai")  # engines that answer without loading anything
_ASKED = 8  # examples among which the earliest and the latest needle are picked
_SERVICE_FRAME = 32  # tokens that a chat service adds around a message


class Finding(NamedTuple):
    """What a check saw: `ok`, `note` (worth knowing) or `FAIL` (scores would be wrong), and how to
    fix it."""

    seen: str
    mend: str = ""
    level: str = FAIL
    name: str = ""
    where: str = ""


Seen = Finding | str | None
"""What a check returns: a fault, or what it saw where all is well; None where it does not apply."""


def named(name: str, seen: Finding | str, where: str = "") -> Finding:
    """What a check returned, with the check's name and the example or file that it looked at."""
    finding = Finding(seen, level=OK) if isinstance(seen, str) else seen
    return finding._replace(name=name, where=where)


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

    @property
    def used(self) -> int:
        """The tokens of prompt, answer and thinking together."""
        example = self.example
        return len(example.ids) + example.max_new_tokens + self.form.thinking_inside

    @property
    def opening(self) -> str:
        """The first words of the task."""
        return self.draft.demonstration or self.draft.instruction

    @property
    def spec(self) -> Spec:
        return getattr(self.model, "spec", {})


def make_case(model: Model, examples: Examples, index: int) -> Case:
    """One example of a model with its draft."""
    stream = ExampleStream(examples.seed, examples.task.name, index)
    draft = examples.task.draft(stream, examples.length)
    return Case(model, examples.task, examples[index], draft)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:26]} ... {text[-9:]}")


# --- the template ---------------------------------------------------------------------------------


def tokenizer_match(case: Case) -> Seen:
    """The tokenizer is the checkpoint's: no id beyond its vocabulary, and the same ids."""
    checkpoint, highest = getattr(case.model, "checkpoint", None), int(case.example.ids.max())
    if checkpoint is None:
        return None
    size = checkpoint.vocab_size
    mend = f"drop `tokenizer: {case.tokenizer.name}`, or name the model's own"
    if size and highest >= size:
        return Finding(f"id {highest} is beyond the model's vocabulary of {size}", mend)
    try:
        tokenizer = load_tokenizer(checkpoint.tokenizer_spec())
    except UserError as error:
        seen = f"the model's own was not found ({error})"
        return Finding(seen, "only ids could be compared", NOTE)
    if tokenizer.fingerprint != case.tokenizer.fingerprint and not np.array_equal(
        tokenizer.encode(case.example.prompt), case.text_ids
    ):
        return Finding(f"{case.tokenizer.name} gives other ids than {tokenizer.name}", mend)
    return f"{case.tokenizer.name}: highest id {highest}" + (f" of {size}" if size else "")


def template(case: Case) -> Seen:
    """The prompt begins as the template says, with the task's first words."""
    before, after = case.form.around
    start = before + case.opening[:40]
    if not case.example.prompt.startswith(start):
        return Finding(
            f"the prompt begins with {case.example.prompt[:48]!r}, not with {start[:48]!r}",
            "render the template once around the whole user's part, and change nothing after it",
        )
    form = case.form.form if len(case.form.form) < 24 else "the tokenizer's own"
    if case.form.template not in ("auto", case.form.form):
        form = "as given"
    return f"{form}: {_short(before or '(nothing)')} ... {_short(after or '(nothing)')}"


def answer_prefix(case: Case) -> Seen:
    """The prompt ends with the question, the end of the template and the answer prefix, in the turn
    that `prefix_in` names, in the text and in the ids."""
    question = case.draft.question
    prefix, after = case.draft.answer_prefix, case.form.around[1]
    in_user_turn = case.form.closes_user_turn
    if case.form.prefix_in == "none":
        prefix = ""
    ending = question + (DIRECT + prefix + after if in_user_turn else after + prefix)
    if not case.example.prompt.endswith(ending):
        return Finding(
            f"the prompt ends with {case.example.prompt[-48:]!r}, not with {ending[-48:]!r}",
            "send the example's own text or ids, whole and unstripped; set prefix_in to the turn that can hold the prefix",
        )
    if not prefix:
        return "none: the answer begins by itself"
    return f"{_short(prefix)}, last in the {'user' if in_user_turn else 'assistant'}'s turn"


_MARK = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Za-z]*(?:INST|MASK|PROMPT|RESULTS)\]|<[a-zA-Z]+_[a-zA-Z_]+>|</?s>|<[be]os>|<sop>"
)
_OFTEN_PLAIN = ("[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>")
"""Marks that some models were trained to see as ordinary tokens (Llama 2, Zephyr, Tulu)."""


def marks(case: Case) -> Seen:
    """The marks of the template are single tokens; those of another model's template are not."""
    counts = {mark: case.tokenizer.count(mark) for mark in _MARK.findall("".join(case.form.around))}
    broken = [mark for mark, count in counts.items() if count != 1]
    if not broken:
        return f"{len(counts)} special tokens, one id each" if counts else None
    seen = ", ".join(f"{mark} is {counts[mark]} tokens" for mark in broken[:3])
    mild = case.model.engine == "reader" or set(broken) <= set(_OFTEN_PLAIN)
    if mild and (case.form.template == "auto" or not case.tokenizer.chat_template):
        return Finding(seen, "right only for a model that was trained so", NOTE)
    return Finding(seen, "the template is another model's: take `template: auto`, or its own name")


def system_prompt(case: Case) -> Seen:
    """A system prompt that was asked for is in the prompt."""
    asked = case.spec.get("system_prompt") or case.form.system_prompt
    if not asked:
        return None
    if asked in case.example.prompt.partition(case.opening or "\0")[0]:
        return _short(asked)
    seen = f"{_short(asked)} is not before the task"
    return Finding(seen, "give a template that has a place for it")


def thinking(case: Case) -> Seen:
    """A model that thinks has tokens for it and begins to think; one that should not does not."""
    form, after = case.form, case.form.around[1]
    tokens, opened = form.thinking_tokens, opens_thought(after)
    closed = not opened and any(end in after for end in THOUGHTS)
    mend = "set thinking_tokens, or enable_thinking: false"
    if opened and not tokens:
        return Finding("the template opens a thought, and no token is kept free for it", mend)
    if tokens and closed:
        return Finding(
            f"the template ends the thought before it begins: {_short(after)}",
            "set enable_thinking: true (or what chat_template_kwargs of this model need), or drop "
            "thinking_tokens",
        )
    if tokens and form.prefix_in == "assistant":
        return Finding(
            "the answer prefix opens the assistant's turn, so the model answers without a thought",
            "drop prefix_in, or drop thinking_tokens",
        )
    if not tokens and form.prefix_in != "assistant" and form.thought and not closed:
        seen = "the model may think before it answers, and no token is kept free for it"
        return Finding(seen, mend, NOTE)
    if tokens and not form.thought and form.form not in ("gpt-4", "base"):
        return Finding(
            "the template names no mark that ends a thought: answers without one count as answers",
            f"known ends: {' '.join(THOUGHTS)}",
            NOTE,
        )
    return f"{tokens} tokens {form.thinking_room} the length" if tokens else None


def one_bos(case: Case) -> Seen:
    """Exactly one beginning-of-sequence token, first, where the model has one; two move VT at 128K
    by 17 points."""
    token, ids = case.tokenizer, case.example.ids
    name = token.bos_token or token.bos_id
    mend = "the template and the tokenizer must not both write it: check `template` and tokenizer_config.json"
    if token.bos_id is None:
        if len(ids) > 1 and ids[0] == ids[1] and str(name) == token.decode(ids[:1]):
            return Finding(f"{name!r} twice", mend)
        return "the tokenizer adds none"
    places = np.flatnonzero(ids == token.bos_id)
    if len(places) != 1:
        return Finding(f"{name} {len(places)} times, not once", mend)
    if places[0]:
        return Finding(f"{name} is token {places[0]}, not the first", mend)
    return f"{name} once, first"


# --- the ids --------------------------------------------------------------------------------------


def ids_of_text(case: Case) -> Seen:
    """The ids are those of the whole text."""
    ids = case.example.ids
    wanted = np.concatenate([np.array(case.form.bos, dtype=np.int32), case.text_ids])
    if np.array_equal(ids, wanted):
        return "those of the whole text"
    same = min(len(ids), len(wanted))
    at = next(iter(np.flatnonzero(ids[:same] != wanted[:same])), same)
    return Finding(
        f"{len(ids)} ids, the text has {len(wanted)}; they differ from token {at} on",
        "encode the whole text anew; if rulerkit made these ids, report it",
    )


def needles(case: Case) -> Seen:
    """Every reference in the prompt is still there when the ids are decoded."""
    prompt = case.example.prompt
    pieces = case.example.blocks if case.task.family == "niah" else ()
    keys = [piece.key for piece in pieces if piece.role == "needle" and piece.key]
    wanted = dict.fromkeys([*case.draft.references, *keys])
    present = [text for text in wanted if text in prompt]
    if lost := [text for text in present if text not in case.decoded]:
        return Finding(
            f"{len(lost)} of {len(wanted)} are lost in encoding: {_short(lost[0])}",
            "this tokenizer changes what it encodes (case, blanks, accents): no score of this task would mean anything",
        )
    if case.task.match == "all" and len(present) < len(wanted):
        absent = next(text for text in wanted if text not in prompt)
        seen = f"{_short(absent)} is not in the prompt"
        return Finding(seen, "nobody can find it: make it anew")
    return f"{len(present)} found again after decode(encode(.))"


# --- lengths --------------------------------------------------------------------------------------


def budget(case: Case) -> Seen:
    """Template, prompt, answer and thinking together stay within the length."""
    example, thought = case.example, case.form.thinking_inside
    parts = f"{len(example.ids)} + {example.max_new_tokens} for the answer"
    parts += f" + {thought} to think" if thought else ""
    if case.used > example.length:
        return Finding(
            f"{parts} are {case.used}, more than {example.length}",
            "count the template, BOS and thinking too, with the model's own tokenizer",
        )
    return f"{parts} within {example.length}"


def fill(case: Case) -> Seen:
    """The length is filled: a score at 128K says something about 128K."""
    example, (first, last) = case.example, case.example.context
    if first == last and not case.draft.instruction:
        return None  # a question without context
    share = case.used / example.length
    if share >= LEAST_FILL:
        return f"{100 * share:.1f} %"
    mend, level = "generate the examples with this model's own tokenizer", FAIL
    if case.task.category == "qa" and example.length < _COARSE_BELOW:
        mend, level = "documents are coarse at short lengths", NOTE
    if case.task.protocol == "paper":
        mend, level = "the protocol paper keeps one layout for all examples, as upstream does", NOTE
    return Finding(f"{100 * share:.1f} % of {example.length} tokens", mend, level)


def length(case: Case) -> Seen:
    """The model can be given the length, and claims it."""
    claimed, asked = case.model.claimed_length, case.example.length
    if reason := case.model.too_long(asked):
        return Finding(f"{asked} will not be run: {reason}", level=NOTE)
    if claimed and asked > claimed:
        return Finding(f"{asked} is more than the {claimed} that the model claims", level=NOTE)
    return f"{asked} can be run"


def _full_answer(case: Case) -> str:
    """A complete answer as the task's demonstration writes it."""
    references = case.draft.references
    if case.task.match == "part":
        return min(references, key=len)
    if case.task.family == "common_words":
        return " ".join(f"{i}. {word}" for i, word in enumerate(references, 1))
    return (" " if case.task.family == "variable_tracking" else ", ").join(references)


def answer_room(case: Case) -> Seen:
    """A complete answer fits into `max_new_tokens`; else the table measures that limit."""
    need, most = case.tokenizer.count(" " + _full_answer(case)), case.example.max_new_tokens
    if need > most:
        seen = f"a complete answer has {need} tokens, max_new_tokens is {most}"
        return Finding(seen, f"give the task max_new_tokens: {need + need // 4} or more")
    return f"{need} tokens of {most}"


def stop_strings(case: Case) -> Seen:
    """No stop string stands inside a complete answer."""
    answer, stops = _full_answer(case), list(_stops(case.spec))
    if bad := [stop for stop in stops if stop in answer]:
        return Finding(f"{bad[0]!r} stands inside the answer {_short(answer)}", "take it out")
    return f"none of {len(stops)} inside an answer" if stops else None


def _stops(settings: Spec) -> Iterator[str]:
    """The stop strings anywhere in a spec."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _stops(value)
        elif key in ("stop", "stop_strings", "stop_sequences"):
            values = [value] if isinstance(value, str) else value
            yield from (stop for stop in values if isinstance(stop, str))


CHECKS: dict[str, Callable[[Case], Seen]] = {
    "tokenizer": tokenizer_match,
    "template": template,
    "template marks": marks,
    "system prompt": system_prompt,
    "thinking": thinking,
    "BOS": one_bos,
    "answer prefix": answer_prefix,
    "ids": ids_of_text,
    "needles": needles,
    "budget": budget,
    "fill": fill,
    "length": length,
    "answer room": answer_room,
    "stop strings": stop_strings,
}
"""Name -> check, in the order in which they are printed."""


# --- models ---------------------------------------------------------------------------------------


def check(
    study: Study, ask: bool | None = None, gpus_per_node: int = GPUS_PER_NODE
) -> dict[str, list[Finding]]:
    """Findings by model: every check of every task at the shortest and the longest length.

    With `ask` two short examples are sent to each model, by default only where that is cheap. For
    vLLM its own configuration of the model is built too.
    """
    findings_of: dict[str, list[Finding]] = {}
    for spec in study.models:
        with closing(load_model(spec)) as model:
            findings = findings_of[model.name] = []
            try:
                findings += check_model(model, study.tasks, study.lengths, study.seed)
                if isinstance(spec, dict) and "prices" in spec:
                    cost = sum(row.dollars for row in bills(study, spec))
                    findings.append(
                        named("cost", f"${cost:,.2f} at most; `rulerkit plan` tells more")
                    )
                if isinstance(model, Vllm):
                    lengths = [length for length in study.lengths if not model.too_long(length)]
                    arguments = vllm_arguments(model)
                    findings += check_vllm_config(model.name, arguments, lengths, gpus_per_node)
                cheap = model.engine in _CHEAP and not getattr(model, "startable", False)
                if cheap if ask is None else ask:
                    findings += check_answers(model, study.lengths[0], study.seed)
            except UserError as error:
                findings.append(named("model", Finding(str(error))))
    return findings_of


def check_model(
    model: Model, tasks: Iterable[Task], lengths: Sequence[int], seed: int = 42
) -> Iterator[Finding]:
    """Every check of a few examples of each task at the shortest and the longest length."""
    tasks = list(tasks)
    _ = model.prompt_format.around  # a template that fails is one error, not one for each task
    for length in sorted({min(lengths), max(lengths)}):
        for asked in tasks:
            count = EXAMPLES if length == min(lengths) < _LONG else 1
            examples = generate(asked, length, count, seed, model.prompt_format)
            try:
                for index in range(count):
                    yield from check_case(make_case(model, examples, index))
            except UserError as error:
                yield named("fits", Finding(str(error)), f"{asked.name} at {length}")


def check_case(case: Case) -> list[Finding]:
    """All findings on one example."""
    checks = CHECKS.items()
    return [named(name, seen, case.where) for name, check in checks if (seen := check(case))]


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
        if level != OK:
            line += f" ({worst[0].where or 'asked'}; {len(worst)} of {len(group)})"
            line += f"; {worst[0].mend}" if worst[0].mend else ""
        lines.append(line)
    return lines


# --- what the model answers -----------------------------------------------------------------------


def check_answers(model: Model, length: int, seed: int = 42) -> Iterator[Finding]:
    """Two short examples sent to the model: it answers the whole prompt, and nothing else.

    The needle of one stands early, that of the other late, so a prompt cut at its front is seen
    even where the engine does not count tokens for us.
    """
    if model.too_long(length) or length > (model.claimed_length or length):
        seen = f"nothing: {length} is more than the model takes"
        yield named("asked", Finding(seen, level=NOTE))
        return
    examples = generate(task("niah_single_1"), length, _ASKED, seed, model.prompt_format)
    by_depth = sorted(examples, key=lambda example: example.depths[0])
    cases = [make_case(model, examples, by_depth[at].index) for at in (0, -1)]
    try:
        answers = {e.index: answer for e, answer in model.answer([c.example for c in cases])}
    except UserError as error:
        yield named("asked", Finding(str(error)), cases[0].where)
        return
    right = []
    for case in cases:
        answer = answers[case.example.index]
        if isinstance(answer, Failure):
            yield named("asked", Finding(answer.reason), case.where)
            return
        yield _answer_text(case, answer)
        if count := _token_count(case, answer):
            yield named("engine's count", count, case.where)
        right.append(all(reference in answer.text for reference in case.draft.references))
    early, late = (f"the needle at {case.example.depths[0]:.0f} %" for case in cases)
    if all(right):
        yield named("both ends", f"{early} and {late} found")
    elif right[1]:
        mend = "the prompt seems to lose its front: look for truncation"
        seen = f"{late} is found, {early} is not"
        yield named("both ends", Finding(seen, mend), cases[0].where)
    else:
        seen = "a needle at a short length was not found"
        yield named("both ends", Finding(seen, "see the answer", NOTE))


def _answer_text(case: Case, answer: Answer) -> Finding:
    """The answer is new text: the prompt itself would score 100 everywhere."""
    text, name = answer.text, "echo"
    seen: Finding | str = f"the answer is new text: {_short(text)}"
    if not text.strip():
        name, what = "empty", f"({answer.finish_reason}, {answer.num_tokens} tokens)"
        mend = "check stop strings, refusals and the template"
        seen = Finding(f"the answer is empty {what}", mend)
        if case.spec.get("window") == 0:
            seen = Finding("no answer, as of a reader that sees nothing", level=NOTE)
    elif case.example.input[:200] in text or (
        len(text) > 200 and text[:200] in case.example.prompt
    ):
        mend = "let the engine return the new text alone (echo: false, return_full_text: false)"
        seen = Finding("the prompt came back with the answer", mend)
    return named(name, seen, case.where)


def _token_count(case: Case, answer: Answer) -> Seen:
    """The engine counts as many prompt tokens as were sent: nothing added, nothing cut."""
    counted, sent = (answer.usage or {}).get("prompt_tokens"), case.example.num_tokens
    if not isinstance(counted, int):
        return None
    if counted == sent:
        return f"{counted} prompt tokens, as sent"
    level = FAIL
    if counted < sent:
        mend = "the prompt was cut: raise the server's context length and switch its truncation off"
    elif counted == sent + 1:
        mend = "one was added, most likely a second BOS: send ids, or switch add_special_tokens off"
    elif case.form.closes_user_turn and counted <= sent + _SERVICE_FRAME:
        mend, level = "the service's own frame: keep as many tokens of the length free", NOTE
    else:
        mend = "the server frames the prompt once more: send ids or raw text, or drop the template"
    return Finding(f"the engine read {counted} tokens, {sent} were sent", mend, level)


# --- vLLM's configuration -------------------------------------------------------------------------


def vllm_arguments(model: Vllm) -> JSON:
    """The arguments that vLLM is started with; several nodes are described without addresses."""
    one_node = Vllm({**model.spec, "nodes": 1})
    return one_node.arguments() | {"nnodes": model.spec.get("nodes", 1)}


def gpus_beyond_node(arguments: Spec, nodes: int, gpus_per_node: int = GPUS_PER_NODE) -> str:
    """Why the GPUs of a model do not fit its nodes; empty where they do. `arguments` are keys of a
    model or of vLLM."""
    gpus = num_shares(arguments)
    if gpus <= nodes * gpus_per_node:
        return ""
    place = f"{nodes} nodes of {gpus_per_node}" if nodes > 1 else f"one node of {gpus_per_node}"
    return f"{gpus} GPUs do not fit {place}: set nodes: {-(-gpus // gpus_per_node)} or lower tensor_parallel_size"


def check_vllm_config(
    model: str,
    arguments: Spec,
    lengths: Sequence[int],
    gpus_per_node: int = GPUS_PER_NODE,
) -> Iterator[Finding]:
    """Whether vLLM can start with these arguments and be asked these lengths: it builds its
    configuration in a process of its own."""
    if reason := gpus_beyond_node(arguments, arguments.get("nnodes", 1), gpus_per_node):
        yield named("GPUs", Finding(reason), model)
    if find_spec("vllm") is None:
        absent = Finding("not built: vllm is not installed here", level=NOTE)
        yield named("vLLM config", absent, model)
        return
    run = subprocess.run(
        [sys.executable, "-m", "rulerkit.checks"],
        input=json.dumps([dict(arguments), max(lengths, default=1)]),
        capture_output=True,
        text=True,
        env=os.environ | {"VLLM_LOGGING_LEVEL": "CRITICAL"},
    )
    try:
        seen = Finding(*json.loads(run.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        last = (run.stderr.strip() or "no message").splitlines()[-1]
        reason = f"vLLM ended with status {run.returncode}: {last}"
        seen = Finding(reason, "start vLLM by hand to see more")
    yield named("vLLM config", seen, model)


def examine(arguments: JSON, longest: int) -> Finding:
    """What vLLM makes of the arguments. Runs in the child process, without weights or GPU."""
    note = ""
    try:
        try:
            config = _vllm_config(arguments)
        except ValueError as error:
            if "failed to be inspected" not in str(error) or find_spec("torchvision"):
                raise
            text_only = {"architectures": ["TransformersForCausalLM"]}  # its image code needs it
            overrides = {**(arguments.get("hf_overrides") or {}), **text_only}
            config = _vllm_config(arguments | {"hf_overrides": overrides})
            note = "; its image part is not checked: torchvision is not installed here"
    except Exception as error:
        errors = getattr(error, "errors", None)  # pydantic's
        text = errors()[0]["msg"].removeprefix("Value error, ") if errors else str(error)
        reason = " ".join((text or type(error).__name__).split()).partition(". ")[0].rstrip(".")
        mend = "change hf_overrides, max_length or engine_args of the model"
        return Finding(f"vLLM refuses it: {reason}", mend)
    dual_chunk = getattr(config.hf_text_config, "dual_chunk_attention_config", None)
    if dual_chunk and not config.using_transformers_backend():
        mend = "set engine_args: {model_impl: transformers}"
        return Finding("vLLM has no dual-chunk attention any more", mend)
    if longest > config.max_model_len:
        mend = "set max_length, or hf_overrides with rope_parameters and max_position_embeddings"
        seen = f"vLLM takes {config.max_model_len} tokens, {longest} are to be asked"
        return Finding(seen, mend)
    about = f"{config.architecture}, {config.max_model_len} tokens{note}"
    return Finding(about, level=NOTE if note else OK)


def _vllm_config(arguments: JSON) -> Any:
    """vLLM's ModelConfig, verified against its registry and its attention heads."""
    from vllm.config import LoadConfig, ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(**arguments).create_model_config()
    config.verify_dual_chunk_attention_config(LoadConfig())
    sizes = {
        key: arguments.get(key, 1) for key in ("tensor_parallel_size", "pipeline_parallel_size")
    }
    config.verify_with_parallel_config(ParallelConfig(distributed_executor_backend="mp", **sizes))
    return config


if __name__ == "__main__":
    print(json.dumps(examine(*json.load(sys.stdin))))

"""Faults that would spoil the scores, found before the first GPU second.

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
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from rulerkit.errors import UserError
from rulerkit.example import Draft, Example, ExampleStream
from rulerkit.generation import Examples, generate
from rulerkit.models import Answer, Failure, Model, load_model
from rulerkit.models.server import Vllm
from rulerkit.prompt_format import DIRECT, PromptFormat
from rulerkit.studies import Study
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

    @property
    def opening(self) -> str:
        """The first words of the task."""
        return self.draft.demonstration or self.draft.instruction

    @property
    def spec(self) -> Mapping[str, Any]:
        return getattr(self.model, "spec", {})


def make_case(model: Model, examples: Examples, index: int) -> Case:
    """One example of a model with its draft."""
    stream = ExampleStream(examples.seed, examples.task.name, index)
    draft = examples.task.draft(stream, examples.length)
    return Case(model, examples.task, examples[index], draft)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:26]} ... {text[-9:]}")


# --- the template ---------------------------------------------------------------------------------


def tokenizer_match(case: Case) -> Finding | None:
    """The tokenizer is the checkpoint's: no id beyond its vocabulary, and the same ids."""
    checkpoint, highest = getattr(case.model, "checkpoint", None), int(case.example.ids.max())
    if checkpoint is None:
        return None
    size = (checkpoint.config.get("text_config") or checkpoint.config).get("vocab_size")
    mend = f"drop `tokenizer: {case.tokenizer.name}`, or name the model's own"
    if size and highest >= size:
        seen = f"id {highest} is beyond the model's vocabulary of {size}"
        return Finding(FAIL, "tokenizer", seen, mend)
    try:
        own = load_tokenizer(checkpoint.tokenizer_spec())
    except UserError as error:
        seen = f"the model's own was not found ({error})"
        return Finding(NOTE, "tokenizer", seen, "only ids could be compared")
    if own.fingerprint != case.tokenizer.fingerprint and not np.array_equal(
        own.encode(case.example.prompt), case.text_ids
    ):
        seen = f"{case.tokenizer.name} gives other ids than {own.name}"
        return Finding(FAIL, "tokenizer", seen, mend)
    of = f" of {size}" if size else ""
    return Finding(OK, "tokenizer", f"{case.tokenizer.name}: highest id {highest}{of}")


def template(case: Case) -> Finding:
    """The prompt begins as the template says, with the task's first words."""
    before, after = case.form.around
    start = before + case.opening[:40]
    if not case.example.prompt.startswith(start):
        seen = f"the prompt begins with {case.example.prompt[:48]!r}, not with {start[:48]!r}"
        mend = "render the template once around the whole user's part, and change nothing after it"
        return Finding(FAIL, "template", seen, mend)
    form = case.form.form if len(case.form.form) < 24 else "the tokenizer's own"
    if case.form.template not in ("auto", case.form.form):
        form = "as given"
    around = f"{_short(before or '(nothing)')} ... {_short(after or '(nothing)')}"
    return Finding(OK, "template", f"{form}: {around}")


def answer_prefix(case: Case) -> Finding:
    """The prompt ends with the question, the end of the template and the answer prefix, in the turn
    that `prefix_in` names, in the text and in the ids."""
    question = case.draft.question
    prefix, after = case.draft.answer_prefix, case.form.around[1]
    in_user_turn = case.form.closes_user_turn
    ending = question + (DIRECT + prefix + after if in_user_turn else after + prefix)
    if not case.example.prompt.endswith(ending):
        seen = f"the prompt ends with {case.example.prompt[-48:]!r}, not with {ending[-48:]!r}"
        mend = "send the example's own text or ids, whole and unstripped; set prefix_in to the turn that can hold the prefix"
        return Finding(FAIL, "answer prefix", seen, mend)
    ending = prefix + after if in_user_turn else prefix
    if not case.decoded.endswith(ending):
        seen = f"the ids end with {case.decoded[-24:]!r}, not with {ending[-24:]!r}"
        return Finding(FAIL, "answer prefix", seen, "send the ids as they are")
    turn = "user" if in_user_turn else "assistant"
    return Finding(OK, "answer prefix", f"{_short(prefix)}, last in the {turn}'s turn")


_MARK = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Za-z]*(?:INST|MASK|PROMPT|RESULTS)\]|<[a-zA-Z]+_[a-zA-Z_]+>|</?s>|<[be]os>|<sop>"
)
_OFTEN_PLAIN = ("[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>")
"""Marks that some models were trained to see as ordinary tokens (Llama 2, Zephyr, Tulu)."""


def marks(case: Case) -> Finding | None:
    """The marks of the template are single tokens; those of another model's template are not."""
    found = dict.fromkeys(_MARK.findall("".join(case.form.around)))
    broken = {mark: n for mark in found if (n := case.tokenizer.count(mark)) != 1}
    if not broken:
        seen = f"{len(found)} special tokens, one id each"
        return Finding(OK, "template marks", seen) if found else None
    seen = ", ".join(f"{mark} is {n} tokens" for mark, n in list(broken.items())[:3])
    mild = case.model.engine == "reader" or all(mark in _OFTEN_PLAIN for mark in broken)
    if mild and (case.form.template == "auto" or not case.tokenizer.chat_template):
        return Finding(NOTE, "template marks", seen, "right only for a model that was trained so")
    mend = "the template is another model's: take `template: auto`, or its own name"
    return Finding(FAIL, "template marks", seen, mend)


def system_prompt(case: Case) -> Finding | None:
    """A system prompt that was asked for is in the prompt."""
    asked = case.spec.get("system_prompt") or case.form.system_prompt
    if not asked:
        return None
    if asked in case.example.prompt.partition(case.opening or "\0")[0]:
        return Finding(OK, "system prompt", _short(asked))
    seen = f"{_short(asked)} is not before the task"
    return Finding(FAIL, "system prompt", seen, "give a template that has a place for it")


def thinking(case: Case) -> Finding | None:
    """Where the template opens a thought there are tokens for it, and the answer prefix is outside."""
    after, tokens = case.form.around[1], case.form.thinking_tokens
    opened = after.rfind("<think>") > after.rfind("</think>")
    in_user_turn, mend = case.form.closes_user_turn, "enable_thinking: false"
    if opened and not tokens:
        seen = "the template opens a thought, and no token is kept free for it"
        return Finding(FAIL, "thinking", seen, f"set thinking_tokens, or {mend}")
    if opened and not in_user_turn:
        seen = "the answer prefix stands inside the thought that the template opens"
        return Finding(FAIL, "thinking", seen, f"set prefix_in: user, or {mend}")
    if not tokens and in_user_turn and "<think>" in case.form.form and "</think>" not in after:
        seen = "the model may think before it answers, and no token is kept free for it"
        return Finding(NOTE, "thinking", seen, f"set thinking_tokens, or {mend}")
    return Finding(OK, "thinking", f"{tokens} tokens kept free") if tokens else None


def one_bos(case: Case) -> Finding:
    """Exactly one beginning-of-sequence token, first, where the model has one; two move VT at 128K
    by 17 points."""
    token, ids = case.tokenizer, case.example.ids
    name, seen = token.bos_token or token.bos_id, ""
    if token.bos_id is None:
        if len(ids) > 1 and ids[0] == ids[1] and str(name) == token.decode(ids[:1]):
            seen = f"{name!r} twice"
    else:
        places = np.flatnonzero(ids == token.bos_id)
        if len(places) != 1:
            seen = f"{name} {len(places)} times, not once"
        elif places[0]:
            seen = f"{name} is token {places[0]}, not the first"
    if seen:
        mend = "the template and the tokenizer must not both write it: check `template` and tokenizer_config.json"
        return Finding(FAIL, "BOS", seen, mend)
    return Finding(OK, "BOS", f"{name} once, first" if token.bos_id else "the tokenizer adds none")


# --- the ids --------------------------------------------------------------------------------------


def ids_of_text(case: Case) -> Finding:
    """The ids are those of the whole text."""
    want = np.concatenate([np.array(case.form.bos, dtype=np.int32), case.text_ids])
    ids = case.example.ids
    if np.array_equal(ids, want):
        return Finding(OK, "ids", "those of the whole text")
    same = min(len(ids), len(want))
    at = next(iter(np.flatnonzero(ids[:same] != want[:same])), same)
    seen = f"{len(ids)} ids, the text has {len(want)}; they differ from token {at} on"
    mend = "encode the whole text anew; if rulerkit made these ids, report it"
    return Finding(FAIL, "ids", seen, mend)


def needles(case: Case) -> Finding:
    """Every reference in the prompt is still there when the ids are decoded."""
    prompt = case.example.prompt
    pieces = case.example.blocks if case.task.family == "niah" else ()
    keys = [piece.key for piece in pieces if piece.role == "needle" and piece.key]
    wanted = dict.fromkeys([*case.draft.references, *keys])
    absent = [text for text in wanted if text not in prompt]
    if lost := [text for text in wanted if text in prompt and text not in case.decoded]:
        seen = f"{len(lost)} of {len(wanted)} are lost in encoding: {_short(lost[0])}"
        mend = "this tokenizer changes what it encodes (case, blanks, accents): no score of this task would mean anything"
        return Finding(FAIL, "needles", seen, mend)
    if case.task.match == "all" and absent:
        seen = f"{_short(absent[0])} is not in the prompt"
        return Finding(FAIL, "needles", seen, "nobody can find it: make it anew")
    found = len(wanted) - len(absent)
    return Finding(OK, "needles", f"{found} found again after decode(encode(.))")


# --- lengths --------------------------------------------------------------------------------------


def budget(case: Case) -> Finding:
    """Template, prompt, answer and thinking together stay within the length."""
    example, thought = case.example, case.form.thinking_tokens
    used = len(example.ids) + example.max_new_tokens + thought
    parts = f"{len(example.ids)} + {example.max_new_tokens} for the answer"
    parts += f" + {thought} to think" if thought else ""
    if used > example.length:
        seen = f"{parts} are {used}, more than {example.length}"
        mend = "count the template, BOS and thinking too, with the model's own tokenizer"
        return Finding(FAIL, "budget", seen, mend)
    return Finding(OK, "budget", f"{parts} within {example.length}")


def fill(case: Case) -> Finding | None:
    """The length is filled: a score at 128K says something about 128K."""
    example, (first, last) = case.example, case.example.context
    if first == last and not case.draft.instruction:
        return None  # a question without context
    share = (len(example.ids) + example.max_new_tokens + case.form.thinking_tokens) / example.length
    if share >= LEAST_FILL:
        return Finding(OK, "fill", f"{100 * share:.1f} %")
    mend, level = "generate the examples with this model's own tokenizer", FAIL
    if case.task.category == "qa" and example.length < _COARSE_BELOW:
        mend, level = "documents are coarse at short lengths", NOTE
    if case.task.protocol == "paper":
        mend = "the protocol paper keeps one layout for all examples, as upstream does"
        level = NOTE
    return Finding(level, "fill", f"{100 * share:.1f} % of {example.length} tokens", mend)


def length(case: Case) -> Finding:
    """The model can be given the length, and claims it."""
    claimed, asked = case.model.claimed_length, case.example.length
    if reason := case.model.too_long(asked):
        return Finding(NOTE, "length", f"{asked} will not be run: {reason}")
    if claimed and asked > claimed:
        return Finding(NOTE, "length", f"{asked} is more than the {claimed} that the model claims")
    return Finding(OK, "length", f"{asked} can be run")


def _full_answer(case: Case) -> str:
    """A complete answer as the task's demonstration writes it."""
    references = case.draft.references
    if case.task.match == "part":
        return min(references, key=len)
    if case.task.family == "common_words":
        return " ".join(f"{i}. {word}" for i, word in enumerate(references, 1))
    return (" " if case.task.family == "variable_tracking" else ", ").join(references)


def answer_room(case: Case) -> Finding:
    """A complete answer fits into `max_new_tokens`; else the table measures that limit."""
    need, most = case.tokenizer.count(" " + _full_answer(case)), case.example.max_new_tokens
    if need > most:
        seen = f"a complete answer has {need} tokens, max_new_tokens is {most}"
        mend = f"give the task max_new_tokens: {need + need // 4} or more"
        return Finding(FAIL, "answer room", seen, mend)
    return Finding(OK, "answer room", f"{need} tokens of {most}")


def stop_strings(case: Case) -> Finding | None:
    """No stop string stands inside a complete answer."""
    answer, stops = _full_answer(case), list(_stops(case.spec))
    if bad := [stop for stop in stops if stop in answer]:
        seen = f"{bad[0]!r} stands inside the answer {_short(answer)}"
        return Finding(FAIL, "stop strings", seen, "take it out")
    return Finding(OK, "stop strings", f"none of {len(stops)} inside an answer") if stops else None


def _stops(settings: Mapping[str, Any]) -> Iterator[str]:
    """The stop strings anywhere in a spec."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _stops(value)
        elif key in ("stop", "stop_strings", "stop_sequences"):
            values = [value] if isinstance(value, str) else value
            yield from (stop for stop in values if isinstance(stop, str))


CHECKS: tuple[Callable[[Case], Finding | None], ...] = (
    tokenizer_match,
    template,
    marks,
    system_prompt,
    thinking,
    one_bos,
    answer_prefix,
    ids_of_text,
    needles,
    budget,
    fill,
    length,
    answer_room,
    stop_strings,
)
"""In the order in which they are printed."""


# --- models ---------------------------------------------------------------------------------------


def check(
    study: Study, ask: bool | None = None, gpus_per_node: int = GPUS_PER_NODE
) -> dict[str, list[Finding]]:
    """Findings by model: every check of every task at the shortest and the longest length.

    With `ask` two short examples are sent to each model, by default only where that is cheap. For
    vLLM its own configuration of the model is built too.
    """
    found = {}
    for spec in study.models:
        model = load_model(spec)
        findings = found[model.name] = list[Finding]()
        try:
            findings += check_model(model, study.tasks, study.lengths, study.seed)
            if isinstance(model, Vllm):
                lengths = [length for length in study.lengths if not model.too_long(length)]
                arguments = vllm_arguments(model)
                findings += check_vllm_config(model.name, arguments, lengths, gpus_per_node)
            cheap = model.engine in _CHEAP and not getattr(model, "startable", False)
            if cheap if ask is None else ask:
                findings += check_answers(model, study.lengths[0], study.seed)
        except UserError as error:
            findings.append(Finding(FAIL, "model", str(error)))
        finally:
            model.close()
    return found


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
            for index in range(count):
                try:
                    yield from check_case(make_case(model, examples, index))
                except UserError as error:
                    yield Finding(FAIL, "fits", str(error), where=f"{asked.name} at {length}")
                    break


def check_case(case: Case) -> list[Finding]:
    """All findings on one example."""
    return [found._replace(where=case.where) for one in CHECKS if (found := one(case))]


def summary_lines(findings: Iterable[Finding]) -> list[str]:
    """One line a check: the worst that it saw, where, and how often."""
    by_name: dict[str, list[Finding]] = {}
    for finding in findings:
        by_name.setdefault(finding.name, []).append(finding)
    lines = []
    for name, group in by_name.items():
        level = max((f.level for f in group), key=(OK, NOTE, FAIL).index)
        worst = [finding for finding in group if finding.level == level]
        line = f"{level:4}  {name:15} {worst[0].seen}"
        if level != OK:
            line += f" ({worst[0].where or 'asked'}; {len(worst)} of {len(group)})"
            line += f"; {worst[0].mend}" if worst[0].mend else ""
        lines.append(line)
    return lines


# --- what the model answers -----------------------------------------------------------------------


def check_answers(model: Model, length: int, seed: int = 42) -> list[Finding]:
    """Two short examples sent to the model: it answers the whole prompt, and nothing else.

    The needle of one stands early, that of the other late, so a prompt cut at its front is seen
    even where the engine does not count tokens for us.
    """
    if model.too_long(length) or length > (model.claimed_length or length):
        return [Finding(NOTE, "asked", f"nothing: {length} is more than the model takes")]
    examples = generate(task("niah_single_1"), length, _ASKED, seed, model.prompt_format)
    by_depth = sorted(examples, key=lambda example: example.depths[0])
    cases = [make_case(model, examples, by_depth[at].index) for at in (0, -1)]
    try:
        answers = {e.index: answer for e, answer in model.answer([c.example for c in cases])}
    except UserError as error:
        return [Finding(FAIL, "asked", str(error), where=cases[0].where)]
    findings, right = list[Finding](), list[bool]()
    for case in cases:
        answer = answers[case.example.index]
        if isinstance(answer, Failure):
            return [Finding(FAIL, "asked", answer.reason, where=case.where)]
        said = (_answer_text(case, answer), _token_count(case, answer))
        findings += [finding._replace(where=case.where) for finding in said if finding]
        right.append(all(reference in answer.text for reference in case.draft.references))
    early, late = (f"the needle at {case.example.depths[0]:.0f} %" for case in cases)
    last = Finding(NOTE, "both ends", "a needle at a short length was not found", "see the answer")
    if all(right):
        last = Finding(OK, "both ends", f"{early} and {late} found")
    elif right[1]:
        mend = "the prompt seems to lose its front: look for truncation"
        last = Finding(FAIL, "both ends", f"{late} is found, {early} is not", mend, cases[0].where)
    return [*findings, last]


def _answer_text(case: Case, answer: Answer) -> Finding:
    """The answer is new text: the prompt itself would score 100 everywhere."""
    text = answer.text
    if not text.strip():
        if case.spec.get("window") == 0:
            return Finding(NOTE, "empty", "no answer, as of a reader that sees nothing")
        seen = f"the answer is empty ({answer.finish_reason}, {answer.num_tokens} tokens)"
        return Finding(FAIL, "empty", seen, "check stop strings, refusals and the template")
    if case.example.input[:200] in text or (len(text) > 200 and text[:200] in case.example.prompt):
        mend = "let the engine return the new text alone (echo: false, return_full_text: false)"
        return Finding(FAIL, "echo", "the prompt came back with the answer", mend)
    return Finding(OK, "echo", f"the answer is new text: {_short(text)}")


def _token_count(case: Case, answer: Answer) -> Finding | None:
    """The engine counts as many prompt tokens as were sent: nothing added, nothing cut."""
    counted, sent = (answer.usage or {}).get("prompt_tokens"), case.example.num_tokens
    if not isinstance(counted, int):
        return None
    name, seen = "engine's count", f"the engine read {counted} tokens, {sent} were sent"
    if counted == sent:
        return Finding(OK, name, f"{counted} prompt tokens, as sent")
    if counted < sent:
        mend = "the prompt was cut: raise the server's context length and switch its truncation off"
    elif counted == sent + 1:
        mend = "one was added, most likely a second BOS: send ids, or switch add_special_tokens off"
    elif case.form.closes_user_turn and counted <= sent + _SERVICE_FRAME:
        mend = "the service's own frame: keep as many tokens of the length free"
        return Finding(NOTE, name, seen, mend)
    else:
        mend = "the server frames the prompt once more: send ids or raw text, or drop the template"
    return Finding(FAIL, name, seen, mend)


# --- vLLM's configuration -------------------------------------------------------------------------


def vllm_arguments(model: Vllm) -> dict[str, Any]:
    """The arguments that vLLM is started with; several nodes are described without addresses."""
    one_node = Vllm({**model.spec, "nodes": 1})
    return one_node.arguments() | {"nnodes": model.spec.get("nodes", 1)}


def gpus_beyond_node(
    arguments: Mapping[str, Any], nodes: int, gpus_per_node: int = GPUS_PER_NODE
) -> str:
    """Why the GPUs of a model do not fit its nodes; empty where they do. `arguments` are keys of a
    model or of vLLM."""
    gpus = arguments.get("tensor_parallel_size", 1) * arguments.get("pipeline_parallel_size", 1)
    if gpus <= nodes * gpus_per_node:
        return ""
    place = f"{nodes} nodes of {gpus_per_node}" if nodes > 1 else f"one node of {gpus_per_node}"
    return f"{gpus} GPUs do not fit {place}: set nodes: {-(-gpus // gpus_per_node)} or lower tensor_parallel_size"


def check_vllm_config(
    model: str,
    arguments: Mapping[str, Any],
    lengths: Sequence[int],
    gpus_per_node: int = GPUS_PER_NODE,
) -> Iterator[Finding]:
    """Whether vLLM can start with these arguments and be asked these lengths: it builds its
    configuration in a process of its own."""
    if reason := gpus_beyond_node(arguments, arguments.get("nnodes", 1), gpus_per_node):
        yield Finding(FAIL, "GPUs", reason, where=model)
    name = "vLLM config"
    if find_spec("vllm") is None:
        yield Finding(NOTE, name, "not built: vllm is not installed here", where=model)
        return
    run = subprocess.run(
        [sys.executable, "-m", "rulerkit.checks"],
        input=json.dumps([dict(arguments), max(lengths, default=1)]),
        capture_output=True,
        text=True,
        env=os.environ | {"VLLM_LOGGING_LEVEL": "CRITICAL"},
    )
    try:
        level, seen, mend = json.loads(run.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (run.stderr.strip() or "no message").splitlines()[-1]
        level, seen = FAIL, f"vLLM ended with status {run.returncode}: {last}"
        mend = "start vLLM by hand to see more"
    yield Finding(level, name, seen, mend, model)


def examine(arguments: dict[str, Any], longest: int) -> tuple[str, str, str]:
    """Level, what was seen, how to fix it. Runs in the child process, without weights or GPU."""
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
        return FAIL, f"vLLM refuses it: {reason}", mend
    dual_chunk = getattr(config.hf_text_config, "dual_chunk_attention_config", None)
    if dual_chunk and not config.using_transformers_backend():
        mend = "set engine_args: {model_impl: transformers}"
        return FAIL, "vLLM has no dual-chunk attention any more", mend
    if longest > config.max_model_len:
        mend = "set max_length, or hf_overrides with rope_parameters and max_position_embeddings"
        return FAIL, f"vLLM takes {config.max_model_len} tokens, {longest} are to be asked", mend
    return NOTE if note else OK, f"{config.architecture}, {config.max_model_len} tokens{note}", ""


def _vllm_config(arguments: dict[str, Any]) -> Any:
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

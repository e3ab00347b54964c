"""What can be wrong with a prompt before it reaches a model: one small function per fault.

A check looks at a `Case` (a model, and one of its examples) and says what it saw and how to mend
it; None where it does not apply. What should stand in the prompt is taken from the task's draft,
not from the prompt itself.
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


# --- the template ---------------------------------------------------------------------------------


def template(case: Case) -> Finding | None:
    """The prompt begins and ends as the template says, around the task's own first words and
    question."""
    before, after = case.form.around
    first = case.draft.head[0].text[:40] if case.draft.head else ""
    mend = "render the template once around the whole user's part, and change nothing behind it"
    if not case.example.prompt.startswith(before + first):
        seen = f"the prompt begins with {case.example.prompt[:48]!r}, not with {(before + first)[:48]!r}"
        return Finding(FAIL, "template", seen, mend)
    if case.tail is None:
        return Finding(FAIL, "template", "the question is not in the prompt", mend)
    if after.strip() not in case.tail:
        return Finding(FAIL, "template", f"{after!r} is missing behind the question", mend)
    form = case.form.form if len(case.form.form) < 24 else "the tokenizer's own"
    if case.form.template not in ("auto", case.form.form):
        form = "as given"
    return Finding(
        OK, "template", f"{form}: {short(before or '(nothing)')} ... {short(after or '(nothing)')}"
    )


_MARKER = re.compile(
    r"<\|[^|<>\s]{1,40}\|>|<｜[^｜]{1,40}｜>|\[/?[A-Za-z]*(?:INST|MASK|PROMPT|RESULTS)\]|<[a-zA-Z]+_[a-zA-Z_]+>|</?s>|<[be]os>|<sop>"
)
_OFTEN_PLAIN = ("[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|system|>")
"""Marks that some models were trained to see as ordinary tokens (Llama 2, Zephyr, Tulu)."""


def marks(case: Case) -> Finding | None:
    """The marks of the template are single tokens; another model's template shows as many ordinary
    ones."""
    own = case.form.template == "auto"
    found = dict.fromkeys(_MARKER.findall("".join(case.form.around)))
    if not found:
        return None
    broken = [mark for mark in found if case.tokenizer.count(mark) != 1]
    if not broken:
        return Finding(OK, "template marks", f"{len(found)} special tokens, one id each")
    seen = f"{', '.join(f'{mark} is {case.tokenizer.count(mark)} tokens' for mark in broken[:3])}"
    mild = case.model.engine == "reader" or all(mark in _OFTEN_PLAIN for mark in broken)
    if mild and (own or not case.tokenizer.chat_template):
        return Finding(NOTE, "template marks", seen, "right only for a model that was trained so")
    return Finding(
        FAIL,
        "template marks",
        seen,
        "the template is another model's: take `template: auto`, or its own name",
    )


def system_prompt(case: Case) -> Finding | None:
    """A system prompt that was asked for is in the prompt."""
    asked = case.spec.get("system_prompt") or case.form.system_prompt
    if not asked:
        return None
    if (
        asked
        in case.example.prompt.partition(case.draft.head[0].text if case.draft.head else "\0")[0]
    ):
        return Finding(OK, "system prompt", short(asked))
    return Finding(
        FAIL,
        "system prompt",
        f"{short(asked)} is not before the task",
        "give a template that has a place for it",
    )


_MEND = "set thinking_tokens, or enable_thinking: false"


def _may_think(case: Case) -> bool:
    """Whether the template knows thoughts and none is closed in it."""
    return "<think>" in case.form.form and "</think>" not in case.form.around[1]


def thinking(case: Case) -> Finding | None:
    """Where the template opens a thought there is room for it, and the answer prefix is not inside
    it."""
    after, room = case.form.around[1], case.form.thinking_tokens
    opened = after.rfind("<think>") > after.rfind("</think>")
    if not opened and not room and case.form.closes_user_turn and _may_think(case):
        return Finding(
            NOTE,
            "thinking",
            "the model may think before it answers, and no token is kept free for it",
            _MEND,
        )
    if not opened:
        return Finding(OK, "thinking", f"{room} tokens kept free") if room else None
    if not room:
        seen, mend = (
            "the template opens a thought, and no token is kept free for it",
            "set thinking_tokens, or",
        )
    elif not case.form.closes_user_turn:
        seen, mend = (
            "the answer prefix stands inside the thought that the template opens",
            "set prefix_in: user, or",
        )
    else:
        return Finding(OK, "thinking", f"opened by the template, {room} tokens kept free")
    return Finding(FAIL, "thinking", seen, f"{mend} enable_thinking: false")


# --- the beginning of the text --------------------------------------------------------------------


def one_bos(case: Case) -> Finding | None:
    """Exactly one beginning-of-sequence token where the model has one; two move VT at 128K by 17
    points."""
    token, ids = case.tokenizer, case.example.ids
    mend = "the template and the tokenizer must not both write it: check `template` and tokenizer_config.json"
    if token.bos_id is None:
        doubled = (
            len(ids) > 1 and ids[0] == ids[1] and str(token.bos_token) == token.decode(ids[:1])
        )
        twice = Finding(FAIL, "BOS", f"{token.bos_token!r} twice", mend)
        return twice if doubled else Finding(OK, "BOS", "the tokenizer adds none")
    count = int(np.count_nonzero(ids == token.bos_id))
    if count == 1 and ids[0] == token.bos_id:
        return Finding(OK, "BOS", f"{token.bos_token or token.bos_id} once, first")
    if count == 1:
        where = int(np.flatnonzero(ids == token.bos_id)[0])
        return Finding(
            FAIL, "BOS", f"{token.bos_token or token.bos_id} is token {where}, not the first", mend
        )
    return Finding(FAIL, "BOS", f"{token.bos_token or token.bos_id} {count} times, not once", mend)


# --- the answer prefix ----------------------------------------------------------------------------


def prefix_present(case: Case) -> Finding | None:
    """The answer prefix, which opens the answer, is in the prompt, once."""
    prefix, tail = case.draft.answer_prefix.strip(), case.tail
    count = (tail or "").count(prefix)
    if count == 1:
        return Finding(OK, "answer prefix", f"{short(prefix)} behind the question")
    seen = f"{count} times" if count else "lost"
    return Finding(
        FAIL,
        "answer prefix",
        f"{short(prefix)} is {seen}",
        "put the example's own prompt or ids, whole",
    )


def prefix_turn(case: Case) -> Finding | None:
    """It stands where `prefix_in` says: last in the assistant's turn, or last in the user's."""
    prefix, after = case.draft.answer_prefix.strip(), case.form.around[1].strip()
    if case.tail is None or prefix not in case.tail:
        return None
    before, _, behind = case.tail.partition(prefix)
    whose, right = (
        ("user", (DIRECT.strip(), after))
        if case.form.closes_user_turn
        else ("assistant", (after, ""))
    )
    if (before.strip(), behind.strip()) == right:
        return Finding(OK, "prefix turn", f"last in the {whose}'s turn")
    seen = f"the answer prefix is not the last of the {whose}'s turn: {short(before[-40:])} before, {short(behind)} behind"
    return Finding(
        FAIL, "prefix turn", seen, "set prefix_in to the turn in which the engine can hold it"
    )


def prefix_blank(case: Case) -> Finding | None:
    """Its blanks are kept, in the text and in the ids: variable tracking's ends with one."""
    prefix, after = case.draft.answer_prefix, case.form.around[1]
    ending = prefix + after if case.form.closes_user_turn else prefix
    if case.tail is None or prefix.strip() not in case.tail:
        return None
    for what, text in (("text", case.example.prompt), ("ids", case.decoded)):
        if not text.endswith(ending):
            seen = f"the {what} end with {text[-24:]!r}, not with {ending[-24:]!r}"
            return Finding(
                FAIL,
                "prefix blank",
                seen,
                "nothing may strip the prompt: send text or ids as they are",
            )
    return Finding(OK, "prefix blank", "kept")


GPUS_PER_NODE = 8
"""The largest common node, where params/site.yaml does not give `whole_nodes`."""
_NAME = "vLLM config"
_TEXT_ONLY = (
    "TransformersForCausalLM"  # stands in for architectures whose image code cannot be imported
)


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
    name: str,
    arguments: Mapping[str, Any],
    lengths: Sequence[int],
    gpus_per_node: int = GPUS_PER_NODE,
) -> Iterator[Finding]:
    """What is wrong with the arguments that vLLM is started with; `lengths` are those that the
    model is to be asked."""
    if reason := gpus_beyond_node(arguments, arguments.get("nnodes", 1), gpus_per_node):
        yield Finding(FAIL, "GPUs", reason, where=name)
    if find_spec("vllm") is None:
        yield Finding(NOTE, _NAME, "not built: vllm is not installed here", where=name)
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
        level, seen, mend = (
            FAIL,
            f"vLLM ended with status {run.returncode}: {last}",
            "start vLLM by hand to see more",
        )
    yield Finding(level, _NAME, seen, mend, name)


def examine(arguments: dict[str, Any], longest: int) -> tuple[str, str, str]:
    """Level, what was seen, how to mend it. Runs in the child process."""
    note = ""
    try:
        try:
            config = _build(arguments)
        except ValueError as error:
            if "failed to be inspected" not in str(error) or find_spec("torchvision"):
                raise
            overrides = {**(arguments.get("hf_overrides") or {}), "architectures": [_TEXT_ONLY]}
            config = _build(arguments | {"hf_overrides": overrides})
            note = "; its image part is not checked: torchvision is not installed here"
    except Exception as error:
        return (
            FAIL,
            f"vLLM refuses it: {_reason(error)}",
            "change hf_overrides, max_length or engine_args of the model",
        )
    if (
        getattr(config.hf_text_config, "dual_chunk_attention_config", None)
        and not config.using_transformers_backend()
    ):
        return (
            FAIL,
            "vLLM has no dual-chunk attention any more",
            "set engine_args: {model_impl: transformers}",
        )
    if longest > config.max_model_len:
        mend = "set max_length, or hf_overrides with rope_parameters and max_position_embeddings"
        return FAIL, f"vLLM takes {config.max_model_len} tokens, {longest} are to be asked", mend
    return NOTE if note else OK, f"{config.architecture}, {config.max_model_len} tokens{note}", ""


def _build(arguments: dict[str, Any]) -> Any:
    """vLLM's ModelConfig, verified against its registry, its attention heads and the
    sparse-attention file."""
    from vllm.config import LoadConfig, ParallelConfig
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(**arguments).create_model_config()
    config.verify_dual_chunk_attention_config(LoadConfig())
    sizes = {
        key: arguments.get(key, 1) for key in ("tensor_parallel_size", "pipeline_parallel_size")
    }
    config.verify_with_parallel_config(ParallelConfig(distributed_executor_backend="mp", **sizes))
    return config


def _reason(error: Exception) -> str:
    """The first sentence of what vLLM says, on one line."""
    errors = getattr(error, "errors", None)  # pydantic's
    text = (
        errors()[0]["msg"].removeprefix("Value error, ")
        if errors
        else str(error) or type(error).__name__
    )
    return " ".join(text.split()).partition(". ")[0].rstrip(".")


CHECKS: tuple[Check, ...] = (
    tokenizer_own,
    template,
    marks,
    system_prompt,
    thinking,
    one_bos,
    prefix_present,
    prefix_turn,
    prefix_blank,
    ids_of_text,
    needles,
    budget,
    fill,
    length,
    answer_room,
    stop_strings,
)
"""In the order in which they are told: who reads, the frame, what stands in it, how much."""

EXAMPLES = 3
"""How many examples are looked at where the length is the shortest; of the longest, or a long one,
one is enough."""
_LONG = 32768
CHEAP = ("reader", "function", "openai")
"""Engines that are asked without `--ask`: nothing is loaded for it."""
_ASKED = 8  # examples among which the earliest and the latest needle are looked for
_FRAME_OF_SERVICE = 32  # tokens that a chat service adds around a message


def check(
    study: Study, ask: bool | None = None, gpus_per_node: int = GPUS_PER_NODE
) -> dict[str, list[Finding]]:
    """Findings by model: every check of every task at the shortest and the longest length of a
    study.

    With `ask` two short examples are put to each model, by default only where the engine is cheap
    to ask. For vLLM its own configuration of the model is built too.
    """
    found = {}
    for spec in study.models:
        model = load_model(spec)
        try:
            found[model.name] = list(check_model(model, study.tasks, study.lengths, study.seed))
            if isinstance(model, Vllm):
                lengths = [length for length in study.lengths if not model.too_long(length)]
                found[model.name] += check_vllm_config(
                    model.name, vllm_arguments(model), lengths, gpus_per_node
                )
            if ask or (
                ask is None and model.engine in CHEAP and not getattr(model, "startable", False)
            ):
                found[model.name] += check_answers(model, study.lengths[0], study.seed)
        except UserError as error:
            found.setdefault(model.name, []).append(Finding(FAIL, "model", str(error)))
        finally:
            model.close()
    return found


def vllm_arguments(model: Vllm) -> dict[str, Any]:
    """What vLLM is started with; a model over several nodes is described without their
    addresses."""
    one_node = Vllm({**model.spec, "nodes": 1})
    return one_node.arguments() | {"nnodes": model.spec.get("nodes", 1)}


def check_model(
    model: Model, tasks: Iterable[Task], lengths: Sequence[int], seed: int = 42
) -> Iterator[Finding]:
    """Every check of a few examples of each task at the shortest and the longest length."""
    tasks = list(tasks)
    _ = model.prompt_format.around  # a frame that cannot be made is said once, not for each task
    for length in sorted({min(lengths), max(lengths)}):
        for each in tasks:
            count = EXAMPLES if length == min(lengths) < _LONG else 1
            examples = generate(each, length, count, seed, model.prompt_format)
            for index in range(count):
                try:
                    yield from look(case(model, examples, index))
                except UserError as error:
                    yield Finding(FAIL, "fits", str(error), where=f"{each.name} at {length}")
                    break


def look(case: Case, asked: Iterable[Check] = CHECKS) -> list[Finding]:
    """What the checks say of one case."""
    found = [each(case) for each in asked]
    return [finding._replace(where=case.where) for finding in found if finding]


# --- what the model answers -----------------------------------------------------------------------


def check_answers(model: Model, length: int, seed: int = 42) -> list[Finding]:
    """Two short examples put to the model: what comes back is an answer to the whole prompt, and to
    nothing else.

    The needle of one stands early, that of the other late, so a prompt cut at its front is seen
    even where the engine does not count for us.
    """
    if model.too_long(length) or length > (model.claimed_length or length):
        return [Finding(NOTE, "asked", f"nothing: {length} is more than the model takes")]
    examples = generate(task("niah_single_1"), length, _ASKED, seed, model.prompt_format)
    by_depth = sorted(examples, key=lambda example: example.depths[0])
    cases = [case(model, examples, by_depth[at].index) for at in (0, -1)]
    try:
        answers = {
            example.index: answer
            for example, answer in model.answer([each.example for each in cases])
        }
    except UserError as error:
        return [Finding(FAIL, "asked", str(error), where=cases[0].where)]
    pairs = list[tuple[Case, Answer]]()
    for each in cases:
        answer = answers[each.example.index]
        if isinstance(answer, Failure):
            return [Finding(FAIL, "asked", answer.reason, where=each.where)]
        pairs.append((each, answer))
    found = [say(each, answer) for each, answer in pairs for say in ASKED]
    return [finding for finding in found if finding] + _both_ends(pairs)


def echo(case: Case, answer: Answer) -> Finding | None:
    """The answer is not the prompt itself, which would score 100 everywhere."""
    text, opening = answer.text, case.example.input[:200]
    if opening in text or (len(text) > 200 and text[:200] in case.example.prompt):
        mend = "let the engine return the new text alone (echo: false, return_full_text: false)"
        return Finding(FAIL, "echo", "the prompt came back with the answer", mend, case.where)
    return Finding(OK, "echo", f"the answer is new text: {short(text)}", where=case.where)


def empty(case: Case, answer: Answer) -> Finding | None:
    """Something was answered."""
    if answer.text.strip():
        return None
    if case.spec.get("window") == 0:
        return Finding(
            NOTE, "empty", "no answer, as of a reader that sees nothing", where=case.where
        )
    seen = f"the answer is empty ({answer.finish_reason}, {answer.num_tokens} tokens)"
    return Finding(
        FAIL, "empty", seen, "look at the stop strings, the refusals and the template", case.where
    )


def engine_count(case: Case, answer: Answer) -> Finding | None:
    """The engine counts as many prompt tokens as were sent: nothing was added, nothing cut away."""
    told, ours = (answer.usage or {}).get("prompt_tokens"), case.example.num_tokens
    if not isinstance(told, int):
        return None
    if told == ours:
        return Finding(OK, "engine's count", f"{told} prompt tokens, as sent", where=case.where)
    seen, name = f"the engine read {told} tokens, {ours} were sent", "engine's count"
    if told < ours:
        mend = "the prompt was cut: raise the server's context length and switch its truncation off"
    elif told == ours + 1:
        mend = "one was added, most likely a second BOS: send ids, or switch add_special_tokens off"
    elif case.form.closes_user_turn and told <= ours + _FRAME_OF_SERVICE:
        return Finding(
            NOTE,
            name,
            seen,
            "the service's own frame: keep as many tokens of the length free",
            case.where,
        )
    else:
        mend = "the server frames the prompt once more: send ids or raw text, or drop the template"
    return Finding(FAIL, name, seen, mend, case.where)


ASKED: tuple[Callable[[Case, Answer], Finding | None], ...] = (echo, empty, engine_count)


def _both_ends(pairs: list[tuple[Case, Answer]]) -> list[Finding]:
    """Whether the early needle is found where the late one is."""
    early, late = (
        all(ref in answer.text for ref in each.draft.references) for each, answer in pairs
    )
    depths = [each.example.depths[0] for each, _ in pairs]
    if early and late:
        return [
            Finding(OK, "both ends", f"needles at {depths[0]:.0f} % and {depths[1]:.0f} % found")
        ]
    if late:
        seen = f"the needle at {depths[1]:.0f} % is found, that at {depths[0]:.0f} % is not"
        return [
            Finding(
                FAIL,
                "both ends",
                seen,
                "the prompt seems to lose its front: look for truncation",
                pairs[0][0].where,
            )
        ]
    return [
        Finding(
            NOTE,
            "both ends",
            "a needle at a short length was not found",
            "look at the answer above",
        )
    ]


# --- telling --------------------------------------------------------------------------------------


def told(findings: Iterable[Finding]) -> list[str]:
    """One line a check: the worst that it saw, where, and how often; what was well in one line."""
    by_name: dict[str, list[Finding]] = {}
    for finding in findings:
        by_name.setdefault(finding.name, []).append(finding)
    lines = []
    for name, all_of in by_name.items():
        level = next(level for level in (FAIL, NOTE, OK) if any(f.level == level for f in all_of))
        these = [finding for finding in all_of if finding.level == level]
        first = these[0]
        line = f"{level:4}  {name:15} {first.seen}"
        if level != OK:
            line += f" ({first.where or 'asked'}; {len(these)} of {len(all_of)})"
            line += f"; {first.mend}" if first.mend else ""
        lines.append(line)
    return lines


def failed(findings: Iterable[Finding] | Mapping[Any, Iterable[Finding]]) -> bool:
    """Whether any finding is a FAIL."""
    groups = findings.values() if isinstance(findings, Mapping) else [findings]
    return any(finding.level == FAIL for group in groups for finding in group)


if __name__ == "__main__":
    print(json.dumps(examine(*json.load(sys.stdin))))

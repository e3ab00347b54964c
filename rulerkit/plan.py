"""What a checkpoint's configuration says about cost: parameters, FLOPs of a prefill, bytes of its
key-value cache."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from time import perf_counter
from typing import Any, NamedTuple

from rulerkit.checkpoint import Checkpoint
from rulerkit.checks import GPUS_PER_NODE, gpus_beyond_node
from rulerkit.errors import UserError, unknown
from rulerkit.generation import generate
from rulerkit.lengths import length_name
from rulerkit.models import Model, load_model, takes_more_gpus
from rulerkit.studies import Study
from rulerkit.tables import Field, render
from rulerkit.tasks import Task

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "auto": 2, "fp8": 1, "int8": 1, "int4": 0.5}
_QUANTIZED = {"fp8": 1.0, "awq": 0.5, "gptq": 0.5, "int8": 1.0, "bitsandbytes": 0.5}
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Shape:
    """A model as cost sees it. Without a known configuration only the parameters are known:
    `layers` is empty."""

    parameters: float
    active: float
    """Parameters that work on one token: fewer than all where there are experts."""
    layers: tuple[int, ...] = ()
    """One entry for each layer that attends: how far back, in tokens; 0 is all the way."""
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    latent: int = 0
    """Numbers a token that multi-head latent attention keeps in place of keys and values."""
    bytes_per_parameter: float = 2
    bytes_per_kv: float = 2

    def prefill_flops(self, tokens: int) -> float:
        """2 FLOPs a parameter and token, and the causal half of the attention matrix, twice (scores
        and values)."""
        seen = sum(_pairs(tokens, window) for window in self.layers)
        return 2 * self.active * tokens + 4 * self.heads * self.head_dim * seen

    def kv_bytes(self, tokens: int, tensor_parallel: int = 1) -> float:
        """The cache of one request on one of `tensor_parallel` cards; windows stop it from
        growing."""
        heads = max(1, ceil(self.kv_heads / tensor_parallel))
        numbers = self.latent or 2 * heads * self.head_dim
        return (
            sum(min(tokens, window or tokens) for window in self.layers)
            * numbers
            * self.bytes_per_kv
        )

    @property
    def weight_bytes(self) -> float:
        return self.parameters * self.bytes_per_parameter


def _pairs(tokens: int, window: int) -> float:
    """How many pairs of tokens look at one another, under a causal mask and a window."""
    if not window or window >= tokens:
        return tokens * tokens / 2
    return window * window / 2 + (tokens - window) * window


def read_parameters(text: str) -> tuple[float, float]:
    """All parameters and the active ones: '8B' is twice the same, '12B/52B' names both in either
    order."""
    numbers = []
    for part in text.split("/"):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMBT]?)\s*", part, re.IGNORECASE)
        if not found:
            raise UserError(
                f"{text!r} is no number of parameters: write 8B, 0.5B, or 12B/52B for active and "
                "all"
            )
        numbers.append(float(found[1]) * _UNITS[found[2].upper()])
    return max(numbers), min(numbers)


def shape_of(
    config: Mapping[str, Any], spec: Mapping[str, Any], parameters: str | None = None
) -> Shape:
    """The shape that a `config.json` and the keys of a model's spec describe; `parameters` overrule
    both."""
    config = dict(config.get("text_config") or config) | dict(spec.get("hf_overrides") or {})
    hidden, heads = (
        _first(config, "hidden_size", "n_embd", "d_model"),
        _first(config, "num_attention_heads", "n_head"),
    )
    layers = attention_layers(config)
    counted = parameters or spec.get("parameters")
    total, active = read_parameters(str(counted)) if counted else count_parameters(config)
    shape = Shape(
        parameters=total,
        active=active,
        layers=layers,
        heads=heads,
        kv_heads=int(
            config.get("num_key_value_heads") or config.get("multi_query_group_num") or heads
        ),
        head_dim=int(
            config.get("head_dim") or config.get("kv_channels") or (hidden // heads if heads else 0)
        ),
        latent=int(config.get("kv_lora_rank") or 0)
        and int(config["kv_lora_rank"] + config.get("qk_rope_head_dim", 0)),
    )
    return with_types(shape, spec, config)


def with_types(shape: Shape, spec: Mapping[str, Any], config: Mapping[str, Any]) -> Shape:
    """The bytes of a parameter and of an entry of the cache, as spec and configuration have
    them."""
    method = spec.get("quantization") or (config.get("quantization_config") or {}).get(
        "quant_method"
    )
    weights = _QUANTIZED.get(str(method)) or _BYTES.get(str(spec.get("dtype", "auto")), 2)
    kind = str(spec.get("kv_cache_dtype", "auto"))
    return replace(
        shape, bytes_per_parameter=weights, bytes_per_kv=1 if kind.startswith("fp8") else 2
    )


def attention_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The window of every layer that attends; Mamba, RWKV and linear layers keep a constant state
    and are left out."""
    count = _first(config, "num_hidden_layers", "n_layer", "num_layers")
    kinds, window = config.get("layer_types"), int(config.get("sliding_window") or 0)
    if not _first(config, "num_attention_heads", "n_head") or config.get("model_type") in (
        "mamba",
        "mamba2",
        "rwkv",
    ):
        return ()
    if kinds:
        windows = {"full_attention": 0, "attention": 0, "hybrid": 0, "sliding_attention": window}
        windows["chunked_attention"] = int(config.get("attention_chunk_size") or 0)
        return tuple(windows[kind] for kind in kinds if kind in windows)
    if every := config.get("attn_layer_period"):
        return tuple(0 for i in range(count) if i % every == config.get("attn_layer_offset", 0))
    if every := config.get("sliding_window_pattern"):
        return tuple(0 if (i + 1) % every == 0 else window for i in range(count))
    return (window if config.get("use_sliding_window", True) else 0,) * count


def count_parameters(config: Mapping[str, Any]) -> tuple[float, float]:
    """All parameters and the active ones of a decoder, from the sizes of its matrices; raises
    UserError where the configuration does not tell them."""
    hidden, heads = (
        _first(config, "hidden_size", "n_embd", "d_model"),
        _first(config, "num_attention_heads", "n_head"),
    )
    layers, inner = (
        _first(config, "num_hidden_layers", "n_layer", "num_layers"),
        _first(config, "intermediate_size"),
    )
    if (
        not (hidden and layers and inner and heads)
        or config.get("kv_lora_rank")
        or config.get("attn_layer_period")
    ):
        raise UserError(
            "config.json does not tell the number of parameters: give --params, such as 8B or "
            "12B/52B"
        )
    dim = int(config.get("head_dim") or hidden // heads)
    attention = 2 * hidden * dim * (heads + int(config.get("num_key_value_heads") or heads))
    experts = _first(config, "num_local_experts", "num_experts", "n_routed_experts") or 1
    used = int(config.get("num_experts_per_tok") or 1) if experts > 1 else 1
    expert = (
        3 * hidden * int(config.get("moe_intermediate_size") or inner if experts > 1 else inner)
    )
    embedding = hidden * _first(config, "vocab_size")
    table = 0 if config.get("tie_word_embeddings") else embedding
    total = layers * (attention + experts * expert) + embedding + table
    return total, layers * (attention + used * expert) + embedding


def _first(config: Mapping[str, Any], *names: str) -> int:
    return next((int(config[name]) for name in names if config.get(name)), 0)


GIB = 2**30
USABLE = 0.92
"""Share of a card's memory that an engine takes for weights and cache."""
RESERVED = 5 * GIB
"""Activations, graphs and the engine itself, on every card."""
_GUESSED, _MOST_AT_ONCE = 16.0, 256.0  # requests that decode together
_TIMED = 4  # examples of a calibration, after one to warm up


class Card(NamedTuple):
    """A GPU: memory in GiB as drivers report it, dense 16-bit peak in TFLOP/s, memory bandwidth in
    TB/s."""

    name: str
    memory: float
    tflops: float
    bandwidth: float


CARDS = {
    "h100": Card("H100 SXM (80 GB)", 79.2, 989, 3.35),
    "h200": Card("H200 (141 GB)", 139.8, 989, 4.8),
    "a100": Card("A100 (80 GB)", 79.2, 312, 2.04),
    "a100-40": Card("A100 (40 GB)", 39.4, 312, 1.56),
    "l40s": Card("L40S (48 GB)", 44.4, 362, 0.86),
    "4090": Card("RTX 4090 (24 GB)", 23.6, 165, 1.01),
}


def card(name: str, memory: float | None = None) -> Card:
    """A card by its short name; `memory` in GiB overrules what it has."""
    if name.lower() not in CARDS:
        raise unknown("GPU", name, CARDS, "--memory GIB overrules its memory")
    found = CARDS[name.lower()]
    return found._replace(memory=memory, name=f"{found.name}, {memory:g} GiB") if memory else found


class Line(NamedTuple):
    """The cost of one length: of all its cells, but `hours`, which is of one cell."""

    length: int
    tokens: int
    flops: float | None
    kv_bytes: float | None
    """Of one request, on one card."""
    fits: float | None
    """How many requests of this length a replica holds at once."""
    hours: float | None
    why_not: str = ""


@dataclass(frozen=True)
class Plan:
    """A study's cost for one model, by length, and what was assumed."""

    model: str
    num_tasks: int
    num_examples: int
    lines: tuple[Line, ...]
    assumptions: tuple[str, ...] = field(default=())

    @property
    def hours(self) -> float:
        """Of all lengths that can be run."""
        return sum(
            line.hours * self.num_tasks
            for line in self.lines
            if line.hours is not None and not line.why_not
        )

    def text(self) -> str:
        """The table, and the assumptions under it."""
        head = ("length", "tokens", "PFLOP", "KV GiB", "fit", "h/cell", "h/length")
        rows = [[Field(text) for text in _cells(line, self.num_tasks)] for line in self.lines]
        notes = [
            f"  {length_name(line.length)}: {line.why_not}" for line in self.lines if line.why_not
        ]
        run = [line for line in self.lines if not line.why_not]
        total = f"together: {sum(line.tokens for line in run):,} tokens"
        total += (
            f", {_hours(self.hours)} hours" if all(line.hours is not None for line in run) else ""
        )
        title = f"{self.model}: {self.num_tasks} tasks x {self.num_examples} examples"
        below = [total, *notes, "assumed:", *(f"  {text}" for text in self.assumptions)]
        return f"{title}\n{render(head, rows, notes=below)}".rstrip()


def _cells(line: Line, num_tasks: int) -> tuple[str, ...]:
    return (
        length_name(line.length),
        f"{line.tokens:,}",
        "-" if line.flops is None else f"{line.flops / 1e15:,.0f}",
        "-" if line.kv_bytes is None else f"{line.kv_bytes / GIB:.2f}",
        "-" if line.fits is None else f"{line.fits:.1f}",
        _hours(line.hours),
        _hours(None if line.hours is None else line.hours * num_tasks),
    )


def _hours(hours: float | None) -> str:
    if hours is None:
        return "-"
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.3f}"


def plan_study(
    study: Study,
    gpu: Card,
    parameters: str | None = None,
    mfu: float = 0.4,
    calibrate: bool = False,
    gpus_per_node: int = GPUS_PER_NODE,
    replicas: int | None = None,
) -> list[Plan]:
    """The cost of a study for each of its models; `parameters` (8B) and `replicas` overrule spec
    and configuration.

    Raises UserError where neither configuration nor parameters are known and nothing is to be
    measured.
    """
    plans = []
    for spec in study.models:
        model = load_model(spec)
        try:
            plans.append(
                _plan(study, model, gpu, parameters, mfu, calibrate, gpus_per_node, replicas)
            )
        finally:
            model.close()
    return plans


def _plan(
    study: Study,
    model: Model,
    gpu: Card,
    parameters: str | None,
    mfu: float,
    calibrate: bool,
    gpus_per_node: int,
    replicas: int | None,
) -> Plan:
    spec: Mapping[str, Any] = getattr(model, "spec", {})
    shape, told, found = find_shape(model.name, spec, parameters, needed=not calibrate)
    tensor = spec.get("tensor_parallel_size", 1)
    cards = tensor * spec.get("pipeline_parallel_size", 1)
    nodes = spec.get("nodes", 1)
    known = spec.get("replicas", "auto")
    count = replicas or (
        1 if calibrate or known == "auto" else known
    )  # a calibration asks all that there are
    too_many = gpus_beyond_node(spec, nodes, gpus_per_node)
    answers = [task.answer_tokens + spec.get("thinking_tokens", 0) for task in study.tasks]
    answer = sum(answers) / len(answers)
    if calibrate:
        speed, said = calibrated(model, study.tasks[0], study.lengths[0], study.seed, shape)
    else:
        speed = gpu.tflops * 1e12 * cards * mfu
        said = f"prefill at {100 * mfu:.0f} % of {gpu.tflops:g} TFLOP/s a card (--mfu; measure with --calibrate)"
    lines = []
    for length in study.lengths:
        fits = _fits(shape, gpu, length, tensor, cards) if shape and shape.layers else None
        seconds = (shape.prefill_flops(length) if shape else length) / speed
        if shape and not calibrate:
            seconds += answer * _decode_seconds(shape, gpu, length, cards, _at_once(fits))
        lines.append(
            Line(
                length,
                tokens=study.num_examples * len(study.tasks) * length,
                flops=study.num_examples * len(study.tasks) * shape.prefill_flops(length)
                if shape
                else None,
                kv_bytes=shape.kv_bytes(length, tensor) * tensor / cards
                if shape and shape.layers
                else None,
                fits=fits,
                hours=study.num_examples * seconds / 3600 / count,
                why_not=(found and model.too_long(length))
                or too_many
                or _does_not_fit(fits, gpu, cards),
            )
        )
    several = [f"{count} replicas, {count * cards} cards in all"] if count > 1 else []
    if count == 1 and takes_more_gpus(spec):
        several = [
            f"one replica; more GPUs are used too, {cards} for each further one (--replicas N "
            "divides the hours)"
        ]
    assumed = (told, said, *_notes(shape, gpu, cards, nodes, answer, calibrate), *several)
    return Plan(model.name, len(study.tasks), study.num_examples, tuple(lines), assumed)


def _notes(
    shape: Shape | None, gpu: Card, cards: int, nodes: int, answer: float, calibrate: bool
) -> list[str]:
    place = f", {nodes} nodes of {cards // nodes}" if nodes > 1 else ""
    notes = (
        [f"{cards} x {gpu.name}{place}" if cards > 1 else gpu.name]
        if not calibrate or shape
        else []
    )
    if shape and not calibrate:
        notes.append(
            f"{answer:.0f} answer tokens a prompt, read from {gpu.bandwidth:g} TB/s; no prefix "
            "cached"
        )
    if shape and shape.layers:
        kept = f"{100 * USABLE:.0f} % of memory, {RESERVED / GIB:.0f} GiB a card set aside"
        notes.append(f"KV GiB is of one request on one card; fit: requests at once in {kept}")
    if shape and not shape.layers:
        notes.append(
            "no configuration, or no layer that attends: attention and KV cache are not counted"
        )
    return notes


def _fits(shape: Shape, gpu: Card, length: int, tensor: int, cards: int) -> float:
    """Requests of a length that one replica of `cards` cards holds at once; below 0 where the
    weights alone do not fit."""
    left = USABLE * gpu.memory * GIB - RESERVED - shape.weight_bytes / cards
    return left / (shape.kv_bytes(length, tensor) * tensor / cards)


def _does_not_fit(fits: float | None, gpu: Card, cards: int) -> str:
    if fits is None or fits >= 1:
        return ""
    what = "the weights alone do not fit" if fits < 0 else "not one request fits"
    return f"{what} on {cards} x {gpu.name}: raise tensor_parallel_size, or take kv_cache_dtype: fp8 or a larger card"


def _at_once(fits: float | None) -> float:
    """How many requests decode together: what fits, within reason; a guess where the cache is not
    known."""
    return _GUESSED if fits is None else min(max(1.0, fits), _MOST_AT_ONCE)


def _decode_seconds(shape: Shape, gpu: Card, length: int, cards: int, at_once: float) -> float:
    """Seconds of one request for one token: weights are read once for all requests, the cache of
    each for itself."""
    read = shape.active * shape.bytes_per_parameter / at_once + shape.kv_bytes(length)
    return read / (gpu.bandwidth * 1e12 * cards)


def find_shape(
    name: str, spec: Mapping[str, Any], parameters: str | None = None, needed: bool = True
) -> tuple[Shape | None, str, bool]:
    """The shape of a model, where it is from, and whether its checkpoint was found; no shape where
    nothing is known and nothing is needed."""
    counted, reason = parameters or spec.get("parameters"), "it has no path to a checkpoint"
    found = "path" not in spec  # a model that is no checkpoint can be asked what it takes
    if "path" in spec and spec.get("engine") != "openai":
        try:
            config = Checkpoint(name, spec["path"], spec.get("revision")).config
            found = True
            shape = shape_of(config, spec, parameters)
            kind = (
                f", {shape.active / 1e9:.2f} B active"
                if shape.active < 0.9 * shape.parameters
                else ""
            )
            return (
                shape,
                f"{shape.parameters / 1e9:.2f} B parameters{kind}; layers and heads of config.json",
                found,
            )
        except UserError as error:
            reason = str(error)
    if counted:
        total, active = read_parameters(str(counted))
        return (
            with_types(Shape(total, active), spec, {}),
            f"{counted} parameters as given; no config.json",
            found,
        )
    if not needed:
        return None, "time grows with the tokens, as measured at the shortest length", found
    raise UserError(
        f"model {name}: nothing tells its size ({reason}); give --params 8B (or `parameters: 8B` "
        "in its file), a path "
        "with a config.json, or --calibrate"
    )


def calibrated(
    model: Model, task: Task, length: int, seed: int, shape: Shape | None
) -> tuple[float, str]:
    """FLOPs (or tokens, without a shape) a second over a few short examples, after one to warm up;
    and in words."""
    if reason := model.too_long(length):
        raise UserError(f"model {model.name}: --calibrate needs a length that it can run: {reason}")
    examples = generate(task, length, _TIMED + 1, seed, model.prompt_format)
    asked = list(examples)
    list(model.answer(asked[:1]))
    start = perf_counter()
    list(model.answer(asked[1:]))
    seconds = max(1e-6, (perf_counter() - start) / _TIMED)
    work = shape.prefill_flops(length) if shape else length
    rate = f"{length / seconds:,.0f} tokens/s" + (
        f", {work / seconds / 1e12:.2f} TFLOP/s" if shape else ""
    )
    return (
        work / seconds,
        f"{_TIMED} examples of {task.name} at {length} tokens took {seconds:.3f} s each: {rate}",
    )

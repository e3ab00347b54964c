"""What a study costs before it is run: tokens, FLOPs, key-value cache, requests that fit, hours.

The formulas are those of a roofline: prefill at a stated share of the card's peak, decoding at its
memory's bandwidth. Every assumption is printed under the table; `--calibrate` replaces the first by
a measurement.
"""

import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from math import ceil, nan
from time import perf_counter
from typing import NamedTuple

from rulerkit.batch.checks import gpus_beyond_node
from rulerkit.common.errors import UserError, counted, unknown
from rulerkit.common.lengths import length_name
from rulerkit.common.paths import package_data
from rulerkit.common.settings import Spec
from rulerkit.evaluation.study import Study, bills
from rulerkit.generation.generate import generate
from rulerkit.inference.checkpoint import Checkpoint, merge_config
from rulerkit.inference.model import Model, load_model, num_shares, takes_more_gpus
from rulerkit.report.tables import render

GIB = 2**30
USABLE = 0.92
"""Share of a card's memory that an engine takes for weights and cache."""
RESERVED = 5 * GIB
"""Activations, graphs and the engine itself, on every card."""
_GUESSED, _MOST_AT_ONCE = 16.0, 256.0  # requests that decode together
_TIMED = 4  # examples of a calibration, after one to warm up
_QUANTIZED = {"fp8": 1.0, "awq": 0.5, "gptq": 0.5, "int8": 1.0, "bitsandbytes": 0.5}
_FULL_EVERY = {
    "gemma2": 2,
    "gemma3_text": 6,
}  # full attention, where config.json does not say it
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


class Card(NamedTuple):
    """A GPU: memory in GiB as drivers report it, dense 16-bit peak in TFLOP/s, memory bandwidth in
    TB/s."""

    name: str
    memory: float
    tflops: float
    bandwidth: float


def card(name: str, memory: float | None = None) -> Card:
    """A card by its short name in data/gpus.yaml; `memory` in GiB overrides its own."""
    cards = package_data("gpus.yaml")
    if name.lower() not in cards:
        raise unknown("GPU", name, cards, "--memory GIB overrules its memory")
    known = Card(*cards[name.lower()])
    return (
        known._replace(memory=memory, name=f"{known.name}, {memory:g} GiB")
        if memory
        else known
    )


# --- shapes ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """A model's sizes. Without a configuration only the parameters are known: `windows` is
    empty."""

    parameters: float
    active: float
    """Parameters that work on one token: fewer than all where there are experts."""
    windows: tuple[int, ...]
    """One entry for each layer that attends: its window in tokens; 0 for full attention."""
    heads: int
    kv_heads: int
    head_dim: int
    latent: int
    """Numbers per token that multi-head latent attention stores in place of keys and values."""
    bytes_per_parameter: float
    bytes_per_kv: int

    def prefill_flops(self, tokens: int) -> float:
        """2 FLOPs per parameter and token, and the causal half of the attention matrix, twice
        (scores and values)."""
        pairs = 0.0
        for window in self.windows:
            near = min(tokens, window or tokens)
            pairs += near * near / 2 + (tokens - near) * near
        return 2 * self.active * tokens + 4 * self.heads * self.head_dim * pairs

    def kv_bytes(self, tokens: int, tensor_parallel: int = 1) -> float:
        """The cache of one request on one of `tensor_parallel` cards."""
        heads = max(1, ceil(self.kv_heads / tensor_parallel))
        numbers = self.latent or 2 * heads * self.head_dim
        stored = sum(min(tokens, window or tokens) for window in self.windows)
        return stored * numbers * self.bytes_per_kv


def read_parameters(text: str) -> tuple[float, float]:
    """All parameters and the active ones: '8B' is twice the same, '12B/52B' names both in either
    order."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([KMBT]?)", text.upper())
    if "/".join(map("".join, parts)) != text.upper():
        raise UserError(
            f"{text!r} is no number of parameters: write 8B, 0.5B, or 12B/52B for active and all"
        )
    numbers = [float(number) * _UNITS[unit] for number, unit in parts]
    return max(numbers), min(numbers)


def shape_of(config: Spec, spec: Spec, parameters: str) -> Shape:
    """The shape that a `config.json` and a model's spec describe."""
    config = merge_config(
        config.get("text_config") or config, spec.get("hf_overrides", {})
    )
    sizes = {
        size: next((int(config[name]) for name in names if config.get(name)), 0)
        for size, names in package_data("config_keys.yaml").items()
    }
    heads, latent = sizes["heads"], sizes["latent"]
    total, active = read_parameters(parameters)
    quantization = config.get("quantization_config") or {}
    method = str(spec.get("quantization") or quantization.get("quant_method"))
    return Shape(
        total,
        active,
        attention_windows(config, sizes) if heads else (),
        heads,
        sizes["kv_heads"] or heads,
        sizes["head_dim"] or sizes["hidden"] // max(1, heads),
        latent + config.get("qk_rope_head_dim", 0) if latent else 0,
        _QUANTIZED.get(method) or (4 if spec.get("dtype") == "float32" else 2),
        1 if str(spec.get("kv_cache_dtype")).startswith("fp8") else 2,
    )


def attention_windows(config: Spec, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The window of every layer that attends; Mamba, RWKV and linear layers have a constant state
    and are left out."""
    layers, window = range(sizes["layers"]), sizes["window"]
    if kinds := config.get("layer_types"):
        windows = {
            "full_attention": 0,
            "attention": 0,
            "hybrid": 0,
            "sliding_attention": window,
        }
        windows["chunked_attention"] = sizes["chunk"]
        return tuple(windows[kind] for kind in kinds if kind in windows)
    if period := config.get("attn_layer_period"):
        return tuple(
            0 for i in layers if i % period == config.get("attn_layer_offset", 0)
        )
    usual = _FULL_EVERY.get(config.get("model_type", ""), 0)
    if period := config.get("sliding_window_pattern", usual):
        return tuple(0 if (i + 1) % period == 0 else window for i in layers)
    return tuple(
        window if config.get("use_sliding_window", True) else 0 for _ in layers
    )


def find_shape(name: str, spec: Spec, parameters: str) -> tuple[Shape, str]:
    """The shape of a model, and where it is from."""
    try:
        local = "path" in spec and spec["engine"] != "openai"
        config = (
            Checkpoint(name, spec["path"], spec.get("revision")).config if local else {}
        )
    except UserError:
        config = {}
    shape = shape_of(config, spec, parameters)
    source = "layers and heads of config.json"
    if not shape.windows:
        source = "no config.json, or no layer that attends: attention and KV cache are not counted"
    return shape, f"{parameters} parameters; {source}"


# --- plans ----------------------------------------------------------------------------------------


class LengthCost(NamedTuple):
    """The cost of one length: of all its cells, but `hours`, which is of one cell; NaN where it is
    not known."""

    length: int
    tokens: int
    flops: float
    kv_bytes: float
    """Of one request, on one card."""
    fits: float
    """How many requests of this length a replica holds at once."""
    hours: float
    why_not: str


@dataclass(frozen=True)
class Plan:
    """A study's cost for one model, by length, and what was assumed."""

    model: str
    num_tasks: int
    num_answers: int
    """Of each cell: its examples, as often as they are repeated."""
    lines: list[LengthCost]
    assumptions: list[str]

    @property
    def hours(self) -> float:
        """Of all lengths that can be run."""
        return sum(
            line.hours * self.num_tasks for line in self.lines if not line.why_not
        )

    def text(self) -> str:
        """The table, and the assumptions under it."""
        head = ("length", "tokens", "PFLOP", "KV GiB", "fit", "h/cell", "h/length")
        rows = [
            [
                field.replace("nan", "-")
                for field in (
                    length_name(line.length),
                    f"{line.tokens:,}",
                    f"{line.flops / 1e15:,.0f}",
                    f"{line.kv_bytes / GIB:.2f}",
                    f"{line.fits:.1f}",
                    _hours(line.hours),
                    _hours(line.hours * self.num_tasks),
                )
            ]
            for line in self.lines
        ]
        tokens = sum(line.tokens for line in self.lines if not line.why_not)
        below = [
            f"together: {tokens:,} tokens, {_hours(self.hours)} hours",
            *(
                f"  {length_name(ln.length)}: {ln.why_not}"
                for ln in self.lines
                if ln.why_not
            ),
            "assumed:",
            *(f"  {text}" for text in self.assumptions),
        ]
        answers = counted(self.num_answers, "answer")
        title = f"{self.model}: {counted(self.num_tasks, 'task')} x {answers}"
        return f"{title}\n{render(head, rows, notes=below)}".rstrip()


def bill_text(study: Study, spec: Spec) -> str:
    """What a study costs at a service's prices, by length."""
    rows = bills(study, spec)
    fields = [
        [length_name(row.length), *(f"{n:,}" for n in row[1:3]), f"{row.dollars:,.2f}"]
        for row in rows
    ]
    day = f", read on {spec['prices']['date']}" if "date" in spec["prices"] else ""
    tokens = sum(row.prompt_tokens + row.answer_tokens for row in rows)
    below = [
        f"together: {tokens:,} tokens, ${sum(row.dollars for row in rows):,.2f} at most",
        f"assumed: answers as long as they may be, nothing cached, the prices of its file{day}",
    ]
    head = ("length", "prompt tokens", "answer tokens", "dollars")
    answers = counted(study.num_examples * study.repeat, "answer")
    title = f"{spec['name']}: {counted(len(study.tasks), 'task')} x {answers}"
    return f"{title}\n{render(head, fields, notes=below)}".rstrip()


def _hours(hours: float) -> str:
    return (
        f"{hours:.0f}"
        if hours >= 100
        else f"{hours:.1f}"
        if hours >= 1
        else f"{hours:.3f}"
    )


def plan_model(
    described: Spec | Model,
    study: Study,
    gpu: Card,
    parameters: str | None = None,
    mfu: float = 0.4,
    calibrate: bool = False,
    replicas: int | None = None,
) -> Plan:
    """The cost of a study for one model; `parameters` (8B) and `replicas` override its spec.

    Raises UserError where the number of parameters is not known and nothing is measured.
    """
    with closing(load_model(described)) as model:
        spec: Spec = getattr(model, "spec", {})
        num_tasks, count = len(study.tasks), study.num_examples * study.repeat
        cards, nodes = num_shares(spec), spec.get("nodes", 1)
        answer = sum(task.answer_tokens for task in study.tasks) / num_tasks
        answer += spec.get("thinking_tokens", 0)
        known = spec.get("replicas", "auto")
        # a calibration asks all replicas
        replicas = replicas or (1 if calibrate or known == "auto" else known)
        shape, assumed = (
            None,
            ["time grows with the tokens, as measured at the shortest length"],
        )
        if size := parameters or spec.get("parameters"):
            shape, source = find_shape(model.name, spec, size)
            place = f", {nodes} nodes of {cards // nodes}" if nodes > 1 else ""
            assumed = [source, f"{cards} x {gpu.name}{place}"]
        elif not calibrate:
            raise UserError(
                f"model {model.name}: nothing tells its size; give --params 8B (or `parameters: 8B` in "
                "its file), or --calibrate"
            )
        if calibrate:
            speed, text = calibrated(model, study, shape)
            assumed.append(text)
        else:
            speed = gpu.tflops * 1e12 * cards * mfu
            assumed += [
                f"prefill at {100 * mfu:.0f} % of {gpu.tflops:g} TFLOP/s a card (--mfu; measure with --calibrate)",
                f"{answer:.0f} answer tokens a prompt, read from {gpu.bandwidth:g} TB/s; no prefix cached",
            ]
        if shape and shape.windows:
            left = f"{100 * USABLE:.0f} % of memory, {RESERVED / GIB:.0f} GiB a card set aside"
            assumed.append(
                f"KV GiB is of one request on one card; fit: requests at once in {left}"
            )
        if replicas > 1:
            assumed.append(f"{replicas} replicas, {replicas * cards} cards in all")
        elif takes_more_gpus(spec):
            assumed.append(
                f"one replica; more GPUs are used too, {cards} for each further one (--replicas N "
                "divides the hours)"
            )
        try:
            limits = [model.too_long(length) or "" for length in study.lengths]
        except UserError:  # its config.json is not here
            limits = [""] * len(study.lengths)
        lines, beyond = [], gpus_beyond_node(spec, nodes)
        for length, limit in zip(study.lengths, limits, strict=True):
            flops = kv_bytes = fits = nan
            work, decoding, at_once = float(length), 0.0, _GUESSED
            if shape:
                work = shape.prefill_flops(length)
                flops = count * num_tasks * work
                if shape.windows:
                    tensor = spec.get("tensor_parallel_size", 1)
                    kv_bytes = shape.kv_bytes(length, tensor) * tensor / cards
                    weights = shape.parameters * shape.bytes_per_parameter / cards
                    fits = (USABLE * gpu.memory * GIB - RESERVED - weights) / kv_bytes
                    at_once = min(max(1.0, fits), _MOST_AT_ONCE)
                if not calibrate:
                    # weights are read once for all requests, the cache of each for itself
                    read = (
                        shape.active * shape.bytes_per_parameter / at_once
                        + shape.kv_bytes(length)
                    )
                    decoding = answer * read / (gpu.bandwidth * 1e12 * cards)
            why_not = limit or beyond
            if not why_not and fits < 1:
                what = (
                    "the weights alone do not fit"
                    if fits < 0
                    else "not one request fits"
                )
                fix = "raise tensor_parallel_size, or take kv_cache_dtype: fp8 or a larger card"
                why_not = f"{what} on {cards} x {gpu.name}: {fix}"
            tokens = count * num_tasks * length
            hours = count * (work / speed + decoding) / 3600 / replicas
            lines.append(
                LengthCost(length, tokens, flops, kv_bytes, fits, hours, why_not)
            )
        return Plan(model.name, num_tasks, count, lines, assumed)


def calibrated(model: Model, study: Study, shape: Shape | None) -> tuple[float, str]:
    """FLOPs (or tokens, without a shape) per second over a few examples of the first task at the
    shortest length, after one to warm up; and in words."""
    task, length = study.tasks[0], study.lengths[0]
    if reason := model.too_long(length):
        raise UserError(
            f"model {model.name}: --calibrate needs a length that it can run: {reason}"
        )
    examples = list(generate(task, length, _TIMED + 1, study.seed, model.prompt_format))
    list(model.answer(examples[:1]))
    start = perf_counter()
    list(model.answer(examples[1:]))
    seconds = max(1e-6, (perf_counter() - start) / _TIMED)
    work = shape.prefill_flops(length) if shape else length
    rate = f"{length / seconds:,.0f} tokens/s"
    rate += f", {work / seconds / 1e12:.2f} TFLOP/s" if shape else ""
    text = f"{_TIMED} examples of {task.name} at {length} tokens took {seconds:.3f} s each: {rate}"
    return work / seconds, text

"""Whether vLLM can start a model: its real configuration is built, without weights and without a
GPU."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from rulerkit.checks import FAIL, NOTE, OK, Finding

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
        [sys.executable, "-m", __name__],
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


if __name__ == "__main__":
    print(json.dumps(examine(*json.load(sys.stdin))))

"""Checkpoints run by vLLM: token ids in, answers as they finish, in an order in which prompts share what is cached.

The engine is a process of its own (`vllm.child`), so examples are made while it computes. It stays loaded until the
model is closed or another one is asked.
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any, ClassVar

from rulerkit.errors import TooLong, UserError
from rulerkit.example import Example
from rulerkit.models import Answer, Engine
from rulerkit.models.checkpoints import Checkpoint, max_positions
from rulerkit.models.devices import torch_module
from rulerkit.models.spec import Key, flag, mapping_of, one_of, text, tokens, whole
from rulerkit.models.vllm.child import Said
from rulerkit.models.vllm.nodes import master
from rulerkit.models.vllm.prefix_order import PrefixOrder
from rulerkit.models.vllm.process import MORE_MEMORY, Child
from rulerkit.tokenizers import Tokenizer, load_tokenizer


def _share(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise ValueError


_ANYTHING = mapping_of((bool, int, float, str, list, dict, type(None)))

KEYS = {
    "path": Key("a model folder or a hub id (org/name)", text),
    "revision": Key("a branch, tag or commit of the hub", text),
    "dtype": one_of("auto", "bfloat16", "float16", "float32"),
    "tensor_parallel_size": Key("the number of GPUs that share each layer", whole),
    "pipeline_parallel_size": Key("the number of groups of GPUs that share the layers out", whole),
    "quantization": Key("a kind of quantization that vLLM knows, such as fp8", text),
    "kv_cache_dtype": Key("the type of keys and values, such as auto or fp8", text),
    "hf_overrides": Key("a mapping over config.json, such as {rope_parameters: {...}}", _ANYTHING),
    "max_length": Key("the tokens the model may be given, such as 32K, where config.json is not to decide", tokens),
    "gpu_memory_utilization": Key("the share of each GPU's memory to use, above 0, at most 1", _share),
    "max_num_batched_tokens": Key("a whole number of tokens, read in one step", whole),
    "max_num_seqs": Key("a whole number of requests, run at once", whole),
    "enforce_eager": Key("true or false (default: true on a CPU)", flag),
    "batch_invariant": Key("true or false", flag),
    "trust_remote_code": Key("true or false", flag),
    "in_flight": Key("a whole number: the most requests with the engine at once (default 512)", whole),
    "engine_args": Key("a mapping of further arguments of vllm.LLM", _ANYTHING),
}

_HANDED_ON = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "quantization",
    "kv_cache_dtype",
    "gpu_memory_utilization",
    "max_num_batched_tokens",
    "max_num_seqs",
    "trust_remote_code",
)
_DECIDES = ("quantization", "kv_cache_dtype", "hf_overrides", "batch_invariant", "engine_args")

IN_FLIGHT = 512
AHEAD = 512  # examples made ahead and put in order, at most
AHEAD_TOKENS = 32 * 2**20  # and their tokens: about half a gigabyte


class Vllm(Engine):
    """A checkpoint in a folder or on the hub, loaded at the first answer into a process of its own."""

    _loaded: ClassVar["Vllm | None"] = None
    """The one whose engine runs: two would not share a GPU."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        if "path" not in spec:
            raise UserError(f"model {self.name}: `path` is missing; it takes {KEYS['path'].help}")
        self.checkpoint = Checkpoint(self.name, spec["path"], spec.get("revision"))
        self._child: Child | None = None

    def identity(self) -> dict[str, Any]:
        """Hub id and commit, or a folder's fingerprint; the dtype and all else that changes what is computed."""
        decides = {key: self.spec[key] for key in _DECIDES if key in self.spec}
        return {"engine": "vllm", **self.checkpoint.identity(), "dtype": self._dtype(), **decides, "prompt_path": "ids"}

    def environment(self) -> dict[str, Any]:
        """Versions, the GPU, how many share the model, and where a folder lies."""
        cuda = torch_module().cuda
        packages = {name: _version(name) for name in ("vllm", "torch", "transformers")}
        parallel = {key: self.spec.get(key, 1) for key in ("tensor_parallel_size", "pipeline_parallel_size", "nodes")}
        gpu = cuda.get_device_name(0) if cuda.is_available() else None
        return {"packages": packages, "gpu": gpu, **parallel, "path": self.spec["path"]}

    def tokenizer(self) -> Tokenizer:
        """The spec's, else the checkpoint's own at the same revision."""
        return super().tokenizer() if "tokenizer" in self.spec else load_tokenizer(self.checkpoint.tokenizer_spec())

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """As they finish. Examples are made ahead while the engine loads and computes, at most `AHEAD`."""
        source = iter(examples)
        first = next(source, None)
        if first is None:
            return
        self._check_fits(first)
        child, stop = self._running(), self.checkpoint.stop_ids(self.prompt_format.tokenizer.eos_token)
        order, asked, making = PrefixOrder(), dict[int, Example](), True
        order.add(first)
        try:
            while making or order or asked:
                behind = making and len(order) < AHEAD and order.tokens < AHEAD_TOKENS
                while order and self._has_room(child, asked.values(), behind):
                    example = order.take()
                    self._check_fits(example)
                    asked[child.ask(example.ids, self.most_tokens(example), stop)] = example
                if behind and not child.has_news():
                    made = next(source, None)
                    making = made is not None
                    if made is not None:
                        order.add(made)
                    continue
                for said in child.news():
                    example = asked.pop(said.number)
                    yield example, self._read(example, said, stop)
        finally:
            if asked:
                child.abort()

    def close(self) -> None:
        """Ends the engine's process; the next answer starts it again."""
        if self._child:
            self._child.close()
            self._child = None
        if Vllm._loaded is self:
            Vllm._loaded = None

    # --- the engine ---------------------------------------------------------------------------------------------------

    def _running(self) -> Child:
        """The engine's process, started where there is none; it may still be loading."""
        if self._child and self._child.process.poll() is not None:
            self.close()
        if self._child is None:
            if find_spec("vllm") is None:
                raise UserError(f"model {self.name}: the vllm engine needs vllm: pip install 'rulerkit[vllm]'")
            if Vllm._loaded:
                Vllm._loaded.close()
            self._child = Child(self.name, self._settings(), self._variables())
            Vllm._loaded = self
        return self._child

    def _settings(self) -> dict[str, Any]:
        """The arguments of vllm.LLM. No tokenizer of its own: ids go in and out. No sampling from the checkpoint."""
        limit = self.spec.get("max_length") or -1  # -1: as much as fits the model and the card
        rope = self.checkpoint.config.get("rope_parameters") or self.checkpoint.config.get("rope_scaling") or {}
        if limit == -1 and (rope.get("rope_type") or rope.get("type")) in ("longrope", "su"):
            limit = self._limit()  # else vLLM takes the length before scaling
        return {
            "model": str(self.checkpoint.folder or self.checkpoint.path),
            "revision": self.checkpoint.commit,
            "dtype": self._dtype(),
            "max_model_len": limit,
            "hf_overrides": self._overrides(),
            "enforce_eager": self.spec.get("enforce_eager", not torch_module().cuda.is_available()),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "disable_log_stats": False,
            **self._nodes(),
            **{key: self.spec[key] for key in _HANDED_ON if key in self.spec},
            **self.spec.get("engine_args", {}),
        }

    def _nodes(self) -> dict[str, int]:
        """Rank 0's arguments for a model over several nodes, which `vllm.nodes` completes once the others are there."""
        nodes, shares = self.spec.get("nodes", 1), self._shares()
        if nodes == 1:
            return {}
        if shares % nodes:
            raise UserError(
                f"model {self.name}: `nodes: {nodes}` does not divide tensor_parallel_size x pipeline_parallel_size, "
                f"which is {shares}: set these to all GPUs of all nodes together"
            )
        master()
        return {"nnodes": nodes, "node_rank": 0}

    def _shares(self) -> int:
        return int(self.spec.get("tensor_parallel_size", 1) * self.spec.get("pipeline_parallel_size", 1))

    def _variables(self) -> dict[str, str]:
        """Environment variables of the engine's process; the user's own count more, save where the record says so."""
        spec, more, found = self.spec, self.spec.get("engine_args", {}), {"VLLM_NO_USAGE_STATS": "1"}
        if self._shares() == 1 and "distributed_executor_backend" not in more:
            found["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # starts faster, and leaves nothing behind
        bounded = "gpu_memory_utilization" in spec or "kv_cache_memory_bytes" in more
        if not bounded and not torch_module().cuda.is_available():
            found["VLLM_CPU_KVCACHE_SPACE"] = "2"  # GiB; by default nearly all memory of the machine
        own = {name: os.environ.get(name, value) for name, value in found.items()}
        return own | {"VLLM_BATCH_INVARIANT": str(int(spec.get("batch_invariant", False)))}

    def _dtype(self) -> str:
        wanted = str(self.spec.get("dtype", "auto"))
        return wanted if wanted != "auto" else "bfloat16" if torch_module().cuda.is_available() else "float32"

    # --- what fits ----------------------------------------------------------------------------------------------------

    def _overrides(self) -> dict[str, Any]:
        """Over config.json: what the spec says, and the positions where `max_length` goes beyond those it knows."""
        own, longest = dict(self.spec.get("hf_overrides", {})), self.spec.get("max_length", 0)
        limit = max_positions(_over(self.checkpoint.config, own))
        if limit is None or longest <= limit:
            return own
        inner = {"max_position_embeddings": longest}
        return _over(own, {"text_config": inner} if "text_config" in self.checkpoint.config else inner)

    def _limit(self) -> int | None:
        if "max_length" in self.spec:
            return int(self.spec["max_length"])
        return max_positions(_over(self.checkpoint.config, self.spec.get("hf_overrides", {})))

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond the positions that the model knows, or beyond what a loaded engine has room for."""
        limit, ready = self._limit(), self._child and self._child.ready
        if limit is not None and length > limit:
            return (
                f"its limit is {limit} tokens (max_position_embeddings); `hf_overrides` with RoPE scaling, or "
                f"`max_length: {length}`, goes beyond"
            )
        if ready and length > ready.max_length:
            return f"its keys and values have room for {ready.max_length} tokens here; {MORE_MEMORY}"
        return None

    def _check_fits(self, example: Example) -> None:
        """Raises `TooLong` for what `too_long` refuses: the whole length, so that no cell is begun and left half done."""
        need = example.num_tokens + self.most_tokens(example)
        if reason := self.too_long(max(need, example.length)):
            raise TooLong(f"example {example.index} of {example.task} needs {need} tokens: {reason}")

    def _has_room(self, child: Child, asked: Collection[Example], behind: bool) -> bool:
        """Whether the engine should have another request: twice what its cache holds keeps it busy.

        While examples are still being made (`behind`), once: they share the cache in any order, and those to come go
        in a better one.
        """
        if child.ready is None or len(asked) >= self.spec.get("in_flight", IN_FLIGHT):
            return False
        return len(asked) < 2 or sum(e.num_tokens for e in asked) < child.ready.cache_tokens * (1 if behind else 2)

    # --- answering ----------------------------------------------------------------------------------------------------

    def _read(self, example: Example, said: Said, stop: list[int]) -> Answer:
        """The text up to the first stop token; the engine's own counts beside it."""
        if said.prompt_tokens != example.num_tokens or not said.same_prompt:
            raise UserError(
                f"model {self.name}: vLLM read {said.prompt_tokens} prompt tokens of example {example.index} of "
                f"{example.task}, it was sent {example.num_tokens}: it changes the ids of prompts, so its answers are "
                "to other questions; leave `engine_args` that do so away, or use another version of vllm"
            )
        if said.finish not in ("stop", "length"):
            raise UserError(
                f"model {self.name}: vLLM gave example {example.index} of {example.task} up ({said.finish}); answers "
                "so far are kept, the same command asks for it again"
            )
        end = next((at for at, token in enumerate(said.ids) if token in stop), None)
        written, special = said.ids[:end], self.checkpoint.special_ids()
        words = self.prompt_format.tokenizer.decode([token for token in written if token not in special])
        usage = {
            "prompt_tokens": said.prompt_tokens,
            "cached_tokens": said.cached_tokens,
            "engine_seconds": said.seconds,
        }
        return Answer(words, said.finish if end is None else "stop", len(written), usage)


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """One mapping over another, and so within."""
    inner = {key: _over(below[key], value) for key, value in above.items() if _both_mappings(below.get(key), value)}
    return {**below, **above, **inner}


def _both_mappings(one: Any, other: Any) -> bool:
    return isinstance(one, Mapping) and isinstance(other, Mapping)


def _version(package: str) -> str | None:
    """The version of a package; vLLM's build for CPUs has another name."""
    for name in (package, f"{package}-cpu"):
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None

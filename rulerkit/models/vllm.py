"""Checkpoints run by vLLM: token ids in, answers as they finish, in an order in which prompts share what is cached.

The engine is a process of its own (`vllm_child`), so examples are made while it computes. It stays loaded until the
model is closed or another one is asked.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.models import Answer, Engine
from rulerkit.models.checkpoints import Checkpoint, max_positions
from rulerkit.models.devices import torch_module
from rulerkit.models.spec import Key, flag, mapping_of, one_of, text, tokens, whole
from rulerkit.models.vllm_child import MORE_MEMORY, Child, Said
from rulerkit.tokenizers import Ids, Tokenizer, load_tokenizer


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


class PrefixOrder:
    """Prompts that wait, given out in the order of their token ids, so that neighbours share the longest prefixes.

    The order goes round: `take` returns what follows the prompt that was taken last, however much came in between. The
    cache of a whole cell is then reused as well as if all its prompts had been sorted beforehand.
    """

    def __init__(self) -> None:
        self._waiting: list[Example] = []
        self._last: _Prefix | None = None
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, example: Example) -> None:
        insort(self._waiting, example, key=_Prefix)
        self.tokens += example.num_tokens

    def take(self) -> Example:
        """The next prompt, taken out; `IndexError` where none waits."""
        place = bisect_left(self._waiting, self._last, key=_Prefix) if self._last else 0
        example = self._waiting.pop(place % len(self._waiting) if self._waiting else 0)
        self._last = _Prefix(example)
        self.tokens -= example.num_tokens
        return example


class _Prefix:
    """Compares prompts by their ids, as lists would be, at the speed of arrays."""

    def __init__(self, example: Example) -> None:
        self.ids: Ids = example.ids

    def __lt__(self, other: "_Prefix") -> bool:
        shared = min(len(self.ids), len(other.ids))
        differs = self.ids[:shared] != other.ids[:shared]
        place = int(differs.argmax()) if shared else 0
        if shared and differs[place]:
            return bool(self.ids[place] < other.ids[place])
        return len(self.ids) < len(other.ids)


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
        parallel = {key: self.spec.get(key, 1) for key in ("tensor_parallel_size", "pipeline_parallel_size")}
        gpu = cuda.get_device_name(0) if cuda.is_available() else None
        return {"packages": packages, "gpu": gpu, **parallel, "path": self.spec["path"]}

    def tokenizer(self) -> Tokenizer:
        """The spec's, else the checkpoint's own at the same revision."""
        return (
            super().tokenizer() if "tokenizer" in self.spec else load_tokenizer(self.checkpoint.tokenizer_spec())
        )

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """As they finish. At most `AHEAD` examples are made ahead, while the engine loads and computes."""
        source = iter(examples)
        first = next(source, None)
        if first is None:
            return
        self._check_fits(first)
        child, stop = self._running(), self.checkpoint.stop_ids(self.prompt_format.tokenizer.eos_token)
        source, more = chain([first], source), True
        order, asked = PrefixOrder(), dict[int, Example]()
        try:
            while more or order or asked:
                while order and self._room(child, asked, more):
                    example = order.take()
                    self._check_fits(example)
                    asked[child.ask(example.ids, self.most_tokens(example), stop)] = example
                if more and len(order) < AHEAD and order.tokens < AHEAD_TOKENS and not child.has_news():
                    if made := next(source, None):
                        order.add(made)
                    more = made is not None
                    continue
                for said in child.news():
                    example = asked.pop(said.number)
                    yield example, self._answer(example, said, stop)
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
        limit = self.spec.get("max_length") or (self._limit() if self._long_rope() else -1)
        return {
            "model": str(self.checkpoint.folder or self.checkpoint.path),
            "revision": self.checkpoint.commit,
            "dtype": self._dtype(),
            "max_model_len": limit,  # -1: as much as fits the model and the card
            "hf_overrides": self._overrides(),
            "enforce_eager": self.spec.get("enforce_eager", not _has_gpu()),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "disable_log_stats": False,
            **{key: self.spec[key] for key in _HANDED_ON if key in self.spec},
            **self.spec.get("engine_args", {}),
        }

    def _variables(self) -> dict[str, str]:
        """Environment variables of the engine's process; the user's own count more, where they are set."""
        spec, found = self.spec, {"VLLM_NO_USAGE_STATS": "1"}
        alone = spec.get("tensor_parallel_size", 1) * spec.get("pipeline_parallel_size", 1) == 1
        if alone and "distributed_executor_backend" not in spec.get("engine_args", {}):
            found["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # starts faster, and leaves nothing behind
        if not _has_gpu() and "gpu_memory_utilization" not in spec:
            found["VLLM_CPU_KVCACHE_SPACE"] = "4"  # GiB; vLLM's default is nearly all memory of the machine
        if spec.get("batch_invariant"):
            found["VLLM_BATCH_INVARIANT"] = "1"
        return {name: _environ(name, value) for name, value in found.items()}

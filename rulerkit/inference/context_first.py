"""A network reads the context first and the question after it, so that a method can compress what
the cache holds of the context without the question.

The order is that of the literature on the compression of keys and values (SnapKV without its
window, KVzip, kvpress): one cache, made once, could answer any question about its context.
"""

from importlib import import_module
from inspect import signature
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.common.gpus import torch_module
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.generation.parts import Parts
from rulerkit.inference.model import COMPRESSED, Failure
from rulerkit.inference.user_code import (
    MOST_RAISED,
    current_contents,
    find_function,
    raised,
    remember_contents,
)

READ = "the context was read without the question"


class ContextFirst:
    """Reads the context of a prompt, lets a method compress it, and answers the question greedily.

    `compress` is a function of the network, the ids of the context (shape (1, tokens), on the
    network's device) and the arguments of `compress_with`. It returns the cache of keys and values
    (a `Cache` of transformers), or a pair of it and the position of the question's first token,
    which is otherwise the number of tokens of the context. Without it the cache holds everything.
    """

    def __init__(self, spec: Spec, compress: Any = None) -> None:
        self.name: str = spec["name"]
        self.spec = spec
        self._given = compress
        self._num_raised = 0
        """The exceptions of the method; -1 once it has returned."""

        why = ""
        if "sampling" in spec:
            why = "sampling does not apply: the answer is decoded greedily"
        elif self._has_method and "prefill_chunk_size" in spec:
            why = "prefill_chunk_size does not apply: `compress` reads the context"
        elif self._has_method and spec.get("takes") == "ids":
            why = "takes: ids does not apply: `compress` takes the context alone"
        elif "compress_with" in spec and "compress" not in spec:
            why = "compress_with applies to a function named by `compress`"
        if why:
            raise UserError(f"model {self.name}: {why}; leave it out")

    @property
    def _has_method(self) -> bool:
        return self._given is not None or "compress" in self.spec

    @property
    def protocol_note(self) -> str:
        """What tables say of it."""
        usual = COMPRESSED if self._has_method else READ
        return str(self.spec.get("protocol_note", usual))

    def identity(self) -> JSON:
        """What decides the answers beside the network: the method, its arguments, its code and what
        lies in it."""
        what: JSON = {"takes": "parts"}
        if not self._has_method:
            return what

        compress = self._compress()
        named = self.spec.get("compress")
        if named is None:
            kind = compress if hasattr(compress, "__qualname__") else type(compress)
            named = f"{kind.__module__}.{kind.__qualname__}"
        contents = current_contents(compress)
        what |= {"compress": named, "code_of_compress": contents.code}
        if "compress_with" in self.spec:
            what["compress_with"] = self.spec["compress_with"]
        state = contents.state
        return what if state is None else what | {"state_of_compress": state}

    def write(
        self, network: Any, example: Example, parts: Parts, most: int, stop_ids: list[int]
    ) -> list[int] | Failure:
        """The ids that the network writes, at most so many, up to the first that stops; or why the
        method failed."""
        torch = torch_module()
        place = network.device
        context = torch.tensor(parts.context_ids, device=place).long()[None]
        step = torch.tensor(parts.question_ids, device=place).long()[None]

        with torch.no_grad():
            # A prompt without a context, such as a question alone, has nothing to compress.
            if self._has_method and example.context_blocks:
                read = self._compressed(network, example, context)
            else:
                chunk = self.spec.get("prefill_chunk_size")
                read = read_context(network, context, chunk), context.shape[1]
            if isinstance(read, Failure):
                return read

            cache, position = read
            written = list[int]()
            while len(written) < most:
                # Positions go on behind the whole context: what is left of it keeps its own.
                end = position + step.shape[1]
                positions = torch.arange(position, end, device=place)[None]
                out = _forward(network, step, cache, position_ids=positions)
                position, step = end, out.logits[:, -1:].argmax(-1)
                written.append(int(step))
                if written[-1] in stop_ids:
                    break
        return written

    def _compressed(
        self, network: Any, example: Example, context: Any
    ) -> tuple[Any, int] | Failure:
        """The cache that the method returns, and the position of the question's first token; or why
        it returned none."""
        torch = torch_module()
        compress = self._compress()
        current_contents(compress)
        try:
            returned = compress(network, context, **self.spec.get("compress_with", {}))
        except (UserError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # it is the user's code
            if "DefaultCPUAllocator" in str(error):
                raise
            return self._failure(example, error)
        finally:
            remember_contents(compress)

        self._num_raised = -1
        cache, position = returned, context.shape[1]
        if isinstance(returned, tuple) and len(returned) == 2:
            cache, position = returned
        if not hasattr(cache, "get_seq_length") or not isinstance(position, int):
            raise UserError(
                f"model {self.name}: compress returned a {type(returned).__name__}; it must return "
                "the cache of keys and values (a Cache of transformers), or a pair of it and the "
                "position of the question's first token"
            )
        return cache, position

    def _compress(self) -> Any:
        """The method, which `compress` names or the caller gave."""
        if self._given is None:
            self._given = find_function(self.name, "compress", self.spec["compress"])
        return self._given

    def _failure(self, example: Example, error: Exception) -> Failure:
        """Why an example has no answer; a `UserError` where the method raised from the start."""
        reason = f"example {example.index}: compress raised {raised(error)}"
        if self._num_raised >= 0:
            self._num_raised += 1
        if self._num_raised == MOST_RAISED:
            raise UserError(
                f"model {self.name}: compress failed at its first {MOST_RAISED} prompts, the last: "
                f"{example.task}, {reason}: correct it, then the same command asks again"
            ) from error
        return Failure(reason)


def read_context(network: Any, context_ids: Any, chunk: int | None = None) -> Any:
    """Let a network read a context: the cache (a `DynamicCache`) of its keys and values.

    `network` is a causal language model of transformers, `context_ids` a tensor of shape (1,
    tokens) on its device. With `chunk` it reads so many tokens at a time, which needs less memory.
    """
    cache = import_module("transformers").DynamicCache(config=network.config)
    for ids in context_ids.split(chunk or max(1, context_ids.shape[1]), dim=1):
        if ids.shape[1]:
            _forward(network, ids, cache)
    return cache


def _forward(network: Any, ids: Any, cache: Any, **more: Any) -> Any:
    """A pass over ids behind what the cache holds, which grows by them. The logits of the last
    token are enough: those of a long context would fill the memory."""
    known = signature(network.forward).parameters
    if "logits_to_keep" in known:
        more["logits_to_keep"] = 1
    # The name until transformers 5.23.
    more["cache" if "cache" in known else "past_key_values"] = cache
    return network(input_ids=ids, use_cache=True, **more)

"""Checkpoints run by Hugging Face transformers: any causal language model, on a CPU or a GPU, greedily, in batches.

The ids of an example are sent as they are, padded on the left. Answers must not depend on what shares their batch, so
recurrent models, which cannot all leave padding out of their state, only share one with prompts of the same length.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import chain, islice
from tempfile import TemporaryDirectory
from typing import Any

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.models import Answer, Engine, mamba_ssm
from rulerkit.models.checkpoints import Checkpoint, fingerprint_loaded, first_line, max_positions
from rulerkit.models.devices import bytes_per_token, free, free_bytes, is_cuda, out_of_memory, torch_module
from rulerkit.models.spec import Key, flag, mapping_of, one_of, text, tokens, whole
from rulerkit.tokenizers import Tokenizer, load_tokenizer

KEYS = {
    "path": Key("a model folder or a hub id (org/name)", text),
    "revision": Key("a branch, tag or commit of the hub", text),
    "dtype": one_of("auto", "bfloat16", "float16", "float32"),
    "device": Key("auto, cpu, cuda, cuda:1, mps, or spread (over all GPUs)", text),
    "batch_size": Key("a whole number of at least 1 (default: what fits)", whole),
    "max_memory": Key(
        "a mapping of GPU number or cpu to memory, such as {0: 70GiB, cpu: 100GiB}", mapping_of((int, str))
    ),
    "max_length": Key("the tokens the model may be given, such as 32K, where config.json is not to decide", tokens),
    "prefill_chunk_size": Key("a whole number of tokens (default: all at once, 2048 if memory does not do)", whole),
    "trust_remote_code": Key("true or false", flag),
}

CHUNK = 2048  # tokens of a prompt read at a time once reading it whole did not fit
LONG_ON_CPU = 16384  # from this many tokens a CPU gains nothing from batches
MOST_AT_ONCE = 32
WINDOW = 4  # batches read ahead, so that prompts of like length share one


class Transformers(Engine):
    """A checkpoint in a folder or on the hub, loaded at the first answer; or `loaded`, a (model, tokenizer) pair."""

    def __init__(self, spec: Mapping[str, Any], loaded: tuple[Any, Any] | None = None) -> None:
        super().__init__(spec)
        self._given = loaded
        self._network: Any = loaded[0] if loaded else None
        self._room: int | None = None  # tokens of a batch, once a larger one did not fit
        self._chunk: int | None = spec.get("prefill_chunk_size")
        if loaded is None and "path" not in spec:
            raise UserError(f"model {self.name}: `path` is missing; it takes {KEYS['path'].help}")
        self.checkpoint = None if loaded else Checkpoint(self.name, spec["path"], spec.get("revision"))

    def identity(self) -> dict[str, Any]:
        """Hub id and commit, or a folder's fingerprint, or that of a loaded model; and the dtype."""
        if self.checkpoint is None:
            dtype = str(self._network.dtype).removeprefix("torch.")
            return {"engine": "transformers", "loaded": fingerprint_loaded(self._network), "dtype": dtype}
        return {"engine": "transformers", **self.checkpoint.identity(), "dtype": self._dtype()}

    def environment(self) -> dict[str, Any]:
        """Versions, the device's name, and where a folder lies."""
        from importlib.metadata import version

        torch, device = torch_module(), self._device()
        on_gpu = is_cuda(device) and torch.cuda.is_available()
        gpu = torch.cuda.get_device_name(0 if device == "spread" else device) if on_gpu else None
        packages = {name: version(name) for name in ("torch", "transformers")}
        return {"packages": packages, "gpu": gpu, "device": device, "path": self.spec.get("path")}

    def tokenizer(self) -> Tokenizer:
        """The spec's, else the checkpoint's own at the same revision, else that of the loaded pair."""
        if "tokenizer" in self.spec:
            return super().tokenizer()
        if self.checkpoint is None:
            assert self._given
            with TemporaryDirectory(prefix="rulerkit-tokenizer-") as folder:
                self._given[1].save_pretrained(folder)
                return load_tokenizer(folder)
        return load_tokenizer(self.checkpoint.tokenizer_spec())

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """Batches of prompts of like length out of a window of a few batches; greedy."""
        source, limit = iter(examples), self._limit()
        first = next(source, None)
        if first is None:
            return
        self._check_fits(first, limit)
        network = self._load()
        source = chain([first], source)
        while window := list(islice(source, WINDOW * self._batch_size(network, first))):
            for example in window:
                self._check_fits(example, limit)
            for batch in self._batches(network, window):
                yield from zip(batch, self._answer(network, batch), strict=True)

    def close(self) -> None:
        """Frees the weights; a model that was handed over stays its owner's."""
        if self._given is None and self._network is not None:
            self._network = None
            free()

    # --- loading ------------------------------------------------------------------------------------------------------

    def _device(self) -> str:
        """`cpu`, `cuda:0`, ... or `spread`."""
        torch = torch_module()
        if self._given:
            return str(self._given[0].device)
        wanted = str(self.spec.get("device", "auto"))
        if wanted == "auto":
            wanted = "cuda" if torch.cuda.is_available() else "cpu"
        if "max_memory" in self.spec:
            return "spread"
        if wanted not in ("cpu", "mps", "spread") and not re.fullmatch(r"cuda(:\d+)?", wanted):
            raise UserError(f"model {self.name}: device {wanted!r} is not allowed; it takes {KEYS['device'].help}")
        if not is_cuda(wanted):
            return wanted
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        number = int(wanted.partition(":")[2] or 0)
        if number >= count:
            raise UserError(f"model {self.name}: device {wanted}: this machine has {count} GPUs; use cpu or auto")
        return wanted if wanted == "spread" else f"cuda:{number}"

    def _dtype(self) -> str:
        wanted = self.spec.get("dtype", "auto")
        return str(wanted if wanted != "auto" else "float32" if self._device() == "cpu" else "bfloat16")

    def _load(self) -> Any:
        """The network, on its device, loaded at first use."""
        if self._network is not None:
            return self._network
        torch, device = torch_module(), self._device()
        from safetensors import SafetensorError

        assert self.checkpoint
        place: dict[str, Any] = {} if device == "cpu" else {"device_map": "auto" if device == "spread" else device}
        if "max_memory" in self.spec:
            place["max_memory"] = self.spec["max_memory"]
        try:
            self._network = mamba_ssm.reader(self.checkpoint)(
                str(self.checkpoint.folder or self.checkpoint.path),
                revision=self.checkpoint.commit or "main",
                dtype=getattr(torch, self._dtype()),
                trust_remote_code=self.spec.get("trust_remote_code", False),
                **place,
            )
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"model {self.name}: its weights do not fit on {device}: use a larger GPU or several (`device: spread`)"
            ) from error
        except (OSError, ValueError, KeyError, ImportError, SafetensorError) as error:
            raise UserError(
                f"model {self.name}: {self.spec['path']} cannot be loaded as a causal model: {first_line(error)}"
            ) from error
        return self._network

    # --- what fits ----------------------------------------------------------------------------------------------------

    def _limit(self) -> int | None:
        if "max_length" in self.spec:
            return int(self.spec["max_length"])
        return max_positions(self.checkpoint.config if self.checkpoint else self._network.config.to_dict())

    def too_long(self, length: int) -> str | None:
        """Whether a length is beyond the positions that the model knows."""
        limit = self._limit()
        if limit is None or length <= limit:
            return None
        return (
            f"its limit is {limit} tokens (max_position_embeddings); `max_length: {length}` in its mapping goes beyond"
        )

    def _check_fits(self, example: Example, limit: int | None) -> None:
        need = example.num_tokens + self.most_tokens(example)
        if limit is not None and need > limit:
            raise UserError(
                f"model {self.name}: example {example.index} of {example.task} at length {example.length} needs {need} "
                f"tokens, but the model's limit is {limit} (max_position_embeddings): ask for shorter lengths, or set "
                f"`max_length: {example.length}` in the model's mapping to go beyond"
            )

    def _batch_size(self, network: Any, example: Example) -> int:
        """The spec's, else 1 or 8 on a CPU, else as many sequences as free GPU memory holds by a rough count."""
        width = example.num_tokens + self.most_tokens(example)
        if "batch_size" in self.spec:
            size = int(self.spec["batch_size"])
        elif network.device.type == "cuda":
            size = min(MOST_AT_ONCE, int(0.8 * free_bytes() / (width * bytes_per_token(network))))
        else:
            size = 1 if example.num_tokens >= LONG_ON_CPU else 8
        if self._room is not None:
            size = min(size, self._room // width)
        mixed = network.config.model_type == "rwkv"  # whose steps in transformers mix the rows of a batch
        return 1 if mixed else max(1, size)

    def _batches(self, network: Any, window: list[Example]) -> Iterator[list[Example]]:
        """The examples of a window, shortest first, in batches; of equal length for recurrent models."""
        recurrent, batch = getattr(network, "_is_stateful", False), list[Example]()
        for example in sorted(window, key=lambda e: e.num_tokens):
            full = batch and len(batch) >= self._batch_size(network, example)
            if full or (batch and recurrent and batch[0].num_tokens != example.num_tokens):
                yield batch
                batch = []
            batch.append(example)
        if batch:
            yield batch

    # --- answering ----------------------------------------------------------------------------------------------------

    def _answer(self, network: Any, batch: list[Example]) -> list[Answer]:
        """The answers of a batch; halved, then read in chunks, where memory runs out."""
        try:
            return self._generate(network, batch)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            failure = first_line(error)
        free()  # outside the except clause, whose traceback holds the tensors
        width = batch[-1].num_tokens
        if len(batch) > 1:
            self._room = len(batch) * (width + self.most_tokens(batch[-1])) // 2
            half = (len(batch) + 1) // 2
            return self._answer(network, batch[:half]) + self._answer(network, batch[half:])
        if self._chunk is None and width > CHUNK and not getattr(network, "_is_stateful", False):
            self._chunk = CHUNK
            return self._answer(network, batch)
        raise UserError(
            f"model {self.name}: out of memory at a single prompt of {width} tokens on {network.device} ({failure}): "
            "use a larger GPU, several (`device: spread`), a smaller `dtype` or a shorter length; answers so far stay"
        )

    def _generate(self, network: Any, batch: list[Example]) -> list[Answer]:
        torch = torch_module()
        stop = self._stop_ids()
        width = max(example.num_tokens for example in batch)
        ids = torch.full((len(batch), width), stop[0] if stop else 0, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, example in enumerate(batch):
            ids[row, width - example.num_tokens :] = torch.from_numpy(example.ids)
            mask[row, width - example.num_tokens :] = 1
        config = _transformers().GenerationConfig(
            do_sample=False,
            max_new_tokens=max(self.most_tokens(example) for example in batch),
            eos_token_id=stop or None,
            pad_token_id=stop[0] if stop else 0,
            prefill_chunk_size=self._chunk if self._chunk and width > self._chunk else None,
        )
        with _without_own_settings(network):
            out = network.generate(
                input_ids=ids.to(network.device), attention_mask=mask.to(network.device), generation_config=config
            )
        rows = out[:, width:].tolist()
        return [self._read(row, example, set(stop)) for row, example in zip(rows, batch, strict=True)]

    def _read(self, new: list[int], example: Example, stop: set[int]) -> Answer:
        """The text up to the first stop token, or as far as the example's own budget goes."""
        new = new[: self.most_tokens(example)]
        end = next((at for at, token in enumerate(new) if token in stop), None)
        written = new[:end]
        special = self._special_ids()
        text = self.prompt_format.tokenizer.decode([token for token in written if token not in special])
        return Answer(text, "length" if end is None else "stop", len(written))

    def _stop_ids(self) -> list[int]:
        if self.checkpoint:
            tokenizer = self.prompt_format.tokenizer
            return self.checkpoint.stop_ids(tokenizer.eos_token) or mamba_ssm.end_ids(tokenizer)
        found: set[int] = set()
        network, tokenizer = self._given  # type: ignore[misc]
        for ids in (network.generation_config.eos_token_id, tokenizer.eos_token_id):
            found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
        return sorted(found)

    def _special_ids(self) -> set[int]:
        if self.checkpoint:
            return self.checkpoint.special_ids()
        tokenizer = self._given[1]  # type: ignore[index]
        added = {number: token for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        return {number for number, token in added.items() if "think" not in token.content}


@contextmanager
def _without_own_settings(network: Any) -> Iterator[None]:
    """Hides what the checkpoint's generation_config.json would add to greedy decoding: sampling, penalties."""
    own, training = network.generation_config, network.training
    network.generation_config = _transformers().GenerationConfig()
    network.eval()
    try:
        yield
    finally:
        network.generation_config = own
        network.train(training)


def _transformers() -> Any:
    """The library, which has this module's name."""
    return import_module("transformers")

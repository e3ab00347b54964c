"""Checkpoints run by Hugging Face transformers: any causal language model, on a CPU or a GPU,
greedily, in batches.

The model receives the token ids of an example, padded on the left. Answers must not depend on the
batch. Recurrent models do not all exclude padding from their state, so they only batch prompts of
equal length.
"""

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rulerkit.checkpoint import Checkpoint
from rulerkit.errors import UserError, first_line
from rulerkit.example import Example
from rulerkit.fingerprints import loaded_digests, loaded_fingerprint
from rulerkit.gpus import free_memory, gpu_name, loading, torch_module
from rulerkit.models import Answer
from rulerkit.models.checkpoints import CheckpointEngine
from rulerkit.models.recurrent import is_mamba_ssm, mamba_ssm_options
from rulerkit.settings import JSON, Spec

READ_AHEAD = 32  # examples among which batches are formed
BATCH_SIZE = 8  # the default, below the length from which on examples are answered one by one
ONE_BY_ONE = 16384


class Transformers(CheckpointEngine):
    """A checkpoint in a folder or on the hub, loaded at the first answer; or `loaded`, a (model,
    tokenizer) pair."""

    modifiers = ("hf_overrides", "attn_implementation", "quantization")

    def __init__(self, spec: Spec, loaded: tuple[Any, Any] | None = None) -> None:
        super().__init__(spec)
        self._loaded = loaded
        self._network: Any = loaded[0] if loaded else None
        self._most_per_batch = sys.maxsize  # lowered when a batch does not fit
        if loaded:
            self._refuse_modifiers("a model that is loaded already")
            self.checkpoint = self._write_files(*loaded)

    def identity(self) -> JSON:
        """As of any checkpoint; of a loaded model its fingerprint and dtype."""
        if not self._loaded:
            return super().identity()
        dtype = str(self._network.dtype).removeprefix("torch.")
        fingerprints = {
            "loaded": loaded_fingerprint(self._network),
            "weights": loaded_digests(self._network),
        }
        return {"engine": "transformers", **fingerprints, "dtype": dtype}

    def environment(self) -> JSON:
        """The device and its name, and the path as given."""
        device = self.device()
        return {
            "gpu": gpu_name(device.replace("spread", "cuda")),
            "device": device,
            "path": self.spec.get("path"),
        }

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """Reads up to `READ_AHEAD` examples ahead and batches those of similar length; greedy."""
        source = iter(examples)
        while window := list(islice(source, READ_AHEAD)):
            for example in window:
                self.check_fits(example)
            network = self._load()
            for batch in self._batches(network, window):
                yield from zip(batch, self._answer(network, batch), strict=True)

    def close(self) -> None:
        """Frees the weights, unless the model was passed in by the caller."""
        if self._loaded is None and self._network is not None:
            self._network = None
            free_memory()

    # --- loading ----------------------------------------------------------------------------------

    def _write_files(self, network: Any, tokenizer: Any) -> Checkpoint:
        """The small files of a loaded pair in a temporary folder, which is deleted with this
        object."""
        self._folder = TemporaryDirectory(prefix="rulerkit-loaded-")
        folder = Path(self._folder.name)
        tokenizer.save_pretrained(folder)
        network.config.to_json_file(folder / "config.json")
        network.generation_config.to_json_file(folder / "generation_config.json")
        return Checkpoint(self.name, str(folder))

    def device(self) -> str:
        """`cpu`, `mps`, `cuda:0`, ... or `spread`."""
        if self._loaded:
            return str(self._network.device)
        device, num_gpus = str(self.spec.get("device", "auto")), torch_module().cuda.device_count()
        if "max_memory" in self.spec:
            return "spread"
        if device == "auto":
            device = "cuda" if num_gpus else "cpu"
        if device in ("cpu", "mps"):
            return device
        number = int(device.partition(":")[2] or 0)
        if number >= num_gpus:
            raise UserError(
                f"model {self.name}: device {device}: this machine has {num_gpus} GPUs; use cpu or "
                "auto"
            )
        return "spread" if device == "spread" else f"cuda:{number}"

    def _load(self) -> Any:
        """The network on its device, loaded at first use."""
        if self._network is None:
            with loading(self.name, self.spec["path"]):
                network, report = self._from_pretrained(self.device())
            if missing := sorted(report["missing_keys"]):
                raise UserError(
                    f"model {self.name}: {self.spec['path']} lacks {len(missing)} weights of the "
                    f"model, such as {missing[0]}"
                )
            self._network = network
        if "prefill_chunk_size" in self.spec and _is_recurrent(self._network):
            raise UserError(
                f"model {self.name}: with prefill_chunk_size, recurrent models "
                f"({self._network.config.model_type}) may "
                "answer differently in transformers: leave it out"
            )
        return self._network

    def _refuse_modifiers(self, target: str) -> None:
        for key in self.modifiers:
            if key in self.spec:
                raise UserError(
                    f"model {self.name}: {key} does not apply to {target}: leave it out"
                )

    def _from_pretrained(self, device: str) -> Any:
        """The network and transformers' report of weights that are missing from the files."""
        options: JSON = {"dtype": self.dtype(), "output_loading_info": True}
        if device != "cpu":
            options["device_map"] = "auto" if device == "spread" else device
        options |= {
            key: self.spec[key] for key in ("max_memory", "attn_implementation") if key in self.spec
        }
        if quantization := self.spec.get("quantization"):
            if quantization == "bitsandbytes":
                quantization = {"load_in_4bit": True}
            elif isinstance(quantization, str):
                quantization = {"quant_method": quantization}
            options["quantization_config"] = quantization
        path = str(self.checkpoint.folder or self.checkpoint.path)
        source = {
            "revision": self.checkpoint.commit or "main",
            "trust_remote_code": self.spec.get("trust_remote_code", False),
        }
        if is_mamba_ssm(self.checkpoint.config):
            self._refuse_modifiers("a checkpoint in mamba_ssm's layout")
            options |= mamba_ssm_options(self.checkpoint)
        elif "hf_overrides" in self.spec:
            config = _transformers().AutoConfig.from_pretrained(path, **source)
            options["config"] = type(config).from_dict(self.config)
        return _transformers().AutoModelForCausalLM.from_pretrained(path, **source, **options)

    # --- batches ----------------------------------------------------------------------------------

    def _batch_size(self, network: Any, longest: Example) -> int:
        """The spec's, else 1 for long examples and 8 for others; at most what fitted after memory
        ran out."""
        if network.config.model_type == "rwkv":
            return 1  # transformers' RWKV-4 mixes the rows of a batch
        size: int = self.spec.get("batch_size", 1 if longest.length >= ONE_BY_ONE else BATCH_SIZE)
        return min(size, self._most_per_batch)

    def _batches(self, network: Any, window: list[Example]) -> Iterator[list[Example]]:
        """The examples, longest first, in batches; a batch of a recurrent model has prompts of one
        length."""
        queue, recurrent = sorted(window, key=lambda e: -e.num_tokens), _is_recurrent(network)
        while queue:
            longest = queue[0]
            batch = queue[: self._batch_size(network, longest)]
            if recurrent:
                batch = [example for example in batch if example.num_tokens == longest.num_tokens]
            yield batch
            queue = queue[len(batch) :]

    # --- answering --------------------------------------------------------------------------------

    def _answer(self, network: Any, batch: list[Example]) -> list[Answer]:
        """The answers of a batch; when memory runs out, of its halves."""
        try:
            return self._generate(network, batch)
        except RuntimeError as error:
            # a CPU allocation fails with a plain RuntimeError
            if not isinstance(
                error, torch_module().OutOfMemoryError
            ) and "DefaultCPUAllocator" not in str(error):
                raise
            failure = first_line(error)
        free_memory()  # outside the except clause, whose traceback holds the tensors
        if len(batch) == 1:
            raise UserError(
                f"model {self.name}: out of memory at a single prompt of {batch[0].num_tokens} "
                "tokens on "
                f"{network.device} ({failure}): set `prefill_chunk_size` (such as 2048), or use a "
                "larger GPU, several "
                "(`device: spread`), a smaller `dtype` or a shorter length; answers so far stay"
            )
        self._most_per_batch = half = (len(batch) + 1) // 2
        return self._answer(network, batch[:half]) + self._answer(network, batch[half:])

    def _generate(self, network: Any, batch: list[Example]) -> list[Answer]:
        torch = torch_module()
        pad = self.stop_ids[0] if self.stop_ids else 0
        pad_sequence = partial(
            torch.nn.utils.rnn.pad_sequence, batch_first=True, padding_side="left"
        )
        rows = [torch.from_numpy(example.ids).long() for example in batch]
        ids = pad_sequence(rows, padding_value=pad)
        mask = pad_sequence([torch.ones_like(row) for row in rows])
        width, chunk = ids.shape[1], self.spec.get("prefill_chunk_size")
        before, training = network.generation_config, network.training
        # in place of the checkpoint's generation_config.json, which may add sampling or penalties
        network.generation_config = _transformers().GenerationConfig(
            do_sample=False,
            max_new_tokens=max(self.most_tokens(example) for example in batch),
            eos_token_id=self.stop_ids or None,
            pad_token_id=pad,
            prefill_chunk_size=chunk if chunk and chunk < width else None,
        )
        network.eval()
        try:
            out = network.generate(
                input_ids=ids.to(network.device), attention_mask=mask.to(network.device)
            )
        finally:
            network.generation_config = before
            network.train(training)
        new = out[:, width:].tolist()
        return [
            self.read_ids(row[: self.most_tokens(example)])
            for row, example in zip(new, batch, strict=True)
        ]


def _is_recurrent(network: Any) -> bool:
    """Whether a state, not only keys and values, carries the prompt; transformers does not mark all
    such models."""
    layers = getattr(network.config.get_text_config(), "layer_types", None) or ()
    return getattr(network, "_is_stateful", False) or "linear_attention" in layers


def _transformers() -> Any:
    """The transformers library; imported by name because mypy would follow an import statement into
    it."""
    return import_module("transformers")

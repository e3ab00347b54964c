"""Checkpoints run by Hugging Face transformers: any causal language model, on a CPU or a GPU, in
batches; greedily, unless `sampling` says otherwise.

The model receives the token ids of an example, padded on the left. Answers must not depend on the
batch. Recurrent models do not all exclude padding from their state, so they only batch prompts of
equal length.
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from rulerkit.common.errors import UserError, first_line
from rulerkit.common.gpus import free_memory, gpu_name, loading, needed, torch_module
from rulerkit.common.json_text import digest
from rulerkit.common.paths import cache_dir
from rulerkit.common.progress import in_notebook
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.inference.checkpoint import Checkpoint, CheckpointEngine
from rulerkit.inference.functions import BATCH_SIZE, version_of
from rulerkit.inference.model import Answer, Answers, Failure

READ_AHEAD = 32  # examples among which batches are formed
ONE_BY_ONE = 16384  # tokens of a length from which on examples are answered so by default


class Transformers(CheckpointEngine):
    """A checkpoint in a folder or on the hub, loaded at the first answer; or `loaded`, a (model,
    tokenizer) pair."""

    def __init__(self, spec: Spec, loaded: tuple[Any, Any] | None = None) -> None:
        super().__init__(spec)
        self._loaded = loaded
        self._network: Any = loaded[0] if loaded else None
        self._most_per_batch = sys.maxsize  # lowered when a batch does not fit

        # A model that the caller loaded is described by its own small files.
        if loaded:
            unused = [*self.given(("hf_overrides", "load_args"))]
            if unused:
                raise UserError(
                    f"model {self.name}: {unused[0]} does not apply to a model that is loaded "
                    "already: leave it out"
                )
            self.checkpoint = Checkpoint(self.name, str(_small_files(*loaded)))
            self._version = version_of(spec, uuid4().hex[:8])

    def identity(self) -> JSON:
        """As of any checkpoint; of a loaded model its class, its dtype and its `version`."""
        if not self._loaded:
            return super().identity() | self.given(("version",))
        state = "" if "version" in self.spec else f"-{_state_of(self._network)}"
        return {
            "engine": "transformers",
            "loaded": type(self._network).__name__,
            "dtype": str(self._network.dtype).removeprefix("torch."),
            **self.given(("sampling",)),
            "version": f"{self._version}{state}",
        }

    def environment(self) -> JSON:
        """The device and its name, and the path as given."""
        device = self.device()
        gpu = gpu_name(device.replace("spread", "cuda"))
        return {"gpu": gpu, "device": device, "path": self.spec.get("path")}

    def answer(self, examples: Iterable[Example]) -> Answers:
        """Reads up to `READ_AHEAD` examples ahead and batches those of similar length."""
        source = iter(examples)
        while window := list(islice(source, READ_AHEAD)):
            for example in window:
                self.check_fits(example)
            network = self.load()
            window.sort(key=lambda example: -example.num_tokens)
            while window:
                batch = self._next_batch(network, window)
                yield from zip(batch, self._answer(network, batch), strict=True)
                del window[: len(batch)]

    def close(self) -> None:
        """Frees the weights, unless the model was passed in by the caller."""
        if self._loaded is None and self._network is not None:
            self._network = None
            free_memory()

    # --- loading ----------------------------------------------------------------------------------

    def device(self) -> str:
        """`cpu`, `mps`, `cuda`, `cuda:1`, ... or `spread`."""
        if self._loaded:
            return str(self._network.device)
        return str(self.spec["device"]) if "device" in self.spec else super().device()

    def load(self) -> Any:
        """The network on its device, loaded at first use."""
        if self._network is not None:
            return self._network
        self.checkpoint.check_weights()
        with loading(self.name, self.spec["path"], self.spec.get("hf_overrides")):
            network, report = self._from_pretrained()

        # transformers fills missing weights with random numbers, and only logs it.
        missing = sorted(report["missing_keys"])
        if missing:
            raise UserError(
                f"model {self.name}: {self.spec['path']} lacks {len(missing)} weights of the "
                f"model, such as {missing[0]}"
            )
        self._network = network
        return network

    def _from_pretrained(self) -> Any:
        """The network and transformers' report of weights that are missing from the files."""
        library, device = needed("transformers", "transformers"), self.device()
        if in_notebook():
            # A saved notebook cannot show a widget again.
            library.utils.logging.disable_progress_bar()
        options: JSON = {
            "dtype": self.dtype(),
            "output_loading_info": True,
            "revision": self.checkpoint.commit or "main",
            "trust_remote_code": self.spec.get("trust_remote_code", False),
            **self.spec.get("hf_overrides", {}),
            **self.spec.get("load_args", {}),
        }

        # Weights go straight to the GPU, without a copy in the memory of the CPU.
        if device != "cpu":
            options["device_map"] = "auto" if device == "spread" else device

        path = str(self.checkpoint.folder or self.checkpoint.path)
        return library.AutoModelForCausalLM.from_pretrained(path, **options)

    # --- answering --------------------------------------------------------------------------------

    def _next_batch(self, network: Any, window: list[Example]) -> list[Example]:
        """The first examples, which are the longest: as many as the spec says, else 1 of long ones
        and 8 of others; at most what fitted after memory ran out."""
        # Padding costs as much as tokens do, and a long prompt fills the GPU alone.
        longest = window[0]
        size = self.spec.get("batch_size", 1 if longest.length >= ONE_BY_ONE else BATCH_SIZE)
        # transformers' RWKV-4 mixes the rows of a batch; what is drawn has a seed of its own.
        if network.config.model_type == "rwkv" or "seed" in self.sampling(longest):
            size = 1
        batch = window[: min(size, self._most_per_batch)]

        # Padding would be read into the state of a recurrent model. transformers does not mark all
        # such models, and of mixed ones only some layers.
        layers = getattr(network.config.get_text_config(), "layer_types", None) or ()
        if getattr(network, "_is_stateful", False) or "linear_attention" in layers:
            batch = [example for example in batch if example.num_tokens == longest.num_tokens]
        return batch

    def _answer(self, network: Any, batch: list[Example]) -> list[Answer | Failure]:
        """The answers of a batch; when memory runs out, of its halves."""
        torch = torch_module()
        try:
            return [*self._generate(network, batch)]
        except RuntimeError as error:
            # A CPU allocation fails with a plain RuntimeError.
            is_cpu = "DefaultCPUAllocator" in str(error)
            if not is_cpu and not isinstance(error, torch.OutOfMemoryError):
                raise
            failure = first_line(error)
        free_memory()  # outside the except clause, whose traceback holds the tensors
        if len(batch) == 1:
            raise UserError(
                f"model {self.name}: out of memory at a single prompt of {batch[0].num_tokens} "
                f"tokens on {network.device} ({failure}): use a larger GPU, several "
                "(`device: spread`), a smaller `dtype` or a shorter length; answers so far stay"
            )

        # What did not fit once is not tried again in this run.
        self._most_per_batch = half = (len(batch) + 1) // 2
        return self._answer(network, batch[:half]) + self._answer(network, batch[half:])

    def _generate(self, network: Any, batch: list[Example]) -> list[Answer]:
        torch = torch_module()
        limits = [self.most_tokens(example) for example in batch]
        prompts = [torch.from_numpy(example.ids).long() for example in batch]
        masks = [torch.ones_like(prompt) for prompt in prompts]
        pad = (self.stop_ids or [0])[0]
        pad_left = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True, padding_side="left")

        # Answers begin behind the prompt, so rows are filled up on the left.
        ids, mask = pad_left(prompts, padding_value=pad), pad_left(masks)
        width = ids.shape[1]
        before, training = network.generation_config, network.training

        # Greedy unless the model's file says otherwise.
        settings: JSON = {"do_sample": False}
        sampling = self.sampling(batch[0])
        if "seed" in sampling:
            torch.manual_seed(sampling.pop("seed"))
            settings = {"do_sample": True, "top_k": 0, **sampling}
        # in place of the checkpoint's generation_config.json, which may add sampling or penalties
        library = needed("transformers", "transformers")
        network.generation_config = library.GenerationConfig(
            **settings,
            max_new_tokens=max(limits),
            eos_token_id=self.stop_ids or None,
            pad_token_id=pad,
        )
        network.eval()
        try:
            place = network.device
            out = network.generate(input_ids=ids.to(place), attention_mask=mask.to(place))
        finally:
            network.generation_config = before
            network.train(training)

        # Each answer is cut at its own limit: the batch ran to the longest one.
        rows = out[:, width:].tolist()
        return [self.read_ids(row[:limit]) for row, limit in zip(rows, limits, strict=True)]


def _small_files(network: Any, tokenizer: Any) -> Path:
    """A folder of the cache, named after its content, with the small files of a loaded model. It
    stays, because records name it as the tokenizer."""
    # The folder is written under another name and renamed, so that two processes that
    # load the same model do not read half a file.
    place = cache_dir() / "loaded"
    place.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=place) as made:
        tokenizer.save_pretrained(made)
        network.config.to_json_file(f"{made}/config.json")
        network.generation_config.to_json_file(f"{made}/generation_config.json")
        files = sorted(Path(made).glob("*.*"))
        folder = place / digest(b"".join([file.read_bytes() for file in files]))
        with suppress(OSError):  # it is there already
            Path(made).rename(folder)
    return folder


def _state_of(network: Any) -> str:
    """A digest that is another one when weights were changed in place, or layers replaced; within
    one process."""
    parts: list[tuple[object, int]] = []
    for layer in network.modules():
        parts.append((type(layer).__qualname__, id(vars(layer).get("forward"))))
    for weight in network.parameters():
        parts.append((id(weight), weight._version))
    return digest(str(parts))[:8]

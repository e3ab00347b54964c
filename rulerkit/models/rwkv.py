"""RWKV in the layout of its authors, a .pth file, run by the `rwkv` package on a CPU or a GPU, greedily.

One prompt at a time, for the package knows no batches. A prompt is read a few hundred tokens at a time and only the state
is handed on, so that memory does not grow with the length, and no length is too long.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.models import Answer, Engine
from rulerkit.models.checkpoints import first_line
from rulerkit.models.devices import free, torch_module
from rulerkit.models.spec import Key, text, whole
from rulerkit.paths import home, resolve
from rulerkit.tokenizers import Tokenizer, load_tokenizer

VOCABULARY = "rwkv_vocab_v20230424"  # of all World models; it comes with the package
CHUNK = 512
END = 0  # the token that ends a text, in the World vocabulary and in the one of the Pile models before it
_EDGE = 1 << 20  # bytes read at either end of the weights for the fingerprint
_PART = r"(cuda(:\d+)?|cpu|mps) (fp16|fp32|bf16)(i8)?( \*\d+\+?)?"
_FAILURES = (OSError, RuntimeError, UnpicklingError, EOFError, KeyError, ValueError)


def strategy(value: Any) -> str:
    """Devices and number formats of the layers, as the package writes them."""
    if isinstance(value, str) and re.fullmatch(rf"{_PART}( *-> *{_PART})*", value):
        return value
    raise ValueError


KEYS = {
    "path": Key("a .pth file, a folder that holds it, or a hub id (org/name) with the `file`", text),
    "file": Key("the name of the .pth file in a folder or on the hub", text),
    "revision": Key("a branch, tag or commit of the hub", text),
    "strategy": Key(
        "devices and number formats, such as `cpu fp32`, `cuda bf16` or `cuda fp16 *20 -> cpu fp32`", strategy
    ),
    "prefill_chunk_size": Key(f"a whole number of tokens (default: {CHUNK})", whole),
}


class RWKV(Engine):
    """The weights in one .pth file, here or on the hub, loaded at the first answer."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        if "path" not in spec:
            raise UserError(f"model {self.name}: `path` is missing; it takes {KEYS['path'].help}")
        self._network: Any = None
        self._local = self._find()

    def identity(self) -> dict[str, Any]:
        """Hub id, file and commit, or the fingerprint of a file; and the number formats of its layers."""
        formats = "+".join(sorted(set(re.findall(r"[fb][pf]\d+(?:i8)?", self._strategy))))
        if self._local:
            return {"engine": "rwkv", "fingerprint": self._fingerprint(), "dtype": formats}
        commit = self._from_hub(dry_run=True).commit_hash
        hub = {"path": self.spec["path"], "file": self.spec["file"], "revision": commit}
        return {"engine": "rwkv", **hub, "dtype": formats}

    def environment(self) -> dict[str, Any]:
        """Versions, the GPU's name, and where the file lies."""
        from importlib.metadata import version

        self._need_package()
        torch = torch_module()
        gpu = torch.cuda.get_device_name(0) if "cuda" in self._strategy and torch.cuda.is_available() else None
        packages = {name: version(name) for name in ("torch", "rwkv")}
        return {"packages": packages, "gpu": gpu, "strategy": self._strategy, "path": self.spec["path"]}

    def tokenizer(self) -> Tokenizer:
        """The spec's, else the World vocabulary, which comes with the package."""
        if "tokenizer" in self.spec:
            return super().tokenizer()
        folder = self._need_package()
        return replace(load_tokenizer(str(folder / f"{VOCABULARY}.txt")), name=VOCABULARY)

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """One after the other; greedy."""
        for example in examples:
            yield example, self._answer(self._load(), example)

    def close(self) -> None:
        """Frees the weights."""
        if self._network is not None:
            self._network = None
            free()

    def _answer(self, network: Any, example: Example) -> Answer:
        prompt, size = example.ids.tolist(), int(self.spec.get("prefill_chunk_size", CHUNK))
        logits = state = None
        for at in range(0, len(prompt), size):
            logits, state = network.forward(prompt[at : at + size], state)
        written: list[int] = []
        most, reason = self.most_tokens(example), "length"
        while len(written) < most:
            token = int(logits.argmax())  # type: ignore[union-attr]
            if token == END:
                reason = "stop"
                break
            written.append(token)
            if len(written) < most:
                logits, state = network.forward([token], state)
        return Answer(self.prompt_format.tokenizer.decode(written), reason, len(written))

    # --- loading ------------------------------------------------------------------------------------------------------

    def _load(self) -> Any:
        """The network, loaded at first use."""
        if self._network is not None:
            return self._network
        self._need_package()
        torch = torch_module()
        path = self._local or Path(self._from_hub())
        try:
            weights = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            if "blocks.0.att.r_k" in weights:
                raise UserError(f"model {self.name}: {path.name} is an RWKV-7; this engine runs versions 4, 5 and 6")
            if "blocks.0.att.key.weight" not in weights:
                raise UserError(f"model {self.name}: {path} holds no RWKV weights: blocks.0.att.key.weight is missing")
            del weights
            self._network = _network_class()(model=str(path), strategy=self._strategy, verbose=False)
        except torch.OutOfMemoryError as error:
            raise UserError(
                f"model {self.name}: its weights do not fit: use a larger GPU, or leave layers to the CPU, such as "
                "`strategy: cuda fp16 *20 -> cpu fp32`"
            ) from error
        except _FAILURES as error:
            raise UserError(
                f"model {self.name}: {path} cannot be loaded as RWKV weights: {first_line(error)}"
            ) from error
        return self._network

    @cached_property
    def _strategy(self) -> str:
        """The spec's, else half precision on the GPU where there is one."""
        if "strategy" in self.spec:
            return str(self.spec["strategy"])
        return "cuda fp16" if torch_module().cuda.is_available() else "cpu fp32"

    def _need_package(self) -> Path:
        """The folder of the rwkv package."""
        found = find_spec("rwkv")
        if found is None or not found.submodule_search_locations:
            raise UserError(f"model {self.name}: the rwkv engine needs the rwkv package: pip install 'rulerkit[rwkv]'")
        return Path(found.submodule_search_locations[0])

    def _find(self) -> Path | None:
        """The file on this machine; None for one of the hub."""
        path, file = str(self.spec["path"]), self.spec.get("file")
        place = resolve(path)
        if place.is_file():
            return place
        if place.is_dir():
            found = [place / file] if file else sorted(place.glob("*.pth"))
            if len(found) == 1 and found[0].is_file():
                return found[0]
            names = ", ".join(p.name for p in sorted(place.glob("*.pth"))) or "none"
            raise UserError(f"model {self.name}: name the `file` in the folder {place}; .pth files there: {names}")
        if (
            not re.fullmatch(r"[\w.-]+/[\w.-]+", path)
            or path.endswith(".pth")
            or (home() / path.split("/")[0]).is_dir()
        ):
            raise UserError(f"model {self.name}: no file or folder {place}; `path` takes {KEYS['path'].help}")
        if not file:
            raise UserError(f"model {self.name}: {path} is a hub id: name the .pth file in it with `file:`")
        return None

    def _from_hub(self, dry_run: bool = False) -> Any:
        """The file's path in the hub's cache, downloaded where needed; or, in a dry run, what is known of it."""
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HFValidationError, HTTPError  # type: ignore[attr-defined]  # that of the httpx it uses

        path, file = self.spec["path"], self.spec["file"]
        try:
            return hf_hub_download(path, file, revision=self.spec.get("revision"), dry_run=dry_run)
        except (HTTPError, HFValidationError, OSError) as error:
            raise UserError(
                f"model {self.name}: {file} of {path} is neither in the hub's local cache nor to be had from the hub "
                f"({first_line(error)}); download it first (hf download {path} {file}) and name the file as `path`"
            ) from error

    def _fingerprint(self) -> str:
        """16 hex digits over the size and the first and last MiB of the file; a moved or renamed file keeps them."""
        assert self._local
        size = self._local.stat().st_size
        with self._local.open("rb") as file:
            first = file.read(_EDGE)
            file.seek(max(0, size - _EDGE))
            return hashlib.sha256(f"{size}\n".encode() + first + file.read(_EDGE)).hexdigest()[:16]


def _network_class() -> Any:
    """The package's model. Importing it changes settings of torch, which are put back for the engines after this one."""
    os.environ |= {"RWKV_JIT_ON": "1", "RWKV_CUDA_ON": "0"}  # read at import; RWKV_CUDA_ON=1 calls a CUDA compiler
    matmul, cudnn = torch_module().backends.cuda.matmul, torch_module().backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    try:
        return import_module("rwkv.model").RWKV
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before

"""RWKV 4 to 7 in its authors' own layout, a .pth file, run by the `rwkv` package.

One prompt at a time, because the package has no batches. A prompt is read in chunks that hand on
only the state, so memory does not grow with the length.
"""

import os
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.common.gpus import free_memory, gpu_name, loading, needed, torch_module
from rulerkit.common.hub import download, is_hub_id
from rulerkit.common.json_text import digest
from rulerkit.common.paths import package_version, resolve
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.generation.tokenizers import Tokenizer, load_tokenizer
from rulerkit.inference.checkpoint import file_slices
from rulerkit.inference.model import Answer, Answers, Model

VOCABULARY = "rwkv_vocab_v20230424"  # of all World models; the package includes it
CHUNK = 512  # tokens of a prompt at a time: the network keeps the activations of one call
END = 0  # ends a text in the World vocabulary and in the older one of the Pile models


class RWKV(Model):
    """The weights in one .pth file, local or on the hub, loaded at the first answer."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        self._network: Any = None
        place = resolve(spec["path"])
        self._local = place if os.path.isfile(place) else None
        # Else a file of the hub: org/name/FILE.pth.
        self._repository, _, self._file = spec["path"].rpartition("/")
        on_hub = self._file.endswith(".pth") and is_hub_id(self._repository)
        if not self._local and not on_hub:
            raise UserError(
                f"model {self.name}: no file {place}; `path` takes a .pth file, here or on the hub "
                "(org/name/FILE.pth)"
            )

    def identity(self) -> JSON:
        """Hub id, file and commit, or the fingerprint of a file; and the number format."""
        # The path of a local file says nothing about its content.
        if self._local:
            where = {"fingerprint": digest(file_slices(self._local))}
        else:
            commit = self._download("config.json").name  # downloads no weights
            where = {"path": self.spec["path"], "revision": commit}
        return {"engine": "rwkv", **where, "dtype": self._strategy.split()[1]}

    def environment(self) -> JSON:
        """The version of the rwkv package, the GPU's name, and the path as given."""
        packages = {"rwkv": package_version("rwkv")}
        return {"packages": packages, "gpu": gpu_name("cuda"), "path": self.spec["path"]}

    def tokenizer(self) -> Tokenizer:
        """The spec's tokenizer, else the World vocabulary of the package."""
        if "tokenizer" in self.spec:
            return super().tokenizer()
        file = f"{needed('rwkv', 'rwkv').__path__[0]}/{VOCABULARY}.txt"
        return replace(load_tokenizer(file), name=VOCABULARY)

    def answer(self, examples: Iterable[Example]) -> Answers:
        """One example after the other; greedy."""
        for example in examples:
            network, prompt = self._load(), example.ids.tolist()
            most = self.most_tokens(example)
            ids: list[int] = []
            logits: Any = None
            state: Any = None
            for start in range(0, len(prompt), CHUNK):
                logits, state = network.forward(prompt[start : start + CHUNK], state)

            # Greedy, token by token, until the text ends or the room is used up.
            while len(ids) < most and (token := int(logits.argmax())) != END:
                ids.append(token)
                logits, state = network.forward([token], state)
            finish = "stop" if len(ids) < most else "length"
            yield example, Answer(self.prompt_format.tokenizer.decode(ids), finish, len(ids))

    def close(self) -> None:
        """Frees the weights."""
        if self._network is not None:
            self._network = None
            free_memory()

    # --- loading ----------------------------------------------------------------------------------

    def _load(self) -> Any:
        """The network, loaded at first use."""
        if self._network is not None:
            return self._network
        path = self._local or self._download(self._file) / self._file
        needed("rwkv", "rwkv")
        # the package prints what it loads
        with loading(self.name, path), redirect_stdout(StringIO()):
            # Version 7 has a weight that no older version has.
            names = torch_module().load(path, map_location="cpu", weights_only=True, mmap=True)
            network_class = _network_class("blocks.0.att.r_k" in names)
            # The class appends .pth to the name: version 7 always, the older versions where it is
            # missing.
            self._network = network_class(str(path.with_suffix("")), self._strategy)
        return self._network

    @cached_property
    def _strategy(self) -> str:
        """Device and number format: half precision on the GPU if there is one."""
        return "cuda fp16" if torch_module().cuda.is_available() else "cpu fp32"

    def _download(self, file: str) -> Path:
        """The folder in the hub's cache, named after the commit, with a file of the repository."""
        who, revision = f"model {self.name}", self.spec.get("revision")
        return download(who, self._repository, revision, [file])


def _network_class(version_7: bool) -> Any:
    """The package's model class.

    An environment variable decides, when the package's module is executed, whether it defines
    version 7 or the older ones, and version 7 keeps its device and dtype in globals of the module.
    So each model gets a fresh copy of the module. It also changes backend settings of torch, which
    are restored for the engines that run later.
    """
    # RWKV_CUDA_ON=1 would call a CUDA compiler
    os.environ |= {
        "RWKV_JIT_ON": "1",
        "RWKV_CUDA_ON": "0",
        "RWKV_V7_ON": str(int(version_7)),
        "RWKV_DE_VERSION": "0",
    }
    sys.modules.pop("rwkv.model", None)

    # The settings of torch before, so that other engines of this process keep theirs.
    matmul, cudnn = (torch_module().backends.cuda.matmul, torch_module().backends.cudnn)
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    try:
        return import_module("rwkv.model").RWKV
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before

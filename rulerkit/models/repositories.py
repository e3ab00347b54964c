"""The files of a model or a tokenizer, on the hub or in a folder: which are read, which of them are on this disk.

Of several formats of the same weights only one is read, so only one is fetched. Looking at the disk sends no request.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.models.checkpoints import first_line
from rulerkit.tokenizers import IN_FOLDER, ON_HUB

_CONFIGURATION = ("config.json", "generation_config.json")
_SMALL = ("*.json", "*token*", "*.model", "*.tiktoken", "*.jinja", "*.txt", "*.py")
"""What is fetched beside the weights."""
_WEIGHTS = (
    ("model.safetensors.index.json", "model.safetensors", "*.safetensors"),
    ("pytorch_model.bin.index.json", "pytorch_model.bin", "*.bin"),
    ("consolidated.safetensors.index.json", "consolidated.safetensors", "consolidated*.safetensors"),
    ("", "", "*.pt"),
    ("", "", "*.pth"),
)
"""The formats of weights, of which the first that is there is read: the list of shards, the single file, any other."""
_NO_WEIGHTS = r"(training_args|optimizer|scheduler|scaler|adapter).*"
_SHARD = r"(.+-)(\d+)-of-(\d+)(\..+)"


@dataclass(frozen=True)
class Folder:
    """A checkpoint in a folder; `vocabulary`: its own tokenizer is used, `code`: its own code is run."""

    path: Path
    vocabulary: bool
    code: bool

    @property
    def title(self) -> str:
        """The folder."""
        return f"folder {self.path}"

    def missing(self) -> list[str]:
        """What should be in it, and the code elsewhere that it calls for."""
        lacking = _lacking(self.path, self.vocabulary)
        own = [f"{self.title}: {_listed(lacking)}"] if lacking else []
        return own + [line for each in _code(self.path, self.code) for line in each.missing()]

    def fetch(self) -> Path:
        """The code alone can be fetched."""
        if lacking := _lacking(self.path, self.vocabulary):
            raise UserError(f"{self.title}: {_listed(lacking)}: a folder cannot be fetched; copy it again, whole")
        for each in _code(self.path, self.code):
            each.fetch()
        return self.path


@dataclass(frozen=True)
class Repository:
    """A model of the hub, at a revision; or its tokenizer alone (no `weights`), or a single `file` of it."""

    path: str
    revision: str | None = None
    weights: bool = True
    vocabulary: bool = True
    code: bool = False
    file: str | None = None

    @property
    def title(self) -> str:
        """Its hub id."""
        kind = f"{self.file} of" if self.file else "model" if self.weights else "tokenizer"
        return f"{kind} {self.path}{f' at {self.revision}' if self.revision else ''} (hub id)"

    def missing(self) -> list[str]:
        """Its id where nothing is in the hub's cache, else what is not; and code elsewhere that it calls for."""
        from huggingface_hub.errors import LocalEntryNotFoundError

        try:
            folder = self._snapshot(local_files_only=True, ignore_patterns="*")
        except (LocalEntryNotFoundError, ValueError):  # ValueError: no valid id
            return [self.title]
        if self.file:
            return [] if (folder / self.file).is_file() else [self.title]
        lacking = _lacking(folder, self.vocabulary, self.weights)
        read = [*ON_HUB, *(_CONFIGURATION * self.weights)]
        try:  # the hub's client remembers which files there are
            self._snapshot(local_files_only=True, allow_patterns=[*read, *(["*.py"] * self.code)])
        except LocalEntryNotFoundError:
            lacking = lacking or ["parts of its configuration or tokenizer"]
        own = [f"{self.title}: {_listed(lacking)}"] if lacking else []
        return own + [line for each in _code(folder, self.code) for line in each.missing()]

    def fetch(self) -> Path:
        """Its small files, and its weights in the one format that is read."""
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # that of the httpx it uses

        try:
            siblings = HfApi().model_info(self.path, revision=self.revision).siblings or []
            folder = self._snapshot(allow_patterns=self._wanted([each.rfilename for each in siblings]))
        except (HTTPError, OSError, RuntimeError, ValueError) as error:
            raise UserError(f"{self.title}: {_reason(self.path, error)}") from error
        for each in _code(folder, self.code):
            each.fetch()
        return folder

    def _wanted(self, names: list[str]) -> list[str]:
        if self.file:
            return [self.file, "*.py"]
        small = [name for name in names if any(fnmatch(name, pattern) for pattern in _SMALL)]
        return small + (_weights(names, self._shards) if self.weights else [])

    def _shards(self, index: str) -> list[str]:
        from huggingface_hub import hf_hub_download

        return _shards(Path(hf_hub_download(self.path, index, revision=self.revision)))

    def _snapshot(self, **how: Any) -> Path:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(self.path, revision=self.revision, **how))


def _lacking(folder: Path, vocabulary: bool, weights: bool = True) -> list[str]:
    """What a folder should hold and does not: files of its weights, or in words. Links to nothing are no files."""
    names = [path.name for path in folder.iterdir() if path.is_file()]
    needed = _weights(names, lambda index: _shards(folder / index)) if weights else []
    lacking = [name for name in (["config.json"] if weights else []) + needed if name not in names]
    if weights and not needed:
        lacking.append("weights")
    vocabularies = [n for n in names if n not in ("tokenizer_config.json", "special_tokens_map.json")]
    if vocabulary and not any(fnmatch(name, pattern) for name in vocabularies for pattern in IN_FOLDER):
        lacking.append("a tokenizer")
    return lacking


def _weights(names: list[str], shards: Callable[[str], list[str]]) -> list[str]:
    """The files of the weights that are read where these names are to be had, all shards of them; [] without any."""
    top = [name for name in names if "/" not in name and not re.fullmatch(_NO_WEIGHTS, name)]
    for index, single, other in _WEIGHTS:
        if index in top:
            return shards(index)
        if single in top:
            return [single]
        alike = [name for name in top if fnmatch(name, other) and name.startswith("consolidated") == (other[0] == "c")]
        if alike:
            return sorted({shard for name in alike for shard in _siblings(name)})
    return []


def _siblings(name: str) -> list[str]:
    """All shards of the set that a shard belongs to; another file alone."""
    if not (match := re.fullmatch(_SHARD, name)):
        return [name]
    stem, width, count, suffix = match[1], len(match[2]), match[3], match[4]
    return [f"{stem}{number:0{width}}-of-{count}{suffix}" for number in range(1, int(count) + 1)]


def _shards(index: Path) -> list[str]:
    """The weight files that an index names."""
    return sorted(set(_json(index).get("weight_map", {}).values()))


def _code(folder: Path, trusted: bool) -> Iterator[Repository]:
    """The code of other repositories that a config.json calls for, as fine-tuned models do."""
    config = folder / "config.json"
    named = _json(config).get("auto_map", {}).values() if trusted and config.is_file() else ()
    for path, _, name in (each.partition("--") for each in named if isinstance(each, str) and "--" in each):
        yield Repository(path, file=f"{name.partition('.')[0]}.py")


def _json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({first_line(error)}): delete it and fetch it again") from error


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:3])}{f' and {len(names) - 3} more' if names[3:] else ''} missing"


def _reason(path: str, error: Exception) -> str:
    """Why a repository cannot be had, and what to do."""
    from huggingface_hub import errors
    from huggingface_hub.constants import ENDPOINT

    page = f"{ENDPOINT}/{path}"
    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: accept its terms at {page}, log in with `hf auth login`, and fetch it again"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"there is no {page}, or it is private: correct its name, or log in with `hf auth login`"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no such revision: see {page}/commits"
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set: unset it to fetch, on a machine with a network"
    return f"it cannot be had from {ENDPOINT} ({first_line(error)}): fetch it again; whole files that came stay"

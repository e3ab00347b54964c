"""Jobs without a network: what models and corpora need on this disk, fetching it, and the
environment of such a job."""

import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import constants, get_cached_repo_tree, snapshot_download
from huggingface_hub.errors import (
    CachedRepoTreeNotFoundError,
    HFValidationError,
    LocalEntryNotFoundError,
)

from rulerkit.common.errors import UserError, listed
from rulerkit.common.hub import download
from rulerkit.common.paths import cache_dir, resolve
from rulerkit.common.settings import Spec
from rulerkit.generation import corpora as texts
from rulerkit.generation import downloads
from rulerkit.generation.tokenizers import (
    ON_HUB,
    encoding_by_name,
    is_complete,
    tiktoken_dir,
    tokenizer_kind,
    vocabulary_file,
)
from rulerkit.inference.model import load_model

OFFLINE = {
    "HF_HUB_OFFLINE": "1",  # huggingface_hub, transformers and vLLM read it
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""With these in its environment a process sends no request for a model."""

_SMALL = ("config.json", *ON_HUB, "*.json")
"""The files of a model beside its weights and its code."""
_NAME = r"(?!training_args|optimizer|scheduler|scaler|adapter|consolidated)[^/]+"
_WEIGHTS = (
    rf"{_NAME}\.safetensors",
    rf"{_NAME}\.bin",
    r"consolidated[^/]*\.safetensors",
    rf"{_NAME}\.(pt|pth)",
)
"""The formats of weights, of which the first that is there is read."""

_TIKTOKEN = "https://openaipublic.blob.core.windows.net/"
_TIKTOKEN_FILES = {
    "gpt2": ("gpt-2/encodings/main/vocab.bpe", "gpt-2/encodings/main/encoder.json"),
    "p50k_edit": ("encodings/p50k_base.tiktoken",),
    "o200k_harmony": ("encodings/o200k_base.tiktoken",),
}
"""The encodings whose files have other names than they."""


def missing_of(specs: Iterable[Spec], corpora: str = "builtin") -> list[str]:
    """A line for each thing that models and corpora (`builtin` or `original`) need and that is not
    on this disk.

    Sends no request. What the function of a `function` engine loads by itself is not known here.
    """
    lines: list[str] = []
    for resource in _resources(specs, corpora):
        lines += resource.missing()
    return list(dict.fromkeys(lines))


def fetch_all(specs: Iterable[Spec], corpora: str = "builtin") -> Iterator[tuple[str, str]]:
    """Download what models and corpora need and what is not there, one thing after the other.

    Yields for each `there`, `fetched` or `failed`, and a line that says what, and where or why.
    One failure does not stop the others. Complete files of an interrupted download are kept.
    """
    for resource in _resources(specs, corpora):
        try:
            if not resource.missing():
                yield "there", resource.title
                continue
            folder = resource.fetch()
            still_missing = resource.missing()
            if still_missing:
                line = f"{still_missing[0]} after the download: its repository does not have it"
                yield "failed", line
            else:
                yield "fetched", f"{resource.title}: {folder}"
        except UserError as error:
            yield "failed", str(error)


def offline() -> dict[str, str]:
    """The environment of a job: `OFFLINE`, and the caches that `missing_of` reads here."""
    places: dict[str, str | Path] = {
        "HF_HUB_CACHE": constants.HF_HUB_CACHE,
        "TIKTOKEN_CACHE_DIR": tiktoken_dir(),
        "RULERKIT_CACHE": cache_dir(),
        "RULERKIT_DATA": os.environ.get("RULERKIT_DATA", ""),
    }
    return OFFLINE | {name: os.path.abspath(place) for name, place in places.items() if place}


# --- resources ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Resource:
    """Something that has to be on this disk. An object of this class itself cannot be fetched;
    `title` says why."""

    title: str

    def missing(self) -> list[str]:
        """A line for each part that is not there."""
        return [self.title]

    def fetch(self) -> Path:
        """Download it, and return where it lies. Raises `UserError` where that fails."""
        raise UserError(f"{self.title}; this cannot be fetched")


@dataclass(frozen=True)
class HubFiles(Resource):
    """The files of a repository of the hub that match `patterns`, or a folder of such files.

    A pattern without `*` names a file that must be there. A model has `weights` besides; with
    `vocabulary` there must be a tokenizer.
    """

    path: str
    revision: str | None = None
    patterns: tuple[str, ...] = ON_HUB
    weights: bool = False
    vocabulary: bool = False

    def missing(self) -> list[str]:
        """A line that names the files which are not there."""
        folder = resolve(self.path)
        if not folder.is_dir():
            try:
                cached = snapshot_download(
                    self.path, revision=self.revision, local_files_only=True, ignore_patterns="*"
                )
                folder = Path(cached)
            except (LocalEntryNotFoundError, HFValidationError):
                return [self.title]

        names, weights = self._names(folder), self._weights(folder)
        wanted: list[str] = []
        for pattern in self.patterns:
            wanted += fnmatch.filter(names, pattern) if "*" in pattern else [pattern]
        wanted += weights
        lacking = [name for name in dict.fromkeys(wanted) if not (folder / name).is_file()]
        if self.weights and not weights:
            lacking.append("weights")
        if self.vocabulary and not is_complete(vocabulary_file(names)):
            lacking.append("a tokenizer (tokenizer.json)")
        return [f"{self.title}: {listed(lacking, 3)} missing"] if lacking else []

    def fetch(self) -> Path:
        """Download the small files, then the weights in one format."""
        if resolve(self.path).is_dir():
            raise UserError(
                f"{self.missing()[0]}: a folder cannot be fetched; copy it again, whole"
            )
        folder = download(self.title, self.path, self.revision, self.patterns)
        patterns = [*self.patterns, *self._weights(folder)]
        return download(self.title, self.path, folder.name, patterns)

    def _names(self, folder: Path) -> list[str]:
        """The files of the repository as the hub's client recorded them, else those that are in the
        folder."""
        with suppress(CachedRepoTreeNotFoundError, HFValidationError):
            return [file.path for file in get_cached_repo_tree(self.path, revision=folder.name)]
        return [path.name for path in folder.iterdir() if path.is_file()]

    def _weights(self, folder: Path) -> list[str]:
        """The weight files in the one format that is read, with all shards of a numbered set."""
        names = self._names(folder) if self.weights else []
        for form in _WEIGHTS:
            if files := [name for name in names if re.fullmatch(form, name)]:
                return sorted({shard for name in files for shard in _shards(name)})
        return []


def _shards(name: str) -> list[str]:
    """All files of the set that a numbered shard belongs to; another file alone."""
    if not (match := re.fullmatch(r"(.+-)(\d+)(-of-(\d+)\..+)", name)):
        return [name]
    first, number, rest, count = match.groups()
    return [f"{first}{n:0{len(number)}}{rest}" for n in range(1, int(count) + 1)]


@dataclass(frozen=True)
class Encoding(Resource):
    """A tiktoken encoding, whose files OpenAI serves."""

    name: str

    def missing(self) -> list[str]:
        """The title where a file is not in tiktoken's cache, which names files by a digest of their
        address."""
        files = _TIKTOKEN_FILES.get(self.name, (f"encodings/{self.name}.tiktoken",))
        names = (hashlib.sha1(f"{_TIKTOKEN}{file}".encode()).hexdigest() for file in files)
        is_there = all((tiktoken_dir() / name).is_file() for name in names)
        return [] if is_there else [self.title]

    def fetch(self) -> Path:
        """Through tiktoken, which compares checksums."""
        encoding_by_name(self.name)
        return tiktoken_dir()


@dataclass(frozen=True)
class OriginalCorpora(Resource):
    """The paper's essays and data sets."""

    title: str = "corpora: original"

    def missing(self) -> list[str]:
        """A line for each that is not there or cannot be read."""
        lines = []
        for name in texts.STAND_INS:
            try:
                if name in texts.HAYSTACKS:
                    texts.load_haystack(name)
                else:
                    texts.load_qa(name)
            except UserError as error:
                lines.append(str(error))
        return lines

    def fetch(self) -> Path:
        """From their owners' addresses."""
        downloads.fetch()
        return cache_dir()


def _resources(specs: Iterable[Spec], corpora: str) -> list[Resource]:
    """What models and corpora need, each thing once, in the order of the models."""
    resources = [resource for spec in specs for resource in _resources_of(spec)]
    if corpora == "original":
        resources.append(OriginalCorpora())
    return list(dict.fromkeys(resources))


def _resources_of(spec: Spec) -> Iterator[Resource]:
    path, revision = spec.get("path", ""), spec.get("revision")
    try:
        model: Any = load_model(spec)
        tokenizer = spec.get("tokenizer", "builtin")
        if model.engine == "openai":
            tokenizer = model.tokenizer_name()
        kind = tokenizer_kind(tokenizer)
    except UserError as error:
        # Such as a folder that is not there.
        yield Resource(str(error))
        return

    folder = resolve(path)
    at = f" at {revision}" if revision else ""
    title = f"folder {folder}" if folder.is_dir() else f"model {path}{at} (hub id)"
    if model.engine == "rwkv" and not folder.exists():
        yield HubFiles(title, path, revision, (spec["file"],))
    elif model.engine in ("transformers", "vllm"):
        code = ["*.py"] if spec.get("trust_remote_code") else []
        yield HubFiles(title, path, revision, (*_SMALL, *code), True, "tokenizer" not in spec)
    if kind == "tiktoken":
        yield Encoding(f"tokenizer {tokenizer} (tiktoken)", tokenizer)
    elif kind == "hub":
        yield HubFiles(f"tokenizer {tokenizer} (hub id)", tokenizer, vocabulary=True)

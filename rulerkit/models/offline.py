"""Nodes without a network: what models need is fetched beforehand, what is missing is named, jobs look nowhere else.

A spec needs a few things (a repository of the hub, a folder, a tiktoken encoding), and a study the corpora. Each tells what
of it is not on this disk and, where there is a network, gets it. `offline()` are the environment variables with which a
job reads them where they were put, and sends no request.
"""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rulerkit import corpora as texts
from rulerkit.errors import UserError
from rulerkit.models import load_model
from rulerkit.models.checkpoints import first_line
from rulerkit.models.repositories import Folder, Repository
from rulerkit.paths import cache_dir, resolve
from rulerkit.tokenizers.vocabularies import tiktoken_dir

OFFLINE = {
    "HF_HUB_OFFLINE": "1",  # heeded by huggingface_hub, transformers and vLLM
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""With these in its environment a process sends no request for a model, and waits for none."""

_TIKTOKEN = "https://openaipublic.blob.core.windows.net/"
_TIKTOKEN_FILES = {
    "gpt2": ("gpt-2/encodings/main/vocab.bpe", "gpt-2/encodings/main/encoder.json"),
    "p50k_edit": ("encodings/p50k_base.tiktoken",),
    "o200k_harmony": ("encodings/o200k_base.tiktoken",),
}
"""Encodings whose files are not called as they are."""


class Outcome(NamedTuple):
    """How fetching one thing went: `there` already, `fetched` or `failed`, and a line that says what, and where or why."""

    state: str
    line: str


def missing(spec: Mapping[str, Any]) -> list[str]:
    """A line for each thing that a model needs and that is not on this disk. Sends no request, loads nothing heavy.

    What the function of a `function` engine loads by itself is not known here.
    """
    return missing_of([spec])


def missing_of(specs: Iterable[Mapping[str, Any]], corpora: str = "builtin") -> list[str]:
    """`missing` for many models and for the corpora (`builtin` or `original`), each line once."""
    return list(dict.fromkeys(line for thing in _things(specs, corpora) for line in thing.missing()))


def fetch_all(specs: Iterable[Mapping[str, Any]], corpora: str = "builtin") -> Iterator[Outcome]:
    """Download what models and corpora need and what is not there, one thing after the other.

    A thing that cannot be had does not stop the others. Of a download that was cut, the files that came whole stay.
    """
    for thing in _things(specs, corpora):
        try:
            if not thing.missing():
                yield Outcome("there", thing.title)
                continue
            place = thing.fetch()
            left = thing.missing()
            if left:
                yield Outcome("failed", f"{left[0]} after it was fetched: it is not to be had there")
            else:
                yield Outcome("fetched", f"{thing.title}: {place}")
        except UserError as error:
            yield Outcome("failed", str(error))


def fetch_model(spec: Mapping[str, Any]) -> list[str]:
    """Download what one model needs; a line for each thing. Raises `UserError` for what cannot be had."""
    outcomes = list(fetch_all([spec]))
    if failed := [outcome.line for outcome in outcomes if outcome.state == "failed"]:
        raise UserError("; ".join(failed))
    return [outcome.line for outcome in outcomes]


def offline() -> dict[str, str]:
    """The environment of a job: `OFFLINE`, and where the caches lie that were looked into here."""
    from huggingface_hub.constants import HF_HUB_CACHE

    places: dict[str, str | Path | None] = {
        "HF_HUB_CACHE": HF_HUB_CACHE,
        "TIKTOKEN_CACHE_DIR": tiktoken_dir(),
        "RULERKIT_CACHE": cache_dir(),
        "RULERKIT_DATA": os.environ.get("RULERKIT_DATA"),
    }
    return OFFLINE | {name: str(Path(place).absolute()) for name, place in places.items() if place}


# --- what is needed ---------------------------------------------------------------------------------------------------


class Thing(Protocol):
    """Something that has to be on the disk."""

    @property
    def title(self) -> str:
        """What it is, as every line about it begins."""

    def missing(self) -> list[str]:
        """What of it is not there, a line each."""

    def fetch(self) -> Path:
        """Get it; where it lies. `UserError` where it cannot be had."""


def _things(specs: Iterable[Mapping[str, Any]], corpora: str) -> list[Thing]:
    """Each thing once, in the order of the models."""
    found = [thing for spec in specs for thing in _needs(spec)]
    return list(dict.fromkeys([*found, *([Originals()] if corpora == "original" else [])]))


def _needs(spec: Mapping[str, Any]) -> Iterator[Thing]:
    try:
        model: Any = load_model(spec)
        tokenizer = model.tokenizer_name() if model.engine == "openai" else spec.get("tokenizer", "builtin")
    except UserError as error:  # such as a folder that is not there
        yield Absent(str(error))
        return
    path, revision = spec.get("path", ""), spec.get("revision")
    if model.engine == "rwkv" and not resolve(path).exists():
        yield Repository(path, revision, file=spec["file"])
    elif model.engine in ("transformers", "vllm"):
        own, code, folder = "tokenizer" not in spec, bool(spec.get("trust_remote_code")), model.checkpoint.folder
        yield Folder(folder, own, code) if folder else Repository(path, revision, vocabulary=own, code=code)
    yield from _tokenizer(tokenizer)


def _tokenizer(name: str) -> Iterator[Thing]:
    """What a tokenizer's name stands for, as `load_tokenizer` reads it."""
    from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS

    if name == "builtin" or resolve(name.partition("#")[0]).exists():
        return
    if name in ENCODING_CONSTRUCTORS:
        yield Encoding(name)
    elif re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not resolve(name.partition("/")[0]).is_dir():
        yield Repository(name, weights=False)
    else:
        yield Absent(f"tokenizer {name}: there is no such file or folder")


@dataclass(frozen=True)
class Absent:
    """A folder or file that is not there, or a name that stands for nothing; `title` says it all."""

    title: str

    def missing(self) -> list[str]:
        """Itself."""
        return [self.title]

    def fetch(self) -> Path:
        """Only what is on the hub can be."""
        raise UserError(f"{self.title}; this cannot be fetched")


@dataclass(frozen=True)
class Encoding:
    """A tiktoken encoding, whose files OpenAI serves."""

    name: str

    @property
    def title(self) -> str:
        """Its name."""
        return f"tokenizer {self.name} (tiktoken)"

    def missing(self) -> list[str]:
        """Its name where a file is not in tiktoken's cache, which has files under a digest of their address."""
        files = _TIKTOKEN_FILES.get(self.name, (f"encodings/{self.name}.tiktoken",))
        kept = [tiktoken_dir() / hashlib.sha1(f"{_TIKTOKEN}{file}".encode()).hexdigest() for file in files]
        return [] if all(path.is_file() for path in kept) else [self.title]

    def fetch(self) -> Path:
        """Through tiktoken, which compares checksums."""
        from tiktoken_ext.openai_public import ENCODING_CONSTRUCTORS

        os.environ["TIKTOKEN_CACHE_DIR"] = str(tiktoken_dir())
        try:
            ENCODING_CONSTRUCTORS[self.name]()
        except (OSError, ValueError) as error:
            raise UserError(f"{self.title} cannot be had ({first_line(error)}): fetch it again") from error
        return tiktoken_dir()


@dataclass(frozen=True)
class Originals:
    """The paper's essays and data sets."""

    title: str = "corpora: original"

    def missing(self) -> list[str]:
        """A line for each that is not there or cannot be read."""
        lines = []
        for name in texts.STAND_INS:
            try:
                texts.load_haystack(name) if name in texts.HAYSTACKS else texts.load_qa(name)
            except UserError as error:
                lines.append(str(error))
        return lines

    def fetch(self) -> Path:
        """From their owners' addresses."""
        texts.fetch()
        return cache_dir()

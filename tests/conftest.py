"""What all tests share: the folder of real data, its vocabularies, and why a test is skipped
without it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rulerkit import corpora
from rulerkit.tokenizers import Tokenizer, load_tokenizer

VOCABULARIES = (
    "builtin",
    "llama-2",
    "llama-3",
    "llama-4",
    "qwen",
    "qwen2.5",
    "mistral",
    "gpt-neox",
    "rwkv",
    "openai",
    "deepseek-v4",
    "llama-3/tokenizer.model",
    "mistral/tokenizer.model.v1",
    "mistral/mistral_instruct_tokenizer_240216.model.v2",
    "mistral/mistral_instruct_tokenizer_240323.model.v3",
    "mistral/mistral_instruct_tokenizer_241114.model.v7",
    "openai/o200k_base.tiktoken",
)
"""`builtin`, the ten folders, and the files that no folder's name leads to."""


def real_data() -> Path | None:
    """The folder that RULERKIT_DATA names, in the layout of the README's section on data; None
    where it is unset."""
    folder = os.environ.get("RULERKIT_DATA")
    return Path(folder).expanduser().resolve() if folder else None


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of real data."""
    folder = real_data()
    if folder is None:
        pytest.skip("RULERKIT_DATA is not set: this test reads real corpora and vocabularies")
    if not (folder / "tokenizers").is_dir():
        pytest.skip(f"RULERKIT_DATA={folder} holds no tokenizers/")
    return folder


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No folder of real data, an empty cache of corpora, and nothing remembered from other tests."""
    monkeypatch.delenv("RULERKIT_DATA", raising=False)
    monkeypatch.setenv("RULERKIT_CACHE", str(tmp_path / "cache"))
    corpora.load_haystack.cache_clear()
    corpora.load_qa.cache_clear()
    yield tmp_path / "cache"
    corpora.load_haystack.cache_clear()
    corpora.load_qa.cache_clear()


QUICK = ("builtin", "llama-2", "qwen", "mistral", "gpt-neox", "rwkv")
"""One vocabulary of each kind; a contributor's run leaves out the others."""


@pytest.fixture(
    scope="session",
    params=[
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in VOCABULARIES
    ],
)
def vocabulary(request: pytest.FixtureRequest) -> Tokenizer:
    """Every vocabulary in turn, `builtin` among them."""
    if request.param == "builtin":
        return load_tokenizer("builtin")
    folder: Path = request.getfixturevalue("data")
    return load_tokenizer(str(folder / "tokenizers" / request.param))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    yield from mounted(tmp_path / "small", "size=64k")


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that cannot be written, also not by root."""
    yield from mounted(tmp_path / "read-only", "ro,size=64k")


def mounted(place: Path, options: str) -> Iterator[Path]:
    """A file system of its own at a place, which is gone afterwards."""
    place.mkdir()
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"a file system ({options}) can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)

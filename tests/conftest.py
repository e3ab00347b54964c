"""What all tests share: the command line, the folder of real data, its vocabularies, and why a test is skipped
without it."""

import os
import re
import subprocess
import sys
import threading
from hashlib import sha1
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

from rulerkit.cli import main
from rulerkit.common.plugins import load_plugins
from rulerkit.generation import corpora
from rulerkit.generation.tokenizers import load_tokenizer
from tests.text_server import ReaderServer

# Optional for jsonschema, and 1.4 s of each process that imports nbformat.
sys.modules.setdefault("rfc3987_syntax", None)
load_plugins(["tests.planted_readers"])

VOCABULARIES = (
    "builtin",
    "llama-2",
    "llama-3",
    "qwen2.5",
    "gpt-neox",
    "rwkv",
    "deepseek-v4",
    "mistral/tokenizer.model.v1",
    "mistral/mistral_instruct_tokenizer_240216.model.v2",
    "mistral/mistral_instruct_tokenizer_240323.model.v3",
    "mistral/mistral_instruct_tokenizer_241114.model.v7",
    "cl100k_base",
    "o200k_base",
)
"""`builtin`, the folders, the files that no folder's name leads to, and encodings of tiktoken."""
EXTRAS = ("rulerkit_frontier", "rulerkit_gate", "rulerkit_harnesses")
needs_extras = pytest.mark.skipif(
    not all(map(find_spec, EXTRAS)),
    reason="needs the plug-ins of extras/, which are not here",
)
ENCODINGS = "https://openaipublic.blob.core.windows.net/encodings"
"""Where tiktoken has its encodings from; it keeps them under a digest of their addresses."""

LONG = ("test_plots", "test_claims", "test_frontier", "test_generation", "test_golden")
LONG += ("test_serving", "test_capabilities", "test_paper", "test_addresses", "test_adaptive")


def pytest_collection_modifyitems(items):
    """Long files first: a file's tests run in one process, and a long one at the end would leave
    the other processes without work."""
    items.sort(key=lambda item: item.path.stem not in LONG)


def real_data():
    """The folder that RULERKIT_DATA names, in the layout of the README's section on data; None
    where it is unset."""
    folder = os.environ.get("RULERKIT_DATA")
    return Path(folder).expanduser().resolve() if folder else None


@pytest.fixture(scope="session")
def data():
    """The folder of real data."""
    folder = real_data()
    if folder is None:
        pytest.skip("RULERKIT_DATA is not set: this test reads real corpora and vocabularies")
    if not (folder / "tokenizers").is_dir():
        pytest.skip(f"RULERKIT_DATA={folder} holds no tokenizers/")
    return folder


@pytest.fixture
def empty(tmp_path, monkeypatch):
    """No folder of real data, an empty cache of corpora, and nothing remembered from other tests."""
    monkeypatch.delenv("RULERKIT_DATA", raising=False)
    monkeypatch.setenv("RULERKIT_CACHE", str(tmp_path / "cache"))
    corpora.LOADED.clear()
    yield tmp_path / "cache"
    corpora.LOADED.clear()


QUICK = ("builtin", "llama-2", "qwen2.5", "gpt-neox", "rwkv", "cl100k_base")
"""One vocabulary of each kind; a contributor's run leaves out the others."""
EACH = [
    pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in VOCABULARIES
]


@pytest.fixture(scope="session", params=EACH)
def vocabulary(request):
    """Every vocabulary in turn, `builtin` among them."""
    name = request.param
    if name == "builtin":
        return load_tokenizer(name)
    folder = request.getfixturevalue("data") / "tokenizers"
    if name.endswith("_base"):
        return request.getfixturevalue("encoding")(name)
    return load_tokenizer(str(folder / name))


@pytest.fixture(scope="session")
def encoding(data, tmp_path_factory):
    """Encodings of tiktoken by name, from files at hand."""
    cache = tmp_path_factory.mktemp("tiktoken")
    for file in (data / "tokenizers/openai").iterdir():
        address = f"{ENCODINGS}/{file.name}"
        (cache / sha1(address.encode()).hexdigest()).symlink_to(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(cache))
        yield load_tokenizer


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def lines(self):
        """What stands on stderr, without the states of a progress bar."""
        lines = re.split(r"[\r\n]", self.err)
        return [line for line in lines if line.strip() and "tokens/s" not in line]


class Caller:
    """`rulerkit` in this process: what main() prints, and the status with which it would exit."""

    def __init__(self, capsys, monkeypatch):
        self.capsys, self.monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments):
        self.monkeypatch.setattr(sys, "argv", ["rulerkit", *map(str, arguments)])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self.capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, out, err)


@pytest.fixture
def rulerkit(capsys, monkeypatch):
    return Caller(capsys, monkeypatch)


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An empty folder as the working directory, and no RULERKIT_HOME."""
    monkeypatch.delenv("RULERKIT_HOME", raising=False)
    folder = tmp_path / "nowhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def serve():
    """Starts servers of a perfect reader; each may lose some answers."""
    started = []

    def start(loses=lambda prompt: False):
        server = ReaderServer(load_tokenizer("builtin"))

        def amend(body, reply):
            if body.get("max_tokens") != 16 and loses(server.read(body)[0]):
                reply["choices"][0]["text"] = "I do not know."

        server.amend = amend
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB, which is gone afterwards."""
    place = tmp_path / "small"
    place.mkdir()
    call = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place]
    try:
        subprocess.run(call, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a file system can be mounted by root only")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)

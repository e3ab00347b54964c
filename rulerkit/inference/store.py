"""Files that outlive a killed job: rows appended one by one, records written whole."""

import json
import os
import platform
import socket
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from pydantic_core import from_json

from rulerkit.errors import UserError
from rulerkit.paths import home

PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "vllm", "sentencepiece", "tiktoken")
_MARK = b', "checksum": "'
SYNC = 5.0  # seconds of answers that a power cut may cost


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn what the file system refuses (full disk, read-only, no permission) into one line with a
    way on."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; everything written so far is kept: "
            "make room "
            "or choose a folder that can be written, and the same command goes on from where it "
            "stopped"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it, so that no reader ever meets half of
    it."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    with disk(path):
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """A mapping as it will be read again from JSON: tuples as lists."""
    read: dict[str, Any] = json.loads(json.dumps(value))
    return read


def parse_json(text: bytes) -> Any:
    """The value of a JSON text; raises ValueError for anything else, NaN, or lists that are nested
    too deeply."""
    try:
        return from_json(text, allow_inf_nan=False)
    except (
        ValueError
    ):  # half a surrogate, which a model may write, is read by the standard library only
        try:
            return json.loads(text, parse_constant=_no_number)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def row_line(row: dict[str, Any]) -> bytes:
    """A row as a line of ASCII with its checksum: the CRC-32 of the line without the checksum.

    Pure ASCII: a model may write half a surrogate or a line separator, and both must come back as
    they were.
    """
    text = json.dumps(row).encode()
    return b'%s%s%08x"}\n' % (text[:-1], _MARK, zlib.crc32(text))


def checksum_matches(text: bytes) -> bool | None:
    """Whether the checksum of a line is right; None where it has none."""
    body, mark, sum_ = text[:-25], text[-25:-10], text[-10:]
    return b'%08x"}' % zlib.crc32(body + b"}") == sum_ if mark == _MARK else None


class Log:
    """Rows appended to a file, each in one write, so that a crash can tear only the last line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk(path):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._synced = time.monotonic()

    def append(self, row: dict[str, Any]) -> None:
        """Write one row; what a full disk took of it only in part is cut off again."""
        line = row_line(row)
        with disk(self.path):
            size, done = os.fstat(self._file).st_size, 0
            try:
                while done < len(line):
                    done += os.write(self._file, line[done:])
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, size)
                raise
            if time.monotonic() - self._synced > SYNC:
                os.fsync(self._file)
                self._synced = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with (
            disk(self.path) if kind is None else suppress(OSError)
        ):  # the first error is the one to tell
            try:
                os.fsync(self._file)
            finally:
                os.close(self._file)


def machine(extra: dict[str, Any]) -> dict[str, Any]:
    """What rows were made with: versions (nothing is imported for them), commit, host, and what the
    model adds."""
    packages = {name: _version(name) for name in PACKAGES} | extra.get("packages", {})
    return {
        "rulerkit": _version("rulerkit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": _commit(home()),
        "host": socket.gethostname(),
        "gpu": None,
        **extra,
        "packages": {name: found for name, found in packages.items() if found},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _commit(root: Path) -> str | None:
    """The commit of a checkout, with `-dirty` where files differ from it; None where there is none,
    or no git."""
    call = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None

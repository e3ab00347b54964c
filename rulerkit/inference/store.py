"""Files that outlive a killed job: rows appended one by one, records written whole."""

import json
import os
import platform
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from rulerkit.errors import UserError
from rulerkit.paths import home

PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "vllm", "sentencepiece", "tiktoken")
SYNC = 5.0  # seconds of answers that a power cut may cost


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn what the file system refuses (full disk, read-only, no permission) into one line with a way on."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; everything written so far is kept: make room "
            "or choose a folder that can be written, and the same command goes on from where it stopped"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it, so that no reader ever meets half of it."""
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


def read_rows(path: Path, valid: Callable[[Any], bool], repair: bool = False) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file, one per `index` (the first counts), by index; no file is no rows.

    An unreadable last line is what a crash left of a row: it is passed over, and cut off with `repair`. Any
    other line that is no valid row was not left by a crash, so it is a `UserError`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    rows: dict[int, dict[str, Any]] = {}
    start = number = 0
    while start < len(data):
        number += 1
        end = data.find(b"\n", start) + 1 or len(data)
        line = data[start:end].strip()
        row = parse_line(line)
        if valid(row):
            rows.setdefault(row["index"], row)
        elif line and (row is not None or data[end:].strip()):
            raise UserError(
                f"{path}, line {number}: not a prediction row: delete that line (its example is answered "
                "again) or start anew with --fresh, which moves the old files aside"
            )
        elif line:
            data = data[:start]
            if repair:
                with disk(path):
                    os.truncate(path, start)
        start = end
    if repair and data and not data.endswith(b"\n"):  # torn just before the newline: the row is whole
        with disk(path), open(path, "ab") as file:
            file.write(b"\n")
    return [rows[index] for index in sorted(rows)]


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """A mapping as it will be read again from JSON: tuples as lists."""
    read: dict[str, Any] = json.loads(json.dumps(value))
    return read


def parse_line(line: bytes) -> Any:
    """What a line of JSON holds; None where it is not JSON."""
    try:
        return json.loads(line)
    except ValueError:  # torn JSON, torn UTF-8, or zeros after a power cut
        return None


class Log:
    """Rows appended to a file, each in one write, so that a crash can tear only the last line.

    Pure ASCII: a model may write half a surrogate or a line separator, and both must come back as they were.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk(path):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._synced = time.monotonic()

    def append(self, row: dict[str, Any]) -> None:
        """Write one row; what a full disk took of it only in part is cut off again."""
        line = (json.dumps(row) + "\n").encode()
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
        with disk(self.path) if kind is None else suppress(OSError):  # the first error is the one to tell
            try:
                os.fsync(self._file)
            finally:
                os.close(self._file)


def machine(extra: dict[str, Any]) -> dict[str, Any]:
    """What rows were made with: versions (nothing is imported for them), commit, host, and what the model adds."""
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
    """The commit of a checkout, with `-dirty` where files differ from it; None where there is none, or no git."""
    call = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None

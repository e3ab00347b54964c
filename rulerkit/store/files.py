"""How files are written: whole under another name, or line by line, so that a crash loses
nothing."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rulerkit.common.descriptors import describe_lack, is_lacking
from rulerkit.common.errors import UserError
from rulerkit.common.paths import completed

SEED_FILE = "seed.txt"
"""In the folder of a run's predictions: the seed that was drawn for it."""
SYNC = 5.0  # seconds of answers that a power cut may cost


@contextmanager
def disk(
    path: Path,
    fix: str = "everything written so far is kept: make room or choose a folder that can be "
    "written, and run the same command again to resume",
) -> Iterator[None]:
    """Turn an error of the file system (full disk, read-only, no permission) into one line."""
    try:
        yield
    except OSError as error:
        # Neither room nor another folder would help.
        if is_lacking(error):
            raise UserError(
                f"{path} cannot be opened: {describe_lack()}, and run the same command again to "
                "resume; everything written so far is kept"
            ) from error
        raise UserError(f"cannot write {path}: {error.strerror or error}; {fix}") from error


def write_whole(path: Path, content: str | bytes, private: bool = False) -> None:
    """Write a file so that it survives a power cut. Makes its folder where there is none. A
    `private` one is for this user's eyes alone."""
    with disk(path), completed(path) as part, open(part, "wb") as file:
        if private:
            os.chmod(part, 0o600)
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


class Log:
    """Lines appended to a file, each in one write, so that a crash can tear only the last one. Such
    a line is cut off first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk(path):
            content = path.read_bytes() if path.exists() else b""
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.ftruncate(self._file, content.rfind(b"\n") + 1)
        self._synced = time.monotonic()

    def append(self, line: bytes) -> None:
        """Write one line, with its end."""
        done = 0
        with disk(self.path):
            while done < len(line):
                done += os.write(self._file, line[done:])
            if time.monotonic() - self._synced > SYNC:
                os.fsync(self._file)
                self._synced = time.monotonic()

    def close(self) -> None:
        """Write what the system still holds."""
        with disk(self.path):
            try:
                os.fsync(self._file)
            finally:
                os.close(self._file)

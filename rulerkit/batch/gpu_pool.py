"""The GPUs of this machine, shared with other processes by locks."""

import os
import re
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from rulerkit.common.errors import UserError
from rulerkit.common.gpus import visible_gpus, visible_to_child


def use_gpus(text: str | None) -> list[str]:
    """The GPUs to use: those named (`0,1` or `0-3`), which are all that this process then sees,
    else all that are visible."""
    if text is not None:
        named: list[str] = []
        for part in text.split(","):
            ends = re.fullmatch(r"\s*(\d+)-(\d+)\s*", part)
            if ends:
                first, last = int(ends[1]), int(ends[2])
                named += [str(number) for number in range(first, last + 1)]
            else:
                named.append(part)
        os.environ |= visible_to_child(named)
    return visible_gpus()


class GpuPool:
    """GPUs of this machine; each that is held is locked against other processes."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self.gpus = gpus
        self._locks = dict[str, IO[bytes]]()

    @property
    def free(self) -> list[str]:
        """Those that this process does not hold; another one may."""
        return [gpu for gpu in self.gpus if gpu not in self._locks]

    def hold(self, needed: int, times: int = 1) -> list[str] | None:
        """So many free GPUs, or, where they can be had, up to so many times as many; None where
        there are too few."""
        held: list[str] = []
        for gpu in self.free:
            if len(held) == needed * max(1, times):
                break
            lock = _lock(gpu)
            if lock:
                held.append(gpu)
                self._locks[gpu] = lock

        # Whole groups only: a model cannot use the rest.
        usable = len(held) // max(1, needed) * needed
        self.release(held[usable:])
        if needed and not usable:
            return None
        return held[:usable]

    def release(self, gpus: Sequence[str]) -> None:
        """Give GPUs back."""
        for gpu in gpus:
            self._locks.pop(gpu).close()


def _no_lock(path: str, reason: str) -> UserError:
    return UserError(
        f"{path}, by which processes agree on who uses a GPU, cannot be read ({reason}): let its "
        "owner remove it, or give the GPUs yourself with --gpus and TMPDIR set to a folder of "
        "your own"
    )


def _lock(gpu: str) -> IO[bytes] | None:
    """The lock of a GPU, which ends with its process; None where another process of any user holds
    it."""
    import fcntl  # not on Windows

    if "SLURM_JOB_ID" in os.environ:
        # The scheduler's GPUs are ours, whatever their numbers.
        return open(os.devnull, "rb")

    path = f"{tempfile.gettempdir()}/rulerkit-gpu-{gpu}"
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        # Other users lock the same file, whatever our umask.
        os.chmod(path, 0o644)
    # What another user put there instead of a file could block whoever opens it.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        file = open(os.open(path, flags), "rb")  # noqa: SIM115
    except OSError as error:
        raise _no_lock(path, error.strerror or str(error)) from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _no_lock(path, "it is no file")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file

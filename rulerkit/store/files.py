"""How files are written: whole under another name, or line by line, so that a crash loses
nothing; and by one process at a time, on network file systems too: `flufl.lock`, refreshed while it
is held.

A lock is free when its process ends. The lock of a process of this machine that is gone is taken
over at once, that of another machine LIFETIME seconds after its last sign of life.
"""

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Literal, Self

import flufl.lock
import psutil

from rulerkit.common.errors import Elsewhere, UserError
from rulerkit.common.json_text import digest
from rulerkit.common.paths import completed

SYNC = 5.0  # seconds of answers that a power cut may cost
LIFETIME = 120.0
"""Seconds from the last refresh of a lock until it counts as that of a dead process."""
_REFRESHES = 6  # in a lifetime


@contextmanager
def disk(
    path: Path,
    fix: str = "make room or choose another folder, and run the same command again; everything "
    "written so far is kept",
) -> Iterator[None]:
    """Turn an error of the file system (full disk, read-only, no permission) into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; {fix}") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it survives a power cut. Makes its folder where there is none."""
    with disk(path), completed(path) as part, open(part, "wb") as file:
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


# --- one writer at a time -------------------------------------------------------------------------


class Lock(flufl.lock.Lock):
    """Makes this process the only writer; a thread refreshes the lock, however long a reply takes.

    Where another process is the writer: `Elsewhere`, with its host and process.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), timedelta(seconds=LIFETIME))
        self.path, self.lost = path, False
        self._refreshed = time.time()
        self._done = threading.Event()

    @property
    def hostname(self) -> str:
        """The owner, as its lock names it: host, machine and job."""
        # Machines and containers may share a host name: each has its own process numbers.
        machine = ""
        with suppress(OSError):  # not Linux
            boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
            machine = digest(f"{boot} {os.readlink('/proc/self/ns/pid')}")
        return f"{socket.gethostname()},{machine},{os.environ.get('SLURM_JOB_ID', '')}"

    def __enter__(self) -> Self:
        with disk(self.path):
            while True:
                try:
                    self.lock(timeout=0)
                    break
                except flufl.lock.TimeOutError:
                    self._remove_dead()
        threading.Thread(target=self._refresh_often, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> Literal[False]:
        self._done.set()
        with suppress(OSError):
            self.unlock(unconditionally=True)
        return False

    def check(self) -> None:
        """Raise `UserError` where the lock is no longer ours: another process may be writing."""
        # The process may have been suspended, and the thread with it.
        if time.time() - self._refreshed > LIFETIME / 2:
            self._refresh()
        if self.lost:
            raise UserError(
                f"{self.path} was removed or taken over while this process ran: it stops here, "
                "everything written so far is kept; run the same command again to resume once "
                "nobody else writes there"
            )

    def _refresh_often(self) -> None:
        while not self.lost and not self._done.wait(LIFETIME / _REFRESHES):
            self._refresh()

    def _refresh(self) -> None:
        try:
            self.refresh()
            self._refreshed = time.time()
        except flufl.lock.NotLockedError:
            self.lost = not self._done.is_set()
        except OSError:  # the file server is away for a moment: the next refresh tries again
            pass

    def _remove_dead(self) -> None:
        """Remove the lock of a dead process; raise `Elsewhere` where its owner may be alive."""
        # A second lock: nobody removes the new lock of a process that was faster.
        with flufl.lock.Lock(f"{self.path}.break", lifetime=5):
            owner = holder(self.path)
            if owner:
                raise Elsewhere(
                    f"{str(self.path).partition('.lock')[0]} is being written by {owner}: wait for "
                    "it, end it, or take a place of your own with run: NAME; its lock is free when "
                    f"it ends, or {LIFETIME:.0f} seconds after its last sign of life"
                )
            # The lock is a link to a file whose name it holds.
            with suppress(OSError, ValueError):
                claim = self.path.read_text(encoding="utf-8")
                if claim.startswith(f"{self.path}{flufl.lock.SEP}"):
                    os.unlink(claim)
            self.path.unlink(missing_ok=True)


def holder(path: Path) -> str:
    """Who holds a lock now: process, host and job of the scheduler; "" where nobody does, or its
    owner is dead. Writes nothing."""
    lock = Lock(path)
    try:
        if lock.expiration.timestamp() < time.time():
            return ""
    except OSError:
        return ""
    try:
        named, pid, _ = lock.details
        host, machine, job = named.split(",")
    except (flufl.lock.NotLockedError, OSError, ValueError):  # torn, or written by something else
        return "another process"
    # Only a process of this machine can be looked up by its number.
    if lock.hostname.startswith(f"{host},{machine},"):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return ""
        except psutil.NoSuchProcess:
            return ""
        except psutil.AccessDenied:
            pass
    of_job = f", job {job}" if job else ""
    return f"process {pid} on host {host}{of_job}"

"""Locks that keep one writer at a time, on network file systems too."""

import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rulerkit.common.errors import Elsewhere, UserError
from rulerkit.store.files import disk

BEAT = 20.0  # seconds between two touches of a lock by its owner


STALE = 120.0  # seconds without a touch after which an owner that cannot be checked counts as dead


class Owner(BaseModel):
    """The process that a lock file names; fields that the file does not name have defaults."""

    model_config = ConfigDict(strict=True)

    host: str = "?"
    machine: str = ""
    pid: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    started: str | None = None
    job: str | None = None
    restart: int = 0
    token: str = ""
    touched: float = 0.0
    """When the lock was touched last, in seconds since 1970."""

    @property
    def here(self) -> bool:
        """Whether it is a process of this machine, so that its number can be looked up."""
        return (self.host, self.machine) == (socket.gethostname(), _machine())

    def is_alive(self, stale: float = STALE, now: float | None = None) -> bool:
        """Whether its process is seen to live; where it cannot be looked up, whether it touched its
        lock in the last seconds, or, by the file server's own clock `now`, around it: nobody
        touches a lock tomorrow."""
        me = this_process()
        if self.job and self.job == me.job and self.restart < me.restart:
            return False
        if self.pid and self.here and (started := start_time(self.pid)) != "":
            return started == self.started
        if now is not None:
            return abs(now - self.touched) < stale
        # Clocks of two machines differ by less than an hour.
        return -3600 < time.time() - self.touched < stale


class Lock:
    """One writer at a time: a file made with O_EXCL that names its owner, who touches it.

    No flock, which network file systems break. An owner on this machine is looked up by process
    number and start time. One elsewhere, and a file that names no owner, counts as dead after
    STALE seconds without a touch; the earlier start of a requeued Slurm job is dead at once.
    Where the owner is alive: `Elsewhere` with its host and process.
    """

    def __init__(self, path: Path, beat: float = BEAT) -> None:
        self.path, self.beat, self.lost = path, beat, False
        self._content = this_process().model_dump_json().encode()
        self._seen = time.time()
        self._done = threading.Event()

    def __enter__(self) -> Self:
        with disk(self.path):
            while not self._create():
                self._remove_dead()
        threading.Thread(target=self._touch_often, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        with suppress(OSError):
            if self.path.read_bytes() == self._content:
                self.path.unlink()

    def check(self) -> None:
        """Raise `UserError` where the lock is no longer ours: another process may be writing."""
        if time.time() - self._seen > 3 * self.beat:  # the process was suspended, thread included
            self._touch()
        if self.lost:
            raise UserError(
                f"{self.path} was removed or taken over while this process ran: it stops here, "
                "everything written so far is kept; run the same command again to resume once "
                "nobody else writes there"
            )

    def _touch_often(self) -> None:
        while not self.lost and not self._done.wait(self.beat):
            self._touch()

    def _touch(self) -> None:
        try:
            if self.path.read_bytes() != self._content:
                self.lost = True
            else:
                os.utime(self.path)  # without a time: the file server's own
                self._seen = time.time()
        except FileNotFoundError:
            self.lost = not self._done.is_set()
        except OSError:  # the file server is away for a moment: try again at the next beat
            pass

    def _servers_clock(self) -> float:
        """What the file server's clock says, in seconds since 1970."""
        token = Owner.model_validate_json(self._content).token
        file = self.path.with_name(f".{self.path.name}.{token}")
        try:
            file.touch()
            return file.stat().st_mtime
        finally:
            file.unlink(missing_ok=True)

    def _create(self) -> bool:
        try:
            with open(self.path, "xb") as file:
                file.write(self._content)
        except FileExistsError:
            return False
        return True

    def _remove_dead(self) -> None:
        """Remove the lock of a dead owner; raise `UserError` where its owner may be alive."""
        try:
            content, owner = _read_lock(self.path)
        except FileNotFoundError:
            return
        if not owner.is_alive(now=self._servers_clock()):
            # a second lock: nobody removes the new lock of a process that was faster
            with Lock(self.path.with_name(f"{self.path.name}.claim.lock"), self.beat):
                if self.path.exists() and self.path.read_bytes() == content:
                    self.path.unlink()
            return
        job = f", job {owner.job}" if owner.job else ""
        raise Elsewhere(
            f"{str(self.path).partition('.lock')[0]} is being written by process "
            f"{owner.pid or '?'} on host {owner.host}{job} (last sign of life: "
            f"{time.ctime(owner.touched)}): wait for it, end it, or take a place of your own with "
            f"run: NAME; its lock is free when it ends, or {STALE:.0f} s after the last sign of "
            "life of a process that cannot be seen from here"
        )


def holder(path: Path, stale: float = STALE) -> Owner | None:
    """Who holds a lock now; None where nobody does, or its owner is dead. Writes nothing."""
    try:
        _, owner = _read_lock(path)
    except OSError:
        return None
    return owner if owner.is_alive(stale) else None


def wait_for(path: Path) -> Owner | None:
    """As `holder`, but an owner on another machine counts only once it touches its lock again.
    Waits for that, or until the lock is free."""
    patience = STALE + 2 * BEAT
    first = owner = holder(path)
    end = time.monotonic() + patience
    while owner and first and not owner.here and owner.touched == first.touched:
        if time.monotonic() > end:  # a lock that is dated in the future
            return None
        time.sleep(1.0)
        owner = holder(path, patience)
    return owner


def this_process() -> Owner:
    """This process as the owner of a lock; each call has another token."""
    return Owner(
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=start_time(os.getpid()),
        job=os.environ.get("SLURM_JOB_ID"),
        restart=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        token=uuid.uuid4().hex,
    )


def _read_lock(path: Path) -> tuple[bytes, Owner]:
    """A lock's content, and the owner that it names."""
    with open(path, "rb") as file:  # opening makes a network file system ask the server
        content, touched = file.read(), os.fstat(file.fileno()).st_mtime
    try:
        owner = Owner.model_validate_json(content)
    except ValidationError:  # torn, or written by something else
        owner = Owner()
    owner.touched = touched
    return content, owner


def _machine() -> str:
    """Distinguishes machines and containers with the same host name: each has its own process
    numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return ""


def start_time(pid: int) -> str | None:
    """When a process began, to compare; None: no such process, or a zombie; "": alive, start
    unknown."""
    if os.name == "nt":  # where os.kill would interrupt it
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    try:
        state, *fields = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
    except OSError:  # a process of another user may be hidden
        return ""
    return None if state in "ZX" else fields[18]

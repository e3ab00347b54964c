"""One writer at a time, on any file system: locks made with O_EXCL, without flock."""

import math
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rulerkit.errors import UserError
from rulerkit.inference.store import disk

BEAT = 20.0  # seconds between two signs of life of a lock's owner
STALE = 120.0  # seconds without one after which an owner that cannot be asked counts as dead


class Owner(BaseModel):
    """The process that a lock file names; what a file does not name is left out."""

    model_config = ConfigDict(strict=True, frozen=True)

    host: str = "?"
    machine: str = ""
    pid: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    started: str | None = None
    job: str | None = None
    restart: int = 0
    token: str = ""

    @property
    def here(self) -> bool:
        """Whether its process number means something to this process."""
        return (self.host, self.machine) == (socket.gethostname(), _machine())

    def seconds_left(self, age: float, stale: float) -> float:
        """How long it still counts as living, `age` seconds after its last sign of life: infinite
        where it is seen to live, negative where it is dead."""
        me = this_process()
        if self.job and self.job == me.job and self.restart < me.restart:
            return -1.0
        if self.pid and self.here and (started := start_time(self.pid)) != "":
            return math.inf if started == self.started else -1.0
        return stale - age


class Lock:
    """One writer at a time: a file made with O_EXCL that names its owner, touched while the owner
    lives.

    No flock, which network file systems break. An owner on this machine is looked up (process,
    start time); one elsewhere, and a file that names no owner, counts as dead after `stale` seconds
    without a touch, by the file server's clock; the former life of a requeued Slurm job is dead at
    once. Where the owner lives: `UserError` naming host and process.
    """

    def __init__(self, path: Path, beat: float = BEAT, stale: float = STALE) -> None:
        self.path, self.beat, self.stale = path, beat, stale
        self.lost, self._mine, self._seen = False, b"", 0.0
        self._done = threading.Event()

    def __enter__(self) -> Self:
        self._mine = this_process().model_dump_json().encode()
        with disk(self.path):
            self._acquire()
        self._seen = time.time()
        threading.Thread(
            target=self._touch_often, name=f"lock {self.path.name}", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        with suppress(OSError):
            if self.path.read_bytes() == self._mine:
                self.path.unlink()

    def check(self) -> None:
        """Raise `UserError` where the lock is no longer ours: another process may be writing by
        now."""
        if (
            time.time() - self._seen > 3 * self.beat
        ):  # the whole process was suspended, with the thread that touches
            self._touch()
        if self.lost:
            raise UserError(
                f"{self.path} was removed or taken over while this process ran: it stops here, "
                "everything "
                "written so far is kept, and the same command goes on once nobody else writes there"
            )

    def _touch_often(self) -> None:
        while not self.lost and not self._done.wait(self.beat):
            self._touch()

    def _touch(self) -> None:
        try:
            if self.path.read_bytes() != self._mine:
                self.lost = True
            else:
                os.utime(self.path)  # no time given: the file server's own
                self._seen = time.time()
        except FileNotFoundError:
            self.lost = not self._done.is_set()
        except OSError:  # a file server that is away for a moment: the next beat asks again
            pass

    def _acquire(self) -> None:
        probe = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}.tmp")
        try:
            for _ in range(100):
                if _create(self.path, self._mine):
                    return
                probe.write_bytes(self._mine)  # its time is the file server's now
                dead = self._dead_content(probe)
                if dead is not None and self._take_over(dead, probe):
                    return
                time.sleep(0.05)
        finally:
            probe.unlink(missing_ok=True)
        raise UserError(f"{self.path} changes hands too fast: start this process again in a minute")

    def _take_over(self, dead: bytes, probe: Path) -> bool:
        """Put our lock in a dead owner's place. Only who makes the claim, a file named after the
        dead lock, may: renaming alone could move away the new lock of one who was faster."""
        name = uuid.uuid5(uuid.NAMESPACE_OID, dead.decode(errors="replace")).hex
        claim = self.path.with_name(f".{self.path.name}.{name}.claim")
        if not _create(claim, self._mine):
            with suppress(
                FileNotFoundError
            ):  # its maker has just finished, or died before it removed it
                if probe.stat().st_mtime - claim.stat().st_mtime > self.stale:
                    claim.unlink()
            return False
        try:
            if self._dead_content(probe) != dead:
                return False
            os.replace(probe, self.path)
            return True
        finally:
            claim.unlink(missing_ok=True)

    def _dead_content(self, probe: Path) -> bytes | None:
        """The content of a dead owner's lock; None where it is gone; `UserError` where its owner
        may live."""
        try:
            content, owner, touched = _read(self.path)
        except FileNotFoundError:
            return None
        age = probe.stat().st_mtime - touched
        left = owner.seconds_left(age, self.stale)
        if left < 0:
            return content
        job = f", job {owner.job}" if owner.job else ""
        sign = (
            f"last sign of life {age:.0f} s ago"
            if age >= 0
            else f"its lock is dated {-age:.0f} s in the future"
        )
        free = (
            "its lock is free when it ends"
            if math.isinf(left)
            else f"if it is dead, its lock is free in {left:.0f} s"
        )
        raise UserError(
            f"{self.path.with_suffix('')} is being written by process {owner.pid or '?'} on host "
            f"{owner.host}{job} "
            f"({sign}): wait for it, end it, or take a place of your own with run: NAME; {free}"
        )


def holder(path: Path) -> Owner | None:
    """Who holds a lock now; None where nobody does, or who did is dead. Writes nothing."""
    return _look(path)[0]


def wait_for(path: Path) -> Owner | None:
    """As `holder`, but an owner on another machine must give a sign of life: nobody is taken for
    living who died in the last two minutes. Waits for that sign, or until all locks of that owner
    are free."""
    owner, first = _look(path)
    touched, patience = first, STALE + 2 * BEAT
    end = time.monotonic() + patience
    while owner and not owner.here and touched == first:
        if time.monotonic() > end:  # a lock that is dated in the future
            return None
        time.sleep(1.0)
        owner, touched = _look(path, patience)
    return owner


def this_process() -> Owner:
    """This process as the owner of a lock; each call has its own token."""
    return Owner(
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=start_time(os.getpid()),
        job=os.environ.get("SLURM_JOB_ID"),
        restart=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        token=uuid.uuid4().hex,
    )


def _look(path: Path, stale: float = STALE) -> tuple[Owner | None, float]:
    """A lock's owner, if alive, and when it was touched last."""
    try:
        _, owner, touched = _read(path)
    except OSError:
        return None, 0.0
    return (owner if owner.seconds_left(time.time() - touched, stale) >= 0 else None), touched


def _read(path: Path) -> tuple[bytes, Owner, float]:
    """A lock's content, the owner that it names, and when it was touched last."""
    with open(path, "rb") as file:  # opening makes a network file system look again
        content, touched = file.read(), os.fstat(file.fileno()).st_mtime
    try:
        return content, Owner.model_validate_json(content), touched
    except ValidationError:  # torn, or written by something else
        return content, Owner(), touched


def _create(path: Path, content: bytes) -> bool:
    """Make a file that is not there yet (O_EXCL); False where it is."""
    try:
        with open(path, "xb") as file:
            try:
                file.write(content)
                file.flush()
            except OSError:  # a full disk: an empty lock would only stand in the way
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        return False
    return True


def _machine() -> str:
    """Tells machines and containers of one host name apart: a process number means something only
    within."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return ""


def start_time(pid: int) -> str | None:
    """When a process began, to compare; None: no such process, or its zombie; "": alive, but hides
    that."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    except ProcessLookupError:
        return None
    except (
        FileNotFoundError,
        PermissionError,
    ):  # no /proc, no such process, or another user's, hidden
        if os.name == "nt":  # where os.kill would interrupt it
            return ""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""

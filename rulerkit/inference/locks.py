"""One writer at a time, on any file system: locks made with O_EXCL, without flock."""

import json
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rulerkit.errors import UserError
from rulerkit.inference.store import disk, parse_line

BEAT = 20.0  # seconds between two signs of life of a lock's owner
STALE = 120.0  # seconds without one after which an owner that cannot be asked counts as dead


class Lock:
    """One writer at a time: a file made with O_EXCL that names its owner, touched while the owner lives.

    No flock, which network file systems break. An owner on this machine is looked up (process, start time);
    one elsewhere counts as dead after `stale` seconds without a touch, by the file server's clock; the former
    life of a requeued Slurm job is dead at once. Where the owner lives: `UserError` naming host and process.
    """

    def __init__(self, path: Path, beat: float = BEAT, stale: float = STALE) -> None:
        self.path, self.beat, self.stale = path, beat, stale
        self.lost, self._mine, self._seen = False, "", 0.0
        self._done = threading.Event()

    def __enter__(self) -> Self:
        self._mine = json.dumps(_owner())
        with disk(self.path):
            self._acquire()
        self._seen = time.time()
        threading.Thread(target=self._keep, name=f"lock {self.path.name}", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        with suppress(OSError):
            if self.path.read_text() == self._mine:
                self.path.unlink()

    def check(self) -> None:
        """Raise `UserError` where the lock is no longer ours: another process may be writing by now."""
        if time.time() - self._seen > 3 * self.beat:  # the whole process slept, its heart too
            self._touch()
        if self.lost:
            raise UserError(
                f"{self.path} was removed or taken over while this process ran: it stops here, everything "
                "written so far is kept, and the same command goes on once nobody else writes there"
            )

    def _keep(self) -> None:
        while not self.lost and not self._done.wait(self.beat):
            self._touch()

    def _touch(self) -> None:
        try:
            if self.path.read_text() != self._mine:
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
                probe.write_text(self._mine)  # its time is the file server's now
                dead = self._dead_text(probe)
                if dead is not None and self._take_over(dead, probe):
                    return
                time.sleep(0.05)
        finally:
            probe.unlink(missing_ok=True)
        raise UserError(f"{self.path} changes hands too fast: start this process again in a minute")

    def _take_over(self, dead: str, probe: Path) -> bool:
        """Put our lock in a dead owner's place. Who makes the claim, a file named after the dead lock, may:
        renaming alone could move away the new lock of one who was faster."""
        name = uuid.uuid5(uuid.NAMESPACE_OID, dead).hex
        claim = self.path.with_name(f".{self.path.name}.{name}.claim")
        if not _create(claim, self._mine):
            with suppress(FileNotFoundError):  # its maker has just finished, or died in the midst
                if probe.stat().st_mtime - claim.stat().st_mtime > self.stale:
                    claim.unlink()
            return False
        try:
            if self._dead_text(probe) != dead:
                return False
            os.replace(probe, self.path)
            return True
        finally:
            claim.unlink(missing_ok=True)

    def _dead_text(self, probe: Path) -> str | None:
        """The text of a dead owner's lock; None where it is gone; `UserError` where its owner lives."""
        try:
            with open(self.path) as file:  # opening makes a network file system look again
                text, touched = file.read(), os.fstat(file.fileno()).st_mtime
        except FileNotFoundError:
            return None
        owner = parse_line(text.encode()) or {}
        age = max(0.0, probe.stat().st_mtime - touched)
        if _dead(owner, age, self.stale):
            return text
        job = f", job {owner['job']}" if owner.get("job") else ""
        raise UserError(
            f"{self.path.with_suffix('')} is being written by process {owner.get('pid', '?')} on host "
            f"{owner.get('host', '?')}{job} (last sign of life {age:.0f} s ago): wait for it, end it, or "
            f"take a place of your own with run: NAME; a dead owner's lock is free after {self.stale:.0f} s"
        )


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds a lock now: its owner's host, pid, job; None where nobody does, or who did is dead. Writes nothing."""
    found = _look(path)
    return found and found[0]


def wait_for(path: Path) -> dict[str, Any] | None:
    """As `holder`, but an owner on another machine must give a sign of life: nobody is taken for living who died in the
    last two minutes. Waits for that sign, or until all locks of that owner are free."""
    first = found = _look(path)
    while found and not found[0]["here"] and found[1] == (first or found)[1]:
        time.sleep(1.0)
        found = _look(path, STALE + 2 * BEAT)
    return found and found[0]


def _look(path: Path, stale: float = STALE) -> tuple[dict[str, Any], float] | None:
    """A lock's owner, if alive, and when it was touched last."""
    try:
        with open(path) as file:
            owner, touched = parse_line(file.read().encode()) or {}, os.fstat(file.fileno()).st_mtime
    except OSError:
        return None
    age = max(0.0, time.time() - touched)
    if _dead(owner, age, stale):
        return None
    here = (owner.get("host"), owner.get("machine")) == (socket.gethostname(), _machine())
    return {"host": "?", "pid": "?", "job": None, **owner, "here": here}, touched


def _create(path: Path, text: str) -> bool:
    """Make a file that is not there yet (O_EXCL); False where it is."""
    try:
        with open(path, "x") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:  # a full disk: an empty lock would only stand in the way
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        return False
    return True


def _owner() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "machine": _machine(),
        "pid": os.getpid(),
        "started": start_time(os.getpid()),
        "job": os.environ.get("SLURM_JOB_ID"),
        "restart": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        "token": uuid.uuid4().hex,
    }


def _dead(owner: dict[str, Any], age: float, stale: float) -> bool:
    """Whether a lock's owner is gone. A lock that does not name its owner is judged by its age alone."""
    me = _owner()
    if owner.get("job") and owner["job"] == me["job"] and owner["restart"] < me["restart"]:
        return True
    if (owner.get("host"), owner.get("machine")) == (me["host"], me["machine"]):
        started = start_time(owner["pid"])
        if started != "":
            return bool(started != owner["started"])
    return age > stale


def _machine() -> str:
    """Tells machines and containers of one host name apart: a process number means something only within."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return ""


def start_time(pid: int) -> str | None:
    """When a process began, to compare; None: no such process, or its zombie; "": alive, but hides that."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    except ProcessLookupError:
        return None
    except (FileNotFoundError, PermissionError):  # no /proc, no such process, or another user's, hidden
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""

"""Locks, torn files and full disks, on real files and with real processes."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from rulerkit.common.errors import UserError
from rulerkit.store import files as locks
from rulerkit.store.files import Lock

HOLD = """
import sys, time; from pathlib import Path; from rulerkit.store.files import Lock
with Lock(Path(sys.argv[1])):
    print("held", flush=True); time.sleep(60)
"""


@pytest.fixture
def lock_file(tmp_path):
    return tmp_path / "4096.lock"


def expire(path, seconds=0.0):
    """Date the end of a lock's lifetime so many seconds from now."""
    os.utime(path, (time.time() + seconds, time.time() + seconds))


def claim(path, owner="node7,,812", pid=17, seconds=locks.LIFETIME):
    """Write the lock of another process, which counts as alive for so many seconds."""
    path.write_text(f"{path}|{owner}|{pid}|1")
    expire(path, seconds)


def test_a_second_process_is_refused_until_the_first_is_killed(lock_file):
    command = [sys.executable, "-c", HOLD, str(lock_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        words = rf"4096 is being written by process {holder.pid} on host .*run: NAME"
        with pytest.raises(UserError, match=words):
            Lock(lock_file).__enter__()
        holder.send_signal(signal.SIGKILL)
        time.sleep(0.2)  # not waited for: a zombie is dead too
        with Lock(lock_file):
            mine = f"process {os.getpid()} on host {socket.gethostname()}"
            assert locks.holder(lock_file).startswith(mine)
    assert list(lock_file.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("owner", "pid", "said"),
    [
        ("node7,,812", 17, "process 17 on host node7, job 812"),
        # A container has the host's name, and process numbers of its own.
        (f"{socket.gethostname()},another,", 2**22 + 5, f"process {2**22 + 5} on host "),
    ],
)
def test_another_machine_is_dead_when_its_lifetime_is_over(lock_file, owner, pid, said):
    claim(lock_file, owner, pid)
    with pytest.raises(UserError, match=f"{said}.* or 120 seconds"):
        Lock(lock_file).__enter__()
    expire(lock_file, -1)
    with Lock(lock_file):
        pass
    assert list(lock_file.parent.iterdir()) == []


@pytest.mark.parametrize("garbage", [b"\xff", b"/tmp/4096.lock|node7|seventeen|1"])
def test_a_lock_that_says_nothing_is_respected_until_its_lifetime_is_over(lock_file, garbage):
    lock_file.write_bytes(garbage)
    expire(lock_file, 100)
    with pytest.raises(UserError, match="4096 is being written by another process"):
        Lock(lock_file).__enter__()
    assert [path.name for path in lock_file.parent.iterdir()] == ["4096.lock"]
    expire(lock_file, -1)
    assert not locks.holder(lock_file)
    with Lock(lock_file):
        assert locks.holder(lock_file)


@pytest.mark.slow
def test_a_lock_is_refreshed_however_long_a_reply_takes(lock_file, monkeypatch):
    """Five lifetimes here are ten minutes elsewhere."""
    monkeypatch.setattr(locks, "LIFETIME", 2.0)
    with Lock(lock_file) as lock:
        end = time.monotonic() + 5 * locks.LIFETIME
        while time.monotonic() < end:
            assert locks.holder(lock_file)
            time.sleep(0.05)
        lock.check()
        with pytest.raises(UserError, match="is being written by"):
            Lock(lock_file).__enter__()
    assert not locks.holder(lock_file)


@pytest.mark.slow
def test_of_many_that_find_a_dead_lock_one_goes_on(lock_file):
    """Threads are as good as processes here: each has its own token, and the files are all they
    share."""
    barrier = threading.Barrier(8)

    def race(_):
        lock = Lock(lock_file)
        barrier.wait()
        with suppress(UserError):
            return lock.__enter__()

    for _ in range(2):
        claim(lock_file, seconds=-1)
        with ThreadPoolExecutor(8) as pool:
            (won,) = [lock for lock in pool.map(race, range(8)) if lock]
        assert not won.lost
        won.__exit__()
        assert list(lock_file.parent.iterdir()) == []


def test_a_process_that_died_while_it_took_a_lock_over_is_no_obstacle(lock_file):
    claim(lock_file, seconds=-1)
    claim(lock_file.with_name("4096.lock.break"), seconds=-20)
    with Lock(lock_file):
        assert locks.holder(lock_file)
    assert list(lock_file.parent.iterdir()) == []

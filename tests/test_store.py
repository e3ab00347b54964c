"""Locks, torn files and full disks, on real files and with real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rulerkit.common.errors import UserError
from rulerkit.store import locks
from rulerkit.store.locks import Lock

HOLD = "import sys, time; from pathlib import Path; from rulerkit.store.locks import Lock; "
HOLD += (
    "lock = Lock(Path(sys.argv[1])); lock.__enter__(); print('held', flush=True); time.sleep(60)"
)


def hold(path, **environment):
    """Another process that holds a lock."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def rewrite(path, age=0.0, **changes):
    """Change what a lock says of its owner, and when it was last touched."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    os.utime(path, (time.time() - age, time.time() - age))


@pytest.fixture
def lock_file(tmp_path):
    return tmp_path / "4096.lock"


@pytest.fixture
def foreign(lock_file):
    """The lock of a process on another host, touched just now."""
    with Lock(lock_file):
        text = lock_file.read_text()
    lock_file.write_text(text)
    rewrite(lock_file, host="node7", pid=17)
    return lock_file


def test_a_second_process_is_refused_until_the_first_is_killed(lock_file):
    holder = hold(lock_file)
    try:
        with pytest.raises(
            UserError, match=rf"4096 is being written by process {holder.pid} on host .*run: NAME"
        ):
            Lock(lock_file).__enter__()
        os.utime(lock_file, (0, 0))  # untouched, but its owner is seen to live
        with pytest.raises(UserError, match=f"process {holder.pid}"):
            Lock(lock_file).__enter__()
        holder.send_signal(signal.SIGKILL)
        time.sleep(0.2)  # not waited for: a zombie is dead too
        with Lock(lock_file):
            assert json.loads(lock_file.read_text())["pid"] == os.getpid()
    finally:
        holder.kill()
        holder.wait()
        assert holder.stdout is not None
        holder.stdout.close()
    assert list(lock_file.parent.iterdir()) == []


def test_another_host_is_dead_after_two_minutes(foreign):
    rewrite(foreign, age=100)
    last = re.escape(time.ctime(foreign.stat().st_mtime))
    with pytest.raises(UserError, match=f"process 17 on host node7 .last sign of life: {last}"):
        Lock(foreign).__enter__()
    rewrite(foreign, age=130)
    with Lock(foreign):
        pass


def test_a_container_of_the_same_host_name_is_another_machine(foreign):
    with Lock(foreign.with_name("other.lock")):
        mine = json.loads(foreign.with_name("other.lock").read_text())
    rewrite(foreign, host=mine["host"], machine="another boot pid:[1]", pid=2**22 + 5)
    with pytest.raises(UserError, match="process"):
        Lock(foreign).__enter__()


def test_a_requeued_job_takes_over_from_its_former_self(foreign, monkeypatch):
    rewrite(foreign, job="812", restart=1)
    monkeypatch.setenv("SLURM_JOB_ID", "812")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with pytest.raises(UserError, match="job 812"):  # another process of the same life of the job
        Lock(foreign).__enter__()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    with Lock(foreign):
        pass


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=3)
FIELDS = st.sampled_from(["host", "pid", "started", "machine", "job", "restart", "token"])


@given(
    garbage=st.binary(max_size=40)
    | JSON.map(json.dumps)
    | st.dictionaries(FIELDS, JSON).map(json.dumps),
    age=st.sampled_from([-7200, 0, 100, 500]),
)
@example(garbage="", age=0)
@example(garbage=json.dumps({"host": "node7", "pid": 17, "started": "1"}), age=-7200)
@settings(max_examples=25, deadline=None)
def test_any_content_and_date_of_a_lock_is_one_line_or_taken_over(garbage, age):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "4096.lock"
        file.write_bytes(garbage if isinstance(garbage, bytes) else garbage.encode())
        os.utime(file, (time.time() - age, time.time() - age))
        # Nobody touches a lock tomorrow.
        if abs(age) > locks.STALE:
            assert locks.holder(file) is None
            with Lock(file):
                assert locks.holder(file)
            return
        with pytest.raises(UserError, match="4096 is being written by") as refused:
            Lock(file).__enter__()
        said = str(refused.value)
        assert "\n" not in said
        assert f"last sign of life: {time.ctime(file.stat().st_mtime)}" in said
        assert f"or {locks.STALE:.0f} s after the last sign of life" in said
        assert [path.name for path in Path(folder).iterdir()] == ["4096.lock"]


def test_a_living_lock_is_touched(lock_file):
    with Lock(lock_file, beat=0.05):
        os.utime(lock_file, (0, 0))
        time.sleep(0.3)
        assert time.time() - lock_file.stat().st_mtime < 5


def test_of_many_that_find_a_dead_lock_one_goes_on(lock_file):
    """Threads are as good as processes here: each has its own token, and the files are all they
    share."""
    for _ in range(5):
        lock_file.write_text(
            json.dumps({"host": "node7", "pid": 17, "started": "1", "token": "dead"})
        )
        os.utime(lock_file, (0, 0))
        won = []
        barrier = threading.Barrier(8)

        def race(won=won, barrier=barrier):
            lock = Lock(lock_file)
            barrier.wait()
            try:
                lock.__enter__()
            except UserError:
                return
            won.append(lock)

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert not won[0].lost
        won[0].__exit__()
        assert list(lock_file.parent.iterdir()) == []


def test_a_process_that_died_while_it_took_a_lock_over_is_no_obstacle(foreign):
    rewrite(foreign, age=500)
    claim = foreign.with_name("4096.lock.claim.lock")
    claim.write_text(foreign.read_text())
    with pytest.raises(UserError, match="4096 is being written by process 17 on host node7"):
        Lock(foreign).__enter__()
    os.utime(claim, (0, 0))
    with Lock(foreign):
        assert [file.name for file in foreign.parent.iterdir()] == ["4096.lock"]

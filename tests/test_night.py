"""What happens in a night: power cuts, signals, dead hosts. The same
command goes on, nothing that was written is lost, nothing is counted twice."""

import os
import re
import signal
import time

import flufl.lock
import pytest

from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.execution import execute
from rulerkit.batch.status import statuses
from tests.batches import Project, outcomes, told, wait_until

EXAMPLES = 20


@pytest.fixture
def project(tmp_path, monkeypatch):
    project = Project(tmp_path / "project")
    monkeypatch.setenv("RULERKIT_HOME", str(project.root))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    project.notebook("50_asks")
    return project


def batch_of(project, *models, **parameters):
    """A batch of `a`, or of these models, and one notebook over them."""
    content = {"models": [told(name) for name in models or "a"], "together": ["50_asks"]}
    return project.batch(content | {"parameters": parameters})


def power_cut(batch):
    batch.kill_everything()


def killed_alone(batch):
    """As by the kernel that is short of memory; nobody is left to end its steps."""
    batch.process.kill()


def terminated(batch):
    batch.process.terminate()


def interrupted(batch):
    """Ctrl-C reaches all that stands in the foreground of the terminal."""
    os.killpg(batch.process.pid, signal.SIGINT)


def hung_up(batch):
    """The connection to the machine broke."""
    os.killpg(batch.process.pid, signal.SIGHUP)


ACCIDENTS = (
    (power_cut, -signal.SIGKILL),
    (killed_alone, -signal.SIGKILL),
    (terminated, 128 + signal.SIGTERM),
    (interrupted, 128 + signal.SIGINT),
    (hung_up, -signal.SIGHUP),
)

WAITS = """\
from pathlib import Path
import time
Path("{0}/kernel").touch()
while Path("{0}/hold").exists(): time.sleep(0.05)
"""


@pytest.mark.slow
def test_whatever_ends_a_batch_the_same_command_goes_on(project):
    """While its model answers, then while its notebook runs."""
    project.notebook("50_asks", source=WAITS.format(project.root))
    (project.root / "hold").touch()
    batch = batch_of(project, num_examples=EXAMPLES)
    rows = project.root / "outputs/predictions/main/a/vt/1024.jsonl"
    project.set("a", "pace", 0.2)
    lines = []
    for accident, status in ACCIDENTS:
        before, known = project.journal(), len(lines)
        with project.started("batch", batch) as running:
            wait_until("it goes on", lambda n=known: count_lines(rows) > n)
            strike(running, accident, status)
        now = rows.read_bytes().splitlines(keepends=True)
        assert now[: len(lines)] == lines, accident.__name__
        lines = [line for line in now if line.endswith(b"\n")]
        asked = [row.prompt for row in project.journal()]
        again = set(asked[: len(before)]) & set(asked[len(before) :])
        # Only what was not written yet is asked again.
        assert again <= set(asked[len(before) - 1 : len(before)])
        assert state(batch, "a predictions") == "interrupted"
    assert len(lines) < EXAMPLES, "the last accident came too late: a slower pace is needed"

    project.set("a", "pace", 0)
    for accident, status in (ACCIDENTS[1], ACCIDENTS[2]):
        (project.root / "kernel").unlink(missing_ok=True)
        with project.started("batch", batch) as running:
            wait_until("its notebook runs", (project.root / "kernel").exists)
            strike(running, accident, status)
        assert state(batch, "all 50_asks") == "interrupted"
    answers = rows.read_bytes()
    assert answers.splitlines(keepends=True)[: len(lines)] == lines

    (project.root / "hold").unlink()
    ended = project.call("batch", batch)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert rows.read_bytes() == answers
    assert project.rows() == {"a/vt/1024": [*range(EXAMPLES)]}
    assert f"a {EXAMPLES} rows" in project.said("all/50_asks")
    assert len(project.journal()) <= EXAMPLES + len(ACCIDENTS)
    assert [file.name for file in project.root.rglob("*.lock")] == []
    assert [file.name for file in (project.root / "outputs").rglob(".*-*.*")] == []


def count_lines(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


def strike(running, accident, status):
    """An accident, behind which no process may be left."""
    accident(running)
    assert running.end()[0] == status, accident.__name__
    what = f"all is over after it was {accident.__name__}"
    wait_until(what, lambda: not running.alive(), seconds=15)
    said = running.out.read_text()
    assert "Traceback" not in said
    if accident is interrupted:
        assert said.endswith("rulerkit: stopped; run the same command again to resume\n")


def state(batch, title):
    return next(s.state for s in statuses(read_batch(batch).jobs) if s.job.title == title)


@pytest.mark.slow
def test_a_step_that_is_killed_is_told_and_tried_again(project):
    command = "batch", batch_of(project), "--only", "a"
    project.set("a", "meets", "go")
    with project.started(*command) as running:
        project.wait_for("a")
        os.kill(project.pid("a"), signal.SIGKILL)
        status, said = running.end()
    assert status == 1
    told_so = r"^failed +a predictions .*; killed by SIGKILL \(out of memory\?\): "
    assert re.search(told_so, said, re.MULTILINE)
    project.go()
    said = project.call(*command).stdout
    assert re.search(r"^done +a predictions +1/1 cells", said, re.MULTILINE)


def lock_elsewhere(lock, expires):
    """The lock of a process on another machine, by an owner with a job number."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text(flufl.lock.SEP.join([str(lock), "node7,another,12", "1", "7"]))
    os.utime(lock, (expires, expires))


def test_a_job_of_a_living_host_is_left_to_it_and_that_of_a_dead_one_taken_over(project):
    job = read_batch(batch_of(project)).jobs[0]
    lock = job.lock
    lock_elsewhere(lock, time.time() + 600)
    (running,) = statuses([job])
    assert (running.state, running.message) == ("running", "process 1 on host node7, job 12")
    (locked,) = outcomes(execute([job]))
    assert locked.state == "locked"
    assert "a is locked by process 1 on host node7" in locked.message
    lock_elsewhere(lock, time.time() - 60)
    assert [step.state for step in statuses([job])] == ["missing"]
    assert [status.state for status in outcomes(execute([job]))] == ["done"]
    assert not lock.exists()


@pytest.mark.slow
def test_a_job_is_done_by_one_process_and_left_to_it_by_the_other(project):
    batch = batch_of(project, "a", "b")
    project.set("a", "meets", "go")
    with project.started("batch", batch) as first:
        project.wait_for("a")
        second = project.call("batch", batch)
        assert second.returncode == 75
        assert f"a is locked by process {first.process.pid} on host " in second.stdout
        assert "2 steps are not done: a predictions (locked), all 50_asks" in second.stderr
        assert project.call("status", batch).returncode == 3
        project.go()
        assert first.end()[0] == 0
    assert [set(project.asked(name).values()) for name in "ab"] == [{1}] * 2
    assert "a+b 4 rows" in project.said("all/50_asks")
    assert list(project.root.rglob("*.lock")) == []

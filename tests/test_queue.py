"""The jobs of one machine, with pretended GPUs: never two runs on one, all of them used, several
models side by side."""

import fcntl
import os
import re
import stat
import subprocess
import sys
import tempfile
from itertools import combinations
from pathlib import Path

import pytest

from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.execution import check, execute
from rulerkit.batch.gpu_pool import GpuPool, use_gpus
from rulerkit.common.errors import ExitStatus, UserError
from tests.batches import Project, outcomes, told, wait_until

ROOT = Path(__file__).resolve().parents[1]
UUID = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project, whose GPUs are locked in a folder of its own."""
    project = Project(tmp_path / "project")
    monkeypatch.setenv("RULERKIT_HOME", str(project.root))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # what is set later is taken back
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(project.root / "tmp"))
    project.notebook("50_asks")
    return project


def jobs_of(project, models, **parameters):
    """The models' jobs alone, without notebooks: they are asked what a notebook over all would
    need."""
    content = {"models": models, "together": ["50_asks"], "parameters": parameters}
    jobs = [job for job in read_batch(project.batch(content)).jobs if job.model]
    for job in jobs:
        job.save()
    return jobs


def run(jobs, gpus=(), side_by_side=None):
    states = outcomes(execute(jobs, gpus, side_by_side))
    assert {each.step.title: each.message for each in states if each.state != "done"} == {}


def overlapping(rows):
    """The questions to different models that were under way at the same time."""
    pairs = combinations(rows, 2)
    return [(a, b) for a, b in pairs if a.model != b.model and a.begin < b.end and b.begin < a.end]


def gpus(row):
    assert row.gpus is not None
    return set(filter(None, row.gpus.split(",")))


# --- which GPUs are here --------------------------------------------------------------------------


def test_gpus_are_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,6")
    assert use_gpus(None) == ["5", "6"]
    assert use_gpus("1-3,7") == ["1", "2", "3", "7"]
    assert use_gpus(f"{UUID},MIG-a-b") == [UUID, "MIG-a-b"]
    assert use_gpus("") == []


TWO_GPUS = """#!/bin/sh
case "$*" in
*query-gpu=index*noheader*) echo 0; echo 1 ;;
*) exit 6 ;;
esac
"""


def is_locked(project, gpu):
    return not GpuPool([gpu]).hold(1)


def test_what_nvidia_smi_lists_is_used_and_locked(project, monkeypatch):
    tool = project.root / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{project.root}{os.pathsep}{os.environ['PATH']}")
    tool.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    assert use_gpus(None) == []
    tool.write_text(TWO_GPUS)
    assert use_gpus(None) == ["0", "1"]
    (job,) = jobs_of(project, [told("a", gpus=2)])
    for status in execute([job], ["0", "1", "2"]):
        if status and status.state == "running":
            assert [is_locked(project, gpu) for gpu in "012"] == [True, True, False]
    assert status.state == "done" or not status
    assert not is_locked(project, "0")
    assert {row.gpus for row in project.journal()} == {"0,1"}


def test_a_job_that_can_never_run_here_is_refused_before_any_begins(project):
    jobs = jobs_of(project, [told("a"), told("large", gpus=4)])
    with pytest.raises(UserError, match=r"^large needs 4 GPUs, here are 2 \(0, 1\): lower .*-y 'm"):
        check(jobs, ["0", "1"])
    check(jobs, [])
    check(jobs, ["0", "1", "2", "3"])
    with pytest.raises(UserError, match=r"^spread is spread over 2 nodes: submit it to Slurm"):
        check(jobs_of(project, [told("spread", gpus=1, nodes=2)]), ["0"])
    run(jobs[1:], use_gpus("0-3"))
    check(jobs, ["0"])  # where only notebooks are left no GPU is needed
    assert [status.state for status in outcomes(execute(jobs[1:], ["0"]))] == ["done before"]


# --- handing them out -----------------------------------------------------------------------------


def test_never_two_runs_on_one_gpu_and_all_of_them_used(project):
    """Models that take 4, 2, 2, 1, 1 and 1 of four GPUs, and one that takes none; those that can
    must run at once."""
    sizes = {"d": 1, "e": 1, "f": 1, "b": 2, "c": 2, "a": 4, "g": 0}
    for name, others in (("b", "c"), ("c", "b"), ("d", "e f"), ("e", "d f"), ("f", "d e")):
        project.set(name, "meets", others)
    run(jobs_of(project, [told(n, gpus=size) for n, size in sizes.items()]), use_gpus("0-3"))
    rows = project.journal()
    assert {row.model: len(gpus(row)) for row in rows} == sizes
    assert all(not gpus(a) & gpus(b) for a, b in overlapping(rows))
    assert {row.gpus for row in rows if row.model == "g"} == {""}, "it runs beside, and sees none"
    used = [set().union(*(gpus(row) for row in rows if row.model in n)) for n in ("bc", "def")]
    assert list(map(len, used)) == [4, 3], "at the same time"
    order = list(dict.fromkeys(row.model for row in rows if row.model != "g"))
    assert [sizes[name] for name in order] == [4, 2, 2, 1, 1, 1], "the largest first"


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_what_another_user_put_in_the_place_of_a_lock_is_named(tmp_path, monkeypatch, kind):
    """A FIFO would block whoever opens it; a link would make a file elsewhere."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    place = tmp_path / "rulerkit-gpu-0"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"rulerkit-gpu-0, .* --gpus and TMPDIR"):
        GpuPool(["0"]).hold(1)
    assert list(tmp_path.iterdir()) == [place]


def test_the_gpus_of_a_scheduler_are_shared_out_without_locks(project, monkeypatch):
    """Another job on this machine may have other GPUs by the same numbers."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with (project.root / "tmp/rulerkit-gpu-0").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for name in "abc":
            project.set(name, "pace", 0.3)
        run(jobs_of(project, [told(name, gpus=1) for name in "abc"]), ["0", "1"])
    rows = project.journal()
    assert {row.gpus for row in rows} == {"0", "1"}
    assert all(a.gpus != b.gpus for a, b in overlapping(rows))


# --- two batches on one machine -------------------------------------------------------------------


@pytest.mark.slow
def test_two_batches_share_the_gpus_and_ask_nothing_twice(project):
    """The same batch twice, and another one beside it, at the same time on the same two GPUs. Of
    the same two, either may leave a job to the other and end with 75; the next call finds all done.
    """
    project.set("b", "meets", "go")
    common = {"together": ["50_asks"], "parameters": {"run": "one", "num_examples": 3}}
    one = project.batch({"models": [told("a", gpus=1), told("b", gpus=2)], **common}, "one")
    models = [told("c", gpus=2), told("d", gpus=1)]
    other = project.batch({**common, "models": models, "parameters": {"run": "other"}}, "other")
    with project.started("batch", one, "--gpus", "0,1") as first:
        project.wait_for("b")
        with (
            project.started("batch", one, "--gpus", "1,0") as second,
            project.started("batch", other, "--gpus", "0,1") as third,
        ):
            waiting = "waiting: other processes hold the GPUs"
            for each in (second, third):
                wait_until("it waits", lambda each=each: waiting in each.out.read_text())
            project.go()
            ended = [each.end() for each in (first, second, third)]
    assert ended[2][0] == 0, ended
    for status, said in ended[:2]:
        assert status == (ExitStatus.ELSEWHERE if "elsewhere" in said else 0), said
    assert project.call("batch", one, "--gpus", "0,1").returncode == 0
    rows = project.journal()
    assert all(not gpus(a) & gpus(b) for a, b in overlapping(rows))
    assert [set(project.asked(name).values()) for name in "abcd"] == [{1}] * 4
    assert "a+b 6 rows" in project.said("all/50_asks", "one")
    assert "c+d 4 rows" in project.said("all/50_asks", "other")
    assert list(project.root.rglob("*.lock")) == []


@pytest.mark.slow
def test_a_gpu_that_a_dead_process_held_is_free(project):
    """Its number must not reach a process that was given none."""
    (job,) = jobs_of(project, [told("a", gpus=1)], num_examples=1)
    project.set("a", "meets", "go")
    with project.started("run", job.file, "--gpus", "0") as killed:
        project.wait_for("a")
        killed.kill_everything()
    project.go()
    run([job], ["0"])
    (other,) = jobs_of(project, [told("b", gpus=1)])
    assert project.call("run", other.file, "--gpus", "", CUDA_VISIBLE_DEVICES="0,1").returncode == 0
    assert {row.gpus for row in project.journal() if row.model == "b"} == {""}


@pytest.mark.slow
def test_a_job_is_done_by_one_process_and_named_by_the_other(project, tmp_path):
    """From another folder, so that only the job file says where the project is."""
    (job,) = jobs_of(project, [told("a")], num_examples=3)
    project.set("a", "meets", "go")
    with project.started("run", job.file) as first:
        project.wait_for("a")
        second = project.call("run", job.file)
        whole = project.call(
            "batch", project.root / "params/batches/mine.yaml", "-y", "num_examples: 3"
        )
        status = project.call("status", job.file.parents[1])
        project.go()
        pid = first.process.pid
        ended, said = first.end()
        # on a busy machine a line of progress comes first
    assert ended == 0
    assert re.search(r"^done +a predictions", said, re.MULTILINE), said
    assert (second.returncode, second.stderr) == (75, "")
    assert re.match(rf"elsewhere +a predictions .*; process {pid} on host ", second.stdout)
    assert (whole.returncode, status.returncode) == (75, 3)
    assert (
        "another process is doing a part of this batch: run the same command again" in whole.stderr
    )
    assert "page:" not in whole.stdout
    assert set(project.asked("a").values()) == {1}
    (tmp_path / "empty").mkdir()
    file = os.path.relpath(job.file, tmp_path / "empty")
    again = project.call("run", file, file, cwd=tmp_path / "empty", RULERKIT_HOME="")
    assert again.stdout == "1 step was done before; nothing was asked again\n"
    assert list((tmp_path / "empty").iterdir()) == []


def test_gpus_are_seen_without_nvidia_smi(tmp_path, monkeypatch):
    """As on a machine with AMD's: torch counts them, and children get them under both names."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text(
        "class cuda:\n    device_count = staticmethod(lambda: 2)\n"
    )
    info = tmp_path / "torch-9.0.dist-info"
    info.mkdir()
    code = (
        "from rulerkit.common.gpus import visible_gpus, visible_to_child as child\n"
        "print(visible_gpus(), child(['1']))"
    )
    environment = {"PATH": "", "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    seen = []
    for version, more in (
        ("9.0+rocm7", {}),
        ("9.0+cpu", {}),
        ("9.0+rocm7", {"HIP_VISIBLE_DEVICES": "3"}),
        ("9.0+rocm7", {"CUDA_VISIBLE_DEVICES": "5"}),
    ):
        (info / "METADATA").write_text(f"Name: torch\nVersion: {version}\n")
        ended = subprocess.run(
            [sys.executable, "-c", code], env=environment | more, capture_output=True, text=True
        )
        seen.append(ended.stdout.strip() or ended.stderr)
    one = "{'CUDA_VISIBLE_DEVICES': '1'}"
    both = "{'CUDA_VISIBLE_DEVICES': '1', 'HIP_VISIBLE_DEVICES': '1'}"
    assert seen == [f"['0', '1'] {one}", f"[] {one}", f"['3'] {both}", f"['5'] {one}"]

"""The jobs of one machine: one model after the other, and one process at each."""

import os
import stat
from itertools import combinations
from pathlib import Path

import pytest

from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.execution import execute
from rulerkit.common.gpus import visible_gpus
from tests.batches import Project, outcomes, told

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def project(tmp_path, monkeypatch):
    project = Project(tmp_path / "project")
    monkeypatch.setenv("RULERKIT_HOME", str(project.root))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    project.notebook("50_asks")
    return project


def jobs_of(project, models, **parameters):
    """The models' jobs alone, without notebooks: they are asked what a notebook over all would
    need."""
    content = {"models": models, "together": ["50_asks"], "parameters": parameters}
    return [job for job in read_batch(project.batch(content)).jobs if job.model]


def run(jobs):
    states = outcomes(execute(jobs))
    assert {each.job.title: each.message for each in states if each.state != "done"} == {}


def overlapping(rows):
    """The questions to different models that were under way at the same time."""
    pairs = combinations(rows, 2)
    return [(a, b) for a, b in pairs if a.model != b.model and a.begin < b.end and b.begin < a.end]


# --- which GPUs are here --------------------------------------------------------------------------


def test_what_nvidia_smi_lists_is_visible(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    tool.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    assert visible_gpus() == []
    tool.write_text('#!/bin/sh\ncase "$*" in *query-gpu=index*) echo 0; echo 1 ;; esac\n')
    assert visible_gpus() == ["0", "1"]


@pytest.mark.slow
def test_one_model_answers_after_the_other(project):
    for name in "abc":
        project.set(name, "pace", 0.1)
    run(jobs_of(project, [told(name, gpus=1) for name in "abc"]))
    rows = project.journal()
    assert {row.model for row in rows} == {*"abc"}
    assert overlapping(rows) == []


# --- two batches on one machine -------------------------------------------------------------------


@pytest.mark.slow
def test_a_job_is_done_by_one_process_and_left_to_it_by_the_other(project):
    batch = project.batch({"models": [told("a"), told("b")], "together": ["50_asks"]})
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

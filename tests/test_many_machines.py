"""Beyond one machine: job files that are read where the project lies elsewhere, machines with outputs
folders of their own, and the files for Kubernetes and SkyPilot, whose scripts run here as they are."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.jobs import read_job
from tests.batches import Project, told
from tests.projects import REPOSITORY, make_project, notebook

KUBERNETES = yaml.safe_load((REPOSITORY / "params/kubernetes-example.yaml").read_text())
SKYPILOT = yaml.safe_load((REPOSITORY / "params/skypilot-example.yaml").read_text())


@pytest.fixture
def home(monkeypatch):
    """No project root is named: it is found."""
    monkeypatch.delenv("RULERKIT_HOME", raising=False)
    yield
    os.environ.pop("RULERKIT_HOME", None)


def test_a_job_file_is_read_where_the_project_was_copied_to(tmp_path, monkeypatch, home):
    root = make_project(tmp_path / "here")
    file = root / "params/batches/mine.yaml"
    content = {"models": ["mute"], "notebooks": ["10_small"]}
    file.write_text(json.dumps(content))
    monkeypatch.chdir(root)
    (job,) = read_batch(file, {"outputs": str(root / "some/outputs")}).jobs
    job.save()
    text = job.file.read_text()
    # Where it was planned is said once, in the last line.
    assert str(tmp_path) not in text.rpartition("home: ")[0]

    # The first place is still there, and is not meant.
    copy = shutil.copytree(root, tmp_path / "there")
    moved = read_job(copy / job.file.relative_to(root))
    os.environ.pop("RULERKIT_HOME")
    assert moved.file == copy / job.file.relative_to(root)
    assert moved.runs[0].notebook == copy / "notebooks/10_small.ipynb"
    assert moved.runs[0].studies[0].outputs == copy / "some/outputs"
    assert moved.runs[0].parameters["outputs"] == "some/outputs"
    assert str(copy / "params/batches/mine.yaml") in moved.planned_by
    assert read_job(job.file) == job

    # A folder of one machine, outside the project.
    own = read_job(job.file, tmp_path / "own")
    assert own.file == tmp_path / "own/notebooks/main/mute/mine.job.yaml"
    assert own.runs[0].studies[0].outputs == tmp_path / "own"
    assert own.runs[0].parameters["outputs"] == str(tmp_path / "own")
    own.save()
    assert read_job(own.file) == own


def run_script(text, root, **environment):
    """A script of a manifest as it stands, with this interpreter's `rulerkit`."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", text],
        cwd=root,
        env={**os.environ, **environment, "PATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_kubernetes_file_is_a_job_whose_pods_keep_the_exit_status(tmp_path):
    spec = KUBERNETES["spec"]
    pod = spec["template"]["spec"]
    assert spec["completionMode"] == "Indexed"
    assert pod["restartPolicy"] == "Never"  # podFailurePolicy asks for it
    (codes,) = [
        rule["onExitCodes"] for rule in spec["podFailurePolicy"]["rules"] if "onExitCodes" in rule
    ]
    assert codes == {"operator": "In", "values": [75]}
    (container,) = pod["containers"]
    names = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == names

    # Each index runs its line, and its status is that of `rulerkit run`.
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin/rulerkit"
    program.write_text('#!/bin/sh\necho "$@ for $RULERKIT_JOB"\nexit 75\n')
    program.chmod(0o755)
    (tmp_path / "jobs.txt").write_text("outputs/a.job.yaml\noutputs/b c.yaml\n")
    *command, script = container["command"] + container["args"]
    assert command == ["bash", "-c"]
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command, script],
        cwd=tmp_path,
        env={"PATH": path, "JOB_COMPLETION_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "run outputs/b c.yaml for ruler-paper-1\n"
    assert done.returncode == 75


def test_the_kubernetes_file_holds_under_the_published_schema():
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    version = validate.latest_version()
    validate.validate(KUBERNETES, version, strict=True)
    with pytest.raises(validate.ValidationError):
        validate.validate(KUBERNETES | {"spec": {"completions": "x"}}, version, strict=True)


@pytest.mark.slow
def test_the_script_of_skypilot_runs_copies_and_resumes(tmp_path):
    """On a machine of its own; a second one goes on from the copy, and asks nothing again."""
    assert "xargs" not in SKYPILOT["run"]
    assert SKYPILOT["resources"]["job_recovery"]["recover_on_exit_codes"] == [75]
    project = Project(tmp_path / "project")
    (project.root / "params/models/first.yaml").write_text(json.dumps({"model": told("first")}))
    project.notebook("50_asks")
    project.batch({"models": ["mute"], "notebooks": ["50_asks"]}, "small")
    environment = {
        **project.environment,
        **{name: str(value) for name, value in SKYPILOT["envs"].items()},
        "MODEL": "first",
        "BATCH": "params/batches/small.yaml",
        "COPIES": str(tmp_path / "bucket"),
        "SKYPILOT_TASK_ID": "one",
    }
    done = run_script(SKYPILOT["run"], project.root, **environment)
    assert done.returncode == 0, done.stderr
    copied = tmp_path / "bucket/first/predictions/main/first/vt/1024.jsonl"
    assert len(copied.read_text().splitlines()) == 2

    shutil.rmtree(project.root / "node")
    done = run_script(SKYPILOT["run"], project.root, **environment)
    assert done.returncode == 0, done.stderr
    assert project.asked("first").total() == 2

    project.set("first", "broken", 1)
    shutil.rmtree(project.root / "node")
    shutil.rmtree(tmp_path / "bucket")
    done = run_script(SKYPILOT["run"], project.root, **environment)
    assert done.returncode == 1


@pytest.mark.slow
def test_six_jobs_on_three_machines_one_killed_twice_are_as_one_machine(tmp_path):
    """The report after a merge is that of one machine, and no answer is asked for again."""
    project = Project(tmp_path / "project")
    names = ["one", "two", "three", "four", "five", "six"]
    for name in ("two", "six"):
        project.set(name, "wrong", 1)
    notebook(
        project.root / "notebooks/60_all.ipynb",
        'models = None\ntasks = ["vt"]\nlengths = [1024]\nnum_examples = 2\n'
        'run = "main"\noutputs = "outputs"\n',
        "import rulerkit as rk\nstudy = rk.study(globals())\n"
        "cells = rk.evaluate(study, progress=False)\n"
        "print(rk.tables.table_text(rk.summarize(rk.score(cells))))\n",
    )
    file = project.batch(
        {
            "models": [told(name) for name in names],
            "together": ["60_all"],
            "parameters": {"tasks": ["vt", "niah_single_1"], "num_examples": 4},
        }
    )
    whole = project.call("batch", file, "-y", "outputs: whole")
    assert whole.returncode == 0, whole.stderr
    expected = project.call("report", project.root / "whole")
    (project.root / "journal.jsonl").unlink()

    planned = project.call("batch", file, "--plan").stdout.splitlines()
    jobs = [project.root / line for line in planned[:6]]
    assert [job.parent.name for job in jobs] == names

    # The second machine is killed as it asks its first model, and as it asks its second.
    project.set("three", "meets", "go")
    project.set("four", "meets", "go")
    place = tmp_path / "node-2"
    for name in ("three", "four"):
        with project.started("run", *jobs[2:4], "--outputs", place) as killed:
            project.wait_for(name)
            killed.kill_everything()
        (project.root / f"{name}.here").unlink()
        (project.root / f"{name}.meets").unlink()

    machines = {"node-1": jobs[:2], "node-2": jobs[2:4], "node-3": jobs[4:]}
    with ExitStack() as stack:
        started = [
            stack.enter_context(project.started("run", *own, "--outputs", tmp_path / name))
            for name, own in machines.items()
        ]
        for one in started:
            status, said = one.end()
            assert status == 0, said

    assert not (project.root / "outputs/predictions").exists()
    places = [tmp_path / name for name in machines]
    merged = project.call("merge", *places, "-o", project.root / "outputs")
    assert merged.returncode == 0, merged.stderr
    assert "12 cells, 48 rows" in merged.stdout
    before = len(project.journal())
    again = project.call("batch", file)
    assert again.returncode == 0, again.stderr
    assert len(project.journal()) == before

    report = project.call("report", project.root / "outputs")
    assert report.stdout == expected.stdout
    assert "Every answer of two is empty" in report.stdout
    folder = project.root / "whole/notebooks/main/all/60_all.ipynb"
    own = project.root / "outputs/notebooks/main/all/60_all.ipynb"
    outputs = [
        [cell["outputs"] for cell in json.loads(path.read_text())["cells"]]
        for path in (folder, own)
    ]
    assert outputs[0] == outputs[1]

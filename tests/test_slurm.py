"""A night on a real Slurm: jobs cancelled, pre-empted, timed out, a node lost, a wrong parameter;
all that can be done is. SLURM_TOOLS (or ../shared/tools) brings up a Slurm on one machine."""

import os
import re
import subprocess
import sys
import time
from collections import Counter

import pytest

from tests.slurm_cluster import BATCH, UP, Project, asked_in_vain, held, slurm

if not UP.exists():
    pytest.skip(f"no {UP}: SLURM_TOOLS names the folder with slurm-up.sh", allow_module_level=True)
if "RULERKIT_TEST_SLURM" not in os.environ:
    pytest.skip("needs minutes and a Slurm of its own: make test-slurm", allow_module_level=True)

THREE = {"50_first": ["vt"], "51_second": ["niah_single_1"], "52_third": ["fwe", "vt"]}
ONE = {"50_first": ["vt"]}
CPU = {"cpu_options": ["--partition=cpu"]}


@pytest.fixture(scope="module")
def cluster():
    with slurm() as environment:
        yield environment


@pytest.fixture
def make(cluster, tmp_path):
    """Makes projects on the cluster, in folders whose names hold what shells and Slurm read
    otherwise."""
    yield lambda name: Project(tmp_path / f"{name} it's 100%j", cluster)
    subprocess.run(["scancel", "--me"], env=cluster, timeout=60, check=True)


def test_a_night_with_every_accident(make):
    night = make("night")
    models = [held("preempted", 4), held("cancelled", 1), held("downed", 3)]
    models.append(held("timed", 0, hours=1 / 60))
    wrong = {"notebook": "52_third", "parameters": {"lengths": [64]}}
    wrong["models"] = [{"base": "perfect", "name": "wrong"}]
    night.plan(models, THREE, CPU, together=["50_first"])
    night.add(wrong)
    # notebooks and models without GPUs run on a node of their own choice, which no urgent job takes
    partition = "partitionname=cpu", "nodes=node1", "prioritytier=10", "preemptmode=off"
    night.call("scontrol", "create", *partition)

    assert night.submit()["submitted"] == 6  # five models, one notebook over all of them
    names = [model["name"] for model in models]
    night.wait("all hold", lambda: all(night.holds(name) for name in names))
    night.wait("the wrong one has failed", lambda: "wrong" not in night.queue())
    again = night.submit()
    assert (again["in queue"], again["submitted"], again["submitted wrong"]) == (5, 1, 1)

    queue = night.queue()
    gpus = {"preempted": 4, "cancelled": 1, "downed": 3}
    # the minute of `timed` may be over at any moment on a slow machine: then it has no node
    for row in (row for row in night.journal() if row.model != "timed"):
        assert len((row.gpus or "").split(",")) == gpus[row.model]
        assert (row.job, row.node) == (queue[row.model].number, queue[row.model].node)
    assert (queue["preempted"].node, queue["downed"].node) == ("node1", "node2")
    # with Slurm's word, and from the files alone
    for seen in (night.status(), night.status(PATH="/nowhere")):
        assert [seen[f"{name} predictions"] for name in names if name != "timed"] == ["running"] * 3
        assert seen["preempted 51_second"] == "waiting"

    night.call("scancel", queue["cancelled"].number)
    urgent = "--partition=urgent", "--nodelist=node1", "--gres=gpu:4", "--output=/dev/null"
    night.call("sbatch", *urgent, "--wrap", "sleep 2")
    night.call("scontrol", "update", "nodename=node2", "state=down", "reason=test")
    night.wait("downed is back in the queue", lambda: night.queue()["downed"].restarts == 1)
    assert night.status()["downed predictions"] == "waiting"
    # it may be back by itself
    night.call("scontrol", "update", "nodename=node2", "state=resume", check=False)
    night.wait(
        "all run again",
        lambda: all(night.holds(name, life=2) for name in ("preempted", "downed", "timed")),
    )
    night.go()
    night.wait("all have ended", lambda: not night.queue())
    assert "NODE FAILURE" in night.out("downed")

    seen = night.status()
    whole, steps = ("preempted", "downed", "timed"), ("predictions", *THREE)
    done = {f"{name} {step}" for name in whole for step in steps}
    told = night.rulerkit("status", night.file, check=False)
    assert {title for title, state in seen.items() if state == "done"} == done, told
    assert (seen["cancelled predictions"], seen["wrong predictions"]) == ("interrupted", "failed")
    assert seen["all 50_first"] == "incomplete"
    said = night.out("all", "50_first")
    assert re.search("all 50_first +1 of 4 cells are incomplete, the first is cancelled vt", said)

    last = night.submit()
    names_again = ("cancelled", "wrong", "50_first", "downed")
    assert [last[f"submitted {name}"] for name in names_again] == [1, 1, 1, 0]
    night.wait("all have ended", lambda: not night.queue())
    seen = night.status()
    left = {title for title, state in seen.items() if state != "done"}
    assert left == {"wrong predictions", "wrong 52_third"}
    assert Counter(seen.values()) == {"done": 17, "failed": 1, "missing": 1}
    said = [line for line in night.out("wrong").splitlines() if line.startswith("failed ")]
    assert len(said) == 3  # one of each job
    assert "fwe does not fit into 64 tokens" in said[0]
    last = night.submit()
    assert (last["submitted"], last["submitted wrong"], last["in queue"]) == (1, 1, 0)

    for name in names:
        assert night.indices(name) == {task: [*range(8)] for task in ("vt", "niah_single_1", "fwe")}
        lives = night.lives(name)
        # whose time is over again on a slow machine
        assert len(lives) == 2 or (name == "timed" and len(lives) > 2)
        assert asked_in_vain(lives) == []  # nor anything of a cell that was complete
        asked = Counter(prompt for rows in lives for row in rows for prompt in row.asked)
        assert len(asked) == 3 * 8
        # each kill with one call under way
        assert 0 < asked.total() - 3 * 8 <= BATCH * (len(lives) - 1)
        assert all((night.folder / f"{name}/{notebook}.ipynb").exists() for notebook in THREE)


def test_a_notebook_in_the_queue_waits_for_the_new_job_of_a_model(make):
    place = make("again")
    place.plan([held("one", 1), held("two", 1)], ONE, {}, examples=20, together=["50_first"])
    place.submit()
    place.wait("both hold", lambda: place.holds("one") and place.holds("two"))
    place.call("scancel", place.queue()["two"].number)
    place.wait("one is gone", lambda: "two" not in place.queue())
    again = place.submit()
    assert (again["submitted two"], again["in queue"]) == (1, 2)
    place.wait("it holds again", lambda: place.holds("two", life=2))
    place.go()
    place.wait("all have ended", lambda: not place.queue())
    assert set(place.status().values()) == {"done"}


def test_a_job_that_may_not_go_back_comes_again_as_another(make):
    place = make("restarts")
    wrapper = place.root / "bin/scontrol"
    wrapper.parent.mkdir()
    wrapper.write_text("#!/bin/bash\nexit 1\n")
    wrapper.chmod(0o755)
    setup = {"setup": ['PATH="$RULERKIT_HOME/bin:$PATH"']}
    place.plan([held("resubmitted", 1)], ONE, setup, examples=12)
    assert place.submit()["submitted"] == 1
    place.wait("it holds", lambda: place.holds("resubmitted"))
    number = place.queue()["resubmitted"].number
    place.call("scancel", "--batch", "--signal=USR1", number)
    place.wait("a new job waits", lambda: "resubmitted again" in place.queue())
    place.call("scancel", number)  # its time is over
    place.wait("it holds again", lambda: place.holds("resubmitted", life=2))
    place.go()
    place.wait("all have ended", lambda: not place.queue())
    assert set(place.status().values()) == {"done"}
    assert place.indices("resubmitted") == {"vt": [*range(12)]}
    assert asked_in_vain(place.lives("resubmitted")) == []


def test_the_twentieth_start_is_the_last(make):
    place = make("starts")
    place.plan([held("never-ends", 0)], ONE, {})
    assert place.submit()["submitted"] == 1
    place.wait("it holds", lambda: place.holds("never-ends"))
    place.call("scancel", "--me")
    place.wait("it has ended", lambda: not place.queue())
    (script,) = place.folder.glob("*/*.sh")
    place.call("sbatch", script, "19")
    place.wait("it holds", lambda: place.holds("never-ends", life=2))
    number = place.queue()["never-ends"].number
    place.call("scancel", "--batch", "--signal=USR1", number)
    time.sleep(5)
    assert place.queue().keys() == {"never-ends"}
    assert place.queue()["never-ends"].restarts == 0


def test_a_model_over_two_nodes_has_its_share_started_on_the_other_one(make):
    """vLLM itself was not run over nodes: its build for CPUs does not know how."""
    place = make("nodes")
    starts = place.root / "starts"
    launcher = place.root / "launcher"
    launcher.write_text(
        f'#!/bin/bash\necho "$SLURMD_NODENAME $CUDA_VISIBLE_DEVICES $*" >> {str(starts)!r}\nexec "$@"\n'
    )
    launcher.chmod(0o755)
    site = {"python": f'"$RULERKIT_HOME/launcher" {sys.executable}'}
    place.plan([held("wide", 2, nodes=2)], ONE, site)
    place.go()
    assert place.submit()["submitted"] == 1
    place.wait("it has ended", lambda: not place.queue())
    assert set(place.status().values()) == {"done"}
    lines = [line.split() for line in starts.read_text().splitlines()]
    seen = sorted((line[0], line[1], line[4]) for line in lines)
    assert seen == [("node1", "0,1", "rulerkit"), ("node2", "0,1", "rulerkit")]
    assert [line[-1] for line in lines if line[0] == "node2"] == ["1"]


def test_what_sbatch_refuses_is_one_line_and_what_a_node_refuses_is_told(make):
    place = make("refused")
    place.plan([held("one", 1)], ONE, {"gpu_options": ["--partition=nowhere"]})
    said = place.rulerkit("batch", place.file, "--slurm", check=False)
    assert said.count("\n") == 1
    assert "invalid partition specified: nowhere" in said
    assert "fix params/site.yaml" in said
    place.plan([held("one", 1)], ONE, {"python": "no-such-launcher --nv python"})
    assert place.rulerkit("batch", place.file, "--slurm", "--dry-run").count("#!/bin/bash") == 1
    assert place.queue() == {}
    assert place.submit()["submitted"] == 1
    place.wait("it has ended", lambda: not place.queue())
    told = place.rulerkit("status", place.file, check=False)
    assert place.status()["one predictions"] == "missing"
    assert re.search(r"log: \S+one\.out", told.replace(str(place.root), ""))
    assert "no-such-launcher: command not found" in place.out("one")

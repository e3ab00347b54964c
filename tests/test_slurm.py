"""A night on a real Slurm: jobs cancelled, pre-empted, timed out, a node lost, a wrong parameter; all that can be done is.

Needs the scripts that bring up a Slurm on one machine, in the folder that SLURM_TOOLS names or in ../shared/tools.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.projects import make_project, notebook

REPOSITORY = Path(__file__).parents[1]
TOOLS = Path(os.environ.get("SLURM_TOOLS") or REPOSITORY.parent / "shared/tools")
UP, DOWN = TOOLS / "slurm-up.sh", TOOLS / "slurm-down.sh"
if not UP.exists():
    pytest.skip(f"no {UP}: SLURM_TOOLS names the folder with slurm-up.sh", allow_module_level=True)
if "RULERKIT_TEST_SLURM" not in os.environ:
    pytest.skip("needs two minutes and a Slurm of its own: make test-slurm", allow_module_level=True)

SLOW = """\
import json, os, time
from pathlib import Path
from rulerkit.tasks import read_answer

JOURNAL = Path(__file__).with_name("journal.jsonl")

def load():
    def answer(prompts):
        for prompt in prompts:
            with JOURNAL.open("a") as file:
                row = [os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ.get("SLURM_JOB_ID"), hash(prompt)]
                file.write(json.dumps(row) + chr(10))
        time.sleep(1.0)
        return [read_answer(prompt) or "" for prompt in prompts]
    return answer
"""
ASKS = """\
import rulerkit as rk
study = rk.study(globals(), notebook="{name}", tasks={tasks})
cells = rk.evaluate(study, progress=False)
print(study.title, [len(cell.rows) for cell in cells])
"""
PARAMETERS = """\
model = "reader-8192"
models = None
lengths = [1024]
num_examples = 10
run = "main"
outputs = "outputs"
"""


class Cluster:
    """A Slurm of two nodes with four pretended GPUs each, and a project on it."""

    def __init__(self, root: Path, environment: dict[str, str]) -> None:
        self.root, self.environment = root, environment

    def call(self, *command: object, check: bool = True) -> str:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=300, env=self.environment, cwd=self.root
        )
        assert not check or done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
        assert "Traceback" not in done.stderr
        return done.stdout

    def rulerkit(self, *arguments: object, check: bool = True) -> str:
        return self.call(sys.executable, "-m", "rulerkit", *arguments, check=check)

    def queue(self) -> dict[str, tuple[str, str, str, int]]:
        """State, node, number and restarts of each model's job."""
        found = {}
        for line in self.call("squeue", "-h", "-a", "-o", "%j|%T|%N|%A").splitlines():
            name, state, node, number = line.split("|")
            about = self.call("scontrol", "show", "job", number)
            restarts = int(about.partition("Restarts=")[2].split()[0])
            found[name.rpartition("-")[0].rpartition("-")[2]] = (state, node, number, restarts)
        return found

    def rows(self, model: str) -> int:
        files = (self.root / f"outputs/predictions/night/{model}").rglob("*.jsonl")
        return sum(file.read_bytes().count(b"\n") for file in files)

    def wait(self, what: str, until: Callable[[], object], seconds: float = 150) -> None:
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline, f"gave up waiting until {what}: {self.queue()}"
            time.sleep(0.5)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("slurm")
    state = Path(f"/tmp/rulerkit-slurm.{os.getpid()}")  # a short path: sockets have short names
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
    up = subprocess.run([UP, "--state", state], capture_output=True, text=True, timeout=300, env=environment)
    if up.returncode:
        pytest.fail(f"no Slurm came up: {up.stderr[-2000:]}")
    try:
        conf = up.stdout.strip().rpartition("SLURM_CONF=")[2]
        root = make_project(folder / "project")
        yield Cluster(root, environment | {"SLURM_CONF": conf, "RULERKIT_HOME": str(root)})
    finally:
        subprocess.run([DOWN, "--state", state], capture_output=True, timeout=120, env=environment)


def model(name: str, gpus: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "entry": "slow:load", "batch_size": 1, "gpus": gpus, "hours": 0.2, **more}


def test_a_night_with_every_accident(cluster: Cluster) -> None:
    root = cluster.root
    (root / "slow.py").write_text(SLOW)
    for name, tasks in (("50_first", '["vt"]'), ("51_second", '["niah_single_1"]'), ("52_third", '["fwe", "vt"]')):
        notebook(root / f"notebooks/{name}.ipynb", PARAMETERS, ASKS.format(name=name, tasks=tasks))
    models = [
        model("preempted", 4),
        model("cancelled", 1),
        model("downed", 2),
        model("timed", 1, hours=1 / 60),
    ]
    wrong = {"notebook": "52_third", "models": ["wrong"], "parameters": {"lengths": [64]}}
    content = {
        "models": models,
        "notebooks": ["50_first", "51_second", "52_third"],
        "together": ["50_first"],
        "parameters": {"run": "night", "num_examples": 25},
    }
    content["notebooks"].append({**wrong, "models": [{"base": "perfect", "name": "wrong"}]})  # type: ignore[attr-defined]
    batch = root / "params/batches/night.yaml"
    batch.write_text(json.dumps(content))
    (root / "params/site.yaml").write_text(json.dumps({"signal_before": 25, "python": sys.executable}))

    said = cluster.rulerkit("batch", batch, "--slurm")
    print(said)
    assert said.count("submitted") == 6  # five models, one notebook over all of them
    for name in ("preempted", "cancelled", "downed", "timed"):
        cluster.wait(f"{name} has begun", lambda name=name: cluster.rows(name) > 2)
    again = cluster.rulerkit("batch", batch, "--slurm")
    assert again.count("in queue") == 5  # the wrong one has failed by now, and is tried again
    print(cluster.rulerkit("status", batch))

    queue = cluster.queue()
    cluster.call("scancel", queue["cancelled"][2])
    urgent = ["sbatch", "-p", "urgent", "-w", queue["preempted"][1], "--gres=gpu:4", "--parsable", "--output=/dev/null"]
    cluster.call(*urgent, "--wrap", "sleep 3")
    cluster.wait("preempted is restarted", lambda: cluster.queue()["preempted"][3] >= 1)
    node = cluster.queue()["downed"][1]
    cluster.call("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    cluster.wait("downed is back in the queue", lambda: cluster.queue()["downed"][3] >= 1)
    cluster.call(
        "scontrol", "update", f"nodename={node}", "state=resume", check=False
    )  # it may have come back by itself
    cluster.wait("timed is restarted", lambda: cluster.queue().get("timed", ("", "", "", 9))[3] >= 1)
    print(cluster.rulerkit("status", batch, "--cells"))
    cluster.wait(
        "all have ended",
        lambda: all(state[0] not in ("PENDING", "RUNNING", "COMPLETING") for state in cluster.queue().values()),
        300,
    )
    print(cluster.rulerkit("status", batch))
    print(cluster.rulerkit("batch", batch, "--slurm"))
    cluster.wait("all have ended", lambda: not cluster.queue(), 300)
    print(cluster.rulerkit("status", batch))
    for log in root.rglob("*.out"):
        print("==", log, "\n", log.read_text()[-1500:])
    for name in ("preempted", "cancelled", "downed", "timed"):
        assert cluster.rows(name) == 75
    rows = [tuple(json.loads(line)) for line in (root / "journal.jsonl").read_text().splitlines()]
    print(Counter(Counter(row[2] for row in rows).values()))

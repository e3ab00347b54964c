"""A Slurm of this machine for tests, projects on it, and models that write down who asked them
what, where and when."""

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.projects import REPOSITORY, make_project, notebook

TOOLS = Path(os.environ.get("SLURM_TOOLS") or REPOSITORY.parent / "shared/tools")
UP, DOWN = TOOLS / "slurm-up.sh", TOOLS / "slurm-down.sh"
PATIENCE = 240.0  # seconds for whatever a test waits for, on a busy machine
BATCH = 2
"""The prompts of one call of a model: what it may be asked again when it was killed."""

HELD = '''\
"""Models by any name, `held:NAME`. Each process answers two calls, then holds on until the file
`go` is there."""

import json, os, time
from itertools import count
from pathlib import Path
from zlib import crc32

from rulerkit.generation.tasks import read_answer

ROOT = Path(__file__).parent


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)
    name = name.replace("_", "-")

    def note(*asked):
        row = {"model": name, "pid": os.getpid(), "asked": asked}
        with (ROOT / "journal.jsonl").open("a") as journal:
            journal.write(json.dumps(row) + chr(10))

    def load():
        calls = count(1)

        def answer(prompts):
            note(*(crc32(prompt.encode()) for prompt in prompts))
            held = next(calls) > 2
            while held and not (ROOT / "go").exists():
                time.sleep(0.3)
            return [read_answer(prompt) or "" for prompt in prompts]

        return answer

    return load
'''
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
num_examples = 8
run = "main"
outputs = "outputs"
"""


def held(name, gpus, **more):
    """The spec of a model that holds on."""
    entry = f"held:{name.replace('-', '_')}"  # a Python name
    return {"name": name, "entry": entry, "version": "1", "batch_size": BATCH, "gpus": gpus, **more}


class Job(NamedTuple):
    """A job in the queue."""

    number: str
    state: str
    node: str
    restarts: int


class Row(NamedTuple):
    """A line of the journal."""

    model: str
    pid: int
    asked: list[int]


class Project:
    """A project root on the cluster, with notebooks that ask, and one batch."""

    def __init__(self, root, environment):
        self.root, self.run = make_project(root), root.name.split()[0]
        self.environment = environment | {"RULERKIT_HOME": str(root)}
        self.file = root / f"params/batches/{self.run}.yaml"
        self.folder = root / "outputs/notebooks" / self.run
        (root / "held.py").write_text(HELD)

    def plan(self, models, notebooks, site, examples=8, parameters=None, **more):
        """Write the batch file, the notebooks with the tasks that each asks, and the site file."""
        for name, tasks in notebooks.items():
            source = ASKS.format(name=name, tasks=json.dumps(tasks))
            notebook(self.root / f"notebooks/{name}.ipynb", PARAMETERS, source)
        parameters = {"run": self.run, "num_examples": examples, **(parameters or {})}
        content = {"models": models, "notebooks": [*notebooks], "parameters": parameters, **more}
        self.file.write_text(json.dumps(content))
        (self.root / "params/site.yaml").write_text(json.dumps(site))

    def add(self, entry):
        """A further line of the batch's notebooks."""
        content = json.loads(self.file.read_text())
        self.file.write_text(json.dumps(content | {"notebooks": [*content["notebooks"], entry]}))

    def call(self, *command, check=True, **more):
        """What a command says; it has to end well, and never with a traceback."""
        env, words = self.environment | more, [*map(str, command)]
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=300, env=env, cwd=self.root
        )
        assert not check or done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
        assert "Traceback" not in done.stderr
        return done.stdout if check else done.stdout + done.stderr

    def rulerkit(self, *arguments, check=True, **more):
        return self.call(sys.executable, "-m", "rulerkit", *arguments, check=check, **more)

    def submit(self):
        """`rulerkit batch --slurm`: how often it says `submitted` and `in queue`, by these words
        and by job."""
        said = self.rulerkit("batch", self.file, "--slurm")
        lines = re.findall(
            rf"^(submitted|in queue) \d+  rulerkit-{self.run}-(\S+)-\w{{6}} ", said, re.MULTILINE
        )
        return Counter([word for word, _ in lines] + [f"{word} {name}" for word, name in lines])

    def status(self, **more):
        """The state of each step, by its title."""
        lines = self.rulerkit("status", self.file, check=False, **more).splitlines()
        found = [re.match(r"(\w+) +(\S+ \S+)(?:  |$)", line) for line in lines]
        return {match[2]: match[1] for match in found if match}

    def queue(self):
        """The jobs of this project's run."""
        found = {}
        for line in self.call("squeue", "-h", "-a", "-o", "%A|%T|%N|%j").splitlines():
            number, state, node, name = line.split("|")
            if name.startswith(f"rulerkit-{self.run}-"):
                about = self.call("scontrol", "show", "job", number)
                restarts = int(about.partition("Restarts=")[2].split()[0])
                subject = name.removeprefix(f"rulerkit-{self.run}-").rpartition("-")[0]
                found[subject] = Job(number, state, node, restarts)
        return found

    def journal(self):
        """What the models wrote down."""
        file = self.root / "journal.jsonl"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [Row(**json.loads(line)) for line in lines if line.endswith("\n")]

    def lives(self, model):
        """The rows of each process of a model, in time."""
        found = defaultdict(list)
        for row in self.journal():
            if row.model == model:
                found[row.pid].append(row)
        return list(found.values())

    def holds(self, model, life=1):
        """Whether a model's process of this number has answered two calls and is at its third."""
        lives = self.lives(model)
        return len(lives) >= life and sum(bool(row.asked) for row in lives[life - 1]) >= 3

    def go(self):
        """Let all models answer."""
        (self.root / "go").touch()

    def indices(self, model):
        """The examples that a model's files hold, by task, as they stand there."""
        files = (self.root / f"outputs/predictions/{self.run}/{model}").rglob("*.jsonl")
        return {
            file.parent.name: [json.loads(line)["index"] for line in file.open()] for file in files
        }

    def out(self, subject, name=""):
        """What the jobs of a model have said, or others in this folder."""
        return (self.folder / subject / f"{name or subject}.out").read_text()

    def wait(self, what, until):
        """Wait until something holds."""
        deadline = time.monotonic() + PATIENCE
        while not until():
            seen = f"gave up waiting until {what}"
            assert time.monotonic() < deadline, f"{seen}: {self.queue()} {self.status()}"
            # Else Slurm looks once a minute.
            self.call("scontrol", "update", "partitionname=urgent", "state=up")
            time.sleep(0.5)


def asked_in_vain(lives):
    """The prompts that a process was asked though an earlier one had answered them: not in flight
    when that was killed."""
    answered = set()
    again = []
    for rows in lives:
        calls = [row.asked for row in rows if row.asked]
        again += [prompt for call in calls for prompt in call if prompt in answered]
        answered |= {prompt for call in calls[:-1] for prompt in call}
    return again


@contextmanager
def slurm():
    """A Slurm of two nodes with four pretended GPUs each: the environment of its users. Always torn
    down."""
    state = Path(f"/tmp/rulerkit-slurm.{os.getpid()}")  # a short path: sockets have short names
    own = ("SLURM_", "SBATCH_", "SQUEUE_", "RULERKIT_", "CUDA_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(own)}
    # Once this process closes the line, or is killed.
    end = ["bash", "-c", 'read -r; "$@"', "bash", DOWN, "--state", state]
    watcher = subprocess.Popen(
        end, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        command = [UP, "--state", state]
        up = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert up.returncode == 0, f"no Slurm came up: {up.stderr[-2000:]}"
        yield environment | {"SLURM_CONF": up.stdout.strip().rpartition("SLURM_CONF=")[2]}
    finally:
        assert watcher.stdin
        watcher.stdin.close()
        watcher.wait(120)

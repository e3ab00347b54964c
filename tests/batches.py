"""Batches under test: models that write down what they are asked, and the commands in processes of
their own."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.processes import hear_signals
from tests.projects import make_project, notebook

TOLD = '''\
"""Models by any name: `told:NAME` answers and writes down each question; the files NAME.* beside it say how."""

import json, os, time
from hashlib import sha256
from pathlib import Path

from rulerkit.common.errors import TooLong
from rulerkit.generation.tasks import read_answer

FOLDER = Path(__file__).parent


def said(name, what):
    file = FOLDER / f"{name}.{what}"
    return float(file.read_text()) if file.exists() else 0


def meet(name):
    meets, deadline = FOLDER / f"{name}.meets", time.time() + 100
    (FOLDER / f".{name}").write_text(str(os.getpid()))
    (FOLDER / f".{name}").rename(FOLDER / f"{name}.here")
    for other in meets.read_text().split() if meets.exists() else []:
        (FOLDER / f"{name}.waits").touch()
        while not (FOLDER / f"{other}.here").exists():
            assert time.time() < deadline, f"{name} waited for {other} in vain"
            time.sleep(0.02)


def __getattr__(name):
    if name.startswith("_"):
        raise AttributeError(name)

    def load():
        def answer(prompts):
            begin = time.time()
            if said(name, "broken"):
                raise RuntimeError(f"{name} is out of order")
            if 0 < said(name, "longest") < max(map(len, prompts)):
                raise TooLong("it has no memory for that; take fewer tokens")
            time.sleep(said(name, "pace"))
            meet(name)
            with (FOLDER / "journal.jsonl").open("a") as journal:
                for prompt in prompts:
                    row = {"model": name, "prompt": sha256(prompt.encode()).hexdigest()[:16], "begin": begin}
                    row |= {"end": time.time(), "pid": os.getpid()}
                    journal.write(json.dumps(row) + chr(10))
            return ["" if said(name, "wrong") else read_answer(prompt) or "" for prompt in prompts]

        return answer

    return load
'''
"""`pace`: seconds for a call; `longest`: the letters of a prompt that it takes; `meets`: the models
that must have been asked before it answers."""

ASKS = """\
import rulerkit as rk
study = rk.study(globals(), notebook="{name}"{more})
cells = rk.evaluate(study, progress=False)
print(study.title, sum(len(cell.rows) for cell in cells), "rows")
"""
PARAMETERS = """\
model = "mute"
models = None
tasks = ["vt"]
lengths = [1024]
num_examples = 2
shade = "grey"
run = "main"
outputs = "outputs"
"""


class Row(NamedTuple):
    """A question that was put to a model."""

    model: str
    prompt: str
    begin: float
    end: float
    pid: int


class Project:
    """A project root, and what is done in it."""

    def __init__(self, root):
        self.root = make_project(root)
        (root / "told.py").write_text(TOLD)
        (root / "tmp").mkdir()

    def set(self, model, what, value):
        """How a model behaves from now on."""
        (self.root / f"{model}.{what}").write_text(str(value))

    def wait_for(self, model):
        """Until a model is being asked."""
        wait_until(f"{model} is asked", (self.root / f"{model}.here").exists)

    def go(self):
        """Lets those answer that `meets` go."""
        (self.root / "go.here").touch()

    def notebook(self, name, more="", source=""):
        """A notebook that asks; `more` arguments of its study, `source` behind its question."""
        asks = ASKS.format(name=name, more=more) + source
        notebook(self.root / f"notebooks/{name}.ipynb", PARAMETERS, asks)

    def batch(self, content, name="mine"):
        """A batch file."""
        path = self.root / f"params/batches/{name}.yaml"
        path.write_text(json.dumps(content))
        return path

    @property
    def environment(self):
        """That of its commands."""
        plain = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        return {**plain, "RULERKIT_HOME": str(self.root), "TMPDIR": str(self.root / "tmp")}

    def call(self, *arguments, cwd=None, **environment):
        """A command, to its end. Whatever it is, it says no traceback."""
        command = [sys.executable, "-m", "rulerkit", *map(str, arguments)]
        env, where = {**self.environment, **environment}, cwd or self.root.parent
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=300, cwd=where, env=env
        )
        assert "Traceback" not in ended.stdout + ended.stderr, ended.stdout + ended.stderr
        return ended

    @contextmanager
    def started(self, *arguments, **environment):
        """A command in a session of its own; what is left of it in the end is killed."""
        mark = uuid.uuid4().hex
        command = [sys.executable, "-m", "rulerkit", *map(str, arguments)]
        out = self.root / f"tmp/{mark}"
        env = {**self.environment, **environment, "RULERKIT_TEST_MARK": mark}
        more = {"cwd": self.root.parent, "start_new_session": True, "preexec_fn": hear_signals}
        with out.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=env, **more)
        started = Started(process, mark, out)
        try:
            yield started
        finally:
            started.kill_everything()
            process.wait()

    def journal(self):
        """Every question that was answered, in order."""
        file = self.root / "journal.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        return [Row(**json.loads(line)) for line in lines]

    def pid(self, model):
        """The process in which a model answers."""
        return int((self.root / f"{model}.here").read_text())

    def asked(self, model):
        """How often a model was asked what."""
        return Counter(row.prompt for row in self.journal() if row.model == model)

    def rows(self, run="main"):
        """`model/task/length` -> the indices of its rows, whole lines only."""
        found = {}
        for name, file in named_files(self.root / f"outputs/predictions/{run}", "*.jsonl").items():
            whole = [line for line in file.open() if line.endswith("\n")]
            found[name] = [json.loads(line)["index"] for line in whole]
        return found

    def executed(self, run="main"):
        """`subject/notebook` -> when it was written."""
        found = named_files(self.root / f"outputs/notebooks/{run}", "*.ipynb")
        return {name: file.stat().st_mtime for name, file in found.items()}

    def book(self, name, run="main"):
        """An executed notebook."""
        return json.loads((self.root / f"outputs/notebooks/{run}/{name}.ipynb").read_text())

    def said(self, name, run="main"):
        """What an executed notebook printed."""
        outputs = [out for cell in self.book(name, run)["cells"] for out in cell.get("outputs", [])]
        return "".join("".join(out.get("text", [])) for out in outputs)


def named_files(folder, pattern):
    """Files below a folder by their paths without a suffix."""
    found = sorted(folder.rglob(pattern))
    return {str(file.relative_to(folder).with_suffix("")): file for file in found}


class Started(NamedTuple):
    """A command that runs, with all that it started: those whose environment holds its mark."""

    process: "subprocess.Popen[bytes]"
    mark: str
    out: Path

    def alive(self):
        """The processes of it that live."""
        mine = f"RULERKIT_TEST_MARK={self.mark}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
                if not dead and mine in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    def kill_everything(self):
        """SIGKILL for all of them, as in a power cut."""
        while left := self.alive():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def end(self):
        """Its exit status and what it said, once it has ended."""
        return self.process.wait(timeout=300), self.out.read_text()


def wait_until(what, true, seconds=120):
    """Look until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"gave up waiting until {what}"
        time.sleep(0.05)


def outcomes(statuses):
    """Of what `execute` says, how each step ended."""
    return [status for status in statuses if status.state != "running"]


def told(name, **more):
    """The spec of a model that writes down what it is asked."""
    return {"name": name, "entry": f"told:{name}", "version": "1", "batch_size": 1, **more}

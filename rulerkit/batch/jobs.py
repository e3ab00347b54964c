"""Jobs: what one process does in one go, as a file that any scheduler can hand to `rulerkit run`.

The job of a model lets it answer all that the batch's notebooks ask of it, loaded once, then
executes its own notebooks. The job of a notebook over several models executes that notebook on what
is kept. Everything about both stands in files beside the executed notebooks: `<batch>.job.yaml`
(what to do), `predictions.json` and `<notebook>.json` (records: how it went), `.log` (what was
said), `.lock` (while it runs).
"""

import json
import os
import shlex
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rulerkit.batch.needs import studies_of
from rulerkit.errors import UserError
from rulerkit.models import gpus_and_nodes
from rulerkit.paths import home
from rulerkit.scoring import completeness
from rulerkit.settings import read_yaml
from rulerkit.store import disk, plain, write_whole
from rulerkit.studies import Study, name_of, read_notebook


@dataclass(frozen=True)
class Ask:
    """A notebook with its parameters: what it hands to `evaluate` is what models have to answer."""

    notebook: Path
    parameters: dict[str, Any]

    @cached_property
    def studies(self) -> list[Study]:
        """The studies, found out by running the notebook's first lines with nobody asked."""
        return studies_of(self.notebook, self.parameters)


@dataclass(frozen=True)
class Run(Ask):
    """One execution of one notebook."""

    subject: str
    """The model it is about, or `all`."""
    output: Path
    """The executed notebook; its log and its record lie beside it."""

    @property
    def title(self) -> str:
        return f"{self.subject} {self.notebook.stem}"

    @property
    def log(self) -> Path:
        return self.output.with_suffix(".log")

    @property
    def record(self) -> Path:
        return self.output.with_suffix(".json")

    @property
    def command(self) -> list[str]:
        """The arguments of papermill."""
        given = yaml.safe_dump(
            self.parameters, default_flow_style=True, width=10**6, sort_keys=False
        ).strip()
        return [str(self.notebook), str(self.output), "-y", given]

    @property
    def source(self) -> str:
        """A digest of what would be executed: the code of the notebook and its parameters."""
        code = [
            "".join(cell["source"])
            for cell in read_notebook(self.notebook)
            if cell["cell_type"] == "code"
        ]
        return sha256(
            json.dumps([code, self.parameters], sort_keys=True, default=str).encode()
        ).hexdigest()[:16]


class Need(NamedTuple):
    """A cell that has to be there: whose, where, and how many examples."""

    model: str
    path: Path
    task: str
    length: int
    wanted: int

    @property
    def have(self) -> int:
        """How many of its examples are answered, by the files."""
        return completeness(self.path, self.wanted).have

    @property
    def problem(self) -> str:
        """What is wrong with it, such as failed requests or a damaged row; "" for nothing."""
        return completeness(self.path, self.wanted).problem

    def __str__(self) -> str:
        return f"{self.model} {self.task} at {self.length}"


@dataclass(frozen=True)
class Job:
    """What one process does: a model's answers and then its notebooks, or one notebook over several
    models."""

    name: str
    """The model's, or that of the notebook over several models."""
    file: Path
    model: dict[str, Any] | None
    """Who answers; None where only what is kept is read."""
    asks: tuple[Ask, ...]
    """Whose questions the model answers, or whose answers the notebook reads."""
    runs: tuple[Run, ...]
    after: tuple[str, ...] = ()
    """The jobs whose answers it reads."""

    @property
    def stem(self) -> Path:
        """What its record, log and lock are called, but for their endings; the same whichever batch
        it is part of."""
        return self.file.with_name("predictions" if self.model else self.name)

    @property
    def record(self) -> Path:
        """How it went."""
        return ending(self.stem, ".json")

    @property
    def log(self) -> Path:
        """What its model's engine said."""
        return ending(self.stem, ".log")

    @property
    def lock(self) -> Path:
        """There while it runs."""
        return ending(self.stem, ".lock")

    @property
    def title(self) -> str:
        return f"{self.name} predictions" if self.model else f"all {self.name}"

    @property
    def again(self) -> str:
        """The command that does what of it is not done."""
        return f"rulerkit run {shlex.quote(str(self.file))}"

    @property
    def resources(self) -> tuple[int, int]:
        """GPUs on each node, and nodes."""
        return gpus_and_nodes(self.model) if self.model else (0, 1)

    @cached_property
    def studies(self) -> list[Study]:
        """What the model has to answer, its notebooks together; or what the notebook reads."""
        return [study for ask in self.asks for study in self.part(ask)]

    def part(self, ask: Ask) -> list[Study]:
        """What one notebook asks of the model, or all that it asks."""
        if not self.model:
            return ask.studies
        parts = [
            (study, tuple(m for m in study.models if name_of(m) == self.name))
            for study in ask.studies
        ]
        return [replace(study, models=models) for study, models in parts if models]

    @cached_property
    def needs(self) -> list[Need]:
        """Every cell that has to be there, once each."""
        return needs_of(self.studies)

    def reads(self, run: Run) -> list[Need]:
        """The cells that one of its notebooks reads."""
        return needs_of(run.studies) if self.model else self.needs

    def lock_of(self, model: str) -> Path:
        """The lock of a model's job."""
        return self.file.parents[1] / model / "predictions.lock"

    def not_run(self, model: str) -> dict[int, str]:
        """The lengths that a model cannot be given, with the reasons that its last try found."""
        record = read_record(self.lock_of(model).with_suffix(".json"))
        if self.model and record.get("model") != plain(self.model):
            return {}  # another spec may fit
        return {int(length): str(reason) for length, reason in record.get("not_run", {}).items()}

    def runnable(self, needs: list[Need]) -> list[Need]:
        """The cells whose model can be given their length."""
        cannot = {model: self.not_run(model) for model in {need.model for need in needs}}
        return [need for need in needs if need.length not in cannot[need.model]]

    def unanswered(self, needs: list[Need]) -> list[tuple[Need, int]]:
        """The cells that are not complete, with how many of their examples are answered; not those
        that cannot be run."""
        counts = [(need, need.have) for need in self.runnable(needs)]
        return [(need, have) for need, have in counts if have < need.wanted]

    def save(self) -> None:
        """Write the job file."""
        about = {
            "name": self.name,
            "model": self.model,
            "asks": [
                {"notebook": str(ask.notebook), "parameters": ask.parameters} for ask in self.asks
            ],
            "runs": [
                {
                    "notebook": str(r.notebook),
                    "parameters": r.parameters,
                    "subject": r.subject,
                    "output": str(r.output),
                }
                for r in self.runs
            ],
            "after": list(self.after),
            "home": str(home()),
        }
        head = f"# What `rulerkit run {self.file.name}` does; written by `rulerkit batch`.\n"
        text = head + yaml.safe_dump(about, sort_keys=False, width=120, allow_unicode=True)
        with disk(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            if not self.file.exists() or self.file.read_text(encoding="utf-8") != text:
                write_whole(self.file, text)


def ending(stem: Path, suffix: str) -> Path:
    """A file beside a stem. Names of models and notebooks hold dots, of which `with_suffix` would
    make an ending."""
    return stem.with_name(stem.name + suffix)


def tokens_left(needs: Iterable[Need]) -> int:
    """How many tokens of prompts and answers some cells have left, at most."""
    return sum((need.wanted - need.have) * need.length for need in needs)


def read_job(path: Path) -> Job:
    """The job that a file describes; `UserError` where it is none.

    Its paths count from the project that it was planned in, from whatever folder it is run.
    """
    content = read_yaml(path)
    try:
        os.environ["RULERKIT_HOME"] = os.environ.get("RULERKIT_HOME") or content["home"]
        asks = tuple(Ask(Path(a["notebook"]), a["parameters"]) for a in content["asks"])
        runs = tuple(
            Run(Path(r["notebook"]), r["parameters"], r["subject"], Path(r["output"]))
            for r in content["runs"]
        )
        job = Job(
            content["name"], path.absolute(), content["model"], asks, runs, tuple(content["after"])
        )
        _ = job.resources
        return job
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is no job file ({type(error).__name__}: {error}): `rulerkit batch` writes "
            "them beside its notebooks, "
            "as outputs/notebooks/<run>/<model>/<batch>.job.yaml"
        ) from error


def needs_of(studies: list[Study]) -> list[Need]:
    """The cells that studies ask for, each once, with the largest number of examples."""
    found: dict[Path, Need] = {}
    for study in studies:
        for model, path, task, length in study.cells():
            wanted = max(study.num_examples, found[path].wanted if path in found else 0)
            found[path] = Need(model, path, task.name, length, wanted)
    return list(found.values())


def fingerprint(needs: list[Need]) -> str:
    """A digest of all answers that are there, by which a notebook knows that it has read them."""
    digest = sha256()
    for need in sorted(needs):
        with suppress(FileNotFoundError):
            digest.update(f"{need.path} {zlib.crc32(need.path.read_bytes())}\n".encode())
    return digest.hexdigest()[:16]


def read_record(path: Path) -> dict[str, Any]:
    """A record of a job or of a notebook; {} where there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_record(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a record whole: what it says is true from the moment that it is there."""
    write_whole(path, json.dumps(fields, indent=2) + "\n")

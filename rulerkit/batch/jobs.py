"""Jobs: what one process of a batch does, and how far it is, by its files.

The job of a model lets it answer everything that the notebooks of the batch ask of it, loaded once,
then executes the notebooks about this model. The job of a notebook over several models only
executes that notebook. Everything about a job stands in files beside the executed notebooks:
`<batch>.job.yaml` (what to do), `predictions.json` and `<notebook>.json` (records of how it went),
`.log` (messages), `.lock` (exists while it runs). `batch_file` plans jobs, `execution` does them.
"""

import json
import os
import shlex
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter

from rulerkit.common.errors import UserError, listed
from rulerkit.common.hidden import hide
from rulerkit.common.json_text import digest
from rulerkit.common.model_files import read_spec
from rulerkit.common.paths import from_root, home, resolve
from rulerkit.common.plugins import load_plugins
from rulerkit.common.settings import JSON, UNNAMED_KEYS, Spec
from rulerkit.common.yaml_files import read_yaml
from rulerkit.evaluation.rounds import wanted
from rulerkit.evaluation.study import Study, expand, name_of, study_from_json
from rulerkit.inference.model import gpus_and_nodes
from rulerkit.store.cells import coverage_of
from rulerkit.store.files import disk, write_whole
from rulerkit.store.records import plain

# --- jobs -----------------------------------------------------------------------------------------


class Need(NamedTuple):
    """A cell that a job has to complete or to read."""

    model: str
    path: Path
    task: str
    length: int
    wanted: int
    """The number of examples."""
    most: int = 0
    """The number of examples that later rounds of an adaptive run may ask for."""

    @property
    def have(self) -> int:
        """How many of its examples are answered, by the files."""
        return len(coverage_of(self.path, self.wanted).have)

    @property
    def problem(self) -> str:
        """What is wrong with it, such as failed requests or a damaged row; "" for nothing."""
        return coverage_of(self.path, self.wanted).problem

    @property
    def tokens_left(self) -> int:
        """The tokens of prompts and answers that are left, at most."""
        return (self.wanted - self.have) * self.length

    @property
    def most_tokens_left(self) -> int:
        """Those that are left if an adaptive run asks for all its examples."""
        return (max(self.most, self.wanted) - self.have) * self.length

    def __str__(self) -> str:
        return f"{self.model} {self.task} at {self.length}"


@dataclass(frozen=True)
class Notebook:
    """One execution of a notebook."""

    notebook: Path
    parameters: dict[str, Any]
    subject: str = "all"
    """The model it is about, or `all`."""
    output: Path = Path()
    """The executed notebook; its log and its record lie beside it."""
    asked: tuple[JSON, ...] = ()
    """The studies that it asks, as they were planned; none where nobody knows before it runs."""

    @property
    def title(self) -> str:
        return f"{self.subject} {self.notebook.stem}"

    @cached_property
    def studies(self) -> list[Study]:
        """What it asks, as it was planned: no line of the notebook is executed for it."""
        return [study_from_json(values) for values in self.asked]

    @property
    def models(self) -> set[str]:
        """The names of the models that it asks."""
        return {name_of(model) for study in self.studies for model in study.models}

    @property
    def named_models(self) -> list[JSON]:
        """The models that its parameters name."""
        own = self.parameters
        given = own["models"] if "models" in own else [own.get("model")]
        return [read_spec(model) for model in expand(given or []) if model]

    @property
    def given(self) -> dict[str, Any]:
        """The parameters of its execution. A notebook whose questions were planned shows what its
        models have answered before, and needs no key; another one asks its models itself."""
        if not self.studies:
            return dict(self.parameters)
        given: dict[str, Any] = hide(plain(self.parameters))
        return given | {"ask": False}

    @property
    def command(self) -> list[str]:
        """The arguments of papermill, as a reader may see them."""
        shown: dict[str, Any] = hide(plain(self.parameters))
        if self.studies:
            shown["ask"] = False
        return [str(self.notebook), str(self.output), "-y", one_line(shown)]

    @property
    def source(self) -> str:
        """A digest of what is executed: the notebook and its parameters."""
        content = self.notebook.read_bytes() + self.command[-1].encode()
        return digest(content)


@dataclass(frozen=True)
class Job:
    """What one process does: a model's answers and then its notebooks, or one notebook over several
    models."""

    name: str
    """The model's, or that of the notebook over several models."""
    file: Path
    model: dict[str, Any] | None
    """The model that answers; None where a notebook only reads what is stored."""
    asks: tuple[Notebook, ...]
    """The notebooks whose questions the model answers, or whose answers the notebook reads."""
    runs: tuple[Notebook, ...]
    after: tuple[str, ...]
    """The models whose answers it reads; it waits for them."""
    planned_by: str
    """The command that planned it, which also plans it again."""
    plugins: tuple[str, ...] = ()
    """The modules that bring its tasks or its model's engine."""

    @cached_property
    def steps(self) -> "list[Step]":
        """The predictions of its model, and its notebooks."""
        steps = []
        if self.model:
            record = self.predictions(self.name)
            steps.append(Step(self, f"{self.name} predictions", record))
        for run in self.runs:
            steps.append(Step(self, run.title, run.output.with_suffix(".json"), run))
        return steps

    @property
    def lock(self) -> Path:
        """The file that exists while a process does the job: the same for every batch."""
        name = "predictions" if self.model else self.name
        return self.file.with_name(f"{name}.lock")

    @property
    def is_open(self) -> bool:
        """Whether anything is left to do."""
        return not all(step.is_done for step in self.steps)

    @property
    def command(self) -> str:
        """The command that does what is left to do: the one that plans it, where its file is gone
        or plans something else."""
        if not self._is_saved:
            return self.planned_by
        return f"rulerkit run {shlex.quote(str(self.file))}"

    @property
    def resources(self) -> tuple[int, int]:
        """GPUs on each node, and nodes: those of its model, or the most that a model takes which a
        notebook asks by itself."""
        specs: list[Spec] = [self.model] if self.model else []
        for run in self.runs:
            if not self.model and not run.asked:
                specs += run.named_models
        needed = [gpus_and_nodes(spec) for spec in specs]
        return max(needed, default=(0, 1))

    def predictions(self, model: str) -> Path:
        """The record of a model's predictions."""
        return self.file.parents[1] / model / "predictions.json"

    @property
    def studies(self) -> list[tuple[Notebook, Study]]:
        """What notebooks ask of this job's model; without a model, all that they ask."""
        studies = [(notebook, study) for notebook in self.asks for study in notebook.studies]
        if not self.model:
            return studies
        return [
            (notebook, replace(study, models=(model,)))
            for notebook, study in studies
            for model in study.models
            if name_of(model) == self.name
        ]

    def not_run(self, model: str) -> dict[int, str]:
        """The lengths that a model could not be given when it was tried last, with the reasons."""
        record = read_record(self.predictions(model))
        if self.model and record.get("model") != hide(plain(self.model)):
            # The settings of the model have changed: the length may fit now.
            return {}
        reasons = record.get("not_run", {})
        return {int(length): str(reason) for length, reason in reasons.items()}

    def changed(self, model: str) -> bool:
        """Whether a model has other settings or files than when it gave its answers."""
        record = read_record(self.predictions(model))
        settings, changed_at = version_of(self.model or record.get("model", {}))
        if "answered_by" not in record:
            return False
        settings_before, changed_before = record["answered_by"]
        # Files that cannot be seen from here are taken to be as they were.
        return bool(settings != settings_before or (changed_at or changed_before) != changed_before)

    def save(self) -> None:
        """Write the job file, if it differs from the one that is there."""
        with disk(self.file):
            if not self._is_saved:
                # Where it was planned is the root that is meant as long as the file lies there.
                text = f"{self._text}home: {json.dumps(str(home()))}\n"
                # Only the job needs the keys that parameters may hold.
                write_whole(self.file, text, private=True)

    @property
    def _is_saved(self) -> bool:
        with suppress(OSError):
            is_private = not self.file.stat().st_mode & 0o077
            text = self.file.read_text(encoding="utf-8")
            return is_private and text.startswith(self._text)
        return False

    @cached_property
    def _text(self) -> str:
        content = _JOB.dump_python(self, mode="json")
        _map_paths(content, lambda path: from_root(Path(path)))
        head = f"# What `rulerkit run {self.file.name}` does; written by `rulerkit batch`.\n"
        return head + yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)


_JOB = TypeAdapter(Job)


@dataclass(frozen=True)
class Step:
    """A part of a job with a log and a record of its own: the predictions, or one notebook."""

    job: Job
    title: str
    record: Path
    run: Notebook | None = None
    """None for the predictions."""

    @property
    def log(self) -> Path:
        return self.record.with_suffix(".log")

    @cached_property
    def cells(self) -> list[Need]:
        """Every cell that it is to answer or to read."""
        if self.run and self.job.model:
            studies = self.run.studies
        else:
            studies = [study for _, study in self.job.studies]
        return needs_of(studies, self.job.not_run)

    @property
    def needs(self) -> list[Need]:
        """Those of its cells whose length the model can be given."""
        models = {need.model for need in self.cells}
        not_run = {model: self.job.not_run(model) for model in models}
        return [need for need in self.cells if need.length not in not_run[need.model]]

    @property
    def unanswered(self) -> list[Need]:
        """Those that are not complete."""
        return [need for need in self.needs if need.tokens_left]

    @property
    def tokens_left(self) -> int:
        """The tokens of prompts and answers that predictions still take, at most; 0 for a
        notebook."""
        if self.run:
            return 0
        return sum(need.tokens_left for need in self.needs)

    @property
    def most_tokens_left(self) -> int:
        """The same, if its adaptive runs ask for all their examples; 0 where nothing is left."""
        if not self.tokens_left:
            return 0
        return sum(need.most_tokens_left for need in self.needs)

    @property
    def changed(self) -> str:
        """Which of its models is no longer the one that gave the answers; "" for none."""
        models = {need.model for need in self.cells if self.job.changed(need.model)}
        if not models:
            return ""
        names = listed(models, 3)
        return f"the checkpoint or the settings of {names} changed after it answered"

    @property
    def state(self) -> tuple[str, str]:
        """What its files say, whether or not a process is at it: `done` by the model, or with the
        notebook and the answers, as they are now; else `missing`, `incomplete` or `outdated`, and
        what has changed."""
        if not self.run:
            if self.unanswered:
                has_some = any(need.have for need in self.needs)
                return ("incomplete" if has_some else "missing"), ""
            reason = self.changed
            return ("outdated" if reason else "done"), reason

        record = read_record(self.record)
        if record.get("state") != "done":
            return "missing", ""
        if record.get("source") != self.run.source:
            return "outdated", "the notebook or its parameters have changed since"
        if not self.run.output.exists():
            return "outdated", "the executed notebook is gone"
        if self.unanswered:
            return "outdated", "answers that it read are gone"
        if record.get("answers") != fingerprint(self.cells):
            return "outdated", "its answers have changed since"
        return "done", ""

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return self.state[0] == "done"


class Status(NamedTuple):
    """How far a step is. While its job is executed here: `running`, then `done`, `done before`,
    `failed`, `incomplete` (a model that left examples unanswered, or a notebook that read less than
    it asked for), `missing` (a notebook without answers to read; it did not run) or `elsewhere`
    (another process is running it). As its files show it: also `queued`, `interrupted`, `waiting`,
    or `outdated` (what it was done with has changed)."""

    step: Step
    state: str
    message: str = ""


def read_job(path: Path) -> Job:
    """The job that a file describes; `UserError` where it describes none.

    Its paths count from the project root: RULERKIT_HOME, else the project in which the file lies.
    """
    content = read_yaml(path)
    try:
        # What the steps of the job start counts from the same root.
        os.environ["RULERKIT_HOME"] = str(_root_of(path, content))
        _map_paths(content, lambda place: str(resolve(place)))
        job = _JOB.validate_python(content)
        load_plugins(job.plugins)
        _ = job.resources
    except (LookupError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise UserError(
            f"{path} is no job file ({reason}): `rulerkit batch` writes them beside its notebooks, "
            "as outputs/notebooks/<run>/<model>/<batch>.job.yaml"
        ) from error
    if job.file.resolve() != path.resolve():
        place = shlex.quote(f"outputs: {path.absolute().parents[3]}")
        raise UserError(
            f"{path} was planned for {job.file.parents[1]}, not here: run `{job.planned_by} -y "
            f"{place}`, which finds the answers that are here"
        )
    return job


def _root_of(path: Path, content: JSON) -> Path:
    """The project root from which the paths of a job file count."""
    if root := os.environ.get("RULERKIT_HOME"):
        return Path(root)
    planned_in, inside = Path(content["home"]), Path(content["file"])
    if (planned_in / inside).resolve() == path.resolve():
        return planned_in

    # The project was copied or is mounted elsewhere: the file has its place in it.
    here, depth = path.absolute(), len(inside.parts)
    if here.parts[-depth:] == inside.parts:
        return here.parents[depth - 1]
    return planned_in if planned_in.is_dir() else home()


def _map_paths(content: JSON, change: Callable[[str], str]) -> None:
    """Change every path of a job file: those that the job itself has set, not those within the
    settings of a model, which are a part of what it is."""
    content["file"] = change(content["file"])
    command = shlex.split(content["planned_by"])
    command[2] = change(command[2])
    content["planned_by"] = shlex.join(command)
    for notebook in (*content["asks"], *content["runs"]):
        for key in ("notebook", "output"):
            notebook[key] = change(notebook[key])
        for study in notebook["asked"]:
            study["outputs"] = change(study["outputs"])


def version_of(model: Spec) -> tuple[JSON, float]:
    """The settings of a model that may change its answers, and when the files at its path changed
    last; 0 where none are there. No weights are read: they may be the same."""
    settings = {
        key: value for key, value in hide(plain({**model})).items() if key not in UNNAMED_KEYS
    }
    with suppress(OSError, KeyError):
        folder = resolve(model["path"])
        files = [file.stat() for file in folder.glob("*") if file.is_file()]
        # The folder itself may be a link, such as `latest`, that points elsewhere now.
        return settings, max(file.st_ctime for file in [folder.lstat(), *files])
    return settings, 0


def needs_of(
    studies: Iterable[Study], not_run: Callable[[str], Collection[int]] = lambda _: ()
) -> list[Need]:
    """The cells that studies ask for, each once, with the largest number of examples."""
    needs: dict[Path, Need] = {}
    for study in studies:
        counts = wanted(study, not_run)
        for cell in study.cells():
            new = Need(cell.model, cell.path, cell.task.name, cell.length, 0)
            before = needs.get(cell.path, new)
            needs[cell.path] = before._replace(
                wanted=max(counts[cell.path], before.wanted),
                most=max(study.num_examples, before.most),
            )
    return list(needs.values())


def fingerprint(needs: Iterable[Need]) -> str:
    """A digest of the stored answers, by which a notebook knows that it has read them."""
    answers = ""
    for need in sorted(needs):
        with suppress(FileNotFoundError):
            answers += f"{need.path} {zlib.crc32(need.path.read_bytes())}\n"
    return digest(answers)


def read_record(path: Path) -> dict[str, Any]:
    """A record of a job or a step; {} where there is none that can be read."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def lines_of_log(log: Path) -> list[str]:
    """The lines of a log that are neither blank nor a progress bar; [] where there is none."""
    with suppress(OSError):
        text = log.read_text(encoding="utf-8", errors="replace")
        return [line.rstrip() for line in text.splitlines() if line.strip() and "%|" not in line]
    return []


def one_line(values: Mapping[str, Any]) -> str:
    """Parameters as `-y` takes them."""
    text: str = yaml.safe_dump(dict(values), default_flow_style=True, width=10**6, sort_keys=False)
    return text.strip()


def update_record(path: Path, **fields: Any) -> None:
    """Set fields of a record, which is replaced as a whole."""
    write_whole(path, json.dumps(read_record(path) | fields, indent=2) + "\n")

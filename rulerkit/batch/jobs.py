"""Batches: models x notebooks from one YAML file, planned and checked as a whole, then run as jobs.

A batch file names `models`, the notebooks that run once per model (`notebooks`), those that run
once over all models (`together`), a `size` (a file of params/sizes/) and further `parameters`. An
entry of `notebooks` or `together` is a name, or a mapping with models and parameters of its own:
`{notebook: 03_distractors, models: [...], parameters: {...}}`.

A job is what one process does. The job of a model lets it answer everything that the notebooks of
the batch ask of it, loaded once, then executes the notebooks about this model. The job of a
notebook over several models only executes that notebook. Everything about a job stands in files
beside the executed notebooks: `<batch>.job.yaml` (what to do), `predictions.json` and
`<notebook>.json` (records of how it went), `.log` (messages), `.lock` (exists while it runs).
"""

import json
import os
import shlex
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter, ValidationError

from rulerkit.analysis.compare import find
from rulerkit.common.errors import UserError, listed, unknown
from rulerkit.common.paths import home, project_files, resolve
from rulerkit.common.settings import (
    JSON,
    UNNAMED_KEYS,
    BatchKeys,
    NotebookKeys,
    Spec,
    check,
    read_keys,
    read_spec,
    read_yaml,
)
from rulerkit.evaluation.adaptive import wanted
from rulerkit.evaluation.study import (
    Study,
    expand,
    load_files,
    name_of,
    notebook_parameters,
    read_notebook,
    study,
)
from rulerkit.inference.model import gpus_and_nodes
from rulerkit.scoring.scores import completeness
from rulerkit.store.cells import soft_file
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
    soft: bool = False
    """Whether their soft scores are wanted too."""

    @property
    def have(self) -> int:
        """How many of its examples are answered, by the files."""
        return completeness(self.path, self.wanted, self.soft).have

    @property
    def problem(self) -> str:
        """What is wrong with it, such as failed requests or a damaged row; "" for nothing."""
        return completeness(self.path, self.wanted).problem

    @property
    def tokens_left(self) -> int:
        """The tokens of prompts and answers that are left, at most."""
        return (self.wanted - self.have) * self.length

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

    @property
    def title(self) -> str:
        return f"{self.subject} {self.notebook.stem}"

    @cached_property
    def studies(self) -> list[Study]:
        """What it asks."""
        return studies_of(self.notebook, self.parameters)

    @property
    def models(self) -> set[str]:
        """The names of the models that it asks."""
        return {name_of(model) for study in self.studies for model in study.models}

    @property
    def command(self) -> list[str]:
        """The arguments of papermill. A notebook whose questions were planned shows what its models
        have answered before; another one asks its models itself."""
        parameters = self.parameters | ({"ask": False} if self.studies else {})
        return [str(self.notebook), str(self.output), "-y", _one_line(parameters)]

    @property
    def source(self) -> str:
        """A digest of what is executed: the notebook and its parameters."""
        content = self.notebook.read_bytes() + self.command[-1].encode()
        return sha256(content).hexdigest()[:16]


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

    @cached_property
    def steps(self) -> "list[Step]":
        """The predictions of its model, and its notebooks."""
        runs = [
            Step(self, run.title, run.output.with_suffix(".json"), run)
            for run in self.runs
        ]
        if not self.model:
            return runs
        return [
            Step(self, f"{self.name} predictions", self.predictions(self.name)),
            *runs,
        ]

    @property
    def lock(self) -> Path:
        """The file that exists while a process does the job: the same for every batch."""
        return self.file.with_name(f"{'predictions' if self.model else self.name}.lock")

    @property
    def is_open(self) -> bool:
        """Whether anything is left to do."""
        return not all(step.is_done for step in self.steps)

    @property
    def command(self) -> str:
        """The command that does what is left to do: the one that plans it, where its file is gone or
        plans something else."""
        return (
            f"rulerkit run {shlex.quote(str(self.file))}"
            if self._is_saved
            else self.planned_by
        )

    @property
    def resources(self) -> tuple[int, int]:
        """GPUs on each node, and nodes."""
        return gpus_and_nodes(self.model) if self.model else (0, 1)

    def predictions(self, model: str) -> Path:
        """The record of a model's predictions."""
        return self.file.parents[1] / model / "predictions.json"

    @property
    def studies(self) -> list[tuple[Notebook, Study]]:
        """What notebooks ask of this job's model; without a model, all that they ask."""
        asked = [
            (notebook, study) for notebook in self.asks for study in notebook.studies
        ]
        if not self.model:
            return asked
        return [
            (notebook, replace(study, models=(model,)))
            for notebook, study in asked
            for model in study.models
            if name_of(model) == self.name
        ]

    def not_run(self, model: str) -> dict[int, str]:
        """The lengths that a model could not be given when it was tried last, with the reasons."""
        record = read_record(self.predictions(model))
        if self.model and record.get("model") != plain(self.model):
            return {}  # the specification has changed: the length may fit now
        return {
            int(length): str(reason)
            for length, reason in record.get("not_run", {}).items()
        }

    def changed(self, model: str) -> bool:
        """Whether a model has other settings or files than when it gave its answers."""
        record = read_record(self.predictions(model))
        settings, files = version_of(self.model or record.get("model", {}))
        before = record.get("answered_by", [settings, files])
        return bool(before != [settings, files or before[1]])

    def save(self) -> None:
        """Write the job file, if it differs from the one that is there."""
        with disk(self.file):
            if not self._is_saved:
                write_whole(self.file, self._text)

    @property
    def _is_saved(self) -> bool:
        with suppress(OSError):
            return self.file.read_text(encoding="utf-8") == self._text
        return False

    @cached_property
    def _text(self) -> str:
        content = _JOB.dump_python(self, mode="json") | {"home": str(home())}
        head = f"# What `rulerkit run {self.file.name}` does; written by `rulerkit batch`.\n"
        return head + yaml.safe_dump(
            content, sort_keys=False, width=120, allow_unicode=True
        )


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
        alone = self.run if self.job.model else None
        studies = alone.studies if alone else [study for _, study in self.job.studies]
        return needs_of(studies, self.job.not_run)

    @property
    def needs(self) -> list[Need]:
        """Those of its cells whose length the model can be given."""
        not_run = {
            model: self.job.not_run(model)
            for model in {need.model for need in self.cells}
        }
        return [need for need in self.cells if need.length not in not_run[need.model]]

    @property
    def unanswered(self) -> list[Need]:
        """Those that are not complete."""
        return [need for need in self.needs if need.tokens_left]

    @property
    def tokens_left(self) -> int:
        """The tokens of prompts and answers that predictions still take, at most; 0 for a
        notebook."""
        return 0 if self.run else sum(need.tokens_left for need in self.needs)

    @property
    def changed(self) -> str:
        """Which of its models is no longer the one that gave the answers; "" for none."""
        models = {need.model for need in self.cells if self.job.changed(need.model)}
        what = "the checkpoint or the settings of"
        return f"{what} {listed(models, 3)} changed after it answered" if models else ""

    @property
    def state(self) -> tuple[str, str]:
        """What its files say, whether or not a process is at it: `done` by the model, or with the
        notebook and the answers, as they are now; else `missing`, `incomplete` or `outdated`, and
        what has changed."""
        if not self.run:
            if self.unanswered:
                return "incomplete" if any(
                    need.have for need in self.needs
                ) else "missing", ""
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

    Its paths count from the project in which it was planned, wherever it is run.
    """
    content = read_yaml(path)
    try:
        os.environ["RULERKIT_HOME"] = os.environ.get("RULERKIT_HOME") or content["home"]
        job = _JOB.validate_python({"file": path.absolute()} | content)
        _ = job.resources
    except (KeyError, TypeError, ValidationError) as error:
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


def version_of(model: Spec) -> tuple[JSON, float]:
    """The settings of a model that may change its answers, and when the files at its path changed
    last; 0 where none are there. No weights are read: they may be the same."""
    settings = {
        key: value for key, value in plain({**model}).items() if key not in UNNAMED_KEYS
    }
    with suppress(OSError, KeyError):
        place = resolve(model["path"])
        files = [file.stat() for file in place.glob("*") if file.is_file()]
        return settings, max(file.st_ctime for file in [place.lstat(), *files])
    return settings, 0


def needs_of(
    studies: Iterable[Study], not_run: Callable[[str], Collection[int]] = lambda _: ()
) -> list[Need]:
    """The cells that studies ask for, each once, with the largest number of examples."""
    needs: dict[Path, Need] = {}
    for asked in studies:
        counts = wanted(asked, not_run)
        for cell in asked.cells():
            new = Need(cell.model, cell.path, cell.task.name, cell.length, 0)
            before = needs.get(cell.path, new)
            needs[cell.path] = before._replace(
                wanted=max(counts[cell.path], before.wanted),
                soft=asked.soft or before.soft,
            )
    return list(needs.values())


def fingerprint(needs: Iterable[Need]) -> str:
    """A digest of the stored answers, by which a notebook knows that it has read them."""
    digest = sha256()
    for need in sorted(needs):
        for path in (need.path, soft_file(need.path)):
            with suppress(FileNotFoundError):
                digest.update(f"{path} {zlib.crc32(path.read_bytes())}\n".encode())
    return digest.hexdigest()[:16]


def read_record(path: Path) -> dict[str, Any]:
    """A record of a job or a step; {} where there is none that can be read."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.read_text(encoding="utf-8")))
    return {}


def lines_of_log(log: Path) -> list[str]:
    """The lines of a log that are neither blank nor a progress bar; [] where there is none."""
    with suppress(OSError):
        text = log.read_text(encoding="utf-8", errors="replace")
        return [
            line.rstrip()
            for line in text.splitlines()
            if line.strip() and "%|" not in line
        ]
    return []


def _one_line(values: Mapping[str, Any]) -> str:
    """Parameters as `-y` takes them."""
    text: str = yaml.safe_dump(
        dict(values), default_flow_style=True, width=10**6, sort_keys=False
    )
    return text.strip()


def update_record(path: Path, **fields: Any) -> None:
    """Set fields of a record, which is replaced as a whole."""
    write_whole(path, json.dumps(read_record(path) | fields, indent=2) + "\n")


# --- planning -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Batch:
    """A batch file, read and checked."""

    path: Path
    study: Study
    """The parameters of the whole batch, over all its models."""
    runs: list[Notebook]
    jobs: list[Job]
    """One for each model that any notebook asks, then one for each notebook over several models."""
    keys: BatchKeys
    """What the file holds."""

    @property
    def models(self) -> list[dict[str, Any]]:
        """Every model that any notebook of the batch asks."""
        return [job.model for job in self.jobs if job.model]

    @property
    def corpora(self) -> str:
        """`original` if the batch or any of its notebooks asks for the original texts, else
        `builtin`."""
        asked = {
            self.study.corpora,
            *(s.corpora for run in self.runs for s in run.studies),
        }
        return "original" if "original" in asked else "builtin"


def read_batch(path: Path, settings: Mapping[str, Any] | None = None) -> Batch:
    """The jobs of a batch file; `settings` win over its parameters. Everything is checked before
    anything starts."""
    keys, fixed = read_keys(BatchKeys, path), dict(settings or {})
    size = (
        [_find(f"size in {path}", keys.size, "params/sizes", ".yaml")]
        if keys.size
        else []
    )
    parameters = load_files(size) | keys.parameters | fixed

    def checked(entries: Iterable[Any]) -> list[NotebookKeys]:
        """Entries of the file; a name alone stands for a notebook without keys of its own."""
        where, what = f"{path}: a notebook's ", f"key of a notebook in {path}"
        given = (e if isinstance(e, Mapping) else {"notebook": e} for e in entries)
        return [check(NotebookKeys, entry, where, what) for entry in given]

    alone, together = checked(keys.notebooks), checked(keys.together)
    named = {
        str(model): model for entry in alone + together for model in entry.models or []
    }
    models = parameters.pop("models", None) or keys.models or [*named.values()]
    models = (
        expand(models) if isinstance(models, list) else models
    )  # it is checked below
    fixed.pop("models", None)
    if not models or not (alone or together):
        raise UserError(
            f"{path} names no models, or no notebooks: a batch needs `models:` and `notebooks:` or "
            "`together:`"
        )
    if "model" in parameters:
        raise UserError(
            f"{path}: `model` is no parameter of a batch: it takes a list, `models: [...]`"
        )
    whole = study(parameters | {"models": models})
    folder = whole.outputs / "notebooks" / whole.run

    def executions(entry: NotebookKeys, once: bool = False) -> list[Notebook]:
        """Of an entry: one for each model where the notebook takes `model` and not `once`, else one."""
        if {"run", "outputs", "model", "models"} & entry.parameters.keys():
            raise UserError(
                f"{entry.notebook} in {path} sets run, outputs or models among its parameters: a "
                "batch writes into one place, and models stand beside `parameters`"
            )
        asked = expand(entry.models or models)
        values = parameters | entry.parameters | fixed
        study(
            values | {"models": asked}
        )  # a wrong value is found before anything starts
        notebook = _find("notebook", entry.notebook, "notebooks", ".ipynb")
        known = notebook_parameters(notebook)
        if "model" in known and not once:
            subjects = {
                read_spec(model)["name"]: values | {"model": model} for model in asked
            }
        elif "models" in known:
            subjects = {"all": values | {"models": asked}}
        elif entry.models and "model" not in known:
            raise UserError(
                f"{entry.notebook} in {path} takes no `models`; its parameters are {', '.join(known)}"
            )
        else:
            subjects = {
                "all": {name: value for name, value in values.items() if name in known}
            }
        return [
            Notebook(notebook, own_values, subject, folder / subject / notebook.name)
            for subject, own_values in subjects.items()
        ]

    single = [run for entry in alone for run in executions(entry)]
    over_all = [run for entry in together for run in executions(entry, once=True)]
    runs = single + over_all
    outputs = [run.output for run in runs]
    if twice := next((run for run in runs if outputs.count(run.output) > 1), None):
        raise UserError(
            f"{path} runs {twice.title} twice: two runs cannot write one notebook; remove one of "
            "them"
        )
    if keys.baseline:
        try:
            find(keys.baseline, whole.outputs, scan=False)
        except UserError as error:
            raise UserError(f"baseline in {path}: {error}") from error
    command = ["rulerkit", "batch", str(path.absolute())]
    command += ["-y", _one_line(settings)] if settings else []
    jobs = _jobs(path, folder, runs, over_all, shlex.join(command))
    return Batch(path, whole, runs, jobs, keys)


def _jobs(
    path: Path,
    folder: Path,
    runs: list[Notebook],
    over_all: list[Notebook],
    planned_by: str,
) -> list[Job]:
    """A job for each model that a notebook asks, then one for each notebook that is not about one
    model alone."""
    models: dict[str, Any] = {}
    asked_by = [
        (run, spec) for run in runs for asked in run.studies for spec in asked.models
    ]
    for asking, spec in asked_by:
        name = name_of(spec)
        if not isinstance(spec, dict):
            raise UserError(
                f"{path}: {asking.title} asks {name}, a model made in Python, which no other process "
                "has: describe it in params/models, a function by `entry: package.module:load`"
            )
        other = models.setdefault(name, spec)
        if name == "all":
            raise UserError(
                f"{path}: no model can be called all, the folder of notebooks over several models: "
                "give it a `name:`"
            )
        if differs := [key for key in spec | other if spec.get(key) != other.get(key)]:
            raise UserError(
                f"{path} has two models named {name}, which differ in {', '.join(differs)}: give "
                "one of them a `name:` of its own"
            )
    jobs = []
    for name, spec in models.items():
        asks = tuple(run for run in runs if name in run.models)
        about_it = tuple(
            run for run in runs if run.subject == name and run.models <= {name}
        )
        file = folder / name / f"{path.stem}.job.yaml"
        jobs.append(Job(name, file, spec, asks, about_it, (), planned_by))
    done = [run for job in jobs for run in job.runs]
    for run in (run for run in runs if run not in done):
        # a notebook over all models that asks nobody reads whatever the others have asked
        reads_all = run in over_all and not run.models
        asks = tuple(other for other in runs if other.models) if reads_all else (run,)
        after = tuple(name for name in models if reads_all or name in run.models)
        stem = run.output.stem
        name = stem if run.subject == "all" else f"{run.subject}-{stem}"
        file = folder / "all" / f"{path.stem}-{name}.job.yaml"
        jobs.append(Job(name, file, None, asks, (run,), after, planned_by))
    return jobs


def _find(what: str, name: str, folder: str, suffix: str) -> Path:
    """A file by its name in a folder of the project, or by its path."""
    files = project_files(folder, suffix)
    path = files.get(name) or resolve(name)
    if not os.path.isfile(path):
        raise unknown(what, name, sorted(files))
    return path


# --- what a notebook asks -------------------------------------------------------------------------


def studies_of(notebook: Path, parameters: Mapping[str, Any]) -> list[Study]:
    """What a notebook asks under these parameters: the studies that its cell tagged `study` assigns
    to the name `study`. [] where no cell is tagged so: then nobody knows before it runs.

    Only the cells tagged `parameters` and `study` are executed. Raises `UserError` where they fail,
    such as for a wrong parameter.
    """
    cells = read_notebook(notebook)
    if not any(cell.has("study") for cell in cells):
        return []

    names: dict[str, Any] = {
        # By these two names `rk.study(globals())` knows that it is in a notebook, and which
        # parameters were given from outside.
        "In": ["# Parameters\n" + "".join(f"{name} = None\n" for name in parameters)],
        "get_ipython": lambda: None,
        "__name__": "__main__",
    }
    try:
        for cell in cells:
            if cell.has("parameters"):
                exec(compile(cell.source, str(notebook), "exec"), names)
                names |= parameters
            elif cell.has("study"):
                exec(compile(cell.source, str(notebook), "exec"), names)
    except UserError as error:
        raise UserError(f"{notebook.stem}: {error}") from error
    except Exception as error:
        raise UserError(
            f"{notebook.stem} cannot be planned ({type(error).__name__}: "
            f"{' '.join(str(error).split())}): its cells tagged `parameters` and `study` are run "
            "alone, so they must not need other cells: import what they use there"
        ) from error

    assigned = names.get("study")
    studies = [assigned] if isinstance(assigned, Study) else assigned
    if not isinstance(studies, list | tuple) or not all(
        isinstance(one, Study) for one in studies
    ):
        raise UserError(
            f"{notebook.stem}: its cell tagged `study` must assign `study`, such as "
            f"`study = rk.study(globals(), notebook={notebook.stem!r})`, or a list of them"
        )
    return list(studies)

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

import ast
import io
import json
import os
import re
import shlex
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import TypeAdapter, ValidationError

from rulerkit.compare import find
from rulerkit.errors import UserError, unknown
from rulerkit.evaluation import asked_studies, wanted
from rulerkit.models import gpus_and_nodes
from rulerkit.paths import home, project_files, resolve
from rulerkit.scoring import completeness
from rulerkit.settings import (
    UNNAMED_KEYS,
    BatchKeys,
    NotebookKeys,
    Spec,
    check,
    read_keys,
    read_spec,
    read_yaml,
)
from rulerkit.store import disk, plain, soft_file, write_whole
from rulerkit.studies import (
    Study,
    expand,
    load_files,
    name_of,
    notebook_parameters,
    read_notebook,
    study,
)

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
        """The arguments of papermill."""
        return [str(self.notebook), str(self.output), "-y", _one_line(self.parameters)]

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
    after: tuple[str, ...] = ()
    """The models whose answers it reads; it waits for them."""
    planned_by: str = "rulerkit batch FILE"
    """The command that planned it, which also plans it again."""

    @cached_property
    def steps(self) -> "list[Step]":
        """The predictions of its model, and its notebooks."""
        return [Step(self, run) for run in ([None] if self.model else []) + [*self.runs]]

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
        """The command that does what is left to do."""
        return f"rulerkit run {shlex.quote(str(self.file))}"

    @property
    def resources(self) -> tuple[int, int]:
        """GPUs on each node, and nodes."""
        return gpus_and_nodes(self.model) if self.model else (0, 1)

    def predictions(self, model: str) -> Path:
        """The record of a model's predictions."""
        return self.file.parents[1] / model / "predictions.json"

    def studies(self, notebook: Notebook) -> list[Study]:
        """What a notebook asks of this job's model; without a model, all that it asks."""
        if not self.model:
            return notebook.studies
        parts = [
            replace(study, models=tuple(m for m in study.models if name_of(m) == self.name))
            for study in notebook.studies
        ]
        return [study for study in parts if study.models]

    def not_run(self, model: str) -> dict[int, str]:
        """The lengths that a model could not be given when it was tried last, with the reasons."""
        record = read_record(self.predictions(model))
        if self.model and record.get("model") != plain(self.model):
            return {}  # the specification has changed: the length may fit now
        return {int(length): str(reason) for length, reason in record.get("not_run", {}).items()}

    def save(self) -> None:
        """Write the job file, if it differs from the one that is there."""
        content = _JOB.dump_python(self, mode="json", exclude={"file"}) | {"home": str(home())}
        head = f"# What `rulerkit run {self.file.name}` does; written by `rulerkit batch`.\n"
        text = head + yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
        with disk(self.file):
            if not self.file.exists() or self.file.read_text(encoding="utf-8") != text:
                write_whole(self.file, text)


_JOB = TypeAdapter(Job)


@dataclass(frozen=True)
class Step:
    """A part of a job with a log and a record of its own: the predictions, or one notebook."""

    job: Job
    run: Notebook | None = None
    """None for the predictions."""

    @property
    def title(self) -> str:
        return self.run.title if self.run else f"{self.job.name} predictions"

    @property
    def record(self) -> Path:
        job = self.job
        return self.run.output.with_suffix(".json") if self.run else job.predictions(job.name)

    @property
    def log(self) -> Path:
        return self.record.with_suffix(".log")

    @cached_property
    def cells(self) -> list[Need]:
        """Every cell that it is to answer or to read."""
        job = self.job
        asks = [self.run] if self.run and job.model else job.asks
        studies = [study for ask in asks for study in job.studies(ask)]
        return needs_of(studies, job.not_run)

    @property
    def needs(self) -> list[Need]:
        """Those of its cells whose length the model can be given."""
        not_run = {model: self.job.not_run(model) for model in {need.model for need in self.cells}}
        return [need for need in self.cells if need.length not in not_run[need.model]]

    @property
    def unanswered(self) -> list[Need]:
        """Those that are not complete."""
        return [need for need in self.needs if need.tokens_left]

    @property
    def changed(self) -> str:
        """Which of its models has other settings or files than those that gave the answers; "" for
        none. No weights are read: they may be the same."""
        for model in {need.model for need in self.cells}:
            record = read_record(self.job.predictions(model))
            now = version_of(self.job.model or record.get("model", {}))
            versions = record.get("versions", {})
            for before in (versions.get(str(need), now) for need in self.cells):
                if any(old != new for old, new in zip(before, now, strict=True) if old and new):
                    return f"the checkpoint or the settings of {model} changed after it answered"
        return ""

    @property
    def is_done(self) -> bool:
        """Whether all is answered, by the model as it is now; whether the notebook was executed as
        it is now, on all answers as they are now."""
        if self.unanswered or not self.run:
            return not (self.unanswered or self.changed)
        now = {"state": "done", "source": self.run.source, "answers": fingerprint(self.cells)}
        record = read_record(self.record)
        return self.run.output.exists() and record | now == record


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
        job = _JOB.validate_python(content | {"file": path.absolute()})
        _ = job.resources
    except (KeyError, TypeError, ValidationError) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}"
        raise UserError(
            f"{path} is no job file ({reason}): `rulerkit batch` writes them beside its notebooks, "
            "as outputs/notebooks/<run>/<model>/<batch>.job.yaml"
        ) from error
    here, planned = job.file.parents[1], [*job.runs, *job.asks][0].output.parents[1]
    if here.resolve() != planned.resolve():
        place = shlex.quote(f"outputs: {here.parents[1]}")
        raise UserError(
            f"{path} was planned for {planned}, not here: run `{job.planned_by} -y {place}`, which "
            "finds the answers that are here"
        )
    return job


def version_of(model: Spec) -> tuple[str, str]:
    """Digests of the settings of a model that may change its answers, and of the names, sizes and
    times of the files at its path; "" where none are there."""
    settings = [(key, model[key]) for key in sorted(model.keys() - UNNAMED_KEYS - {"path"})]
    files = []
    with suppress(OSError, KeyError):
        place = resolve(model["path"])
        for file in sorted([place, *place.glob("*")]):
            if file.is_file():
                files.append((file.name, file.stat().st_size, file.stat().st_mtime_ns))
    digests = [sha256(repr(each).encode()).hexdigest()[:16] for each in (settings, files)]
    return digests[0], digests[1] if files else ""


def needs_of(
    studies: Iterable[Study], not_run: Callable[[str], Collection[int]] = lambda _: ()
) -> list[Need]:
    """The cells that studies ask for, each once, with the largest number of examples."""
    needs: dict[Path, Need] = {}
    for asked in studies:
        counts = wanted(asked, not_run)
        for model, path, task, length in asked.cells():
            before = needs.get(path, Need(model, path, task.name, length, 0))
            count, soft = max(counts[path], before.wanted), asked.soft or before.soft
            needs[path] = before._replace(wanted=count, soft=soft)
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
        return [line.rstrip() for line in text.splitlines() if line.strip() and "%|" not in line]
    return []


def _one_line(values: Mapping[str, Any]) -> str:
    """Parameters as `-y` takes them."""
    text: str = yaml.safe_dump(dict(values), default_flow_style=True, width=10**6, sort_keys=False)
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
        asked = {self.study.corpora, *(s.corpora for run in self.runs for s in run.studies)}
        return "original" if "original" in asked else "builtin"


def read_batch(path: Path, settings: Mapping[str, Any] | None = None) -> Batch:
    """The jobs of a batch file; `settings` win over its parameters. Everything is checked before
    anything starts."""
    content = read_keys(BatchKeys, path)
    fixed = dict(settings or {})
    size = content.size
    files = [_find(f"size in {path}", size, "params/sizes", ".yaml")] if size else []
    parameters = load_files(files) | content.parameters | fixed
    models = parameters.pop("models", None) or content.models
    models = expand(models) if isinstance(models, list) else models  # it is checked below
    fixed.pop("models", None)
    if not models or not (content.notebooks or content.together):
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

    def executions(entry: Any, together: bool) -> list[Notebook]:
        """Of an entry: one for each model where the notebook takes `model`, else one."""
        given = entry if isinstance(entry, Mapping) else {"notebook": entry}
        given = {key: value for key, value in given.items() if value is not None}
        keys = check(NotebookKeys, given, f"{path}: a notebook's ", f"key of a notebook in {path}")
        if {"run", "outputs", "model", "models"} & keys.parameters.keys():
            raise UserError(
                f"{keys.notebook} in {path} sets run, outputs or models among its parameters: a "
                "batch writes into one place, and models stand beside `parameters`"
            )
        asked = expand(keys.models or models)
        values = parameters | keys.parameters | fixed
        study(values | {"models": asked})  # a wrong value is found before anything starts
        notebook = _find("notebook", keys.notebook, "notebooks", ".ipynb")
        known = notebook_parameters(notebook)
        if "model" in known and not together:
            subjects = {read_spec(model)["name"]: values | {"model": model} for model in asked}
        elif "models" in known:
            subjects = {"all": values | {"models": asked}}
        else:
            subjects = {"all": {name: value for name, value in values.items() if name in known}}
        return [
            Notebook(notebook, own, subject, folder / subject / notebook.name)
            for subject, own in subjects.items()
        ]

    single = [run for entry in content.notebooks for run in executions(entry, together=False)]
    over_all = [run for entry in content.together for run in executions(entry, together=True)]
    runs = single + over_all
    outputs = [run.output for run in runs]
    if twice := next((run for run in runs if outputs.count(run.output) > 1), None):
        raise UserError(
            f"{path} runs {twice.title} twice: two runs cannot write one notebook; remove one of "
            "them"
        )
    if content.baseline:
        try:
            find(content.baseline, whole.outputs, scan=False)
        except UserError as error:
            raise UserError(f"baseline in {path}: {error}") from error
    command = ["rulerkit", "batch", str(path.absolute())]
    command += ["-y", _one_line(settings)] if settings else []
    jobs = _jobs(path, folder, runs, over_all)
    jobs = [replace(job, planned_by=shlex.join(command)) for job in jobs]
    return Batch(path, whole, runs, jobs, content)


def _jobs(path: Path, folder: Path, runs: list[Notebook], over_all: list[Notebook]) -> list[Job]:
    jobs = []
    models = _models(path, runs)
    for name, spec in models.items():
        asks = tuple(run for run in runs if name in run.models)
        about_it = tuple(run for run in runs if run.subject == name and run.models <= {name})
        jobs.append(Job(name, folder / name / f"{path.stem}.job.yaml", spec, asks, about_it))
    for run in runs:
        if not any(run in job.runs for job in jobs):
            # a notebook over all models that asks nobody reads whatever the others have asked
            reads_all = run in over_all and not run.models
            asks = tuple(other for other in runs if other.models) if reads_all else (run,)
            after = tuple(name for name in models if reads_all or name in run.models)
            stem = run.output.stem
            name = stem if run.subject == "all" else f"{run.subject}-{stem}"
            file = folder / "all" / f"{path.stem}-{name}.job.yaml"
            jobs.append(Job(name, file, None, asks, (run,), after))
    return jobs


def _models(path: Path, runs: list[Notebook]) -> dict[str, dict[str, Any]]:
    """Every model that a notebook asks, by name."""
    models: dict[str, dict[str, Any]] = {}
    for spec in (spec for run in runs for asked in run.studies for spec in asked.models):
        assert isinstance(spec, dict), "a batch file holds no model made in Python"
        other = models.setdefault(spec["name"], spec)
        if spec["name"] == "all":
            raise UserError(
                f"{path}: no model can be called all, the folder of notebooks over several models: "
                "give it a `name:`"
            )
        if differs := [key for key in spec | other if spec.get(key) != other.get(key)]:
            raise UserError(
                f"{path} has two models named {spec['name']}, which differ in "
                f"{', '.join(differs)}: give one of them a `name:` of its own"
            )
    return models


def _find(what: str, name: str, folder: str, suffix: str) -> Path:
    """A file by its name in a folder of the project, or by its path."""
    files = project_files(folder, suffix)
    path = files.get(name) or resolve(name)
    if not os.path.isfile(path):
        raise unknown(what, name, sorted(files))
    return path


# --- what a notebook asks -------------------------------------------------------------------------


def studies_of(notebook: Path, parameters: Mapping[str, Any]) -> list[Study]:
    """The studies that a notebook hands to `evaluate` under these parameters; [] where it asks
    nobody.

    Its statements are run up to the last one that calls `evaluate`, which answers nothing yet. So a
    notebook declares nothing, and the plan cannot differ from what is asked. Raises `UserError` for
    a wrong parameter, or where a statement before the last question fails.
    """
    names: dict[str, Any] = {
        "In": ["# Parameters\n" + "".join(f"{name} = None\n" for name in parameters)],
        "get_ipython": lambda: None,
        "__name__": "__main__",
    }
    statements = _statements(notebook)
    code = [node for each in statements if each for node in ast.walk(each)]
    functions = [n for n in code if isinstance(n, ast.FunctionDef) and _calls(n, {"evaluate"})]
    asking = {"evaluate", *(function.name for function in functions)}
    while statements and not (statements[-1] and _calls(statements[-1], asking)):
        statements.pop()
    with asked_studies() as studies, redirect_stdout(io.StringIO()):
        for number, statement in enumerate(statements, start=1):
            if not statement:
                names |= parameters
                continue
            before = len(studies)
            try:
                exec(compile(ast.Module([statement], []), str(notebook), "exec"), names)
            except Exception as error:
                # the last statement may fail where it uses the answers, once it has asked
                asked = len(studies) - before
                if number < len(statements) or asked < _calls(statement, asking):
                    raise _cannot_plan(notebook, error) from error
    return list(studies)


def _statements(notebook: Path) -> list[ast.stmt | None]:
    """The statements of a notebook; None where papermill injects the parameters."""
    statements: list[ast.stmt | None] = []
    for cell in read_notebook(notebook):
        if cell["cell_type"] == "code":
            statements += _parse("".join(cell["source"]), notebook)
            if "parameters" in cell.get("metadata", {}).get("tags", []):
                statements.append(None)
    return statements


def _parse(source: str, notebook: Path) -> list[ast.stmt]:
    """The statements of a cell without its magics and shell commands; none of a cell in another
    language."""
    without_magics = re.sub(r"(?m)^\s*[%!].*$", "", source)
    for text in (source, without_magics):
        try:
            return ast.parse(text).body
        except SyntaxError as error:
            problem = error
    if source.lstrip().startswith("%%"):
        return []
    raise _cannot_plan(notebook, problem)


def _calls(node: ast.stmt, names: set[str]) -> float:
    """How often a statement calls functions or methods with these names; infinite in a loop."""
    nodes = list(ast.walk(node))
    called = [each.func for each in nodes if isinstance(each, ast.Call)]
    count = sum(getattr(f, "attr", getattr(f, "id", None)) in names for f in called)
    loops = any(isinstance(each, ast.For | ast.While | ast.comprehension) for each in nodes)
    return inf if count and loops else count


def _cannot_plan(notebook: Path, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return UserError(f"{notebook.stem}: {error}")
    return UserError(
        f"{notebook.stem} cannot be planned ({type(error).__name__}: "
        f"{' '.join(str(error).split())}): a batch runs its lines up to the last one that calls "
        "evaluate, which returns nothing yet, to learn what they ask: let them run without "
        "answers, such as `cells = rk.evaluate(study)` on a line of its own"
    )

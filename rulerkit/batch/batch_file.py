"""A batch file, read and planned as a whole, before anything starts.

A batch file names `models`, the notebooks that run once per model (`notebooks`), those that run
once over all models (`together`), a `size` (a file of params/sizes/) and further `parameters`. An
entry of `notebooks` or `together` is a name, or a mapping with models and parameters of its own:
`{notebook: 03_distractors, models: [...], parameters: {...}}`.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rulerkit.batch.jobs import Job, one_line
from rulerkit.common.errors import UserError, unknown
from rulerkit.common.paths import project_file, project_files, resolve
from rulerkit.common.settings import JSON, BatchKeys, NotebookKeys, Parameters, check
from rulerkit.common.yaml_files import read_yaml
from rulerkit.evaluation.notebook import notebook_parameters, read_notebook
from rulerkit.evaluation.study import Study, check_used, load_files, name_of
from rulerkit.evaluation.study import study as make_study
from rulerkit.inference.model import with_server

_KEYS_OF_FILE = BatchKeys.model_fields.keys() - {"parameters"}


@dataclass(frozen=True)
class Batch:
    """A batch file, read and checked."""

    path: Path
    study: Study
    """The parameters of the whole batch, over all its models."""
    jobs: list[Job]
    """One for each model that any notebook asks, then one for each execution of a notebook."""


def read_batch(path: Path, settings: Mapping[str, Any] | None = None) -> Batch:
    """The jobs of a batch file; `settings` win over its keys and its parameters.

    Everything is checked before anything starts: raises `UserError` for a wrong key or parameter, a
    notebook that cannot be planned, and two runs that would write one notebook.
    """
    settings = dict(settings or {})
    own = {name: value for name, value in settings.items() if name in _KEYS_OF_FILE}
    fixed = {name: value for name, value in settings.items() if name not in own}
    keys = check(BatchKeys, read_yaml(path) | own, f"{path}: ", f"key in {path}")
    parameters = keys.parameters | fixed
    if keys.size:
        size = _find(f"size in {path}", keys.size, "params/sizes", ".yaml")
        parameters = load_files([size]) | parameters
    if {"model", "models"} & parameters.keys():
        raise UserError(f"{path}: the models of a batch are a key of their own, `models: [...]`")

    alone = _entries(path, keys.notebooks)
    together = _entries(path, keys.together)
    # Where the file names no models: all that its notebooks name.
    of_entries = [model for entry in alone + together for model in entry.models or []]
    named = keys.models or {str(model): model for model in of_entries}.values()
    models = [with_server(model) for model in named]
    if not models or not (alone or together):
        raise UserError(
            f"{path} names no models, or no notebooks: a batch needs `models:` and `notebooks:` or "
            "`together:`"
        )

    whole = make_study(parameters | {"models": models})
    notebooks = list[Job]()
    for entries, once in ((alone, False), (together, True)):
        for entry in entries:
            values = parameters | entry.parameters | fixed
            shown = {"batch": str(path.absolute()), "settings": settings}
            notebooks += _notebook_jobs(path, entry, once, values, shown, models, whole)
    written = set[Path]()
    for job in notebooks:
        if job.record in written:
            raise UserError(
                f"{path} runs {job.title} twice: two runs cannot write one notebook; remove one of "
                "them"
            )
        written.add(job.record)

    # A parameter of the command line that no notebook takes would have no effect.
    uses = dict.fromkeys(Parameters.model_fields)
    for file in dict.fromkeys(job.notebook for job in notebooks if job.notebook):
        uses |= dict.fromkeys(notebook_parameters(file))
    check_used(fixed, fixed | {"num_examples": "adaptive"}, uses, "this batch")

    given = ["-y", one_line(settings)] if settings else []
    again = shlex.join(["rulerkit", "batch", str(path.absolute()), *given, "--only"])
    jobs = _joined(_model_jobs(path, whole, notebooks), notebooks)
    jobs = [replace(job, command=f"{again} {shlex.quote(job.name)}") for job in jobs]
    return Batch(path, whole, jobs)


# --- what the file says ---------------------------------------------------------------------------


def _entries(path: Path, entries: Iterable[Any]) -> list[NotebookKeys]:
    """Entries of the file; a name alone stands for a notebook without keys of its own."""
    checked = []
    for entry in entries:
        given = entry if isinstance(entry, Mapping) else {"notebook": entry}
        where, what = f"{path}: a notebook's ", f"key of a notebook in {path}"
        keys = check(NotebookKeys, given, where, what)
        if {"run", "outputs", "model", "models"} & keys.parameters.keys():
            raise UserError(
                f"{keys.notebook} in {path} sets run, outputs or models among its parameters: a "
                "batch writes into one place, and models stand beside `parameters`"
            )
        checked.append(keys)
    return checked


def _find(what: str, name: str, folder: str, suffix: str) -> Path:
    """A file by its name in a folder of the project, or by its path."""
    path = project_file(folder, name, suffix) or resolve(name)
    if not os.path.isfile(path):
        raise unknown(what, name, sorted(project_files(folder, suffix)))
    return path


# --- what a notebook asks, before it runs ---------------------------------------------------------


def _notebook_jobs(
    path: Path,
    entry: NotebookKeys,
    once: bool,
    values: JSON,
    shown: JSON,
    models: list[Any],
    whole: Study,
) -> Iterator[Job]:
    """The executions of an entry: one for each model where the notebook takes `model` and not
    `once`, else one. A notebook that shows how far the batch is gets `shown` too."""
    notebook = _find("notebook", entry.notebook, "notebooks", ".ipynb")
    known = notebook_parameters(notebook)
    checked = whole
    if entry.models or entry.parameters:
        # A wrong value is found before anything starts.
        models = [with_server(model) for model in entry.models or models]
        checked = make_study(values | {"models": models})
    if "batch" in known:
        values = values | shown

    # What papermill gives, and the same with the models' files as they were read.
    given: dict[str, tuple[JSON, JSON]] = {}
    if "model" in known and not once:
        for model, spec in zip(models, checked.models, strict=True):
            given[name_of(spec)] = values | {"model": model}, values | {"model": spec}
    elif "models" in known:
        given["all"] = values | {"models": models}, values | {"models": [*checked.models]}
    elif entry.models and "model" not in known:
        raise UserError(
            f"{entry.notebook} in {path} takes no `models`; its parameters are {', '.join(known)}"
        )
    else:
        # Its tasks or models may be a plug-in's.
        used = {name: values[name] for name in values if name in {*known, "plugins"}}
        given["all"] = used, used

    folder = whole.outputs / "notebooks" / whole.run
    for subject, (parameters, read) in given.items():
        studies = studies_of(notebook, read)
        asked = dict.fromkeys(name_of(model) for study in studies for model in study.models)
        yield Job(
            notebook.stem if subject == "all" else f"{subject}-{notebook.stem}",
            f"{subject} {notebook.stem}",
            folder / subject / f"{notebook.stem}.json",
            tuple(studies),
            notebook=notebook,
            parameters=parameters,
            is_planned=bool(studies),
            reads_all=once and not asked,
            after=tuple(asked),
        )


def studies_of(notebook: Path, parameters: Mapping[str, Any]) -> list[Study]:
    """What a notebook asks under these parameters: the studies that its cell tagged `study` assigns
    to the name `study`. [] where no cell is tagged so: then nobody knows before it runs.

    Raises `UserError` for a wrong parameter, and for cells that need others.
    """
    cells = read_notebook(notebook)
    if not any(cell.has("study") for cell in cells):
        return []

    names: dict[str, Any] = {
        # As in a notebook: `rk.study(globals())` reads here which parameters were given from
        # outside.
        "In": ["# Parameters\n" + "".join(f"{name} = None\n" for name in parameters)],
        "__name__": "__main__",
    }
    try:
        for cell in cells:
            if cell.has("parameters") or cell.has("study"):
                exec(compile(cell.source, str(notebook), "exec"), names)
            if cell.has("parameters"):
                names |= parameters
    except UserError as error:
        raise UserError(f"{notebook.stem}: {error}") from error
    except Exception as error:
        raise UserError(
            f"{notebook.stem} cannot be planned ({type(error).__name__}: "
            f"{' '.join(str(error).split())}): its cells tagged `parameters` and `study` are run "
            "alone, so they must not need other cells"
        ) from error

    assigned = names.get("study")
    studies = [assigned] if isinstance(assigned, Study) else assigned
    if not isinstance(studies, list | tuple) or not all(isinstance(one, Study) for one in studies):
        raise UserError(
            f"{notebook.stem}: its cell tagged `study` must assign `study`, such as "
            f"`study = rk.study(globals(), notebook={notebook.stem!r})`, or a list of them"
        )
    return list(studies)


# --- jobs -----------------------------------------------------------------------------------------


def _model_jobs(path: Path, whole: Study, notebooks: Iterable[Job]) -> list[Job]:
    """A job for each model that a notebook asks, with all that it is asked.

    Raises `UserError` for two models of one name, and for one that no other process has.
    """
    jobs: dict[str, Job] = {}
    questions = [
        (job, study, model) for job in notebooks for study in job.studies for model in study.models
    ]
    for asking, study, model in questions:
        name = name_of(model)
        if not isinstance(model, dict):
            raise UserError(
                f"{path}: {asking.title} asks {name}, a model made in Python, which no other "
                "process has: describe it in params/models, a function by `entry: "
                "package.module:load`"
            )
        record = whole.outputs / "notebooks" / whole.run / name / "predictions.json"
        job = jobs.get(name) or Job(name, f"{name} predictions", record, (), model=model)
        # Their predictions would lie in one folder, and one model would be taken for the other.
        other = job.model or {}
        keys = [key for key in model | other if model.get(key) != other.get(key)]
        if keys:
            raise UserError(
                f"{path} has two models named {name}, which differ in {', '.join(keys)}: give one "
                "of them a `name:` of its own"
            )
        jobs[name] = replace(job, studies=(*job.studies, replace(study, models=(model,))))
    return list(jobs.values())


def _joined(models: list[Job], notebooks: list[Job]) -> list[Job]:
    """The jobs of a batch in their order: models, notebooks on their answers, those that ask their
    models themselves, and last what shows how far the others are."""
    jobs = [*models]
    answering = {job.name for job in models}
    for job in sorted(notebooks, key=lambda job: (job.is_page, not job.is_planned)):
        subject = job.record.parent.name
        if subject in answering and {subject}.issuperset(job.after):
            # It is about one model, whose answers it follows.
            job = replace(job, name=subject, after=(subject,))
        if job.reads_all:
            studies = tuple(study for model in models for study in model.studies)
            job = replace(job, studies=studies, after=tuple(model.name for model in models))
        if job.is_page:
            job = replace(job, reads=tuple(other.record for other in jobs))
        jobs.append(job)
    return jobs

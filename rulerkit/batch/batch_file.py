"""A batch file, read and planned as a whole, before anything starts.

A batch file names `models`, the notebooks that run once per model (`notebooks`), those that run
once over all models (`together`), a `size` (a file of params/sizes/) and further `parameters`. An
entry of `notebooks` or `together` is a name, or a mapping with models and parameters of its own:
`{notebook: 03_distractors, models: [...], parameters: {...}}`.
"""

import json
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rulerkit.batch.jobs import Job
from rulerkit.common.errors import UserError, unknown
from rulerkit.common.model_files import read_spec
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
    _check_free(parameters, {"model", "models"}, f"{path}")
    if not keys.models or not (keys.notebooks or keys.together):
        raise UserError(
            f"{path} names no models, or no notebooks: a batch needs `models:` and `notebooks:` or "
            "`together:`"
        )

    models = [with_server(model) for model in keys.models]
    whole = make_study(parameters | {"models": models})
    named = list(zip(models, whole.models, strict=True))
    folder = whole.outputs / "notebooks" / whole.run
    shown = {"batch": str(path.absolute()), "settings": settings}
    notebooks: dict[Path, Job] = {}
    entries = [(entry, False) for entry in keys.notebooks]
    entries += [(entry, True) for entry in keys.together]
    for entry, once in entries:
        own_keys = _entry(path, entry)
        values = parameters | own_keys.parameters | fixed
        for job in _notebook_jobs(own_keys, once, values, shown, named, folder):
            if job.record in notebooks:
                raise UserError(
                    f"{path} runs {job.title} twice: two runs cannot write one notebook; remove "
                    "one of them"
                )
            notebooks[job.record] = job

    if all(job.is_page for job in notebooks.values()):
        raise UserError(
            f"{path}: no notebook of it asks a model: add one to `notebooks:`, such as "
            "01_main_results"
        )

    # A parameter of the command line that no notebook takes would have no effect.
    uses = dict.fromkeys(Parameters.model_fields)
    for file in {job.notebook for job in notebooks.values() if job.notebook}:
        uses |= dict.fromkeys(notebook_parameters(file))
    check_used(fixed, fixed | {"num_examples": "adaptive"}, uses, "this batch")

    given = ["-y", json.dumps(settings, ensure_ascii=False)] if settings else []
    again = shlex.join(["rulerkit", "batch", str(path.absolute()), *given])
    jobs = _joined(_model_jobs(path, folder, notebooks.values()), notebooks.values())
    return Batch(path, whole, [replace(job, batch=again) for job in jobs])


# --- what the file says ---------------------------------------------------------------------------


def _entry(path: Path, entry: Any) -> NotebookKeys:
    """An entry of the file; a name alone stands for a notebook without keys of its own."""
    given = entry if isinstance(entry, Mapping) else {"notebook": entry}
    keys = check(NotebookKeys, given, f"{path}: a notebook's ", f"key of a notebook in {path}")
    where = f"{keys.notebook} in {path}"
    _check_free(keys.parameters, {"run", "outputs", "model", "models"}, where)
    return keys


def _check_free(parameters: JSON, names: set[str], where: str) -> None:
    """Raise a `UserError` for parameters that a batch sets itself."""
    if names & parameters.keys():
        raise UserError(
            f"{where} sets {', '.join(sorted(names & parameters.keys()))} among its parameters: a "
            "batch writes into one place, and models are a key of their own, `models: [...]`"
        )


def _find(what: str, name: str, folder: str, suffix: str) -> Path:
    """A file by its name in a folder of the project, or by its path."""
    path = project_file(folder, name, suffix) or resolve(name)
    if not os.path.isfile(path):
        raise unknown(what, name, sorted(project_files(folder, suffix)))
    return path


# --- what a notebook asks, before it runs ---------------------------------------------------------


def _notebook_jobs(
    entry: NotebookKeys,
    once: bool,
    values: JSON,
    shown: JSON,
    named: Sequence[tuple[Any, Any]],
    folder: Path,
) -> Iterator[Job]:
    """The executions of an entry: one for each model where the notebook takes `model` and not
    `once`, else one. A notebook that shows how far the batch is gets `shown` too. Models are
    `named` as they are given, each with its file as it was read."""
    notebook = _find("notebook", entry.notebook, "notebooks", ".ipynb")
    known = notebook_parameters(notebook)
    if entry.models:
        own = [with_server(model) for model in entry.models]
        named = [(model, read_spec(model)) for model in own]
    if "batch" in known:
        values = values | shown

    # What papermill gives, and the same with the models' files as they were read.
    given: dict[str, tuple[JSON, JSON]] = {}
    if "model" in known and not once:
        for model, spec in named:
            given[name_of(spec)] = values | {"model": model}, values | {"model": spec}
    elif "models" in known:
        models, specs = zip(*named, strict=True)
        given["all"] = values | {"models": [*models]}, values | {"models": [*specs]}
    elif entry.models and "model" not in known:
        raise UserError(
            f"{entry.notebook} takes no `models`; its parameters are {', '.join(known)}"
        )
    else:
        # Its tasks or models may be a plug-in's.
        used = {name: values[name] for name in values if name in {*known, "plugins"}}
        given["all"] = used, used

    for subject, (parameters, read) in given.items():
        studies = tuple(studies_of(notebook, read))
        yield Job(folder, subject, notebook.stem, studies, notebook=notebook, parameters=parameters)


def studies_of(notebook: Path, parameters: Mapping[str, Any]) -> list[Study]:
    """What a notebook asks under these parameters: the studies that its cell tagged `study` assigns
    to the name `study`. [] where no cell is tagged so: then nobody knows before it runs.

    Raises `UserError` for a wrong parameter, and for cells that need others.
    """
    cells = read_notebook(notebook)
    if not any("study" in cell.tags for cell in cells):
        return []

    names: dict[str, Any] = {
        # As in a notebook: `rk.study(globals())` reads here which parameters were given from
        # outside.
        "In": ["# Parameters\n" + "".join(f"{name} = None\n" for name in parameters)],
        "__name__": "__main__",
    }
    try:
        for cell in cells:
            if "parameters" in cell.tags or "study" in cell.tags:
                exec(compile(cell.source, str(notebook), "exec"), names)
            if "parameters" in cell.tags:
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


def _model_jobs(path: Path, folder: Path, notebooks: Iterable[Job]) -> dict[str, Job]:
    """A job for each model that a notebook asks, with all that it is asked, by name.

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
        job = jobs.get(name) or Job(folder, name, "predictions", (), model=model)
        # Their predictions would lie in one folder, and one model would be taken for the other.
        other = job.model or {}
        keys = [key for key in model | other if model.get(key) != other.get(key)]
        if keys:
            raise UserError(
                f"{path} has two models named {name}, which differ in {', '.join(keys)}: give one "
                "of them a `name:` of its own"
            )
        jobs[name] = replace(job, studies=(*job.studies, replace(study, models=(model,))))
    return jobs


def _joined(models: Mapping[str, Job], notebooks: Iterable[Job]) -> list[Job]:
    """The jobs of a batch in their order: models, notebooks on their answers, and last what shows
    how far the others are."""
    jobs = [*models.values()]
    for job in sorted(notebooks, key=lambda job: job.is_page):
        asked = [name_of(model) for study in job.studies for model in study.models]
        if not asked and job.subject in models:
            asked = [job.subject]
        if asked:
            after = tuple(models[name] for name in dict.fromkeys(asked))
            jobs.append(replace(job, after=after))
        else:
            # It asks nobody, and may show whatever the others have asked and drawn.
            studies = tuple(study for model in models.values() for study in model.studies)
            jobs.append(replace(job, studies=studies, after=tuple(jobs)))
    return jobs

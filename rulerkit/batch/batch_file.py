"""A batch file, read and planned as a whole, before anything starts.

A batch file names `models`, the notebooks that run once per model (`notebooks`), those that run
once over all models (`together`), a `size` (a file of params/sizes/) and further `parameters`. An
entry of `notebooks` or `together` is a name, or a mapping with models and parameters of its own:
`{notebook: 03_distractors, models: [...], parameters: {...}}`.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rulerkit.batch.jobs import Job, Notebook, one_line
from rulerkit.common.errors import UserError, unknown
from rulerkit.common.paths import project_files, resolve
from rulerkit.common.settings import JSON, BatchKeys, NotebookKeys, Parameters, check
from rulerkit.common.yaml_files import read_yaml
from rulerkit.evaluation.notebook import notebook_parameters, read_notebook
from rulerkit.evaluation.study import Study, check_used, expand, load_files, name_of
from rulerkit.evaluation.study import study as make_study

# A batch writes into one place, and models stand beside the parameters.
_NOT_IN_PARAMETERS = {"run", "outputs", "model", "models"}
_KEYS_OF_FILE = BatchKeys.model_fields.keys() - {"parameters"}


@dataclass(frozen=True)
class Batch:
    """A batch file, read and checked."""

    path: Path
    study: Study
    """The parameters of the whole batch, over all its models."""
    runs: list[Notebook]
    jobs: list[Job]
    """One for each model that any notebook asks, then one for each execution of a notebook."""

    @property
    def models(self) -> list[JSON]:
        """Every model that any notebook of the batch asks."""
        return [job.model for job in self.jobs if job.model]


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
    models = expand(keys.models or {str(model): model for model in of_entries}.values())
    if not models or not (alone or together):
        raise UserError(
            f"{path} names no models, or no notebooks: a batch needs `models:` and `notebooks:` or "
            "`together:`"
        )

    whole = make_study(parameters | {"models": models})
    planner = _Planner(path, whole, models, parameters, fixed, settings)
    single = [run for entry in alone for run in planner.runs_of(entry)]
    over_all = [run for entry in together for run in planner.runs_of(entry, once=True)]
    runs = single + over_all
    _check_runs(path, runs, fixed)
    return Batch(path, whole, runs, planner.jobs_of(runs, over_all))


# --- what the file says ---------------------------------------------------------------------------


def _entries(path: Path, entries: Iterable[Any]) -> list[NotebookKeys]:
    """Entries of the file; a name alone stands for a notebook without keys of its own."""
    checked = []
    for entry in entries:
        given = entry if isinstance(entry, Mapping) else {"notebook": entry}
        where, what = f"{path}: a notebook's ", f"key of a notebook in {path}"
        checked.append(check(NotebookKeys, given, where, what))
    return checked


def _check_runs(path: Path, runs: Sequence[Notebook], fixed: JSON) -> None:
    """Raise UserError for two runs of one notebook, and for a parameter of the command line that no
    notebook takes."""
    taken = dict.fromkeys(Parameters.model_fields)
    outputs = [run.output for run in runs]
    for run in runs:
        taken |= dict.fromkeys(notebook_parameters(run.notebook))
        if outputs.count(run.output) > 1:
            raise UserError(
                f"{path} runs {run.title} twice: two runs cannot write one notebook; remove one of "
                "them"
            )
    check_used(fixed, fixed | {"num_examples": "adaptive"}, taken, "this batch")


def _find(what: str, name: str, folder: str, suffix: str) -> Path:
    """A file by its name in a folder of the project, or by its path."""
    files = project_files(folder, suffix)
    path = files.get(name) or resolve(name)
    if not os.path.isfile(path):
        raise unknown(what, name, sorted(files))
    return path


# --- what a notebook asks, before it runs ---------------------------------------------------------


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


# --- runs and jobs --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Planner:
    """What the runs of all notebooks of a batch share."""

    path: Path
    whole: Study
    models: list[Any]
    parameters: JSON
    """Those of the file and its size, and over them those of the command line."""
    fixed: JSON
    """Those of the command line: they win over what an entry says."""
    settings: JSON
    """All that the command line gives, as it is given again."""

    def runs_of(self, entry: NotebookKeys, once: bool = False) -> list[Notebook]:
        """The runs of an entry: one for each model where the notebook takes `model` and not `once`,
        else one."""
        if _NOT_IN_PARAMETERS & entry.parameters.keys():
            raise UserError(
                f"{entry.notebook} in {self.path} sets run, outputs or models among its "
                "parameters: a batch writes into one place, and models stand beside `parameters`"
            )
        notebook = _find("notebook", entry.notebook, "notebooks", ".ipynb")
        known = notebook_parameters(notebook)
        models = expand(entry.models or self.models)
        values = self.parameters | entry.parameters | self.fixed
        checked = self.whole
        if entry.models or entry.parameters:
            # A wrong value is found before anything starts.
            checked = make_study(values | {"models": models})
        if "batch" in known:
            # It shows how far the batch is.
            values |= {"batch": str(self.path.absolute()), "settings": self.settings}

        if "model" in known and not once:
            names = map(name_of, checked.models)
            given = {
                name: values | {"model": model} for name, model in zip(names, models, strict=True)
            }
        elif "models" in known:
            given = {"all": values | {"models": models}}
        elif entry.models and "model" not in known:
            raise UserError(
                f"{entry.notebook} in {self.path} takes no `models`; its parameters are "
                f"{', '.join(known)}"
            )
        else:
            # Its tasks or models may be a plug-in's.
            given = {"all": {name: values[name] for name in values if name in {*known, "plugins"}}}

        runs = []
        for subject, own in given.items():
            studies = studies_of(notebook, own)
            place = self.whole.outputs / "notebooks" / self.whole.run / subject / notebook.name
            runs.append(Notebook(notebook, own, subject, place, tuple(studies)))
        return runs

    def jobs_of(self, runs: list[Notebook], over_all: list[Notebook]) -> list[Job]:
        """A job for each model that a notebook asks, then one for each execution of a notebook."""
        given = ["-y", one_line(self.settings)] if self.settings else []
        again = shlex.join(["rulerkit", "batch", str(self.path.absolute()), *given, "--only"])
        models = _models_asked(self.path, runs)
        jobs = []
        for name, described in models.items():
            studies = [
                replace(study, models=(model,))
                for run in runs
                for study in run.studies
                for model in study.models
                if name_of(model) == name
            ]
            folder = self.whole.outputs / "notebooks" / self.whole.run / name
            record, command = folder / "predictions.json", f"{again} {shlex.quote(name)}"
            title = f"{name} predictions"
            jobs.append(Job(name, title, record, tuple(studies), command, described))

        notebooks: list[Job] = []
        # What shows how far the others are comes last, before it what asks its models itself.
        for run in sorted(runs, key=lambda run: (run.is_page, not run.studies)):
            # A notebook over all models that asks nobody reads whatever the others have asked.
            reads_all = run in over_all and not run.models
            read = [other for other in runs if other.models] if reads_all else [run]
            after = [name for name in models if reads_all or name in run.models]
            name = run.output.stem
            if run.subject in models and run.models <= {run.subject}:
                # It is about one model, whose answers it follows.
                name, after = run.subject, [run.subject]
            elif run.subject != "all":
                name = f"{run.subject}-{name}"
            notebooks.append(
                Job(
                    name,
                    run.title,
                    run.output.with_suffix(".json"),
                    tuple(study for each in read for study in each.studies),
                    f"{again} {shlex.quote(name)}",
                    run=run,
                    after=tuple(after),
                    reads=tuple(job.record for job in (*jobs, *notebooks) if run.is_page),
                )
            )
        return jobs + notebooks


def _models_asked(path: Path, runs: Iterable[Notebook]) -> dict[str, JSON]:
    """Every model that a notebook asks, by its name.

    Raises `UserError` for two models of one name, and for one that no other process has.
    """
    models: dict[str, JSON] = {}
    for run in runs:
        for described in [model for study in run.studies for model in study.models]:
            name = name_of(described)
            if not isinstance(described, dict):
                raise UserError(
                    f"{path}: {run.title} asks {name}, a model made in Python, which no other "
                    "process has: describe it in params/models, a function by `entry: "
                    "package.module:load`"
                )
            # Their predictions would lie in one folder, and one model would be taken for the other.
            other = models.setdefault(name, described)
            keys = [key for key in described | other if described.get(key) != other.get(key)]
            if keys:
                raise UserError(
                    f"{path} has two models named {name}, which differ in {', '.join(keys)}: give "
                    "one of them a `name:` of its own"
                )
    return models

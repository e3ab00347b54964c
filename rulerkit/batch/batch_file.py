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
from rulerkit.common.paths import from_root, project_files, resolve
from rulerkit.common.settings import JSON, BatchKeys, NotebookKeys, Parameters, check
from rulerkit.common.yaml_files import read_yaml
from rulerkit.evaluation.notebook import notebook_parameters, read_notebook
from rulerkit.evaluation.study import Study, check_used, expand, load_files, name_of
from rulerkit.evaluation.study import study as make_study

# A batch writes into one place, and models stand beside the parameters.
_NOT_IN_PARAMETERS = {"run", "outputs", "model", "models"}
# Values of the command line for these are no parameters; `models` is both.
_KEYS_OF_FILE = BatchKeys.model_fields.keys() - {"models", "parameters"}


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

    @property
    def corpora(self) -> str:
        """`original` if the batch or any of its notebooks asks for the original texts, else
        `builtin`."""
        studies = [self.study]
        for run in self.runs:
            studies += run.studies
        is_original = any(study.corpora == "original" for study in studies)
        return "original" if is_original else "builtin"


def read_batch(path: Path, settings: Mapping[str, Any] | None = None) -> Batch:
    """The jobs of a batch file; `settings` win over its keys and its parameters.

    Everything is checked before anything starts: raises `UserError` for a wrong key or parameter, a
    notebook that cannot be planned, and two runs that would write one notebook.
    """
    fixed = dict(settings or {})
    own = {name: fixed.pop(name) for name in list(fixed) if name in _KEYS_OF_FILE}
    content = read_yaml(path) | own
    keys = check(BatchKeys, content, f"{path}: ", f"key in {path}")
    parameters = keys.parameters | fixed
    if keys.size:
        size = _find(f"size in {path}", keys.size, "params/sizes", ".yaml")
        parameters = load_files([size]) | parameters
    alone = _entries(path, keys.notebooks)
    together = _entries(path, keys.together)

    models = _models_of(parameters.pop("models", None) or keys.models, alone + together)
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

    whole = make_study(parameters | {"models": models})
    again = dict(settings or {})
    if "outputs" in again:
        again["outputs"] = from_root(whole.outputs)
    planner = _Planner(path, whole, models, parameters, fixed, again)
    single = [run for entry in alone for run in planner.runs_of(entry)]
    over_all = [run for entry in together for run in planner.runs_of(entry, once=True)]

    runs = single + over_all
    _check_runs(path, runs, fixed)
    jobs = _jobs_of(path, planner.folder, runs, over_all, planner.command)
    return Batch(path, whole, runs, jobs)


# --- what the file says ---------------------------------------------------------------------------


def _entries(path: Path, entries: Iterable[Any]) -> list[NotebookKeys]:
    """Entries of the file; a name alone stands for a notebook without keys of its own."""
    checked = []
    for entry in entries:
        given = entry if isinstance(entry, Mapping) else {"notebook": entry}
        where, what = f"{path}: a notebook's ", f"key of a notebook in {path}"
        checked.append(check(NotebookKeys, given, where, what))
    return checked


def _models_of(given: Any, entries: Sequence[NotebookKeys]) -> Any:
    """The models of a batch; where the file names none, all that its notebooks name."""
    if not given:
        by_text = {str(model): model for entry in entries for model in entry.models or []}
        given = list(by_text.values())
    # What is no list is refused where the study is checked.
    return expand(given) if isinstance(given, list) else given


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

    @property
    def folder(self) -> Path:
        """Where executed notebooks and the records of jobs lie."""
        return self.whole.outputs / "notebooks" / self.whole.run

    @property
    def command(self) -> list[str]:
        """The command that plans this batch again."""
        given = ["-y", one_line(self.settings)] if self.settings else []
        return ["rulerkit", "batch", str(self.path.absolute()), *given]

    def runs_of(self, entry: NotebookKeys, once: bool = False) -> list[Notebook]:
        """The runs of an entry: one for each model where the notebook takes `model` and not `once`,
        else one."""
        if _NOT_IN_PARAMETERS & entry.parameters.keys():
            raise UserError(
                f"{entry.notebook} in {self.path} sets run, outputs or models among its "
                "parameters: a "
                "batch writes into one place, and models stand beside `parameters`"
            )
        models = expand(entry.models or self.models)
        values = self.parameters | entry.parameters | self.fixed
        # A wrong value is found before anything starts.
        checked = make_study(values | {"models": models})
        if values.get("seed") == "fresh":
            # All notebooks ask the same questions.
            values["seed"] = checked.seed
        if "outputs" in values:
            # An executed notebook may be read on another machine.
            values["outputs"] = from_root(self.whole.outputs)

        notebook = _find("notebook", entry.notebook, "notebooks", ".ipynb")
        known = notebook_parameters(notebook)
        if "batch" in known:
            # It shows how far the batch is.
            values |= {"batch": from_root(self.path.absolute()), "settings": self.settings}
        if "model" in known and not once:
            names = map(name_of, checked.models)
            by_subject = {
                name: values | {"model": model} for name, model in zip(names, models, strict=True)
            }
        elif "models" in known:
            by_subject = {"all": values | {"models": models}}
        elif entry.models and "model" not in known:
            raise UserError(
                f"{entry.notebook} in {self.path} takes no `models`; its parameters are "
                f"{', '.join(known)}"
            )
        else:
            # Its tasks or models may be a plug-in's.
            own = {name: values[name] for name in values if name in {*known, "plugins"}}
            by_subject = {"all": own}
        runs = []
        for subject, own in by_subject.items():
            studies = studies_of(notebook, own)
            for asked_model in [model for study in studies for model in study.models]:
                if not isinstance(asked_model, dict):
                    raise UserError(
                        f"{self.path}: {subject} {notebook.stem} asks {name_of(asked_model)}, a "
                        "model made in Python, which no other process has: describe it in "
                        "params/models, a function by `entry: package.module:load`"
                    )
            place = self.folder / subject / notebook.name
            runs.append(Notebook(notebook, own, subject, place, tuple(studies)))
        return runs


def _jobs_of(
    path: Path, folder: Path, runs: list[Notebook], over_all: list[Notebook], command: list[str]
) -> list[Job]:
    """A job for each model that a notebook asks, then one for each execution of a notebook."""
    models = _models_asked(path, runs)
    jobs = []
    for name, described in models.items():
        studies = [
            (run.notebook.stem, replace(study, models=(model,)))
            for run in runs
            for study in run.studies
            for model in study.models
            if name_of(model) == name
        ]
        record = folder / name / "predictions.json"
        again = shlex.join([*command, "--only", name])
        title = f"{name} predictions"
        jobs.append(Job(name, title, record, tuple(studies), again, described))

    notebooks: list[Job] = []
    # What shows how far the others are comes last, and before it what asks its models itself.
    for run in sorted(runs, key=lambda run: (run.is_page, not run.studies)):
        # A notebook over all models that asks nobody reads whatever the others have asked.
        reads_all = run in over_all and not run.models
        read = [other for other in runs if other.models] if reads_all else [run]
        after = [name for name in models if reads_all or name in run.models]
        stem = run.output.stem
        name = stem if run.subject == "all" else f"{run.subject}-{stem}"
        if run.subject in models and run.models <= {run.subject}:
            # It is about one model, whose answers it follows.
            name, after = run.subject, [run.subject]
        notebooks.append(
            Job(
                name,
                run.title,
                run.output.with_suffix(".json"),
                tuple((each.notebook.stem, study) for each in read for study in each.studies),
                shlex.join([*command, "--only", name]),
                run=run,
                after=tuple(after),
                reads=tuple(job.record for job in (*jobs, *notebooks) if run.is_page),
            )
        )
    return jobs + notebooks


def _models_asked(path: Path, runs: Iterable[Notebook]) -> dict[str, JSON]:
    """Every model that a notebook asks, by its name.

    Raises `UserError` for two models of one name.
    """
    models: dict[str, JSON] = {}
    for run in runs:
        described: Any  # a model made in Python was refused when the batch was read
        for described in [model for study in run.studies for model in study.models]:
            name = name_of(described)
            # Their predictions would lie in one folder, and one model would be taken
            # for the other.
            other = models.setdefault(name, described)
            keys = [key for key in described | other if described.get(key) != other.get(key)]
            if keys:
                raise UserError(
                    f"{path} has two models named {name}, which differ in {', '.join(keys)}: give "
                    "one of them a `name:` of its own"
                )
    return models

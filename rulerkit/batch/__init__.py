"""Batches: models x notebooks from one YAML file, planned and checked as a whole, then run as jobs.

A batch file names `models`, the notebooks that run once per model (`notebooks`), those that run
once over all models (`together`), a `size` (a file of params/sizes/) and further `parameters`. An
entry of `notebooks` or `together` is a name, or a mapping with models and parameters of its own:
`{notebook: 03_distractors, models: [...], parameters: {...}}`.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rulerkit.batch.jobs import Ask, Job, Run
from rulerkit.errors import UserError, unknown
from rulerkit.paths import home, resolve
from rulerkit.settings import BatchKeys, NotebookKeys, check, read_keys, read_spec
from rulerkit.studies import Study, expand, load_files, name_of, notebook_parameters, study


@dataclass(frozen=True)
class Batch:
    """A batch file, read and checked."""

    path: Path
    runs: tuple[Run, ...]
    last: frozenset[Path]
    """The outputs of `together`: one that asks nobody shows whom it finds, so it waits for all."""
    study: Study
    """The parameters of the whole batch, over all its models."""

    @cached_property
    def jobs(self) -> list[Job]:
        """A job for each model that any notebook asks, then one for each notebook over several
        models or none."""
        models = self._models
        own = {
            name: [run for run in self.runs if run.subject == name and _asked(run) <= {name}]
            for name in models
        }
        jobs = [
            self._job(name, spec, self._askers(name), own[name]) for name, spec in models.items()
        ]
        for run in self.runs:
            if run not in own.get(run.subject, []):
                asked = _asked(run)
                everything = run.output in self.last and not asked
                asks = [r for r in self.runs if r.studies] if everything else [run]
                after = list(models) if everything else [name for name in models if name in asked]
                name = (
                    run.output.stem if run.subject == "all" else f"{run.subject}-{run.output.stem}"
                )
                jobs.append(self._job(name, None, asks, [run], after))
        return jobs

    @property
    def models(self) -> list[dict[str, Any]]:
        """Every model that any notebook of the batch asks."""
        return list(self._models.values())

    @property
    def corpora(self) -> str:
        """`original` if the batch or any of its notebooks asks for the original texts, else
        `builtin`."""
        asked = {self.study.corpora, *(each.corpora for run in self.runs for each in run.studies)}
        return "original" if "original" in asked else "builtin"

    @cached_property
    def _models(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for run in self.runs:
            for spec in (spec for each in run.studies for spec in each.models):
                assert isinstance(spec, dict), "a batch file holds no model made in Python"
                if spec["name"] == "all":
                    raise UserError(
                        f"{self.path}: no model can be called all, as what concerns several is: "
                        "give it a `name:`"
                    )
                if found.setdefault(spec["name"], spec) != spec:
                    differs = [
                        k
                        for k in {**spec, **found[spec["name"]]}
                        if spec.get(k) != found[spec["name"]].get(k)
                    ]
                    raise UserError(
                        f"{self.path} has two models named {spec['name']}, which differ in "
                        f"{', '.join(differs)}: give one "
                        "of them a `name:` of its own"
                    )
        return found

    def _askers(self, name: str) -> list[Run]:
        return [run for run in self.runs if name in _asked(run)]

    def _job(
        self,
        name: str,
        spec: dict[str, Any] | None,
        asks: Iterable[Ask],
        runs: Iterable[Run],
        after: Iterable[str] = (),
    ) -> Job:
        folder = self.study.outputs / "notebooks" / self.study.run / (name if spec else "all")
        stem = self.path.stem if spec else f"{self.path.stem}-{name}"
        return Job(name, folder / f"{stem}.job.yaml", spec, tuple(asks), tuple(runs), tuple(after))


def _asked(run: Ask) -> set[str]:
    """The names of the models that a notebook asks."""
    return {name_of(model) for each in run.studies for model in each.models}


def read_batch(path: Path, settings: Mapping[str, Any] | None = None) -> Batch:
    """The runs of a batch file, in order, with parameters over its own; all is checked before
    anything starts."""
    content = read_keys(BatchKeys, path)
    parameters = _size(content.size, path) | content.parameters | dict(settings or {})
    named = parameters.pop("models", None) or content.models
    if not named or not (content.notebooks or content.together):
        raise UserError(
            f"{path} names no models, or no notebooks: a batch needs `models:` and `notebooks:` or "
            "`together:`"
        )
    if "model" in parameters:
        raise UserError(
            f"model is no parameter of the batch {path}: it takes a list, `models: [...]`"
        )
    whole = study(parameters | {"models": named})
    defaults = _Defaults(path, expand(named), parameters, frozenset(settings or {}))
    runs = [run for entry in content.notebooks for run in _runs(_entry(entry, defaults), whole)]
    together = [_over_all(_entry(entry, defaults), whole) for entry in content.together]
    runs += together
    outputs = [run.output for run in runs]
    if twice := next((run for run in runs if outputs.count(run.output) > 1), None):
        raise UserError(
            f"{path} runs {twice.title} twice: two runs cannot write one notebook; remove one of "
            "them"
        )
    batch = Batch(path, tuple(runs), frozenset(run.output for run in together), whole)
    _ = [job.needs for job in batch.jobs]  # a wrong parameter of any notebook is found here
    return batch


@dataclass(frozen=True)
class _Defaults:
    """What holds for every entry of a batch file; an entry cannot change what the command line has
    set (`fixed`)."""

    path: Path
    models: list[Any]
    parameters: dict[str, Any]
    fixed: frozenset[str]


@dataclass(frozen=True)
class _Entry:
    """An entry of `notebooks` or `together`: what runs, for which models and with which
    parameters."""

    notebook: Path
    models: list[Any]
    parameters: dict[str, Any]


def _entry(entry: Any, defaults: _Defaults) -> _Entry:
    """A name stands for a notebook with the batch's models and parameters; a mapping may have
    others."""
    path = defaults.path
    if not isinstance(entry, Mapping):
        return _Entry(_notebook(entry), defaults.models, defaults.parameters)
    given = {key: value for key, value in entry.items() if value is not None}
    keys = check(NotebookKeys, given, f"{path}: a notebook's ", f"key of a notebook in {path}")
    if keys.notebook is None:
        raise UserError(
            f"{path}: {dict(entry)} is no notebook: give a name, or {{notebook: NAME, parameters: "
            f"{{...}}}}"
        )
    if {"run", "outputs", "model", "models"} & keys.parameters.keys():
        raise UserError(
            f"{keys.notebook} in {path} sets run, outputs or models among its parameters: a batch "
            "writes into one "
            "place, and models stand beside `parameters`"
        )
    models = keys.models or defaults.models
    changed = {name: value for name, value in keys.parameters.items() if name not in defaults.fixed}
    study(defaults.parameters | changed | {"models": models})  # checked before anything starts
    return _Entry(_notebook(keys.notebook), expand(models), defaults.parameters | changed)


def _runs(entry: _Entry, whole: Study) -> list[Run]:
    """A run for each model where the notebook takes one, else one run."""
    known, given = notebook_parameters(entry.notebook), entry.parameters
    if "model" in known:
        return [
            _run(entry.notebook, read_spec(m)["name"], given | {"model": m}, whole)
            for m in entry.models
        ]
    if "models" in known:
        return [_run(entry.notebook, "all", given | {"models": entry.models}, whole)]
    return [_run(entry.notebook, "all", {k: v for k, v in given.items() if k in known}, whole)]


def _over_all(entry: _Entry, whole: Study) -> Run:
    """One run over all models, or of a notebook that finds by itself whom to show, when all others
    have ended."""
    known, given = notebook_parameters(entry.notebook), entry.parameters | {"models": entry.models}
    if "models" not in known:
        given = {name: value for name, value in given.items() if name in known}
    return _run(entry.notebook, "all", given, whole)


def _size(size: str | None, path: Path) -> dict[str, Any]:
    """The parameters of a size, which is a file of params/sizes/ or another one."""
    if size is None:
        return {}
    folder = home() / "params" / "sizes"
    for file in (folder / f"{size}.yaml", resolve(size)):
        if os.path.isfile(file):
            return load_files([file])
    raise unknown(f"size in {path}", size, sorted(file.stem for file in folder.glob("*.yaml")))


def _notebook(name: Any) -> Path:
    folder = home() / "notebooks"
    for path in (folder / f"{name}.ipynb", resolve(str(name))):
        if os.path.isfile(path):
            return path
    raise unknown("notebook", name, sorted(path.stem for path in folder.glob("*.ipynb")))


def _run(notebook: Path, subject: str, parameters: dict[str, Any], whole: Study) -> Run:
    output = whole.outputs / "notebooks" / whole.run / subject / notebook.name
    return Run(notebook, parameters, subject, output)

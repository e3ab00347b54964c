"""Batches: models x notebooks from one YAML file, planned and checked as a whole, then run as jobs.

A batch file names `models`, the notebooks that run once per model (`notebooks`), those that run once over all models
(`together`), a `size` (a file of params/sizes/) and further `parameters`. An entry of `notebooks` or `together` is a
name, or a mapping with models and parameters of its own: `{notebook: 03_distractors, models: [...], parameters: {...}}`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rulerkit.batch.jobs import Ask, Job, Run
from rulerkit.errors import UserError, unknown
from rulerkit.models.spec import read_spec
from rulerkit.params import expand, load_files, notebook_parameters, read_yaml, study
from rulerkit.paths import home, resolve
from rulerkit.studies import Study, name_of

_KEYS = {
    "models": "names, paths or mappings of models",
    "notebooks": "run once for each model, or once if they take no model",
    "together": "run once over all models",
    "size": "a name in params/sizes/ or a path",
    "parameters": "further parameters of the notebooks",
}
_ENTRY_KEYS = {
    "notebook": "a name in notebooks/ or a path",
    "models": "in place of the batch's",
    "parameters": "over the batch's",
}


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
        """A job for each model that any notebook asks, then one for each notebook over several models or none."""
        models = self._models
        own = {name: [run for run in self.runs if run.subject == name and _asked(run) <= {name}] for name in models}
        jobs = [self._job(name, spec, self._askers(name), own[name]) for name, spec in models.items()]
        for run in self.runs:
            if run not in own.get(run.subject, []):
                asked = _asked(run)
                everything = run.output in self.last and not asked
                asks = [r for r in self.runs if r.studies] if everything else [run]
                after = list(models) if everything else [name for name in models if name in asked]
                name = run.output.stem if run.subject == "all" else f"{run.subject}-{run.output.stem}"
                jobs.append(self._job(name, None, asks, [run], after))
        return jobs

    @property
    def models(self) -> list[dict[str, Any]]:
        """Every model that any notebook of the batch asks."""
        return list(self._models.values())

    @cached_property
    def _models(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for run in self.runs:
            for spec in (spec for each in run.studies for spec in each.models):
                assert isinstance(spec, dict), "a batch file holds no model made in Python"
                if spec["name"] == "all":
                    raise UserError(
                        f"{self.path}: no model can be called all, as what concerns several is: give it a `name:`"
                    )
                if found.setdefault(spec["name"], spec) != spec:
                    differs = [k for k in {**spec, **found[spec["name"]]} if spec.get(k) != found[spec["name"]].get(k)]
                    raise UserError(
                        f"{self.path} has two models named {spec['name']}, which differ in {', '.join(differs)}: give one "
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
    """The runs of a batch file, in order, with parameters over its own; all is checked before anything starts."""
    content = read_yaml(path)
    for key in content:
        if key not in _KEYS:
            raise unknown(f"key in {path}", key, _KEYS)
    for key in ("models", "notebooks", "together"):
        if not isinstance(content.get(key, []), list):
            raise UserError(f"{key} in {path} is {content[key]!r}: it must be a list, such as `{key}: [...]`")
    parameters = _parameters(content, path) | dict(settings or {})
    named = parameters.pop("models", None) or content.get("models")
    if not named or not (content.get("notebooks") or content.get("together")):
        raise UserError(
            f"{path} names no models, or no notebooks: a batch needs `models:` and `notebooks:` or `together:`"
        )
    if "model" in parameters:
        raise UserError(f"model is no parameter of the batch {path}: it takes a list, `models: [...]`")
    whole = study(parameters | {"models": named})
    settled = _Settled(path, expand(named), parameters, frozenset(settings or {}))
    runs = [run for entry in content.get("notebooks") or [] for run in _runs(_entry(entry, settled), whole)]
    together = [_over_all(_entry(entry, settled), whole) for entry in content.get("together") or []]
    runs += together
    outputs = [run.output for run in runs]
    if twice := next((run for run in runs if outputs.count(run.output) > 1), None):
        raise UserError(f"{path} runs {twice.title} twice: two runs cannot write one notebook; remove one of them")
    batch = Batch(path, tuple(runs), frozenset(run.output for run in together), whole)
    _ = [job.needs for job in batch.jobs]  # a wrong parameter of any notebook is found here
    return batch


@dataclass(frozen=True)
class _Settled:
    """What holds for every entry of a batch file; what the command line set, no entry sets otherwise."""

    path: Path
    models: list[Any]
    parameters: dict[str, Any]
    fixed: frozenset[str]


@dataclass(frozen=True)
class _Entry:
    """One line of `notebooks` or `together`: what runs, with whom and how."""

    notebook: Path
    models: list[Any]
    parameters: dict[str, Any]


def _entry(entry: Any, settled: _Settled) -> _Entry:
    """A name stands for a notebook with the batch's models and parameters; a mapping may bring its own."""
    path, models, parameters = settled.path, settled.models, settled.parameters
    if not isinstance(entry, Mapping):
        return _Entry(_notebook(entry), models, parameters)
    for key in entry:
        if key not in _ENTRY_KEYS:
            raise unknown(f"key of a notebook in {path}", str(key), _ENTRY_KEYS)
    own, named = entry.get("parameters") or {}, entry.get("models", models)
    if "notebook" not in entry or not isinstance(own, Mapping) or not isinstance(named, list) or not named:
        raise UserError(
            f"{dict(entry)} in {path} is no notebook: it must be a name or {{notebook: NAME, models: [...], "
            "parameters: {name: value}}, where models and parameters may be left out"
        )
    if {"run", "outputs", "model", "models"} & own.keys():
        raise UserError(
            f"{entry['notebook']} in {path} sets run, outputs or models among its parameters: a batch writes into one "
            "place, and models stand beside `parameters`"
        )
    merged = parameters | {name: value for name, value in own.items() if name not in settled.fixed}
    study(merged | {"models": named})  # checked before anything starts
    return _Entry(_notebook(entry["notebook"]), expand(named), merged)


def _runs(entry: _Entry, whole: Study) -> list[Run]:
    """A run for each model where the notebook takes one, else one run."""
    known, own = notebook_parameters(entry.notebook), entry.parameters
    if "model" in known:
        return [_run(entry.notebook, read_spec(m)["name"], own | {"model": m}, whole) for m in entry.models]
    if "models" in known:
        return [_run(entry.notebook, "all", own | {"models": entry.models}, whole)]
    return [_run(entry.notebook, "all", {k: v for k, v in own.items() if k in known}, whole)]


def _over_all(entry: _Entry, whole: Study) -> Run:
    """One run over all models, or of a notebook that finds by itself whom to show, when all others have ended."""
    known, given = notebook_parameters(entry.notebook), entry.parameters | {"models": entry.models}
    if "models" not in known:
        given = {name: value for name, value in given.items() if name in known}
    return _run(entry.notebook, "all", given, whole)


def _parameters(content: Mapping[str, Any], path: Path) -> dict[str, Any]:
    size = content.get("size")
    given = content.get("parameters") or {}
    if not isinstance(given, Mapping):
        raise UserError(f"parameters in {path} is {given!r}: it must hold `name: value` lines")
    parameters: dict[str, Any] = {}
    if size is not None:
        named = home() / "params" / "sizes" / f"{size}.yaml"
        if not named.is_file() and not resolve(str(size)).is_file():
            raise unknown(f"size in {path}", size, sorted(p.stem for p in named.parent.glob("*.yaml")))
        parameters = load_files([named if named.is_file() else resolve(str(size))])
    return parameters | dict(given)


def _notebook(name: Any) -> Path:
    folder = home() / "notebooks"
    for path in (folder / f"{name}.ipynb", resolve(str(name))):
        if path.is_file():
            return path
    raise unknown("notebook", name, sorted(path.stem for path in folder.glob("*.ipynb")))


def _run(notebook: Path, subject: str, parameters: dict[str, Any], whole: Study) -> Run:
    output = whole.outputs / "notebooks" / whole.run / subject / notebook.name
    return Run(notebook, parameters, subject, output)

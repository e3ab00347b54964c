"""Batches: notebooks executed by papermill, one model after the other or side by side, from one YAML file.

A batch file names `models`, the notebooks that run once per model (`notebooks`), those that run once over all models
(`together`), a `size` (a file of params/sizes/) and further `parameters`. An entry of `notebooks` or `together` is a
name, or a mapping with models and parameters of its own: `{notebook: 03_distractors, models: [...], parameters: {...}}`.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from rulerkit.errors import UserError, unknown
from rulerkit.models.spec import read_spec
from rulerkit.params import PARAMETERS, Study, expand, load_files, notebook_parameters, read_yaml, study
from rulerkit.paths import home, resolve

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
class Run:
    """One execution of one notebook."""

    notebook: Path
    subject: str
    """The model it is about, or `all`."""
    parameters: dict[str, Any]
    output: Path
    last: bool = False
    """Whether it waits until the runs of single models have ended."""

    @property
    def title(self) -> str:
        return f"{self.subject} {self.notebook.stem}"

    @property
    def tokens(self) -> int:
        """At most how many tokens of prompts and answers this run asks for, if nothing was answered before."""
        from rulerkit.sweeps import SWEEPS

        known = notebook_parameters(self.notebook)
        if "num_examples" not in known:
            return 0
        asked = study({name: value for name, value in self.parameters.items() if name in PARAMETERS})
        swept = [name for name in SWEEPS if name in known]
        tasks = sum(len(self.parameters.get(name) or SWEEPS[name].values) for name in swept) or len(asked.tasks)
        models = sum(name in known for name in ("model_a", "model_b")) or len(asked.models)
        return models * tasks * asked.num_examples * sum(asked.lengths)

    @property
    def log(self) -> Path:
        return self.output.with_suffix(".log")

    @property
    def command(self) -> list[str]:
        """What repeats this run by hand."""
        given = yaml.safe_dump(self.parameters, default_flow_style=True, width=10**6, sort_keys=False).strip()
        return [sys.executable, "-m", "papermill", str(self.notebook), str(self.output), "-y", given]


@dataclass(frozen=True)
class Batch:
    """A batch file, read and checked."""

    runs: tuple[Run, ...]
    study: Study
    """The parameters of the whole batch, over all its models."""


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
    models = expand(named)
    settled = _Settled(path, models, parameters, frozenset(settings or {}))
    runs = [run for entry in content.get("notebooks") or [] for run in _runs(_entry(entry, settled), whole)]
    for each in (_entry(entry, settled) for entry in content.get("together") or []):
        runs.append(_over_all(each, whole))
    outputs = [run.output for run in runs]
    if twice := next((run for run in runs if outputs.count(run.output) > 1), None):
        raise UserError(f"{path} runs {twice.title} twice: two runs cannot write one notebook; remove one of them")
    return Batch(tuple(runs), whole)


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
    return replace(_run(entry.notebook, "all", given, whole), last=True)


def execute(batch: Batch, jobs: int | None = None) -> Iterator[tuple[Run, str | None]]:
    """Execute the runs; yields each as it ends, with None or the error that ended it.

    Runs over all models come last, when what they compare is there. A failed run never stops the others; its notebook
    keeps the cell with the error. `jobs` models go side by side, each with one notebook at a time, since two would
    write the same predictions: by default as many as there are processors where only reference readers answer, else
    one.
    """
    for lines in _lines(batch.runs):
        with ThreadPoolExecutor(jobs or _side_by_side(batch.study)) as pool:
            waiting = {pool.submit(_execute, run): (run, rest) for run, *rest in lines}
            try:
                while waiting:
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        run, rest = waiting.pop(future)
                        if rest:
                            waiting[pool.submit(_execute, rest[0])] = (rest[0], rest[1:])
                        yield run, future.result()
            except (KeyboardInterrupt, GeneratorExit):
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _lines(runs: Iterable[Run]) -> Iterator[list[list[Run]]]:
    """Twice a list of lines of runs that may go side by side: one line for each model, then one for all of them."""
    lines: dict[str, list[Run]] = {}
    for run in runs:
        if not run.last and "models" not in run.parameters:
            lines.setdefault(run.subject if "model" in run.parameters else run.title, []).append(run)
    yield list(lines.values())
    yield [over_all] if (over_all := [run for run in runs if run.last or "models" in run.parameters]) else []


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
    return Run(notebook, subject, parameters, whole.outputs / "notebooks" / whole.run / subject / notebook.name)


def _side_by_side(whole: Study) -> int:
    readers = all(isinstance(model, dict) and model["engine"] == "reader" for model in whole.models)
    return (os.cpu_count() or 1) if readers else 1


def _execute(run: Run) -> str | None:
    """One notebook through papermill, in a process of its own; its messages go to a log beside the notebook."""
    try:
        run.output.parent.mkdir(parents=True, exist_ok=True)
        run.output.unlink(missing_ok=True)
        with run.log.open("w", encoding="utf-8") as log:
            log.write(f"$ {shlex.join(run.command)}\n")
            log.flush()
            ended = subprocess.run(run.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
    except OSError as error:
        return f"cannot write {run.output}: {error.strerror}; choose another folder with `outputs:`"
    return None if ended.returncode == 0 else _reason(run, ended.returncode)


def _reason(run: Run, status: int) -> str:
    """The error that the executed notebook kept, else the last line of the log."""
    try:
        cells = json.loads(run.output.read_text(encoding="utf-8"))["cells"]
        errors = [out for cell in cells for out in cell.get("outputs", []) if out.get("output_type") == "error"]
        if errors:
            return f"{errors[-1]['ename'].rpartition('.')[2]}: {' '.join(errors[-1]['evalue'].split())}"
    except (OSError, ValueError, KeyError):
        pass  # the notebook was not written: the log knows why
    lines = run.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit status {status}: {lines[-1] if lines else 'no message'}"

"""Batches: notebooks executed by papermill, one model after the other or side by side, from one YAML file.

A batch file names `models`, the notebooks that run once per model (`notebooks`), those that run once over all models
(`together`), a `size` (a file of params/sizes/) and further `parameters`.
"""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rulerkit.errors import UserError, unknown
from rulerkit.models.spec import read_spec
from rulerkit.params import Study, load_files, notebook_parameters, read_yaml, study
from rulerkit.paths import home, resolve

_KEYS = {
    "models": "names, paths or mappings of models",
    "notebooks": "run once for each model, or once if they take no model",
    "together": "run once over all models",
    "size": "a name in params/sizes/ or a path",
    "parameters": "further parameters of the notebooks",
}


@dataclass(frozen=True)
class Run:
    """One execution of one notebook."""

    notebook: Path
    subject: str
    """The model it is about, or `all`."""
    parameters: dict[str, Any]
    output: Path

    @property
    def title(self) -> str:
        return f"{self.subject} {self.notebook.stem}"

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
    if not content.get("models") or not (content.get("notebooks") or content.get("together")):
        raise UserError(
            f"{path} names no models, or no notebooks: a batch needs `models:` and `notebooks:` or `together:`"
        )
    parameters = _parameters(content, path) | dict(settings or {})
    whole = study(parameters | {"models": content["models"]})
    specs = [(read_spec(model)["name"], model) for model in content["models"]]
    runs: list[Run] = []
    for notebook in map(_notebook, content.get("notebooks") or []):
        known = notebook_parameters(notebook)
        if "model" in known:
            runs += [_run(notebook, name, parameters | {"model": model}, whole) for name, model in specs]
        else:
            runs.append(_run(notebook, "all", {k: v for k, v in parameters.items() if k in known}, whole))
    for notebook in map(_notebook, content.get("together") or []):
        runs.append(_run(notebook, "all", parameters | {"models": content["models"]}, whole))
    return Batch(tuple(runs), whole)


def execute(batch: Batch, jobs: int | None = None) -> Iterator[tuple[Run, str | None]]:
    """Execute the runs; yields each as it ends, with None or the error that ended it.

    Runs over all models come last, when what they compare is there. A failed run never stops the others; its notebook
    keeps the cell with the error. `jobs` runs go side by side: by default as many as there are processors where only
    reference readers answer, else one.
    """
    own = [run for run in batch.runs if run.subject != "all"]
    shared = [run for run in batch.runs if run.subject == "all"]
    for runs in (own, shared):
        with ThreadPoolExecutor(jobs or _side_by_side(batch.study)) as pool:
            waiting = [(run, pool.submit(_execute, run)) for run in runs]
            try:
                for run, result in waiting:
                    yield run, result.result()
            except (KeyboardInterrupt, GeneratorExit):
                pool.shutdown(wait=False, cancel_futures=True)
                raise


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
            return f"{errors[-1]['ename'].rpartition('.')[2]}: {errors[-1]['evalue'].strip()}"
    except (OSError, ValueError, KeyError):
        pass  # the notebook was not written: the log knows why
    lines = run.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f"exit status {status}: {lines[-1] if lines else 'no message'}"

"""What is asked of whom: parameters from YAML files, papermill or a notebook's first cells, checked once.

Top-level keys are notebook parameters, as papermill takes them with `-f`; several files compose, later ones win. A model
file holds one key, `model:`. Unknown keys, and strings where lists belong, are errors.
"""

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from rulerkit.errors import UserError, unknown
from rulerkit.paths import home, resolve
from rulerkit.studies import Study as Study
from rulerkit.studies import name_of
from rulerkit.tasks import THIRTEEN, Task, task


class Parameter(NamedTuple):
    """One parameter: what it says, its default, and the function that checks a value and makes it ready."""

    help: str
    default: Any
    read: Callable[[str, Any], Any]


def study(source: Mapping[str, Any] | None = None, notebook: str = "", **parameters: Any) -> Study:
    """The study that parameters describe.

    `source` is a notebook's `globals()` or a dict of parameters; `parameters` win over it. In a notebook only known
    names are read, and what papermill injected beside them is an error that lists the known ones.
    """
    source = source or {}
    if "In" in source and "get_ipython" in source:  # a notebook's globals: much in it is no parameter
        _check_names(_injected(source["In"]))
        given = {name: source[name] for name in PARAMETERS if name in source}
    else:
        _check_names([*source, *parameters])
        given = dict(source)
    given |= parameters
    values = {name: entry.read(name, given.get(name, entry.default)) for name, entry in PARAMETERS.items()}
    models = values.pop("models") or values.pop("model")
    values.pop("model", None)
    corpora = values["corpora"]
    values["tasks"] = tuple(task.with_corpora(corpora) for task in values["tasks"])
    return Study(notebook, models=models, **values)


def load_files(files: Iterable[str | Path]) -> dict[str, Any]:
    """The parameters of several YAML files, later ones over earlier ones."""
    merged: dict[str, Any] = {}
    for name in files:
        content = read_yaml(resolve_file(name))
        _check_names(content, str(name))
        merged |= content
    return merged


def expand(models: Iterable[Any]) -> list[Any]:
    """Names, paths and mappings of models, with each glob (`checkpoints/*`) replaced by the paths that it matches."""
    specs: list[Any] = []
    for spec in models:
        found = sorted(glob(str(resolve(spec)))) if isinstance(spec, str) and re.search(r"[*?\[]", spec) else [spec]
        if not found:
            raise UserError(f"models: nothing matches {spec!r} below {home()}; give a name, a path or another pattern")
        specs += found
    return specs


def resolve_file(name: str | Path) -> Path:
    """A file that somebody names at a prompt: from where they stand, else from the project root."""
    path = Path(name).expanduser()
    return path.absolute() if path.exists() else resolve(path)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; parameter files lie in {home() / 'params'}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        seen = "nothing" if content is None else f"a {type(content).__name__}"
        raise UserError(f"{path} holds {seen}: it must hold `name: value` lines, such as `num_examples: 20`")
    return content


def known_names() -> list[str]:
    """The parameters that some notebook or `evaluate` knows: those of this module and of all notebooks here."""
    names = dict.fromkeys(PARAMETERS)
    for path in sorted((home() / "notebooks").glob("*.ipynb")):
        names |= dict.fromkeys(notebook_parameters(path))
    return list(names)


def read_notebook(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook."""
    try:
        cells: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            _ = cell["cell_type"], "".join(cell["source"]), cell.get("metadata", {}).get("tags", [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no notebook: {error}; repair it, or move it out of {path.parent}") from error
    return cells


def notebook_parameters(path: Path) -> list[str]:
    """The names that the cell tagged `parameters` of a notebook sets."""
    tagged = [cell for cell in read_notebook(path) if "parameters" in cell.get("metadata", {}).get("tags", [])]
    try:
        return [name for cell in tagged for name in _assigned("".join(cell["source"]))]
    except SyntaxError as error:
        raise UserError(
            f"{path}: the cell tagged `parameters` must hold `name = value` lines: line {error.lineno}: {error.msg}"
        ) from error


def _check_names(names: Iterable[str], where: str = "") -> None:
    allowed = known_names()
    for name in names:
        if name not in allowed:
            raise unknown(f"parameter{' in ' + where if where else ''}", name, allowed)


def _injected(cells: list[str]) -> list[str]:
    """The names that papermill set: those of the executed cells that it marks with `# Parameters`."""
    return [name for cell in cells if cell.startswith("# Parameters\n") for name in _assigned(cell)]


def _assigned(source: str) -> list[str]:
    """The names that lines such as `a = 1` and `a: int = 1` set."""
    lines = [node for node in ast.parse(source).body if isinstance(node, ast.Assign | ast.AnnAssign)]
    targets = [each for node in lines for each in (node.targets if isinstance(node, ast.Assign) else [node.target])]
    return [target.id for target in targets if isinstance(target, ast.Name)]


# --- reading values ---------------------------------------------------------------------------------------------------


def _list(name: str, value: Any, example: str) -> list[Any]:
    if isinstance(value, list | tuple) and value:
        return list(value)
    raise UserError(
        f"{name} is {value!r}: it must be a list, such as `{name}: {example}`; with papermill: -y '{name}: {example}'"
    )


def _whole(least: int) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        raise UserError(f"{name} is {value!r}: it must be a whole number from {least} on")

    return read


def _lengths(name: str, value: Any) -> tuple[int, ...]:
    from rulerkit.lengths import parse_length

    try:
        lengths = [parse_length(length) for length in _list(name, value, "[4096, 8192]")]
    except (ValueError, TypeError) as error:
        raise UserError(f"{name} is {value!r}: each must be a number of tokens such as 4096 or 4K") from error
    return tuple(sorted(set(lengths)))


def _tasks(name: str, value: Any) -> tuple[Task, ...]:
    tasks = [task(spec) for spec in (THIRTEEN if value is None else _list(name, value, "[niah_single_1, vt]"))]
    return tuple({each.name: each for each in tasks}.values())


def _model(name: str, value: Any) -> tuple[Any, ...]:
    """A checked spec, or a model that was made in Python; none for None."""
    from rulerkit.models import Model
    from rulerkit.models.spec import read_spec

    if not isinstance(value, str | Mapping | Model | None):
        several = "; several stand in `models`" if isinstance(value, list | tuple) else ""
        raise UserError(f"{name} is {value!r}: a model is a name, a path, a hub id or a mapping{several}")
    return () if value is None else (value if isinstance(value, Model) else read_spec(value),)


def _models(name: str, value: Any) -> tuple[Any, ...]:
    """A list of names, paths (globs expand), mappings and models; None where `model` says who."""
    if value is None:
        return ()
    specs = expand(_list(name, value, "[reader-4096, reader-8192]"))
    if None in specs:
        raise UserError(f"{name} is {value!r}: one is empty; a model is a name, a path, a hub id or a mapping")
    read = [_model(name, spec)[0] for spec in specs]
    names = [name_of(model) for model in read]
    if twice := {each for each in names if names.count(each) > 1}:
        raise UserError(f"{name}: {', '.join(sorted(twice))} stands there twice: give each a `name:` of its own")
    return tuple(read)


def _one_of(*allowed: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        if value not in allowed:
            raise unknown(f"value of {name}", value, allowed)
        return str(value)

    return read


def _run(name: str, value: Any) -> str:
    if isinstance(value, str | int) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", str(value)):
        return str(value)
    raise UserError(f"{name} is {value!r}: it names a folder, so letters, digits, . _ and - are allowed")


def _folder(name: str, value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise UserError(f"{name} is {value!r}: it must be a folder")
    return resolve(value)


PARAMETERS: dict[str, Parameter] = {
    "model": Parameter("who answers: a name, a path, a hub id, or a mapping", "reader-8192", _model),
    "models": Parameter("several of them; wins over `model`", None, _models),
    "tasks": Parameter("names or mappings with `base`; None takes the thirteen", None, _tasks),
    "lengths": Parameter("token budgets of an example", [4096, 8192, 16384, 32768], _lengths),
    "num_examples": Parameter("examples per task and length", 20, _whole(1)),
    "seed": Parameter("another seed asks other questions", 42, _whole(0)),
    "run": Parameter("the name of this run's folders in outputs/", "main", _run),
    "repeat": Parameter("2 lets every model answer twice: what differs is the noise of serving it", 1, _whole(1)),
    "corpora": Parameter(
        "builtin stand-ins, or the original essays and data sets", "builtin", _one_of("builtin", "original")
    ),
    "outputs": Parameter("where results lie; relative to the project root", "outputs", _folder),
}
"""The parameters of `rulerkit evaluate` and of the notebooks that ask a model."""

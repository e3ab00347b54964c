"""The notebooks that ask: their cells, the parameters that they know, and those that were set from
outside."""

import ast
import json
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import NamedTuple

from rulerkit.common.errors import UserError, unknown
from rulerkit.common.paths import project_files
from rulerkit.common.settings import MODEL_KEYS, Parameters, Spec
from rulerkit.generation.tasks import all_families

BATCH_KEYS = {"notebooks", "together"}
"""The keys of a batch file by which one is told from other parameter files."""
ADAPTIVE = ("max_examples", "confidence")
"""The parameters of adaptive runs."""


def known_names() -> list[str]:
    """The parameters that some notebook or `evaluate` knows: those of `settings` and of all
    notebooks here."""
    names = dict.fromkeys(Parameters.model_fields)
    for path in project_files("notebooks", ".ipynb").values():
        names |= dict.fromkeys(notebook_parameters(path))
    return list(names)


class NotebookCell(NamedTuple):
    """The source of a code cell, and its tags."""

    source: str
    tags: tuple[str, ...]

    def has(self, tag: str) -> bool:
        return tag in self.tags


def read_notebook(path: Path) -> list[NotebookCell]:
    """The code cells of a notebook."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [
            NotebookCell("".join(cell["source"]), tuple(cell.get("metadata", {}).get("tags", [])))
            for cell in cells
            if cell["cell_type"] == "code"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read as a notebook: {error}; repair it, move it out of "
            f"{path.parent}, "
            "or, where it has another name now, let `rulerkit batch` plan it again"
        ) from error


def notebook_parameters(path: Path) -> list[str]:
    """The names that the cell tagged `parameters` of a notebook sets."""
    names = []
    for cell in read_notebook(path):
        if not cell.has("parameters"):
            continue
        try:
            names += _assigned(cell.source)
        except SyntaxError as error:
            raise UserError(
                f"{path}: the cell tagged `parameters` must hold `name = value` lines: line "
                f"{error.lineno}: {error.msg}"
            ) from error
    return names


def check_names(names: Collection[str], where: str = "") -> None:
    """Raise a `UserError` for a name that is no parameter, and for a batch file given as
    parameters.

    `where` is the file that holds the names, for the message.
    """
    if not BATCH_KEYS.isdisjoint(names):
        raise UserError(
            f"{where or 'this'} is a batch file: `rulerkit batch FILE` runs it, `rulerkit "
            "batch FILE "
            "--dry-run` lists what it asks; files of parameters are taken here, such as -f "
            "params/models/llama-3.1-8b.yaml -f params/sizes/paper.yaml"
        )
    # Notebooks are read only where a name is none of a study's.
    others = [name for name in names if name not in Parameters.model_fields]
    allowed = known_names() if others else []
    for name in others:
        if name in allowed:
            continue
        # Those of single notebooks are many: of them the likeliest is named.
        near = get_close_matches(str(name), Parameters.model_fields, n=1) or get_close_matches(
            str(name), allowed, n=1
        )
        what = f"parameter{' in ' + where if where else ''}"
        listed_names = dict.fromkeys([*near, *Parameters.model_fields])
        hint = "Notebooks take further ones: docs/reference.md lists all"
        raise unknown(what, name, listed_names, hint)


def check_used(given: Spec, values: Spec, uses: Collection[str], who: str, also: str = "") -> None:
    """Raise a `UserError` for a parameter among those `given` that `who`, a command or a function,
    does not use. `uses` are those that it does; `values` are all that hold there, also those of
    files, which may be shared by several commands. `also` is what else it takes, in words."""
    for name, value in given.items():
        if name not in uses:
            if owner := _owner_of(name):
                raise UserError(
                    f"{name} is {owner}, and {who} does not use it; it takes "
                    f"{', '.join(uses)}{also}"
                )
            near = get_close_matches(str(name), [*uses, *MODEL_KEYS], n=1)
            raise unknown("parameter", name, dict.fromkeys([*near, *uses]))
        is_adaptive = values.get("num_examples") == "adaptive"
        if name in ADAPTIVE and value is not None and not is_adaptive:
            raise UserError(
                f"{name} is for adaptive runs, and the number of examples is fixed here: give "
                "`num_examples: adaptive` too, or leave it out"
            )


def _owner_of(name: str) -> str:
    """What has a use for a parameter that was given in another place, in words; "" for nothing."""
    if name in Parameters.model_fields:
        return "a parameter of a study"
    if name in MODEL_KEYS:
        return f"a key of a model, such as {{base: MODEL, {name}: ...}}"
    for family in all_families():
        if name in family.knobs():
            return f"a setting of a task, such as {{base: TASK, {name}: ...}}"
    for notebook, path in project_files("notebooks", ".ipynb").items():
        if name in notebook_parameters(path):
            return f"a parameter of the notebook {notebook}"
    return ""


def injected_names(cells: list[str]) -> list[str]:
    """The names that papermill set: those of the executed cells that it marks with `#
    Parameters`."""
    return [name for cell in cells if cell.startswith("# Parameters\n") for name in _assigned(cell)]


def _assigned(source: str) -> list[str]:
    """The names that lines such as `a = 1` and `a: int = 1` set."""
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]

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
from rulerkit.common.settings import Parameters

BATCH_KEYS = {"notebooks", "together"}
"""The keys of a batch file by which one is told from other parameter files."""


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
            NotebookCell(
                "".join(cell["source"]),
                tuple(cell.get("metadata", {}).get("tags", [])),
            )
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
    allowed = known_names()
    what = f"parameter{' in ' + where if where else ''}"
    for name in names:
        if name not in allowed:
            # Those of single notebooks are many: of them the likeliest is named.
            near = get_close_matches(name, allowed, n=1)
            listed_names = dict.fromkeys([*near, *Parameters.model_fields])
            hint = "Notebooks take further ones: docs/reference.md lists all"
            raise unknown(what, name, listed_names, hint)


def injected_names(cells: list[str]) -> list[str]:
    """The names that papermill set: those of the executed cells that it marks with `#
    Parameters`."""
    return [
        name
        for cell in cells
        if cell.startswith("# Parameters\n")
        for name in _assigned(cell)
    ]


def _assigned(source: str) -> list[str]:
    """The names that lines such as `a = 1` and `a: int = 1` set."""
    names = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)
    ]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]

"""The notebooks that ask: their cells, the parameters that they know, and those that were set from
outside."""

import ast
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from rulerkit.common.errors import UserError, check_known, shortened
from rulerkit.common.paths import project_files
from rulerkit.common.settings import Parameters


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
            f"{path} cannot be read as a notebook: {error}; repair it, or move it out of "
            f"{path.parent}"
        ) from error


def notebook_parameters(path: Path) -> list[str]:
    """The names that the cell tagged `parameters` of a notebook sets."""
    names = []
    for cell in read_notebook(path):
        if "parameters" not in cell.tags:
            continue
        try:
            names += _assigned(cell.source)
        except SyntaxError as error:
            raise UserError(
                f"{path}: the cell tagged `parameters` must hold `name = value` lines: line "
                f"{error.lineno}: {error.msg}"
            ) from error
    return names


def injected_names(cells: list[str]) -> list[str]:
    """The names that papermill set: those of the executed cells that it marks with `#
    Parameters`."""
    return [name for cell in cells if cell.startswith("# Parameters\n") for name in _assigned(cell)]


def _assigned(source: str) -> list[str]:
    """The names that lines such as `a = 1` and `a: int = 1` set."""
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def check_lists(known: Collection[str] = (), least: int = 0, **values: Any) -> None:
    """Raises UserError for a parameter of a notebook's own that should be a list and is none: of a
    text a cell would take the letters one by one. `known`: what may stand in it; `least`: how
    many entries it has at least."""
    for name, value in values.items():
        if not isinstance(value, list | tuple) or len(value) < least:
            raise UserError(
                f"{name}: {shortened(value)} is invalid: expected a list in brackets, such as "
                f"`{name}: [FIRST, SECOND]`"
            )
        for entry in value if known else ():
            check_known(f"entry of {name}", entry, known)

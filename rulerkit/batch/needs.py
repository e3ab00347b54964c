"""What a notebook would ask, found out by running its first lines with nobody asked."""

import ast
import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.inference.evaluation import asked_studies
from rulerkit.params import read_notebook
from rulerkit.studies import Study


def studies_of(notebook: Path, parameters: Mapping[str, Any]) -> list[Study]:
    """The studies that a notebook hands to `evaluate` under these parameters; [] where it asks nobody.

    Its own lines tell, up to the last one that calls `evaluate`: a notebook declares nothing, and no plan can differ
    from what will be asked. Errors: `UserError` for a wrong parameter, or where a line before the question fails.
    """
    names: dict[str, Any] = {
        "In": ["# Parameters\n" + "".join(f"{name} = None\n" for name in parameters)],  # as papermill injects them
        "get_ipython": lambda: None,
        "__name__": "__main__",
    }
    lines = _to_last_question(notebook)
    with asked_studies() as studies, redirect_stdout(io.StringIO()):
        for number, (statement, injected) in enumerate(lines, start=1):
            try:
                exec(compile(ast.Module([statement], []), str(notebook), "exec"), names)
            except Exception as error:  # a user's own lines; what follows the last question may need its answers
                if not studies or number < len(lines):
                    raise _unplanned(notebook, error) from error
            if injected:
                names |= parameters
    return list(studies)


def _to_last_question(notebook: Path) -> list[tuple[ast.stmt, bool]]:
    """The statements up to the last that calls `evaluate`; whether the parameters are injected behind each."""
    found: list[tuple[ast.stmt, bool]] = []
    for cell in read_notebook(notebook):
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"])
        plain = "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n"))
        try:
            body = ast.parse(plain).body
        except SyntaxError as error:
            raise _unplanned(notebook, error) from error
        tagged = "parameters" in cell.get("metadata", {}).get("tags", [])
        found += [(each, tagged and each is body[-1]) for each in body]
    asking = [number for number, (each, _) in enumerate(found, start=1) if any(map(_asks, ast.walk(each)))]
    return found[: asking[-1]] if asking else []


def _asks(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    return (isinstance(called, ast.Attribute) and called.attr == "evaluate") or (
        isinstance(called, ast.Name) and called.id == "evaluate"
    )


def _unplanned(notebook: Path, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return UserError(f"{notebook.stem}: {error}")
    return UserError(
        f"{notebook.stem} cannot be planned ({type(error).__name__}: {error}): a batch runs its lines up to the last one "
        "that calls evaluate, to learn what they ask; open it and run these by hand"
    )

"""What a notebook would ask, found out by running its first lines with nobody asked."""

import ast
import io
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from math import inf
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.evaluation import asked_studies
from rulerkit.studies import Study, read_notebook


def studies_of(notebook: Path, parameters: Mapping[str, Any]) -> list[Study]:
    """The studies that a notebook hands to `evaluate` under these parameters; [] where it asks
    nobody.

    Its own lines tell, up to the last one that calls `evaluate`: a notebook declares nothing, and
    no plan can differ from what will be asked. Errors: `UserError` for a wrong parameter, or where
    a line before the question fails.
    """
    names: dict[str, Any] = {
        "In": [
            "# Parameters\n" + "".join(f"{name} = None\n" for name in parameters)
        ],  # as papermill injects them
        "get_ipython": lambda: None,
        "__name__": "__main__",
    }
    lines = _to_last_question(notebook)
    with asked_studies() as studies, redirect_stdout(io.StringIO()):
        for number, (statement, injected) in enumerate(lines, start=1):
            before = len(studies)
            try:
                exec(compile(ast.Module([statement], []), str(notebook), "exec"), names)
            except (
                Exception
            ) as error:  # a user's own lines; what is made of the last answers may need some
                if number < len(lines) or len(studies) - before < _questions(statement):
                    raise _unplanned(notebook, error) from error
            if injected:
                names |= parameters
    return list(studies)


def _to_last_question(notebook: Path) -> list[tuple[ast.stmt, bool]]:
    """The statements up to the last that calls `evaluate`; whether the parameters are injected
    behind each."""
    found: list[tuple[ast.stmt, bool]] = []
    for cell in read_notebook(notebook):
        if cell["cell_type"] == "code":
            body = _statements("".join(cell["source"]), notebook)
            tagged = "parameters" in cell.get("metadata", {}).get("tags", [])
            found += [(each, tagged and each is body[-1]) for each in body]
    own = [
        node for each, _ in found for node in ast.walk(each) if isinstance(node, ast.FunctionDef)
    ]
    names = {
        "evaluate",
        *(function.name for function in own if any(_calls(function, {"evaluate"}))),
    }
    asking = [number for number, (each, _) in enumerate(found, start=1) if any(_calls(each, names))]
    return found[: asking[-1]] if asking else []


def _statements(source: str, notebook: Path) -> list[ast.stmt]:
    """What Python would run of a cell: magics and shell commands are passed over, and cells of
    another language."""
    plain = "\n".join(
        "" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n")
    )
    try:
        return ast.parse(source).body
    except SyntaxError:
        pass
    try:
        return ast.parse(plain).body
    except SyntaxError as error:
        if source.lstrip().startswith("%%"):
            return []
        raise _unplanned(notebook, error) from error


def _calls(node: ast.AST, names: set[str]) -> Iterator[ast.Call]:
    """The calls of functions or methods of these names."""
    for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
        if getattr(call.func, "attr", getattr(call.func, "id", None)) in names:
            yield call


def _questions(statement: ast.stmt) -> float:
    """How often a statement calls `evaluate`, as far as it can be read off."""
    if any(
        isinstance(node, ast.For | ast.While | ast.comprehension) for node in ast.walk(statement)
    ):
        return inf
    return len(list(_calls(statement, {"evaluate"})))


def _unplanned(notebook: Path, error: Exception) -> UserError:
    if isinstance(error, UserError):
        return UserError(f"{notebook.stem}: {error}")
    return UserError(
        f"{notebook.stem} cannot be planned ({type(error).__name__}: "
        f"{' '.join(str(error).split())}): a batch runs its "
        "lines up to the last one that calls evaluate, which returns nothing yet, to learn what "
        "they ask: let them run "
        "without answers, such as `cells = rk.evaluate(study)` on a line of its own"
    )

"""What a notebook asks, before it runs: the studies of its cell tagged `study`.

Planning executes no line that could do anything else. The cell tagged `parameters` is read, not
executed. Of the cell tagged `study` only imports of rulerkit and of a few modules that compute are
executed, assignments, and calls of functions that build or check; anything else is refused.
"""

import ast
import builtins
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.evaluation.notebook import NotebookCell, read_notebook
from rulerkit.evaluation.study import Study

_FUNCTIONS = (
    *("rk.study", "rk.check_lists", "rk.parse_length", "rk.read_spec"),
    *("rk.load_files", "rk.failures.with_baselines", "rk.model"),
)
"""The functions of rulerkit that a study is built with: they read files at most."""
_BUILTINS = (
    *("globals", "abs", "all", "any", "bool", "dict", "enumerate", "float", "int", "len"),
    *("list", "max", "min", "range", "reversed", "round", "set", "sorted", "str"),
    *("sum", "tuple", "zip"),
)
_METHODS = (
    *("values", "keys", "items", "get", "copy", "update", "setdefault", "append"),
    *("extend", "index", "count", "format", "join", "lower", "upper", "replace"),
    *("split", "strip", "startswith", "endswith", "removeprefix", "removesuffix"),
)
"""The methods of texts, lists and mappings."""
_VALUES = ("rk.TASKS", "rk.THIRTEEN")
_ATTRIBUTES = ("name", *(field.name for field in fields(Study)))
"""The values that a study or a task has."""
_MODULES = ("itertools", "math")
"""Modules beside rulerkit that are imported; their functions compute."""
_STATEMENTS = (
    *(ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.If, ast.For),
    *(ast.Import, ast.ImportFrom, ast.Pass),
)


def studies_of(notebook: Path, parameters: Mapping[str, Any]) -> list[Study]:
    """What a notebook asks under these parameters: the studies that its cell tagged `study` assigns
    to the name `study`. [] where no cell is tagged so: then nobody knows before it runs.

    Raises `UserError` for a wrong parameter, and for cells that would do more than build a study.
    """
    cells = read_notebook(notebook)
    if not any(cell.has("study") for cell in cells):
        return []

    names: dict[str, Any] = {
        # By these two names `rk.study(globals())` knows that it is in a notebook, and which
        # parameters were given from outside.
        "In": ["# Parameters\n" + "".join(f"{name} = None\n" for name in parameters)],
        "get_ipython": lambda: None,
        "__name__": "__main__",
        "__builtins__": {name: getattr(builtins, name) for name in _BUILTINS}
        | {"__import__": __import__},
    }
    try:
        for cell in cells:
            if cell.has("parameters"):
                names |= _literals(cell)
                names |= parameters
            elif cell.has("study"):
                exec(compile(_building(cell), str(notebook), "exec"), names)
    except UserError as error:
        raise UserError(f"{notebook.stem}: {error}") from error
    except Exception as error:
        raise UserError(
            f"{notebook.stem} cannot be planned ({type(error).__name__}: "
            f"{' '.join(str(error).split())}): its cells tagged `parameters` and `study` are read "
            "alone, so they must not need other cells"
        ) from error

    assigned = names.get("study")
    studies = [assigned] if isinstance(assigned, Study) else assigned
    if not isinstance(studies, list | tuple) or not all(isinstance(one, Study) for one in studies):
        raise UserError(
            f"{notebook.stem}: its cell tagged `study` must assign `study`, such as "
            f"`study = rk.study(globals(), notebook={notebook.stem!r})`, or a list of them"
        )
    return list(studies)


def _literals(cell: NotebookCell) -> dict[str, Any]:
    """The parameters of a notebook: its lines `name = literal`, read and not executed."""
    values = {}
    for statement in ast.parse(cell.source).body:
        try:
            target: Any = (
                statement.targets[0] if isinstance(statement, ast.Assign) else statement.target  # type: ignore[attr-defined]
            )
            values[target.id] = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
        except (AttributeError, TypeError, ValueError):
            raise UserError(
                "its cell tagged `parameters` holds `name = value` lines whose values are "
                f"literals, and nothing else; seen: {ast.unparse(statement)}"
            ) from None
    return values


def _building(cell: NotebookCell) -> ast.Module:
    """A cell tagged `study` without the imports that it needs later; `UserError` where it does
    anything but build a study."""
    tree = ast.parse(cell.source)
    kept = [one for one in tree.body if not _is_for_later(one)]
    for statement in kept:
        for node in ast.walk(statement):
            reason = _why_not(node)
            if reason:
                raise UserError(
                    f"its cell tagged `study` does more than build a study: {reason} "
                    f"(`{ast.unparse(statement).splitlines()[0]}`); a batch executes this cell "
                    "to plan: move the line into another cell"
                )
    tree.body = kept
    return tree


def _is_for_later(statement: ast.stmt) -> bool:
    """Whether a statement imports what a study is not built with, such as pandas: planning leaves
    it out, and so does nothing that a module does when it is imported."""
    if isinstance(statement, ast.Import):
        modules = [alias.name for alias in statement.names]
    elif isinstance(statement, ast.ImportFrom):
        modules = [statement.module or ""]
    else:
        return False
    return not {module.partition(".")[0] for module in modules} <= {"rulerkit", *_MODULES}


def _why_not(node: ast.AST) -> str:
    """What a part of a cell would do beside building a study; "" for nothing."""
    if isinstance(node, ast.stmt) and not isinstance(node, _STATEMENTS):
        return f"a statement `{type(node).__name__.lower()}`"
    if isinstance(node, ast.Lambda | ast.Await | ast.Yield | ast.YieldFrom):
        return "code of its own"
    if isinstance(node, ast.Import | ast.ImportFrom) and not _is_usual(node):
        return "rulerkit is imported by `import rulerkit as rk`, modules by their names"

    # A function that is handed on may be called by another one: only what may be called is read.
    if isinstance(node, ast.Attribute) and not _is_harmless(node):
        return f"it takes `{ast.unparse(node)}`"
    if isinstance(node, ast.Name) and node.id.startswith("__"):
        return f"it takes `{node.id}`"
    for child in ast.iter_child_nodes(node):
        is_rk = isinstance(child, ast.Name) and child.id == "rk"
        if is_rk and not isinstance(node, ast.Attribute):
            return "it takes `rk` itself"
    if isinstance(node, ast.Call) and not _builds(node.func):
        return f"it calls `{ast.unparse(node.func)}`"
    return ""


def _is_harmless(node: ast.Attribute) -> bool:
    """Whether an attribute is a function that builds, a part of a name of one, or a value."""
    if not isinstance(node.ctx, ast.Load):
        return False
    text = ast.unparse(node)
    root = text.partition(".")[0]
    if root in _MODULES:
        return not node.attr.startswith("_")
    if root == "rk":
        return text in _VALUES or any(f"{name}.".startswith(f"{text}.") for name in _FUNCTIONS)
    return node.attr in (*_METHODS, *_ATTRIBUTES)


def _is_usual(node: ast.Import | ast.ImportFrom) -> bool:
    """Whether an import gives a module or its functions the names by which calls are told."""
    if isinstance(node, ast.ImportFrom):
        renamed = [alias for alias in node.names if alias.asname]
        return node.module in _MODULES and not renamed
    names = {(alias.name, alias.asname) for alias in node.names}
    return names <= {("rulerkit", "rk"), *((name, None) for name in _MODULES)}


def _builds(function: ast.expr) -> bool:
    """Whether a call of this function builds or checks something, and does nothing else."""
    text = ast.unparse(function)
    if isinstance(function, ast.Name):
        return text in _BUILTINS or text in _imported_names()
    if not isinstance(function, ast.Attribute):
        return False
    root = function.value
    if isinstance(root, ast.Name) and root.id in _MODULES:
        return True
    if text.partition(".")[0] == "rk":
        return text in _FUNCTIONS
    return function.attr in _METHODS


def _imported_names() -> set[str]:
    """The functions that `from itertools import ...` may bring."""
    names: set[str] = set()
    for module in _MODULES:
        names |= set(dir(__import__(module)))
    return names

"""Code of the user that answers, or a part of it: found by its name, told apart by its source, and
named where it raises."""

import inspect
import sys
import sysconfig
from dis import get_instructions
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from traceback import extract_tb
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any
from uuid import uuid4

from rulerkit.common.errors import UserError, first_line
from rulerkit.common.paths import KIT, home
from rulerkit.common.settings import JSON
from rulerkit.inference.fingerprints import short

MOST_RAISED = 8
"""The exceptions in a row, before any answer, after which a function is called broken."""
PROCESS = uuid4().hex[:8]
NO_VERSION = "none, run "
"""How the version of a function begins whose source does not say all and that was given none."""
_INSTALLED = (
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)


def find_function(who: str, key: str, name: str) -> Any:
    """What `module:function` names, of an installed module, one under the project root or one of
    the kit's. A `UserError` says which `key` of which model (`who`) names nothing."""
    # Modules of the project are found from a notebook's folder, too.
    for root in (home(), KIT):
        if str(root) not in sys.path:
            sys.path.append(str(root))
    try:
        return resolve_name(name)
    except (AttributeError, ImportError, ValueError) as error:
        raise UserError(
            f"model {who}: {key} {name}: {first_line(error)}; give `module:function`, of an "
            f"installed module or one under the project root {home()}"
        ) from error


def raised(error: Exception) -> str:
    """What was raised and where, in one line: the user's own code, not a trace through ours."""
    what = f"{type(error).__name__}: {first_line(error)}"
    places = extract_tb(error.__traceback__)
    # One that was returned, not raised, has no place.
    return f"{what} ({places[-1].filename}, line {places[-1].lineno})" if places else what


def code_identity(function: Any, version: str | None, run: str) -> JSON:
    """What tells a function from a changed one: the digest of its source, and the `version` that
    the user gives. Where the source does not say all and no version is given, `run` stands in for
    it: answers are used again in that run alone."""
    told: JSON = {} if version is None else {"version": version}
    if not beside_source(function):
        source = inspect.getsource(function)
        defaults = repr((function.__defaults__, function.__kwdefaults__))
        told["source"] = short(sha256(f"{source}{defaults}".encode()))
    return told or {"version": f"{NO_VERSION}{run}"}


def beside_source(function: Any) -> str:
    """Why the source of a function does not say all that it does; "" where it does."""
    if not isinstance(function, FunctionType):
        return f"a {type(function).__name__} may hold values"
    if function.__closure__:
        return f"it holds {', '.join(function.__code__.co_freevars)}"
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    if not all(isinstance(value, str | int | float | None) for value in defaults):
        return "its defaults are objects"
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError):
        return "it has no source"
    if function.__name__ == "<lambda>" and source.count("lambda") > 1:
        return "its source holds several lambdas"

    # The names of an installed module belong to its package.
    named = [] if is_installed(function.__module__) else _names_of_the_user(function)
    return f"it names {', '.join(named)}" if named else ""


def _names_of_the_user(function: FunctionType) -> list[str]:
    """The globals and the modules that a function names and that no installed package brings."""
    found = set[str]()
    codes = [function.__code__]
    while codes:
        code = codes.pop()
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for step in get_instructions(code):
            name = step.argval
            if step.opname == "IMPORT_NAME" and not is_installed(name):
                found.add(name)
            # A class within a function names its own attributes as it does globals.
            is_read = step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and name in function.__globals__
            if is_read and not is_installed(_module_of(function.__globals__[name])):
                found.add(name)
            if step.opname == "STORE_GLOBAL":
                found.add(name)
    return sorted(found)


def _module_of(value: Any) -> str:
    """The module that a value comes from; "" for an object that may hold anything."""
    if isinstance(value, ModuleType):
        return value.__name__
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return value.__module__ or ""
    return ""


def is_installed(module: str) -> bool:
    """Whether a module belongs to Python, an installed package or the kit."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return True
    # A notebook's own module may have the file of what started it.
    if top in ("", "__main__"):
        return False
    try:
        spec = find_spec(top)
    except ValueError:  # a module made by hand
        return False
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    return any(str(place).startswith(_INSTALLED) for place in places)

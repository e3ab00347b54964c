"""Plug-ins: modules outside the package that bring tasks (`TASKS`) or engines (`ENGINES`).

They are found by entry points of installed packages (the groups `rulerkit.tasks` and
`rulerkit.engines`, whose value is a module), or named: `plugins: [module]` in parameters, or the
module in the record of an answer. `docs/extend.md` shows one of each.
"""

import sys
import traceback
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from rulerkit.common.errors import UserError, first_line, remark, shortened
from rulerkit.common.paths import home

GROUPS = {"TASKS": "rulerkit.tasks", "ENGINES": "rulerkit.engines"}
"""What a module brings -> the group of entry points that find it."""

_LOADED: dict[str, ModuleType] = {}
"""The modules that were named, in the order in which they were."""


def load_plugins(names: Iterable[str]) -> None:
    """Import modules, of installed packages or below the project root, and keep what they bring.

    Raises UserError for a module that cannot be imported, or brings nothing.
    """
    for name in names:
        if name in _LOADED:
            continue
        module = _imported(name)
        if not any(hasattr(module, attribute) for attribute in GROUPS):
            raise UserError(
                f"plug-in {name}: it brings neither TASKS (a list of tasks) nor ENGINES (a mapping "
                "of names to classes); docs/extend.md shows both"
            )
        _LOADED[name] = module


def load_recorded(name: str) -> None:
    """Load the module that a record names. Records may come from anybody: a module that was not
    written for rulerkit is not imported. Raises UserError where it cannot be."""
    _find_in_project()
    first, *inner = name.split(".")
    try:
        spec = find_spec(first) if first else None
    except (ImportError, ValueError):
        spec = None
    places = [Path(place) for place in (spec and spec.submodule_search_locations) or ()]
    files = [place.joinpath(*inner, "__init__.py") for place in places]
    if inner:
        files += [place.joinpath(*inner).with_suffix(".py") for place in places]
    elif spec and spec.origin:
        files.append(Path(spec.origin))

    for file in files:
        if file.suffix == ".py" and file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            if "rulerkit" in text and "TASKS" in text:
                load_plugins([name])
                return
    raise UserError(f"no plug-in {name} is installed or below {home()}")


def brought(attribute: str, ours: Collection[str], what: str) -> dict[str, tuple[Any, str]]:
    """Everything that plug-ins bring as `TASKS` or `ENGINES`: name -> the thing and its module.

    A thing in a list has a `name`. Raises UserError for a name that is ours, or another plug-in's.
    """
    modules = {**_installed(attribute), **_LOADED}
    found: dict[str, tuple[Any, str]] = {}
    for module in modules.values():
        things = getattr(module, attribute, ())
        if not isinstance(things, Mapping | list | tuple):
            raise UserError(
                f"plug-in {module.__name__}: {attribute} is {shortened(things)}; docs/extend.md "
                "shows what is expected"
            )
        if not isinstance(things, Mapping):
            # What has no name is no task: who asks for it says so.
            things = {getattr(one, "name", repr(one)): one for one in things}
        for name, thing in things.items():
            other = found.get(name, (None, "rulerkit"))[1]
            if name in ours or name in found:
                raise UserError(
                    f"plug-in {module.__name__}: its {what} {name} has the name of one of "
                    f"{other}: give it another name"
                )
            found[name] = thing, module.__name__
    return found


def loaded() -> tuple[str, ...]:
    """The modules that were named so far: what `brought` says changes with them."""
    return tuple(_LOADED)


def source_digest(module: str) -> str:
    """A digest of the source of an imported module, 16 hexadecimal digits; "" without a file."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not file:
        return ""
    return sha256(Path(file).read_bytes()).hexdigest()[:16]


def is_outside(cls: type) -> bool:
    """Whether a class stands in a module outside the package."""
    return cls.__module__.partition(".")[0] != "rulerkit"


@contextmanager
def errors_of(cls: type, doing: str) -> Iterator[None]:
    """Within it, an exception in the code of a plug-in's class is a `UserError` that says where it
    was raised; `doing` says what the code was asked for. Exceptions of our own classes pass on."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # it is the user's code
        if not is_outside(cls):
            raise
        file = getattr(sys.modules.get(cls.__module__), "__file__", None)
        steps = traceback.extract_tb(error.__traceback__)
        own = [step for step in steps if step.filename == file]
        what = f"what {cls.__name__} gave cannot be used"
        if own:
            # The innermost line of the plug-in, whatever it called.
            name = Path(own[-1].filename).name
            what = f"{name}, line {own[-1].lineno}, in {own[-1].name}"
        raise UserError(f"plug-in {cls.__module__}: {what}: {_told(error)} ({doing})") from error


@cache
def _installed(attribute: str) -> dict[str, ModuleType]:
    """The modules that installed packages bring by their entry points. A broken one is named and
    left out, since few commands need it."""
    points = entry_points(group=GROUPS[attribute])
    modules = {}
    for point in sorted(points, key=lambda point: point.value):
        try:
            module = _import(point.value)
        except Exception as error:  # it is the user's code
            problem = f"it cannot be imported ({_told(error)})"
        else:
            if hasattr(module, attribute):
                modules[module.__name__] = module
                continue
            problem = f"it has no {attribute} (docs/extend.md)"
        package = point.dist.name if point.dist else point.value
        remark(
            f"left out: the plug-in {point.value} of the installed package {package}: {problem}; "
            "repair or uninstall the package"
        )
    return modules


def _find_in_project() -> None:
    """Let modules of the project be found from a notebook's folder, too."""
    if str(home()) not in sys.path:
        sys.path.append(str(home()))


def _import(name: str) -> ModuleType:
    _find_in_project()
    return import_module(name)


def _imported(name: str) -> ModuleType:
    """The module that parameters or a record name; raises UserError where it cannot be imported."""
    try:
        return _import(name)
    except Exception as error:  # it is the user's code
        absent = error.name if isinstance(error, ImportError) else None
        advice = "mend the module"
        if absent and f"{name}.".startswith(f"{absent}."):
            advice = f"give a module that is installed, or lies below the project root {home()}"
        raise UserError(f"plug-in {name} cannot be imported ({_told(error)}): {advice}") from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"

"""Plug-ins: modules outside the package that bring tasks (`TASKS`) or engines (`ENGINES`).

They are found by entry points of installed packages (the groups `rulerkit.tasks` and
`rulerkit.engines`, whose value is a module), or named: `plugins: [module]` in parameters, or the
module in the record of an answer. `docs/extend.md` shows one of each.
"""

import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from rulerkit.common.errors import UserError, first_line, shortened
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
    places = [
        Path(place) for place in (spec and spec.submodule_search_locations) or ()
    ]
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


def brought(
    attribute: str, ours: Collection[str], what: str
) -> dict[str, tuple[Any, str]]:
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


@cache
def _installed(attribute: str) -> dict[str, ModuleType]:
    """The modules that installed packages bring by their entry points."""
    points = entry_points(group=GROUPS[attribute])
    modules = {}
    for point in sorted(points, key=lambda point: point.value):
        module = _imported(point.value)
        if not hasattr(module, attribute):
            raise UserError(
                f"plug-in {point.value}: an entry point of {GROUPS[attribute]} names it, and it "
                f"has no {attribute}; docs/extend.md shows what is expected"
            )
        modules[module.__name__] = module
    return modules


def _find_in_project() -> None:
    """Let modules of the project be found from a notebook's folder, too."""
    if str(home()) not in sys.path:
        sys.path.append(str(home()))


def _imported(name: str) -> ModuleType:
    _find_in_project()
    try:
        return import_module(name)
    except Exception as error:  # it is the user's code
        raise UserError(
            f"plug-in {name} cannot be imported ({type(error).__name__}: {first_line(error)}): "
            f"give a module that is installed, or lies below the project root {home()}"
        ) from error

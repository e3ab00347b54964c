"""Plug-ins: modules outside the package that bring what `BRINGS` lists; `docs/extend.md` shows it.

A module is found by the entry points `rulerkit.plugins` of installed packages, or named: `plugins:
[module]` in parameters, or the module in the record of an answer. What it brings may be a text
`module:name`, which is imported when it is first used.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, NamedTuple

from rulerkit.common.errors import UserError, first_line, remark, shortened
from rulerkit.common.project import home

GROUP = "rulerkit.plugins"
"""The entry points that name modules."""
BRINGS = {
    "families": "a list of classes made from Task",
    "engines": "a mapping of names to classes made from Model",
    "readers": "a mapping of file patterns to functions that give the cells of a file",
    "scorers": "a mapping of names to functions that give the text of `report --as`",
    "formats": "a mapping of names to functions that give the text of `report --format`",
    "capabilities": "a mapping of suites to Capability(table, figure)",
    "commands": "a typer.Typer",
    "project": "the path of a folder with notebooks/ or params/",
}
"""What a module may bring, by the name that it has there."""

_NAMED: dict[str, ModuleType] = {}
"""The modules that were named, in the order in which they were."""


class Capability(NamedTuple):
    """How the scores of a suite are shown, beside or instead of the tables that all suites have.
    Both are functions of the rows of `score`."""

    table: Callable[..., str]
    """`table(scores, tasks=None, lengths=None, num_examples=None, format="text", notes=())` gives
    text; `score` prints it below the tables of tasks, and `report` in place of its own. `format` is
    one of `report`."""
    figure: Callable[..., Any] | None = None
    """`figure(scores, ax=None)` gives matplotlib Axes: `rk.plots.of_suite` draws it."""


def load_plugins(names: Iterable[str]) -> None:
    """Import modules, of installed packages or below the project root, and keep what they bring.

    Raises UserError for a module that cannot be imported, or brings nothing.
    """
    for name in names:
        if name in _NAMED:
            continue
        try:
            _NAMED[name] = _import(name)
        except Exception as error:  # it is the user's code
            raise UserError(
                f"plug-in {name} cannot be imported or used ({_told(error)}): correct the module, "
                f"or name one that is installed or lies below the project root {home()}"
            ) from error


def load_recorded(name: str) -> None:
    """Load the module that a record names. Records may come from anybody: a module that was not
    written for rulerkit is not imported. Raises UserError where it cannot be."""
    parts = name.split(".")
    places = list[Path]()
    if all(map(str.isidentifier, parts)):
        places = [Path(folder).joinpath(*parts) for folder in [*sys.path, str(home())]]
    files = [file for place in places for file in (place / "__init__.py", place.with_suffix(".py"))]

    # As Python does, the first one counts; no package is imported in order to look.
    found = next((file for file in files if file.is_file()), None)
    text = found.read_text(encoding="utf-8", errors="replace") if found else ""
    if "rulerkit" in text and "families" in text:
        load_plugins([name])
        return
    raise UserError(f"no plug-in {name} is installed or below {home()}")


def brought(attribute: str) -> list[tuple[str, Any]]:
    """Each plug-in that brings something under this name of `BRINGS`: its module, and the thing.

    What an installed one cannot import is left out with one line, as few commands need it; of one
    that was named, UserError is raised.
    """
    found = []
    for module in {**_installed(), **_NAMED}.values():
        name, thing = module.__name__, getattr(module, attribute, None)
        try:
            if isinstance(thing, str) and ":" in thing:
                thing = resolve_name(thing)
        except Exception as error:  # it is the user's code
            problem = f"{thing} cannot be imported ({_told(error)})"
            if name in _NAMED:
                raise UserError(f"plug-in {name}: {problem}") from error
            _leave_out(name, problem)
            continue
        if thing is not None:
            found.append((name, thing))
    return found


def by_name(attribute: str, ours: Collection[str], what: str) -> dict[str, Any]:
    """The mappings that plug-ins bring, in one. Raises UserError for a name that is ours, or
    another plug-in's."""
    owners = dict.fromkeys(ours, "rulerkit")
    found = dict[str, Any]()
    for module, things in brought(attribute):
        if not isinstance(things, Mapping):
            raise UserError(
                f"plug-in {module}: {attribute} is {shortened(things)}; expected "
                f"{BRINGS[attribute]} (docs/extend.md)"
            )
        for name, thing in things.items():
            check_free(what, name, module, owners)
            if isinstance(thing, str):
                raise UserError(
                    f"plug-in {module}: its {what} {name} is the text {shortened(thing)}, and not "
                    "the thing itself (docs/extend.md)"
                )
            owners[name] = module
        found.update(things)
    return found


def check_free(what: str, name: str, module: str, owners: Mapping[str, str]) -> None:
    """Raises UserError where another module has something of this name."""
    if owners.get(name, module) != module:
        raise UserError(
            f"plug-in {module}: its {what} {name} has the name of one of {owners[name]}: give it "
            "another name"
        )


def capability(suite: str) -> Capability | None:
    """How a plug-in shows the scores of a suite; None where none does."""
    return by_name("capabilities", (), "capability").get(suite)


def loaded() -> tuple[str, ...]:
    """The modules that were named so far: what `brought` says changes with them."""
    return tuple(_NAMED)


def is_outside(cls: type) -> bool:
    """Whether a class stands in a module outside the package."""
    return cls.__module__.partition(".")[0] != "rulerkit"


@contextmanager
def errors_of(cls: type, doing: str) -> Iterator[None]:
    """Within it, an exception in the code of a plug-in's class is a `UserError` that names the
    module; `doing` says what the code was asked for. Exceptions of our own classes pass on."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # it is the user's code
        if not is_outside(cls):
            raise
        raise UserError(f"plug-in {cls.__module__}: {doing}: {_told(error)}") from error


@cache
def _installed() -> dict[str, ModuleType]:
    """The modules that installed packages name in their entry points. A broken one is left out with
    one line, since few commands need it."""
    modules = {}
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.value):
        try:
            modules[point.value] = _import(point.value)
        except Exception as error:  # it is the user's code
            package = point.dist.name if point.dist else point.value
            who = f"{point.value} of the installed package {package}"
            _leave_out(who, f"it cannot be imported ({_told(error)})")
    return modules


@cache
def _leave_out(who: str, problem: str) -> None:
    remark(f"left out: the plug-in {who}: {problem}; repair or uninstall the package")


def _import(name: str) -> ModuleType:
    """A module that is installed, or below the project root, from a notebook's folder, too.
    AttributeError where it brings nothing."""
    if str(home()) not in sys.path:
        sys.path.append(str(home()))
    module = import_module(name)
    if not any(hasattr(module, attribute) for attribute in BRINGS):
        raise AttributeError(f"it brings none of {', '.join(BRINGS)}; docs/extend.md shows each")
    return module


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"

"""Code of the user that answers, or a part of it: found by its name, told apart by what lies in it,
and named where it raises."""

import sys
import weakref
from collections.abc import Callable
from pkgutil import resolve_name
from traceback import extract_tb
from typing import Any

from rulerkit.common.errors import UserError, first_line
from rulerkit.common.paths import KIT, home
from rulerkit.inference.object_state import Contents, contents_of

MOST_RAISED = 8
"""The exceptions in a row, before any answer, after which a function is called broken."""

_Reference = Callable[[], Any]
_CALLED: dict[int, tuple[_Reference, Contents, Contents]] = {}
"""By the id of a function: a reference to it, and its contents before and after its calls."""


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


def current_contents(function: Any) -> Contents:
    """The code and the state of a function, less what its own calls have changed: many count, keep
    what they saw, or load what they need at the first call."""
    now, key = contents_of(function), id(function)
    if key in _CALLED:
        called, before, after = _CALLED[key]
        if called() is function and now == after:
            return before
    _CALLED[key] = (_reference(function), now, now)
    return now


def remember_contents(function: Any) -> None:
    """Note the contents of a function after its calls; `current_contents` was called before
    them."""
    key = id(function)
    if key in _CALLED:
        called, before, _ = _CALLED[key]
        _CALLED[key] = (called, before, contents_of(function))


def _reference(function: Any) -> _Reference:
    """A weak reference, so that nothing is held; to nothing where there is no weak one."""
    try:
        return weakref.ref(function)
    except TypeError:
        return lambda: None

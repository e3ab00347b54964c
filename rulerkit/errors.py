"""The one error that a user is meant to see: a single line that says what to do next."""

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """Something the user can mend.

    The message is one line: who, what was seen, what is allowed, what to do. The command line prints it and exits with
    status 2; in a notebook it is the last line of the cell.
    """


def unknown(what: str, seen: object, allowed: Iterable[object], hint: str = "") -> UserError:
    """An error for a name that is not among those allowed, with the nearest one suggested.

    >>> str(unknown("task", "vtt", ["vt", "cwe"]))
    "unknown task 'vtt': did you mean 'vt'? allowed: vt, cwe"
    """
    names = [str(name) for name in allowed]
    return UserError(
        f"unknown {what} {str(seen)!r}: {suggestion(seen, names)}allowed: {', '.join(names)}"
        + (f". {hint}" if hint else "")
    )


def suggestion(seen: object, allowed: Iterable[object]) -> str:
    """`did you mean 'x'? `, or nothing where no allowed name is like the one that was seen."""
    near = get_close_matches(str(seen), [str(name) for name in allowed], n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def first_line(error: BaseException) -> str:
    """The first line of a library's message, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


class ModelError(UserError):
    """A model that stops answering, such as a server that is gone: `evaluate` goes on with the other models."""


class TooLong(UserError):  # noqa: N818  (no fault of anybody's)
    """A length that a model cannot be given here: `evaluate` names it and goes on with what fits."""

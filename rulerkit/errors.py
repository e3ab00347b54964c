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
    near = get_close_matches(str(seen), names, n=1)
    guess = f"did you mean {near[0]!r}? " if near else ""
    return UserError(
        f"unknown {what} {str(seen)!r}: {guess}allowed: {', '.join(names)}" + (f". {hint}" if hint else "")
    )


class TooLong(UserError):  # noqa: N818  (no fault of anybody's)
    """A length that a model cannot be given here: `evaluate` names it and goes on with what fits."""

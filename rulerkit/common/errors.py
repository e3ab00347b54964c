"""The one error that a user is meant to see: a single line that says what to do next; and remarks
on stderr."""

import sys
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from rulerkit.common import escape


class ExitStatus(IntEnum):
    """How a command ends, for scripts and schedulers; `docs/commands.md` tells more."""

    DONE = 0
    FAILED = 1
    """Worse, failed, or wrong in what was looked at."""
    WRONG_USE = 2
    UNDECIDED = 3
    """Cannot tell, or incomplete: examples without an answer, work that waits."""
    ELSEWHERE = 75
    """Left to another process, which does it at the moment; the number of `EX_TEMPFAIL`."""


class UserError(Exception):
    """Something the user can correct.

    The message is one line: who, what was seen, what is allowed, what to do. The command line
    prints it and exits with `status`; in a notebook it is all that the cell shows.
    """

    status = ExitStatus.WRONG_USE

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of the traceback: where the code failed says nothing to a
        user, what to correct stands in the message."""
        return [escape.one_line(f"{type(self).__name__}: {self}")]


class Elsewhere(UserError):  # noqa: N818  (a state, not an error)
    """Locked by another process; run the command again later."""

    status = ExitStatus.ELSEWHERE


class ModelError(UserError):
    """A model that stops answering, such as a server that is gone: `evaluate` goes on with the
    other models."""


class DoesNotFit(UserError):  # noqa: N818  (a limit, not an error)
    """A length that is too short for the examples of a task."""


class TooLong(UserError):  # noqa: N818  (a limit, not an error)
    """A length that a model cannot be given here: `evaluate` names it and goes on with what
    fits."""


def unknown(
    what: str, seen: object, allowed: Iterable[object], hint: str = "", command: str = ""
) -> UserError:
    """An error for a name that is not among those allowed, with the nearest one suggested. Where a
    command lists them, the message names the three nearest and that command, not all of them.

    >>> str(unknown("task", "vtt", ["vt", "cwe"]))
    "unknown task 'vtt': did you mean 'vt'? allowed: vt, cwe"
    >>> str(unknown("task", "vtt", ["vt", "cwe"], command="rulerkit tasks"))
    "unknown task 'vtt': did you mean 'vt' or 'cwe'? `rulerkit tasks` lists all"
    """
    names = [str(name) for name in allowed]
    number, cutoff = (3, 0.0) if command else (1, 0.6)
    nearest = get_close_matches(str(seen)[:100], names, number, cutoff)
    text = f"unknown {what} {shortened(str(seen))}: "
    if nearest:
        text += f"did you mean {' or '.join(map(repr, nearest))}? "
    separator = "; " if any("," in name for name in names) else ", "
    text += f"`{command}` lists all" if command else f"allowed: {separator.join(names) or 'none'}"
    return UserError(f"{text}. {hint}" if hint else text)


def check_known(
    what: str, seen: object, allowed: Collection[object], hint: str = "", command: str = ""
) -> None:
    """Raise the error of `unknown` for a name that is not among those allowed."""
    if seen not in allowed:
        raise unknown(what, seen, allowed, hint, command)


def check_type(seen: object, kind: Any, who: str, takes: str) -> None:
    """Raise UserError where what a function `who` was given is not of a kind; `takes` are the words
    for what it takes."""
    if not isinstance(seen, kind):
        raise UserError(f"{who} takes {takes}; seen: {shortened(seen)}")


def shortened(value: object) -> str:
    """A value as a message shows it: its `repr` on one line of at most 100 characters."""
    return shorten(repr(value), 100)


def listed(names: Iterable[object], most: int, separator: str = ", ") -> str:
    """The first names, and how many more there are.

    >>> listed("abcd", 2)
    'a, b and 2 more'
    """
    # A message that lists a thousand names is not read.
    texts = [str(name) for name in names]
    more = len(texts) - most
    return separator.join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def shorten(value: object, most: int = 80) -> str:
    """A value as one line of at most so many characters.

    >>> shorten("one two  three", 8)
    'one two…'
    """
    text = " ".join(str(value).split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


def counted(number: float | str, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "task"), counted(20, "task")
    ('1 task', '20 tasks')
    """
    text = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{text} {noun}" if text == "1" else f"{text} {noun}s"


def first_line(error: BaseException) -> str:
    """The first line of a library's message, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def remark(text: str) -> None:
    """Print one line on stderr, above any progress bar; what a server or a file has said cannot
    steer the terminal."""
    from tqdm import tqdm

    tqdm.write(escape.one_line(text), file=sys.stderr)

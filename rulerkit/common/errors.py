"""The one error that a user is meant to see: a single line that says what to do next; and remarks
on stderr."""

import re
import reprlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from difflib import get_close_matches
from enum import IntEnum
from typing import Any

from rulerkit.common import escape

_SECRET = "key|token|secret|password|passwd|authorization|credentials?"
_SECRET_NAME = re.compile(rf"({_SECRET})(_env)?$", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    # the user of a URL; what follows api_key=, "token": or Authorization: Bearer; the value of
    # --api-key
    rf"(://)[^/@\s]+(?=@)|((?:{_SECRET})[\"']?\s*[=:]\s*[\"']?(?:bearer\s+)?|(?<![\w-])--[\w-]*(?:{_SECRET})\s+)[^\s\"'&,;{{}}]+",
    re.IGNORECASE,
)
_KEY_LIKE = re.compile(
    # What a key looks like, whatever its name: those of OpenAI, the hub, GitHub, Slack, AWS and
    # Google, and the tokens of a session.
    r"(\b(?i:bearer|basic)\s+)(?=\S*\d|\S{16})[\w.~+/=-]{6,}"
    r"|\b(?:sk-(?=[\w-]*\d|[\w-]{16})[\w-]{6,}"
    r"|hf_(?=\w*[A-Z\d]|\w{20})\w{6,}"
    r"|gh[opsru]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}"
    r"|AKIA[A-Z\d]{12,}|AIza[\w-]{20,}|(?<!-)eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+)"
)
_NAMED = re.compile(
    r"(\b\w*(?:api_?key|password|passwd|secret|authorization|access_token|auth_token)"
    r"[\"']?\s*[:=]\s*[\"']?)(?!\*\*\*|did you mean|allowed:)[^\s\"'&,;{}]+",
    re.IGNORECASE,
)
"""A secret in a message, behind a name that is no word of ours; a message of ours goes on with
other words behind an unknown key."""
_USER = re.compile(r"(://)[^/@\s]+(?=@)")
_QUERY = re.compile(
    # An address without a query matches too: it is not read again from each `http` in it.
    r"(https?://[^\s?]*)(\?[^\s\"'#]*)?"
)
_DEEPEST = 40
"""Levels of lists and mappings that are shown."""
_MOST_VALUES = 100_000
"""Values that are shown: a few lists within each other can stand for more than memory holds."""


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
    prints it and exits with `status`; in a notebook it is all that the cell shows. Keys that a file
    or a server put into it are ***.
    """

    status = ExitStatus.WRONG_USE

    def __init__(self, message: str = "") -> None:
        super().__init__(without_keys(message))

    def _render_traceback_(self) -> list[str]:
        """What IPython shows in place of the traceback: where the code failed says nothing to a
        user, what to correct stands in the message."""
        return [escape.one_line(f"{type(self).__name__}: {self}")]


class MissingExtra(UserError, ImportError):  # noqa: N818  (a part, not an error)
    """A part of the package whose extra is not installed."""


class Elsewhere(UserError):  # noqa: N818  (a state, not an error)
    """Another process is at it: later, the same command goes on."""

    status = ExitStatus.ELSEWHERE


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
    if command:
        nearest = [repr(name) for name in get_close_matches(str(seen)[:100], names, n=3, cutoff=0)]
        guess = " or ".join(filter(None, [", ".join(nearest[:-1]), nearest[-1]]))
        return UserError(
            f"unknown {what} {shortened(str(seen))}: did you mean {guess}? "
            f"`{command}` lists all" + (f". {hint}" if hint else "")
        )
    near = [f"did you mean {name!r}? " for name in get_close_matches(str(seen)[:100], names, n=1)]
    return UserError(
        f"unknown {what} {shortened(str(seen))}: {''.join(near)}allowed: "
        f"{', '.join(names) or 'none'}" + (f". {hint}" if hint else "")
    )


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
    """A value as a message shows it: on one line of at most 200 characters."""
    # A value may be a whole file that was given in the wrong place.
    limits = reprlib.Repr()
    limits.maxstring = limits.maxother = limits.maxlong = 80
    return " ".join(limits.repr(value).split())[:200]


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


def counted(number: object, noun: str) -> str:
    """A number and its noun.

    >>> counted(1, "task"), counted(20, "task")
    ('1 task', '20 tasks')
    """
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def points_text(number: float) -> str:
    """A number of points, such as `1 point`."""
    return counted(f"{number:g}", "point")


def first_line(error: BaseException) -> str:
    """The first line of a library's message, without its full stop."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def without_keys(text: str) -> str:
    """A message without what looks like a key, and without users and queries of addresses.

    >>> without_keys("sent Bearer sk-12345678 to https://me:pw@host/v1")
    'sent Bearer *** to https://***@host/v1'
    """
    text = _NAMED.sub(r"\1***", _KEY_LIKE.sub(_stars, text))
    return _QUERY.sub(_without_query, _USER.sub(r"\1***", text))


def _without_query(match: re.Match[str]) -> str:
    return match[1] + ("?***" if match[2] else "")


def _stars(match: re.Match[str]) -> str:
    return f"{match[1] or ''}***"


def redact(value: Any) -> Any:
    """A text, or a mapping, as records and messages may show it: keys, passwords and what follows
    `?` in a URL are ***. What is nested too deeply, or beyond 100,000 values, is "...".

    A name such as api_key or Authorization makes its value a secret, and so does what it looks
    like, such as sk-... or hf_....

    >>> redact({"url": "https://me:pw@host/v1?code=1", "body": {"api_key": "sk-1"}})
    {'url': 'https://***@host/v1?***', 'body': {'api_key': '***'}}
    """
    return _redact(value, _DEEPEST, iter(range(_MOST_VALUES)))


def _redact(value: Any, levels: int, left: Iterator[int]) -> Any:
    """As `redact`, with so many levels, and as many values as `left` counts."""
    # Keys stand in texts, in lists and under names that say so.
    if next(left, None) is None:
        return "..."
    if isinstance(value, str):
        return without_keys(_SECRET_TEXT.sub(r"\1\2***", value))
    if not isinstance(value, list | tuple | Mapping):
        return value
    if not levels:
        return "..."
    if not isinstance(value, Mapping):
        return [_redact(item, levels - 1, left) for item in value]

    secret = {
        key
        for key, item in value.items()
        if isinstance(item, str | Mapping) and _SECRET_NAME.search(str(key))
    }
    return {
        key: "***" if key in secret else _redact(item, levels - 1, left)
        for key, item in value.items()
    }


def secrets_of(value: Any) -> set[str]:
    """The words of a mapping that `redact` hides: a server may repeat them anywhere.

    >>> sorted(secrets_of({"api_key": "abc", "note": "Bearer sk-12345678", "n": "x"}))
    ['abc', 'sk-12345678']
    """
    return set(_hidden(value, redact(value)))


def _hidden(value: Any, shown: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from set(value.split()) - set(str(shown).split())
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, item in value.items():
            # A mapping with a secret name is hidden as a whole.
            inside = shown if isinstance(shown, str) else shown[key]
            yield from _hidden(item, inside)


def remark(text: str) -> None:
    """Print one line on stderr, above any progress bar; what a server or a file has said cannot
    steer the terminal."""
    from tqdm import tqdm

    tqdm.write(escape.one_line(without_keys(text)), file=sys.stderr)


class ModelError(UserError):
    """A model that stops answering, such as a server that is gone: `evaluate` goes on with the
    other models."""


class DoesNotFit(UserError):  # noqa: N818  (a limit, not an error)
    """A length that is too short for the examples of a task."""


class TooLong(UserError):  # noqa: N818  (a limit, not an error)
    """A length that a model cannot be given here: `evaluate` names it and goes on with what
    fits."""

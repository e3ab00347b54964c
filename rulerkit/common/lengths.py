"""Sequence lengths: how they are written, and which of them a model's scores call effective
(Section 4)."""

import re
from collections.abc import Iterable, Sequence
from numbers import Integral

from rulerkit.common.errors import UserError, check_type

LONGEST = 16 * 1024**2
"""The largest number of tokens that a parameter may give."""


def length_name(length: int) -> str:
    """4096 is '4K', 1048576 is '1M'; what is no round number of K stays as it is: '1000'."""
    check_type(length, Integral, "length_name", "a whole number of tokens")
    if length % 1024 or length <= 0:
        return str(length)
    return f"{length // 1024**2}M" if length % 1024**2 == 0 else f"{length // 1024}K"


def parse_length(text: str | int, least: int = 1) -> int:
    """Tokens: 4096, '4096' and '4K' are 4096, '1M' is 1048576.

    Raises UserError for what is no number of tokens from `least` to `LONGEST`.
    """
    match = re.fullmatch(r"(\d{1,9})([kKmM]?)", str(text).strip())
    length = int(match[1]) * {"": 1, "K": 1024, "M": 1024**2}[match[2].upper()] if match else -1
    if not least <= length <= LONGEST:
        raise UserError(
            f"{text!r} is no length: give tokens, e.g. 4096, 4K or 1M, at most "
            f"{length_name(LONGEST)}"
        )
    return length


def parse_grid(
    tasks: str | Sequence[str] | None, lengths: int | str | Sequence[int | str] | None
) -> tuple[list[str] | None, list[int] | None]:
    """Tasks and lengths in tokens as lists; one alone needs no list, and None stays None.

    Raises UserError if it is not a length.
    """
    if tasks is not None:
        check_type(tasks, Iterable, "the grid", 'tasks, such as ["vt"]')
        tasks = [tasks] if isinstance(tasks, str) else list(tasks)
    if lengths is None:
        return tasks, None
    several = [lengths] if isinstance(lengths, int | str) else lengths
    check_type(several, Iterable, "the grid", "lengths, such as [4096, 8192]")
    return tasks, [parse_length(length) for length in several]

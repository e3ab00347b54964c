"""Progress bars."""

import sys
from collections.abc import Iterable
from typing import Any


def progress_bar(tokens: int, disable: bool = False) -> Any:
    """A bar over many cells, in tokens, with the time left."""
    from tqdm.auto import tqdm

    interval = 0.2 if sys.stderr.isatty() else 5.0  # a job's log keeps every refresh
    return tqdm(
        total=tokens, disable=disable, unit=" tokens", unit_scale=True, mininterval=interval
    )


def with_progress(items: Iterable[Any], unit: str) -> Any:
    """The items; a bar in a terminal or notebook counts them where they take more than three
    seconds."""
    from tqdm.auto import tqdm

    return tqdm(items, unit=f" {unit}", delay=3, disable=None)

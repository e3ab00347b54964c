"""Progress bars."""

import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from rulerkit.common.errors import remark


def progress_bar(tokens: int, disable: bool = False) -> Any:
    """A bar over many cells, in tokens, with the time left."""
    from tqdm.auto import tqdm

    interval = 0.2 if sys.stderr.isatty() else 5.0  # a job's log keeps every refresh
    return tqdm(
        total=tokens, disable=disable, unit=" tokens", unit_scale=True, mininterval=interval
    )


def tell_time_left(bar: Any, cell_ended: bool) -> None:
    """Called after each answer: say once, when the first cell has ended, how long the rest takes;
    nothing where it is under a minute."""
    if bar.disable or getattr(bar, "has_told", False):
        return
    # With the first answer the model is loaded, or its server has started.
    began, before = bar.first = getattr(bar, "first", (time.monotonic(), bar.n))
    if not cell_ended or bar.n <= before:
        return
    bar.has_told = True
    seconds = (time.monotonic() - began) * (bar.total - bar.n) / (bar.n - before)
    if seconds >= 60:
        left = timedelta(seconds=round(seconds))
        remark(f"about {left} left, at the pace of the first cell")


def with_progress(items: Iterable[Any], unit: str) -> Any:
    """The items; a bar in a terminal or notebook counts them where they take more than three
    seconds."""
    from tqdm.auto import tqdm

    return tqdm(items, unit=f" {unit}", delay=3, disable=None)

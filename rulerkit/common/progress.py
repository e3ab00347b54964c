"""Progress bars."""

import io
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import Any

from rulerkit.common.errors import remark


def progress_bar(tokens: int, disable: bool = False) -> Any:
    """A bar over many cells, in tokens, with the time left; in a notebook a line of text, of which
    the tokens and the time remain."""
    interval = 0.2 if sys.stderr.isatty() else 5.0  # a job's log keeps every refresh
    return _kind_of_bar()(
        total=tokens, disable=disable, unit=" tokens", unit_scale=True, mininterval=interval
    )


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _kind_of_bar() -> Any:
    """tqdm's bar or, in the kernel of a notebook, one that shows its text in one output."""
    from tqdm import tqdm

    if not in_notebook():
        return partial(tqdm, disable=None)
    ipython = sys.modules["IPython"]

    class Line(tqdm):  # type: ignore[type-arg]
        """A widget would be lost in the saved notebook, and so would a bar on stderr be a mess."""

        output: Any = None

        def display(self, msg: str | None = None, pos: int | None = None) -> None:
            text = {"text/plain": str(self) if msg is None else msg}
            if self.output is None:
                self.output = ipython.display.display(text, raw=True, display_id=True)
            else:
                self.output.update(text, raw=True)

        def close(self) -> None:
            is_open = not self.disable
            super().close()
            if is_open and self.output is not None:
                done = f"{self.format_sizeof(self.n)}{self.unit}"
                self.display(f"{done} in {self.format_dict['elapsed']:.0f} s")

    return partial(Line, disable=False, file=io.StringIO())


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
    return _kind_of_bar()(items, unit=f" {unit}", delay=3)

"""Progress bars."""

import io
import sys
from collections.abc import Iterable
from typing import Any


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def progress_bar(items: Iterable[Any] | None = None, unit: str = "tokens", **options: Any) -> Any:
    """tqdm's bar over items, or over what its caller counts (`total`); in a notebook a line of
    text, of which the count and the time remain. It is shown in a terminal or notebook alone, but
    with `disable=False`."""
    from tqdm import tqdm

    options = {"iterable": items, "unit": f" {unit}", **options}
    if in_notebook():
        return _line_of_notebook(options)
    interval = 0.2 if sys.stderr.isatty() else 5.0  # a job's log keeps every refresh
    return tqdm(**{"disable": None, "mininterval": interval, **options})


def _line_of_notebook(options: dict[str, Any]) -> Any:
    from tqdm import tqdm

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

    return Line(**{"disable": False, "file": io.StringIO(), **options})

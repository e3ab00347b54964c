"""What all figures share: the style, the panels with their note, the look of lines and legends."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

import pandas as pd

from rulerkit.common.errors import UserError
from rulerkit.common.json_text import digest
from rulerkit.common.model_files import is_known_model, read_spec
from rulerkit.common.paths import install_command
from rulerkit.scoring.summary import texts_words

try:
    import matplotlib
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure
except ImportError as error:
    raise UserError(f"figures need matplotlib: {install_command('figures')}") from error


TASK_NAMES = {
    "niah_single_1": "S-NIAH, passkey",
    "niah_single_2": "S-NIAH, vanilla",
    "niah_single_3": "S-NIAH, UUID",
    "niah_multikey_1": "MK-NIAH, 4 keys",
    "niah_multikey_2": "MK-NIAH, full",
    "niah_multikey_3": "MK-NIAH, UUID",
    "niah_multivalue": "MV-NIAH",
    "niah_multiquery": "MQ-NIAH",
    "vt": "VT",
    "cwe": "CWE",
    "fwe": "FWE",
    "qa_1": "QA, SQuAD",
    "qa_2": "QA, HotpotQA",
}
"""How figures name the tasks of the benchmark, after Table 5 of the paper; others have their own
name."""
Threshold = float | Mapping[str, float] | None
"""One threshold, or several by their names."""
SINGLE, DOUBLE = 3.35, 6.9
"""The widths of one column and of two, in inches."""
GREY = "0.35"
GREY_LINE = "0.45"
RED = "#EB0000"  # has a contrast of 4.5 to 1 with white and with black
# Dots before dashes, which are also what stands beyond the training length.
_MARKERS, DASHES = "osD^vPX<", ("-", (0, (1, 1)), (0, (4, 1.5)))
BEYOND_DASHES, THRESHOLD_DASHES = (0, (2.5, 1.2)), (0, (4, 2))
_NUM_MODEL_COLORS = 7  # the eighth is a grey, as printed scores are
_SALT = 3071  # with it the models of each panel of Figure 4, and the readers, differ by name alone
LONGEST_TICK = 24  # letters of a task's name on one line
_LETTERS_OF_A_LINE = 4  # that the line before a name in a legend, and the gap behind it, take


@contextmanager
def style() -> Iterator[None]:
    """The common style as a context: figures are drawn in it, and saved in it, whoever saves them.

    It is the style sheet rulerkit/data/rulerkit.mplstyle, for matplotlib "rulerkit.data.rulerkit".
    What the user has set wins: only settings that have matplotlib's default value are changed.

    It resets only what it sets, unlike matplotlib's `rc_context`: in a notebook the first figure
    also switches on that figures are shown, and that must last.
    """
    current: Any = matplotlib.rcParams
    sheet = Path(__file__).parents[2] / "data" / "rulerkit.mplstyle"
    ours: Any = matplotlib.rc_params_from_file(sheet, use_default_template=False)
    defaults: Any = matplotlib.rcParamsDefault
    before = {key: current[key] for key in ours if current[key] == defaults[key]}
    current.update({key: ours[key] for key in before})
    try:
        yield
    finally:
        current.update(before)


class PrintFigure(Figure):
    """Saved in the common style too, which decides how fonts are embedded."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """As matplotlib's."""
        with style():
            super().savefig(*args, **kwargs)


@contextmanager
def draw_in(
    count: int,
    columns: int,
    height: float,
    *notes: str,
    ax: "Axes | None" = None,
    series: int = 1,
    threshold: Threshold = None,
    shown: "pd.DataFrame | None" = None,
    **shared: Any,
) -> Iterator[list[Axes]]:
    """The panels of a new figure, row by row, or the one that was given, drawn in the common style,
    with a line at each `threshold`, and notes below, the last on the texts of `shown`. `height`, of
    each panel without the texts around it, is in inches. The figure is as wide as one column of the
    page for one column of panels of up to eight series, or fields side by side, else as two."""
    if ax is not None and count != 1:
        raise UserError(f"ax is for a figure of one panel, and this one has {count}")
    num_rows = -(-count // columns)
    with style():
        panels = [] if ax is None else [ax]
        if ax is None:
            width = SINGLE if columns == 1 and series <= 8 else DOUBLE
            # More than the texts need: the height is cut below.
            size = (width, (height + 3) * num_rows)
            shared |= {"figsize": size, "squeeze": False, "FigureClass": PrintFigure}
            _, grid = plt.subplots(num_rows, columns, **shared)
            panels = list(grid.flat)[:count]
            for spare in list(grid.flat)[count:]:
                spare.remove()
        yield panels

        # What the caller drew is there: thresholds and notes are the same for all figures.
        about = _draw_thresholds(panels, threshold)
        texts = "" if shown is None else texts_words(shown)
        parts = "; ".join([about, *notes, texts]).split("; ")
        note = "; ".join(dict.fromkeys(filter(None, parts)))
        if ax is not None:
            below = "\n".join([ax.get_xlabel(), *wrap(note, letters_in(ax))])
            ax.set_xlabel(below.strip(), fontsize="medium")
            return

        # Only now it is known how much of the height the texts take.
        figure: Any = panels[0].figure
        margin = 0.06 / figure.get_figwidth()
        lines = wrap(note, _letters((1 - 2 * margin) * figure.bbox.width, figure))
        place: Any = {"x": 1 - margin, "ha": "right", "fontsize": "medium", "style": "italic"}
        figure.supxlabel("\n".join(lines), **place)
        figure.get_layout_engine().execute(figure)
        whole = figure.get_figheight()
        drawn = panels[0].get_position(original=True).height
        figure.set_figheight(whole + num_rows * (height - drawn * whole))


def _draw_thresholds(panels: Sequence[Axes], thresholds: Threshold) -> str:
    """A dashed line at each threshold in every panel; the note that names them."""
    named = thresholds if isinstance(thresholds, Mapping) else {"threshold": thresholds}
    levels = {name: value for name, value in named.items() if value is not None}
    for axes, value in product(panels, levels.values()):
        axes.axhline(value, color=GREY, linewidth=0.7, linestyle=THRESHOLD_DASHES, zorder=1)
    names = ", ".join(f"{name} = {value:g}" for name, value in levels.items())
    return f"thin dashed: {names}" if names else ""


def color_of(i: int) -> str:
    """Colour i of the style, whose colours recur."""
    return to_hex(f"C{i}")


def properties_of(i: int) -> dict[str, Any]:
    """Colour, marker and dashes of series i."""
    return {
        "color": color_of(i),
        "marker": _MARKERS[i % 8],
        "linestyle": DASHES[i // 8 % 3],
        "markeredgewidth": 0,
    }


def look_of(model: str) -> dict[str, Any]:
    """Colour and marker of a model, the same in all figures: those that follow from its name, or
    the `color` of its file."""
    number = int(digest(f"{model}{_SALT}"), 16)
    look = properties_of(number % _NUM_MODEL_COLORS)
    look["marker"] = _MARKERS[number // _NUM_MODEL_COLORS % 8]
    if is_known_model(model):
        look["color"] = read_spec(model).get("color", look["color"])
    return look


def add_legend(axes: "Axes", entries: Mapping[str, Any], of_figure: bool = False) -> Any:
    """The names of lines, in rows above their axes, or above all axes of their figure."""
    figure: Any = axes.figure
    letters = _letters(figure.bbox.width, figure) if of_figure else letters_in(axes)
    names = [wrapped(name, letters - _LETTERS_OF_A_LINE) for name in entries]
    longest = max(len(line) for name in names for line in name.split("\n"))
    columns = max(1, letters // (longest + _LETTERS_OF_A_LINE))
    if of_figure:
        return figure.legend(entries.values(), names, ncols=columns, loc="outside upper center")
    place: Any = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    return axes.legend(entries.values(), names, ncols=columns, **place)


def letters_in(axes: "Axes") -> int:
    """How many letters are about as wide as axes, before constrained layout makes them fit."""
    return _letters(axes.get_window_extent().width, axes.figure)


def _letters(width: float, figure: Any) -> int:
    return int(width / figure.dpi * 72 / (0.6 * matplotlib.rcParams["font.size"]))


def wrapped(text: Any, letters: int) -> str:
    """A text in lines of at most so many letters."""
    return "\n".join(wrap(str(text), letters))


def task_names(tasks: Iterable[str], labels: Mapping[str, str]) -> list[str]:
    """How a figure names tasks: as `labels` says, else as the paper does."""
    names = {**TASK_NAMES, **labels}
    return [names.get(task, task) for task in tasks]


def set_title(axes: "Axes", *lines: Any, loc: Any = "center", pad: float = 4) -> None:
    """A title of several lines, each wrapped to the width of the axes."""
    letters = int(1.3 * letters_in(axes))
    axes.set_title("\n".join(wrapped(line, letters) for line in lines), loc=loc, pad=pad)

"""Two sides compared, by task."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes

from rulerkit.common.errors import UserError
from rulerkit.report.plots.canvas import (
    GREY,
    LONGEST_TICK,
    THRESHOLD_DASHES,
    draw_in,
    letters_in,
    task_names,
    wrapped,
)


def differences_by_task(
    rows: "pd.DataFrame",
    margin: float | None = None,
    names: Sequence[str] = ("A", "B"),
    note: str = "",
    labels: Mapping[str, str] = {},
    ax: "Axes | None" = None,
) -> "Axes":
    """Forest plot of B - A in points: a task a line, over all lengths, and their mean as a diamond
    below.

    `rows` is `Comparison.rows`; its levels 'task' and 'all' are drawn. The dashed line is the
    margin. Differences whose interval leaves out 0 are filled. `labels`
    names tasks otherwise than the paper does.
    """
    tasks, mean = rows[rows["level"] == "task"], rows[rows["level"] == "all"]
    if tasks.empty or mean.empty:
        raise UserError("no differences to draw; give the rows of a comparison")
    notes = [note, "" if margin is None else f"dashed: margin -{margin:g}"]
    ticks = [wrapped(task, LONGEST_TICK) for task in [*task_names(tasks["task"], labels), "mean"]]
    lines = 1 + max(tick.count("\n") for tick in ticks)
    with draw_in(1, 1, 0.16 * lines * (len(tasks) + 2.8), ax, *notes, shown=rows) as (axes,):
        axes.axvline(0, color=GREY, linewidth=0.7, zorder=1)
        if margin is not None:
            axes.axvline(-margin, color=GREY, linewidth=0.7, linestyle=THRESHOLD_DASHES, zorder=1)

        # The mean stands last, as a diamond: the habit of forest plots.
        ink = rcParams["text.color"]
        drawn: Any = pd.concat([tasks, mean]).itertuples()
        for y, row in enumerate(drawn):
            shape: Any = {"marker": "D" if row.level == "all" else "o", "markeredgewidth": 0.8}
            face = axes.get_facecolor() if row.low <= 0 <= row.high else ink
            axes.hlines(y, row.low, row.high, ink, linewidth=1.0, zorder=2)
            axes.plot([row.difference], [y], color=ink, markerfacecolor=face, **shape)

        axes.axhline(len(tasks) - 0.5, color="0.7", linewidth=0.5)
        axes.set_yticks(range(len(tasks) + 1), ticks)
        axes.set_ylim(len(tasks) + 0.7, -0.7)
        axes.set_xlabel(wrapped(f"{names[1]} - {names[0]} (points)", letters_in(axes)))
    return axes

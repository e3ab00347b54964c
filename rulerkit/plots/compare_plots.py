"""The figure of a comparison: each task's paired difference with its interval, the mean below
them."""

from typing import TYPE_CHECKING, Any

from rulerkit.errors import UserError
from rulerkit.plots.style import COLORS, SINGLE, SMALL, note_below, style, subplots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def differences_by_task(
    rows: "pd.DataFrame",
    margin: float | None = None,
    names: tuple[str, str] = ("A", "B"),
    note: str = "",
) -> "Axes":
    """Forest plot of B - A in points: a task a line, over all lengths, and their mean as a diamond
    below.

    `rows` is `Comparison.rows`; its levels 'task' and 'all' are drawn. The dashed line is the
    margin. Differences whose interval leaves out 0 are filled, in the colour of their side. `note`
    stands small on the figure's face.
    """
    tasks, whole = rows[rows["level"] == "task"], rows[rows["level"] == "all"]
    if tasks.empty or whole.empty:
        raise UserError("no differences to draw; give the rows of a comparison")
    shown = [*tasks.itertuples(), *whole.itertuples()]
    with style():
        figure, (axes,) = subplots(1, 1, SINGLE, 0.8 + 0.16 * len(shown))
        axes.axvline(0, color="0.35", linewidth=0.7, zorder=1)
        if margin is not None:
            axes.axvline(-margin, color="0.35", linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
            text = f"-{margin:g}"
            above: dict[str, Any] = {
                "xycoords": ("data", "axes fraction"),
                "ha": "center",
                "va": "bottom",
                "color": "0.35",
            }
            axes.annotate(f"margin {text}", (-margin, 1.0), fontsize=SMALL, **above)
        places = [float(i) for i in range(len(tasks))] + [len(tasks) + 0.4]
        for place, row in zip(places, shown, strict=True):
            _line(axes, place, row)
        axes.axhline(len(tasks) - 0.3, color="0.7", linewidth=0.5)
        axes.set_yticks(places, [*(str(task) for task in tasks["task"]), "mean"])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(places[-1] + 0.7, -0.7)
        between = " - " if sum(map(len, names)) <= 45 else "\n- "
        axes.set_xlabel(f"{names[1]}{between}{names[0]} (points)")
        note_below(figure, note)
    return axes


def _line(axes: "Axes", place: float, row: Any) -> None:
    """One difference with its interval; what tells the two apart is filled."""
    certain = row.low > 0 or row.high < 0
    color = COLORS[1] if row.difference < 0 and certain else COLORS[0] if certain else "0.35"
    marker: dict[str, Any] = {
        "marker": "D" if row.level == "all" else "o",
        "markersize": 4.2 if row.level == "all" else 3.4,
    }
    axes.plot(
        [row.low, row.high],
        [place, place],
        color=color,
        linewidth=1.0,
        solid_capstyle="butt",
        zorder=2,
    )
    face = color if certain else "white"
    axes.plot(
        [row.difference],
        [place],
        color=color,
        markerfacecolor=face,
        markeredgewidth=0.8,
        zorder=3,
        **marker,
    )

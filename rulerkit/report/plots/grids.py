"""Tables in colour: tasks by length, correlations of tasks."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb

from rulerkit.analysis.correlation import tree_of
from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.report.plots.canvas import (
    LONGEST_TICK,
    RED,
    color_of,
    draw_in,
    set_title,
    task_names,
    wrapped,
)
from rulerkit.report.tables import names_of
from rulerkit.store.places import check_columns


def tasks_by_length(
    cells: "pd.DataFrame", note: str = "", labels: Mapping[str, str] = {}
) -> "list[Axes]":
    """Tasks against lengths as a table in colour, the score printed in each field; a panel per
    model.

    `cells` is `Summary.cells`. A field whose cell is incomplete shows what it has
    (`300/500`). `labels` names tasks otherwise than the paper does.
    """
    check_columns(cells, ["label", "task", "length", "score", "have"], "tasks_by_length")
    if cells.empty:
        raise UserError("no cells to draw: give those of a summary that has some")

    texts = cells["score"].map("{:.1f}".format).where(cells["score"].notna(), cells["have"])
    cells = cells.assign(name=names_of(cells), text=texts)

    models = list(cells.groupby("name", sort=False))
    height = 0.175 * cells["task"].nunique()
    series = cells["length"].nunique()
    columns = min(len(models), 2 if series <= 8 else 1)
    look: Any = {"series": series, "shown": cells, "sharey": True}
    with draw_in(len(models), columns, height, "scores in percent", note, **look) as panels:
        for axes, (name, rows) in zip(panels, models, strict=True):
            tasks = rows.drop_duplicates("task")
            wide: Any = rows.pivot(index="task", columns="length").loc[tasks["task"]]
            wide = wide.rename(columns=length_name, level="length")
            named = wide.set_axis(task_names(wide.index, labels))
            heatmap(axes, named["score"], named["text"])
            # A white line between categories, as between the rows of the paper's tables.
            is_first = (tasks["category"] != tasks["category"].shift()).to_numpy()
            for place in np.flatnonzero(is_first)[1:]:
                axes.axhline(place, color="white", linewidth=2.5)
            axes.set_xlabel("Length (tokens)")
            set_title(axes, name)
        panels[0].set_ylabel("Task")
    return panels


def correlation_heatmap(
    correlations: "pd.DataFrame",
    marked: Collection[str] = (),
    note: str = "",
    labels: Mapping[str, str] = {},
) -> "Axes":
    """Figure 5: correlations of tasks in the order of the frame, which is that of the dendrogram
    beside it, its marked tasks in red.

    `correlations` is what `correlation.correlations` gives. `labels` names tasks otherwise than
    the paper does.
    """
    if correlations.empty:
        raise UserError("no correlations to draw: give at least two tasks")
    text = correlations.map(
        lambda r: "" if np.isnan(r) else f"{r:z.2f}".replace("0.", ".").replace("1.00", "1")
    )
    size = len(correlations)
    with draw_in(1, 1, 0.24 * size, note, series=size, shown=correlations) as (axes,):
        names = task_names(map(str, correlations), labels)
        named = correlations.set_axis(names).set_axis(names, axis=1)
        heatmap(axes, named, text, [color_of(4), "#FFFFFF"], -1)
        axes.set_xticklabels(names, rotation=55)  # slanted, a name has room on one line
        plt.setp(axes.get_xticklabels(), ha="right", rotation_mode="anchor")
        ticks = zip(axes.get_xticklabels(), axes.get_yticklabels(), strict=True)
        for task, both in zip(correlations, ticks, strict=True):
            if task in marked:
                plt.setp(both, color=RED, fontweight="bold")
        axes.set(xlabel="Task", ylabel="Task")
        set_title(axes, "Correlation of task scores")
        _draw_dendrogram(axes.inset_axes((1.01, 0, 0.13, 1)), correlations)
    return axes


def _draw_dendrogram(axes: Axes, correlations: "pd.DataFrame") -> None:
    """The tree of the tasks at the right of their rows, from 0, where all are one, to 1 - r."""
    places = [row + 0.5 for row in range(len(correlations))]
    heights = [0.0] * len(correlations)
    ink = plt.rcParams["text.color"]
    for left, right, height, _ in tree_of(correlations):
        ends = [int(left), int(right)]
        xs = [heights[ends[0]], height, height, heights[ends[1]]]
        ys = [places[ends[0]], places[ends[0]], places[ends[1]], places[ends[1]]]
        axes.plot(xs, ys, color=ink, linewidth=0.7, solid_joinstyle="miter")
        places.append((ys[0] + ys[-1]) / 2)
        heights.append(height)
    axes.set(ylim=(len(correlations), 0), xlim=(0, None), yticks=[], xticks=[])
    axes.spines[:].set_visible(False)


def heatmap(
    axes: Axes,
    values: "pd.DataFrame",
    texts: "pd.DataFrame",
    colors: Sequence[str] = ("#EDF3F8",),
    lowest: float = 0,
) -> None:
    """A table in colour with a text in each field; a field without a value is grey. The colours
    lead from the lowest value, 0 or -1, to 100 or 1."""
    paint = LinearSegmentedColormap.from_list("", [*colors, color_of(0)]).with_extremes(bad="0.88")

    numbers = values.to_numpy(dtype=float)
    limits: Any = {"vmin": lowest, "vmax": -lowest or 100}
    image = axes.pcolormesh(numbers, cmap=paint, edgecolors="white", linewidth=0.6, **limits)
    rows, columns = ([wrapped(name, LONGEST_TICK) for name in names] for names in values.axes)
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)

    # The first row stands on top, as in a table.
    axes.set_ylim(len(values), 0)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)

    # Text is dark or light, whichever can be read on the field's colour.
    for (row, column), text in np.ndenumerate(texts.to_numpy()):
        color = _ink(image.to_rgba(numbers[row, column]))
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", color=color)


def _ink(ground: Any) -> str:
    """Black or white: which of them has the higher contrast with a colour, as WCAG 2 defines it; it
    is at least 4.5 to 1."""
    linear = ((np.array(to_rgb(ground)) + 0.055) / 1.055) ** 2.4
    return "black" if linear @ (0.2126, 0.7152, 0.0722) > 0.179 else "white"

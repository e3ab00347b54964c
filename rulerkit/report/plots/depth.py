"""Recall by the depth of the needle."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.report.plots.canvas import (
    TASK_NAMES,
    add_legend,
    draw_in,
    properties_of,
    set_title,
)
from rulerkit.report.plots.grids import heatmap
from rulerkit.report.plots.lines import line_with_bars
from rulerkit.report.tables import names_of

_FEW = 5
"""Items of a field, below which a share of them says little."""


def recall_by_depth(bins: "pd.DataFrame", note: str = "") -> "list[Axes]":
    """Recall over depth, with intervals, a line per length, a panel per model and task. `bins` is
    what `depth.by_bin` gives."""
    groups: Any = list(bins.groupby([names_of(bins), "task"], sort=False))
    lengths, columns = sorted(bins["length"].unique()), min(len(groups), 3)
    with draw_in(len(groups), columns, 1.2, note, shown=bins) as panels:
        for axes, ((name, task), rows) in zip(panels, groups, strict=True):
            rows = _all_bins(rows)
            # Lines of several lengths are moved apart a little, so that their bars can be seen.
            for i, length in enumerate(lengths):
                line = rows[rows["length"] == length]
                x = (line["depth_from"] + line["depth_to"]) / 2 + (i - len(lengths) / 2) * 1.2
                line_with_bars(axes, x, line, length_name(int(length)), properties_of(i))
            set_title(axes, name, TASK_NAMES.get(task, task))
            axes.set(xlim=(0, 100), ylim=(0, 102), xlabel="Depth (%)", ylabel="Recall (%)")
        handles, names = panels[0].get_legend_handles_labels()
        add_legend(panels[0], dict(zip(names, handles, strict=True)), of_figure=True)
    return panels


def depth_map(bins: "pd.DataFrame", task: str, note: str = "") -> "list[Axes]":
    """Recall of one task by depth and length as a map, a panel per model. `bins` is what
    `depth.by_bin` gives."""
    models = list(bins[bins["task"] == task].groupby(names_of(bins), sort=False))
    if not models:
        raise UserError(f"no depths of task {task!r} to draw: name one that was asked")

    # Bins without a needle stay as empty fields, so that all maps have the same rows.
    series = bins["length"].nunique()
    columns = min(len(models), 2)
    of_task = bins[bins["task"] == task]
    notes = [note, f"hatched: fewer than {_FEW} items" if (of_task["n"] < _FEW).any() else ""]
    with draw_in(len(models), columns, 1.8, *notes, series=series, shown=bins) as panels:
        for axes, (name, rows) in zip(panels, models, strict=True):
            edges = ["depth_from", "depth_to"]
            scores = _all_bins(rows).pivot(index=edges, columns="length", values="score")
            scores.index = [f"{start:.0f}–{end:.0f}" for start, end in scores.index]
            scores = scores.rename(columns=length_name)
            heatmap(axes, scores, scores.map("{:.0f}".format).replace("nan", ""))
            counts = _all_bins(rows).pivot(index=edges, columns="length", values="n")
            few = np.ma.masked_invalid(np.where(counts < _FEW, 0.0, np.nan))
            # Lines over what stands below: fields without a colour, as alpha would hide the lines.
            clear = ListedColormap(["none"])
            axes.pcolor(few, cmap=clear, hatch="//", edgecolor="0.2", linewidth=0)
            set_title(axes, name, TASK_NAMES.get(task, task))
            axes.set(xlabel="Length (tokens)", ylabel="Depth (%)")
    return panels


def _all_bins(rows: "pd.DataFrame") -> "pd.DataFrame":
    """The bins of each length, with those that hold no item."""
    start, end = "depth_from", "depth_to"
    edges = np.linspace(0, 100, round(100 / (rows[end] - rows[start]).iloc[0]) + 1)
    bins = pd.DataFrame({start: edges[:-1], end: edges[1:]})
    return rows[["length"]].drop_duplicates().merge(bins, how="cross").merge(rows, how="left")

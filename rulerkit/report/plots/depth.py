"""Recall by the depth of the needle."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from rulerkit.common.lengths import length_name
from rulerkit.report.plots.canvas import TASK_NAMES, draw_in, set_title
from rulerkit.report.plots.grids import heatmap
from rulerkit.report.tables import names_of

_FEW = 5
"""Items of a field, below which a share of them says little."""


def depth_map(bins: "pd.DataFrame", note: str = "") -> "list[Axes]":
    """Recall by depth and length as a map, a panel per model and task. `bins` is what
    `depth.by_bin` gives."""
    groups: Any = list(bins.groupby([names_of(bins), "task"], sort=False))
    series = bins["length"].nunique()
    columns = min(len(groups), 2)
    notes = ["recall in percent", note]
    if (bins["n"] < _FEW).any():
        notes.append(f"hatched: fewer than {_FEW} items, grey: none")
    with draw_in(len(groups), columns, 1.8, *notes, series=series, shown=bins) as panels:
        for axes, ((name, task), rows) in zip(panels, groups, strict=True):
            # Bins that hold no item too: all maps have the same rows.
            number = round(100 / (rows["depth_to"] - rows["depth_from"]).iloc[0])
            edges = [(i * 100 / number, (i + 1) * 100 / number) for i in range(number)]
            fields: Any = rows.pivot(index=["depth_from", "depth_to"], columns="length")
            fields = fields.reindex(edges)
            scores = fields["score"].rename(columns=length_name)
            scores.index = [f"{start:.0f}–{end:.0f}" for start, end in scores.index]
            heatmap(axes, scores, scores.map("{:.0f}".format).replace("nan", ""))
            few = np.ma.masked_invalid(np.where(fields["n"] < _FEW, 0.0, np.nan))
            # Lines over what stands below: fields without a colour, as alpha would hide the lines.
            clear = ListedColormap(["none"])
            axes.pcolor(few, cmap=clear, hatch="//", edgecolor="0.2", linewidth=0)
            set_title(axes, name, TASK_NAMES.get(task, task))
            axes.set(xlabel="Length (tokens)", ylabel="Depth (%)")
    return panels

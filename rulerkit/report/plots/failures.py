"""What goes wrong, by length."""

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from rulerkit.analysis.failure_rules import definitions
from rulerkit.common.errors import UserError
from rulerkit.report.plots.canvas import Panels, color_of, draw_in, length_ticks, set_title
from rulerkit.report.tables import names_of
from rulerkit.store.places import check_columns

_HATCHES = ("", "/////", "....", "\\\\\\\\\\", "xxxx", "-----", "ooo")


def failures_by_length(shares: "pd.DataFrame", note: str = "", ax: "Panels" = None) -> "list[Axes]":
    """What became of the answers at each length, in percent, complete ones below; a panel per model
    and task.

    `shares` is `failures.shares`. A label looks the same in every figure.
    """
    check_columns(shares, ["name", "task", "length", "label", "share"], "failures_by_length")
    if shares.empty:
        raise UserError("no labels to draw; label the cells of a run that has some")
    counts = shares.groupby("label")["count"].sum()
    kinds = [kind for kind in definitions() if counts.get(kind)]
    names = names_of(shares.assign(label=shares["name"]))
    groups = list(shares.groupby([names, "task"], sort=False))

    # A row of panels for each model, as long as its tasks allow.
    columns = min(int(shares.groupby(names)["task"].nunique().max()), 4)
    height = max(1.1, 0.16 * len(kinds) / -(-len(groups) // columns))
    series = 2 + shares["length"].nunique()  # the legend stands beside them
    look: Any = {"series": series, "shown": shares, "sharey": True}
    with draw_in(len(groups), columns, height, ax, note, **look) as panels:
        for i, (axes, ((name, task), cells)) in enumerate(zip(panels, groups, strict=True)):
            table = 100 * cells.pivot(index="length", columns="label", values="share")
            table.reindex(columns=kinds).plot.bar(ax=axes, stacked=True, legend=False, width=0.82)
            axes.set_xticklabels(length_ticks(axes, table.index), rotation=0)
            for bars, kind in zip(axes.containers, kinds, strict=True):
                plt.setp(bars, **bar_properties(kind))
            axes.tick_params(axis="x", length=0)
            axes.set(ylim=(0, 100), xlabel="Length (tokens)")
            if i % columns == 0:
                axes.set_ylabel("Answers (%)")
            set_title(axes, name, task)

        # One legend for all panels, in the order of the bars.
        handles, labels = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(handles, labels, loc="outside right upper", reverse=True)
    return panels


def bar_properties(label: str) -> dict[str, Any]:
    """The properties of a label's bars: complete answers are pale, the others differ by colour and
    hatch."""
    i = list(definitions()).index(label)
    properties: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.3}
    if i == 0:
        return properties | {"facecolor": "#E9EDF0"}
    return properties | {
        "facecolor": color_of(i - 1),
        "hatch": _HATCHES[(i - 1) // 7 % len(_HATCHES)],
    }

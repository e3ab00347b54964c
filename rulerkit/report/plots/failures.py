"""What goes wrong, by length."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from rulerkit.analysis.failure_rules import OTHER_FORM, definitions
from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.report.plots.canvas import TASK_NAMES, draw_in, set_title
from rulerkit.report.plots.grids import heatmap
from rulerkit.report.tables import names_of
from rulerkit.scoring.statistics import wilson
from rulerkit.store.places import check_columns

_GROUPS = {
    "complete": ("complete",),
    "no answer": ("cut in its thought", "empty", "refused", "cut off", "function words"),
    "copied": ("copied demonstration", "copied beginning"),
    "incomplete": (OTHER_FORM, "incomplete uuid", "duplicated values", "partial"),
    "wrong": (),
}
"""The labels of each group; those that are not named here, such as other keys, are wrong."""
_INDENT = "   "
_MOST_BESIDE = 4  # lengths, beyond which two panels do not fit side by side


def failures_by_length(shares: "pd.DataFrame", note: str = "") -> "list[Axes]":
    """What became of the answers at each length as a table in colour: a row for each label that
    occurs and for each of four groups of them (no answer, copied, incomplete, wrong), with the
    share of the answers in percent and its interval; a panel per model and task.

    `shares` is `failures.shares`.
    """
    needed = ["label", "task", "length", "failure", "count", "n"]
    check_columns(shares, needed, "failures_by_length")
    if shares.empty:
        raise UserError("no labels to draw; label the cells of a run that has some")
    names = names_of(shares)
    groups: Any = shares.groupby([names, "task"], sort=False)
    tables = {key: _with_groups(rows) for key, rows in groups}

    num_lengths = shares["length"].nunique()
    columns = min(len(tables), 2 if num_lengths <= _MOST_BESIDE else 1)
    most = max(table["row"].nunique() for table in tables.values())
    look: Any = {"series": 9 if len(tables) > 1 else 2 * num_lengths, "shown": shares}
    what = "percent of answers, in brackets the 95 % interval"
    with draw_in(len(tables), columns, 0.25 * most, what, note, **look) as panels:
        for axes, ((name, task), table) in zip(panels, tables.items(), strict=True):
            wide: Any = table.pivot(index="row", columns="length").loc[table["row"].unique()]
            wide = wide.rename(columns=length_name, level="length")
            heatmap(axes, wide["percent"], wide["text"])
            axes.set_ylim(most, 0)
            for tick in axes.get_yticklabels():
                is_part = tick.get_text().startswith(_INDENT)
                tick.set_fontweight("normal" if is_part else "bold")
            axes.set_xlabel("Length (tokens)")
            set_title(axes, name, TASK_NAMES.get(task, task))
    return panels


def _with_groups(rows: "pd.DataFrame") -> "pd.DataFrame":
    """The labels that occur in one panel, each group of several below its sum: columns row, length,
    percent and text."""
    counts = rows.groupby("failure")["count"].sum()
    occurring = [label for label in definitions() if counts.get(label)]
    group_of = {label: group for group, labels in _GROUPS.items() for label in labels}
    parts = []
    for group in _GROUPS:
        labels = [label for label in occurring if group_of.get(label, "wrong") == group]
        of_group = rows[rows["failure"].isin(labels)]
        if len(labels) > 1:
            total = of_group.groupby("length", as_index=False).agg({"count": "sum", "n": "first"})
            parts.append(total.assign(row=group))
        for label in labels:
            name = f"{_INDENT}{label}" if len(labels) > 1 else label
            parts.append(of_group[of_group["failure"] == label].assign(row=name))

    table = pd.concat(parts, ignore_index=True)
    texts = []
    for count, n in zip(table["count"], table["n"], strict=True):
        low, high = wilson(count / n, n)
        texts.append(f"{100 * count / n:.0f}\n[{100 * low:.0f}, {100 * high:.0f}]")
    return table[["row", "length"]].assign(percent=100 * table["count"] / table["n"], text=texts)

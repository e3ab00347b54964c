"""Claimed against effective length, a row for each model."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rulerkit.common.lengths import length_name, parse_length
from rulerkit.report.paper import listed_rows
from rulerkit.report.plots.canvas import GREY_LINE, color_of, draw_in, set_title, wrapped
from rulerkit.report.tables import names_of


def claimed_and_effective(models: "pd.DataFrame | None" = None, note: str = "") -> "list[Axes]":
    """The length that each model claims beside its effective length, a row per model, the longest
    effective length on top: those of the paper, and of upstream's list, in grey; yours, of
    `Summary.models`, in colour among those of the paper."""
    rows = listed_rows()
    rows = rows[(rows["aligned"] == "chat") & ~rows["baseline"]]
    rows = rows.assign(claimed_length=rows["claimed_length"].map(parse_length), is_own=False)
    is_paper = rows["source"].str.startswith("paper")
    first, second = rows[is_paper], rows[~is_paper]
    if models is not None:
        own = models[models["category"] == "all"]
        first = pd.concat([own.assign(model=names_of(own), is_own=True), first])

    most = max(len(first), len(second))
    notes = ["dot: effective length", "ring: claimed length", note]
    with draw_in(2, 2, 0.14 * most + 0.1, *notes, shown=models) as panels:
        for axes, part in zip(panels, (first, second), strict=True):
            _draw_rows(axes, part)
            axes.set_ylim(len(part) - most - 0.6, len(part) - 0.4)
        set_title(panels[0], "Table 3 of the paper", loc="left")
        set_title(panels[1], "NVIDIA's list, further models", loc="left")
    return panels


def _draw_rows(axes: Axes, rows: "pd.DataFrame") -> None:
    """A row per model, from below: dot, ring and the line between them; the effective length in
    words left of them, the claimed one on the right."""
    # '>=16K' is at least 16K; what is not known has no dot.
    found = rows["effective_length"].str.extract(r"([<>]?)=?(\d+[KM]?)")
    rows["effective"] = [parse_length(name) if name == name else np.nan for name in found[1]]
    rows["order"] = rows["effective"] * found[0].map({"<": 0.9, ">": 1.1}).fillna(1)
    rows = rows.sort_values(["order", "claimed_length"], kind="stable", na_position="first")

    ticks = axes.set_yticks(range(len(rows)), [wrapped(name, 34) for name in rows["model"]])
    beside: Any = {"textcoords": "offset points", "va": "center"}
    ring: Any = {"markerfacecolor": axes.get_facecolor(), "markeredgewidth": 0.8}
    for y, row in enumerate(rows.to_dict("records")):
        color = color_of(0) if row["is_own"] else GREY_LINE
        ticks[y].label1.set_fontweight("bold" if row["is_own"] else "normal")
        effective, claimed = row["effective"], row["claimed_length"]
        axes.plot([effective, claimed], [y, y], color=color, linewidth=0.8, alpha=0.6)
        axes.plot([claimed], [y], "o", color=color, markersize=5.4, **ring)
        axes.plot([effective], [y], "o", color=color, markersize=2.9)
        left, right = np.fmin(effective, claimed), np.fmax(effective, claimed)
        text = row["effective_length"] or "not known"
        axes.annotate(text, (left if left == left else 4096, y), (-5, 0), ha="right", **beside)
        if claimed == claimed:
            axes.annotate(length_name(int(claimed)), (right, y), (5, 0), **beside)

    # Lengths double. On both sides there is room for the texts.
    axes.set_xscale("log", base=4)
    lengths = rows[["effective", "claimed_length"]].to_numpy(dtype=float)
    axes.set_xlim(np.nanmin(lengths) / 5, 4 * np.nanmax(lengths))
    axes.xaxis.set_major_formatter(lambda length, _: length_name(int(length)))
    axes.minorticks_off()
    axes.tick_params("y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("Length (tokens)")

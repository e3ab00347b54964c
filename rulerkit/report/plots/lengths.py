"""Claimed against effective length, a row for each model."""

import re
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.report.paper import listed_rows
from rulerkit.report.plots.canvas import GREY_LINE, color_of, draw_in, set_title, wrapped
from rulerkit.report.tables import names_of


def claimed_and_effective(
    models: "pd.DataFrame | None" = None, published: bool = True, note: str = ""
) -> "list[Axes]":
    """The length that each model claims beside its effective length, a row per model, the longest
    effective length on top.

    `models` is `Summary.models`: yours, in colour. `published`: whether the models of the paper
    and those of upstream's list stand there too, in grey, a panel for each.
    """
    panels_of: dict[str, Any] = {}
    if published:
        rows = listed_rows()
        rows = rows[(rows["aligned"] == "chat") & ~rows["baseline"]]
        rows = rows.assign(claimed_length=rows["claimed_length"].map(parse_length), is_own=False)
        is_paper = rows["source"].str.startswith("paper")
        panels_of["Table 3 of the paper"] = rows[is_paper]
        panels_of["NVIDIA's list, further models"] = rows[~is_paper]
    if models is not None:
        # Yours stand in the first panel, among the models of the paper.
        own = models[models["category"] == "all"]
        own = own.assign(model=names_of(own), is_own=True)
        first = next(iter(panels_of), "")
        panels_of[first] = pd.concat([own, panels_of.get(first)])
    if not any(map(len, panels_of.values())):
        raise UserError("no models to draw: give `models` of a summary, or `published=True`")

    count, most = len(panels_of), max(map(len, panels_of.values()))
    notes = ["dot: effective length", "ring: claimed length", note]
    with draw_in(count, count, 0.14 * most + 0.1, *notes, shown=models) as panels:
        for axes, (title, rows) in zip(panels, panels_of.items(), strict=True):
            # '>=16K, 128K not run' is at least 16K, 'not known' has no dot.
            found = rows["effective_length"].str.extract(r"([<>]?)=?(\d+[KM]?)")
            rows["effective"] = [parse_length(n) if n == n else np.nan for n in found[1]]
            rows["order"] = rows["effective"] * found[0].map({"<": 0.9, ">": 1.1}).fillna(1)
            rows = rows.sort_values(["order", "claimed_length"], kind="stable")
            _draw_rows(axes, rows)
            axes.set_ylim(len(rows) - most - 0.6, len(rows) - 0.4)
            set_title(axes, title, loc="left")
    return panels


def _draw_rows(axes: Axes, rows: "pd.DataFrame") -> None:
    """A row per model, from below: dot, ring and the line between them; the effective length in
    words left of them, the claimed one on the right."""
    ticks = axes.set_yticks(range(len(rows)), [wrapped(name, 34) for name in rows["model"]])
    beside: Any = {"textcoords": "offset points", "va": "center"}
    lengths = rows[["effective", "claimed_length"]].astype(float)
    for y, row in enumerate(rows.to_dict("records")):
        color = color_of(0) if row["is_own"] else GREY_LINE
        ticks[y].label1.set_fontweight("bold" if row["is_own"] else "normal")
        left, right = lengths.iloc[y].min(), lengths.iloc[y].max()
        ring: Any = {"markerfacecolor": axes.get_facecolor(), "markeredgewidth": 0.8}
        axes.plot([left, right], [y, y], color=color, linewidth=0.8, alpha=0.6)
        axes.plot([row["claimed_length"]], [y], "o", color=color, markersize=5.4, **ring)
        axes.plot([row["effective"]], [y], "o", color=color, markersize=2.9)
        text = re.sub(",.*", "", row["effective_length"]) or "not known"
        axes.annotate(text, (left if left == left else 4096, y), (-5, 0), ha="right", **beside)
        if row["claimed_length"] == row["claimed_length"]:
            axes.annotate(length_name(int(row["claimed_length"])), (right, y), (5, 0), **beside)

    # Lengths double. On both sides there is room for the texts.
    axes.set_xscale("log", base=4)
    first, last = lengths.min().min(), lengths.max().max()
    if first == first:
        axes.set_xlim(first / 5, 4 * last)
    axes.xaxis.set_major_formatter(lambda length, _: length_name(int(length)))
    axes.minorticks_off()
    axes.tick_params("y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("Length (tokens)")

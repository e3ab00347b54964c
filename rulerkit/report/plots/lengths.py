"""Claimed against effective length, a row for each model."""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.report.paper import listed_rows
from rulerkit.report.plots.canvas import GREY_LINE, Panels, draw_in, look_of, set_title, wrapped
from rulerkit.report.tables import names_of


def claimed_and_effective(
    models: "pd.DataFrame | None" = None,
    published: bool = True,
    note: str = "",
    ax: "Panels" = None,
) -> "list[Axes]":
    """The length that each model claims beside its effective length, a row per model, the longest
    effective length on top.

    `models` is `Summary.models`: yours, in colour, with a thin line over all effective lengths
    that the intervals allow. `published`: whether the models of the paper and those of upstream's
    list stand there too, in grey, a panel for each.
    """
    panels_of: dict[str, Any] = {}
    if published:
        # The chat models of Table 3, and those of upstream's list that the paper does not have.
        rows = listed_rows()
        is_other = rows["source"].str.startswith("paper") & (rows["aligned"] != "chat")
        rows = rows[~(rows["baseline"] | is_other)]
        claimed = rows["claimed_length"].map(parse_length)
        rows = rows.assign(claimed_length=claimed, is_own=False)
        titles = rows["source"].str.startswith("paper").map(_SOURCES)
        panels_of = dict(iter(rows.groupby(titles, sort=False)))
    if models is not None:
        own = models[models["category"] == "all"]
        own = own.assign(name=own["model"], model=names_of(own), is_own=True)
        # yours stand in the first panel, among the models of the paper
        first = next(iter(panels_of), "")
        panels_of[first] = pd.concat([own, panels_of.get(first)])
    if not any(map(len, panels_of.values())):
        raise UserError("no models to draw: give `models` of a summary, or `published=True`")

    notes = ["dot: effective length", "arrow: beyond the lengths tested"]
    notes += ["ring: claimed length", note]
    if published and models is not None:
        notes.insert(3, "grey: as published")
    count, most = len(panels_of), max(map(len, panels_of.values()))
    with draw_in(count, count, 0.14 * most + 0.1, ax, *notes, shown=models) as panels:
        for axes, (title, rows) in zip(panels, panels_of.items(), strict=True):
            _rows_of_models(axes, rows, most)
            set_title(axes, title, loc="left")
    return panels


_SOURCES = {True: "Table 3 of the paper", False: "NVIDIA's list, further models"}


def _rows_of_models(axes: Axes, rows: "pd.DataFrame", num_rows: int) -> None:
    """A row per model with its effective and its claimed length on a log scale."""
    lengths = [_lengths_in(text) for text in rows["effective_length"]]
    rows = rows.assign(
        # '>=16K, 128K not run' is at least 16K
        effective=[found[0] if found else math.nan for found in lengths],
        beyond=rows["effective_length"].str[:1].map({"<": -1, ">": 1}).fillna(0),
    ).sort_values(["effective", "beyond", "claimed_length"], ascending=False, kind="stable")
    names = [wrapped(name, 34) for name in rows["model"]]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(num_rows - 0.4, -0.6)

    for y, row in enumerate(rows.to_dict("records")):
        color = GREY_LINE
        if row["is_own"]:
            color = look_of(row["name"])["color"]
            axes.get_yticklabels()[y].set_fontweight("bold")
        _row_of_model(axes, y, row, color)

    # Lengths double. Left of the dots and right of the rings there is room for their texts.
    axes.set_xscale("log", base=2)
    known = rows[["effective", "claimed_length"]].to_numpy(dtype=float)
    known = np.log2(known[~np.isnan(known)]) if rows.size else known
    first, last = (known.min(), known.max()) if known.size else (12.0, 17.0)
    axes.set_xlim(2 ** (first - 0.27 * (last - first + 1)), 2 ** (last + 0.2 * (last - first + 1)))
    ticks = 2 ** np.arange(math.ceil(first), math.floor(last) + 1)
    step = math.ceil(len(ticks) / 6)
    axes.set_xticks(ticks, ["" if i % step else length_name(int(n)) for i, n in enumerate(ticks)])
    axes.minorticks_off()
    axes.grid(axis="x", color="0.9", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params("y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("Length (tokens)")


def _row_of_model(axes: Axes, y: int, row: Mapping[Any, Any], color: str) -> None:
    """Dot, ring and the line between them; the effective length in words left of the dot, the
    claimed one right of the ring."""
    effective, claimed = row["effective"], row["claimed_length"]
    ends = [value for value in (effective, claimed) if not math.isnan(value)]
    if len(ends) == 2:
        axes.hlines(y, min(ends), max(ends), color, linewidth=0.8, alpha=0.6, zorder=2)
    ring: Any = {"markerfacecolor": axes.get_facecolor(), "markeredgewidth": 0.8}
    axes.plot([claimed], [y], "o", color=color, markersize=5.4, zorder=2.5, **ring)

    # All that the intervals allow lies below what was found.
    allowed = _lengths_in(row["effective_set"])
    if len(allowed) > 1:
        axes.hlines(y, min(allowed), max(allowed), color, linewidth=2.4, alpha=0.4)
    marker = {-1: "<", 0: "o", 1: ">"}[int(row["beyond"])]
    axes.plot([effective], [y], marker, color=color, markersize=2.9, zorder=3)

    text = row["effective_length"].partition(",")[0] or "not known"
    left = min([*ends, *allowed], default=4096)
    offset: Any = {"textcoords": "offset points", "ha": "right", "va": "center"}
    axes.annotate(text, (left, y), (-5, 0), **offset)
    if not math.isnan(claimed):
        right = max([*ends, *allowed])
        offset |= {"ha": "left"}
        axes.annotate(length_name(int(claimed)), (right, y), (5, 0), **offset)


def _lengths_in(text: str) -> list[int]:
    """The lengths that a text such as '>=16K, 128K not run' names, in tokens."""
    return [parse_length(name) for name in re.findall(r"\d+[KM]?", text)]

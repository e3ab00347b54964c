"""The frontier suite: capabilities by length, alone and beside RULER."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.report.plots.canvas import (
    RED,
    draw_in,
    set_title,
)
from rulerkit.report.plots.grids import heatmap
from rulerkit.report.plots.lines import series_by_length
from rulerkit.report.tables import names_of
from rulerkit.report.tables.notes import remarks
from rulerkit.scoring.summary import texts_words
from rulerkit_frontier.scores import (
    ABSOLUTE,
    FrontierSummary,
    as_frontier,
    frontier,
    headline,
    of_ruler,
)

_LONGEST_FIELD = 8
"""Letters that a field has room for."""


def capability_map(
    summary: FrontierSummary, model: str | None = None, note: str = "", ax: "Axes | None" = None
) -> "list[Axes]":
    """The frontier suite at a glance: capabilities against lengths, a panel per model.

    `summary` is what `frontier` gives; `model` picks one model by name or label. A field has
    the colour of the score with its floor taken off, and shows the raw score; it is hatched where
    the raw score is not above the floor. The red line in each row stands behind the longest length
    at which the row keeps 85 % of its own score at the shortest length. Below the capabilities
    stands their mean, with the floors taken off, and below a rule RULER's mean with RULER's own
    effective length, where all its tasks were asked. The title says what both found.
    """
    summary = as_frontier(summary, "capability_map")
    models = summary.models
    if model is not None:
        models = models[(models["model"] == model) | (models["label"] == model)]
    if models.empty:
        raise UserError(f"no capabilities of {model!r} to draw; name one of the summary's models")

    records: list[Any] = models.to_dict("records")
    rows_of = [(one, _capability_rows(summary, one)) for one in records]
    notes = [
        texts_words(summary.cells),
        "colour: floor taken off",
        "red: the longest length that keeps 85 % of the row's score at the shortest",
    ]
    if any((rows["above_floor"] == 0).any() for _, rows in rows_of):
        notes.append("hatched: not above the floor")
    shares = models["other_form"]
    if (shares > 0).any():
        notes.append(f"right, in another form: up to {shares.max():.1f} % of answers")
    reasons = summary.lengths["have"]
    for reason in reasons[reasons.str.len() > _LONGEST_FIELD].unique():
        notes.append(f"–: no mean, {reason}")

    most = max(rows["row"].nunique() for _, rows in rows_of)
    series, columns = summary.lengths["length"].nunique(), min(len(rows_of), 2)
    shared: Any = {"series": series}
    with draw_in(len(rows_of), columns, 0.19 * most, note, *notes, ax=ax, **shared) as panels:
        for axes, (one, rows) in zip(panels, rows_of, strict=True):
            _capability_panel(axes, rows)
            thinking = " (thinking)" if one["thinking"] else ""
            set_title(axes, f"{one['label']}{thinking}", headline(one))
    return panels


def frontier_by_length(
    summary: FrontierSummary, note: str = "", ax: "Axes | None" = None
) -> "Axes":
    """The mean of the frontier suite over length, floors taken off, a line per model with its
    intervals as bars; dashed is the threshold of the absolute effective length."""
    summary = as_frontier(summary, "frontier_by_length")
    rows = summary.lengths
    frame = rows.assign(name=names_of(rows), score=rows["normalised"])
    (axes,) = series_by_length(
        frame,
        "name",
        threshold={"absolute threshold": ABSOLUTE},
        note=f"{note}; {texts_words(summary.cells)}",
        ax=ax,
    )
    axes.set_ylabel("Mean, floors taken off (%)")
    return axes


def capabilities_by_length(summary: FrontierSummary, note: str = "") -> "list[Axes]":
    """Raw scores over length, a panel per capability, a line per model."""
    summary = as_frontier(summary, "capabilities_by_length")
    rows = summary.capabilities
    # The intervals of a capability are those of its normalised mean; raw scores stand without.
    raw = rows.assign(
        name=names_of(rows), panel=rows["capability"], low=rows["score"], high=rows["score"]
    )
    notes = f"{note}; {texts_words(summary.cells)}"
    return series_by_length(raw, "name", note=notes)


def figure(scores: Any, ax: "Axes | None" = None) -> "list[Axes]":
    """The picture of the suite from rows of `score`: what `rk.plots.of_suite` draws."""
    summary = frontier(scores)
    return capability_map(summary, note=remarks(summary.cells), ax=ax)


def _capability_rows(summary: FrontierSummary, model: Mapping[str, Any]) -> "pd.DataFrame":
    """The fields of one panel: columns row, length, colour (percent), text, above_floor (NaN where
    it does not apply), reach (tokens; 0 for none), from the top row down."""
    same = ["run", "model"]
    own = [model[name] for name in same]

    def of(frame: "pd.DataFrame") -> "pd.DataFrame":
        return frame[(frame[same] == own).all(axis=1)]

    capabilities = of(summary.capabilities)
    parts = [
        pd.DataFrame(
            {
                "row": capabilities["capability"],
                "length": capabilities["length"],
                "colour": capabilities["normalised"],
                "text": _fields(capabilities, "score"),
                "above_floor": capabilities["above_floor"],
                "reach": capabilities["reach"],
            }
        )
    ]
    means = of(summary.lengths)
    parts.append(
        pd.DataFrame(
            {
                "row": "mean, floors off",
                "length": means["length"],
                "colour": means["normalised"],
                "text": _fields(means, "normalised"),
                "reach": model["reach"],
            }
        )
    )
    if model["ruler"]:
        ruler, _ = of_ruler(summary.ruler, model)
        parts.append(
            pd.DataFrame(
                {
                    "row": "RULER",
                    "length": ruler["length"],
                    "colour": ruler["score"],
                    "text": _fields(ruler, "score"),
                    "reach": model["ruler_reach"],
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _fields(rows: "pd.DataFrame", column: str) -> "pd.Series[str]":
    """Scores as a field shows them; what there is of an incomplete one in its place, or a dash
    where that takes more room."""
    have = rows["have"]
    have = have.where(have.str.len() <= _LONGEST_FIELD, "–")
    return rows[column].map("{:.0f}".format).where(rows[column].notna(), have)


def _capability_panel(axes: "Axes", rows: "pd.DataFrame") -> None:
    """One model: the fields, hatched where they say nothing, and the step of each row's reach."""
    names = list(dict.fromkeys(rows["row"]))
    wide: Any = rows.pivot(index="row", columns="length").loc[names]
    lengths = list(wide["colour"].columns)
    wide = wide.rename(columns=length_name, level="length")
    heatmap(axes, wide["colour"], wide["text"].fillna(""))

    for (row, column), above in np.ndenumerate(wide["above_floor"].to_numpy()):
        if above is False or above == 0:
            axes.add_patch(
                Rectangle(
                    (column, row), 1, 1, fill=False, hatch="////", edgecolor="0.55", linewidth=0
                )
            )

    # A row that keeps its score nowhere has its step at the left edge.
    reach = rows.drop_duplicates("row")["reach"]
    steps = [sum(length <= longest for length in lengths) for longest in reach]
    for row, step in enumerate(steps):
        axes.plot([step, step], [row + 0.08, row + 0.92], color=RED, linewidth=1.6, clip_on=False)

    # Neither the mean nor RULER is one of the capabilities.
    for name in ("mean, floors off", "RULER"):
        if name in names:
            axes.axhline(names.index(name), color="black", linewidth=0.8)
    axes.set_xlabel("Length (tokens)")

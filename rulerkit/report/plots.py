"""The figures: one function each, from a DataFrame to matplotlib Axes, fit for a page in print.
Scores are percent.

Every function draws into `ax` where it is given (one Axes, or a list of them where a figure has
several panels), else into a figure of its own, and returns what it drew into. A figure of yours
needs `layout="constrained"`, which makes room for names and notes. `note` stands small below the
figure: see `remarks`. Figures are as wide as one or both columns of a two-column paper,
and all text on them is readable in print: 7 points, with a contrast of at least 4.5 to 1. Fonts,
colours and line widths are those of `style`; markers and dashes differ too.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise, product
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from rulerkit.analysis.failure_rules import definitions
from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.common.paths import missing_extra
from rulerkit.generation.example import Example
from rulerkit.report.paper import published_lengths, published_scores
from rulerkit.report.published import (
    KINDS,
    SECOND_HAND,
    SERIES,
    numbered_sources,
    published_rows,
    series_name,
    sources_note,
)
from rulerkit.report.scorers import PLACE
from rulerkit.report.tables import names_of
from rulerkit.report.tables import remarks as remarks
from rulerkit.scoring.effective_length import PAPERS_THRESHOLD
from rulerkit.scoring.floors import not_above
from rulerkit.scoring.frontier import (
    ABSOLUTE,
    FrontierSummary,
    headline,
    of_ruler,
)

try:
    import matplotlib
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle
    from matplotlib.transforms import offset_copy
except ImportError as error:
    raise missing_extra("figures need", "matplotlib", "figures") from error

Panels = Axes | Sequence[Axes] | None
Threshold = float | Mapping[str, float] | None
"""One threshold, or several by their names."""
Printed = Mapping[str, Mapping[int, float]]
"""Scores by length of each model, as `paper.published_scores` gives them."""
SINGLE, DOUBLE = 3.35, 6.9
"""The widths of one column and of two, in inches."""
_GREY = "0.35"
_GREY_LINE = "0.45"
_RED = "#EB0000"  # has a contrast of 4.5 to 1 with white and with black
_MARKERS, _DASHES = "osD^vPX*", ("-", (0, (4, 1.5)), (0, (1, 1)))
_BEYOND, _THRESHOLD = (0, (2.5, 1.2)), (0, (4, 2))
_HATCHES = ("", "/////", "....", "\\\\\\\\\\", "xxxx", "-----", "ooo")
_MOST_GREY = 8  # printed lines in one panel, beyond which they are a band
_LONGEST_TICK = 24  # letters of a task's name on one line
_NARROW = 34  # letters: a panel below this has no space for names beside it


# --- scores over length ---------------------------------------------------------------------------


def score_by_length(
    lengths: "pd.DataFrame",
    threshold: Threshold = None,
    note: str = "",
    category: str = "all",
    published: str | Sequence[str] = (),
    lines: str | Sequence[str] = (),
    ax: "Axes | None" = None,
) -> "Axes":
    """Score over length, a line per model with its intervals as bars.

    `lengths` is `Summary.lengths`, of which the rows of `category` are drawn; a length without a
    complete score is a gap. `threshold` is drawn dashed: one number, or several with their names
    (see `thresholds`). `published` names models of the paper or of upstream's list, whose printed
    scores are drawn in grey (see `paper.published_scores`): those of `lines` as lines, the others
    as a band from the lowest to the highest. Without `lines` all are lines, and of more than eight
    these are eight that are far apart.
    """
    rows = _means(lengths, category).drop(columns="label")
    printed = {"": published_scores(published, category)}
    named = published_scores(lines, category) if lines else ()
    drawn: Any = {"published": printed, "lines": named, "ax": ax}
    (axes,) = series_by_length(
        rows, "name", threshold=threshold, note=note, **drawn
    )
    return axes


def series_by_length(
    frame: "pd.DataFrame",
    series: str = "series",
    panel: str = "panel",
    dashed_beyond: Mapping[str, float] = {},
    flat: Collection[str] = (),
    threshold: Threshold = None,
    note: str = "",
    published: Mapping[str, Printed] = {},
    lines: Collection[str] = (),
    columns: int = 2,
    ax: "Panels" = None,
) -> "list[Axes]":
    """Score over length, a line per series with its intervals as bars, a panel per value of
    `panel`, at most `columns` side by side (4 for Figures 2 to 4 in the paper's layout).

    `frame` holds percents: columns length, score, low, high, and those that name series and panel;
    without the panel's column all lines share one. Several models (column `label`) have panels of
    their own. A length without a complete score is a gap. `dashed_beyond` gives by series the
    length past which its line is dashed; `flat` names series whose one score is drawn at all
    lengths. `published` gives by panel ('' where there is one) what `paper.published_scores`
    gives, drawn in grey; `lines` as in `score_by_length`, by the names that these have.
    """
    # An empty figure would look like a model that scores nothing.
    if frame.empty:
        raise UserError(
            "no scores to draw; give the scores of a run that has some"
        )

    # Panels are those of the caller; several models are never drawn into one.
    keys = [key for key in ("label", panel) if key in frame and key != series]
    if "label" in keys and frame["label"].nunique() == 1:
        keys.remove("label")
    groups = list(frame.groupby(keys, sort=False)) if keys else [((), frame)]
    columns = min(len(groups), columns)

    # The height follows from the longest legend, which stands beside the panel.
    grey = {key: _lines_and_band(published[key], lines) for key in published}
    most = max(rows[series].nunique() for _, rows in groups) + max(
        (len(named) for named, _ in grey.values()), default=0
    )
    height = 1.3 if columns > 2 else max(1.6, 0.15 * most)

    notes = [*_notes_of_lines(frame, series, dashed_beyond, grey), note]
    drawn: Any = {"series": most, "threshold": threshold, "sharey": True}
    with _figure(len(groups), columns, height, ax, *notes, **drawn) as panels:
        for i, (axes, (names, rows)) in enumerate(
            zip(panels, groups, strict=True)
        ):
            title = str(names[-1]) if panel in keys else ""
            printed = grey.get(title, ({}, {}))
            _lines(axes, rows, series, printed, dashed_beyond, flat)
            _grey_lines(axes, *printed, height if ax is None else None)
            _legend(axes)
            if ax is None and i % columns:
                axes.set_ylabel("")
            _title(axes, *names, loc="left")
    return panels


def _notes_of_lines(
    frame: "pd.DataFrame",
    series: str,
    dashed_beyond: Mapping[str, float],
    grey: Mapping[str, tuple[Printed, Printed]],
) -> list[str]:
    """What a reader must know of the lines: it stands below them, not in the caption alone."""
    notes = []
    beyond = frame["length"] > frame[series].map(dashed_beyond).astype(float)
    if beyond.any():
        notes.append("dashed: beyond the training length")
    if any(named or band for named, band in grey.values()):
        notes.append("grey: scores as printed")
    num_others = sum(len(band) for _, band in grey.values())
    if num_others:
        notes.append(f"grey band: {num_others} further models")
    if "floor" in frame and (frame["floor"] >= 1).any():
        notes.append("dotted: floor")
    return notes


def _lines(
    axes: Axes,
    rows: "pd.DataFrame",
    series: str,
    printed: tuple[Printed, Printed],
    dashed_beyond: Mapping[str, float],
    flat: Collection[str],
) -> None:
    """A line per series over length, its floor as a dotted line; the axis also has room for the
    lengths of `printed`, which `_grey_lines` draws."""
    # Lines keep the order of the caller, and with it their colours.
    names = list(dict.fromkeys(rows[series]))
    all_lengths = {int(n) for n in rows["length"]}
    for scores in printed:
        all_lengths.update(*scores.values())
    lengths = sorted(all_lengths)
    for i, name in enumerate(names):
        line = rows[rows[series] == name].sort_values("length")
        if name in flat:
            level = line[["score", "low", "high"]].mean()
            line = pd.DataFrame({"length": lengths, **level})
        # bars of several lines stand side by side
        shift = (i - (len(names) - 1) / 2) * min(0.03, 0.15 / len(names))
        x, properties = line["length"] * 2**shift, _properties(i)
        _line(
            axes, x, line, str(name), properties, dashed_beyond.get(name, np.inf)
        )

        # What is scored without reading is drawn below every line that it concerns.
        if "floor" in line and (line["floor"] >= 1).any():
            axes.plot(
                x,
                line["floor"],
                color=properties["color"],
                linestyle=":",
                linewidth=0.7,
                zorder=1,
            )

    # Lengths double, so they stand at equal distances.
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, _ticks(axes, lengths))
    axes.minorticks_off()
    axes.set(xlabel="Sequence length (tokens)", ylabel="Score (%)", ylim=(0, 102))


def _lines_and_band(
    printed: Printed, lines: Collection[str]
) -> tuple[Printed, Printed]:
    """The printed scores that are drawn as lines, and those that are in the band."""
    named = [name for name in printed if name in lines]
    if not lines:
        # Those at equal steps of the order at their longest length are far apart.
        order = sorted(printed, key=lambda name: list(printed[name].values())[-1])
        steps = np.linspace(0, len(order) - 1, min(len(order), _MOST_GREY))
        named = [order[i] for i in steps.round().astype(int)]
    return (
        {name: printed[name] for name in printed if name in named},
        {name: printed[name] for name in printed if name not in named},
    )


def _grey_lines(
    axes: Axes, named: Printed, band: Printed, height: float | None
) -> None:
    """Printed scores: thin and grey, so that they are not taken for measured ones. Lines are named
    at their ends, in narrow axes in the legend. `height` of the axes is in inches."""
    if band:
        scores = pd.DataFrame(band).sort_index()
        low, high = scores.min(axis=1), scores.max(axis=1)
        color: Any = {"color": _GREY_LINE, "alpha": 0.15, "linewidth": 0}
        axes.fill_between(scores.index, low, high, zorder=0.5, **color)

    thin = {"color": _GREY_LINE, "markersize": 2.5, "linewidth": 0.6}
    has_room = _letters(axes) >= _NARROW
    ends: list[tuple[float, float]] = []
    for i, (name, printed) in enumerate(named.items()):
        x, y = [float(n) for n in printed], list(printed.values())
        label = "_nolegend_" if has_room else name
        axes.plot(x, y, label=label, zorder=1.5, **(_properties(i) | thin))
        ends.append((x[-1], y[-1]))
    if not named or not has_room:
        return

    # Names at the ends of lines are moved apart, and a thin line leads to each.
    figure: Any = axes.figure
    inches = height or axes.get_window_extent().height / figure.dpi
    gap = 102 * 1.25 * matplotlib.rcParams["font.size"] / 72 / inches
    places = _apart([y for _, y in ends], gap, 102)
    beside = offset_copy(axes.transData, figure, 9, 0, "points")
    leader: Any = {"arrowstyle": "-", "linewidth": 0.4, "color": _GREY_LINE}
    leader |= {"shrinkA": 0, "shrinkB": 2, "relpos": (0, 0.5)}
    text: Any = {"textcoords": beside, "va": "center", "fontsize": "medium"}
    for name, end, place in zip(named, ends, places, strict=True):
        axes.annotate(name, end, (end[0], place), arrowprops=leader, **text)


def _apart(values: Sequence[float], gap: float, top: float) -> list[float]:
    """Values moved as little as needed to be at least `gap` apart, above 0 and up to `top` where
    they fit, in the order given."""
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))

    # Without the steps the moved values must not fall: means over blocks that would.
    blocks: list[list[float]] = []
    for value in np.asarray(values)[order] - steps:
        blocks.append([float(value)])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    means = [np.mean(block) for block in blocks for _ in block]
    lowest = gap / 2
    moved = np.clip(means, lowest, max(lowest, top - steps[-1])) + steps
    places = np.empty(len(values))
    places[order] = moved
    return places.tolist()


def _line(
    axes: Axes,
    x: Any,
    rows: "pd.DataFrame",
    label: str,
    properties: Mapping[str, Any],
    beyond: float = np.inf,
) -> None:
    """A line with its intervals as bars, dashed and hollow beyond a length."""
    # Intervals lie below the line, pale enough for several of them at one length.
    axes.vlines(
        x,
        rows["low"],
        rows["high"],
        properties["color"],
        linewidth=0.7,
        alpha=0.55,
        zorder=2,
    )

    # Beyond a model's training length its line is dashed and hollow.
    inside = rows["length"] <= beyond
    if not inside.all():
        hollow = {"markerfacecolor": axes.get_facecolor(), "markeredgewidth": 0.8}
        dashed = {**properties, **hollow, "linestyle": _BEYOND}
        axes.plot(x, rows["score"], clip_on=False, zorder=2.9, **dashed)
    axes.plot(
        x,
        rows["score"].where(inside),
        label=label,
        clip_on=False,
        zorder=3,
        **properties,
    )


def series_table(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The numbers of `series_by_length` as text: a row per line, a column per length, `score [low,
    high]` or what there is of an incomplete score."""
    # Only what differs names a line.
    keys = [key for key in ("label", "panel", "series") if key in frame]
    several = [key for key in keys if frame[key].nunique() > 1]
    lines = frame[several or ["label"]].astype(str).agg(" · ".join, axis=1)

    # An incomplete score shows how much of it there is.
    percents = frame.apply(
        lambda row: f"{row['score']:.1f} [{row['low']:.1f}, {row['high']:.1f}]",
        axis=1,
    )
    texts = frame["have"].where(frame["score"].isna(), percents)

    # The order of the figure, not that of the alphabet.
    wide = frame.assign(line=lines, text=texts).pivot(
        index="line", columns="length", values="text"
    )
    return (
        wide.loc[lines.unique()]
        .fillna("")
        .rename(columns=length_name)
        .rename_axis(None)
    )


def thresholds(models: "pd.DataFrame", category: str = "all") -> dict[str, float]:
    """The paper's thresholds that `Summary.models` was judged by, with their names; none where the
    tasks are not the thirteen."""
    # A threshold that no line was held against must not be drawn.
    judged = models[
        (models["category"] == category) & (models["effective_length"] != "")
    ]
    judged = judged[judged["threshold_of"] == PAPERS_THRESHOLD]
    kinds = zip(judged["aligned"], judged["threshold"], strict=True)
    return {f"Llama2-7B ({kind}) at 4K": float(value) for kind, value in kinds}


def _means(lengths: "pd.DataFrame", category: str) -> "pd.DataFrame":
    """The rows of a category with the names of their models."""
    rows = lengths[lengths["category"] == category]
    if rows.empty:
        raise UserError(
            f"no scores of category {category!r} to draw: give `lengths` of a summary that has some"
        )
    return rows.assign(name=names_of(rows))


def scores_over_models(
    lengths: "pd.DataFrame",
    threshold: Threshold = None,
    category: str = "all",
    note: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Score over models, such as the checkpoints of one run, a line per length with its intervals.

    `lengths` is `Summary.lengths`; models stand in the order in which they come. A length without a
    complete score is a gap.
    """
    rows = _means(lengths, category)
    names = list(dict.fromkeys(rows["name"]))
    with _figure(1, 1, 1.7, ax, note, series=len(names), threshold=threshold) as (
        axes,
    ):
        for i, (length, line) in enumerate(rows.groupby("length")):
            x = line["name"].map(names.index) + 0.04 * i
            _line(axes, x, line, length_name(int(str(length))), _properties(i))
        ticks = [_wrapped(name, 34) for name in names]
        axes.set_xticks(
            range(len(names)),
            ticks,
            rotation=35,
            ha="right",
            rotation_mode="anchor",
        )
        axes.set(ylim=(0, 102), ylabel="Score (%)")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6)
    return axes


# --- claimed and effective length -----------------------------------------------------------------


def claimed_and_effective(
    models: "pd.DataFrame | None" = None,
    published: str | Sequence[str] = "all",
    note: str = "",
    ax: "Panels" = None,
) -> "list[Axes]":
    """The length that each model claims beside its effective length, a row per model, the longest
    effective length on top.

    `models` is `Summary.models`: yours, in colour, with a thin line over all effective lengths
    that the intervals allow. `published` names the rows in grey (see `paper.published_lengths`):
    'paper', 'upstream', 'all' (a panel for each), or single models; [] for none.
    """
    panels_of: dict[str, Any] = {}
    if len(published):
        rows = published_lengths(published).assign(is_own=False)
        titles = rows["source"].str.startswith("paper").map(_SOURCES)
        if not isinstance(published, str):
            titles[:] = ""
        panels_of = dict(iter(rows.groupby(titles, sort=False)))
    if models is not None:
        own = models[models["category"] == "all"]
        own = own.assign(model=names_of(own), is_own=True)
        # yours stand in the first panel, among the models of the paper
        first = next(iter(panels_of), "")
        panels_of[first] = pd.concat([own, panels_of.get(first)])
    if not any(map(len, panels_of.values())):
        raise UserError(
            "no models to draw: give `models` of a summary, or name published ones"
        )

    notes = ["dot: effective length", "arrow: beyond the lengths tested"]
    notes += ["ring: claimed length", note]
    if len(published) and models is not None:
        notes.insert(3, "grey: as published")
    count, most = len(panels_of), max(map(len, panels_of.values()))
    with _figure(count, count, 0.14 * most + 0.1, ax, *notes) as panels:
        for axes, (title, rows) in zip(panels, panels_of.items(), strict=True):
            _rows_of_models(axes, rows, most)
            _title(axes, title, loc="left")
    return panels


_SOURCES = {
    True: "Table 3 of the paper",
    False: "NVIDIA's list, further models",
}


def _rows_of_models(axes: Axes, rows: "pd.DataFrame", num_rows: int) -> None:
    """A row per model with its effective and its claimed length on a log scale."""
    lengths = [_lengths_in(text) for text in rows["effective_length"]]
    rows = rows.assign(
        # '>=16K, 128K not run' is at least 16K
        effective=[found[0] if found else math.nan for found in lengths],
        beyond=rows["effective_length"].str[:1].map({"<": -1, ">": 1}).fillna(0),
    ).sort_values(
        ["effective", "beyond", "claimed_length"], ascending=False, kind="stable"
    )
    names = [_wrapped(name, 34) for name in rows["model"]]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(num_rows - 0.4, -0.6)

    num_own = 0
    for y, row in enumerate(rows.to_dict("records")):
        color = _GREY_LINE
        if row["is_own"]:
            color = _color(num_own)
            num_own += 1
            axes.get_yticklabels()[y].set_fontweight("bold")
        _row_of_model(axes, y, row, color)

    # Lengths double. Left of the dots and right of the rings there is room for their texts.
    axes.set_xscale("log", base=2)
    known = rows[["effective", "claimed_length"]].to_numpy(dtype=float)
    known = np.log2(known[~np.isnan(known)]) if rows.size else known
    first, last = (known.min(), known.max()) if known.size else (12.0, 17.0)
    axes.set_xlim(
        2 ** (first - 0.27 * (last - first + 1)),
        2 ** (last + 0.2 * (last - first + 1)),
    )
    ticks = 2 ** np.arange(math.ceil(first), math.floor(last) + 1)
    step = math.ceil(len(ticks) / 6)
    axes.set_xticks(
        ticks,
        ["" if i % step else length_name(int(n)) for i, n in enumerate(ticks)],
    )
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
        axes.hlines(
            y, min(ends), max(ends), color, linewidth=0.8, alpha=0.6, zorder=2
        )
    ring: Any = {"markerfacecolor": axes.get_facecolor(), "markeredgewidth": 0.8}
    axes.plot(
        [claimed], [y], "o", color=color, markersize=5.4, zorder=2.5, **ring
    )

    # All that the intervals allow lies below what was found.
    allowed = _lengths_in(row["effective_set"])
    if len(allowed) > 1:
        axes.hlines(
            y, min(allowed), max(allowed), color, linewidth=2.4, alpha=0.4
        )
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


# --- depth ----------------------------------------------------------------------------------------


def recall_by_depth(
    bins: "pd.DataFrame", note: str = "", ax: "Panels" = None, by: str = "depth"
) -> "list[Axes]":
    """Recall over depth, or over the 'distance' to the item before, with intervals, a line per
    length, a panel per model and task. `bins` is what `depth.by_bin` gives."""
    groups = list(bins.groupby([names_of(bins), "task"], sort=False))
    lengths, columns = sorted(bins["length"].unique()), min(len(groups), 3)

    place = "Depth (%)" if by == "depth" else "Distance to the item before (%)"
    with _figure(len(groups), columns, 1.2, ax, note) as panels:
        for axes, ((name, task), rows) in zip(panels, groups, strict=True):
            rows = _all_bins(rows, by)
            # Lines of several lengths are moved apart a little, so that their bars can be seen.
            for i, length in enumerate(lengths):
                line = rows[rows["length"] == length]
                x = (line[f"{by}_from"] + line[f"{by}_to"]) / 2 + (
                    i - len(lengths) / 2
                ) * 1.2
                _line(axes, x, line, length_name(int(length)), _properties(i))
            _title(axes, name, task)
            axes.set(
                xlim=(0, 100), ylim=(0, 102), xlabel=place, ylabel="Recall (%)"
            )
        panels[columns - 1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return panels


def depth_map(
    bins: "pd.DataFrame", task: str, note: str = "", ax: "Panels" = None
) -> "list[Axes]":
    """Recall of one task by depth and length as a map, a panel per model. `bins` is what
    `depth.by_bin` gives."""
    models = list(bins[bins["task"] == task].groupby(names_of(bins), sort=False))
    if not models:
        raise UserError(
            f"no depths of task {task!r} to draw: name one that was asked"
        )

    # Bins without a needle stay as empty fields, so that all maps have the same rows.
    series = bins["length"].nunique()
    with _figure(
        len(models), min(len(models), 2), 1.8, ax, note, series=series
    ) as panels:
        for axes, (name, rows) in zip(panels, models, strict=True):
            edges = ["depth_from", "depth_to"]
            scores = _all_bins(rows, "depth").pivot(
                index=edges, columns="length", values="score"
            )
            scores.index = [
                f"{start:.0f}–{end:.0f}" for start, end in scores.index
            ]
            scores = scores.rename(columns=length_name)
            _heatmap(axes, scores, scores.map("{:.0f}".format).replace("nan", ""))
            _title(axes, name, task)
            axes.set(xlabel="Length (tokens)", ylabel="Depth (%)")
    return panels


def _all_bins(rows: "pd.DataFrame", by: str) -> "pd.DataFrame":
    """The bins of each length, with those that hold no item."""
    start, end = f"{by}_from", f"{by}_to"
    edges = np.linspace(
        0, 100, round(100 / (rows[end] - rows[start]).iloc[0]) + 1
    )
    bins = pd.DataFrame({start: edges[:-1], end: edges[1:]})
    return (
        rows[["length"]]
        .drop_duplicates()
        .merge(bins, how="cross")
        .merge(rows, how="left")
    )


# --- tables in colour -----------------------------------------------------------------------------


def tasks_by_length(
    cells: "pd.DataFrame",
    model: str | None = None,
    note: str = "",
    ax: "Panels" = None,
) -> "list[Axes]":
    """Tasks against lengths as a table in colour, the score printed in each field; a panel per
    model.

    `cells` is `Summary.cells`; `model` picks one model by name or label. A field whose cell is
    incomplete shows what it has (`300/500`).
    """
    if model is not None:
        cells = cells[(cells["model"] == model) | (cells["label"] == model)]
    if cells.empty:
        raise UserError(
            f"no cells of {model or 'any model'!r} to draw; name one of the summary's models"
        )

    # A score that says nothing is shown in brackets, and an incomplete one by what it has.
    below = not_above(cells)
    texts = (
        cells["score"]
        .map("{:.1f}".format)
        .where(cells["score"].notna(), cells["have"])
    )
    cells = cells.assign(
        name=names_of(cells), text=texts.where(~below, "(" + texts + ")")
    )

    models = list(cells.groupby("name", sort=False))
    height = 0.175 * cells["task"].nunique()
    notes = [note]
    if below.any():
        notes.append("in brackets: not above the floor")
    series = cells["length"].nunique()
    columns = min(len(models), 2 if series <= 8 else 1)
    with _figure(
        len(models), columns, height, ax, *notes, series=series, sharey=True
    ) as panels:
        for axes, (name, rows) in zip(panels, models, strict=True):
            tasks = rows.drop_duplicates("task")
            wide: Any = rows.pivot(index="task", columns="length").loc[
                tasks["task"]
            ]
            wide = wide.rename(columns=length_name, level="length")
            _heatmap(axes, wide["score"], wide["text"])
            # A white line between categories, as between the rows of the paper's tables.
            for place in _borders(tasks["category"]):
                axes.axhline(place, color="white", linewidth=2.5)
            _title(axes, name)
    return panels


def capability_map(
    frontier: FrontierSummary,
    model: str | None = None,
    note: str = "",
    ax: "Panels" = None,
) -> "list[Axes]":
    """The frontier suite at a glance: capabilities against lengths, a panel per model.

    `frontier` is what `rk.frontier` gives; `model` picks one model by name or label. A field has
    the colour of the score with its floor taken off, and shows the raw score; it is hatched where
    the raw score is not above the floor. The red line in each row stands behind the longest length
    at which the row keeps 85 % of its own score at the shortest length. Below the capabilities
    stands their mean, with the floors taken off, and below a rule RULER's mean with RULER's own
    effective length, where all its tasks were asked. The title says what both found.
    """
    models = frontier.models
    if model is not None:
        models = models[(models["model"] == model) | (models["label"] == model)]
    if models.empty:
        raise UserError(
            f"no capabilities of {model!r} to draw; name one of the summary's models"
        )

    records: list[Any] = models.to_dict("records")
    rows_of = [(one, _capability_rows(frontier, one)) for one in records]
    notes = [
        "colour: floor taken off",
        "red: the longest length that keeps 85 % of the row's score at the shortest",
    ]
    if any((rows["above_floor"] == 0).any() for _, rows in rows_of):
        notes.append("hatched: not above the floor")

    most = max(rows["row"].nunique() for _, rows in rows_of)
    series, columns = frontier.lengths["length"].nunique(), min(len(rows_of), 2)
    shared: Any = {"series": series}
    with _figure(
        len(rows_of), columns, 0.19 * most, ax, note, *notes, **shared
    ) as panels:
        for axes, (one, rows) in zip(panels, rows_of, strict=True):
            _capability_panel(axes, rows)
            thinking = " (thinking)" if one["thinking"] else ""
            _title(axes, f"{one['label']}{thinking}", headline(one))
    return panels


def frontier_by_length(
    frontier: FrontierSummary, note: str = "", ax: "Axes | None" = None
) -> "Axes":
    """The mean of the frontier suite over length, floors taken off, a line per model with its
    intervals as bars; dashed is the threshold of the absolute effective length."""
    rows = frontier.lengths
    frame = rows.assign(series=names_of(rows), score=rows["normalised"])
    (axes,) = series_by_length(
        frame.drop(columns="label"),
        threshold={"absolute threshold": ABSOLUTE},
        note=note,
        ax=ax,
    )
    axes.set_ylabel("Mean, floors taken off (%)")
    return axes


def capabilities_by_length(
    frontier: FrontierSummary, note: str = "", ax: "Panels" = None
) -> "list[Axes]":
    """Raw scores over length, a panel per capability, a line per model; dotted lines are floors."""
    rows = frontier.capabilities
    # The intervals of a capability are those of its normalised mean; raw scores stand without.
    raw = rows.assign(
        series=names_of(rows),
        panel=rows["capability"],
        low=rows["score"],
        high=rows["score"],
    )
    return series_by_length(raw.drop(columns="label"), note=note, ax=ax)


def published_frontier(
    published: "pd.DataFrame", note: str = "", ax: "Panels" = None
) -> "list[Axes]":
    """Published results of benchmarks that ask for a capability of the suite, in grey, a panel per
    benchmark and setting with their source; `published` is `paper.published_frontier()`.

    Marks are hollow where the source itself was not opened. A score without a length of its own is
    left out.
    """
    drawn = published.dropna(subset=["length"])
    names = drawn["benchmark"] + " " + drawn["setting"].fillna("")
    groups = list(drawn.groupby(names.str.strip(), sort=False))
    columns = min(len(groups), 2)

    # Whoever sees a score must see whose it is.
    sources = drawn.drop_duplicates(["benchmark", "source"])
    notes = [
        note,
        *(sources["benchmark"] + ": " + sources["source"]),
        "hollow: source not opened",
    ]
    with _figure(len(groups), columns, 1.5, ax, *notes, series=9) as panels:
        for axes, (name, rows) in zip(panels, groups, strict=True):
            _published_panel(axes, rows)
            _title(axes, name, loc="left")
    return panels


def _published_panel(axes: Axes, rows: "pd.DataFrame") -> None:
    """The published lines of one benchmark, thin and grey."""
    for i, (model, line) in enumerate(rows.groupby("model", sort=False)):
        hollow = line["checked"].str.startswith("second-hand").any()
        properties = _properties(i) | {
            "color": _GREY_LINE,
            "markerfacecolor": "white" if hollow else _GREY_LINE,
            "markeredgewidth": 0.6,
            "linewidth": 0.6,
        }
        axes.plot(line["length"], line["score"], label=model, **properties)

    lengths = sorted(rows["length"].astype(int).unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, _ticks(axes, lengths))
    axes.minorticks_off()
    measure = f"{rows['measure'].iloc[0]} (%)"
    axes.set(xlabel="Length (tokens)", ylabel=measure, ylim=(0, 102))
    _legend(axes)


def _capability_rows(
    frontier: FrontierSummary, model: Mapping[str, Any]
) -> "pd.DataFrame":
    """The fields of one panel: columns row, length, colour (percent), text, above_floor (NaN where
    it does not apply), reach (tokens; 0 for none), from the top row down."""
    same = ["run", "model"]
    own = [model[name] for name in same]

    def of(frame: "pd.DataFrame") -> "pd.DataFrame":
        return frame[(frame[same] == own).all(axis=1)]

    capabilities = of(frontier.capabilities)
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
    means = of(frontier.lengths)
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
        ruler, _ = of_ruler(frontier.ruler, model)
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
    """Scores as a field shows them; what there is of an incomplete one in its place."""
    return (
        rows[column]
        .map("{:.0f}".format)
        .where(rows[column].notna(), rows["have"])
    )


def _capability_panel(axes: "Axes", rows: "pd.DataFrame") -> None:
    """One model: the fields, hatched where they say nothing, and the step of each row's reach."""
    names = list(dict.fromkeys(rows["row"]))
    wide: Any = rows.pivot(index="row", columns="length").loc[names]
    lengths = list(wide["colour"].columns)
    wide = wide.rename(columns=length_name, level="length")
    _heatmap(axes, wide["colour"], wide["text"].fillna(""))

    for (row, column), above in np.ndenumerate(wide["above_floor"].to_numpy()):
        if above is False or above == 0:
            axes.add_patch(
                Rectangle(
                    (column, row),
                    1,
                    1,
                    fill=False,
                    hatch="////",
                    edgecolor="0.55",
                    linewidth=0,
                )
            )

    # A row that keeps its score nowhere has its step at the left edge.
    reach = rows.drop_duplicates("row")["reach"]
    steps = [sum(length <= longest for length in lengths) for longest in reach]
    for row, step in enumerate(steps):
        axes.plot(
            [step, step],
            [row + 0.08, row + 0.92],
            color=_RED,
            linewidth=1.6,
            clip_on=False,
        )

    # Neither the mean nor RULER is one of the capabilities.
    for name in ("mean, floors off", "RULER"):
        if name in names:
            axes.axhline(names.index(name), color="black", linewidth=0.8)
    axes.set_xlabel("Length (tokens)")


def _borders(groups: Iterable[str]) -> list[int]:
    """The places between rows of a heatmap where the group changes."""
    return [
        i
        for i, (group, following) in enumerate(pairwise(groups), 1)
        if group != following
    ]


def correlation_heatmap(
    correlations: "pd.DataFrame",
    marked: Collection[str] = (),
    groups: Sequence[str] = (),
    note: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Figure 5: correlations of tasks in the order of the frame, its marked tasks in red, groups
    parted by lines.

    `groups` names the cluster of each task, in the order of the frame.
    """
    if correlations.empty:
        raise UserError("no correlations to draw: give at least two tasks")
    text = correlations.map(
        lambda r: (
            ""
            if np.isnan(r)
            else f"{r:z.2f}".replace("0.", ".").replace("1.00", "1")
        )
    )
    with _figure(
        1, 1, 0.24 * len(correlations), ax, note, series=len(correlations)
    ) as (axes,):
        _heatmap(axes, correlations, text, [_color(4), "#FFFFFF"], -1)
        # names of several lines need wider fields
        if correlations.index.str.len().max() <= _LONGEST_TICK:
            axes.set_aspect("equal")
        axes.tick_params("x", rotation=55)
        plt.setp(axes.get_xticklabels(), ha="right", rotation_mode="anchor")
        labels = zip(
            axes.get_xticklabels(),
            axes.get_yticklabels(),
            correlations,
            strict=True,
        )
        for *both, task in labels:
            if task in marked:
                plt.setp(both, color=_RED, fontweight="bold")
        for place in _borders(groups):
            axes.axhline(place, color="black", linewidth=0.8)
            axes.axvline(place, color="black", linewidth=0.8)
        _title(axes, "Correlation of task scores")
    return axes


def _heatmap(
    axes: Axes,
    values: "pd.DataFrame",
    texts: "pd.DataFrame",
    colors: Sequence[str] = ("#EDF3F8",),
    lowest: float = 0,
) -> None:
    """A table in colour with a text in each field; a field without a value is grey. The colours
    lead from the lowest value, 0 or -1, to 100 or 1."""
    paint = LinearSegmentedColormap.from_list(
        "", [*colors, _color(0)]
    ).with_extremes(bad="0.88")

    numbers = values.to_numpy(dtype=float)
    limits: Any = {"vmin": lowest, "vmax": -lowest or 100}
    image = axes.pcolormesh(
        numbers, cmap=paint, edgecolors="white", linewidth=0.6, **limits
    )
    rows, columns = (
        [_wrapped(name, _LONGEST_TICK) for name in names] for names in values.axes
    )
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows)

    # The first row stands on top, as in a table.
    axes.set_ylim(len(values), 0)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)

    # Text is dark or light, whichever can be read on the field's colour.
    for (row, column), text in np.ndenumerate(texts.to_numpy()):
        color = _ink(image.to_rgba(numbers[row, column]))
        axes.text(
            column + 0.5, row + 0.5, text, ha="center", va="center", color=color
        )


def _ink(ground: Any) -> str:
    """Black or white: which of them has the higher contrast with a colour, as WCAG 2 defines it; it
    is at least 4.5 to 1."""
    linear = ((np.array(to_rgb(ground)) + 0.055) / 1.055) ** 2.4
    return "black" if linear @ (0.2126, 0.7152, 0.0722) > 0.179 else "white"


# --- failures -------------------------------------------------------------------------------------


def failures_by_length(
    shares: "pd.DataFrame", note: str = "", ax: "Panels" = None
) -> "list[Axes]":
    """What became of the answers at each length, in percent, complete ones below; a panel per model
    and task.

    `shares` is `failures.shares`. A label looks the same in every figure.
    """
    if shares.empty:
        raise UserError(
            "no labels to draw; label the cells of a run that has some"
        )
    counts = shares.groupby("label")["count"].sum()
    kinds = [kind for kind in definitions() if counts.get(kind)]
    names = names_of(shares.assign(label=shares["name"]))
    groups = list(shares.groupby([names, "task"], sort=False))

    # A row of panels for each model, as long as its tasks allow.
    columns = min(int(shares.groupby(names)["task"].nunique().max()), 4)
    height = max(1.1, 0.16 * len(kinds) / -(-len(groups) // columns))
    series = 2 + shares["length"].nunique()  # the legend stands beside them
    with _figure(
        len(groups), columns, height, ax, note, series=series, sharey=True
    ) as panels:
        for i, (axes, ((name, task), cells)) in enumerate(
            zip(panels, groups, strict=True)
        ):
            table = 100 * cells.pivot(
                index="length", columns="label", values="share"
            )
            table.reindex(columns=kinds).plot.bar(
                ax=axes, stacked=True, legend=False, width=0.82
            )
            axes.set_xticklabels(_ticks(axes, table.index), rotation=0)
            for bars, kind in zip(axes.containers, kinds, strict=True):
                plt.setp(bars, **_bar_properties(kind))
            axes.tick_params(axis="x", length=0)
            axes.set(ylim=(0, 100), xlabel="Length (tokens)")
            if i % columns == 0:
                axes.set_ylabel("Answers (%)")
            _title(axes, name, task)

        # One legend for all panels, in the order of the bars.
        handles, labels = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(
            handles, labels, loc="outside right upper", reverse=True
        )
    return panels


def _bar_properties(label: str) -> dict[str, Any]:
    """The properties of a label's bars: complete answers are pale, the others differ by colour and
    hatch."""
    i = list(definitions()).index(label)
    properties: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.3}
    if i == 0:
        return properties | {"facecolor": "#E9EDF0"}
    return properties | {
        "facecolor": _color(i - 1),
        "hatch": _HATCHES[(i - 1) // 7 % len(_HATCHES)],
    }


# --- comparisons ----------------------------------------------------------------------------------


def differences_by_task(
    rows: "pd.DataFrame",
    margin: float | None = None,
    names: Sequence[str] = ("A", "B"),
    note: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Forest plot of B - A in points: a task a line, over all lengths, and their mean as a diamond
    below.

    `rows` is `Comparison.rows`; its levels 'task' and 'all' are drawn. The dashed line is the
    margin. Differences whose interval leaves out 0 are filled, in the colour of their side.
    """
    tasks, mean = rows[rows["level"] == "task"], rows[rows["level"] == "all"]
    if tasks.empty or mean.empty:
        raise UserError("no differences to draw; give the rows of a comparison")
    notes = (note, "" if margin is None else f"dashed: margin -{margin:g}")
    labels = [_wrapped(task, _LONGEST_TICK) for task in [*tasks["task"], "mean"]]
    lines = 1 + max(label.count("\n") for label in labels)
    with _figure(1, 1, 0.16 * lines * (len(tasks) + 2.8), ax, *notes) as (axes,):
        axes.axvline(0, color=_GREY, linewidth=0.7, zorder=1)
        if margin is not None:
            axes.axvline(
                -margin,
                color=_GREY,
                linewidth=0.7,
                linestyle=_THRESHOLD,
                zorder=1,
            )

        # The mean stands last, as a diamond: the habit of forest plots.
        drawn: Any = pd.concat([tasks, mean]).itertuples()
        for y, row in enumerate(drawn):
            color = (
                _GREY if row.low <= 0 <= row.high else _color(int(row.high < 0))
            )
            shape: Any = {
                "marker": "D" if row.level == "all" else "o",
                "markeredgewidth": 0.8,
            }
            face = "white" if color == _GREY else color
            axes.hlines(y, row.low, row.high, color, linewidth=1.0, zorder=2)
            axes.plot(
                [row.difference], [y], color=color, markerfacecolor=face, **shape
            )

        axes.axhline(len(tasks) - 0.5, color="0.7", linewidth=0.5)
        axes.set_yticks(range(len(tasks) + 1), labels)
        axes.set_ylim(len(tasks) + 0.7, -0.7)
        axes.set_xlabel(
            _wrapped(f"{names[1]} - {names[0]} (points)", _letters(axes))
        )
    return axes


# --- what others have published -------------------------------------------------------------------


def published_since(
    lengths: "pd.DataFrame | None" = None,
    kinds: Sequence[str] = KINDS,
    note: str = "",
    ax: "Panels" = None,
) -> "list[Axes]":
    """What others have published since the paper, in grey with its source, a panel per kind of
    model; yours in colour in front, in the panel of their kind.

    `lengths` is `Summary.lengths` of the thirteen tasks. A model of which two sources speak has two
    lines. No line goes over a length that was not published; second-hand figures are hollow.
    """
    rows = pd.concat([published_rows(kind) for kind in kinds])
    own = None if lengths is None else _means(lengths, "all")
    most = max(
        len(of_kind.groupby(SERIES)) for _, of_kind in rows.groupby("aligned")
    )

    notes = [sources_note(rows), note]
    numbers = numbered_sources(rows)
    height = 0.13 * most + 0.6
    with _figure(len(kinds), 1, height, ax, *notes, series=9) as panels:
        for axes, kind in zip(panels, kinds, strict=True):
            of_kind = rows[rows["aligned"] == kind]
            for i, (key, line) in enumerate(of_kind.groupby(SERIES, sort=False)):
                name = series_name(key, numbers[str(line["source"].iloc[0])])
                _published_line(axes, line, name, i)
            mine: Any = []
            if own is not None:
                mine = own[own["aligned"] == kind].groupby("name", sort=False)
            for i, (name, line) in enumerate(mine):
                _line(axes, line["length"], line, str(name), _properties(i))
            _length_axis(
                axes, {*rows["length"], *(() if own is None else own["length"])}
            )
            _legend(axes)
            _title(axes, _KINDS[kind], loc="left")
    return panels


_KINDS = {
    "base": "Base models",
    "chat": "Chat models",
    "unknown": "Base or chat: the source does not say",
}


def _published_line(axes: Axes, rows: "pd.DataFrame", name: str, i: int) -> None:
    """One model of one source: connected only where a length and its double were published."""
    # Lengths between that were not published become gaps of the line.
    scores = rows.set_index("length")["score"].astype(float).sort_index()
    doubled = [scores.index[0]]
    while doubled[-1] < scores.index[-1]:
        doubled.append(2 * doubled[-1])
    scores = scores.reindex(sorted({*doubled, *scores.index}))

    is_second = rows["checked"].str.startswith(SECOND_HAND).any()
    shape: Any = _properties(i) | {
        "color": _GREY_LINE,
        "linewidth": 0.6,
        "markersize": 2.8,
        "markeredgewidth": 0.6,
    }
    if is_second:
        shape["markerfacecolor"] = axes.get_facecolor()
    axes.plot(scores.index, scores, label=name, zorder=1.5, **shape)


def _length_axis(axes: Axes, lengths: Collection[int]) -> None:
    """Lengths on a log scale with their names, scores in percent."""
    ticks = sorted(lengths)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, _ticks(axes, ticks))
    axes.minorticks_off()
    axes.set(ylim=(0, 102), xlim=(ticks[0] / 1.3, 1.3 * ticks[-1]))
    axes.set(xlabel="Sequence length (tokens)", ylabel="Score (%)")


# --- scorers --------------------------------------------------------------------------------------


def scores_by_scorer(
    judged: "pd.DataFrame", note: str = "", ax: "Axes | None" = None
) -> "Axes":
    """One set of answers by several harnesses' scorers: a row per scorer, a mark per model.

    `judged` is what `score_as` gives. A mark is the mean over the tasks and lengths of the model;
    the thin lines are the scores of this kit.
    """
    names = [name for name in judged.columns if name not in PLACE]
    scores = judged.groupby(["model", "task", "length"], sort=False)[names]
    means = 100 * scores.mean().groupby("model", sort=False).mean()
    labels = {"score": "this kit"}
    with _figure(1, 1, 0.17 * len(names), ax, note) as (axes,):
        for i, (model, row) in enumerate(means.iterrows()):
            # Marks of equal scores stand side by side, not one on the other.
            y = np.arange(len(names)) + 0.22 * (i - (len(means) - 1) / 2)
            properties = _properties(i) | {"linestyle": "", "markersize": 3.6}
            axes.plot(
                row.to_numpy(), y, label=str(model), clip_on=False, **properties
            )
            axes.axvline(row["score"], color=_color(i), linewidth=0.5, zorder=0)
        axes.set_yticks(
            range(len(names)), [labels.get(name, name) for name in names]
        )
        axes.set(xlim=(0, 100), xlabel="Score (%)", ylim=(len(names) - 0.4, -0.6))
        axes.grid(axis="y", visible=False)
        _legend(axes)
    return axes


# --- Figure 1 -------------------------------------------------------------------------------------


def word_counts(example: Example) -> "pd.DataFrame":
    """How often each word stands in an example's list or coded text: columns word, role, count,
    rank (from 1).

    Words are the pieces of the context, without the number of a numbered list; the most frequent
    come first.
    """
    pieces = [
        piece
        for block in example.blocks[slice(*example.context)]
        for piece in block.pieces
    ]
    counts = Counter(
        (re.sub(r"^\d+\. ", "", p.text.strip()), p.role) for p in pieces
    )
    rows = [(word, role, count) for (word, role), count in counts.most_common()]
    frame = pd.DataFrame(rows, columns=["word", "role", "count"])
    return frame.assign(rank=range(1, len(frame) + 1))


def word_frequencies(
    cwe: "pd.DataFrame",
    fwe: Mapping[float, "pd.DataFrame"],
    num_types: int = 40,
    note: str = "",
    ax: "Panels" = None,
) -> "list[Axes]":
    """Figure 1 of the paper: how often the words of the aggregation tasks stand in their contexts.

    Left: the first `num_types` words of a common words list (`word_counts` of an example). Right:
    coded texts by alpha, natural logarithms of rank and frequency, with the law they follow, rank
    to the power of -alpha, as a thin line.
    """
    with _figure(2, 2, 1.8, ax, note) as panels:
        left, right = panels

        # The paper shows the first words only: the list has hundreds.
        shown = cwe.head(num_types)
        for i, (role, name) in enumerate(
            {"needle": "common", "haystack": "uncommon"}.items()
        ):
            rows = shown[shown["role"] == role]
            left.bar(
                rows["rank"],
                rows["count"],
                color=_color(1 - i),
                label=f"{name} words",
            )
        of_all = f"Word type, by frequency (first {len(shown)} of {len(cwe)})"
        left.set(xlabel=of_all, ylabel="Frequency")
        left.set_title("Common words extraction", loc="left")

        # On logarithmic axes the law is a straight line through the most frequent word.
        for i, (alpha, counts) in enumerate(sorted(fwe.items())):
            x, y = np.log(counts[["rank", "count"]].to_numpy(dtype=float)).T
            right.plot(
                x, y[0] - alpha * x, color=_color(i), linewidth=0.5, alpha=0.7
            )
            properties = _properties(i) | {"linestyle": "", "markersize": 2.4}
            right.plot(
                x, y, label=f"α = {float(alpha)}", clip_on=False, **properties
            )
        right.set(
            xlabel="ln (word rank)",
            ylabel="ln (frequency)",
            xlim=(0, None),
            ylim=(0, None),
        )
        right.set_title("Frequent words extraction", loc="left")
        for axes in panels:
            axes.legend(loc="upper right")
    return panels


# --- what all figures share -----------------------------------------------------------------------


@contextmanager
def style() -> Iterator[None]:
    """The common style as a context: figures are drawn in it, and saved in it, whoever saves them.

    It is the style sheet rulerkit/data/rulerkit.mplstyle, for matplotlib "rulerkit.data.rulerkit".
    What the user has set wins: only settings that have matplotlib's default value are changed.

    It resets only what it sets, unlike matplotlib's `rc_context`: in a notebook the first figure
    also switches on that figures are shown, and that must last.
    """
    current: Any = matplotlib.rcParams
    sheet = Path(__file__).parents[1] / "data" / "rulerkit.mplstyle"
    ours: Any = matplotlib.rc_params_from_file(sheet, use_default_template=False)
    defaults: Any = matplotlib.rcParamsDefault
    before = {key: current[key] for key in ours if current[key] == defaults[key]}
    current.update({key: ours[key] for key in before})
    try:
        yield
    finally:
        current.update(before)


class PrintFigure(Figure):
    """Saved in the common style too, which decides how fonts are embedded."""

    def savefig(self, *args: Any, **kwargs: Any) -> None:
        """As matplotlib's."""
        with style():
            super().savefig(*args, **kwargs)


@contextmanager
def _figure(
    count: int,
    columns: int,
    height: float,
    ax: "Panels",
    *notes: str,
    series: int = 1,
    threshold: Threshold = None,
    **shared: Any,
) -> Iterator[list[Axes]]:
    """The panels that were given, or those of a new figure, row by row, drawn in the common style,
    with a line at each threshold, and notes below. `height`, of each panel without the texts around
    it, is in inches. The figure is as wide as one column of the page for one column of panels of up
    to eight series, or fields side by side, else as two."""
    num_rows = -(-count // columns)
    with style():
        if ax is None:
            width = SINGLE if columns == 1 and series <= 8 else DOUBLE
            # More than the texts need: the height is cut below.
            size = (width, (height + 3) * num_rows)
            panels = _new_panels(count, num_rows, columns, size, shared)
        else:
            panels = np.ravel(np.asarray(ax)).tolist()
            if len(panels) != count:
                raise UserError(
                    f"ax has {len(panels)} axes, the figure {count} panels: give {count}"
                )
        yield panels[:count]

        # What the caller drew is there: thresholds and notes are the same for all figures.
        figure: Any = panels[0].figure
        about = _draw_thresholds(panels[:count], threshold)
        # Notes of other panels of the figure stay.
        before = figure.get_supxlabel().replace("\n", " ")
        parts = "; ".join([before, about, *notes]).split("; ")
        text = "; ".join(dict.fromkeys(filter(None, parts)))
        _set_note(figure, text)

        # Only now it is known how much of the height the texts take.
        if ax is None:
            figure.get_layout_engine().execute(figure)
            whole = figure.get_figheight()
            drawn = panels[0].get_position(original=True).height
            figure.set_figheight(whole + num_rows * (height - drawn * whole))


def _set_note(figure: Any, text: str) -> None:
    """The note below a figure, in lines that keep the margin of the layout at both edges."""
    margin = 0.06 / figure.get_figwidth()
    note = figure.supxlabel(
        "", fontsize="medium", x=1 - margin, ha="right", style="italic"
    )
    widest = (1 - 2 * margin) * figure.bbox.width
    lines = [""]
    for word in text.split():
        note.set_text(f"{lines[-1]} {word}".strip())
        if note.get_window_extent().width > widest and lines[-1]:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    note.set_text("\n".join(lines))


def _new_panels(
    count: int,
    num_rows: int,
    num_columns: int,
    size: tuple[float, float],
    shared: Mapping[str, Any],
) -> list[Axes]:
    """The panels of a new figure; those that stay empty are taken away."""
    _, grid = plt.subplots(
        num_rows,
        num_columns,
        figsize=size,
        squeeze=False,
        FigureClass=PrintFigure,
        **shared,
    )
    panels: list[Axes] = list(grid.flat)
    for spare in panels[count:]:
        spare.remove()
    return panels


def _draw_thresholds(panels: Sequence[Axes], threshold: Threshold) -> str:
    """A dashed line at each threshold in every panel; the note that names them."""
    named = (
        threshold if isinstance(threshold, Mapping) else {"threshold": threshold}
    )
    levels = {name: value for name, value in named.items() if value is not None}
    if not levels:
        return ""
    for axes, value in product(panels, levels.values()):
        axes.axhline(
            value, color=_GREY, linewidth=0.7, linestyle=_THRESHOLD, zorder=1
        )
    names = ", ".join(f"{name} = {value:g}" for name, value in levels.items())
    return f"thin dashed: {names}"


def _color(i: int) -> str:
    """Colour i of the style, whose colours recur."""
    return to_hex(f"C{i}")


def _properties(i: int) -> dict[str, Any]:
    """Colour, marker and dashes of series i."""
    return {
        "color": _color(i),
        "marker": _MARKERS[i % 8],
        "linestyle": _DASHES[i // 8 % 3],
        "markeredgewidth": 0,
    }


def _legend(axes: "Axes") -> None:
    """The names of the lines, right of the axes, or below them where the axes are narrow or a name
    is long."""
    handles, names = axes.get_legend_handles_labels()
    letters, longest = _letters(axes), max(map(len, names))
    place: Any = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
    # beside the axes there may be names at the ends of lines
    if letters < _NARROW or longest > 0.4 * letters or axes.texts:
        names = [_wrapped(name, letters) for name in names]
        columns = max(1, int(1.25 * letters) // (min(longest, letters) + 3))
        place = {
            "loc": "upper center",
            "bbox_to_anchor": (0.5, 0),
            "borderaxespad": 4,
        }
        place["ncols"] = columns
    axes.legend(handles, names, **place)


def _letters(axes: "Axes") -> int:
    """How many letters are about as wide as axes, before constrained layout makes them fit."""
    width = axes.get_window_extent().width / axes.figure.dpi * 72
    return int(width / (0.6 * matplotlib.rcParams["font.size"]))


def _wrapped(text: Any, letters: int) -> str:
    """A text in lines of at most so many letters."""
    return "\n".join(wrap(str(text), letters))


def _ticks(axes: "Axes", lengths: Iterable[int]) -> list[str]:
    """The names of lengths, or of every second one ... where they are too long for the axes."""
    names = list(map(length_name, lengths))
    step = math.ceil(len(names) * (max(map(len, names)) + 0.5) / _letters(axes))
    return ["" if i % step else name for i, name in enumerate(names)]


def _title(axes: "Axes", *lines: Any, loc: Any = "center") -> None:
    """A title of several lines, each wrapped to the width of the axes."""
    letters = int(1.3 * _letters(axes))
    axes.set_title("\n".join(_wrapped(line, letters) for line in lines), loc=loc)

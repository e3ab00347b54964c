"""Scores over length, a line for each model or series, and over models."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import offset_copy

from rulerkit.common.errors import UserError, counted
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.generation.tasks import task
from rulerkit.report.paper import published_scores
from rulerkit.report.plots.canvas import (
    BEYOND_DASHES,
    GREY_LINE,
    NARROW,
    Panels,
    Threshold,
    add_legend,
    draw_in,
    length_ticks,
    letters_in,
    properties_of,
    set_title,
    wrapped,
)
from rulerkit.report.tables import names_of
from rulerkit.scoring.effective_length import PAPERS_THRESHOLD
from rulerkit.scoring.summary import model_rows, texts_words
from rulerkit.store.places import check_columns

Printed = Mapping[str, Mapping[int, float]]
"""Scores by length of each model, as `paper.published_scores` gives them."""
_MOST_GREY = 8  # printed lines in one panel, beyond which they are a band


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
    rows = means_of(lengths, category, "score_by_length").drop(columns="label")
    printed = {"": published_scores(published, category)}
    named = published_scores(lines, category) if lines else ()
    drawn: Any = {"published": printed, "lines": named, "ax": ax}
    (axes,) = series_by_length(rows, "name", threshold=threshold, note=note, **drawn)
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
    check_columns(frame, ["length", "score", "low", "high", series], "series_by_length")
    # An empty figure would look like a model that scores nothing.
    if frame.empty:
        raise UserError("no scores to draw; give the scores of a run that has some")

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

    notes = _notes_of_lines(frame, series, dashed_beyond, grey)
    drawn: Any = {"series": most, "threshold": threshold, "shown": frame, "sharey": True}
    with draw_in(len(groups), columns, height, ax, *notes, note, **drawn) as panels:
        for i, (axes, (names, rows)) in enumerate(zip(panels, groups, strict=True)):
            title = str(names[-1]) if panel in keys else ""
            printed = grey.get(title, ({}, {}))
            _lines(axes, rows, series, printed, dashed_beyond, flat)
            _grey_lines(axes, *printed, height if ax is None else None)
            add_legend(axes)
            if ax is None and i % columns:
                axes.set_ylabel("")
            set_title(axes, *names, loc="left")
    return panels


def mean_words(rows: "pd.DataFrame") -> str:
    """`mean of 3 tasks`, where the means drawn are over some of the benchmark's tasks."""
    if "whole" not in rows or rows["whole"].all():
        return ""
    return f"mean of {counted(rows['tasks'].max(), 'task')}"


def _notes_of_lines(
    frame: "pd.DataFrame",
    series: str,
    dashed_beyond: Mapping[str, float],
    grey: Mapping[str, tuple[Printed, Printed]],
) -> list[str]:
    """What a reader must know of the lines: it stands below them, not in the caption alone."""
    notes = [mean_words(frame)]
    beyond = frame["length"] > frame[series].map(dashed_beyond).astype(float)
    if beyond.any():
        notes.append("dashed: beyond the training length")
    if any(named or band for named, band in grey.values()):
        notes.append("grey: scores as printed")
    num_others = sum(len(band) for _, band in grey.values())
    if num_others:
        notes.append(f"grey band: {num_others} further models")
    if "copied" in frame and frame["copied"].notna().any():
        notes.append("dotted: copying the beginning of the context")
    return notes


def _lines(
    axes: Axes,
    rows: "pd.DataFrame",
    series: str,
    printed: tuple[Printed, Printed],
    dashed_beyond: Mapping[str, float],
    flat: Collection[str],
) -> None:
    """A line per series over length; the axis also has room for the lengths of `printed`, which
    `_grey_lines` draws. One level line is what copying the beginning of the context scores."""
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
        x, properties = line["length"] * 2**shift, properties_of(i)
        line_with_bars(axes, x, line, str(name), properties, dashed_beyond.get(name, np.inf))

    if "copied" in rows and rows["copied"].notna().any():
        level = rows["copied"].mean()
        axes.axhline(level, color=GREY_LINE, linestyle=":", linewidth=0.7, zorder=1)

    # Lengths double, so they stand at equal distances.
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, length_ticks(axes, lengths))
    axes.minorticks_off()
    axes.set(xlabel="Sequence length (tokens)", ylabel="Score (%)", ylim=(0, 102))


def _lines_and_band(printed: Printed, lines: Collection[str]) -> tuple[Printed, Printed]:
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


def _grey_lines(axes: Axes, named: Printed, band: Printed, height: float | None) -> None:
    """Printed scores: thin and grey, so that they are not taken for measured ones. Lines are named
    at their ends, in narrow axes in the legend. `height` of the axes is in inches."""
    if band:
        scores = pd.DataFrame(band).sort_index()
        low, high = scores.min(axis=1), scores.max(axis=1)
        color: Any = {"color": GREY_LINE, "alpha": 0.15, "linewidth": 0}
        axes.fill_between(scores.index, low, high, zorder=0.5, **color)

    thin = {"color": GREY_LINE, "markersize": 2.5, "linewidth": 0.6}
    has_room = letters_in(axes) >= NARROW
    ends: list[tuple[float, float]] = []
    for i, (name, printed) in enumerate(named.items()):
        x, y = [float(n) for n in printed], list(printed.values())
        label = "_nolegend_" if has_room else name
        axes.plot(x, y, label=label, zorder=1.5, **(properties_of(i) | thin))
        ends.append((x[-1], y[-1]))
    if not named or not has_room:
        return

    # Names at the ends of lines are moved apart, and a thin line leads to each.
    figure: Any = axes.figure
    inches = height or axes.get_window_extent().height / figure.dpi
    gap = 102 * 1.25 * matplotlib.rcParams["font.size"] / 72 / inches
    places = _apart([y for _, y in ends], gap, 102)
    beside = offset_copy(axes.transData, figure, 9, 0, "points")
    leader: Any = {"arrowstyle": "-", "linewidth": 0.4, "color": GREY_LINE}
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


def line_with_bars(
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
        x, rows["low"], rows["high"], properties["color"], linewidth=0.7, alpha=0.55, zorder=2
    )

    # Beyond a model's training length its line is dashed and hollow.
    inside = rows["length"] <= beyond
    if not inside.all():
        hollow = {"markerfacecolor": axes.get_facecolor(), "markeredgewidth": 0.8}
        dashed = {**properties, **hollow, "linestyle": BEYOND_DASHES}
        axes.plot(x, rows["score"], clip_on=False, zorder=2.9, **dashed)
    axes.plot(x, rows["score"].where(inside), label=label, clip_on=False, zorder=3, **properties)


def series_table(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The numbers of `series_by_length` as text: a row per line, a column per length, `score [low,
    high]` or what there is of an incomplete score."""
    # Only what differs names a line.
    keys = [key for key in ("label", "panel", "series") if key in frame]
    several = [key for key in keys if frame[key].nunique() > 1]
    lines = frame[several or ["label"]].astype(str).agg(" · ".join, axis=1)

    # An incomplete score shows how much of it there is.
    percents = frame.apply(
        lambda row: f"{row['score']:.1f} [{row['low']:.1f}, {row['high']:.1f}]", axis=1
    )
    texts = frame["have"].where(frame["score"].isna(), percents)

    # The order of the figure, not that of the alphabet.
    wide = frame.assign(line=lines, text=texts).pivot(index="line", columns="length", values="text")
    table = wide.loc[lines.unique()].fillna("").rename(columns=length_name)
    table.attrs["texts"] = texts_words(frame)
    return table.rename_axis(None)


def by_label(frame: "pd.DataFrame", tasks: Mapping[str, Any], panel: str = "") -> "pd.DataFrame":
    """The rows of some tasks (label to task, as `rk.task` takes it), with the columns `panel` and
    `series`, the label, as `series_by_length` takes them."""
    parts = []
    for label, spec in tasks.items():
        of_task = frame[frame["task"] == task(spec).name]
        parts.append(of_task.assign(panel=panel, series=label))

    rows = pd.concat(parts or [frame[:0]], ignore_index=True)
    return rows.reindex(columns=["panel", "series", *frame.columns])


def training_lengths(
    rows: "pd.DataFrame", given: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Training length in tokens by label, past which a line is dashed: `given` by name or label,
    else what the model claims; unknown ones left out.

    Raises UserError where `given` names a model that is not shown.
    """
    claimed = rows.groupby("label", sort=False)["claimed_length"]
    trained = claimed.max().astype(float)
    for name, length in (given or {}).items():
        label = model_rows(rows, name)["label"].iloc[0]
        trained[label] = parse_length(length)
    known = trained.dropna()
    return {str(label): length for label, length in known.items()}


def thresholds(models: "pd.DataFrame") -> dict[str, float]:
    """The paper's thresholds that `Summary.models` was judged by, with their names; none where the
    tasks are not the thirteen."""
    # A threshold that no line was held against must not be drawn.
    judged = models[(models["category"] == "all") & (models["effective_length"] != "")]
    judged = judged[judged["threshold_of"] == PAPERS_THRESHOLD]
    kinds = zip(judged["aligned"], judged["threshold"], strict=True)
    return {f"Llama2-7B ({kind}) at 4K": float(value) for kind, value in kinds}


def means_of(lengths: Any, category: str, who: str) -> pd.DataFrame:
    """The rows of a category of `Summary.lengths`, for the figure `who`, with the names of their
    models."""
    check_columns(lengths, ["label", "category", "length", "score"], who)
    rows = lengths[lengths["category"] == category]
    if rows.empty:
        raise UserError(
            f"no scores of category {category!r} to draw: give `lengths` of a summary that has some"
        )
    named: pd.DataFrame = rows.assign(name=names_of(rows))
    return named


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
    rows = means_of(lengths, category, "scores_over_models")
    names = list(dict.fromkeys(rows["name"]))
    drawn: Any = {"series": len(names), "threshold": threshold, "shown": rows}
    with draw_in(1, 1, 1.7, ax, note, mean_words(rows), **drawn) as (axes,):
        for i, (length, line) in enumerate(rows.groupby("length")):
            x = line["name"].map(names.index) + 0.04 * i
            line_with_bars(axes, x, line, length_name(int(str(length))), properties_of(i))
        ticks = [wrapped(name, 34) for name in names]
        axes.set_xticks(range(len(names)), ticks, rotation=35, ha="right", rotation_mode="anchor")
        axes.set(ylim=(0, 102), ylabel="Score (%)")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=6)
    return axes

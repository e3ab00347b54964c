"""Scores over length, a line for each model or series."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rulerkit.common.errors import UserError, counted
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.generation.tasks import task
from rulerkit.report.paper import published_scores
from rulerkit.report.plots.canvas import (
    BEYOND_DASHES,
    DASHES,
    GREY_LINE,
    Threshold,
    add_legend,
    draw_in,
    letters_in,
    look_of,
    properties_of,
    set_title,
    wrapped,
)
from rulerkit.report.tables import names_of
from rulerkit.scoring.effective_length import PAPERS_THRESHOLD
from rulerkit.scoring.summary import model_rows, texts_words
from rulerkit.store.places import check_columns

_LEVEL_DASHES = (BEYOND_DASHES, (0, (1, 1)))
_BESIDE = 24  # letters of a model's name beside a row of panels
Printed = Mapping[str, Mapping[int, float]]
"""Scores by length of each model, as `paper.published_scores` gives them."""
MODELS = ("label", "name")
"""The columns whose values are the names of models."""


def score_by_length(
    lengths: "pd.DataFrame",
    threshold: Threshold = None,
    note: str = "",
    category: str = "all",
    published: str | Sequence[str] = (),
    ax: "Axes | None" = None,
) -> "Axes":
    """Score over length, a line per model with its intervals as bars.

    `lengths` is `Summary.lengths`, of which the rows of `category` are drawn; a length without a
    complete score is a gap. `threshold` is drawn dashed: one number, or several by their names (see
    `thresholds`). `published` names models of the paper, whose printed scores are drawn in
    grey (see `paper.published_scores`).
    """
    check_columns(lengths, ["label", "category", "length", "score"], "score_by_length")
    rows = lengths[lengths["category"] == category]
    if rows.empty:
        raise UserError(
            f"no scores of category {category!r} to draw: give `lengths` of a summary that has some"
        )
    rows = rows.assign(name=names_of(rows))
    printed = {"": published_scores(published, category)}
    (axes,) = series_by_length(
        rows, "name", threshold=threshold, note=note, published=printed, ax=ax
    )
    return axes


def series_by_length(
    frame: "pd.DataFrame",
    series: str = "series",
    dashed_beyond: Mapping[str, float] = {},
    flat: Mapping[str, str] = {},
    threshold: Threshold = None,
    note: str = "",
    published: Mapping[str, Printed] = {},
    columns: int = 2,
    panels: Sequence[str] = (),
    ax: "Axes | None" = None,
) -> "list[Axes]":
    """Score over length, a line per series with its intervals as bars, a panel per value of the
    column `panel`, at most `columns` side by side (4 for Figures 2 to 4 in the paper's layout).

    `frame` holds percents: columns length, score, low, high, and the one that names the series;
    without the column `panel` all lines share one. Of several models (column `label`) each has a
    row of panels, with its name at the left. Series that are models (`label` or `name`) look as
    `look_of` says; a task that stands in several panels looks the same in all. A length without a
    complete score is a gap. `dashed_beyond` gives by series the length past which its line is
    dashed; `flat` names series whose one score is a dashed level line with its interval as a band,
    and for each the series whose colour it takes. `panels` names the panels in their order: those
    without scores stay empty. `published` gives by panel ('' where there is one) what
    `paper.published_scores` gives, drawn in grey.
    """
    check_columns(frame, ["length", "score", "low", "high", series], "series_by_length")
    # An empty figure would look like a model that scores nothing.
    if frame.empty:
        raise UserError("no scores to draw; give the scores of a run that has some")

    groups = _groups(frame, series, panels)
    models, titles = (list(dict.fromkeys(names)) for names in list(zip(*groups, strict=True))[:2])
    is_grid = len(models) > 1 and len(titles) > 1
    columns = len(titles) if is_grid else min(len(groups), columns)
    notes = _notes_of_lines(frame, series, dashed_beyond, published)
    most = max(rows[series].nunique() for *_, rows in groups)
    height = 1.3 if columns > 2 else 1.7
    shared: Any = {"series": most, "threshold": threshold, "shown": frame, "sharey": True, "ax": ax}
    with draw_in(len(groups), columns, height, *notes, note, sharex="col", **shared) as drawn:
        looks = _looks_of_models(frame, series) if series in MODELS else {}
        for i, (axes, (_, title, rows)) in enumerate(zip(drawn, groups, strict=True)):
            if series not in MODELS:
                looks = _looks_of_tasks(frame, rows, series, flat)
            _lines(axes, rows, series, looks, dashed_beyond, flat)
            printed = published.get(title, {})
            _grey_lines(axes, printed)

            # The panels of a column have one x axis.
            lengths = set().union(*printed.values())
            for *_, below in groups[i % columns :: columns]:
                lengths.update(below["length"])
            _length_axis(axes, sorted(lengths or {*frame["length"]}))
        _name_panels(drawn, groups, columns, is_grid, series in MODELS)
    return drawn


def _groups(
    frame: "pd.DataFrame", series: str, panels: Sequence[str]
) -> list[tuple[str, str, "pd.DataFrame"]]:
    """Model, title and rows of each panel, row by row; '' where there is one model or panel."""
    models, titles = [""], list(panels) or [""]
    if "label" in frame and series not in MODELS and frame["label"].nunique() > 1:
        models = list(frame["label"].unique())
    if "panel" in frame and not panels:
        titles = list(frame["panel"].unique())
    groups = []
    for model, title in product(models, titles):
        rows = frame[frame["label"] == model] if model else frame
        groups.append((model, title, rows[rows["panel"] == title] if title else rows))
    return groups


def _looks_of_models(rows: "pd.DataFrame", series: str) -> dict[str, dict[str, Any]]:
    """The look of each line of a model. Lines of the same colour differ by their dashes."""
    looks = dict[str, dict[str, Any]]()
    alike = Counter[str]()
    lines = rows.drop_duplicates(series)
    models = lines.get("model", lines[series])
    for name, model in zip(lines[series], models, strict=True):
        look = look_of(model)
        number = alike[look["color"]]
        looks[str(name)] = look | {"linestyle": DASHES[number % len(DASHES)]}
        alike[look["color"]] += 1
    return looks


def _looks_of_tasks(
    frame: "pd.DataFrame", rows: "pd.DataFrame", series: str, flat: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """The look of each series of one panel: that of its place, after the tasks that several panels
    of the frame show. A level line has the colour of its series."""
    shared = list[str]()
    if "task" in frame and "panel" in frame:
        panels_of = frame.groupby("task", sort=False)["panel"].nunique()
        shared = list(panels_of[panels_of > 1].index)
    looks = {}
    shown = rows.drop_duplicates(series)
    lines = shown[~shown[series].isin(flat)]
    tasks = lines.get("task", lines[series])
    order = list(dict.fromkeys([*shared, *tasks]))
    for name, of_task in zip(lines[series], tasks, strict=True):
        looks[str(name)] = properties_of(order.index(of_task))
    level = [name for name in shown[series] if name in flat]
    for number, name in enumerate(level):
        # Without the line it belongs to it has a colour of its own.
        look = looks.get(flat[name], properties_of(len(looks)))
        looks[name] = look | {"linestyle": _LEVEL_DASHES[number % 2]}
    return looks


def _name_panels(
    drawn: Sequence[Axes],
    groups: Sequence[tuple[str, str, "pd.DataFrame"]],
    columns: int,
    is_grid: bool,
    has_one_legend: bool,
) -> None:
    """Names of lines and panels on top, of models once at the left, of the x axis once below."""
    figure: Any = drawn[0].figure
    entries = []
    everything: dict[str, Any] = {}
    for i, (axes, (model, _, _)) in enumerate(zip(drawn, groups, strict=True)):
        handles, names = axes.get_legend_handles_labels()
        entries.append(dict(zip(names, handles, strict=True)))
        everything |= entries[-1]
        is_last = i + columns >= len(groups)
        axes.tick_params("x", labelbottom=is_last)
        axes.set_xlabel("Sequence length (tokens)" if is_last else "")
        if i % columns == 0:
            beside = f"{wrapped(model, _BESIDE)}\nScore (%)"
            axes.set_ylabel(beside if is_grid else "Score (%)")

    # One legend also where no panel would have another.
    has_one_legend |= all(len(of_panel) in (0, len(everything)) for of_panel in entries)
    # Legends take the room that the axes will have.
    if engine := figure.get_layout_engine():
        engine.execute(figure)
    tallest = 0.0
    on_top = columns if is_grid else len(drawn)
    if has_one_legend and len(drawn) > 1:
        add_legend(drawn[0], everything, of_figure=True)
    else:
        for axes, of_panel in zip(drawn[:on_top], entries, strict=False):
            if of_panel:
                legend = add_legend(axes, of_panel)
                tallest = max(tallest, legend.get_window_extent().height + 3)
    pad = 4 + tallest / figure.dpi * 72
    for axes, (model, title, _) in zip(drawn[:on_top], groups, strict=False):
        set_title(axes, title or model, loc="left", pad=pad)


def _notes_of_lines(
    frame: "pd.DataFrame",
    series: str,
    dashed_beyond: Mapping[str, float],
    published: Mapping[str, Printed],
) -> list[str]:
    """What a reader must know of the lines: it stands below them, not in the caption alone."""
    notes = ["bars: 95 % intervals"]
    if "whole" in frame and not frame["whole"].all():
        notes.append(f"mean of {counted(frame['tasks'].max(), 'task')}")
    if "complete" in frame and not frame["complete"].all():
        notes.append("incomplete")
    beyond = frame["length"] > frame[series].map(dashed_beyond).astype(float)
    if beyond.any():
        notes.append("dashed: beyond the training length")
    if any(published.values()):
        notes.append("grey: scores as printed")
    if "copied" in frame and frame["copied"].notna().any():
        notes.append("grey level line: copying the beginning of the context")
    return notes


def _lines(
    axes: Axes,
    rows: "pd.DataFrame",
    series: str,
    looks: Mapping[str, Mapping[str, Any]],
    dashed_beyond: Mapping[str, float],
    flat: Collection[str],
) -> None:
    """A line per series over length with its intervals as bars, dashed and hollow beyond the
    training length. One level line is what copying the beginning of the context scores."""
    names = list(dict.fromkeys(rows[series].astype(str)))
    for i, name in enumerate(names):
        line = rows[rows[series].astype(str) == name].sort_values("length")
        if name in flat:
            score, low, high = line[["score", "low", "high"]].mean()
            color, dashes = looks[name]["color"], looks[name]["linestyle"]
            axes.axhspan(low, high, color=color, alpha=0.15, linewidth=0, zorder=0.5)
            axes.axhline(score, color=color, linestyle=dashes, label=name, zorder=2)
            continue

        # Bars of several lines stand side by side, below them, and pale enough to lie on others.
        look = looks[name]
        shift = (i - (len(names) - 1) / 2) * min(0.03, 0.15 / len(names))
        x = line["length"] * 2**shift
        bars: Any = {"linewidth": 0.7, "alpha": 0.55, "zorder": 2}
        axes.vlines(x, line["low"], line["high"], look["color"], **bars)

        inside = line["length"] <= dashed_beyond.get(name, np.inf)
        if not inside.all():
            hollow = {"markerfacecolor": axes.get_facecolor(), "markeredgewidth": 0.8}
            dashed = {**look, **hollow, "linestyle": BEYOND_DASHES}
            # From the last point within it on: below the solid line dashes would show at its edge.
            outside = ~(inside & inside.shift(-1, fill_value=True))
            axes.plot(x, line["score"].where(outside), clip_on=False, zorder=2.9, **dashed)
        axes.plot(x, line["score"].where(inside), label=name, clip_on=False, zorder=3, **look)

    if "copied" in rows and rows["copied"].notna().any():
        level = rows["copied"].mean()
        axes.axhline(level, color=GREY_LINE, linewidth=0.7, zorder=1)


def _grey_lines(axes: Axes, printed: Printed) -> None:
    """Printed scores: thin and grey, so that they are not taken for measured ones."""
    thin = {"color": GREY_LINE, "markersize": 2.5, "linewidth": 0.7, "zorder": 1.5}
    for i, (name, scores) in enumerate(printed.items()):
        look = look_of(name) | thin | {"linestyle": DASHES[i % len(DASHES)]}
        axes.plot(list(scores), list(scores.values()), label=name, **look)


def _length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    """Lengths double, so they stand at equal distances. Where their names are too long for the axes
    every second one ... has its name, and always the longest length."""
    names = [length_name(length) for length in lengths]
    step = math.ceil(len(names) * (max(map(len, names)) + 0.5) / letters_in(axes))
    for i in range(len(names)):
        if (len(names) - 1 - i) % step:
            names[i] = ""
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, names)
    margin = 1.1 * (lengths[-1] / lengths[0]) ** 0.05
    axes.set_xlim(lengths[0] / margin, lengths[-1] * margin)
    axes.minorticks_off()
    axes.set(ylim=(0, 102), yticks=range(0, 101, 20))


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

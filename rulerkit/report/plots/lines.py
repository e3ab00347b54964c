"""Scores over length, a line for each model or series, and over models."""

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
    Panels,
    Threshold,
    add_legend,
    draw_in,
    length_ticks,
    look_of,
    properties_of,
    set_title,
    wrapped,
)
from rulerkit.report.plots.printed import Printed, grey_lines, lines_and_band
from rulerkit.report.tables import names_of
from rulerkit.scoring.effective_length import PAPERS_THRESHOLD
from rulerkit.scoring.summary import model_rows, texts_words
from rulerkit.store.places import check_columns

_BESIDE = 24  # letters of a model's name beside a row of panels
MODELS = ("label", "name")
"""The columns whose values are the names of models."""


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
    rows = means_of(lengths, category, "score_by_length")
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
    flat: Mapping[str, str] = {},
    threshold: Threshold = None,
    note: str = "",
    published: Mapping[str, Printed] = {},
    lines: Collection[str] = (),
    columns: int = 2,
    panels: Sequence[str] = (),
    ax: "Panels" = None,
) -> "list[Axes]":
    """Score over length, a line per series with its intervals as bars, a panel per value of
    `panel`, at most `columns` side by side (4 for Figures 2 to 4 in the paper's layout).

    `frame` holds percents: columns length, score, low, high, and those that name series and panel;
    without the panel's column all lines share one. Of several models (column `label`) each has a
    row of panels, with its name at the left. Series that are models (`label` or `name`) look as
    `look_of` says; a task that stands in several panels looks the same in all. A length without a
    complete score is a gap. `dashed_beyond` gives by series the length past which its line is
    dashed; `flat` names series whose one score is a dashed level line with its interval as a band,
    and for each the series whose colour it takes. `panels` names the panels in their order: those
    without scores stay empty. `published` gives by panel ('' where there is one) what
    `paper.published_scores` gives, drawn in grey; `lines` as in `score_by_length`, by the names
    that these have.
    """
    check_columns(frame, ["length", "score", "low", "high", series], "series_by_length")
    # An empty figure would look like a model that scores nothing.
    if frame.empty:
        raise UserError("no scores to draw; give the scores of a run that has some")

    groups, is_grid = _groups(frame, series, panel, panels)
    columns = len({title for _, title, _ in groups}) if is_grid else min(len(groups), columns)
    grey = {key: lines_and_band(published[key], lines) for key in published}
    notes = _notes_of_lines(frame, series, dashed_beyond, grey)
    most = max(rows[series].nunique() for *_, rows in groups)
    height = 1.3 if columns > 2 else 1.7
    shared: Any = {"series": most, "threshold": threshold, "shown": frame, "sharey": True}
    with draw_in(len(groups), columns, height, ax, *notes, note, sharex="col", **shared) as drawn:
        looks = _looks(groups, series, flat)
        for i, (axes, (_, title, rows)) in enumerate(zip(drawn, groups, strict=True)):
            # The panels of a column have one x axis.
            printed = grey.get(title, ({}, {}))
            lengths = {
                int(n) for *_, below in groups[i % columns :: columns] for n in below["length"]
            }
            for scores in printed:
                lengths.update(*scores.values())
            ticks = sorted(lengths or set(frame["length"]))
            _lines(axes, rows, series, looks[title], ticks, dashed_beyond, flat)
            grey_lines(axes, *printed, height if ax is None else None)
        has_one_legend = series in MODELS
        _name_panels(drawn, groups, columns if ax is None else 0, is_grid, has_one_legend)
    return drawn


def _groups(
    frame: "pd.DataFrame", series: str, panel: str, panels: Sequence[str]
) -> tuple[list[tuple[str, str, "pd.DataFrame"]], bool]:
    """Model, title and rows of each panel, row by row ('' where there is one model or panel), and
    whether they are a grid of models by panels."""
    models, titles = [""], list(panels) or [""]
    if "label" in frame and series not in MODELS and frame["label"].nunique() > 1:
        models = list(dict.fromkeys(frame["label"]))
    if panel in frame and not panels:
        titles = list(dict.fromkeys(frame[panel]))
    groups = []
    for model, title in product(models, titles):
        rows = frame[frame["label"] == model] if model else frame
        groups.append((model, title, rows[rows[panel] == title] if title else rows))
    return groups, len(models) > 1 and len(titles) > 1


def _looks(
    groups: Sequence[tuple[str, str, "pd.DataFrame"]], series: str, flat: Mapping[str, str]
) -> dict[str, dict[str, dict[str, Any]]]:
    """The look of each series by the title of its panel: that of its model, in a second run of it
    with other dashes, or that of its place, after the tasks that several panels show."""
    parts = [rows.assign(title=title, name=rows[series].astype(str)) for _, title, rows in groups]
    shown = pd.concat(parts).drop_duplicates(["title", "name"])
    shown = shown.assign(**{key: shown.get(key, shown["name"]) for key in ("model", "task")})
    looks: dict[str, dict[str, dict[str, Any]]] = {title: {} for _, title, _ in groups}
    if series in MODELS:
        runs = shown.groupby("model")["name"].transform(lambda names: pd.factorize(names)[0])
        row: Any
        for row, run in zip(shown.itertuples(), runs, strict=True):
            look = look_of(row.model) | {"linestyle": DASHES[run % len(DASHES)]}
            looks[row.title][row.name] = look
        return looks

    panels_of = shown.groupby("task", sort=False)["title"].nunique()
    common = list(panels_of[panels_of > 1].index)
    by_title: Any = shown.groupby("title", sort=False)
    for title, of_panel in by_title:
        is_line = ~of_panel["name"].isin(flat) & ~of_panel["task"].isin(common)
        order = [*common, *of_panel["task"][is_line]]
        lines = of_panel[~of_panel["name"].isin(flat)]
        names = dict(zip(lines["name"], lines["task"], strict=True))
        looks[title] = {name: properties_of(order.index(task)) for name, task in names.items()}
        for name in of_panel["name"][of_panel["name"].isin(flat)]:
            # without the line it belongs to it has a colour of its own
            looks[title][name] = looks[title].get(flat[name], properties_of(len(looks[title])))
    return looks


def _name_panels(
    drawn: Sequence[Axes],
    groups: Sequence[tuple[str, str, "pd.DataFrame"]],
    columns: int,
    is_grid: bool,
    has_one_legend: bool,
) -> None:
    """Names of lines and panels on top, of models once at the left, of the x axis once below; in
    axes of the user's (no `columns`) at each of them."""
    entries = []
    for i, (axes, (model, _, _)) in enumerate(zip(drawn, groups, strict=True)):
        handles, names = axes.get_legend_handles_labels()
        entries.append(dict(zip(names, handles, strict=True)))
        is_last = i + columns >= len(groups) or not columns
        axes.tick_params("x", labelbottom=is_last)
        axes.set_xlabel("Sequence length (tokens)" if is_last else "")
        if not columns or i % columns == 0:
            beside = f"{wrapped(model, _BESIDE)}\nScore (%)"
            axes.set_ylabel(beside if is_grid else "Score (%)")

    # One legend also where no panel would have another.
    everything: dict[str, Any] = {}
    for of_panel in entries:
        everything |= of_panel
    has_one_legend |= all(len(of_panel) in (0, len(everything)) for of_panel in entries)
    tallest = 0.0
    figure: Any = drawn[0].figure
    if columns:
        # legends take the room that the axes will have
        figure.get_layout_engine().execute(figure)
    on_top = len(drawn) if not is_grid or not columns else columns
    if columns and has_one_legend:
        add_legend(drawn[0], everything, of_figure=True)
    else:
        for axes, of_panel in zip(drawn[:on_top], entries, strict=False):
            if of_panel:
                legend = add_legend(axes, of_panel)
                tallest = max(tallest, legend.get_window_extent().height + 3)
    pad = 4 + tallest / figure.dpi * 72
    for axes, (model, title, _) in zip(drawn[:on_top], groups, strict=False):
        set_title(axes, title or model, loc="left", pad=pad)


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
        notes.append("grey level line: copying the beginning of the context")
    return notes


def _lines(
    axes: Axes,
    rows: "pd.DataFrame",
    series: str,
    looks: Mapping[str, Mapping[str, Any]],
    lengths: Sequence[int],
    dashed_beyond: Mapping[str, float],
    flat: Collection[str],
) -> None:
    """A line per series over length. One level line is what copying the beginning of the context
    scores."""
    names = list(dict.fromkeys(rows[series].astype(str)))
    for i, name in enumerate(names):
        line = rows[rows[series].astype(str) == name].sort_values("length")
        if name in flat:
            score, low, high = line[["score", "low", "high"]].mean()
            color = looks[name]["color"]
            axes.axhspan(low, high, color=color, alpha=0.15, linewidth=0, zorder=0.5)
            axes.axhline(score, color=color, linestyle=BEYOND_DASHES, label=name, zorder=2)
            continue
        # bars of several lines stand side by side
        shift = (i - (len(names) - 1) / 2) * min(0.03, 0.15 / len(names))
        x, beyond = line["length"] * 2**shift, dashed_beyond.get(name, np.inf)
        line_with_bars(axes, x, line, name, looks[name], beyond)

    if "copied" in rows and rows["copied"].notna().any():
        level = rows["copied"].mean()
        axes.axhline(level, color=GREY_LINE, linewidth=0.7, zorder=1)

    # Lengths double, so they stand at equal distances.
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, length_ticks(axes, lengths))
    margin = 1.1 * (lengths[-1] / lengths[0]) ** 0.05
    axes.set_xlim(lengths[0] / margin, lengths[-1] * margin)
    axes.minorticks_off()
    axes.set(ylim=(0, 102), yticks=range(0, 101, 20))


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

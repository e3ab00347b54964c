"""The figures: one function each, from a DataFrame to matplotlib Axes, fit for a page in print.
Scores are percent.

Every function draws into `ax` where it is given (one Axes, or a list of them where a figure has
several panels), else into a figure of its own, and returns what it drew into. A figure of yours
needs `layout="constrained"`, which makes room for names and notes. `note` stands small below the
figure: see `remarks`. Figures are as wide as one or both columns of a two-column paper,
and all text on them is readable in print: 7 points, with a contrast of at least 4.5 to 1. Fonts,
colours and line widths are those of `style`; markers and dashes differ too.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from rulerkit.corpora import OWN_TEXTS
from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.failures import LABELS
from rulerkit.floors import not_above
from rulerkit.lengths import PAPERS_THRESHOLD, length_name
from rulerkit.lengths import SMALL as SMALL_TASKS
from rulerkit.paper import published_scores
from rulerkit.tables import names_of

Panels = Axes | Sequence[Axes] | None
SINGLE, DOUBLE = 3.35, 6.9
"""The widths of one column and of two, in inches."""
_GREY = "0.35"
_GREY_LINE = "0.45"  # the lightest grey in which text on white has a contrast of 4.5 to 1
_MARKERS, _DASHES = "osD^vPX*", ("-", (0, (4, 1.5)), (0, (1, 1)))
_BEYOND, _THRESHOLD, _FLAT = (0, (2.5, 1.2)), (0, (4, 2)), (0, (3, 1, 1, 1))
_HATCHES = ("", "/////", "....")
_NARROW = 34  # letters: a panel below this has no space for names beside it


# --- scores over length ---------------------------------------------------------------------------


def score_by_length(
    lengths: "pd.DataFrame",
    threshold: float | Mapping[str, float] | None = None,
    note: str = "",
    category: str = "all",
    published: Sequence[str] = (),
    ax: "Axes | None" = None,
) -> "Axes":
    """Score over length, a line per model with its interval as a band.

    `lengths` is `Summary.lengths`, of which the rows of `category` are drawn; a length without a
    complete score is a gap. `threshold` is drawn dashed: one number, or several with their names
    (see `thresholds`). `published` names models of the paper or of upstream's list, whose printed
    scores are drawn in grey (see `paper.published_scores`).
    """
    rows = _means(lengths, category)
    grey = published_scores(published, category)
    size = rows["name"].nunique() + len(grey)
    height, notes = max(1.8, 0.15 * size), ("grey: scores as printed" * bool(grey), note)
    with _figure(1, 1, height, ax, *notes, width=DOUBLE * (size > 8)) as (axes,):
        _lines(axes, rows, "name", threshold, grey, bands=True)
    return axes


def series_by_length(
    frame: "pd.DataFrame",
    series: str = "series",
    panel: str = "panel",
    dashed_beyond: Mapping[str, float] = {},
    flat: Collection[str] = (),
    threshold: float | Mapping[str, float] | None = None,
    note: str = "",
    published: Mapping[str, Mapping[str, Mapping[int, float]]] = {},
    columns: int = 2,
    ax: "Panels" = None,
) -> "list[Axes]":
    """Score over length, a line per series with its intervals as bars, a panel per value of
    `panel`, at most `columns` side by side (4 for Figures 2 to 4 in the paper's layout).

    `frame` holds percents: columns length, score, low, high, and those that name series and panel;
    without the panel's column all lines share one. Several models (column `label`) have a row of
    panels each. `dashed_beyond` gives by series the length past which its line is dashed; `flat`
    names series that are one level at all lengths. `published` gives by panel (''
    where there is one) what `paper.published_scores` gives, drawn in grey.
    """
    scored = frame.dropna(subset=["score"])
    if scored.empty:
        raise UserError(
            "no complete scores to draw: run the evaluation again to complete its cells"
        )
    keys = [key for key in ("label", panel) if key in frame and key != series]
    groups = list(frame.groupby(keys, sort=False)) if keys else [((), frame)]
    num_models = frame["label"].nunique() if "label" in keys else 1
    columns = min(len(groups) // num_models if len(groups) > num_models else num_models, columns)
    most = max(rows[series].nunique() for _, rows in groups) + any(published.values())
    height = 1.3 if columns > 2 else max(1.5, 0.15 * most)
    beyond = scored["length"] > scored[series].map(dashed_beyond).astype(float)
    notes = (
        "dashed: beyond the training length" * bool(beyond.any()),
        "grey: scores as printed" * any(published.values()),
        "dotted: floor" * bool("floor" in frame and (frame["floor"] >= 1).any()),
        note,
    )
    width = DOUBLE * (most > 8)
    with _figure(len(groups), columns, height, ax, *notes, width=width, sharey=True) as panels:
        for i, (axes, (names, rows)) in enumerate(zip(panels, groups, strict=True)):
            title = str(names[-1]) if panel in keys else ""
            _lines(axes, rows, series, threshold, published.get(title, {}), dashed_beyond, flat)
            if ax is None and i % columns:
                axes.set_ylabel("")
            _title(axes, *(names if num_models > 1 else [title]), loc="left")
    return panels


def _lines(
    axes: Axes,
    rows: "pd.DataFrame",
    series: str,
    threshold: Any,
    grey: Mapping[str, Mapping[int, float]],
    dashed: Mapping[str, float] = {},
    flat: Collection[str] = (),
    bands: bool = False,
) -> None:
    """Lines with intervals, each with its name at its end; behind them those of `grey`, scores by
    length of each name, without any; and the thresholds."""
    names = list(dict.fromkeys(rows[series]))
    lengths = sorted({int(n) for n in rows["length"]}.union(*grey.values()))
    bands = bands and len(lengths) > 1
    ends: list[Any] = []
    for i, name in enumerate(names):
        line = rows[rows[series] == name].sort_values("length")
        scored = line.dropna(subset=["score"])
        color = _color(i)
        if scored.empty:
            continue
        if name in flat:
            level = scored.iloc[0]
            axes.axhline(level["score"], color=color, linestyle=_FLAT, label=name)
            axes.axhspan(level["low"], level["high"], color=color, alpha=0.14, linewidth=0)
            ends.append((lengths[-1], level["score"], str(name), color))
            continue
        # bars of several lines stand side by side
        shift = 0 if bands else (i - (len(names) - 1) / 2) * min(0.05, 0.3 / len(names))
        _line(axes, line["length"] * 2**shift, line, i, str(name), dashed.get(name, np.inf), bands)
        if "floor" in line and (line["floor"] >= 1).any():
            x, y = line["length"], line["floor"]
            axes.plot(x, y, color=color, linestyle=":", linewidth=0.7, zorder=1)
        x, y = scored[["length", "score"]].iloc[-1]
        ends.append((x * 2**shift, y, str(name), color))
    for i, (name, scores) in enumerate(grey.items()):
        points, marker = list(scores.items()), _MARKERS[i % 8]
        look: Any = {"color": _GREY_LINE, "marker": marker, "markersize": 2, "linewidth": 0.6}
        axes.plot(*zip(*points, strict=True), label=name, zorder=1.5, **look)
        ends.append((*points[-1], name, _GREY_LINE))
    axes.set_xscale("log", base=2)
    step = 1 + (_room(axes)[0] < _NARROW and len(lengths) > 5)
    ticks = [length_name(n) if i % step == 0 else "" for i, n in enumerate(lengths)]
    axes.set_xticks(lengths, ticks)
    axes.minorticks_off()
    if len(lengths) == 1:
        axes.set_xlim(lengths[0] / 2, lengths[0] * 1.12)
    axes.set(xlabel="Sequence length (tokens)", ylabel="Score (%)", ylim=(0, 102))
    _label_ends(axes, ends, 0.8 * lengths[-1])
    _thresholds(axes, threshold)


def _line(
    axes: Axes,
    x: Any,
    line: "pd.DataFrame",
    i: int,
    label: str,
    beyond: float = np.inf,
    band: bool = False,
) -> None:
    """Series i, dashed and hollow beyond a length, with its intervals as bars, or as a band, in
    which a point between gaps has a bar."""
    columns = line[["score", "low", "high"]].to_numpy(float).T
    x, (y, low, high), look = np.asarray(x), columns, _look(i)
    inside = int((line["length"] <= beyond).sum())
    barred = np.isfinite(y)
    if band:
        axes.fill_between(x, low, high, color=look["color"], alpha=0.14, linewidth=0)
        gap = np.isnan([np.nan, *y, np.nan])
        barred &= gap[:-2] & gap[2:]
    if barred.any():
        bars = x[barred], low[barred], high[barred]
        axes.vlines(*bars, look["color"], linewidth=0.7, alpha=0.55, zorder=2)
    axes.plot(x[:inside], y[:inside], clip_on=False, zorder=3, label=label, **look)
    if inside < len(x):
        last = max(0, inside - 1)
        axes.plot(x[last:], y[last:], color=look["color"], linestyle=_BEYOND, zorder=2.9)
        look |= {"linestyle": "", "markerfacecolor": axes.get_facecolor(), "markeredgewidth": 0.8}
        axes.plot(x[inside:], y[inside:], clip_on=False, zorder=3, **look)


def series_table(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The numbers of `series_by_length` as text: a row per line, a column per length, `score [low,
    high]` or what there is of an incomplete score."""
    keys = [
        key for key in ("label", "panel", "series") if key in frame and frame[key].nunique() > 1
    ]
    lines = frame[keys or ["label"]].astype(str).agg(" · ".join, axis=1)
    percents = frame[["score", "low", "high"]].apply(
        lambda row: "{:.1f} [{:.1f}, {:.1f}]".format(*row), axis=1
    )
    texts = frame["have"].where(frame["score"].isna(), percents)
    wide = frame.assign(line=lines, text=texts).pivot(index="line", columns="length", values="text")
    return wide.loc[lines.unique()].fillna("").rename(columns=length_name).rename_axis(None)


def remarks(cells: "pd.DataFrame") -> str:
    """What a figure must say below itself of the cells (or the labels) that it shows: reference
    readers, the small protocol, stand-in corpora, texts of the user's, incomplete cells."""
    facts = {"reference readers": cells["engine"] == "reader"}
    facts["small protocol"] = cells["task"].str.endswith(SMALL_TASKS)
    if "stand_in" in cells:
        own = cells["note"].str.contains(OWN_TEXTS, na=False)
        facts |= {OWN_TEXTS: own, "stand-in corpora": cells["stand_in"].astype(bool) & ~own}
    if "complete" in cells:
        facts["incomplete"] = ~cells["complete"]
    return "; ".join(text for text, is_so in facts.items() if is_so.any())


def thresholds(models: "pd.DataFrame", category: str = "all") -> dict[str, float]:
    """The paper's thresholds that `Summary.models` was judged by, with their names; none where the
    tasks are not the thirteen."""
    judged = models[(models["category"] == category) & (models["effective_length"] != "")]
    judged = judged[judged["threshold_of"] == PAPERS_THRESHOLD]
    limits = judged.drop_duplicates("aligned").set_index("aligned")["threshold"].astype(float)
    several = len(limits) > 1
    return {f"Llama2-7B{f' ({kind})' * several} at 4K": value for kind, value in limits.items()}


def _means(lengths: "pd.DataFrame", category: str) -> "pd.DataFrame":
    """The rows of a category with the names of their models."""
    rows = lengths[lengths["category"] == category]
    if rows.empty:
        raise UserError(
            f"no scores of category {category!r} to draw; summarize a run that has some"
        )
    return rows.assign(name=names_of(rows))


def scores_over_models(
    lengths: "pd.DataFrame",
    threshold: float | Mapping[str, float] | None = None,
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
    with _figure(1, 1, 1.7, ax, note, width=DOUBLE * (len(names) > 8)) as (axes,):
        for i, (length, line) in enumerate(rows.groupby("length")):
            x = line["name"].map(names.index) + 0.04 * i
            _line(axes, x, line, i, length_name(int(str(length))))
        _thresholds(axes, threshold)
        ticks = [_wrapped(name, 34) for name in names]
        axes.set_xticks(range(len(names)), ticks, rotation=35, ha="right", rotation_mode="anchor")
        axes.set(ylim=(0, 102), ylabel="Score (%)")
        axes.legend()
    return axes


def training_curve(
    history: "pd.DataFrame", live: Any = None, note: str = "", ax: "Panels" = None
) -> "list[Axes]":
    """The loss of answer tokens and the share of examples answered without an error, over the steps
    of a training. `history` is what `training.train` gives; `live`, a handle of IPython's `display`,
    shows the figure in place of what it showed."""
    right = "Right, new examples (%)"
    with _figure(2, 2, 1.5, ax, note) as panels:
        lines = (history["loss"], "Loss of answer tokens"), (100 * history["right"], right)
        for i, (axes, (values, name)) in enumerate(zip(panels, lines, strict=True)):
            look: Any = {"color": _color(i), "marker": "o" * (len(history) == 1)}
            axes.plot(history["step"], values, clip_on=False, **look)
            axes.locator_params("x", integer=True)
            axes.set(xlim=(0, None), ylim=(0, 102 if i else None), ylabel=name, xlabel="Step")
    if live is not None:
        live.update(panels[0].figure)
        plt.close("all")
    return panels


# --- depth ----------------------------------------------------------------------------------------


def recall_by_depth(
    bins: "pd.DataFrame", note: str = "", ax: "Panels" = None, by: str = "depth"
) -> "list[Axes]":
    """Recall over depth, or over the 'distance' to the item before, with intervals, a line per
    length, a panel per model and task. `bins` is what `depth.by_bin` gives."""
    groups = list(bins.groupby(["run", "model", "label", "task"], sort=False))
    several = bins.groupby(["run", "model"]).ngroups > 1
    columns, lengths = min(len(groups), 3), sorted(bins["length"].unique())
    with _figure(len(groups), columns, 1.2, ax, note, sharex=True, sharey=True) as panels:
        for axes, ((_, _, label, task), rows) in zip(panels, groups, strict=True):
            rows = _all_bins(rows, by)
            for i, length in enumerate(lengths):
                line = rows[rows["length"] == length]
                x = (line[f"{by}_from"] + line[f"{by}_to"]) / 2 + (i - len(lengths) / 2) * 1.2
                _line(axes, x, line, i, length_name(int(length)))
            _title(axes, *[label] * several, task)
            axes.set(xlim=(0, 100), ylim=(0, 102), xticks=[0, 50, 100], yticks=[0, 50, 100])
        for axes in panels[-columns:]:
            axes.set_xlabel("Depth (%)" if by == "depth" else "Distance to the item before (%)")
            axes.tick_params(labelbottom=True)
        for axes in panels[::columns]:
            axes.set_ylabel("Recall (%)")
        panels[columns - 1].legend(loc="upper left", bbox_to_anchor=(1, 1))
    return panels


def depth_map(bins: "pd.DataFrame", task: str, note: str = "", ax: "Panels" = None) -> "list[Axes]":
    """Recall of one task by depth and length as a map, a panel per model. `bins` is what
    `depth.by_bin` gives."""
    models = list(bins[bins["task"] == task].groupby(["run", "model", "label"], sort=False))
    if not models:
        raise UserError(f"no depths of task {task!r} to draw: name one that was asked")
    with _figure(len(models), min(len(models), 2), 1.8, ax, note) as panels:
        for axes, ((_, _, label), rows) in zip(panels, models, strict=True):
            rows = _all_bins(rows, "depth")
            scores = rows.pivot(index="depth_from", columns="length", values="score")
            edges = pairwise([*scores.index, 100])
            scores.index = [f"{start:.0f}–{end:.0f}" for start, end in edges]
            scores = scores.rename(columns=length_name)
            _heatmap(axes, scores, scores.map("{:.0f}".format).replace("nan", ""))
            _title(axes, f"{label}: {task}")
            axes.set(xlabel="Length (tokens)", ylabel="Depth (%)")
    return panels


def _all_bins(rows: "pd.DataFrame", by: str) -> "pd.DataFrame":
    """The bins of each length, with those that hold no item."""
    start, end = f"{by}_from", f"{by}_to"
    edges = np.linspace(0, 100, round(100 / (rows[end] - rows[start]).iloc[0]) + 1)
    bins = pd.DataFrame({start: edges[:-1], end: edges[1:]})
    return rows[["length"]].drop_duplicates().merge(bins, how="cross").merge(rows, how="left")


# --- tables in colour -----------------------------------------------------------------------------


def tasks_by_length(
    cells: "pd.DataFrame", model: str | None = None, note: str = "", ax: "Panels" = None
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
    below = not_above(cells)
    texts = cells["score"].map("{:.1f}".format).where(cells["score"].notna(), cells["have"])
    cells = cells.assign(name=names_of(cells), text=texts.where(~below, "(" + texts + ")"))
    models = list(cells.groupby("name", sort=False))
    height = 0.175 * cells["task"].nunique()
    notes = (note, "in brackets: not above the floor" * bool(below.any()))
    with _figure(len(models), min(len(models), 2), height, ax, *notes, sharey=True) as panels:
        for axes, (name, rows) in zip(panels, models, strict=True):
            tasks = rows.drop_duplicates("task")
            wide: Any = rows.pivot(index="task", columns="length").rename(
                columns=length_name, level="length"
            )
            wide = wide.loc[tasks["task"]]
            _heatmap(axes, wide["score"], wide["text"])
            _separate(axes.axhline, tasks["task"], "white", 0.6)
            _separate(axes.axvline, wide["score"], "white", 0.6)
            _separate(axes.axhline, tasks["category"], "white", 2.5)
            _title(axes, name)
    return panels


def _separate(
    draw: Callable[..., Any], groups: Iterable[str], color: str, linewidth: float
) -> None:
    """Lines between the fields of a heatmap where the group changes."""
    for i, (group, following) in enumerate(pairwise(groups)):
        if group != following:
            draw(i + 0.5, color=color, linewidth=linewidth)


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
        lambda r: "" if np.isnan(r) else f"{r:z.2f}".replace("0.", ".").replace("1.00", "1")
    )
    with _figure(1, 1, 0.24 * len(correlations), ax, note, width=DOUBLE) as (axes,):
        image = _heatmap(axes, correlations, text, [_color(4), "#FFFFFF"], -1)
        axes.set_aspect("equal")
        axes.tick_params("x", rotation=55)
        plt.setp(axes.get_xticklabels(), ha="right", rotation_mode="anchor")
        red = _readable("#C00000", axes.figure.get_facecolor())
        for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
            if label.get_text() in marked:
                label.set(color=red, fontweight="bold")
        _separate(axes.axhline, groups, "black", 0.8)
        _separate(axes.axvline, groups, "black", 0.8)
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label("Correlation of task scores")
    return axes


def _heatmap(
    axes: Axes,
    values: "pd.DataFrame",
    texts: "pd.DataFrame",
    colors: Sequence[str] = ("#EDF3F8",),
    lowest: float = 0,
) -> Any:
    """A table in colour with a text in each field; a field without a value is grey. The colours
    lead from the lowest value, 0 or -1, to 100 or 1."""
    numbers = values.to_numpy(dtype=float)
    paint = LinearSegmentedColormap.from_list("", [*colors, _color(0)])
    axes.set_facecolor("0.88")
    limits: Any = {"vmin": lowest, "vmax": -lowest or 100}
    image = axes.imshow(numbers, paint, aspect="auto", interpolation="nearest", **limits)
    axes.set_xticks(range(len(values.columns)), map(str, values))
    axes.set_yticks(range(len(values)), map(str, values.index))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for (row, column), text in np.ndenumerate(texts.to_numpy()):
        number = numbers[row, column]
        ground = axes.get_facecolor() if np.isnan(number) else paint(image.norm(number))
        axes.text(column, row, text, ha="center", va="center", color=_readable("black", ground))
    return image


# --- failures -------------------------------------------------------------------------------------


def failures_by_length(shares: "pd.DataFrame", note: str = "", ax: "Panels" = None) -> "list[Axes]":
    """What became of the answers at each length, in percent, complete ones below; a panel per model
    and task.

    `shares` is `failures.shares`. A label looks the same in every figure.
    """
    if shares.empty:
        raise UserError("no labels to draw; label the cells of a run that has some")
    kinds = [kind for kind in LABELS if shares.loc[shares["label"] == kind, "count"].sum()]
    groups = list(shares.groupby(["run", "model", "task"], sort=False))
    models = shares.groupby(["run", "model"], sort=False)["task"].nunique()
    columns = min(int(models.max()), 4)
    looks: dict[str, Any] = {kind: {"edgecolor": "white", "linewidth": 0.3} for kind in kinds}
    with style():  # complete answers are pale; the other labels differ by colour and hatch
        for i, label in enumerate(LABELS, -1):
            color, hatch = (_color(i), _HATCHES[i // 7 % 3]) if i >= 0 else ("#E9EDF0", "")
            looks.get(label, {}).update(facecolor=color, hatch=hatch)
    height = max(1.1, 0.16 * len(kinds) / -(-len(groups) // columns))
    with _figure(len(groups), columns, height, ax, note, sharey=True) as panels:
        for i, (axes, (_, cells)) in enumerate(zip(panels, groups, strict=True)):
            table = 100 * cells.pivot(index="length", columns="label", values="share").sort_index()
            table = table.reindex(columns=kinds).fillna(0)
            bottoms, places = table.cumsum(axis="columns") - table, range(len(table))
            for kind in kinds:
                axes.bar(places, table[kind], bottom=bottoms[kind], width=0.82, **looks[kind])
            axes.set_xticks(places, [length_name(int(n)) for n in table.index])
            axes.tick_params(axis="x", length=0)
            _title(axes, *[cells["name"].iloc[0]] * (len(models) > 1), cells["task"].iloc[0])
            axes.set(
                ylim=(0, 100),
                xlim=(-0.6, max(1.4, len(table) - 0.4)),
                ylabel="Answers (%)" if i % columns == 0 else "",
                xlabel="Length (tokens)" if i + columns >= len(panels) else "",
            )
        figure = panels[0].figure
        figure.legend(
            handles=[Patch(label=kind, **looks[kind]) for kind in reversed(kinds)],
            loc="outside right upper",
            handleheight=1.0,
        )
        if len(models) == 1:
            figure.suptitle(str(shares["name"].iloc[0]))
    return panels


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
    height, places = 0.16 * (len(tasks) + 2.8), [*range(len(tasks)), len(tasks) + 0.4]
    with _figure(1, 1, height, ax, note) as (axes,):
        axes.axvline(0, color=_GREY, linewidth=0.7, zorder=1)
        if margin is not None:
            axes.axvline(-margin, color=_GREY, linewidth=0.7, linestyle=_THRESHOLD, zorder=1)
            place: Any = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
            axes.text(-margin, 1.0, f"margin -{margin:g}", **place)
        drawn: Any = [*tasks.itertuples(), *mean.itertuples()]
        for y, row in zip(places, drawn, strict=True):
            color = _color(1) if row.high < 0 else _color(0) if row.low > 0 else _GREY
            axes.plot([row.low, row.high], [y, y], color=color, linewidth=1.0, zorder=2)
            axes.plot(
                [row.difference],
                [y],
                "D" if row.level == "all" else "o",
                color=color,
                markerfacecolor="white" if color == _GREY else color,
                markeredgewidth=0.8,
                zorder=3,
            )
        axes.axhline(len(tasks) - 0.3, color="0.7", linewidth=0.5)
        axes.set_yticks(places, [*map(str, tasks["task"]), "mean"])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(places[-1] + 0.7, -0.7)
        axes.set_xlabel(_wrapped(f"{names[1]} - {names[0]} (points)", _room(axes)[0]))
    return axes


# --- Figure 1 -------------------------------------------------------------------------------------


def word_counts(example: Example) -> "pd.DataFrame":
    """How often each word stands in an example's list or coded text: columns word, role, count,
    rank (from 1).

    Words are the pieces of the context, without the number of a numbered list; the most frequent
    come first.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for block in example.blocks[slice(*example.context)]:
        for piece in block.explode() if block.explode else [block]:
            counts[re.sub(r"^\d+\. ", "", piece.text.strip()), piece.role] += 1
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
        shown = cwe.head(num_types)
        for i, (role, name) in enumerate({"needle": "common", "haystack": "uncommon"}.items()):
            rows, whole = (words[words["role"] == role] for words in (shown, cwe))
            times = "/".join(map(str, sorted(whole["count"].unique())))
            label = f"{len(whole)} {name} words, {times} times each"
            left.bar(rows["rank"], rows["count"], width=0.8, color=_color(1 - i), label=label)
        of_all = f"Word type, by frequency (first {len(shown)} of {len(cwe)})"
        left.set(xlabel=of_all, ylabel="Frequency", xlim=(0, len(shown) + 1))
        left.set_title("Common words extraction", loc="left")
        for i, (alpha, counts) in enumerate(sorted(fwe.items())):
            x, y = np.log(counts[["rank", "count"]].to_numpy(dtype=float)).T
            right.plot(x, y[0] - alpha * x, color=_color(i), linewidth=0.5, alpha=0.7)
            look = _look(i) | {"linestyle": "", "markersize": 2.4}
            right.plot(x, y, label=f"α = {float(alpha)}", clip_on=False, **look)
        answers = np.log(next(iter(fwe.values())).query("role == 'needle'")["rank"])
        first, last = answers.min() - 0.12, answers.max() + 0.12
        right.axvspan(first, last, color="0.93", linewidth=0, label="answers")
        right.set(xlabel="ln (word rank)", ylabel="ln (frequency)", xlim=(0, None), ylim=(0, None))
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
    sheet = Path(__file__).parent / "data" / "rulerkit.mplstyle"
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
    width: float = 0,
    **shared: Any,
) -> Iterator[list[Axes]]:
    """The panels that were given, or those of a new figure, row by row, drawn in the common style,
    with notes below. `height`, of each panel without the texts around it, and `width`, of the
    figure, are in inches; by default one column of the page for one column of panels, else two."""
    num_rows = -(-count // columns)
    with style():
        if ax is None:
            size = width or (SINGLE if columns == 1 else DOUBLE), (height + 1) * num_rows
            look: Any = {"figsize": size, "squeeze": False, "FigureClass": PrintFigure, **shared}
            panels = list(plt.subplots(num_rows, columns, **look)[1].flat)
            for spare in panels[count:]:
                spare.remove()
        else:
            panels = np.ravel(np.asarray(ax)).tolist()
            if len(panels) != count:
                given = f"ax has {len(panels)} axes, the figure {count} panels: give {count}"
                raise UserError(given)
        yield panels[:count]
        figure: Any = panels[0].figure
        if any(notes):  # those of other panels of the figure stay
            parts = [figure.get_supxlabel().replace("\n", " "), *notes]
            note = "; ".join(dict.fromkeys(filter(None, "; ".join(parts).split("; "))))
            letters = int(130 * figure.get_figwidth() / matplotlib.rcParams["font.size"])
            lines = _wrapped(note, letters, break_on_hyphens=False)
            figure.supxlabel(lines, fontsize="medium", x=0.99, ha="right", style="italic")
        if ax is None:
            figure.get_layout_engine().execute(figure)
            whole, drawn = figure.get_figheight(), panels[0].get_position(original=True).height
            figure.set_figheight(whole + num_rows * (height - drawn * whole))


def _color(i: int) -> str:
    """Colour i of the style, whose colours recur."""
    return to_hex(f"C{i}")


def _look(i: int) -> dict[str, Any]:
    """Colour, marker and dashes of series i."""
    return {
        "color": _color(i),
        "marker": _MARKERS[i % 8],
        "linestyle": _DASHES[i // 8 % 3],
        "markeredgewidth": 0,
    }


def contrast(one: Any, other: Any) -> float:
    """The contrast of two colours, from 1 to 21, as WCAG 2 defines it for text."""
    rgb = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    dark, light = sorted(linear @ (0.2126, 0.7152, 0.0722) + 0.05)
    return float(light / dark)


def _readable(color: str, ground: Any) -> Any:
    """A colour for text, mixed with black or white until its contrast with the ground is 4.5."""
    ink = max("black", "white", key=partial(contrast, ground))
    mixed = np.linspace(to_rgb(color), to_rgb(ink), 21)
    return next(tuple(mix) for mix in mixed if contrast(mix, ground) >= 4.5)


def _thresholds(axes: "Axes", threshold: float | Mapping[str, float] | None) -> None:
    """A thin dashed line, with its name, for each threshold."""
    if threshold is None:
        return
    named = threshold if isinstance(threshold, Mapping) else {"threshold": threshold}
    for name, value in named.items():
        axes.axhline(value, color=_GREY, linewidth=0.7, linestyle=_THRESHOLD, zorder=1)
        place: Any = {"transform": axes.get_yaxis_transform(), "ha": "right", "zorder": 4}
        axes.text(1, value + 1, f"{name}: {value:g}", path_effects=_halo(axes), **place)


def _halo(axes: "Axes") -> list[Any]:
    """What keeps a text readable on lines."""
    return [withStroke(linewidth=1.5, foreground=axes.get_facecolor())]


def _room(axes: "Axes") -> tuple[int, float]:
    """How many letters are as wide as axes, and how many lines as high, before constrained layout
    makes them fit."""
    box, size = axes.get_window_extent(), matplotlib.rcParams["font.size"] * axes.figure.dpi / 72
    return int(box.width / (0.6 * size)), box.height / (1.35 * size)


def _wrapped(text: Any, letters: int, **options: Any) -> str:
    """A text in lines of at most so many letters."""
    return "\n".join(wrap(str(text), letters, **options))


def _title(axes: "Axes", *lines: Any, loc: Any = "center") -> None:
    """A title of several lines, each wrapped to the width of the axes."""
    letters = int(1.3 * _room(axes)[0])
    axes.set_title("\n".join(_wrapped(line, letters) for line in lines), loc=loc)


def _label_ends(axes: "Axes", ends: Sequence[tuple[float, float, str, str]], last: float) -> None:
    """Each line's name right of the axes, moved apart where they would overlap, with a leader from
    the line's end; a legend below where there is no space for that. `ends` are places, names and
    colours.

    A line that ends before `last` has no leader, which would look like data: its name stands beside
    its end where there is space.
    """
    letters, lines = _room(axes)
    longest = max((len(name) for *_, name, _ in ends), default=0)
    if letters < _NARROW or longest > letters / 2 or lines < 0.9 * len(ends):
        handles, labels = axes.get_legend_handles_labels()
        wide = int(1.25 * letters) - 3
        labels = [_wrapped(label, wide) for label in labels]
        columns = max(1, (wide + 3) // (min(longest, wide) + 3))
        place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "borderaxespad": 4}
        axes.legend(handles, labels, ncols=columns, **place)
        return
    bottom, top = axes.get_ylim()
    axes.set_xlim(axes.get_xlim())
    groups: Any = {False: [], True: []}  # right of the axes, and beside the ends
    for end in sorted(ends, key=lambda end: end[1]):
        x, name = end[0], end[2]
        at = axes.transAxes.inverted().transform(axes.transData.transform((x, 0)))[0]
        fits = x < last and len(name) + longest < (1 - at) * letters
        groups[fits].append((*end, at + 0.02 if fits else 1.04))
    for group in groups.values():
        places = spread([end[1] for end in group], (top - bottom) / lines, bottom, top)
        for (x, y, name, color, at), place in zip(group, places, strict=True):
            leader = {"arrowstyle": "-", "color": color, "linewidth": 0.4, "relpos": (0, 0.5)}
            axes.annotate(
                name,
                (x, y),
                xytext=(at, (place - bottom) / (top - bottom)),
                textcoords="axes fraction",
                color=_readable(color, axes.figure.get_facecolor()),
                va="center",
                zorder=4,
                path_effects=_halo(axes),
                annotation_clip=False,
                arrowprops=leader if x > last else None,
            )


def spread(values: Sequence[float], gap: float, bottom: float, top: float) -> list[float]:
    """Rising values moved as little as it takes (least squares) to stand `gap` apart between
    `bottom` and `top`; where there is no space for all, the gap shrinks."""
    from scipy.optimize import isotonic_regression

    if not values:
        return []
    gap = min(gap, (top - bottom) / max(1, len(values) - 1))
    offsets = gap * np.arange(len(values))
    lowest = isotonic_regression(np.asarray(values) - offsets).x.clip(bottom, top - offsets[-1])
    return [float(place) for place in lowest + offsets]

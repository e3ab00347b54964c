"""The figures: one function each, from a DataFrame to matplotlib Axes, fit for a page in print.
Scores are percent.

Every function draws into `ax` where it is given (one Axes, or a list of them where a figure has
several panels), else into a figure of its own, and returns what it drew into. `note` stands small
below the figure: see `remarks`. Figures are as wide as one or both columns of a two-column paper,
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
from typing import TYPE_CHECKING, Any

import numpy as np

from rulerkit.corpora import OWN_TEXTS
from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.failures import LABELS
from rulerkit.floors import not_above
from rulerkit.lengths import PAPERS_THRESHOLD, length_name
from rulerkit.lengths import SMALL as SMALL_TASKS
from rulerkit.paper import published_scores
from rulerkit.tables import names_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    Panels = Axes | Sequence[Axes] | None

SINGLE, DOUBLE = 3.35, 6.9
"""The widths of one column and of two, in inches."""
_GREY = "0.35"
_GREY_LINE = "0.45"  # the lightest grey in which text on white has a contrast of 4.5 to 1
_MARKERS, _DASHES = "osD^vPX*", ("-", (0, (4, 1.5)), (0, (1, 1)))
_BEYOND, _THRESHOLD = (0, (2.5, 1.2)), (0, (4, 2))
_HATCHES = ("", "/////", "....")
_NARROW = 144  # points: a panel below this has no space for names beside it


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
    num_models = rows["name"].nunique() + len(grey)
    with style():
        height = max(2.3, 0.5 + 0.15 * num_models)
        (axes,) = _panels(1, 1, height, ax, DOUBLE * (num_models > 8))
        _lines(axes, rows, "name", grey, bands=True)
        _thresholds(axes, threshold)
        _note(axes, "grey: scores as printed" * bool(grey), note)
    return axes


def series_by_length(
    frame: "pd.DataFrame",
    series: str = "series",
    panel: str = "panel",
    dashed_beyond: Mapping[str, float] | None = None,
    flat: Collection[str] = (),
    threshold: float | Mapping[str, float] | None = None,
    note: str = "",
    published: Mapping[str, Mapping[str, Mapping[int, float]]] | None = None,
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
    published = published or {}
    keys = [key for key in ("label", panel) if key in frame and key != series]
    groups = list(frame.groupby(keys, sort=False)) if keys else [((), frame)]
    num_models = frame["label"].nunique() if "label" in keys else 1
    columns = min(len(groups) // num_models if len(groups) > num_models else num_models, columns)
    most = max(rows[series].nunique() for _, rows in groups) + any(published.values())
    height = -(-len(groups) // columns) * max(2.2, (2.1 if columns > 2 else 1.1) + 0.14 * most)
    dashed = dict(dashed_beyond or {})
    beyond = scored["length"] > scored[series].map(dashed).astype(float)
    with style():
        panels = _panels(len(groups), columns, height, ax, sharey=True)
        for i, (axes, (names, rows)) in enumerate(zip(panels, groups, strict=True)):
            title = str(names[-1]) if panel in keys else ""
            _lines(axes, rows, series, published.get(title, {}), dashed, flat)
            _thresholds(axes, threshold)
            if ax is None and i % columns:
                axes.set_ylabel("")
            axes.set_title("\n".join(map(str, names)) if num_models > 1 else title, loc="left")
        _note(
            panels[0],
            "dashed: beyond the training length" * bool(beyond.any()),
            "grey: scores as printed" * any(published.values()),
            "dotted: floor, no reading" * bool("floor" in frame and (frame["floor"] >= 1).any()),
            note,
        )
    return panels


def _lines(
    axes: "Axes",
    rows: "pd.DataFrame",
    series: str,
    grey: Mapping[str, Mapping[int, float]],
    dashed: Mapping[str, float] | None = None,
    flat: Collection[str] = (),
    bands: bool = False,
) -> None:
    """Lines with intervals, each with its name at its end; behind them those of `grey`, scores by
    length of each name, without any."""
    names = list(dict.fromkeys(rows[series]))
    lengths = sorted({int(n) for n in rows["length"]}.union(*grey.values()))
    ends = []
    for i, name in enumerate(names):
        line = rows[rows[series] == name].sort_values("length")
        scored = line.dropna(subset=["score"])
        color = _color(i)
        if scored.empty:
            continue
        if name in flat:
            scored = scored.iloc[[0, 0]].assign(length=[lengths[0], lengths[-1]])
            _band(axes, scored, i)
            look: dict[str, Any] = {"color": color, "linestyle": (0, (1, 1)), "label": name}
            axes.plot(scored["length"], scored["score"], **look)
        else:
            # bars of several lines stand side by side
            shift = 0 if bands else (i - (len(names) - 1) / 2) * min(0.05, 0.3 / len(names))
            beyond = (dashed or {}).get(name, np.inf)
            _line(axes, line["length"] * 2**shift, line, i, str(name), beyond, bands)
            if "floor" in line and (line["floor"] >= 1).any():
                look = {"color": color, "linestyle": ":", "linewidth": 0.7, "zorder": 1}
                axes.plot(line["length"], line["floor"], **look)
        ends.append((scored["length"].iloc[-1], scored["score"].iloc[-1], str(name), color))
    for name, scores in grey.items():
        look = {"color": _GREY_LINE, "linewidth": 0.6, "zorder": 1.5, "label": name}
        axes.plot(*zip(*scores.items(), strict=True), **look)
        ends.append((*list(scores.items())[-1], name, _GREY_LINE))
    axes.set_xscale("log", base=2)
    step = 1 + (_points(axes)[0] < _NARROW and len(lengths) > 5)
    ticks = [length_name(n) if i % step == 0 else "" for i, n in enumerate(lengths)]
    axes.set_xticks(lengths, ticks)
    axes.minorticks_off()
    if len(lengths) == 1:
        axes.set_xlim(lengths[0] / 2, lengths[0] * 2)
    axes.set(xlabel="Sequence length (tokens)", ylabel="Score (%)", ylim=(0, 102))
    _label_ends(axes, ends)


def _line(
    axes: "Axes",
    x: Any,
    line: "pd.DataFrame",
    i: int,
    label: str,
    beyond: float = np.inf,
    bands: bool = False,
) -> None:
    """Series i with its intervals, dashed and hollow beyond a length."""
    x, y, color, look = np.asarray(x), line["score"].to_numpy(), _color(i), _look(i)
    inside = int((line["length"] <= beyond).sum())
    if bands:
        _band(axes, line, i)
    else:
        axes.vlines(x, line["low"], line["high"], color, linewidth=0.7, alpha=0.55, zorder=2)
    axes.plot(x[:inside], y[:inside], clip_on=False, zorder=3, label=label, **look)
    if inside < len(x):
        last = max(0, inside - 1)
        axes.plot(x[last:], y[last:], color=color, linestyle=_BEYOND, zorder=2.9)
        hollow = {"linestyle": "", "markerfacecolor": axes.get_facecolor(), "markeredgewidth": 0.8}
        axes.plot(x[inside:], y[inside:], clip_on=False, zorder=3, **{**look, **hollow})


def _band(axes: "Axes", line: "pd.DataFrame", i: int) -> None:
    axes.fill_between(
        line["length"], line["low"], line["high"], color=_color(i), alpha=0.14, linewidth=0
    )


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
    rows = _named(lengths[lengths["category"] == category])
    if rows.empty:
        raise UserError(
            f"no scores of category {category!r} to draw; summarize a run that has some"
        )
    return rows


def _named(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Rows with the name of their model: its label, unless two models share it."""
    models = rows.drop_duplicates(["run", "model"])[["run", "model", "label"]]
    return rows.merge(models.assign(name=names_of(models)).drop(columns="label"), how="left")


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
    with style():
        (axes,) = _panels(1, 1, 2.5, ax, DOUBLE * (len(names) > 8))
        for i, (length, line) in enumerate(rows.groupby("length")):
            x = line["name"].map(names.index) + 0.04 * i
            _line(axes, x, line, i, length_name(int(str(length))))
        _thresholds(axes, threshold)
        axes.set_xticks(range(len(names)), names, rotation=35, ha="right", rotation_mode="anchor")
        axes.set(ylim=(0, 102), ylabel="Score (%)")
        axes.legend()
        _note(axes, note)
    return axes


def training_curve(
    history: "pd.DataFrame", live: Any = None, note: str = "", ax: "Panels" = None
) -> "list[Axes]":
    """The loss of answer tokens and the share of examples answered without an error, over the steps
    of a training. `history` is what `training.train` gives; `live`, a handle of IPython's `display`,
    shows the figure in place of what it showed."""
    from matplotlib.pyplot import close

    with style():
        loss, right = panels = _panels(2, 2, 2.0, ax)
        loss.plot(history["step"], history["loss"], color=_color(0))
        loss.set(ylim=(0, None), ylabel="Loss of answer tokens", xlabel="Step")
        right.plot(history["step"], 100 * history["right"], color=_color(1))
        right.set(ylim=(0, 102), ylabel="Right, new examples (%)", xlabel="Step")
        _note(loss, note)
    if live is not None:
        live.update(loss.figure)
        close("all")
    return panels


# --- depth ----------------------------------------------------------------------------------------


def recall_by_depth(
    bins: "pd.DataFrame", note: str = "", ax: "Panels" = None, by: str = "depth"
) -> "list[Axes]":
    """Recall over depth, or over the 'distance' to the item before, with intervals, a line per
    length, a panel per model and task. `bins` is what `depth.by_bin` gives."""
    groups = list(bins.groupby(["run", "model", "label", "task"], sort=False))
    several = bins.groupby(["run", "model"]).ngroups > 1
    columns = min(len(groups), 3)
    height = 0.5 + 1.55 * -(-len(groups) // columns)
    lengths = sorted(bins["length"].unique())
    with style():
        panels = _panels(len(groups), columns, height, ax, sharex=True, sharey=True)
        for axes, ((_, _, label, task), rows) in zip(panels, groups, strict=True):
            for i, length in enumerate(lengths):
                line = rows[rows["length"] == length]
                x = (line[f"{by}_from"] + line[f"{by}_to"]) / 2 + (i - len(lengths) / 2) * 1.2
                _line(axes, x, line, i, length_name(int(length)))
            axes.set_title(f"{label}\n{task}" if several else str(task))
            axes.set(xlim=(0, 100), ylim=(0, 102), xticks=[0, 50, 100], yticks=[0, 50, 100])
        for axes in panels[-columns:]:
            axes.set_xlabel("Depth (%)" if by == "depth" else "Distance to the item before (%)")
            axes.tick_params(labelbottom=True)
        for axes in panels[::columns]:
            axes.set_ylabel("Recall (%)")
        panels[columns - 1].legend(loc="upper left", bbox_to_anchor=(1, 1))
        _note(panels[0], note)
    return panels


def depth_map(bins: "pd.DataFrame", task: str, note: str = "", ax: "Panels" = None) -> "list[Axes]":
    """Recall of one task by depth and length as a map, a panel per model. `bins` is what
    `depth.by_bin` gives."""
    models = list(bins[bins["task"] == task].groupby(["run", "model", "label"], sort=False))
    if not models:
        raise UserError(f"no depths of task {task!r} to draw: name one that was asked")
    columns = min(len(models), 2)
    with style():
        panels = _panels(len(models), columns, 2.3 * -(-len(models) // columns), ax)
        for axes, ((_, _, label), rows) in zip(panels, models, strict=True):
            spans = zip(rows["depth_from"], rows["depth_to"], strict=True)
            names = {start: f"{start:.0f}–{end:.0f}" for start, end in spans}
            scores = rows.pivot(index="depth_from", columns="length", values="score")
            scores = scores.rename(names).rename(columns=length_name)
            texts = scores.map(lambda score: "" if np.isnan(score) else f"{score:.0f}")
            _heatmap(axes, scores, texts, ("#EDF3F8", _color(0)), (0, 100))
            axes.set_aspect("auto")
            axes.set(title=f"{label}: {task}", xlabel="Length (tokens)", ylabel="Depth (%)")
        _note(panels[0], note)
    return panels


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
    models = list(_named(cells).groupby("name", sort=False))
    columns = min(len(models), 2)
    height = -(-len(models) // columns) * (0.45 + 0.175 * cells["task"].nunique())
    with style():
        panels = _panels(len(models), columns, height, ax, sharey=True)
        for axes, (name, rows) in zip(panels, models, strict=True):
            text = rows["score"].map("{:.1f}".format).where(rows["score"].notna(), rows["have"])
            text = text.where(~not_above(rows), "(" + text + ")")
            tasks = rows.drop_duplicates("task")
            scores, texts = (
                rows.assign(text=text)
                .pivot(index="task", columns="length", values=values)
                .loc[tasks["task"]]
                .rename(columns=length_name)
                for values in ("score", "text")
            )
            _heatmap(axes, scores, texts, ("#EDF3F8", _color(0)), (0, 100))
            axes.set_aspect("auto")
            _separate(axes.axhline, tasks["task"], "white", 0.6)
            _separate(axes.axvline, scores.columns, "white", 0.6)
            _separate(axes.axhline, tasks["category"], "white", 2.5)
            axes.set_title(str(name))
        brackets = "in brackets: not above the floor" * bool(not_above(cells).any())
        _note(panels[0], note, brackets)
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
    with style():
        colors = _color(4), "#FFFFFF", _color(0)
        (axes,) = _panels(1, 1, 0.9 + 0.24 * len(correlations), ax, DOUBLE)
        image = _heatmap(axes, correlations, text, colors, (-1, 1))
        for label in axes.get_xticklabels():
            label.set(rotation=55, ha="right", rotation_mode="anchor")
        for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
            if label.get_text() in marked:
                label.set(
                    color=_readable("#C00000", axes.figure.get_facecolor()), fontweight="bold"
                )
        _separate(axes.axhline, groups, "black", 0.8)
        _separate(axes.axvline, groups, "black", 0.8)
        bar = axes.figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label("Correlation of task scores")
        _note(axes, note)
    return axes


def _heatmap(
    axes: "Axes",
    values: "pd.DataFrame",
    texts: "pd.DataFrame",
    colors: Sequence[str],
    limits: tuple[float, float],
) -> Any:
    """A table in colour with a text in each field; a field without a value is grey."""
    from matplotlib.colors import LinearSegmentedColormap

    numbers = values.to_numpy(dtype=float)
    paint = LinearSegmentedColormap.from_list("", list(colors))
    axes.set_facecolor("0.88")
    image = axes.imshow(numbers, paint, vmin=limits[0], vmax=limits[1], interpolation="nearest")
    axes.set_xticks(range(len(values.columns)), [str(name) for name in values.columns])
    axes.set_yticks(range(len(values)), [str(name) for name in values.index])
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
    from matplotlib.patches import Patch

    if shares.empty:
        raise UserError("no labels to draw; label the cells of a run that has some")
    kinds = [kind for kind in LABELS if shares.loc[shares["label"] == kind, "count"].sum()]
    groups = list(shares.groupby(["run", "model", "task"], sort=False))
    models = shares.groupby(["run", "model"], sort=False)["task"].nunique()
    columns = min(int(models.max()), 4)
    rows = -(-len(groups) // columns)
    with style():
        height = max(0.8 + 0.15 * len(kinds), 0.45 + 1.4 * rows)
        panels = _panels(len(groups), columns, height, ax, sharey=True)
        for i, (axes, (_, cells)) in enumerate(zip(panels, groups, strict=True)):
            _stack(axes, cells, kinds)
            names = [cells["name"].iloc[0]] * (len(models) > 1) + [cells["task"].iloc[0]]
            title = "\n".join(line for name in names for line in wrap(str(name), 22))
            axes.set_title(title)
            axes.set_ylabel("Answers (%)" if i % columns == 0 else "")
            axes.set_xlabel("Length (tokens)" if i + columns >= len(panels) else "")
        figure = panels[0].figure
        figure.legend(
            handles=[Patch(label=kind, **_label_look(kind)) for kind in reversed(kinds)],
            loc="outside right upper",
            handleheight=1.0,
        )
        if len(models) == 1:
            figure.suptitle(str(shares["name"].iloc[0]))
        _note(panels[0], note)
    return panels


def _stack(axes: "Axes", cells: "pd.DataFrame", kinds: list[str]) -> None:
    table = 100 * cells.pivot(index="length", columns="label", values="share").sort_index()
    table = table.reindex(columns=kinds).fillna(0)
    bottoms = table.cumsum(axis="columns") - table
    places = range(len(table))
    for kind in kinds:
        axes.bar(places, table[kind], bottom=bottoms[kind], width=0.82, **_label_look(kind))
    axes.set_xticks(places, [length_name(int(n)) for n in table.index])
    axes.tick_params(axis="x", length=0)
    axes.set(ylim=(0, 100), xlim=(-0.6, max(1.4, len(table) - 0.4)))


def _label_look(label: str) -> dict[str, Any]:
    """Complete answers are pale; the other labels differ by colour and hatch."""
    i = list(LABELS).index(label)
    color, hatch = (_color(i - 1), _HATCHES[(i - 1) // 7 % 3]) if i else ("#E9EDF0", "")
    return {"facecolor": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}


# --- comparisons ----------------------------------------------------------------------------------


def differences_by_task(
    rows: "pd.DataFrame",
    margin: float | None = None,
    names: tuple[str, str] = ("A", "B"),
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
    places = [*range(len(tasks)), len(tasks) + 0.4]
    with style():
        (axes,) = _panels(1, 1, 0.96 + 0.16 * len(tasks), ax)
        axes.axvline(0, color=_GREY, linewidth=0.7, zorder=1)
        if margin is not None:
            axes.axvline(-margin, color=_GREY, linewidth=0.7, linestyle=_THRESHOLD, zorder=1)
            place: Any = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
            axes.text(-margin, 1.0, f"margin -{margin:g}", **place)
        for place, row in zip(places, [*tasks.itertuples(), *mean.itertuples()], strict=True):
            _difference(axes, place, row)
        axes.axhline(len(tasks) - 0.3, color="0.7", linewidth=0.5)
        axes.set_yticks(places, [*map(str, tasks["task"]), "mean"])
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(places[-1] + 0.7, -0.7)
        between = " - " if sum(map(len, names)) <= 34 else "\n- "
        axes.set_xlabel(f"{names[1]}{between}{names[0]} (points)")
        _note(axes, note)
    return axes


def _difference(axes: "Axes", place: float, row: Any) -> None:
    color = _color(1) if row.high < 0 else _color(0) if row.low > 0 else _GREY
    marker: dict[str, Any] = {
        "marker": "D" if row.level == "all" else "o",
        "markerfacecolor": "white" if color == _GREY else color,
    }
    axes.plot([row.low, row.high], [place, place], color=color, linewidth=1.0, zorder=2)
    axes.plot([row.difference], [place], color=color, zorder=3, markeredgewidth=0.8, **marker)


# --- Figure 1 -------------------------------------------------------------------------------------


def word_counts(example: Example) -> "pd.DataFrame":
    """How often each word stands in an example's list or coded text: columns word, role, count,
    rank (from 1).

    Words are the pieces of the context, without the number of a numbered list; the most frequent
    come first.
    """
    import pandas as pd

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
    ax: "Panels" = None,
) -> "list[Axes]":
    """Figure 1 of the paper: how often the words of the aggregation tasks stand in their contexts.

    Left: the first `num_types` words of a common words list (`word_counts` of an example). Right:
    coded texts by alpha, natural logarithms of rank and frequency, with the law they follow, rank
    to the power of -alpha, as a thin line.
    """
    with style():
        panels = _panels(2, 2, 2.3, ax)
        _common_words(panels[0], cwe, num_types)
        _frequent_words(panels[1], fwe)
    return panels


def _common_words(axes: "Axes", counts: "pd.DataFrame", num_types: int) -> None:
    shown = counts.head(num_types)
    kinds = (("needle", "common", _color(1)), ("haystack", "uncommon", _color(0)))
    for role, name, color in kinds:
        rows, whole = shown[shown["role"] == role], counts[counts["role"] == role]
        times = "/".join(str(n) for n in sorted(whole["count"].unique()))
        label = f"{len(whole)} {name} words, {times} times each"
        axes.bar(rows["rank"], rows["count"], width=0.8, color=color, label=label)
    axes.set_title("Common words extraction", loc="left")
    of_all = f"Word type, by frequency (first {len(shown)} of {len(counts)})"
    axes.set(xlabel=of_all, ylabel="Frequency", xlim=(0, len(shown) + 1))
    axes.legend(loc="upper right")


def _frequent_words(axes: "Axes", texts: Mapping[float, "pd.DataFrame"]) -> None:
    for i, (alpha, counts) in enumerate(sorted(texts.items())):
        x, y = np.log(counts[["rank", "count"]].to_numpy(dtype=float)).T
        axes.plot(x, y[0] - alpha * x, color=_color(i), linewidth=0.5, alpha=0.7)
        points = {**_look(i), "linestyle": "", "markersize": 2.4}
        axes.plot(x, y, label=f"α = {float(alpha)}", clip_on=False, **points)
    answers = np.log(next(iter(texts.values())).query("role == 'needle'")["rank"])
    axes.axvspan(
        answers.min() - 0.12, answers.max() + 0.12, color="0.93", linewidth=0, label="answers"
    )
    axes.set_title("Frequent words extraction", loc="left")
    axes.set(xlabel="ln (word rank)", ylabel="ln (frequency)", xlim=(0, None), ylim=(0, None))
    axes.legend(loc="upper right")


# --- what all figures share -----------------------------------------------------------------------


@contextmanager
def style() -> Iterator[None]:
    """The common style as a context: figures are drawn in it, and saved in it, whoever saves them.

    It is the style sheet rulerkit/data/rulerkit.mplstyle, for matplotlib "rulerkit.data.rulerkit".
    What the user has set wins: only settings that have matplotlib's default value are changed.

    It resets only what it sets, unlike matplotlib's `rc_context`: in a notebook the first figure
    also switches on that figures are shown, and that must last.
    """
    import matplotlib

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


def _panels(
    count: int, columns: int, height: float, ax: "Panels", width: float = 0, **kwargs: Any
) -> "list[Axes]":
    """The panels that were given, or those of a new figure, row by row; height and width in inches,
    by default one column of the page for one column of panels, else two."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    class PrintFigure(Figure):
        """Saved in the common style too, which decides how fonts are embedded."""

        def savefig(self, *args: Any, **kwargs: Any) -> None:
            with style():
                super().savefig(*args, **kwargs)

    if ax is not None:
        panels: list[Axes] = np.asarray(ax).ravel().tolist()
        if len(panels) != count:
            raise UserError(f"ax has {len(panels)} axes, the figure {count} panels: give {count}")
        return panels
    _, grid = plt.subplots(
        -(-count // columns),
        columns,
        figsize=(width or (SINGLE if columns == 1 else DOUBLE), height),
        squeeze=False,
        FigureClass=PrintFigure,
        **kwargs,
    )
    for spare in grid.flat[count:]:
        spare.remove()
    return list(grid.flat[:count])


def _color(i: int) -> str:
    """Colour i of the style, whose colours recur."""
    import matplotlib

    colors: list[str] = matplotlib.rcParams["axes.prop_cycle"].by_key()["color"]
    return colors[i % len(colors)]


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
    from matplotlib.colors import to_rgb

    rgb = np.array([to_rgb(one), to_rgb(other)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    dark, light = sorted(linear @ (0.2126, 0.7152, 0.0722) + 0.05)
    return float(light / dark)


def _readable(color: str, ground: Any) -> Any:
    """A colour for text, mixed with black or white until its contrast with the ground is 4.5."""
    from matplotlib.colors import to_rgb

    ink = max("black", "white", key=partial(contrast, ground))
    mixed = np.linspace(to_rgb(color), to_rgb(ink), 21)
    return next(tuple(mix) for mix in mixed if contrast(mix, ground) >= 4.5)


def _thresholds(axes: "Axes", threshold: float | Mapping[str, float] | None) -> None:
    """A thin dashed line, with its name, for each threshold."""
    from matplotlib.patheffects import withStroke

    if threshold is None:
        return
    named = threshold if isinstance(threshold, Mapping) else {"threshold": threshold}
    for name, value in named.items():
        axes.axhline(value, color=_GREY, linewidth=0.7, linestyle=_THRESHOLD, zorder=1)
        place: Any = {"transform": axes.get_yaxis_transform(), "ha": "right", "zorder": 4}
        text = axes.text(1, value + 1, f"{name}: {value:g}", **place)
        text.set_path_effects([withStroke(linewidth=1.5, foreground=axes.get_facecolor())])


def _points(axes: "Axes") -> tuple[float, float]:
    """Width and height of axes in points, before constrained layout makes them fit."""
    box = axes.get_window_extent()
    points = 72 / axes.figure.dpi
    return box.width * points, box.height * points


def _label_ends(axes: "Axes", ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Each line's name at its right end, moved apart where they would overlap; a legend below where
    there is no space for that. `ends` are places, names and colours."""
    import matplotlib

    figure: Any = axes.figure
    size = matplotlib.rcParams["font.size"]
    width, height = _points(axes)
    if width < _NARROW or height < 1.2 * size * len(ends):
        wide = size * (0.62 * max((len(name) for *_, name, _ in ends), default=0) + 2)
        columns = max(1, int(1.2 * width / wide))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=4, ncols=columns)
        return
    bottom, top = axes.get_ylim()
    gap = (top - bottom) * (size * 1.35) / height
    ends = sorted(ends, key=lambda end: end[1])
    right = axes.get_xlim()[1]
    for (x, y, name, color), place in zip(
        ends, spread([end[1] for end in ends], gap, bottom, top), strict=True
    ):
        line = {"arrowstyle": "-", "color": color, "linewidth": 0.4}
        axes.annotate(
            name,
            (x, y),
            xytext=(1.04, (place - bottom) / (top - bottom)),
            textcoords="axes fraction",
            color=_readable(color, figure.get_facecolor()),
            va="center",
            annotation_clip=False,
            arrowprops={**line, "shrinkA": 1, "shrinkB": 2, "relpos": (0, 0.5)},
        )
    axes.set_xlim(right=right)


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


def _note(axes: "Axes", *parts: str) -> None:
    """A note below the figure, inside its layout."""
    if note := "; ".join(filter(None, parts)):
        import matplotlib

        figure: Any = axes.figure
        letters = int(72 * figure.get_figwidth() / (0.55 * matplotlib.rcParams["font.size"]))
        lines = "\n".join(wrap(note, letters))
        figure.supxlabel(lines, fontsize="medium", x=0.99, ha="right", style="italic")

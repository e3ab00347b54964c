"""The figures of the further experiments (Figures 2 to 5): series over the length in panels, and
correlations in colour."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rulerkit.errors import UserError
from rulerkit.lengths import length_name
from rulerkit.plots.style import (
    COLORS,
    DOUBLE,
    SINGLE,
    SMALL,
    draw_thresholds,
    label_ends,
    length_axis,
    look,
    note_below,
    style,
    subplots,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_DASHED = (0, (2.5, 1.2))


def series_by_length(
    frame: "pd.DataFrame",
    series: str = "series",
    panel: str = "panel",
    dashed_beyond: Mapping[str, float] | None = None,
    flat: Collection[str] = (),
    threshold: float | Mapping[str, float] | None = None,
    note: str = "",
) -> "list[Axes]":
    """Score over length, a line per series with its intervals as bars, a panel per value of
    `panel`.

    `frame` holds percents: columns length, score, low, high, and those that name series and panel;
    without the panel's column all lines share one. Several models (column `label`) have a row of
    panels each. `dashed_beyond` gives by series the length past which its line is dashed; `flat`
    names series that are one level at all lengths.
    """
    if frame.empty or frame["score"].isna().all():
        raise UserError(
            "no complete scores to draw: run the evaluation again to complete its cells"
        )
    panels = list(dict.fromkeys(frame[panel])) if panel in frame else [""]
    models = list(dict.fromkeys(frame["label"])) if series != "label" and "label" in frame else [""]
    grid = [(model, name) for model in models for name in panels]
    columns = min(len(panels) if len(panels) > 1 else len(models), 2)
    rows = -(-len(grid) // columns)
    names = list(dict.fromkeys(frame[series]))
    dashed = dict(dashed_beyond or {})
    with style():
        size = (SINGLE if columns == 1 else DOUBLE, rows * max(2.2, 1.1 + 0.13 * len(names)))
        figure, axes_list = subplots(rows, columns, *size)
        for axes, (model, name) in zip(axes_list, grid, strict=False):
            own = frame[(frame[panel] == name) if panel in frame else slice(None)]
            own = own[own["label"] == model] if model else own
            _lines(axes, own, series, dashed, flat)
            draw_thresholds(axes, threshold)
            several = [model] if len(models) > 1 else []
            axes.set_title("\n".join([*several, *([name] if name else [])]), loc="left")
        for axes in axes_list[len(grid) :]:
            axes.remove()
        drawn = set(frame.dropna(subset=["score"])[series])
        past = any(
            drawn & {n} and (frame.loc[frame[series] == n, "length"] > beyond).any()
            for n, beyond in dashed.items()
        )
        dotted = "floor" in frame and (frame["floor"] >= 1).any()
        keys = (
            "dashed: beyond the training length" * past,
            "dotted: floor, no reading" * bool(dotted),
            note,
        )
        note_below(figure, "; ".join(text for text in keys if text))
    return axes_list[: len(grid)]


def series_table(frame: "pd.DataFrame") -> "pd.DataFrame":
    """The numbers of such a figure as text: a row per line, a column per length, `score [low,
    high]` or what is missing."""
    names = [
        name for name in ("label", "panel", "series") if name in frame and frame[name].nunique() > 1
    ] or ["label"]
    percents = [
        f"{score:.1f} [{low:.1f}, {high:.1f}]"
        for score, low, high in frame[["score", "low", "high"]].to_numpy()
    ]
    text = frame["have"].where(frame["score"].isna(), percents)
    line = frame[names].astype(str).agg(" · ".join, axis=1)
    wide = frame.assign(text=text, line=line).pivot_table(
        index="line", columns="length", values="text", aggfunc="first", sort=False
    )
    return wide.sort_index(axis="columns").fillna("").rename(columns=length_name).rename_axis(None)


def _lines(
    axes: "Axes",
    own: "pd.DataFrame",
    series: str,
    dashed: Mapping[str, float],
    flat: Collection[str],
) -> None:
    lengths = sorted(int(n) for n in own["length"].unique())
    names = list(dict.fromkeys(own[series]))
    ends = []
    for i, name in enumerate(names):
        line = own[own[series] == name].sort_values("length")
        known = line.dropna(subset=["score"])
        if known.empty:
            continue
        if name in flat:
            value, low, high = (float(known[column].iloc[0]) for column in ("score", "low", "high"))
            axes.fill_between(
                [lengths[0], lengths[-1]], low, high, color=COLORS[i % 8], alpha=0.10, linewidth=0
            )
            axes.plot(
                [lengths[0], lengths[-1]], [value] * 2, color=COLORS[i % 8], linestyle=(0, (1, 1))
            )
        else:
            aside = 2 ** (
                (i - (len(names) - 1) / 2) * min(0.05, 0.3 / len(names))
            )  # so that bars stand side by side
            _line(axes, line, i, dashed.get(str(name), float("inf")), aside)
            if "floor" in line and (line["floor"] >= 1).any():
                axes.plot(
                    line["length"],
                    line["floor"],
                    color=COLORS[i % 8],
                    linestyle=":",
                    linewidth=0.7,
                    zorder=1,
                )
            value = float(known["score"].iloc[-1])
        last = lengths[-1] if name in flat else int(known["length"].iloc[-1])
        ends.append((float(last), value, i))
    length_axis(axes, lengths)
    axes.set_ylim(0, 102)
    axes.set_ylabel("Score (%)")
    label_ends(axes, ends, [str(name) for name in names])


def _line(axes: "Axes", line: "pd.DataFrame", i: int, beyond: float, aside: float) -> None:
    """Solid up to a length, dashed and hollow past it."""
    length, y, low, high = (
        line[name].to_numpy(dtype=float) for name in ("length", "score", "low", "high")
    )
    inside, x = int((length <= beyond).sum()), length * aside
    axes.vlines(x, low, high, color=COLORS[i % 8], linewidth=0.7, alpha=0.55, zorder=2)
    axes.plot(x[:inside], y[:inside], clip_on=False, zorder=3, **look(i))
    if inside < len(x):
        from_ = max(0, inside - 1)
        axes.plot(x[from_:], y[from_:], color=COLORS[i % 8], linestyle=_DASHED, zorder=2.9)
        hollow = {**look(i), "linestyle": "", "markerfacecolor": "white", "markeredgewidth": 0.8}
        axes.plot(x[inside:], y[inside:], clip_on=False, zorder=3, **hollow)


def correlation_heatmap(
    correlations: "pd.DataFrame",
    marked: Collection[str] = (),
    groups: Sequence[str] = (),
    note: str = "",
) -> "Axes":
    """Figure 5: correlations of tasks in the order of the frame, its marked tasks in red, groups
    parted by lines.

    `groups` names the cluster of each task, in the order of the frame.
    """
    from matplotlib.colors import LinearSegmentedColormap

    names, values = [str(name) for name in correlations.index], correlations.to_numpy(dtype=float)
    if not names:
        raise UserError("no correlations to draw: give at least two tasks")
    paint = LinearSegmentedColormap.from_list("correlations", [COLORS[4], "#FFFFFF", COLORS[0]])
    with style():
        figure, (axes,) = subplots(1, 1, DOUBLE, 0.9 + 0.24 * len(names))
        axes.set_facecolor("0.88")  # where one of two tasks never varies
        image = axes.imshow(values, cmap=paint, vmin=-1, vmax=1, interpolation="nearest")
        axes.set_xticks(range(len(names)), names, rotation=55, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for row, column in np.ndindex(values.shape):
            value = values[row, column]
            if value == value:
                color = "white" if value > 0.65 else "black"
                text = f"{value:z.2f}".replace("0.", ".").replace("1.00", "1")
                axes.text(
                    column, row, text, ha="center", va="center", fontsize=SMALL - 1.2, color=color
                )
        for label in [*axes.get_xticklabels(), *axes.get_yticklabels()]:
            if label.get_text() in marked:
                label.set_color("#C00000")
                label.set_fontweight("bold")
        for i in range(1, len(groups)):
            if groups[i] != groups[i - 1]:
                axes.axhline(i - 0.5, color="black", linewidth=0.8)
                axes.axvline(i - 0.5, color="black", linewidth=0.8)
        bar = figure.colorbar(image, ax=axes, shrink=0.6, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label("Correlation of task scores")
        note_below(figure, note)
    return axes

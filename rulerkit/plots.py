"""The figures: one function each, from a DataFrame to matplotlib Axes, fit for a page in print.

Widths are those of a two-column paper: `SINGLE` and `DOUBLE` inches. Colours are Okabe and Ito's, which colour-blind
readers can tell apart; markers and dashes say the same again. Scores are percent.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.lengths import length_name

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SINGLE, DOUBLE = 3.35, 6.9
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
"""Okabe and Ito's palette, its yellow (too pale for a line on white) replaced by a grey."""

_MARKERS, _DASHES = "osD^vPX*", ("-", (0, (4, 1.5)), (0, (1, 1)))
_SMALL = 6.0
_MOST_LABELS = 14
_READER = "reader"
_STYLE: dict[str, Any] = {
    "pdf.fonttype": 42,  # TrueType, whole: what publishers ask for, and text stays text
    "ps.fonttype": 42,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so a figure looks the same everywhere
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.titlesize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.2,
    "figure.dpi": 160,
    "savefig.dpi": 200,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
}


def style() -> AbstractContextManager[None]:
    """The common style as a context: all figures here are drawn in it, and saved in it, whoever saves them."""
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def _subplots(rows: int, columns: int, width: float, height: float, **kwargs: Any) -> "tuple[Figure, list[Axes]]":
    """An empty figure, inches, and its panels row by row; how fonts are embedded is decided when a figure is saved."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    class PrintFigure(Figure):
        def savefig(self, *args: Any, **kwargs: Any) -> None:
            with style():
                super().savefig(*args, **kwargs)

    size = (width, height)
    figure, grid = plt.subplots(rows, columns, figsize=size, squeeze=False, FigureClass=PrintFigure, **kwargs)
    return figure, list(grid.flat)


# --- scores -----------------------------------------------------------------------------------------------------------


def score_by_length(
    lengths: "pd.DataFrame",
    threshold: float | Mapping[str, float] | None = None,
    note: str = "",
    category: str = "all",
) -> "Axes":
    """Score over length, a line per model with its interval as a band.

    `lengths` is `Summary.lengths`, of which the rows of `category` are drawn; a length without a complete score is a
    gap. `threshold` is drawn dashed: one number, or several with their names (see `thresholds`). `note` stands small
    on the figure's face (see `remarks`).
    """
    rows = lengths[lengths["category"] == category]
    models = list(rows.groupby(["run", "model"], sort=False))
    if not models:
        raise UserError(f"no scores of category {category!r} to draw; summarize a run that has some")
    with style():
        figure, (axes,) = _subplots(1, 1, SINGLE, 2.3)
        ends = []
        for i, (_, own) in enumerate(models):
            own = own.sort_values("length")
            look = {"color": COLORS[i % 8], "marker": _MARKERS[i % 8], "linestyle": _DASHES[i // 8 % 3]}
            x, y = own["length"].to_numpy(), own["score"].to_numpy(dtype=float)
            axes.fill_between(x, own["low"], own["high"], color=look["color"], alpha=0.16, linewidth=0)
            axes.plot(x, y, clip_on=False, zorder=3, markeredgewidth=0, **look)
            known = own.dropna(subset=["score"])
            if len(known):
                ends.append((float(known["length"].iloc[-1]), float(known["score"].iloc[-1]), i))
        _length_axis(axes, sorted(int(n) for n in rows["length"].unique()))
        axes.set_ylim(0, 102)
        axes.set_ylabel("Score (%)")
        _draw_thresholds(axes, threshold)
        names = _names(rows)
        if len(models) > 1:
            _label_ends(axes, ends, names)
        elif ends:
            axes.set_title(names[0], loc="left")
        _note(figure, note)
    return axes


def tasks_by_length(cells: "pd.DataFrame", model: str | None = None, note: str = "") -> "list[Axes]":
    """Tasks against lengths as a table in colour, the score printed in each field; a panel per model.

    `cells` is `Summary.cells`; `model` picks one model by name or label. A field whose cell is incomplete shows what it
    has (`300/500`).
    """
    if model is not None:
        cells = cells[(cells["model"] == model) | (cells["label"] == model)]
    models = [own for _, own in cells.groupby(["run", "model"], sort=False)]
    if not models:
        raise UserError(f"no cells of {model or 'any model'!r} to draw; name one of the summary's models")
    columns = 1 if len(models) == 1 else 2
    rows = -(-len(models) // columns)
    height = 0.45 + 0.175 * cells["task"].nunique()
    with style():
        width = SINGLE if columns == 1 else DOUBLE
        figure, panels = _subplots(rows, columns, width, rows * height, sharey=True)
        for axes, own, name in zip(panels, models, _names(cells), strict=False):
            _heatmap(axes, own)
            axes.set_title(name)
        for axes in panels[len(models) :]:
            axes.remove()
        _note(figure, note)
    return panels[: len(models)]


def remarks(cells: "pd.DataFrame") -> str:
    """What a figure of these cells must say on its face: reference readers, stand-in corpora, incomplete cells."""
    readers = cells["engine"] == _READER
    found = {
        "reference readers": readers.any(),
        "stand-in corpora": cells["stand_in"].any(),
        "incomplete": not cells["complete"].all(),
    }
    return "; ".join(text for text, true in found.items() if true)


def thresholds(models: "pd.DataFrame", category: str = "all") -> dict[str, float]:
    """The thresholds that `Summary.models` was judged by, with their names; none where the tasks are not the thirteen."""
    judged = models[(models["category"] == category) & (models["effective_length"] != "")]
    pairs = judged[["aligned", "threshold"]].drop_duplicates()
    kinds = [f" ({kind})" if len(pairs) > 1 else "" for kind in pairs["aligned"]]
    return {f"Llama2-7B{kind} at 4K": float(value) for kind, value in zip(kinds, pairs["threshold"], strict=True)}


# --- Figure 1 ---------------------------------------------------------------------------------------------------------


def word_counts(example: Example) -> "pd.DataFrame":
    """How often each word stands in an example's list or coded text: columns word, role, count, rank (from 1).

    Words are the pieces of the context, without the number of a numbered list; the most frequent come first.
    """
    import pandas as pd

    first, last = example.context
    found: Counter[tuple[str, str]] = Counter()
    for block in example.blocks[first:last]:
        for piece in block.explode() if block.explode else [block]:
            found[re.sub(r"^\d+\. ", "", piece.text.strip()), piece.role] += 1
    rows = [(word, role, count) for (word, role), count in found.most_common()]
    frame = pd.DataFrame(rows, columns=["word", "role", "count"])
    return frame.assign(rank=range(1, len(frame) + 1))


def word_frequencies(cwe: "pd.DataFrame", fwe: Mapping[float, "pd.DataFrame"], num_types: int = 40) -> "list[Axes]":
    """Figure 1 of the paper: how often the words of the aggregation tasks stand in their contexts.

    Left: the first `num_types` words of a common words list (`word_counts` of an example). Right: coded texts by alpha,
    natural logarithms of rank and frequency, with the law they follow, rank to the power of -alpha, as a thin line.
    """
    with style():
        _, panels = _subplots(1, 2, DOUBLE, 2.3)
        _common_words(panels[0], cwe, num_types)
        _frequent_words(panels[1], fwe)
    return panels


def _common_words(axes: "Axes", counts: "pd.DataFrame", num_types: int) -> None:
    shown = counts.head(num_types)
    kinds = (("needle", "common", COLORS[1]), ("haystack", "uncommon", COLORS[0]))
    for role, name, color in kinds:
        own, whole = shown[shown["role"] == role], counts[counts["role"] == role]
        if own.empty:
            continue
        axes.bar(own["rank"], own["count"], width=0.8, color=color)
        times = "/".join(str(n) for n in sorted(whole["count"].unique()))
        anchor = (float(own["rank"].mean()), float(own["count"].max()))
        text = f"{len(whole)} {name} words,\n{times} times each"
        beside = role == "needle"
        axes.annotate(
            text,
            (float(own["rank"].max()) + 0.4, anchor[1]) if beside else anchor,
            xytext=(5, 0) if beside else (0, 4),
            textcoords="offset points",
            va="top" if beside else "bottom",
            ha="left" if beside else "center",
            color=color,
        )
    axes.set_title("Common words extraction", loc="left")
    axes.set_xlabel(f"Word type, by frequency (first {len(shown)} of {len(counts)})")
    axes.set_ylabel("Frequency")
    axes.set_xlim(0, len(shown) + 1)


def _frequent_words(axes: "Axes", texts: Mapping[float, "pd.DataFrame"]) -> None:
    import numpy as np

    for i, (alpha, counts) in enumerate(sorted(texts.items())):
        x, y = np.log(counts["rank"].to_numpy(dtype=float)), np.log(counts["count"].to_numpy(dtype=float))
        axes.plot(x, y[0] - alpha * x, color=COLORS[i % 8], linewidth=0.5, alpha=0.7)
        axes.plot(
            x, y, color=COLORS[i % 8], marker=_MARKERS[i % 8], linestyle="", markersize=2.4, markeredgewidth=0,
            label=rf"$\alpha$ = {float(alpha)}", clip_on=False,
        )  # fmt: skip
    answers = next(iter(texts.values())).query("role == 'needle'")["rank"]
    if len(answers):
        axes.axvspan(np.log(answers.min()) - 0.12, np.log(answers.max()) + 0.12, color="0.93", linewidth=0)
        middle = (np.log(answers.min()) + np.log(answers.max())) / 2
        axes.annotate("answers", (middle, 0), xytext=(0, 3), textcoords="offset points", ha="center", color="0.35")
    axes.set_title("Frequent words extraction", loc="left")
    axes.set_xlabel("ln (word rank)")
    axes.set_ylabel("ln (frequency)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", handletextpad=0.2)


# --- what figures share -----------------------------------------------------------------------------------------------


def _names(rows: "pd.DataFrame") -> list[str]:
    """A name per model in the order of its first row: the label, unless two models share it."""
    from rulerkit.tables import _names as told_apart

    return told_apart(rows.drop_duplicates(["run", "model"]))


def _length_axis(axes: "Axes", lengths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(lengths), [length_name(length) for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("Sequence length (tokens)")
    if len(lengths) == 1:
        axes.set_xlim(lengths[0] / 2, lengths[0] * 2)


def _draw_thresholds(axes: "Axes", threshold: float | Mapping[str, float] | None) -> None:
    if threshold is None:
        return
    from matplotlib.patheffects import withStroke

    named = threshold if isinstance(threshold, Mapping) else {"threshold": threshold}
    for name, value in named.items():
        axes.axhline(value, color="0.35", linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
        axes.annotate(
            f"{name}: {value:g}",
            (1.0, value),
            xycoords=("axes fraction", "data"),
            xytext=(-1, 1.5),
            textcoords="offset points",
            ha="right",
            fontsize=_SMALL,
            color="0.35",
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
            zorder=4,
        )


def _label_ends(axes: "Axes", ends: Sequence[tuple[float, float, int]], names: Sequence[str]) -> None:
    """Each line's name at its right end, moved apart where they would overlap; a legend where they are too many."""
    if len(ends) > _MOST_LABELS:
        handles = axes.get_lines()[: len(names)]
        axes.legend(handles, names, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return
    bottom, top = axes.get_ylim()
    points = 72 * axes.figure.get_figheight() * 0.78  # the axes' height, before the layout is known
    gap = (top - bottom) * (_SMALL * 1.35) / points
    order = sorted(ends, key=lambda end: (end[1], -end[2]))
    right = axes.get_xlim()[1]
    for (x, y, i), place in zip(order, spread([y for _, y, _ in order], gap, bottom, top), strict=True):
        axes.annotate(
            names[i],
            (x, y),
            xytext=(1.04, (place - bottom) / (top - bottom)),
            textcoords="axes fraction",
            fontsize=_SMALL,
            color=COLORS[i % 8],
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": COLORS[i % 8],
                "linewidth": 0.4,
                "shrinkA": 1,
                "shrinkB": 2,
                "relpos": (0, 0.5),
            },
        )
    axes.set_xlim(right=right)


def spread(values: Sequence[float], gap: float, bottom: float, top: float) -> list[float]:
    """Rising values moved as little as it takes to stand `gap` apart between `bottom` and `top`.

    Values that collide form a group around their mean; where there is no room for all, the gap shrinks.
    """
    if len(values) > 1:
        gap = min(gap, (top - bottom) / (len(values) - 1))
    groups: list[list[float]] = []
    for value in values:
        groups.append([value])
        while len(groups) > 1 and _low(groups[-1], gap, bottom, top) < _high(groups[-2], gap, bottom, top) + gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_low(group, gap, bottom, top) + gap * k for group in groups for k in range(len(group))]


def _low(group: Sequence[float], gap: float, bottom: float, top: float) -> float:
    width = gap * (len(group) - 1)
    return min(max(sum(group) / len(group) - width / 2, bottom), top - width)


def _high(group: Sequence[float], gap: float, bottom: float, top: float) -> float:
    return _low(group, gap, bottom, top) + gap * (len(group) - 1)


def _heatmap(axes: "Axes", own: "pd.DataFrame") -> None:
    from matplotlib.colors import LinearSegmentedColormap

    tasks = list(dict.fromkeys(own["task"]))
    lengths = sorted(int(n) for n in own["length"].unique())
    scores = own.pivot(index="task", columns="length", values="score").loc[tasks, lengths].to_numpy(dtype=float)
    have = own.pivot(index="task", columns="length", values="have").loc[tasks, lengths].to_numpy()
    paint = LinearSegmentedColormap.from_list("scores", ["#EDF3F8", COLORS[0]])
    paint.set_bad("0.88")
    axes.imshow(scores, cmap=paint, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(lengths)), [length_name(n) for n in lengths])
    axes.set_yticks(range(len(tasks)), tasks)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, column in ((r, c) for r in range(len(tasks)) for c in range(len(lengths))):
        value = scores[row, column]
        text = f"{value:.1f}" if value == value else str(have[row, column])
        axes.text(
            column, row, text, ha="center", va="center", fontsize=_SMALL, color="white" if value > 60 else "black"
        )
    _separate(axes, own.drop_duplicates("task")["category"], len(lengths))


def _separate(axes: "Axes", categories: Iterable[str], num_columns: int) -> None:
    """White lines between the fields, wider between categories."""
    kinds = list(categories)
    for i in range(1, len(kinds)):
        axes.axhline(i - 0.5, color="white", linewidth=2.5 if kinds[i] != kinds[i - 1] else 0.6)
    for i in range(1, num_columns):
        axes.axvline(i - 0.5, color="white", linewidth=0.6)


def _note(figure: "Figure", note: str) -> None:
    """A small line below the figure, inside its layout."""
    if note:
        figure.supxlabel(note, fontsize=_SMALL, x=0.99, ha="right", color="0.35", style="italic")

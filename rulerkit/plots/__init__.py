"""The figures: one function each, from a DataFrame to matplotlib Axes, fit for a page in print.
Scores are percent."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.floors import not_above
from rulerkit.lengths import length_name
from rulerkit.plots.series_plots import correlation_heatmap as correlation_heatmap
from rulerkit.plots.series_plots import series_by_length as series_by_length
from rulerkit.plots.series_plots import series_table as series_table
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

_READER = "reader"


# --- scores ---------------------------------------------------------------------------------------


def score_by_length(
    lengths: "pd.DataFrame",
    threshold: float | Mapping[str, float] | None = None,
    note: str = "",
    category: str = "all",
) -> "Axes":
    """Score over length, a line per model with its interval as a band.

    `lengths` is `Summary.lengths`, of which the rows of `category` are drawn; a length without a
    complete score is a gap. `threshold` is drawn dashed: one number, or several with their names
    (see `thresholds`). `note` stands small on the figure's face (see `remarks`).
    """
    rows = lengths[lengths["category"] == category]
    models = list(rows.groupby(["run", "model"], sort=False))
    if not models:
        raise UserError(
            f"no scores of category {category!r} to draw; summarize a run that has some"
        )
    with style():
        figure, (axes,) = subplots(
            1, 1, SINGLE if len(models) <= 8 else DOUBLE, max(2.3, 0.5 + 0.15 * len(models))
        )
        ends = []
        for i, (_, own) in enumerate(models):
            own = own.sort_values("length")
            x, y = own["length"].to_numpy(), own["score"].to_numpy(dtype=float)
            axes.fill_between(
                x, own["low"], own["high"], color=COLORS[i % 8], alpha=0.16, linewidth=0
            )
            axes.plot(x, y, clip_on=False, zorder=3, **look(i))
            known = own.dropna(subset=["score"])
            if len(known):
                ends.append((float(known["length"].iloc[-1]), float(known["score"].iloc[-1]), i))
        length_axis(axes, sorted(int(n) for n in rows["length"].unique()))
        axes.set_ylim(0, 102)
        axes.set_ylabel("Score (%)")
        draw_thresholds(axes, threshold)
        names = _names(rows)
        if len(models) > 1:
            label_ends(axes, ends, names)
        elif ends:
            axes.set_title(names[0], loc="left")
        note_below(figure, note)
    return axes


def tasks_by_length(
    cells: "pd.DataFrame", model: str | None = None, note: str = ""
) -> "list[Axes]":
    """Tasks against lengths as a table in colour, the score printed in each field; a panel per
    model.

    `cells` is `Summary.cells`; `model` picks one model by name or label. A field whose cell is
    incomplete shows what it has (`300/500`).
    """
    if model is not None:
        cells = cells[(cells["model"] == model) | (cells["label"] == model)]
    models = [own for _, own in cells.groupby(["run", "model"], sort=False)]
    if not models:
        raise UserError(
            f"no cells of {model or 'any model'!r} to draw; name one of the summary's models"
        )
    columns = 1 if len(models) == 1 else 2
    rows = -(-len(models) // columns)
    height = 0.45 + 0.175 * cells["task"].nunique()
    with style():
        width = SINGLE if columns == 1 else DOUBLE
        figure, panels = subplots(rows, columns, width, rows * height, sharey=True)
        for axes, own, name in zip(panels, models, _names(cells), strict=False):
            _heatmap(axes, own)
            axes.set_title(name)
        for axes in panels[len(models) :]:
            axes.remove()
        note_below(figure, note)
    return panels[: len(models)]


def remarks(cells: "pd.DataFrame") -> str:
    """What a figure of these cells must say on its face: reference readers, stand-in corpora,
    incomplete cells."""
    readers = cells["engine"] == _READER
    found = {
        "reference readers": readers.any(),
        "stand-in corpora": cells["stand_in"].any(),
        "incomplete": not cells["complete"].all(),
        "in brackets: not above the floor, what answers without reading score": not_above(
            cells
        ).any(),
    }
    return "; ".join(text for text, true in found.items() if true)


def thresholds(models: "pd.DataFrame", category: str = "all") -> dict[str, float]:
    """The thresholds that `Summary.models` was judged by, with their names; none where the tasks
    are not the thirteen."""
    judged = models[(models["category"] == category) & (models["effective_length"] != "")]
    pairs = judged[["aligned", "threshold"]].drop_duplicates()
    kinds = [f" ({kind})" if len(pairs) > 1 else "" for kind in pairs["aligned"]]
    return {
        f"Llama2-7B{kind} at 4K": float(value)
        for kind, value in zip(kinds, pairs["threshold"], strict=True)
    }


def _names(rows: "pd.DataFrame") -> list[str]:
    """A name per model in the order of its first row: the label, unless two models share it."""
    from rulerkit.tables import names_of

    return names_of(rows.drop_duplicates(["run", "model"]))


def _heatmap(axes: "Axes", own: "pd.DataFrame") -> None:
    from matplotlib.colors import LinearSegmentedColormap

    tasks = list(dict.fromkeys(own["task"]))
    lengths = sorted(int(n) for n in own["length"].unique())
    scores = (
        own.pivot(index="task", columns="length", values="score")
        .loc[tasks, lengths]
        .to_numpy(dtype=float)
    )
    marks = own.assign(useless=not_above(own)).pivot(
        index="task", columns="length", values="useless"
    )
    useless = marks.loc[tasks, lengths].to_numpy(dtype=bool)
    have = own.pivot(index="task", columns="length", values="have").loc[tasks, lengths].to_numpy()
    paint = LinearSegmentedColormap.from_list("scores", ["#EDF3F8", COLORS[0]])
    axes.set_facecolor("0.88")  # what an incomplete cell shows
    axes.imshow(scores, cmap=paint, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    axes.set_xticks(range(len(lengths)), [length_name(n) for n in lengths])
    axes.set_yticks(range(len(tasks)), tasks)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for row, column in ((r, c) for r in range(len(tasks)) for c in range(len(lengths))):
        value = scores[row, column]
        text = f"{value:.1f}" if value == value else str(have[row, column])
        text = f"({text})" if useless[row, column] else text
        axes.text(
            column,
            row,
            text,
            ha="center",
            va="center",
            fontsize=SMALL,
            color="white" if value > 60 else "black",
        )
    _separate(axes, own.drop_duplicates("task")["category"], len(lengths))


def _separate(axes: "Axes", categories: Iterable[str], num_columns: int) -> None:
    """White lines between the fields, wider between categories."""
    kinds = list(categories)
    for i in range(1, len(kinds)):
        axes.axhline(i - 0.5, color="white", linewidth=2.5 if kinds[i] != kinds[i - 1] else 0.6)
    for i in range(1, num_columns):
        axes.axvline(i - 0.5, color="white", linewidth=0.6)


# --- Figure 1 -------------------------------------------------------------------------------------


def word_counts(example: Example) -> "pd.DataFrame":
    """How often each word stands in an example's list or coded text: columns word, role, count,
    rank (from 1).

    Words are the pieces of the context, without the number of a numbered list; the most frequent
    come first.
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


def word_frequencies(
    cwe: "pd.DataFrame", fwe: Mapping[float, "pd.DataFrame"], num_types: int = 40
) -> "list[Axes]":
    """Figure 1 of the paper: how often the words of the aggregation tasks stand in their contexts.

    Left: the first `num_types` words of a common words list (`word_counts` of an example). Right:
    coded texts by alpha, natural logarithms of rank and frequency, with the law they follow, rank
    to the power of -alpha, as a thin line.
    """
    with style():
        _, panels = subplots(1, 2, DOUBLE, 2.3)
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
        x, y = (
            np.log(counts["rank"].to_numpy(dtype=float)),
            np.log(counts["count"].to_numpy(dtype=float)),
        )
        axes.plot(x, y[0] - alpha * x, color=COLORS[i % 8], linewidth=0.5, alpha=0.7)
        points = {**look(i), "linestyle": "", "markersize": 2.4}
        axes.plot(x, y, label=f"α = {float(alpha)}", clip_on=False, **points)
    answers = next(iter(texts.values())).query("role == 'needle'")["rank"]
    if len(answers):
        axes.axvspan(
            np.log(answers.min()) - 0.12, np.log(answers.max()) + 0.12, color="0.93", linewidth=0
        )
        middle = (np.log(answers.min()) + np.log(answers.max())) / 2
        axes.annotate(
            "answers",
            (middle, 0),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color="0.35",
        )
    axes.set_title("Frequent words extraction", loc="left")
    axes.set_xlabel("ln (word rank)")
    axes.set_ylabel("ln (frequency)")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper right", handletextpad=0.2)

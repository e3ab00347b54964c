"""Two sides compared, by task; one set of answers by several scorers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rulerkit.analysis.compare import Comparison
from rulerkit.analysis.scorers import score_as
from rulerkit.common.errors import UserError
from rulerkit.report.plots.canvas import (
    GREY,
    LONGEST_TICK,
    THRESHOLD_DASHES,
    add_legend,
    color_of,
    draw_in,
    letters_in,
    properties_of,
    wrapped,
)
from rulerkit.report.scorers import PLACE
from rulerkit.scoring.summary import texts_words
from rulerkit.store.places import check_columns, is_table


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
    if isinstance(rows, Comparison):
        rows = rows.rows
    needed = ["level", "task", "difference", "low", "high"]
    takes = "a comparison (`rk.compare`), or its `rows`"
    check_columns(rows, needed, "differences_by_task", takes)
    tasks, mean = rows[rows["level"] == "task"], rows[rows["level"] == "all"]
    if tasks.empty or mean.empty:
        raise UserError("no differences to draw; give the rows of a comparison")
    notes = [note, "" if margin is None else f"dashed: margin -{margin:g}"]
    notes.append(texts_words(rows))
    labels = [wrapped(task, LONGEST_TICK) for task in [*tasks["task"], "mean"]]
    lines = 1 + max(label.count("\n") for label in labels)
    with draw_in(1, 1, 0.16 * lines * (len(tasks) + 2.8), ax, *notes) as (axes,):
        axes.axvline(0, color=GREY, linewidth=0.7, zorder=1)
        if margin is not None:
            axes.axvline(-margin, color=GREY, linewidth=0.7, linestyle=THRESHOLD_DASHES, zorder=1)

        # The mean stands last, as a diamond: the habit of forest plots.
        drawn: Any = pd.concat([tasks, mean]).itertuples()
        for y, row in enumerate(drawn):
            color = GREY if row.low <= 0 <= row.high else color_of(int(row.high < 0))
            shape: Any = {"marker": "D" if row.level == "all" else "o", "markeredgewidth": 0.8}
            face = "white" if color == GREY else color
            axes.hlines(y, row.low, row.high, color, linewidth=1.0, zorder=2)
            axes.plot([row.difference], [y], color=color, markerfacecolor=face, **shape)

        axes.axhline(len(tasks) - 0.5, color="0.7", linewidth=0.5)
        axes.set_yticks(range(len(tasks) + 1), labels)
        axes.set_ylim(len(tasks) + 0.7, -0.7)
        axes.set_xlabel(wrapped(f"{names[1]} - {names[0]} (points)", letters_in(axes)))
    return axes


def scores_by_scorer(judged: "pd.DataFrame", note: str = "", ax: "Axes | None" = None) -> "Axes":
    """One set of answers by several harnesses' scorers: a row per scorer, a mark per model.

    `judged` is what `score_as` gives. A mark is the mean over the tasks and lengths of the model;
    the thin lines are the scores of this kit.
    """
    if not is_table(judged) or "digest" in judged:
        judged = score_as(judged)
    takes = "the table of `rk.score_as`"
    check_columns(judged, [*PLACE, "score"], "scores_by_scorer", takes)
    names = [name for name in judged.columns if name not in PLACE]
    scores = judged.groupby(["model", "task", "length"], sort=False)[names]
    means = 100 * scores.mean().groupby("model", sort=False).mean()
    labels = {"score": "this kit"}
    notes = [note, texts_words(judged)]
    with draw_in(1, 1, 0.17 * len(names), ax, *notes) as (axes,):
        for i, (model, row) in enumerate(means.iterrows()):
            # Marks of equal scores stand side by side, not one on the other.
            y = np.arange(len(names)) + 0.22 * (i - (len(means) - 1) / 2)
            properties = properties_of(i) | {"linestyle": "", "markersize": 3.6}
            axes.plot(row.to_numpy(), y, label=str(model), clip_on=False, **properties)
            axes.axvline(row["score"], color=color_of(i), linewidth=0.5, zorder=0)
        axes.set_yticks(range(len(names)), [labels.get(name, name) for name in names])
        axes.set(xlim=(0, 100), xlabel="Score (%)", ylim=(len(names) - 0.4, -0.6))
        axes.grid(axis="y", visible=False)
        add_legend(axes)
    return axes

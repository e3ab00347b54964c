"""The table of one model: its tasks by length."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from rulerkit.common.errors import UserError, check_known, counted
from rulerkit.common.lengths import length_name
from rulerkit.common.render import Field, render
from rulerkit.report.tables.notes import cell_notes, model_notes, number_range
from rulerkit.scoring.summary import Summary, model_rows

_MARKS = {
    "other_form": ("o", "right answers in another form"),
    "empty": ("e", "empty answers"),
    "cut_off": ("c", "answers that stopped at the token limit"),
    "cut_thought": ("t", "thoughts that stopped at the token limit"),
    "is_copy": ("b", "answers that begin as the context does"),
    "reasoning_tokens": ("w", "mean tokens of a thought"),
}
"""The letter that stands before a number of a cell, and what the number is."""
_EFFECTIVE = ["effective_length", "effective_set", "threshold", "threshold_of"]


def task_table_text(
    summary: Summary,
    model: str,
    run: str | None = None,
    format: str = "text",
    notes: Sequence[str] = (),
) -> str:
    """One model's tasks by length, their mean, and its effective length below.

    A score has its interval, and marks for what is unusual in its cell, which the lines below
    explain. `notes` are further lines below the table.
    """
    cells = model_rows(summary.cells, model)
    runs = list(cells["run"].unique())
    if run is None and len(runs) > 1:
        raise UserError(f"model {model!r} is in the runs {', '.join(runs)}: name one of them")
    check_known("run", run or runs[0], runs)
    cells = cells[cells["run"] == (run or runs[0])]
    if format in ("csv", "json"):
        return render(cells, format)

    about, summary = cells[["run", "model"]].head(1), summary.of("all")
    means, of_model = summary.lengths.merge(about), summary.models.merge(about)
    rows: list[list[Field | str]] = []
    for task, of_task in cells.groupby("task", sort=False):
        rows.append([str(task), *map(_score_field, of_task.to_dict("records"))])
        # Below a task that can be answered in part without reading stands what that scores.
        if of_task["copied"].notna().any():
            copied = [f"{score:.1f}" if score == score else "" for score in of_task["copied"]]
            rows.append(["  copying the beginning", *copied])

    # A mean over one task would be the same row once more.
    num_tasks = means["tasks"].max()
    if num_tasks > 1:
        suite = cells["suite"].iloc[0]
        kind = "" if suite == "ruler" else f" {suite}"
        fields = map(_score_field, means.to_dict("records"))
        rows.append([f"mean of {num_tasks}{kind} tasks", *fields])

    complete = cells.loc[cells["complete"], "n"]
    details = []
    if len(complete):
        details.append(f"Scores in percent, n = {counted(number_range(complete), 'example')} each")
        details.append("in brackets the 95 % interval")
    for name, (letter, what) in _MARKS.items():
        if cells[name].any():
            details.append(f"{letter}: {what}")
    below = [f"{'; '.join(details)}."] if details else []

    effective, possible, threshold, source = of_model.iloc[0][_EFFECTIVE]
    if effective:
        text = f"Effective length: {effective}"
        if possible != effective:
            text += f" (within the intervals: {possible})"
        below.append(f"{text}, by a mean of at least {threshold:g}, {source}.")
    below += model_notes(of_model) + cell_notes(cells)
    header = [str(model), *map(length_name, means["length"])]
    return render(pd.DataFrame(rows, columns=header), format, [*below, *notes])


def _score_field(row: Any) -> Field:
    """A score with its interval, or what there is of an incomplete one; behind it marks for what is
    unusual in a cell."""
    marks = [f"{letter}{row[name]:.0f}" for name, (letter, _) in _MARKS.items() if row.get(name)]
    if row["have"]:
        return Field(str(row["have"]), small=" ".join(marks))
    interval = f"({row['low']:.1f}-{row['high']:.1f})"
    return Field(f"{row['score']:.1f}", small=" ".join([interval, *marks]))

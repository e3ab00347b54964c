"""The table of one set of answers judged by several harnesses' scorers."""

from typing import TYPE_CHECKING, Any

from rulerkit.analysis.scorers import PLACE
from rulerkit.common.lengths import length_name
from rulerkit.common.render import render
from rulerkit.report.tables.notes import texts_notes

if TYPE_CHECKING:
    import pandas as pd


def scorers_text(judged: "pd.DataFrame") -> str:
    """The scores of `score_as` in points: a table for each model with a row per task and length,
    the mean over the tasks of each length below; behind each other score what it differs."""
    import pandas as pd

    names = [name for name in judged.columns if name not in (*PLACE, "score")]
    texts = []
    for (run, model), rows in judged.groupby(["run", "model"], sort=False):
        by_cell = rows.groupby(["length", "task"], sort=False)
        of_cells = 100 * by_cell[["score", *names]].mean()

        # The tasks of a length, and their mean.
        body = list[list[str]]()
        by_length: Any = of_cells.groupby("length", sort=True)
        for length, of_tasks in by_length:
            means = of_tasks.mean()
            of_tasks = of_tasks.droplevel("length")
            body += [
                _fields(f"{task}, {length_name(length)}", of_tasks.loc[task])
                for task in of_tasks.index
            ]
            if len(of_tasks) > 1:
                title = f"mean of {len(of_tasks)} tasks, {length_name(length)}"
                body.append(_fields(title, means))

        notes = [
            f"{len(rows)} answers, each judged by every scorer; in brackets the difference from "
            "the score of this kit, in points.",
            *texts_notes(judged),
        ]
        header = [f"{model} ({run})", "score", *names]
        texts.append(render(pd.DataFrame(body, columns=header), notes=notes))
    return "\n".join(texts)


def _fields(title: str, scores: "pd.Series[float]") -> list[str]:
    """A row: our score, and each other one with its difference."""
    ours, *others = scores
    differences = [f"{other:.1f} ({other - ours:+.1f})" for other in others]
    return [title, f"{ours:.1f}", *differences]

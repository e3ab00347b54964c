"""The table of one set of answers judged by several harnesses' scorers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rulerkit.common.lengths import length_name
from rulerkit.common.render import render
from rulerkit.report.tables.notes import texts_notes
from rulerkit.store.cells import Cell
from rulerkit_harnesses.rules import NAMES, PLACE, score_as

if TYPE_CHECKING:
    import pandas as pd


def judged_text(cells: Sequence[Cell], names: Sequence[str]) -> str:
    """What `rulerkit report --as NAME` prints."""
    return scorers_text(score_as(cells, names))


def scorers_text(judged: "pd.DataFrame") -> str:
    """The scores of `score_as` in points: a table for each model with a row per task and length,
    the mean over the tasks of each length below; behind each other score what it differs."""
    import pandas as pd

    names = [name for name in judged.columns if name not in (*PLACE, "score")]
    texts = []
    for (run, model), rows in judged.groupby(["run", "model"], sort=False):
        body = list[list[str]]()
        by_length: Any = rows.groupby("length", sort=True)
        for length, of_length in by_length:
            scores = 100 * of_length.groupby("task", sort=False)[["score", *names]].mean()
            if len(scores) > 1:
                scores.loc[f"mean of {len(scores)} tasks"] = scores.mean()
            for task, (ours, *others) in zip(scores.index, scores.to_numpy(), strict=True):
                differences = [f"{other:.1f} ({other - ours:+.1f})" for other in others]
                body.append([f"{task}, {length_name(length)}", f"{ours:.1f}", *differences])

        notes = [
            f"{len(rows)} answers, each judged by every scorer; in brackets the difference from "
            "the score of this kit, in points.",
            *texts_notes(judged),
        ]
        header = [f"{model} ({run})", "score", *names]
        texts.append(render(pd.DataFrame(body, columns=header), notes=notes))
    return "\n".join(texts)


scorers = dict.fromkeys(NAMES, judged_text)
"""What the plug-in brings to `report --as`."""

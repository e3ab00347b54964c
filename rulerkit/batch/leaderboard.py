"""The leaderboard of a batch: all its models on what all its notebooks have asked."""

from typing import TYPE_CHECKING, NamedTuple

from rulerkit.batch.batch_file import Batch
from rulerkit.common import escape
from rulerkit.common.errors import UserError
from rulerkit.report.tables import footnotes, table_text
from rulerkit.scoring.scores import score
from rulerkit.scoring.summary import of_one_suite, summarize
from rulerkit.store.cells import read_cells
from rulerkit.store.comparable import check_same

if TYPE_CHECKING:
    import pandas as pd


class Leaderboard(NamedTuple):
    """The scores behind a leaderboard, the table as text and as HTML, and why there is none."""

    scores: "pd.DataFrame | None" = None
    """A row for each example; None where nothing was answered yet."""
    text: str = ""
    html: str = "no answer yet"
    problem: str = ""


def leaderboard(batch: Batch) -> Leaderboard:
    """The leaderboard over the predictions that the notebooks of a batch ask for.

    A batch is done even where its cells cannot share a table: the reason is in `problem`.
    """
    study = batch.study
    needs = {need.path: need for job in batch.jobs if job.model for need in job.steps[0].cells}

    # The tasks of the batch's study first, in their order; where none of them is asked, all others.
    asked = dict.fromkeys(need.task for need in needs.values())
    tasks = [task.name for task in study.tasks if task.name in asked] or [*asked]

    cells = [
        cell
        for folder in study.folders
        if folder.is_dir()
        for cell in read_cells(folder)
        if cell.path in needs and cell.task in tasks and cell.length in study.lengths and cell.rows
    ]
    if not cells:
        return Leaderboard()

    try:
        check_same(cells)
        scores = score(cells)
        # An earlier batch may have stored more examples than this one asks for.
        wanted = scores["path"].map({str(path): need.wanted for path, need in needs.items()})
        scores = scores.assign(wanted=wanted)[scores["index"] < wanted]
        # Of several suites one has the means, and so one table.
        suite_of = {task.name: task.suite for task in study.tasks}
        suite_of |= {cell.task: cell.about.suite for cell in cells}
        scores = of_one_suite(scores)
        suite = scores["suite"].iloc[0]
        tasks = [task for task in tasks if suite_of.get(task, suite) == suite]
        summary = summarize(scores, tasks, study.lengths)
        notes = footnotes(cells, scores)
        return Leaderboard(
            scores, table_text(summary, notes=notes), table_text(summary, "html", notes=notes)
        )
    except UserError as error:
        problem = f"no leaderboard: {error}"
        return Leaderboard(html=escape.html(problem), problem=problem)

"""The tables of stored answers, as `rulerkit evaluate` and `rulerkit report` print them."""

from typing import Any

import pandas as pd

from rulerkit.common.errors import UserError
from rulerkit.common.plugins import capability
from rulerkit.report.tables import footnotes, table_text, task_table_text
from rulerkit.scoring.scores import score
from rulerkit.scoring.summary import ordered_suites, summarize, tally
from rulerkit.store.cells import Cell
from rulerkit.store.comparable import by_model, check_same


def tallied(
    cells: list[Cell], problems: list[str], num_examples: int | None = None
) -> pd.DataFrame:
    """The rows of `tally`; what cannot be judged is left out, and why is added to `problems`.
    Raises UserError where nothing can be judged."""
    tallies = tally(cells, problems.append, num_examples)
    if problems and not tallies["n"].any():
        raise UserError(problems[-1].removeprefix("left out: "))
    return tallies


def task_tables(
    cells: list[Cell],
    tallies: pd.DataFrame,
    format: str = "text",
    tasks: list[str] | None = None,
    lengths: Any = None,
    num_examples: int | None = None,
) -> str:
    """The scores of each model by task and length, a table for each suite; `tallies` are those of
    the cells, tasks, lengths and examples those of `summarize`."""
    # Each model may have been asked in another way, so each has a table of its own.
    of_models = by_model(cells)
    for group in of_models.values():
        check_same(group)

    tables = []
    for suite in ordered_suites(tallies["suite"]):
        known = {cell.task for cell in cells if cell.about.suite == suite}
        named = [task for task in tasks or () if task in known] or None
        of_suite = tallies[tallies["suite"] == suite]
        summary = summarize(tallies, named, lengths, num_examples, suite=suite)
        for (run, model), group in of_models.items():
            shown = [cell for cell in group if cell.about.suite == suite]
            if not shown:
                continue
            is_own = (of_suite["run"] == run) & (of_suite["model"] == model)
            notes = footnotes(shown, of_suite[is_own])
            table = task_table_text(summary, model, run, format, notes)
            tables.append(f"{model} ({run})\n{table}" if format == "text" else table)

        # A suite may have a headline that is over more than its tasks.
        if own := capability(suite):
            tables.append(own.table(score(cells), named, lengths, num_examples, format))
    return "\n".join(tables)


def leaderboards(
    cells: list[Cell], tallies: pd.DataFrame, format: str, further_notes: list[str]
) -> str:
    """The leaderboard of each suite over these cells. Raises UserError where they cannot share a
    table."""
    check_same(cells)
    tables = []
    for suite in ordered_suites(tallies["suite"]):
        of_suite = [cell for cell in cells if cell.about.suite == suite]
        notes = [*footnotes(of_suite, tallies[tallies["suite"] == suite]), *further_notes]
        if own := capability(suite):
            tables.append(own.table(score(cells), format=format, notes=notes))
        else:
            tables.append(table_text(summarize(tallies, suite=suite), format, notes=notes))
    return "\n".join(tables)

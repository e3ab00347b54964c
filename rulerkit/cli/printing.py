"""What commands print: texts made safe for a terminal, tables of scores, lists of cells."""

import signal
import sys
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import typer

import rulerkit as rk
from rulerkit.common import escape
from rulerkit.common.errors import UserError
from rulerkit.common.plugins import capability

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd

    from rulerkit.common.settings import JSON
    from rulerkit.evaluation.study import Study
    from rulerkit.inference.model import Model
    from rulerkit.store.cells import Cell


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a text, made safe for a terminal, to stdout or stderr."""
    typer.echo(escape.terminal(text), err=err, nl=nl)


def say_error(text: str) -> None:
    """Print what is wrong as one line on stderr, on a terminal with the name in red."""
    name = typer.style("rulerkit:", fg="red", bold=True)
    # Without a terminal the colour is left out.
    typer.echo(f"{name} {escape.one_line(text)}", err=True)


def end_in_order() -> None:
    """End on SIGTERM as on an error, so that servers and steps are ended, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def name_root() -> None:
    """One line that says where results go, where that is not the working directory."""
    from rulerkit.common.paths import home_text

    if text := home_text():
        echo(text)


def print_plan(asked: "Iterable[tuple[JSON | Model, list[Study]]]") -> None:
    """What models are asked, as `plan_text` takes it. Raises UserError, behind the table, where the
    weights of some are cut short."""
    from rulerkit.batch.plan import plan_text

    text, broken = plan_text(asked)
    echo(text, nl=False)
    if broken:
        raise UserError("; ".join(map(str, broken)))


def task_tables(
    cells: "list[Cell]",
    tallies: "pd.DataFrame",
    format: str = "text",
    tasks: list[str] | None = None,
    lengths: Any = None,
    num_examples: int | None = None,
) -> str:
    """The scores of each model by task and length, a table for each suite; `tallies` are those of
    the cells, tasks, lengths and examples those of `summarize`."""
    from rulerkit.report.tables import footnotes, task_table_text
    from rulerkit.scoring.summary import suites_of
    from rulerkit.store.comparable import check_same

    # Each model may have been asked in another way, so each has a table of its own.
    of_models = defaultdict(list)
    for cell in cells:
        of_models[cell.run, cell.model].append(cell)
    for group in of_models.values():
        check_same(group)

    tables = []
    for suite in suites_of(tallies):
        known = {cell.task for cell in cells if cell.about.suite == suite}
        named = [task for task in tasks or () if task in known] or None
        of_suite = tallies[tallies["suite"] == suite]
        summary = rk.summarize(tallies, named, lengths, num_examples, suite=suite)
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
            tables.append(own.table(rk.score(cells), named, lengths, num_examples, format))
    return "\n".join(tables)


def tallied(
    cells: "list[Cell]", problems: list[str], num_examples: int | None = None
) -> "pd.DataFrame":
    """The rows of `tally`; what cannot be judged is left out, and why is added to `problems`.
    Raises UserError where nothing can be judged."""
    from rulerkit.scoring.summary import tally

    tallies = tally(cells, problems.append, num_examples)
    if problems and not tallies["n"].any():
        raise UserError(problems[-1].removeprefix("left out: "))
    return tallies


def leaderboards(
    cells: "list[Cell]", tallies: "pd.DataFrame", format: str, further_notes: list[str]
) -> str:
    """The leaderboard of each suite over these cells."""
    from rulerkit.report.tables import footnotes, table_text
    from rulerkit.scoring.summary import suites_of

    tables = []
    shown = {cell.about.suite for cell in cells}
    for suite in [suite for suite in suites_of(tallies) if suite in shown]:
        of_suite = [cell for cell in cells if cell.about.suite == suite]
        notes = [*footnotes(of_suite, tallies[tallies["suite"] == suite]), *further_notes]
        if own := capability(suite):
            tables.append(own.table(rk.score(cells), format=format, notes=notes))
        else:
            tables.append(table_text(rk.summarize(tallies, suite=suite), format, notes=notes))
    return "\n".join(tables)

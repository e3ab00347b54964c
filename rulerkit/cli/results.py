"""The commands about answers: export, browse, and the answer that `show` prints below an
example."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit import escape
from rulerkit.cli.options import echo
from rulerkit.errors import UserError, unknown

Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PLACE]...",
        help="Outputs folders, folders or files of predictions, or patterns; default: outputs.",
    ),
]


def export(
    places: Places = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "results.csv"
    ),
    format: Annotated[
        str | None, typer.Option(help="parquet, csv or jsonl; default: as the file's name ends.")
    ] = None,
    labels: Annotated[
        bool, typer.Option("--labels", help="Also say what went wrong; makes examples again.")
    ] = False,
) -> None:
    """Write one table of all results for other programs: a row per example, with what was asked and
    written.

    docs/reference.md lists the columns.
    """
    from rulerkit.results import export as write
    from rulerkit.results import load

    results = load(*places or (), labels=labels)
    write(results, output, format)
    echo(f"{len(results)} rows, {len(results.columns)} columns: {output}")


def browse(
    places: Places = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file to write.")] = Path(
        "examples.html"
    ),
    most: Annotated[int, typer.Option(help="How many answers the page holds.", min=1)] = 1000,
) -> None:
    """Write a page that leads from each score to the answers behind it; it opens in a browser
    without a network."""
    from rulerkit.browser import browse as page_of
    from rulerkit.results import load

    page = page_of(load(*places or ()), most).save(output)
    echo(f"open {page} in a browser")


def show_answer(model: str, task: str, length: int, index: int, color: bool) -> None:
    """Print an example as a model was asked it, what it wrote, and the score."""
    from rulerkit.compare import find
    from rulerkit.failures import example_of
    from rulerkit.results import answers_of
    from rulerkit.scoring import score
    from rulerkit.view import to_terminal

    cells = {(cell.task, cell.length): cell for cell in find(model)}
    if (task, length) not in cells:
        known = [f"{name} --length {tokens}" for name, tokens in cells]
        raise unknown("task and length of this model", f"{task} --length {length}", known)
    cell = cells[task, length]
    if index not in cell.present:
        raise UserError(
            f"{model} has no answer to example {index} of {task} at {length}: it has {cell.wanted} "
            "examples, from 0; those without an answer are in its *.failures.jsonl"
        )
    example = example_of(cell, index)
    rows = answers_of(score([cell]), cells=[cell])
    row: Any = rows[rows["index"] == index].iloc[0]
    typer.echo(to_terminal(example, color), nl=False)
    typer.echo(f"{escape.terminal(cell.model)} wrote: {escape.terminal(row['prediction'].strip())}")
    typer.echo(f"score: {100 * row['score']:.0f} of 100 ({row['finish_reason']})")

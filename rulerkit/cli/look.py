"""Commands that look: at models, tasks, examples, scores and the answers behind them."""

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rulerkit as rk
from rulerkit.cli.app import EVERY_DAY, LOOK, app
from rulerkit.cli.given import EXAMPLES, one_model, study_of
from rulerkit.cli.options import (
    Files,
    HubDataset,
    Lengths,
    NumExamples,
    OneModel,
    OtherScorers,
    Places,
    ReportBy,
    ReportFile,
    ReportFormat,
    Settings,
    Tasks,
)
from rulerkit.cli.printing import echo
from rulerkit.common.errors import UserError, check_known

if TYPE_CHECKING:
    import pandas as pd

    from rulerkit.store.cells import Cell

TABLES = ("text", "markdown", "latex")
ENDINGS = {"md": "markdown", "tex": "latex", "txt": "text"}


@app.command("tasks", rich_help_panel=LOOK)
def tasks() -> None:
    """List the tasks: the benchmark's thirteen, five more of the paper's Figure 5, and suites."""
    from rulerkit.generation.tasks import all_families, all_tasks

    for task in all_tasks().values():
        default = type(task)(name=task.name)
        differs = [
            f"{name}={getattr(task, name)}"
            for name in task.setting_names()
            if getattr(task, name) != getattr(default, name)
        ]
        mark = " " if task.name in rk.THIRTEEN else "+"
        text = ", ".join(differs) or f"the default {task.family}"
        echo(f"{mark} {task.name:18} {task.category:12} {text}")

    echo("\n+ beyond the thirteen. Settings of a family, for '{base: TASK, SETTING: VALUE}':")
    for family in all_families():
        default = family(name=family.family)
        settings = [f"{name}={getattr(default, name)}" for name in family.setting_names()]
        echo(f"  {family.family:18} {', '.join(settings)}")


@app.command("models", rich_help_panel=LOOK)
def models() -> None:
    """List the models that have a name: files in params/models, and reference readers."""
    from rulerkit.common.model_files import known_models, read_spec

    for name in known_models():
        if name == "reader-<tokens>":
            echo(f"{name:28} reader        sees the last so many tokens: reader-8192")
            continue
        spec = read_spec(name)
        about = spec.get("path") or spec.get("entry") or "a rule"
        echo(f"{name:28} {spec['engine']:12}  {about}")
    echo(
        "\na folder, a hub id (org/name), an address (http://localhost:8000) or a mapping "
        "('{base: NAME, KEY: VALUE}') is a model, too"
    )


@app.command("show", rich_help_panel=LOOK)
def show(
    model: OneModel = None,
    tasks: Tasks = None,
    lengths: Lengths = None,
    num_examples: NumExamples = 1,
    files: Files = None,
    settings: Settings = None,
    index: Annotated[int, typer.Option(min=0, help="The first example to show.")] = 0,
) -> None:
    """Show prompts as a model gets them, with each part marked. No model is started.

    By default one example of niah_multikey_1 at 4K, in plain text. Stored answers are opened by
    `rulerkit browse`.

    Example: rulerkit show llama-3.1-8b --tasks vt,qa_1 --lengths 1K --index 3
    """
    from rulerkit.report.view import to_terminal

    first = {"model": "perfect", "tasks": ["niah_multikey_1"], "lengths": [4096]}
    study = study_of(model, tasks, lengths, None, files, settings, first, EXAMPLES)
    form = rk.load_model(one_model(study)).prompt_format
    indices = range(index, index + (num_examples or 1))
    for cell in study.cells():
        examples = rk.generate(cell.task, cell.length, indices.stop, study.seed, form)
        for number in indices:
            typer.echo(to_terminal(examples[number], color=sys.stdout.isatty()))


@app.command("report", rich_help_panel=EVERY_DAY)
def report(
    places: Places = None,
    by: ReportBy = "",
    format: ReportFormat = "",
    output: ReportFile = None,
    other: OtherScorers = None,
    dataset: HubDataset = "",
) -> None:
    """Score stored predictions, with 95 % intervals; no model is needed.

    Reads our files, and those of other programs by plug-ins. Predictions made in different ways
    (seed, prompts, checkpoint) are not mixed: a message names them and says why.

    Examples: rulerkit report, rulerkit report outputs -o results.csv, rulerkit report
    main/llama-3.1-8b --as lm-eval
    """
    from rulerkit.analysis.results import FORMATS
    from rulerkit.common.plugins import by_name
    from rulerkit.report.stored import leaderboards, tallied, task_tables
    from rulerkit.scoring.scores import lacking_line
    from rulerkit.store.cells import readable
    from rulerkit.store.comparable import check_same
    from rulerkit.store.places import find_cells

    problems = list[str]()
    cells = find_cells(places or ["outputs"], problems.append)
    if not cells:
        raise UserError("; ".join(["no predictions can be read", *problems]))
    if other:
        if by or format or output:
            raise UserError("--as prints its own table: leave the other options out")
        _judge_again(cells, other)
        return

    formats = by_name("formats", (*TABLES, *FORMATS), "format")
    kind, by = _form(cells, format, output, by, formats)
    if dataset and kind not in formats:
        raise UserError(f"--dataset is for --format {' or '.join(formats) or 'of a plug-in'}")
    tallies = tallied(cells, problems)
    cells = readable(cells)
    is_leaderboard = by == "model" and kind in TABLES
    for line in filter(None, [lacking_line(cells), *([] if is_leaderboard else problems)]):
        echo(line, err=True)

    if is_leaderboard:
        below = [f"{problem}." for problem in problems]
        _write(leaderboards(cells, tallies, kind, below), output)
    elif kind in TABLES:
        _write(task_tables(cells, tallies, kind), output)
    else:
        check_same(cells)
        if kind in formats:
            rows = formats[kind](cells, tallies, dataset)
        else:
            rows = _data(cells, tallies, by, kind)
        _write(rows, output)


def _judge_again(cells: "list[Cell]", names: list[str]) -> None:
    """Print what scorers of plug-ins give for the same answers."""
    from rulerkit.common.plugins import by_name

    known = by_name("scorers", (), "scorer")
    names = [*known] if names == ["all"] else names
    asked = dict[Any, list[str]]()
    for name in names:
        check_known("scorer", name, known, "Plug-ins bring them (docs/scorers.md)")
        asked.setdefault(known[name], []).append(name)
    for judged_text, of_one in asked.items():
        echo(judged_text(cells, of_one), nl=False)


def _form(
    cells: "list[Cell]", format: str, output: Path | None, by: str, others: Collection[str]
) -> tuple[str, str]:
    """The format of a report, and what has a row in it, where options leave them open, too;
    `others` are the formats of plug-ins."""
    from rulerkit.analysis.results import FORMATS

    ending = output.suffix.removeprefix(".") if output else ""
    kind = format or ENDINGS.get(ending, ending) or "text"
    hint = "--format names it, or the name of the file ends in it"
    check_known("format", kind, (*TABLES, *FORMATS, *others), hint)
    if not by:
        models = {(cell.run, cell.model) for cell in cells}
        by = "task" if kind in FORMATS or len(models) == 1 else "model"
    check_known("--by", by, ("model", "task", "example"))
    if by == "example" and kind not in FORMATS:
        raise UserError(f"--by example is for {', '.join(FORMATS)}: {kind} shows tables of scores")
    return kind, by


def _data(cells: "list[Cell]", tallies: "pd.DataFrame", by: str, kind: str) -> str | bytes:
    """Rows for other programs, of models, cells or examples."""
    import pandas as pd

    from rulerkit.analysis.results import data_of
    from rulerkit.scoring.summary import ordered_suites

    if by == "example":
        return data_of(rk.answers_of(rk.score(cells), cells=cells), kind)
    summaries = [rk.summarize(tallies, suite=suite) for suite in ordered_suites(tallies["suite"])]
    tables = [summary.cells if by == "task" else summary.models for summary in summaries]
    return data_of(pd.concat(tables, ignore_index=True), kind)


def _write(content: str | bytes, output: Path | None) -> None:
    """Print what a report holds, or write it to a file; LaTeX to two, the table and its notes."""
    from rulerkit.common.render import table_files
    from rulerkit.store.files import write_whole

    if output:
        files = table_files(output, content) if isinstance(content, str) else {output: content}
        for file, part in files.items():
            write_whole(file, part)
        echo(f"written: {', '.join(map(str, files))}")
    elif isinstance(content, bytes):
        raise UserError("--format parquet needs a file: -o results.parquet")
    else:
        echo(content, nl=False)


@app.command("browse", rich_help_panel=EVERY_DAY)
def browse(
    place: Places = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", dir_okay=False, help="The HTML file to write.")
    ] = Path("examples.html"),
    most: Annotated[int, typer.Option(min=1, help="How many answers the page holds.")] = 1000,
) -> None:
    """Write an HTML page that leads from each score to the answers behind it.

    It opens in a browser without a network.
    """
    results = rk.load(*place or ())
    page = rk.browse(results, most)
    echo(
        f"open {page.save(output)} in a browser: {page.num_examples} of {len(results)} answers can "
        "be opened there"
    )

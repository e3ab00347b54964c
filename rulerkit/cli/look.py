"""Commands that look: at models, tasks, examples, scores and the answers behind them."""

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rulerkit as rk
from rulerkit.cli.app import EVERY_DAY, LOOK, app
from rulerkit.cli.given import (
    EXAMPLES,
    Given,
    is_folder_of_answers,
    lengths_of,
    one_model,
    tasks_of,
)
from rulerkit.cli.options import (
    ONE_MODEL,
    Category,
    Files,
    ForeignLength,
    ForeignTask,
    HubDataset,
    Lengths,
    MaxFailures,
    NumExamples,
    OtherScorers,
    Places,
    ReportBy,
    ReportFile,
    ReportFormat,
    Settings,
    Tasks,
)
from rulerkit.cli.printing import echo, judged, leaderboards, task_tables
from rulerkit.common.errors import UserError, check_known, counted, listed, unknown
from rulerkit.common.lengths import length_name, parse_length

if TYPE_CHECKING:
    import pandas as pd

    from rulerkit.common.settings import JSON
    from rulerkit.generation.example import Example
    from rulerkit.store.cells import Cell

TABLES = ("text", "markdown", "latex")
ENDINGS = {"md": "markdown", "tex": "latex", "txt": "text", "yaml": "hf"}


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
def models(
    pattern: Annotated[str, typer.Argument(help="Only names that hold this text.")] = "",
) -> None:
    """List the models that have a name: files in params/models, and reference readers."""
    from rulerkit.common.model_files import known_models, read_spec

    for name in known_models():
        if pattern.lower() not in name.lower():
            continue
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
    model: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]",
            help=f"{ONE_MODEL} Or a folder of answers. Default: plain text, the built-in "
            "tokenizer.",
        ),
    ] = None,
    tasks: Tasks = None,
    lengths: Lengths = None,
    num_examples: NumExamples = 1,
    files: Files = None,
    settings: Settings = None,
    index: Annotated[int, typer.Option(min=0, help="The first example to show.")] = 0,
) -> None:
    """Show prompts as a model gets them, with each part marked, and its stored answers.

    By default one example of niah_multikey_1 at 4K. No model is started.

    Example: rulerkit show llama-3.1-8b --tasks vt,qa_1 --lengths 1K --index 3
    """
    from rulerkit.common.model_files import is_known_model

    given = Given(model, tasks, lengths, files=files, settings=settings)
    names = model or []
    indices = range(index, index + (num_examples or 1))
    if names and names[0] in rk.TASKS and not is_known_model(names[0]):
        raise UserError(
            f"{names[0]} is a task, and MODEL stands here: rulerkit show --tasks {names[0]}"
        )
    if len(names) == 1 and is_folder_of_answers(names[0]):
        if files or settings:
            raise UserError(f"{names[0]} holds answers, whose records say all: leave out -f and -y")
        asked = [
            one if isinstance(one, str) else rk.task(one).name for one in tasks_of(tasks or ())
        ]
        places = product(asked or [""], lengths_of(lengths or ()) or [0])
        for task, length in places:
            for number in indices:
                _show(*_answered(names[0], task, length, number))
        return

    study = given.study(
        "perfect", (*EXAMPLES, "run", "outputs"), tasks=["niah_multikey_1"], lengths=[4096]
    )
    form = rk.load_model(one_model(study)).prompt_format
    for cell in study.cells():
        examples = rk.generate(cell.task, cell.length, indices.stop, study.seed, form)
        for number in indices:
            example = examples[number]
            _show(example, _stored_answer(cell.path, example))


def _show(example: "Example", answer: str) -> None:
    from rulerkit.report.view import to_terminal

    typer.echo(to_terminal(example, color=sys.stdout.isatty()))
    if answer:
        echo(answer)


@app.command("report", rich_help_panel=EVERY_DAY)
def report(
    places: Places = None,
    by: ReportBy = "",
    format: ReportFormat = "",
    output: ReportFile = None,
    other: OtherScorers = None,
    task: ForeignTask = None,
    length: ForeignLength = None,
    category: Category = "all",
    max_failures: MaxFailures = None,
    dataset: HubDataset = "",
) -> None:
    """Score stored predictions, with 95 % intervals; no model is needed.

    Reads our files and those of upstream and lm-evaluation-harness. Predictions made in different
    ways (seed, prompts, checkpoint) are not mixed: a message names them and says why.

    Examples: rulerkit report, rulerkit report outputs -o results.csv, rulerkit report
    main/llama-3.1-8b --as lm-eval
    """
    from rulerkit.report.hub import hub_text
    from rulerkit.scoring.scores import lacking_line
    from rulerkit.store.cells import readable
    from rulerkit.store.comparable import check_same

    problems = list[str]()
    cells = _cells_in(places or ["outputs"], task, length, problems)
    if other:
        if by or format or output or max_failures is not None:
            raise UserError("--as prints its own table: leave the other options out")
        _print_scorers(cells, other)
        return

    kind, by = _form(cells, format, output, by, category, dataset)
    scores = judged(cells, problems, max_failures)
    cells = readable(cells)
    is_leaderboard = by == "model" and kind in TABLES
    for line in filter(None, [lacking_line(cells), *([] if is_leaderboard else problems)]):
        echo(line, err=True)

    if is_leaderboard:
        shown = _of_category(cells, category)
        check_same(shown)
        below = [f"{problem}." for problem in problems]
        _write(leaderboards(shown, scores, kind, category, below), output)
        return
    if kind in TABLES:
        _write(task_tables(cells, scores, kind), output)
        return
    check_same(cells)
    if kind == "hf":
        _write(hub_text(cells, scores, dataset), output)
    else:
        _write_data(_data(cells, scores, by), kind, output)


def _form(
    cells: "list[Cell]", format: str, output: Path | None, by: str, category: str, dataset: str
) -> tuple[str, str]:
    """The format of a report, and what has a row in it, where options leave them open, too."""
    from rulerkit.analysis.results import FORMATS
    from rulerkit.store.places import base_run

    ending = output.suffix.removeprefix(".") if output else ""
    kind = format or ENDINGS.get(ending, ending) or "text"
    hint = "--format names it, or the name of the file ends in it"
    check_known("format", kind, (*TABLES, *FORMATS, "hf"), hint)
    if dataset and kind != "hf":
        raise UserError("--dataset goes with --format hf only")
    if not by:
        models = {(base_run(cell.run), cell.model) for cell in cells}
        is_one = kind in FORMATS or len(models) == 1
        by = "task" if is_one and category == "all" else "model"
    check_known("--by", by, ("model", "task", "example"))
    if by == "example" and kind not in FORMATS:
        raise UserError(f"--by example is for {', '.join(FORMATS)}: {kind} shows tables of scores")
    return kind, by


def _cells_in(
    places: list[str], task: str | None, length: str | None, problems: list[str]
) -> "list[Cell]":
    """The cells of all places, whoever wrote them; what is wrong with files goes to `problems`."""
    from rulerkit.store.places import find_cells

    tokens = parse_length(length) if length else None
    try:
        cells = find_cells(places, problems.append, task=task, length=tokens)
        if not cells:
            raise UserError(f"no predictions in {listed(places, 3)} can be read")
    except UserError:
        for problem in problems:
            echo(problem, err=True)
        raise
    return cells


def _print_scorers(cells: "list[Cell]", names: list[str]) -> None:
    """Print what the answers score by other harnesses' scorers."""
    from rulerkit.analysis.scorers import score_as
    from rulerkit.report.scorers import scorers_text

    of_all = score_as(cells, "all" if names == ["all"] else names)
    echo(scorers_text(of_all), nl=False)


def _write(text: str, output: Path | None) -> None:
    """Print a text, or write it to a file; LaTeX to two, the table and its notes."""
    from rulerkit.common.render import table_files
    from rulerkit.store.files import disk, write_whole

    if not output:
        echo(text, nl=False)
        return
    files = table_files(output, text)
    for file, content in files.items():
        with disk(file, "choose another file"):
            write_whole(file, content)
    echo(f"written: {', '.join(map(str, files))}")


def _write_data(rows: "pd.DataFrame", kind: str, output: Path | None) -> None:
    """Print rows for other programs, or write them to a file."""
    from rulerkit.analysis.results import data_text, export

    if output:
        export(rows, output, kind)
        echo(f"{counted(len(rows), 'row')}, {len(rows.columns)} columns: {output}")
    elif kind == "parquet":
        raise UserError("--format parquet needs a file: -o results.parquet")
    else:
        echo(data_text(rows, kind), nl=False)


def _data(cells: "list[Cell]", scores: "pd.DataFrame", by: str) -> "pd.DataFrame":
    """The rows for other programs: of models, of cells (a model, task and length), of examples."""
    import pandas as pd

    from rulerkit.scoring.summary import suites_of

    if by == "example":
        return rk.answers_of(scores, cells=cells)
    summaries = [rk.summarize(scores, suite=suite) for suite in suites_of(scores)]
    tables = [summary.cells if by == "task" else summary.models for summary in summaries]
    return pd.concat(tables, ignore_index=True)


def _of_category(cells: "list[Cell]", category: str) -> "list[Cell]":
    """The cells whose tasks are of a category; UserError where there is none."""
    from rulerkit.scoring.scores import describe

    category_of = [describe(cell)["category"] for cell in cells]
    check_known("category of these answers", category, ["all", *dict.fromkeys(category_of)])
    return [cell for cell, own in zip(cells, category_of, strict=True) if category in ("all", own)]


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


def _answered(model: str, task: str, length: int, index: int) -> "tuple[Example, str]":
    """An example as it was asked, from a folder of answers; and what was written, with the score,
    as text. Without a task or a length the first one there is taken."""
    from rulerkit.analysis.remake import remaker
    from rulerkit.store.places import find_cells

    stored = find_cells([model])
    cells = [cell for cell in stored if task in ("", cell.task) and length in (0, cell.length)]
    if not cells:
        there = [f"{cell.task} at {length_name(cell.length)}" for cell in stored]
        seen = f"{task or 'any task'} at {length_name(length) if length else 'any length'}"
        raise unknown(f"task and length in {model}", seen, there)
    cell = cells[0]
    if index not in cell.coverage.have:
        raise UserError(
            f"{model} has no answer to example {index} of {cell.task} at {cell.length}: it has "
            f"{cell.wanted} examples, from 0; those without an answer are in its *.failures.jsonl"
        )
    row = next(row for row in cell.rows if row["index"] == index)
    return remaker(cell)(row), _answer_text(cell, row)


def _stored_answer(path: Path, example: "Example") -> str:
    """What a model wrote when it was asked this example, as text; empty where it was not."""
    from rulerkit.store.cells import load_cell

    cell = load_cell(path)
    if not cell or example.index not in cell.coverage.have:
        return ""
    row = next(row for row in cell.rows if row["index"] == example.index)
    if row["digest"] != example.digest:
        return (
            f"{cell.model} has answered another prompt of this number: its seed, tokenizer or "
            "template was another"
        )
    return _answer_text(cell, row)


def _answer_text(cell: "Cell", row: "JSON") -> str:
    """What a model wrote, its score, and whether it ended at the token limit."""
    score = rk.score([cell]).set_index("index")["score"][row["index"]]
    ended = ", stopped at the token limit" if row["finish_reason"] == "length" else ""
    return f"{cell.model} wrote: {row['pred'].strip()}\nscore: {100 * score:.0f} of 100{ended}"

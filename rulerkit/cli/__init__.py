"""The command line. Heavy modules are imported inside the commands, so that --help answers at
once."""

import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit import escape
from rulerkit.cli.batches import batch, run_jobs, status
from rulerkit.cli.checks import check, plan
from rulerkit.cli.compare import compare
from rulerkit.cli.fetch import fetch
from rulerkit.cli.options import (
    Corpora,
    Length,
    MaxFailures,
    Protocol,
    Seed,
    Set,
    Task,
    Template,
    Tokenizer,
    echo,
    settings_of,
    task_of,
)
from rulerkit.cli.serve import serve
from rulerkit.errors import UserError

app = typer.Typer(
    name="rulerkit",
    help="How much of its context does a language model really use? RULER (arXiv 2404.06654) with error bars.\n\n"
    "A first look, without GPU or download: [bold]rulerkit show niah_multikey_1 --length "
    "1024[/bold], then "
    "[bold]rulerkit batch params/batches/demo.yaml[/bold].",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.command()
def tasks() -> None:
    """List the tasks: the thirteen of the benchmark and the five that Figure 5 of the paper
    adds."""
    from dataclasses import fields

    from rulerkit.tasks import FAMILIES, TASKS, THIRTEEN

    for each in TASKS.values():
        default = {knob.name: knob.default for knob in fields(each)}
        differs = [
            f"{k}={getattr(each, k)}" for k in each.knobs() if getattr(each, k) != default[k]
        ]
        mark = " " if each.name in THIRTEEN else "+"
        echo(
            f"{mark} {each.name:18} {each.category:12} "
            f"{', '.join(differs) or f'the default {each.family}'}"
        )
    echo("\n+ beyond the thirteen (Figure 5). Knobs of a family, for '{base: TASK, KNOB: VALUE}':")
    for family in FAMILIES:
        knobs = [
            f"{knob.name}={knob.default}" for knob in fields(family) if knob.name in family.knobs()
        ]
        echo(f"  {family.family:18} {', '.join(knobs)}")


@app.command()
def show(
    task: Task,
    length: Length = "4096",
    index: Annotated[int, typer.Option(help="Which example.", min=0)] = 0,
    seed: Seed = 42,
    tokenizer: Tokenizer = "builtin",
    corpora: Corpora = "builtin",
    protocol: Protocol = "clean",
    template: Template = "auto",
) -> None:
    """Show one example with the roles of its pieces marked."""
    from rulerkit.lengths import parse_length
    from rulerkit.other_formats import Order
    from rulerkit.view import to_terminal

    asked = task_of(task, protocol).with_corpora(corpora)
    example = Order(asked, parse_length(length), index + 1, seed, tokenizer, template).examples()[
        index
    ]
    typer.echo(to_terminal(example, color=sys.stdout.isatty()))


@app.command()
def generate(
    tasks: Annotated[
        list[str],
        typer.Argument(metavar="TASK...", help="Names or mappings; `all` for the thirteen."),
    ],
    output: Annotated[
        Path,
        typer.Option(help="The JSONL file; for several cells a folder, laid out as upstream does."),
    ],
    length: Annotated[
        list[str] | None, typer.Option(help="Token budget, 4096 or 4K; may be given several times.")
    ] = None,
    num_examples: Annotated[int, typer.Option(help="How many examples of each.", min=1)] = 500,
    seed: Seed = 42,
    tokenizer: Tokenizer = "builtin",
    corpora: Corpora = "builtin",
    protocol: Protocol = "clean",
    template: Template = "auto",
    workers: Annotated[
        int, typer.Option(help="Processes; the files are the same whatever their number.", min=1)
    ] = 1,
) -> None:
    """Write examples as upstream's JSONL: index, input, outputs, length, answer_prefix, and a few
    fields more."""
    from rulerkit.lengths import parse_length
    from rulerkit.other_formats import Order, write_grid
    from rulerkit.tasks import THIRTEEN

    asked = [
        task_of(name, protocol)
        for given in tasks
        for name in (THIRTEEN if given == "all" else (given,))
    ]
    lengths = [parse_length(each) for each in length or ["4096"]]
    orders = [
        Order(each.with_corpora(corpora), tokens, num_examples, seed, tokenizer, template)
        for tokens in lengths
        for each in asked
    ]
    if len(orders) == 1 and output.is_dir():
        raise UserError(
            f"--output {output} is a folder: give the name of a file, such as {output / 'vt.jsonl'}"
        )
    inside = [output / str(o.length) / "data" / o.task.name / "validation.jsonl" for o in orders]
    write_grid(orders, inside if len(orders) > 1 else [output], workers)
    echo(f"{len(orders)} x {num_examples} examples: {output}")


@app.command()
def evaluate(
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", "-f", help="Parameter files, later ones win: -f model.yaml -f size.yaml"
        ),
    ] = None,
    settings: Set = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start anew; old predictions are moved aside, not deleted."),
    ] = False,
) -> None:
    """Let models answer all tasks at all lengths, keep the predictions, and print the scores.

    Takes the same parameter files as papermill. What was answered before is not asked again, so a
    killed run is gone on with by the same command.
    """
    from rulerkit.evaluation import evaluate as run
    from rulerkit.studies import load_files, study

    parameters = load_files(files or []) | settings_of(settings)
    asked = study(parameters)
    if not asked.models:
        raise UserError("model is None: nobody answers; name one, such as -y 'model: reader-8192'")
    errors: list[UserError] = []
    cells = run(asked, fresh=fresh, failed=errors.append)
    _print_scores(cells, [task.name for task in asked.tasks], asked.lengths, asked.num_examples)
    echo(f"\npredictions: {asked.predictions}")
    for error in errors:
        echo(f"rulerkit: {error}", err=True)
    if errors:
        raise typer.Exit(1)


@app.command()
def score(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Prediction files or folders: ours, upstream's, lm-eval's samples."),
    ],
    task: Annotated[
        str | None, typer.Option(help="The task, where file names do not tell.")
    ] = None,
    length: Annotated[
        str | None, typer.Option(help="The nominal length, where folders do not tell.")
    ] = None,
    max_failures: MaxFailures = None,
) -> None:
    """Score predictions, whoever made them: rulerkit's, upstream's pred/ tree, or
    lm-evaluation-harness' samples."""
    from rulerkit.lengths import parse_length
    from rulerkit.other_formats import read_predictions

    nominal = parse_length(length) if length else None
    cells = [cell for path in paths for cell in read_predictions(path, task, nominal)]
    _print_scores(cells, None, _lengths(cells), max_failures=max_failures)


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(help="A folder of predictions: outputs/predictions/main, or one model's."),
    ],
    format: Annotated[
        str, typer.Option(help="table, csv (one row per model, task, length), markdown or latex.")
    ] = "table",
    category: Annotated[str, typer.Option(help="all, niah, vt, aggregation or qa.")] = "all",
    max_failures: MaxFailures = None,
) -> None:
    """The leaderboard over a folder of predictions, with intervals; needs no model, tokenizer or
    corpus.

    Cells that were made otherwise (another seed, other prompts, another checkpoint of that name)
    are not mixed: it is said which and why. Where only the environment differs (GPU, versions,
    commit), a line below the table says so.
    """
    from rulerkit.evaluation import check_same, footnotes
    from rulerkit.scoring import describe
    from rulerkit.scoring import score as judge
    from rulerkit.store import read_cells
    from rulerkit.summary import summarize
    from rulerkit.tables import table_text

    problems: list[str] = []
    cells = read_cells(folder, report=problems.append, scan=False)
    scores = judge(cells, problems.append, max_failures)
    for problem in problems:
        echo(problem, err=True)
    if not cells:
        raise UserError(f"no predictions in {folder}: it should hold <model>/<task>/<length>.jsonl")
    shown = [
        each for each in cells if format == "csv" or category in ("all", describe(each)["category"])
    ]
    check_same(shown)
    notes = [*footnotes(shown), *(f"{problem}." for problem in problems)]
    echo(table_text(summarize(scores, lengths=_lengths(cells)), format, category, notes), nl=False)


app.command()(batch)
app.command("run")(run_jobs)
app.command()(status)
app.command()(serve)
app.command()(fetch)
app.command()(check)
app.command()(plan)
app.command()(compare)


# --- helpers --------------------------------------------------------------------------------------


def _lengths(cells: list[Any]) -> list[int]:
    """The lengths at which any example was answered or failed."""
    return sorted({cell.length for cell in cells if cell.present or cell.failures})


def _print_scores(cells: list[Any], *grid: Any, max_failures: float | None = None) -> None:
    from collections import defaultdict

    from rulerkit.evaluation import check_same, footnotes
    from rulerkit.scoring import score as judge
    from rulerkit.summary import summarize
    from rulerkit.tables import task_table_text

    own = defaultdict(list)
    for cell in cells:
        own[cell.run, cell.model].append(cell)
    for each in own.values():  # tables of one model: two of them may have been asked differently
        check_same(each)
    summary = summarize(judge(cells, max_failures=max_failures), *grid)
    for run, model in summary.cells[["run", "model"]].drop_duplicates().itertuples(index=False):
        echo(f"\n{model} ({run})")
        echo(task_table_text(summary, model, run, notes=footnotes(own[run, model])), nl=False)


_INTERRUPTED = 130  # what typer makes of Ctrl-C


def main() -> None:
    """Run the command line; what the user can mend is one line and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # letters that the terminal has not
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        echo(f"rulerkit: {escape.one_line(str(error))}", err=True)
        sys.exit(2)
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            echo("\nrulerkit: stopped; the same command goes on from here", err=True)
        raise

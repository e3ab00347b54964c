"""Commands that look: at models, tasks, examples, scores and the answers behind them."""

import sys
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rulerkit as rk
from rulerkit.cli.app import LOOK, app
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
    Files,
    HubDataset,
    Lengths,
    MaxFailures,
    NumExamples,
    Places,
    Settings,
    Tasks,
)
from rulerkit.cli.printing import echo, print_leaderboards, print_scores
from rulerkit.common.errors import ExitStatus, UserError, check_known, counted, unknown
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.common.paths import resolve_file

if TYPE_CHECKING:
    from rulerkit.common.settings import JSON
    from rulerkit.generation.example import Example
    from rulerkit.store.cells import Cell


@app.command(rich_help_panel=LOOK)
def tasks() -> None:
    """List the tasks: the thirteen of the benchmark, the five that Figure 5 of the paper adds, and
    the frontier suite."""
    from rulerkit.generation.tasks import all_families, all_tasks

    for task in all_tasks().values():
        default = type(task)(name=task.name)
        differs = [
            f"{name}={getattr(task, name)}"
            for name in task.knobs()
            if getattr(task, name) != getattr(default, name)
        ]
        mark = " " if task.name in rk.THIRTEEN else "+"
        text = ", ".join(differs) or f"the default {task.family}"
        echo(f"{mark} {task.name:18} {task.category:12} {text}")

    echo("\n+ beyond the thirteen. Knobs of a family, for '{base: TASK, KNOB: VALUE}':")
    for family in all_families():
        default = family(name=family.family)
        knobs = [f"{name}={getattr(default, name)}" for name in family.knobs()]
        echo(f"  {family.family:18} {', '.join(knobs)}")


@app.command(rich_help_panel=LOOK)
def models(
    pattern: Annotated[str, typer.Argument(help="Only names that hold this text.")] = "",
) -> None:
    """List the models that have a name: the files of params/models of the kit and of the project,
    and the reference readers."""
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


@app.command(rich_help_panel=LOOK)
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
    """Show examples as a model is sent them, with the role of each piece marked, and its answers
    where it has answered.

    Shows one example of niah_multikey_1 at 4K where nothing else is asked for. No model is started.

    Example: rulerkit show llama-3.1-8b --tasks vt,qa_1 --lengths 1K --index 3
    """
    given = Given.of(model, tasks, lengths, files=files, settings=settings)
    indices = range(index, index + (num_examples or 1))
    _refuse_a_task(given)
    if len(given.models) == 1 and is_folder_of_answers(given.models[0]):
        if files or settings:
            raise UserError(
                f"{given.models[0]} holds answers, whose records say all: leave out -f and -y"
            )
        names = [
            one if isinstance(one, str) else rk.task(one).name for one in tasks_of(given.tasks)
        ]
        places = product(names or [""], lengths_of(given.lengths) or [0])
        for task, length in places:
            for number in indices:
                _show(*_answered(given.models[0], task, length, number))
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
    typer.echo(rk.view.to_terminal(example, color=sys.stdout.isatty()))
    if answer:
        echo(answer)


def _refuse_a_task(given: Given) -> None:
    """Whoever writes a task where the model stands is told how it is written."""
    from rulerkit.common.model_files import is_known_model

    for name in given.models[:1]:
        if name in rk.TASKS and not is_known_model(name):
            raise UserError(
                f"{name} is a task, and MODEL stands here: rulerkit show --tasks {name}"
            )


@app.command(rich_help_panel=LOOK)
def score(
    path: Annotated[
        list[Path],
        typer.Argument(help="Prediction files or folders: ours, upstream's, lm-eval's samples."),
    ],
    task: Annotated[
        str | None, typer.Option(help="The task of the files, where their names do not say.")
    ] = None,
    length: Annotated[
        str | None, typer.Option(help="Their nominal length, where their folders do not say.")
    ] = None,
    max_failures: MaxFailures = None,
    other: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Also judge by another harness' scorer, such as lm-eval or nemo-skills:think "
            "(docs/scorers.md). Repeatable; all for all of them.",
        ),
    ] = None,
) -> None:
    """Score predictions, whoever made them: rulerkit's, upstream's pred/ tree, or
    lm-evaluation-harness' samples.

    With --as the table says how many points of a difference are the scorer, not the model.

    Example: rulerkit score outputs/predictions/main/llama-3.1-8b --as lm-eval
    """
    from rulerkit.analysis.scorers import score_as
    from rulerkit.report.scorers import scorers_text
    from rulerkit.scoring.scores import lacking_line
    from rulerkit.store.other_formats import read_predictions

    nominal = parse_length(length) if length else None
    cells: list[Cell] = []
    for file in path:
        cells += read_predictions(resolve_file(file), task, nominal)
    if other and max_failures is not None:
        raise UserError("--max-failures does not go with --as: leave one out")
    if other:
        judged = score_as(cells, "all" if other == ["all"] else other)
        echo(scorers_text(judged), nl=False)
    else:
        rows = print_scores(cells, max_failures=max_failures)
        if line := lacking_line(cells, rows):
            echo(line, err=True)


@app.command(rich_help_panel=LOOK)
def report(
    folder: Annotated[
        Path,
        typer.Argument(help="A folder of predictions: outputs/predictions/main, or one model's."),
    ],
    format: Annotated[
        str,
        typer.Option(
            help="table, csv (one row per model, task, length), markdown, latex, or hf: the "
            ".eval_results of one model's repository on the Hugging Face hub."
        ),
    ] = "table",
    category: Annotated[
        str,
        typer.Option(
            help="all, niah, vt, aggregation, qa, or the category of a family of your own."
        ),
    ] = "all",
    max_failures: MaxFailures = None,
    dataset: HubDataset = "",
) -> None:
    """The leaderboard over a folder of predictions, with intervals; needs no model, tokenizer or
    corpus. Each suite has a table of its own.

    Cells made in different ways (another seed, other prompts, another checkpoint of that name) are
    not mixed: a message names them and says why. Where only the environment differs (GPU, versions,
    commit), a line below the table says so.
    """
    from rulerkit.report.hub import hub_text
    from rulerkit.scoring.scores import lacking_line
    from rulerkit.store.comparable import check_same

    if dataset and format != "hf":
        raise UserError("--dataset goes with --format hf only")
    folder = resolve_file(folder)
    problems: list[str] = []
    cells = rk.read_cells(folder, report=problems.append, scan=False)
    scores = rk.score(cells, problems.append, max_failures)
    # A table has a place for what was left out; a CSV and the hub have none.
    in_table = bool(cells) and format not in ("csv", "hf")
    lines = [lacking_line(cells, scores), *([] if in_table else problems)]
    for line in filter(None, lines):
        echo(line, err=True)
    if not cells:
        raise UserError(f"no predictions in {folder}: it should hold <model>/<task>/<length>.jsonl")

    # A CSV has the cells of all categories.
    shown = _of_category(cells, "all" if format == "csv" else category)
    check_same(shown)
    if format == "hf":
        echo(hub_text(cells, scores, dataset), nl=False)
        return
    problem_lines = [f"{problem}." for problem in problems]
    try:
        print_leaderboards(shown, scores, format, category, problem_lines)
    except UserError:
        # There is no table, so its reasons stand here.
        for line in problems if in_table else ():
            echo(line, err=True)
        raise


def _of_category(cells: "list[Cell]", category: str) -> "list[Cell]":
    """The cells whose tasks are of a category; UserError where there is none."""
    from rulerkit.scoring.scores import describe

    category_of = [describe(cell)["category"] for cell in cells]
    check_known("category of these answers", category, ["all", *dict.fromkeys(category_of)])
    return [cell for cell, own in zip(cells, category_of, strict=True) if category in ("all", own)]


@app.command(rich_help_panel=LOOK)
def seal(
    folder: Annotated[
        Path, typer.Argument(help="A folder of predictions: outputs/predictions/main.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The file to write; default: seal.json in the folder. With --anonymous: the "
            "folder of the copy.",
        ),
    ] = None,
    anonymous: Annotated[
        bool,
        typer.Option(
            "--anonymous",
            help="Copy the predictions without hosts, paths and users, and seal the copy.",
        ),
    ] = False,
) -> None:
    """Write down by digests what a folder of predictions holds, for `rulerkit verify`.

    The digest of the whole stands below every table and figure of these predictions; print it in a
    paper, and share the folder with its seal.json. It covers rows, records, corpora and the code
    that judges.
    """
    from rulerkit.analysis import seal as seals
    from rulerkit.store.files import write_whole

    folder = resolve_file(folder)
    if anonymous:
        if output is None:
            raise UserError("--anonymous makes a copy: name its folder with --output")
        number = seals.anonymous(folder, output)
        echo(f"{counted(number, 'cell')} copied without hosts, paths and users")
        folder, output = output / "predictions", None

    sealed = seals.seal(folder)
    file = output or folder / seals.NAME
    write_whole(file, seals.seal_text(sealed))
    echo(f"{sealed.digest}  {counted(len(sealed.cells), 'cell')}: {file}")


@app.command(rich_help_panel=LOOK)
def verify(
    folder: Annotated[
        Path, typer.Argument(help="A folder of predictions: outputs/predictions/main.")
    ],
    seal: Annotated[
        Path | None,
        typer.Option("--seal", help="The file of the seal; default: seal.json in the folder."),
    ] = None,
    prompts: Annotated[
        bool,
        typer.Option(help="Also generate the examples again, with the tokenizer and the corpora."),
    ] = True,
) -> None:
    """Hold a folder of predictions against its seal, cell by cell.

    Scores need the folder alone; prompts are generated again, and where their tokenizer or corpora
    are not here, that is said. A cell that says the same in other bytes, as after a merge, is
    "rewritten". Ends with 0 where all is the same or rewritten, 1 where anything was changed, 3
    where something is absent.
    """
    from rulerkit.analysis import seal as seals
    from rulerkit.report.tables import render
    from rulerkit.scoring.scores import code_version

    folder = resolve_file(folder)
    sealed = seals.read_seal(seal or folder / seals.NAME)
    if sealed.code != code_version():
        echo(
            f"sealed by rulerkit {sealed.rulerkit} with other code that judges: the scores are "
            "judged again here",
            err=True,
        )
    found = list(seals.verify(folder, sealed, prompts))
    header = ["cell", "scores", "prompts"][: 2 + prompts]
    rows, reasons = [], []
    for cell, *texts in found:
        rows.append([cell, *(text.partition(":")[0] for text in texts[: 1 + prompts])])
        reasons += [f"{cell}: {text}" for text in texts if ":" in text]
    echo(render(header, rows, notes=reasons), nl=False)

    states = seals.count_states(found)
    same, absent = states[seals.SAME], states[seals.ABSENT]
    rewritten = states[seals.REWRITTEN]
    changed = states.total() - same - rewritten - absent
    echo(
        f"seal {sealed.digest}: {same} the same, {rewritten} rewritten, {changed} changed, "
        f"{absent} absent"
    )
    if changed:
        raise typer.Exit(ExitStatus.FAILED)
    if absent:
        raise typer.Exit(ExitStatus.UNDECIDED)


@app.command(rich_help_panel=LOOK)
def export(
    place: Places = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")] = Path(
        "results.csv"
    ),
    format: Annotated[
        str | None,
        typer.Option(help="parquet, csv or jsonl; by default as the file's name ends."),
    ] = None,
    labels: Annotated[
        bool,
        typer.Option(
            "--labels", help="Also label what went wrong; examples are generated again for it."
        ),
    ] = False,
) -> None:
    """Write one table of all results for other programs: a row per example, with what was asked and
    written.

    docs/reference.md lists the columns.
    """
    from rulerkit.analysis.results import export as write

    results = rk.load(*place or (), labels=labels)
    write(results, output, format)
    echo(f"{counted(len(results), 'row')}, {len(results.columns)} columns: {output}")


@app.command(rich_help_panel=LOOK)
def browse(
    place: Places = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", dir_okay=False, help="The HTML file to write.")
    ] = Path("examples.html"),
    most: Annotated[int, typer.Option(min=1, help="How many answers the page holds.")] = 1000,
) -> None:
    """Write a page that leads from each score to the answers behind it; it opens in a browser
    without a network."""
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
    from rulerkit.analysis.sides import find

    stored = find(model)
    cells = [cell for cell in stored if task in ("", cell.task) and length in (0, cell.length)]
    if not cells:
        there = [f"{cell.task} at {length_name(cell.length)}" for cell in stored]
        seen = f"{task or 'any task'} at {length_name(length) if length else 'any length'}"
        raise unknown(f"task and length in {model}", seen, there)
    cell = cells[0]
    if index not in cell.present:
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
    if not cell or example.index not in cell.present:
        return ""
    row = next(row for row in cell.rows if row["index"] == example.index)
    if row["digest"] != example.digest:
        return (
            f"{cell.model} has answered another prompt of this number: its seed, tokenizer or "
            "template was another"
        )
    return _answer_text(cell, row)


def _answer_text(cell: "Cell", row: "JSON") -> str:
    """What a model wrote, its score, and why it ended."""
    score = rk.score([cell]).set_index("index")["score"][row["index"]]
    return (
        f"{cell.model} wrote: {row['pred'].strip()}\n"
        f"score: {100 * score:.0f} of 100 ({row['finish_reason']})"
    )

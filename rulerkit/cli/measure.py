"""Commands that ask one model, or two: checks and costs before, the evaluation, servers, and
whether one model is worse than another."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rulerkit as rk
from rulerkit.cli.app import EVERY_DAY, LOOK, SET_UP, app
from rulerkit.cli.given import lengths_of, settings_of, study_of, tasks_of
from rulerkit.cli.options import (
    AsJson,
    Files,
    Lengths,
    NumExamples,
    OneModel,
    PairedBy,
    Settings,
    Tasks,
)
from rulerkit.cli.printing import echo, name_root, say_error
from rulerkit.common.errors import ExitStatus, UserError, counted, remark

if TYPE_CHECKING:
    from rulerkit.evaluation.study import Study
    from rulerkit.store.cells import Cell

FIRST_LOOK: dict[str, Any] = {
    "tasks": ["niah_multikey_1", "vt", "fwe"],
    "lengths": [1024, 2048],
    "num_examples": 10,
}
"""What a model is asked where neither tasks nor lengths nor a file are given, so that the first
command ends within minutes on any machine."""
PAPER = "params/sizes/paper.yaml"


@app.command("evaluate", rich_help_panel=EVERY_DAY)
def evaluate(
    model: OneModel = None,
    tasks: Tasks = None,
    lengths: Lengths = None,
    num_examples: NumExamples = None,
    files: Files = None,
    settings: Settings = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start anew; old predictions are moved aside, not deleted."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only list examples and tokens by length, and the server's command; asks no model "
            "and downloads no weights.",
        ),
    ] = False,
) -> None:
    """Run a model on tasks and lengths, store its predictions, and print the scores.

    With MODEL alone: niah_multikey_1, vt and fwe at 1K and 2K, 10 examples each. The benchmark as
    in the paper: -f params/sizes/paper.yaml. Run the same command again to resume: stored answers
    are kept. The exit status is 3 where examples have no answer.

    Example: rulerkit evaluate Qwen/Qwen2.5-0.5B-Instruct --tasks vt,qa_1 --lengths 4K,8K -n 10
    """
    from rulerkit.batch.plan import plan_text

    named = {"tasks", "lengths"} & settings_of(settings).keys()
    is_first_look = not (tasks or lengths or files or named)
    first = FIRST_LOOK if is_first_look else None
    study = study_of(model, tasks, lengths, num_examples, files, settings, first)
    if dry_run:
        echo(plan_text((model, [study]) for model in study.models), nl=False)
        return

    # A job that its scheduler starts again goes on with what it has written.
    is_restarted = int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0
    errors: list[UserError] = []
    name_root()
    cells = rk.evaluate(study, fresh=fresh and not is_restarted, failed=errors.append)

    _print_scores(study, cells)
    echo(f"\npredictions: {study.predictions}")
    if is_first_look:
        typed = " ".join(model) if model else "MODEL"
        echo(f"all tasks and lengths of the paper: rulerkit evaluate {typed} -f {PAPER}")
    for error in errors:
        say_error(str(error))
    # Without asking, cells that nobody has begun are not among these.
    is_complete = study.ask or len(cells) == len(list(study.cells()))
    for cell in cells:
        asked = cell.wanted if study.adaptive else study.num_examples
        is_complete = is_complete and cell.coverage.of_first(asked).is_enough
    if errors or not is_complete:
        raise typer.Exit(ExitStatus.UNDECIDED)


def _print_scores(study: "Study", cells: "list[Cell]") -> None:
    """The scores of what was answered, and what is wrong with it."""
    from rulerkit.report.stored import tallied, task_tables

    if not any(cell.coverage.have for cell in cells):
        return
    wanted = None if study.adaptive else study.num_examples
    names = [task.name for task in study.tasks]
    problems = list[str]()
    tallies = tallied(cells, problems, num_examples=wanted)
    for problem in problems:
        remark(problem)
    echo("\n" + task_tables(cells, tallies, "text", names, study.lengths, wanted), nl=False)


@app.command("check", rich_help_panel=SET_UP)
def check(
    model: OneModel = None,
    tasks: Tasks = None,
    lengths: Lengths = None,
    files: Files = None,
    settings: Settings = None,
) -> None:
    """Check a model's prompts for faults that would make its scores wrong.

    Every task is checked at the shortest and the longest length. The exit status is 1 on any FAIL.

    Example: rulerkit check llama-3.1-8b --lengths 4K,128K
    """
    from rulerkit.batch import checks

    study = study_of(model, tasks, lengths, None, files, settings)
    ends = sorted({min(study.lengths), max(study.lengths)})
    at_lengths = " and ".join(str(length) for length in ends)
    subject = f"{counted(len(study.tasks), 'task')} at {at_lengths} tokens"

    failed = 0
    for name, findings in checks.check(study).items():
        echo("\n  ".join([f"{name}: {subject}", *checks.summary_lines(findings)]))
        failed += len({finding.name for finding in findings})
    if failed:
        echo(f"\n{failed} of these would make scores wrong; fix them first", err=True)
        raise typer.Exit(ExitStatus.FAILED)


@app.command("compare", rich_help_panel=LOOK)
def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="A folder of predictions, run/model, or a model's name in outputs/predictions."
        ),
    ],
    b: Annotated[str, typer.Argument(help="The same for the other side.")],
    margin: Annotated[float, typer.Option(help="How many points B may be below A.")] = 1.0,
    tasks: Tasks = None,
    lengths: Lengths = None,
    num_examples: NumExamples = None,
    by: PairedBy = "digest",
    json: AsJson = False,
) -> None:
    """Is B worse than A? A verdict from the examples that both have answered.

    The exit status is 0 if B is not worse by more than the margin, 1 if it is worse, 3 if that
    cannot be told, 2 if the two cannot be compared.
    """
    from rulerkit.report.comparison import difference_table, flips_text, json_text

    found = rk.compare(
        a,
        b,
        margin,
        by,
        tasks=tasks_of(tasks) if tasks else None,
        lengths=lengths_of(lengths) if lengths else None,
        num_examples=num_examples,
    )
    if json:
        echo(json_text(found), nl=False)
    else:
        flipped = flips_text(found)
        echo(f"{difference_table(found)}\nexamples that flipped:\n{flipped}")
    raise typer.Exit(found.verdict.status)

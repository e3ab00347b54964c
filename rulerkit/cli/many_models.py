"""Commands over many models: batches on this machine and on Slurm, and their progress."""

import os
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rulerkit.cli.app import MANY_MODELS, app
from rulerkit.cli.given import settings_of
from rulerkit.cli.options import BatchSettings, PlanOnly
from rulerkit.cli.printing import echo, end_in_order, name_root
from rulerkit.common import escape
from rulerkit.common.errors import ExitStatus, UserError, counted, unknown
from rulerkit.common.paths import from_root, project_files, resolve_file

if TYPE_CHECKING:
    from rulerkit.batch.batch_file import Batch
    from rulerkit.batch.jobs import Job


@app.command(rich_help_panel=MANY_MODELS)
def batch(
    file: Annotated[
        Path, typer.Argument(help="A batch file, or its name in params/batches: demo.")
    ],
    settings: BatchSettings = None,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Submit one job per model to Slurm, and return.")
    ] = False,
    site: Annotated[
        Path | None, typer.Option(help="The site file of --slurm; default: params/site.yaml.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Only list what would run; with --slurm, print the job scripts."
        ),
    ] = False,
    plan: PlanOnly = False,
) -> None:
    """Let the models of a batch file answer, execute its notebooks through papermill, print the
    leaderboard.

    Only what is missing is done: run the same command again to resume. On this machine one model
    answers after the other; with --slurm each gets a job, and notebooks over several models follow.
    `rulerkit status` follows both.
    """
    _refuse_windows()
    from rulerkit.batch.batch_file import read_batch
    from rulerkit.batch.status import report, statuses

    if plan and (slurm or dry_run):
        raise UserError("--plan runs nothing: it goes without other options of running")
    if site and not slurm:
        raise UserError("--site goes with --slurm")

    planned = read_batch(_batch_file(file), settings_of(settings))
    if slurm:
        _submit(planned, site, dry_run)
        return
    if dry_run:
        echo("\n".join(report(statuses(planned.jobs))))
        return
    if plan:
        _plan_only(planned)
        return

    _run_here(planned)


def _batch_file(file: Path) -> Path:
    """A batch file by its path, or by its name in params/batches."""
    place = resolve_file(file)
    # A path that is not there is told as it was written.
    if place.exists() or len(file.parts) > 1:
        return place
    named = project_files("params/batches", ".yaml")
    name = file.name.removesuffix(".yaml")
    if name not in named:
        raise unknown("batch", file.name, named, f"There is no {place}")
    return named[name]


def _run_here(planned: "Batch") -> None:
    """Execute the jobs of a batch on this machine, and print its leaderboard."""
    name_root()
    for job in planned.jobs:
        job.save()
    failed, elsewhere = _execute(planned.jobs)

    # A leaderboard before the end would show models with some of their answers.
    if elsewhere:
        echo(
            "another process is doing a part of this batch: run the same command again once it has "
            "ended",
            err=True,
        )
    else:
        print_leaderboard(planned)
    _end_with(failed, elsewhere)


def _plan_only(planned: "Batch") -> None:
    """Write the job files of a batch and print their paths from the project root, one a line:
    models first, then the notebooks that read several of them."""
    for job in sorted(planned.jobs, key=lambda job: job.model is None):
        job.save()
        echo(from_root(job.file))


def _end_with(failed: int, elsewhere: int) -> None:
    """End with what a scheduler must know: something failed, or another process is at it."""
    if failed:
        raise typer.Exit(ExitStatus.FAILED)
    if elsewhere:
        raise typer.Exit(ExitStatus.ELSEWHERE)


@app.command(rich_help_panel=MANY_MODELS)
def run(
    files: Annotated[
        list[Path], typer.Argument(help="Job files: outputs/notebooks/RUN/MODEL/BATCH.job.yaml.")
    ],
) -> None:
    """Run jobs that `rulerkit batch` has planned, on this machine: the command for any scheduler
    but Slurm.

    The paths in a job file count from the project root, so it may be run where the project is
    mounted or copied to another place. Ends with 75 where a job was left to another process: it is
    not done yet.
    """
    _refuse_windows()
    from rulerkit.batch.jobs import read_job

    paths = dict.fromkeys(resolve_file(file) for file in files)
    _end_with(*_execute([read_job(path) for path in paths]))


@app.command(rich_help_panel=MANY_MODELS)
def status(
    file: Annotated[Path, typer.Argument(help="The batch file, or outputs/notebooks/RUN.")],
    settings: BatchSettings = None,
    cells: Annotated[
        bool, typer.Option("--cells", help="Every cell of the models that are not done.")
    ] = False,
) -> None:
    """Show the progress of a batch: what is done, running, queued, failed or missing, by its files,
    also while it runs on another machine.

    The exit code is 0 where all is done, 1 where something failed, is incomplete or was
    interrupted, else 3: work is running, queued, missing or outdated.
    """
    from rulerkit.batch.batch_file import read_batch
    from rulerkit.batch.status import exit_code, grid, jobs_in, report, statuses

    path = resolve_file(file)
    if path.is_dir():
        if settings:
            raise UserError(
                f"{file} is a folder of jobs, which are planned: -y goes with a batch file"
            )
        jobs = jobs_in(path)
    else:
        jobs = read_batch(path, settings_of(settings)).jobs
    states = statuses(jobs)
    echo("\n".join(report(states)))
    for job in jobs:
        if cells and job.model and job.steps[0].unanswered:
            echo("\n" + grid(job.name, job.steps[0].cells, job.not_run(job.name)))
    raise typer.Exit(exit_code(states))


def print_leaderboard(batch: "Batch") -> None:
    """The leaderboard of a batch's models, its page, and where its figures, tables and notebooks
    lie."""
    from rulerkit.batch.leaderboard import leaderboard
    from rulerkit.batch.page import write_page

    board = leaderboard(batch)
    if board.text:
        echo("\n" + board.text)
    if board.problem:
        echo("\n" + board.problem, err=True)

    try:
        page = str(write_page(batch, board.scores, board.html))
    except UserError as error:
        page = f"not written: {error}"
    echo(f"{'page:':10} {page}")
    for kind in ("figures", "tables", "notebooks"):
        echo(f"{kind + ':':10} {batch.study.outputs / kind / batch.study.run}")


# --- running and submitting -----------------------------------------------------------------------


def _refuse_windows() -> None:
    if os.name == "nt":
        raise UserError(
            "batches need POSIX process groups, which Windows does not have: run this command in "
            "WSL; `rulerkit evaluate`, `score`, `report` and the notebooks run on Windows too"
        )


def _execute(jobs: "list[Job]") -> tuple[int, int]:
    """Do jobs, print each step that ends; returns how many steps are not done, and how many jobs
    were left to another process."""
    from rich.console import Console

    from rulerkit.batch.execution import check, execute

    end_in_order()
    check(jobs)

    console = Console()
    num_steps = sum(len(job.steps) for job in jobs)
    # Closing ends the steps that run, also where this process is told to end.
    with closing(execute(jobs)) as statuses:  # type: ignore[type-var]
        last = _follow(statuses, console, num_steps)
    return _print_outcome(last)


def _follow(statuses: Iterable[Any], console: Any, num_steps: int) -> list[Any]:
    """Print each step as it ends, and on a terminal how far the others are; returns the last status
    of each step."""
    from rulerkit.batch.status import describe

    last = dict[Path, Any]()  # by the record of the step
    start = time.monotonic()
    # Counting answers reads files: not at every look. A log gets a line only where nothing else was
    # said, and after five minutes fewer of them.
    pause = 2 if console.is_terminal else _PAUSE
    next_count = start + (0 if console.is_terminal else pause)
    with console.status("") as shown:
        for status in statuses:
            now = time.monotonic()
            if status:
                last[status.step.record] = status
            if status and status.state not in ("running", "done before"):
                text = "\n".join(describe(status))
                console.out(escape.terminal(text), highlight=False)
                next_count = max(next_count, now + pause)
            # A terminal shows each change at once; a log has said it above.
            is_due = console.is_terminal if status else now > next_count
            if not is_due:
                continue
            progress = _progress(list(last.values()), num_steps)
            if console.is_terminal:
                shown.update(progress)
            else:
                pause = _PAUSE if now < start + 300 else 300
                console.out(str(progress).replace("\n", "; "), highlight=False)
            next_count = now + pause
    return list(last.values())


_PAUSE = 8  # seconds without a line, where there is no terminal


def _progress(statuses: list[Any], num_steps: int) -> Any:
    """How many steps have ended, and how far the others are, for a terminal."""
    from rich.text import Text

    from rulerkit.batch.status import details

    running = [status for status in statuses if status.state == "running"]
    lines = [f"{len(statuses) - len(running)}/{num_steps} steps"]
    lines += [f"{status.step.title}: {details(status)}" for status in running]
    return Text(escape.terminal("\n".join(lines)))


def _print_outcome(statuses: list[Any]) -> tuple[int, int]:
    """Say what was done before and what is not done; returns how many steps are not done, and how
    many were left to another process."""
    states = [status.state for status in statuses]
    before = states.count("done before")
    if before:
        were = "was" if before == 1 else "were"
        echo(f"{counted(before, 'step')} {were} done before; nothing was asked again")

    well = ("done", "done before", "elsewhere")
    left = [
        f"{status.step.title} ({status.state})" for status in statuses if status.state not in well
    ]
    if left:
        are = "is" if len(left) == 1 else "are"
        steps = counted(len(left), "step")
        echo(f"{steps} {are} not done: {', '.join(left)}", err=True)
    return len(left), states.count("elsewhere")


def _submit(planned: "Batch", site_file: Path | None, dry_run: bool) -> None:
    """Submit the jobs of a batch to Slurm, or print their scripts."""
    from rulerkit.batch import slurm
    from rulerkit.common.settings import read_site

    site = read_site(site_file)
    todo = slurm.submissions(planned.jobs, site)
    if not todo:
        echo("everything is done; nothing to submit")
        return

    if dry_run:
        for submission in todo:
            after = f"  after {', '.join(submission.after)}" if submission.after else ""
            echo(f"# {submission.script}{after}\n{submission.text(site)}")

    if not dry_run:
        for submission, number, before in slurm.submit(todo, site):
            state = "in queue" if before else "submitted"
            echo(f"{state} {number}  {submission.name}  log: {submission.log}")
        echo(f"follow it with: rulerkit status {planned.path}")

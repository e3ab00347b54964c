"""Commands over many models: batches on this machine and on Slurm, and their progress."""

import os
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rulerkit as rk
from rulerkit.cli.app import EVERY_DAY, app
from rulerkit.cli.given import settings_of
from rulerkit.cli.options import BatchSettings
from rulerkit.cli.printing import echo, end_in_order, name_root
from rulerkit.common import escape
from rulerkit.common.errors import ExitStatus, UserError, check_known, counted, unknown
from rulerkit.common.paths import project_files, resolve_file

if TYPE_CHECKING:
    from rulerkit.batch.batch_file import Batch
    from rulerkit.batch.jobs import Job


@app.command("batch", rich_help_panel=EVERY_DAY)
def batch(
    file: Annotated[
        Path, typer.Argument(help="A batch file, or its name in params/batches: demo.")
    ],
    settings: BatchSettings = None,
    only: Annotated[
        str,
        typer.Option(help="Only this model with its notebooks, or this notebook over several."),
    ] = "",
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Submit one job per model to Slurm, and return.")
    ] = False,
    site: Annotated[
        Path | None, typer.Option(help="The site file of --slurm; default: params/site.yaml.")
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only list what would run and what it costs; with --slurm, print the job scripts.",
        ),
    ] = False,
    node: Annotated[
        int, typer.Option(hidden=True, help="The rank of this node, of several that share a model.")
    ] = 0,
) -> None:
    """Let the models of a batch file answer, execute its notebooks through papermill, print the
    leaderboard.

    Only what is missing is done: run the same command again to resume. On this machine one model
    answers after the other; with --slurm each gets a job, and notebooks over several models follow.
    `rulerkit status` follows both.
    """
    if os.name == "nt":
        raise UserError(
            "batches need POSIX process groups, which Windows does not have: run this command in "
            "WSL; `rulerkit evaluate`, `score`, `report` and the notebooks run on Windows too"
        )
    from rulerkit.batch.batch_file import read_batch

    if site and not slurm:
        raise UserError("--site goes with --slurm")
    planned = read_batch(_batch_file(file), settings_of(settings))
    jobs = planned.jobs
    if only:
        jobs = [job for job in jobs if job.name == only]
        check_known("model or notebook of the batch", only, {job.name for job in planned.jobs})
    if node:
        _follow_first_node(jobs, node)
    elif slurm:
        _submit(planned.path, jobs, site, dry_run)
    elif dry_run:
        _list(jobs)
    else:
        name_root()
        left = _execute(jobs)
        if not only:
            print_leaderboard(planned)
        if left:
            raise typer.Exit(ExitStatus.FAILED)


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


def _list(jobs: "list[Job]") -> None:
    """Print what would run: every job as its files are now, and what the models are asked."""
    from rulerkit.batch.plan import plan_text
    from rulerkit.batch.status import report, statuses

    echo("\n".join(report(statuses(jobs))))
    asked = [(job.model, [study for _, study in job.studies]) for job in jobs if job.model]
    echo("\n" + plan_text(asked), nl=False)


def _follow_first_node(jobs: "list[Job]", node: int) -> None:
    """Become the server's share on another node of several that share a model. Does not return
    where there is one."""
    from rulerkit.inference.vllm import Vllm

    for job in jobs:
        engine = rk.load_model(job.model) if job.model else None
        if isinstance(engine, Vllm):
            command = engine.follow(node)
            os.execvpe(command[0], command, os.environ | engine.variables())


@app.command("status", rich_help_panel=EVERY_DAY)
def status(
    file: Annotated[Path, typer.Argument(help="The batch file, or its name in params/batches.")],
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
    from rulerkit.batch.status import exit_code, grid, report, statuses

    planned = read_batch(_batch_file(file), settings_of(settings))
    found = statuses(planned.jobs)
    echo("\n".join(report(found)))
    for one in found:
        if cells and any(need.tokens_left for need in one.needs):
            echo("\n" + grid(one.job.name, one.needs, one.job.not_run(one.job.name)))
    raise typer.Exit(exit_code(found))


def print_leaderboard(batch: "Batch") -> None:
    """The leaderboard of a batch's models, its page, and where its figures, tables and notebooks
    lie."""
    from rulerkit.batch.morning import answers_page, as_html, leaderboard_text

    # A batch is done even where its cells cannot share a table.
    try:
        echo("\n" + leaderboard_text(batch))
    except UserError as error:
        echo(f"\nno leaderboard: {error}", err=True)
    for run in batch.runs:
        if run.is_page and run.output.exists():
            echo(f"{'page:':10} {as_html(run.output)}")
            echo(f"{'answers:':10} {answers_page(batch)}")
    for kind in ("figures", "tables", "notebooks"):
        echo(f"{kind + ':':10} {batch.study.outputs / kind / batch.study.run}")


# --- running and submitting -----------------------------------------------------------------------


def _execute(jobs: "list[Job]") -> int:
    """Do jobs, print each that ends; returns how many are not done."""
    from rich.console import Console

    from rulerkit.batch.execution import check, execute

    end_in_order()
    check(jobs)
    # Closing ends what runs, also where this process is told to end.
    with closing(execute(jobs)) as statuses:  # type: ignore[type-var]
        last = _follow(statuses, Console(), len(jobs))

    states = [status.state for status in last]
    before = states.count("done before")
    if before:
        were = "was" if before == 1 else "were"
        echo(f"{counted(before, 'step')} {were} done before; nothing was asked again")
    left = [f"{one.job.title} ({one.state})" for one in last if "done" not in one.state]
    if left:
        are = "is" if len(left) == 1 else "are"
        echo(f"{counted(len(left), 'step')} {are} not done: {', '.join(left)}", err=True)
    return len(left)


def _follow(statuses: Iterable[Any], console: Any, num_steps: int) -> list[Any]:
    """Print each step as it ends, and on a terminal how far the others are; returns the last status
    of each step."""
    from rulerkit.batch.status import describe

    last = dict[Path, Any]()  # by the record of the job
    # Counting answers reads files: not at every look.
    pause = 2 if console.is_terminal else 30
    next_count = time.monotonic() + pause
    with console.status("") as shown:
        for status in statuses:
            if status:
                last[status.job.record] = status
            if status and status.state not in ("running", "done before"):
                console.out(escape.terminal("\n".join(describe(status))), highlight=False)
            # A terminal shows each change at once; a log has said it above.
            is_change = status and console.is_terminal
            if not is_change and time.monotonic() < next_count:
                continue
            progress = _progress(list(last.values()), num_steps)
            if console.is_terminal:
                shown.update(progress)
            else:
                console.out(str(progress).replace("\n", "; "), highlight=False)
            next_count = time.monotonic() + pause
    return list(last.values())


def _progress(statuses: list[Any], num_steps: int) -> Any:
    """How many steps have ended, and how far the others are, for a terminal."""
    from rich.text import Text

    from rulerkit.batch.status import details

    running = [status for status in statuses if status.state == "running"]
    lines = [f"{len(statuses) - len(running)}/{num_steps} steps"]
    lines += [f"{status.job.title}: {details(status)}" for status in running]
    return Text(escape.terminal("\n".join(lines)))


def _submit(path: Path, jobs: "list[Job]", site_file: Path | None, dry_run: bool) -> None:
    """Submit jobs to Slurm, or print their scripts."""
    from rulerkit.batch import slurm
    from rulerkit.common.settings import read_site

    site = read_site(site_file)
    groups = slurm.open_jobs(jobs)
    if not groups:
        echo("everything is done; nothing to submit")
    elif dry_run:
        for group in groups:
            echo(f"# {slurm.script_of(group[0])}\n{slurm.script_text(group, site)}")
    else:
        for job, number, before in slurm.submit(groups, site):
            state = "in queue" if before else "submitted"
            log = slurm.script_of(job).with_suffix(".out")
            echo(f"{state} {number}  {slurm.name_of(job)}  log: {log}")
        echo(f"follow it with: rulerkit status {path}")

"""Commands over many models: batches on this machine and on Slurm, and their progress."""

import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import rulerkit as rk
from rulerkit.cli.app import EVERY_DAY, app
from rulerkit.cli.given import settings_of
from rulerkit.cli.options import Settings
from rulerkit.cli.printing import echo, end_in_order, name_root
from rulerkit.common.errors import ExitStatus, UserError, check_known, counted
from rulerkit.common.paths import resolve_file

if TYPE_CHECKING:
    from rulerkit.batch.batch_file import Batch
    from rulerkit.batch.jobs import Job, Status


@app.command("batch", rich_help_panel=EVERY_DAY)
def batch(
    file: Annotated[Path, typer.Argument(help="A batch file: params/batches/demo.yaml.")],
    settings: Settings = None,
    only: Annotated[
        str,
        typer.Option(help="Only this model with its notebooks, or this notebook over several."),
    ] = "",
    slurm: Annotated[
        bool, typer.Option("--slurm", help="Submit one job per model to Slurm, and return.")
    ] = False,
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
    """Run the models of a batch file, then its notebooks, and print the leaderboard.

    Run the same command again to resume: only what is missing is done. On this machine one model
    runs after the other; with --slurm each model gets a job, and notebooks over several models
    follow. `rulerkit status` shows the progress of both.
    """
    if os.name == "nt":
        raise UserError(
            "batches need POSIX process groups, which Windows does not have: run this command in "
            "WSL; `rulerkit evaluate`, `report` and the notebooks run on Windows too"
        )
    from rulerkit.batch.batch_file import read_batch
    from rulerkit.batch.plan import plan_text
    from rulerkit.batch.status import report, statuses

    planned = read_batch(resolve_file(file), settings_of(settings))
    jobs = planned.jobs
    if only:
        jobs = [job for job in jobs if job.name == only]
        check_known("model or notebook of the batch", only, {job.name for job in planned.jobs})
    if node:
        _follow_first_node(jobs, node)
    elif slurm:
        _submit(planned.path, jobs, dry_run)
    elif dry_run:
        echo("\n".join([*report(statuses(jobs)), ""]))
        asked = [(job.model, [*job.studies]) for job in jobs if job.model]
        echo(plan_text(asked), nl=False)
    else:
        name_root()
        ended = _execute(jobs)
        if not only or any(job.is_page for job in jobs):
            _print_leaderboard(planned)
        raise typer.Exit(ended)


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
    file: Annotated[Path, typer.Argument(help="The batch file.")],
    settings: Settings = None,
) -> None:
    """Show the progress of a batch: what is done, running, waiting, failed or missing.

    Reads the batch's files, so it works while the batch runs and from other machines. The exit
    status is 0 if all is done, 1 if something failed, is incomplete or was interrupted, else 3.
    """
    from rulerkit.batch.batch_file import read_batch
    from rulerkit.batch.status import exit_code, report, statuses

    planned = read_batch(resolve_file(file), settings_of(settings))
    found = statuses(planned.jobs)
    echo("\n".join(report(found)))
    raise typer.Exit(exit_code(found))


def _print_leaderboard(batch: "Batch") -> None:
    """The leaderboard of a batch's models, its page, and where its files lie."""
    from rulerkit.batch.morning import answers_page, as_html, leaderboard

    # A batch is done even where its cells cannot share a table.
    try:
        text, _ = leaderboard(batch, "text")
        echo(f"\n{text}")
    except UserError as error:
        echo(f"\nno leaderboard: {error}", err=True)
    for job in batch.jobs:
        if job.is_page and job.output.exists():
            echo(f"{'page:':10} {as_html(job.output)}")
    if answers_page(batch).exists():
        echo(f"{'answers:':10} {answers_page(batch)}")
    places = batch.study.outputs / "{figures,tables,notebooks}" / batch.study.run
    echo(f"{'files:':10} {places}")


# --- running and submitting -----------------------------------------------------------------------


def _execute(jobs: "list[Job]") -> ExitStatus:
    """Do jobs, and print each that ends, a model also when it starts."""
    from rulerkit.batch.execution import execute
    from rulerkit.batch.status import describe

    end_in_order()
    before = 0
    left: list[Status] = []
    # Closing ends what runs, also where this process is told to end.
    with closing(execute(jobs)) as statuses:  # type: ignore[type-var]
        for status in statuses:
            if status.state == "done before":
                before += 1
                continue
            echo("\n".join(describe(status)))
            if status.state not in ("running", "done"):
                left.append(status)

    if before:
        were = "was" if before == 1 else "were"
        echo(f"{counted(before, 'step')} {were} done before; nothing was asked again")
    if not left:
        return ExitStatus.DONE
    are = "is" if len(left) == 1 else "are"
    named = ", ".join(f"{status.job.title} ({status.state})" for status in left)
    echo(f"{counted(len(left), 'step')} {are} not done: {named}", err=True)
    if all(status.state == "locked" for status in left):
        return ExitStatus.ELSEWHERE
    return ExitStatus.FAILED


def _submit(path: Path, jobs: "list[Job]", dry_run: bool) -> None:
    """Submit jobs to Slurm, or print their scripts."""
    from rulerkit.batch import slurm
    from rulerkit.common.settings import read_site

    site = read_site()
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

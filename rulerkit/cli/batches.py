"""The commands about batches: batch, run, status."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit import escape
from rulerkit.cli.options import Set, echo, settings_of
from rulerkit.errors import UserError

_LOOK = 2.0  # seconds between two looks at files that grow

Jobs = Annotated[
    int | None,
    typer.Option("--jobs", help="Jobs side by side; default: as GPUs and processors allow.", min=1),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus", help="GPUs to hand out, 0,1 or 0-3; '' for none. Default: all that are here."
    ),
]


def batch(
    file: Annotated[Path, typer.Argument(help="A batch file, such as params/batches/demo.yaml.")],
    settings: Set = None,
    jobs: Jobs = None,
    gpus: Gpus = None,
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
) -> None:
    """Let the models of a batch file answer, execute its notebooks through papermill, print the
    leaderboard.

    Only what is missing is done, so the same command goes on with a batch that was interrupted. On
    this machine models share the GPUs out; with --slurm each gets a job, and notebooks over several
    models follow. `rulerkit status` follows both.
    """
    _refuse_windows()
    from rulerkit.batch import read_batch
    from rulerkit.paths import resolve_file

    planned = read_batch(resolve_file(file), settings_of(settings))
    if slurm:
        _submit(planned, site, dry_run)
        return
    if dry_run:
        _list(planned.jobs)
        return
    for job in planned.jobs:
        job.save()
    failed = _execute(planned.jobs, gpus, jobs)
    _print_leaderboard(planned.study)
    if failed:
        raise typer.Exit(1)


def run_jobs(
    files: Annotated[
        list[Path], typer.Argument(help="Job files: outputs/notebooks/RUN/MODEL/BATCH.job.yaml.")
    ],
    jobs: Jobs = None,
    gpus: Gpus = None,
) -> None:
    """Do jobs that `rulerkit batch` has planned, on this machine: the one command that any
    scheduler can call."""
    _refuse_windows()
    from rulerkit.batch.jobs import read_job

    if _execute(
        [read_job(file) for file in dict.fromkeys(file.absolute() for file in files)], gpus, jobs
    ):
        raise typer.Exit(1)


def status(
    what: Annotated[
        Path, typer.Argument(metavar="FILE", help="The batch file, or outputs/notebooks/RUN.")
    ],
    settings: Set = None,
    cells: Annotated[
        bool, typer.Option("--cells", help="Every cell of the models that are not done.")
    ] = False,
) -> None:
    """How far a batch is: what is done, running, queued, failed, missing; from its files, also
    while it runs elsewhere."""
    from rulerkit.batch import read_batch
    from rulerkit.batch.status import grid, jobs_in, steps, told
    from rulerkit.paths import resolve_file

    place = resolve_file(what)
    jobs = jobs_in(place) if place.is_dir() else read_batch(place, settings_of(settings)).jobs
    for line in told(steps(jobs)):
        echo(line)
    for job in [job for job in jobs if cells and job.model and job.unanswered(job.needs)]:
        echo("\n" + "\n".join(grid(job)))


def _refuse_windows() -> None:
    if os.name == "nt":
        raise UserError(
            "batches end their steps as POSIX process groups, which Windows has not: run this "
            "command in WSL; "
            "`rulerkit evaluate`, `score`, `report` and the notebooks run on Windows too"
        )


def _execute(jobs: Any, gpus: str | None, side_by_side: int | None) -> int:
    """Do jobs, name each step that ends; returns how many were not done."""
    from tqdm import tqdm

    from rulerkit.batch import queue
    from rulerkit.batch.execution import titles

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that steps are ended in order
    here = queue.gpus_here(gpus)
    if gpus is not None and not here:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # none is handed out, so none must be found
    queue.check(jobs, here)
    kept, open_ = 0, []
    steps, ended = sum(len(titles(job)) for job in jobs), 0
    with (
        tqdm(unit=" tokens", unit_scale=True, disable=None, smoothing=0.05) as bar,
        _following(jobs, bar),
    ):
        for outcome in queue.execute(jobs, here, side_by_side):
            ended += 1
            bar.set_postfix_str(f"{ended}/{steps} steps", refresh=True)
            if outcome.state == "kept":
                kept += 1
                continue
            says = f": {outcome.says}" if outcome.says else ""
            state = "FAILED" if outcome.state == "failed" else outcome.state
            bar.write(escape.terminal(f"{state:10} {outcome.title}{says}"))
            if outcome.state in ("failed", "incomplete"):
                bar.write(
                    escape.terminal(
                        f"           log: {outcome.log}\n           again: {outcome.again}"
                    )
                )
            if outcome.state not in ("done", "elsewhere"):
                open_.append(f"{outcome.title} ({outcome.state})")
    if kept:
        echo(f"{kept} steps were done before; nothing was asked again")
    if open_:
        echo(f"{len(open_)} steps are not done: {', '.join(open_)}", err=True)
    return len(open_)


@contextmanager
def _following(jobs: Any, bar: Any) -> Iterator[None]:
    """A bar over the tokens of all models, read from the files that grow; nothing is counted where
    nobody looks."""
    from rulerkit.batch.jobs import tokens_left

    if bar.disable:
        yield
        return
    needs = [need for job in jobs if job.model for need in job.runnable(job.needs)]
    over = threading.Event()
    bar.total = tokens_left(needs)

    def follow() -> None:
        while not over.wait(_LOOK):
            bar.n = max(0, bar.total - tokens_left(needs))
            bar.refresh()

    watcher = threading.Thread(target=follow, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        bar.n = max(0, bar.total - tokens_left(needs))


def _list(jobs: Any) -> None:
    total = 0
    for job in jobs:
        tokens = (
            sum((need.wanted - have) * need.length for need, have in job.unanswered(job.needs))
            if job.model
            else 0
        )
        total += tokens
        gpus, nodes = job.resources
        if job.model:
            where = (
                f"{gpus} GPUs on each of {nodes} nodes"
                if nodes > 1
                else f"{gpus} GPU{'s' * (gpus != 1)}"
            )
            echo(f"{job.title:48} {tokens:>16,} tokens, {where}")
        for each in job.runs:
            echo(f"{each.title:48} {each.output}")
    echo(
        f"{sum(len(job.runs) for job in jobs)} notebooks; {total:,} tokens of prompts and answers "
        "left, at most"
    )


def _submit(planned: Any, site: Path | None, dry_run: bool) -> None:
    from rulerkit.batch import slurm
    from rulerkit.offline import missing_of
    from rulerkit.settings import read_site

    lab = read_site(site)
    todo = slurm.submissions(planned.jobs, lab)
    if not todo:
        echo("everything is done; nothing to submit")
        return
    if dry_run:
        for each in todo:
            after = f"  after {', '.join(each.after)}" if each.after else ""
            echo(f"# {each.script}{after}\n{slurm.script(each, lab)}")
    if lab.offline and (missing := missing_of(planned.models, planned.corpora)):
        raise UserError(
            f"the nodes could not find {len(missing)} things: {'; '.join(missing)}: get them with "
            "`rulerkit fetch -f "
            f"{planned.path}`, or say `offline: false` in params/site.yaml where nodes have a "
            "network"
        )
    if dry_run:
        return
    for each, number, before in slurm.submit(todo, lab):
        echo(f"{'in queue' if before else 'submitted'} {number}  {each.name}  log: {each.log}")
    echo(f"follow it with: rulerkit status {planned.path}")


def _print_leaderboard(study: Any) -> None:
    from rulerkit.evaluation import check_same, footnotes
    from rulerkit.scoring import score
    from rulerkit.store import read_cells
    from rulerkit.summary import summarize
    from rulerkit.tables import table_text

    names = {model["name"] for model in study.models}
    tasks = [task.name for task in study.tasks]
    found = read_cells(study.predictions) if study.predictions.is_dir() else []
    cells = [
        c
        for c in found
        if c.model in names and c.task in tasks and c.length in study.lengths and c.rows
    ]
    if cells:
        try:
            check_same(cells)
            echo(
                "\n"
                + table_text(summarize(score(cells), tasks, study.lengths), notes=footnotes(cells))
            )
        except UserError as error:  # the batch itself is done: its places are still told
            echo(f"\nno leaderboard: {error}", err=True)
    for kind in ("figures", "tables", "notebooks"):
        echo(f"{kind + ':':10} {study.outputs / kind / study.run}")

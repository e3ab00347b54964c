"""The commands about batches and servers: batch, run, status, serve."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit import escape
from rulerkit.cli.options import Set, echo, settings_of
from rulerkit.errors import UserError

Jobs = Annotated[
    int | None,
    typer.Option("--jobs", help="Jobs side by side; default: as GPUs and processors allow.", min=1),
]
Gpus = Annotated[
    str | None,
    typer.Option("--gpus", help="The GPUs to use, 0,1 or 0-3; '' for none. Default: all visible."),
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

    Only what is missing is done: run the same command again to resume. On this machine models share
    the GPUs; with --slurm each gets a job, and notebooks over several models follow. `rulerkit
    status` follows both.
    """
    _refuse_windows()
    from rulerkit.batch import read_batch
    from rulerkit.paths import resolve_file

    planned = read_batch(resolve_file(file), settings_of(settings))
    if slurm:
        _submit(planned, site, dry_run)
    elif dry_run:
        _list(planned.jobs)
    else:
        for job in planned.jobs:
            job.save()
        failed = _execute(planned.jobs, gpus, jobs)
        print_leaderboard(planned)
        if failed:
            raise typer.Exit(1)


def run(
    files: Annotated[
        list[Path], typer.Argument(help="Job files: outputs/notebooks/RUN/MODEL/BATCH.job.yaml.")
    ],
    jobs: Jobs = None,
    gpus: Gpus = None,
) -> None:
    """Do jobs that `rulerkit batch` has planned, on this machine: the one command that any
    scheduler can call."""
    _refuse_windows()
    from rulerkit.batch import read_job

    paths = dict.fromkeys(file.absolute() for file in files)
    if _execute([read_job(path) for path in paths], gpus, jobs):
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
    from rulerkit.batch.status import grid, jobs_in, report, statuses
    from rulerkit.paths import resolve_file

    path = resolve_file(what)
    jobs = jobs_in(path) if path.is_dir() else read_batch(path, settings_of(settings)).jobs
    for line in report(statuses(jobs)):
        echo(line)
    for job in jobs:
        if cells and job.model and job.unanswered(job.needs):
            echo("\n" + grid(job.name, job.needs, job.not_run(job.name)))


def _refuse_windows() -> None:
    if os.name == "nt":
        raise UserError(
            "batches need POSIX process groups, which Windows does not have: run this command in "
            "WSL; `rulerkit evaluate`, `score`, `report` and the notebooks run on Windows too"
        )


def _execute(jobs: Any, gpus: str | None, side_by_side: int | None) -> int:
    """Do jobs, print each step that ends; returns how many steps are not done."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TimeRemainingColumn
    from rich.text import Text

    from rulerkit.batch.execution import check, execute, parse_gpus, processes
    from rulerkit.batch.status import running

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that steps are ended in order
    usable = parse_gpus(gpus)
    if gpus is not None and not usable:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the steps must not find any by themselves
    check(jobs, usable)
    console, states, not_done = Console(), list[str](), []
    asking = [job for job in jobs if job.model and console.is_terminal]  # counting reads files
    needs = [need for job in asking for need in job.runnable(job.needs)]
    steps, tokens = sum(len(job.steps) for job in jobs), sum(need.tokens_left for need in needs)
    progress = Progress(
        "{task.description}",
        BarColumn(),
        "{task.completed:,.0f}/{task.total:,.0f} tokens",
        TimeRemainingColumn(),
        speed_estimate_period=600,
    )
    bar = progress.add_task("", total=tokens)
    with Live(console=console, transient=True, auto_refresh=False) as live:

        def show_progress() -> None:
            if console.is_terminal:
                done = tokens - sum(need.tokens_left for need in needs)
                progress.update(bar, completed=done, description=f"{len(states)}/{steps} steps")
                lines = [f"{s.title}: {running(s).details}" for s in [*processes.values()]]
                shown = Group(progress, Text(escape.terminal("\n".join(lines))))
                live.update(shown, refresh=True)

        for step, state, message in execute(jobs, usable, side_by_side, show_progress):
            states.append(state)
            if state == "done before":
                continue
            shown = "FAILED" if state == "failed" else state
            lines = [f"{shown:10} {step.title}" + (f": {message}" if message else "")]
            if state in ("failed", "incomplete"):
                lines += [f"           log: {step.log}", f"           again: {step.job.command}"]
            console.out(escape.terminal("\n".join(lines)), highlight=False)
            if state not in ("done", "elsewhere"):
                not_done.append(f"{step.title} ({state})")
    if before := states.count("done before"):
        echo(f"{before} steps were done before; nothing was asked again")
    if not_done:
        echo(f"{len(not_done)} steps are not done: {', '.join(not_done)}", err=True)
    return len(not_done)


def _list(jobs: Any) -> None:
    total = 0
    for job in jobs:
        gpus, nodes = job.resources
        if job.model:
            tokens = sum(need.tokens_left for need in job.runnable(job.needs))
            total += tokens
            spread = f" on each of {nodes} nodes" if nodes > 1 else ""
            what = f"{gpus} GPU{'s' * (gpus != 1)}{spread}"
            echo(f"{job.steps[0].title:48} {tokens:>16,} tokens, {what}")
        for notebook in job.runs:
            echo(f"{notebook.title:48} {notebook.output}")
    echo(
        f"{sum(len(job.runs) for job in jobs)} notebooks; {total:,} tokens of prompts and answers "
        "left, at most"
    )


def _submit(planned: Any, site_file: Path | None, dry_run: bool) -> None:
    from rulerkit.batch import slurm
    from rulerkit.offline import missing_of
    from rulerkit.settings import read_site

    site = read_site(site_file)
    todo = slurm.submissions(planned.jobs, site)
    if not todo:
        echo("everything is done; nothing to submit")
        return
    if dry_run:
        for each in todo:
            after = f"  after {', '.join(each.after)}" if each.after else ""
            echo(f"# {each.script}{after}\n{slurm.script(each, site)}")
    if site.offline and (missing := missing_of(planned.models, planned.corpora)):
        raise UserError(
            f"nodes without a network lack {len(missing)} things: {'; '.join(missing)}: get them "
            f"with `rulerkit fetch -f {planned.path}`, or say `offline: false` in params/site.yaml "
            "where nodes have a network"
        )
    if not dry_run:
        for each, number, before in slurm.submit(todo, site):
            echo(f"{'in queue' if before else 'submitted'} {number}  {each.name}  log: {each.log}")
        echo(f"follow it with: rulerkit status {planned.path}")


def print_leaderboard(batch: Any) -> None:
    """The leaderboard of a batch's models, its page, and where its figures, tables and notebooks
    lie."""
    from rulerkit.batch.page import write_page
    from rulerkit.evaluation import check_same
    from rulerkit.scoring import score
    from rulerkit.store import read_cells
    from rulerkit.summary import summarize
    from rulerkit.tables import footnotes, table_text

    study = batch.study
    names = {model["name"] for model in study.models}
    tasks = [task.name for task in study.tasks]
    stored = read_cells(study.predictions) if study.predictions.is_dir() else []
    cells = [
        cell
        for cell in stored
        if cell.model in names and cell.task in tasks and cell.length in study.lengths and cell.rows
    ]
    scores, text = None, "no answer yet"
    try:
        check_same(cells)
        if cells:
            scores = score(cells)
            text = table_text(
                summarize(scores, tasks, study.lengths), notes=footnotes(cells, scores)
            )
            echo(f"\n{text}")
    except UserError as error:  # the batch itself is done
        text = f"no leaderboard: {error}"
        echo(f"\n{text}", err=True)
    try:
        page = str(write_page(batch, scores, text))
    except UserError as error:
        page = f"not written: {error}"
    echo(f"{'page:':10} {page}")
    for kind in ("figures", "tables", "notebooks"):
        echo(f"{kind + ':':10} {study.outputs / kind / study.run}")


def serve(
    model: Annotated[
        str, typer.Argument(help="A model's name, path or hub id, or its parameter file.")
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-y", metavar="YAML", help="A key of the model: -y 'replicas: 2'. Repeatable."
        ),
    ] = None,
    node: Annotated[
        int, typer.Option(hidden=True, help="The rank of this node, of several that share a model.")
    ] = 0,
) -> None:
    """Start a model's servers and leave them running until Ctrl-C: evaluate, papermill, JupyterLab
    and batches use them.

    All visible GPUs are used, one server for each group that the model needs (`replicas`). Every
    process on this machine and of this user that asks the same model with the same parameters uses
    them. Without this command a model is loaded by the process that asks it, a notebook's kernel
    for instance, and ends with it.
    """
    from rulerkit.batch.execution import GpuPool
    from rulerkit.gpus import visible_gpus
    from rulerkit.models import gpus_and_nodes, load_model
    from rulerkit.models.process import find_servers, registered
    from rulerkit.models.server import ServerEngine, Vllm

    engine = load_model(_spec(model, settings_of(settings)))
    if node and isinstance(engine, Vllm):
        command = engine.follow(node)
        os.execvpe(command[0], command, os.environ | engine.variables())
    if not isinstance(engine, ServerEngine) or not engine.startable:
        raise UserError(
            f"model {engine.name} (engine {engine.engine}) is no server that can be started: use "
            "`engine: vllm`, or `engine: openai` with `serve: COMMAND`"
        )
    if servers := find_servers(engine.about_server):
        raise UserError(f"model {engine.name} is served already, at {servers[0].url}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    visible = visible_gpus()
    pool, needed = GpuPool(visible), gpus_and_nodes(engine.spec)[0]
    try:
        if visible:
            gpus = pool.hold(needed or 1, len(visible))
            if gpus is None:
                raise UserError(
                    f"model {engine.name} needs {needed} GPUs: other processes hold "
                    f"{', '.join(visible)}"
                )
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        engine.start()
        engine.wait_until_ready()
        addresses = [replica.address for replica in engine.alive()]
        with registered(engine.about_server(), addresses):
            for address in addresses:
                echo(f"{engine.name} answers at {address.url}")
            echo("Ctrl-C ends it.")
            while engine.alive():
                time.sleep(1)
    except KeyboardInterrupt:
        echo(f"{engine.name}: ended")
    finally:
        engine.close()
        pool.close()


def _spec(model: str, settings: dict[str, Any]) -> Any:
    """A model's name with changes, or the model of a parameter file or of a job."""
    from rulerkit.paths import resolve_file
    from rulerkit.settings import read_yaml
    from rulerkit.studies import load_files

    base: Any = model
    if model.endswith((".yaml", ".yml")):
        path = resolve_file(model)
        job = read_yaml(path)
        base = job["model"] if "asks" in job else load_files([path]).get("model")
        if base is None:
            raise UserError(f"{path} names no model: it must hold `model: ...`")
    return {"base": base, **settings} if settings else base

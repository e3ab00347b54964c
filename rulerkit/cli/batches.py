"""The commands about batches and servers: batch, run, status, serve."""

import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

import rulerkit as rk
from rulerkit import escape
from rulerkit.cli.options import CountOrNone, Set, echo, model_of, settings_of
from rulerkit.errors import UserError


def batch(
    file: Path,
    *,
    settings: Set = None,
    jobs: CountOrNone = None,
    gpus: str | None = None,
    slurm: bool = False,
    site: Path | None = None,
    dry_run: bool = False,
) -> None:
    """Let the models of a batch file answer, execute its notebooks through papermill, print the
    leaderboard.

    Only what is missing is done: run the same command again to resume. On this machine models share
    the GPUs; with --slurm each gets a job, and notebooks over several models follow. `rulerkit
    status` follows both.

    Args:
        file: A batch file, such as params/batches/demo.yaml.
        slurm: Submit one job per model to Slurm, and return.
        site: The site file of --slurm; default: params/site.yaml.
        dry_run: Only list what would run; with --slurm, print the job scripts.
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
        failed, elsewhere = _execute(planned.jobs, gpus, jobs)
        if elsewhere:
            echo(
                f"another process is at {elsewhere} jobs of this batch: run the same command again "
                "once it has ended",
                err=True,
            )
        else:
            print_leaderboard(planned)
        if failed or elsewhere:
            raise typer.Exit(1)


def run(files: list[Path], *, jobs: CountOrNone = None, gpus: str | None = None) -> None:
    """Do jobs that `rulerkit batch` has planned, on this machine: the one command that any
    scheduler can call.

    Args:
        files: Job files: outputs/notebooks/RUN/MODEL/BATCH.job.yaml.
    """
    _refuse_windows()
    from rulerkit.batch import read_job

    paths = dict.fromkeys(file.absolute() for file in files)
    failed, _ = _execute([read_job(path) for path in paths], gpus, jobs)
    if failed:
        raise typer.Exit(1)


def status(file: Path, *, settings: Set = None, cells: bool = False) -> None:
    """How far a batch is: what is done, running, queued, failed, missing; from its files, also
    while it runs elsewhere.

    The exit code is 0 where all is done, 1 where something failed, is incomplete or was
    interrupted, else 3: work is running, queued, missing or outdated.

    Args:
        file: The batch file, or outputs/notebooks/RUN.
        cells: Every cell of the models that are not done.
    """
    from rulerkit.batch import read_batch
    from rulerkit.batch.status import exit_code, grid, jobs_in, report, statuses
    from rulerkit.paths import resolve_file

    path = resolve_file(file)
    jobs = jobs_in(path) if path.is_dir() else read_batch(path, settings_of(settings)).jobs
    found = statuses(jobs)
    echo("\n".join(report(found)))
    for job in jobs:
        if cells and job.model and job.steps[0].unanswered:
            echo("\n" + grid(job.name, job.steps[0].cells, job.not_run(job.name)))
    raise typer.Exit(exit_code(found))


def _refuse_windows() -> None:
    if os.name == "nt":
        raise UserError(
            "batches need POSIX process groups, which Windows does not have: run this command in "
            "WSL; `rulerkit evaluate`, `score`, `report` and the notebooks run on Windows too"
        )


def _execute(jobs: Any, gpus: str | None, side_by_side: int | None) -> tuple[int, int]:
    """Do jobs, print each step that ends; returns how many steps are not done, and how many jobs
    were left to another process."""
    from rich.console import Console
    from rich.text import Text

    from rulerkit.batch.execution import check, execute, use_gpus
    from rulerkit.batch.status import command_helps, details

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that steps are ended in order
    usable = use_gpus(gpus)
    check(jobs, usable)
    console, ended, running = Console(), list[Any](), dict[str, Any]()
    count, due = sum(len(job.steps) for job in jobs), 0.0
    with (
        closing(execute(jobs, usable, side_by_side)) as statuses,  # type: ignore[type-var]
        console.status("") as shown,
    ):
        for status in statuses:
            if not status:
                if console.is_terminal and time.monotonic() > due:  # counting reads files
                    lines = [f"{title}: {details(each)}" for title, each in running.items()]
                    text = "\n".join([f"{len(ended)}/{count} steps", *lines])
                    shown.update(Text(escape.terminal(text)))
                    due = time.monotonic() + 2
                continue
            step, state, message = status
            if state == "running":
                running[step.title] = status
                continue
            running.pop(step.title, None)
            ended.append(status)
            if state != "done before":
                word = "FAILED" if state == "failed" else state
                lines = [f"{word:10} {step.title}" + (f": {message}" if message else "")]
                if command_helps(status):
                    lines.append(f"           log: {step.log}")
                    lines.append(f"           again: {step.job.command}")
                console.out(escape.terminal("\n".join(lines)), highlight=False)
    states = [status.state for status in ended]
    if before := states.count("done before"):
        echo(f"{before} steps were done before; nothing was asked again")
    well = ("done", "done before", "elsewhere")
    left = [f"{step.title} ({state})" for step, state, _ in ended if state not in well]
    if left:
        echo(f"{len(left)} steps are not done: {', '.join(left)}", err=True)
    return len(left), states.count("elsewhere")


def _list(jobs: Any) -> None:
    from rulerkit.batch.status import tokens_left

    steps = [step for job in jobs for step in job.steps]
    for step in steps:
        what = step.run and step.run.output
        if not what:
            gpus, nodes = step.job.resources
            spread = f" on each of {nodes} nodes" if nodes > 1 else ""
            what = f"{tokens_left(step):>16,} tokens, {gpus} GPU{'s' * (gpus != 1)}{spread}"
            what += f"; {changed}" if (changed := step.changed) else ""
        echo(f"{step.title:48} {what}")
    echo(
        f"{sum(bool(step.run) for step in steps)} notebooks; {sum(map(tokens_left, steps)):,} "
        "tokens of prompts and answers left, at most"
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
            echo(f"# {each.script}{after}\n{each.text(site)}")
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
    from rulerkit.tables import footnotes, table_text

    study = batch.study
    asked = {path for _, path, *_ in study.cells()}
    stored = rk.read_cells(study.predictions) if study.predictions.is_dir() else []
    cells = [cell for cell in stored if cell.path in asked and cell.rows]
    scores, text = None, "no answer yet"
    try:
        check_same(cells)
        if cells:
            scores = rk.score(cells)
            summary = rk.summarize(scores, [task.name for task in study.tasks], study.lengths)
            text = table_text(summary, notes=footnotes(cells, scores))
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
    model: str, *, settings: Set = None, node: Annotated[int, typer.Option(hidden=True)] = 0
) -> None:
    """Start a model's servers and leave them running until Ctrl-C: evaluate, papermill, JupyterLab
    and batches use them.

    All visible GPUs are used, one server for each group that the model needs (`replicas`). Every
    process on this machine and of this user that asks the same model with the same parameters uses
    them. Without this command a model is loaded by the process that asks it, a notebook's kernel
    for instance, and ends with it.

    Args:
        model: A model's name, path or hub id, or its parameter file.
        settings: A key of the model: -y 'replicas: 2'. Repeatable.
        node: The rank of this node, of several that share a model.
    """
    from rulerkit.batch.execution import GpuPool
    from rulerkit.gpus import visible_gpus
    from rulerkit.models import gpus_and_nodes
    from rulerkit.models.process import find_servers, registered
    from rulerkit.models.server import ServerEngine, Vllm

    engine = rk.load_model(_spec(model, settings_of(settings)))
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
    gpus = pool.hold(needed or 1, len(visible)) if visible else []
    if gpus is None:
        raise UserError(
            f"model {engine.name} needs {needed} GPUs: other processes hold {', '.join(visible)}"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    try:
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


def _spec(model: str, settings: dict[str, Any]) -> Any:
    """A model's name with changes, or the model of a parameter file or of a job."""
    from rulerkit.paths import resolve_file
    from rulerkit.settings import read_yaml
    from rulerkit.studies import load_files

    base: Any = model_of(model)
    if model.endswith((".yaml", ".yml")):
        path = resolve_file(model)
        job = read_yaml(path)
        base = job["model"] if "asks" in job else load_files([path]).get("model")
        if base is None:
            raise UserError(f"{path} names no model: it must hold `model: ...`")
    return {"base": base, **settings} if settings else base

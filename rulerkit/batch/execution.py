"""Jobs on this machine: the models answer one after the other, then notebooks are executed.

Every job is a process of its own, which ends with this one. `python -m rulerkit.batch.execution
FILE` is the process that asks a model.
"""

import os
import pickle
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

from rulerkit.batch.jobs import (
    Job,
    Status,
    lines_of_log,
    one_line,
    read_record,
    update_record,
    version_of,
)
from rulerkit.common.errors import Elsewhere, UserError, listed, remark
from rulerkit.common.gpus import visible_gpus
from rulerkit.common.hidden import hide
from rulerkit.common.paths import missing_extra
from rulerkit.common.plugins import load_plugins
from rulerkit.common.settings import JSON
from rulerkit.evaluation.evaluate import Session, evaluate
from rulerkit.inference.process import start_guarded
from rulerkit.inference.vllm import MASTER
from rulerkit.store.files import Lock, disk, holder
from rulerkit.store.records import plain

CHAIN = "RULERKIT_JOB"
"""Environment variable: the number of a scheduler's job, the same when the job starts again, or as
another one."""
RESTARTS = 2
"""A job that a scheduler restarted this often without a new answer gives up."""
_INTERVAL = 0.2  # seconds between two looks at the processes
# A job of a scheduler may have a few of the machine's.
_PROCESSORS = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
)


# --- several jobs ---------------------------------------------------------------------------------


def check(jobs: Sequence[Job]) -> None:
    """`UserError` where a job can never run here; on a machine without GPUs everything runs on its
    processors."""
    if any(job.run for job in jobs) and find_spec("papermill") is None:
        raise missing_extra("batches need", "papermill", "notebooks")
    gpus = visible_gpus()
    for job in jobs:
        needed, nodes = job.resources
        cannot = (nodes > 1 and MASTER not in os.environ) or (gpus and needed > len(gpus))
        if not needed or not cannot or job.is_done():
            continue
        if nodes > 1:
            raise UserError(
                f"{job.name} is spread over {nodes} nodes: submit it to Slurm, with --slurm"
            )
        raise UserError(
            f"{job.name} needs {needed} GPUs, here are {len(gpus)} ({', '.join(gpus)}): lower "
            "tensor_parallel_size or `gpus` in its parameter file, or leave it out with -y "
            "'models: [...]'"
        )


def execute(jobs: Sequence[Job]) -> Iterator[Status | None]:
    """Do jobs on this machine; yields each as it starts and as it ends, and None several times a
    second meanwhile. Closing the iterator ends what runs.

    Models answer one after the other: each may take all GPUs. Then notebooks are executed on the
    answers, one for each processor, and last those that ask models themselves or show the others.
    """
    models = [job for job in jobs if job.model]
    readers = [job for job in jobs if job.run and job.run.studies]
    others = [job for job in jobs if job.run and not job.run.studies]
    yield from _in_turn(models, 1)
    yield from _in_turn(readers, _PROCESSORS)
    yield from _in_turn(others, 1)


def _in_turn(jobs: Sequence[Job], at_once: int) -> Iterator[Status | None]:
    """Do some jobs, so many at once. What another process does is left to it while there is other
    work, and then waited for."""
    waiting = list(jobs)
    running: list[tuple[Job, Generator[Status | None]]] = []
    has_waited = False
    try:
        while waiting or running:
            free = (job for job in waiting if not _elsewhere(job))
            for job in list(islice(free, at_once - len(running))):
                waiting.remove(job)
                running.append((job, perform(job)))
            other = "" if running or has_waited else _elsewhere(waiting[0])
            if other:
                has_waited = True
                remark(f"waiting for another process: {other}")

            news = _news(waiting, running)
            yield from news
            yield None
            if not news and (running or waiting):
                time.sleep(_INTERVAL)
    finally:
        for _, statuses in running:
            statuses.close()


def _news(waiting: list[Job], running: list[tuple[Job, Generator[Status | None]]]) -> list[Status]:
    """What is new of the jobs that run; those that have ended are taken out, and one that another
    process was faster to begin waits again."""
    news = []
    for job, statuses in list(running):
        try:
            status = next(statuses)
            news += [status] if status else []
        except StopIteration:
            running.remove((job, statuses))
        except Elsewhere:
            running.remove((job, statuses))
            waiting.append(job)
    return news


def _elsewhere(job: Job) -> str:
    """Which other process does this job, or answers what it reads; "" where none does."""
    locks = {job.title: job.lock}
    for name in job.after:
        locks[f"{name}'s answers"] = job.predictions(name).with_suffix(".lock")
    for what, lock in locks.items():
        owner = holder(lock)
        if owner and owner.pid != os.getpid():
            return f"process {owner.pid or '?'} on host {owner.host} is at {what}"
    return ""


# --- one job --------------------------------------------------------------------------------------


def perform(job: Job) -> Generator[Status | None]:
    """Do a job that is not done; yields its status when it starts and when it ends, and None
    whenever its process was looked at. A job that fails raises nothing; `Elsewhere` where another
    process was faster by a moment."""
    try:
        if job.is_done():
            yield Status(job, "done before")
            return
        with disk(job.lock):
            job.lock.parent.mkdir(parents=True, exist_ok=True)
        with Lock(job.lock):
            yield from _perform(job)
    except Elsewhere:
        raise
    except UserError as error:
        yield Status(job, "failed", str(error))


def _perform(job: Job) -> Generator[Status | None]:
    """Ask the model, or execute a notebook on the stored answers: no notebook loads a model, so a
    wrong plot costs no GPU."""
    stuck = _start(job)
    if stuck:
        update_record(job.record, state="failed", error=stuck)
        yield Status(job, "failed", stuck)
        return
    if job.run and not job.run.is_page:
        missing = job.changed
        needs = job.needs()
        if needs and not any(need.have for need in needs):
            missing = missing or f"none of its {len(needs)} cells has an answer yet"
        if missing:
            yield Status(job, "missing", missing)
            return

    with tempfile.TemporaryDirectory(prefix="rulerkit-") as folder:
        # On this machine's disk: Jupyter's files of several nodes clash in a network home.
        jupyter = {"IPYTHONDIR": f"{folder}/ipython", "JUPYTER_RUNTIME_DIR": folder}
        command, shown, about = _asking(job, folder) if job.model else _papermill(job, folder)
        # The version is taken before: a checkpoint that changes meanwhile was not what answered.
        version = version_of(job.model or {})
        update_record(job.record, started=time.time(), error=None, state="running", **about)
        with disk(job.log), job.log.open("w", encoding="utf-8", errors="surrogateescape") as log:
            print("$", shown, file=log, flush=True)
            process = start_guarded(command, log, {**os.environ, **jupyter})
        try:
            yield Status(job, "running", "executing" if job.run else "")
            while process.poll() is None:
                yield None
            if process.returncode:
                # A scheduler signals the job and this process, one a moment before the other.
                time.sleep(2)
        finally:
            process.communicate()  # closes its standard input, which ends it

    ended = _status_of_ended(job, process.returncode)
    fields: JSON = {"state": ended.state, "error": ended.message or None, "ended": time.time()}
    if job.model and process.returncode == 0:
        # `evaluate` has compared the weights themselves.
        fields["answered_by"] = version
    update_record(job.record, **fields)
    yield ended


def _start(job: Job) -> str:
    """Add this start to those of the same job of a scheduler, each with how far the job was;
    returns why it should stop where it was restarted again and again without a new answer."""
    number = os.environ.get(CHAIN)
    starts = read_record(job.record).get("starts", []) if number else []
    left = sum(need.tokens_left for need in job.needs()) if job.model else 0
    of_this_job = [start for start in starts if start["job"] == number]
    starts = [*of_this_job, {"job": number, "time": time.time(), "left": left}]
    update_record(job.record, starts=starts)

    last = [start["left"] for start in starts[-1 - RESTARTS :]]
    if len(last) <= RESTARTS or any(other != left for other in last):
        return ""
    return (
        f"no new answer in {RESTARTS} restarts: stopped; look at its log, raise `hours` of the "
        "model, then submit again"
    )


def _asking(job: Job, folder: str) -> tuple[list[str], str, JSON]:
    """The command that lets a model answer, as it is shown, and what its record says of it."""
    # Tasks of plug-ins can be read once their modules are loaded.
    studies = [(name, study.plugins, pickle.dumps(study)) for name, study in job.studies]
    file = Path(folder, "studies.pickle")
    file.write_bytes(pickle.dumps((job.record, studies)))
    command = [sys.executable, "-m", "rulerkit.batch.execution", str(file)]
    about: JSON = {"model": hide(plain(job.model or {}))}
    if not job.not_run(job.name):
        # The settings of the model have changed: a length may fit now.
        about["not_run"] = {}
    return command, job.command, about


def _papermill(job: Job, folder: str) -> tuple[list[str], str, JSON]:
    """The command that executes a notebook, as it is shown, and what its record says of it."""
    run = job.run
    assert run is not None
    with disk(run.output):
        run.output.unlink(missing_ok=True)
    # A command line can be read by every user of this machine.
    parameters = Path(folder, "parameters.yaml")
    parameters.write_text(one_line(run.given), encoding="utf-8")
    code = _PAPERMILL
    if run.given != hide(run.given):
        # The notebook that papermill writes holds them too.
        code = f"import os; os.umask(0o077)\n{code}"
    places = [str(run.notebook), str(run.output)]
    command = [sys.executable, "-c", code, *places, "-f", str(parameters)]
    shown = shlex.join([sys.executable, "-m", "papermill", *run.command])
    return command, shown, {"source": run.source, "answers": job.answers()}


_PAPERMILL = """\
import sys
sys.modules["rfc3987_syntax"] = None  # optional for jsonschema, and half of the start-up time
from papermill.cli import papermill
from papermill.exceptions import PapermillExecutionError
try:
    papermill()
except PapermillExecutionError as error:
    print(error, file=sys.stderr)
    text = f"{error.ename.rpartition('.')[2]}: {error.evalue}"
    sys.exit("rulerkit: " + " ".join(text.split()))"""


def _status_of_ended(job: Job, exit_status: int) -> Status:
    """The status of a job whose process has ended."""
    if exit_status:
        last = (lines_of_log(job.log)[1:] or ["no message"])[-1].strip()
        if last.startswith("rulerkit: "):
            return Status(job, "failed", last.removeprefix("rulerkit: "))
        with suppress(ValueError):
            killed_by = signal.Signals(exit_status - 128).name
            return Status(job, "failed", f"killed by {killed_by} (out of memory?): {last}")
        return Status(job, "failed", f"exit status {exit_status}: {last}")

    needs = tuple(job.needs())
    unanswered = [need for need in needs if need.tokens_left]
    if not unanswered or (job.run and job.run.is_page):
        return Status(job, "done", "", needs)
    first = unanswered[0]
    message = (
        f"{len(unanswered)} of {len(needs)} cells are incomplete, the first is {first}: "
        f"{first.have} of {first.wanted} examples"
    )
    if first.problem:
        message += f" ({first.problem})"
    return Status(job, "incomplete", message, needs)


# --- the process that asks a model ----------------------------------------------------------------


def main(file: Path) -> None:
    """Let a model answer what the notebooks of a batch ask of it; loaded once. `file` holds the
    record of the job and the studies, each with the name of its notebook. Says in one line what
    went wrong, and in which notebook's study where it is not the same in all."""
    record, given = pickle.loads(file.read_bytes())
    problems: dict[str, set[str]] = {}

    def not_run(_: str, length: int, reason: str, task: str) -> None:
        before = read_record(record).get("not_run", {})
        update_record(record, not_run=before | {f"{length} {task}".strip(): reason})

    with Session() as session:
        for notebook, modules, pickled in given:
            errors: list[UserError] = []
            try:
                load_plugins(modules)
                study = pickle.loads(pickled)
                evaluate(study, not_run=not_run, failed=errors.append, session=session)
            except UserError as error:
                # The other notebooks can still have their answers.
                errors.append(error)
            for problem in map(str, errors):
                problems.setdefault(problem, set()).add(notebook)
    everywhere = {notebook for notebook, *_ in given}
    said = [
        problem if names == everywhere else f"{listed(sorted(names), 3)}: {problem}"
        for problem, names in problems.items()
    ]
    if said:
        sys.exit("rulerkit: " + "; ".join(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

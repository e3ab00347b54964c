"""Jobs on this machine: each asks its model, then executes its notebooks.

Every step (the predictions, each notebook) is a process of its own, which ends with this one.
`python -m rulerkit.batch.execution JOB` is the step that asks the model; with the number of a node
behind it, the share of that node in a server over several.
"""

import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from rulerkit.batch.jobs import (
    Job,
    Notebook,
    Status,
    Step,
    fingerprint,
    lines_of_log,
    one_line,
    read_job,
    read_record,
    update_record,
    version_of,
)
from rulerkit.common.errors import UserError, listed
from rulerkit.common.gpus import visible_gpus
from rulerkit.common.hidden import hide
from rulerkit.common.paths import missing_extra
from rulerkit.common.settings import JSON
from rulerkit.evaluation.evaluate import Session, evaluate
from rulerkit.inference.model import load_model
from rulerkit.inference.process import start_guarded
from rulerkit.inference.vllm import MASTER, Vllm
from rulerkit.store.files import disk, write_whole
from rulerkit.store.locks import Lock, wait_for
from rulerkit.store.records import plain

CHAIN = "RULERKIT_JOB"
"""Environment variable: the number of a scheduler's job, the same when the job starts again, or as
another one."""
RESTARTS = 2
"""A job that a scheduler restarted this often without a new answer gives up."""
_INTERVAL = 0.2  # seconds between two looks at the processes and at GPUs that others hold


# --- several jobs ---------------------------------------------------------------------------------


def execute(jobs: Sequence[Job]) -> Iterator[Status | None]:
    """Do jobs on this machine, one after the other, those of models first; yields each step as it
    starts and as it ends, and None several times a second meanwhile. Closing the iterator ends the
    step that runs."""
    for job in sorted(jobs, key=lambda job: bool(job.after)):
        for status in perform(job):
            yield status
            if status is None:
                time.sleep(_INTERVAL)


def check(jobs: Sequence[Job]) -> None:
    """`UserError` where a job can never run here; on a machine without GPUs everything runs on its
    processors."""
    if any(job.runs for job in jobs) and find_spec("papermill") is None:
        raise missing_extra("batches need", "papermill", "notebooks")
    gpus = visible_gpus()
    for job in jobs:
        needed, nodes = job.resources
        # The job itself reports what is wrong with its answers.
        with suppress(UserError):
            if job.steps[0].is_done:
                continue
        if needed and nodes > 1 and MASTER not in os.environ:
            raise UserError(
                f"{job.name} is spread over {nodes} nodes: submit it to Slurm, with --slurm"
            )
        if gpus and needed > len(gpus):
            raise UserError(
                f"{job.name} needs {needed} GPUs, here are {len(gpus)} ({', '.join(gpus)}): lower "
                "tensor_parallel_size or `gpus` in its parameter file, or leave it out with -y "
                "'models: [...]'"
            )


# --- one job --------------------------------------------------------------------------------------


def perform(job: Job) -> Generator[Status | None]:
    """Do what is left of a job; yields each step as it starts and as it ends, and None whenever its
    process was looked at. A step that fails raises nothing."""
    first = job.steps[0]
    try:
        reason = _running_elsewhere(job)
        if reason:
            yield Status(first, "elsewhere", reason)
        elif not job.is_open:
            for step in job.steps:
                yield Status(step, "done before")
        else:
            with Lock(job.lock):
                yield from _perform_steps(job)
    except UserError as error:
        # Another process may have been faster by a moment.
        reason = _running_elsewhere(job)
        if reason:
            yield Status(first, "elsewhere", reason)
        else:
            yield Status(first, "failed", str(error))


def _perform_steps(job: Job) -> Generator[Status | None]:
    """Do the steps of a job that are left, one after the other."""
    with tempfile.TemporaryDirectory(prefix="rulerkit-") as folder:
        # On this machine's disk: Jupyter's files of several nodes clash in a network home.
        jupyter = {"IPYTHONDIR": f"{folder}/ipython", "JUPYTER_RUNTIME_DIR": folder}
        stuck = _start(job)
        for step in job.steps:
            if step.is_done:
                yield Status(step, "done before")
                continue
            if stuck:
                update_record(step.record, state="failed", error=stuck)
                yield Status(step, "failed", stuck)
                return
            yield from _perform_step(step, {**os.environ, **jupyter}, folder)


def _running_elsewhere(job: Job) -> str:
    """Which other process does this job, or a job whose answers it reads; "" where none does."""
    others = {f"{name}'s answers": job.predictions(name) for name in job.after}
    for what, file in {"it": job.lock, **others}.items():
        if owner := wait_for(file.with_suffix(".lock")):
            return f"process {owner.pid or '?'} on host {owner.host} is at {what}"
    return ""


def _start(job: Job) -> str:
    """Add this start to those of the same job of a scheduler, each with how far the job was;
    returns why it should stop where it was restarted again and again without a new answer."""
    first = job.steps[0]
    number = os.environ.get(CHAIN)
    starts = read_record(first.record).get("starts", []) if number else []
    of_this_job = [start for start in starts if start["job"] == number]

    left = [first.tokens_left, sum(not step.is_done for step in job.steps)]
    starts = [*of_this_job, {"job": number, "time": time.time(), "left": left}]
    update_record(first.record, starts=starts)

    last = [start["left"] for start in starts[-1 - RESTARTS :]]
    if len(last) <= RESTARTS or any(other != left for other in last):
        return ""
    return (
        f"no new answer in {RESTARTS} restarts: stopped; look at its log, raise `hours` of the "
        "model or signal_before of params/site.yaml, then submit again"
    )


def _perform_step(step: Step, environment: dict[str, str], folder: str) -> Generator[Status | None]:
    """Ask the model, or execute a notebook on the stored answers: no notebook loads a model, so a
    wrong plot costs no GPU. `folder` is for files that end with the job."""
    if step.run:
        missing = step.changed
        if step.unanswered and not any(need.have for need in step.needs):
            missing = f"none of its {len(step.needs)} cells has an answer yet"
        if missing:
            yield Status(step, "missing", missing)
            return
        command = _papermill(step.run, folder)
        shown = shlex.join([sys.executable, "-m", "papermill", *step.run.command])
        about: JSON = {"source": step.run.source, "answers": fingerprint(step.cells)}
        with disk(step.run.output):
            step.run.output.unlink(missing_ok=True)
    else:
        job = step.job
        module = "rulerkit.batch.execution"
        command = [sys.executable, "-m", module, str(job.file)]
        shown = job.command
        model, not_run = hide(plain(job.model or {})), job.not_run(job.name)
        about = {"model": model, "not_run": not_run}

    # The version is taken before: a checkpoint that changes meanwhile was not what answered.
    version = version_of(step.job.model or {})
    now = {"started": time.time(), "error": None, "state": "running"}
    update_record(step.record, **now, **about)
    with disk(step.log), step.log.open("w", encoding="utf-8", errors="surrogateescape") as log:
        print("$", shown, file=log, flush=True)
        process = start_guarded(command, log, environment)
    try:
        yield Status(step, "running", "executing" if step.run else "")
        while process.poll() is None:
            yield None
        if process.returncode:
            # A scheduler signals the step and this process, one a moment before the other.
            time.sleep(2)
    finally:
        process.communicate()  # closes its standard input, which ends it

    ended = _status_of_ended(step, process.returncode)
    of_answers = {}
    if not step.run and process.returncode == 0:
        # `evaluate` has compared the weights themselves.
        of_answers["answered_by"] = version
    update_record(
        step.record, **of_answers, state=ended.state, error=ended.message or None, ended=time.time()
    )
    yield ended


def _papermill(run: Notebook, folder: str) -> list[str]:
    """The command that executes a notebook."""
    # A command line can be read by every user of this machine.
    parameters = Path(folder, "parameters.yaml")
    write_whole(parameters, one_line(run.given), private=True)
    code = _PAPERMILL
    if run.given != hide(run.given):
        # The notebook that papermill writes holds them too.
        code = f"import os; os.umask(0o077)\n{code}"
    places = [str(run.notebook), str(run.output)]
    return [sys.executable, "-c", code, *places, "-f", str(parameters)]


def _status_of_ended(step: Step, exit_status: int) -> Status:
    """The status of a step whose process has ended."""
    if exit_status:
        return Status(step, "failed", _last_line(step.log, exit_status))
    unanswered = step.unanswered
    if not unanswered:
        return Status(step, "done", "")

    first = unanswered[0]
    message = (
        f"{len(unanswered)} of {len(step.needs)} cells are incomplete, the first is {first}: "
        f"{first.have} of {first.wanted} examples"
    )
    if first.problem:
        message += f" ({first.problem})"
    return Status(step, "incomplete", message)


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


def _last_line(log: Path, status: int) -> str:
    """The last line of a log, behind what the exit status means."""
    last = (lines_of_log(log)[1:] or ["no message"])[-1].strip()
    if last.startswith("rulerkit: "):
        return last.removeprefix("rulerkit: ")
    with suppress(ValueError):
        return f"killed by {signal.Signals(status - 128).name} (out of memory?): {last}"
    return f"exit status {status}: {last}"


def predictions(job: Job) -> list[str]:
    """Let the model answer all that is asked of it; returns what went wrong, and in which
    notebook's study where it is not the same in all."""
    problems: dict[str, set[str]] = {}

    def not_run(_: str, length: int, reason: str) -> None:
        record = job.predictions(job.name)
        lengths = read_record(record).get("not_run", {})
        update_record(record, not_run=lengths | {str(length): reason})

    # The model is loaded once for all notebooks.
    with Session() as session:
        for notebook, study in job.studies:
            errors: list[UserError] = []
            try:
                evaluate(study, not_run=not_run, failed=errors.append, session=session)
            except UserError as error:
                # The other notebooks can still have their answers.
                errors.append(error)
            for problem in map(str, errors):
                problems.setdefault(problem, set()).add(notebook.notebook.stem)
    everywhere = {notebook.notebook.stem for notebook in job.asks}
    return [
        problem if names == everywhere else f"{listed(sorted(names), 3)}: {problem}"
        for problem, names in problems.items()
    ]


def follow(job: Job, node: int) -> None:
    """Become the process that follows the first node, on another node of several that share a
    model. Does not return."""
    engine = load_model(job.model or {})
    if isinstance(engine, Vllm):
        command = engine.follow(node)
        os.execvpe(command[0], command, os.environ | engine.variables())


def main(job: Job, *node: str) -> None:
    """Let the model of a job answer, or follow the first node of those that share it."""
    if node:
        follow(job, int(node[0]))
        return
    problems = predictions(job)
    if problems:
        sys.exit("rulerkit: " + "; ".join(problems))


if __name__ == "__main__":
    main(read_job(Path(sys.argv[1])), *sys.argv[2:])

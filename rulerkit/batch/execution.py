"""Jobs on this machine: each gets its GPUs, asks its model, then executes its notebooks.

Every step (the predictions, each notebook) is a process of its own, which ends with this one.
`python -m rulerkit.batch.execution JOB` is the step that asks the model.
"""

import os
import re
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rulerkit.batch.jobs import (
    Job,
    Status,
    Step,
    fingerprint,
    lines_of_log,
    read_job,
    read_record,
    update_record,
    version_of,
)
from rulerkit.common.errors import UserError, listed, remark
from rulerkit.common.gpus import visible_gpus
from rulerkit.evaluation.evaluate import evaluate
from rulerkit.evaluation.session import Session
from rulerkit.inference.model import takes_more_gpus
from rulerkit.inference.process import start_guarded
from rulerkit.inference.servers import MASTER, is_served
from rulerkit.store.files import disk
from rulerkit.store.locks import Lock, wait_for

CHAIN = "RULERKIT_JOB"
"""Environment variable: the number of a scheduler's job, the same when the job starts again, or as
another one."""
RESTARTS = 2
"""A job that a scheduler restarted this often without a new answer gives up."""
_INTERVAL = (
    0.2  # seconds between two looks at the processes and at GPUs that others hold
)


# --- several jobs ---------------------------------------------------------------------------------


def execute(
    jobs: Sequence[Job], gpus: Sequence[str] = (), side_by_side: int | None = None
) -> Iterator[Status | None]:
    """Do jobs on this machine, those that need most GPUs first; yields each step as it starts and
    as it ends, and None several times a second meanwhile. Closing the iterator ends all steps.

    A job that reads the answers of others waits for those among `jobs`. A model that can be served
    several times gets as many of the free GPUs as the waiting jobs leave. Jobs without GPUs run
    beside, one for each processor; on a machine without GPUs, where a model wants one, all jobs run
    one after the other. `side_by_side` sets how many jobs run at most instead.
    """
    needed = {job.file: gpus_needed(job) for job in jobs}
    alone = not gpus and any(needed.values())
    most = side_by_side or (1 if alone else (os.cpu_count() or 1) + len(gpus))
    pool, announced = GpuPool(gpus), False
    waiting = sorted(jobs, key=lambda job: (bool(job.after), -needed[job.file]))
    unfinished = {job.name for job in jobs if job.model}
    running: list[tuple[Job, list[str], Any]] = []
    try:
        while waiting or running:
            for job in list(waiting):
                count, times = needed[job.file] if gpus else 0, 1
                if len(running) >= most or unfinished & {*job.after}:
                    continue
                if count and job.model and takes_more_gpus(job.model):
                    times = len(pool.free) // sum(
                        needed[other.file] for other in waiting
                    )
                held = pool.hold(count, times)
                if held is not None:
                    environment = (
                        {"CUDA_VISIBLE_DEVICES": ",".join(held)} if gpus else {}
                    )
                    waiting.remove(job)
                    running.append((job, held, perform(job, environment)))
            if not running and not announced:
                announced = True
                remark(f"waiting: other processes hold the GPUs {', '.join(gpus)}")
            for job, held, steps in list(running):
                for status in steps:
                    yield status
                    if not status:
                        break
                else:
                    running.remove((job, held, steps))
                    pool.release(held)
                    unfinished -= {job.name} if job.model else set()
            time.sleep(_INTERVAL if running or waiting else 0)
    finally:
        for _, held, steps in running:
            steps.close()
            pool.release(held)


def check(jobs: Sequence[Job], gpus: Sequence[str]) -> None:
    """`UserError` where a job can never run here; on a machine without GPUs everything runs on its
    processors."""
    for job in jobs:
        needed = gpus_needed(job)
        nodes = job.resources[1]
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


def gpus_needed(job: Job) -> int:
    """The GPUs that a job takes now: none where only notebooks are left, or where `rulerkit serve`
    runs the model here."""
    with suppress(UserError):  # the job itself reports what is wrong with its answers
        if job.steps[0].is_done or (job.model and is_served(job.model)):
            return 0
    return job.resources[0]


def use_gpus(text: str | None) -> list[str]:
    """The GPUs to use: those named (`0,1` or `0-3`), which are all that this process then sees,
    else all that are visible."""
    if text is not None:
        named: list[str] = []
        for part in text.split(","):
            ends = re.fullmatch(r"\s*(\d+)-(\d+)\s*", part)
            named += map(str, range(int(ends[1]), int(ends[2]) + 1)) if ends else [part]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(named)
    return visible_gpus()


class GpuPool:
    """GPUs of this machine; each that is held is locked against other processes."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self.gpus, self._locks = gpus, dict[str, IO[bytes]]()

    @property
    def free(self) -> list[str]:
        return [gpu for gpu in self.gpus if gpu not in self._locks]

    def hold(self, needed: int, times: int = 1) -> list[str] | None:
        """So many free GPUs, or, where they can be had, up to so many times as many; None where
        there are too few."""
        held: list[str] = []
        for gpu in self.free:
            if len(held) < needed * max(1, times) and (lock := _lock(gpu)):
                held.append(gpu)
                self._locks[gpu] = lock
        enough = len(held) // max(1, needed) * needed
        self.release(held[enough:])
        return held[:enough] if enough or not needed else None

    def release(self, gpus: Sequence[str]) -> None:
        """Give GPUs back."""
        for gpu in gpus:
            self._locks.pop(gpu).close()


def _lock(gpu: str) -> IO[bytes] | None:
    """The lock of a GPU, which ends with its process; None where another process of any user holds
    it. A scheduler's GPUs are ours, whatever their numbers."""
    import fcntl  # not on Windows

    if "SLURM_JOB_ID" in os.environ:
        return open(os.devnull, "rb")
    path = f"{tempfile.gettempdir()}/rulerkit-gpu-{gpu}"
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.chmod(path, 0o644)  # other users read it, whatever the umask
    file = open(path, "rb")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


# --- one job --------------------------------------------------------------------------------------


def perform(job: Job, environment: Mapping[str, str]) -> Iterator[Status | None]:
    """Do what is left of a job; yields each step as it starts and as it ends, and None whenever its
    process was looked at. A step that fails raises nothing.

    `environment` is added to that of the steps, such as CUDA_VISIBLE_DEVICES.
    """
    try:
        if reason := _running_elsewhere(job):
            yield Status(job.steps[0], "elsewhere", reason)
        elif not job.is_open:
            yield from (Status(step, "done before") for step in job.steps)
        else:
            with (
                Lock(job.lock),
                tempfile.TemporaryDirectory(prefix="rulerkit-") as folder,
            ):
                # on this machine's disk: Jupyter's files of several nodes clash in a network home
                jupyter = {
                    "IPYTHONDIR": f"{folder}/ipython",
                    "JUPYTER_RUNTIME_DIR": folder,
                }
                stuck = _start(job)
                for step in job.steps:
                    if step.is_done:
                        yield Status(step, "done before")
                    elif stuck:
                        update_record(step.record, state="failed", error=stuck)
                        yield Status(step, "failed", stuck)
                        break
                    else:
                        yield from _perform_step(
                            step, {**os.environ, **jupyter, **environment}
                        )
    except UserError as error:
        reason = _running_elsewhere(job)  # another process was faster by a moment
        yield Status(
            job.steps[0], "elsewhere" if reason else "failed", reason or str(error)
        )


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
    first, number = job.steps[0], os.environ.get(CHAIN)
    starts = read_record(first.record).get("starts", []) if number else []
    left = first.tokens_left, sum(not step.is_done for step in job.steps)
    now = {"job": number, "time": time.time(), "left": list(left)}
    starts = [*(start for start in starts if start["job"] == number), now]
    update_record(first.record, starts=starts)
    if [start["left"] for start in starts[-1 - RESTARTS :]] != [now["left"]] * (
        1 + RESTARTS
    ):
        return ""
    return (
        f"no new answer in {RESTARTS} restarts: stopped; look at its log, raise `hours` of the "
        "model or signal_before of params/site.yaml, then submit again"
    )


def _perform_step(step: Step, environment: dict[str, str]) -> Iterator[Status | None]:
    """Ask the model, or execute a notebook on the stored answers: no notebook loads a model, so a
    wrong plot costs no GPU."""
    job, run, python = step.job, step.run, sys.executable
    about: dict[str, Any] = {"started": time.time(), "error": None}
    if run:
        message = step.changed
        if step.unanswered and not any(need.have for need in step.needs):
            message = f"none of its {len(step.needs)} cells has an answer yet"
        if message:
            yield Status(step, "missing", message)
            return
        about |= {"source": run.source, "answers": fingerprint(step.cells)}
        command = [python, "-c", _PAPERMILL, *run.command]
        shown = shlex.join([python, "-m", "papermill", *run.command])
        with disk(run.output):
            run.output.unlink(missing_ok=True)
    else:
        about |= {"model": job.model, "not_run": job.not_run(job.name)}
        version = version_of(job.model or {})
        command = [python, "-m", "rulerkit.batch.execution", str(job.file)]
        shown = job.command
    update_record(step.record, **about, state="running")
    with disk(step.log), step.log.open("w", encoding="utf-8") as log:
        print("$", shown, file=log, flush=True)
        process = start_guarded(command, log, environment)
    try:
        yield Status(step, "running", "executing" if run else "")
        while (status := process.poll()) is None:
            yield None
        # a scheduler signals the step and this process, one a moment before the other
        time.sleep(2 if status else 0)
    finally:
        process.communicate()  # closes its standard input, which ends it
    about, state, message = {}, "done", ""
    if status:
        state, message = "failed", _last_line(step.log, status)
    elif missing := step.unanswered:
        first, state = missing[0], "incomplete"
        message = (
            f"{len(missing)} of {len(step.needs)} cells are incomplete, the first is {first}: "
            f"{first.have} of {first.wanted} examples"
        ) + f" ({first.problem})" * bool(first.problem)
    if not (run or status):  # `evaluate` has compared the weights themselves
        about["answered_by"] = version
    update_record(
        step.record, **about, state=state, error=message or None, ended=time.time()
    )
    yield Status(step, state, message)


_PAPERMILL = """\
import sys
sys.modules["rfc3987_syntax"] = None  # optional for jsonschema, and half of the start-up time
from papermill.cli import papermill
from papermill.exceptions import PapermillExecutionError
try:
    papermill()
except PapermillExecutionError as error:
    print(error, file=sys.stderr)
    sys.exit("rulerkit: " + " ".join(f"{error.ename.rpartition('.')[2]}: {error.evalue}".split()))"""


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


if __name__ == "__main__" and (problems := predictions(read_job(Path(sys.argv[1])))):
    sys.exit("rulerkit: " + "; ".join(problems))

"""Jobs on this machine: each gets its GPUs, asks its model, then executes its notebooks.

Every step (the predictions, each notebook) is a process of its own, which ends with this one.
`python -m rulerkit.batch.execution JOB` is the step that asks the model.
"""

import json
import os
import shlex
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from rulerkit.batch import Job, Step, fingerprint, read_job, read_record, update_record
from rulerkit.errors import UserError, remark
from rulerkit.evaluation import ASK, evaluate
from rulerkit.gpus import nvidia_smi, visible_gpus
from rulerkit.models import takes_more_gpus
from rulerkit.models.process import start_guarded
from rulerkit.models.server import MASTER, is_served
from rulerkit.store import Lock, disk, wait_for

CHAIN = "RULERKIT_JOB"
"""Environment variable: the number of a scheduler's job, the same when the job starts again, or as
another one."""
RESTARTS = 2
"""A job that a scheduler restarted this often without a new answer gives up."""
_INTERVAL = 2.0  # seconds between two looks at GPUs that other processes hold


class Outcome(NamedTuple):
    """How a step ended: `done`, `done before`, `failed`, `incomplete` (a model that left examples
    unanswered, or a notebook that read less than it asked for), `missing` (a notebook without any
    answer to read; it did not run) or `elsewhere` (another process is running it)."""

    step: Step
    state: str
    message: str = ""


# --- several jobs ---------------------------------------------------------------------------------


def execute(
    jobs: Sequence[Job],
    gpus: Sequence[str] = (),
    side_by_side: int | None = None,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[Outcome]:
    """Do jobs on this machine, those that need most GPUs first; yields the outcome of each step.

    A job that reads the answers of others waits for those among `jobs`. A model that can be served
    several times gets as many of the free GPUs as the waiting jobs leave. Jobs without GPUs run
    beside, one for each processor; on a machine without GPUs, a model that wants one takes all
    processors. `side_by_side` sets how many jobs run at most instead. `tick` is called every two
    seconds.
    """
    _stopping.clear()
    needed = {job.file: gpus_needed(job) for job in jobs}
    slots = side_by_side or _processors()

    def slots_of(job: Job) -> int:
        if side_by_side or not needed[job.file]:
            return 1
        return 0 if gpus else slots

    pool = GpuPool(gpus)
    waiting = sorted(jobs, key=lambda job: (bool(job.after), -needed[job.file]))
    running: dict[Future[None], tuple[Job, list[str]]] = {}
    events: SimpleQueue[Outcome | Future[None]] = SimpleQueue()
    announced = False

    def run(job: Job, environment: dict[str, str]) -> None:
        for outcome in perform(job, environment):
            events.put(outcome)

    with ThreadPoolExecutor(max(1, len(jobs))) as threads:
        try:
            while waiting or running:
                unfinished = [*waiting, *(job for job, _ in running.values())]
                models = {job.name for job in unfinished if job.model}
                for job in [job for job in waiting if not models & set(job.after)]:
                    used = sum(slots_of(other) for other, _ in running.values())
                    if used and used + slots_of(job) > slots:
                        continue
                    count = needed[job.file]
                    several = count and job.model and takes_more_gpus(job.model)
                    all_needed = sum(needed[other.file] for other in waiting)
                    times = len(pool.free) // all_needed if several else 1
                    held = pool.hold(count, times) if gpus else []
                    if held is not None:
                        waiting.remove(job)
                        environment = {"CUDA_VISIBLE_DEVICES": ",".join(held)} if gpus else {}
                        future = threads.submit(run, job, environment)
                        running[future] = job, held
                        future.add_done_callback(events.put)
                if not running and not announced:
                    announced = True
                    remark(f"waiting: other processes hold the GPUs {', '.join(gpus)}")
                tick()
                with suppress(Empty):
                    event = events.get(timeout=_INTERVAL)
                    if isinstance(event, Outcome):
                        yield event
                    else:
                        pool.release(running.pop(event)[1])
                        event.result()
        finally:
            if waiting or running:  # interrupted
                stop()
            pool.close()


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
        if not job.unanswered(job.needs) or (job.model and is_served(job.model)):
            return 0
    return job.resources[0]


def parse_gpus(text: str | None) -> list[str]:
    """The GPUs to use: those named (`0,1` or `0-3`), else all that are visible."""
    gpus: list[str] = []
    for part in visible_gpus() if text is None else text.split(","):
        first, dash, last = part.strip().partition("-")
        if dash and first.isdigit() and last.isdigit():
            low, high = sorted((int(first), int(last)))
            gpus += map(str, range(low, high + 1))
        else:
            gpus.append(part.strip())
    return list(dict.fromkeys(gpu for gpu in gpus if gpu not in ("", "-1")))


class GpuPool:
    """GPUs of this machine; each that is held is locked against other processes."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self.free = list(gpus)
        self._locks: dict[str, Lock] = {}

    def hold(self, needed: int, times: int = 1) -> list[str] | None:
        """So many free GPUs, or, where they can be had, up to so many times as many; None where
        there are too few."""
        held: list[str] = []
        for gpu in list(self.free) if len(self.free) >= needed else []:
            if len(held) < needed * max(1, times) and self._lock(gpu):
                held.append(gpu)
                self.free.remove(gpu)
        enough = len(held) // needed * needed if needed else 0
        self.release(held[enough:])
        return held[:enough] if enough >= needed else None

    def release(self, gpus: Sequence[str]) -> None:
        """Give GPUs back."""
        for gpu in gpus:
            if lock := self._locks.pop(gpu, None):
                lock.__exit__()
        self.free += gpus

    def close(self) -> None:
        """Give back all that are held."""
        self.release(list(self._locks))

    def _lock(self, gpu: str) -> bool:
        """False where another process holds it. A scheduler's GPUs are ours, whatever their
        numbers."""
        if "SLURM_JOB_ID" not in os.environ:
            lock = Lock(_gpu_lock(gpu))
            try:
                lock.__enter__()
            except UserError:
                return False
            self._locks[gpu] = lock
        return True


def _gpu_lock(gpu: str) -> Path:
    """The lock file of a GPU, in a folder that all users of this machine may write to: named by its
    UUID, where the driver lists it, since containers number GPUs anew."""
    folder = Path(tempfile.gettempdir()) / "rulerkit-gpus"
    with suppress(FileExistsError):
        folder.mkdir()
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise UserError(
            f"{folder} is a link or no folder, and cannot hold the locks of GPUs: remove it, or "
            "set TMPDIR to another folder"
        )
    if about.st_uid == os.getuid():
        folder.chmod(0o777)  # not sticky: anybody may take over the lock of a dead process
    return folder / f"{_uuids().get(gpu, gpu)}.lock"


@cache
def _uuids() -> dict[str, str]:
    """Number -> UUID of the GPUs that nvidia-smi lists."""
    lines = [line.split(", ") for line in nvidia_smi("index,uuid")]
    return {line[0]: line[1] for line in lines if len(line) == 2}


def _processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- one job --------------------------------------------------------------------------------------


def perform(job: Job, environment: Mapping[str, str]) -> Iterator[Outcome]:
    """Do what is left of a job; yields the outcome of each step. A step that fails raises nothing.

    `environment` is added to that of the steps, such as CUDA_VISIBLE_DEVICES.
    """
    first = job.steps[0]
    try:
        if reason := _running_elsewhere(job):
            yield Outcome(first, "elsewhere", reason)
        elif not job.is_open:
            yield from (Outcome(step, "done before") for step in job.steps)
        else:
            with disk(job.lock):
                job.lock.parent.mkdir(parents=True, exist_ok=True)
            with Lock(job.lock), tempfile.TemporaryDirectory(prefix="rulerkit-") as folder:
                # on this machine's disk: Jupyter's files of several nodes clash in a network home
                jupyter = {"IPYTHONDIR": f"{folder}/ipython", "JUPYTER_RUNTIME_DIR": folder}
                yield from _perform_steps(job, {**os.environ, **jupyter, **environment})
    except Stopped:
        return  # the records say "running" and the lock is gone: the next call resumes
    except UserError as error:
        reason = _running_elsewhere(job)  # another process was faster by a moment
        yield Outcome(first, *(("elsewhere", reason) if reason else ("failed", str(error))))


def _running_elsewhere(job: Job) -> str:
    """Which other process does this job, or a job whose answers it reads; "" where none does."""
    locks = {"it": job.lock} | {f"{name}'s answers": job.lock_of(name) for name in job.after}
    for what, lock in locks.items():
        if owner := wait_for(lock):
            return f"process {owner.pid or '?'} on host {owner.host} is at {what}"
    return ""


def _perform_steps(job: Job, environment: dict[str, str]) -> Iterator[Outcome]:
    starts = _starts(job)
    update_record(job.record, starts=starts)
    stuck = _stuck(starts)
    for step in job.steps:
        if step.is_done:
            yield Outcome(step, "done before")
        elif stuck:
            update_record(step.record, state="failed", error=stuck)
            yield Outcome(step, "failed", stuck)
            return
        else:
            yield _perform_step(step, starts, environment)


def _perform_step(step: Step, starts: list[dict[str, Any]], environment: dict[str, str]) -> Outcome:
    """Ask the model, or execute a notebook on the stored answers: no notebook loads a model, so a
    wrong plot costs no GPU."""
    job, run = step.job, step.run
    python = sys.executable
    if run:
        if not any(need.have for need in step.needs) and job.unanswered(step.needs):
            message = f"none of its {len(step.needs)} cells has an answer yet"
            return Outcome(step, "missing", message)
        about: dict[str, Any] = {"source": run.source, "answers": fingerprint(step.needs)}
        environment = environment | {ASK: "never"}
        command = [python, "-c", _PAPERMILL, *run.command]
        shown = f"{ASK}=never {shlex.join([python, '-m', 'papermill', *run.command])}"
        with disk(run.output):
            run.output.unlink(missing_ok=True)
    else:
        about = {"model": job.model, "not_run": job.not_run(job.name)}
        command = [python, "-m", "rulerkit.batch.execution", str(job.file)]
        shown = job.command
    about |= {"host": socket.gethostname(), "gpus": environment.get("CUDA_VISIBLE_DEVICES")}
    update_record(
        step.record, **about, state="running", starts=starts, started=time.time(), error=None
    )
    status = _call(step, command, shown, environment)
    missing = job.unanswered(step.needs)
    state = "failed" if status else "incomplete" if missing else "done"
    message = ""
    if status:
        message = (run and _notebook_error(run.output)) or _last_line(step.log, status)
    elif missing:
        first = missing[0]
        problem = f" ({first.problem})" if first.problem else ""
        message = (
            f"{len(missing)} of {len(step.needs)} cells are incomplete, the first is {first}: "
            f"{first.have} of {first.wanted} examples{problem}"
        )
    update_record(step.record, state=state, error=message or None, ended=time.time())
    return Outcome(step, state, message)


_PAPERMILL = """\
import sys
sys.modules["rfc3987_syntax"] = None  # optional for jsonschema, and half of the start-up time
from papermill.cli import papermill
papermill()"""


def predictions(job: Job) -> list[str]:
    """Let the model answer all that is asked of it; returns what went wrong, and in which
    notebook's study."""
    problems: list[str] = []

    def not_run(_: str, length: int, reason: str) -> None:
        lengths = read_record(job.record).get("not_run", {})
        update_record(job.record, not_run=lengths | {str(length): reason})

    for ask in job.asks:
        for study in job.studies(ask):
            errors: list[UserError] = []
            try:
                evaluate(study, not_run=not_run, failed=errors.append)
            except UserError as error:  # the other notebooks can still have their answers
                errors.append(error)
            problems += [f"{ask.notebook.stem}: {error}" for error in errors]
    return list(dict.fromkeys(problems))


# --- restarts by a scheduler ----------------------------------------------------------------------


def _starts(job: Job) -> list[dict[str, Any]]:
    """The starts of the same job of a scheduler, this one last, each with how far the job was."""
    number = os.environ.get(CHAIN)
    earlier = read_record(job.record).get("starts", []) if number else []
    needs = job.needs if job.model else []
    start = {
        "job": number,
        "time": time.time(),
        "answers": sum(need.have for need in needs),
        "tokens": sum(need.have * need.length for need in needs),
        "notebooks": sum(step.is_done for step in job.steps if step.run),
    }
    return [*(start for start in earlier if start.get("job") == number), start]


def _stuck(starts: list[dict[str, Any]]) -> str:
    """Why a job should stop that was restarted again and again without a new answer; "" for none."""
    now, before = starts[-1], starts[-1 - RESTARTS :][0]
    if len(starts) <= RESTARTS or any(now[k] != before[k] for k in ("answers", "notebooks")):
        return ""
    return (
        f"no new answer in {RESTARTS} restarts ({now['answers']} answers, as before): stopped; "
        "look at its log, raise `hours` of the model or signal_before of params/site.yaml, then "
        "submit again"
    )


# --- processes ------------------------------------------------------------------------------------


class Stopped(Exception):  # noqa: N818  (no fault of anybody's)
    """The steps of this process were ended from outside."""


processes: dict["subprocess.Popen[bytes]", Step] = {}
"""The steps that this process is at."""
_stopping = threading.Event()


def _call(step: Step, command: list[str], shown: str, environment: dict[str, str]) -> int:
    """Run the command of a step, its messages into the log; returns its exit status. It ends when
    this process does."""
    with disk(step.log), step.log.open("w", encoding="utf-8") as file:
        file.write(f"$ {shown}\n")
        file.flush()
        if _stopping.is_set():
            raise Stopped
        process = start_guarded(command, file, environment)
        processes[process] = step
    status = process.wait()
    del processes[process]
    # a scheduler signals the step and this process, one a moment before the other
    if _stopping.wait(2.0 if status else 0):
        raise Stopped
    return status


def stop() -> None:
    """End all steps of this process: each may finish its last line, then it is killed."""
    _stopping.set()
    for process in list(processes):
        if process.stdin:
            process.stdin.close()
        process.wait()


def _notebook_error(path: Path) -> str:
    """The last error in an executed notebook; "" where there is none."""
    with suppress(OSError, ValueError, KeyError):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for output in reversed([out for cell in cells for out in cell.get("outputs", [])]):
            if output.get("output_type") == "error":
                name = output["ename"].rpartition(".")[2]
                return f"{name}: {' '.join(output['evalue'].split())}"
    return ""


def _last_line(log: Path, status: int) -> str:
    """The last line of a log, behind what the exit status means."""
    _, *lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no message"
    if last.startswith("rulerkit: "):
        return last.removeprefix("rulerkit: ")
    with suppress(ValueError):
        return f"killed by {signal.Signals(status - 128).name} (out of memory?): {last}"
    return f"exit status {status}: {last}"


if __name__ == "__main__":
    if problems := predictions(read_job(Path(sys.argv[1]))):
        remark("rulerkit: " + "; ".join(problems))
        sys.exit(2)

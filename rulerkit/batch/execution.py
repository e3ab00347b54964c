"""How one job is done on this machine: the model's answers, then its notebooks, each step a process
of its own."""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from rulerkit.batch.jobs import Job, Need, Run, fingerprint, read_record, write_record
from rulerkit.errors import UserError
from rulerkit.evaluation import ASK
from rulerkit.store import Lock, disk, wait_for

CHAIN = "RULERKIT_JOB"
"""Environment variable: the number of a scheduler's job, the same when the job starts again, or as
another one."""
PATIENCE = 2
"""After so many restarts by the scheduler without a new answer a job gives up, instead of coming
back for ever."""
_GRACE = 20.0  # seconds that a step has to end by itself
_TOGETHER = 2.0  # seconds between the end of a step and that of this process, by which both were ended from outside


class Outcome(NamedTuple):
    """How a step ended: `done`, `kept` (it was done before), `failed`, `incomplete` (a model that
    left examples unanswered, or a notebook that read less than it asked for), `missing` (its
    answers are not there, so it did not run) or `elsewhere` (another process is at it)."""

    title: str
    state: str
    says: str = ""
    log: Path | None = None
    again: str = ""


def perform(job: Job, environment: Mapping[str, str] | None = None) -> Iterator[Outcome]:
    """Do what of a job is not done yet; yields each step's outcome. Nothing that a step does
    raises.

    `environment` is added to that of the steps, such as CUDA_VISIBLE_DEVICES.
    """
    try:
        if reason := _elsewhere(job):
            yield _outcome(job, job.title, "elsewhere", reason)
        elif not is_open(job):
            yield from (_outcome(job, title, "kept") for title in titles(job))
        else:
            yield from _alone(job, environment or {})
    except Stopped:
        return  # the records say "running", the lock is gone: a later call goes on
    except UserError as error:
        yield _outcome(job, job.title, "failed", str(error), job.log)


def _elsewhere(job: Job) -> str:
    """Which other process is at it, or at the answers that it reads; "" where none is."""
    locks = {"it": job.lock} | {f"{name}'s answers": job.lock_of(name) for name in job.after}
    for what, lock in locks.items():
        if owner := wait_for(lock):
            return f"process {owner.pid or '?'} on host {owner.host} is at {what}"
    return ""


def _alone(job: Job, environment: Mapping[str, str]) -> Iterator[Outcome]:
    """The steps, under the job's lock."""
    with disk(job.stem):
        job.stem.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(Lock(job.lock))
        except UserError:  # somebody was faster, or the disk refuses
            if not (reason := _elsewhere(job)):
                raise
            yield _outcome(job, job.title, "elsewhere", reason)
            return
        local = held.enter_context(tempfile.TemporaryDirectory(prefix="rulerkit-"))
        # files of a node's own: kernels on a network home get in each other's way
        own = {"IPYTHONDIR": f"{local}/ipython", "JUPYTER_RUNTIME_DIR": f"{local}/runtime"}
        yield from _steps(job, {**os.environ, **own, **environment})


class Stopped(Exception):  # noqa: N818  (no fault of anybody's)
    """The steps of this process were ended from outside."""


def titles(job: Job) -> list[str]:
    """The steps of a job, as they are called."""
    return [*([job.title] if job.model else []), *(run.title for run in job.runs)]


def is_open(job: Job) -> bool:
    """Whether anything of a job is left to do."""
    return bool(job.model and job.unanswered(job.needs)) or not all(
        is_done(job, run) for run in job.runs
    )


def is_done(job: Job, run: Run) -> bool:
    """Whether a notebook was executed as it stands, on the answers as they are now, complete."""
    record = read_record(run.record)
    return (
        record.get("state") == "done"
        and run.output.exists()
        and record.get("source") == run.source
        and record.get("answers") == fingerprint(job.reads(run))
        and not job.unanswered(job.reads(run))
    )


def _steps(job: Job, environment: dict[str, str]) -> Iterator[Outcome]:
    starts = _started(job)
    _note(job.record, starts=starts)
    if reason := _stuck(starts):
        yield _give_up(job, reason)
        return
    if job.model:
        yield _predictions(job, starts, environment)
    for run in job.runs:
        yield _notebook(job, run, starts, environment)


def _give_up(job: Job, reason: str) -> Outcome:
    """Say of the step at which a job got nowhere that it failed."""
    asking = bool(job.model and job.unanswered(job.needs))
    run = next((run for run in job.runs if not asking and not is_done(job, run)), None)
    title, record, log = (
        (run.title, run.record, run.log) if run else (job.title, job.record, job.log)
    )
    _note(record, state="failed", error=reason)
    return _outcome(job, title, "failed", reason, log)


def _predictions(job: Job, starts: list[dict[str, Any]], environment: dict[str, str]) -> Outcome:
    """All that the model is asked, if anything is left."""
    if not job.unanswered(job.needs):
        return _outcome(job, job.title, "kept")
    about = {"model": job.model, "starts": starts, "not_run": job.not_run(job.name)}
    write_record(job.record, {"state": "running", **_here(environment), **about})
    status = _call(["predictions", str(job.file)], job.log, environment, [job.again])
    left = job.unanswered(job.needs)
    state = "failed" if status else "incomplete" if left else "done"
    error = (
        _last_line(job.log, status) if status else _missing(left, len(job.needs)) if left else ""
    )
    _note(job.record, state=state, error=error or None, ended=time.time())
    return _outcome(job, job.title, state, error, job.log)


def _notebook(
    job: Job, run: Run, starts: list[dict[str, Any]], environment: dict[str, str]
) -> Outcome:
    """One notebook by papermill, on what is kept: no notebook loads a model, so a wrong plot costs
    no GPU."""
    if is_done(job, run):
        return _outcome(job, run.title, "kept")
    needs = job.reads(run)
    missing = job.unanswered(needs)
    if missing and not any(need.have for need in needs):
        return _outcome(
            job, run.title, "missing", f"none of its {len(needs)} cells has an answer yet"
        )
    about = {"source": run.source, "answers": fingerprint(needs)}
    write_record(run.record, {"state": "running", "starts": starts, **_here(environment), **about})
    with disk(run.output):
        run.output.unlink(missing_ok=True)
    papermill = [sys.executable, "-m", "papermill", *run.command]
    said = [f"{ASK}=never {shlex.join(papermill)}"]
    status = _call(["notebook", *run.command], run.log, environment | {ASK: "never"}, said)
    state = "failed" if status else "incomplete" if missing else "done"
    says = _reason(run, status) if status else _missing(missing, len(needs)) if missing else ""
    _note(run.record, state=state, error=says or None, ended=time.time())
    return _outcome(job, run.title, state, says, run.log)


# --- restarts -------------------------------------------------------------------------------------


def _note(record: Path, **fields: Any) -> None:
    """Write fields over those of a record."""
    write_record(record, read_record(record) | fields)


def _started(job: Job) -> list[dict[str, Any]]:
    """This start and the earlier ones of the same job of a scheduler, each with how far it was by
    then."""
    me = os.environ.get(CHAIN)
    known = [
        start
        for start in read_record(job.record).get("starts", [])
        if me and start.get("job") == me
    ]
    counts = [(need.have, need.length) for need in job.needs] if job.model else []
    so_far = {
        "answers": sum(have for have, _ in counts),
        "tokens": sum(have * length for have, length in counts),
        "notebooks": sum(is_done(job, run) for run in job.runs),
    }
    return [*known, {"job": me, "time": time.time(), **so_far}]


def _stuck(starts: list[dict[str, Any]]) -> str | None:
    """Why a job that was restarted again and again without getting any further should stop."""
    if len(starts) <= PATIENCE:
        return None
    now, then = starts[-1], starts[-1 - PATIENCE]
    if (now["answers"], now["notebooks"]) != (then["answers"], then["notebooks"]):
        return None
    return (
        f"no new answer in {PATIENCE} restarts ({now['answers']} answers, as before): stopped; "
        "look at its log, raise "
        "`hours` of the model or signal_before of params/site.yaml, then submit again"
    )


# --- processes ------------------------------------------------------------------------------------

_running: set["subprocess.Popen[bytes]"] = set()
_stopping = threading.Event()


def _call(arguments: list[str], log: Path, environment: dict[str, str], said: list[str]) -> int:
    """Run a step, its messages into a log; returns its exit status. It ends when this process
    does."""
    command = [sys.executable, "-m", "rulerkit.batch.step", *arguments]
    with disk(log), log.open("w", encoding="utf-8") as file:
        file.write("".join(f"$ {line}\n" for line in said))
        file.flush()
        if _stopping.is_set():
            raise Stopped
        step = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            env=environment,
            start_new_session=True,
        )
        _running.add(step)
    try:
        status = step.wait()
    finally:
        _running.discard(step)
        if step.stdin:
            step.stdin.close()
    if _stopping.wait(
        _TOGETHER if status else 0
    ):  # a scheduler signals step and parent, one a moment before the other
        raise Stopped
    return status


def allow() -> None:
    """Steps may be started (again)."""
    _stopping.clear()


def stop() -> None:
    """End all steps of this process: each may finish its last line, then it is killed."""
    _stopping.set()
    for step in list(_running):
        with suppress(ProcessLookupError):
            os.killpg(step.pid, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    for step in list(_running):
        try:
            step.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(step.pid, signal.SIGKILL)


# --- saying ---------------------------------------------------------------------------------------


def _outcome(job: Job, title: str, state: str, says: str = "", log: Path | None = None) -> Outcome:
    return Outcome(title, state, says, log, job.again)


def _here(environment: Mapping[str, str]) -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "gpus": environment.get("CUDA_VISIBLE_DEVICES"),
        "started": time.time(),
    }


def _missing(missing: list[tuple[Need, int]], total: int) -> str:
    need, have = missing[0]
    why = f" ({need.problem})" if need.problem else ""
    return f"{len(missing)} of {total} cells are incomplete, the first is {need}: {have} of {need.wanted} examples{why}"


def _reason(run: Run, status: int) -> str:
    """The error that the executed notebook kept, else the last line of the log."""
    try:
        cells = json.loads(run.output.read_text(encoding="utf-8"))["cells"]
        errors = [
            out
            for cell in cells
            for out in cell.get("outputs", [])
            if out.get("output_type") == "error"
        ]
        if errors:
            return f"{errors[-1]['ename'].rpartition('.')[2]}: {' '.join(errors[-1]['evalue'].split())}"
    except (OSError, ValueError, KeyError):
        pass  # the notebook was not written: the log knows why
    return _last_line(run.log, status)


def _last_line(log: Path, status: int) -> str:
    lines = [
        line
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    last = lines[-1].strip() if len(lines) > 1 else "no message"
    if status < 0:
        with suppress(ValueError):
            return f"killed by {signal.Signals(-status).name} (out of memory?): {last}"
    return (
        last.removeprefix("rulerkit: ")
        if last.startswith("rulerkit: ")
        else f"exit status {status}: {last}"
    )

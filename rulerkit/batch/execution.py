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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from rulerkit.batch.jobs import Job, Status, update_record, version_of
from rulerkit.common.errors import Elsewhere, UserError
from rulerkit.common.paths import install_command
from rulerkit.common.plugins import load_plugins
from rulerkit.common.settings import JSON
from rulerkit.evaluation.evaluate import evaluate
from rulerkit.inference.model import load_model
from rulerkit.inference.process import start_guarded
from rulerkit.store.files import Lock, disk, holder

_INTERVAL = 0.2  # seconds between two looks at a process
# A job of a scheduler may have a few of the machine's.
_PROCESSORS = (
    len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
)


def execute(jobs: Sequence[Job]) -> Iterator[Status]:
    """Do jobs on this machine; yields each as it ends, a model also as it starts. Closing the
    iterator ends what runs.

    Models answer one after the other: each may take all GPUs. Then notebooks are executed on the
    answers, one for each processor, and last those that show the others. What another process does
    is left to it.
    """
    if any(job.notebook for job in jobs) and find_spec("papermill") is None:
        raise UserError(f"batches need papermill: {install_command('notebooks')}")
    stop = Event()
    for job in jobs:
        if job.model:
            if not job.is_done():
                yield Status(job, "running")
            yield perform(job, stop)

    readers = [job for job in jobs if job.notebook and not job.is_page]
    with ThreadPoolExecutor(_PROCESSORS) as pool:
        try:
            for ended in as_completed([pool.submit(perform, job, stop) for job in readers]):
                yield ended.result()
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)

    for job in jobs:
        if job.is_page:
            yield perform(job, Event())


# --- one job --------------------------------------------------------------------------------------


def perform(job: Job, stop: Event) -> Status:
    """Do a job that is not done, unless it is told to stop; a job that fails raises nothing."""
    try:
        if job.is_done():
            return Status(job, "done before")

        # What another process does is left to it, and so is what reads its answers.
        for model in job.models:
            owner = holder(model.lock)
            if owner:
                reason = f"{model.name} is locked by {owner}: run the same command again later"
                return Status(job, "locked", reason)

        with disk(job.lock):
            job.lock.parent.mkdir(parents=True, exist_ok=True)
        with Lock(job.lock):
            return _perform(job, stop)
    except Elsewhere as error:
        return Status(job, "locked", str(error))
    except UserError as error:
        return Status(job, "failed", str(error))


def _perform(job: Job, stop: Event) -> Status:
    """Ask the model, or execute a notebook on the stored answers: no notebook loads a model, so a
    wrong plot costs no GPU."""
    needs = job.needs()
    if job.notebook and not job.is_page:
        missing = job.changed()
        if needs and not any(need.have for need in needs):
            missing = missing or f"none of its {len(needs)} cells has an answer yet"
        if missing:
            return Status(job, "missing", missing)

    # The version is taken before: a checkpoint that changes meanwhile was not what answered.
    version = version_of(job.model or {})
    about: JSON = {"state": "running", "error": None, "started": time.time()}
    if job.notebook:
        with disk(job.output):
            job.output.unlink(missing_ok=True)
        about["made_from"] = job.made_from()
    else:
        about |= {"not_run": [], "left": sum(need.tokens_left for need in needs)}
    update_record(job.record, **about)
    exit_status = _run(job, stop)
    if stop.is_set():
        return Status(job, "interrupted")

    ended = _status_of_ended(job, exit_status)
    fields: JSON = {"state": ended.state, "error": ended.message or None}
    if job.model and exit_status == 0:
        # `evaluate` has compared the weights themselves.
        fields |= {"answered_by": version, "made_from": job.made_from()}
    update_record(job.record, **fields)
    return ended


def _run(job: Job, stop: Event) -> int:
    """Run the process of a job to its end, or until it is told to stop; its exit status."""
    with tempfile.TemporaryDirectory(prefix="rulerkit-") as folder:
        # On this machine's disk: Jupyter's files of several nodes clash in a network home.
        jupyter = {"IPYTHONDIR": f"{folder}/ipython", "JUPYTER_RUNTIME_DIR": folder}
        command, shown = _command(job, Path(folder, "given.json"))
        with disk(job.log), job.log.open("w", encoding="utf-8", errors="surrogateescape") as log:
            print("$", shown, file=log, flush=True)
            process = start_guarded(command, log, {**os.environ, **jupyter})
        try:
            while process.poll() is None and not stop.wait(_INTERVAL):
                pass
            if process.returncode:
                # A scheduler signals the job and this process, one a moment before the other.
                time.sleep(2)
        finally:
            process.communicate()  # closes its standard input, which ends it
    return process.returncode


def _command(job: Job, file: Path) -> tuple[list[str], str]:
    """The command that does a job, and what its log calls it. `file` tells it what to do: a command
    line can be read by every user of this machine."""
    if job.model:
        # Tasks of plug-ins can be read once their modules are loaded.
        plugins = [module for study in job.studies for module in study.plugins]
        file.write_bytes(pickle.dumps((job.record, plugins, pickle.dumps(job.studies))))
        return [sys.executable, "-m", "rulerkit.batch.execution", str(file)], job.command

    file.write_text(job.given, encoding="utf-8")
    places = [str(job.notebook), str(job.output)]
    shown = shlex.join([sys.executable, "-m", "papermill", *places, "-y", job.given])
    return [sys.executable, "-c", _PAPERMILL, *places, str(file)], shown


_PAPERMILL = """\
import json, sys
from pathlib import Path
sys.modules["rfc3987_syntax"] = None  # optional for jsonschema, and half of the start-up time
from papermill import PapermillExecutionError, execute_notebook
from traitlets.config import Config

notebook, output, given = sys.argv[1:]
# Kernels that start at one moment may be given the same port, and then they do not start: they
# talk over sockets in this job's folder, unless its name is too long for one.
kernel = {"connection_file": str(Path(given).with_name("kernel.json"))}
kernel["transport"] = "ipc" if len(given.encode()) < 90 else "tcp"
parameters = json.loads(Path(given).read_text(encoding="utf-8"))
try:
    execute_notebook(notebook, output, parameters, config=Config(KernelManager=kernel))
except PapermillExecutionError as error:
    print(error, file=sys.stderr)
    text = f"{error.ename.rpartition('.')[2]}: {error.evalue}"
    sys.exit("rulerkit: " + " ".join(text.split()))"""


def _status_of_ended(job: Job, exit_status: int) -> Status:
    """The status of a job whose process has ended."""
    if exit_status:
        last = "no message"
        text = job.log.read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines()[1:]:
            # Neither blank nor a progress bar.
            if line.strip() and "%|" not in line:
                last = line.strip()

        message = last.removeprefix("rulerkit: ")
        with suppress(ValueError):
            killed_by = signal.Signals(exit_status - 128).name
            message = f"killed by {killed_by} (out of memory?): {last}"
        return Status(job, "failed", message)

    needs = tuple(job.needs())
    unanswered = [need for need in needs if need.tokens_left]
    if not unanswered or job.is_page:
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
    """Let a model answer what the notebooks of a batch ask of it; loaded once. Says in one line
    what went wrong."""
    record, plugins, pickled = pickle.loads(file.read_bytes())
    errors = list[UserError]()
    left_out = list[tuple[int, str]]()

    def not_run(_model: str, length: int, _reason: str, task: str) -> None:
        if (length, task) not in left_out:
            left_out.append((length, task))
            update_record(record, not_run=left_out)

    load_plugins(plugins)
    studies = pickle.loads(pickled)
    try:
        model = load_model(*studies[0].models)
    except UserError as error:
        sys.exit(f"rulerkit: {error}")
    with closing(model):
        for study in studies:
            asked = replace(study, models=(model,))
            try:
                evaluate(asked, not_run=not_run, failed=errors.append)
            except UserError as error:
                # The other notebooks can still have their answers.
                errors.append(error)
    if errors:
        sys.exit("rulerkit: " + "; ".join(dict.fromkeys(map(str, errors))))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

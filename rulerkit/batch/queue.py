"""One machine's queue: jobs handed to GPUs, never two to one, several models side by side where
they fit."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue

from rulerkit.batch.execution import Outcome, allow, perform, stop
from rulerkit.batch.jobs import Job
from rulerkit.errors import UserError, remark
from rulerkit.gpus import nvidia_smi, visible_gpus
from rulerkit.models import takes_more_gpus
from rulerkit.models.server import MASTER, is_served
from rulerkit.store import Lock

_LOOK = 2.0  # seconds between two looks at GPUs that other processes hold


def gpus_here(named: str | None = None) -> list[str]:
    """The GPUs to hand out: those named (`0,1` or `0-3`), else all that are visible."""
    parts = visible_gpus() if named is None else named.split(",")
    gpus = [gpu for part in parts for gpu in _range(part.strip()) if gpu not in ("", "-1")]
    return list(dict.fromkeys(gpus))


def _range(part: str) -> list[str]:
    first, dash, last = part.partition("-")
    if dash and first.isdigit() and last.isdigit():
        low, high = sorted((int(first), int(last)))
        return [str(number) for number in range(low, high + 1)]
    return [part]


def check(jobs: Sequence[Job], gpus: Sequence[str]) -> None:
    """`UserError` where a job can never run here; on a machine without GPUs everything runs on its
    processors."""
    for job in jobs:
        needed, nodes = _needed(job)
        if nodes > 1 and MASTER not in os.environ:
            raise UserError(
                f"{job.name} is spread over {nodes} nodes: submit it to Slurm, with --slurm"
            )
        if gpus and needed > len(gpus):
            raise UserError(
                f"{job.name} needs {needed} GPUs, here are {len(gpus)} ({', '.join(gpus)}): lower "
                "tensor_parallel_size or `gpus` in its parameter file, or leave it out with -y "
                "'models: [...]'"
            )


def _needed(job: Job) -> tuple[int, int]:
    """The GPUs on each node, and the nodes, that a job takes now: none where only notebooks are
    left, or where `rulerkit serve` runs the model here."""
    with suppress(UserError):  # whatever is wrong with its answers, doing it will tell
        if not job.unanswered(job.needs) or (job.model and is_served(job.model)):
            return 0, 1
    return job.resources


def execute(
    jobs: Sequence[Job], gpus: Sequence[str] = (), side_by_side: int | None = None
) -> Iterator[Outcome]:
    """Do jobs on this machine, those that need most GPUs first; yields each step's outcome as it
    ends.

    A job that reads the answers of others waits for those that are among `jobs`. A model that can
    be served several times gets as many of the free GPUs as the waiting jobs leave. What needs no
    GPU runs beside, one processor each; where there are no GPUs at all, a model that wants one
    takes all processors. `side_by_side` sets how many jobs run at most instead.
    """
    allow()
    told = False
    needed = {job.file: _needed(job)[0] for job in jobs}
    waiting = sorted(jobs, key=lambda job: (bool(job.after), -needed[job.file]))
    places = Places(gpus, side_by_side)
    outcomes: SimpleQueue[Outcome] = SimpleQueue()
    with ThreadPoolExecutor(max(1, len(waiting))) as pool:
        running: dict[Future[None], Job] = {}
        try:
            while waiting or running:
                unfinished = {job.name for job in [*waiting, *running.values()] if job.model}
                for job in [each for each in waiting if not unfinished & set(each.after)]:
                    wanted = sum(needed[each.file] for each in waiting)
                    if (environment := places.take(job, needed[job.file], wanted)) is not None:
                        waiting.remove(job)
                        running[pool.submit(_perform, job, environment, outcomes)] = job
                if not running:
                    if not told:
                        remark(f"waiting: other processes hold the GPUs {', '.join(gpus)}")
                    told = True
                    time.sleep(_LOOK)
                for future in wait(running, timeout=_LOOK, return_when=FIRST_COMPLETED).done:
                    job = running.pop(future)
                    places.give_back(job)
                    future.result()
                while not outcomes.empty():
                    yield outcomes.get()
        finally:
            if waiting or running:  # interrupted
                stop()
            places.close()


def _perform(job: Job, environment: Mapping[str, str], outcomes: "SimpleQueue[Outcome]") -> None:
    for outcome in perform(job, environment):
        outcomes.put(outcome)


class Places:
    """The GPUs and processors of this machine, and who has them."""

    def __init__(self, gpus: Sequence[str], side_by_side: int | None) -> None:
        self.free = list(gpus)
        self.none_here = not gpus
        self.limited = side_by_side is not None
        self.slots = side_by_side or _processors()
        self.taken: dict[Path, tuple[list[str], int]] = {}
        self.locks: dict[str, Lock] = {}

    def take(self, job: Job, needed: int, wanted: int) -> dict[str, str] | None:
        """The environment that gives a job its GPUs; None where it has to wait. `wanted` are the
        GPUs that all waiting jobs need together."""
        slots = self._slots(needed)
        used = sum(each for _, each in self.taken.values())
        if used and used + slots > self.slots:
            return None
        replicas = (
            len(self.free) // wanted if needed and job.model and takes_more_gpus(job.model) else 1
        )
        gpus = [] if self.none_here else self.hold(needed, max(1, replicas))
        if gpus is None:
            return None
        self.taken[job.file] = gpus, slots
        return {} if self.none_here else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}

    def _slots(self, needed: int) -> int:
        """How many places a job takes: none where GPUs limit it, all where it wants GPUs that are
        not here."""
        if self.limited or not needed:
            return 1
        return self.slots if self.none_here else 0

    def hold(self, needed: int, replicas: int = 1) -> list[str] | None:
        """So many free GPUs, as many times as are wanted and to be had, held against other
        processes of this machine; None where there are too few."""
        got: list[str] = []
        for gpu in [gpu for gpu in self.free if len(self.free) >= needed]:
            if len(got) < needed * replicas and self._hold(gpu):
                got.append(gpu)
        enough = len(got) - len(got) % needed if needed else 0
        for gpu in got[enough:]:
            self._release(gpu)
        self.free = [gpu for gpu in self.free if gpu not in got[:enough]]
        return got[:enough] if enough >= needed else None

    def _hold(self, gpu: str) -> bool:
        """Another batch on this machine may use the same GPU. A scheduler's GPUs are ours, whatever
        their numbers."""
        if "SLURM_JOB_ID" in os.environ:
            return True
        lock = Lock(_gpu_file(gpu))
        try:
            lock.__enter__()
        except UserError:
            return False
        self.locks[gpu] = lock
        return True

    def _release(self, gpu: str) -> None:
        if lock := self.locks.pop(gpu, None):
            lock.__exit__()

    def give_back(self, job: Job) -> None:
        """A job has ended."""
        gpus, _ = self.taken.pop(job.file)
        for gpu in gpus:
            self._release(gpu)
        self.free += gpus

    def close(self) -> None:
        """Nothing is held any longer."""
        for gpu in list(self.locks):
            self._release(gpu)


def _gpu_file(gpu: str) -> Path:
    """The lock of a GPU, in a folder of this machine that all users may write to; by its UUID,
    where the driver tells, since containers number theirs anew."""
    folder = Path(tempfile.gettempdir()) / "rulerkit-gpus"
    with suppress(FileExistsError):
        folder.mkdir()
    try:
        handle = os.open(folder, os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise UserError(
            f"{folder} is a link or no folder, and holds no locks of GPUs: remove it, or set "
            "TMPDIR to another folder"
        ) from error
    try:
        if os.fstat(handle).st_uid == os.getuid():
            os.fchmod(
                handle, 0o777
            )  # not sticky: anybody may take over the lock of somebody's dead process
    finally:
        os.close(handle)
    return folder / f"{_uuids().get(gpu, gpu)}.lock"


def _processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _uuids() -> dict[str, str]:
    """UUIDs by number, of the GPUs that nvidia-smi lists."""
    lines = [line.split(", ") for line in nvidia_smi("index,uuid")]
    return {line[0]: line[1] for line in lines if len(line) == 2}

"""Slurm: one plain sbatch for each job. Files are the only state; what Slurm knows is asked for,
never relied upon.

Three rules decide whether a pre-empted job comes back: papermill runs in the batch script itself,
never under srun (a step that is signalled makes the whole job fail); success is a file that is
written last, never a state of Slurm; answers are appended one by one to files that no scheduler
owns.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count, islice
from pathlib import Path

from rulerkit.batch.execution import CHAIN, is_open
from rulerkit.batch.jobs import Job, ending, read_record
from rulerkit.errors import UserError
from rulerkit.models.server import MASTER
from rulerkit.paths import home
from rulerkit.settings import Site
from rulerkit.store import Owner, disk, holder, write_whole

_MOST_NODES = 100  # whole nodes of one batch that are looked for in the queue


@dataclass(frozen=True)
class Submission:
    """One sbatch: its name, its script, what it does and after whom."""

    name: str
    script: Path
    jobs: tuple[Job, ...]
    after: tuple[str, ...]
    """Names of submissions that must have ended, however they ended."""
    options: tuple[str, ...]

    @property
    def log(self) -> Path:
        """Where Slurm writes what the script says."""
        return self.script.with_suffix(".out")

    @property
    def nodes(self) -> int:
        """How many nodes it takes."""
        return max(job.resources[1] for job in self.jobs)


def submissions(jobs: Sequence[Job], site: Site) -> list[Submission]:
    """What to submit for the jobs that are not done: one for each, or, where nodes are taken whole,
    as many as nodes are needed at once, each of which does whatever job is free.

    Errors: `UserError` where a model needs more GPUs than a whole node has.
    """
    todo = [job for job in jobs if is_open(job)]
    models = [job for job in todo if job.model]
    sharing = [
        job for job in models if site.whole_nodes and job.resources[0] and job.resources[1] == 1
    ]
    nodes, running = _whole_nodes(sharing, site)
    alone = [_submission(job, site, {}) for job in models if job not in sharing]
    names = {
        job.name: [*(each.name for each in nodes if job in each.jobs), *running] for job in sharing
    }
    names |= {each.jobs[0].name: [each.name] for each in alone}
    return nodes + alone + [_submission(job, site, names) for job in todo if not job.model]


def _submission(job: Job, site: Site, names: Mapping[str, Sequence[str]]) -> Submission:
    after = tuple(dict.fromkeys(name for model in job.after for name in names.get(model, ())))
    options = (*_common(site, _hours(job, site)), *_places(site, *job.resources))
    return Submission(_name(job.stem), job.file.with_suffix(".sh"), (job,), after, options)


def _whole_nodes(jobs: Sequence[Job], site: Site) -> tuple[list[Submission], list[str]]:
    """As many as are needed for all jobs at once that no running one is at, each of which hands its
    GPUs to those that no other has begun; and the names of those that run."""
    if not jobs:
        return [], []
    per_node, queue = site.whole_nodes or 1, queued()
    if large := next((job for job in jobs if job.resources[0] > per_node), None):
        raise UserError(
            f"{large.name} needs {large.resources[0]} GPUs, a node has {per_node} (whole_nodes of "
            "params/site.yaml): "
            "lower tensor_parallel_size or `gpus` in its parameter file, or spread it over `nodes`"
        )
    running = {
        n: each.number for n, each in _nodes_in(queue, jobs[0]).items() if each.state == "RUNNING"
    }
    holders = {job.name: holder(job.lock) or Owner() for job in jobs}
    free = tuple(job for job in jobs if holders[job.name].job not in running.values())
    options = (*_common(site, max(_hours(job, site) for job in jobs)), *_places(site, per_node, 1))
    stems = [
        _node(jobs[0], n)
        for n in islice((n for n in count(1) if n not in running), _nodes_for(free, per_node))
    ]
    planned = [Submission(_name(stem), ending(stem, ".sh"), free, (), options) for stem in stems]
    return planned, [_name(_node(jobs[0], n)) for n in running]


def _nodes_for(jobs: Sequence[Job], per_node: int) -> int:
    """How many nodes run all at once: each model, largest first, on the first node with room."""
    free: list[int] = []
    for gpus in sorted((job.resources[0] for job in jobs), reverse=True):
        place = next((place for place, left in enumerate(free) if left >= gpus), len(free))
        free[place : place + 1] = [(free[place] if place < len(free) else per_node) - gpus]
    return len(free)


def _node(job: Job, number: int) -> Path:
    """What a whole node's script and log are called, but for the suffix."""
    return job.file.parents[1] / "all" / f"{job.file.name.removesuffix('.job.yaml')}-node{number}"


def _hours(job: Job, site: Site) -> float:
    return float((job.model or {}).get("hours", site.hours))


def _common(site: Site, hours: float) -> list[str]:
    minutes = max(1, round(60 * hours))
    limit = f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"
    before = min(site.signal_before, 30 * minutes)  # a job that goes back at once gets nowhere
    named = [f"--account={site.account}"] if site.account else []
    return [f"--time={limit}", f"--signal=B:USR1@{before}", *named, *site.options]


def _places(site: Site, gpus: int, nodes: int) -> list[str]:
    partition = [f"--partition={site.partition}"] if site.partition else []
    many = [f"--nodes={nodes}", "--ntasks-per-node=1"]
    if not gpus:
        return [*([] if site.cpu_options else partition), *many, *site.cpu_options]
    whole = ["--exclusive"] if site.whole_nodes else []
    return [
        *partition,
        *many,
        *(option.replace("{gpus}", str(gpus)) for option in site.gpu_options),
        *whole,
    ]


def _name(stem: Path) -> str:
    """What Slurm calls a job: the same for the same files, so that `singleton` keeps two of them
    apart."""
    place = sha256(str(stem).encode()).hexdigest()[:6]
    subject = stem.parent.name if stem.name == "predictions" else stem.name
    return re.sub(
        r"[^\w.-]", "_", f"rulerkit-{stem.parents[1].name}-{subject}-{place}", flags=re.ASCII
    )


# --- the batch script -----------------------------------------------------------------------------


def script(each: Submission, site: Site) -> str:
    """The batch script."""
    python = f"{site.launcher} {site.python}".strip()
    log = str(each.log).replace("%", "%%")  # of which Slurm would make job numbers and names
    options = [
        f"--job-name={each.name}",
        f"--output={shlex.quote(log)}",
        "--open-mode=append",
        "--requeue",
    ]
    again = f"sbatch --dependency=singleton {shlex.quote(str(each.script))}"
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in (*options, *each.options)),
        "# The time is nearly up, or an urgent job wants the place: back into the queue, to go on "
        "from there. Where that",
        "# is not allowed, as a new job, which is told whose work it goes on with.",
        f'export {CHAIN}="${{1:-$SLURM_JOB_ID}}"',
        "go_back() {",
        "  trap : USR1",
        '  scontrol requeue "$SLURM_JOB_ID" ||',
        f'    env -u SLURM_RESTART_COUNT -u CUDA_VISIBLE_DEVICES {again} "${CHAIN}"',
        "}",
        "trap go_back USR1",
        f"cd {shlex.quote(str(home()))} || exit 1",
        f"export RULERKIT_HOME={shlex.quote(str(home()))}",
        *_environment(site),
        *site.setup,
        *_followers(each, python),
        f"{python} -m rulerkit run {shlex.join(str(job.file) for job in each.jobs)} &",
        "wait $!; status=$?",
        "# A trap ends the wait, not the work.",
        "while [ $status -gt 128 ] && kill -0 $! 2>/dev/null; do wait $!; status=$?; done",
        "exit $status",
    ]
    return "\n".join(lines) + "\n"


def _followers(each: Submission, python: str) -> Iterator[str]:
    """The other nodes of a model that is spread over several: each runs its share of vLLM's server
    until the job ends."""
    if (others := each.nodes - 1) > 0:
        yield "# The other nodes run their shares of the server on this one."
        yield f'export {MASTER}="${{{MASTER}:-$(hostname):$((20000 + SLURM_JOB_ID % 10000))}}"'
        serve = f"{python} -m rulerkit serve {shlex.quote(str(each.jobs[0].file))} --node $((SLURM_PROCID + 1))"
        srun = f"srun --overlap --cpu-bind=none --nodes={others} --ntasks={others} --relative=1"
        yield f"{srun} bash -c {shlex.quote(f'exec {serve}')} &"


def _environment(site: Site) -> Iterator[str]:
    from rulerkit.offline import offline

    if site.offline:
        yield from (f"export {name}={shlex.quote(value)}" for name, value in offline().items())


# --- Slurm's queue --------------------------------------------------------------------------------


def submit(planned: Sequence[Submission], site: Site) -> Iterator[tuple[Submission, str, bool]]:
    """Submit each; yields it with the number of its job, and whether that was in the queue already.

    Errors: `UserError` where sbatch is not there or refuses; what was submitted before it stays.
    """
    if not shutil.which("sbatch"):
        raise UserError(
            "sbatch is not here: run this on a login node of the cluster, or leave out --slurm"
        )
    there = queued()
    ids = {name: each.number for name, each in there.items()}
    for each in planned:
        before = each.name in there
        if (
            not before or there[each.name].state == "PENDING"
        ):  # it has not begun: the batch file may say better now
            for job in each.jobs:
                job.save()
        if not before:
            with disk(each.script):
                each.script.parent.mkdir(parents=True, exist_ok=True)
            write_whole(each.script, script(each, site))
            said = _slurm("sbatch", "--parsable", _dependency(each, ids), str(each.script))
            ids[each.name] = said.strip().partition(";")[0]
        elif (
            each.after and there[each.name].state == "PENDING"
        ):  # those that it waits for may be new ones
            with suppress(UserError):  # where this is not allowed, it will tell what is incomplete
                _slurm(
                    "scontrol",
                    "update",
                    f"JobId={ids[each.name]}",
                    _dependency(each, ids).removeprefix("--"),
                )
        yield each, ids[each.name], before


def _dependency(each: Submission, ids: Mapping[str, str]) -> str:
    after = [ids[name] for name in each.after if name in ids]
    return ",".join(["--dependency=singleton", *([f"afterany:{':'.join(after)}"] if after else [])])


@dataclass(frozen=True)
class Queued:
    """A job in Slurm's queue."""

    number: str
    state: str
    """Slurm's word, such as PENDING or RUNNING."""
    reason: str
    shared: bool = False
    """Whether it takes a whole node, for whatever model is free."""


def queued() -> dict[str, Queued]:
    """This user's jobs in the queue, by name; {} where there is no Slurm, or it does not answer."""
    if not shutil.which("squeue"):
        return {}
    try:
        said = _slurm("squeue", "--noheader", "--all", "--me", "--format=%A|%T|%r|%j")
    except UserError:
        return {}
    lines = [line.split("|", 3) for line in said.splitlines()]
    lines.sort(
        key=lambda line: line[1] == "RUNNING"
    )  # of two with one name the one that runs is told
    return {line[3]: Queued(line[0], line[1], line[2]) for line in lines if len(line) == 4}


def find(job: Job, among: Mapping[str, Queued]) -> Queued | None:
    """Where in the queue a job of ours is: by itself, or to be done by one that takes a whole
    node."""
    if (own := among.get(_name(job.stem))) or not job.model:
        return own
    nodes = _nodes_in(among, job).values()
    failed = read_record(job.record).get("state") in (
        "failed",
        "incomplete",
    )  # those that run have tried it
    return next(
        (replace(each, shared=True) for each in nodes if not (failed and each.state == "RUNNING")),
        None,
    )


def _nodes_in(among: Mapping[str, Queued], job: Job) -> dict[int, Queued]:
    """The whole nodes of a job's batch that are in the queue, by their number."""
    return {
        n: among[name] for n in range(1, _MOST_NODES) if (name := _name(_node(job, n))) in among
    }


def _slurm(*command: str) -> str:
    """What a command of Slurm says. A job's own settings must not leak into the jobs that it
    submits."""
    own = ("SBATCH_", "SLURM_", "SQUEUE_")
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(own) or k == "SLURM_CONF"
    }
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=120, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"{command[0]} did not answer ({error}): is Slurm up? `sinfo` tells"
        ) from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise UserError(f"{shlex.join(command)}: {said}; mend params/site.yaml, then submit again")
    return done.stdout

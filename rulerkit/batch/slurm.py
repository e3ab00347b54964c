"""Slurm: one plain sbatch for each job. Files are the only state; what the queue says is asked for,
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
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from rulerkit.batch import Job, add_suffix, read_record
from rulerkit.batch.execution import CHAIN
from rulerkit.errors import UserError
from rulerkit.models.server import MASTER
from rulerkit.paths import home
from rulerkit.settings import Site
from rulerkit.store import holder, write_whole

_MOST_NODES = 100  # whole nodes of one batch, at most


@dataclass(frozen=True)
class Submission:
    """One sbatch: its name, its script, its jobs and the submissions it waits for."""

    name: str
    script: Path
    jobs: tuple[Job, ...]
    options: tuple[str, ...]
    after: tuple[str, ...] = ()
    """Names of submissions that must have ended, however they ended."""

    @property
    def log(self) -> Path:
        """Where Slurm writes the output of the script."""
        return self.script.with_suffix(".out")


def submissions(jobs: Sequence[Job], site: Site) -> list[Submission]:
    """What to submit for the jobs that are not done: one for each, or, where nodes are taken whole,
    as many as nodes are needed at once, each of which does any job that is free.

    Errors: `UserError` where a model needs more GPUs than a whole node has.
    """
    todo = [job for job in jobs if job.is_open]
    sharing = [
        job for job in todo if site.whole_nodes and job.resources[0] and job.resources[1] == 1
    ]
    planned, running = _whole_nodes(sharing, site)
    shared = [node.name for node in planned] + running
    names = {job.name: shared for job in sharing}
    for job in todo:  # the models come first
        if job not in sharing:
            after = dict.fromkeys(name for model in job.after for name in names.get(model, []))
            options = _options(site, *job.resources, _hours(job, site))
            script = job.file.with_suffix(".sh")
            planned.append(Submission(_name(job.stem), script, (job,), options, tuple(after)))
            if job.model:
                names[job.name] = [_name(job.stem)]
    return planned


def _whole_nodes(jobs: Sequence[Job], site: Site) -> tuple[list[Submission], list[str]]:
    """The whole nodes to submit for the jobs that no running node is at, and the names of those
    that run."""
    if not jobs:
        return [], []
    per_node = site.whole_nodes or 1
    running = {n: entry for n, entry in _nodes(jobs[0], queue()).items() if entry.runs}
    numbers = {entry.number for entry in running.values()}
    owners = {job.name: holder(job.lock) for job in jobs}
    waiting = tuple(job for job in jobs if getattr(owners[job.name], "job", "") not in numbers)
    free: list[int] = []  # GPUs of each further node: each model, largest first, on the first fit
    for job in sorted(waiting, key=lambda job: -job.resources[0]):
        gpus = job.resources[0]
        if gpus > per_node:
            raise UserError(
                f"{job.name} needs {gpus} GPUs, a node has {per_node} (whole_nodes of "
                "params/site.yaml): lower tensor_parallel_size or `gpus` in its parameter file, or "
                "spread it over `nodes`"
            )
        place = next((n for n, left in enumerate(free) if left >= gpus), None)
        if place is None:
            free.append(per_node - gpus)
        else:
            free[place] -= gpus
    unused = [n for n in range(1, _MOST_NODES) if n not in running]
    stems = [_node(jobs[0], n) for n in unused[: len(free)]]
    options = _options(site, per_node, 1, max(_hours(job, site) for job in jobs))
    planned = [Submission(_name(s), add_suffix(s, ".sh"), waiting, options) for s in stems]
    return planned, [_name(_node(jobs[0], n)) for n in running]


def _node(job: Job, number: int) -> Path:
    """The path of a whole node's script and log, without the suffix."""
    return job.file.parents[1] / "all" / f"{job.file.name.removesuffix('.job.yaml')}-node{number}"


def _hours(job: Job, site: Site) -> float:
    return float((job.model or {}).get("hours", site.hours))


def _options(site: Site, gpus: int, nodes: int, hours: float) -> tuple[str, ...]:
    minutes = max(1, round(60 * hours))
    before = min(site.signal_before, 30 * minutes)  # a job that is requeued at once gets nowhere
    options = [
        f"--time={minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00",
        f"--signal=B:USR1@{before}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
    ]
    options += [f"--account={site.account}"] if site.account else []
    if site.partition and (gpus or not site.cpu_options):
        options.append(f"--partition={site.partition}")
    options += site.options
    if not gpus:
        return (*options, *site.cpu_options)
    options += [option.replace("{gpus}", str(gpus)) for option in site.gpu_options]
    return (*options, *(["--exclusive"] if site.whole_nodes else []))


def _name(stem: Path) -> str:
    """What Slurm calls a job: the same for the same files, so that `singleton` keeps two of them
    apart."""
    place = sha256(str(stem).encode()).hexdigest()[:6]
    subject = stem.parent.name if stem.name == "predictions" else stem.name
    name = f"rulerkit-{stem.parents[1].name}-{subject}-{place}"
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)


# --- the batch script -----------------------------------------------------------------------------

_SCRIPT = """\
#!/bin/bash
{options}
# The time is nearly up, or an urgent job wants the place: back into the queue, to resume from there.
# Where that is not allowed, as a new job, which is told whose work it resumes.
export {chain}="${{1:-$SLURM_JOB_ID}}"
requeue() {{
  trap : USR1
  scontrol requeue "$SLURM_JOB_ID" ||
    env -u SLURM_RESTART_COUNT -u CUDA_VISIBLE_DEVICES sbatch --dependency=singleton {script} "${chain}"
}}
trap requeue USR1
cd {home} || exit 1
export RULERKIT_HOME={home}
{setup}
{python} -m rulerkit run {files} &
wait $!; status=$?
# A trap ends the wait, not the work.
while [ $status -gt 128 ] && kill -0 $! 2>/dev/null; do wait $!; status=$?; done
exit $status
"""

_OTHER_NODES = """\
# The other nodes run their shares of the server on this one.
export {master}="${{{master}:-$(hostname):$((20000 + SLURM_JOB_ID % 10000))}}"
srun --overlap --cpu-bind=none --nodes={others} --ntasks={others} --relative=1 bash -c {serve} &"""


def script(submission: Submission, site: Site) -> str:
    """The batch script."""
    from rulerkit.offline import offline

    job = submission.jobs[0]
    python = f"{site.launcher} {site.python}".strip()
    log = str(submission.log).replace("%", "%%")  # Slurm replaces %j by the number of the job
    options = [
        f"--job-name={submission.name}",
        f"--output={shlex.quote(log)}",
        "--open-mode=append",
        "--requeue",
        *submission.options,
    ]
    variables = offline() if site.offline else {}
    setup = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    setup += site.setup
    if others := job.resources[1] - 1:
        rank = "$((SLURM_PROCID + 1))"
        serve = f"exec {python} -m rulerkit serve {shlex.quote(str(job.file))} --node {rank}"
        setup.append(_OTHER_NODES.format(master=MASTER, others=others, serve=shlex.quote(serve)))
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH {option}" for option in options),
        chain=CHAIN,
        script=shlex.quote(str(submission.script)),
        home=shlex.quote(str(home())),
        setup="\n".join(setup),
        python=python,
        files=shlex.join(str(job.file) for job in submission.jobs),
    )


# --- Slurm's queue --------------------------------------------------------------------------------


class Queued(NamedTuple):
    """A job in Slurm's queue."""

    number: str
    state: str
    """Slurm's word, such as PENDING or RUNNING."""
    reason: str

    @property
    def runs(self) -> bool:
        return self.state == "RUNNING"


def submit(planned: Sequence[Submission], site: Site) -> Iterator[tuple[Submission, str, bool]]:
    """Submit each; yields it with the number of its job, and whether that was in the queue already.

    Errors: `UserError` where sbatch is not there or refuses; what was submitted before it stays.
    """
    if not shutil.which("sbatch"):
        raise UserError(
            "sbatch is not here: run this on a login node of the cluster, or leave out --slurm"
        )
    in_queue = queue()
    numbers = {name: entry.number for name, entry in in_queue.items()}
    for each in planned:
        there = in_queue.get(each.name)
        after = [numbers[name] for name in each.after if name in numbers]
        dependency = "singleton" + (f",afterany:{':'.join(after)}" if after else "")
        if not there or there.state == "PENDING":  # the batch file may have changed since
            for job in each.jobs:
                job.save()
        if not there:
            write_whole(each.script, script(each, site))
            said = _slurm("sbatch", "--parsable", f"--dependency={dependency}", str(each.script))
            numbers[each.name] = said.strip().partition(";")[0]
        elif after and there.state == "PENDING":  # it may have to wait for new jobs
            with suppress(UserError):  # where this is not allowed, its notebook tells what it lacks
                job_id = f"JobId={there.number}"
                _slurm("scontrol", "update", job_id, f"dependency={dependency}")
        yield each, numbers[each.name], bool(there)


def queue() -> dict[str, Queued]:
    """This user's jobs in the queue, by name; {} where there is no Slurm, or it does not answer."""
    if not shutil.which("squeue"):
        return {}
    with suppress(UserError):
        lines = _slurm("squeue", "--noheader", "--all", "--me", "--format=%A|%T|%r|%j").splitlines()
        entries = [line.split("|", 3) for line in lines if line.count("|") >= 3]
        entries.sort(key=lambda entry: entry[1] == "RUNNING")  # of two with one name, this counts
        return {name: Queued(number, state, why) for number, state, why, name in entries}
    return {}


def find(job: Job, in_queue: Mapping[str, Queued]) -> tuple[Queued | None, bool]:
    """The entry of the queue that does a job, and whether that is a whole node, which does other
    jobs too."""
    if (entry := in_queue.get(_name(job.stem))) or not job.model:
        return entry, False
    tried = read_record(job.record).get("state") in ("failed", "incomplete")
    nodes = _nodes(job, in_queue).values()  # one that runs does not try a job again
    return next((node for node in nodes if not (tried and node.runs)), None), True


def _nodes(job: Job, in_queue: Mapping[str, Queued]) -> dict[int, Queued]:
    """The whole nodes of a job's batch that are in the queue, by their number."""
    names = {n: _name(_node(job, n)) for n in range(1, _MOST_NODES)}
    return {n: in_queue[name] for n, name in names.items() if name in in_queue}


def _slurm(*command: str) -> str:
    """The output of a command of Slurm, without the settings of a job in which it may run."""
    of_job = ("SBATCH_", "SLURM_", "SQUEUE_")
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(of_job) or k == "SLURM_CONF"
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
        reason = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise UserError(
            f"{shlex.join(command)}: {reason}; mend params/site.yaml, then submit again"
        )
    return done.stdout

"""Slurm: one plain sbatch for each job. Files are the only state; what Slurm knows is asked for, never relied upon.

Three rules decide whether a pre-empted job comes back: papermill runs in the batch script itself, never under srun (a
step that is signalled makes the whole job fail); success is a file that is written last, never a state of Slurm; answers
are appended one by one to files that no scheduler owns.
"""

import getpass
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

from rulerkit.batch.execution import is_open
from rulerkit.batch.jobs import Job
from rulerkit.errors import UserError, unknown
from rulerkit.inference.store import disk, write_whole
from rulerkit.params import read_yaml
from rulerkit.paths import home


@dataclass(frozen=True)
class Site:
    """What a lab says once of its cluster, in params/site.yaml; every key may be left out."""

    partition: str | None = None
    """Where jobs with GPUs go."""
    account: str | None = None
    options: tuple[str, ...] = ()
    """Further options of sbatch for every job, such as --qos=long or --constraint=a100."""
    gpu_options: tuple[str, ...] = ("--gres=gpu:{gpus}",)
    """How GPUs are asked for; {gpus} is their number on each node, such as in --gpus-per-node=h100:{gpus}."""
    cpu_options: tuple[str, ...] = ()
    """Options for jobs without GPUs, such as --partition=cpu; they win over partition."""
    whole_nodes: int | None = None
    """The number of GPUs of a node, where jobs must take whole nodes: each job then shares its node out among models."""
    hours: float = 24.0
    """The time limit of models that do not name their own."""
    signal_before: int = 300
    """Seconds before the time limit at which a job goes back into the queue."""
    setup: tuple[str, ...] = ()
    """Lines of shell before anything else, such as `module load cuda` or `export NCCL_SOCKET_IFNAME=ib0`."""
    launcher: str = ""
    """A command that goes before python, such as `apptainer exec --nv rulerkit.sif`."""
    python: str = sys.executable
    """The interpreter, as the nodes see it."""
    offline: bool = True
    """Whether jobs must do without a network; `rulerkit fetch -f BATCH.yaml` gets what they need."""


_READ: dict[str, tuple[Any, str]] = {
    "partition": (str, "a name"),
    "account": (str, "a name"),
    "launcher": (str, "a command"),
    "python": (str, "a command"),
    "hours": ((int, float), "a number of hours"),
    "signal_before": (int, "a whole number of seconds"),
    "whole_nodes": (int, "the number of GPUs of a node"),
    "offline": (bool, "true or false"),
    **dict.fromkeys(("options", "gpu_options", "cpu_options", "setup"), (list, "a list of texts")),
}


def read_site(path: Path | None = None) -> Site:
    """The site file; without one, plain sbatch with the cluster's defaults."""
    named = path or home() / "params" / "site.yaml"
    if path is None and not named.exists():
        return Site()
    content = read_yaml(named)
    for key, value in content.items():
        if key not in _READ:
            raise unknown(f"key in {named}", key, [field.name for field in fields(Site)])
        if value is None:
            continue
        kind, says = _READ[key]
        texts = all(isinstance(each, str) for each in value) if isinstance(value, list) else True
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool) or not texts:
            raise UserError(f"{key} in {named} is {value!r}: it must be {says}")
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in content.items() if value is not None
    }
    return Site(**given)


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


def submissions(jobs: Sequence[Job], site: Site) -> list[Submission]:
    """What to submit for the jobs that are not done: one for each, or, where nodes are taken whole, as many as nodes are
    needed at once, each of which does whatever job is free."""
    todo = [job for job in jobs if is_open(job)]
    models = [job for job in todo if job.model]
    if site.whole_nodes and any(job.resources[0] for job in models):
        first = _whole_nodes([job for job in models if job.resources[1] == 1], site)
        first += [_submission(job, site, {}) for job in models if job.resources[1] > 1]
    else:
        first = [_submission(job, site, {}) for job in models]
    by_model = {job.name: [each.name for each in first if job in each.jobs] for job in models}
    return first + [_submission(job, site, by_model) for job in todo if not job.model]


def _submission(job: Job, site: Site, by_model: Mapping[str, Sequence[str]]) -> Submission:
    gpus, nodes = job.resources
    hours = float((job.model or {}).get("hours", site.hours))
    options = (*_common(site, hours), *_places(site, gpus, nodes))
    after = tuple(dict.fromkeys(name for model in job.after for name in by_model.get(model, ())))
    return Submission(_name(job.stem), job.file.with_suffix(".sh"), (job,), after, options)


def _whole_nodes(jobs: Sequence[Job], site: Site) -> list[Submission]:
    """As many as are needed to run all at once; each hands its GPUs to the jobs that no other has begun."""
    per_node = site.whole_nodes or 1
    needed = -(-sum(max(1, job.resources[0]) for job in jobs) // per_node)
    folder = jobs[0].file.parents[1] / "all"
    options = (*_common(site, site.hours), *_places(site, per_node, 1), "--exclusive")
    return [
        Submission(_name(folder / f"node{n}"), folder / f"node{n}.sh", tuple(jobs), (), options)
        for n in range(1, needed + 1)
    ]


def _common(site: Site, hours: float) -> list[str]:
    minutes = max(1, round(60 * hours))
    limit = f"{minutes // 1440}-{minutes // 60 % 24:02}:{minutes % 60:02}:00"
    named = [f"--{name}={value}" for name in ("account",) if (value := getattr(site, name))]
    return [f"--time={limit}", f"--signal=B:USR1@{site.signal_before}", *named, *site.options]


def _places(site: Site, gpus: int, nodes: int) -> list[str]:
    partition = [f"--partition={site.partition}"] if site.partition else []
    many = [f"--nodes={nodes}", "--ntasks-per-node=1"]
    if gpus:
        return [*partition, *many, *(option.format(gpus=gpus) for option in site.gpu_options)]
    return [*([] if site.cpu_options else partition), *many, *site.cpu_options]


def _name(stem: Path) -> str:
    """What Slurm calls a job: the same for the same files, so that `singleton` keeps two of them apart."""
    place = sha256(str(stem).encode()).hexdigest()[:6]
    subject = stem.parent.name if stem.name == "predictions" else stem.name
    return f"rulerkit-{stem.parents[1].name}-{subject}-{place}"


def script(each: Submission, site: Site) -> str:
    """The batch script."""
    command = [*shlex.split(site.launcher), site.python, "-m", "rulerkit", "run", *(str(job.file) for job in each.jobs)]
    options = [
        f"--job-name={each.name}",
        f"--output={each.log}",
        "--open-mode=append",
        "--requeue",
        *each.options,
    ]
    chain = "--export=ALL,RULERKIT_JOB=${RULERKIT_JOB:-$SLURM_JOB_ID}"
    again = f'sbatch --dependency=singleton "{chain}" {shlex.quote(str(each.script))}'
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        f"cd {shlex.quote(str(home()))} || exit 1",
        f"export RULERKIT_HOME={shlex.quote(str(home()))}",
        *_environment(site),
        *site.setup,
        "# The time is nearly up, or an urgent job wants the place: back into the queue, to go on from there.",
        f"trap 'scontrol requeue \"$SLURM_JOB_ID\" || {again}' USR1",
        f"{shlex.join(command)} &",
        "wait $!; status=$?",
        "# A trap ends the wait, not the work.",
        "while [ $status -gt 128 ] && kill -0 $! 2>/dev/null; do wait $!; status=$?; done",
        "exit $status",
    ]
    return "\n".join(lines) + "\n"


def _environment(site: Site) -> Iterator[str]:
    from rulerkit.models.offline import offline

    if site.offline:
        yield from (f"export {name}={shlex.quote(value)}" for name, value in offline().items())


def submit(planned: Sequence[Submission], site: Site) -> Iterator[tuple[Submission, str, bool]]:
    """Submit each; yields it with the number of its job, and whether that was in the queue already.

    Errors: `UserError` where sbatch is not there or refuses; what was submitted before it stays.
    """
    if not shutil.which("sbatch"):
        raise UserError("sbatch is not here: run this on a login node of the cluster, or leave out --slurm")
    there, ids = queued(), dict[str, str]()
    for each in planned:
        if each.name in there:
            ids[each.name] = there[each.name].number
            yield each, ids[each.name], True
            continue
        for job in each.jobs:
            job.save()
        with disk(each.script):
            each.script.parent.mkdir(parents=True, exist_ok=True)
        write_whole(each.script, script(each, site))
        after = [ids[name] for name in each.after if name in ids]
        depends = ",".join(["singleton", *([f"afterany:{':'.join(after)}"] if after else [])])
        said = _slurm("sbatch", "--parsable", f"--dependency={depends}", str(each.script))
        ids[each.name] = said.strip().partition(";")[0]
        yield each, ids[each.name], False


@dataclass(frozen=True)
class Queued:
    """A job in Slurm's queue."""

    number: str
    state: str
    """Slurm's word, such as PENDING or RUNNING."""
    reason: str


def queued() -> dict[str, Queued]:
    """This user's jobs in the queue, by name; {} where there is no Slurm, or it does not answer."""
    if not shutil.which("squeue"):
        return {}
    try:
        said = _slurm("squeue", "--noheader", f"--user={getpass.getuser()}", "--format=%A|%j|%T|%r")
    except UserError:
        return {}
    lines = [line.split("|") for line in said.splitlines()]
    return {line[1]: Queued(line[0], line[2], line[3]) for line in lines if len(line) == 4}


def find(job: Job, among: Mapping[str, Queued]) -> Queued | None:
    """Where in the queue a job of ours is: by itself, or within one that takes whole nodes."""
    nodes = f"rulerkit-{job.file.parents[1].name}-node"
    return among.get(_name(job.stem)) or next((q for n, q in among.items() if job.model and n.startswith(nodes)), None)


def _slurm(*command: str) -> str:
    """What a command of Slurm says. A job's own settings must not leak into the jobs that it submits."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SBATCH_", "SLURM_")) or k == "SLURM_CONF"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[0]} did not answer ({error}): is Slurm up? `sinfo` tells") from error
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"exit status {done.returncode}"
        raise UserError(f"{shlex.join(command)}: {said}; mend params/site.yaml, then submit again")
    return done.stdout

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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import NamedTuple

from rulerkit.batch.jobs import Job
from rulerkit.common.errors import UserError
from rulerkit.common.escape import fill
from rulerkit.common.json_text import digest
from rulerkit.common.paths import cache_dir, home, package_text
from rulerkit.common.settings import Site
from rulerkit.generation.tokenizers import tiktoken_dir
from rulerkit.store.files import write_whole
from rulerkit.store.locks import holder

_MOST_NODES = 100  # whole nodes of one batch, at most


@dataclass(frozen=True)
class Submission:
    """One sbatch: its name, its files, its jobs and what they need."""

    name: str
    script: Path
    jobs: tuple[Job, ...]
    gpus: int
    nodes: int
    after: tuple[str, ...] = ()
    """Names of submissions that must have ended, however they ended."""

    @property
    def log(self) -> Path:
        """Where Slurm writes the output of the script."""
        return self.script.with_suffix(".out")

    def text(self, site: Site) -> str:
        """The batch script."""
        variables: dict[str, str] = {}
        if site.offline:
            # The hub's client, transformers and vLLM send no request; caches are those of here.
            from huggingface_hub import constants

            variables = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
            places: dict[str, str | Path] = {
                "HF_HUB_CACHE": constants.HF_HUB_CACHE,
                "TIKTOKEN_CACHE_DIR": tiktoken_dir(),
                "RULERKIT_CACHE": cache_dir(),
                "RULERKIT_DATA": os.environ.get("RULERKIT_DATA", ""),
            }
            variables |= {name: os.path.abspath(place) for name, place in places.items() if place}

        return fill(
            package_text("job.sh"),
            submission=self,
            site=site,
            home=home(),
            variables=variables,
        )


def submissions(jobs: Sequence[Job], site: Site) -> list[Submission]:
    """What to submit for the jobs that are not done: one for each, or, where nodes are taken whole,
    as many as the models fill, each of which does any job that is free.

    Errors: `UserError` where a model needs more GPUs than a whole node has.
    """
    todo = [job for job in jobs if job.is_open]
    sharing: list[Job] = []
    planned: list[Submission] = []
    if site.whole_nodes:
        # A model over several nodes has them for itself.
        for job in todo:
            gpus, nodes = job.resources
            if gpus and nodes == 1:
                sharing.append(job)
        if sharing:
            planned = _whole_nodes(sharing, site.whole_nodes)

    # The names of the submissions that may do a job: later ones wait for all of them.
    names_of = {job.name: list(whole_nodes(job)) for job in sharing}
    for job in todo:
        if job in sharing:
            continue
        after = [name for model in job.after for name in names_of.get(model, [])]
        name, script = name_of(job), job.file.with_suffix(".sh")
        planned.append(Submission(name, script, (job,), *job.resources, tuple(after)))
        names_of[job.name] = [name]
    return planned


def _whole_nodes(jobs: Sequence[Job], per_node: int) -> list[Submission]:
    """The whole nodes to submit for the jobs that no running one is at."""
    for job in jobs:
        gpus, _ = job.resources
        if gpus > per_node:
            raise UserError(
                f"{job.name} needs {gpus} GPUs, a node has {per_node} (whole_nodes of "
                "params/site.yaml): lower tensor_parallel_size or `gpus` in its parameter file, or "
                "spread it over `nodes`"
            )

    in_queue = queue()
    numbers = {entry.number for entry in in_queue.values()}
    waiting = []
    for job in jobs:
        owner = holder(job.lock)
        if owner is None or owner.job not in numbers:
            waiting.append(job)

    most = ceil(sum(job.resources[0] for job in waiting) / per_node)
    nodes = [
        Submission(name, script, tuple(waiting), per_node, 1)
        for name, script in whole_nodes(jobs[0]).items()
        if name not in in_queue or not in_queue[name].runs
    ]
    return nodes[:most]


def whole_nodes(job: Job) -> dict[str, Path]:
    """The names of the whole nodes that the batch of a job may take, and the script of each."""
    folder, batch = (job.file.parents[1] / "all", job.file.name.removesuffix(".job.yaml"))
    scripts = [folder / f"{batch}-node{number}.sh" for number in range(1, _MOST_NODES)]
    return {_name(script, script.stem): script for script in scripts}


def name_of(job: Job) -> str:
    """What Slurm calls the submission of a job alone."""
    return _name(job.lock, job.name)


def _name(place: Path, subject: str) -> str:
    """What Slurm calls a job: the same for the same files, so that `singleton` keeps two of them
    apart."""
    name = f"rulerkit-{place.parents[1].name}-{subject}-{digest(str(place))[:6]}"
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)


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
    for submission in planned:
        there = in_queue.get(submission.name)
        after = [numbers[name] for name in submission.after if name in numbers]
        # Two submissions of one name never run at once; notebooks wait for their models.
        dependency = "singleton"
        if after:
            dependency += f",afterany:{':'.join(after)}"

        if there is None or there.state == "PENDING":
            # The batch file may have changed since.
            for job in submission.jobs:
                job.save()
        if there is None:
            write_whole(submission.script, submission.text(site))
            script = str(submission.script)
            said = _slurm("sbatch", "--parsable", f"--dependency={dependency}", script)
            numbers[submission.name] = said.strip().partition(";")[0]
        elif after and there.state == "PENDING":
            # It may have to wait for new jobs. Where this is not allowed, its notebook tells what
            # it lacks.
            with suppress(UserError):
                job_id = f"JobId={there.number}"
                _slurm("scontrol", "update", job_id, f"dependency={dependency}")
        yield submission, numbers[submission.name], there is not None


def queue() -> dict[str, Queued]:
    """This user's jobs in the queue, by name; {} where there is no Slurm, or it does not answer."""
    if not shutil.which("squeue"):
        return {}
    entries: dict[str, Queued] = {}
    with suppress(UserError):
        said = _slurm("squeue", "--noheader", "--all", "--me", "--format=%A|%T|%r|%j")
        for line in said.splitlines():
            number, state, reason, name = line.split("|", 3)
            # Of two with one name, the one that runs counts.
            if name not in entries or not entries[name].runs:
                entries[name] = Queued(number, state, reason)
    return entries


def _slurm(*command: str) -> str:
    """The output of a command of Slurm, without the settings of a job in which it may run."""
    of_job = ("SBATCH_", "SLURM_", "SQUEUE_")

    # A batch that is planned inside a job would hand its own limits down to the jobs it
    # submits.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(of_job) or name == "SLURM_CONF"
    }
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=120,
            env=environment,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        reason = " ".join(str(getattr(error, "stderr", "") or error).split())
        raise UserError(
            f"{shlex.join(command)}: {reason}; mend params/site.yaml, or see with `sinfo` whether "
            "Slurm is up, then submit again"
        ) from error
    return done.stdout

"""Slurm: one plain sbatch for each model with its notebooks, and for each notebook over several.
Files are the only state; what the queue says is asked for, never relied upon.

Three rules decide whether a pre-empted job comes back: papermill runs in the batch script itself,
never under srun (a step that is signalled makes the whole job fail); success is a file that is
written last, never a state of Slurm; answers are appended one by one to files that no scheduler
owns.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from rulerkit.batch.jobs import Job
from rulerkit.common.errors import UserError
from rulerkit.common.json_text import digest
from rulerkit.common.paths import home, package_text
from rulerkit.common.settings import JSON, Site
from rulerkit.inference.model import gpus_and_nodes
from rulerkit.store.files import write_whole


def open_jobs(jobs: Iterable[Job]) -> list[list[Job]]:
    """The jobs that are not done, those of one name together: each group is one sbatch."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        if not job.is_done():
            groups.setdefault(job.name, []).append(job)
    return list(groups.values())


def script_text(jobs: list[Job], site: Site) -> str:
    """The batch script of a group of jobs."""
    from jinja2 import Environment

    # One of them is its model's, where that has not answered everything yet.
    model: JSON = next((job.model for job in jobs if job.model), {})
    gpus, nodes = gpus_and_nodes(model) if model else (0, 1)
    script = script_of(jobs[0])
    environment = Environment(trim_blocks=True, keep_trailing_newline=True, autoescape=False)
    environment.filters["quote"] = shlex.quote
    return environment.from_string(package_text("job.sh")).render(
        name=name_of(jobs[0]),
        script=script,
        log=script.with_suffix(".out"),
        command=jobs[0].command.removeprefix("rulerkit "),
        gpus=gpus,
        nodes=nodes,
        hours=model.get("hours", site.hours),
        site=site,
        home=home(),
    )


def script_of(job: Job) -> Path:
    """The batch script of a job; what Slurm's job says stands beside it, in `.out`."""
    return job.record.with_name(f"{job.name}.sh")


def name_of(job: Job) -> str:
    """What Slurm calls a job: the same for the same files, so that `singleton` keeps two of them
    apart."""
    end = digest(str(script_of(job)))[:6]
    name = f"rulerkit-{job.folder.name}-{job.name}-{end}"
    return re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)


# --- Slurm's queue --------------------------------------------------------------------------------


def submit(groups: Iterable[list[Job]], site: Site) -> Iterator[tuple[Job, str, bool]]:
    """Submit each group of jobs; yields its first job with the number of Slurm's job, and whether
    that was in the queue already.

    Errors: `UserError` where sbatch is not there or refuses; what was submitted before it stays.
    """
    in_queue = queue()
    numbers: dict[str, str] = {}
    for jobs in groups:
        job = jobs[0]
        there = in_queue.get(name_of(job))
        before = [other.name for each in jobs for other in each.after]
        after = [numbers[name] for name in dict.fromkeys(before) if name in numbers]
        # Two submissions of one name never run at once; notebooks wait for their models.
        dependency = "singleton"
        if after:
            dependency += f",afterany:{':'.join(after)}"

        if there:
            number, state = there
        else:
            script = script_of(job)
            write_whole(script, script_text(jobs, site))
            said = _slurm("sbatch", "--parsable", f"--dependency={dependency}", str(script))
            number, state = said.strip().partition(";")[0], "new"
        if after and state == "PENDING":
            # A model before it may have a new job. It may begin just now; then it has no need.
            with suppress(UserError):
                _slurm("scontrol", "update", f"jobid={number}", f"dependency={dependency}")
        numbers[job.name] = number
        yield job, number, there is not None


def queue() -> dict[str, tuple[str, str]]:
    """Number and state, such as PENDING or RUNNING, of this user's jobs in the queue, by name; {}
    where there is no Slurm, or it does not answer."""
    entries: dict[str, tuple[str, str]] = {}
    with suppress(UserError):
        said = _slurm("squeue", "--noheader", "--all", "--me", "--format=%A|%T|%j")
        for line in said.splitlines():
            number, state, name = line.split("|", 2)
            # Of two with one name, the one that runs counts.
            if state == "RUNNING" or name not in entries:
                entries[name] = number, state
    return entries


def _slurm(*command: str) -> str:
    """The output of a command of Slurm, without the settings of a job in which it may run."""
    of_job = ("SBATCH_", "SLURM_", "SQUEUE_")

    # A batch that is planned inside a job would hand its own limits down to the jobs it submits.
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
            f"{shlex.join(command)}: {reason}; fix params/site.yaml, and submit on a login node of "
            "a cluster where `sinfo` answers"
        ) from error
    return done.stdout

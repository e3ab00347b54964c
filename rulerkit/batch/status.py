"""How far a batch is, from its files alone: while it runs, after it was killed, from any machine
that sees the files."""

import time
from collections.abc import Iterable, Mapping
from datetime import timedelta

from rulerkit.batch import slurm
from rulerkit.batch.jobs import Job, Status, read_record
from rulerkit.common.errors import counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.store.files import holder


def statuses(jobs: Iterable[Job]) -> list[Status]:
    """Every job, those of models first, from their files now; each cell is read once."""
    in_queue = slurm.queue()
    active_models, found = set[str](), list[Status]()
    for job in sorted(jobs, key=lambda job: job.model is None):
        activity, where = _activity(job, in_queue)
        if job.model and activity:
            active_models.add(job.name)
        # A notebook waits for the models that still answer.
        waits_for = [name for name in job.after if name in active_models]
        if waits_for and activity != "running":
            activity, where = "waiting", f"for {listed(waits_for, 3)}"
        found.append(_status(job, activity, where))
    return found


def _activity(job: Job, in_queue: Mapping[str, slurm.Queued]) -> tuple[str, str]:
    """Whether a process does a job, or will: `running`, `queued` or `waiting`, else "", and
    where."""
    owner = holder(job.lock)
    if owner:
        return "running", str(owner)
    entry = in_queue.get(slurm.name_of(job))
    if entry is None:
        return "", ""
    place = f"job {entry.number}, {entry.state.lower()}"
    if job.run:
        return "waiting", place
    return ("running" if entry.runs else "queued"), place


def _status(job: Job, activity: str, where: str) -> Status:
    """The status of a job that is `running`, `queued`, `waiting` or none of these."""
    needs = () if job.run else tuple(job.needs())
    state, reason = job.state(needs)
    if state == "done":
        return Status(job, state, str(job.run.output) if job.run else "", needs)
    if activity:
        return Status(job, activity, where, needs)

    record = read_record(job.record)
    last = record.get("state")
    if last in ("failed", "incomplete"):
        return Status(job, last, str(record.get("error")), needs)
    if last == "running":
        return Status(job, "interrupted", "its process is gone; what it wrote is kept", needs)
    return Status(job, state, reason, needs)


def exit_code(statuses: Iterable[Status]) -> int:
    """0: all is done; 1: something failed, is incomplete or was interrupted; 3: neither."""
    states = {status.state for status in statuses}
    if states & {"failed", "incomplete", "interrupted"}:
        return 1
    if states - {"done"}:
        return 3
    return 0


# --- text -----------------------------------------------------------------------------------------


def report(statuses: list[Status]) -> list[str]:
    """What there is to say of each job, and a line over all."""
    states = [status.state for status in statuses]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    # Cells of models' jobs alone: notebooks read the same ones.
    needs = [need for status in statuses if status.job.model for need in status.needs]
    left = sum(need.tokens_left for need in needs)
    total = f"; {left:,} tokens left" if left else ""
    lines = [line for status in statuses for line in describe(status)]
    return [*lines, f"{counted(len(states), 'step')}: {counts}{total}"]


def describe(status: Status) -> list[str]:
    """A line about a job; of one that was not done its logs and the command that helps. A notebook
    that read incomplete answers needs those first."""
    job, state = status.job, status.state
    lines = [f"{state:12} {job.title:40} {details(status)}".rstrip()]
    logs = []
    if state in ("failed", "interrupted") or (state == "missing" and not job.run):
        # Its own, and what the scheduler's job has said.
        places = (job.log, slurm.script_of(job).with_suffix(".out"))
        logs = [f"    log: {log}" for log in places if log.exists()]
    stopped = state in ("failed", "interrupted", "outdated")
    if logs or stopped or (state == "incomplete" and not job.run):
        lines += [*logs, f"    again: {job.command}"]
    return lines


def details(status: Status) -> str:
    """How far a job is beside its title and state, in words."""
    job, state, message, needs = status
    if job.run:
        return message

    needs = needs or tuple(job.needs())
    left = sum(need.tokens_left for need in needs)
    have = sum(need.have for need in needs)
    wanted = sum(need.wanted for need in needs)
    complete = sum(not need.tokens_left for need in needs)
    parts = [f"{complete}/{len(needs)} cells, {have:,}/{wanted:,} examples"]
    if left:
        parts.append(f"{left:,} tokens left")
        gpus, _ = job.resources
        if gpus:
            parts.append(counted(gpus, "GPU"))
    if state == "running":
        parts.append(_time_left(job, left))
    parts.append(message)

    not_run = []
    for key in job.not_run(job.name):
        length, _, task = key.partition(" ")
        at = length_name(int(length))
        not_run.append(f"{task} at {at}" if task else at)
    if not_run:
        parts.append(f"not run: {', '.join(not_run)}")
    problems = [need.problem for need in needs if need.problem]
    if problems and problems[0] not in message:
        parts.append(listed(problems, 1))
    return "; ".join(part for part in parts if part)


def _time_left(job: Job, tokens_left: int) -> str:
    """The time that is left at the pace since the job began; empty where it is not known yet."""
    record = read_record(job.record)
    done = record.get("left", 0) - tokens_left
    if done <= 0:
        return ""
    seconds = tokens_left * (time.time() - record["started"]) / done
    return f"about {timedelta(seconds=round(seconds))}"

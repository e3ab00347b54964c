"""How far a batch is, from its files alone: while it runs, after it was killed, from any machine
that sees the files."""

import math
import time
from collections.abc import Iterable
from datetime import timedelta

from rulerkit.batch import slurm
from rulerkit.batch.jobs import Job, Status, read_record
from rulerkit.common.errors import counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.store.files import holder

WRONG = ("failed", "incomplete", "interrupted")
OPEN = ("outdated", "missing", "waiting", "running")


def statuses(jobs: Iterable[Job]) -> list[Status]:
    """Every job, those of models first, from their files now; each cell is read at most once."""
    in_queue = slurm.queue()
    found, answering = list[Status](), set[str]()
    for job in jobs:
        status = job.status()
        if status.state == "done":
            found.append(status)
            continue

        # Whether a process does it, or will; a notebook waits for the models that still answer.
        owner = holder(job.lock)
        queued = in_queue.get(slurm.name_of(job))
        waits_for = [model.name for model in job.models if model.name in answering]
        record = read_record(job.record)
        _, state, message, needs = status
        last = record.get("state")
        if owner:
            state, message = "running", owner
        elif waits_for:
            state, message = "waiting", f"for {listed(waits_for, 3)}"
        elif queued:
            number, word = queued
            state = "running" if job.model and word == "RUNNING" else "waiting"
            message = f"job {number}, {word.lower()}"
        elif last in ("failed", "incomplete"):
            state, message = last, str(record.get("error"))
        elif last == "running":
            state, message = "interrupted", "its process is gone; what it wrote is kept"
        if job.model and state in ("running", "waiting"):
            answering.add(job.name)
        found.append(Status(job, state, message, needs))
    return found


def exit_code(statuses: Iterable[Status]) -> int:
    """0: all is done; 1: something failed, is incomplete or was interrupted; 3: neither."""
    states = {status.state for status in statuses}
    if states.intersection(WRONG):
        return 1
    return 3 if states - {"done"} else 0


# --- text -----------------------------------------------------------------------------------------


def in_order(statuses: Iterable[Status]) -> list[Status]:
    """What needs a look first, then what is not up to date."""
    order = [*WRONG, *OPEN, "done"]
    return sorted(statuses, key=lambda status: order.index(status.state))


def report(statuses: list[Status]) -> list[str]:
    """What there is to say of each job, failures first, and a line over all."""
    states = [status.state for status in statuses]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    # Cells of models' jobs alone: notebooks read the same ones.
    needs = [need for status in statuses if status.job.model for need in status.needs]
    left = sum(need.tokens_left for need in needs)
    total = f"; {left:,} tokens left" if left else ""
    lines = [line for status in in_order(statuses) for line in describe(status)]
    return [*lines, f"{counted(len(states), 'step')}: {counts}{total}"]


def describe(status: Status) -> list[str]:
    """A line about a job; of one that was begun and is not done its logs and the command that does
    it again."""
    job, state = status.job, status.state
    lines = [f"{state:12} {job.title:40} {details(status)}".rstrip()]
    if state in ("done", "running", "waiting", "locked"):
        return lines
    # Its own, and what the scheduler's job has said.
    for log in (job.log, slurm.script_of(job).with_suffix(".out")):
        if log.exists():
            lines.append(f"    log: {log}")
    if len(lines) > 1 or state != "missing":
        lines.append(f"    again: {job.command}")
    return lines


def details(status: Status) -> str:
    """How far a job is beside its title and state, in words."""
    job, state, message, needs = status
    if job.notebook:
        return message

    needs = needs or tuple(job.needs())
    left = sum(need.tokens_left for need in needs)
    have = sum(need.have for need in needs)
    wanted = sum(need.wanted for need in needs)
    complete = sum(not need.tokens_left for need in needs)
    parts = [f"{complete}/{len(needs)} cells, {have:,}/{wanted:,} examples"]
    if left:
        parts.append(f"{left:,} tokens left")
    if state == "running":
        # At the pace since the job began.
        record = read_record(job.record)
        done = record.get("left", 0) - left
        # The clock of another machine may be ahead of this one's.
        passed = time.time() - record.get("started", math.inf)
        if record.get("state") == "running" and done > 0 and passed > 0:
            parts.append(f"about {timedelta(seconds=round(left * passed / done))}")
    parts.append(message)

    not_run = []
    for length, task in job.not_run():
        not_run.append(f"{task} at {length_name(length)}" if task else length_name(length))
    if not_run:
        parts.append(f"not run: {', '.join(not_run)}")
    problems = [need.problem for need in needs if need.problem]
    if problems and problems[0] not in message:
        parts.append(listed(problems, 1))
    return "; ".join(part for part in parts if part)

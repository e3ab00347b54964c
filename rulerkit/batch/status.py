"""How far a batch is, from its files alone: while it runs, after it was killed, from any machine
that sees the files."""

import time
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path

from rulerkit.batch import slurm
from rulerkit.batch.jobs import (
    Job,
    Need,
    Status,
    Step,
    lines_of_log,
    read_job,
    read_record,
)
from rulerkit.common.errors import UserError, counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.store.locks import holder


def jobs_in(folder: Path) -> list[Job]:
    """The jobs that were planned in `outputs/notebooks/<run>`."""
    jobs = [read_job(file) for file in sorted(folder.glob("*/*.job.yaml"))]
    if not jobs:
        raise UserError(
            f"{folder} holds no job: give a batch file, or outputs/notebooks/RUN of a batch that "
            "was begun"
        )
    return sorted(jobs, key=lambda job: job.model is None)


def statuses(jobs: Iterable[Job]) -> list[Status]:
    """Every step of some jobs, those of models first, from their files now."""
    in_queue, active, states = slurm.queue(), list[str](), list[Status]()
    for job in jobs:
        activity, place = _activity(job, in_queue)
        if job.model and activity:
            active.append(job.name)
        if models := [name for name in job.after if name in active]:
            activity, place = "queued", f"for {listed(models, 3)}"
        states += [_status(step, activity, place) for step in job.steps]
    return states


def _activity(job: Job, in_queue: Mapping[str, slurm.Queued]) -> tuple[str, str]:
    """Whether a process does a job, or will: `running` or `queued`, else "", and where."""
    if owner := holder(job.lock):
        return "running", f"on {owner.host}" + (
            f", job {owner.job}" if owner.job else ""
        )
    alone, nodes = slurm.name_of(job), slurm.whole_nodes(job) if job.model else []
    for name in (alone, *nodes):
        if entry := in_queue.get(name):
            if name == alone and entry.runs:
                return "running", f"job {entry.number} begins"
            return (
                "queued",
                f"job {entry.number}, {entry.state.lower()}, {entry.reason}",
            )
    return "", ""


def _status(step: Step, activity: str, place: str) -> Status:
    """The status of a step whose job is `running`, `queued` or neither."""
    record = read_record(step.record)
    last = record.get("state")
    state, reason = step.state
    if state == "done":
        return Status(step, state, str(step.run.output) if step.run else "")
    if activity:
        waits = step.run and not activity == last == "running"
        return Status(step, "waiting" if waits else activity, place)
    if last in ("failed", "incomplete"):
        return Status(step, last, str(record.get("error")))
    if last == "running":
        return Status(step, "interrupted", "its process is gone; what it wrote is kept")
    return Status(step, state, reason)


def exit_code(statuses: Iterable[Status]) -> int:
    """0: all is done; 1: something failed, is incomplete or was interrupted; 3: neither."""
    states = {status.state for status in statuses}
    return (
        1
        if states & {"failed", "incomplete", "interrupted"}
        else 3 * bool(states - {"done"})
    )


# --- text -----------------------------------------------------------------------------------------


def report(statuses: list[Status]) -> list[str]:
    """What there is to say of each step, and a line over all."""
    states = [status.state for status in statuses]
    counts = ", ".join(
        f"{states.count(state)} {state}" for state in dict.fromkeys(states)
    )
    left = sum(status.step.tokens_left for status in statuses)
    total = f"; {left:,} tokens left, at most" if left else ""
    lines = [line for status in statuses for line in describe(status)]
    return [*lines, f"{counted(len(states), 'step')}: {counts}{total}"]


def describe(status: Status) -> list[str]:
    """A line about a step; of one that was not done the last lines of its log and the command that
    helps. A notebook that read incomplete answers needs those first."""
    step, state, message = status
    lines, last = (
        [f"{state:12} {step.title:40} {details(status)}".rstrip()],
        list[str](),
    )
    if state in ("failed", "interrupted", "missing"):
        # where nothing else was written, what the scheduler's job has said
        log = (
            step.log
            if state == "failed" or step.run
            else step.job.file.with_suffix(".out")
        )
        last = [
            line for line in lines_of_log(log)[-5:] if line != f"rulerkit: {message}"
        ]
        lines += [f"    | {line[:300]}" for line in last]
        if last:
            lines.append(f"    log: {log}")
    stopped = state in ("failed", "interrupted", "outdated")
    if last or stopped or (state == "incomplete" and not step.run):
        lines.append(f"    again: {step.job.command}")
    return lines


def details(status: Status) -> str:
    """How far a step is beside its title and state, in words."""
    step, state, message = status
    if step.run:
        return message
    needs, left = step.needs, step.tokens_left
    have, wanted = sum(need.have for need in needs), sum(need.wanted for need in needs)
    complete = len(needs) - len(step.unanswered)
    parts = [f"{complete}/{len(needs)} cells, {have:,}/{wanted:,} examples"]
    if left:
        parts.append(f"{left:,} tokens left")
    if left and (gpus := step.job.resources[0]):
        parts.append(counted(gpus, "GPU"))
    starts = read_record(step.record).get("starts")
    if state == "running" and starts:  # at the pace since its process began
        done = starts[-1]["left"][0] - left
        if done > 0:
            seconds = left * (time.time() - starts[-1]["time"]) / done
            parts.append(f"about {timedelta(seconds=round(seconds))}")
    parts.append(message)
    if not_run := step.job.not_run(step.job.name):
        parts.append(f"not run: {', '.join(map(length_name, sorted(not_run)))}")
    problems = [need.problem for need in needs if need.problem]
    if problems and problems[0] not in message:
        parts.append(listed(problems, 1))
    return "; ".join(filter(None, parts))


def grid(model: str, needs: list[Need], not_run: Collection[int] = ()) -> str:
    """The cells of a model: a line per task, a column per length; how many examples are answered of
    how many."""
    import pandas as pd

    rows = [(need.task, need.length, need.have, need.wanted) for need in needs]
    frame = pd.DataFrame(rows, columns=["task", "length", "have", "wanted"])
    # those of repetitions are counted together
    counts = frame.groupby(["task", "length"]).sum().astype(str)
    texts = counts["have"] + "/" + counts["wanted"]
    texts[counts.index.isin([*not_run], level="length")] = "not run"
    wide = texts.unstack(fill_value="").loc[frame["task"].unique()]
    return (
        wide.rename(columns=length_name)
        .rename_axis(index=None, columns=model)
        .to_string()
    )

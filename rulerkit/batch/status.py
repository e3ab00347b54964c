"""How far a batch is, from its files alone: while it runs, after it was killed, from any machine
that sees the files."""

import time
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from pathlib import Path

from rulerkit.batch import slurm
from rulerkit.batch.jobs import Job, Need, Status, Step, lines_of_log, read_job, read_record
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
    in_queue = slurm.queue()
    active_models, found = set[str](), list[Status]()
    for job in jobs:
        activity, where = _activity(job, in_queue)
        if job.model and activity:
            active_models.add(job.name)
        # A notebook over several models waits for those that still answer.
        waits_for = [name for name in job.after if name in active_models]
        if waits_for:
            activity, where = "queued", f"for {listed(waits_for, 3)}"
        found += [_status(step, activity, where) for step in job.steps]
    return found


def _activity(job: Job, in_queue: Mapping[str, slurm.Queued]) -> tuple[str, str]:
    """Whether a process does a job, or will: `running` or `queued`, else "", and where."""
    owner = holder(job.lock)
    if owner:
        number = f", job {owner.job}" if owner.job else ""
        return "running", f"on {owner.host}{number}"

    # The job may be in Slurm's queue alone, or be done by a whole node that several models share.
    alone = slurm.name_of(job)
    names = [alone]
    if job.model:
        names += slurm.whole_nodes(job)
    for name in names:
        entry = in_queue.get(name)
        if entry and entry.runs and name == alone:
            return "running", f"job {entry.number} begins"
        if entry:
            place = f"job {entry.number}, {entry.state.lower()}, {entry.reason}"
            return "queued", place
    return "", ""


def _status(step: Step, activity: str, where: str) -> Status:
    """The status of a step whose job is `running`, `queued` or neither."""
    record = read_record(step.record)
    last = record.get("state")
    state, reason = step.state
    if state == "done":
        return Status(step, state, str(step.run.output) if step.run else "")

    if activity:
        # Of a running job one step runs; its notebooks wait for the answers.
        is_running = activity == "running" and last == "running"
        if step.run and not is_running:
            return Status(step, "waiting", where)
        return Status(step, activity, where)

    if last in ("failed", "incomplete"):
        return Status(step, last, str(record.get("error")))
    if last == "running":
        return Status(step, "interrupted", "its process is gone; what it wrote is kept")
    return Status(step, state, reason)


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
    """What there is to say of each step, and a line over all."""
    states = [status.state for status in statuses]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    left = sum(status.step.tokens_left for status in statuses)
    most = sum(status.step.most_tokens_left for status in statuses)
    total = f"; {tokens_left(left, most)}" if left else ""
    lines = [line for status in statuses for line in describe(status)]
    return [*lines, f"{counted(len(states), 'step')}: {counts}{total}"]


def tokens_left(least: int, most: int) -> str:
    """The tokens of prompts and answers that are left; of adaptive runs those of the open round,
    and of all rounds there may be."""
    if least < most:
        return f"{least:,} tokens left at least, {most:,} at most"
    return f"{least:,} tokens left, at most"


def describe(status: Status) -> list[str]:
    """A line about a step; of one that was not done the last lines of its log and the command that
    helps. A notebook that read incomplete answers needs those first."""
    step, state, message = status
    lines = [f"{state:12} {step.title:40} {details(status)}".rstrip()]

    log_lines: list[str] = []
    if state in ("failed", "interrupted", "missing"):
        log = step.log
        if state != "failed" and not step.run:
            # The step wrote nothing: what the scheduler's job has said.
            log = step.job.file.with_suffix(".out")
        shown_already = f"rulerkit: {message}"
        log_lines = [line for line in lines_of_log(log)[-5:] if line != shown_already]
        lines += [f"    | {line[:300]}" for line in log_lines]
        if log_lines:
            lines.append(f"    log: {log}")

    stopped = state in ("failed", "interrupted", "outdated")
    lacks_answers = state == "incomplete" and not step.run
    if log_lines or stopped or lacks_answers:
        lines.append(f"    again: {step.job.command}")
    return lines


def details(status: Status) -> str:
    """How far a step is beside its title and state, in words."""
    step, state, message = status
    if step.run:
        return message

    needs, left = step.needs, step.tokens_left
    have = sum(need.have for need in needs)
    wanted = sum(need.wanted for need in needs)
    complete = len(needs) - len(step.unanswered)
    parts = [f"{complete}/{len(needs)} cells, {have:,}/{wanted:,} examples"]
    if left:
        parts.append(f"{left:,} tokens left")
        gpus, _ = step.job.resources
        if gpus:
            parts.append(counted(gpus, "GPU"))
    if state == "running":
        parts.append(_time_left(step, left))
    parts.append(message)

    not_run = step.job.not_run(step.job.name)
    if not_run:
        names = ", ".join(length_name(length) for length in sorted(not_run))
        parts.append(f"not run: {names}")
    problems = [need.problem for need in needs if need.problem]
    if problems and problems[0] not in message:
        parts.append(listed(problems, 1))
    return "; ".join(part for part in parts if part)


def _time_left(step: Step, tokens_left: int) -> str:
    """The time that is left at the pace since the process of a step began; empty where it is not
    known yet."""
    starts = read_record(step.record).get("starts")
    if not starts:
        return ""
    left_at_start, _ = starts[-1]["left"]
    done = left_at_start - tokens_left
    if done <= 0:
        return ""
    seconds = tokens_left * (time.time() - starts[-1]["time"]) / done
    return f"about {timedelta(seconds=round(seconds))}"


def grid(model: str, needs: list[Need], not_run: Collection[int] = ()) -> str:
    """The cells of a model: a line per task, a column per length; how many examples are answered of
    how many."""
    import pandas as pd

    rows = [(need.task, need.length, need.have, need.wanted) for need in needs]
    frame = pd.DataFrame(rows, columns=["task", "length", "have", "wanted"])
    # The cells of repetitions are counted together.
    counts = frame.groupby(["task", "length"]).sum().astype(str)
    texts = counts["have"] + "/" + counts["wanted"]
    texts[counts.index.isin([*not_run], level="length")] = "not run"
    wide = texts.unstack(fill_value="").loc[frame["task"].unique()]
    return wide.rename(columns=length_name).rename_axis(index=None, columns=model).to_string()

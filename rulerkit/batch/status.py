"""How far a batch is, from its files alone: while it runs, after it was killed, from any machine
that sees the files."""

import time
from collections.abc import Container, Iterable, Mapping
from datetime import timedelta
from pathlib import Path

from rulerkit.batch import Job, Need, Status, Step, lines_of_log, read_job, read_record, slurm
from rulerkit.errors import UserError, listed
from rulerkit.lengths import length_name
from rulerkit.settings import JSON
from rulerkit.store import holder


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
    in_queue, active, found = slurm.queue(), list[str](), list[Status]()
    for job in jobs:
        state, place = _activity(job, in_queue)
        if job.model and state:
            active.append(job.name)
        if models := [name for name in job.after if name in active]:
            state, place = "queued", f"for {listed(models, 3)}"
        found += [Status(step, *_state(step, state, place)) for step in job.steps]
    return found


def _activity(job: Job, in_queue: Mapping[str, slurm.Queued]) -> tuple[str, str]:
    """Whether a process does a job, or will: `running` or `queued`, else "", and where."""
    if owner := holder(job.lock):
        return "running", f"on {owner.host}" + (f", job {owner.job}" if owner.job else "")
    own, nodes = slurm.name_of(job), slurm.whole_nodes(job) if job.model else {}
    entries = [in_queue[name] for name in (own, *nodes) if name in in_queue]
    if not entries:
        return "", ""
    number, state, reason = entries[0]
    if own in in_queue and entries[0].runs:
        return "running", f"job {number} begins"
    return "queued", f"job {number}, {state.lower()}, {reason}"


def _state(step: Step, state: str, place: str) -> tuple[str, str]:
    """The state of a step, and a message, where its job is `running`, `queued` or neither."""
    record = read_record(step.record)
    last = record.get("state")
    if step.is_done:
        return "done", str(step.run.output) if step.run else ""
    if state:
        return "waiting" if step.run and not state == last == "running" else state, place
    if last in ("failed", "incomplete"):
        return last, str(record.get("error"))
    if last == "running":
        return "interrupted", "its process is gone; what it wrote is kept"
    if reason := _outdated(step, record):
        return "outdated", reason
    return "incomplete" if not step.run and any(need.have for need in step.needs) else "missing", ""


def _outdated(step: Step, record: JSON) -> str:
    """What has changed since a step was done; "" where it was not."""
    if not step.run:
        return "" if step.unanswered else step.changed
    if record.get("state") != "done":
        return ""
    if record.get("source") != step.run.source:
        return "the notebook or its parameters have changed since"
    if not step.run.output.exists():
        return "the executed notebook is gone"
    return "answers that it read are gone" if step.unanswered else "its answers have changed since"


def exit_code(statuses: Iterable[Status]) -> int:
    """0: all is done; 1: something failed, is incomplete or was interrupted; 3: neither."""
    states = {status.state for status in statuses}
    return 1 if states & {"failed", "incomplete", "interrupted"} else 3 * bool(states - {"done"})


# --- text -----------------------------------------------------------------------------------------


def report(statuses: list[Status]) -> list[str]:
    """A line per step, the last lines of what failed with the command to repeat it, and a line over
    all."""
    lines = []
    for status in statuses:
        step, state, message = status
        lines.append(f"{state:12} {step.title:40} {details(status)}".rstrip())
        last = list[str]()
        if state in ("failed", "interrupted", "missing"):
            # where nothing else was written, what the scheduler's job has said
            log = step.log if state == "failed" or step.run else step.job.file.with_suffix(".out")
            last = [line for line in lines_of_log(log)[-5:] if line != f"rulerkit: {message}"]
            lines += [f"    | {line[:300]}" for line in last]
        if last or command_helps(status):
            was_done = read_record(step.record).get("state") == "done"  # as its job file says
            lines.append(f"    again: {step.job.planned_by if was_done else step.job.command}")
    states = [status.state for status in statuses]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    left = sum(tokens_left(status.step) for status in statuses)
    total = f"; {left:,} tokens left, at most" if left else ""
    return [*lines, f"{len(states)} steps: {counts}{total}"]


def command_helps(status: Status) -> bool:
    """Whether to name the command of a step that is not done: a notebook that read incomplete
    answers needs those first."""
    step, state, _ = status
    stopped = state in ("failed", "interrupted", "outdated")
    return stopped or (state == "incomplete" and not step.run)


def tokens_left(step: Step) -> int:
    """The tokens of prompts and answers that predictions still take, at most; 0 for a notebook."""
    return 0 if step.run else sum(need.tokens_left for need in step.needs)


def details(status: Status) -> str:
    """How far a step is beside its title and state, in words."""
    step, state, message = status
    if step.run:
        return message
    needs, left = step.needs, tokens_left(step)
    have, wanted = sum(need.have for need in needs), sum(need.wanted for need in needs)
    complete = len(needs) - len(step.unanswered)
    parts = [f"{complete}/{len(needs)} cells, {have:,}/{wanted:,} examples"]
    if left:
        parts.append(f"{left:,} tokens left")
    starts = read_record(step.record).get("starts")
    if state == "running" and starts:  # at the pace since its process began
        done = sum(need.have * need.length for need in needs) - starts[-1]["tokens"]
        if done > 0:
            seconds = left * (time.time() - starts[-1]["time"]) / done
            parts.append(f"about {timedelta(seconds=round(seconds))}")
    parts.append(message)
    if not_run := step.job.not_run(step.job.name):
        parts.append(f"not run: {', '.join(map(length_name, sorted(not_run)))}")
    problems = [need.problem for need in needs if need.problem]
    more = f" (and {len(problems) - 1} cells more)" if problems[1:] else ""
    parts += [problem + more for problem in problems[:1] if problem not in message]
    return "; ".join(filter(None, parts))


def grid(model: str, needs: list[Need], not_run: Container[int] = ()) -> str:
    """The cells of a model: a line per task, a column per length; how many examples are answered of
    how many."""
    import pandas as pd

    texts = {
        (need.task, need.length): "not run"
        if need.length in not_run
        else f"{need.have}/{need.wanted}"
        for need in needs
    }
    frame = pd.Series(texts).unstack(fill_value="").reindex([*dict.fromkeys(n.task for n in needs)])
    return frame.rename(columns=length_name).rename_axis(columns=model).to_string()

"""How far a batch is, from its files alone: while it runs, after it was killed, from any machine
that sees the files."""

import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rulerkit.batch import Job, Need, Step, read_job, read_record, slurm
from rulerkit.errors import UserError, listed
from rulerkit.lengths import length_name
from rulerkit.store import holder
from rulerkit.tables import Field, render


@dataclass
class Status:
    """One line of a report: a model's answers, or a notebook."""

    step: Step
    state: str
    """done, running, queued, failed, incomplete, interrupted, waiting or missing."""
    message: str = ""
    cells: tuple[int, int] = (0, 0)
    """How many cells are complete, of how many."""
    examples: tuple[int, int] = (0, 0)
    tokens_left: int = 0
    """Of prompts and answers, at most."""
    seconds_left: float | None = None
    """At the pace since its process began; None where it does not run."""

    @property
    def details(self) -> str:
        """All but its title and state, in words."""
        (cells, all_cells), (have, wanted) = self.cells, self.examples
        parts = [
            f"{cells}/{all_cells} cells, {have:,}/{wanted:,} examples" if all_cells else "",
            f"{self.tokens_left:,} tokens left" if self.tokens_left else "",
            "" if self.seconds_left is None else f"about {duration(self.seconds_left)}",
            self.message,
        ]
        return "; ".join(filter(None, parts))


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
    """Every step of some jobs, from their files now."""
    jobs, in_queue = list(jobs), slurm.queue()
    activity = {job.file: _activity(job, in_queue) for job in jobs}
    at_work = {job.name for job in jobs if job.model and activity[job.file][0]}
    found = []
    for job in jobs:
        state, place = activity[job.file]
        for step in job.steps:
            if not step.run:
                found.append(_predictions(step, state, place))
            elif models := [name for name in job.after if name in at_work]:
                found.append(_notebook(step, "queued", f"for {listed(models, 3)}"))
            else:
                found.append(_notebook(step, state, place))
    return found


def running(step: Step) -> Status:
    """How far a step is that this process is at."""
    if step.run:
        return Status(step, "running", "executing")
    return _predictions(step, "running", "")


def _activity(job: Job, in_queue: Mapping[str, slurm.Queued]) -> tuple[str, str]:
    """Whether a process does a job, or will: `running` or `queued`, else "", and where."""
    if owner := holder(job.lock):
        return "running", f"on {owner.host}" + (f", job {owner.job}" if owner.job else "")
    entry, whole_node = slurm.find(job, in_queue)
    if not entry:
        return "", ""
    if not entry.runs:
        return "queued", f"job {entry.number}, {entry.state.lower()}, {entry.reason}"
    if whole_node:
        return "queued", f"job {entry.number}"
    return "running", f"job {entry.number} begins"


def _predictions(step: Step, state: str, place: str) -> Status:
    record, job = read_record(step.record), step.job
    needs = job.runnable(step.needs)
    left = sum(need.tokens_left for need in needs)
    if not left:
        state, place = "done", ""
    elif not state:
        state, place = _ended(record)
        if not state:
            state = "incomplete" if any(need.have for need in needs) else "missing"
    not_run = ", ".join(map(length_name, sorted(job.not_run(job.name))))
    problems = [need.problem for need in needs if need.problem]
    messages = [
        place,
        f"not run: {not_run}" if not_run else "",
        problems[0] if problems else "",
    ]
    more = f" (and {len(problems) - 1} cells more)" if problems[1:] else ""
    return Status(
        step,
        state,
        "; ".join(filter(None, messages)) + more,
        (sum(need.have == need.wanted for need in needs), len(needs)),
        (sum(need.have for need in needs), sum(need.wanted for need in needs)),
        left,
        _seconds_left(record, needs, left) if state == "running" else None,
    )


def _ended(record: Mapping[str, Any]) -> tuple[str, str]:
    """The state and message of a step that no process does; "" where it was not begun, or ended
    well."""
    state = str(record.get("state"))
    if state in ("failed", "incomplete"):
        return state, str(record.get("error"))
    if state == "running":
        return "interrupted", "its process is gone; what it wrote is kept"
    return "", ""


def _seconds_left(record: Mapping[str, Any], needs: list[Need], left: int) -> float | None:
    starts = record.get("starts")
    if not starts:
        return None
    done = sum(need.have * need.length for need in needs) - starts[-1]["tokens"]
    return left * (time.time() - starts[-1]["time"]) / done if done > 0 else None


def _notebook(step: Step, state: str, place: str) -> Status:
    if step.is_done and step.run:
        return Status(step, "done", str(step.run.output))
    record = read_record(step.record)
    if state == record.get("state") == "running":
        return Status(step, "running", place)
    if state:
        return Status(step, "waiting", place)
    ended, message = _ended(record)
    if not ended and record.get("state") == "done":
        message = "its answers have changed since"
    return Status(step, ended or "missing", message)


# --- text -----------------------------------------------------------------------------------------


def report(statuses: list[Status]) -> list[str]:
    """A line per step, the last lines of what failed with the command to repeat it, and a line over
    all."""
    lines = []
    for status in statuses:
        step = status.step
        lines.append(f"{status.state:12} {step.title:40} {status.details}".rstrip())
        if status.state in ("failed", "incomplete", "interrupted", "missing"):
            unfinished = status.state in ("interrupted", "missing")
            # where nothing else was written, what the scheduler's job has said
            log = step.job.file.with_suffix(".out") if unfinished and not step.run else step.log
            last = [] if status.state == "incomplete" else _last_lines(log)
            lines += [f"    | {line}" for line in last]
            if last or status.state != "missing":
                lines.append(f"    again: {step.job.command}")
    states = [status.state for status in statuses]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    left = sum(status.tokens_left for status in statuses)
    total = f"; {left:,} tokens left, at most" if left else ""
    return [*lines, f"{len(states)} steps: {counts}{total}"]


def duration(seconds: float) -> str:
    """`5 h 20 min`, `3 min` or `40 s`."""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min" if whole >= 60 else f"{whole} s"


def _last_lines(log: Path) -> list[str]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.rstrip()[:300] for line in lines if line.strip()][-5:]


def grid(model: str, needs: list[Need], not_run: Container[int] = ()) -> str:
    """The cells of a model: a line per task, a column per length; how many examples are answered of
    how many."""
    lengths = sorted({need.length for need in needs})
    tasks: dict[str, dict[int, str]] = {}
    for need in needs:
        text = f"{need.have}/{need.wanted}" if need.have < need.wanted else str(need.have)
        tasks.setdefault(need.task, {})[need.length] = "not run" if need.length in not_run else text
    rows = [[Field(task), *(Field(row.get(n, "")) for n in lengths)] for task, row in tasks.items()]
    return render([model, *map(length_name, lengths)], rows).rstrip("\n")

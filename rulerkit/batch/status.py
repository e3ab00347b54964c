"""How far a batch is, from its files alone: while it runs, after it was killed, from any machine
that sees the files."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rulerkit.batch import slurm
from rulerkit.batch.execution import is_done
from rulerkit.batch.jobs import Job, Need, Run, read_job, read_record
from rulerkit.errors import UserError
from rulerkit.lengths import length_name
from rulerkit.store import holder
from rulerkit.tables import Field, render

_LAST_LINES = 5


@dataclass(frozen=True)
class Step:
    """One line of a status: a model's answers, or a notebook."""

    title: str
    state: str
    """done, running, queued, failed, incomplete, interrupted, waiting or missing."""
    says: str = ""
    cells: tuple[int, int] = (0, 0)
    """How many cells are complete, of how many."""
    examples: tuple[int, int] = (0, 0)
    tokens_left: int = 0
    """Of prompts and answers, at most."""
    seconds_left: float | None = None
    """At the pace since its process began; None where there is none."""
    log: Path | None = None
    """Whose last lines say more: where nothing else was written, what a scheduler's job has
    said."""
    again: str = ""


def jobs_in(folder: Path) -> list[Job]:
    """The jobs that were planned in `outputs/notebooks/<run>`."""
    files = sorted(folder.glob("*/*.job.yaml"))
    if not files:
        raise UserError(
            f"{folder} holds no job: give a batch file, or outputs/notebooks/RUN of a batch that "
            "was begun"
        )
    jobs = [read_job(file) for file in files]
    return sorted(jobs, key=lambda job: job.model is None)


def steps(jobs: Iterable[Job]) -> list[Step]:
    """Every step of some jobs, as the files tell it now."""
    planned, in_queue = list(jobs), slurm.queued()
    busy = {job.file: _busy(job, in_queue) for job in planned}
    at_it = {job.name for job in planned if job.model and busy[job.file][0]}
    found: list[Step] = []
    for job in planned:
        found += [_answers(job, busy[job.file])] if job.model else []
        ahead = [name for name in job.after if name in at_it]
        found += [_notebook(job, run, busy[job.file], ahead) for run in job.runs]
    return found


def _busy(job: Job, in_queue: Mapping[str, slurm.Queued]) -> tuple[str, str]:
    """Whether somebody is at a job, or will be: `running` or `queued`, else "", and where."""
    owner, queued = holder(job.lock), slurm.find(job, in_queue)
    if owner:
        number = f", job {owner.job}" if owner.job else ""
        return "running", f"on {owner.host}{number}"
    if queued:
        begins = queued.state == "RUNNING" and not queued.shared
        why = "" if queued.state == "RUNNING" else f", {queued.state.lower()}, {queued.reason}"
        return (
            ("running", f"job {queued.number} begins")
            if begins
            else ("queued", f"job {queued.number}{why}")
        )
    return "", ""


def _answers(job: Job, busy: tuple[str, str]) -> Step:
    """How far a model is."""
    record = read_record(job.record)
    cannot = job.not_run(job.name)
    counts = [(need, need.have) for need in job.runnable(job.needs)]
    left = sum((need.wanted - have) * need.length for need, have in counts)
    state, says = busy if left else ("done", "")
    if left and not state:
        state, says = _ended(record, any(have for _, have in counts))
    problems = [need.problem for need, _ in counts if need.problem]
    more = [f"not run: {', '.join(map(length_name, sorted(cannot)))}"] if cannot else []
    more += (
        [problems[0] + (f" (and {len(problems) - 1} cells more)" if problems[1:] else "")]
        if problems
        else []
    )
    says = "; ".join([each for each in [says, *more] if each])
    return Step(
        job.title,
        state,
        says,
        (sum(have == need.wanted for need, have in counts), len(counts)),
        (sum(have for _, have in counts), sum(need.wanted for need, _ in counts)),
        left,
        _seconds_left(record, counts, left) if state == "running" else None,
        job.file.with_suffix(".out") if state in ("missing", "interrupted") else job.log,
        job.again,
    )


def _ended(record: Mapping[str, object], begun: bool) -> tuple[str, str]:
    """What became of a job that nobody is at."""
    if record.get("state") in ("failed", "incomplete"):
        return str(record["state"]), str(record.get("error"))
    if record.get("state") == "running":
        return "interrupted", "its process is gone; what it wrote is kept"
    return ("incomplete" if begun else "missing"), ""


def _seconds_left(
    record: Mapping[str, object], counts: list[tuple[Need, int]], left: int
) -> float | None:
    starts = record.get("starts")
    if not isinstance(starts, list) or not starts or not isinstance(starts[-1].get("tokens"), int):
        return None
    done = sum(have * need.length for need, have in counts) - starts[-1]["tokens"]
    passed = time.time() - starts[-1]["time"]
    return left * passed / done if done > 0 and passed > 0 else None


def _notebook(job: Job, run: Run, busy: tuple[str, str], ahead: list[str]) -> Step:
    """What became of a notebook; `ahead` are the models at work whose answers it reads."""
    if is_done(job, run):
        return Step(run.title, "done", str(run.output))
    record = read_record(run.record)
    state = str(record.get("state"))
    if busy[0] == "running" and state == "running":
        return Step(run.title, "running", busy[1])
    if busy[0] or ahead:
        return Step(run.title, "waiting", f"for {_names(ahead)}" if ahead else busy[1])
    if state in ("failed", "incomplete"):
        return Step(run.title, state, str(record.get("error")), log=run.log, again=job.again)
    says = "its answers have changed since" if state == "done" else ""
    return Step(
        run.title, "interrupted" if state == "running" else "missing", says, again=job.again
    )


def _names(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


# --- telling --------------------------------------------------------------------------------------


def told(found: list[Step]) -> list[str]:
    """A line per step, the last lines of what failed with the command to repeat it, and a line over
    all."""
    lines = []
    for step in found:
        more = [
            f"{step.cells[0]}/{step.cells[1]} cells, {step.examples[0]:,}/{step.examples[1]:,} "
            "examples"
        ] * (step.cells[1] > 0)
        more += [f"{step.tokens_left:,} tokens left"] * (step.tokens_left > 0)
        more += [f"about {duration(step.seconds_left)}"] * (step.seconds_left is not None)
        more += [step.says] * bool(step.says)
        lines.append(f"{step.state:12} {step.title:40} {'; '.join(more)}".rstrip())
        words = _last_lines(step.log) if step.state in ("failed", "interrupted", "missing") else []
        lines += [f"    | {line}" for line in words]
        if step.again and (words or step.state in ("failed", "incomplete", "interrupted")):
            lines.append(f"    again: {step.again}")
    states = [step.state for step in found]
    counted = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    left = sum(step.tokens_left for step in found)
    return [
        *lines,
        f"{len(found)} steps: {counted}" + (f"; {left:,} tokens left, at most" if left else ""),
    ]


def duration(seconds: float | None) -> str:
    """`5 h 20 min`, `3 min` or `40 s`."""
    whole = round(seconds or 0)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 60} min" if whole >= 60 else f"{whole} s"


def _last_lines(log: Path | None) -> list[str]:
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log else []
    except OSError:
        return []
    return [line.rstrip()[:300] for line in lines if line.strip()][-_LAST_LINES:]


def grid(job: Job) -> list[str]:
    """The cells of a model's job: a line per task, a column per length; how many examples are
    answered of how many."""
    cannot, lengths = job.not_run(job.name), sorted({need.length for need in job.needs})
    tasks: dict[str, dict[int, str]] = {}
    for need in job.needs:
        have = need.have
        said = (
            "not run"
            if need.length in cannot
            else str(have)
            if have == need.wanted
            else f"{have}/{need.wanted}"
        )
        tasks.setdefault(need.task, {})[need.length] = said
    rows = [[Field(task), *(Field(row.get(n, "")) for n in lengths)] for task, row in tasks.items()]
    return render([job.name, *map(length_name, lengths)], rows).splitlines()

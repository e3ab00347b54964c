"""Evaluation: models answer the examples of a study, and each answer is on disk at once.

`predict` lets one model answer the examples of one cell, `evaluate` all cells of a study; both ask
only for what is missing. `check_same` says whether cells may share a table: the `result` of their
records must agree; their environments (GPU, versions, commit) may differ, which becomes a footnote
(`tables.footnotes`).
"""

import atexit
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from rulerkit.adaptive import FIRST, Rule, State, replay
from rulerkit.errors import ModelError, TooLong, UserError, remark, shorten
from rulerkit.generation import Examples, asked_record, generate
from rulerkit.paths import cell_file
from rulerkit.settings import JSON
from rulerkit.store import (
    FORMAT,
    WAYS_OUT,
    Cell,
    DamagedCell,
    Lock,
    Log,
    Progress,
    cell_files,
    disk,
    failures_file,
    load_cell,
    machine,
    plain,
    repair,
    soft_file,
    write_whole,
)
from rulerkit.tasks import Task

if TYPE_CHECKING:
    from rulerkit.models import Answer, Failure, Model
    from rulerkit.studies import Study

ASK = "RULERKIT_ASK"
"""Environment variable; `never`: `evaluate` asks no model and returns what is stored."""
ABSENT = object()
_LISTED = 10  # incomplete cells that are named one by one
_LONGEST = 60  # characters of a value in a message
_BEFORE = 20  # and how many of them before the first that differs


# --- one model, several cells ---------------------------------------------------------------------


def predict(
    model: "Model",
    examples: Examples,
    folder: Path,
    fresh: bool = False,
    progress: Progress | Literal[False] | None = None,
    soft: bool = False,
) -> Cell:
    """Let a model answer the examples that have no answer yet; returns the cell with all its rows.

    See `predict_cells`, which does the same for several cells at once.
    """
    return predict_cells(model, [examples], folder, fresh, progress, soft=soft)[0]


def predict_cells(
    model: "Model",
    cells: Sequence[Examples],
    folder: Path,
    fresh: bool = False,
    progress: Progress | Literal[False] | None = None,
    max_failures: float = 0,
    soft: bool = False,
    rule: Rule | None = None,
) -> list[Cell]:
    """Let a model answer the examples of several tasks that have no answer yet, in one stream.

    `folder` is `predictions/<run>`. Rows are appended as the model answers. Answers of an earlier
    session stay where the record names the same task, length, seed, prompts, tokenizer, corpora
    and model; `fresh` moves the old files aside first. A request that failed goes to the ledger
    beside its cell and to stderr, and is sent again by the next call; `max_failures` is recorded
    for those who take means, and so is the `rule` of an adaptive run. With `soft` the soft scores
    that are missing are computed afterwards, of new and of earlier answers, and stored beside them.
    `progress`: None for a new bar, False for none, or a bar over many cells.

    Errors: `UserError` where a record or a prompt's digest differs, another process writes or the
    disk refuses; `ModelError` where the model raises a `UserError`, returns prompts, or leaves
    examples out; other errors of the model pass on. Every answer until then is on disk.
    """
    with ExitStack() as stack:
        about = {"max_failures": max_failures, "adaptive": rule and plain(asdict(rule))}
        jobs = [_Job(model, examples, folder, fresh, stack, about) for examples in cells]
        open_jobs = [job for job in jobs if job.missing]
        bar = progress or None
        wanted = sum(len(examples) for examples in cells)
        length = jobs[0].cell.length
        if progress is None and open_jobs:
            bar = stack.enter_context(Progress(length * wanted))
        if bar:
            task = f" {jobs[0].cell.task}" if len(jobs) == 1 else ""
            done = wanted - sum(len(_missing(job.cell, job.examples)) for job in jobs)
            bar.start(f"{model.name}{task} {length}", length, done, wanted)
        try:
            if open_jobs:
                _answer(model, open_jobs, bar)
        except TooLong:
            for job in open_jobs:
                job.discard_empty()
            raise
    found = [(load_cell(job.cell.path) or job.cell) for job in jobs]
    if soft:
        _add_soft(model, found, cells)
    return found


class _Job:
    """A cell and its examples without an answer; it is locked until `held` is closed."""

    def __init__(
        self,
        model: "Model",
        examples: Examples,
        folder: Path,
        fresh: bool,
        stack: ExitStack,
        asked: JSON,
    ) -> None:
        self.examples, self.missing, self.failures = examples, list[int](), list["Failure"]()
        self.held = stack.enter_context(ExitStack())
        result = plain({**examples.record(), "model": {"name": model.name, **model.identity()}})
        names = _folder_name(model.name), _folder_name(result["task"]["name"])
        path = cell_file(folder, *names, result["length"])
        about = {
            "label": model.label,
            "claimed_length": model.claimed_length,
            "aligned": model.aligned,
            "run": folder.name,
            **asked,
        }
        if not fresh and (cell := load_cell(path)):
            _check_result(cell, result)
            up_to_date = (
                about.items() <= {"max_failures": 0, "adaptive": None, **cell.record}.items()
            )
            enough = cell.record["num_examples"] >= len(examples)
            if up_to_date and enough and not _missing(cell, examples):
                self.cell = cell
                return
        with disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = self.held.enter_context(Lock(path.with_suffix(".lock")))
        if fresh:
            _move_aside(path)
        cell = load_cell(path) or Cell(path, {}, [])
        _check_result(cell, result)
        self.missing = _missing(cell, examples)
        if cell.record:
            repair(cell)
        if self.missing:
            _check_digests(cell, examples)
            _ = examples[self.missing[0]]  # fails before anything is written
        old = cell.record if cell.present else {}
        record = {"format": old.get("format", FORMAT), "result": result, **about}
        record |= _environments(old, model) if self.missing else _surroundings(cell.record)
        if self.missing and (floors := cell.record.get("floors") or _floors(examples)):
            record["floors"] = floors
        record["num_examples"] = max(old.get("num_examples", 0), len(examples))
        if record != cell.record:
            write_whole(path.with_suffix(".json"), json.dumps(record, indent=2) + "\n")
        self.cell, self.left = Cell(path, record), set(self.missing)

    def add_failure(self, index: int, failure: "Failure") -> None:
        """Append an attempt without an answer to the ledger beside the cell."""
        self.failures.append(failure)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with Log(failures_file(self.cell.path)) as ledger:
            ledger.append(
                {"index": index, "time": now, "reason": failure.reason, "refused": failure.refused}
            )

    def discard_empty(self) -> None:
        """Remove the files of a cell that has no row: nothing was begun."""
        path = self.cell.path
        if not path.exists() or not path.stat().st_size:
            for file in (path, path.with_suffix(".json")):
                file.unlink(missing_ok=True)


def _answer(model: "Model", jobs: list[_Job], bar: Progress | None) -> None:
    """Append a row for each missing example to the file of its cell, as the model answers."""
    from rulerkit.models import Failure

    model.asked = True  # type: ignore[attr-defined]
    by_task = {job.cell.task: job for job in jobs}
    logs = {task: job.held.enter_context(Log(job.cell.path)) for task, job in by_task.items()}
    answers = model.answer(job.examples[index] for job in jobs for index in job.missing)
    try:
        for example, answer in _errors_named(answers):
            job = by_task.get(example.task)
            if job is None or example.index not in job.left:
                raise ValueError(
                    f"{model.name} answered example {example.index}, which is not asked for (again)"
                )
            job.lock.check()
            if isinstance(answer, Failure):
                job.add_failure(example.index, answer)
            else:
                logs[example.task].append(_row(example, answer, model.name))
                if bar:
                    bar.update(example.num_tokens + answer.num_tokens)
            job.left.remove(example.index)
            if not job.left:
                job.held.close()  # its lock is not left behind if this process is killed later
    finally:
        getattr(answers, "close", lambda: None)()  # an engine may have requests under way
        for job in jobs:
            if job.failures:
                cell = job.cell
                remark(
                    f"{model.name}: {len(job.failures)} of {cell.wanted} examples of {cell.task} "
                    f"at {cell.length} have no answer ({job.failures[0].reason}): "
                    f"{failures_file(cell.path)} lists them, and the same command asks for them "
                    "again"
                )
    if unanswered := [job for job in jobs if job.left]:
        raise ModelError(
            f"{model.name} left {sum(len(job.left) for job in unanswered)} of "
            f"{sum(len(job.missing) for job in jobs)} examples of {unanswered[0].cell.path} "
            f"unanswered, the first is example {min(unanswered[0].left)}: the others are on disk; "
            "the same command asks for these again"
        )


def _add_soft(model: "Model", cells: Sequence[Cell], questions: Sequence[Examples]) -> None:
    """Append the soft scores that are missing to the file beside each cell: of the likeliest
    reference `gold_probability` (geometric mean over its tokens, 0..1), `gold_product` and
    `num_tokens`; `gold_greedy`: whether greedy decoding writes one of the references."""
    from rulerkit.soft import gold_logprobs

    asked, logs = [], {}
    with ExitStack() as stack:
        for cell, examples in zip(cells, questions, strict=True):
            if missing := [index for index in cell.without_soft if index < len(examples)]:
                lock = stack.enter_context(Lock(cell.path.with_suffix(".lock")))
                _check_digests(cell, examples)
                repair(side := Cell(soft_file(cell.path), cell.record))
                logs[cell.task] = lock, stack.enter_context(Log(side.path))
                asked += [(examples, index) for index in missing]
                del cell.soft  # it is read again
        if asked:
            remark(f"{model.name}: soft scores of {len(asked)} examples at {cells[0].length}")
        golds = gold_logprobs(model, (examples[index] for examples, index in asked))
        for example, found in _errors_named(golds):
            lock, log = logs[example.task]
            lock.check()
            best = max(([token.logprob for token in row] for row in found), key=fmean)
            soft = {
                "gold_probability": math.exp(fmean(best)),
                "gold_product": math.exp(sum(best)),
                "gold_greedy": any(all(token.greedy for token in row) for row in found),
                "num_tokens": len(best),
            }
            log.append({"index": example.index, "task": example.task, **soft})


def _errors_named(answers: "Iterable[tuple[Any, Any]]") -> "Iterator[tuple[Any, Any]]":
    """The answers; a `UserError` of the model becomes a `ModelError`: other models may go on."""
    try:
        yield from answers
    except TooLong:
        raise
    except UserError as error:
        raise ModelError(str(error)) from error


def _row(example: Any, answer: "Answer", name: str) -> dict[str, Any]:
    if not isinstance(answer.text, str):
        raise TypeError(
            f"{name} answered example {example.index} with {answer.text!r}, which is no text"
        )
    if _echoes(answer.text, example.prompt):
        raise ModelError(
            f"{name} returned the prompt of example {example.index} of {example.task}: the engine "
            "returns the prompt with its answer, which would score 100 everywhere; let it return "
            "only the new text (a transformers pipeline: return_full_text=False)"
        )
    row = {
        "index": example.index,
        "pred": answer.text,
        "outputs": list(example.references),
        "length": int(example.num_tokens) + int(example.max_new_tokens),
        "task": example.task,
        "digest": example.digest,
        "num_prompt_tokens": int(example.num_tokens),
        "finish_reason": answer.finish_reason,
        "depths": [float(depth) for depth in example.depths],
    }
    if getattr(example, "group", None) is not None:
        row["group"] = int(example.group)
    if answer.usage:
        row["usage"] = dict(answer.usage)
    return row


def _echoes(text: str, prompt: str) -> bool:
    """Whether a text holds the prompt: stretches from three places, in a text at least half as long.

    Its end alone is no sign: engines drop special tokens there. Nor is one stretch: a base model
    may repeat the question, and a thinking model quotes what it reads.
    """
    if not prompt or 2 * len(text) < len(prompt):
        return False
    written, asked = " ".join(text.split()), " ".join(prompt.split())
    places = [len(asked) * quarter // 4 for quarter in (1, 2, 3)]
    return all(asked[place : place + 100] in written for place in places)


def _missing(cell: Cell, examples: Examples) -> list[int]:
    return sorted(set(range(len(examples))) - set(cell.present))


def _check_result(cell: Cell, result: dict[str, Any]) -> None:
    """Rows made under another record are never mixed with new ones."""
    if cell.present and (found := differences(cell.record["result"], result)):
        field, old, new, more = describe_first(found)
        raise UserError(
            f"{cell.path} was made with {field} {old}, now it is {new}{more}: {WAYS_OUT}"
        )


def _check_digests(cell: Cell, examples: Examples) -> None:
    """The prompts of the first and the last answer must still be those that were answered."""
    rows = [row for row in cell.rows if row["index"] < len(examples)]
    for row in rows[:1] + rows[1:][-1:]:
        digest = examples[row["index"]].digest
        if digest != row["digest"]:
            raise UserError(
                f"{cell.path}: the prompt of example {row['index']} is no longer the one that was "
                f"answered (digest {row['digest']}, now {digest}): {WAYS_OUT}"
            )


def _move_aside(path: Path) -> None:
    """Rename old files with the time, rows first: a record without rows is ignored."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for file in cell_files(path):
        with disk(file):
            if file.exists():
                os.rename(file, file.with_name(f"{file.stem}.{now}.bak{file.suffix}"))


def _floors(examples: Examples) -> dict[str, float]:
    """What answers without reading score; nothing for examples not made by this package."""
    from rulerkit import floors, generation

    return floors.floors(examples) if isinstance(examples, generation.Examples) else {}


def _surroundings(record: dict[str, Any]) -> dict[str, Any]:
    return {key: record[key] for key in ("environment", "environments") if key in record}


def _environments(record: dict[str, Any], model: "Model") -> dict[str, Any]:
    """The environment of the last writer and, where they changed, all environments."""
    now = plain(machine(model.environment()))
    known = record.get("environments") or [record["environment"]] if record else []
    known = known if now in known else [*known, now]
    return {"environment": now, "environments": known} if len(known) > 1 else {"environment": now}


def _folder_name(name: str) -> str:
    if name.startswith(".") or "/" in name or "\\" in name or not name:
        raise UserError(
            f"{name!r} cannot name a folder of predictions: give the model or task a name without "
            "slashes"
        )
    return name


# --- studies --------------------------------------------------------------------------------------


def evaluate(
    study: "Study",
    fresh: bool = False,
    progress: bool = True,
    not_run: Callable[[str, int, str], None] | None = None,
    failed: Callable[[ModelError], None] | None = None,
) -> list[Cell]:
    """Let every model of a study answer all its tasks at all its lengths, shortest first; only what
    is missing.

    A length that a model cannot be given is left out and named, with the reason, on stderr and to
    `not_run`. Models come one after the other, each loaded when it has something to answer and
    closed before the next; the last one stays loaded for the next call, until another model is
    asked for or `close` is called.

    Where a model stops with an error, the other models still run and the cells hold its answers
    until then; the error goes to `failed`, or to stderr at the end. It is raised where no model has
    an answer.

    With `soft: true` the probability of the right answer is stored too; a model that does not tell
    it is a `UserError` before any is asked.

    Where all answers of a Python function or of a loaded checkpoint are stored, one line says so:
    not every change of code is seen.

    With RULERKIT_ASK=never in the environment (`rulerkit batch` sets it for its notebooks) no model
    is asked: the stored cells are returned, and what is missing is named.
    """
    if _asked is not None:
        _asked.append(study)
        return []
    if os.environ.get(ASK) == "never":
        return _stored_cells(study)
    fresh = fresh and not int(os.environ.get("SLURM_RESTART_COUNT") or 0)  # a requeued job resumes
    from rulerkit.soft import gold_logprobs

    def left_out(model: "Model", length: int, reason: object) -> None:
        remark(f"not run: {model.name} at {length}: {reason}")
        if not_run:
            not_run(model.name, length, str(reason))

    models = _ready(study.models)
    for model in models:
        if study.soft:
            gold_logprobs(model, ())  # raises where it does not tell
        for task in study.tasks:  # raises for a length or corpus before anything is asked
            _ = generate(task, study.lengths[0], 1, study.seed, model.prompt_format)[0].num_tokens
    tokens = study.repeat * len(models) * len(study.tasks) * sum(study.lengths) * study.num_examples
    cells: list[Cell] = []
    errors: list[ModelError] = []
    with Progress(tokens, disable=not progress or study.adaptive is not None) as bar:
        for spec, model in zip(study.models, models, strict=True):
            if not _loaded or _loaded[0][1] is not model:
                close()
                _loaded.append((spec, model))
            if getattr(model, "budget", None) is not None:
                model.spent = _spent(study, model.name)  # type: ignore[attr-defined]
            before, model.asked = len(cells), False  # type: ignore[attr-defined]
            try:
                for length in () if study.adaptive else study.lengths:
                    try:
                        cells += _one_length(study, model, length, fresh, bar)
                    except TooLong as reason:
                        left_out(model, length, reason)
                if study.adaptive:
                    cells += _adaptive(study, spec, model, fresh, progress, left_out)
            except ModelError as error:
                close()
                errors.append(error)
                known = {cell.path for cell in cells}
                stored = (cell for cell, place in _stored(study) if place[0] == model.name)
                cells += [cell for cell in stored if cell and cell.path not in known]
            except BaseException:
                close()
                raise
            in_python = not isinstance(spec, dict) or "entry" in spec
            if in_python and not model.asked and len(cells) > before:  # type: ignore[attr-defined]
                remark(
                    f"{model.name}: nothing was asked, all answers are stored; a change that its "
                    "record does not hold, such as a patch elsewhere, is not seen: another `name` "
                    "or `run`, or fresh=True, asks again"
                )
    if not cells and study.models and not not_run and not errors:
        raise UserError("nothing was asked: none of the lengths fits, for the reasons above")
    if errors and not any(cell.present for cell in cells):
        raise errors[0]
    for problem in errors:
        (failed or (lambda error: remark(str(error))))(problem)
    return cells


def _spent(study: "Study", name: str) -> float:
    """What the stored answers of a model in a study's run cost, in dollars."""
    stored = (cell for cell, place in _stored(study) if cell and place[0] == name)
    usages = (row.get("usage") or {} for cell in stored for row in cell.stream())
    return float(sum(usage.get("cost", 0.0) for usage in usages))


def _one_length(
    study: "Study",
    model: "Model",
    length: int,
    fresh: bool,
    bar: Progress | Literal[False] | None,
    counts: Iterable[int] | None = None,
    rule: Rule | None = None,
) -> Iterator[Cell]:
    """All tasks at one length, with the study's number of examples or `counts`, one for each task;
    raises `TooLong` where the model cannot be given it."""
    if reason := model.too_long(length):
        raise TooLong(reason)
    numbers = list(counts or [study.num_examples] * len(study.tasks))
    for model.repetition, folder in enumerate(study.folders):  # type: ignore[attr-defined]
        cells = [
            generate(task, length, count, study.seed, model.prompt_format)
            for task, count in zip(study.tasks, numbers, strict=True)
        ]
        limit = study.max_failures
        yield from predict_cells(model, cells, folder, fresh, bar, limit, study.soft, rule)


def _adaptive(
    study: "Study",
    spec: Any,
    model: "Model",
    fresh: bool,
    progress: bool,
    left_out: Callable[["Model", int, object], None],
) -> list[Cell]:
    """The rounds of one model, until its question is settled or requests fail."""
    assert study.adaptive
    bar: Literal[False] | None = None if progress else False
    cells, given = dict[Path, Cell](), list(study.lengths)
    before, state, counts = None, None, dict[tuple[str, int], int]()
    while given and (state is None or (state.settled is None and state != before)):
        names = tuple(task.name for task in study.tasks)
        rule = replace(study.adaptive, tasks=names, lengths=tuple(given))
        before, state = state, planned(replace(study, models=(spec,), lengths=rule.lengths), fresh)
        try:
            for length in given:  # before any is asked
                if reason := model.too_long(length):
                    raise TooLong(reason)
            for length in given:
                now = {key: count for key, count in state.counts.items() if key[1] == length}
                if now.items() <= counts.items():
                    continue
                for cell in _one_length(study, model, length, fresh, bar, now.values(), rule):
                    cells[cell.path] = cell
                counts |= now
            fresh = False
        except TooLong as error:
            left_out(model, length, error)
            given.remove(length)
            state = None
            counts.clear()
    if state:
        remark(f"{model.label or model.name}: {rule.describe(state)}")
    return list(cells.values())


def planned(study: "Study", fresh: bool = False) -> State:
    """The state of the adaptive run of a study's only model, by the rows on disk; `fresh` is the
    state before any."""
    assert study.adaptive
    scores, record = _by_index(study, fresh)
    others, other = dict[tuple[str, int], Any](), study.adaptive.other
    if other:
        others, _ = _by_index(replace(study, models=({"name": other},)))
        if not all(map(len, others.values())):
            raise UserError(
                f"question: {other} has no answers in {study.predictions} for all of these tasks "
                "and lengths: let it answer them first, under the same run and seed"
            )
    limits = record.get("claimed_length"), others, study.max_failures
    return replay(study.adaptive, scores, record.get("aligned", "chat"), *limits)


def _by_index(study: "Study", fresh: bool = False) -> tuple[dict[tuple[str, int], Any], JSON]:
    """The scores of the cells of a study's only model by index, up to the first example that was
    not asked; and the record of one of them."""
    import numpy as np

    from rulerkit.scoring import score

    once = replace(study, repeat=1)
    stored = {(t.name, n): None if fresh else cell for cell, (_, _, t, n) in _stored(once)}
    cells = {key: cell for key, cell in stored.items() if cell}
    scores, arrays = score(cells.values()), dict.fromkeys(stored, np.empty(0))
    for (task, length), cell in cells.items():
        known = {*cell.present, *cell.failures}
        rows = scores[(scores["task"] == task) & (scores["length"] == length)]
        by_index = dict(zip(rows["index"].tolist(), rows["score"].tolist(), strict=True))
        asked = itertools.takewhile(known.__contains__, itertools.count())
        arrays[task, length] = np.array([by_index.get(index, np.nan) for index in asked])
    return arrays, next((cell.record for cell in cells.values()), {})


def wanted(
    study: "Study", not_run: Callable[[str], Collection[int]] = lambda _: ()
) -> dict[Path, int]:
    """The examples that a study asks for by the file of each cell; of an adaptive run, those of the
    round that is open or was the last. `not_run`: the lengths that a model cannot be given."""
    counts = {path: study.num_examples for _, path, _, _ in study.cells()}
    for spec in study.models if study.adaptive else ():
        alone = replace(study, models=(spec,))
        skipped = not_run(next(alone.cells())[0])
        given = tuple(length for length in study.lengths if length not in skipped)
        state = planned(replace(alone, lengths=given))
        for _, path, task, length in alone.cells():
            counts[path] = state.counts.get((task.name, length), FIRST)
    return counts


def _stored(study: "Study") -> Iterator[tuple[Cell | None, tuple[str, Path, Task, int]]]:
    """Each cell of a study as it is stored, and what it is; None where there is none or a damaged
    one. Needs no model."""
    for place in study.cells():
        _, path, task, length = place
        try:
            cell = load_cell(path)
            if cell:
                asked = plain(asked_record(task, length, study.seed))
                _check_result(cell, cell.record["result"] | asked)
                cell.record["max_failures"] = study.max_failures
        except DamagedCell as error:
            remark(f"left out: {error}")
            cell = None
        yield cell, place


def _stored_cells(study: "Study") -> list[Cell]:
    """The cells that have an answer, complete or not; what is missing is named."""
    cells, missing, counts = [], [], wanted(study)
    for cell, (name, path, task, length) in _stored(study):
        have = sum(index < counts[path] for index in cell.present) if cell else 0
        cells += [cell] if cell and cell.present else []
        if have < counts[path]:
            missing.append(f"{name} {task.name} at {length}: {have} of {counts[path]} examples")
    for line in missing[:_LISTED]:
        remark(f"not answered: {line}")
    if more := missing[_LISTED:]:
        remark(f"not answered: {len(more)} cells more")
    if not cells:
        raise UserError(
            f"nothing was answered yet ({missing[0]}, ...), and {ASK}=never forbids to ask: let "
            f"the models answer first, with `rulerkit batch`, or unset {ASK}"
        )
    return cells


_asked: "list[Study] | None" = None


@contextmanager
def asked_studies() -> "Iterator[list[Study]]":
    """Within, `evaluate` asks no model and returns nothing: it appends its study to the list."""
    global _asked
    before, _asked = _asked, []
    try:
        yield _asked
    finally:
        _asked = before


_loaded: list[tuple[Any, "Model"]] = []
"""The model that is loaded now, if any, with its description."""


@atexit.register
def close() -> None:
    """Free what the last `evaluate` left loaded: memory, a GPU, the engine's process."""
    while _loaded:
        _loaded.pop()[1].close()


def _ready(specs: Iterable[Any]) -> list["Model"]:
    """The models that specs describe, no weights read yet; a model that is loaded is used again if
    it is the first."""
    from rulerkit.models import load_model

    first, *others = specs or [None]
    if not _loaded or _loaded[0][0] != first:
        close()
    same = [_loaded[0][1]] if _loaded else [load_model(first)] if first is not None else []
    return same + [load_model(spec) for spec in others]


# --- which cells may share a table ----------------------------------------------------------------

_RULES: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("run", "model"), ("task", "length", "sources")),
    (("run", "model", "task"), ("length",)),
    (("task",), ("length", "prompt_format", "tokenizer", "model")),
    (
        (),
        (
            *("task", "length", "sources", "seed"),
            *("prompt_version", "prompt_format", "tokenizer", "model"),
        ),
    ),
)
"""Cells that share the first fields agree in their `result` except in the second ones: the cells of
one model in one run, of one of its tasks, of one task over all models, and all cells (which leaves
the protocol). Tokens for thinking are part of the prompt format, so they may differ between models;
`max_new_tokens` is part of the task, and may not."""


def check_same(cells: Iterable[Cell]) -> None:
    """Raise a `UserError` where cells cannot share a table: their results are defined differently.

    Cells without rows and files of other programs, which do not say what defines them, are skipped.
    The numbers of examples may differ: tables show them.
    """
    ours = [cell for cell in cells if cell.present and "format" in cell.record]
    rooms = {form.get("thinking_room", "inside"): cell for cell in ours if (form := _thinks(cell))}
    if len(rooms) > 1:
        (old, cell), (new, other), *_ = rooms.items()
        raise _mixed(cell, other, [("prompt_format.thinking_room", old, new)])
    for shared_fields, free in _RULES:
        first: dict[tuple[str, ...], Cell] = {}
        for cell in ours:
            other = first.setdefault(tuple(getattr(cell, name) for name in shared_fields), cell)
            old, new = (
                {field: value for field, value in c.record["result"].items() if field not in free}
                for c in (other, cell)
            )
            if found := differences(old, new):
                raise _mixed(other, cell, found)


def _thinks(cell: Cell) -> dict[str, Any]:
    """The prompt format of a cell whose model thinks before it answers; else {}."""
    form: dict[str, Any] = cell.record["result"].get("prompt_format", {})
    return form if form.get("thinking_tokens") else {}


def _mixed(one: Cell, other: Cell, found: list[tuple[str, Any, Any]]) -> UserError:
    field, old, new, more = describe_first(found)
    runs = one.run != other.run
    names = [
        f"{c.model} {c.task} {c.length}" + (f" of run {c.run}" if runs else "")
        for c in (one, other)
    ]
    parts = [cell.path.parts for cell in (one, other)]
    shared = len(os.path.commonprefix(parts))  # noqa: RUF071
    alone = [Path(*part[: shared + 1]) for part in parts]  # the highest folder with one of them
    return UserError(
        f"{names[0]} was made with {field} {old}, {names[1]} with {new}{more}, and one table "
        f"cannot hold both: report {alone[0]} or {alone[1]} alone, give one of them a place of "
        "its own with run: NAME, or answer it anew with fresh=True "
        "(--fresh), which moves the old files aside"
    )


def differences(old: Any, new: Any, field: str = "") -> list[tuple[str, Any, Any]]:
    """Field, old and new value wherever two records differ in what defines their results."""
    if old == new:
        return []
    old, new = _compared(field, old), _compared(field, new)
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            difference
            for key in {**old, **new}
            for difference in differences(
                old.get(key, ABSENT), new.get(key, ABSENT), f"{field}.{key}" if field else key
            )
        ]
    if field.startswith(("model.weights", "model.code")) and ABSENT in (old, new):
        return []  # weights and code are compared by the digests that both records hold
    return [] if old == new else [(field, old, new)]


def _compared(field: str, value: Any) -> Any:
    """What of a field of a record is compared."""
    if re.fullmatch(
        r"tokenizer\.name|sources\..*\.(note|stand_in)|task\.(essays|dataset|words)", field
    ):
        return ABSENT  # fingerprints are compared instead
    defaults = {"protocol": "clean", "prompt_format.thinking_room": "inside"}
    if field in defaults and value is ABSENT:
        return defaults[field]  # records made before there were two
    if field == "model.engine_args" and isinstance(value, dict):  # early records hold all of them
        from rulerkit.models.server import NEUTRAL_ARGUMENTS

        changing = {k: v for k, v in value.items() if k not in NEUTRAL_ARGUMENTS}
        return changing or ABSENT
    return value


def describe_first(found: list[tuple[str, Any, Any]]) -> tuple[str, str, str, str]:
    """The first of some differences in words: field, old value, new value, and how many more there
    are. Long values are cut around the first character that differs."""
    field, *values = found[0]
    texts = ["absent" if value is ABSENT else json.dumps(value) for value in values]
    alike = len(os.path.commonprefix(texts))  # noqa: RUF071
    start = max(0, alike - _BEFORE) if max(map(len, texts)) > _LONGEST else 0
    old, new = [shorten("…" * bool(start) + text[start:], _LONGEST) for text in texts]
    return (
        shorten(field),
        old,
        new,
        f" (and {len(found) - 1} more differences)" if found[1:] else "",
    )

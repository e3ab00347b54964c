"""The writer of cells: a model answers the examples that have no answer yet, and each answer is on disk at once."""

import json
import math
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from rulerkit.common.errors import ModelError, TooLong, UserError, remark
from rulerkit.common.paths import cell_file
from rulerkit.common.progress import progress_bar
from rulerkit.common.settings import JSON
from rulerkit.generation.generate import Examples
from rulerkit.generation.without_reading import floors
from rulerkit.inference.model import Answer, Failure, Model, refuse_echo
from rulerkit.scoring.stopping import StoppingRule
from rulerkit.store.cells import (
    FORMAT,
    WAYS_OUT,
    Cell,
    cell_files,
    failures_file,
    load_cell,
    soft_file,
)
from rulerkit.store.comparable import describe_first, differences
from rulerkit.store.environment import machine
from rulerkit.store.files import Log, disk, write_whole
from rulerkit.store.locks import Lock
from rulerkit.store.records import plain


def predict(
    model: Model,
    examples: Examples,
    folder: Path,
    fresh: bool = False,
    progress: Any = None,
    soft: bool = False,
) -> Cell:
    """Let a model answer the examples that have no answer yet; returns the cell with all its rows.

    See `predict_cells`, which does the same for several cells at once.
    """
    return predict_cells(model, [examples], folder, fresh, progress, soft=soft)[0][0]


def predict_cells(
    model: Model,
    cells: Sequence[Examples],
    folder: Path,
    fresh: bool = False,
    progress: Any = None,
    max_failures: float = 0,
    soft: bool = False,
    rule: StoppingRule | None = None,
) -> tuple[list[Cell], bool]:
    """Let a model answer the examples of several tasks that have no answer yet, in one stream;
    returns the cells that then have answers, and whether anything was asked.

    `folder` is `predictions/<run>`. Rows are appended as the model answers. Answers of an earlier
    session stay where the record names the same task, length, seed, prompts, tokenizer, corpora
    and model; `fresh` moves the old files aside first. A request that failed is listed
    beside its cell and on stderr, and is sent again by the next call; `max_failures` is recorded
    for those who take means, and so is the `rule` of an adaptive run. With `soft` the soft scores
    that are missing are computed afterwards, of new and of earlier answers, and stored beside them.
    `progress`: None for a new bar, False for none, or a bar over many cells.

    Errors: `UserError` where a record or a prompt's digest differs, another process writes or the
    disk refuses; `ModelError` where the model raises a `UserError`, returns prompts, or leaves
    examples out; other errors of the model pass on. Every answer until then is on disk.
    """
    about = {
        "run": folder.name,
        "label": model.label,
        "claimed_length": model.claimed_length,
        "aligned": model.aligned,
        "max_failures": max_failures,
        "adaptive": rule and plain(asdict(rule)),
    }
    with ExitStack() as stack:
        jobs = [
            _Job(model, examples, folder, about, fresh, stack) for examples in cells
        ]
        if unanswered := [job for job in jobs if job.missing]:
            length, bar = jobs[0].length, progress
            if isinstance(progress, bool | None):
                tokens = length * sum(len(job.missing) for job in unanswered)
                bar = stack.enter_context(
                    progress_bar(tokens, disable=progress is False)
                )
            tasks = f"{jobs[0].task} " if len(jobs) == 1 else ""
            bar.set_description_str(f"{model.name} {tasks}{length}", refresh=False)
            _answer(model, unanswered, bar)
    stored = [cell for job in jobs if (cell := load_cell(job.path))]
    if soft:
        _add_soft(model, stored, cells)
    return stored, bool(unanswered)


class _Job:
    """A cell and its examples without an answer; it is locked until `held` is closed. Nothing is
    written before the first answer."""

    def __init__(
        self,
        model: Model,
        examples: Examples,
        folder: Path,
        about: JSON,
        fresh: bool,
        stack: ExitStack,
    ) -> None:
        self.examples, self.failures = examples, list[Failure]()
        self.result = plain(
            {**examples.record(), "model": {"name": model.name, **model.identity()}}
        )
        self.task, self.length = self.result["task"]["name"], self.result["length"]
        names = _folder_name(model.name), _folder_name(self.task)
        self.path = cell_file(folder, *names, self.length)
        self.held = stack.enter_context(ExitStack())
        if not fresh:
            self._compare(about)
            if not self.missing and self.record == self.stored:
                return
        with disk(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = self.held.enter_context(Lock(self.path.with_suffix(".lock")))
        if fresh:
            _move_aside(self.path)
        cell = self._compare(about)  # another process may have written since
        if not self.missing:
            self._write_record()
            return
        if cell:
            _check_digests(cell, examples)
        _ = examples[self.missing[0]]  # fails before anything is written
        self.record |= {"result": self.result, **_environments(self.record, model)}
        if "floors" not in self.record:
            # nothing for examples that this package did not make
            is_ours = isinstance(examples, Examples)
            self.record["floors"] = floors(examples) if is_ours else {}
        self.left = set(self.missing)

    def _compare(self, about: JSON) -> Cell | None:
        """Read what is stored, and find out what is missing; rows made under another record are
        never mixed with new ones."""
        cell = load_cell(self.path)
        present: list[int] = []
        self.stored: JSON = {}
        if cell and cell.present:
            _check_result(cell, self.result)
            present = cell.present
            self.stored = cell.record
        self.missing = sorted(set(range(len(self.examples))) - set(present))
        most = max(len(self.examples), self.stored.get("num_examples", 0))
        self.record = {"format": FORMAT, **self.stored, **about, "num_examples": most}
        return cell

    def _write_record(self) -> None:
        write_whole(
            self.path.with_suffix(".json"), json.dumps(self.record, indent=2) + "\n"
        )

    @cached_property
    def log(self) -> Log:
        """The file of rows, open; the record is written first."""
        self._write_record()
        return self.held.enter_context(Log(self.path))

    def add_failure(self, index: int, failure: Failure) -> None:
        """Append an attempt without an answer to the file of failures beside the cell."""
        self.failures.append(failure)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with Log(failures_file(self.path)) as log:
            log.append({"index": index, "time": now, **failure._asdict()})


def _answer(model: Model, jobs: list[_Job], bar: Any) -> None:
    """Append a row for each missing example to the file of its cell, as the model answers."""
    by_task = {job.task: job for job in jobs}
    asked = model.answer(job.examples[index] for job in jobs for index in job.missing)
    try:
        with closing(
            _errors_named(asked)
        ) as answers:  # an engine may have requests under way
            for example, answer in answers:
                job = by_task[example.task]
                job.left.remove(example.index)
                job.lock.check()
                log = job.log
                if isinstance(answer, Failure):
                    job.add_failure(example.index, answer)
                else:
                    log.append(_row(example, answer, model.name))
                    tokens = example.num_tokens + answer.num_tokens
                    bar.total += tokens - job.length
                    bar.update(tokens)
                if not job.left:
                    job.held.close()  # its lock is not left behind if this process is killed later
    finally:
        for job in jobs:
            if job.failures:
                remark(
                    f"{model.name}: {len(job.failures)} of {job.record['num_examples']} examples "
                    f"of {job.task} at {job.length} have no answer ({job.failures[0].reason}): "
                    f"{failures_file(job.path)} lists them, and the same command asks for them "
                    "again"
                )
    for job in jobs:
        if job.left:
            raise ModelError(
                f"{model.name} left {len(job.left)} of {len(job.missing)} examples of {job.path} "
                f"unanswered, the first is example {min(job.left)}: the others are on disk; the same "
                "command asks for these again"
            )


def _add_soft(
    model: Model, cells: Sequence[Cell], questions: Sequence[Examples]
) -> None:
    """Append the soft scores that are missing to the file beside each cell: of the likeliest
    reference `gold_probability` (geometric mean over its tokens, 0..1), `gold_product` and
    `num_tokens`; `gold_greedy`: whether greedy decoding writes one of the references."""
    from rulerkit.evaluation.soft import gold_logprobs

    asked, logs = [], {}
    with ExitStack() as stack:
        for cell, examples in zip(cells, questions, strict=True):
            if missing := [
                index for index in cell.without_soft if index < len(examples)
            ]:
                lock = stack.enter_context(Lock(cell.path.with_suffix(".lock")))
                _check_digests(cell, examples)
                side = soft_file(cell.path)
                logs[cell.task] = lock, stack.enter_context(Log(side))
                asked += [(examples, index) for index in missing]
                del cell.soft  # it is read again
        if asked:
            remark(
                f"{model.name}: soft scores of {len(asked)} examples at {cells[0].length}"
            )
        golds = gold_logprobs(model, (examples[index] for examples, index in asked))
        for example, answers in _errors_named(golds):
            lock, log = logs[example.task]
            lock.check()
            best = max(([token.logprob for token in row] for row in answers), key=fmean)
            soft = {
                "gold_probability": math.exp(fmean(best)),
                "gold_product": math.exp(sum(best)),
                "gold_greedy": any(
                    all(token.greedy for token in row) for row in answers
                ),
                "num_tokens": len(best),
            }
            log.append({"index": example.index, "task": example.task, **soft})


def _errors_named(answers: Iterable[Any]) -> Generator[Any]:
    """The answers; a `UserError` of the model becomes a `ModelError`: other models may go on."""
    try:
        yield from answers
    except TooLong:
        raise
    except UserError as error:
        raise ModelError(str(error)) from error


def _row(example: Any, answer: Answer, name: str) -> JSON:
    refuse_echo(name, example, answer.text)
    row = {
        "index": example.index,
        "pred": answer.text,
        "outputs": list(example.references),
        "length": example.num_tokens + example.max_new_tokens,
        "task": example.task,
        "digest": example.digest,
        "num_prompt_tokens": example.num_tokens,
        "finish_reason": answer.finish_reason,
        "depths": list(example.depths),
    }
    if example.group is not None:
        row["group"] = example.group
    if answer.usage:
        row["usage"] = dict(answer.usage)
    return row


def _check_result(cell: Cell, result: JSON) -> None:
    """Raise a `UserError` where the rows of a cell were made under another record."""
    if changes := differences(cell.record["result"], result):
        field, old, new, more = describe_first(changes)
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


def _environments(record: JSON, model: Model) -> JSON:
    """The environment of the last writer and, where they changed, all environments."""
    now = plain(machine(model.environment()))
    known = record.get("environments") or [record.get("environment", now)]
    if now not in known:
        known = [*known, now]
    return {"environment": now} | ({"environments": known} if known[1:] else {})


def _folder_name(name: str) -> str:
    if name.startswith(".") or "/" in name or "\\" in name or not name:
        raise UserError(
            f"{name!r} cannot name a folder of predictions: give the model or task a name without "
            "slashes"
        )
    return name

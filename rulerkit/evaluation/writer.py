"""The writer of cells: a model answers the examples that have no answer yet, and each answer is on
disk at once.

`predict_cells` is the loop; a `CellWriter` owns the lock, the record and the file of rows of one
cell.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rulerkit.common.errors import ModelError, UserError, remark, shortened
from rulerkit.common.paths import cell_file
from rulerkit.common.plugins import source_digest
from rulerkit.common.progress import progress_bar
from rulerkit.common.settings import JSON
from rulerkit.generation.generate import Examples
from rulerkit.generation.tasks import Task
from rulerkit.generation.without_reading import begins_alike, copy_beginning
from rulerkit.inference.model import Answer, Failure, Model, errors_of_model, refuse_echo
from rulerkit.scoring.scores import judged_text
from rulerkit.scoring.stopping import StoppingRule
from rulerkit.store.cells import WAYS_OUT, Cell, cell_files, failures_file, load_cell
from rulerkit.store.comparable import check_digests, check_result
from rulerkit.store.environment import machine
from rulerkit.store.files import Log, disk, write_whole
from rulerkit.store.locks import Lock
from rulerkit.store.records import FORMAT, ROW, check_line, plain, record_text, result_digest


def predict(
    model: Model,
    examples: Examples,
    folder: Path,
    fresh: bool = False,
    progress: Any = None,
) -> Cell:
    """Let a model answer the examples that have no answer yet; returns the cell with all its rows.

    See `predict_cells`, which does the same for several cells at once.
    """
    return predict_cells(model, [examples], folder, fresh, progress).cells[0]


class Predicted(NamedTuple):
    """The cells that have answers, and whether the model was asked for any of them."""

    cells: list[Cell]
    any_asked: bool


def predict_cells(
    model: Model,
    cells: Sequence[Examples],
    folder: Path,
    fresh: bool = False,
    progress: Any = None,
    max_failures: float = 0,
    rule: StoppingRule | None = None,
) -> Predicted:
    """Let a model answer the examples of several tasks that have no answer yet, in one stream.

    `folder` is `predictions/<run>`. Rows are appended as the model answers. Answers of an earlier
    session stay where the record names the same task, length, seed, prompts, tokenizer, corpora and
    model; `fresh` moves the old files aside first. A request that failed is listed beside its cell
    and on stderr, and the next call sends it again. `max_failures` and the `rule` of an adaptive
    run are recorded for those who take means. `progress`: None for a new bar, False for none, or a
    bar over many cells.

    Errors: `UserError` where a record or a prompt's digest differs, another process writes or the
    disk refuses; `ModelError` where the model raises a `UserError`, returns prompts, or leaves
    examples out; other errors of the model pass on. Every answer until then is on disk.
    """
    settings = {
        "run": folder.name,
        "label": model.label,
        "claimed_length": model.claimed_length,
        "aligned": model.aligned,
        "max_failures": max_failures,
        "adaptive": plain(asdict(rule)) if rule else None,
    }
    with ExitStack() as stack:
        writers = []
        for examples in cells:
            writer = CellWriter(model, examples, folder, settings)
            stack.callback(writer.close)
            writer.open(fresh)
            writers.append(writer)

        unanswered = [writer for writer in writers if writer.missing]
        if unanswered:
            bar = progress
            if progress is None or isinstance(progress, bool):
                tokens = sum(len(w.missing) * w.length for w in unanswered)
                bar = progress_bar(tokens, disable=progress is False)
                stack.enter_context(bar)
            first = writers[0]
            task = f"{first.task} " if len(writers) == 1 else ""
            bar.set_description_str(f"{model.name} {task}{first.length}", refresh=False)
            _answer(model, unanswered, bar)

    stored = [load_cell(writer.path) for writer in writers]
    return Predicted([cell for cell in stored if cell], bool(unanswered))


def _answer(model: Model, writers: list["CellWriter"], bar: Any) -> None:
    """Ask a model for all missing examples, and write each answer as it comes, in any order."""
    writer_of = {writer.task: writer for writer in writers}
    examples = (writer.examples[index] for writer in writers for index in writer.missing)
    try:
        # An engine may have requests under way: closing ends them where we stop early.
        with closing(errors_of_model(model.answer(examples))) as answers:
            for answered in answers:
                example, answer = _checked(answered, model)
                writer_of[example.task].write(example, answer, bar)
    finally:
        for writer in writers:
            writer.remark_failures()

    for writer in writers:
        if writer.left:
            raise ModelError(
                f"{model.name} left {len(writer.left)} of {len(writer.missing)} examples of "
                f"{writer.path} unanswered, the first is example {min(writer.left)}: the others "
                "are on disk; the same command asks for these again"
            )


def _checked(answered: Any, model: Model) -> tuple[Any, Answer | Failure]:
    """What a model yields; raises `ModelError` where it is no example with an answer."""
    match answered:
        case (example, Answer() | Failure() as answer):
            return example, answer
    raise ModelError(
        f"{model.name}: its engine yields {shortened(answered)}: it must yield each example with "
        "an Answer or a Failure"
    )


class CellWriter:
    """The writer of one cell: it owns the lock, the record and the file of rows.

    `open` finds out what is missing and locks the cell where something is. Nothing is written
    before the first answer, so that a model that cannot start leaves no trace.
    """

    def __init__(self, model: Model, examples: Examples, folder: Path, settings: JSON) -> None:
        self.model, self.examples = model, examples
        self.result = plain(
            {
                **examples.record(),
                "model": {
                    "name": model.name,
                    # A model made in Python need not name one.
                    "engine": "",
                    **model.identity(),
                },
            }
        )
        """What defines the answers; it stands in the record."""
        self._result_digest = result_digest(self.result)
        self.task: str = self.result["task"]["name"]
        self.length: int = self.result["length"]
        self.path = cell_file(
            folder, _folder_name(model.name), _folder_name(self.task), self.length
        )
        self.missing: list[int] = []
        """The indices of the examples without an answer when the cell was opened."""
        self.left = set[int]()
        """Those of them that were neither answered nor failed since."""

        # Few models read prompts in a way of their own; the records of others do not mention it.
        note = getattr(model, "protocol_note", None)
        self._settings = {**settings, **_standing(examples)}
        if note:
            self._settings["protocol_note"] = note
        self._record: JSON = {}
        self._stored_record: JSON = {}
        self._failures: list[Failure] = []
        self._lock: Lock | None = None
        self._log: Log | None = None
        self._held = ExitStack()

    def open(self, fresh: bool) -> None:
        """Find out which examples have no answer yet, and lock the cell where there are some."""
        if not fresh:
            self._read()
            # A complete cell is not even locked: many processes may read it.
            if not self.missing and self._record == self._stored_record:
                return

        with disk(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self._held.enter_context(Lock(self.path.with_suffix(".lock")))
        if fresh:
            _move_aside(self.path)

        # Another process may have written before the lock was ours.
        stored = self._read()
        if not self.missing:
            self._write_record()
            return
        # Failed requests of what was asked otherwise say nothing about this cell.
        if stored and stored.result != self._result_digest:
            if stored.present:
                raise UserError(
                    f"{self.path} was begun by an earlier version of rulerkit, whose records can "
                    f"be read and not continued: {WAYS_OUT}"
                )
            _move_aside(self.path)
            stored = self._read()
        if stored:
            check_digests(stored, self.examples)
        # An example that cannot be made fails here, before anything is written.
        _ = self.examples[self.missing[0]]

        self._record["result"] = self.result
        self._add_environment()
        self.left = set(self.missing)

    def write(self, example: Any, answer: Answer | Failure, bar: Any) -> None:
        """Write what became of an example, and move the progress bar."""
        if isinstance(answer, Failure):
            self._write_failure(example, answer)
        else:
            self._write_row(example, answer)
            # The bar counted the whole length: correct it by what the example took.
            tokens = example.num_tokens + answer.num_tokens
            bar.total += tokens - self.length
            bar.update(tokens)
        # A complete cell leaves no lock behind if this process is killed later.
        if not self.left:
            self.close()

    def _write_row(self, example: Any, answer: Answer) -> None:
        """Append the row of an example; the record is written before the first row."""
        # The prompt would be scored as the answer: 100 everywhere.
        refuse_echo(self.model.name, example, answer.text)
        row = _row(example, answer)
        # What is judged with the answer is kept with it. Examples from elsewhere have no task.
        task = getattr(self.examples, "task", None)
        prefix = task.judged_prefix(example) if isinstance(task, Task) else ""
        if prefix:
            row["answer_prefix"] = prefix
        if isinstance(task, Task) and task.beginning_scores:
            beginning = prefix + copy_beginning(example, self.examples.prompt_format.tokenizer)
            text, _ = judged_text(row, {"result": self.result})
            row["copied"] = task.score(beginning, example.references)
            row["is_copy"] = begins_alike(text, beginning)
        # What could not be read again is not written.
        try:
            check_line(ROW, plain(row))
        except ValueError as error:
            raise ModelError(
                f"{self.model.name}: its answer to example {example.index} of {self.task} cannot "
                f"be stored ({error}): an answer is a text with finish_reason stop or length, and "
                "numbers in `usage`"
            ) from None
        self._take_turn(example).append(self._tied(row))

    def _tied(self, line: JSON) -> JSON:
        """A line that names the result that it was made under."""
        return {**line, "result": self._result_digest}

    def _write_failure(self, example: Any, failure: Failure) -> None:
        """Append an attempt without an answer to the file of failures beside the cell. The example
        gets no row: the next call asks for it again."""
        self._take_turn(example)
        self._failures.append(failure)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with Log(failures_file(self.path)) as log:
            line = {"index": example.index, "time": now, **failure._asdict()}
            log.append(self._tied(line))

    def remark_failures(self) -> None:
        """Say on stderr how many requests failed, if any, and where they are listed."""
        if self._failures:
            remark(
                f"{self.model.name}: {len(self._failures)} of {self._record['num_examples']} "
                f"examples of {self.task} at {self.length} have no answer "
                f"({self._failures[0].reason}): {failures_file(self.path)} lists them, and the "
                "same command asks for them again"
            )

    def close(self) -> None:
        """Close the file and give the lock back."""
        self._held.close()

    def _read(self) -> Cell | None:
        """Read what is on disk. Rows made under another record are never mixed with new ones."""
        stored = load_cell(self.path)
        present: list[int] = []
        self._stored_record = {}
        if stored and stored.present:
            check_result(stored, self.result)
            present = stored.present
            self._stored_record = stored.record

        self.missing = sorted(set(range(len(self.examples))) - set(present))
        # A later call with fewer examples does not forget that there are more.
        earlier = self._stored_record.get("num_examples", 0)
        self._record = {
            "format": FORMAT,
            **self._stored_record,
            **self._settings,
            "num_examples": max(len(self.examples), earlier),
        }
        return stored

    def _take_turn(self, example: Any) -> Log:
        """Check that an example that came back was asked for and that the cell is still ours;
        returns the file of rows. The record is written before it is opened first."""
        if example.index not in self.left:
            raise ModelError(
                f"{self.model.name}: its engine answered example {example.index} of {self.task} "
                "twice, or was not asked for it"
            )
        self.left.remove(example.index)
        assert self._lock is not None
        self._lock.check()
        if self._log is None:
            self._write_record()
            self._log = self._held.enter_context(Log(self.path))
        return self._log

    def _write_record(self) -> None:
        text = record_text(self._record)
        write_whole(self.path.with_suffix(".json"), text)

    def _add_environment(self) -> None:
        """Record the environment of this writer, and all of them where they changed."""
        now = plain(machine(self.model.environment()))
        only = [self._record.get("environment", now)]
        known = self._record.get("environments", only)
        if now not in known:
            known = [*known, now]

        self._record["environment"] = now
        if len(known) > 1:
            self._record["environments"] = known


def _standing(examples: Any) -> JSON:
    """The suite and the threshold of the task, which say what its scores may be held against, and
    the source of a family from outside, which says how they come about."""
    # Examples from elsewhere need not have a task.
    task = getattr(examples, "task", None)
    if not isinstance(task, Task):
        return {"suite": "ruler", "threshold": None}
    standing: JSON = {"suite": task.suite, "threshold": task.threshold}
    if "module" in task.settings():
        standing["family_source"] = source_digest(type(task).__module__)
    return standing


def _row(example: Any, answer: Answer) -> JSON:
    """The row of an example, with upstream's names where it has them."""
    # The index comes first: it is read without parsing the row.
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

    # Fields that most rows lack are left out: rows are read far more often than
    # written.
    if example.group is not None:
        row["group"] = example.group
    if answer.usage:
        row["usage"] = dict(answer.usage)
    return row


def _move_aside(path: Path) -> None:
    """Rename the old files of a cell with the time. Rows go first: a record without rows is
    ignored."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for file in cell_files(path):
        with disk(file):
            if file.exists():
                os.rename(file, file.with_name(f"{file.stem}.{now}.bak{file.suffix}"))


def _folder_name(name: str) -> str:
    if not name or name.startswith(".") or "/" in name or "\\" in name:
        raise UserError(
            f"{name!r} cannot name a folder of predictions: give the model or task a name without "
            "slashes"
        )
    return name

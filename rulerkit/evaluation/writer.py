"""The answers of one length: a model answers the examples that have no answer yet, and each answer
is on disk at once.

`ask_length` is the loop; a `CellWriter` owns the lock, the record and the file of rows of one cell.
"""

import json
import os
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rulerkit.common.errors import Elsewhere, ModelError, counted, remark
from rulerkit.common.paths import cell_file
from rulerkit.common.progress import in_notebook
from rulerkit.common.settings import JSON
from rulerkit.evaluation.study import Study
from rulerkit.generation.example import Example, begins_alike, copy_beginning
from rulerkit.generation.generate import Examples
from rulerkit.inference.model import Answer, Failure, Model, answers_of, refuse_echo
from rulerkit.scoring.scores import answer_of
from rulerkit.store.cells import Cell, cell_files, failures_file, load_cell
from rulerkit.store.comparable import check_digests, check_result
from rulerkit.store.files import Lock, Log, disk, write_whole
from rulerkit.store.records import FORMAT, ROW, checked, machine, plain, result_digest, row_line

_LOOK_AGAIN = 2.0  # seconds between two looks at a cell that another process writes


def ask_length(
    model: Model, cells: Sequence[Examples], study: Study, fresh: bool, bar: Any
) -> list[Cell]:
    """Let a model answer the examples of several tasks that have no answer yet, in one stream;
    returns the cells that have answers.

    The study says where; its `max_failures` and the rule of an adaptive run are recorded for those
    who take means. Answers of an earlier session stay where the record names the same task, length,
    seed, prompts, tokenizer, corpora and model; `fresh` moves the old files aside first. In a
    notebook, cells that another process writes are waited for, after the others. A request that
    failed is listed beside its cell and on stderr, and the next call sends it again.

    Errors: `UserError` where a record or a prompt's digest differs, another process writes or the
    disk refuses; `ModelError` where the model raises a `UserError`, returns prompts, or leaves
    examples out; other errors of the model pass on. Every answer until then is on disk.
    """
    writers = [CellWriter(model, examples, study) for examples in cells]
    waiting = writers
    while waiting:
        waiting = _ask(model, waiting, fresh, bar)
    written = [load_cell(writer.path) for writer in writers]
    return [cell for cell in written if cell]


def _ask(model: Model, writers: "list[CellWriter]", fresh: bool, bar: Any) -> "list[CellWriter]":
    """Let a model answer what is missing in cells of one length; returns those that another process
    writes, after a while."""
    opened, busy = list[CellWriter](), list[CellWriter]()
    # However it ends, the engine's requests under way end first, then all cells are closed.
    with ExitStack() as stack:
        for writer in writers:
            stack.callback(writer.close)
            try:
                writer.open(fresh)
                opened.append(writer)
            except Elsewhere as error:
                busy.append(writer)
                elsewhere = error
            # Two notebooks of one model share cells: the second one answers others first.
            if busy and (fresh or not in_notebook()):
                raise elsewhere

        unanswered = {writer.task: writer for writer in opened if writer.missing}
        if unanswered:
            bar.set_description_str(f"{model.name} {opened[0].length}", refresh=False)
            missing = (w.examples[index] for w in unanswered.values() for index in w.missing)
            answers = stack.enter_context(closing(answers_of(model, missing)))
            for example, answer in answers:
                writer = unanswered[example.task]
                writer.write(example, answer, bar)
        for writer in opened:
            if writer.left:
                raise ModelError(
                    f"{model.name} left {len(writer.left)} of {len(writer.missing)} examples of "
                    f"{writer.path} unanswered, the first is example {min(writer.left)}: the "
                    "others are on disk; the same command asks for these again"
                )

    # What is answered is free for others before anything is waited for.
    if busy and opened:
        remark(f"waiting for {counted(len(busy), 'cell')}: {elsewhere}")
    if busy:
        time.sleep(_LOOK_AGAIN)
    return busy


class CellWriter:
    """The writer of one cell: it owns the lock, the record and the file of rows.

    `open` finds out what is missing and locks the cell where something is. Nothing is written
    before the first answer, so that a model that cannot start leaves no trace.
    """

    def __init__(self, model: Model, examples: Examples, study: Study) -> None:
        self.model, self.examples = model, examples
        # A model made in Python need not name an engine.
        identity = {"name": model.name, "engine": "", **model.identity()}
        self.result = plain({**examples.record(), "model": identity})
        """What defines the answers; it stands in the record."""
        self._digest = result_digest(self.result)
        self.task: str = self.result["task"]["name"]
        self.length: int = self.result["length"]
        self.path = cell_file(study.predictions, model.name, self.task, self.length)
        self.missing: list[int] = []
        """The indices of the examples without an answer when the cell was opened."""
        self.left = set[int]()
        """Those of them that were neither answered nor failed since."""

        self._settings = {
            "run": study.run,
            "label": model.label,
            "claimed_length": model.claimed_length,
            "aligned": model.aligned,
            "max_failures": study.max_failures,
            "adaptive": plain(asdict(study.adaptive)) if study.adaptive else None,
            # What scores may be held against.
            "suite": examples.task.suite,
            "threshold": examples.task.threshold,
        }
        # Few models read prompts in a way of their own.
        if model.protocol_note:
            self._settings["protocol_note"] = model.protocol_note
        self._record: JSON = {}
        self._failures: list[Failure] = []
        self._lock: Lock | None = None
        self._log: Log | None = None
        self._held = ExitStack()

    def open(self, fresh: bool) -> None:
        """Find out which examples have no answer yet, and lock the cell where there are some."""
        if not fresh:
            stored = load_cell(self.path)
            self._find_missing(stored)
            # A complete cell is not even locked: many processes may read it.
            if stored and not self.missing and self._record == stored.record:
                return

        with disk(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = self._held.enter_context(Lock(self.path.with_suffix(".lock")))
        if fresh:
            _move_aside(self.path)

        # Another process may have written before the lock was ours.
        stored = load_cell(self.path)
        self._find_missing(stored)
        if not self.missing:
            write_whole(self.path.with_suffix(".json"), json.dumps(self._record, indent=2) + "\n")
            return
        # Failed requests of what was asked otherwise say nothing about this cell.
        if stored and stored.result != self._digest:
            _move_aside(self.path)
            self._find_missing(None)
        elif stored:
            check_digests(stored, self.examples)

        # The environment of this writer, and all of them where they changed.
        now = plain(machine(self.model.environment()))
        environments = self._record.get("environments", [self._record.get("environment", now)])
        if now not in environments:
            environments = [*environments, now]
        self._record |= {"result": self.result, "environment": now}
        if len(environments) > 1:
            self._record["environments"] = environments
        self.left = set(self.missing)

    def _find_missing(self, stored: Cell | None) -> None:
        """Find out what is missing in what is on disk. Rows made under another record are never
        mixed with new ones."""
        present: Collection[int] = ()
        before: JSON = {}
        if stored and stored.coverage.have:
            check_result(stored, self.result)
            present, before = stored.coverage.have, stored.record

        self.missing = sorted(set(range(len(self.examples))).difference(present))
        # A later call with fewer examples does not forget that there are more.
        most = max(len(self.examples), before.get("num_examples", 0))
        self._record = {"format": FORMAT, **before, **self._settings, "num_examples": most}

    def write(self, example: Example, answer: Answer | Failure, bar: Any) -> None:
        """Append the row of an example, which moves the progress bar, or the attempt that left it
        without an answer. The record is written before the first line."""
        # What cannot be stored ends the model's work before anything is written.
        row = self._row(example, answer) if isinstance(answer, Answer) else {}
        if example.index not in self.left:
            raise ModelError(
                f"{self.model.name}: its engine answered example {example.index} of {self.task} "
                "twice, or was not asked for it"
            )
        self.left.remove(example.index)
        assert self._lock is not None
        self._lock.check()
        if self._log is None:
            write_whole(self.path.with_suffix(".json"), json.dumps(self._record, indent=2) + "\n")
            self._log = self._held.enter_context(closing(Log(self.path)))

        if isinstance(answer, Failure):
            # The example gets no row: the next call asks for it again.
            self._failures.append(answer)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            attempt = {"index": example.index, "time": now, **answer._asdict()}
            with closing(Log(failures_file(self.path))) as log:
                log.append(row_line(attempt, self._digest))
        else:
            self._log.append(row_line(row, self._digest))
            # The bar counted the whole length: correct it by what the example took.
            tokens = example.num_tokens + answer.num_tokens
            bar.total += tokens - self.length
            bar.update(tokens)
        # A complete cell leaves no lock behind if this process is killed later.
        if not self.left:
            self.close()

    def _row(self, example: Example, answer: Answer) -> JSON:
        """The row of an example, with upstream's names where it has them."""
        # The prompt would be scored as the answer: 100 everywhere.
        refuse_echo(self.model.name, example, answer.text)
        # The index comes first: it is read without parsing the row.
        row: JSON = {
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
        # Fields that most rows lack are left out: rows are read far more often than written.
        if example.group is not None:
            row["group"] = example.group
        if answer.usage:
            row["usage"] = dict(answer.usage)
        # What is judged with the answer is kept with it.
        task = self.examples.task
        prefix = example.answer_prefix if task.judges_prefix else ""
        if prefix:
            row["answer_prefix"] = prefix
        if task.beginning_scores:
            beginning = prefix + copy_beginning(example, self.examples.prompt_format.tokenizer)
            text, _ = answer_of(row["pred"], {"result": self.result}, row.get("answer_prefix", ""))
            row["copied"] = task.score(beginning, example.references)
            row["is_copy"] = begins_alike(text, beginning)
        # What could not be read again is not written.
        try:
            checked(ROW, plain(row))
        except ValueError as error:
            raise ModelError(
                f"{self.model.name}: its answer to example {example.index} of {self.task} cannot "
                f"be stored ({error}): an answer is a text with finish_reason stop or length, and "
                "numbers in `usage`"
            ) from None
        return row

    def close(self) -> None:
        """Close the file and give the lock back; stderr says how many requests failed, if any."""
        self._held.close()
        if self._failures:
            remark(
                f"{self.model.name}: {len(self._failures)} of {self._record['num_examples']} "
                f"examples of {self.task} at {self.length} have no answer "
                f"({self._failures[0].reason}): {failures_file(self.path)} lists them, and the "
                "same command asks for them again"
            )
        self._failures = []


def _move_aside(path: Path) -> None:
    """Rename the old files of a cell with the time. Rows go first: a record without rows is
    ignored."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for file in cell_files(path):
        with disk(file):
            if file.exists():
                os.rename(file, file.with_name(f"{file.stem}.{now}.bak{file.suffix}"))

"""Predictions: what a model said, kept row by row as it says it, so that nothing is asked or paid
for twice.

A cell is one model on one task at one length: `predictions/<run>/<model>/<task>/<length>.jsonl`, a
row per example, and `<length>.json` beside it, the record of how they were made. The two files
alone say whether a cell is complete. Requests that failed are listed in `<length>.failures.jsonl`,
a line per attempt.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rulerkit.errors import ModelError, TooLong, UserError, remark
from rulerkit.inference.cells import FORMAT, WAYS_OUT, Cell, failures_file, load_cell
from rulerkit.inference.locks import Lock
from rulerkit.inference.progress import Bar, Progress
from rulerkit.inference.sameness import differences, first_of
from rulerkit.inference.store import Log, disk, machine, plain, write_whole
from rulerkit.paths import cell_file

if TYPE_CHECKING:
    from rulerkit.models import Answer, Failure, Model


class Examples(Protocol):
    """What `generate` returns, as far as it matters here: examples made when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...
    def record(self) -> dict[str, Any]: ...


def predict(
    model: "Model",
    examples: Examples,
    folder: Path,
    fresh: bool = False,
    progress: Bar | Literal[False] | None = None,
) -> Cell:
    """Let a model answer the examples that have no answer yet, and return the cell with all its
    rows.

    See `predict_cells`, which does the same for several cells at once.
    """
    return predict_cells(model, [examples], folder, fresh, progress)[0]


def predict_cells(
    model: "Model",
    cells: Sequence[Examples],
    folder: Path,
    fresh: bool = False,
    progress: Bar | Literal[False] | None = None,
    max_failures: float = 0,
) -> list[Cell]:
    """Let a model answer the examples of several tasks that have no answer yet, in one stream;
    returns the whole cells.

    `folder` is `predictions/<run>`. Rows are appended as the model answers, each to the file of its
    cell; what an earlier session answered stays, if its record names the same task, length, seed,
    prompts, tokenizer, corpora and model. `fresh` moves the old files aside first. An example that
    failed is listed in the ledger beside its cell, named on stderr, and asked again by the next
    call; `max_failures` stands in the record for those who take means. `progress`: None for a bar
    of its own, False for none, or a bar over many cells.

    Errors: `UserError` where a record or a prompt's digest differs, another process writes or the
    disk refuses; `ModelError` where the model raises a `UserError`, returns prompts, or leaves
    examples out; what else the model raises passes on. Every answer until then is on disk.
    """
    with ExitStack() as locks:
        todo = [_Todo(model, examples, folder, fresh, locks, max_failures) for examples in cells]
        missing = [each for each in todo if each.missing]
        bar = _start(progress, model, todo) if missing or progress is not None else None
        try:
            if missing:
                _answer(model, missing, bar)
        except TooLong:
            for each in missing:
                each.discard_empty()
            raise
        finally:
            if progress is None and isinstance(bar, Progress):
                bar.close()
    return [(load_cell(each.cell.path) or each.cell) for each in todo]


class _Todo:
    """A cell, and which of its examples have no answer yet; where there are any, it is locked until
    `held` is closed."""

    def __init__(
        self,
        model: "Model",
        examples: Examples,
        folder: Path,
        fresh: bool,
        locks: ExitStack,
        max_failures: float,
    ) -> None:
        self.examples, self.missing = examples, list[int]()
        self.held = locks.enter_context(ExitStack())
        path, result = _place(model, examples, folder)
        about = {
            "label": model.label,
            "claimed_length": model.claimed_length,
            "aligned": model.aligned,
            "run": folder.name,
            "max_failures": max_failures,
        }
        if not fresh and (cell := load_cell(path)):
            _check_result(cell, result)
            asked = cell.record["num_examples"] >= len(examples)
            if (
                asked
                and not _missing(cell, examples)
                and about.items() <= {"max_failures": 0, **cell.record}.items()
            ):
                self.cell = cell
                return
        with disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = self.held.enter_context(Lock(path.with_suffix(".lock")))
        if fresh:
            _move_aside(path)
        cell = load_cell(path, repair=True) or Cell(path, {}, [])
        _check_result(cell, result)
        self.missing = _missing(cell, examples)
        if self.missing:
            _check_digests(cell, examples)
            examples[
                self.missing[0]
            ]  # what cannot be generated fails here, before anything is written
        record = {
            "format": cell.record["format"] if cell.present else FORMAT,
            "result": result,
            **_environments(cell, model if self.missing else None),
            **about,
        }
        if self.missing and (known := cell.record.get("floors") or _floors(examples)):
            record["floors"] = known
        record["num_examples"] = max(
            cell.record["num_examples"] if cell.present else 0, len(examples)
        )
        if record != cell.record:
            write_whole(path.with_suffix(".json"), json.dumps(record, indent=2) + "\n")
        self.cell = Cell(path, record)

    def add_failure(self, index: int, failure: "Failure") -> None:
        """Append an attempt without an answer to the ledger beside the cell."""
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


def kept(path: Path, asked: dict[str, Any]) -> Cell | None:
    """A cell as it is kept, complete or not; None where nothing is. Nobody is asked, and no model
    is needed.

    `asked` is the `asked_record` of its questions. Errors: `UserError` where it holds the answers
    to others.
    """
    cell = load_cell(path)
    if cell:
        known = {field: value for field, value in cell.record["result"].items() if field in asked}
        _check_result(cell, plain(asked), known)
    return cell


def _place(model: "Model", examples: Examples, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where a cell lies, and what defines its rows."""
    result = plain({**examples.record(), "model": {"name": model.name, **model.identity()}})
    names = _folder_name(model.name), _folder_name(result["task"]["name"])
    return cell_file(folder, *names, result["length"]), result


def _answer(model: "Model", cells: list[_Todo], bar: Bar | None) -> None:
    """Append a row for each missing example to the file of its cell, as the model answers."""
    from rulerkit.models import Failure

    left = {each.cell.task: set(each.missing) for each in cells}
    failures: dict[str, list[Failure]] = {task: [] for task in left}
    total = sum(map(len, left.values()))
    by_task = {
        each.cell.task: (each, each.held.enter_context(Log(each.cell.path))) for each in cells
    }
    answers = model.answer(each.examples[index] for each in cells for index in each.missing)
    try:
        for example, answer in _errors_named(answers):
            if example.index not in left.get(example.task, ()):
                raise ValueError(
                    f"{model.name} answered example {example.index}, which is not asked for (again)"
                )
            cell, log = by_task[example.task]
            cell.lock.check()
            if isinstance(answer, Failure):
                cell.add_failure(example.index, answer)
                failures[example.task].append(answer)
            else:
                log.append(_row(example, answer, model.name))
                if bar is not None:
                    bar.update(example.num_tokens + answer.num_tokens)
            left[example.task].remove(example.index)
            if not left[example.task]:
                cell.held.close()  # its lock is not left behind if this process is killed later
    finally:
        getattr(answers, "close", lambda: None)()  # an engine may have requests under way
        for task, failed in failures.items():
            if failed:
                _report_failures(model.name, by_task[task][0].cell, failed)
    if lacking := {task: indices for task, indices in left.items() if indices}:
        task = next(iter(lacking))
        raise ModelError(
            f"{model.name} left {sum(map(len, lacking.values()))} of {total} examples of "
            f"{by_task[task][0].cell.path} "
            f"unanswered, the first is example {min(lacking[task])}: the others are kept; the same "
            "command asks for these "
            "again"
        )


def _errors_named(
    answers: "Iterator[tuple[Any, Answer | Failure]]",
) -> "Iterator[tuple[Any, Answer | Failure]]":
    """The answers; a `UserError` of the model becomes a `ModelError`, after which other models can
    go on."""
    try:
        yield from answers
    except TooLong:
        raise
    except UserError as error:
        raise ModelError(str(error)) from error


def _report_failures(name: str, cell: Cell, failures: "list[Failure]") -> None:
    """One line on stderr, beside any progress bar."""
    remark(
        f"{name}: {len(failures)} of {cell.wanted} examples of {cell.task} at {cell.length} have "
        "no answer "
        f"({failures[0].reason}): {failures_file(cell.path)} lists them, and the same command asks "
        "for them again"
    )


def _floors(examples: Examples) -> dict[str, float]:
    """What answers without reading score on these examples; nothing for examples that this package
    did not make."""
    from rulerkit import floors, generation

    return floors.floors(examples) if isinstance(examples, generation.Examples) else {}


def _row(example: Any, answer: "Answer", name: str) -> dict[str, Any]:
    if not isinstance(answer.text, str):
        raise TypeError(
            f"{name} answered example {example.index} with {answer.text!r}, which is no text"
        )
    if _echoes(answer.text, example.prompt):
        raise ModelError(
            f"{name} returned the prompt of example {example.index} of {example.task}: the engine "
            "returns the prompt "
            "with its answer, which would score 100 everywhere; let it return only the new text"
        )
    usage = {"usage": dict(answer.usage)} if answer.usage else {}
    group = {} if getattr(example, "group", None) is None else {"group": int(example.group)}
    return {
        "index": example.index,
        "pred": answer.text,
        "outputs": list(example.references),
        "length": int(example.num_tokens) + int(example.max_new_tokens),
        "task": example.task,
        "digest": example.digest,
        "num_prompt_tokens": int(example.num_tokens),
        "finish_reason": answer.finish_reason,
        "depths": [float(depth) for depth in example.depths],
        **group,
        **usage,
    }


def _echoes(text: str, prompt: str) -> bool:
    """Whether a text holds the prompt: stretches from three places of it, in a text at least half
    as long.

    Not only its end, where engines drop the template's special tokens; and not any stretch in a
    short text, since a base model may babble the question again and a thinking one quotes what it
    reads.
    """
    if not prompt or 2 * len(text) < len(prompt):
        return False
    said, asked = " ".join(text.split()), " ".join(prompt.split())
    places = [len(asked) * quarter // 4 for quarter in (1, 2, 3)]
    return all(asked[place : place + 100] in said for place in places)


def _missing(cell: Cell, examples: Examples) -> list[int]:
    present = set(cell.present)
    return [index for index in range(len(examples)) if index not in present]


def _start(progress: Bar | Literal[False] | None, model: "Model", cells: list[_Todo]) -> Bar | None:
    if progress is False:
        return None
    length = cells[0].cell.length
    wanted = sum(len(each.examples) for each in cells)
    bar = Progress(length * wanted) if progress is None else progress
    if isinstance(bar, Progress):
        done = wanted - sum(len(_missing(each.cell, each.examples)) for each in cells)
        task = f" {cells[0].cell.task}" if len(cells) == 1 else ""
        bar.start(f"{model.name}{task} {length}", length, done, wanted)
    return bar


def _check_result(cell: Cell, result: dict[str, Any], stored: dict[str, Any] | None = None) -> None:
    """Rows made under another record are never mixed with new ones; a record without rows binds
    nobody."""
    found = differences(stored or cell.record["result"], result) if cell.present else []
    if found:
        field, old, new, more = first_of(found)
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
                "answered (digest "
                f"{row['digest']}, now {digest}): {WAYS_OUT}"
            )


def _move_aside(path: Path) -> None:
    """Give old files a name with the time, rows first: a record without rows binds nobody."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for file in (path, path.with_suffix(".json"), failures_file(path)):
        with disk(file):
            if file.exists():
                os.rename(file, file.with_name(f"{file.stem}.{now}.bak{file.suffix}"))


def _environments(cell: Cell, model: "Model | None") -> dict[str, Any]:
    """Where the rows come from: the last writer's surroundings and, where they changed, all of
    them."""
    if model is None:
        return {
            key: cell.record[key] for key in ("environment", "environments") if key in cell.record
        }
    now = plain(machine(model.environment()))
    known = cell.record.get("environments") or [cell.record["environment"]] if cell.present else []
    known = known if now in known else [*known, now]
    return {"environment": now, "environments": known} if len(known) > 1 else {"environment": now}


def _folder_name(name: str) -> str:
    if name.startswith(".") or "/" in name or "\\" in name or not name:
        raise UserError(
            f"{name!r} cannot name a folder of predictions: give the model or task a name without "
            "slashes"
        )
    return name

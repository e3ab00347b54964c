"""Cells: the predictions of one model on one task at one length, as two files tell them.

`predictions/<run>/<model>/<task>/<length>.jsonl` holds a row per example, `<length>.json` beside it the record of how
they were made. The two alone say whether a cell is complete.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.inference.store import read_rows

FORMAT = 1
WAYS_OUT = (
    "give this run a place of its own with run: NAME, or start anew with --fresh, which moves the old files aside"
)
_FAILURES = ".failures.jsonl"
_ROW = {
    **dict.fromkeys(("index", "length", "num_prompt_tokens"), int),
    **dict.fromkeys(("pred", "task", "digest", "finish_reason"), str),
    **dict.fromkeys(("outputs", "depths"), list),
}


@dataclass(frozen=True)
class Cell:
    """One model on one task at one length, as its files tell it: the record, and one valid row per example."""

    path: Path
    record: dict[str, Any]
    rows: list[dict[str, Any]]

    @property
    def run(self) -> str:
        return str(self.record["run"])

    @property
    def model(self) -> str:
        return str(self.record["result"]["model"]["name"])

    @property
    def task(self) -> str:
        return str(self.record["result"]["task"]["name"])

    @property
    def length(self) -> int:
        return int(self.record["result"]["length"])

    @property
    def wanted(self) -> int:
        """How many examples were asked for; the largest number, where it grew."""
        return int(self.record["num_examples"])

    @property
    def missing(self) -> list[int]:
        """The indices below `wanted` that have no row yet."""
        present = {row["index"] for row in self.rows}
        return [index for index in range(self.wanted) if index not in present]

    @property
    def complete(self) -> bool:
        return not self.missing


def read_cells(path: Path, strict: bool = True) -> list[Cell]:
    """The cells in a `.jsonl` file or anywhere below a folder, by run, model, task and length, from files alone.

    Hidden files, locks and old files moved aside are passed over. A prediction file without a record is a `UserError`,
    or passed over too where not `strict`.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(f"no predictions at {path}: give a .jsonl file, a run's folder, or outputs/predictions")
    cells = []
    for file in [path] if path.is_file() else _cell_files(path):
        if file.suffix == ".jsonl" and (cell := load_cell(file, stray=not strict)):
            cells.append(cell)
        elif file.suffix != ".jsonl":
            raise UserError(f"{file} is no prediction file: give a .jsonl file or a folder")
    return sorted(cells, key=lambda cell: (cell.run, cell.model, cell.task, cell.length))


def _cell_files(folder: Path) -> set[Path]:
    """The prediction files below a folder; a record alone stands for the cell that is still empty."""
    found = {file for file in folder.rglob("*.jsonl") if not file.name.endswith((".bak.jsonl", _FAILURES))}
    found |= {file.with_suffix(".jsonl") for file in folder.rglob("*.json") if file.stem.isdigit()}
    return {file for file in found if not any(part.startswith(".") for part in file.relative_to(folder).parts)}


def load_cell(path: Path, repair: bool = False, stray: bool = False) -> Cell | None:
    """The cell of a prediction file; None where there is neither file nor record, or no record and `stray` may be."""
    file = path.with_suffix(".json")
    try:
        record = json.loads(file.read_bytes())
        wanted, task = record["num_examples"], record["result"]["task"]["name"]
        _ = record["run"], record["result"]["length"], record["result"]["model"]["name"]
    except (FileNotFoundError, NotADirectoryError):
        if stray or not path.exists():
            return None
        raise UserError(
            f"{path} has no record {file.name} beside it, so nobody knows what was asked: bring the record back, move "
            "the file elsewhere, or start anew with --fresh, which moves it aside"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} is no record of predictions ({type(error).__name__}: {error}): {WAYS_OUT}") from error
    if record.get("format") != FORMAT:
        raise UserError(f"{file} has format {record.get('format')!r}, this rulerkit reads {FORMAT}: update rulerkit")
    rows = read_rows(path, _valid, repair)
    if other := {row["task"] for row in rows} - {task}:
        raise UserError(f"{path} holds rows of {', '.join(sorted(other))}, its record says {task}: {WAYS_OUT}")
    return Cell(path, record, [row for row in rows if row["index"] < wanted])


def failures_file(path: Path) -> Path:
    """The ledger beside a prediction file: the requests that failed, one line per attempt."""
    return path.with_name(f"{path.stem}{_FAILURES}")


def answered(path: Path, wanted: int) -> int:
    """How many of the first `wanted` examples have an answer: counted in lines, read one by one only where rows of
    further examples may stand among them."""
    try:
        lines = path.read_bytes().count(b"\n")
        asked = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))["num_examples"] if lines else wanted
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # what is there can only be told by `load_cell`, which says what is wrong with it
    if asked <= wanted or lines >= asked:
        return min(lines, wanted)
    return sum(row["index"] < wanted for row in read_rows(path, _valid))


def _valid(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(key), kind) for key, kind in _ROW.items())

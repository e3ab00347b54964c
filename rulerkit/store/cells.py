"""Predictions on disk: cells, their rows and records, and the locks that keep one writer at a time.

A cell is one model on one task at one length. `predictions/<run>/<model>/<task>/<length>.jsonl`
holds a row per example, `<length>.json` beside it the record of how the rows were made; the two
alone say whether a cell is complete. `<length>.failures.jsonl` lists the requests that failed, a
line per attempt.

Records and rows have checksums and schemas, and each row names the digest of the record's `result`
that it was made under. A file that is not as it was written, that belongs to another record, or
that lies in the folder of another cell raises `DamagedCell`.
"""

import os
import re
import zlib
from collections.abc import Callable, Collection, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from rulerkit.common.errors import UserError, check_type, counted, remark, shorten
from rulerkit.common.settings import JSON
from rulerkit.inference.model import Failure
from rulerkit.store.files import _CHECKSUM
from rulerkit.store.records import (
    FAILED_ATTEMPT,
    ROW,
    Record,
    check_line,
    check_schema,
    parse_json,
    parse_record,
    result_digest,
)

WAYS_OUT = (
    "give this run a place of its own with run: NAME, or move its files away, as fresh=True "
    "(rulerkit evaluate --fresh) does"
)
_FAILURES = ".failures.jsonl"
_SOFT = ".soft.jsonl"  # the probability of right answers, in folders of former versions
_INDEX = re.compile(rb'\{"index": (\d{1,9}),')

Report = Callable[[str], None]
"""Receives one line on what is left out and why."""


class DamagedCell(UserError):  # noqa: N818
    """A record or a row is not as it was written: tables leave the cell out."""


# --- rows -----------------------------------------------------------------------------------------


def whole_lines(path: Path) -> list[bytes]:
    """The lines of a file up to its last line end: a crash tore what follows it. No file has no
    lines."""
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise DamagedCell(f"cannot read {path}: {error.strerror or error}") from error


def _read_rows(
    path: Path,
    result: str,
    schema: TypeAdapter[Any],
    parse: bool,
    report: Report,
    other_answers: list[str] | None = None,
) -> Iterator[tuple[int, JSON]]:
    """Index and row of each example, in the order of the file.

    `result` is the digest of the record's result. Without `parse`, all rows but the first are
    empty. Of two rows of one example the first counts, and `report` is called. `other_answers`
    receives a line on each row that has another answer than the first of its example. Raises
    `DamagedCell`, which names the line, for a line that is not a row as it was written.
    """
    # The line at which each example stands first, and its answer.
    first: dict[int, tuple[int, Any]] = {}
    for number, index, row in _read_lines(path, result, schema, parse):
        # Two processes that wrote one cell at once leave two rows of one example.
        if index in first:
            before, answer = first[index]
            second = (
                f"{path}, line {number}: a second row for example {index}, which stands in line "
                f"{before} already"
            )
            report(f"{second}: the first one counts")
            if other_answers is not None and row.get("pred") != answer:
                other_answers.append(f"{second} with another answer")
        else:
            first[index] = number, row.get("pred")
            yield index, row


def _read_lines(
    path: Path, result: str, schema: TypeAdapter[Any], parse: bool
) -> Iterator[tuple[int, int, JSON]]:
    """Number, index and row of each line that is not blank; as `_read_rows`."""
    tie = b', "result": "%s"' % result.encode()
    is_first = True
    for number, line in enumerate(whole_lines(path), 1):
        if not (text := line.strip()):
            continue
        try:
            index, row = _read_line(text, tie, schema, parse or is_first)
        except ValueError as error:
            raise DamagedCell(
                f"{path}, line {number}: not as it was written ({error}): delete that line (what "
                "it held is asked again), bring the file back from a copy, or start anew with "
                "fresh=True (--fresh), which moves the old files aside"
            ) from None
        is_first = False
        yield number, index, row


def _read_line(text: bytes, tie: bytes, schema: TypeAdapter[Any], parse: bool) -> tuple[int, JSON]:
    """Index and row of a line; raises ValueError where it is damaged or of another record."""
    if text[-25:-10] != _CHECKSUM:
        raise ValueError("it has no checksum")
    if b'%08x"}' % zlib.crc32(text[:-25] + b"}") != text[-10:]:
        raise ValueError("its checksum is wrong")
    if not text.endswith(tie, 0, -25):
        raise ValueError(
            "it was made under another record than the one beside it: files were exchanged"
        )
    if not parse and (match := _INDEX.match(text)):
        return int(match[1]), {}
    row = check_line(schema, parse_json(text))
    del row["checksum"], row["result"]
    return row["index"], row


# --- cells ----------------------------------------------------------------------------------------


class Cell:
    """One model on one task at one length: the record, as it was written and as it was checked
    (`about`), and one row per example. `result` is the digest of what defines the rows.

    Rows are read from the file when they are first needed and then stay in memory; `stream` reads
    them without keeping them. `rows` may be given instead, as for files of other programs. `wanted`
    is how many examples were asked for, the largest number. Reading fills `warnings` (rows that
    were skipped), `other_answers` (those of them that are another answer to an example) and
    `snapshots` (the versions of its model that a service named in its replies). `others` are the
    further files of a cell that stands in several places.
    """

    def __init__(
        self,
        path: Path,
        record: JSON,
        rows: list[JSON] | None = None,
        others: Collection[Path] = (),
    ) -> None:
        # The record is kept twice: as it was written, for comparing, and checked, for
        # reading.
        self.path, self.record, self.others = path, record, others
        self.about = about = check_schema(Record, record)
        self.run, self.wanted, self.length = (about.run, about.num_examples, about.result.length)
        self.model, self.task = about.result.model.name, about.result.task.name
        self.result = result_digest(record["result"])
        self.warnings: list[str] = []
        self.other_answers: list[str] = []
        self.snapshots = set[str]()
        if rows is not None:
            self.rows = self._each_once(rows)

    def _each_once(self, rows: list[JSON]) -> list[JSON]:
        """Rows that were given, of each example the first."""
        first: dict[Any, JSON] = {}
        for row in rows:
            index = row.get("index")
            before = first.setdefault(index, row)
            if before.get("pred") != row.get("pred"):
                self.other_answers.append(
                    f"{self.path}: example {index} stands there twice with different answers"
                )
        return list(first.values())

    @cached_property
    def rows(self) -> list[JSON]:
        """The rows, by index."""
        return sorted(self.stream(), key=lambda row: int(row["index"]))

    @cached_property
    def present(self) -> list[int]:
        """The indices of the examples that have a row."""
        # Indices are found without parsing the rows, which takes most of the time.
        rows = enumerate(self.rows) if "rows" in vars(self) else self._read(parse=False)
        return sorted(index for index, _ in rows)

    def stream(self) -> Iterator[JSON]:
        """The rows one by one, in the order of the file where they are not in memory."""
        # A service may change its model in the middle of a run; its replies say which
        # one answered.
        self.snapshots.clear()
        for _, row in enumerate(self.rows) if "rows" in vars(self) else self._read(parse=True):
            if usage := row.get("usage"):
                names = (usage.get("server_model"), usage.get("system_fingerprint"))
                self.snapshots.add(" ".join(str(name) for name in names if name))
            yield row
        self.snapshots.discard("")

    def _read(self, parse: bool) -> Iterator[tuple[int, JSON]]:
        self.warnings.clear()
        self.other_answers.clear()
        warn = self.warnings.append
        others = self.other_answers if parse else None
        rows = _read_rows(self.path, self.result, ROW, parse, warn, others)
        num_judged = len(vars(self).get("present", ()))
        read = 0
        for index, row in rows:
            if index < self.wanted:
                read += 1
                yield index, row
        # A disk that fails leaves the time of the file as it was, by which the cache is found.
        if read < num_judged:
            raise DamagedCell(
                f"{self.path} holds {counted(read, 'answer')}, and held {num_judged} when they "
                "were judged: bring it back from a copy; or touch it, and what it lost counts as "
                "unanswered"
            )

    @property
    def missing(self) -> list[int]:
        """The indices of the examples asked for that have no row yet."""
        return sorted(set(range(self.wanted)) - set(self.present))

    @property
    def complete(self) -> bool:
        return not self.missing

    @cached_property
    def failures(self) -> dict[int, Failure]:
        """The last attempt at each example that has no row, by index; `DamagedCell` for a line
        that is not as it was written."""
        # Every attempt is a line; the last one counts, and none where the example was
        # answered later.
        file, attempts = failures_file(self.path), dict[int, Failure]()
        for _, index, line in _read_lines(file, self.result, FAILED_ATTEMPT, parse=True):
            attempts[index] = Failure(line["reason"], line["refused"])
        return {index: attempts[index] for index in sorted(attempts.keys() - set(self.present))}


def load_cell(path: Path) -> Cell | None:
    """The cell of a prediction file, rows unread; None where there is neither file nor record.

    Raises `DamagedCell` where the record is not as it was written.
    """
    file = path.with_suffix(".json")
    try:
        cell = Cell(path, parse_record(file.read_bytes()))
    except OSError as error:
        # Neither rows nor record: the cell was never begun.
        gone = isinstance(error, FileNotFoundError | NotADirectoryError)
        if gone and not path.exists():
            return None
        raise DamagedCell(
            f"{path}: its record {file.name} cannot be read ({error.strerror or error}), so nobody "
            "knows what was asked: bring the record back, move the file elsewhere, or start anew "
            "with fresh=True (--fresh), which moves it aside"
        ) from error
    except ValueError as error:
        raise DamagedCell(
            f"{file} is no record of predictions as this version writes them ({error}): bring it "
            f"back from a copy, or {WAYS_OUT}"
        ) from error
    _check_place(cell)
    return cell


def _check_place(cell: Cell) -> None:
    """Raise `DamagedCell` where a cell lies in the folder of another one."""
    said = (cell.run, cell.model, cell.task, str(cell.length))
    # Links to a folder may have any name.
    places = (_place(cell.path.absolute()), _place(cell.path.resolve()))
    if said in places or "" in places:
        return
    for name, ours, folder in zip(_PLACE, said, places[0], strict=True):
        if ours != folder:
            raise DamagedCell(
                f"{cell.path} lies in the place of {name} {folder}, and its record says {name} "
                f"{shorten(ours)}: move rows and record back to where they were made"
            )


_PLACE = ("run", "model", "task", "length")


def _place(path: Path) -> tuple[str, ...] | str:
    """The run, model, task and length that the folders of a prediction file name; "" outside of
    `predictions/`, where folders may have any names."""
    # A cell lies at predictions/<run>/<model>/<task>/<length>.jsonl.
    top, *folders = path.parts[-5:-1] if len(path.parts) > 5 else ("",)
    return (*folders, path.stem) if top == "predictions" else ""


def failures_file(path: Path) -> Path:
    """The file of failed requests beside a prediction file, one line per attempt."""
    return path.with_name(f"{path.stem}{_FAILURES}")


def read_cells(
    path: Path, strict: bool = True, report: Report = remark, scan: bool = True
) -> list[Cell]:
    """The cells of a `.jsonl` file, of the record beside it, or anywhere below a folder, by run,
    model, task and length.

    Skips hidden files, locks, files beside the rows, and old files moved aside; follows links to
    folders. Of a folder, a damaged cell and a folder that cannot be read are left out and passed
    to `report`; without `scan` rows are checked when they are first read. A prediction file
    without a record is damaged; where not `strict` it is skipped, and passed to `report` where a
    cell of ours would lie.
    """
    takes = "the path of a folder or a file of predictions"
    check_type(path, str | os.PathLike, "read_cells", takes)
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"no predictions at {path}: no such file or folder; give a .jsonl file, a run's "
            "folder, or "
            "outputs/predictions"
        )
    cells, file_given = ([], path.with_suffix(".jsonl") if path.suffix == ".json" else path)

    # One damaged cell must not keep a user from reading all others, unless it is the
    # one that was named.
    for file in [file_given] if path.is_file() else prediction_files(path, report):
        if not strict and not file.with_suffix(".json").exists():
            # Programs of others name files otherwise; a cell of ours has lost its record.
            if _place(file.absolute()) and file.stem.isdigit():
                report(f"left out: {file} has no record {file.stem}.json beside it")
            continue
        try:
            cell = load_cell(file)
            _ = scan and cell and cell.present
        except DamagedCell as error:
            if path.is_file():
                raise
            report(f"left out: {error}")
        else:
            cells += [cell] if cell else []
    return sorted(cells, key=lambda cell: (cell.run, cell.model, cell.task, cell.length))


def prediction_files(folder: Path, report: Report) -> list[Path]:
    """The prediction files below a folder, each folder once; a record alone stands for a cell that
    is still empty."""
    # Links may form a circle.
    files, visited = set[Path](), set[str]()

    def unreadable(error: OSError) -> None:
        report(f"left out: {error.filename} cannot be read ({error.strerror}), nor any cell in it")

    for place, folders, names in os.walk(folder, followlinks=True, onerror=unreadable):
        real = os.path.realpath(place)
        if real in visited:  # a link to it
            folders.clear()
            continue
        visited.add(real)

        # Hidden folders hold what notebooks and editors left behind.
        folders[:] = [name for name in sorted(folders) if not name.startswith(".")]
        for name in names:
            file = Path(place, name)
            if name.startswith(".") or name.endswith((".bak.jsonl", _FAILURES, _SOFT)):
                continue

            # Rows and record of a cell have one stem, so either stands for the cell.
            if file.suffix == ".jsonl" or (file.suffix == ".json" and file.stem.isdigit()):
                files.add(file.with_suffix(".jsonl"))
            elif not file.exists():
                report(f"left out: {file} is a link to nothing")
    return sorted(files)


def stamp(path: Path) -> list[list[int]]:
    """Nanoseconds and bytes of the files of a cell, which change when it changes; [0, 0] of one
    that is not there."""
    stamps = []
    for file in cell_files(path):
        try:
            status = os.stat(file)
            stamps.append([status.st_mtime_ns, status.st_size])
        except OSError:
            stamps.append([0, 0])
    return stamps


def cell_files(path: Path) -> list[Path]:
    """The files of a cell: rows, record, failed requests."""
    return [path, path.with_suffix(".json"), failures_file(path)]


def failure_counts(failed: int, refused: int) -> str:
    """`2 refused by the service, 1 failed`, of `failed` examples in all; "" for none."""
    counts = {"refused by the service": refused, "failed": failed - refused}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def allowed_failures(max_failures: float, wanted: int) -> float:
    """How many examples of a cell may fail: `max_failures` is a share below 1, else a number."""
    return max_failures * wanted if max_failures < 1 else max_failures


def is_answered(cell: Cell) -> bool:
    """Whether a cell has an answer to every example that it was asked, but for the failures that
    its study allows."""
    missing = cell.wanted - len(cell.present)
    return missing <= allowed_failures(cell.about.max_failures, cell.wanted)

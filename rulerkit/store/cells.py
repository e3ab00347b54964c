"""Predictions on disk: cells, their records and their rows.

A cell is one model on one task at one length. `predictions/<run>/<model>/<task>/<length>.jsonl`
holds a row per example, `<length>.json` beside it the record of how the rows were made; the two
alone say whether a cell is complete. `<length>.failures.jsonl` lists the requests that failed, a
line per attempt.

Each line ends with a `check` over the record's result and the line. A line that is not as it was
written, or that belongs to another record, and a cell in the folder of another one raise
`DamagedCell`.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from zlib import crc32

from rulerkit.common.errors import UserError, remark, shorten
from rulerkit.common.json_text import parse_json
from rulerkit.common.settings import JSON
from rulerkit.inference.model import Failure
from rulerkit.store.records import (
    RECORD,
    checked,
    checked_text,
    parse_record,
    result_digest,
)

WAYS_OUT = (
    "give this run a place of its own with run: NAME, or move its files away, as fresh=True "
    "(rulerkit evaluate --fresh) does"
)
AND = " + "
"""Between the files of a cell that stands in several places."""
_FAILURES = ".failures.jsonl"
_INDEX = b'{"index": '  # how each line begins

Report = Callable[[str], None]
"""Receives one line on what is left out and why."""


class DamagedCell(UserError):  # noqa: N818
    """A record or a row is not as it was written: tables leave the cell out."""


# --- cells ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Coverage:
    """Whether a cell has its answers."""

    have: Collection[int]
    """The indices of the examples that have an answer."""
    wanted: int
    """How many examples were asked for."""
    failed: dict[int, Failure]
    """The last attempt at each example without an answer whose request failed, by index."""
    max_failures: float = 0
    """How many examples may fail, as a share below 1 or a number."""

    @property
    def missing(self) -> list[int]:
        """The indices of the examples without an answer."""
        return sorted(set(range(self.wanted)).difference(self.have))

    @property
    def is_enough(self) -> bool:
        """See the function `is_enough`."""
        return is_enough(len(self.have), self.wanted, len(self.failed), self.max_failures)

    def of_first(self, wanted: int) -> "Coverage":
        """Of the first so many examples."""
        have = frozenset(index for index in self.have if index < wanted)
        failed = {index: failure for index, failure in self.failed.items() if index < wanted}
        return replace(self, have=have, wanted=wanted, failed=failed)

    def failures(self) -> str:
        """`2 refused by the service, 1 failed`; "" for none."""
        refused = sum(failure.refused for failure in self.failed.values())
        return failure_counts(len(self.failed), refused)

    def __str__(self) -> str:
        have = f"{len(self.have)} of {self.wanted} examples"
        return f"{have}, {self.failures()}" if self.failed else have


class Cell:
    """One model on one task at one length: the record, as it was written and as it was checked
    (`about`), and one row per example. `result` is the digest of what defines the rows.

    Rows are read from the file when they are first needed and then stay in memory; `stream` reads
    them without keeping them. `rows` may be given instead, as for files of other programs. `wanted`
    is how many examples were asked for, the largest number. Reading fills `snapshots` (the versions
    of its model that a service named in its replies). `others` are the further files of a cell that
    stands in several places.
    """

    def __init__(
        self,
        path: Path,
        record: JSON,
        rows: list[JSON] | None = None,
        others: Collection[Path] = (),
    ) -> None:
        self.path, self.record, self.others = path, record, others
        self.about = about = checked(RECORD, record)
        self.run, self.model, self.task = about.run, about.model, about.task
        self.length, self.wanted = about.length, about.num_examples
        self.result = result_digest(record["result"])
        self.snapshots = set[str]()
        self._have: Collection[int] | None = None
        if rows is not None:
            self.rows = rows

    @property
    def files(self) -> str:
        """The file of its rows, or those of a cell that stands in several places."""
        return AND.join(map(str, (self.path, *self.others)))

    @cached_property
    def rows(self) -> list[JSON]:
        """The rows, by index."""
        return sorted(self.stream(), key=lambda row: int(row["index"]))

    def stream(self) -> Iterator[JSON]:
        """The rows one by one, in the order of the file where they are not in memory."""
        # A service may change its model in the middle of a run; its replies say which
        # one answered.
        self.snapshots.clear()
        read = (parse_json(text) for index, text in self._answers() if index < self.wanted)
        for row in self.rows if "rows" in vars(self) else read:
            if usage := row.get("usage"):
                names = (usage.get("server_model"), usage.get("system_fingerprint"))
                self.snapshots.add(" ".join(str(name) for name in names if name))
            yield row
        self.snapshots.discard("")

    def _answers(self) -> Iterator[tuple[int, bytes]]:
        """Index and text of each row; which examples have one is known when all were read."""
        seen = set[int]()
        for number, index, text in self._lines(self.path):
            # Of two answers nobody knows which one the model gave.
            if index in seen:
                raise DamagedCell(
                    f"{self.path}, line {number}: a second row for example {index}: keep one of "
                    "the two lines, or start anew with fresh=True (--fresh), which moves the old "
                    "files aside"
                )
            seen.add(index)
            yield index, text
        have = frozenset(index for index in seen if index < self.wanted)
        # Most cells are whole: a million rows need not be a million numbers more.
        self._have = range(self.wanted) if len(have) == self.wanted else have

    def _lines(self, path: Path) -> Iterator[tuple[int, int, bytes]]:
        """Number, index and text of each line of a file of this cell that is not blank. Raises
        `DamagedCell`, which names the line, for one that is not as it was written."""
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise DamagedCell(f"cannot read {path}: {error.strerror}") from error
        seed = crc32(self.result.encode())
        # A crash tore what follows the last line end.
        for number, line in enumerate(content.split(b"\n")[:-1], 1):
            line = line.strip()
            if not line:
                continue
            try:
                text = checked_text(line, seed)
            except ValueError as error:
                raise DamagedCell(
                    f"{path}, line {number}: not as it was written ({error}): delete that line "
                    "(what it held is asked again), bring the file back from a copy, or start anew "
                    "with fresh=True (--fresh), which moves the old files aside"
                ) from None
            # Its check holds, so it is a line of ours, and begins with the index.
            yield number, int(text[len(_INDEX) : text.index(b",")]), text

    @cached_property
    def coverage(self) -> Coverage:
        """Whether the cell has its answers; `DamagedCell` where a line of its files is not as it
        was written."""
        if "rows" in vars(self):
            self._have = frozenset(row["index"] for row in self.rows)
        elif self._have is None:
            # Indices are found without parsing the rows, which takes most of the time.
            for _ in self._answers():
                pass
        have = self._have or ()

        # Every attempt is a line; the last one counts, and none where the example was answered.
        failed = dict[int, Failure]()
        for path in (self.path, *self.others) if len(have) < self.wanted else ():
            for _, index, text in self._lines(failures_file(path)):
                if index not in have:
                    attempt = parse_json(text)
                    failed[index] = Failure(attempt["reason"], attempt["refused"])
        return Coverage(have, self.wanted, dict(sorted(failed.items())), self.about.max_failures)


def load_cell(path: Path) -> Cell | None:
    """The cell of a prediction file, rows unread; None where there is neither file nor record.

    Raises `DamagedCell` where the record is not as it was written.
    """
    file = path.with_suffix(".json")
    try:
        cell = Cell(path, parse_record(file.read_bytes()))
    except (OSError, ValueError) as error:
        # Neither rows nor record: the cell was never begun.
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not path.exists():
            return None
        raise DamagedCell(
            f"{path}: its record {file.name} cannot be read ({error}), so nobody knows "
            f"what was asked: bring the record back from a copy, or {WAYS_OUT}"
        ) from error

    # It lies at predictions/<run>/<model>/<task>/<length>.jsonl, or in a folder of another name;
    # links to a folder may have any.
    said = [cell.run, cell.model, cell.task, f"{cell.length}{path.suffix}"]
    for file_of in (Path.absolute, Path.resolve):
        folder, *place = file_of(path).parts[-5:]
        if folder != "predictions" or place == said:
            return cell
    raise DamagedCell(
        f"{path} lies in the place of {'/'.join(place)}, and its record says "
        f"{shorten('/'.join(said))}: move rows and record back to where they were made"
    )


def failures_file(path: Path) -> Path:
    """The file of failed requests beside a prediction file, one line per attempt."""
    return path.with_name(f"{path.stem}{_FAILURES}")


def read_cells(path: Path, report: Report = remark) -> list[Cell]:
    """The cells of a `.jsonl` file, of the record beside it, or anywhere below a folder, by run,
    model, task and length.

    Skips hidden files, locks, files beside the rows, and old files moved aside; follows links to
    folders. Of a folder, a damaged record and a folder that cannot be read are left out and passed
    to `report`; rows are checked when they are first read. Files of other programs, which have no
    record, are skipped; a cell of ours that has lost it is passed to `report`.
    """
    path = Path(path)
    if path.is_file():
        cell = load_cell(path.with_suffix(".jsonl") if path.suffix == ".json" else path)
        return [cell] if cell else []

    # One damaged cell must not keep a user from reading all others.
    cells = []
    for file in _prediction_files(path, report):
        is_ours = file.absolute().parts[-5:-4] == ("predictions",) and file.stem.isdigit()
        try:
            if file.with_suffix(".json").exists():
                cells.append(load_cell(file))
            elif is_ours:
                report(f"left out: {file} has no record {file.stem}.json beside it")
        except DamagedCell as error:
            report(f"left out: {error}")
    found = [cell for cell in cells if cell]
    return sorted(found, key=lambda cell: (cell.run, cell.model, cell.task, cell.length))


def _prediction_files(folder: Path, report: Report) -> list[Path]:
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
            if name.startswith(".") or name.endswith((".bak.jsonl", _FAILURES)):
                continue

            # Rows and record of a cell have one stem, so either stands for the cell.
            if file.suffix == ".jsonl" or (file.suffix == ".json" and file.stem.isdigit()):
                files.add(file.with_suffix(".jsonl"))
    return sorted(files)


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


def is_enough(have: int, wanted: int, failed: int, max_failures: float) -> bool:
    """Whether a cell has its answers, so that a mean may be taken over them: `have` of its `wanted`
    examples have one, and the others are requests that failed, of which so many are allowed. What
    was not asked yet is no failure, and a cell without any answer has no mean."""
    allowed = min(failed, allowed_failures(max_failures, wanted))
    return have > 0 and wanted - have <= allowed


def readable(cells: Iterable[Cell], report: Report = lambda _: None) -> list[Cell]:
    """Those of some cells whose files are as they were written; the others are passed to
    `report`."""
    kept = []
    for cell in cells:
        try:
            _ = cell.coverage
            kept.append(cell)
        except DamagedCell as error:
            report(f"left out: {error}")
    return kept


def answered(path: Path, wanted: int) -> tuple[int, str]:
    """How many of the first `wanted` examples of a cell have an answer, and what is wrong with it:
    damaged, or requests that failed; "" for nothing."""
    try:
        cell = load_cell(path)
        if not cell:
            return 0, ""
        coverage = cell.coverage.of_first(wanted)
    except UserError as error:
        return 0, str(error)
    problem = ""
    if coverage.failed:
        problem = f"{coverage.failures()}: {next(iter(coverage.failed.values())).reason}"
    return len(coverage.have), problem

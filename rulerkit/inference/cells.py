"""Cells: the predictions of one model on one task at one length, as their files tell them.

`predictions/<run>/<model>/<task>/<length>.jsonl` holds a row per example, `<length>.json` beside it
the record of how they were made; the two alone say whether a cell is complete.
`<length>.failures.jsonl` is the ledger of failed requests.

Each row of format 2 ends with a checksum of its line. Files of format 1 have none: their rows are
checked against a schema, and rows that are appended to them have a checksum. A row or record that
is not as it was written is a `DamagedCell`.
"""

import os
import re
from array import array
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rulerkit.errors import UserError, remark
from rulerkit.escape import one_line
from rulerkit.inference.store import checksum_matches, disk, parse_json

FORMAT = 2
FORMATS = (1, 2)
WAYS_OUT = "give this run a place of its own with run: NAME, or start anew with --fresh, which moves the old files aside"
_LEDGER = ".failures.jsonl"
_INDEX = re.compile(rb'\{"index": (\d{1,9}),')

Report = Callable[[str], None]
"""Told in one line of what is left out and why."""


class DamagedCell(UserError):  # noqa: N818
    """A record or a row that is not as it was written: the cell is left out of tables."""


# --- the schema -----------------------------------------------------------------------------------

Whole = Annotated[int, Field(ge=0, le=10**9)]
Count = Annotated[int, Field(ge=1, le=10**9)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Row(_Part):
    """One example with its answer."""

    index: Whole
    pred: str
    outputs: list[str]
    length: Whole
    task: str
    digest: str
    num_prompt_tokens: Whole
    finish_reason: str
    depths: list[float]
    group: int | None = None
    """What several examples share, such as the article of a question."""
    usage: dict[str, Any] = {}


class _Task(_Part):
    name: str
    category: Literal["niah", "vt", "aggregation", "qa"] | None = None


class _Model(_Part):
    name: str
    engine: str = ""


class _Source(_Part):
    stand_in: bool = False
    note: str | None = None


class _Tokenizer(_Part):
    name: str = ""


class _PromptFormat(_Part):
    template: str = ""
    thinking_tokens: Whole = 0


class _Result(_Part):
    task: _Task
    model: _Model
    length: Count
    seed: int | None = None
    sources: dict[str, _Source] = {}
    tokenizer: _Tokenizer = _Tokenizer()
    prompt_format: _PromptFormat = _PromptFormat()


class _Environment(_Part):
    packages: dict[str, Any] = {}


class Record(_Part):
    """How the rows of a cell were made: `result` decides what they are, the rest describes them."""

    format: Literal[1, 2]
    result: _Result
    num_examples: Count
    run: str
    label: str | None = None
    claimed_length: Count | None = None
    aligned: Literal["chat", "base"] = "chat"
    max_failures: Annotated[float, Field(ge=0)] = 0
    complete_with: Count | None = None
    floors: dict[str, float] = {}
    environment: _Environment = _Environment()
    environments: list[_Environment] = []


def check_schema(schema: type[BaseModel], value: Any) -> None:
    """Raise ValueError, with the first field that is wrong, where a value does not follow a
    schema."""
    try:
        schema.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        seen = repr(first["input"])
        raise ValueError(
            f"{place}: {first['msg']}, found {seen if len(seen) < 80 else seen[:77] + '...'}"
        ) from None


# --- rows -----------------------------------------------------------------------------------------


def read_rows(
    path: Path,
    record: dict[str, Any],
    repair: bool = False,
    parse: bool = True,
    report: Report | None = None,
) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Index and row of each example of a prediction file, in the order of the file; no file has no
    rows.

    Without `parse` rows with a checksum are not parsed: None stands for them. A last line that a
    crash has torn is passed over, and cut off with `repair`; blank lines are ignored; of two rows
    of an example the first counts, and `report` is told. Raises `DamagedCell`, which names the
    line, for any other line that is not a row as it was written.
    """
    lines: dict[int, int] = {}
    torn: DamagedCell | None = None
    start = end = 0
    line = b"\n"
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                text = line.strip()
                if torn and text:
                    raise torn
                try:
                    found = _read_line(text, record, parse or not lines) if text else None
                except ValueError as error:
                    damage = DamagedCell(
                        f"{path}, line {number}: not a prediction row as it was written ({error}): "
                        "delete that line (its "
                        "example is answered again) or start anew with --fresh, which moves the "
                        "old files aside"
                    )
                    if line.endswith(b"\n") and text.strip(b"\0"):
                        raise damage from None
                    torn, start = damage, end
                    found = None
                end += len(line)
                if found:
                    index, row = found
                    if index not in lines:
                        lines[index] = number
                        yield index, row
                    elif report:
                        report(
                            f"{path}, line {number}: a second row for example {index}, which "
                            "stands in line "
                            f"{lines[index]} already: the first one counts"
                        )
    except FileNotFoundError:
        return
    except OSError as error:
        raise DamagedCell(f"cannot read {path}: {error.strerror or error}") from error
    if repair and (torn or not line.endswith(b"\n")):
        with disk(path), open(path, "ab") as file:
            if torn:
                file.truncate(start)
            else:
                file.write(b"\n")


def _read_line(
    text: bytes, record: dict[str, Any], parse: bool
) -> tuple[int, dict[str, Any] | None]:
    """Index and row of a line; raises ValueError where it is damaged."""
    checked = checksum_matches(text)
    if checked is False or (checked is None and record["format"] > 1):
        raise ValueError("its checksum is wrong" if checked is False else "it has no checksum")
    if checked and not parse and (match := _INDEX.match(text)):
        return int(match[1]), None
    row = parse_json(text)
    if not checked:
        check_schema(Row, row)
    if row["task"] != record["result"]["task"]["name"]:
        raise ValueError(
            f"it is of task {row['task']}, the record says {record['result']['task']['name']}"
        )
    row.pop("checksum", None)
    return row["index"], row


class FailedExample(NamedTuple):
    """The last attempt at an example that has no answer."""

    reason: str
    refused: bool


# --- cells ----------------------------------------------------------------------------------------


class Cell:
    """One model on one task at one length: the record, and one row per example.

    Rows are read from the file when they are first needed and then kept; `stream` reads them
    without keeping them. `rows` may be given instead, as by files of others. Reading them fills
    `warnings` (rows that were passed over) and `snapshots` (the versions of its model that a
    service named in its replies).
    """

    def __init__(
        self, path: Path, record: dict[str, Any], rows: list[dict[str, Any]] | None = None
    ) -> None:
        self.path, self.record, self.stored = path, record, rows is None
        self.warnings: list[str] = []
        self.snapshots = set[str]()
        if rows is not None:
            self.rows = rows

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cell):
            return NotImplemented
        return (self.path, self.record, self.rows) == (other.path, other.record, other.rows)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The rows, by index."""
        return sorted(self.stream(), key=lambda row: int(row["index"]))

    def stream(self) -> Iterator[dict[str, Any]]:
        """The rows one by one, in the order of the file where they are not in memory."""
        self.snapshots.clear()
        for row in self.rows if "rows" in self.__dict__ else self._read():
            if snapshot := _snapshot(row):
                self.snapshots.add(snapshot)
            yield row

    def _read(self) -> Iterator[dict[str, Any]]:
        self.warnings.clear()
        for index, row in read_rows(self.path, self.record, report=self.warnings.append):
            if row and index < self.record["num_examples"]:
                yield row

    @cached_property
    def present(self) -> "array[int]":
        """The indices of the examples that have a row."""
        if "rows" in self.__dict__:
            return array("l", [row["index"] for row in self.rows])
        self.warnings.clear()
        found = read_rows(self.path, self.record, parse=False, report=self.warnings.append)
        return array(
            "l", sorted(index for index, _ in found if index < self.record["num_examples"])
        )

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
        """How many examples were asked for (the largest number, where it grew), or how many are
        enough."""
        return int(self.record.get("complete_with") or self.record["num_examples"])

    @property
    def missing(self) -> list[int]:
        """The indices of the examples asked for that have no row yet."""
        present = set(self.present)
        return [index for index in range(self.record["num_examples"]) if index not in present]

    @property
    def complete(self) -> bool:
        return len(self.present) >= self.wanted

    @cached_property
    def failures(self) -> dict[int, FailedExample]:
        """The last attempt at each example that has no row, by index; a line of the ledger that is
        torn is passed over."""
        attempts = dict[int, FailedExample]()
        try:
            lines = failures_file(self.path).read_bytes().splitlines() if self.stored else []
        except OSError:
            return attempts
        present = set(self.present)
        for line in lines:
            try:
                each = parse_json(line)
                attempts[int(each["index"])] = FailedExample(
                    str(each["reason"]), bool(each["refused"])
                )
            except (ValueError, KeyError, TypeError):
                continue
        return {index: attempts[index] for index in sorted(attempts) if index not in present}


def _snapshot(row: dict[str, Any]) -> str:
    """The version of its model that a service named in its reply; "" where it named none."""
    usage = row.get("usage", {})
    return " ".join(
        str(usage[name]) for name in ("server_model", "system_fingerprint") if usage.get(name)
    )


def print_problem(line: str) -> None:
    """Say on stderr what is left out."""
    remark(one_line(line))


def read_cells(
    path: Path, strict: bool = True, report: Report = print_problem, scan: bool = True
) -> list[Cell]:
    """The cells in a `.jsonl` file or anywhere below a folder, by run, model, task and length, from
    files alone.

    Hidden files, locks, ledgers and old files moved aside are passed over, links to folders are
    followed. Of a folder, a damaged cell and a folder that cannot be read are left out and told to
    `report`; without `scan` only records are checked here, rows when they are read. A prediction
    file without a record is damaged, or passed over where not `strict`.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"no predictions at {path}: give a .jsonl file, a run's folder, or outputs/predictions"
        )
    if path.is_file() and path.suffix != ".jsonl":
        raise UserError(f"{path} is no prediction file: give a .jsonl file or a folder")
    cells = []
    for file in [path] if path.is_file() else _cell_files(path, report):
        try:
            if cell := load_cell(file, stray=not strict, scan=scan):
                cells.append(cell)
        except DamagedCell as error:
            if path.is_file():
                raise
            report(f"left out: {error}")
    return sorted(cells, key=lambda cell: (cell.run, cell.model, cell.task, cell.length))


def _cell_files(folder: Path, report: Report) -> list[Path]:
    """The prediction files below a folder; a record alone stands for the cell that is still
    empty."""
    files, real = set[Path](), dict[str, str]()

    def unreadable(error: OSError) -> None:
        report(f"left out: {error.filename} cannot be read ({error.strerror}), nor any cell in it")

    for place, folders, names in os.walk(folder, followlinks=True, onerror=unreadable):
        where = real.setdefault(os.path.realpath(place), place)
        if where != place:
            report(f"left out: {place} is a link to {where}, whose cells are counted once")
            folders.clear()
            continue
        visible = sorted(name for name in folders if not name.startswith("."))
        folders[:] = sorted(visible, key=lambda name: os.path.islink(os.path.join(place, name)))
        for name in names:
            file = Path(place, name)
            if name.startswith(".") or name.endswith((".bak.jsonl", _LEDGER)):
                continue
            if name.endswith(".jsonl") or (name.endswith(".json") and file.stem.isdigit()):
                files.add(file.with_suffix(".jsonl"))
            elif file.is_symlink() and not file.exists():
                report(f"left out: {file} is a link to nothing ({os.readlink(file)})")
    return sorted(files)


def load_cell(
    path: Path, repair: bool = False, stray: bool = False, scan: bool = True
) -> Cell | None:
    """The cell of a prediction file; None where there is neither file nor record, or no record and
    `stray` may be.

    Raises `DamagedCell` for a record, and with `scan` for a row, that is not as it was written.
    """
    file = path.with_suffix(".json")
    try:
        record = parse_json(file.read_bytes())
        if (
            isinstance(record, dict)
            and isinstance(record.get("format"), int)
            and record["format"] not in FORMATS
        ):
            raise DamagedCell(
                f"{file} has format {record['format']}, this rulerkit reads {FORMATS}: update "
                "rulerkit"
            )
        check_schema(Record, record)
    except (FileNotFoundError, NotADirectoryError):
        if stray or not path.exists():
            return None
        raise DamagedCell(
            f"{path} has no record {file.name} beside it, so nobody knows what was asked: bring "
            "the record back, move "
            "the file elsewhere, or start anew with --fresh, which moves it aside"
        ) from None
    except OSError as error:
        raise DamagedCell(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise DamagedCell(f"{file} is no record of predictions ({error}): {WAYS_OUT}") from error
    cell = Cell(path, record)
    if repair:
        for _ in read_rows(path, record, repair, parse=False):
            pass
    if scan:
        _ = cell.present
    return cell


def failures_file(path: Path) -> Path:
    """The ledger beside a prediction file: the requests that failed, one line per attempt."""
    return path.with_name(f"{path.stem}{_LEDGER}")


Stamp = tuple[tuple[int, int], ...]


def stamp(path: Path) -> Stamp:
    """Time and size of the files of a cell, which tell whether it changed: rows, record, ledger."""
    return tuple(
        _time_and_size(file) for file in (path, path.with_suffix(".json"), failures_file(path))
    )


def _time_and_size(file: Path) -> tuple[int, int]:
    try:
        about = os.stat(file)
    except OSError:
        return 0, 0
    return about.st_mtime_ns, about.st_size


class Completeness(NamedTuple):
    """How many of the examples asked for have an answer, and what is wrong, if anything."""

    have: int
    problem: str = ""


def completeness(path: Path, wanted: int) -> Completeness:
    """How far a cell is towards `wanted` examples; a cell that is complete as its record says has
    all of them.

    The count that `status`, `batch`, `report` and `score` share. A cell that did not change is not
    read again.
    """
    return _completeness(path, wanted, stamp(path))


@lru_cache(maxsize=100_000)
def _completeness(path: Path, wanted: int, _: Stamp) -> Completeness:
    try:
        cell = load_cell(path)
    except UserError as error:
        return Completeness(0, str(error))
    if not cell:
        return Completeness(0)
    have = sum(index < wanted for index in cell.present)
    failed = {index: why for index, why in cell.failures.items() if index < wanted}
    problem = ""
    if have >= min(wanted, cell.record.get("complete_with") or wanted):
        have = wanted
    elif failed:
        refused = sum(why.refused for why in failed.values())
        problem = f"{failure_counts(len(failed), refused)}: {next(iter(failed.values())).reason}"
    return Completeness(have, "; ".join([*cell.warnings[:1], *[problem] * bool(problem)]))


def failure_counts(failed: int, refused: int) -> str:
    """`2 refused by the service, 1 failed`, of `failed` examples in all; "" for none."""
    counts = {"refused by the service": refused, "failed": failed - refused}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def allowed_failures(max_failures: float, wanted: int) -> float:
    """How many of the examples of a cell may fail: `max_failures` is a share below 1, else a
    number."""
    return max_failures * wanted if max_failures < 1 else max_failures

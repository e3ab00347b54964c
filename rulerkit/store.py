"""Cells: the predictions of one model on one task at one length, as their files tell them.

`predictions/<run>/<model>/<task>/<length>.jsonl` holds a row per example, `<length>.json` beside it
the record of how they were made; the two alone say whether a cell is complete.
`<length>.failures.jsonl` is the ledger of failed requests.

Each row of format 2 ends with a checksum of its line. Files of format 1 have none: their rows are
checked against a schema, and rows that are appended to them have a checksum. A row or record that
is not as it was written is a `DamagedCell`.
"""

import json
import math
import os
import platform
import re
import socket
import subprocess
import sys
import threading
import time
import uuid
import zlib
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from rulerkit.errors import UserError, remark
from rulerkit.escape import one_line
from rulerkit.paths import home

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


PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "vllm", "sentencepiece", "tiktoken")
_MARK = b', "checksum": "'
SYNC = 5.0  # seconds of answers that a power cut may cost


@contextmanager
def disk(path: Path) -> Iterator[None]:
    """Turn what the file system refuses (full disk, read-only, no permission) into one line with a
    way on."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; everything written so far is kept: "
            "make room "
            "or choose a folder that can be written, and the same command goes on from where it "
            "stopped"
        ) from error


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name, then rename it, so that no reader ever meets half of
    it."""
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    with disk(path):
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def plain(value: dict[str, Any]) -> dict[str, Any]:
    """A mapping as it will be read again from JSON: tuples as lists."""
    read: dict[str, Any] = json.loads(json.dumps(value))
    return read


def parse_json(text: bytes) -> Any:
    """The value of a JSON text; raises ValueError for anything else, NaN, or lists that are nested
    too deeply."""
    try:
        return from_json(text, allow_inf_nan=False)
    except (
        ValueError
    ):  # half a surrogate, which a model may write, is read by the standard library only
        try:
            return json.loads(text, parse_constant=_no_number)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def row_line(row: dict[str, Any]) -> bytes:
    """A row as a line of ASCII with its checksum: the CRC-32 of the line without the checksum.

    Pure ASCII: a model may write half a surrogate or a line separator, and both must come back as
    they were.
    """
    text = json.dumps(row).encode()
    return b'%s%s%08x"}\n' % (text[:-1], _MARK, zlib.crc32(text))


def checksum_matches(text: bytes) -> bool | None:
    """Whether the checksum of a line is right; None where it has none."""
    body, mark, sum_ = text[:-25], text[-25:-10], text[-10:]
    return b'%08x"}' % zlib.crc32(body + b"}") == sum_ if mark == _MARK else None


class Log:
    """Rows appended to a file, each in one write, so that a crash can tear only the last line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk(path):
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._synced = time.monotonic()

    def append(self, row: dict[str, Any]) -> None:
        """Write one row; what a full disk took of it only in part is cut off again."""
        line = row_line(row)
        with disk(self.path):
            size, done = os.fstat(self._file).st_size, 0
            try:
                while done < len(line):
                    done += os.write(self._file, line[done:])
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._file, size)
                raise
            if time.monotonic() - self._synced > SYNC:
                os.fsync(self._file)
                self._synced = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with (
            disk(self.path) if kind is None else suppress(OSError)
        ):  # the first error is the one to tell
            try:
                os.fsync(self._file)
            finally:
                os.close(self._file)


def machine(extra: dict[str, Any]) -> dict[str, Any]:
    """What rows were made with: versions (nothing is imported for them), commit, host, and what the
    model adds."""
    packages = {name: _version(name) for name in PACKAGES} | extra.get("packages", {})
    return {
        "rulerkit": _version("rulerkit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": _commit(home()),
        "host": socket.gethostname(),
        "gpu": None,
        **extra,
        "packages": {name: found for name, found in packages.items() if found},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _commit(root: Path) -> str | None:
    """The commit of a checkout, with `-dirty` where files differ from it; None where there is none,
    or no git."""
    call = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


BEAT = 20.0  # seconds between two signs of life of a lock's owner
STALE = 120.0  # seconds without one after which an owner that cannot be asked counts as dead


class Owner(BaseModel):
    """The process that a lock file names; what a file does not name is left out."""

    model_config = ConfigDict(strict=True, frozen=True)

    host: str = "?"
    machine: str = ""
    pid: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    started: str | None = None
    job: str | None = None
    restart: int = 0
    token: str = ""

    @property
    def here(self) -> bool:
        """Whether its process number means something to this process."""
        return (self.host, self.machine) == (socket.gethostname(), _machine())

    def seconds_left(self, age: float, stale: float) -> float:
        """How long it still counts as living, `age` seconds after its last sign of life: infinite
        where it is seen to live, negative where it is dead."""
        me = this_process()
        if self.job and self.job == me.job and self.restart < me.restart:
            return -1.0
        if self.pid and self.here and (started := start_time(self.pid)) != "":
            return math.inf if started == self.started else -1.0
        return stale - age


class Lock:
    """One writer at a time: a file made with O_EXCL that names its owner, touched while the owner
    lives.

    No flock, which network file systems break. An owner on this machine is looked up (process,
    start time); one elsewhere, and a file that names no owner, counts as dead after `stale` seconds
    without a touch, by the file server's clock; the former life of a requeued Slurm job is dead at
    once. Where the owner lives: `UserError` naming host and process.
    """

    def __init__(self, path: Path, beat: float = BEAT, stale: float = STALE) -> None:
        self.path, self.beat, self.stale = path, beat, stale
        self.lost, self._mine, self._seen = False, b"", 0.0
        self._done = threading.Event()

    def __enter__(self) -> Self:
        self._mine = this_process().model_dump_json().encode()
        with disk(self.path):
            self._acquire()
        self._seen = time.time()
        threading.Thread(
            target=self._touch_often, name=f"lock {self.path.name}", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        with suppress(OSError):
            if self.path.read_bytes() == self._mine:
                self.path.unlink()

    def check(self) -> None:
        """Raise `UserError` where the lock is no longer ours: another process may be writing by
        now."""
        if (
            time.time() - self._seen > 3 * self.beat
        ):  # the whole process was suspended, with the thread that touches
            self._touch()
        if self.lost:
            raise UserError(
                f"{self.path} was removed or taken over while this process ran: it stops here, "
                "everything "
                "written so far is kept, and the same command goes on once nobody else writes there"
            )

    def _touch_often(self) -> None:
        while not self.lost and not self._done.wait(self.beat):
            self._touch()

    def _touch(self) -> None:
        try:
            if self.path.read_bytes() != self._mine:
                self.lost = True
            else:
                os.utime(self.path)  # no time given: the file server's own
                self._seen = time.time()
        except FileNotFoundError:
            self.lost = not self._done.is_set()
        except OSError:  # a file server that is away for a moment: the next beat asks again
            pass

    def _acquire(self) -> None:
        probe = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex}.tmp")
        try:
            for _ in range(100):
                if _create(self.path, self._mine):
                    return
                probe.write_bytes(self._mine)  # its time is the file server's now
                dead = self._dead_content(probe)
                if dead is not None and self._take_over(dead, probe):
                    return
                time.sleep(0.05)
        finally:
            probe.unlink(missing_ok=True)
        raise UserError(f"{self.path} changes hands too fast: start this process again in a minute")

    def _take_over(self, dead: bytes, probe: Path) -> bool:
        """Put our lock in a dead owner's place. Only who makes the claim, a file named after the
        dead lock, may: renaming alone could move away the new lock of one who was faster."""
        name = uuid.uuid5(uuid.NAMESPACE_OID, dead.decode(errors="replace")).hex
        claim = self.path.with_name(f".{self.path.name}.{name}.claim")
        if not _create(claim, self._mine):
            with suppress(
                FileNotFoundError
            ):  # its maker has just finished, or died before it removed it
                if probe.stat().st_mtime - claim.stat().st_mtime > self.stale:
                    claim.unlink()
            return False
        try:
            if self._dead_content(probe) != dead:
                return False
            os.replace(probe, self.path)
            return True
        finally:
            claim.unlink(missing_ok=True)

    def _dead_content(self, probe: Path) -> bytes | None:
        """The content of a dead owner's lock; None where it is gone; `UserError` where its owner
        may live."""
        try:
            content, owner, touched = _read(self.path)
        except FileNotFoundError:
            return None
        age = probe.stat().st_mtime - touched
        left = owner.seconds_left(age, self.stale)
        if left < 0:
            return content
        job = f", job {owner.job}" if owner.job else ""
        sign = (
            f"last sign of life {age:.0f} s ago"
            if age >= 0
            else f"its lock is dated {-age:.0f} s in the future"
        )
        free = (
            "its lock is free when it ends"
            if math.isinf(left)
            else f"if it is dead, its lock is free in {left:.0f} s"
        )
        raise UserError(
            f"{self.path.with_suffix('')} is being written by process {owner.pid or '?'} on host "
            f"{owner.host}{job} "
            f"({sign}): wait for it, end it, or take a place of your own with run: NAME; {free}"
        )


def holder(path: Path) -> Owner | None:
    """Who holds a lock now; None where nobody does, or who did is dead. Writes nothing."""
    return _look(path)[0]


def wait_for(path: Path) -> Owner | None:
    """As `holder`, but an owner on another machine must give a sign of life: nobody is taken for
    living who died in the last two minutes. Waits for that sign, or until all locks of that owner
    are free."""
    owner, first = _look(path)
    touched, patience = first, STALE + 2 * BEAT
    end = time.monotonic() + patience
    while owner and not owner.here and touched == first:
        if time.monotonic() > end:  # a lock that is dated in the future
            return None
        time.sleep(1.0)
        owner, touched = _look(path, patience)
    return owner


def this_process() -> Owner:
    """This process as the owner of a lock; each call has its own token."""
    return Owner(
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=start_time(os.getpid()),
        job=os.environ.get("SLURM_JOB_ID"),
        restart=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        token=uuid.uuid4().hex,
    )


def _look(path: Path, stale: float = STALE) -> tuple[Owner | None, float]:
    """A lock's owner, if alive, and when it was touched last."""
    try:
        _, owner, touched = _read(path)
    except OSError:
        return None, 0.0
    return (owner if owner.seconds_left(time.time() - touched, stale) >= 0 else None), touched


def _read(path: Path) -> tuple[bytes, Owner, float]:
    """A lock's content, the owner that it names, and when it was touched last."""
    with open(path, "rb") as file:  # opening makes a network file system look again
        content, touched = file.read(), os.fstat(file.fileno()).st_mtime
    try:
        return content, Owner.model_validate_json(content), touched
    except ValidationError:  # torn, or written by something else
        return content, Owner(), touched


def _create(path: Path, content: bytes) -> bool:
    """Make a file that is not there yet (O_EXCL); False where it is."""
    try:
        with open(path, "xb") as file:
            try:
                file.write(content)
                file.flush()
            except OSError:  # a full disk: an empty lock would only stand in the way
                path.unlink(missing_ok=True)
                raise
    except FileExistsError:
        return False
    return True


def _machine() -> str:
    """Tells machines and containers of one host name apart: a process number means something only
    within."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return ""


def start_time(pid: int) -> str | None:
    """When a process began, to compare; None: no such process, or its zombie; "": alive, but hides
    that."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else fields[18]
    except ProcessLookupError:
        return None
    except (
        FileNotFoundError,
        PermissionError,
    ):  # no /proc, no such process, or another user's, hidden
        if os.name == "nt":  # where os.kill would interrupt it
            return ""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""


class Bar(Protocol):
    """A progress bar, told of the tokens of each example that was answered."""

    def update(self, tokens: int, /) -> Any: ...


class Progress:
    """One bar over one or many cells, in tokens, with the time left: `tokens` is length x examples,
    over all.

    The total is mended as cells turn out to be partly done, and examples shorter than their budget.
    """

    def __init__(self, tokens: int, **options: Any) -> None:
        from tqdm.auto import tqdm

        often = 0.2 if sys.stderr.isatty() else 5.0  # a job's log keeps every refresh
        looks: dict[str, Any] = {
            "unit": " tokens",
            "unit_scale": True,
            "smoothing": 0.1,
            "mininterval": often,
        }
        self.bar = tqdm(total=tokens, **(looks | options))
        self._total = tokens
        self._length = self._done = self._wanted = 0

    def start(self, title: str, length: int, done: int, wanted: int) -> None:
        """Cells of one length begin, `done` of their `wanted` examples answered by an earlier
        session."""
        self._length, self._done, self._wanted = length, done, wanted
        self.bar.total = self._total = max(0, self._total - length * done)
        self.bar.set_description_str(title, refresh=False)
        self.bar.set_postfix_str(f"{done}/{wanted} examples", refresh=False)

    def update(self, tokens: int) -> None:
        """One more example was answered, `tokens` long with its answer."""
        self._done += 1
        self.bar.total = self._total = max(0, self._total + tokens - self._length)
        self.bar.set_postfix_str(f"{self._done}/{self._wanted} examples", refresh=False)
        self.bar.update(tokens)

    def close(self) -> None:
        self.bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

"""Predictions on disk: cells, their rows and records, and the locks that keep one writer at a time.

A cell is one model on one task at one length. `predictions/<run>/<model>/<task>/<length>.jsonl`
holds a row per example, `<length>.json` beside it the record of how the rows were made; the two
alone say whether a cell is complete. `<length>.failures.jsonl` lists the requests that failed, a
line per attempt, and `<length>.soft.jsonl` holds the soft scores.

Rows of format 2 end with a checksum of their line. Rows of format 1 have none and are checked
against a schema; rows appended to such a file have a checksum. A row or record that is not as it
was written raises `DamagedCell`.
"""

import json
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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from rulerkit.errors import UserError, remark, shorten
from rulerkit.models import Failure
from rulerkit.paths import completed, home, package_version
from rulerkit.settings import JSON

FORMAT = 2
WAYS_OUT = "give this run a place of its own with run: NAME, or move its files away, as fresh=True (rulerkit evaluate --fresh) does"
PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "vllm", "sentencepiece", "tiktoken")
SYNC = 5.0  # seconds of answers that a power cut may cost
BEAT = 20.0  # seconds between two touches of a lock by its owner
STALE = 120.0  # seconds without a touch after which an owner that cannot be checked counts as dead
_FAILURES = ".failures.jsonl"
_SOFT = ".soft.jsonl"
_INDEX = re.compile(rb'\{"index": (\d{1,9}),')
_CHECKSUM = b', "checksum": "'

Report = Callable[[str], None]
"""Receives one line on what is left out and why."""


class DamagedCell(UserError):  # noqa: N818
    """A record or a row is not as it was written: tables leave the cell out."""


# --- writing --------------------------------------------------------------------------------------


@contextmanager
def disk(
    path: Path,
    fix: str = "everything written so far is kept: make room or choose a folder that can be "
    "written, and run the same command again to resume",
) -> Iterator[None]:
    """Turn an error of the file system (full disk, read-only, no permission) into one line."""
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}; {fix}") from error


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it survives a power cut. Makes its folder where there is none."""
    with disk(path), completed(path) as part, part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())


def row_line(row: JSON) -> bytes:
    """A row as a line of ASCII that ends with the CRC-32 of the line without the checksum.

    A model may write half a surrogate or a line separator: in ASCII both come back unchanged.
    """
    text = json.dumps(row).encode()
    return b'%s%s%08x"}\n' % (text[:-1], _CHECKSUM, zlib.crc32(text))


class Log:
    """Rows appended to a file, each in one write, so that a crash can tear only the last line. Such a
    line is cut off first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with disk(path):
            content = path.read_bytes() if path.exists() else b""
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.ftruncate(self._file, content.rfind(b"\n") + 1)
        self._synced = time.monotonic()

    def append(self, row: JSON) -> None:
        """Write one row."""
        line, done = row_line(row), 0
        with disk(self.path):
            while done < len(line):
                done += os.write(self._file, line[done:])
            if time.monotonic() - self._synced > SYNC:
                os.fsync(self._file)
                self._synced = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with disk(self.path) if kind is None else suppress(OSError):  # keep the first error
            try:
                os.fsync(self._file)
            finally:
                os.close(self._file)


# --- parsing --------------------------------------------------------------------------------------


def parse_json(text: bytes) -> Any:
    """The value of a JSON text; ValueError for anything else, NaN, or lists nested too deeply."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:  # only the standard library reads half a surrogate, which a model may write
        try:
            return json.loads(text, parse_constant=_not_a_number)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def plain(value: JSON) -> JSON:
    """A mapping as JSON gives it back: tuples become lists."""
    read: JSON = json.loads(json.dumps(value))
    return read


Schema = TypeVar("Schema", bound=BaseModel)
Whole = Annotated[int, Field(ge=0, le=10**9)]
Count = Annotated[int, Field(ge=1, le=10**9)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Row(_Part):
    """One example with its answer."""

    index: Whole
    pred: str
    outputs: Annotated[list[str], Field(min_length=1)]
    length: Whole
    task: str
    digest: str
    num_prompt_tokens: Whole
    finish_reason: str
    depths: list[float]
    group: int | None = None
    """What several examples share, such as the article of a question."""
    usage: JSON = {}


class _Task(_Part):
    name: str
    family: str = ""
    category: str | None = None
    match: str | None = None
    edition: str | None = None


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
    thinking_room: str = "inside"


class _Result(_Part):
    task: _Task
    model: _Model
    length: Count
    seed: int | None = None
    prompt_version: int | None = None
    protocol: str | None = None
    sources: dict[str, _Source] = {}
    tokenizer: _Tokenizer = _Tokenizer()
    prompt_format: _PromptFormat = _PromptFormat()


class _Environment(_Part):
    packages: JSON = {}


class Record(_Part):
    """How the rows of a cell were made: `result` defines them, the rest describes them. Files of
    other programs have no format."""

    format: Literal[1, 2] | None = None
    result: _Result
    num_examples: Count
    run: str
    label: str | None = None
    claimed_length: Count | None = None
    aligned: Literal["chat", "base"] = "chat"
    max_failures: Annotated[float, Field(ge=0)] = 0
    adaptive: JSON | None = None
    floors: dict[str, float] = {}
    environment: _Environment = _Environment()
    environments: list[_Environment] = []


def check_schema(schema: type[Schema], value: Any) -> Schema:
    """A value by a schema; ValueError, with the first wrong field, where it does not follow it."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        seen = shorten(repr(first["input"]))
        raise ValueError(f"{place}: {first['msg']}, found {seen}") from None


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
    path: Path, about: Record, parse: bool, report: Report
) -> Iterator[tuple[int, JSON]]:
    """Index and row of each example, in the order of the file.

    Without `parse`, rows with a checksum are empty. Blank lines are skipped; of two rows of one
    example the first counts, and `report` is called. Raises `DamagedCell`, which names the line,
    for any other line that is not a row as it was written.
    """
    first: dict[int, int] = {}
    for number, line in enumerate(whole_lines(path), 1):
        if not (text := line.strip()):
            continue
        try:
            index, row = _read_line(text, about, parse or not first)
        except ValueError as error:
            raise DamagedCell(
                f"{path}, line {number}: not a prediction row as it was written ({error}): delete "
                "that line (its example is answered again) or start anew with fresh=True (--fresh), which "
                "moves the old files aside"
            ) from None
        if index in first:
            report(
                f"{path}, line {number}: a second row for example {index}, which stands in line "
                f"{first[index]} already: the first one counts"
            )
        else:
            first[index] = number
            yield index, row


def _read_line(text: bytes, about: Record, parse: bool) -> tuple[int, JSON]:
    """Index and row of a line; raises ValueError where it is damaged."""
    has_checksum = text[-25:-10] == _CHECKSUM
    if has_checksum:
        if b'%08x"}' % zlib.crc32(text[:-25] + b"}") != text[-10:]:
            raise ValueError("its checksum is wrong")
        if not parse and (match := _INDEX.match(text)):
            return int(match[1]), {}
    elif about.format != 1:
        raise ValueError("it has no checksum")
    row = parse_json(text)
    if not has_checksum:
        check_schema(Row, row)
    if row["task"] != (task := about.result.task.name):
        raise ValueError(f"it is of task {row['task']}, the record says {task}")
    row.pop("checksum", None)
    return row["index"], row


# --- cells ----------------------------------------------------------------------------------------


class Cell:
    """One model on one task at one length: the record, as it was written and as it was checked
    (`about`), and one row per example.

    Rows are read from the file when they are first needed and then stay in memory; `stream` reads
    them without keeping them. `rows` may be given instead, as for files of other programs. `wanted`
    is how many examples were asked for, the largest number. Reading fills `warnings` (rows that
    were skipped) and `snapshots` (the versions of its model that a service named in its replies).
    """

    def __init__(self, path: Path, record: JSON, rows: list[JSON] | None = None) -> None:
        self.path, self.record = path, record
        self.about = about = check_schema(Record, record)
        self.run, self.wanted, self.length = about.run, about.num_examples, about.result.length
        self.model, self.task = about.result.model.name, about.result.task.name
        self.warnings: list[str] = []
        self.snapshots = set[str]()
        if rows is not None:
            self.rows = rows

    @cached_property
    def rows(self) -> list[JSON]:
        """The rows, by index."""
        return sorted(self.stream(), key=lambda row: int(row["index"]))

    @cached_property
    def present(self) -> list[int]:
        """The indices of the examples that have a row."""
        rows = enumerate(self.rows) if "rows" in vars(self) else self._read(parse=False)
        return sorted(index for index, _ in rows)

    def stream(self) -> Iterator[JSON]:
        """The rows one by one, in the order of the file where they are not in memory."""
        self.snapshots.clear()
        for _, row in enumerate(self.rows) if "rows" in vars(self) else self._read(parse=True):
            if usage := row.get("usage"):
                names = (usage.get("server_model"), usage.get("system_fingerprint"))
                self.snapshots.add(" ".join(str(name) for name in names if name))
            yield row
        self.snapshots.discard("")

    def _read(self, parse: bool) -> Iterator[tuple[int, JSON]]:
        self.warnings.clear()
        rows = _read_rows(self.path, self.about, parse, self.warnings.append)
        return (pair for pair in rows if pair[0] < self.wanted)

    @property
    def missing(self) -> list[int]:
        """The indices of the examples asked for that have no row yet."""
        return sorted(set(range(self.wanted)) - set(self.present))

    @property
    def complete(self) -> bool:
        return not self.missing

    @cached_property
    def failures(self) -> dict[int, Failure]:
        """The last attempt at each example that has no row, by index; damaged lines are skipped."""
        attempts = dict[int, Failure]()
        for line in whole_lines(failures_file(self.path)):
            with suppress(ValueError, KeyError, TypeError):
                attempt = parse_json(line)
                failure = Failure(str(attempt["reason"]), bool(attempt["refused"]))
                attempts[int(attempt["index"])] = failure
        return {index: attempts[index] for index in sorted(attempts.keys() - set(self.present))}

    @cached_property
    def soft(self) -> dict[int, JSON]:
        """The soft scores by index."""
        return dict(_read_rows(soft_file(self.path), self.about, True, self.warnings.append))

    @property
    def without_soft(self) -> list[int]:
        """The answered examples that lack a soft score: of those with one reference, and of tasks
        that accept any of several."""
        part = self.about.result.task.match == "part"
        rows = (row for row in self.stream() if part or len(row["outputs"]) == 1)
        return [row["index"] for row in rows if row["index"] not in self.soft]


def load_cell(path: Path) -> Cell | None:
    """The cell of a prediction file, rows unread; None where there is neither file nor record.

    Raises `DamagedCell` where the record is not as it was written.
    """
    file = path.with_suffix(".json")
    try:
        cell = Cell(path, parse_json(file.read_bytes()))
        if not cell.about.format:
            raise ValueError("it names no format")
    except OSError as error:
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
            f"{file} is no record of predictions that this version reads ({error}): update rulerkit "
            f"where a newer one wrote it, or {WAYS_OUT}"
        ) from error
    return cell


def failures_file(path: Path) -> Path:
    """The file of failed requests beside a prediction file, one line per attempt."""
    return path.with_name(f"{path.stem}{_FAILURES}")


def soft_file(path: Path) -> Path:
    """The soft scores beside a prediction file."""
    return path.with_name(f"{path.stem}{_SOFT}")


def read_cells(
    path: Path, strict: bool = True, report: Report = remark, scan: bool = True
) -> list[Cell]:
    """The cells of a `.jsonl` file, of the record beside it, or anywhere below a folder, by run,
    model, task and length.

    Skips hidden files, locks, files beside the rows, and old files moved aside; follows links to folders. Of a
    folder, a damaged cell and a folder that cannot be read are left out and passed to `report`;
    without `scan` rows are checked when they are first read. A prediction file without a record is
    damaged, or skipped where not `strict`.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"no predictions at {path}: no such file or folder; give a .jsonl file, a run's folder, or "
            "outputs/predictions"
        )
    cells, file_given = [], path.with_suffix(".jsonl") if path.suffix == ".json" else path
    for file in [file_given] if path.is_file() else prediction_files(path, report):
        if not strict and not file.with_suffix(".json").exists():
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
    files, visited = set[Path](), set[str]()

    def unreadable(error: OSError) -> None:
        report(f"left out: {error.filename} cannot be read ({error.strerror}), nor any cell in it")

    for place, folders, names in os.walk(folder, followlinks=True, onerror=unreadable):
        real = os.path.realpath(place)
        if real in visited:  # a link to it
            folders.clear()
            continue
        visited.add(real)
        folders[:] = [name for name in sorted(folders) if not name.startswith(".")]
        for name in names:
            file = Path(place, name)
            if name.startswith(".") or name.endswith((".bak.jsonl", _FAILURES, _SOFT)):
                continue
            if file.suffix == ".jsonl" or (file.suffix == ".json" and file.stem.isdigit()):
                files.add(file.with_suffix(".jsonl"))
            elif not file.exists():
                report(f"left out: {file} is a link to nothing")
    return sorted(files)


def stamp(path: Path) -> list[list[int]]:
    """Time and size of the files of a cell, which change when it changes."""
    return [time_and_size(file) for file in cell_files(path)]


def cell_files(path: Path) -> list[Path]:
    """The files of a cell: rows, record, failed requests, soft scores."""
    return [path, path.with_suffix(".json"), failures_file(path), soft_file(path)]


def time_and_size(file: Path) -> list[int]:
    """Nanoseconds and bytes; [0, 0] where there is no such file."""
    try:
        status = os.stat(file)
    except OSError:
        return [0, 0]
    return [status.st_mtime_ns, status.st_size]


def failure_counts(failed: int, refused: int) -> str:
    """`2 refused by the service, 1 failed`, of `failed` examples in all; "" for none."""
    counts = {"refused by the service": refused, "failed": failed - refused}
    return ", ".join(f"{count} {what}" for what, count in counts.items() if count)


def allowed_failures(max_failures: float, wanted: int) -> float:
    """How many examples of a cell may fail: `max_failures` is a share below 1, else a number."""
    return max_failures * wanted if max_failures < 1 else max_failures


# --- locks ----------------------------------------------------------------------------------------


class Owner(BaseModel):
    """The process that a lock file names; fields that the file does not name have defaults."""

    model_config = ConfigDict(strict=True)

    host: str = "?"
    machine: str = ""
    pid: Annotated[int, Field(gt=0, lt=2**31)] | None = None
    started: str | None = None
    job: str | None = None
    restart: int = 0
    token: str = ""
    touched: float = 0.0
    """When the lock was touched last, in seconds since 1970."""

    @property
    def here(self) -> bool:
        """Whether it is a process of this machine, so that its number can be looked up."""
        return (self.host, self.machine) == (socket.gethostname(), _machine())

    def is_alive(self, stale: float = STALE) -> bool:
        """Whether its process is seen to live; where it cannot be looked up, whether it touched its
        lock in the last seconds."""
        me = this_process()
        if self.job and self.job == me.job and self.restart < me.restart:
            return False
        if self.pid and self.here and (started := start_time(self.pid)) != "":
            return started == self.started
        return time.time() - self.touched < stale


class Lock:
    """One writer at a time: a file made with O_EXCL that names its owner, who touches it.

    No flock, which network file systems break. An owner on this machine is looked up by process
    number and start time. One elsewhere, and a file that names no owner, counts as dead after
    STALE seconds without a touch; the earlier start of a requeued Slurm job is dead at once.
    Where the owner is alive: `UserError` with its host and process.
    """

    def __init__(self, path: Path, beat: float = BEAT) -> None:
        self.path, self.beat, self.lost = path, beat, False
        self._content = this_process().model_dump_json().encode()
        self._seen = time.time()
        self._done = threading.Event()

    def __enter__(self) -> Self:
        with disk(self.path):
            while not self._create():
                self._remove_dead()
        threading.Thread(target=self._touch_often, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        with suppress(OSError):
            if self.path.read_bytes() == self._content:
                self.path.unlink()

    def check(self) -> None:
        """Raise `UserError` where the lock is no longer ours: another process may be writing."""
        if time.time() - self._seen > 3 * self.beat:  # the process was suspended, thread included
            self._touch()
        if self.lost:
            raise UserError(
                f"{self.path} was removed or taken over while this process ran: it stops here, "
                "everything written so far is kept; run the same command again to resume once "
                "nobody else writes there"
            )

    def _touch_often(self) -> None:
        while not self.lost and not self._done.wait(self.beat):
            self._touch()

    def _touch(self) -> None:
        try:
            if self.path.read_bytes() != self._content:
                self.lost = True
            else:
                os.utime(self.path)  # without a time: the file server's own
                self._seen = time.time()
        except FileNotFoundError:
            self.lost = not self._done.is_set()
        except OSError:  # the file server is away for a moment: try again at the next beat
            pass

    def _create(self) -> bool:
        try:
            with open(self.path, "xb") as file:
                file.write(self._content)
        except FileExistsError:
            return False
        return True

    def _remove_dead(self) -> None:
        """Remove the lock of a dead owner; raise `UserError` where its owner may be alive."""
        try:
            content, owner = _read_lock(self.path)
        except FileNotFoundError:
            return
        if not owner.is_alive():
            # a second lock: nobody removes the new lock of a process that was faster
            with Lock(self.path.with_name(f"{self.path.name}.claim.lock"), self.beat):
                if self.path.exists() and self.path.read_bytes() == content:
                    self.path.unlink()
            return
        job = f", job {owner.job}" if owner.job else ""
        raise UserError(
            f"{str(self.path).partition('.lock')[0]} is being written by process "
            f"{owner.pid or '?'} on host {owner.host}{job} (last sign of life: "
            f"{time.ctime(owner.touched)}): wait for it, end it, or take a place of your own with "
            f"run: NAME; its lock is free when it ends, or {STALE:.0f} s after the last sign of "
            "life of a process that cannot be seen from here"
        )


def holder(path: Path, stale: float = STALE) -> Owner | None:
    """Who holds a lock now; None where nobody does, or its owner is dead. Writes nothing."""
    try:
        _, owner = _read_lock(path)
    except OSError:
        return None
    return owner if owner.is_alive(stale) else None


def wait_for(path: Path) -> Owner | None:
    """As `holder`, but an owner on another machine counts only once it touches its lock again.
    Waits for that, or until the lock is free."""
    patience = STALE + 2 * BEAT
    first = owner = holder(path)
    end = time.monotonic() + patience
    while owner and first and not owner.here and owner.touched == first.touched:
        if time.monotonic() > end:  # a lock that is dated in the future
            return None
        time.sleep(1.0)
        owner = holder(path, patience)
    return owner


def this_process() -> Owner:
    """This process as the owner of a lock; each call has another token."""
    return Owner(
        host=socket.gethostname(),
        machine=_machine(),
        pid=os.getpid(),
        started=start_time(os.getpid()),
        job=os.environ.get("SLURM_JOB_ID"),
        restart=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        token=uuid.uuid4().hex,
    )


def _read_lock(path: Path) -> tuple[bytes, Owner]:
    """A lock's content, and the owner that it names."""
    with open(path, "rb") as file:  # opening makes a network file system ask the server
        content, touched = file.read(), os.fstat(file.fileno()).st_mtime
    try:
        owner = Owner.model_validate_json(content)
    except ValidationError:  # torn, or written by something else
        owner = Owner()
    owner.touched = touched
    return content, owner


def _machine() -> str:
    """Distinguishes machines and containers with the same host name: each has its own process
    numbers."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return ""


def start_time(pid: int) -> str | None:
    """When a process began, to compare; None: no such process, or a zombie; "": alive, start
    unknown."""
    if os.name == "nt":  # where os.kill would interrupt it
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # a process of another user may be hidden
        return ""
    return None if state in "ZX" else fields[18]


# --- environment and progress ---------------------------------------------------------------------


def machine(extra: JSON) -> JSON:
    """What rows are made with: versions (nothing is imported for them), commit, host, and what the
    model adds."""
    packages = {name: package_version(name) for name in PACKAGES} | extra.get("packages", {})
    return {
        "rulerkit": package_version("rulerkit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": _commit(home()),
        "host": socket.gethostname(),
        "gpu": None,
        **extra,
        "packages": {name: number for name, number in packages.items() if number},
    }


@cache
def _commit(root: Path) -> str | None:
    """The commit of a checkout, with `-dirty` where files differ from it; None without git."""
    call = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(call, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def progress_bar(tokens: int, disable: bool = False) -> Any:
    """A bar over many cells, in tokens, with the time left."""
    from tqdm.auto import tqdm

    interval = 0.2 if sys.stderr.isatty() else 5.0  # a job's log keeps every refresh
    return tqdm(
        total=tokens, disable=disable, unit=" tokens", unit_scale=True, mininterval=interval
    )


def with_progress(items: Iterable[Any], unit: str) -> Any:
    """The items; a bar in a terminal or notebook counts them where they take more than three
    seconds."""
    from tqdm.auto import tqdm

    return tqdm(items, unit=f" {unit}", delay=3, disable=None)

"""Seals: one digest over what a table was made from, and whether a folder still holds it.

`seal` describes the cells of a folder in a small file that can be printed in a paper: for each cell
a digest over its rows, record and failed requests (`Cell.seal`), its score, and a
digest of each of its files; and one digest over all cells and the code that judged them, which
stands at the foot of every table. `verify` holds a folder against such a file. `anonymous` copies a
folder without hosts, paths and users.
"""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from rulerkit.analysis.remake import examples_of
from rulerkit.common.errors import UserError, first_line
from rulerkit.common.json_text import parse_json
from rulerkit.common.paths import package_version
from rulerkit.common.progress import with_progress
from rulerkit.common.settings import JSON
from rulerkit.scoring.scores import cache_problem, code_version, judged, seal_of
from rulerkit.store.cells import Cell, cell_files, read_cells
from rulerkit.store.files import SEED_FILE, row_line, write_whole
from rulerkit.store.records import check_schema, record_text, result_digest

NAME = "seal.json"
"""The file of a seal, in the folder that it is about."""
SAME, REWRITTEN, ABSENT = "same", "rewritten", "absent"
"""States of a cell. A rewritten one says the same in other bytes, as after a merge."""
_Key = tuple[str, str, str, int]


class SealedCell(BaseModel):
    """One cell of a seal. `score` is the mean of its rows, in percent, None without rows; `files`
    holds a digest of each of its files, by name."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    run: str
    model: str
    task: str
    length: int
    rows: Annotated[int, Field(ge=0)]
    score: Annotated[float, Field(ge=0, le=100)] | None
    seal: str
    files: dict[str, str]

    @property
    def key(self) -> _Key:
        return (self.run, self.model, self.task, self.length)

    def __str__(self) -> str:
        return f"{self.run}/{self.model} {self.task} {self.length}"


class Seal(BaseModel):
    """What `seal` writes. `code` is the digest of the code that judged; `seeds` are those that were
    drawn for runs."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Annotated[int, Field(ge=2, le=2)] = 2
    digest: str
    rulerkit: str
    code: str
    seeds: dict[str, str]
    cells: list[SealedCell]


class Found(NamedTuple):
    """What `verify` found of one cell. `scores` and `prompts` are a state, or a state, a colon and
    the reason; `prompts` is "" where nobody asked."""

    cell: str
    scores: str
    prompts: str = ""


# --- sealing --------------------------------------------------------------------------------------


def seal(folder: Path) -> Seal:
    """The seal of the cells below a folder.

    Raises UserError where a cell is damaged, and where none has rows.
    """
    problems: list[str] = []
    cells = read_cells(folder, report=problems.append)
    if problems:
        raise UserError(f"{folder} cannot be sealed: {problems[0]}")
    sealed = [_sealed(cell) for cell in with_progress(cells, "cells")]
    # The digest is that of a table, which has no line for a cell without rows.
    with_rows = [cell for cell in sealed if cell.rows]
    if not with_rows:
        raise UserError(f"{folder} holds no answers that could be sealed")
    return Seal(
        digest=seal_of((cell.key, cell.seal) for cell in with_rows),
        rulerkit=package_version("rulerkit") or "",
        code=code_version(),
        seeds=_seeds(cells),
        cells=sealed,
    )


def _sealed(cell: Cell) -> SealedCell:
    """A cell as its files say, judged now: no cache is asked."""
    scores = judged(cell, cached=False)["score"]
    mean = round(100 * float(scores.mean()), 9) if len(scores) else None
    return SealedCell.model_construct(
        run=cell.run,
        model=cell.model,
        task=cell.task,
        length=cell.length,
        rows=len(scores),
        score=mean,
        seal=cell.seal,
        files=_digests(cell),
    )


def _digests(cell: Cell) -> dict[str, str]:
    """16 hex digits over each file of a cell, by name."""
    return {
        file.name: sha256(file.read_bytes()).hexdigest()[:16]
        for file in cell_files(cell.path)
        if file.exists()
    }


def _seeds(cells: Iterable[Cell]) -> dict[str, str]:
    """The text of the file with the drawn seed of each run that has one."""
    files = {cell.run: cell.path.parents[2] / SEED_FILE for cell in cells}
    return {
        run: file.read_text(encoding="utf-8", errors="replace")
        for run, file in files.items()
        if file.exists()
    }


def seal_text(sealed: Seal) -> str:
    """A seal as its file holds it."""
    return record_text(sealed.model_dump())


def read_seal(file: Path) -> Seal:
    """The seal of a file; UserError where it is none, or was changed."""
    try:
        text = file.read_bytes()
        values = parse_json(text)
        if isinstance(values, dict):
            values.pop("checksum", None)
        sealed = check_schema(Seal, values)
    except OSError as error:
        raise UserError(
            f"cannot read the seal {file}: {error.strerror}; `rulerkit seal FOLDER` writes one, "
            "and --seal names another"
        ) from None
    except ValueError as error:
        raise UserError(f"{file} is no seal: {error}; bring it back from a copy") from None
    if text != seal_text(sealed).encode():
        raise UserError(
            f"{file} was changed: it does not have the checksum that it names; bring it back from "
            "a copy"
        )
    return sealed


# --- verifying ------------------------------------------------------------------------------------


def verify(folder: Path, sealed: Seal, prompts: bool = True) -> Iterator[Found]:
    """Hold a folder against a seal, cell by cell; then what is in the folder and not in the seal.

    The level `scores` needs the folder alone: the digest of what it says, the scores judged again,
    the bytes of its files, and the cache of its scores. The level `prompts` generates every example
    again, which needs the tokenizer and the corpora. What cannot be had is ABSENT, with the reason.
    """
    problems: list[str] = []
    cells = {
        (cell.run, cell.model, cell.task, cell.length): cell
        for cell in read_cells(folder, report=problems.append)
    }
    known = {cell.key for cell in sealed.cells}
    for one in with_progress(sealed.cells, "cells"):
        cell = cells.get(one.key)
        if cell is None:
            place = f"/{one.run}/{one.model}/{one.task}/{one.length}."
            mine = [text for text in problems if place in text]
            scores = f"{ABSENT}: no such cell in the folder"
            if mine:
                scores = f"damaged: {mine[0].removeprefix('left out: ')}"
            yield Found(str(one), scores, prompts * f"{ABSENT}: no rows")
            continue
        scores = _scores_level(cell, one)
        yield Found(str(one), scores, _prompts_level(cell) if prompts else "")

    others = {key: cell for key, cell in cells.items() if key not in known}
    for cell in others.values():
        if cell.present:
            name = f"{cell.run}/{cell.model} {cell.task} {cell.length}"
            yield Found(name, f"added: {cell.path} is not in the seal")
    named = {one.key for one in sealed.cells if one.key not in cells}
    for problem in problems:
        places = (f"/{run}/{m}/{task}/{n}." for run, m, task, n in named)
        if not any(place in problem for place in places):
            yield Found("elsewhere", f"damaged: {problem}")
    yield from _changed_seeds(cells.values(), sealed)


def count_states(found: Iterable[Found]) -> Counter[str]:
    """State -> of how many levels it is, over all cells."""
    levels = (level for one in found for level in (one.scores, one.prompts))
    return Counter(level.partition(":")[0] for level in levels if level)


def _changed_seeds(cells: Collection[Cell], sealed: Seal) -> Iterator[Found]:
    """The runs whose drawn seed is not that of the seal."""
    now = _seeds(cells)
    for cell in {cell.run: cell for cell in cells}.values():
        run, file = cell.run, cell.path.parents[2] / SEED_FILE
        if now.get(run) != sealed.seeds.get(run):
            text = f"changed: {file} does not hold the seed that was drawn for the run"
            yield Found(run, text)


def _scores_level(cell: Cell, one: SealedCell) -> str:
    """Whether a cell says what was sealed, is judged as it was, and lies in the same files."""
    try:
        now = _sealed(cell)
    except UserError as error:
        return f"damaged: {error}"
    except OSError as error:
        return f"damaged: {error.filename} cannot be read ({error.strerror})"
    others = [
        file
        for file in cell_files(cell.path)
        if now.files.get(file.name) != one.files.get(file.name)
    ]
    names = " and ".join(map(str, others)) or str(cell.path)

    if now.seal != one.seal:
        return f"changed: {names} is not what was sealed"
    is_now, was = now.score or 0.0, one.score or 0.0
    if abs(is_now - was) > 1e-6:
        return (
            f"changed: {cell.path} is judged {is_now:.4f}, sealed {was:.4f}: the code that judges "
            "is another"
        )
    if problem := cache_problem(cell):
        return f"damaged: {problem}; delete it"
    if problem := next(filter(None, map(_torn, others)), ""):
        return f"damaged: {problem}"
    if others:
        return (
            f"{REWRITTEN}: {names} has other bytes than were sealed; its answers, its scores and "
            "what defines them are the same"
        )
    return SAME


def _torn(file: Path) -> str:
    """What stands in a file of lines beside whole lines, each once; "" for nothing."""
    if file.suffix != ".jsonl" or not file.exists():
        return ""
    lines = file.read_bytes().split(b"\n")
    last = lines.pop()
    if last:
        return f"{file} ends within a line"
    if any(line != line.strip() or not line for line in lines):
        return f"{file} has blanks that nobody wrote"
    if len(set(lines)) < len(lines):
        return f"{file} has a line twice"
    return ""


def _prompts_level(cell: Cell) -> str:
    """Whether every example of a cell, generated again, is the one that was answered."""
    try:
        examples = examples_of(cell)
        now = examples.record()
        stored = cell.record["result"]
        for part in ("tokenizer", "sources"):
            if _fingerprints(now[part]) != _fingerprints(stored[part]):
                return f"{ABSENT}: the {part} here are not those of then"
        for row in cell.rows:
            example = examples[row["index"]]
            if example.digest != row["digest"]:
                return f"changed: the prompt of example {row['index']} comes out differently"
            if list(example.references) != row["outputs"]:
                return f"changed: the references of example {row['index']} are others"
    except UserError as error:
        return f"{ABSENT}: {error}"
    except Exception as error:
        # The code of a family or a tokenizer of others raises anything.
        return f"{ABSENT}: {type(error).__name__}: {first_line(error)}"
    return SAME


def _fingerprints(part: JSON) -> Any:
    """The fingerprint of a tokenizer, or those of all sources."""
    if "fingerprint" in part:
        return part["fingerprint"]
    return {name: _fingerprints(inner) for name, inner in part.items()}


# --- sharing --------------------------------------------------------------------------------------

_KEPT = (
    *("rulerkit", "python", "git", "gpu", "packages"),
    *("tensor_parallel_size", "pipeline_parallel_size", "strategy"),
)
"""What of an environment says how rows were made, and not where."""
_PATH = re.compile(r"(?<![\w./~:-])[~/][\w.@+-]*(?:/[\w.@+ -]+)*/([\w.@+-]+)")
"""An absolute path; of it the last part stays."""


def anonymous(folder: Path, to: Path) -> int:
    """Copy the cells below a folder without hosts, paths and users; returns how many.

    The copy lies in `to`/predictions and has rows, records, and failed requests
    without what servers said. Its seal is that of the original, but where a path defines a model.
    Raises UserError where `to` holds anything, and for a damaged cell.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UserError(f"{to} is not empty: choose a folder that is to be made")
    problems: list[str] = []
    cells = read_cells(folder, report=problems.append)
    if problems:
        raise UserError(f"{folder} cannot be copied: {problems[0]}")

    for cell in with_progress(cells, "cells"):
        place = to / "predictions" / cell.run / cell.model / cell.task
        files = cell_files(place / f"{cell.length}.jsonl")
        record = _without_places(cell.record)
        tie = {"result": result_digest(record["result"])}
        failures = [
            {"index": index, "time": "", "reason": _WHY[failure.refused]}
            | {"refused": failure.refused}
            for index, failure in cell.failures.items()
        ]
        write_whole(files[1], record_text(record))
        for file, rows in ((files[0], cell.stream()), (files[2], failures)):
            content = b"".join(row_line({**row, **tie}) for row in rows)
            if content:
                write_whole(file, content)
    return len(cells)


_WHY = {False: "failed", True: "refused by the service"}


def _without_places(record: JSON) -> JSON:
    """A record without hosts, paths and users."""
    environments = [
        {key: one[key] for key in _KEPT if key in one}
        for one in record.get("environments", [record["environment"]])
    ]
    copy = {**record, "environment": environments[-1]}
    if "environments" in record:
        copy["environments"] = environments
    # The text of a template is no path, whatever stands in it.
    result = record["result"]
    form = {"prompt_format": result["prompt_format"]}
    copy["result"] = _without_paths(result) | form
    return copy


def _without_paths(value: Any) -> Any:
    """A value with only the last part of each absolute path in it."""
    if isinstance(value, str):
        return _PATH.sub(r"\1", value)
    if isinstance(value, dict):
        return {key: _without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_paths(inner) for inner in value]
    return value

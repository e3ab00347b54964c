"""Seals: one digest over what a table was made from, and whether a folder still holds it.

`seal` describes the cells of a folder in a small file that can be printed in a paper: for each cell
a digest over its rows, record, failed requests and soft scores (`Cell.seal`), its score, and one
digest over all of them and the code that judged them, which stands at the foot of every table.
`verify` holds a folder against such a file. `anonymous` copies a folder without hosts, paths and
users.
"""

import json
import re
from collections.abc import Iterator
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
from rulerkit.store.files import row_line, write_whole
from rulerkit.store.records import check_schema, record_text, result_digest

NAME = "seal.json"
"""The file of a seal, in the folder that it is about."""
SAME, ABSENT = "same", "absent"
_Key = tuple[str, str, str, int]


class SealedCell(BaseModel):
    """One cell of a seal. `score` is the mean of its rows, in percent."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    run: str
    model: str
    task: str
    length: int
    rows: Annotated[int, Field(ge=1)]
    score: Annotated[float, Field(ge=0, le=100)]
    seal: str

    @property
    def key(self) -> _Key:
        return (self.run, self.model, self.task, self.length)

    def __str__(self) -> str:
        return f"{self.run}/{self.model} {self.task} {self.length}"


class Seal(BaseModel):
    """What `seal` writes. `code` is the digest of the code that judged."""

    model_config = ConfigDict(strict=True, extra="forbid")

    format: Annotated[int, Field(ge=1, le=1)] = 1
    digest: str
    rulerkit: str
    code: str
    cells: list[SealedCell]


class Found(NamedTuple):
    """What `verify` found of one cell. `scores` and `prompts` are SAME, or what is not; `prompts`
    is "" where nobody asked."""

    cell: str
    scores: str
    prompts: str = ""


# --- sealing --------------------------------------------------------------------------------------


def seal(folder: Path) -> Seal:
    """The seal of the cells below a folder that have rows.

    Raises UserError where a cell is damaged, and where there is none.
    """
    problems: list[str] = []
    cells = read_cells(folder, report=problems.append)
    if problems:
        raise UserError(f"{folder} cannot be sealed: {problems[0]}")
    sealed = [_sealed(cell) for cell in with_progress(cells, "cells")]
    sealed = [cell for cell in sealed if cell.rows]
    if not sealed:
        raise UserError(f"{folder} holds no answers that could be sealed")
    digest = seal_of((cell.key, cell.seal) for cell in sealed)
    version = package_version("rulerkit") or ""
    return Seal(
        digest=digest, rulerkit=version, code=code_version(), cells=sealed
    )


def _sealed(cell: Cell) -> SealedCell:
    """A cell as its files say, judged now: no cache is asked."""
    scores = judged(cell, cached=False)["score"]
    mean = round(100 * float(scores.mean()), 9) if len(scores) else 0.0
    return SealedCell.model_construct(
        run=cell.run,
        model=cell.model,
        task=cell.task,
        length=cell.length,
        rows=len(scores),
        score=mean,
        seal=cell.seal,
    )


def seal_text(sealed: Seal) -> str:
    """A seal as its file holds it."""
    return json.dumps(sealed.model_dump(), indent=1) + "\n"


def read_seal(file: Path) -> Seal:
    """The seal of a file; UserError where it is none, or was changed by hand."""
    try:
        sealed = check_schema(Seal, parse_json(file.read_bytes()))
    except OSError as error:
        raise UserError(
            f"cannot read the seal {file}: {error.strerror}; `rulerkit seal FOLDER` writes one, "
            "and --seal names another"
        ) from None
    except ValueError as error:
        raise UserError(
            f"{file} is no seal: {error}; bring it back from a copy"
        ) from None
    cells = ((cell.key, cell.seal) for cell in sealed.cells)
    if seal_of(cells, sealed.code) != sealed.digest:
        raise UserError(
            f"{file} was changed: its cells do not have the digest {sealed.digest}; bring it back "
            "from a copy"
        )
    return sealed


# --- verifying ------------------------------------------------------------------------------------


def verify(folder: Path, sealed: Seal, prompts: bool = True) -> Iterator[Found]:
    """Hold a folder against a seal, cell by cell; then what is in the folder and not in the seal,
    and caches of scores that are not as they were written.

    The level `scores` needs the folder alone: the digest of the files, and the scores judged again.
    The level `prompts` generates every example again, which needs the tokenizer and the corpora.
    What cannot be had is ABSENT, with the reason.
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


def _scores_level(cell: Cell, one: SealedCell) -> str:
    """Whether the files of a cell are as they were written, and its scores those of the seal."""
    record = cell.path.with_suffix(".json")
    try:
        now = _sealed(cell)
        _ = cell.soft, cell.failures
        if record.read_bytes() != record_text(cell.record).encode():
            return f"changed: {record} says the same in other bytes"
        for file in cell_files(cell.path):
            if problem := _torn(file):
                return f"damaged: {problem}"
    except UserError as error:
        return f"damaged: {error}"
    if cell.warnings:
        return f"damaged: {cell.warnings[0]}"
    if now.seal != one.seal:
        return (
            f"changed: {cell.path} or a file beside it is another than was sealed"
        )
    if abs(now.score - one.score) > 1e-6:
        return (
            f"changed: {cell.path} is judged {now.score:.4f}, sealed {one.score:.4f}: the code "
            "that judges is another"
        )
    if problem := cache_problem(cell):
        return f"damaged: {problem}; delete it"
    return SAME


def _torn(file: Path) -> str:
    """What stands in a file of lines beside whole lines; "" for nothing."""
    if file.suffix != ".jsonl" or not file.exists():
        return ""
    content = file.read_bytes()
    lines = content.split(b"\n")
    if lines[-1]:
        return f"{file} ends within a line"
    if any(line != line.strip() or not line for line in lines[:-1]):
        return f"{file} has blanks that nobody wrote"
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

    The copy lies in `to`/predictions and has rows, records, soft scores, and failed requests
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
        soft = [{"index": index, **row} for index, row in cell.soft.items()]
        write_whole(files[1], record_text(record))
        for file, rows in (
            (files[0], cell.stream()),
            (files[2], failures),
            (files[3], soft),
        ):
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

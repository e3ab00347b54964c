"""What a caller gives where results are meant: cells, places on disk, or the rows of a table.

`as_cells` decides it for all functions that read answers.
"""

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.common.errors import UserError, listed, remark, shortened, unknown
from rulerkit.common.paths import holds_checkpoint, resolve_file
from rulerkit.common.settings import JSON
from rulerkit.store.cells import Cell, Report, readable
from rulerkit.store.comparable import describe_first, differences
from rulerkit.store.predictions import read_predictions

if TYPE_CHECKING:
    import pandas as pd

TAKES = "cells (of `rk.evaluate`), a path, a list of these, or rows of `rk.load`"
"""What `as_cells` takes, in words."""
AND = " + "
"""Between the files of a cell that stands in several places."""
CELL = ["path", "run", "task", "length"]
"""The columns of a row that name its cell: a log of another program holds several."""
_EXAMPLE = ["run", "model", "task", "length", "index"]


def as_cells(given: Any, who: str, report: Report = remark, in_part: bool = False) -> list[Cell]:
    """The cells that are given: one or several cells or places as `rk.load` takes them, or those of
    the rows of a table, which holds all their answers unless it may do so `in_part`. Raises
    UserError, in the name of the function `who`, for anything else."""
    if isinstance(given, Cell):
        return [given]
    if isinstance(given, str | Path):
        return find_cells([given], report)
    if is_table(given):
        of_rows = cells_of_rows(given, who, report=report)
        answers = given[CELL].value_counts() if not in_part else {}
        for key, count in answers.items():
            have = len(of_rows[key].coverage.have)
            if count < have:
                raise UserError(
                    f"{who} reads whole cells, and the table has {count} of {have} answers of "
                    f"{key[0]}: give all of them, or the cells"
                )
        return list(of_rows.values())
    # A row of a table, or a summary, is no list of places.
    is_record = hasattr(given, "keys") or hasattr(given, "_fields")
    if is_record or not isinstance(given, Iterable) or isinstance(given, bytes):
        raise UserError(f"{who} takes {TAKES}; seen: {shortened(given)}")

    items = list(given)
    if items and all(isinstance(item, str | Path) for item in items):
        return find_cells(items, report)
    cells = []
    for item in items:
        cells += as_cells(item, who, report, in_part)
    return cells


def is_table(given: Any) -> bool:
    """Whether something is a DataFrame; pandas is not imported for the question."""
    return hasattr(given, "columns") and hasattr(given, "iloc")


def check_columns(table: Any, names: Collection[str], who: str, takes: str = "") -> None:
    """Raise UserError where a table lacks columns, or is none; `takes` are the words for what the
    function `who` takes, by default such a table."""
    takes = takes or f"a table with the columns {listed(names, 8)}"
    if not is_table(table):
        raise UserError(f"{who} takes {takes}; seen: {shortened(table)}")
    missing = [name for name in names if name not in table.columns]
    if missing:
        raise UserError(f"{who} takes {takes}; seen: one without {listed(missing, 5)}")


def cells_of_rows(
    rows: Any, who: str, cells: Iterable[Cell] | None = None, report: Report = remark
) -> dict[tuple[str, str, str, int], Cell]:
    """The cell of each row of a table, by CELL; from `cells` where they are given, else from the
    files. Raises UserError for a table of other rows, and where a file has the cell no more."""
    check_columns(rows, CELL, who, TAKES)
    if cells is None:
        cells = find_cells(dict.fromkeys(rows["path"]), report)
    found = {}
    for cell in cells:
        found[cell.path.resolve(), cell.run, cell.task, cell.length] = cell

    of_rows = {}
    keys = rows[CELL].drop_duplicates().itertuples(index=False, name=None)
    for path, run, task, length in keys:
        first, *_ = _files_of(path)
        cell_of_row = found.get((resolve_file(first).resolve(), run, task, length))
        if cell_of_row is None:
            raise UserError(
                f"{path} has no answers of run {run} to {task} at length {length}: it was changed "
                "after the rows were read; load them again"
            )
        of_rows[path, run, task, length] = cell_of_row
    return of_rows


def only_rows(table: "pd.DataFrame", given: Any) -> "pd.DataFrame":
    """The rows of a table for the examples of `given`, where that is a table."""
    if not is_table(given):
        return table
    return table.merge(given[_EXAMPLE].drop_duplicates(), on=_EXAMPLE)


def find_cells(
    places: Iterable[str | Path],
    report: Report = remark,
    outputs: str | Path = "outputs",
) -> list[Cell]:
    """The cells at some places, each once; of one that stands in several places the union of its
    rows.

    A place is a file or folder of predictions, ours or others', or `run/model`, `run` or
    a model's name in `outputs/predictions`. Rows are checked when they are first read.
    """
    cells: list[Cell] = []
    for place in places:
        for file in _files_of(place):
            for path in _with_predictions(_path_of(file, outputs)):
                cells += read_predictions(path, report)

    # Each file and each cell of ours counts once. Files of other programs, which do not say how
    # they were made, stay apart, and one of them may hold several lengths and repetitions.
    copies: dict[tuple[object, ...], dict[Path, Cell]] = {}
    for cell in cells:
        path = cell.path.resolve()
        key = (cell.run, cell.model, cell.task, cell.length, None if cell.about.format else path)
        copies.setdefault(key, {}).setdefault(path, cell)
    once = []
    for of_cell in copies.values():
        once += _union([*of_cell.values()], report)
    return once


def _files_of(place: str | Path) -> list[str | Path]:
    """The files that the column `path` names in a row; any other place as it is."""
    if isinstance(place, str) and AND in place and not resolve_file(place).exists():
        return [*place.split(AND)]
    return [place]


def _with_predictions(path: Path) -> list[Path]:
    """The folders named `predictions` below an outputs folder, beside which older files may lie;
    the path itself where there is none, or where it lies in one."""
    found: list[Path] = []
    if "predictions" not in path.parts:
        for folder, names, _ in os.walk(path):
            if "predictions" in names:
                found.append(Path(folder, "predictions"))
            kept = [name for name in names if name != "predictions" and not name.startswith(".")]
            names[:] = sorted(kept)
    return found or [path]


def _path_of(place: str | Path, outputs: str | Path) -> Path:
    """The path that a place means: a file or folder; else `run/model` or `run` in
    `outputs/predictions`; else a model's name that stands there in one run only. Raises UserError
    for what means nothing or several."""
    root = resolve_file(outputs) / "predictions"
    for path in (resolve_file(place), root / place):
        # A checkpoint in the working directory is no folder of predictions.
        if str(place) and os.path.exists(path) and not holds_checkpoint(path):
            return path

    folders = sorted(path for path in root.glob("*/*") if path.is_dir())
    of_model = [path for path in folders if path.name == str(place)]
    if len(of_model) == 1:
        return of_model[0]
    names = [f"{path.parent.name}/{path.name}" for path in of_model or folders]
    if of_model:
        raise UserError(
            f"model {str(place)!r} has predictions in several runs: name one of {', '.join(names)}"
        )
    where = (
        f"no predictions at {resolve_file(place)}: no such file or folder; those of this project "
        f"lie in {root}"
    )
    raise unknown("model or folder of predictions", place, names, where)


def _union(copies: list[Cell], report: Report) -> list[Cell]:
    """One cell with the rows of several; none where all of them are damaged. Raises UserError where
    two were made differently, or have different answers to an example."""
    whole = readable(copies, report) if len(copies) > 1 else copies
    if len(whole) < 2:
        return whole
    first, *others = whole
    rows: dict[int, tuple[JSON, Path]] = {}
    for cell in whole:
        if changes := differences(first.record["result"], cell.record["result"]):
            field, one, two, more = describe_first(changes)
            raise UserError(
                f"{first.path} was made with {field} {one}, and {cell.path} with {two}{more}: read "
                "one of them alone, or give one of the two another run or model name"
            )
        for row in cell.rows:
            before, place = rows.setdefault(row["index"], (row, cell.path))
            if (before["pred"], before["digest"]) != (row["pred"], row["digest"]):
                raise UserError(
                    f"example {row['index']} has another answer in {cell.path} "
                    f"({shortened(row['pred'])}) than in {place} ({shortened(before['pred'])}): "
                    "move one of the two files away"
                )

    # The record of the most examples, with all environments.
    record = dict(max(whole, key=lambda cell: cell.wanted).record)
    record["environments"] = []
    for cell in whole:
        record["environments"] += cell.record.get("environments", [cell.record["environment"]])
    in_order = [rows[index][0] for index in sorted(rows)]
    return [Cell(first.path, record, in_order, [cell.path for cell in others])]

"""What a caller gives where results are meant: cells, places on disk, or the rows of a table.

`as_cells` decides it for all functions that read answers.
"""

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError, listed, remark, shortened, unknown
from rulerkit.common.paths import holds_checkpoint, resolve_file
from rulerkit.common.settings import JSON
from rulerkit.store.cells import AND, Cell, Report, readable
from rulerkit.store.comparable import by_model, check_same, describe_first, differences
from rulerkit.store.predictions import read_predictions

TAKES = "cells (of `rk.evaluate`), a path, a list of these, or rows of `rk.load`"
"""What `as_cells` takes, in words."""
CELL_ON_DISK = ["path", "run", "task", "length"]
"""The columns of a row that name its cell: a log of another program holds several."""


def as_cells(given: Any, who: str, report: Report = remark) -> list[Cell]:
    """The cells that are given: one or several cells or places as `rk.load` takes them, or those of
    the rows of a table, which holds all their answers. Raises UserError, in the name of the
    function `who`, for anything else."""
    if is_table(given):
        of_rows = cells_of_rows(given, who, report=report)
        for key, count in given[CELL_ON_DISK].value_counts().items():
            have = len(of_rows[key].coverage.have)
            if count < have:
                raise UserError(
                    f"{who} reads whole cells, and the table has {count} of {have} answers of "
                    f"{key[0]}: give all of them, or the cells"
                )
        return list(of_rows.values())
    items = [given] if isinstance(given, Cell | str | Path) else given
    # A row of a table, or a summary, is no list of places.
    is_record = hasattr(items, "keys") or hasattr(items, "_fields")
    if is_record or not isinstance(items, Iterable) or isinstance(items, bytes):
        raise UserError(f"{who} takes {TAKES}; seen: {shortened(items)}")

    cells, places = list[Cell](), []
    for item in items:
        if isinstance(item, Cell):
            cells.append(item)
        elif isinstance(item, str | Path):
            places.append(item)
        else:
            cells += as_cells(item, who, report)
    if places:
        found = find_cells(places, report)
        cells += found
        # Cells of one model may have been made in different ways: its means mix them.
        for of_model in by_model(readable(found)).values():
            try:
                check_same(of_model)
            except UserError as error:
                report(str(error))
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
    """The cell of each row of a table, by CELL_ON_DISK; from `cells` where these are given, else
    from the files. Raises UserError for other tables, and where a file has the cell no more."""
    check_columns(rows, CELL_ON_DISK, who, TAKES)
    if cells is None:
        cells = find_cells(dict.fromkeys(rows["path"]), report)
    found = {(cell.files, cell.run, cell.task, cell.length): cell for cell in cells}
    of_rows = {}
    for key in rows[CELL_ON_DISK].drop_duplicates().itertuples(index=False, name=None):
        if key not in found:
            path, run, task, length = key
            raise UserError(
                f"{path} has no answers of run {run} to {task} at length {length}: it was changed "
                "after the rows were read; load them again"
            )
        of_rows[key] = found[key]
    return of_rows


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
        # The column `path` of a row may name several files.
        files = [place] if os.path.exists(resolve_file(place)) else str(place).split(AND)
        for file in files:
            path = _path_of(file, outputs)
            # Beside the predictions of an outputs folder older files may lie.
            own = path / "predictions"
            cells += read_predictions(own if own.is_dir() else path, report)

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

    record = max(whole, key=lambda cell: cell.wanted).record
    in_order = [rows[index][0] for index in sorted(rows)]
    return [Cell(first.path, record, in_order, [cell.path for cell in others])]

"""Cells that stand in several places, as on machines without a shared disk, read as one: the union
of their rows.

Nothing is decided that two places answered differently.
"""

from collections.abc import Iterable
from pathlib import Path

from rulerkit.common.errors import UserError, shortened
from rulerkit.common.settings import JSON
from rulerkit.store.cells import Cell, DamagedCell, Report
from rulerkit.store.comparable import describe_first, differences


def put_together(cells: Iterable[Cell], report: Report) -> list[Cell]:
    """Cells, each file once; those of one run, model, task and length as one cell.

    What is damaged is left out and passed to `report`. Raises UserError where two places contradict
    each other. Files of other programs, which do not say how they were made, stay apart.
    """
    files: dict[tuple[Path, str, str, int], Cell] = {}
    for cell in cells:
        # One file of another program may hold several lengths and repetitions.
        files.setdefault((cell.path.resolve(), cell.run, cell.task, cell.length), cell)

    places: dict[tuple[object, ...], list[Cell]] = {}
    for file, cell in files.items():
        key = (cell.run, cell.model, cell.task, cell.length) if cell.about.format else file
        places.setdefault(key, []).append(cell)
    joined = []
    for parts in places.values():
        joined += parts if len(parts) == 1 else _union(parts, report)
    return joined


def _union(parts: list[Cell], report: Report) -> list[Cell]:
    """One cell with the rows of several; none where all of them are damaged."""
    whole = []
    for cell in parts:
        try:
            _ = cell.rows, cell.failures
            whole.append(cell)
        except DamagedCell as error:
            report(f"left out: {error}")
    if len(whole) < 2:
        return whole

    first, *others = whole
    rows: dict[int, tuple[JSON, Cell]] = {}
    for cell in whole:
        _check_made_alike(first, cell)
        for row in cell.rows:
            before, place = rows.setdefault(row["index"], (row, cell))
            if (before["pred"], before["digest"]) != (row["pred"], row["digest"]):
                raise UserError(
                    f"example {row['index']} has another answer in {cell.path} "
                    f"({shortened(row['pred'])}) than in {place.path} "
                    f"({shortened(before['pred'])}): move one of the two files away"
                )

    # The record of the most examples, with all environments.
    most = max(whole, key=lambda cell: cell.wanted)
    environments = []
    for cell in whole:
        for one in cell.record.get("environments") or [cell.record["environment"]]:
            if one not in environments:
                environments.append(one)
    record = most.record | ({"environments": environments} if environments[1:] else {})

    in_order = [rows[index][0] for index in sorted(rows)]
    union = Cell(first.path, record, in_order, [cell.path for cell in others])
    # An example that another place has answered is no failure.
    failures = {index: failure for cell in whole for index, failure in cell.failures.items()}
    union.failures = {index: failures[index] for index in sorted(failures.keys() - rows.keys())}
    for cell in whole:
        union.warnings += cell.warnings
        union.other_answers += cell.other_answers
    return [union]


def _check_made_alike(first: Cell, other: Cell) -> None:
    """Raise UserError where two cells were not made alike, with the first field and both values."""
    changes = differences(first.record["result"], other.record["result"])
    for field in ("adaptive", "max_failures"):
        pair = first.record.get(field), other.record.get(field)
        if pair[0] != pair[1]:
            changes.append((field, *pair))
    if changes:
        field, one, two, more = describe_first(changes)
        raise UserError(
            f"{first.path} was made with {field} {one}, and {other.path} with {two}{more}: read "
            "one of them alone, or give one of the two another run or model name"
        )

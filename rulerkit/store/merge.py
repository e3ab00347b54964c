"""Predictions from machines without a shared disk, put together: the union of each cell's rows.

All is checked before anything is written, and nothing is decided that two machines answered
differently. The order of the places does not matter but for what a server counted, merging twice is
the same as once, and places may be merged one after the other.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rulerkit.common.errors import UserError, shortened
from rulerkit.common.settings import JSON
from rulerkit.store.cells import (
    Cell,
    cell_files,
    failures_file,
    load_cell,
    prediction_files,
    whole_lines,
)
from rulerkit.store.comparable import describe_first, differences
from rulerkit.store.files import SEED_FILE, write_whole
from rulerkit.store.locks import Lock, holder
from rulerkit.store.records import parse_json, plain, record_text

_SAME_ANSWER = ("pred", "digest", "finish_reason")


class Merged(NamedTuple):
    """What a merge did."""

    cells: int
    rows: int
    """Those of all cells of the folder afterwards that the places have."""
    written: int
    """How many cells were written; the others were as they should be."""


def merge(places: Sequence[Path], out: Path) -> Merged:
    """Put the predictions of several outputs folders (or folders of predictions) into `out`, an
    outputs folder; what lies there already takes part.

    Raises UserError, before anything is written, where two records or two answers of one example
    disagree, where a line is damaged, and where a process is writing a cell.
    """
    into = out / "predictions"
    folders = [_predictions(place) for place in places]
    if into.is_dir():
        folders.insert(0, into)

    # A place that is named twice, or that is the folder written to, counts once.
    by_place: dict[tuple[str, ...], list[Cell]] = defaultdict(list)
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        for file in prediction_files(folder, _refuse):
            cell = load_cell(file)
            if cell:
                _check_free(file)
                key = (cell.run, cell.model, cell.task, str(cell.length))
                by_place[key].append(cell)
    if not by_place:
        raise UserError(f"nothing to merge: no predictions in {', '.join(map(str, places))}")

    contents = {
        into.joinpath(*key).with_suffix(".jsonl"): _content(cells)
        for key, cells in by_place.items()
    }
    seeds = _seeds(folders)
    written = sum(_write(path, files) for path, files in contents.items())
    for run, seed in seeds.items():
        if _bytes(into / run / SEED_FILE) != seed:
            write_whole(into / run / SEED_FILE, seed)
    rows = sum(files[0].count(b"\n") for files in contents.values())
    return Merged(len(contents), rows, written)


def _predictions(place: Path) -> Path:
    """The folder of predictions that a place is, or holds."""
    inside = place / "predictions"
    folder = inside if inside.is_dir() else place
    if not folder.is_dir():
        raise UserError(f"{place} is no folder: give outputs folders, or folders of predictions")
    return folder


def _seeds(folders: Sequence[Path]) -> dict[str, bytes]:
    """The seeds that were drawn for runs; UserError where one run has two."""
    seeds: dict[str, tuple[bytes, Path]] = {}
    for folder in folders:
        for file in sorted(folder.glob(f"*/{SEED_FILE}")):
            seed = file.read_bytes()
            before, place = seeds.setdefault(file.parent.name, (seed, file))
            if before != seed:
                raise UserError(
                    f"nothing was merged: {place} and {file} hold two seeds of one run; give one "
                    "of the runs another name"
                )
    return {run: seed for run, (seed, _) in seeds.items()}


def _refuse(problem: str) -> None:
    raise UserError(f"nothing was merged: {problem.removeprefix('left out: ')}")


def _check_free(file: Path) -> None:
    if owner := holder(file.with_suffix(".lock")):
        raise UserError(
            f"nothing was merged: {file} is being written by process {owner.pid} on host "
            f"{owner.host}; merge again once it has ended"
        )


# --- one cell -------------------------------------------------------------------------------------


def _content(cells: list[Cell]) -> list[bytes]:
    """What the three files of a cell hold afterwards, in the order of `cell_files`; b"" for none.
    A cell that is everywhere the same is copied byte for byte."""
    for cell in cells:
        _ = cell.present, cell.failures  # raises for a damaged line
    copies = [[_bytes(file) for file in cell_files(cell.path)] for cell in cells]
    if all(copy == copies[0] for copy in copies):
        return copies[0]

    _check_records(cells)
    rows = _union([cell.path for cell in cells])

    # An example that was answered meanwhile is no failure any more.
    attempts = {
        line: parse_json(line)
        for cell in cells
        for line in whole_lines(failures_file(cell.path))
        if line.strip()
    }
    left = [
        (row["time"], row["index"], line)
        for line, row in attempts.items()
        if row["index"] not in rows
    ]
    failures = [line for _, _, line in sorted(left)]
    record = record_text(_record([cell.record for cell in cells])).encode()
    return [_text(rows.values()), record, _text(failures)]


def _bytes(file: Path) -> bytes:
    return file.read_bytes() if file.exists() else b""


def _text(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _check_records(cells: list[Cell]) -> None:
    """Raise UserError where the cells were not made alike, with the first field and both values."""
    first = cells[0]
    for other in cells[1:]:
        changes = differences(first.record["result"], other.record["result"])
        for field in ("adaptive", "max_failures"):
            pair = first.record.get(field), other.record.get(field)
            if pair[0] != pair[1]:
                changes.append((field, *pair))
        if changes:
            field, one, two, more = describe_first(changes)
            raise UserError(
                f"nothing was merged: {first.path} was made with {field} {one}, and {other.path} "
                f"with {two}{more}; give one of them another run or model name"
            )


def _union(paths: list[Path]) -> dict[int, bytes]:
    """The lines of several files by the index of their example; the first of two that are the
    same. Raises UserError where two are not."""
    lines: dict[int, tuple[bytes, JSON, Path]] = {}
    for path in paths:
        seen = set[int]()
        for line in whole_lines(path):
            if not line.strip():
                continue
            row = parse_json(line)
            index = row["index"]
            # Of two rows of one example in one file the first counts, as everywhere.
            if index in seen:
                continue
            seen.add(index)
            earlier, before, place = lines.setdefault(index, (line, row, path))
            if earlier != line and not _same_answer(before, row):
                raise UserError(
                    f"nothing was merged: example {index} has another answer in {path} "
                    f"({shortened(row.get('pred'))}) than in {place} "
                    f"({shortened(before.get('pred'))}); move one of the two files away, or give "
                    "one of the runs another name"
                )
    return {index: lines[index][0] for index in sorted(lines)}


def _same_answer(one: JSON, two: JSON) -> bool:
    return all(one[field] == two[field] for field in _SAME_ANSWER)


def _record(records: list[JSON]) -> JSON:
    """One record of several that agree: the larger number of examples, and all environments."""
    environments = {}
    for record in records:
        for one in (*record.get("environments", ()), record["environment"]):
            environments[json.dumps(one, sort_keys=True)] = one
    ordered = [environments[text] for text in sorted(environments)]

    # Which of several descriptions stands must not depend on the order of the places. Floors are
    # those of the most examples.
    most = max(one["num_examples"] for one in records)
    described = [
        {
            key: value
            for key, value in record.items()
            if key not in ("environment", "environments", "num_examples")
        }
        for record in records
        if record["num_examples"] == most
    ]
    record = plain(min(described, key=lambda one: json.dumps(one, sort_keys=True)))
    record["num_examples"] = most
    record["environment"] = ordered[-1]
    if len(ordered) > 1:
        record["environments"] = ordered
    return record


def _write(path: Path, contents: list[bytes]) -> bool:
    """Write the files of a cell that differ from what is there, each whole; whether any did."""
    files = cell_files(path)
    if [_bytes(file) for file in files] == contents:
        return False

    path.parent.mkdir(parents=True, exist_ok=True)
    with Lock(path.with_suffix(".lock")):
        # The record first: rows without one would be damage, a record without rows is none.
        for n in (1, 0, 2):
            if contents[n]:
                write_whole(files[n], contents[n])
            else:
                files[n].unlink(missing_ok=True)
    return True

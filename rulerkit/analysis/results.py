"""The one table of results: a row per example, of all predictions below some folders, and its files
for other programs.

`load` makes the table, `answers_of` adds what the model wrote, `export` writes a file.
"""

import json
import os
from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.analysis.failures import NoContext, label, no_context_answers
from rulerkit.analysis.other_formats import read_predictions
from rulerkit.common import escape
from rulerkit.common.errors import UserError, check_known, remark
from rulerkit.common.paths import install_command, resolve, resolve_file
from rulerkit.common.progress import with_progress
from rulerkit.common.settings import JSON
from rulerkit.scoring.scores import lacking_line, score
from rulerkit.scoring.summary import cell_rows
from rulerkit.store.cells import Cell, DamagedCell, Report
from rulerkit.store.files import disk, write_whole

if TYPE_CHECKING:
    import pandas as pd

ANSWER_COLUMNS = {
    "prediction": "what the model wrote, with its thought where it has one",
    "references": "list of the strings that should appear",
    "finish_reason": "stop or length: why the answer ended",
    "depths": "list of percents of the context, 0 to 100: where each needle stands",
    "num_answer_tokens": "tokens of the answer as the server counted them, else NaN",
}
"""The columns that `load` adds to those of `score`."""
LABEL_COLUMNS = {
    "failure": "label of what went wrong, `complete` where nothing did; None where the example "
    "cannot be made again",
    "failure_detail": "what the label was given for",
    "missed_depth": "percent of the context, 0 to 100: where the first needle missed stands",
}
"""The columns that `load(..., labels=True)` adds; examples are generated again for them."""
FORMATS = ("parquet", "csv", "jsonl")
_CELL = ["path", "task", "length"]
_NUMBERS = ("num_answer_tokens", "missed_depth")
_LISTS = ("references", "depths")


def load(
    *places: str | Path,
    answers: bool = True,
    labels: bool = False,
    max_failures: float | None = None,
    report: Report = remark,
) -> "pd.DataFrame":
    """All results below some places: a row per example with the columns of `score`,
    ANSWER_COLUMNS and, with `labels`, LABEL_COLUMNS.

    A place is an outputs folder with all outputs folders below it, a folder or file of predictions
    (ours, upstream's, lm-eval's samples), or a pattern with `*`; without one it is `outputs`.
    Without `answers` judged cells come from the cache and no prediction is read: millions of rows
    take seconds. `answers_of` adds the columns to some rows later. What is damaged is left out and
    passed to `report`. Raises UserError where a place holds no predictions.
    """
    cells = find_cells(places or ("outputs",), report)
    scores = score(cells, report, max_failures)
    warnings = [warning for cell in cells for warning in cell.warnings]
    for line in filter(None, [*warnings, lacking_line(cells, scores)]):
        report(line)
    if answers or labels:
        scores = answers_of(scores, labels, cells, report)
    return scores


def find_cells(
    places: Iterable[str | Path], report: Report = remark
) -> list[Cell]:
    """The cells at some places, as `load` takes them, each once."""
    cells: dict[tuple[Path, str, str, int], Cell] = {}
    for place in places:
        paths = [p for path in _matching(place) for p in _with_predictions(path)]
        for path in paths:
            for cell in read_predictions(path, report=report, scan=False):
                # one file of another program may hold several lengths and repetitions
                key = (cell.path.resolve(), cell.run, cell.task, cell.length)
                cells.setdefault(key, cell)
    return list(cells.values())


def _with_predictions(path: Path) -> list[Path]:
    """The folders named `predictions` below an outputs folder, such as that of `outputs/small`; the
    path itself where there is none, or where it lies in one."""
    found: list[Path] = []
    if "predictions" not in path.parts:
        for folder, names, _ in os.walk(path):
            if "predictions" in names:
                found.append(Path(folder) / "predictions")
            names[:] = sorted(
                name
                for name in names
                if name != "predictions" and not name.startswith(".")
            )
    return found or [path]


def _matching(place: str | Path) -> list[Path]:
    """The path of a place, or all that a pattern matches. Raises UserError for a pattern that
    matches nothing."""
    pattern = str(place)
    if not has_magic(pattern):
        return [resolve_file(place)]

    # as other paths: in the working directory, else below the project's root
    names = glob(pattern, recursive=True)
    if not names:
        names = glob(str(resolve(pattern)), recursive=True)
    if not names:
        raise UserError(
            f"no predictions at {place}: nothing matches this pattern"
        )
    return [Path(name).absolute() for name in sorted(names)]


# --- answers and labels ---------------------------------------------------------------------------


def answers_of(
    scores: "pd.DataFrame",
    labels: bool = False,
    cells: list[Cell] | None = None,
    report: Report = remark,
) -> "pd.DataFrame":
    """Rows of `score` or `load`, all or some, with ANSWER_COLUMNS and, with `labels`,
    LABEL_COLUMNS, read from their files. Those of a damaged file are left out and passed to
    `report`."""
    import pandas as pd

    if cells is None:
        cells = find_cells(dict.fromkeys(scores["path"]), report)
    cell_of = {}
    for cell in cells:
        cell_of[str(cell.path), cell.task, cell.length] = cell
    names = list(ANSWER_COLUMNS)
    without_context: NoContext = {}
    if labels:
        names += LABEL_COLUMNS
        without_context = no_context_answers(cells)

    # cell by cell, so that the rows of one file at a time are in memory
    values: dict[int, Any] = {}
    index = scores["index"].to_numpy()
    by_cell = cell_rows(scores, _CELL).items()
    for key, positions in with_progress(by_cell, "cells"):
        cell = cell_of[key]
        try:
            rows = {row["index"]: row for row in cell.stream()}
        except DamagedCell as error:
            report(f"left out: {error}")
            continue
        failures = _failures(cell, without_context, report) if labels else {}
        for position in positions:
            number = index[position]
            value = _answer(rows[number])
            if labels:
                value += failures.get(number, (None, None, None))
            values[position] = value

    if len(values) < len(scores):
        scores = scores.iloc[sorted(values)]
    in_order = [values[position] for position in sorted(values)]
    answers = pd.DataFrame(in_order, scores.index, names)
    # a column of None only would be one of objects
    numbers = [name for name in _NUMBERS if name in names]
    answers = answers.astype(dict.fromkeys(numbers, float))
    # rows of `load` have the columns already: they are made anew
    others = scores.drop(columns=names, errors="ignore")
    return pd.concat([others, answers], axis=1)


def _answer(row: JSON) -> tuple[Any, ...]:
    """ANSWER_COLUMNS of a row of predictions."""
    usage = row.get("usage") or {}
    return (
        row["pred"],
        row["outputs"],
        row.get("finish_reason", ""),
        row.get("depths", []),
        usage.get("completion_tokens"),
    )


def _failures(
    cell: Cell,
    without_context: NoContext,
    report: Report,
) -> dict[int, tuple[Any, ...]]:
    """LABEL_COLUMNS by index; nothing where the examples cannot be made again."""
    try:
        rows: Any = label([cell], without_context).itertuples()
    except UserError as error:
        report(f"not labelled: {error}")
        return {}
    failures = {}
    for row in rows:
        failures[row.index] = (row.label, row.detail, row.depth)
    return failures


# --- files for other programs ---------------------------------------------------------------------


def export(
    results: "pd.DataFrame",
    path: Path,
    format: str | None = None,
) -> None:
    """Write a table of results as parquet, csv or jsonl, by the ending of `path` unless `format`
    says.

    In CSV lists are JSON, and texts that a spreadsheet could take for a formula begin with a quote.
    Raises UserError for another format and where pyarrow is missing for parquet.
    """
    kind = format or path.suffix.removeprefix(".")
    hint = "The name of the file ends in it, or --format names it"
    check_known("format", kind, FORMATS, hint)

    try:
        with disk(path, "choose another file"):
            if kind == "parquet":
                results.to_parquet(path, index=False)
            elif kind == "jsonl":
                # A prediction may hold half of a surrogate pair, which UTF-8 has no bytes for.
                write_whole(path, _json_lines(results))
            else:
                write_whole(path, escape.csv_text(_lists_as_json(results)))
    except ImportError:
        raise UserError(
            f"parquet needs pyarrow: {install_command('parquet')}, or write csv or jsonl"
        ) from None


def _json_lines(results: "pd.DataFrame") -> str:
    """A line of JSON for each row; half of a surrogate pair as `\\ud800`, in words."""

    def writable(value: Any) -> Any:
        if isinstance(value, str):
            return value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, list):
            return [writable(item) for item in value]
        return value

    texts: JSON = {}
    for name in map(str, results.select_dtypes(["object", "str"])):
        texts[name] = results[name].map(writable)
    return str(
        results.assign(**texts).to_json(
            orient="records", lines=True, double_precision=10
        )
    )


def _lists_as_json(results: "pd.DataFrame") -> "pd.DataFrame":
    """The table with its columns of lists as texts that other programs can read."""
    texts = {}
    for name in _LISTS:
        if name in results:
            texts[name] = results[name].map(json.dumps)
    return results.assign(**texts)

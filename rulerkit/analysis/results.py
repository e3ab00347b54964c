"""The one table of results: a row per example, of all predictions below some folders, and its files
for other programs.

`load` makes the table, `answers_of` adds what the model wrote, `data_of` gives what a file holds.
"""

import json
from collections.abc import Iterable
from typing import Any

import pandas as pd

from rulerkit.analysis.failures import NoContext, label_answers, no_context_answers
from rulerkit.common import escape
from rulerkit.common.errors import UserError, remark
from rulerkit.common.paths import install_command
from rulerkit.common.progress import progress_bar
from rulerkit.common.settings import JSON
from rulerkit.generation.example import Example
from rulerkit.scoring.scores import COLUMNS, as_scores, lacking_line, score
from rulerkit.store.cells import Cell, DamagedCell, readable
from rulerkit.store.places import CELL_ON_DISK, as_cells, cells_of_rows

FIRST = ["score", "prediction", "references", "model", "task", "length", "index"]
"""The columns of `load` that stand first."""
ANSWER_COLUMNS = {
    "prediction": "what the model wrote, with its thought where it has one",
    "references": "list of the strings that should appear",
    "finish_reason": "stop, or length where the prediction stopped at the token limit",
    "depths": "list of percents of the context, 0 to 100: where each needle stands",
    "num_answer_tokens": "tokens of the answer as the server counted them, else NaN",
    "seconds": "duration of the request, where the engine says it, else NaN",
}
"""The columns that `load` adds to those of `score`, beside one for each setting of the tasks, such
as `num_keys`; a setting named as another column is `task_` and its name."""
LABEL_COLUMNS = {
    "failure": "label of what went wrong, `complete` where nothing did; None where the example "
    "cannot be made again",
    "failure_detail": "what the label was given for",
}
"""The columns that `load(..., labels=True)` adds; examples are generated again for them."""
FORMATS = ("csv", "parquet", "jsonl")
"""The formats of tables for other programs: nothing is rounded, no lines stand below."""
_NUMBERS = ("num_answer_tokens", "seconds")
_LISTS = ("references", "depths")


def load(*places: Any, labels: bool = False) -> pd.DataFrame:
    """All results below some places: a row per example, with the columns of `score`,
    ANSWER_COLUMNS, the settings of the tasks and, with `labels`, LABEL_COLUMNS.

    A place is an outputs folder, a folder or file of predictions (ours, or those that a plug-in
    reads), `run`, `run/model` or the name of a model of one run in `outputs/predictions`, a list of
    these, or cells; without one it is `outputs`. Of copies of a cell that with the most answers
    counts. What is damaged is left out, and a line says so.
    Raises UserError where a place holds no predictions, and where two places contradict each other.
    """
    cells = as_cells(places or "outputs", "load")
    scores = score(cells, remark)
    cells = readable(cells)
    if line := lacking_line(cells):
        remark(line)
    return answers_of(scores, labels, cells)


# --- answers and labels ---------------------------------------------------------------------------


def answers_of(
    scores: Any, labels: bool = False, cells: Iterable[Cell] | None = None
) -> pd.DataFrame:
    """Rows of `score` or `load`, all or some, with ANSWER_COLUMNS and, with `labels`,
    LABEL_COLUMNS, read from their files; cells and places are scored first. Those of a damaged file
    are left out, and a line says so."""
    scores = as_scores(scores, "answers_of", remark)
    cell_of = cells_of_rows(scores, "answers_of", cells)
    names = list(ANSWER_COLUMNS)
    without_context: NoContext = {}
    if labels:
        names += LABEL_COLUMNS
        without_context = no_context_answers(cell_of.values())

    # cell by cell, so that the rows of one file at a time are in memory; those of one task and
    # length together, so that an example is made once for all models
    values: dict[int, Any] = {}
    index = scores["index"].to_numpy()
    positions_of: Any = scores.groupby(CELL_ON_DISK, sort=False).indices
    made, of_cell = dict[str, Example](), ("", 0)
    for key in progress_bar(sorted(positions_of, key=lambda key: key[2:]), "cells", delay=3):
        cell, positions = cell_of[key], positions_of[key]
        if key[2:] != of_cell:
            made, of_cell = {}, key[2:]
        rows = _stored_rows(cell, set(index[positions]))
        if rows is None:
            continue
        failures: dict[int, Any] = {}
        if labels:
            try:
                failures = label_answers(cell, without_context, made)
            except UserError as error:
                remark(f"not labelled: {error}")
        nothing = (None, None) if labels else ()
        for position in positions:
            row = rows[index[position]]
            usage = row.get("usage") or {}
            values[position] = (
                row["pred"],
                row["outputs"],
                row.get("finish_reason", ""),
                row.get("depths", []),
                usage.get("completion_tokens"),
                usage.get("seconds"),
                *failures.get(index[position], nothing),
            )

    scores = scores.iloc[sorted(values)]
    in_order = [values[position] for position in sorted(values)]
    # texts stay Python's own: pyarrow refuses half of a surrogate pair, which a model may write
    answers = pd.DataFrame(in_order, scores.index, names, dtype=object)
    answers = answers.astype(dict.fromkeys(_NUMBERS, float))
    answers = pd.concat([answers, _settings(scores)], axis=1)
    # rows of `load` have the columns already: they are made anew
    others = scores.drop(columns=answers.columns, errors="ignore")
    with_answers: Any = pd.concat([others, answers], axis=1)
    rest = [name for name in with_answers if name not in FIRST]
    results: pd.DataFrame = with_answers[[*FIRST, *rest]]
    results.attrs = scores.attrs
    return results


def _settings(scores: pd.DataFrame) -> pd.DataFrame:
    """A column for each setting of the tasks; None where a task has none of that name."""
    texts = scores["settings"].unique()
    settings = pd.DataFrame(map(json.loads, texts), texts, dtype=object)
    taken = {name: f"task_{name}" for name in settings if name in COLUMNS}
    of_rows = settings.rename(columns=taken).reindex(scores["settings"])
    return of_rows.set_axis(scores.index).infer_objects()


def _stored_rows(cell: Cell, wanted: set[int]) -> dict[int, JSON] | None:
    """The rows of a cell by index; None where it is damaged, or lacks some that are wanted."""
    try:
        rows = {row["index"]: row for row in cell.stream()}
        if wanted <= rows.keys():
            return rows
        problem = f"{cell.path} has lost answers since it was read: load it again"
    except DamagedCell as error:
        problem = str(error)
    remark(f"left out: {problem}")
    return None


# --- files for other programs ---------------------------------------------------------------------


def data_of(results: pd.DataFrame, format: str) -> str | bytes:
    """What a file of FORMATS with a table of results holds. In CSV lists are JSON, and texts that a
    spreadsheet could take for a formula begin with a quote. Raises UserError where pyarrow is
    missing for parquet."""
    if format == "parquet":
        try:
            return results.to_parquet(index=False)
        except ImportError:
            raise UserError(
                f"parquet needs pyarrow: {install_command('parquet')}, or write csv or jsonl"
            ) from None
    if format == "csv":
        lists = {name: results[name].map(json.dumps) for name in _LISTS if name in results}
        return escape.csv_text(results.assign(**lists))

    def writable(value: Any) -> Any:
        # A prediction may hold half of a surrogate pair, which UTF-8 has no bytes for.
        if isinstance(value, str):
            return value.encode("utf-8", "backslashreplace").decode()
        if isinstance(value, list):
            return [writable(item) for item in value]
        return value

    rows = results.map(writable)
    return str(rows.to_json(orient="records", lines=True, double_precision=10))

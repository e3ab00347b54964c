"""The leaderboard as files: CSV, Markdown, and LaTeX in the layout of the paper's tables."""

import math
from typing import TYPE_CHECKING, Any

from rulerkit.errors import unknown
from rulerkit.escape import csv_text
from rulerkit.leaderboard import OURS, Board
from rulerkit.lengths import length_name
from rulerkit.published.rebuild import AVERAGES
from rulerkit.tables import Field, ordinal, render

if TYPE_CHECKING:
    import pandas as pd


BOLD = ("ours", "best", "none")
_RANK = {"wavg_inc": "rank_inc", "wavg_dec": "rank_dec"}
_HEADER = {"avg": "Avg.", "wavg_inc": "wAvg. (inc)", "wavg_dec": "wAvg. (dec)"}


def csv(board: Board) -> str:
    """Every column of a table's rows; lengths as 4K, 4K_low, 4K_high."""
    names: dict[Any, str] = {}
    for n in board.lengths:
        names |= {n: length_name(n)} | {f"{n}_{end}": f"{length_name(n)}_{end}" for end in ("low", "high", "have")}
    return csv_text(board.rows.rename(columns=names), "%.4f")


def markdown(board: Board) -> str:
    """A table in Markdown: scores that reach the threshold bold, ours with their intervals."""
    text = render(header_of(board), rows_of(board, "none"), "markdown", board.notes)
    return f"Table {board.number}: {board.title}\n\n{text}"


def latex(board: Board, bold: str = "ours") -> str:
    """A table in the paper's layout for booktabs: underlined from the threshold on, intervals and ranks as subscripts."""
    return render(header_of(board), rows_of(board, bold, compact=True), "latex", board.notes)


def header_of(board: Board) -> list[str]:
    """The heads of a table's columns."""
    lengths, averages = map(length_name, board.lengths), (_HEADER[name] for name in _averages(board))
    return ["Models", "Claimed Length", *["Effective Length"] * _is_judged(board), *lengths, *averages]


def rows_of(board: Board, bold: str, compact: bool = False) -> list[list[Field] | None]:
    """The fields of a table, None between groups (chat and base models, each with its threshold's row before it).

    `bold` is 'ours', 'best' (of each column among models of one alignment) or 'none'; intervals of ours stand behind
    a number as [low, high], `compact` as ± the wider side.
    """
    if bold not in BOLD:
        raise unknown("choice of what is bold", bold, BOLD)
    best_fields = best(board) if bold == "best" else set()
    rows: list[list[Field] | None] = []
    group_before = None
    for i, row in board.rows.iterrows():
        group = (row["aligned"], bool(row["baseline"]))
        rows += [None] * (group_before not in (None, group))
        group_before = group
        is_ours = row["source"] == OURS
        fields = [Field(str(row["model"]), bold=is_ours and bold == "ours", small=_origin(row))]
        fields.append(Field(_text(row, "claimed_length")))
        if _is_judged(board):
            effective, possible = _text(row, "effective_length"), _text(row, "effective_set")
            fields.append(Field(f"{effective} [{possible}]" if possible not in ("", effective) else effective or "-"))
        for n in board.lengths:
            number, is_best = _number(row, n), (i, n) in best_fields
            reaches = bool(number) and round(float(row[n]), 1) >= float(row["threshold"])  # rounded as it is printed
            fields.append(Field(number or _text(row, f"{n}_have"), reaches, is_best, _interval(row, n, compact)))
        for name in _averages(board):
            small = " ".join(filter(None, (_interval(row, name, compact), _rank(row, name))))
            fields.append(Field(_number(row, name), False, (i, name) in best_fields, small))
        rows.append(fields)
    return rows


def best(board: Board) -> set[tuple[int, str | int]]:
    """The greatest value of each column, as printed, among chat and among base models: (row, column)."""
    found: set[tuple[int, str | int]] = set()
    columns: list[str | int] = [*board.lengths, *_averages(board)]
    for _, models in board.rows[~board.rows["baseline"]].groupby("aligned"):
        for column in columns:
            printed = models[column].astype(float).round(1)
            places: list[int] = models.index[printed == printed.max()].tolist()
            found |= {(i, column) for i in places}
    return found


def _averages(board: Board) -> list[str]:
    """The averages that a table shows: Tables 10 and 11 know the plain one only."""
    return [name for name in AVERAGES if board.rows[name].notna().any()] or ["avg"]


def _is_judged(board: Board) -> bool:
    """Whether a table has thresholds, and with them effective lengths."""
    return bool(board.rows["threshold"].notna().any())


def _origin(row: "pd.Series[Any]") -> str:
    if row["source"] == OURS:
        return f"(ours, {row['run']}{', stand-in' * bool(row['stand_in'])})"
    return "(base)" * (row["aligned"] == "base" and "base" not in str(row["model"]))


def _number(row: "pd.Series[Any]", column: str | int) -> str:
    """A score or an average to one decimal, '' where there is none."""
    value = float(row[column])
    return "" if math.isnan(value) else f"{value:.1f}"


def _interval(row: "pd.Series[Any]", column: str | int, compact: bool) -> str:
    if row["source"] != OURS or not _number(row, column):
        return ""
    value, low, high = (float(row[name]) for name in (column, f"{column}_low", f"{column}_high"))
    return f"±{max(value - low, high - value):.1f}" if compact else f"[{low:.1f}, {high:.1f}]"


def _rank(row: "pd.Series[Any]", name: str) -> str:
    """'(1st)' beside a weighted average; '' where there is no rank."""
    value = float(row[_RANK[name]]) if name in _RANK else math.nan
    return "" if math.isnan(value) else f"({ordinal(int(value))})"


def _text(row: "pd.Series[Any]", column: str) -> str:
    return row[column] if isinstance(row[column], str) else ""

"""The leaderboard as files: CSV, Markdown, and LaTeX in the layout of the paper's tables."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rulerkit.errors import unknown
from rulerkit.leaderboard import OURS, Board
from rulerkit.lengths import length_name
from rulerkit.published.rebuild import AVERAGES
from rulerkit.summary.tables import Text, escaped, ordinal, render

if TYPE_CHECKING:
    import pandas as pd


BOLD = ("ours", "best", "none")
_RANK = {"wavg_inc": "rank_inc", "wavg_dec": "rank_dec"}
_HEADER = {"avg": "Avg.", "wavg_inc": "wAvg. (inc)", "wavg_dec": "wAvg. (dec)"}


def shown_averages(board: Board) -> list[str]:
    """The averages that a table shows: Tables 10 and 11 know the plain one only."""
    return [name for name in AVERAGES if board.rows[name].notna().any()] or ["avg"]


def columns_of(board: Board) -> list[str | int]:
    """The columns of numbers: scores by length, then averages."""
    return [*board.lengths, *shown_averages(board)]


def judged(board: Board) -> bool:
    """Whether a table has thresholds, and with them effective lengths."""
    return bool(board.rows["threshold"].notna().any())


def reaches(row: "pd.Series[Any]", length: int) -> bool:
    """Whether a score, rounded as it is printed, is at least the threshold."""
    score, threshold = float(row[length]), float(row["threshold"])
    return not math.isnan(score) and not math.isnan(threshold) and round(score, 1) >= threshold


def best(board: Board) -> set[tuple[int, str | int]]:
    """The greatest value of each column, as printed, among chat and among base models: (row, column)."""
    found: set[tuple[int, str | int]] = set()
    for _, own in board.rows[~board.rows["baseline"]].groupby("aligned"):
        for column in columns_of(board):
            texts = own[column].astype(float).round(1)
            places: list[int] = own.index[texts == texts.max()].tolist()
            found |= {(i, column) for i in places}
    return found


def csv(board: Board) -> str:
    """Every column of a table's rows; lengths as 4K, 4K_low, 4K_high."""
    names: dict[Any, str] = {}
    for n in board.lengths:
        names |= {n: length_name(n)} | {f"{n}_{end}": f"{length_name(n)}_{end}" for end in ("low", "high", "have")}
    return str(board.rows.rename(columns=names).to_csv(index=False, float_format="%.4f", lineterminator="\n"))


def markdown(board: Board) -> str:
    """A table in Markdown: scores that reach the threshold bold, ours with their intervals."""
    rows = []
    for _, row in board.rows.iterrows():
        fields = [
            Text(str(row["model"]) + (" (ours)" if row["source"] == OURS else "")),
            Text(_text(row, "claimed_length")),
        ]
        fields += [Text(effective(row))] * judged(board)
        fields += [Text(score(row, n), reaches(row, n)) for n in board.lengths]
        rows.append(fields + [Text(average(row, name)) for name in shown_averages(board)])
    return f"Table {board.number}: {board.title}\n\n" + render(header_of(board), rows, "markdown", board.notes)


def latex(board: Board, bold: str = "ours") -> str:
    """A table in the paper's layout for booktabs: underlined from the threshold on, ranks as subscripts."""
    if bold not in BOLD:
        raise unknown("choice of what is bold", bold, BOLD)
    marked = best(board) if bold == "best" else set()
    header = header_of(board)
    lines = [r"\begin{tabular}{l" + "c" * (len(header) - 1) + "}", r"\toprule"]
    lines += [" & ".join(rf"\textbf{{{escaped(name)}}}" for name in header) + r" \\", r"\midrule"]
    before = None
    for i, row in board.rows.iterrows():
        kind = (row["aligned"], bool(row["baseline"]))
        lines += [r"\midrule"] * (before is not None and kind != before)
        before = kind
        name = escaped(str(row["model"]))
        fields = [rf"\textbf{{{name}}}" if bold == "ours" and row["source"] == OURS else name]
        fields += [escaped(_text(row, "claimed_length"))] + [escaped(effective(row) or "-")] * judged(board)
        for column in columns_of(board):
            text = number_of(row, column)
            text = rf"\textbf{{{text}}}" if (i, column) in marked else text
            text = rf"\underline{{{text}}}" if isinstance(column, int) and reaches(row, column) else text
            fields.append(text + _latex_behind(row, column))
        lines.append(" & ".join(fields) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}", "", r"\par\smallskip\footnotesize", *map(escaped, board.notes)]
    return "\n".join(lines) + "\n"


def score(row: "pd.Series[Any]", length: int) -> str:
    """'95.5', ours with its interval '95.5 [90.1, 98.0]', or what there is of it: '3/20'."""
    text = number_of(row, length)
    if row["source"] != OURS or not text:
        return text or _text(row, f"{length}_have")
    return f"{text} [{row[f'{length}_low']:.1f}, {row[f'{length}_high']:.1f}]"


def average(row: "pd.Series[Any]", name: str) -> str:
    """'95.5 (1st)', ours with its interval."""
    text = number_of(row, name)
    if row["source"] == OURS and text:
        text += f" [{row[f'{name}_low']:.1f}, {row[f'{name}_high']:.1f}]"
    return text + (f" ({ranked})" if (ranked := rank(row, name)) else "")


def rank(row: "pd.Series[Any]", name: str) -> str:
    """'1st' beside a weighted average; '' where there is no rank."""
    value = float(row[_RANK[name]]) if name in _RANK else math.nan
    return "" if math.isnan(value) else ordinal(int(value))


def effective(row: "pd.Series[Any]") -> str:
    """The effective length, of ours with all that its intervals cannot rule out."""
    text, possible = _text(row, "effective_length"), _text(row, "effective_set")
    return f"{text} [{possible}]" if possible and possible != text else text


def header_of(board: Board) -> list[str]:
    """The heads of a table's columns."""
    effective = ["Effective Length"] if judged(board) else []
    averages: Sequence[str] = [_HEADER[name] for name in shown_averages(board)]
    return ["Models", "Claimed Length", *effective, *map(length_name, board.lengths), *averages]


def number_of(row: "pd.Series[Any]", column: str | int) -> str:
    """A score or an average to one decimal, '' where there is none."""
    value = float(row[column])
    return "" if math.isnan(value) else f"{value:.1f}"


def _text(row: "pd.Series[Any]", column: str) -> str:
    return row[column] if isinstance(row[column], str) else ""


def _latex_behind(row: "pd.Series[Any]", column: str | int) -> str:
    """The wider side of our interval, and the rank, small behind a number."""
    if not number_of(row, column):
        return escaped(_text(row, f"{column}_have")) if isinstance(column, int) else ""
    text = ""
    if row["source"] == OURS:
        value, low, high = (float(row[name]) for name in (column, f"{column}_low", f"{column}_high"))
        text = rf"{{\scriptsize$\,\pm${max(value - low, high - value):.1f}}}"
    ranked = rank(row, str(column))
    return text + (rf"\textsubscript{{({ranked})}}" if ranked else "")

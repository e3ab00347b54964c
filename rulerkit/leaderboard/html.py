"""The leaderboard as a page: every table can be sorted by a click on a column's head, here or in JupyterLab."""

import html
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.errors import unknown
from rulerkit.leaderboard import OURS, Board
from rulerkit.leaderboard.text import (
    BOLD,
    best,
    columns_of,
    csv,
    effective,
    header_of,
    judged,
    latex,
    markdown,
    number_of,
    rank,
    reaches,
)
from rulerkit.lengths import parse_length
from rulerkit.published.rebuild import agreement, exceptions
from rulerkit.view import Html

if TYPE_CHECKING:
    import pandas as pd

    from rulerkit.studies import Study

_STYLE = """
.rulerkit-board {border-collapse: collapse; font: 13px/1.3 sans-serif; margin: .4em 0 .8em}
.rulerkit-board th, .rulerkit-board td {padding: .18em .55em; text-align: right; white-space: nowrap}
.rulerkit-board th:first-child, .rulerkit-board td:first-child {text-align: left}
.rulerkit-board th {cursor: pointer; border-bottom: 1px solid; vertical-align: bottom; user-select: none}
.rulerkit-board th[aria-sort=ascending]::after {content: " ▲"; font-size: 70%}
.rulerkit-board th[aria-sort=descending]::after {content: " ▼"; font-size: 70%}
.rulerkit-board tbody:first-of-type td {border-bottom: 1px solid rgba(128,128,128,.5); font-style: italic}
.rulerkit-board tr.ours {background: rgba(86,180,233,.18) !important}
.rulerkit-board u {text-underline-offset: 2px}
.rulerkit-board small {opacity: .75}
.rulerkit-notes {font: 12px/1.4 sans-serif; opacity: .8; margin: 0 0 1.2em; max-width: 70em}
.rulerkit-boards summary {font: bold 14px sans-serif; cursor: pointer; margin: .3em 0}
"""
_SCRIPT = """
window.rulerkitSort = function (head) {
  const table = head.closest("table"), body = table.tBodies[table.tBodies.length - 1];
  const column = head.cellIndex, down = head.getAttribute("aria-sort") !== "descending" && column > 0
    || head.getAttribute("aria-sort") === "ascending";
  const value = row => row.cells[column].dataset.v;
  const rows = Array.from(body.rows);
  rows.sort(function (a, b) {
    const x = value(a), y = value(b);
    if (x === "" || y === "") return (x === "") - (y === "");  // what is missing comes last, up or down
    const order = column === 0 ? x.localeCompare(y) : x - y;
    return down ? -order : order;
  });
  rows.forEach(row => body.appendChild(row));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
};
"""


def page(boards: Iterable[Board], bold: str = "ours") -> Html:
    """All tables below each other, the first one open; ours shaded, `bold` is 'ours', 'best' (in a column) or 'none'."""
    if bold not in BOLD:
        raise unknown("choice of what is bold", bold, BOLD)
    tables = "".join(
        f"<details{' open' * (not i)}><summary>Table {board.number}: {html.escape(board.title)}</summary>"
        f"{_table(board, bold)}</details>"
        for i, board in enumerate(boards)
    )
    return Html(f'<div class="rulerkit-boards"><style>{_STYLE}</style><script>{_SCRIPT}</script>{tables}</div>\n')


def _table(board: Board, bold: str) -> str:
    heads = "".join(f'<th onclick="rulerkitSort(this)">{html.escape(name)}</th>' for name in header_of(board))
    marked = best(board) if bold == "best" else set()
    rows = [(bool(row["baseline"]), _row(board, int(str(i)), row, bold, marked)) for i, row in board.rows.iterrows()]
    thresholds = "".join(text for first, text in rows if first)
    others = "".join(text for first, text in rows if not first)
    notes = "<br>".join(html.escape(note) for note in board.notes)
    return (
        f'<table class="rulerkit-board"><thead><tr>{heads}</tr></thead><tbody>{thresholds}</tbody>'
        f'<tbody>{others}</tbody></table><p class="rulerkit-notes">{notes}</p>'
    )


def _row(board: Board, i: int, row: "pd.Series[Any]", bold: str, marked: set[tuple[int, str | int]]) -> str:
    ours = row["source"] == OURS
    name = html.escape(str(row["model"]))
    name = f"<b>{name}</b>" if ours and bold == "ours" else name
    where = (
        f" <small>ours, {html.escape(str(row['run']))}{', stand-in' * bool(row['stand_in'])}</small>" if ours else ""
    )
    base = " <small>base</small>" if row["aligned"] == "base" and "base" not in str(row["model"]) else ""
    claimed = str(row["claimed_length"] or "")
    fields = [_cell(name + where + base, str(row["model"])), _cell(html.escape(claimed), _tokens(claimed))]
    if judged(board):
        text = effective(row)
        shown = "–" if row["baseline"] else html.escape(text)
        fields.append(_cell(shown, _tokens(text)))
    for column in columns_of(board):
        text = shown = number_of(row, column)
        if isinstance(column, int) and not text:
            have = row[f"{column}_have"]
            shown = f"<small>{html.escape(have)}</small>" if isinstance(have, str) else ""
        shown = f"<b>{shown}</b>" if (i, column) in marked else shown
        shown = f"<u>{shown}</u>" if isinstance(column, int) and reaches(row, column) else shown
        ranked = rank(row, str(column))
        shown += f" <small>({ranked})</small>" if ranked else ""
        if ours and text:
            shown += f"<br><small>{row[f'{column}_low']:.1f}–{row[f'{column}_high']:.1f}</small>"
        fields.append(_cell(shown, text))
    return f'<tr class="{"ours" if ours else "paper"}">{"".join(fields)}</tr>'


def _cell(shown: str, value: str) -> str:
    return f'<td data-v="{html.escape(value, quote=True)}">{shown}</td>'


def _tokens(length: str) -> str:
    """A number to sort '128K', '>128K', '<4K' or '>=32K, 64K not run' by."""
    found = re.match(r"([<>]?)=?(\d+[KM]?)", length)
    if not found:
        return ""
    return str(parse_length(found[2]) + {"<": -1, ">": 1, "": 0}[found[1]])


def save(study: "Study", boards: Iterable[Board], bold: str = "ours") -> list[Path]:
    """Write all tables as CSV, Markdown, LaTeX and one sortable page, and what of the paper was rebuilt."""
    boards, paths = list(boards), []
    for board in boards:
        name = f"table_{board.number}"
        paths += [
            study.save_table(csv(board), name, ".csv"),
            study.save_table(markdown(board), name, ".md"),
            study.save_table(latex(board, bold), name, ".tex"),
        ]
    paths.append(study.save_table(page(boards, bold).text, "leaderboard", ".html"))
    paths.append(study.save_table(agreement().to_csv(index=False), "rebuilt", ".csv"))
    paths.append(study.save_table(exceptions().to_csv(index=False), "exceptions", ".csv"))
    return paths

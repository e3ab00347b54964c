"""The leaderboard as a page: every table can be sorted by a click on a column's head, here or in JupyterLab."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from rulerkit import escape
from rulerkit.leaderboard import OURS, Board
from rulerkit.leaderboard.text import csv, header_of, latex, markdown, rows_of
from rulerkit.lengths import parse_length
from rulerkit.published.rebuild import agreement, exceptions
from rulerkit.tables import html_field
from rulerkit.view import Html

if TYPE_CHECKING:
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
    tables = "".join(
        f"<details{' open' * (not i)}><summary>Table {board.number}: {escape.html(board.title)}</summary>"
        f"{_table(board, bold)}</details>"
        for i, board in enumerate(boards)
    )
    parts = f"<style>{_STYLE}</style><script>{_SCRIPT}</script>{tables}"
    return Html(f'<div class="rulerkit-boards mathjax_ignore">{parts}</div>\n')


def _table(board: Board, bold: str) -> str:
    heads = "".join(f'<th onclick="rulerkitSort(this)">{escape.html(name)}</th>' for name in header_of(board))
    bodies = {True: "", False: ""}  # the rows of the thresholds stay above those that are sorted
    for (_, row), fields in zip(board.rows.iterrows(), filter(None, rows_of(board, bold)), strict=True):
        texts = [field.text for field in fields]
        values = [texts[0], *map(_sort_value, texts[1:])]
        cells = "".join(
            f'<td data-v="{escape.html(value)}">{html_field(field)}</td>'
            for value, field in zip(values, fields, strict=True)
        )
        bodies[bool(row["baseline"])] += f'<tr class="{"ours" if row["source"] == OURS else "paper"}">{cells}</tr>'
    notes = "<br>".join(map(escape.html, board.notes))
    return (
        f'<table class="rulerkit-board"><thead><tr>{heads}</tr></thead><tbody>{bodies[True]}</tbody>'
        f'<tbody>{bodies[False]}</tbody></table><p class="rulerkit-notes">{notes}</p>'
    )


def _sort_value(text: str) -> str:
    """A number to sort '98.5', '128K', '>128K', '<4K' or '>=32K, 64K not run' by; '' where there is none."""
    if re.fullmatch(r"\d+\.\d", text):
        return text
    length = re.match(r"([<>]?)=?(\d+[KM])", text)
    return str(parse_length(length[2]) + {"<": -1, ">": 1, "": 0}[length[1]]) if length else ""


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
    return [*paths, study.save_table(agreement(), "rebuilt"), study.save_table(exceptions(), "exceptions")]

"""Tables 3 and 10 to 16 of the paper over all models: the paper's, rebuilt from its scores,
upstream's later rows, and ours with intervals; as CSV, Markdown, LaTeX in the paper's layout, and a
page whose tables are sorted by a click on a column's head."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit import escape
from rulerkit.errors import unknown
from rulerkit.lengths import THRESHOLDS, length_name, parse_length
from rulerkit.paper import (
    JUDGED,
    PAPER_LENGTHS,
    RANKS,
    UPSTREAM,
    agreement,
    exceptions,
    rebuilt,
    upstream_rows,
)
from rulerkit.scoring import THIRTEEN
from rulerkit.summary import AVERAGES, Summary, rest_notes, summarize
from rulerkit.tables import STAND_IN_NOTE, Field, html_field, ordinal, render
from rulerkit.view import Html

if TYPE_CHECKING:
    import pandas as pd

    from rulerkit.studies import Study

BOLD = ("ours", "best", "none")
_RANK = {"wavg_inc": "rank_inc", "wavg_dec": "rank_dec"}
_HEADER = {"avg": "Avg.", "wavg_inc": "wAvg. (inc)", "wavg_dec": "wAvg. (dec)"}

TABLES: dict[str, tuple[str, str, str]] = {
    "3": ("all13", "chat", "the thirteen tasks, chat models"),
    "10": ("passkey", "", "passkey retrieval (niah_single_1)"),
    "11": ("vanilla_niah", "", "vanilla needle in a haystack (niah_single_2)"),
    "12": ("all13", "base", "the thirteen tasks, base models"),
    "13": ("niah", "", "the eight retrieval tasks"),
    "14": ("vt", "", "multi-hop tracing (vt)"),
    "15": ("aggregation", "", "aggregation (cwe, fwe)"),
    "16": ("qa", "", "question answering (qa_1, qa_2)"),
}
"""The paper's numbers of the tables: category, alignment ('' for both), what they are about."""
SINGLE_TASKS = {"passkey": "niah_single_1", "vanilla_niah": "niah_single_2"}
ORDERS = (*AVERAGES, "paper")
OURS = "ours"


@dataclass(frozen=True)
class Board:
    """One table. `rows`, chat models before base models, the threshold's row first in each:

    source ('ours', 'paper v3', 'upstream' or 'authors'), run, model, aligned, baseline,
    claimed_length, effective_length, effective_set, threshold (NaN where there is none), stand_in,
    avg, wavg_inc, wavg_dec with avg_low, avg_high ..., rank_inc, rank_dec (of ours: their place
    among the paper's models, where the two can be compared), and for each length 4096: 4096,
    '4096_low', '4096_high', '4096_have' (what there is of an incomplete score).
    """

    number: str
    category: str
    title: str
    lengths: tuple[int, ...]
    rows: "pd.DataFrame"
    notes: tuple[str, ...]


def boards(
    scores: "pd.DataFrame | None" = None,
    version: str = "v3",
    lengths: Sequence[int] = PAPER_LENGTHS,
    order: str = "wavg_dec",
) -> list[Board]:
    """All tables. `scores` are rows of `score` over everything that was run, None or empty for the
    paper alone; `scores.attrs["notes"]`, as `everything` sets it, are further lines to stand below
    ours.

    `lengths` are the columns; every row is averaged over those of them that
    all rows share. `order` is one of ORDERS.
    """
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    columns = tuple(sorted(lengths))
    notes = () if scores is None else tuple(scores.attrs.get("notes", ()))
    summaries = {
        single: _summary(scores, single, columns)
        for single in {SINGLE_TASKS.get(kind) for kind, _, _ in TABLES.values()}
    }
    found = []
    for number, (category, aligned, title) in TABLES.items():
        summary = summaries[SINGLE_TASKS.get(category)]
        judged = JUDGED.get(category, "all")
        shared = _shared_lengths(summary, judged, columns)
        averaged = (
            _summary(scores, SINGLE_TASKS.get(category), shared) if shared != columns else summary
        )
        rows = _rows(category, version, shared, summary, averaged)
        rows = rows[rows["aligned"] == aligned] if aligned else rows
        rows = _sorted(rows.reindex(columns=_columns(columns)), order)
        found.append(
            Board(
                number,
                category,
                title,
                columns,
                rows,
                tuple(_notes(rows, judged, shared, summary, notes)),
            )
        )
    return found


def everything(study: "Study") -> "pd.DataFrame | None":
    """All that was ever answered in a study's run, scored; None where nothing was.

    Raises UserError where cells were made so differently that no table can hold both.
    """
    from rulerkit.evaluation import check_same, footnotes
    from rulerkit.scoring import score
    from rulerkit.store import print_problem, read_cells

    cells = read_cells(study.predictions, scan=False) if study.predictions.is_dir() else []
    asked = [cell for cell in cells if cell.task in THIRTEEN]
    scores = score(asked, report=print_problem)
    if scores.empty:
        return None
    check_same(asked)
    scores.attrs["notes"] = footnotes(asked)
    return scores


def board(found: Iterable[Board], number: str | int) -> Board:
    """The table of a number in the paper."""
    by_number = {each.number: each for each in found}
    if str(number) not in by_number:
        raise unknown("table of the paper", number, by_number)
    return by_number[str(number)]


def _shared_lengths(
    summary: Summary | None, category: str, lengths: tuple[int, ...]
) -> tuple[int, ...]:
    """The lengths at which the paper's models and all of ours that have any complete score have
    one."""
    shared = tuple(length for length in lengths if length in PAPER_LENGTHS)
    if summary is None:
        return shared
    rows = summary.lengths[(summary.lengths["category"] == category) & summary.lengths["complete"]]
    for _, model in rows.groupby(["run", "model"]):
        shared = tuple(length for length in shared if length in set(model["length"]))
    return shared


def _rows(
    category: str,
    version: str,
    shared: tuple[int, ...],
    summary: Summary | None,
    averaged: Summary | None,
) -> "pd.DataFrame":
    """The rows of a table: the paper's, those of upstream's list for the thirteen tasks, and
    ours."""
    import pandas as pd

    blank: dict[str, Any] = {"run": "", "stand_in": False, "effective_set": "", "baseline": False}
    paper = rebuilt(version, category, shared).assign(source=f"paper {version}")
    frames = [paper.assign(**{**blank, "baseline": paper["baseline"]})]
    if category == "all13":
        frames.append(upstream_rows(version, shared).assign(**blank))
    if summary is not None:
        frames.append(_ours(summary, averaged, category, paper))
    rows: pd.DataFrame = pd.concat([frame for frame in frames if len(frame)])
    limits = {
        kind: THRESHOLDS[kind][JUDGED[category]] if category in JUDGED else math.nan
        for kind in THRESHOLDS
    }
    rows["threshold"] = rows["aligned"].map(limits)
    return rows


def _columns(lengths: Iterable[int]) -> list[str | int]:
    averages = [f"{average}{end}" for average in AVERAGES for end in ("", "_low", "_high")]
    scores: list[str | int] = [
        c for n in lengths for c in (n, f"{n}_low", f"{n}_high", f"{n}_have")
    ]
    about = [
        "source",
        "run",
        "model",
        "aligned",
        "baseline",
        "claimed_length",
        "effective_length",
        "effective_set",
    ]
    return [*about, "threshold", "stand_in", *scores, *averages, *RANKS]


def _summary(
    scores: "pd.DataFrame | None", single: str | None, lengths: Sequence[int]
) -> Summary | None:
    """Our scores of one task, or of the thirteen; None where there are none."""
    if scores is None or scores.empty:
        return None
    rows = scores[
        scores["length"].isin(lengths) & (scores["task"].isin([single] if single else THIRTEEN))
    ]
    return summarize(rows, [single] if single else None) if len(rows) else None


def _ours(
    summary: Summary, averaged: Summary | None, category: str, paper: "pd.DataFrame"
) -> "pd.DataFrame":
    import pandas as pd

    wanted, judged = JUDGED.get(category, "all"), category in JUDGED
    rows: list[dict[Any, Any]] = []
    for _, model in summary.models[summary.models["category"] == wanted].iterrows():
        row: dict[Any, Any] = {name: model[name] for name in ("run", "aligned", "stand_in")}
        if averaged is not None:
            means = _of_model(averaged.models, model, wanted).iloc[0]
            for average in AVERAGES if judged else AVERAGES[:1]:
                row |= {
                    f"{average}{end}": means[f"{average}{end}"] for end in ("", "_low", "_high")
                }
        for _, score in _of_model(summary.lengths, model, wanted).iterrows():
            row[int(score["length"])] = score["score"]
            row |= {f"{score['length']}_{name}": score[name] for name in ("low", "high", "have")}
        claimed = float(model["claimed_length"])
        row["claimed_length"] = "" if math.isnan(claimed) else length_name(int(claimed))
        row |= {
            name: model[name] if judged else "" for name in ("effective_length", "effective_set")
        }
        if judged and averaged is not None and not model["stand_in"]:
            row |= _places(row, paper[paper["aligned"] == model["aligned"]])
        rows.append(
            {
                **row,
                "source": OURS,
                "model": model["label"],
                "name": model["model"],
                "baseline": False,
            }
        )
    frame = pd.DataFrame(rows)
    if len(frame):
        twice = frame["model"].duplicated(keep=False)
        frame.loc[twice, "model"] = frame["model"] + " [" + frame["run"] + "/" + frame["name"] + "]"
    return frame


def _of_model(rows: "pd.DataFrame", model: "pd.Series[Any]", category: str) -> "pd.DataFrame":
    rows = rows[rows["category"] == category]
    chosen: pd.DataFrame = rows[(rows["run"] == model["run"]) & (rows["model"] == model["model"])]
    return chosen


def _places(row: dict[Any, Any], paper: "pd.DataFrame") -> dict[str, float]:
    """Where a model would stand among the paper's; NaN where it has no average."""
    places = {}
    for rank, average in zip(RANKS, AVERAGES[1:], strict=True):
        value = float(row[average])
        places[rank] = math.nan if math.isnan(value) else 1.0 + int((paper[average] > value).sum())
    return places


def _sorted(rows: "pd.DataFrame", order: str) -> "pd.DataFrame":
    """Chat before base, the threshold's row first; Tables 10 and 11 know only the average."""
    rows = rows.reset_index(drop=True)
    key = "avg" if order != "paper" and rows[AVERAGES[1]].isna().all() else order
    value = -rows[key].fillna(-1.0) if key != "paper" else rows.index
    rows["_kind"], rows["_first"], rows["_value"] = (
        rows["aligned"] == "base",
        ~rows["baseline"],
        value,
    )
    keys = ["_kind", "_first", "_value"]
    return rows.sort_values(keys, kind="stable").drop(columns=keys).reset_index(drop=True)


def _notes(
    rows: "pd.DataFrame",
    category: str,
    shared: tuple[int, ...],
    summary: Summary | None,
    notes: tuple[str, ...],
) -> list[str]:
    lines = [
        "Rows of the paper are rebuilt from its scores; averages that it prints otherwise are "
        "listed apart."
    ]
    names = (
        ", ".join(map(length_name, shared))
        or "no length, because no length is complete for all of ours"
    )
    lines.append(f"Averages and ranks are over the lengths that all rows share: {names}.")
    if rows["source"].isin(UPSTREAM).any():
        lines.append(
            "Rows of upstream's list give averages only; (authors): reported by the model's "
            "authors, maybe with other "
            "prompts and examples. Effective lengths follow from their scores, which in the list "
            "itself they do not always."
        )
    if rows["threshold"].notna().any():
        pairs = rows[["aligned", "threshold"]].drop_duplicates()
        used = ", ".join(f"{value} ({kind})" for kind, value in pairs.itertuples(index=False))
        lines.append(
            f"Underlined scores (bold in Markdown) reach the threshold, Llama2-7B at 4K: {used}. "
            "Ranks: the paper's models."
        )
    ours = rows[rows["source"] == OURS]
    if summary is None or ours.empty:
        return lines
    lines.append(f"Ours stand with their {100 * summary.confidence:g} % intervals.")
    if ours["stand_in"].any():
        stand_ins = ours.loc[ours["stand_in"].astype(bool), "model"]
        lines.append(f"{STAND_IN_NOTE[0].upper()}{STAND_IN_NOTE[1:]}: {', '.join(stand_ins)}.")
    cells = (
        summary.cells if category == "all" else summary.cells[summary.cells["category"] == category]
    )
    return [*lines, *rest_notes(cells), *notes]


def csv(board: Board) -> str:
    """Every column of a table's rows; lengths as 4K, 4K_low, 4K_high."""
    names: dict[Any, str] = {}
    for n in board.lengths:
        names |= {n: length_name(n)} | {
            f"{n}_{end}": f"{length_name(n)}_{end}" for end in ("low", "high", "have")
        }
    return escape.csv_text(board.rows.rename(columns=names), "%.4f")


def markdown(board: Board) -> str:
    """A table in Markdown: scores that reach the threshold bold, ours with their intervals."""
    text = render(header_of(board), rows_of(board, "none"), "markdown", board.notes)
    return f"Table {board.number}: {board.title}\n\n{text}"


def latex(board: Board, bold: str = "ours") -> str:
    """A table in the paper's layout for booktabs: underlined from the threshold on, intervals and
    ranks as subscripts."""
    return render(header_of(board), rows_of(board, bold, compact=True), "latex", board.notes)


def header_of(board: Board) -> list[str]:
    """The heads of a table's columns."""
    lengths, averages = (
        map(length_name, board.lengths),
        (_HEADER[name] for name in _averages(board)),
    )
    return [
        "Models",
        "Claimed Length",
        *["Effective Length"] * _is_judged(board),
        *lengths,
        *averages,
    ]


def rows_of(board: Board, bold: str, compact: bool = False) -> list[list[Field] | None]:
    """The fields of a table, None between groups (chat and base models, each with its threshold's
    row before it).

    `bold` is 'ours', 'best' (of each column among models of one alignment) or 'none'; intervals of
    ours stand behind a number as [low, high], `compact` as ± the wider side.
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
            fields.append(
                Field(
                    f"{effective} [{possible}]"
                    if possible not in ("", effective)
                    else effective or "-"
                )
            )
        for n in board.lengths:
            number, is_best = _number(row, n), (i, n) in best_fields
            reaches = bool(number) and round(float(row[n]), 1) >= float(
                row["threshold"]
            )  # rounded as it is printed
            fields.append(
                Field(
                    number or _text(row, f"{n}_have"), reaches, is_best, _interval(row, n, compact)
                )
            )
        for name in _averages(board):
            small = " ".join(filter(None, (_interval(row, name, compact), _rank(row, name))))
            fields.append(Field(_number(row, name), False, (i, name) in best_fields, small))
        rows.append(fields)
    return rows


def best(board: Board) -> set[tuple[int, str | int]]:
    """The greatest value of each column, as printed, among chat and among base models: (row,
    column)."""
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
    if row["source"] in UPSTREAM:
        return f"({row['source']})"
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
    """All tables below each other, the first one open; ours shaded, `bold` is 'ours', 'best' (in a
    column) or 'none'."""
    tables = "".join(
        f"<details{' open' * (not i)}><summary>Table {board.number}: "
        f"{escape.html(board.title)}</summary>"
        f"{_table(board, bold)}</details>"
        for i, board in enumerate(boards)
    )
    parts = f"<style>{_STYLE}</style><script>{_SCRIPT}</script>{tables}"
    return Html(f'<div class="rulerkit-boards mathjax_ignore">{parts}</div>\n')


def _table(board: Board, bold: str) -> str:
    heads = "".join(
        f'<th onclick="rulerkitSort(this)">{escape.html(name)}</th>' for name in header_of(board)
    )
    bodies = {True: "", False: ""}  # the rows of the thresholds stay above those that are sorted
    for (_, row), fields in zip(
        board.rows.iterrows(), filter(None, rows_of(board, bold)), strict=True
    ):
        texts = [field.text for field in fields]
        values = [texts[0], *map(_sort_value, texts[1:])]
        cells = "".join(
            f'<td data-v="{escape.html(value)}">{html_field(field)}</td>'
            for value, field in zip(values, fields, strict=True)
        )
        bodies[bool(row["baseline"])] += (
            f'<tr class="{"ours" if row["source"] == OURS else "paper"}">{cells}</tr>'
        )
    notes = "<br>".join(map(escape.html, board.notes))
    return (
        f'<table class="rulerkit-board"><thead><tr>{heads}</tr></thead><tbody>{bodies[True]}</tbody>'
        f'<tbody>{bodies[False]}</tbody></table><p class="rulerkit-notes">{notes}</p>'
    )


def _sort_value(text: str) -> str:
    """A number to sort '98.5', '128K', '>128K', '<4K' or '>=32K, 64K not run' by; '' where there is
    none."""
    if re.fullmatch(r"\d+\.\d", text):
        return text
    length = re.match(r"([<>]?)=?(\d+[KM])", text)
    return str(parse_length(length[2]) + {"<": -1, ">": 1, "": 0}[length[1]]) if length else ""


def save(study: "Study", boards: Iterable[Board], bold: str = "ours") -> list[Path]:
    """Write all tables as CSV, Markdown, LaTeX and one sortable page, and what of the paper was
    rebuilt."""
    boards, paths = list(boards), []
    for board in boards:
        name = f"table_{board.number}"
        paths += [
            study.save_table(csv(board), name, ".csv"),
            study.save_table(markdown(board), name, ".md"),
            study.save_table(latex(board, bold), name, ".tex"),
        ]
    paths.append(study.save_table(page(boards, bold).text, "leaderboard", ".html"))
    return [
        *paths,
        study.save_table(agreement(), "rebuilt"),
        study.save_table(exceptions(), "exceptions"),
    ]

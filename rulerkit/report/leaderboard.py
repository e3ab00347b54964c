"""The leaderboard: Tables 3 and 10 to 16 of the paper, with upstream's later models and ours.

`everything` scores all answers of a run, `boards` makes the tables, and `page` shows them all on
one page whose columns sort. The paper's rows are as printed, whatever stands beside them: averages
are over its six lengths, and a model of ours that lacks one of them has no average and no rank.
"""

import math
import re
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from rulerkit.common import escape
from rulerkit.common.errors import listed, remark
from rulerkit.common.lengths import length_name
from rulerkit.common.paths import package_text
from rulerkit.common.render import render
from rulerkit.generation.tasks.base import PROTOCOLS
from rulerkit.report.paper import PAPER_EXAMPLES, PAPER_LENGTHS, UPSTREAM, departures, listed_rows
from rulerkit.report.tables.footnotes import footnotes
from rulerkit.report.tables.models import board_rows, models_text, origin, thresholds_text
from rulerkit.report.tables.notes import cell_notes, model_notes, names_of, number_range
from rulerkit.report.view import Html
from rulerkit.scoring.effective_length import THRESHOLDS
from rulerkit.scoring.scores import THIRTEEN
from rulerkit.scoring.summary import AVERAGES, RANKS, Summary, summarize

if TYPE_CHECKING:
    from rulerkit.evaluation.study import Study

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
"""The paper's numbers of its tables: category, alignment ('' for both), title."""
JUDGED = {"all13": "all", "niah": "niah", "vt": "vt", "aggregation": "aggregation", "qa": "qa"}
"""The paper's categories that have thresholds, by the name of ours."""
SINGLE_TASKS = {"passkey": "niah_single_1", "vanilla_niah": "niah_single_2"}
"""The categories of Tables 10 and 11, which have no thresholds, by their task."""
OURS = "ours"

_MODEL = ["run", "model"]
_LIMITED = [
    column for average in AVERAGES for column in (average, f"{average}_low", f"{average}_high")
]
"""The averages with the ends of their intervals."""


class Board(NamedTuple):
    """One table. `rows` has chat models before base models, in each the threshold's row first, then
    by the average whose weights fall with the length, as the paper orders its Table 3:

    source ('ours', 'paper v3', 'upstream' or 'authors'), run, model, aligned, baseline (a row of
    the threshold), claimed_length, effective_length, effective_set, threshold (NaN where there is
    none), stand_in, reader, adaptive, avg, wavg_inc, wavg_dec with avg_low, avg_high ..., rank_inc,
    rank_dec (of ours: their place among the paper's models, where the two can be compared), and for
    each length 4096: 4096, '4096_low', '4096_high', '4096_have' (what there is of an incomplete
    score).
    """

    number: str
    category: str
    title: str
    lengths: tuple[int, ...]
    rows: "pd.DataFrame"
    notes: tuple[str, ...]

    def text(self, format: str = "markdown") -> str:
        """The table as markdown, latex or html, or as csv or json with every column of its rows,
        lengths as 4K, 4K_low, 4K_high, 4K_have. Our models' names are bold in LaTeX and HTML; in
        Markdown bold marks the scores that reach the threshold.
        """
        if format in ("csv", "json"):
            heads = [
                re.sub(r"^\d+", lambda number: length_name(int(number[0])), str(column))
                for column in self.rows
            ]
            return render(self.rows.set_axis(heads, axis=1), format)

        columns: list[str | int] = ["claimed_length", *self.lengths]
        if self.category in JUDGED:
            columns[1:1] = ["effective_length"]
            columns += AVERAGES
        else:
            # Tables 10 and 11 have no threshold, and no weighted averages.
            columns += ["avg"]

        is_ours = self.rows["source"] == OURS
        rows = self.rows.assign(
            origin=[_origin(row) for _, row in self.rows.iterrows()],
            group=self.rows["aligned"] + self.rows["baseline"].astype(str),
            bold=is_ours & (format != "markdown"),
        )
        text = models_text(rows, columns, format, self.notes)
        if format == "markdown":
            text = f"Table {self.number}: {self.title}\n\n{text}"
        return text


def _origin(row: "pd.Series[Any]") -> str:
    """What stands in brackets behind a name."""
    if row["source"] == OURS:
        return origin(row, OURS, row["run"])
    if row["source"] in UPSTREAM:
        return f"({row['source']})"
    if row["aligned"] == "base" and "base" not in row["model"]:
        return "(base)"
    return ""


# --- the tables -----------------------------------------------------------------------------------


def everything(study: "Study") -> "pd.DataFrame | None":
    """All answers of a study's run, scored; None where there are none. Raises UserError where cells
    were made so differently that no table can hold both."""
    from rulerkit.scoring.scores import score
    from rulerkit.store.cells import read_cells
    from rulerkit.store.comparable import check_same

    cells = []
    if study.predictions.is_dir():
        cells = read_cells(study.predictions)

    cells = [cell for cell in cells if cell.task in THIRTEEN]

    scores = score(cells, report=remark)
    if scores.empty:
        return None
    check_same(cells)
    scores.attrs["notes"] = footnotes(cells, scores)
    return scores


def boards(
    scores: "pd.DataFrame | None" = None,
    lengths: Sequence[int] = PAPER_LENGTHS,
) -> list[Board]:
    """All tables. `scores` are rows of `score`, None or empty for the paper alone; the lines of
    `scores.attrs["notes"]`, as `everything` sets it, stand below the tables that have ours.

    `lengths` are the columns; averages, ranks and effective lengths do not depend on them.
    """
    columns = tuple(sorted(lengths))
    # Several tables show the same tasks: each summary is made once.
    summary_of = cache(partial(_summary, scores))

    tables = []
    for number, (category, aligned, title) in TABLES.items():
        task = SINGLE_TASKS.get(category)
        our_category = JUDGED.get(category, "all")
        rows = listed_rows("v3", category)
        summary = summary_of(task, tuple(sorted({*columns, *PAPER_LENGTHS})))
        averaged = summary_of(task, PAPER_LENGTHS)
        if summary is not None:
            summary = summary.of(our_category)
            averaged = averaged and averaged.of(our_category)
            rows = pd.concat([rows, _our_rows(summary, averaged, rows)])

        rows = rows[rows["aligned"].str.contains(aligned)]
        rows = _judged(rows, our_category if category in JUDGED else None)
        # Chat models first, each after the threshold's row; equal averages as the paper has them.
        by = ["aligned", "baseline", "wavg_dec" if category in JUDGED else "avg"]
        rows = rows.sort_values(by, ascending=False, kind="stable")
        rows = rows.reindex(columns=_columns(columns)).reset_index(drop=True)

        notes = _notes(rows)
        has_ours = (rows["source"] == OURS).any()
        if has_ours and summary is not None and scores is not None:
            notes += _our_notes(rows, summary)
            notes += scores.attrs.get("notes", ())
        tables.append(Board(number, category, title, columns, rows, tuple(notes)))
    return tables


def _summary(
    scores: "pd.DataFrame | None", task: str | None, lengths: Sequence[int]
) -> Summary | None:
    """Our scores of one task, or of the thirteen; None where there are none."""
    if scores is None:
        return None
    tasks = [task] if task else list(THIRTEEN)
    rows = scores[scores["length"].isin(lengths) & scores["task"].isin(tasks)]
    if rows.empty:
        return None
    return summarize(rows, tasks, lengths)


def _our_rows(summary: Summary, averaged: Summary | None, listed: "pd.DataFrame") -> "pd.DataFrame":
    """Our rows of a table, with their ranks among those listed; their averages are those of
    `averaged`, over the paper's lengths."""
    rows = board_rows(summary, ["score", "low", "high", "have"])
    rows = rows.drop(columns=_LIMITED)
    if averaged is not None:
        averages = averaged.models[[*_MODEL, *_LIMITED]]
        rows = rows.merge(averages, how="left", on=_MODEL)

    # Only what has the paper's protocol and texts is ranked among its models.
    cells = summary.cells[summary.cells["n"] > 0]
    is_other = departures(cells)["protocol"] & cells["protocol"].isin(PROTOCOLS)
    other_protocol = is_other.groupby([cells[name] for name in _MODEL]).any()
    rows = rows.join(other_protocol.rename("other_protocol"), on=_MODEL)
    rows = _ranked(rows, listed)
    return rows.assign(model=names_of(rows), source=OURS, baseline=False)


def _ranked(ours: "pd.DataFrame", listed: "pd.DataFrame") -> "pd.DataFrame":
    """Our rows with their ranks among the paper's models of the same alignment, by averages as they
    are printed; a model in several runs has the rank of its mean over them. Readers, adaptive runs
    and those with another protocol or synthetic texts have none."""
    papers = listed[listed["source"].str.startswith("paper")]
    special = ["stand_in", "reader", "adaptive", "other_protocol"]
    has_rank = ~ours[special].astype(bool).any(axis=1)
    for average, rank in RANKS.items():
        # There is no average where none of the paper's lengths was asked.
        values = ours.get(average, pd.Series(math.nan, ours.index)).where(has_rank)
        means = values.groupby([ours["model"], ours["aligned"]]).transform("mean")
        places = []
        for aligned, mean in zip(ours["aligned"], means.round(1), strict=True):
            alike = papers.loc[papers["aligned"] == aligned, average]
            places.append(1 + (alike > mean).sum())
        ours[rank] = pd.Series(places, ours.index, float).where(values.notna())
    return ours


def _judged(rows: "pd.DataFrame", our_category: str | None) -> "pd.DataFrame":
    """Rows with the threshold of their alignment; without a category that has thresholds, without
    what rests on one."""
    if our_category is None:
        weighted = [name for name in _LIMITED if name.startswith("wavg")]
        empty = dict.fromkeys(["threshold", *weighted, *RANKS.values()], math.nan)
        return rows.assign(effective_length="", effective_set="", **empty)

    limits = {kind: limits[our_category] for kind, limits in THRESHOLDS.items()}
    return rows.assign(threshold=rows["aligned"].map(limits))


def _columns(lengths: Iterable[int]) -> list[str | int]:
    """The columns of a board, as `Board` names them."""
    columns: list[str | int] = ["source", *_MODEL, "label", "aligned", "baseline"]
    columns += ["claimed_length", "effective_length", "effective_set", "threshold"]
    columns += ["stand_in", "reader", "adaptive"]
    for n in lengths:
        columns += [n, f"{n}_low", f"{n}_high", f"{n}_have"]
    return [*columns, *_LIMITED, *RANKS.values()]


# --- notes below a table --------------------------------------------------------------------------


def _notes(rows: "pd.DataFrame") -> list[str]:
    """What holds of a table with the paper's rows alone, too."""
    lines = [
        "The paper's rows are as printed. Averages are over its six lengths, 4K to 128K; - where "
        "one of them is missing."
    ]
    # What upstream lists is not always what it measured.
    if rows["source"].isin(UPSTREAM).any():
        lines.append(
            "Upstream's list: averages and effective lengths follow from its scores; (authors): "
            "reported by the model's authors, maybe with other prompts and examples."
        )
    if rows["threshold"].notna().any():
        lines.append(
            f"Effective (and marked): at least {thresholds_text(rows)}, Llama2-7B at 4K. Ranks are "
            "among the paper's models, of what has its protocol and texts."
        )
    return lines


def _our_notes(rows: "pd.DataFrame", summary: Summary) -> list[str]:
    """What a reader must know of our rows: their intervals, and what differs from the paper's."""
    lines = [f"± is the wider side of the {100 * summary.confidence:g} % interval."]

    # A table of base models does not speak of our chat models.
    cells = summary.cells
    names = names_of(cells)
    is_listed = names.isin(rows["model"]) & (cells["n"] > 0)
    cells, names = cells[is_listed], names[is_listed]

    if number_range(cells["n"]) != str(PAPER_EXAMPLES):
        lines.append(f"The paper has {PAPER_EXAMPLES} examples per task and length.")
    departed = departures(cells)
    for what in ("protocol", "tokenizer"):
        if departed[what].any():
            who = listed(names[departed[what]].unique(), 6)
            lines.append(f"Another {what} than the paper's: {who}.")
    return lines + model_notes(summary.models) + cell_notes(cells, marked=True)


# --- the page -------------------------------------------------------------------------------------


def page(boards: Iterable[Board]) -> Html:
    """All tables below each other, the first one open, sorted by a click on a column's head; our
    models are bold and shaded."""
    tables = [
        {"title": f"Table {board.number}: {board.title}", "html": board.text("html")}
        for board in boards
    ]
    return Html(escape.fill(package_text("leaderboard.html"), tables=tables))

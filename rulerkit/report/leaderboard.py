"""The leaderboard: Tables 3 and 10 to 16 of the paper, with upstream's later models and ours.

`everything` scores all answers of a run, and `boards` makes the tables. The paper's rows are as
printed, whatever stands beside them: scores and averages are at its six lengths, and a model of
ours that lacks one of them has no average. Ranks are the paper's own.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from rulerkit.common.errors import listed, remark
from rulerkit.common.lengths import length_name
from rulerkit.common.render import render
from rulerkit.report.paper import PAPER_EXAMPLES, PAPER_LENGTHS, UPSTREAM, listed_rows
from rulerkit.report.tables.footnotes import footnotes
from rulerkit.report.tables.models import board_rows, models_text, thresholds_text
from rulerkit.report.tables.notes import cell_notes, model_notes, names_of
from rulerkit.scoring.effective_length import THRESHOLDS
from rulerkit.scoring.scores import THIRTEEN, score
from rulerkit.scoring.summary import AVERAGES, CATEGORIES, RANKS, Summary, summarize
from rulerkit.store.cells import read_cells
from rulerkit.store.comparable import check_same

if TYPE_CHECKING:
    from rulerkit.evaluation.study import Study

TABLES: dict[str, tuple[str, str, str, str]] = {
    "3": ("all13", "all", "chat", "the thirteen tasks, chat models"),
    "10": ("passkey", "niah_single_1", "", "passkey retrieval (niah_single_1)"),
    "11": ("vanilla_niah", "niah_single_2", "", "vanilla needle in a haystack (niah_single_2)"),
    "12": ("all13", "all", "base", "the thirteen tasks, base models"),
    "13": ("niah", "niah", "", "the eight retrieval tasks"),
    "14": ("vt", "vt", "", "multi-hop tracing (vt)"),
    "15": ("aggregation", "aggregation", "", "aggregation (cwe, fwe)"),
    "16": ("qa", "qa", "", "question answering (qa_1, qa_2)"),
}
"""The paper's numbers of its tables: its category, ours (or a task, which has no threshold),
alignment ('' for both), title."""
OURS = "ours"

_LENGTHS = [length_name(length) for length in PAPER_LENGTHS]
_AFTER_A_NAME = ("", "_low", "_high")
_COLUMNS = [
    *("source", "run", "model", "label", "aligned", "baseline", "origin", "claimed_length"),
    *("effective_length", "effective_set", "threshold"),
    *(f"{name}{end}" for name in _LENGTHS for end in (*_AFTER_A_NAME, "_have")),
    *(f"{name}{end}" for name in AVERAGES for end in _AFTER_A_NAME),
    *RANKS.values(),
]


class Board(NamedTuple):
    """One table. `rows` has chat models before base models, in each the threshold's row first, then
    by the average whose weights fall with the length, as the paper orders its Table 3:

    source ('ours', 'paper v3', 'upstream' or 'authors'), run, model, aligned, baseline (a row of
    the threshold), origin (what stands behind the name), claimed_length, effective_length,
    effective_set, threshold (NaN where there is none), avg, wavg_inc, wavg_dec with avg_low,
    avg_high ..., rank_inc, rank_dec (of the paper's models alone), and for each length 4K, 4K_low,
    4K_high, 4K_have (what there is of an incomplete score).
    """

    number: str
    title: str
    rows: "pd.DataFrame"
    notes: Sequence[str]

    def text(self, format: str = "markdown") -> str:
        """The table as markdown or latex, or as csv or json with every column of its rows. In
        Markdown bold marks the scores that reach the threshold."""
        if format in ("csv", "json"):
            return render(self.rows, format)

        # Tables 10 and 11 have no threshold, and no weighted averages.
        columns = ["claimed_length", *_LENGTHS, "avg"]
        if self.rows["threshold"].notna().any():
            columns = ["claimed_length", "effective_length", *_LENGTHS, *AVERAGES]
        rows = self.rows.assign(group=self.rows["aligned"] + self.rows["baseline"].astype(str))
        text = models_text(rows, columns, format, self.notes)
        return text if format == "latex" else f"Table {self.number}: {self.title}\n\n{text}"


def everything(study: "Study") -> "pd.DataFrame | None":
    """All answers of a study's run, scored; None where there are none. Raises UserError where cells
    were made so differently that no table can hold both."""
    cells = read_cells(study.predictions) if study.predictions.is_dir() else []
    cells = [cell for cell in cells if cell.task in THIRTEEN]
    scores = score(cells, report=remark)
    if scores.empty:
        return None
    check_same(cells)
    scores.attrs["notes"] = footnotes(cells, scores)
    return scores


def boards(scores: "pd.DataFrame | None" = None) -> list[Board]:
    """All tables. `scores` are rows of `score`, None or empty for the paper alone; the lines of
    `scores.attrs["notes"]`, as `everything` sets it, stand below the tables that have ours."""
    whole = _summary(scores, THIRTEEN)
    tables = []
    for number, (category, ours, aligned, title) in TABLES.items():
        has_threshold = ours in CATEGORIES
        rows = listed_rows(category)
        rows = rows.rename(columns=dict(zip(PAPER_LENGTHS, _LENGTHS, strict=True)))
        rows["origin"] = rows["source"].map({name: f"({name})" for name in UPSTREAM}).fillna("")
        summary = whole if has_threshold else _summary(scores, [ours])
        if summary is not None:
            summary = summary.of(ours if has_threshold else "all")
            # Ranks of ours are among each other, not among the paper's models.
            own = board_rows(summary, ["score", "low", "high", "have"])
            own = own.drop(columns=[*RANKS.values()]).assign(source=OURS, baseline=False)
            own["origin"] = f"({OURS}, " + own["run"] + ")"
            rows = pd.concat([rows, own])
        rows = rows[rows["aligned"].str.contains(aligned)].reindex(columns=_COLUMNS)

        order = "wavg_dec"
        if has_threshold:
            limits = {kind: limits[ours] for kind, limits in THRESHOLDS.items()}
            rows["threshold"] = rows["aligned"].map(limits)
        else:
            order = "avg"
            rows[["effective_length", "effective_set"]] = ""
            weighted = [name for name in _COLUMNS if name.startswith(("wavg", "rank"))]
            rows[["threshold", *weighted]] = math.nan
        # Chat models first, each after the threshold's row; equal averages as the paper has them.
        by = ["aligned", "baseline", order]
        rows = rows.sort_values(by, ascending=False, kind="stable", ignore_index=True)

        notes = _notes(rows)
        if summary is not None and scores is not None and (rows["source"] == OURS).any():
            notes += [*_our_notes(rows, summary), *scores.attrs.get("notes", ())]
        tables.append(Board(number, title, rows, notes))
    return tables


def _summary(scores: "pd.DataFrame | None", tasks: Sequence[str]) -> Summary | None:
    """Our scores of some tasks at the paper's lengths; None where there are none."""
    if scores is None:
        return None
    rows = scores[scores["length"].isin(PAPER_LENGTHS) & scores["task"].isin(tasks)]
    return None if rows.empty else summarize(rows, tasks, PAPER_LENGTHS)


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
            "the paper's."
        )
    return lines


def _our_notes(rows: "pd.DataFrame", summary: Summary) -> list[str]:
    """What a reader must know of our rows: their intervals, and what differs from the paper's."""
    lines = ["± is the wider side of the 95 % interval."]

    # A table of base models does not speak of our chat models.
    cells = summary.cells
    names = names_of(cells)
    is_listed = names.isin(rows["model"]) & (cells["n"] > 0)
    cells, names = cells[is_listed], names[is_listed]

    if (cells["n"] != PAPER_EXAMPLES).any():
        lines.append(f"The paper has {PAPER_EXAMPLES} examples per task and length.")
    departures = {
        "protocol": cells["protocol"] != "paper",
        "tokenizer": cells["tokenizer"] == "builtin",
    }
    for what, is_so in departures.items():
        if is_so.any():
            who = listed(names[is_so].unique(), 6)
            lines.append(f"Another {what} than the paper's: {who}.")
    return lines + model_notes(summary.models) + cell_notes(cells)

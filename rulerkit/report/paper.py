"""The paper's numbers (arXiv 2404.06654, versions 3 and 1) beside ours: row by row, and as the
leaderboard, which is Tables 3 and 10 to 16 with upstream's later models and ours.

The numbers stand as printed in `rulerkit/data/paper/*.csv`; the columns `note` name misprints. The
leaderboard computes averages and ranks from the printed scores, by the rules that hold for ours.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from rulerkit.common import escape
from rulerkit.common.errors import check_known, listed, remark, unknown
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.report.tables import (
    board_rows,
    cell_notes,
    footnotes,
    model_notes,
    models_text,
    names_of,
    number_range,
    origin,
    thresholds_text,
)
from rulerkit.report.view import Html
from rulerkit.scoring.effective_length import THRESHOLDS, effective_length
from rulerkit.scoring.scores import THIRTEEN
from rulerkit.scoring.statistics import critical_value
from rulerkit.scoring.summary import AVERAGES, RANKS, Summary, length_weights, summarize

if TYPE_CHECKING:
    from rulerkit.evaluation.study import Study

VERSIONS = ("v3", "v1")
PAPER_CATEGORIES = (
    "all13",
    "niah",
    "vt",
    "aggregation",
    "qa",
    "passkey",
    "vanilla_niah",
)
PAPER_LENGTHS = tuple(4096 * 2**i for i in range(6))
JUDGED = {
    "all13": "all",
    "niah": "niah",
    "vt": "vt",
    "aggregation": "aggregation",
    "qa": "qa",
}
"""The paper's categories that have thresholds, by the name of ours."""
SINGLE_TASKS = {"passkey": "niah_single_1", "vanilla_niah": "niah_single_2"}
"""The categories of Tables 10 and 11, which have no thresholds, by their task."""
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
UPSTREAM = ("upstream", "authors")
"""Who reported a row of upstream's list."""
OURS = "ours"
BOLD = ("ours", "best", "none")
ORDERS = (*AVERAGES, "paper")

_MODEL = ["run", "model"]
_ENDS = {"": "score", "_low": "low", "_high": "high"}
_LIMITED = [f"{average}{end}" for average in AVERAGES for end in _ENDS]
_NUDGE = 1e-6


# --- the paper ------------------------------------------------------------------------------------


@cache
def _table(name: str) -> "pd.DataFrame":
    path = Path(__file__).parents[1] / "data" / "paper" / f"{name}.csv"
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


def _chosen(name: str, version: str, category: str | None) -> "pd.DataFrame":
    check_known("version of the paper", version, VERSIONS)
    rows = _table(name).query("paper_version == @version")
    if category is not None:
        category = "all13" if category == "all" else category
        check_known("category of the paper", category, PAPER_CATEGORIES)
        rows = rows[rows["category"] == category]
    return rows.reset_index(drop=True)


def paper_scores(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Scores by model and length in percent, as printed: the columns of scores.csv.

    `category` is one of PAPER_CATEGORIES; 'all' means 'all13'.
    """
    return _chosen("scores", version, category)


def paper_summary(version: str = "v3", category: str | None = None) -> "pd.DataFrame":
    """Claimed and effective lengths, averages and ranks as printed: the columns of summary.csv."""
    return _chosen("summary", version, category)


def paper_models() -> "pd.DataFrame":
    """The 40 checkpoints of both versions: the columns of models.csv."""
    return _table("models").copy()


@cache
def _printed(version: str, category: str) -> "pd.DataFrame":
    """`paper_summary` with the scores under their lengths as integers."""
    scores = paper_scores(version, category).pivot(
        index="slug", columns="length", values="score"
    )
    return paper_summary(version, category).join(scores, on="slug")


def paper_row(
    model: str, category: str = "all13", version: str = "v3"
) -> "pd.Series[Any] | None":
    """A model's row of one of the paper's tables, or None where the table does not have it.

    `model` is a slug, a name as printed, or a checkpoint's id or its last part; case and
    punctuation do not matter. The entries are those of summary.csv, and the scores under their
    lengths as integers (4096, ...).
    """
    rows = _printed(version, category)
    rows = rows[rows["slug"] == _slugs().get(_key(model))]
    return None if rows.empty else rows.iloc[0]


def published_scores(
    models: str | Iterable[str], category: str = "all", version: str = "v3"
) -> dict[str, dict[int, float]]:
    """Printed scores by length of each model, under its name in the paper.

    A model is named as `paper_row` takes it, or as upstream's list names it, which has the mean of
    the thirteen tasks only; 'all' are the models of Table 3. Raises UserError for any other name.
    """
    if models == "all":
        of_table_3 = _printed(version, "all13").query("aligned == 'chat'")
        models = of_table_3.dropna(subset=[*PAPER_LENGTHS])["slug"]
    rows = _printed(version, category)
    if category in ("all", "all13"):
        rows = pd.concat(
            [rows, _upstream().assign(slug=_upstream()["model"].map(_key))]
        )
    scores: dict[str, Any] = {}
    for model in [models] if isinstance(models, str) else models:
        matches = rows[rows["slug"].isin([_slugs().get(_key(model)), _key(model)])]
        if matches.empty:
            raise unknown("model with published scores", model, rows["model"])
        row = matches.iloc[0]
        scores[row["model"]] = row[[*PAPER_LENGTHS]].dropna().astype(float).to_dict()
    return scores


def _upstream() -> "pd.DataFrame":
    """Upstream's list, with the scores under their lengths as integers."""
    names = {f"score_{length_name(n)}": n for n in PAPER_LENGTHS}
    return _table("leaderboard").rename(columns=names)


@cache
def _slugs() -> dict[str, str]:
    """Slug by every spelling of a model, except those that two models share."""
    slugs: dict[str, set[str]] = defaultdict(set)
    columns = ["slug", "names_in_score_tables", "checkpoint"]
    for slug, names, checkpoint in (
        paper_models()[columns].fillna("").itertuples(index=False)
    ):
        for name in (
            slug,
            *names.split(";"),
            checkpoint,
            checkpoint.rpartition("/")[2],
        ):
            slugs[_key(name)].add(slug)
    return {
        name: slug for name, (slug, *others) in slugs.items() if name and not others
    }


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# --- our models beside the paper's ----------------------------------------------------------------


def against_paper(summary: Summary, version: str = "v3") -> "pd.DataFrame":
    """Our scores beside the paper's, for the models, categories and lengths that it has.

    Columns model, category, length (0 for the mean over all of ours), score, low, high, paper, z
    (of the difference: the paper's own noise is that of 500 right-or-wrong examples per task),
    verdict, effective_length and paper_effective_length. The verdict is 'agrees' where |z| is below
    the critical value, 'differs', or 'not comparable: ' and what differs from the paper's set-up
    (protocol, tokenizer, template, examples, tasks).
    """
    z_limit, rows = critical_value(summary.confidence), []
    ends = {f"avg{end}": name for end, name in _ENDS.items()}
    means = summary.models.rename(columns=ends).assign(length=0)
    effective = summary.models[[*_MODEL, "category", "effective_length"]]
    both = pd.concat([summary.lengths.merge(effective), means])
    for _, row in both[both["category"].isin(["all", *PAPER_CATEGORIES])].iterrows():
        lengths = (
            [row["length"]]
            if row["length"]
            else list(summary.lengths["length"].unique())
        )
        paper = paper_row(row["model"], row["category"], version)
        if paper is None:
            paper = paper_row(row["label"], row["category"], version)
        if (
            math.isnan(row["score"])
            or paper is None
            or paper.reindex(lengths).isna().any()
        ):
            continue
        shares = paper[lengths].to_numpy(dtype=float) / 100
        variance = (
            (shares * (1 - shares)).sum() / (500 * row["tasks"]) / len(lengths) ** 2
        )
        error = math.hypot(
            (row["high"] - row["low"]) / (2 * z_limit), 100 * math.sqrt(variance)
        )
        z = (row["score"] - 100 * shares.mean()) / error
        cells = summary.cells.merge(row[_MODEL].to_frame().T)
        cells = cells[cells["length"].isin(lengths)]
        reasons = [
            name
            for name, is_so in _departures(cells, paper["slug"]).items()
            if is_so.any()
        ]
        if row["effective_length"] == "":
            reasons.append("tasks")
        verdict = "agrees" if abs(z) < z_limit else "differs"
        if reasons:
            verdict = f"not comparable: {', '.join(reasons)}"
        beside = {"paper": 100 * shares.mean(), "z": round(z, 2), "verdict": verdict}
        rows.append(
            {**row, **beside, "paper_effective_length": paper["effective_length"]}
        )
    columns = [
        "model",
        "category",
        "length",
        "score",
        "low",
        "high",
        "paper",
        "z",
        "verdict",
    ]
    columns += ["effective_length", "paper_effective_length"]
    return pd.DataFrame(rows, columns=columns)


def _departures(cells: "pd.DataFrame", slug: str = "") -> "dict[str, pd.Series[bool]]":
    """What differs from the paper's set-up, and in which cells; the chat template where the paper's
    model is known."""
    printed = _key(paper_models().set_index("slug")["template"].get(slug, ""))
    templates = cells["template"].dropna().map(_key)
    return {
        "protocol": ~cells["note"].str.contains("Protocol paper:", na=False),
        "tokenizer": cells["tokenizer"] == "builtin",
        "template": templates.map(
            lambda name: name not in printed and name[:4] != "auto"
        ),
        "examples": cells["stand_in"],
    }


# --- leaderboard ----------------------------------------------------------------------------------


class Board(NamedTuple):
    """One table. `rows` has chat models before base models, in each the threshold's row first:

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

    @property
    def numbers(self) -> list[str | int]:
        """The columns of scores and averages. Tables 10 and 11 have no weighted averages."""
        return [*self.lengths, *(AVERAGES if self.category in JUDGED else ["avg"])]

    def text(self, format: str = "markdown", bold: str = "none") -> str:
        """The table as markdown, latex or html, or as csv with every column of its rows, lengths as
        4K, 4K_low, 4K_high, 4K_have.

        What is `bold` is 'ours' (their names), 'best' (of each column among models of one
        alignment, as printed) or 'none'.
        """
        check_known("choice of what is bold", bold, BOLD)
        rows = self.rows
        if format == "csv":
            heads = [
                re.sub(r"^\d+", lambda n: length_name(int(n[0])), str(name))
                for name in rows
            ]
            return escape.csv_text(rows.set_axis(heads, axis=1), "%.4f")
        notes, is_bold = list(self.notes), pd.DataFrame(index=rows.index)
        if bold == "ours":
            is_bold["model"] = rows["source"] == OURS
        if bold == "best":
            printed = rows[self.numbers].mask(rows["baseline"]).astype(float).round(1)
            is_bold = printed == printed.groupby(rows["aligned"]).transform("max")
            notes.append(
                "Bold: the best of the column among models of the same alignment."
            )
        names: Any = [list(is_bold.columns[fields]) for fields in is_bold.to_numpy()]
        rows = rows.assign(
            origin=[_origin(row) for _, row in rows.iterrows()],
            group=rows["aligned"] + rows["baseline"].astype(str),
            bold=names,
        )
        judged = ["effective_length"] * (self.category in JUDGED)
        columns = ["claimed_length", *judged, *self.numbers]
        text = models_text(rows, columns, format, notes)
        return (
            f"Table {self.number}: {self.title}\n\n{text}"
            if format == "markdown"
            else text
        )


def _origin(row: "pd.Series[Any]") -> str:
    if row["source"] == OURS:
        return origin(row, OURS, row["run"])
    if row["source"] in UPSTREAM:
        return f"({row['source']})"
    return "(base)" * (row["aligned"] == "base" and "base" not in row["model"])


def boards(
    scores: "pd.DataFrame | None" = None,
    version: str = "v3",
    lengths: Sequence[int] = PAPER_LENGTHS,
    order: str = "wavg_dec",
    upstream: bool = True,
) -> list[Board]:
    """All tables. `scores` are rows of `score`, None or empty for the paper alone; the lines of
    `scores.attrs["notes"]`, as `everything` sets it, stand below the tables that have ours.

    `lengths` are the columns; averages are over those of them that all rows share. `order` is one
    of ORDERS. `upstream`: whether the rows of upstream's list stand in them too.
    """
    check_known("order", order, ORDERS)
    columns = tuple(sorted(lengths))
    summary_of = cache(partial(_summary, scores))
    scored = [c for n in columns for c in (n, f"{n}_low", f"{n}_high", f"{n}_have")]
    names = [
        *(
            "source",
            *_MODEL,
            "label",
            "aligned",
            "baseline",
            "claimed_length",
            "effective_length",
        ),
        *("effective_set", "threshold", "stand_in", "reader", "adaptive"),
        *(*scored, *_LIMITED, *RANKS.values()),
    ]
    all_boards = []
    for number, (category, aligned, title) in TABLES.items():
        task, our_category = SINGLE_TASKS.get(category), JUDGED.get(category, "all")
        summary = summary_of(task, columns)
        summary = summary and summary.of(our_category)
        shared = _shared_lengths(summary, columns)
        rows = listed_rows(version, category, shared)
        rows = rows[upstream | ~rows["source"].isin(UPSTREAM)]
        if summary is not None:
            averaged = summary_of(task, shared)
            averaged = averaged and averaged.of(our_category)
            rows = pd.concat([rows, _our_rows(summary, averaged)])
        rows = _ranked(rows[rows["aligned"].str.contains(aligned)])
        limits = {kind: limits[our_category] for kind, limits in THRESHOLDS.items()}
        rows["threshold"] = rows["aligned"].map(limits)
        by = [order] * (order != "paper")
        if category not in JUDGED:
            by = ["avg"] * len(by)
            rows[["effective_length", "effective_set"]] = ""
            rows[["threshold", *_LIMITED[3:], *RANKS.values()]] = math.nan
        rows = rows.sort_values(
            ["aligned", "baseline", *by], ascending=False, kind="stable"
        )
        rows = rows.reindex(columns=names).reset_index(drop=True)
        notes = _notes(rows, shared)
        if (
            summary is not None
            and scores is not None
            and (rows["source"] == OURS).any()
        ):
            notes += _our_notes(rows, summary)
            notes += scores.attrs.get("notes", ())
        all_boards.append(Board(number, category, title, columns, rows, tuple(notes)))
    return all_boards


def everything(study: "Study", leave_out: Iterable[str] = ()) -> "pd.DataFrame | None":
    """All answers of a study's run, but for those of some models by name, scored; None where there
    are none.

    Raises UserError where the run has no such model, and where cells were made so differently that
    no table can hold both.
    """
    from rulerkit.scoring.scores import score
    from rulerkit.store.cells import read_cells
    from rulerkit.store.comparable import check_same

    cells = (
        read_cells(study.predictions, scan=False) if study.predictions.is_dir() else []
    )
    models = {cell.model for cell in cells}
    left_out = [leave_out] if isinstance(leave_out, str) else [*leave_out]
    for name in left_out:
        check_known(f"model in run {study.run}", name, sorted(models))
    cells = [
        cell for cell in cells if cell.task in THIRTEEN and cell.model not in left_out
    ]
    scores = score(cells, report=remark)
    if scores.empty:
        return None
    check_same(cells)
    scores.attrs["notes"] = footnotes(cells, scores)
    return scores


def listed_rows(
    version: str = "v3", category: str = "all13", lengths: Sequence[int] = PAPER_LENGTHS
) -> "pd.DataFrame":
    """The paper's rows of a table in its order and, for the thirteen tasks, those of upstream's
    list that the paper does not have: `source` is 'paper v3', 'upstream', or 'authors' where the
    list marks a row as reported by the model's authors. Averages are over `lengths`.

    The columns are those of summary.csv, `baseline` (one of the two Llama2 rows, of which only 4K
    is printed), and the scores under their lengths as integers. An average exactly between two
    tenths is moved by a millionth to the one that is printed: the paper rounds such halves up and
    down. Effective lengths of upstream's list follow from its scores; `note` says where it prints
    others.
    """
    scores: list[Any] = [*PAPER_LENGTHS]
    rows = _printed(version, category).assign(source=f"paper {version}")
    rows["baseline"] = rows[scores].isna().any(axis=1)
    effective = rows["effective_length"].fillna("").str.upper()
    rows["effective_length"] = effective.replace("-", "")
    if category in ("all", "all13"):
        listed = _upstream().rename(columns={"reported_by": "source"})
        listed = listed.drop(columns=[*AVERAGES, *RANKS.values()])
        listed = listed[
            ~listed.set_index(scores).index.isin(rows.set_index(scores).index)
        ]
        listed["model"] += (" (" + listed["parameters"] + ")").fillna("")
        listed["effective_length"] = [
            effective_length(
                {n: row[n] for n in scores}, 85.6, parse_length(row["claimed_length"])
            )
            for _, row in listed.iterrows()
        ]
        rows = pd.concat([rows, listed.assign(aligned="chat", baseline=False)])
    printed = rows[[*AVERAGES]]
    known = rows[[*lengths]].mask(rows["baseline"]).to_numpy(dtype=float)
    about: Any = {"run": "", "effective_set": "", "adaptive": "", "label": ""}
    rows = rows.assign(stand_in=False, reader=False, **about)
    rows["claimed_length"] = rows["claimed_length"].str.upper()
    rows[[*AVERAGES]] = known @ length_weights(len(lengths)).T if lengths else math.nan
    if tuple(lengths) == PAPER_LENGTHS:
        gap: Any = printed - rows[[*AVERAGES]]
        is_half = (gap.abs() - 0.05).abs() < _NUDGE / 2
        rows[[*AVERAGES]] += _NUDGE * np.sign(gap).where(is_half, 0)
    return rows.reset_index(drop=True)


def _ranked(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Rows with their ranks among the paper's models of the same alignment; upstream's, readers and
    ours over stand-in corpora have none."""
    papers = rows[rows["source"].str.startswith("paper")]
    special = rows[["stand_in", "reader", "adaptive"]].astype(bool).any(axis=1)
    has_rank = ~(rows["source"].isin(UPSTREAM) | special)
    is_alike = np.equal.outer(rows["aligned"].to_numpy(), papers["aligned"].to_numpy())
    for average, rank in RANKS.items():
        is_above = np.less.outer(
            rows[average].to_numpy() + 1e-9, papers[average].to_numpy()
        )
        places = 1 + (is_alike & is_above).sum(axis=1)
        rows[rank] = np.where(has_rank & rows[average].notna(), places, np.nan)
    return rows


def _summary(
    scores: "pd.DataFrame | None", task: str | None, lengths: Sequence[int]
) -> Summary | None:
    """Our scores of one task, or of the thirteen; None where there are none."""
    if scores is None:
        return None
    tasks = [task] if task else THIRTEEN
    rows = scores[scores["length"].isin(lengths) & scores["task"].isin(tasks)]
    return summarize(rows, tasks if task else None) if len(rows) else None


def _shared_lengths(summary: Summary | None, lengths: Iterable[int]) -> tuple[int, ...]:
    """The lengths at which the paper's models have a score, and all of ours that have any complete
    one."""
    shared = {*lengths} & {*PAPER_LENGTHS}
    if summary is not None:
        complete = summary.lengths.query("complete")
        shared = shared.intersection(*complete.groupby(_MODEL)["length"].agg(set))
    return tuple(sorted(shared))


def _our_rows(summary: Summary, averaged: Summary | None) -> "pd.DataFrame":
    """Our rows of a table; their averages are those of `averaged`."""
    rows = board_rows(summary, [*_ENDS.values(), "have"]).drop(columns=_LIMITED)
    if averaged is not None:
        rows = rows.merge(averaged.models[[*_MODEL, *_LIMITED]], how="left", on=_MODEL)
    return rows.assign(model=names_of(rows), source=OURS, baseline=False)


def _notes(rows: "pd.DataFrame", shared: Iterable[int]) -> list[str]:
    names = ", ".join(map(length_name, shared))
    lines = [
        "Averages, ranks and effective lengths of the paper's rows are computed from its scores.",
        "Averages and ranks are over the lengths that all rows share: "
        f"{names or 'no length, because no length is complete for all of ours'}.",
    ]
    if rows["source"].isin(UPSTREAM).any():
        lines.append(
            "Rows of upstream's list give averages only; (authors): reported by the model's "
            "authors, maybe with other prompts and examples. Effective lengths follow from their "
            "scores, which in the list itself they do not always."
        )
    if rows["threshold"].notna().any():
        lines.append(
            f"Marked scores reach the threshold, Llama2-7B at 4K: {thresholds_text(rows)}. Ranks "
            "are among the paper's models; reference readers and scores over stand-in corpora have "
            "none."
        )
    return lines


def _our_notes(rows: "pd.DataFrame", summary: Summary) -> list[str]:
    lines = [f"± is the wider side of the {100 * summary.confidence:g} % interval."]
    cells = summary.cells
    names = names_of(cells)
    is_listed = names.isin(rows["model"]) & (cells["n"] > 0)
    cells, names = cells[is_listed], names[is_listed]
    if number_range(cells["n"]) != "500":
        lines.append("The paper has 500 examples per task and length.")
    departures = _departures(cells)
    for what in ("protocol", "tokenizer"):
        if departures[what].any():
            who = listed(names[departures[what]].unique(), 6)
            lines.append(f"Another {what} than the paper's: {who}.")
    return lines + model_notes(summary.models) + cell_notes(cells)


# --- leaderboard: the page ------------------------------------------------------------------------

_STYLE = """
.rulerkit-boards table {border-collapse: collapse; font: 13px/1.3 sans-serif; margin: .4em 0 .8em}
.rulerkit-boards th, .rulerkit-boards td {padding: .18em .55em; text-align: right; white-space: nowrap}
.rulerkit-boards th:first-child, .rulerkit-boards td:first-child {text-align: left}
.rulerkit-boards th {cursor: pointer; border-bottom: 1px solid; vertical-align: bottom; user-select: none}
.rulerkit-boards th[aria-sort=ascending]::after {content: " ▲"; font-size: 70%}
.rulerkit-boards th[aria-sort=descending]::after {content: " ▼"; font-size: 70%}
.rulerkit-boards tbody tr:only-child td {border-bottom: 1px solid rgba(128,128,128,.5); font-style: italic}
.rulerkit-boards tr:has(td:first-child b) {background: rgba(86,180,233,.18) !important}
.rulerkit-boards u {text-underline-offset: 2px}
.rulerkit-boards small {opacity: .75}
.rulerkit-boards p {font: 12px/1.4 sans-serif; opacity: .8; margin: 0; max-width: 70em}
.rulerkit-boards summary {font: bold 14px sans-serif; cursor: pointer; margin: .3em 0}
.rulerkit-boards details {margin-bottom: 1em}
"""
_SCRIPT = r"""
window.rulerkitSort = function (head) {
  if (head.tagName !== "TH") return;
  const column = head.cellIndex, down = head.getAttribute("aria-sort") !== "descending" && column > 0
    || head.getAttribute("aria-sort") === "ascending";
  const value = function (row) {  // of '98.5', '128K', '>128K', '<4K' or '>=32K, 64K not run': a number
    const first = row.cells[column].firstChild, text = first ? first.textContent.trim() : "";
    if (column === 0) return text;
    const number = text.match(/^([<>]?)=?(\d+\.\d|\d+)([KM]?)(?![\/\d])/);
    return number && number[2] * ({K: 1024, M: 1024 * 1024}[number[3]] || 1) + ({"<": -1, ">": 1}[number[1]] || 0);
  };
  for (const body of head.closest("table").tBodies) {  // chat and base models apart, their thresholds first
    const rows = Array.from(body.rows);
    rows.sort(function (a, b) {
      const x = value(a), y = value(b);
      if (x === null || y === null) return (x === null) - (y === null);  // what is missing comes last
      const order = column === 0 ? x.localeCompare(y) : x - y;
      return down ? -order : order;
    });
    rows.forEach(row => body.appendChild(row));
  }
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
};
"""


def page(boards: Iterable[Board], bold: str = "ours") -> Html:
    """All tables below each other, the first one open, sorted by a click on a column's head; `bold`
    is 'ours' (and shaded), 'best' (in a column) or 'none'."""
    tables = [
        f"<details{' open' * (not i)}><summary>Table {board.number}: {escape.html(board.title)}"
        f"</summary>{board.text('html', bold)}</details>"
        for i, board in enumerate(boards)
    ]
    return Html(
        '<meta charset="utf-8"><div class="rulerkit-boards mathjax_ignore" onclick="rulerkitSort(event.target)">'
        f"<style>{_STYLE}</style><script>{_SCRIPT}</script>{''.join(tables)}</div>\n"
    )

"""The paper's numbers (arXiv 2404.06654, versions 3 and 1) beside ours: row by row, and as the
leaderboard, which is Tables 3 and 10 to 16 with upstream's later models and ours.

The numbers stand as printed in `rulerkit/data/paper/*.csv`; the columns `note` name misprints. The
leaderboard computes averages, ranks and effective lengths from the printed scores, by the rules
that hold for ours.
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rulerkit import escape, tables
from rulerkit.errors import unknown
from rulerkit.lengths import THRESHOLDS, effective_length, length_name, parse_length
from rulerkit.scoring import THIRTEEN
from rulerkit.statistics import critical_value
from rulerkit.summary import AVERAGES, Summary, averages, rest_notes, summarize, summary_lengths
from rulerkit.tables import STAND_IN_NOTE, Field
from rulerkit.view import Html

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

    from rulerkit.studies import Study

VERSIONS = ("v3", "v1")
PAPER_CATEGORIES = ("all13", "niah", "vt", "aggregation", "qa", "passkey", "vanilla_niah")
PAPER_LENGTHS = tuple(4096 * 2**i for i in range(6))
JUDGED = {"all13": "all", "niah": "niah", "vt": "vt", "aggregation": "aggregation", "qa": "qa"}
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
RANKS = {"wavg_inc": "rank_inc", "wavg_dec": "rank_dec"}
"""The rank by each weighted average."""

_MODEL = ["run", "model"]
_LIMITED = [f"{average}{end}" for average in AVERAGES for end in ("", "_low", "_high")]
_TITLES = {
    "model": "Models",
    "claimed_length": "Claimed Length",
    "effective_length": "Effective Length",
    "avg": "Avg.",
    "wavg_inc": "wAvg. (inc)",
    "wavg_dec": "wAvg. (dec)",
}
_OTHERS: dict[str, Any] = {"run": "", "stand_in": False}
"""What only our rows have."""
_NUDGE = 1e-6


# --- the paper ------------------------------------------------------------------------------------


@cache
def _table(name: str) -> "pd.DataFrame":
    import pandas as pd

    with (files("rulerkit") / "data" / "paper" / f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, keep_default_na=False, na_values=[""])


def _chosen(name: str, version: str, category: str | None) -> "pd.DataFrame":
    if version not in VERSIONS:
        raise unknown("version of the paper", version, VERSIONS)
    rows = _table(name).query("paper_version == @version")
    if category is not None:
        category = "all13" if category == "all" else category
        if category not in PAPER_CATEGORIES:
            raise unknown("category of the paper", category, PAPER_CATEGORIES)
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


def paper_tasks() -> "pd.DataFrame":
    """The 13 configurations of Table 5: the columns of tasks.csv."""
    return _table("tasks").copy()


@cache
def _printed(version: str, category: str) -> "pd.DataFrame":
    """`paper_summary` with ranks as numbers, and the scores under their lengths as integers."""
    scores = paper_scores(version, category).pivot(index="slug", columns="length", values="score")
    rows = paper_summary(version, category).join(scores, on="slug")
    for rank in RANKS.values():
        rows[rank] = rows[rank].astype(str).str.extract(r"^(\d+)", expand=False).astype(float)
    return rows


def paper_row(model: str, category: str = "all13", version: str = "v3") -> "pd.Series[Any] | None":
    """A model's row of one of the paper's tables, or None where the table does not have it.

    `model` is a slug, a name as printed, or a checkpoint's id or its last part; case and
    punctuation do not matter. The entries are those of summary.csv, ranks as numbers, and the
    scores under their lengths as integers (4096, ...).
    """
    rows = _printed(version, category)
    rows = rows[rows["slug"] == _slugs().get(_key(model))]
    return None if rows.empty else rows.iloc[0]


def published_scores(
    models: Iterable[str], category: str = "all", version: str = "v3"
) -> dict[str, dict[int, float]]:
    """Printed scores by length of each model, under its name in the paper.

    A model is named as `paper_row` takes it, or as upstream's list names it, which has the mean of
    the thirteen tasks only. Raises UserError for any other name.
    """
    table = "all13" if category == "all" else category
    upstream = _upstream_scores() if table == "all13" else []
    scores = {}
    for model in models:
        row = paper_row(model, table, version)
        if row is None:
            row = next((row for row in upstream if _key(row["model"]) == _key(model)), None)
        if row is None:
            known = [*_printed(version, table)["model"], *(row["model"] for row in upstream)]
            raise unknown("model with published scores", model, dict.fromkeys(known))
        by_length = {n: float(row[n]) for n in PAPER_LENGTHS}
        scores[str(row["model"])] = {n: s for n, s in by_length.items() if not math.isnan(s)}
    return scores


def _upstream_scores() -> "list[pd.Series[Any]]":
    """The rows of upstream's list, with the scores under their lengths as integers."""
    names = {f"score_{length_name(n)}": n for n in PAPER_LENGTHS}
    return [row for _, row in _table("leaderboard").rename(columns=names).iterrows()]


@cache
def _slugs() -> dict[str, str]:
    """Slug by every spelling of a model, except those that two models share."""
    slugs: dict[str, set[str]] = defaultdict(set)
    columns = ["slug", "names_in_score_tables", "checkpoint"]
    for slug, names, checkpoint in paper_models()[columns].fillna("").itertuples(index=False):
        for name in (slug, *names.split(";"), checkpoint, checkpoint.rpartition("/")[2]):
            slugs[_key(name)].add(slug)
    return {name: slug for name, (slug, *others) in slugs.items() if name and not others}


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


# --- our models beside the paper's ----------------------------------------------------------------


def beside(summary: Summary, paper_version: str = "v3") -> "pd.DataFrame":
    """Our row of each model and, below it, the paper's where it has one.

    Columns: model, source ('ours' or 'paper v3'), claimed_length, effective_length, one per length
    (integers), avg, wavg_inc, wavg_dec, and note, which says why the two may not be comparable:
    stand-in corpora, another set of tasks or lengths.
    """
    import pandas as pd

    grid = summary_lengths(summary)
    rows = []
    for _, ours in _our_rows(summary, "all").iterrows():
        notes = [STAND_IN_NOTE] * bool(ours["stand_in"])
        if ours["tasks"] != 13:
            notes.append(f"tasks: {ours['tasks']}, the paper's 13")
        if tuple(grid) != PAPER_LENGTHS:
            names = ", ".join(map(length_name, grid))
            notes.append(f"averages over {names}, the paper's over 4K to 128K")
        about = {"model": ours["label"]}
        rows.append({**ours, **about, "source": OURS, "note": "; ".join(notes)})
        paper = _row_of(ours, "all", paper_version)
        if paper is not None:
            about |= {"source": f"paper {paper_version}", "note": paper["model"]}
            rows.append({**paper, **about})
    columns = ["model", "source", "claimed_length", "effective_length", *grid, *AVERAGES, "note"]
    return pd.DataFrame(rows, columns=columns)


def show_beside(rows: "pd.DataFrame") -> "Styler":
    """The table of `beside` for a notebook: the paper's rows shaded, and a loud warning over
    stand-in corpora."""
    styler = tables.show(rows.rename(columns=_title), precision=1, na_rep="–")
    styler = styler.set_properties(["Models", "Source", "Note"], **{"text-align": "left"})
    shade = "background-color: rgba(128,128,128,.18)"
    styler = styler.apply(lambda row: [shade * (row["Source"] != OURS)] * len(row), axis=1)
    if rows["note"].fillna("").str.contains(STAND_IN_NOTE, regex=False).any():
        bold = "font-weight: bold; color: #D55E00; text-align: left; caption-side: top"
        styler = styler.set_caption(
            "WARNING: OUR ROWS USE STAND-IN CORPORA AND ARE NOT COMPARABLE WITH THE PAPER'S"
        ).set_table_styles([{"selector": "caption", "props": bold}])
    return styler


def against_paper(summary: Summary, version: str = "v3") -> "pd.DataFrame":
    """Our scores by length beside the paper's, for the models and categories that it has.

    Columns model, category, length, score, low, high, paper, z (of the difference: the paper's own
    noise is that of 500 right-or-wrong examples per task) and verdict: 'agrees' where |z| is below
    the critical value, 'differs', or 'not comparable: ' and what differs from the paper's set-up
    (protocol, tokenizer, template, examples).
    """
    import pandas as pd

    z_limit = critical_value(summary.confidence)
    columns = ["model", "category", "length", "score", "low", "high"]
    rows = []
    for _, ours in summary.lengths[summary.lengths["complete"]].iterrows():
        paper = _row_of(ours, ours["category"], version)
        length = int(ours["length"])
        if paper is None or math.isnan(float(paper.get(length, math.nan))):
            continue
        share = float(paper[length]) / 100
        noise = 100 * math.sqrt(share * (1 - share) / (500 * ours["tasks"]))
        error = math.hypot((ours["high"] - ours["low"]) / (2 * z_limit), noise)
        z = float(ours["score"] - paper[length]) / error
        cells = summary.cells.merge(ours[[*_MODEL, "length"]].to_frame().T)
        reasons = ", ".join(_departures(cells, str(paper["slug"])))
        verdict = "agrees" if abs(z) < z_limit else "differs"
        if reasons:
            verdict = f"not comparable: {reasons}"
        about = {"paper": float(paper[length]), "z": round(z, 2), "verdict": verdict}
        rows.append({**ours[columns], **about})
    return pd.DataFrame(rows, columns=[*columns, "paper", "z", "verdict"])


def _departures(cells: "pd.DataFrame", slug: str) -> list[str]:
    """In what our cells of a model differ from the paper's set-up."""
    models = paper_models().set_index("slug")
    paper_template = _key(str(models.loc[slug, "template"])) if slug in models.index else ""
    templates = {_key(str(name)) for name in cells["template"].dropna()}
    differs = {
        "protocol": not cells["note"].fillna("").str.contains("Protocol paper").all(),
        "tokenizer": (cells["tokenizer"] == "builtin").any(),
        "template": any(t not in paper_template and not t.startswith("auto") for t in templates),
        "examples": cells["stand_in"].any(),
    }
    return [name for name, is_so in differs.items() if is_so]


def _row_of(ours: "pd.Series[Any]", category: str, version: str) -> "pd.Series[Any] | None":
    """The paper's row of one of our models, by its name or label."""
    rows = (paper_row(str(ours[name]), category, version) for name in ("model", "label"))
    return next((row for row in rows if row is not None), None)


# --- leaderboard: rows ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Board:
    """One table. `rows` has chat models before base models, in each the threshold's row first:

    source ('ours', 'paper v3', 'upstream' or 'authors'), run, model, aligned, baseline (a row of
    the threshold), claimed_length, effective_length, effective_set, threshold (NaN where there is
    none), stand_in, avg, wavg_inc, wavg_dec with avg_low, avg_high ..., rank_inc, rank_dec (of
    ours: their place among the paper's models, where the two can be compared), and for each length
    4096: 4096, '4096_low', '4096_high', '4096_have' (what there is of an incomplete score).
    """

    number: str
    category: str
    title: str
    lengths: tuple[int, ...]
    rows: "pd.DataFrame"
    notes: tuple[str, ...]

    @cached_property
    def columns(self) -> list[str | int]:
        """The columns that are shown. Tables 10 and 11 have no thresholds: no effective lengths
        and no weighted averages."""
        judged = ["effective_length"] * bool(self.rows["threshold"].notna().any())
        return ["model", "claimed_length", *judged, *self.numbers]

    @cached_property
    def numbers(self) -> list[str | int]:
        """The columns of scores and averages."""
        shown = [name for name in AVERAGES if self.rows[name].notna().any()]
        return [*self.lengths, *(shown or ["avg"])]


def boards(
    scores: "pd.DataFrame | None" = None,
    version: str = "v3",
    lengths: Sequence[int] = PAPER_LENGTHS,
    order: str = "wavg_dec",
) -> list[Board]:
    """All tables. `scores` are rows of `score`, None or empty for the paper alone; the lines of
    `scores.attrs["notes"]`, as `everything` sets it, stand below the tables that have ours.

    `lengths` are the columns; averages are over those of them that all rows share. `order` is one
    of ORDERS.
    """
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    columns = tuple(sorted(lengths))
    notes = () if scores is None else scores.attrs.get("notes", ())
    summary_of = cache(partial(_summary, scores))
    all_boards = []
    for number, (category, aligned, title) in TABLES.items():
        task, ours = SINGLE_TASKS.get(category), JUDGED.get(category, "all")
        summary = summary_of(task, columns)
        shared = _shared_lengths(summary, ours, columns)
        rows = _board_rows(category, version, shared, summary, summary_of(task, shared))
        rows = _sorted(rows[rows["aligned"] == aligned] if aligned else rows, order)
        scored = [c for n in columns for c in (n, f"{n}_low", f"{n}_high", f"{n}_have")]
        about = ["source", *_MODEL, "aligned", "baseline", "claimed_length", "effective_length"]
        about += ["effective_set", "threshold", "stand_in"]
        rows = rows.reindex(columns=[*about, *scored, *_LIMITED, *RANKS.values()])
        lines = [*_notes(rows, shared), *_our_notes(rows, ours, summary, notes)]
        all_boards.append(Board(number, category, title, columns, rows, tuple(lines)))
    return all_boards


def board(all_boards: Iterable[Board], number: str | int) -> Board:
    """The table of a number in the paper."""
    by_number = {board.number: board for board in all_boards}
    if str(number) not in by_number:
        raise unknown("table of the paper", number, by_number)
    return by_number[str(number)]


def everything(study: "Study") -> "pd.DataFrame | None":
    """All answers of a study's run, scored; None where there are none.

    Raises UserError where cells were made so differently that no table can hold both.
    """
    from rulerkit.evaluation import check_same, footnotes
    from rulerkit.scoring import score
    from rulerkit.store import print_problem, read_cells

    cells = read_cells(study.predictions, scan=False) if study.predictions.is_dir() else []
    cells = [cell for cell in cells if cell.task in THIRTEEN]
    scores = score(cells, report=print_problem)
    if scores.empty:
        return None
    check_same(cells)
    scores.attrs["notes"] = footnotes(cells)
    return scores


def rebuilt(
    version: str = "v3", category: str = "all13", lengths: Sequence[int] = PAPER_LENGTHS
) -> "pd.DataFrame":
    """A table of the paper from its scores, a row per model in the paper's order, averaged over
    `lengths`.

    The columns of summary.csv, `baseline` (one of the two Llama2 rows, of which only 4K is
    printed), and the scores under their lengths as integers. An average exactly between two tenths
    is moved by a millionth to the one that is printed: the paper rounds such halves up and down.
    Tables 10 and 11 have neither effective lengths nor weighted averages.
    """
    rows = _printed(version, category).copy()
    averages_printed = rows[[*AVERAGES]]
    rows["claimed_length"] = rows["claimed_length"].str.upper()
    rows["baseline"] = rows[[*PAPER_LENGTHS]].isna().any(axis=1)
    rows = _with_averages(rows, category, lengths)
    # '>128K' is printed in version 3 only, and there for chat models only
    plain = (rows["aligned"] == "base") | (version == "v1")
    rows.loc[plain, "effective_length"] = rows["effective_length"].str.removeprefix(">")
    for average, rank in RANKS.items():
        by_alignment = rows[average].round(9).groupby(rows["aligned"])
        rows[rank] = by_alignment.rank(method="min", ascending=False)
    if tuple(lengths) == PAPER_LENGTHS:
        gap = (averages_printed - rows[[*AVERAGES]]).to_numpy()
        is_half = np.abs(np.abs(gap) - 0.05) < _NUDGE / 2
        rows[[*AVERAGES]] += np.where(is_half, np.copysign(_NUDGE, gap), 0.0)
    if category not in JUDGED:
        rows[[*RANKS, *RANKS.values()]] = math.nan
    return rows


def upstream_rows(version: str = "v3", lengths: Sequence[int] = PAPER_LENGTHS) -> "pd.DataFrame":
    """The chat models of upstream's list that the paper does not have, as rows of Table 3 (see
    `rebuilt`).

    `source` is 'upstream', or 'authors' where the list marks a row as reported by the model's
    authors. Averages and effective lengths follow from the scores; `note` says where the list
    prints others.
    """
    rows = _table("leaderboard").rename(
        columns={f"score_{length_name(n)}": n for n in PAPER_LENGTHS}
    )
    paper = set(_printed(version, "all13")[[*PAPER_LENGTHS]].itertuples(index=False, name=None))
    new = [
        scores not in paper for scores in rows[[*PAPER_LENGTHS]].itertuples(index=False, name=None)
    ]
    rows = rows[new].reset_index(drop=True)
    size = " (" + rows["parameters"] + ")"
    rows = rows.assign(
        model=rows["model"] + size.fillna(""),
        aligned="chat",
        baseline=False,
        claimed_length=rows["claimed_length"].str.upper(),
        source=rows["reported_by"],
    )
    return _with_averages(rows.drop(columns=[*RANKS.values()]), "all13", lengths)


def _with_averages(rows: "pd.DataFrame", category: str, lengths: Sequence[int]) -> "pd.DataFrame":
    """Rows with their averages over `lengths` and their effective lengths, except baselines."""
    means, effective = [], []
    for _, row in rows.iterrows():
        has_means = bool(lengths) and not row["baseline"]
        means.append(averages([row[n] for n in lengths]) if has_means else (math.nan,) * 3)
        name = ""
        if category in JUDGED and not row["baseline"]:
            threshold = THRESHOLDS[row["aligned"]][JUDGED[category]]
            scores = {n: float(row[n]) for n in PAPER_LENGTHS}
            name = effective_length(scores, threshold, parse_length(row["claimed_length"]))
        effective.append(name)
    rows[[*AVERAGES]] = means
    return rows.assign(effective_length=effective)


def _summary(
    scores: "pd.DataFrame | None", task: str | None, lengths: Sequence[int]
) -> Summary | None:
    """Our scores of one task, or of the thirteen; None where there are none."""
    if scores is None or scores.empty:
        return None
    tasks = [task] if task else THIRTEEN
    rows = scores[scores["length"].isin(lengths) & scores["task"].isin(tasks)]
    return summarize(rows, [task] if task else None) if len(rows) else None


def _shared_lengths(
    summary: Summary | None, category: str, lengths: tuple[int, ...]
) -> tuple[int, ...]:
    """The lengths at which the paper's models have a score, and all of ours that have any complete
    one."""
    shared = set(lengths) & set(PAPER_LENGTHS)
    if summary is not None:
        rows = summary.lengths.query("category == @category and complete")
        for _, model in rows.groupby(_MODEL):
            shared &= set(model["length"])
    return tuple(sorted(shared))


def _board_rows(
    category: str,
    version: str,
    shared: tuple[int, ...],
    summary: Summary | None,
    averaged: Summary | None,
) -> "pd.DataFrame":
    """The rows of a table: the paper's, upstream's for the thirteen tasks, and ours, whose averages
    are those of `averaged`."""
    import pandas as pd

    paper = rebuilt(version, category, shared).assign(source=f"paper {version}")
    parts = [paper.assign(**_OTHERS)]
    if category == "all13":
        parts.append(upstream_rows(version, shared).assign(**_OTHERS))
    if summary is not None:
        parts.append(_our_board_rows(summary, averaged, category, paper))
    rows = pd.concat(parts)
    limits = {kind: limits.get(JUDGED.get(category, "")) for kind, limits in THRESHOLDS.items()}
    rows["threshold"] = rows["aligned"].map(limits).astype(float)
    return rows


def _our_board_rows(
    summary: Summary, averaged: Summary | None, category: str, paper: "pd.DataFrame"
) -> "pd.DataFrame":
    ours = _our_rows(summary, JUDGED.get(category, "all"))
    ours[[*_LIMITED, *RANKS.values()]] = math.nan
    if averaged is not None:
        means = _our_rows(averaged, JUDGED.get(category, "all"))
        ours = ours.drop(columns=_LIMITED).merge(means[[*_MODEL, *_LIMITED]], how="left")
    for average, rank in RANKS.items():
        for i, row in ours[~ours["stand_in"] & ours[average].notna()].iterrows():
            rivals = paper.loc[paper["aligned"] == row["aligned"], average]
            ours.loc[i, rank] = 1 + (rivals > row[average]).sum()
    if category not in JUDGED:
        ours[[*_LIMITED[3:], *RANKS.values()]] = math.nan
        ours[["effective_length", "effective_set"]] = ""
    twice = ours["label"].duplicated(keep=False)
    place = " [" + ours["run"] + "/" + ours["model"] + "]"
    return ours.assign(model=ours["label"] + place.where(twice, ""), source=OURS, baseline=False)


def _our_rows(summary: Summary, category: str) -> "pd.DataFrame":
    """`summary.models` of a category with claimed lengths as text, and 4096, '4096_low',
    '4096_high', '4096_have' for each length."""
    lengths = summary.lengths[summary.lengths["category"] == category]
    rows = summary.models[summary.models["category"] == category]
    for value in ("score", "low", "high", "have"):
        wide = lengths.pivot(index=_MODEL, columns="length", values=value)
        rows = rows.join(wide if value == "score" else wide.add_suffix(f"_{value}"), on=_MODEL)
    claimed = ["" if math.isnan(n) else length_name(int(n)) for n in rows["claimed_length"]]
    return rows.assign(claimed_length=claimed).reset_index(drop=True)


def _sorted(rows: "pd.DataFrame", order: str) -> "pd.DataFrame":
    """Chat before base, the threshold's row first; Tables 10 and 11 know the plain average only."""
    keys = ["aligned", "baseline"]
    if order != "paper":
        keys.append("avg" if rows[order].isna().all() else order)
    return rows.sort_values(keys, ascending=False, kind="stable").reset_index(drop=True)


def _notes(rows: "pd.DataFrame", shared: tuple[int, ...]) -> list[str]:
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
        pairs = rows[["aligned", "threshold"]].drop_duplicates()
        used = ", ".join(f"{value} ({kind})" for kind, value in pairs.itertuples(index=False))
        lines.append(
            f"Underlined scores (bold in Markdown) reach the threshold, Llama2-7B at 4K: {used}. "
            "Ranks: the paper's models."
        )
    return lines


def _our_notes(
    rows: "pd.DataFrame", category: str, summary: Summary | None, notes: Iterable[str]
) -> list[str]:
    ours = rows[rows["source"] == OURS]
    if summary is None or ours.empty:
        return []
    lines = [f"Ours stand with their {100 * summary.confidence:g} % intervals."]
    if ours["stand_in"].any():
        names = ", ".join(ours.loc[ours["stand_in"], "model"])
        lines.append(f"{STAND_IN_NOTE[0].upper()}{STAND_IN_NOTE[1:]}: {names}.")
    cells = summary.cells
    cells = cells if category == "all" else cells[cells["category"] == category]
    return [*lines, *rest_notes(cells), *notes]


# --- leaderboard: text ----------------------------------------------------------------------------


def csv(board: Board) -> str:
    """Every column of a table's rows; lengths as 4K, 4K_low, 4K_high, 4K_have."""
    names = {
        f"{n}{end}": f"{length_name(n)}{end}"
        for n in board.lengths
        for end in ("", "_low", "_high", "_have")
    }
    return escape.csv_text(board.rows.rename(columns=lambda c: names.get(str(c), c)), "%.4f")


def markdown(board: Board) -> str:
    """A table in Markdown: scores that reach the threshold bold, ours with their intervals."""
    text = tables.render(_header(board), fields_of(board, "none"), "markdown", board.notes)
    return f"Table {board.number}: {board.title}\n\n{text}"


def latex(board: Board, bold: str = "ours") -> str:
    """A table in the paper's layout for booktabs: underlined from the threshold on, intervals and
    ranks as subscripts."""
    rows = fields_of(board, bold, compact=True)
    return tables.render(_header(board), rows, "latex", board.notes)


def _title(column: str | int) -> str:
    if isinstance(column, str):
        return _TITLES.get(column, column.capitalize())
    return length_name(column)


def _header(board: Board) -> list[str]:
    return [_title(column) for column in board.columns]


def fields_of(board: Board, bold: str, compact: bool = False) -> list[list[Field] | None]:
    """The fields of a table, None between groups (chat and base models, each with its threshold's
    row before it).

    `bold` is 'ours', 'best' (of each column among models of one alignment) or 'none'; intervals of
    ours stand behind a number as [low, high], `compact` as ± the wider side.
    """
    if bold not in BOLD:
        raise unknown("choice of what is bold", bold, BOLD)
    best_fields = best(board) if bold == "best" else set()
    rows: list[list[Field] | None] = []
    group = None
    for i, row in board.rows.iterrows():
        rows += [None] * (group not in (None, (row["aligned"], row["baseline"])))
        group = row["aligned"], row["baseline"]
        is_ours = row["source"] == OURS
        fields = [Field(row["model"], bold=is_ours and bold == "ours", small=_origin(row))]
        for column in board.columns[1:]:
            if column not in board.numbers:
                text, possible = _text(row, column), _text(row, "effective_set")
                if column == "effective_length":
                    text = f"{text} [{possible}]" if possible not in ("", text) else text or "-"
                fields.append(Field(text))
            elif math.isnan(row[column]):
                fields.append(Field(_text(row, f"{column}_have")))
            else:
                number = f"{row[column]:.1f}"
                reaches = column in board.lengths and float(number) >= row["threshold"]
                small = [_interval(row, column, compact)] * is_ours + _rank(row, column)
                fields.append(Field(number, reaches, (i, column) in best_fields, " ".join(small)))
        rows.append(fields)
    return rows


def best(board: Board) -> set[tuple[int, str | int]]:
    """The greatest value of each column, as printed, among chat and among base models: (row,
    column)."""
    models = board.rows[~board.rows["baseline"]]
    printed = models[board.numbers].astype(float).round(1)
    is_best = printed == printed.groupby(models["aligned"]).transform("max")
    return {(i, column) for column in board.numbers for i in models.index[is_best[column]]}


def _origin(row: "pd.Series[Any]") -> str:
    if row["source"] == OURS:
        return f"(ours, {row['run']}{', stand-in' * bool(row['stand_in'])})"
    if row["source"] in UPSTREAM:
        return f"({row['source']})"
    return "(base)" * (row["aligned"] == "base" and "base" not in row["model"])


def _interval(row: "pd.Series[Any]", column: str | int, compact: bool) -> str:
    value, low, high = (row[name] for name in (column, f"{column}_low", f"{column}_high"))
    return f"±{max(value - low, high - value):.1f}" if compact else f"[{low:.1f}, {high:.1f}]"


def _rank(row: "pd.Series[Any]", column: str | int) -> list[str]:
    """['(1st)'] beside a weighted average that has a rank."""
    rank = row[RANKS[str(column)]] if column in RANKS else math.nan
    return [] if math.isnan(rank) else [f"({tables.ordinal(int(rank))})"]


def _text(row: "pd.Series[Any]", column: str | int) -> str:
    value = row.get(column)
    return value if isinstance(value, str) else ""


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
_SCRIPT = r"""
window.rulerkitSort = function (head) {
  const table = head.closest("table"), body = table.tBodies[table.tBodies.length - 1];
  const column = head.cellIndex, down = head.getAttribute("aria-sort") !== "descending" && column > 0
    || head.getAttribute("aria-sort") === "ascending";
  const value = function (row) {  // of '98.5', '128K', '>128K', '<4K' or '>=32K, 64K not run': a number
    const first = row.cells[column].firstChild, text = first ? first.textContent.trim() : "";
    if (column === 0) return text;
    const number = text.match(/^([<>]?)=?(\d+\.\d|\d+)([KM]?)(?![\/\d])/);
    return number && number[2] * ({K: 1024, M: 1024 * 1024}[number[3]] || 1) + ({"<": -1, ">": 1}[number[1]] || 0);
  };
  const rows = Array.from(body.rows);
  rows.sort(function (a, b) {
    const x = value(a), y = value(b);
    if (x === null || y === null) return (x === null) - (y === null);  // what is missing comes last
    const order = column === 0 ? x.localeCompare(y) : x - y;
    return down ? -order : order;
  });
  rows.forEach(row => body.appendChild(row));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
};
"""


def page(boards: Iterable[Board], bold: str = "ours") -> Html:
    """All tables below each other, the first one open, sorted by a click on a column's head; ours
    shaded, `bold` is 'ours', 'best' (in a column) or 'none'."""
    parts = [f"<style>{_STYLE}</style><script>{_SCRIPT}</script>"]
    for i, board in enumerate(boards):
        heads = "".join(
            f'<th onclick="rulerkitSort(this)">{escape.html(title)}</th>'
            for title in _header(board)
        )
        bodies = {
            True: "",
            False: "",
        }  # the rows of the thresholds stay above those that are sorted
        rows = zip(
            board.rows["source"],
            board.rows["baseline"],
            filter(None, fields_of(board, bold)),
            strict=True,
        )
        for source, baseline, fields in rows:
            cells = "".join(f"<td>{tables.html_field(field)}</td>" for field in fields)
            kind = OURS if source == OURS else "paper"
            bodies[baseline] += f'<tr class="{kind}">{cells}</tr>'
        notes = "<br>".join(map(escape.html, board.notes))
        parts.append(
            f"<details{' open' * (not i)}><summary>Table {board.number}: "
            f'{escape.html(board.title)}</summary><table class="rulerkit-board"><thead><tr>{heads}'
            f"</tr></thead><tbody>{bodies[True]}</tbody><tbody>{bodies[False]}</tbody></table>"
            f'<p class="rulerkit-notes">{notes}</p></details>'
        )
    return Html(f'<div class="rulerkit-boards mathjax_ignore">{"".join(parts)}</div>\n')


def save(study: "Study", boards: Iterable[Board], bold: str = "ours") -> list[Path]:
    """Write all tables as CSV, Markdown, LaTeX and one sortable page."""
    boards, paths = list(boards), []
    for board in boards:
        texts = {".csv": csv(board), ".md": markdown(board), ".tex": latex(board, bold)}
        name = f"table_{board.number}"
        paths += [study.save_table(text, name, suffix) for suffix, text in texts.items()]
    return [*paths, study.save_table(page(boards, bold).text, "leaderboard", ".html")]

"""The table of models, as the paper's Table 3: claimed and effective length, score by length,
averages and ranks."""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from rulerkit.common.errors import check_known, check_type, counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.common.render import Field, render
from rulerkit.report.tables.notes import cell_notes, model_notes, names_of, number_range
from rulerkit.scoring.summary import AVERAGES, CATEGORIES, RANKS, Summary

TITLES: dict[str, str] = {
    "model": "Model",
    "claimed_length": "Claimed",
    "effective_length": "Effective",
    "avg": "Avg",
    "wavg_inc": "wAvg(inc)",
    "wavg_dec": "wAvg(dec)",
}
"""The heads of the columns of a table of models, but for those of the lengths."""
_FEWEST_RANKED = 3  # models


def table_text(
    summary: Summary,
    format: str = "text",
    category: str = "all",
    notes: Sequence[str] = (),
    in_order: bool = False,
) -> str:
    """The leaderboard of a category: claimed and effective length, score by length, averages and
    ranks, a row a model, the best one first or, `in_order`, as they stand in the summary.

    `format` is 'text', 'markdown', 'latex', 'html', or 'csv' or 'json': then it is the cells
    instead, whatever the category. `notes` are further lines to stand below; CSV and JSON have no
    place for any.
    """
    check_type(summary, Summary, "table_text", "a summary, such as `rk.summarize(...)`")
    if format in ("csv", "json"):
        return render(summary.cells, format)
    check_known("category of the scores", category, [*summary.models["category"].unique()])
    summary = summary.of(category)
    models = board_rows(summary, ["score", "have"])
    if not in_order:
        # as the paper sorts its Table 3
        models = models.sort_values("wavg_dec", ascending=False, kind="stable")

    # Two models need no ranks: the table shows which is better.
    alike = models.groupby(["aligned", "setup"])["model"].transform("nunique")
    for rank in RANKS.values():
        models[rank] = models[rank].where(alike >= _FEWEST_RANKED)

    tasks = models["tasks"].iloc[0]
    mean = f"Scores in percent: mean of {counted(tasks, 'task')}"
    if not models["whole"].all():
        mean += f" ({listed(summary.cells['task'].unique(), 6)})"
    complete = summary.cells.loc[summary.cells["complete"], "n"]
    if len(complete):
        mean += f", n = {counted(number_range(complete), 'example')} each"
    below = [
        f"{mean}; ± is the wider side of the 95 % interval.",
        *_effective_rules(models, category),
        *model_notes(models),
        *cell_notes(summary.cells),
        *notes,
    ]
    # What was run in another way is set apart, and not ranked against the others.
    models["group"] = models["setup"]
    # Of other tasks than those of the threshold no score is marked.
    models["threshold"] = models["threshold"].where(models["effective_length"] != "")
    lengths = map(length_name, summary.lengths["length"].unique())
    columns = ["claimed_length", "effective_length", *lengths, *AVERAGES]
    return models_text(models, columns, format, below)


def board_rows(summary: Summary, values: Sequence[str]) -> pd.DataFrame:
    """The models of a summary of one category with their names for `model`, claimed lengths as text
    and, by length, each of the values: '4K' for the score, '4K_low' ... for the others."""
    # One row a model: the values of all lengths side by side.
    wide = summary.lengths.pivot(index=["run", "model"], columns="length", values=list(values))
    columns: Any = wide.columns
    wide.columns = [
        length_name(n) if value == "score" else f"{length_name(n)}_{value}" for value, n in columns
    ]
    rows = summary.models.join(wide, on=["run", "model"])
    claimed = ["" if math.isnan(n) else length_name(int(n)) for n in rows["claimed_length"]]
    return rows.assign(model=names_of(rows), claimed_length=claimed).reset_index(drop=True)


def models_text(
    rows: pd.DataFrame, columns: Sequence[str], format: str, notes: Sequence[str]
) -> str:
    """A table of models: `rows` as `board_rows` gives them, with `group`: lines separate groups. An
    `origin` follows the name in small letters.

    Numbers whose limits are among the rows have their interval: ± the wider side.
    """
    # Groups, such as chat and base models, stand together.
    rows = pd.concat([group for _, group in rows.groupby("group", sort=False)])
    frame = pd.DataFrame(
        {
            TITLES.get(name, name): [_model_field(row, name) for _, row in rows.iterrows()]
            for name in ["model", *columns]
        }
    )
    return render(frame, format, notes, rows["group"])


def _model_field(row: "pd.Series[Any]", column: str) -> Field:
    value = row[column]
    if column == "effective_length":
        return Field(value or "-")
    if isinstance(value, str):
        return Field(value, small=row.get("origin", "") if column == "model" else "")

    # An incomplete score shows what there is of it.
    if math.isnan(value):
        has_none = column in AVERAGES and not row.get("baseline", False)
        have = row.get(f"{column}_have", "-" if has_none else "")
        return Field(have if isinstance(have, str) else "")

    # The interval and the rank follow in small letters.
    small = []
    low, high = (row.get(f"{column}_low", math.nan), row.get(f"{column}_high", math.nan))
    if not math.isnan(low):
        small.append(f"±{max(value - low, high - value):.1f}")
    rank = row.get(RANKS.get(column), math.nan)
    if not math.isnan(rank):
        # 1st, 2nd, 3rd, 4th, 11th ...
        ending = {1: "st", 2: "nd", 3: "rd"}.get(int(rank) % 10, "th")
        ending = "th" if int(rank) % 100 in (11, 12, 13) else ending
        small.append(f"({int(rank)}{ending})")

    # The paper compares scores as they are printed.
    number = f"{value:.1f}"
    reached = column not in TITLES and float(number) >= row["threshold"]
    return Field(number, reached, small=" ".join(small))


def _effective_rules(models: pd.DataFrame, category: str) -> list[str]:
    """How the effective lengths of a table are judged, what the intervals allow beside them, or why
    there are none."""
    # Only what rows of this table were judged by.
    judged = models[models["effective_length"] != ""]
    tasks = "the 13 tasks" if category == "all" else f"the {category} tasks"
    is_in_part = category in CATEGORIES and not models["whole"].all()
    if judged.empty:
        lacks_scores = is_in_part or models["threshold"].any()
        text = f"No effective length: a threshold is for a complete score on {tasks}."
        return [text] if lacks_scores else []

    source = judged["threshold_of"].iloc[0]
    text = f"Effective (and marked): the score is at least {thresholds_text(judged)}, {source}."
    others = judged[judged["effective_set"] != judged["effective_length"]]
    if len(others):
        allowed = others["model"] + " " + others["effective_set"]
        text += f" Within the intervals: {listed(allowed, 4, '; ')}."
    return [text]


def thresholds_text(models: pd.DataFrame) -> str:
    """'85.6 (chat), 79.4 (base)': the thresholds of the rows."""
    pairs = models[["threshold", "aligned"]].drop_duplicates()
    return ", ".join(f"{threshold} ({kind})" for threshold, kind in pairs.itertuples(index=False))

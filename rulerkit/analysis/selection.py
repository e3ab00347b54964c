"""Which scores a claim is about: `tidy` makes a table with a row per cell, `select` takes the cells
for which a condition is true."""

from collections.abc import Mapping
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from rulerkit.analysis.claim_schema import Claim
from rulerkit.common.errors import UserError, first_line, listed
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.generation.tasks import TASKS, THIRTEEN
from rulerkit.generation.tasks import task as make_task
from rulerkit.scoring.scores import COLUMNS, as_scores
from rulerkit.scoring.summary import CELL, model_rows, texts_words
from rulerkit.store.cells import is_enough
from rulerkit.store.places import check_columns, is_table


class Missing(Exception):  # noqa: N818 - it is no error
    """What a claim cannot be judged without, in words."""


def tidy(scores: Any, reference: str | None, trained: Mapping[str, Any]) -> pd.DataFrame:
    """A row per cell of scores with what claims select by, as the head of claims.yaml says; its
    mean `score`, whether it is `complete`, its `weight` in a mean, and `answers`, the rows of its
    examples."""
    frame: pd.DataFrame = scores
    # Rows of `score` that were read from a file lack empty texts; printed scores are other rows.
    if not is_table(scores) or set(COLUMNS) <= set(scores):
        frame = as_scores(scores, "claims")
    check_columns(frame, ["model", "task", "length", "score"], "claims")
    defaults: dict[str, Any] = {"run": "", "label": frame["model"], "aligned": "chat"}
    defaults |= {"group": np.nan, "claimed_length": np.nan}
    frame = frame.assign(**{name: defaults[name] for name in defaults if name not in frame})

    by_cell: Any = frame.groupby(CELL, sort=False)
    cells = frame.drop_duplicates(CELL).reset_index(drop=True)
    cells["score"] = by_cell["score"].mean().to_numpy()
    cells["answers"] = pd.Series([answers for _, answers in by_cell])
    cells["weight"], cells["complete"] = 1.0, cells["score"].notna()
    # `every` leaves one model, task or length after the other for `rows`
    cells["all"] = cells["each"] = True
    # of an adaptive run only what was answered was asked
    if {"wanted", "failed", "max_failures", "adaptive"} <= set(cells):
        asked = cells[["wanted", "failed", "max_failures"]].itertuples(index=False)
        have = by_cell["score"].count()
        enough = [is_enough(n, *of_cell) for n, of_cell in zip(have, asked, strict=True)]
        cells["complete"] = np.array(enough) | (cells["adaptive"] != "")

    # the model, its training length, and that of the model that others are held against
    in_several = cells.groupby("label")["run"].transform("nunique") > 1
    cells["who"] = cells["label"].mask(in_several, cells["label"] + " [" + cells["run"] + "]")
    cells["claimed"] = cells["trained"] = cells["claimed_length"].astype(float)
    for name, length in trained.items():
        cells.loc[model_rows(cells, name).index, "trained"] = float(parse_length(length))
    cells["role"], cells["reference"] = "", np.nan
    if reference is not None:
        of_model = model_rows(cells, reference)
        cells["role"] = np.where(cells.index.isin(of_model.index), "reference", "others")
        cells["reference"] = of_model["trained"].max()

    # the paper prints the mean of the thirteen under one name
    names, is_mean = cells["task"], cells["task"] == "thirteen"
    ours = names.where(names.isin(THIRTEEN))
    is_printed = is_mean.groupby(cells["who"]).transform("any")
    is_whole = ours.groupby(cells["who"]).transform("nunique") == len(THIRTEEN)
    cells["thirteen"] = is_mean.where(is_printed, ours.notna() & is_whole)
    cells["overall"] = cells["thirteen"] | ~(is_printed | is_whole)

    lengths = cells["length"]
    ends: dict[str, Any] = {"shortest": ("min", lengths), "longest": ("max", lengths)}
    ends["longest_claimed"] = ("max", lengths.where(lengths <= cells["claimed"]))
    ends["longest_within_reference"] = ("max", lengths.where(lengths <= cells["reference"]))
    ends["shortest_past_reference"] = ("min", lengths.where(lengths > cells["reference"]))
    for name, (which, among) in ends.items():
        cells[name] = lengths == among.groupby([cells["who"], names]).transform(which)
    cells.attrs = {"texts": texts_words(frame)}
    return cells


def hits(cells: pd.DataFrame, claim: Claim) -> pd.DataFrame:
    """The cells with other scores: whether the label of an answer is one that the claim is about,
    and only of the answers that it counts. A cell weighs as much as it has of them."""
    if "failure" not in cells:
        raise Missing("labels of the answers (`rk.answers_of(scores, labels=True)`)")
    counted = []
    for answers in cells["answers"]:
        if claim.among == ["wrong"]:
            answers = answers[answers["failure"] != "complete"]
        elif claim.among:
            answers = answers[answers["failure"].isin(claim.among)]
        counted.append(answers.assign(score=answers["failure"].isin(claim.answers) * 1.0))
    is_labelled = [answers["failure"].notna().all() for answers in cells["answers"]]
    weights = [float(len(answers)) for answers in counted]
    return cells.assign(answers=counted, weight=weights, complete=is_labelled)


def where(cells: pd.DataFrame, condition: str) -> pd.DataFrame:
    """The cells for which a condition is true, as of pandas' `query`; Missing where none is."""
    try:
        found = cells.query(condition, engine="python")
    except Exception as error:
        raise UserError(f"a claim has the condition {condition!r}: {first_line(error)}") from error
    if found.empty:
        raise Missing(f"scores where {condition}")
    return found


def select(cells: pd.DataFrame, claim: Claim, than: str | None = None) -> pd.DataFrame:
    """The cells of `rows`, or of `than` where it is given. Raises Missing where one of them is not
    there, or without all its answers: a mean over what happens to be there would be another one."""
    cells = where(cells[cells["each"]], claim.rows) if than is None else where(cells, than)
    models, tasks = cells["who"].unique(), cells["task"].unique()
    if len(cells) < len(models) * len(tasks) * cells["length"].nunique():
        raise Missing(f"{listed(models, 3)} at all lengths of {listed(tasks, 3)}")
    if not cells["complete"].all():
        first = cells[~cells["complete"]].iloc[0]
        raise Missing(f"answers to {first['task']} at {length_name(int(first['length']))}")
    if not cells["weight"].any():
        raise Missing("such answers")
    if claim.weights:
        ranks = cells["length"].rank(method="dense", ascending=claim.weights == "long")
        cells = cells.assign(weight=ranks)
    return cells


def setting(task: str, name: str) -> float:
    """A number of a task's settings, such as `num_keys`, by the task's name, NaN where it has none;
    of a haystack of needles the number of keys is infinite."""
    base, *changes = task.split("-")
    settings = dict(vars(make_task(base))) if base in TASKS else {}
    for change in changes:
        changed, _, value = change.rpartition("_")
        settings[changed] = value
    if name == "num_keys" and settings.get("haystack") == "needle":
        return inf
    return float(settings.get(name, "nan"))


def means_of(groups: Mapping[Any, pd.DataFrame]) -> Any:
    """The weights of the mean of each group of cells: a table with a column for each."""
    weights = {name: group["weight"] / group["weight"].sum() for name, group in groups.items()}
    return pd.DataFrame(weights).fillna(0.0)


def means_along(cells: pd.DataFrame, claim: Claim, than: str | None = None, fewest: int = 2) -> Any:
    """The weights of the mean at each length, training length or setting, from the lowest on."""
    rows, along = select(cells, claim, than), claim.along
    is_length = along in rows
    values = rows[along] if is_length else rows["task"].map(lambda task: setting(task, along))
    groups = {}
    for value, group in rows.groupby(values):
        groups[length_name(int(value)) if is_length else f"{along} {value:g}"] = group
    if len(groups) < fewest:
        raise Missing(f"{fewest} values of {along}")
    return means_of(groups)

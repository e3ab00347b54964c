"""The rows that a claim is about: `tidy` makes any table of scores ready, `select` takes the rows
of some models, tasks and lengths from it, as `data/paper/claims.yaml` names them."""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import pandas as pd

from rulerkit.common.errors import UserError, listed
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.generation.tasks import TASKS, THIRTEEN
from rulerkit.generation.tasks import task as make_task
from rulerkit.scoring.scores import as_scores
from rulerkit.scoring.summary import CELL, merge_repetitions, model_rows
from rulerkit.store.cells import is_enough
from rulerkit.store.places import check_columns, is_table

Where = Mapping[str, Any]
"""Models, tasks, lengths and weights, as in `claims.yaml`."""
_LENGTHS = re.compile(r"(shortest|longest|ends)? ?(?:(at|up to|past) (\w+))?")
_OWN_LENGTHS = {
    "claimed": "the length that it claims",
    "trained": "its training length",
    "reference": "a model as `reference`",
}
"""The lengths that a model has, and what is missing where nobody knows them."""


class Missing(Exception):  # noqa: N818 - it is no error
    """What a claim cannot be judged without, in words."""


def tidy(scores: Any, reference: str | None, trained: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of scores with what claims select by: a name for each model (`who`), its lengths
    (`claimed`, `trained`, `reference`), `is_reference`, and `complete`, whether all answers of the
    cell are there."""
    frame = scores if is_table(scores) else as_scores(scores, "claims")
    check_columns(frame, ["model", "task", "length", "score"], "claims")
    if "digest" in frame:
        frame = merge_repetitions(frame)
    if "detail" in frame and "name" in frame:  # rows of `failures.label`
        frame = frame.rename(columns={"label": "failure", "name": "label"})
    frame = frame.reset_index(drop=True)
    columns = {"run": "", "label": frame["model"], "aligned": "chat", "claimed_length": np.nan}
    frame = frame.assign(**{name: columns[name] for name in columns if name not in frame})

    in_several = frame.groupby("label")["run"].transform("nunique") > 1
    who = frame["label"].mask(in_several, frame["label"] + " [" + frame["run"] + "]")
    claimed = frame["claimed_length"].astype(float)
    frame = frame.assign(
        who=who, claimed=claimed, trained=claimed, reference=np.nan, is_reference=False
    )
    for name, length in trained.items():
        frame.loc[model_rows(frame, name).index, "trained"] = float(parse_length(length))
    if reference is not None:
        of_model = model_rows(frame, reference)
        frame.loc[of_model.index, "is_reference"] = True
        frame["reference"] = of_model["trained"].max()

    # of an adaptive run only what was answered was asked
    frame["complete"] = frame["score"].notna()
    if {"wanted", "failed", "max_failures", "adaptive"} <= set(frame):
        answered = frame.groupby(CELL)["score"].transform("count")
        asked = [frame[name] for name in ("wanted", "failed", "max_failures")]
        enough = [is_enough(*of_cell) for of_cell in zip(answered, *asked, strict=True)]
        frame["complete"] = np.array(enough) | (frame["adaptive"] != "")
    return frame


def select(frame: pd.DataFrame, where: Where, claim: Mapping[str, Any] = {}) -> pd.DataFrame:
    """The rows of some models, tasks and lengths, with a column `weight` of their cells; where the
    claim is about `answers`, the score of a row is whether its label is one of these. Raises
    Missing where a model, a task, a length or an answer is not there."""
    rows = of_models(frame, where.get("models"))
    rows = rows[rows["task"].isin(tasks_of(rows, where.get("tasks")))]
    rows = _at_lengths(rows, where.get("lengths", ""))
    if "answers" in claim:
        return _labelled(rows, claim["answers"], claim.get("among"))

    # a mean over what happens to be there would be another one
    cells = rows.drop_duplicates(CELL)
    for who, of_model in cells.groupby("who", sort=False):
        tasks, lengths = of_model["task"].unique(), of_model["length"].unique()
        if len(of_model) < len(tasks) * len(lengths):
            raise Missing(f"{who} at all lengths of {listed(tasks, 3)}")
    lacking = cells[~cells["complete"]]
    if len(lacking):
        _, first = next(lacking.iterrows())
        raise Missing(f"answers to {first['task']} at {length_name(first['length'])}")

    weight = pd.Series(1.0, rows.index)
    if "weights" in where:
        weight = rows["length"].rank(method="dense", ascending=where["weights"] == "long")
    return rows.assign(weight=weight)


def of_models(rows: pd.DataFrame, spec: Any) -> pd.DataFrame:
    """The rows of the models that `models` of a claim names."""
    names = spec.get("but", []) if isinstance(spec, Mapping) else spec
    names = [names] if isinstance(names, str) else names or []
    chosen = rows["model"].isin(names) | rows["label"].isin(names) | rows["who"].isin(names)
    if spec is None:
        chosen |= True
    elif spec in ("reference", "others"):
        if not rows["is_reference"].any():
            raise Missing(_OWN_LENGTHS["reference"])
        chosen = rows["is_reference"] == (spec == "reference")
    elif isinstance(spec, Mapping):
        chosen = ~chosen
        if "claiming" in spec:
            # a model of which nobody knows what it claims is not left out
            chosen &= ~(rows["claimed"] < parse_length(spec["claiming"]))
    if not chosen.any():
        is_named = not isinstance(spec, Mapping) and spec not in ("others", "reference")
        raise Missing(f"the model {' or '.join(names)}" if names and is_named else "another model")
    return rows[chosen]


def tasks_of(rows: pd.DataFrame, spec: Any) -> list[str]:
    """The names of the tasks that `tasks` of a claim names."""
    there = list(rows["task"].unique())
    if isinstance(spec, Mapping):
        found = [task for task in there if _matches(task, spec["any of"])]
        found = [task for task in found if not _matches(task, spec.get("but", ()))]
        if not found:
            raise Missing(f"any task of {', '.join(spec['any of'])}")
        return found
    is_whole = "thirteen" in there or set(THIRTEEN) <= set(there)
    if spec is None:
        spec = "thirteen" if is_whole else there
    # the paper prints the mean of the thirteen under one name
    names = THIRTEEN if spec == "thirteen" and spec not in there else spec
    names = [names] if isinstance(names, str) else names
    if lacking := [name for name in names if name not in there]:
        raise Missing(f"the task {listed(lacking, 3)}")
    return list(names)


def _matches(task: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(task, pattern) for pattern in patterns)


def _at_lengths(rows: pd.DataFrame, spec: str) -> pd.DataFrame:
    match = _LENGTHS.fullmatch(spec)
    if not match:
        raise UserError(
            f"a claim has the lengths {spec!r}: expected shortest, longest or ends, at, up to or "
            "past a length, or both, such as 'longest up to 32K'"
        )
    end, side, name = match.groups()
    if side:
        limit: Any = rows[name] if name in _OWN_LENGTHS else float(parse_length(name))
        if name in _OWN_LENGTHS and limit.isna().any():
            raise Missing(_OWN_LENGTHS[name])
        lengths = rows["length"]
        rows = rows[
            {"at": lengths == limit, "up to": lengths <= limit, "past": lengths > limit}[side]
        ]
        if rows.empty:
            raise Missing(f"a length {side} {name}")
    of_model = rows.groupby("who")["length"]
    shortest, longest = of_model.transform("min"), of_model.transform("max")
    is_end = {"shortest": rows["length"] == shortest, "longest": rows["length"] == longest}
    is_end["ends"] = is_end["shortest"] | is_end["longest"]
    return rows[is_end[end]] if end else rows


def _labelled(rows: pd.DataFrame, labels: Sequence[str], among: Any) -> pd.DataFrame:
    if "failure" not in rows:
        raise Missing("labels of the answers (`rk.failures.label`)")
    if among is not None:
        is_wrong = rows["failure"] != "complete"
        rows = rows[is_wrong if among == "wrong" else rows["failure"].isin(among)]
    if rows.empty:
        raise Missing("such answers")
    # all answers weigh the same, so a cell as much as it has of them
    hits = rows["failure"].isin(labels).astype(float)
    return rows.assign(score=hits, weight=rows.groupby(CELL)["task"].transform("size"))


def setting(task: str, name: str) -> float:
    """A number of a task's settings, such as `num_keys`, by the task's name; of a haystack of
    needles the number of keys is infinite."""
    base, *changes = task.split("-")
    settings = vars(make_task(base)) if base in TASKS else {}
    for change in changes:
        if change.startswith(f"{name}_"):
            return float(change.removeprefix(f"{name}_"))
    if name == "num_keys" and settings.get("haystack") == "needle":
        return float("inf")
    return float(settings[name])

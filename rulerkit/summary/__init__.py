"""Tables of scores: each cell, each length, each model, with intervals, and nothing averaged over what is missing.

Scores are multiplied by 100 here, and only here: rows hold 0..1, everything below holds percent.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit import scoring
from rulerkit.errors import UserError
from rulerkit.lengths import THRESHOLDS, effective_length, effective_set
from rulerkit.summary.intervals import length_correlations, mean_interval, score_interval

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

CATEGORIES = ("all", *scoring.CATEGORIES)
ABOUT = ["run", "model", "label", "aligned", "claimed_length"]
KEYS = ["run", "model"]
AVERAGES = ("avg", "wavg_inc", "wavg_dec")
COUNTS = ["empty", "cut_off", "cut_thought", "refused"]
PROTOCOL = ["engine", "seed", "prompt_version", "tokenizer", "template", "note"]


@dataclass(frozen=True)
class Summary:
    """Four tidy tables of percents.

    `cells`: a row per run, model, task and length. Columns run, model, label, aligned, claimed_length, task, category,
    length, score, low, high, strict, exact, n, wanted, empty, cut_off, cut_thought, refused (numbers of examples),
    stand_in, complete, have ('300/500' where incomplete, else ''), engine, seed, prompt_version, tokenizer, template,
    note. Where a cell is incomplete its scores are NaN.
    `lengths`: a row per model, category ('all', 'niah', 'vt', 'aggregation', 'qa') and length: score (mean over the
    category's tasks), low, high, tasks, n (smallest of its cells), complete, have, stand_in.
    `models`: a row per model and category: tasks, avg, avg_low, avg_high, wavg_inc, wavg_inc_low, wavg_inc_high,
    wavg_dec, wavg_dec_low, wavg_dec_high, effective_length and effective_set (text, '' where the tasks are not the
    benchmark's), threshold, rank_inc, rank_dec (among models of the same alignment), complete, stand_in.
    """

    cells: "pd.DataFrame"
    lengths: "pd.DataFrame"
    models: "pd.DataFrame"
    confidence: float


class Averages(NamedTuple):
    """Over lengths from the shortest to the longest: plain, weights 1, 2, 3, ... and weights ..., 3, 2, 1."""

    avg: float
    wavg_inc: float
    wavg_dec: float


def length_weights(num_lengths: int) -> "list[Floats]":
    """The weights of the three averages, each adding up to 1 (for six lengths: 1..6 over 21, Section 4)."""
    rising = np.arange(1, num_lengths + 1) / (num_lengths * (num_lengths + 1) / 2)
    return [np.full(num_lengths, 1 / num_lengths), rising, rising[::-1]]


def averages(scores: Sequence[float]) -> Averages:
    """The three averages of scores in the order of their lengths; NaN as soon as one is missing."""
    return Averages(*(float(np.dot(weights, scores)) for weights in length_weights(len(scores))))


def ranks(values: Iterable[float]) -> list[float]:
    """1 for the greatest value, ties share the better rank, NaN for NaN."""
    rounded = np.round(np.asarray(list(values), dtype=float), 9)
    return [float("nan") if np.isnan(v) else 1.0 + int((rounded > v).sum()) for v in rounded]


def summarize(
    scores: "pd.DataFrame",
    tasks: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    num_examples: int | None = None,
    confidence: float = 0.95,
) -> Summary:
    """Summarize the rows of `score` over a grid of tasks, lengths and examples.

    Without `tasks`, means are over the benchmark's thirteen and other tasks stand in `cells` only; with them, over
    those given. `lengths` are those given, else all that any model has; `num_examples` the first so many, else as
    many as each cell was to have. What the grid lacks is shown as missing and no mean is taken over the rest.
    Raises UserError if there is nothing to summarize.
    """
    if num_examples is not None:
        scores = scores[scores["index"] < num_examples]
    if lengths is not None:
        scores = scores[scores["length"].isin(lengths)]
    if tasks is not None:
        scores = scores[scores["task"].isin(tasks)]
    if scores.empty:
        raise UserError(
            "nothing to summarize: no scored example is among the tasks, lengths and examples asked for; "
            "evaluate first, or ask for what the predictions hold"
        )
    grid = sorted(set(lengths) if lengths is not None else {int(n) for n in scores["length"].unique()})
    cells = _cells(scores, tasks, grid, num_examples, confidence)
    found = cells.drop_duplicates("task").set_index("task")["category"].to_dict()
    asked = {task: found.get(task) or scoring.category(task) for task in (tasks or scoring.THIRTEEN)}
    length_rows: list[dict[str, Any]] = []
    model_rows: list[dict[str, Any]] = []
    for key, own in scores.groupby(KEYS, sort=False):
        own_cells = cells[(cells["run"] == key[0]) & (cells["model"] == key[1])]
        blocks = {task: _block(own[own["task"] == task], grid) for task in asked}
        for category in CATEGORIES:
            members = [task for task, kind in asked.items() if category in ("all", kind)]
            if any(task in found for task in members):
                group = _Group(own_cells, {task: blocks[task] for task in members}, category, grid, confidence)
                length_rows += group.length_rows()
                model_rows.append(group.model_row())
    return Summary(cells, _frame(length_rows), _ranked(_frame(model_rows)), confidence)


def _frame(rows: list[dict[str, Any]]) -> "pd.DataFrame":
    import pandas as pd

    return pd.DataFrame(rows)


def _cells(
    scores: "pd.DataFrame",
    tasks: Sequence[str] | None,
    grid: list[int],
    num_examples: int | None,
    confidence: float,
) -> "pd.DataFrame":
    """Each model's cells over the grid, those that were never run among them."""
    present = list(scores["task"].unique())
    order = list(tasks) if tasks is not None else [t for t in scoring.THIRTEEN if t in present]
    order += [task for task in present if task not in order]
    kinds = scores.drop_duplicates("task").set_index("task")["category"].to_dict()
    rows = []
    for _, own in scores.groupby(KEYS, sort=False):
        about = {name: own[name].iloc[0] for name in ABOUT}
        usual = num_examples or int(own["wanted"].max())
        groups = dict(iter(own.groupby(["task", "length"])))
        for task in order:
            for length in grid:
                group = groups.get((task, length), own.iloc[:0])
                wanted = num_examples or (int(group["wanted"].max()) if len(group) else usual)
                kind = kinds.get(task) or scoring.category(task)
                place = {"task": task, "category": kind, "length": length}
                rows.append({**about, **place, **_cell(group, wanted, confidence)})
    return _frame(rows)


def _cell(group: "pd.DataFrame", wanted: int, confidence: float) -> dict[str, Any]:
    n = int(group["index"].nunique())
    complete = n >= wanted
    low, high = score_interval(group["score"].to_numpy(dtype=float), confidence)
    values = {"score": group["score"].mean(), "low": low, "high": high}
    values |= {name: group[name].mean() for name in ("strict", "exact")}
    return {
        **{name: 100 * float(value) if complete else float("nan") for name, value in values.items()},
        "n": n,
        "wanted": wanted,
        **{name: int(group[name].sum()) for name in COUNTS},
        "stand_in": bool(group["stand_in"].any()),
        "complete": complete,
        "have": "" if complete else f"{n}/{wanted}",
        **{name: group[name].iloc[0] if n else None for name in PROTOCOL},
    }


def _block(own: "pd.DataFrame", grid: list[int]) -> "Floats":
    """Correlations (lengths, lengths) of one task's scores, over the examples that all of its lengths have."""
    found = np.eye(len(grid))
    paired = own.pivot_table(index="index", columns="length", values="score").reindex(columns=grid)
    some = [i for i, length in enumerate(grid) if paired[length].notna().any()]
    values = paired.iloc[:, some].dropna().to_numpy(dtype=float)
    if len(values) >= 3:
        found[np.ix_(some, some)] = length_correlations(values)
    return found


class _Group:
    """One model's tasks of one category."""

    def __init__(
        self,
        cells: "pd.DataFrame",
        correlations: "dict[str, Floats]",
        category: str,
        grid: list[int],
        confidence: float,
    ) -> None:
        first = cells.iloc[0]
        self.tasks, self.category, self.grid, self.confidence = list(correlations), category, grid, confidence
        self.cells = cells[cells["task"].isin(self.tasks)]
        self.correlations = np.stack(list(correlations.values()))
        self.about = {**{name: first[name] for name in ABOUT}, "category": category, "tasks": len(self.tasks)}
        self.stand_in = bool(self.cells["stand_in"].any())
        self.means = self._table("score") / 100
        self.counts = np.nan_to_num(self._table("n"))
        self.complete = np.asarray([not np.isnan(column).any() for column in self.means.T])
        self.scores = [100 * float(mean) for mean in self.means.mean(axis=0)]
        self.limits = [self._interval(weights) for weights in np.eye(len(grid))]

    def _table(self, column: str) -> "Floats":
        """A column of the cells, tasks x lengths; NaN for a task that no model was asked."""
        values = {
            (t, n): v for t, n, v in zip(self.cells["task"], self.cells["length"], self.cells[column], strict=True)
        }
        return np.asarray([[float(values.get((t, n), "nan")) for n in self.grid] for t in self.tasks])

    def _interval(self, weights: "Floats") -> tuple[float, float]:
        """Percent; NaN where a length of some weight is incomplete."""
        used = weights > 0
        if not self.complete[used].all():
            return float("nan"), float("nan")
        both = np.broadcast_to(weights[used] / len(self.tasks), (len(self.tasks), int(used.sum())))
        between = self.correlations[:, used][:, :, used]
        low, high = mean_interval(self.means[:, used], self.counts[:, used], both, between, self.confidence)
        return 100 * low, 100 * high

    def length_rows(self) -> list[dict[str, Any]]:
        return [
            {
                **self.about,
                "length": length,
                "score": self.scores[i],
                "low": self.limits[i][0],
                "high": self.limits[i][1],
                "n": int(self.counts[:, i].min()),
                "complete": bool(self.complete[i]),
                "have": self._have(i),
                "stand_in": self.stand_in,
            }
            for i, length in enumerate(self.grid)
        ]

    def _have(self, i: int) -> str:
        """'' where complete; '300/500' where all tasks were begun, else '12/13 tasks'."""
        if self.complete[i]:
            return ""
        column = self.cells[self.cells["length"] == self.grid[i]]
        begun = int((self.counts[:, i] > 0).sum())
        if begun < len(self.tasks):
            return f"{begun}/{len(self.tasks)} tasks"
        worst = column.assign(share=column["n"] / column["wanted"]).sort_values("share").iloc[0]
        return str(worst["have"])

    def model_row(self) -> dict[str, Any]:
        values: dict[str, float] = {}
        for name, value, weights in zip(
            Averages._fields, averages(self.scores), length_weights(len(self.grid)), strict=True
        ):
            low, high = self._interval(np.asarray(weights))
            values |= {name: value, f"{name}_low": low, f"{name}_high": high}
        threshold = THRESHOLDS[self.about["aligned"]][self.category]
        return {
            **self.about,
            **values,
            **self._effective(threshold),
            "threshold": threshold,
            "complete": bool(self.complete.all()),
            "stand_in": self.stand_in,
        }

    def _effective(self, threshold: float) -> dict[str, str]:
        """Thresholds belong to the benchmark's own tasks: for any other set of tasks there is no effective length."""
        whole = [t for t in scoring.THIRTEEN if self.category in ("all", scoring.category(t))]
        if sorted(self.tasks) != sorted(whole) or not self.complete.any():
            return {"effective_length": "", "effective_set": ""}
        claimed = self.about["claimed_length"]
        begun = [length for i, length in enumerate(self.grid) if self.counts[:, i].any()]
        scores, limits = dict(zip(self.grid, self.scores, strict=True)), dict(zip(self.grid, self.limits, strict=True))
        return {
            "effective_length": effective_length(scores, threshold, claimed, begun),
            "effective_set": effective_set(limits, threshold, claimed),
        }


def _ranked(models: "pd.DataFrame") -> "pd.DataFrame":
    """Ranks within each category, among chat and among base models apart, as the paper counts them."""
    for average in ("inc", "dec"):
        values = models.groupby(["category", "aligned"])[f"wavg_{average}"]
        models[f"rank_{average}"] = values.transform(lambda column: ranks(column))
    return models


def summary_lengths(summary: Summary) -> list[int]:
    """The lengths of a summary, shortest first."""
    return sorted(int(length) for length in summary.cells["length"].unique())

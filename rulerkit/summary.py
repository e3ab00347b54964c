"""Tables of scores: each cell, each length, each model, with intervals, and nothing averaged over
what is missing.

Scores are multiplied by 100 here, and only here: rows hold 0..1, everything below holds percent.
Every interval is `statistics.weighted_sum`'s.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from rulerkit import scoring
from rulerkit.errors import UserError
from rulerkit.lengths import THRESHOLDS, effective_length, effective_set
from rulerkit.statistics import Estimate, WeightedCell, weighted_sum
from rulerkit.store import allowed_failures, failure_counts

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
FAILURES = ["failed", "failed_refused", "max_failures"]
_CELL_COLUMNS = ["score", "strict", "exact", "floor", "wanted", *COUNTS, "stand_in", *PROTOCOL]
_NAMED = 5  # cells that a note names
MISSING = Estimate(*(3 * [float("nan")]))
Key = tuple[str, int]


@dataclass(frozen=True)
class Summary:
    """Four tidy tables of percents.

    `cells`: a row per run, model, task and length. Columns run, model, label, aligned,
    claimed_length, task, category, length, score, low, high, strict, exact, floor (the better of
    two answers without reading; NaN where it was not recorded), n, wanted, empty, cut_off,
    cut_thought, refused (numbers of answers), stand_in, complete, failed (number of requests), have
    ('300/500' where incomplete, else ''), rest ('498/500, 2 failed' where the mean is over the
    rest, as `max_failures` allows, else ''), engine, seed, prompt_version, tokenizer, template,
    note. Where a cell is incomplete its scores are NaN. `lengths`: a row per model, category
    ('all', 'niah', 'vt', 'aggregation', 'qa') and length: score (mean over the category's tasks),
    low, high, tasks, n (smallest of its cells), complete, have, stand_in. `models`: a row per model
    and category: tasks, avg, avg_low, avg_high, wavg_inc, wavg_inc_low, wavg_inc_high, wavg_dec,
    wavg_dec_low, wavg_dec_high, effective_length and effective_set (text, '' where the tasks are
    not the benchmark's), threshold, rank_inc, rank_dec (among models of the same alignment),
    complete, stand_in.
    """

    cells: "pd.DataFrame"
    lengths: "pd.DataFrame"
    models: "pd.DataFrame"
    confidence: float


class Averages(NamedTuple):
    """Over lengths from the shortest to the longest: plain, weights 1, 2, 3, ... and weights ...,
    3, 2, 1."""

    avg: float
    wavg_inc: float
    wavg_dec: float


def length_weights(num_lengths: int) -> "list[Floats]":
    """The weights of the three averages, each adding up to 1 (for six lengths: 1..6 over 21,
    Section 4)."""
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

    Without `tasks`, means are over the benchmark's thirteen and other tasks stand in `cells` only;
    with them, over those given. `lengths` are those given, else all that any model has;
    `num_examples` the first so many, else as many as each cell was to have. What the grid lacks is
    shown as missing and no mean is taken over the rest. Cells without a row show how many requests
    failed, if `scores.attrs["empty_cells"]` has them, as `score` sets it. A model that answered
    several times (`repeat`) is one model: see `merge_repetitions`. Raises UserError if there is
    nothing to summarize.
    """
    if num_examples is not None:
        scores = scores[scores["index"] < num_examples]
    if lengths is not None:
        scores = scores[scores["length"].isin(lengths)]
    if tasks is not None:
        scores = scores[scores["task"].isin(tasks)]
    failed_cells = _failed_cells(scores)
    if scores.empty:
        failed_requests = sum(cell["failed"] for cell in failed_cells)
        also = (
            f" ({failed_requests} requests failed: see *.failures.jsonl)" if failed_requests else ""
        )
        raise UserError(
            "nothing to summarize: no scored example is among the tasks, lengths and examples "
            f"asked for{also}; "
            "evaluate first, or ask for what the predictions hold"
        )
    scores = merge_repetitions(scores)
    grid = sorted(
        set(lengths) if lengths is not None else {int(n) for n in scores["length"].unique()}
    )
    categories = dict(
        scores[["task", "category"]].drop_duplicates("task").itertuples(index=False, name=None)
    )
    averaged = list(dict.fromkeys(tasks or scoring.THIRTEEN))
    shown = (
        list(tasks)
        if tasks is not None
        else [task for task in scoring.THIRTEEN if task in categories]
    )
    shown += [task for task in categories if task not in shown]
    present = set(categories)
    categories |= {
        task: scoring.category(task) for task in [*averaged, *shown] if task not in present
    }
    cells: list[dict[str, Any]] = []
    means: list[dict[str, Any]] = []
    models: list[dict[str, Any]] = []
    for (run, name), rows in scores.groupby(KEYS, sort=False):
        failed = {
            (c["task"], c["length"]): c
            for c in failed_cells
            if c["model"] == name and c["run"] == run
        }
        model = _Model(
            rows, failed, {task: categories[task] for task in shown}, grid, num_examples, confidence
        )
        cells += model.rows.values()
        for category in CATEGORIES:
            members = [task for task in averaged if category in ("all", categories[task])]
            if present & set(members):
                group = _Group(model, members, category)
                means += group.length_rows
                models.append(group.model_row())
    import pandas as pd

    return Summary(
        pd.DataFrame(cells), pd.DataFrame(means), _ranked(pd.DataFrame(models)), confidence
    )


def _failed_cells(scores: "pd.DataFrame") -> list[dict[str, Any]]:
    """The cells without a row whose requests failed; those of a repetition belong to the run that
    it repeats."""
    models = set(scores[KEYS].drop_duplicates().itertuples(index=False, name=None))
    found = []
    for cell in scores.attrs.get("empty_cells", ()):
        run = base_run(cell["run"])
        found += (
            [{**cell, "run": run if (run, cell["model"]) in models else cell["run"]}]
            if cell["failed"]
            else []
        )
    return found


def merge_repetitions(scores: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of `score` with the runs `R-repeat2`, `R-repeat3`, ... of a model merged into its
    run `R`.

    An example's score is the mean over its repetitions, so that an interval over examples holds
    both kinds of noise: that of the examples and that of the repetitions. `empty`, `cut_off`,
    `cut_thought` and `refused` are added up. An example without an answer in one of the repetitions
    is left out.
    """
    names = set(scores[KEYS].drop_duplicates().itertuples(index=False, name=None))
    first = {(run, model): base_run(run) for run, model in names}
    merged = {
        name: run for name, run in first.items() if run != name[0] and (run, name[1]) in names
    }
    if not merged:
        return scores
    scores = scores.assign(repetition=scores["run"])
    for (repetition, model), run in merged.items():
        scores.loc[(scores["repetition"] == repetition) & (scores["model"] == model), "run"] = run
    repetitions = scores.groupby(KEYS)["repetition"].transform("nunique")
    keys = [*KEYS, "task", "length", "index"]
    rules = dict.fromkeys(scores.columns.difference([*keys, "repetition"]), "first")
    rules |= dict.fromkeys(["score", "strict", "precision", "exact"], "mean") | dict.fromkeys(
        COUNTS, "sum"
    )
    answers = scores.groupby(keys)["repetition"].transform("size")
    return scores[answers == repetitions].groupby(keys, sort=False, as_index=False).agg(rules)


def base_run(run: str) -> str:
    """The run that a repetition `RUN-repeat2` belongs to; any other run itself."""
    return re.sub(r"-repeat\d+$", "", run)


def weighted_cells(scores: "pd.DataFrame") -> dict[Key, WeightedCell]:
    """One model's cells by task and length, ready for `weighted_sum`, each of weight 1.

    A column `group`, such as the article of a question, says which examples are drawn together.
    """
    positions = scores.groupby(["task", "length"], sort=False).indices
    index, values = scores["index"].to_numpy(dtype=int), scores["score"].to_numpy(dtype=float)
    groups = (
        scores["group"].factorize()[0]
        if "group" in scores and scores["group"].notna().any()
        else None
    )
    cells = {}
    for key, rows in positions.items():
        task, length = cast(Key, key)
        size = int(index[rows].max()) + 1
        by_index = np.full(size, np.nan)
        by_index[index[rows]] = values[rows]
        numbers = None
        if groups is not None:
            numbers = np.arange(size) + len(
                scores
            )  # an example without a group is a group of its own
            numbers[index[rows]] = np.where(groups[rows] >= 0, groups[rows], numbers[index[rows]])
        cells[task, length] = WeightedCell(1.0, task, by_index, numbers)
    return cells


class _Model:
    """One model over the grid: `rows` of the table of cells, and the examples' scores of those
    cells that have some."""

    def __init__(
        self,
        scores: "pd.DataFrame",
        failed_cells: Mapping[Key, dict[str, Any]],
        categories: Mapping[str, str],
        grid: list[int],
        num_examples: int | None,
        confidence: float,
    ) -> None:
        self.about: dict[str, Any] = {name: scores[name].iloc[0] for name in ABOUT}
        self.grid, self.confidence = grid, confidence
        self.cells = weighted_cells(scores)
        self.rows: dict[Key, dict[str, Any]] = {}
        columns = {name: scores[name].to_numpy() for name in _CELL_COLUMNS}
        columns |= {
            name: scores[name].to_numpy() if name in scores else np.zeros(len(scores))
            for name in FAILURES
        }
        positions = scores.groupby(["task", "length"], sort=False).indices
        usual = num_examples or int(scores["wanted"].max())
        for task, length in product(categories, grid):
            examples = {
                name: column[positions.get((task, length), [])] for name, column in columns.items()
            }
            if not len(examples["score"]) and (failed := failed_cells.get((task, length))):
                examples |= {name: np.array([failed[name]]) for name in ["wanted", *FAILURES]}
            wanted = num_examples or examples["wanted"].max(initial=0) or usual
            about = {**self.about, "task": task, "category": categories[task], "length": length}
            self.rows[task, length] = about | self._cell(
                self.cells.get((task, length)), examples, int(wanted)
            )

    def _cell(
        self, cell: WeightedCell | None, examples: "dict[str, NDArray[Any]]", wanted: int
    ) -> dict[str, Any]:
        n = len(examples["score"])
        failed, refused, allowed = (examples[name].max(initial=0) for name in FAILURES)
        have = f"{n}/{wanted}" + (
            f", {failure_counts(int(failed), int(refused))}" if failed else ""
        )
        rest = 0 < wanted - n <= min(failed, allowed_failures(allowed, wanted))
        complete = cell is not None and (n >= wanted or bool(rest))
        score = weighted_sum([cell], self.confidence).percent() if cell and complete else MISSING
        judged = {
            name: 100 * float(examples[name].mean()) if complete else np.nan
            for name in ("strict", "exact")
        }
        return {
            "score": score.value,
            "low": score.low,
            "high": score.high,
            **judged,
            "n": n,
            "floor": 100 * float(examples["floor"][0]) if n else np.nan,
            "wanted": wanted,
            **{name: int(examples[name].sum()) for name in COUNTS},
            "stand_in": bool(examples["stand_in"].any()),
            "complete": complete,
            "failed": int(failed),
            "have": "" if complete else have,
            "rest": have if complete and rest else "",
            **{name: examples[name][0] if n else None for name in PROTOCOL},
        }


class _Group:
    """One model's tasks of one category."""

    def __init__(self, model: _Model, tasks: list[str], category: str) -> None:
        self.model, self.tasks, self.category, self.grid = model, tasks, category, model.grid
        rows = [
            model.rows[task, length]
            for task, length in product(tasks, model.grid)
            if (task, length) in model.rows
        ]
        self.about = {**model.about, "category": category, "tasks": len(tasks)}
        self.stand_in = any(row["stand_in"] for row in rows)
        self.begun = [n for n in self.grid if any(row["n"] and row["length"] == n for row in rows)]
        self.length_rows = [self._length_row(length) for length in self.grid]

    def _column(self, length: int) -> list[dict[str, Any]]:
        """The cells of a length; without a row is a task that no model was asked."""
        cells = [(task, length) for task in self.tasks]
        return [self.model.rows[cell] for cell in cells if cell in self.model.rows]

    def _mean(self, weights: Mapping[int, float]) -> Estimate:
        """The mean over the tasks, the lengths weighted; NaN where a cell is incomplete."""
        cells = [
            (
                weight / len(self.tasks),
                self.model.rows.get((task, length)),
                self.model.cells.get((task, length)),
            )
            for length, weight in weights.items()
            for task in self.tasks
        ]
        if not all(row and row["complete"] for _, row, _ in cells):
            return MISSING
        return weighted_sum(
            [cell._replace(weight=weight) for weight, _, cell in cells if cell],
            self.model.confidence,
        ).percent()

    def _length_row(self, length: int) -> dict[str, Any]:
        mean, cells = self._mean({length: 1.0}), self._column(length)
        have = self._have(cells)
        return {
            **self.about,
            "length": length,
            "score": mean.value,
            "low": mean.low,
            "high": mean.high,
            "n": min(row["n"] for row in cells) if len(cells) == len(self.tasks) else 0,
            "complete": not have,
            "have": have,
            "stand_in": self.stand_in,
        }

    def _have(self, cells: list[dict[str, Any]]) -> str:
        """'' where complete; '300/500' where all tasks were begun, else '12/13 tasks'."""
        begun = sum(row["n"] > 0 or row["failed"] > 0 for row in cells)
        if begun < len(self.tasks):
            return f"{begun}/{len(self.tasks)} tasks"
        incomplete = [row for row in cells if not row["complete"]]
        return (
            min(incomplete, key=lambda row: row["n"] / row["wanted"])["have"] if incomplete else ""
        )

    def model_row(self) -> dict[str, Any]:
        values: dict[str, float] = {}
        for name, weights in zip(AVERAGES, length_weights(len(self.grid)), strict=True):
            mean = self._mean(dict(zip(self.grid, weights, strict=True)))
            values |= {name: mean.value, f"{name}_low": mean.low, f"{name}_high": mean.high}
        threshold = THRESHOLDS[self.about["aligned"]][self.category]
        return {
            **self.about,
            **values,
            **self._effective(threshold),
            "threshold": threshold,
            "complete": all(row["complete"] for row in self.length_rows),
            "stand_in": self.stand_in,
        }

    def _effective(self, threshold: float) -> dict[str, str]:
        """Thresholds belong to the benchmark's own tasks: for any other set of tasks there is no
        effective length."""
        benchmark = [t for t in scoring.THIRTEEN if self.category in ("all", scoring.category(t))]
        if sorted(self.tasks) != sorted(benchmark) or not any(
            row["complete"] for row in self.length_rows
        ):
            return {"effective_length": "", "effective_set": ""}
        claimed = self.about["claimed_length"]
        scores = {row["length"]: row["score"] for row in self.length_rows}
        limits = {row["length"]: (row["low"], row["high"]) for row in self.length_rows}
        return {
            "effective_length": effective_length(scores, threshold, claimed, self.begun),
            "effective_set": effective_set(limits, threshold, claimed),
        }


def _ranked(models: "pd.DataFrame") -> "pd.DataFrame":
    """Ranks within each category, among chat and among base models apart, as the paper counts
    them."""
    for average in ("inc", "dec"):
        values = models.groupby(["category", "aligned"])[f"wavg_{average}"]
        models[f"rank_{average}"] = values.transform(lambda column: ranks(column))
    return models


def rest_notes(cells: "pd.DataFrame") -> list[str]:
    """A line that names the cells whose mean is over the examples that did not fail; none where
    there is no such cell."""
    rest = cells[cells["rest"] != ""]
    names = [f"{c.label} {c.task} {c.length} {c.rest}" for c in rest.head(_NAMED).itertuples()]
    more = f" and {len(rest) - _NAMED} cells more" if len(rest) > _NAMED else ""
    return (
        [f"Means over the rest, as max_failures allows: {'; '.join(names)}{more}."] if names else []
    )


def summary_lengths(summary: Summary) -> list[int]:
    """The lengths of a summary, shortest first."""
    return sorted(int(length) for length in summary.cells["length"].unique())

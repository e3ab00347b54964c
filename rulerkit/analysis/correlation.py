"""Which tasks measure the same (Section 6, Figure 5): correlations between tasks over models and
lengths, and their clusters.

A task's vector holds its scores of all models at all lengths. The distance of two tasks is one less
Pearson's coefficient, clusters are joined by average linkage; the paper names neither the
coefficient nor the linkage.

`task_vectors` gives the vectors; `redundancy` and `cohesion` say what they show of each task and of
each category.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from warnings import catch_warnings

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree, leaves_list, linkage, optimal_leaf_ordering

from rulerkit.common.errors import UserError
from rulerkit.generation.tasks import THIRTEEN, category_of
from rulerkit.scoring.statistics import Estimate, critical_value
from rulerkit.scoring.summary import texts_words
from rulerkit.store.places import check_columns

RESAMPLES = 1000
_FEWEST_ROWS = 3


def task_vectors(cells: pd.DataFrame) -> pd.DataFrame:
    """Scores (percent): a row per model and length at which every task is complete, a column per
    task.

    Raises UserError where fewer than three rows are complete: no correlation could be told from
    chance.
    """
    check_columns(cells, ["run", "model", "task", "length", "score"], "task_vectors")
    wide = cells.pivot_table(
        index=["run", "model", "length"], columns="task", values="score", sort=False
    )
    # pivot_table drops a task without any score: reindex brings it back, and no row is complete
    complete = wide.reindex(columns=cells["task"].unique()).dropna()
    if complete.shape[1] < 2:
        raise UserError("one task has no correlation: give at least two tasks")
    if len(complete) < _FEWEST_ROWS:
        raise UserError(
            f"{len(complete)} complete rows of scores (a model at a length): correlations need at "
            f"least {_FEWEST_ROWS}; give more models or lengths, or run the evaluation again to "
            "complete its cells"
        )
    complete.attrs["texts"] = texts_words(cells)
    return complete


def correlations(vectors: pd.DataFrame) -> pd.DataFrame:
    """Pearson's coefficient between the columns, in the order of the dendrogram; NaN for a task
    that never varies."""
    coefficients = vectors.corr()
    order = coefficients.index[leaves_list(tree_of(coefficients))]
    ordered: pd.DataFrame = coefficients.loc[order, order]
    ordered.attrs = vectors.attrs
    return ordered


# --- which tasks, which categories ----------------------------------------------------------------


def redundancy(
    vectors: pd.DataFrame,
    coefficients: pd.DataFrame,
    categories: Mapping[str, str],
    benchmark: Sequence[str],
) -> pd.DataFrame:
    """A row per task in the order of the dendrogram: task, category, in_benchmark, cut_keeps
    (whether a cut into as many clusters as the benchmark has tasks would keep it), and `nearest`,
    the task of the benchmark and of its category that it correlates with most: correlation, low,
    high."""
    members = [task for task in benchmark if task in vectors]

    # A cut keeps of each cluster the first task of the benchmark, or else the first task: so the
    # tasks of the benchmark stand first, and of each cluster the first row is taken.
    labels = cut_tree(tree_of(coefficients), n_clusters=max(1, len(members))).ravel()
    cut = pd.Series(labels, coefficients.index).reindex([*members, *coefficients.index])
    kept_by_cut = set(cut.drop_duplicates().index)

    rows = []
    for task in coefficients.index:
        category = categories[str(task)]
        others = []
        for member in members:
            if member != task and categories[member] == category:
                others.append(member)

        # NaN, an interval of -1 to 1 and no name where the task has no such neighbour
        near = coefficients[task][others].dropna()
        interval = fisher(float(near.max()), len(vectors))
        rows.append(
            {
                "task": task,
                "category": category,
                "in_benchmark": task in members,
                "cut_keeps": task in kept_by_cut,
                "nearest": near.idxmax() if len(near) else "",
                "correlation": interval.value,
                "low": interval.low,
                "high": interval.high,
            }
        )
    table = pd.DataFrame(rows)
    table.attrs = vectors.attrs
    return table


def cohesion(vectors: pd.DataFrame, categories: Mapping[str, str]) -> dict[str, Estimate]:
    """By category of at least two tasks: the mean correlation between its tasks less that with the
    tasks of the others, with a 95 % interval over resampled rows (bootstrap, percentiles)."""
    values = vectors.to_numpy(dtype=float)
    category_of = np.asarray([categories[str(task)] for task in vectors])

    # the rows as they are, then the resamples; a fixed seed gives the same interval each time
    num_rows = len(values)
    random = np.random.default_rng(0)
    resamples = random.integers(num_rows, size=(RESAMPLES, num_rows))
    samples = [np.arange(num_rows), *resamples]

    intervals = {}
    # a task may never vary in a resample: its coefficients are NaN and do not count
    with catch_warnings(action="ignore", category=RuntimeWarning):
        coefficients = np.stack([np.corrcoef(values[rows], rowvar=False) for rows in samples])
        for category in dict.fromkeys(category_of):
            # a row per sample, a column per pair of tasks; within the category each pair once
            inside = category_of == category
            within = coefficients[:, np.triu(np.outer(inside, inside), 1)]
            between = coefficients[:, np.outer(inside, ~inside)]
            if not within.size or not between.size:
                continue
            mean_within = np.nanmean(within, axis=1)
            differences = mean_within - np.nanmean(between, axis=1)
            low, high = np.nanquantile(differences[1:], [0.025, 0.975])
            seen = float(differences[0])
            intervals[str(category)] = Estimate(seen, float(low), float(high))
    return intervals


def judged_intervals(scores: pd.DataFrame, kind: str) -> dict[str, Estimate]:
    """What the paper's claims of Figure 5 are about, by name, from scores of cells (0..1) with a
    column `complete`: `cohesive`, that of each category as in `cohesion`; `redundant`, the
    coefficient of each task beyond the thirteen with its nearest as in `redundancy`; `moderate`,
    that of each pair of tasks."""
    vectors = task_vectors(scores.assign(score=100 * scores["score"].where(scores["complete"])))
    coefficients = correlations(vectors)
    if kind == "moderate":
        # The intervals hold for all pairs together (Bonferroni).
        pairs = list(combinations(coefficients.index, 2))
        confidence = 1 - 0.05 / len(pairs)
        return {
            f"{one} with {other}": fisher(coefficients[one][other], len(vectors), confidence)
            for one, other in pairs
        }
    categories = {str(task): category_of(str(task)) for task in vectors}
    if kind == "cohesive":
        return cohesion(vectors, categories)

    table = redundancy(vectors, coefficients, categories, THIRTEEN)
    removed = table[~table["in_benchmark"] & (table["nearest"] != "")]
    names = removed["task"] + " with " + removed["nearest"]
    numbers = removed[["correlation", "low", "high"]].itertuples(index=False)
    return {name: Estimate(*row) for name, row in zip(names, numbers, strict=True)}


def fisher(coefficient: float, num_rows: int, confidence: float = 0.95) -> Estimate:
    """Fisher's interval of a correlation coefficient; -1 to 1 where it was seen on fewer than four
    rows."""
    # the standard error of Fisher's z is 1 / sqrt(rows - 3)
    if math.isnan(coefficient) or num_rows < 4:
        return Estimate(float(coefficient), -1.0, 1.0)
    z = math.atanh(min(max(coefficient, -0.999999), 0.999999))  # infinite at 1
    half = critical_value(confidence) / math.sqrt(num_rows - 3)
    low, high = math.tanh(z - half), math.tanh(z + half)
    return Estimate(float(coefficient), low, high)


# --- clusters -------------------------------------------------------------------------------------


def tree_of(coefficients: pd.DataFrame) -> NDArray[np.float64]:
    """The linkage of the tasks; two tasks without a correlation are as far apart as independent
    ones."""
    distances = 1 - np.nan_to_num(coefficients.to_numpy(dtype=float))
    # scipy takes the upper triangle; rounding may leave a distance of a little below 0
    upper = np.triu_indices(len(distances), 1)
    flat = np.clip(distances[upper], 0, 2)
    tree = linkage(flat, method="average")
    return np.asarray(optimal_leaf_ordering(tree, flat))

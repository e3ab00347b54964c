"""Which tasks measure the same (Section 6, Figure 5): correlations between tasks over models and
lengths, and their clusters.

A task's vector holds its scores of all models at all lengths. The distance of two tasks is one less
Pearson's coefficient, clusters are joined by average linkage; the paper names neither the
coefficient nor the linkage.

`task_vectors` gives the vectors, `correlations` the coefficients; `judged_intervals` is what claims
are judged by.
"""

import math
from itertools import combinations
from warnings import catch_warnings

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster.hierarchy import leaves_list, linkage, optimal_leaf_ordering

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


# --- what the claims are about --------------------------------------------------------------------


def judged_intervals(scores: pd.DataFrame, kind: str) -> dict[str, Estimate]:
    """What the paper's claims of Figure 5 are about, by name, from scores of cells (0..1) with a
    column `complete`: `cohesive`, that of each category as in `cohesion`; `redundant`, the
    coefficient of each task beyond the thirteen with that of the thirteen and of its category with
    which it correlates most; `moderate`, that of each pair of tasks."""
    vectors = task_vectors(scores.assign(score=100 * scores["score"].where(scores["complete"])))
    if kind == "cohesive":
        return cohesion(vectors)

    coefficients = correlations(vectors)
    if kind == "redundant":
        pairs = _nearest_kept(coefficients)
        confidence = 0.95
    else:
        # The intervals hold for all pairs together (Bonferroni).
        pairs = list(combinations(map(str, coefficients), 2))
        confidence = 1 - 0.05 / len(pairs)

    intervals = {}
    for one, other in pairs:
        coefficient = float(coefficients[one][other])
        intervals[f"{one} with {other}"] = fisher(coefficient, len(vectors), confidence)
    return intervals


def _nearest_kept(coefficients: pd.DataFrame) -> list[tuple[str, str]]:
    """Each task beyond the thirteen with that of them, of its category, with which it correlates
    most; without those that correlate with none."""
    pairs = []
    for task in map(str, coefficients):
        category = category_of(task)
        kept = [one for one in THIRTEEN if one in coefficients and category_of(one) == category]
        near = coefficients[task][kept].dropna()
        if task not in THIRTEEN and len(near):
            pairs.append((task, str(near.idxmax())))
    return pairs


def cohesion(vectors: pd.DataFrame) -> dict[str, Estimate]:
    """By category of at least two tasks: the mean correlation between its tasks less that with the
    tasks of the others, with a 95 % interval over resampled rows (bootstrap, percentiles)."""
    values = vectors.to_numpy(dtype=float)
    categories = np.asarray([category_of(str(task)) for task in vectors])

    # the rows as they are, then the resamples; a fixed seed gives the same interval each time
    num_rows = len(values)
    random = np.random.default_rng(0)
    resamples = random.integers(num_rows, size=(RESAMPLES, num_rows))
    samples = [np.arange(num_rows), *resamples]

    intervals = {}
    # a task may never vary in a resample: its coefficients are NaN and do not count
    with catch_warnings(action="ignore", category=RuntimeWarning):
        coefficients = np.stack([np.corrcoef(values[rows], rowvar=False) for rows in samples])
        for category in dict.fromkeys(categories):
            # a row per sample, a column per pair of tasks; within the category each pair once
            inside = categories == category
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

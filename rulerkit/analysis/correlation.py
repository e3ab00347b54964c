"""Which tasks measure the same (Section 6, Figure 5): correlations between tasks over models and
lengths, and their clusters.

A task's vector holds its scores of all models at all lengths. The distance of two tasks is one less
Pearson's coefficient, clusters are joined by average linkage; the paper names neither the
coefficient nor the linkage.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from warnings import catch_warnings

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.cluster.hierarchy import (
    cut_tree,
    leaves_list,
    linkage,
    optimal_leaf_ordering,
)

from rulerkit.common.errors import UserError
from rulerkit.scoring.statistics import Estimate, critical_value

RESAMPLES = 1000


def task_vectors(cells: pd.DataFrame) -> pd.DataFrame:
    """Scores (percent): a row per model and length at which every task is complete, a column per
    task.

    Raises UserError where fewer than three rows are complete: no correlation could be told from
    chance.
    """
    wide = cells.pivot_table(
        index=["run", "model", "length"], columns="task", values="score", sort=False
    )
    complete = wide.reindex(columns=cells["task"].unique()).dropna()
    if complete.shape[1] < 2:
        raise UserError("one task has no correlation: give at least two tasks")
    if len(complete) < 3:
        raise UserError(
            f"{len(complete)} complete rows of scores (a model at a length): correlations need at "
            "least 3; give more models or lengths, or run the evaluation again to complete its "
            "cells"
        )
    return complete


def correlations(vectors: pd.DataFrame) -> pd.DataFrame:
    """Pearson's coefficient between the columns, in the order of the dendrogram; NaN for a task
    that never varies."""
    coefficients = vectors.corr()
    order = coefficients.index[leaves_list(_tree(coefficients))]
    ordered: pd.DataFrame = coefficients.loc[order, order]
    return ordered


def redundancy(
    vectors: pd.DataFrame,
    coefficients: pd.DataFrame,
    categories: Mapping[str, str],
    benchmark: Sequence[str],
) -> pd.DataFrame:
    """A row per task in the order of the dendrogram: task, category, cluster (the dendrogram cut
    into as many as there are categories), in_benchmark, cut_keeps (whether a cut into as many
    clusters as the benchmark has tasks would keep it), and `nearest`, the task of the benchmark and
    of its category that it correlates with most: correlation, low, high."""
    members = [task for task in benchmark if task in vectors]
    cluster = _clusters(coefficients, len(set(categories.values())))
    # of each cluster the first task of the benchmark, or else the first task
    cut = _clusters(coefficients, len(members)).reindex([*members, *coefficients.index])
    cut_keeps = set(cut.drop_duplicates().index)
    rows = []
    for task in coefficients.index:
        category = categories[str(task)]
        others = [
            name for name in members if name != task and categories[name] == category
        ]
        near = coefficients[task][others].dropna()
        interval = fisher(float(near.max()), len(vectors))
        rows.append(
            {
                "task": task,
                "category": category,
                "cluster": cluster[task],
                "in_benchmark": task in members,
                "cut_keeps": task in cut_keeps,
                "nearest": near.idxmax() if len(near) else "",
                "correlation": interval.value,
                "low": interval.low,
                "high": interval.high,
            }
        )
    return pd.DataFrame(rows)


def cohesion(
    vectors: pd.DataFrame, categories: Mapping[str, str]
) -> dict[str, Estimate]:
    """By category of at least two tasks: the mean correlation between its tasks less that with the
    tasks of the others, with a 95 % interval over resampled rows (bootstrap, percentiles)."""
    random = np.random.default_rng(0)
    values = vectors.to_numpy(dtype=float)
    names = np.asarray([categories[str(task)] for task in vectors])
    num_rows = len(values)
    samples = [
        np.arange(num_rows),
        *random.integers(num_rows, size=(RESAMPLES, num_rows)),
    ]
    intervals = {}
    with catch_warnings(
        action="ignore", category=RuntimeWarning
    ):  # a task may never vary
        coefficients = np.stack(
            [np.corrcoef(values[rows], rowvar=False) for rows in samples]
        )
        for name in dict.fromkeys(names):
            inside = names == name
            within = coefficients[:, np.triu(np.outer(inside, inside), 1)]
            between = coefficients[:, np.outer(inside, ~inside)]
            if within.size and between.size:
                differences = np.nanmean(within, axis=1) - np.nanmean(between, axis=1)
                low, high = np.nanquantile(differences[1:], [0.025, 0.975])
                intervals[str(name)] = Estimate(
                    float(differences[0]), float(low), float(high)
                )
    return intervals


def pairs(coefficients: pd.DataFrame, num_rows: int) -> dict[str, Estimate]:
    """The coefficient of each pair of tasks; the intervals hold for all pairs together
    (Bonferroni)."""
    names = list(combinations(coefficients.index, 2))
    confidence = 1 - 0.05 / max(1, len(names))
    return {
        f"{one} with {other}": fisher(
            float(coefficients[one][other]), num_rows, confidence
        )
        for one, other in names
    }


def fisher(coefficient: float, num_rows: int, confidence: float = 0.95) -> Estimate:
    """Fisher's interval of a correlation coefficient; -1 to 1 where it was seen on fewer than four
    rows."""
    if math.isnan(coefficient) or num_rows < 4:
        return Estimate(coefficient, -1.0, 1.0)
    z = math.atanh(min(max(coefficient, -0.999999), 0.999999))
    half = critical_value(confidence) / math.sqrt(num_rows - 3)
    return Estimate(coefficient, math.tanh(z - half), math.tanh(z + half))


def _tree(coefficients: pd.DataFrame) -> NDArray[np.float64]:
    """The linkage of the tasks; two tasks without a correlation are as far apart as independent
    ones."""
    distances = 1 - np.nan_to_num(coefficients.to_numpy(dtype=float))
    flat = np.clip(distances[np.triu_indices(len(distances), 1)], 0, 2)
    return np.asarray(optimal_leaf_ordering(linkage(flat, method="average"), flat))


def _clusters(coefficients: pd.DataFrame, count: int) -> "pd.Series[int]":
    """The cluster of each task, numbered in the order of the frame, where the dendrogram is cut
    into `count`."""
    labels = cut_tree(
        _tree(coefficients), n_clusters=max(1, min(count, len(coefficients)))
    )
    return pd.Series(pd.factorize(labels.ravel())[0] + 1, index=coefficients.index)

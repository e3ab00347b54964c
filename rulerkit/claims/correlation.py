"""Which tasks say the same (Section 6, Figure 5): correlations between tasks over models and lengths, and their clusters.

A task's vector holds its scores of all models at all lengths. Distance is one less the correlation coefficient
(Pearson's), clusters are joined by average linkage; the paper names neither the coefficient nor the linkage.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from rulerkit.claims import FAILS, HOLDS, UNKNOWN, Verdict
from rulerkit.claims.paper_claims import CLAIMS
from rulerkit.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

HIGH = 0.8
"""From here on a correlation is called high; below it, moderate."""


def task_vectors(cells: "pd.DataFrame") -> "pd.DataFrame":
    """Scores (percent): a row per model and length at which every task is complete, a column per task.

    Raises UserError where fewer than three rows are complete: no correlation could be told from chance.
    """
    order = list(dict.fromkeys(cells["task"]))
    wide = cells.pivot_table(index=["run", "model", "length"], columns="task", values="score", sort=False)[order]
    whole = wide.dropna()
    if len(whole) < 3:
        raise UserError(
            f"{len(whole)} complete rows of scores (a model at a length): correlations need at least 3; "
            "give more models or lengths, or run the evaluation again to complete its cells"
        )
    return whole


def correlations(vectors: "pd.DataFrame") -> "pd.DataFrame":
    """Pearson's coefficient between the columns, in the order of the dendrogram; NaN for a task that never varies."""
    found = vectors.corr()
    order = _leaves(found)
    return found.iloc[order, order]


def clusters(found: "pd.DataFrame", count: int) -> dict[str, int]:
    """The cluster of each task, numbered in the order of the frame, where the dendrogram is cut into `count`."""
    from scipy.cluster.hierarchy import cut_tree

    if not 1 <= count <= len(found):
        raise UserError(f"{count} clusters of {len(found)} tasks: ask for 1 to {len(found)}")
    labels = cut_tree(_tree(found), n_clusters=count).ravel().tolist()
    numbers = {label: i + 1 for i, label in enumerate(dict.fromkeys(labels))}
    return {str(task): numbers[label] for task, label in zip(found.index, labels, strict=True)}


def kept(found: "pd.DataFrame", tasks: Sequence[str], count: int) -> list[str]:
    """What a cut into `count` clusters keeps: of each cluster the task that stands first in `tasks`."""
    first: dict[int, str] = {}
    number = clusters(found, count)
    for task in tasks:
        first.setdefault(number[task], task)
    return [task for task in tasks if task in first.values()]


def redundancy(
    vectors: "pd.DataFrame", found: "pd.DataFrame", categories: Mapping[str, str], benchmark: Sequence[str]
) -> "pd.DataFrame":
    """A row per task in the order of the dendrogram: category, whether the benchmark has it, whether a cut into as many
    tasks as the benchmark has would keep it, and its nearest task of the benchmark with coefficient and interval."""
    import pandas as pd

    tasks = list(vectors.columns)
    members = [task for task in benchmark if task in tasks]
    keeps = kept(found, [*members, *(t for t in tasks if t not in members)], len(members)) if members else []
    number = clusters(found, min(len(found), len(set(categories.values()))))
    rows = []
    for task in found.index:
        others = found.loc[task, [each for each in members if each != task]].dropna()
        near = str(others.idxmax()) if len(others) else ""
        r = float(others[near]) if near else float("nan")
        low, high = fisher(r, len(vectors))
        rows.append(
            {
                "task": task,
                "category": categories[task],
                "cluster": number[task],
                "in_benchmark": task in members,
                "cut_keeps": task in keeps,
                "nearest": near,
                "same_category": bool(near) and categories[near] == categories[task],
                "correlation": r,
                "low": low,
                "high": high,
            }
        )
    return pd.DataFrame(rows)


def judge(vectors: "pd.DataFrame", found: "pd.DataFrame", table: "pd.DataFrame") -> list[Verdict]:
    """11: clusters are the categories; removed tasks go with a kept one; some pairs do not."""
    text = {key: claim.text for key, claim in CLAIMS["11_task_correlation"].items()}
    still = [str(task) for task in found.index if vectors[task].nunique() < 2]
    parts = [f"{n}: {', '.join(own['task'])}" for n, own in table.groupby("cluster", sort=False)]
    pure = table.groupby("cluster")["category"].nunique().max() == 1
    cohesive = Verdict(text["clusters"], HOLDS if pure else FAILS, "; ".join(parts))
    if still:
        cohesive = Verdict(text["clusters"], UNKNOWN, f"the same score everywhere: {', '.join(still)}")
    removed = table[~table["in_benchmark"]]
    high = bool((removed["low"] >= HIGH).all()) and bool(removed["same_category"].all())
    none = bool((removed["high"] < HIGH).any())
    seen = [f"{t} with {n}: {r:.2f} [{a:.2f}, {b:.2f}]" for t, n, r, a, b in removed[_SHOWN].itertuples(index=False)]
    verdict = UNKNOWN if removed.empty else HOLDS if high else FAILS if none else UNKNOWN
    redundant = Verdict(text["redundant"], verdict, "; ".join(seen) or "no task beyond the benchmark's")
    values = found.to_numpy(dtype=float)[np.triu_indices(len(found), 1)]
    moderate = [r for r in values if fisher(float(r), len(vectors))[1] < HIGH]
    some = Verdict(
        text["moderate"],
        HOLDS if moderate else UNKNOWN,
        f"{len(moderate)} of {np.isfinite(values).sum()} pairs over {len(vectors)} scores",
    )
    return [cohesive, redundant, some]


_SHOWN = ["task", "nearest", "correlation", "low", "high"]


def fisher(r: float, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """Fisher's interval of a correlation coefficient seen on `count` pairs; (-1, 1) where there are too few."""
    if math.isnan(r):
        return float("nan"), float("nan")
    if count < 4:
        return -1.0, 1.0
    z, half = math.atanh(min(max(r, -0.999999), 0.999999)), NormalDist().inv_cdf(0.5 + confidence / 2)
    half /= math.sqrt(count - 3)
    return math.tanh(z - half), math.tanh(z + half)


def _tree(found: "pd.DataFrame") -> "NDArray[np.float64]":
    from scipy.cluster.hierarchy import linkage, optimal_leaf_ordering
    from scipy.spatial.distance import squareform

    distance = 1 - np.nan_to_num(found.to_numpy(dtype=float), nan=0.0)
    distance = np.clip((distance + distance.T) / 2, 0, 2)
    np.fill_diagonal(distance, 0)
    flat = squareform(distance, checks=False)
    return np.asarray(optimal_leaf_ordering(linkage(flat, method="average"), flat))


def _leaves(found: "pd.DataFrame") -> list[int]:
    from scipy.cluster.hierarchy import leaves_list

    return [int(i) for i in leaves_list(_tree(found))]

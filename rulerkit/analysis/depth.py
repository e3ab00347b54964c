"""Does it matter where a needle stands? Recall by depth, for every task.

An item is what an example asks to be recalled: the value of a needle, a link of a chain, a gold
document, a word of a list. Its depth is where it stands in the context, 0 to 100 %; of a word that
stands in many places it is the mean of these places.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from rulerkit.analysis.failures import remaker
from rulerkit.analysis.results import find_cells
from rulerkit.common.errors import UserError, remark
from rulerkit.common.progress import with_progress
from rulerkit.generation.example import Example, Piece
from rulerkit.scoring.statistics import WeightedCell, holm, weighted_sum
from rulerkit.store.cells import Report

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINS = 10
PERMUTATIONS = 999
_MODEL = ["run", "model", "label"]
_CELL = [*_MODEL, "task", "category", "length"]
COLUMNS = [*_CELL, "index", "item", "depth", "distance", "places", "recalled"]


class Place(NamedTuple):
    """Where a piece stands: its depth in the context (percent), its first character in the prompt
    and the one behind its last."""

    role: str
    depth: float
    start: int
    end: int
    piece: Piece


def places(example: Example) -> list[Place]:
    """The place of each piece of an example, runs of lines taken apart."""
    first, last = example.context
    total = sum(block.num_tokens for block in example.context_blocks)
    result = []
    start = tokens_before = 0
    for number, block in enumerate(example.blocks):
        is_context = first <= number < last
        for piece in block.pieces:
            depth = 100 * tokens_before / max(1, total - piece.num_tokens)
            end = start + len(piece.text)
            result.append(
                Place(piece.role, round(min(100.0, depth), 2), start, end, piece)
            )
            start = end
            if is_context:
                tokens_before += piece.num_tokens
    return result


def recall_by_depth(results: "pd.DataFrame", report: Report = remark) -> "pd.DataFrame":
    """A row per item of the rows of `load` (with answers): COLUMNS. `depth` is in percent, `places`
    holds the depths of all copies, `distance` is that to the item before it in the same example
    (NaN for the first), `recalled` is 0 or 1, for gold documents the score of the example.

    Examples with several items that are no documents are generated again; a cell of which they
    cannot be is left out and passed to `report`. Raises UserError where nothing is left.
    """
    rows = []
    cells = {str(cell.path): cell for cell in find_cells(results["path"].unique())}
    groups = results.groupby(["path", "task", "length"], sort=False)
    for (path, *_), answers in with_progress(groups, "cells"):
        make = remaker(cells[path])
        try:
            for answer in answers.to_dict("records"):
                about = [answer[name] for name in [*_CELL, "index"]]
                before = np.nan
                for item, (depth, copies, recalled) in enumerate(_items(answer, make)):
                    rows.append((*about, item, depth, depth - before, copies, recalled))
                    before = depth
        except UserError as error:
            report(f"no depths: {error}")
    if not rows:
        raise UserError("no depths to show: give results of tasks that hide something")
    return pd.DataFrame(rows, columns=COLUMNS)


def _items(
    answer: Any, make: Callable[[Any], Example]
) -> list[tuple[float, list[float], float]]:
    """Depth, places and recall of each item of an answer, from the beginning of the context on."""
    depths, references = answer["depths"], answer["references"]
    match = json.loads(answer["knobs"]).get("match")
    if match == "part" or len(depths) == len(references) == 1:
        return [
            (float(depth), [float(depth)], float(answer["score"])) for depth in depths
        ]
    written, copies = answer["prediction"].lower(), defaultdict(list)
    for place in places(make(answer)):
        if place.role == "needle":
            # a counted word has no key: it is the last word of its entry
            key = place.piece.key or place.piece.text.strip().split(" ")[-1]
            for name in {key.lower(), (place.piece.value or key).lower()}:
                copies[name].append(place.depth)
    return sorted(
        (float(np.mean(copies[name])), copies[name], float(name in written))
        for name in map(str.lower, references)
        if name in copies
    )


def bin_numbers(depths: Any, bins: int) -> "NDArray[Any]":
    """The number of the part of the context, 0 to `bins` - 1, in which each depth (percent) lies;
    `depths` is a column of a table."""
    if bins not in range(1, 1001):
        raise UserError(f"bins is {bins!r}: it must be a whole number from 1 to 1000")
    numbers: NDArray[Any] = np.clip(
        (depths.to_numpy(float) * bins / 100).astype(int), 0, bins - 1
    )
    return numbers


def by_bin(
    recall: "pd.DataFrame",
    bins: int = BINS,
    confidence: float = 0.95,
    by: str = "depth",
) -> "pd.DataFrame":
    """Recall in percent by depth, or by 'distance' to the item before: a row per model, task,
    length and bin that holds an item, with depth_from, depth_to (distance_from, distance_to),
    score, low, high and n (items).

    Items of one example are drawn together in the interval.
    """
    binned = recall[recall[by].notna()]
    groups: Any = binned.groupby([*_CELL, bin_numbers(binned[by], bins)])
    rows = []
    for (*about, number), items in groups:
        outcomes = items["recalled"].to_numpy(float)
        cell = WeightedCell(1.0, "", outcomes, items["index"].to_numpy(float))
        mean = weighted_sum([cell], confidence).percent()
        rows.append((*about, *_limits(number, bins), *mean, len(items)))
    columns = [*_CELL, f"{by}_from", f"{by}_to", "score", "low", "high", "n"]
    return pd.DataFrame(rows, columns=columns)


def depth_tests(
    recall: "pd.DataFrame", bins: int = BINS, seed: int = 0
) -> "pd.DataFrame":
    """Whether depth matters, a row per model, task and length: n (items), p (adjusted by Holm's
    method over the rows), and the bin furthest below the rest: depth_from, depth_to, score,
    elsewhere (percent).

    An item counts in each bin by the share of its places that lie there. The test permutes outcomes
    over items: those of an example stay together, so that a model that answers all or nothing is
    not accused. NaN where all outcomes are equal.
    """
    rows = []
    for key, items in recall.groupby([*_MODEL, "task", "length"], sort=False):
        recalled = items["recalled"].to_numpy(float)
        residuals = recalled - recalled.mean()
        shares = _shares(items["places"], bins)
        p = _permutation_p(items["index"], residuals, shares, seed)
        lowest = _lowest_bin(residuals, shares)
        inside = shares[:, lowest]
        score = np.average(recalled, weights=inside)
        elsewhere = np.nan
        if inside.min() < 1:
            elsewhere = np.average(recalled, weights=1 - inside)
        limits = _limits(lowest, bins)
        rows.append((*key, len(items), p, *limits, 100 * score, 100 * elsewhere))
    columns = [
        *_MODEL,
        "task",
        "length",
        "n",
        "p",
        "depth_from",
        "depth_to",
        "score",
        "elsewhere",
    ]
    frame = pd.DataFrame(rows, columns=columns)
    tested = frame["p"].notna()
    frame.loc[tested, "p"] = holm(list(frame.loc[tested, "p"]))
    return frame


def _limits(number: int, bins: int) -> tuple[float, float]:
    """Where a bin begins and ends, in percent."""
    return number * 100 / bins, (number + 1) * 100 / bins


def _shares(copies: "pd.Series[Any]", bins: int) -> "NDArray[Any]":
    """A row per item: the share of its places that lie in each bin."""
    places_of = copies.reset_index(drop=True).explode()
    shares = pd.crosstab(
        places_of.index, bin_numbers(places_of, bins), normalize="index"
    )
    whole: NDArray[Any] = shares.reindex(columns=range(bins), fill_value=0.0).to_numpy()
    return whole


def _lowest_bin(residuals: "NDArray[Any]", shares: "NDArray[Any]") -> int:
    """The bin with the lowest mean, of those with at least a quarter of the items of the
    fullest."""
    counts = shares.sum(axis=0)
    means = residuals @ shares / np.maximum(counts, 1e-9)
    return int(np.where(counts >= counts.max() / 4, means, np.inf).argmin())


def _permutation_p(
    examples: "pd.Series[Any]",
    residuals: "NDArray[Any]",
    shares: "NDArray[Any]",
    seed: int,
) -> float:
    """The share of permutations in which the bins differ at least as much. `examples` holds the
    number of the example of each item; those with as many items change places."""
    if np.allclose(residuals, 0):
        return float("nan")
    random = np.random.default_rng(seed)
    items_of = pd.Series(range(len(examples))).groupby(examples.to_numpy()).agg(list)
    totals = np.zeros(
        (PERMUTATIONS + 1, shares.shape[1])
    )  # of each bin; first as they were seen
    for _, same_size in items_of.groupby(items_of.map(len)):
        items = np.array(same_size.tolist())  # a row per example
        outcomes = residuals[items]
        totals[0] += outcomes.ravel() @ shares[items.ravel()]
        for number in range(1, PERMUTATIONS + 1):
            shuffled = random.permuted(random.permutation(outcomes), axis=1)
            totals[number] += shuffled.ravel() @ shares[items.ravel()]
    spread = (totals**2 / np.maximum(1, shares.sum(axis=0))).sum(axis=1)
    return float((spread >= spread[0] * (1 - 1e-9)).mean())

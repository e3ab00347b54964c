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
from rulerkit.scoring.statistics import WeightedCell, weighted_sum
from rulerkit.store.cells import Report

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINS = 10
_MODEL = ["run", "model", "label"]
_CELL = [*_MODEL, "task", "category", "length"]
COLUMNS = [*_CELL, "index", "item", "depth", "distance", "recalled"]


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
    """A row per item of the rows of `load` (with answers): COLUMNS. `depth` is in percent,
    `distance` is that to the item before it in the same example (NaN for the first), `recalled` is
    0 or 1, for gold documents the score of the example.

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
                for item, (depth, recalled) in enumerate(_items(answer, make)):
                    rows.append((*about, item, depth, depth - before, recalled))
                    before = depth
        except UserError as error:
            report(f"no depths: {error}")
    if not rows:
        raise UserError("no depths to show: give results of tasks that hide something")
    return pd.DataFrame(rows, columns=COLUMNS)


def _items(answer: Any, make: Callable[[Any], Example]) -> list[tuple[float, float]]:
    """Depth and recall of each item of an answer, from the beginning of the context on."""
    depths, references = answer["depths"], answer["references"]
    match = json.loads(answer["knobs"]).get("match")
    if match == "part" or len(depths) == len(references) == 1:
        return [(float(depth), float(answer["score"])) for depth in depths]
    written, copies = answer["prediction"].lower(), defaultdict(list)
    for place in places(make(answer)):
        if place.role == "needle":
            # a counted word has no key: it is the last word of its entry
            key = place.piece.key or place.piece.text.strip().split(" ")[-1]
            for name in {key.lower(), (place.piece.value or key).lower()}:
                copies[name].append(place.depth)
    return sorted(
        (float(np.mean(copies[name])), float(name in written))
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


def _limits(number: int, bins: int) -> tuple[float, float]:
    """Where a bin begins and ends, in percent."""
    return number * 100 / bins, (number + 1) * 100 / bins

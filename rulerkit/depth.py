"""Does it matter where a needle stands? Recall by depth, for every task.

An item is what an example asks to be recalled: the value of a needle, a link of a chain, a gold
document, a word of a list. Its depth is where it stands in the context, 0 to 100 %; of a word that
stands in many places it is the mean.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.errors import UserError
from rulerkit.example import Example
from rulerkit.failures import examples_of, same_example
from rulerkit.results import find_cells
from rulerkit.statistics import WeightedCell, holm, weighted_sum
from rulerkit.store import Cell, Report, print_problem
from rulerkit.summary import cell_rows

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

BINS = 10
PERMUTATIONS = 999
_MODEL = ["run", "model", "label"]
_CELL = [*_MODEL, "task", "category", "length"]
COLUMNS = [*_CELL, "index", "item", "depth", "recalled"]


class Place(NamedTuple):
    """Where a piece stands: its depth in the context (percent), its first character in the prompt
    and the one behind its last; `names` are the lower-case texts that it stands for."""

    role: str
    depth: float
    start: int
    end: int
    names: frozenset[str]


def places(example: Example) -> list[Place]:
    """The place of each piece of an example, runs of lines taken apart."""
    first, last = example.context
    total = sum(block.num_tokens for block in example.blocks[first:last])
    found, at, before = [], 0, 0
    for number, block in enumerate(example.blocks):
        inside = first <= number < last
        for piece in block.pieces:
            depth = 100 * before / max(1, total - piece.num_tokens) if inside or before else 0.0
            names = [piece.key, piece.value] if piece.key else [piece.text.strip().split(" ")[-1]]
            known = frozenset(name.lower() for name in names if name)
            end = at + len(piece.text)
            found.append(Place(piece.role, round(min(100.0, depth), 2), at, end, known))
            at, before = end, before + piece.num_tokens * inside
    return found


def recall_by_depth(results: "pd.DataFrame", report: Report = print_problem) -> "pd.DataFrame":
    """A row per item of the rows of `load` (with answers): COLUMNS, `recalled` 0 or 1, for gold
    documents the score of the example.

    Examples with several items are generated again; a cell of which they cannot be is left out and
    passed to `report`. Raises UserError where nothing is left.
    """
    import pandas as pd

    rows: list[tuple[Any, ...]] = []
    cells: dict[Any, Cell] = {
        str(cell.path): cell for cell in find_cells(dict.fromkeys(results["path"]))
    }
    for (path, *_), answers in results.groupby(["path", "task", "length"], sort=False):
        make = partial(same_example, cells[path], cache(partial(examples_of, cells[path])))
        try:
            for answer in answers.to_dict("records"):
                about = [answer[name] for name in _CELL]
                for item, depth, recalled in _items(answer, make):
                    rows.append((*about, answer["index"], item, depth, recalled))
        except UserError as error:
            report(f"no depths: {error}")
    if not rows:
        raise UserError("no depths to show: give results of tasks that hide something")
    return pd.DataFrame(rows, columns=COLUMNS)


def _items(answer: Any, make: Callable[[Any], Example]) -> list[tuple[int, float, float]]:
    """Number, depth and recall of each item of an answer, from the beginning of the context on."""
    written, references = answer["prediction"].lower(), answer["references"]
    documents = json.loads(answer["knobs"]).get("match") == "part"
    if len(answer["depths"]) == 1 and (documents or len(references) == 1):
        return [(0, float(answer["depths"][0]), float(answer["score"]))]
    needles = [p for p in places(make(answer)) if p.role == "needle"]
    if documents:
        return [(i, place.depth, float(answer["score"])) for i, place in enumerate(needles)]
    depths = defaultdict(list)
    for place in needles:
        for name in place.names:
            depths[name].append(place.depth)
    items = [
        (float(np.mean(depths[reference.lower()])), float(reference.lower() in written))
        for reference in references
        if depths.get(reference.lower())
    ]
    return [(i, depth, recalled) for i, (depth, recalled) in enumerate(sorted(items))]


def bin_numbers(depths: Any, bins: int) -> "NDArray[Any]":
    """The number of the part of the context, 0 to `bins` - 1, in which each depth (percent) lies;
    `depths` is a column of a table."""
    numbers: NDArray[Any] = np.clip((depths.to_numpy(float) * bins / 100).astype(int), 0, bins - 1)
    return numbers


def by_bin(recall: "pd.DataFrame", bins: int = BINS, confidence: float = 0.95) -> "pd.DataFrame":
    """Recall in percent by depth: a row per model, task, length and bin that holds an item, with
    depth_from, depth_to, score, low, high and n (items).

    Items of one example are drawn together in the interval.
    """
    import pandas as pd

    edges = np.linspace(0, 100, bins + 1)
    rows = []
    binned = recall.assign(bin=bin_numbers(recall["depth"], bins))
    scores, examples = recall["recalled"].to_numpy(float), recall["index"].to_numpy(float)
    for key, positions in cell_rows(binned, [*_CELL, "bin"]).items():
        cell = WeightedCell(1.0, key[3], scores[positions], examples[positions])
        mean = weighted_sum([cell], confidence).percent()
        limits = edges[key[-1]], edges[key[-1] + 1]
        rows.append((*key[:-1], *limits, *mean, len(positions)))
    columns = [*_CELL, "depth_from", "depth_to", "score", "low", "high", "n"]
    return pd.DataFrame(rows, columns=columns).sort_values([*_CELL, "depth_from"], kind="stable")


def depth_tests(recall: "pd.DataFrame", bins: int = BINS, seed: int = 0) -> "pd.DataFrame":
    """Whether depth matters, a row per model and task: p (adjusted by Holm's method over the rows),
    and the bin furthest below the rest: depth_from, depth_to, score, elsewhere (percent).

    The test permutes outcomes over depths within each length: those of an example stay together, so
    that a model that answers all or nothing is not accused. NaN where all outcomes are equal.
    """
    import pandas as pd

    rows = []
    for key, items in recall.groupby([*_MODEL, "task"], sort=False):
        residuals = items["recalled"] - items.groupby("length")["recalled"].transform("mean")
        numbers = bin_numbers(items["depth"], bins)
        counts = np.bincount(numbers, minlength=bins)
        seen = np.bincount(numbers, residuals, bins)
        means = np.divide(seen, counts, out=np.full(bins, np.nan), where=counts > 0)
        p = _permutation_p(items, residuals.to_numpy(), numbers, bins, seed)
        lowest = int(np.nanargmin(np.where(counts >= counts.max() / 4, means, np.nan)))
        here = numbers == lowest
        score, elsewhere = (100 * items.loc[part, "recalled"].mean() for part in (here, ~here))
        limits = lowest * 100 / bins, (lowest + 1) * 100 / bins
        rows.append((*key, len(items), p, *limits, score, elsewhere))
    columns = [*_MODEL, "task", "n", "p", "depth_from", "depth_to", "score", "elsewhere"]
    frame = pd.DataFrame(rows, columns=columns)
    tested = frame["p"].notna()
    frame.loc[tested, "p"] = holm(list(frame.loc[tested, "p"]))
    return frame


def _permutation_p(
    items: "pd.DataFrame",
    residuals: "NDArray[Any]",
    numbers: "NDArray[Any]",
    bins: int,
    seed: int,
) -> float:
    """The share of permutations in which the bins differ at least as much."""
    if np.allclose(residuals, 0):
        return float("nan")
    random = np.random.default_rng(seed)
    counts = np.maximum(1, np.bincount(numbers, minlength=bins))
    sizes = items.groupby(["length", "index"], sort=False)["recalled"].transform("size").to_numpy()
    order = np.lexsort((items["index"], items["length"], sizes))
    groups = _runs(items["length"].to_numpy()[order], sizes[order])
    totals = np.zeros((PERMUTATIONS + 1, bins))
    for rows, size in groups:
        positions = order[rows].reshape(-1, size)  # a row per example
        outcomes, places_of = residuals[positions], numbers[positions]
        for number in range(PERMUTATIONS + 1):
            shuffled = outcomes
            if number:
                shuffled = random.permuted(random.permutation(outcomes), axis=1)
            totals[number] += np.bincount(places_of.ravel(), shuffled.ravel(), bins)
    spread = (totals**2 / counts).sum(axis=1)
    return float((spread >= spread[0] * (1 - 1e-9)).mean())


def _runs(lengths: "NDArray[Any]", sizes: "NDArray[Any]") -> list[tuple[slice, int]]:
    """Runs of items of one length whose examples have the same number of items."""
    changes = np.flatnonzero((np.diff(lengths) != 0) | (np.diff(sizes) != 0)) + 1
    starts = [0, *changes.tolist(), len(lengths)]
    return [(slice(a, b), int(sizes[a])) for a, b in pairwise(starts)]

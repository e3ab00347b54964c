"""Does it matter where a needle stands? Recall by depth, for every task.

An item is what an example asks to be recalled: the value of a needle, a link of a chain, a gold
document, a word of a list. Its depth is where it stands in the context, 0 to 100 %; of a word that
stands in many places it is the mean of these places.

`recall_by_depth` gives a row per item, and `by_bin` the recall of each part of the context.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from rulerkit.analysis.remake import remaker
from rulerkit.common.errors import UserError, remark
from rulerkit.common.progress import progress_bar
from rulerkit.generation.example import Example, Piece
from rulerkit.generation.tasks import recorded_task
from rulerkit.scoring.scores import answer_of, as_scores
from rulerkit.scoring.statistics import WeightedCell, weighted_sum
from rulerkit.scoring.summary import texts_words
from rulerkit.store.cells import Cell
from rulerkit.store.places import CELL_ON_DISK, cells_of_rows, check_columns

if TYPE_CHECKING:
    from numpy.typing import NDArray

BINS = 10
_MOST_BINS = 1000
_CELL = ["run", "model", "label", "task", "category", "length"]
COLUMNS = [*_CELL, "index", "item", "depth", "recalled"]


class Position(NamedTuple):
    """Where a piece stands: its depth in the context (percent), its first character in the prompt
    and the one behind its last."""

    depth: float
    start: int
    end: int
    piece: Piece


def places(example: Example) -> list[Position]:
    """The place of each piece of an example, runs of lines taken apart."""
    first, last = example.context
    num_tokens = sum(block.num_tokens for block in example.context_blocks)
    result = []
    start = tokens_before = 0
    for number, block in enumerate(example.blocks):
        is_context = first <= number < last
        for piece in block.pieces:
            # a needle that ends the context is at 100 %: the room is the context without it
            room = max(1, num_tokens - piece.num_tokens)
            depth = min(100.0, 100 * tokens_before / room)
            end = start + len(piece.text)
            result.append(Position(round(depth, 2), start, end, piece))

            start = end
            if is_context:
                tokens_before += piece.num_tokens
    return result


def recall_by_depth(results: Any) -> pd.DataFrame:
    """A row per item of the rows of `load`, or of cells or places: COLUMNS. `depth` is in percent,
    `recalled` is 0 or 1, for gold documents the score of the example.

    Examples with several items that are no documents are generated again; a cell of which they
    cannot be is left out, and a line says so. Raises UserError where nothing is left.
    """
    results = as_scores(results, "recall_by_depth", remark)
    cells = cells_of_rows(results, "recall_by_depth")
    rows: list[tuple[Any, ...]] = []
    groups = results.groupby(CELL_ON_DISK, sort=False)
    for key, answers in progress_bar(groups, "cells", delay=3):
        try:
            rows += _rows(cells[key], answers)
        except UserError as error:
            remark(f"no depths: {error}")

    if not rows:
        raise UserError("no depths to show: give results of tasks that hide something")
    recall = pd.DataFrame(rows, columns=COLUMNS)
    recall.attrs["texts"] = texts_words(results)
    return recall


def _rows(cell: Cell, answers: pd.DataFrame) -> list[tuple[Any, ...]]:
    """COLUMNS of each item of some answers of a cell, from the beginning of the context on."""
    make, judge = remaker(cell), recorded_task(cell.record["result"]["task"])
    scores = dict(zip(answers["index"], answers["score"], strict=True))
    about = answers[_CELL].iloc[0].tolist()
    rows: list[tuple[Any, ...]] = []
    for row in cell.rows:
        if row["index"] not in scores:
            continue
        depths, references = row.get("depths", []), row["outputs"]

        # A single needle has the score of its example, and so have gold documents: nobody knows
        # which of them the answer is from. The depths on record are enough, and nothing is made
        # again.
        if judge.any_is_enough or len(depths) == len(references) == 1:
            items = [(float(depth), float(scores[row["index"]])) for depth in depths]
        else:
            # what is judged is the answer without its thought
            text, _ = answer_of(row["pred"], cell.record, row.get("answer_prefix", ""))
            items = _items_of(make(row), references, judge.missing(text, references))

        for number, (depth, recalled) in enumerate(items):
            rows.append((*about, row["index"], number, depth, recalled))
    return rows


def _items_of(
    example: Example, references: Sequence[str], missing: Sequence[str]
) -> list[tuple[float, float]]:
    """Depth and recall (0 or 1) of each reference that stands in the context, from its beginning
    on; a word that stands in many places is at their mean."""
    # by name in lower case: the depths of all copies of what could be asked for
    depths_of: dict[str, list[float]] = defaultdict(list)
    for place in places(example):
        if place.piece.role != "needle":
            continue
        # a counted word has no key: it is the last word of its entry
        last_word = place.piece.text.strip().split(" ")[-1]
        key = place.piece.key or last_word
        value = place.piece.value or key
        # a chain asks for keys, other tasks for values; where both are one it stands there once
        for name in {key.lower(), value.lower()}:
            depths_of[name].append(place.depth)

    items = []
    for reference in references:
        if depths := depths_of.get(reference.lower()):
            items.append((float(np.mean(depths)), float(reference not in missing)))
    return sorted(items)


# --- parts of the context -------------------------------------------------------------------------


def by_bin(recall: pd.DataFrame, bins: int = BINS) -> pd.DataFrame:
    """Recall in percent by depth: a row per model, task, length and bin that holds an item, with
    depth_from, depth_to, score, low, high and n (items).

    Items of one example are drawn together in the interval.
    """
    check_columns(recall, [*_CELL, "index", "depth", "recalled"], "by_bin")
    # Models and tasks in their own order, not that of the alphabet.
    order = {key: pd.Categorical(recall[key], recall[key].unique()) for key in ("model", "task")}
    keys: Any = [*_CELL, bin_numbers(recall["depth"], bins)]
    groups: Any = recall.assign(**order).groupby(keys, observed=True)
    rows = []
    for (*about, number), items in groups:
        recalled = items["recalled"].to_numpy(float)
        # a model that loses an example loses all its items: they are no independent observations
        examples = items["index"].to_numpy(float)
        cell = WeightedCell(1.0, "", recalled, groups=examples)
        mean = weighted_sum([cell]).percent()

        begin = number * 100 / bins
        end = (number + 1) * 100 / bins
        rows.append((*about, begin, end, *mean, len(items)))
    columns = [*_CELL, "depth_from", "depth_to", "score", "low", "high", "n"]
    of_bins = pd.DataFrame(rows, columns=columns)
    of_bins.attrs = recall.attrs
    return of_bins


def bin_numbers(depths: Any, bins: int) -> "NDArray[Any]":
    """The number of the part of the context, 0 to `bins` - 1, in which each depth (percent) lies;
    `depths` is a column of a table. Raises UserError for an impossible number of bins."""
    if bins not in range(1, _MOST_BINS + 1):
        raise UserError(f"bins is {bins!r}: it must be a whole number from 1 to {_MOST_BINS}")
    numbers = (depths.to_numpy(float) * bins / 100).astype(int)
    inside: NDArray[Any] = np.clip(numbers, 0, bins - 1)  # 100 % is in the last bin
    return inside

"""A haystack of needles: lines whose keys and values come from pools with remembered token counts.

Every example pairs keys and values anew. The size of a pool follows from the length alone, so an
example does not depend on what was generated before it.
"""

from collections.abc import Sequence

import numpy as np

from rulerkit.example import ContextBudget, Piece
from rulerkit.tasks.haystack_sentences import PlacedPassage
from rulerkit.tokenizers.units import Units, interleave

_ADJUSTED = 8
"""How many of the last lines are chosen again so that their counts close the gap."""
_CANDIDATES = 512
"""Among how many keys and values each of them is chosen."""


def pool_size(length: int, share: int) -> int:
    """One pool entry for every `share` tokens of the length, as a power of two from 1024 on."""
    return max(1024, 1 << (length // share - 1).bit_length())


def fill_with_lines(
    items: Sequence[PlacedPassage],
    budget: ContextBudget,
    frame: tuple[str, str],
    keys: Units,
    values: Units,
) -> list[Piece] | None:
    """Lines `frame[0] key frame[1] value` with the items among them at their depths; None where the
    items do not fit.

    The count of every line is known before it is written, so the last lines are chosen to fill the
    budget.
    """
    pieces = [budget.piece(item.passage) for item in items]
    left = budget.tokens - sum(piece.num_tokens for piece in pieces)
    if left < 0:
        return None
    frames = Units(frame, budget.encoder)
    fixed = int(frames.counts.sum())
    taken = {(piece.key, piece.value) for piece in pieces}
    key_order = _without(
        budget.random.permutation(len(keys)), keys, [f" {key}" for key, _ in taken]
    )
    value_order = _without(
        budget.random.permutation(len(values)), values, [f" {value}.\n" for _, value in taken]
    )
    size = min(len(key_order), len(value_order))
    key_order, value_order = key_order[:size], value_order[:size]
    total = np.cumsum(fixed + keys.counts[key_order] + values.counts[value_order])
    lines = int(np.searchsorted(total, left, side="right"))
    lines = _close_gap(lines, left, total, fixed, keys, key_order, values, value_order)
    columns = (key_order[:lines], value_order[:lines])
    filled, at = [], 0
    for item, piece in sorted(zip(items, pieces, strict=True), key=lambda pair: pair[0].depth):
        place = min(int(item.depth * (lines + 1)), lines)
        filled += _stretch(at, place, frames, keys, values, *columns)
        filled.append(piece)
        at = place
    return filled + _stretch(at, lines, frames, keys, values, *columns)


def _without(order: np.ndarray, units: Units, taken: list[str]) -> np.ndarray:
    """The order without entries that the items use already."""
    used = [units.position[text] for text in taken if text in units.position]
    return order[~np.isin(order, used)] if used else order


def _close_gap(
    lines: int,
    left: int,
    total: np.ndarray,
    fixed: int,
    keys: Units,
    key_order: np.ndarray,
    values: Units,
    value_order: np.ndarray,
) -> int:
    """Choose the last lines again, from entries not used, so that their counts add up to what is
    left; the orders are changed in place. Returns the number of lines."""
    redone = min(_ADJUSTED, lines)
    first = lines - redone
    gap = left - (int(total[first - 1]) if first else 0)
    longest = (
        fixed
        + int(keys.counts[key_order[first:]].max())
        + int(values.counts[value_order[first:]].max())
    )
    if gap > redone * longest:
        redone += 1
    for line in range(first, min(first + redone, len(key_order))):
        share = gap // (first + redone - line)
        near = slice(line, line + _CANDIDATES)
        pair = _best_pair(
            share - fixed, keys.counts[key_order[near]], values.counts[value_order[near]]
        )
        if pair is None:
            return line
        for order, chosen in ((key_order, pair[0]), (value_order, pair[1])):
            order[line], order[line + chosen] = order[line + chosen], order[line]
        gap -= fixed + int(keys.counts[key_order[line]] + values.counts[value_order[line]])
        lines = line + 1
    return lines


def _best_pair(tokens: int, keys: np.ndarray, values: np.ndarray) -> tuple[int, int] | None:
    """Positions of a key and a value whose counts together come nearest to `tokens` from below."""
    key_counts, key_at = np.unique(keys, return_index=True)
    value_counts, value_at = np.unique(values, return_index=True)
    fitting = np.searchsorted(value_counts, tokens - key_counts, side="right") - 1
    sums = np.where(fitting >= 0, key_counts + value_counts[np.maximum(fitting, 0)], -1)
    best = int(np.argmax(sums))
    return (int(key_at[best]), int(value_at[fitting[best]])) if sums[best] >= 0 else None


def _stretch(
    start: int,
    stop: int,
    frames: Units,
    keys: Units,
    values: Units,
    key_order: np.ndarray,
    value_order: np.ndarray,
) -> list[Piece]:
    """The lines from `start` up to `stop` as one piece, which comes apart into distractors with key
    and value."""
    if stop <= start:
        return []
    ks, vs = key_order[start:stop], value_order[start:stop]
    zeros = np.zeros(stop - start, dtype=np.int64)
    texts, counts, ids = interleave((frames, zeros), (keys, ks), (frames, zeros + 1), (values, vs))

    def explode() -> list[Piece]:
        ends = np.cumsum(counts.reshape(-1, 4).sum(axis=1))
        starts = np.concatenate([[0], ends[:-1]])
        return [
            Piece(
                "".join(texts[4 * i : 4 * i + 4]),
                "distractor",
                ids[a:b],
                texts[4 * i + 1].strip(),
                texts[4 * i + 3].strip().removesuffix("."),
            )
            for i, (a, b) in enumerate(zip(starts, ends, strict=True))
        ]

    return [Piece("".join(texts), "haystack", ids, explode=explode)]

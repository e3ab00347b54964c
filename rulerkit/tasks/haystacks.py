"""Haystack sentences: one line of five short sentences again and again, with needles or statements
between the lines."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rulerkit.example import ContextBudget, Passage, Piece
from rulerkit.pieces import PieceEncoder, Units, interleave, settle

SENTENCES = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
LINE = " ".join(SENTENCES)


@dataclass(frozen=True)
class PlacedPassage:
    """A needle, distractor or statement and the relative depth, 0 to 1, at which it stands."""

    depth: float
    passage: Passage


def fill_with_sentences(
    items: Sequence[PlacedPassage], budget: ContextBudget, blanks: bool = False
) -> list[Piece] | None:
    """Lines with the items before distinct lines, at most `budget.tokens` tokens; None where the
    items do not fit.

    Lines are joined by newlines, or (edition 2024 of variable tracking) by blanks after the newline
    that ends a line of sentences. The last line is cut at the sentence that still fits: upstream
    leaves up to 25 tokens unused, which no score can show.
    """
    layout = _Blanks(budget.encoder) if blanks else _Newlines(budget.encoder)
    items = sorted(items, key=lambda item: item.depth)
    tokens_for_sentences = budget.tokens - sum(
        len(ids) for item in items for ids in budget.encoder.many(item.passage.parts)
    )
    lines = max(0, tokens_for_sentences // len(budget.encoder(LINE + "\n")) + 2)
    while True:
        for sentences in (4, 3, 2, 1, 0):
            places = _places(items, lines + (sentences > 0))
            if layout.cost(items, places, lines, sentences, budget) <= budget.tokens:
                return layout.pieces(items, places, lines, sentences, budget)
        if lines == 0:
            return None
        lines -= 1


def _places(items: Sequence[PlacedPassage], lines: int) -> list[int]:
    """Before which line each item stands: distinct lines as long as there are enough, in order of
    depth."""
    places = np.array([int(item.depth * lines) for item in items], dtype=int)
    if lines < len(items):
        return sorted(np.minimum(places, lines).tolist())
    for i in range(
        1, len(places)
    ):  # push down what collides, then back up what was pushed past the end
        places[i] = max(places[i], places[i - 1] + 1)
    for i in range(len(places) - 1, -1, -1):
        places[i] = min(places[i], lines - (len(places) - i))
    return list(places.tolist())


class _Newlines:
    """Each line ends with a newline."""

    def __init__(self, encoder: PieceEncoder) -> None:
        self.encoder = encoder

    def pieces(
        self,
        items: Sequence[PlacedPassage],
        places: Sequence[int],
        lines: int,
        sentences: int,
        budget: ContextBudget,
    ) -> list[Piece]:
        pieces: list[Piece] = []
        at = 0
        for item, place in zip(items, places, strict=True):
            pieces += self._run(at, place, lines, sentences)
            pieces.append(budget.piece(item.passage))
            at = place
        return pieces + self._run(at, lines + (sentences > 0), lines, sentences)

    def cost(
        self,
        items: Sequence[PlacedPassage],
        places: Sequence[int],
        lines: int,
        sentences: int,
        budget: ContextBudget,
    ) -> int:
        """The tokens of `pieces`, by adding up."""
        last = len(self.encoder(" ".join(SENTENCES[:sentences]) + "\n")) if sentences else 0
        asked = sum(len(ids) for item in items for ids in self.encoder.many(item.passage.parts))
        return asked + lines * len(self.encoder(LINE + "\n")) + last

    def _run(self, start: int, stop: int, lines: int, sentences: int) -> list[Piece]:
        """Sentences from line `start` up to `stop`, where line number `lines` is the short one."""
        whole = min(stop, lines) - start
        run = (
            [Piece((LINE + "\n") * whole, "haystack", np.tile(self.encoder(LINE + "\n"), whole))]
            if whole > 0
            else []
        )
        if stop > lines and start <= lines:
            text = " ".join(SENTENCES[:sentences]) + "\n"
            run.append(Piece(text, "haystack", self.encoder(text)))
        return run


class _Blanks(_Newlines):
    """Lines are joined by blanks; only lines of sentences end with a newline."""

    def cost(
        self,
        items: Sequence[PlacedPassage],
        places: Sequence[int],
        lines: int,
        sentences: int,
        budget: ContextBudget,
    ) -> int:
        """The tokens of `pieces`, which depend on what stands beside what."""
        return sum(
            piece.num_tokens for piece in self.pieces(items, places, lines, sentences, budget)
        )

    def pieces(
        self,
        items: Sequence[PlacedPassage],
        places: Sequence[int],
        lines: int,
        sentences: int,
        budget: ContextBudget,
    ) -> list[Piece]:
        texts: list[str] = []
        owners: list[Passage | None] = []
        waiting = list(zip(places, items, strict=True))
        for line in range(lines + (sentences > 0) + 1):
            while waiting and waiting[0][0] <= line:
                passage = waiting.pop(0)[1].passage
                texts.append(passage.text.removesuffix("\n"))
                owners.append(passage)
            if line < lines + (sentences > 0):
                texts.append((LINE if line < lines else " ".join(SENTENCES[:sentences])) + "\n")
                owners.append(None)
        settled = settle([text if i == 0 else " " + text for i, text in enumerate(texts)])
        settled[-1] += "\n"
        pieces = []
        for text, ids, owner in zip(settled, self.encoder.many(settled), owners, strict=True):
            role, key, value = (
                (owner.role, owner.key, owner.value) if owner else ("haystack", None, None)
            )
            pieces.append(Piece(text, role, ids, key, value))
        return pieces


# --- lines of needles ---


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

"""What needles and statements are hidden in: essays, repeated sentences, or lines of other needles.

Each function fills a budget with as much haystack as fits and puts items (needles, statements) at
their depths; it returns None where the items alone do not fit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter

import numpy as np

from rulerkit.generation.corpora import Haystack
from rulerkit.generation.example import ContextBudget, Piece
from rulerkit.generation.pieces import PieceEncoder, Units, encode_units, settle

SENTENCES = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
LINE = " ".join(SENTENCES)

_ADJUSTED = 8
"""How many of the last lines are chosen again so that they fill the budget."""
_CANDIDATES = 512
"""Among how many entries of each pool their own are chosen."""


def by_depth(items: Iterable[Piece], budget: ContextBudget) -> tuple[list[Piece], int]:
    """The items in order, and the tokens that they leave of the budget."""
    ordered = []
    left = budget.tokens
    for item in sorted(items, key=attrgetter("depth")):
        tokens = budget.encoder.ids(item.text)
        ordered.append(replace(item, tokens=tokens))
        left -= len(tokens)
    return ordered, left


def _apart(places: list[int], count: int) -> list[int]:
    """Distinct places up to `count` near the given ones, which increase, if there are enough."""
    if count < len(places):
        return [min(place, count) for place in places]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + 1)
    return [min(place, count - len(places) + i) for i, place in enumerate(places)]


def interleaved(
    items: Sequence[Piece], places: Sequence[int], units: Units, end: int
) -> list[Piece]:
    """A row of texts up to `end` with each item before its place. Of each part between two items
    the first text is a piece, the last one, and those between."""
    text, ends = units.text
    pieces = []
    start = 0
    for item, place in [*zip(items, places, strict=True), (None, end)]:
        borders = sorted({start, start + 1, place - 1, place}) if start < place else []
        for a, b in pairwise(borders):
            ids = units.ids[units.offsets[a] : units.offsets[b]]
            pieces.append(Piece(text[ends[a] : ends[b]], "haystack", ids))
        if item is not None:
            pieces.append(item)
        start = place
    return pieces


def _joined_by_blanks(pieces: list[Piece], budget: ContextBudget) -> list[Piece]:
    """Pieces with a blank before each: without the first blank, and with a newline at the end. A
    piece that ends in a blank passes it to the next one."""
    texts = settle([piece.text for piece in pieces])
    texts[0] = texts[0][1:]
    texts[-1] += "\n"
    joined = []
    for piece, text in zip(pieces, texts, strict=True):
        if piece.text != text:
            piece = replace(piece, text=text, tokens=budget.encoder.ids(text))
        joined.append(piece)
    return joined


# --- sentences ------------------------------------------------------------------------------------


def fill_with_sentences(
    items: Iterable[Piece], budget: ContextBudget, blanks: bool = False
) -> list[Piece] | None:
    """Lines of five sentences with the items before distinct lines, joined by newlines, or by
    `blanks` after the newline that ends a line of sentences (variable tracking in the protocol
    `paper`). Without a `budget.size` the last line is cut at the sentence that still fits: upstream
    leaves up to 25 tokens unused."""
    blank = ""
    if blanks:
        blank = " "
        items = [replace(item, text=blank + item.text.removesuffix("\n")) for item in items]
    items, left = by_depth(items, budget)
    line = f"{blank}{LINE}\n"
    ids = budget.encoder.ids(line)
    most = max(0, left // len(ids))
    if blanks:
        # Lines joined by blanks may take fewer tokens than they do alone.
        most += 2

    def with_items(lines: int, sentences: int) -> list[Piece]:
        texts, counts, tokens = [line] * lines, [len(ids)] * lines, [np.tile(ids, lines)]
        if sentences:
            texts.append(f"{blank}{' '.join(SENTENCES[:sentences])}\n")
            tokens.append(budget.encoder.ids(texts[-1]))
            counts.append(len(tokens[-1]))
        rows = Units(texts, np.array(counts, dtype=np.int64), np.concatenate(tokens))

        places = _apart([int(item.depth * len(rows)) for item in items], len(rows))
        pieces = interleaved(items, places, rows, len(rows))
        return _joined_by_blanks(pieces, budget) if blanks else pieces

    if budget.size is not None:
        return with_items(budget.size, 0)

    # From the longest haystack down: whole lines, and the last one cut sentence by sentence.
    for lines in range(most, -1, -1):
        for sentences in range(len(SENTENCES) - 1, -1, -1):
            pieces = with_items(lines, sentences)
            if sum(piece.num_tokens for piece in pieces) <= budget.tokens:
                return pieces
    return None


# --- lines of needles -----------------------------------------------------------------------------


def pool_size(length: int, share: int) -> int:
    """One pool entry for every `share` tokens of the length, as a power of two from 1024 on."""
    return max(1024, 1 << (length // share - 1).bit_length())


def fill_with_needles(
    items: Iterable[Piece],
    budget: ContextBudget,
    frames: tuple[str, str],
    keys: Units,
    values: Units,
    taken: Sequence[str],
) -> list[Piece] | None:
    """Lines `frames[0] key frames[1] value` with the items among them. `taken` are the keys and
    values that none of these lines has.

    Every example pairs keys and values anew, from pools whose sizes follow from the length alone.
    The tokens of every line are known before it is written, so the last ones fill the budget.
    """
    items, left = by_depth(items, budget)
    if left < 0 and budget.size is None:
        return None
    before = encode_units(frames, budget.encoder)
    key_order = keys.others(taken, budget.random)
    value_order = values.others(taken, budget.random)
    available = min(len(key_order), len(value_order))
    if budget.size is not None:
        lines = min(budget.size, available)
    else:
        fixed = np.full(available, before.counts.sum())
        pools = ((keys, key_order[:available]), (values, value_order[:available]))
        lines = choose_lines(left, fixed, pools)

    def haystack(start: int, stop: int) -> list[Piece]:
        if start == stop:
            return []
        key_numbers = key_order[start:stop]
        value_numbers = value_order[start:stop]

        def describe(line: int) -> tuple[str, str, str]:
            key = keys.texts[key_numbers[line]]
            value = values.texts[value_numbers[line]]
            key, value = key.strip(' "'), value.strip().removesuffix(".")
            return "distractor", key, value

        zeros = np.zeros(stop - start, dtype=int)
        columns = ((before, zeros), (keys, key_numbers), (before, zeros + 1))
        return [budget.rows(*columns, (values, value_numbers), describe=describe)]

    context = []
    start = 0
    for item in items:
        place = min(int(item.depth * (lines + 1)), lines)
        context += [*haystack(start, place), item]
        start = place
    return context + haystack(start, lines)


def choose_lines(left: int, fixed: np.ndarray, pools: Sequence[tuple[Units, np.ndarray]]) -> int:
    """How many lines, of `fixed` tokens each and an entry of two pools, fit into the tokens left.

    A pool is texts, and the order in which lines take them. Entries of the last lines change places
    with later ones in the orders, so that these lines share out what the others leave.
    """
    counts = [units.counts[order] for units, order in pools]
    ends = np.cumsum(fixed + sum(counts))
    lines = int(np.searchsorted(ends, left, side="right"))

    # All lines but the last few stay as they are.
    first = max(0, lines - _ADJUSTED)
    for_last = left - (int(ends[first - 1]) if first else 0)

    # With long entries in the last lines there may be room for one line more.
    parts = [fixed[first : lines + 1], *(column[first:] for column in counts)]
    longest = sum(int(part.max(initial=0)) for part in parts)
    one_more = lines < len(ends) and for_last > (lines - first) * longest
    for stop in [lines + 1, lines] if one_more else [lines]:
        line = first
        rest = for_last
        while line < stop:
            # Each of the lines that are left gets an equal part of the tokens that are left.
            candidates = [column[line : line + _CANDIDATES] for column in counts]
            share = (rest - int(fixed[line:stop].sum())) // (stop - line)
            pair = _best_pair(share, *candidates)
            if pair is None:
                break
            for (_, order), column, chosen in zip(pools, counts, pair, strict=True):
                order[[line, line + chosen]] = order[[line + chosen, line]]
                column[[line, line + chosen]] = column[[line + chosen, line]]
            rest -= int(fixed[line]) + sum(int(column[line]) for column in counts)
            line += 1
        if line == stop:
            break
    return line


def _best_pair(tokens: int, keys: np.ndarray, values: np.ndarray) -> tuple[int, int] | None:
    """Positions of a key and a value whose counts together come nearest to `tokens` from below,
    with the shortest key."""
    key_counts, key_places = np.unique(keys, return_index=True)
    value_counts, value_places = np.unique(values, return_index=True)
    totals = np.add.outer(key_counts, value_counts)
    totals[totals > tokens] = -1
    key, value = np.unravel_index(totals.argmax(), totals.shape)
    return None if totals[key, value] < 0 else (int(key_places[key]), int(value_places[value]))


# --- essays ---------------------------------------------------------------------------------------


def fill_with_essay(
    items: Iterable[Piece], budget: ContextBudget, corpus: Haystack
) -> list[Piece] | None:
    """As many words of the essays as fit, joined by blanks, with each item at the sentence boundary
    nearest to its depth in tokens. With a `budget.size`, so many words, and each item behind the
    share of the sentences that its depth says, as upstream counts."""
    # A corpus that is too short is repeated.
    passes = 1
    size = budget.size
    units, starts = _essay_units(corpus, budget.encoder, passes)
    while len(units) < size if size else units.offsets[-1] < budget.tokens:
        passes *= 2
        units, starts = _essay_units(corpus, budget.encoder, passes)

    # A needle stands between two sentences, so it begins with a blank, as every word does.
    items, left = by_depth([replace(item, text=" " + item.text) for item in items], budget)

    if size is not None:
        boundaries = np.append(starts[: np.searchsorted(starts, size)], size)
        places = [int(boundaries[int((len(boundaries) - 1) * item.depth)]) for item in items]
        pieces = interleaved(items, places, units, size)
        return _joined_by_blanks(pieces, budget)

    # The count is exact but for the words at a needle: from the most words down.
    most = int(np.searchsorted(units.offsets, left, side="right")) + 1
    for words in range(min(most, len(units)), -1, -1):
        # Each item at the boundary nearest to its depth, of all that there are in so many words.
        boundaries = np.append(starts[: np.searchsorted(starts, words)], words)
        offsets = units.offsets[boundaries]
        wanted = np.array([item.depth for item in items]) * offsets[-1]
        after = np.minimum(np.searchsorted(offsets, wanted), len(offsets) - 1)
        before = np.maximum(after - 1, 0)
        is_before = wanted - offsets[before] < offsets[after] - wanted
        nearest = np.where(is_before, before, after).tolist()
        places = boundaries[_apart(nearest, len(boundaries))].tolist()

        pieces = interleaved(items, places, units, words)
        context = _joined_by_blanks(pieces, budget)
        if sum(len(piece.tokens) for piece in context) <= budget.tokens:
            return context
    return None


@lru_cache(maxsize=8)
def _essay_units(corpus: Haystack, encoder: PieceEncoder, passes: int) -> tuple[Units, np.ndarray]:
    """The words of a corpus, each with the blank before it, and where sentences start; later passes
    begin at the second essay."""
    words = list(corpus.words)
    starts = [np.asarray(corpus.sentence_starts)]
    again = starts[0][starts[0] >= corpus.restart]
    for _ in range(passes - 1):
        starts.append(again - corpus.restart + len(words))
        words += corpus.words[corpus.restart :]
    return encode_units([" " + word for word in words], encoder), np.concatenate(starts)

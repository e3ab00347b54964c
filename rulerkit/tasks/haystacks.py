"""What needles and statements are hidden in: essays, repeated sentences, or lines of other needles.

Each function fills a budget with as much haystack as fits and puts passages at their depths; it
returns None where the passages alone do not fit.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from operator import attrgetter

import numpy as np

from rulerkit.corpora import load_haystack
from rulerkit.example import ContextBudget, Passage, Piece
from rulerkit.pieces import PieceEncoder, Units, encode_units, settle

SENTENCES = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)
LINE = " ".join(SENTENCES)

_ADJUSTED = 8
"""How many of the last lines of needles are chosen again so that their counts close the gap."""
_CANDIDATES = 512
"""Among how many keys and values each of them is chosen."""


def _by_depth(items: Iterable[Passage]) -> list[Passage]:
    return sorted(items, key=attrgetter("depth"))


def _apart(places: list[int], count: int) -> list[int]:
    """Distinct places below `count` near the given ones, which increase; the given ones where
    there are more passages than places."""
    if count < len(places):
        return [min(place, count) for place in places]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + 1)
    return [min(place, count - len(places) + i) for i, place in enumerate(places)]


def _between(
    items: Sequence[Passage],
    places: Sequence[int],
    end: int,
    budget: ContextBudget,
    stretch: Callable[[int, int], list[Piece]],
) -> list[Piece]:
    """The items before their places, and the stretches of haystack between them, up to `end`."""
    pieces, at = [], 0
    for item, place in zip([*items, None], [*places, end], strict=True):
        pieces += stretch(at, place) if place > at else []
        pieces += [budget.piece(item)] if item else []
        at = place
    return pieces


def _num_tokens(pieces: Iterable[Piece]) -> int:
    return sum(piece.num_tokens for piece in pieces)


# --- sentences ------------------------------------------------------------------------------------


def fill_with_sentences(
    items: Iterable[Passage], budget: ContextBudget, blanks: bool = False
) -> list[Piece] | None:
    """Lines of five sentences with the items before distinct lines.

    Lines are joined by newlines, or (edition 2024 of variable tracking) by blanks after the newline
    that ends a line of sentences. The last line is cut at the sentence that still fits: upstream
    leaves up to 25 tokens unused, which no score can show.
    """
    items = _by_depth(items)
    left = budget.tokens - _num_tokens(map(budget.piece, items))
    most = max(0, left // len(budget.encoder(LINE + "\n"))) + 2 * blanks
    for lines in range(most, -1, -1):
        for num_sentences in (4, 3, 2, 1, 0):
            short = " ".join(SENTENCES[:num_sentences])
            rows = [LINE + "\n"] * lines + [short + "\n"] * bool(short)
            pieces = _rows_with_items(rows, items, budget.encoder, blanks)
            if _num_tokens(pieces) <= budget.tokens:
                return pieces
    return None


def _rows_with_items(
    rows: list[str], items: list[Passage], encoder: PieceEncoder, blanks: bool
) -> list[Piece]:
    """The rows with the items before them; equal rows that follow each other are three pieces: the
    first, the last, and those between."""
    places = _apart([int(item.depth * len(rows)) for item in items], len(rows))
    passages: list[tuple[Passage, int]] = []
    at = 0
    for item, place in zip([*items, None], [*places, len(rows)], strict=True):
        for text in dict.fromkeys(rows[at:place]):
            count = rows[at:place].count(text)
            times = (1, count - 2, 1) if count > 1 else (1,)
            passages += [(Passage("haystack", text), number) for number in times if number]
        if item:
            passages.append((item, 1))
        at = place
    texts = [passage.text for passage, _ in passages]
    if blanks:
        texts = [
            " " + (passage.text if passage.role == "haystack" else passage.text.removesuffix("\n"))
            for passage, _ in passages
        ]
        texts = settle([texts[0].removeprefix(" "), *texts[1:]])
        texts[-1] += "\n"
    return [
        Piece(text * times, one.role, np.tile(encoder(text), times), one.key, one.value)
        for text, (one, times) in zip(texts, passages, strict=True)
    ]


# --- lines of needles -----------------------------------------------------------------------------


def pool_size(length: int, share: int) -> int:
    """One pool entry for every `share` tokens of the length, as a power of two from 1024 on."""
    return max(1024, 1 << (length // share - 1).bit_length())


def fill_with_needles(
    items: Iterable[Passage],
    budget: ContextBudget,
    before: tuple[str, str],
    keys: Units,
    values: Units,
) -> list[Piece] | None:
    """Lines `before[0] key before[1] value` with the items among them.

    Every example pairs keys and values anew. They come from pools whose sizes follow from the
    length alone, so an example does not depend on what was generated before it. The count of every
    line is known before it is written, so the last lines are chosen to fill the budget.
    """
    items = _by_depth(items)
    left = budget.tokens - _num_tokens(map(budget.piece, items))
    if left < 0:
        return None
    frames = encode_units(before, budget.encoder)
    orders = []
    for pool, used in (
        (keys, [f" {item.key}" for item in items]),
        (values, [f" {item.value}.\n" for item in items]),
    ):
        order = budget.random.permutation(len(pool))
        orders.append(order[~np.isin(order, [pool.position.get(text, -1) for text in used])])
    size = min(map(len, orders))
    key_order, value_order = (order[:size] for order in orders)
    lines = _choose_lines(left, int(frames.counts.sum()), keys, key_order, values, value_order)

    def stretch(start: int, stop: int) -> list[Piece]:
        key_at, value_at = key_order[start:stop], value_order[start:stop]
        zeros = np.zeros_like(key_at)
        row = budget.rows(
            (frames, zeros),
            (keys, key_at),
            (frames, zeros + 1),
            (values, value_at),
            describe=lambda i: (
                "distractor",
                keys.texts[key_at[i]].strip(),
                values.texts[value_at[i]].strip().removesuffix("."),
            ),
        )
        return [row]

    places = [min(int(item.depth * (lines + 1)), lines) for item in items]
    return _between(items, places, lines, budget, stretch)


def _choose_lines(
    left: int,
    fixed: int,
    keys: Units,
    key_order: np.ndarray,
    values: Units,
    value_order: np.ndarray,
) -> int:
    """How many lines fit into the tokens left. The last of them are chosen again, from entries not
    used, so that their counts add up to what is left; the orders are changed in place."""
    total = np.cumsum(fixed + keys.counts[key_order] + values.counts[value_order])
    lines = int(np.searchsorted(total, left, side="right"))
    first = max(0, lines - _ADJUSTED)
    gap = left - (int(total[first - 1]) if first else 0)
    key_counts, value_counts = keys.counts[key_order[first:]], values.counts[value_order[first:]]
    longest = fixed + int(key_counts.max()) + int(value_counts.max())
    stop = min(lines + (gap > (lines - first) * longest), len(key_order))
    for line in range(first, stop):
        near = slice(line, line + _CANDIDATES)
        pair = _best_pair(
            gap // (stop - line) - fixed,
            keys.counts[key_order[near]],
            values.counts[value_order[near]],
        )
        if pair is None:
            return line
        for order, chosen in zip((key_order, value_order), pair, strict=True):
            order[line], order[line + chosen] = order[line + chosen], order[line]
        gap -= fixed + int(keys.counts[key_order[line]] + values.counts[value_order[line]])
    return stop


def _best_pair(tokens: int, keys: np.ndarray, values: np.ndarray) -> tuple[int, int] | None:
    """Positions of a key and a value whose counts together come nearest to `tokens` from below."""
    key_counts, key_at = np.unique(keys, return_index=True)
    value_counts, value_at = np.unique(values, return_index=True)
    fitting = np.searchsorted(value_counts, tokens - key_counts, side="right") - 1
    sums = np.where(fitting >= 0, key_counts + value_counts[np.maximum(fitting, 0)], -1)
    best = int(np.argmax(sums))
    return (int(key_at[best]), int(value_at[fitting[best]])) if sums[best] >= 0 else None


# --- essays ---------------------------------------------------------------------------------------


def fill_with_essay(
    items: Iterable[Passage], budget: ContextBudget, corpus: str
) -> list[Piece] | None:
    """As many words of the essays as fit, joined by blanks, with each needle at the sentence
    boundary nearest to its depth in tokens."""
    encoder, passes = budget.encoder, 1
    units, starts = _essay_units(corpus, encoder, passes)
    while units.offsets[-1] < budget.tokens:
        passes *= 2
        units, starts = _essay_units(corpus, encoder, passes)
    items = [replace(item, text=" " + item.text) for item in _by_depth(items)]
    left = budget.tokens - _num_tokens(map(budget.piece, items))

    def stretch(start: int, stop: int) -> list[Piece]:
        bounds = sorted({start, start + 1, stop - 1, stop})  # the first and last word on their own
        return [Piece(units.text(a, b), "haystack", units.span(a, b)) for a, b in pairwise(bounds)]

    def recoded(piece: Piece, text: str) -> Piece:
        return replace(piece, text=text, tokens=encoder(text))

    for words in range(int(np.searchsorted(units.offsets, left, side="right")) + 1, -1, -1):
        places = _sentence_boundaries(items, units, starts, words)
        pieces = _between(items, places, words, budget, stretch)
        pieces[0] = recoded(pieces[0], pieces[0].text[1:])
        pieces[-1] = recoded(pieces[-1], pieces[-1].text + "\n")
        if _num_tokens(pieces) <= budget.tokens:
            return pieces
    return None


@lru_cache(maxsize=8)
def _essay_units(name: str, encoder: PieceEncoder, passes: int) -> tuple[Units, np.ndarray]:
    """The words of a corpus, each with the blank before it, and where sentences start; later passes
    begin at the second essay, so that the opening comes only once."""
    corpus = load_haystack(name)
    words, starts = list(corpus.words), [np.asarray(corpus.sentence_starts)]
    again = starts[0][starts[0] >= corpus.restart]
    for _ in range(passes - 1):
        starts.append(again - corpus.restart + len(words))
        words += corpus.words[corpus.restart :]
    return encode_units([" " + word for word in words], encoder, keep=True), np.concatenate(starts)


def _sentence_boundaries(
    items: list[Passage], units: Units, starts: np.ndarray, words: int
) -> list[int]:
    """For each needle the word before which it stands: distinct boundaries while there are
    enough."""
    allowed = np.append(starts[: np.searchsorted(starts, words)], words)
    at = units.offsets[allowed]
    wanted = np.array([item.depth for item in items]) * at[-1]
    right = np.minimum(np.searchsorted(at, wanted), len(at) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.where(wanted - at[left] < at[right] - wanted, left, right)
    return [int(allowed[i]) for i in _apart(nearest.tolist(), len(allowed))]

"""What needles and statements are hidden in: essays, repeated sentences, or lines of other needles.

Each function fills a budget with as much haystack as fits and puts passages at their depths; it
returns None where the passages alone do not fit.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise, product
from operator import attrgetter

import numpy as np

from rulerkit.corpora import Haystack
from rulerkit.example import ContextBudget, Piece
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
_CUT = re.compile(
    "(?=[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
    "|(?<=.{256})"
)
"""Where a text without blanks may be cut: before a character of a script that writes none between
words (Thai to Burmese, Khmer, Japanese, Chinese), and anywhere in what is no word."""


def _by_depth(items: Iterable[Piece], budget: ContextBudget) -> tuple[list[Piece], int]:
    """The items in order, and the tokens that they leave of the budget."""
    ordered = [budget.encoded(item) for item in sorted(items, key=attrgetter("depth"))]
    return ordered, budget.tokens - _num_tokens(ordered)


def _apart(places: list[int], count: int) -> list[int]:
    """Distinct places below `count` near the given ones, which increase; the given ones where
    there are more passages than places."""
    if count < len(places):
        return [min(place, count) for place in places]
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + 1)
    return [min(place, count - len(places) + i) for i, place in enumerate(places)]


def _between(
    items: Sequence[Piece],
    places: Sequence[int],
    end: int,
    stretch: Callable[[int, int], list[Piece]],
) -> list[Piece]:
    """The items before their places, and the stretches of haystack between them, up to `end`."""
    pieces, start = [], 0
    for item, place in zip(items, places, strict=True):
        pieces += [*stretch(start, place), item]
        start = place
    return pieces + stretch(start, end)


def _runs(units: Units, start: int, stop: int) -> list[Piece]:
    """A stretch of a row of texts: the first, the last, and those between in one piece."""
    if start >= stop:
        return []
    bounds = sorted({start, start + 1, stop - 1, stop})
    return [Piece(units.text(a, b), "haystack", units.span(a, b)) for a, b in pairwise(bounds)]


def _joined_by_blanks(pieces: list[Piece], budget: ContextBudget) -> list[Piece]:
    """Pieces with a blank before each of their texts: without that of the first, and with a newline
    at the end. A piece that ends in a blank passes it to the next one."""
    texts = settle([piece.text for piece in pieces])
    texts[0] = texts[0][1:]
    texts[-1] += "\n"
    return [
        piece if piece.text == text else budget.encoded(replace(piece, text=text))
        for piece, text in zip(pieces, texts, strict=True)
    ]


def _num_tokens(pieces: Iterable[Piece]) -> int:
    return sum(piece.num_tokens for piece in pieces)


# --- sentences ------------------------------------------------------------------------------------


def fill_with_sentences(
    items: Iterable[Piece], budget: ContextBudget, blanks: bool = False
) -> list[Piece] | None:
    """Lines of five sentences with the items before distinct lines.

    Lines are joined by newlines, or (edition 2024 of variable tracking) by blanks after the newline
    that ends a line of sentences. The last line is cut at the sentence that still fits: upstream
    leaves up to 25 tokens unused, which no score can show.
    """
    blank = " " * blanks
    if blanks:
        items = [replace(item, text=blank + item.text.removesuffix("\n")) for item in items]
    items, left = _by_depth(items, budget)
    line = f"{blank}{LINE}\n"
    most = max(0, left // len(budget.encoder(line))) + 2 * blanks
    units = _lines(line, budget.encoder, 1 << most.bit_length())
    for lines, sentences in product(range(most, -1, -1), range(len(SENTENCES) - 1, -1, -1)):
        short = blank + " ".join(SENTENCES[:sentences]) + "\n"
        last = budget.encoded(Piece(short, "haystack")) if sentences else None
        end = lines + bool(last)
        places = _apart([int(item.depth * end) for item in items], end)
        pieces = _between(items, places, end, partial(_lines_between, units, lines, last))
        pieces = _joined_by_blanks(pieces, budget) if blanks else pieces
        if _num_tokens(pieces) <= budget.tokens:
            return pieces
    return None


def _lines_between(
    units: Units, lines: int, last: Piece | None, start: int, stop: int
) -> list[Piece]:
    """A stretch of lines, the last of which, behind all others, is another one."""
    runs = _runs(units, start, min(stop, lines))
    return [*runs, last] if last and start <= lines < stop else runs


@lru_cache(maxsize=8)
def _lines(line: str, encoder: PieceEncoder, count: int) -> Units:
    return encode_units([line] * count, encoder)


# --- lines of needles -----------------------------------------------------------------------------


def pool_size(length: int, share: int) -> int:
    """One pool entry for every `share` tokens of the length, as a power of two from 1024 on."""
    return max(1024, 1 << (length // share - 1).bit_length())


def fill_with_needles(
    items: Iterable[Piece],
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
    items, left = _by_depth(items, budget)
    if left < 0:
        return None
    frames = encode_units(before, budget.encoder)
    key_order = keys.others([f" {item.key}" for item in items], budget.random)
    value_order = values.others([f" {item.value}.\n" for item in items], budget.random)
    size = min(len(key_order), len(value_order))
    columns = ((keys, key_order[:size]), (values, value_order[:size]))
    lines = _choose_lines(left, int(frames.counts.sum()), columns)

    def stretch(start: int, stop: int) -> list[Piece]:
        if start == stop:
            return []
        zeros = np.zeros(stop - start, dtype=int)
        row = budget.rows(
            (frames, zeros),
            (keys, key_order[start:stop]),
            (frames, zeros + 1),
            (values, value_order[start:stop]),
            describe=lambda i: (
                "distractor",
                keys.texts[key_order[start + i]].strip(),
                values.texts[value_order[start + i]].strip().removesuffix("."),
            ),
        )
        return [row]

    places = [min(int(item.depth * (lines + 1)), lines) for item in items]
    return _between(items, places, lines, stretch)


def _choose_lines(left: int, fixed: int, columns: Sequence[tuple[Units, np.ndarray]]) -> int:
    """How many lines, of `fixed` tokens and an entry of each column, fit into the tokens left.

    The last of them are chosen again, from entries not used, so that their counts add up to what is
    left; the orders are changed in place.
    """

    def counts(start: int, stop: int | None = None) -> list[np.ndarray]:
        return [units.counts[order[start:stop]] for units, order in columns]

    total = np.cumsum(fixed + sum(counts(0)))
    lines = int(np.searchsorted(total, left, side="right"))
    first = max(0, lines - _ADJUSTED)
    gap = left - (int(total[first - 1]) if first else 0)
    longest = fixed + sum(int(column.max()) for column in counts(first))
    one_more = min(lines + (gap > (lines - first) * longest), len(total))
    for stop in (one_more, lines):
        rest = gap
        for line in range(first, stop):
            tokens = rest // (stop - line) - fixed
            pair = _best_pair(tokens, *counts(line, line + _CANDIDATES))
            if pair is None:
                break
            for (_, order), chosen in zip(columns, pair, strict=True):
                order[[line, line + chosen]] = order[[line + chosen, line]]
            rest -= fixed + sum(int(column[0]) for column in counts(line, line + 1))
        else:
            return stop
    return line


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
    items: Iterable[Piece], budget: ContextBudget, corpus: Haystack
) -> list[Piece] | None:
    """As many words of the essays as fit, joined by blanks, with each needle at the sentence
    boundary nearest to its depth in tokens. In scripts without blanks a word is a sentence, and the
    last one is cut where the budget ends."""
    encoder, passes = budget.encoder, 1
    while _essay_units(corpus, encoder, passes)[0].offsets[-1] < budget.tokens:
        passes *= 2
    units, starts = _essay_units(corpus, encoder, passes)
    spaced = [replace(item, text=" " + item.text) for item in items]
    items, left = _by_depth(spaced, budget)

    def ended(pieces: list[Piece], last: str) -> list[Piece]:
        return _joined_by_blanks([*pieces, Piece(last, "haystack")] if last else pieces, budget)

    def count(pieces: list[Piece], last: str) -> int:
        return _num_tokens(ended(pieces, last))

    most = int(np.searchsorted(units.offsets, left, side="right")) + 1
    for words in range(min(most, len(units)), -1, -1):
        places = _sentence_boundaries(items, units, starts, words)
        pieces = _between(items, places, words, partial(_runs, units))
        after = "".join(units.texts[words : words + 1])
        parts = ["", *(after[: cut.start()] for cut in _CUT.finditer(after, 2))]
        if fitting := bisect_right(parts, budget.tokens, key=partial(count, pieces)):
            return ended(pieces, parts[fitting - 1])
    return None


@lru_cache(maxsize=8)
def _essay_units(corpus: Haystack, encoder: PieceEncoder, passes: int) -> tuple[Units, np.ndarray]:
    """The words of a corpus, each with the blank before it, and where sentences start; later passes
    begin at the second essay, so that the opening comes only once."""
    words, starts = list(corpus.words), [np.asarray(corpus.sentence_starts)]
    again = starts[0][starts[0] >= corpus.restart]
    for _ in range(passes - 1):
        starts.append(again - corpus.restart + len(words))
        words += corpus.words[corpus.restart :]
    return encode_units([" " + word for word in words], encoder, keep=True), np.concatenate(starts)


def _sentence_boundaries(
    items: list[Piece], units: Units, starts: np.ndarray, words: int
) -> list[int]:
    """For each needle the word before which it stands: distinct boundaries while there are
    enough."""
    allowed = np.append(starts[: np.searchsorted(starts, words)], words)
    offsets = units.offsets[allowed]
    wanted = np.array([item.depth for item in items]) * offsets[-1]
    right = np.minimum(np.searchsorted(offsets, wanted), len(offsets) - 1)
    left = np.maximum(right - 1, 0)
    nearest = np.where(wanted - offsets[left] < offsets[right] - wanted, left, right)
    places: list[int] = allowed[_apart(nearest.tolist(), len(allowed))].tolist()
    return places

"""Token ids of a text's pieces, such that the ids of the pieces, joined, are the ids of the whole
text.

A prompt of 128K tokens takes about half a second to tokenize; joined from pieces whose ids are
remembered it takes about a millisecond. The condition is where to cut: **before a whole run of
blanks** or **after all newlines of a run** (see `PieceEncoder.clean_cut`). Tokenizers still differ
in how they treat a text that stands alone: SentencePiece puts a blank before it, GPT-NeoX merges
newlines at its end. Two anchors fix this, whose ids are taken off again: a newline before the
piece, a letter behind it. Which ones a tokenizer needs is tried at first use on every kind of
border; where none is exact, prompts are encoded whole.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, chain

import numpy as np

from rulerkit.generation.tokenizers import Ids, Tokenizer

_REMEMBERED = 300_000
_AT_ONCE = 32_768
"""How many texts are encoded in one batch: libraries hold far more for each than its ids."""

_BORDERS = (
    "It grew.| One of the special magic numbers for able-cat is: 1234567.| (He| wrote"
    '| "yes",| \'tis| 99%)',
    "naïve café| Ünder| — dash| 中文| …| end.\n|What is",
    "There and back again.\n|The grass is green.| Here we go.\n|VAR ABCDE = 12345\n"
    "|VAR B = VAR A \n|One of",
    "text above.\n\n\n\n|Memorize and| track.\n\n|Document 12:\n|1939 was (cold).\n\n"
    '|"Quoted" text?\n\n|Answer',
    "Document 1:\n|The Title (film)\n|Éric was here, 3.5 km²\n\n|'Tis\n\n|(b) ok\n\n|$5\n\n"
    "|中文\n\n|Question",
    "list:| 1.| ad| 2.| zoom-in| 33.| abcdef| ...| ...| qwerty\n|Question: ok?| Answer:",
    "One| 550e8400-e29b-41d4-a716-446655440000| is:"
    "| 1d4e29b0-8400-41d4-a716-446655440000.\n|One|  they:|  A",
    " VAR ABCDE = 12345| VAR XYZWQ = VAR ABCDE|  The grass is green.\n\n|Question",
)
"""Every kind of border that tasks cut at: texts, cut at the bars."""
_BLANK_AFTER_NEWLINE = (
    "back again.\n| The grass is green.\n| VAR ABCDE = 12345|  The grass is green.\n| The"
)


def settle(texts: Sequence[str]) -> list[str]:
    """The same texts, with blanks at the end of one moved to the start of the next."""
    settled, carried = [], ""
    for text in texts:
        text = carried + text
        settled.append(text.rstrip(" "))
        carried = text[len(settled[-1]) :]
    settled[-1] += carried
    return settled


class PieceEncoder:
    """Encodes pieces of a text, each once, and remembers them.

    `ids(text)` are the ids that `text` has inside a longer text (after a clean cut). `exact` says
    whether joining ids was found to be the same as encoding the whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids = lru_cache(_REMEMBERED)(lambda text: self.encode([text])[0])

        # The anchors in order of their cost: the first that are exact on every border are kept.
        for head, tail in (("", ""), ("", "Q"), ("\n", ""), ("\n", "Q")):
            self._head, self._tail = head, tail
            self._skip = len(tokenizer.encode(head))
            self._drop = len(tokenizer.encode("\n" + tail)) - len(tokenizer.encode("\n"))
            self.exact = all(map(self._joins, _BORDERS))
            if self.exact:
                break

        # No anchor is exact: prompts are encoded whole, and pieces only counted.
        if not self.exact:
            self._head, self._tail, self._skip, self._drop = "", "", 0, 0
        self._blank_after_newline = self.exact and self._joins(_BLANK_AFTER_NEWLINE)

    def _joins(self, text: str) -> bool:
        """Whether the ids of a text's pieces, cut at the bars, are those of the text."""
        first, *others = text.split("|")
        joined = np.concatenate([*self.encode([first], starts=True), *self.encode(others)])
        return np.array_equal(joined, self.tokenizer.encode(text.replace("|", "")))

    def clean_cut(self, left: str, right: str) -> bool:
        """Whether a text may be cut between `left` and `right`: before a run of blanks or after a
        run of newlines, not next to other white space; between a newline and a blank only where the
        tokenizer was found to keep the two apart (RWKV does not)."""
        # A run of blanks belongs to what follows it, in every tokenizer that merges blanks.
        if right.startswith(" "):
            rest = right.lstrip(" ")
            if not rest or rest[0].isspace():
                return False
            if left.endswith("\n"):
                return self._blank_after_newline and not left[-2:-1].isspace()
            return not left[-1:].isspace()

        # A run of newlines belongs to what stands before it.
        return left.endswith("\n") and bool(right) and not right[0].isspace()

    def encode(self, texts: Sequence[str], starts: bool = False, ends: bool = False) -> list[Ids]:
        """The ids of many pieces, in one batch, without remembering them. `starts` and `ends`: the
        whole text begins or ends with each of them, where no anchor is needed."""
        # The anchor is encoded with the piece, and its ids are taken off again.
        head, skip = ("", 0) if starts else (self._head, self._skip)
        tail, drop = ("", 0) if ends else (self._tail, self._drop)
        anchored = [head + text + (tail if text.endswith("\n") else "") for text in texts]
        encoded = self.tokenizer.encode_many(anchored) if anchored else []
        pieces = []
        for text, ids in zip(texts, encoded, strict=True):
            stop = len(ids) - (drop if text.endswith("\n") else 0)
            pieces.append(np.asarray(ids[skip:stop], dtype=np.int32))
        return pieces


piece_encoder = lru_cache(maxsize=16)(PieceEncoder)
"""The piece encoder of a tokenizer, made at first use and kept with its memory."""


# --- rows of texts --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Units:
    """A row of texts (words, lines, documents) with their token ids side by side, so that a
    haystack is counted by subtraction and cut by slicing.

    `counts` are the tokens of each text; text i has the ids `ids[offsets[i]:offsets[i + 1]]`.
    """

    texts: Sequence[str]
    counts: np.ndarray
    ids: Ids

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def offsets(self) -> np.ndarray:
        """Where the ids of each text begin, and where those of the last end."""
        return np.concatenate([[0], np.cumsum(self.counts)])

    @cached_property
    def text(self) -> tuple[str, list[int]]:
        """All texts joined, and where each begins in it and the last ends: slicing one long text is
        faster than joining words."""
        return "".join(self.texts), [0, *accumulate(map(len, self.texts))]

    @cached_property
    def position(self) -> dict[str, int]:
        """Where each text stands."""
        return {text: i for i, text in enumerate(self.texts)}

    def first(self, count: int) -> "Units":
        """The first so many texts."""
        return Units(self.texts[:count], self.counts[:count], self.ids[: self.offsets[count]])

    def others(self, texts: Iterable[str], random: np.random.RandomState) -> np.ndarray:
        """The positions of all texts but these, in a random order."""
        order = random.permutation(len(self))
        return order[~np.isin(order, [self.position.get(text, -1) for text in texts])]

    def pick(self, order: np.ndarray) -> Ids:
        """The ids of the texts at these positions, one after the other."""
        # Positions of all ids at once: numpy copies a million of them in a few milliseconds.
        counts = self.counts[order]
        starts = self.offsets[order] - np.cumsum(counts) + counts
        return np.asarray(self.ids[np.arange(counts.sum()) + np.repeat(starts, counts)])


def joined(rows: Sequence[Units]) -> Units:
    """Several rows of texts as one."""
    return Units(
        list(chain.from_iterable(row.texts for row in rows)),
        np.concatenate([row.counts for row in rows]),
        np.concatenate([row.ids for row in rows]),
    )


def row_by_row(columns: Sequence[tuple[Units, np.ndarray]]) -> Units:
    """The first text of each column, then the second of each, and so on, as one row of texts. A
    column is its texts and the order in which they are taken; all orders have the same length."""
    units = joined([units for units, _ in columns])
    starts = accumulate((len(units) for units, _ in columns), initial=0)
    orders = [order + start for (_, order), start in zip(columns, starts, strict=False)]
    places = np.stack(orders, axis=1).ravel()
    texts = [units.texts[place] for place in places.tolist()]
    return Units(texts, units.counts[places], units.pick(places))


def encode_units(texts: Sequence[str], encoder: PieceEncoder) -> Units:
    """Texts as pieces of a longer text. Words repeat many times in a haystack, so each distinct
    text is encoded once."""
    distinct = list(dict.fromkeys(texts))
    batches = (distinct[i : i + _AT_ONCE] for i in range(0, len(distinct), _AT_ONCE))
    ids = dict(zip(distinct, chain.from_iterable(map(encoder.encode, batches)), strict=True))
    rows = [ids[text] for text in texts]
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    return Units(texts, counts, np.concatenate([np.empty(0, np.int32), *rows]))


def numbered(form: str, encoder: PieceEncoder, least: int) -> Units:
    """`form` with at least the numbers from 1 to `least`; the first has no blank before it."""
    return _numbered(form, encoder, 1 << max(10, least.bit_length()))


@lru_cache(maxsize=16)
def _numbered(form: str, encoder: PieceEncoder, last: int) -> Units:
    first, *others = [form.format(number) for number in range(1, last + 1)]
    return encode_units([first.lstrip(" "), *others], encoder)

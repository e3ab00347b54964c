"""Token ids of a text's pieces, such that the ids of the pieces, joined, are the ids of the whole
text.

A prompt of 128K tokens takes about half a second to tokenize; joined from pieces whose ids are
remembered it takes about a millisecond. The condition is where to cut: **before a whole run of
blanks** or **after all newlines of a run** (see `PieceEncoder.clean_cut`). Tokenizers still differ
in how they treat a text that stands alone: SentencePiece puts a blank before it, GPT-NeoX merges
newlines at its end. Two anchors mend this: a newline put before the piece, or a letter behind it,
whose ids are taken off again. Which anchors a tokenizer needs is found by trial on every kind of
border at first use; where none is exact, `PieceEncoder.exact` is False and prompts are encoded
whole.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from rulerkit.tokenizers import Ids, Tokenizer

RULES = 1
"""Raised whenever the ids of a piece would come out otherwise, so that ids kept on disk are made
anew."""

_HEAD, _TAIL = "\n", "Q"
_REMEMBERED = 300_000

_BORDERS = (  # every kind of border that tasks cut at; each row is one text in pieces
    (
        "It grew.",
        " One of the special magic numbers for able-cat is: 1234567.",
        " (He",
        " wrote",
        ' "yes",',
        " 'tis",
        " 99%)",
    ),
    ("naïve café", " Ünder", " — dash", " 中文", " …", " end.\n", "What is"),
    (
        "There and back again.\n",
        "The grass is green.",
        " Here we go.\n",
        "VAR ABCDE = 12345\n",
        "VAR B = VAR A \n",
        "One of",
    ),
    (
        "text above.\n\n\n\n",
        "Memorize and",
        " track.\n\n",
        "Document 12:\n",
        "1939 was (cold).\n\n",
        '"Quoted" text?\n\n',
        "Answer",
    ),
    (
        "Document 1:\n",
        "The Title (film)\n",
        "Éric was here, 3.5 km²\n\n",
        "'Tis\n\n",
        "(b) ok\n\n",
        "$5\n\n",
        "中文\n\n",
        "Question",
    ),
    (
        "list:",
        " 1.",
        " ad",
        " 2.",
        " zoom-in",
        " 33.",
        " abcdef",
        " ...",
        " ...",
        " qwerty\n",
        "Question: ok?",
        " Answer:",
    ),
    (
        "One",
        " 550e8400-e29b-41d4-a716-446655440000",
        " is:",
        " 1d4e29b0-8400-41d4-a716-446655440000.\n",
        "One",
        "  they:",
        "  A",
    ),
    (" VAR ABCDE = 12345", " VAR XYZWQ = VAR ABCDE", "  The grass is green.\n\n", "Question"),
)
_BLANK_AFTER_NEWLINE = (
    "back again.\n",
    " The grass is green.\n",
    " VAR ABCDE = 12345",
    "  The grass is green.\n",
    " The",
)


def settle(texts: Sequence[str]) -> list[str]:
    """The same texts, joined the same, with blanks at the end of one moved to the start of the
    next."""
    settled, carried = [], ""
    for text in texts:
        text = carried + text
        kept = text.rstrip(" ")
        settled.append(kept)
        carried = text[len(kept) :]
    if settled:
        settled[-1] += carried
    return settled


class PieceEncoder:
    """Encodes pieces of a text, each once, and remembers them.

    `encoder(text)` gives the ids that `text` has inside a longer text (after a clean cut);
    `encoder.start(text)` those it has at the very beginning. `exact` says whether joining ids was
    found to be the same as encoding the whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._memory: dict[str, Ids] = {}
        self._head = self._tail = False
        self.exact = self._calibrate()
        self._blank_after_newline = self.exact and self._joins(_BLANK_AFTER_NEWLINE)

    @property
    def fingerprint(self) -> str:
        """What the ids of a piece depend on: the vocabulary and the anchors in use."""
        return f"{self.tokenizer.fingerprint}-{int(self._head)}{int(self._tail)}"

    def clean_cut(self, left: str, right: str) -> bool:
        """Whether a text may be cut between `left` and `right`: before a run of blanks or after a
        run of newlines.

        Next to other white space it may not; between a newline and a blank only where the tokenizer
        was found to keep the two apart (RWKV does not).
        """
        if right.startswith(" "):
            rest = right.lstrip(" ")
            if not rest or rest[0].isspace():
                return False
            if left.endswith("\n"):
                return self._blank_after_newline and not left[-2:-1].isspace()
            return not left[-1:].isspace()
        return left.endswith("\n") and bool(right) and not right[0].isspace()

    def __call__(self, text: str) -> Ids:
        found = self._memory.get(text)
        return self.many([text])[0] if found is None else found

    def start(self, text: str) -> Ids:
        """The ids of a piece with which the whole text begins."""
        if not text:
            return np.empty(0, np.int32)
        if self._tail and text.endswith("\n"):
            return self.tokenizer.encode(text + _TAIL)[: -len(self._tail_ids)]
        return self.tokenizer.encode(text)

    def many(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of many pieces; those not met before are encoded in one batch."""
        new = [text for text in dict.fromkeys(texts) if text not in self._memory]
        fresh = dict(zip(new, self.fresh(new), strict=True))
        if len(self._memory) + len(fresh) > _REMEMBERED:
            self._memory.clear()
        found = [fresh[text] if text in fresh else self._memory.get(text) for text in texts]
        self._memory.update(fresh)
        return [self(text) if ids is None else ids for text, ids in zip(texts, found, strict=True)]

    def end(self, text: str) -> Ids:
        """The ids of a piece with which the whole text ends: nothing behind it keeps its newlines
        apart."""
        head = self.tokenizer.encode(_HEAD) if self._head else ()
        return self.tokenizer.encode((_HEAD if self._head else "") + text)[len(head) :]

    def joint(self, texts: Sequence[str], start: bool = False, end: bool = False) -> list[Ids]:
        """The ids of neighbours whose borders are not clean, encoded as one text and handed out
        again.

        `start` and `end` say that the whole text begins or ends with them. A token that spans two
        texts goes to the first.
        """
        encode = (
            self.tokenizer.encode
            if start and end
            else self.start
            if start
            else self.end
            if end
            else self
        )
        whole, ends, text = encode("".join(texts)), [], ""
        for part in texts[:-1]:
            text += part
            ends.append(min(len(self.start(text) if start else self(text)), len(whole)))
        return [
            np.asarray(ids) for ids in np.split(whole, np.maximum.accumulate(ends) if ends else [])
        ]

    @cached_property
    def _tail_ids(self) -> Ids:
        return self.tokenizer.encode(_HEAD + _TAIL)[len(self.tokenizer.encode(_HEAD)) :]

    def fresh(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of many pieces, in one batch, without remembering them."""
        head = _HEAD if self._head else ""
        framed = [
            head + text + (_TAIL if self._tail and text.endswith("\n") else "") for text in texts
        ]
        skip = len(self.tokenizer.encode(_HEAD)) if self._head else 0
        drop = len(self._tail_ids) if self._tail else 0
        encoded = self.tokenizer.encode_batch(framed)
        return [
            ids[skip : len(ids) - drop] if drop and text.endswith("\n") else ids[skip:]
            for text, ids in zip(texts, encoded, strict=True)
        ]

    def _calibrate(self) -> bool:
        """Try the ways in order of their cost; keep the first that is exact on every border."""
        for self._head, self._tail in ((False, False), (False, True), (True, False), (True, True)):
            if all(self._joins(row) for row in _BORDERS):
                return True
        self._head = self._tail = False
        return False

    def _joins(self, row: Sequence[str]) -> bool:
        rest = self.fresh(row[1:])
        joined = np.concatenate([self.start(row[0]), *rest])
        return np.array_equal(joined, self.tokenizer.encode("".join(row)))


@lru_cache(maxsize=16)
def piece_encoder(tokenizer: Tokenizer) -> PieceEncoder:
    """The piece encoder of a tokenizer, made at first use and kept with its memory."""
    return PieceEncoder(tokenizer)


# --- rows of texts ---


_AT_ONCE = 32_768
"""How many texts are encoded in one batch: libraries hold far more for each than its ids."""


class Units:
    """A row of texts (words, lines, documents) with their token ids side by side in one array.

    `offsets` has one more entry than there are texts: text i has the ids `ids[offsets[i]:offsets[i
    + 1]]`.
    """

    def __init__(
        self, texts: Sequence[str], encoder: PieceEncoder, kept: Path | None = None
    ) -> None:
        """`kept` is a file in which the ids are kept between processes; it must be named after
        texts and tokenizer."""
        self.texts = texts
        found = _read(kept)
        lengths, pool, which = found or _encoded(texts, encoder)
        if kept and not found:
            _write(kept, lengths, pool, which)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        self.counts: np.ndarray = lengths[which]
        self.offsets: np.ndarray = np.concatenate([[0], np.cumsum(self.counts)])
        self.ids: Ids = (
            pool if len(which) == len(lengths) else pool[ranges(starts[which], self.counts)]
        )

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def position(self) -> dict[str, int]:
        """Where each text stands."""
        return {text: i for i, text in enumerate(self.texts)}

    @cached_property
    def _joined(self) -> tuple[str, np.ndarray]:
        lengths = np.fromiter(map(len, self.texts), np.int64, len(self.texts))
        return "".join(self.texts), np.concatenate([[0], np.cumsum(lengths)])

    def text(self, start: int, stop: int) -> str:
        """The texts from `start` up to `stop`, joined: a slice of one long text."""
        text, ends = self._joined
        return text[ends[start] : ends[stop]]

    def span(self, start: int, stop: int) -> Ids:
        """The ids of the texts from `start` up to `stop`, as a view."""
        return np.asarray(self.ids[self.offsets[start] : self.offsets[stop]])

    def pick(self, order: np.ndarray) -> Ids:
        """The ids of the texts at these positions, one after the other."""
        return np.asarray(self.ids[ranges(self.offsets[order], self.counts[order])])

    def behind(self, first: "Units", order: np.ndarray) -> "Units":
        """The units of `first`, then those of this row at the given positions, without encoding
        anything again."""
        both = object.__new__(Units)
        both.texts = [*first.texts, *(self.texts[i] for i in order.tolist())]
        both.counts = np.concatenate([first.counts, self.counts[order]])
        both.offsets = np.concatenate([[0], np.cumsum(both.counts)])
        both.ids = np.concatenate([first.ids, self.pick(order)])
        return both


def _encoded(texts: Sequence[str], encoder: PieceEncoder) -> tuple[np.ndarray, Ids, np.ndarray]:
    """Token counts and joined ids of the distinct texts, and which of them each text is."""
    distinct = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    which = np.fromiter((distinct[text] for text in texts), np.int64, len(texts))
    order = list(distinct)
    chunks = (order[i : i + _AT_ONCE] for i in range(0, len(order), _AT_ONCE))
    encoded = [ids for chunk in chunks for ids in encoder.fresh(chunk)]
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
    return lengths, np.concatenate([np.empty(0, np.int32), *encoded]), which


def _read(path: Path | None) -> tuple[np.ndarray, Ids, np.ndarray] | None:
    """What `_write` kept; None where there is nothing that can be read."""
    try:
        if path is None:
            return None
        with np.load(path) as kept:
            return kept["lengths"], kept["pool"], kept["which"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def _write(path: Path, lengths: np.ndarray, pool: Ids, which: np.ndarray) -> None:
    """Keep ids for the next process; a folder that cannot be written only costs time."""
    part = path.with_name(f".{path.name}.{os.getpid()}.npz")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(part, lengths=lengths.astype(np.int32), pool=pool, which=which.astype(np.int32))
        part.replace(path)


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The numbers starts[0], starts[0]+1, ... (counts[0] of them), then those of starts[1], and so
    on."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(starts - ends + counts, counts))


def interleave(*columns: tuple[Units, np.ndarray]) -> tuple[list[str], np.ndarray, Ids]:
    """Rows of texts, one from each column in turn: all texts in order, their token counts, and all
    ids in one array.

    A column is its units and the order in which they are taken; all orders have the same length.
    """
    texts: list[str] = [""] * (len(columns) * len(columns[0][1]))
    shift, starts, counts = 0, [], []
    for number, (units, order) in enumerate(columns):
        texts[number :: len(columns)] = [units.texts[i] for i in order.tolist()]
        starts.append(units.offsets[order] + shift)
        counts.append(units.counts[order])
        shift += len(units.ids)
    ids = np.concatenate([units.ids for units, _ in columns])
    flat = np.stack(counts, axis=1).ravel()
    return texts, flat, ids[ranges(np.stack(starts, axis=1).ravel(), flat)]

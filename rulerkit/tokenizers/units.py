"""Rows of texts with their token ids side by side, so that a haystack is counted by subtraction and
cut by slicing."""

import os
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from rulerkit.tokenizers import Ids
from rulerkit.tokenizers.pieces import PieceEncoder

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

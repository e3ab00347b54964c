"""Haystack sentences: one line of five short sentences again and again, with needles or statements
between the lines."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rulerkit.example import ContextBudget, Passage, Piece
from rulerkit.tokenizers.pieces import PieceEncoder, settle

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

"""An example: one question put to a model, as a sequence of pieces with their token ids.

`Passage` is text with a role before it is tokenized; `Piece` is the same with its ids. A task
writes a `Draft` (what is asked, before the length is known) and fills a `ContextBudget` (what is
left of the length) with pieces; `generation.py` puts the two into an `Example`.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from random import Random
from typing import Any

import numpy as np

from rulerkit.pieces import PieceEncoder
from rulerkit.tokenizers import Ids

ROLES = (
    "template",
    "instruction",
    "demonstration",
    "haystack",
    "needle",
    "distractor",
    "question",
    "answer_prefix",
)
_MOST_DEPTHS = 64


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with its role, not yet tokenized; given in parts that meet at clean cuts, so that
    parts are remembered."""

    role: str
    parts: tuple[str, ...]
    key: str | None = None
    value: str | None = None

    @property
    def text(self) -> str:
        return "".join(self.parts)


def passage(role: str, *parts: str, key: str | None = None, value: str | None = None) -> Passage:
    """A passage of one or more parts."""
    return Passage(role, parts, key, value)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the prompt: its text, its role (one of ROLES), its token ids and, where it has
    them, key and value.

    Long runs of small pieces (the words of a list) are one piece that can be taken apart by
    `explode`.
    """

    text: str
    role: str
    tokens: Ids
    key: str | None = None
    value: str | None = None
    explode: Callable[[], list["Piece"]] | None = field(default=None, compare=False, repr=False)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Draft:
    """What an example asks, drawn before its length is known: what stands before and after the
    context."""

    head: tuple[Passage, ...]
    tail: tuple[Passage, ...]
    answer_prefix: str
    references: tuple[str, ...]
    plan: Any = None
    """What the task itself needs to fill the context: needles and depths, words, the question's
    number."""
    group: int | None = None
    """The number of what several examples share, such as the article of a question: they are not
    independent."""


@dataclass(frozen=True)
class ContextBudget:
    """What a task fills: `tokens` between head and tail of a prompt of `length` tokens, encoded by
    `encoder`.

    `random` is the example's second stream, for all that may differ between lengths.
    """

    length: int
    tokens: int
    encoder: PieceEncoder
    random: np.random.RandomState
    seed: int
    """The cell's seed: with it begin the shuffles of the protocol `paper`, which are the same in
    every example."""

    def piece(self, passage: Passage) -> Piece:
        """A passage with its ids, as they are after a clean cut."""
        ids = self.encoder.many(passage.parts)
        return Piece(
            passage.text,
            passage.role,
            ids[0] if len(ids) == 1 else np.concatenate(ids),
            passage.key,
            passage.value,
        )


@dataclass(frozen=True)
class ExampleStream:
    """The random stream of one example, keyed by seed, task name and index: the same at every
    length."""

    seed: int
    task: str
    index: int

    @cached_property
    def random(self) -> Random:
        return Random(f"{self.seed}/{self.task}/{self.index}")


@dataclass(frozen=True)
class Example:
    """One prompt with its references.

    `blocks` are the pieces in order, frame included, long runs unexploded; `context` is the range
    of blocks between the instruction and the question. `length` is the token budget that prompt,
    answer and thinking share.
    """

    index: int
    task: str
    length: int
    references: tuple[str, ...]
    max_new_tokens: int
    blocks: tuple[Piece, ...]
    context: tuple[int, int]
    whole_ids: Ids | None = field(default=None, repr=False)
    """The ids of the whole prompt where joining those of its pieces is not exact for this
    tokenizer."""
    group: int | None = None
    """See `Draft`."""

    @cached_property
    def prompt(self) -> str:
        """The whole text: template, context, question and answer prefix."""
        return "".join([block.text for block in self.blocks])

    @cached_property
    def ids(self) -> Ids:
        """The token ids of the prompt as an engine is sent them, int32: exactly one BOS where the
        model has one."""
        return (
            self.whole_ids
            if self.whole_ids is not None
            else np.concatenate([b.tokens for b in self.blocks])
        )

    @property
    def num_tokens(self) -> int:
        """The number of tokens of the prompt; known before the text is joined."""
        return (
            len(self.whole_ids)
            if self.whole_ids is not None
            else sum(len(b.tokens) for b in self.blocks)
        )

    @property
    def pieces(self) -> list[Piece]:
        """All pieces in order, runs of words taken apart."""
        return list(chain.from_iterable(b.explode() if b.explode else [b] for b in self.blocks))

    @property
    def digest(self) -> str:
        """A fingerprint of the prompt's text, 16 hexadecimal digits."""
        return hashlib.sha256(self.prompt.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @cached_property
    def depths(self) -> list[float]:
        """Where each needle lies: tokens before it in the haystack, as percent, at most 64 of
        them."""
        blocks = self.blocks[slice(*self.context)]
        total = sum(len(block.tokens) for block in blocks)
        found, before = [], 0
        for block in blocks:
            if block.role == "needle":
                found.append(round(100 * before / max(1, total - len(block.tokens)), 2))
            before += len(block.tokens)
        return found[:_MOST_DEPTHS]

    def text_of(self, *roles: str) -> str:
        """The text of all blocks with one of these roles, joined."""
        return "".join([block.text for block in self.blocks if block.role in roles])

    @property
    def answer_prefix(self) -> str:
        return self.text_of("answer_prefix")

    @property
    def context_text(self) -> str:
        return "".join([block.text for block in self.blocks[slice(*self.context)]])

    @property
    def input(self) -> str:
        """The user's part in upstream's sense: all but chat template and answer prefix."""
        return self.text_of(*(role for role in ROLES if role not in ("template", "answer_prefix")))


def run_of_words(
    text: str, tokens: Ids, words: Callable[[], Iterable[tuple[str, str, int]]]
) -> Piece:
    """One haystack piece for many words; `words` gives text, role and token count of each when they
    are asked for."""

    def explode() -> list[Piece]:
        pieces, start = [], 0
        for word, role, count in words():
            pieces.append(Piece(word, role, tokens[start : start + count]))
            start += count
        return pieces

    return Piece(text, "haystack", tokens, explode=explode)

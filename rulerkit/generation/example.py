"""An example: one question put to a model, as a sequence of pieces with their token ids.

A `Piece` is text with a role and, once it is tokenized, its token ids. A task makes a `Draft`
(what is asked, before the length is known) and fills a `ContextBudget` (what is left of the
length) with pieces; `generate.py` puts the two into an `Example`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, NamedTuple

import numpy as np

from rulerkit.common.json_text import digest
from rulerkit.generation.pieces import PieceEncoder, Units, row_by_row
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tokenizers import Ids, Tokenizer

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
class Piece:
    """A stretch of the prompt: its text, its role (one of ROLES), its token ids (none before it is
    tokenized) and, where it has them, key and value.

    `depth`, 0 to 1, is where a task puts a needle or a distractor. A long run of small pieces (the
    words of a list) is one piece, which `explode` takes apart.
    """

    text: str
    role: str
    tokens: Ids = field(default_factory=lambda: np.empty(0, np.int32))
    key: str | None = None
    value: str | None = None
    depth: float = 0.0
    explode: Callable[[], list["Piece"]] | None = field(default=None, compare=False, repr=False)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def pieces(self) -> list["Piece"]:
        """The small pieces of a run, or the piece itself."""
        return self.explode() if self.explode else [self]


@dataclass(frozen=True)
class Draft:
    """What an example asks, drawn before its length is known: the texts that stand before the
    context, if any, and after it."""

    instruction: str
    question: str
    answer_prefix: str
    references: tuple[str, ...]
    demonstration: str = ""
    """A solved example before the instruction."""
    hidden: Any = None
    """What the task hides in the context: needles, words, the question with its documents."""
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
    """The cell's seed: with it begin the shuffles of the protocols `paper` and `upstream`, which
    are the same in every example."""
    size: int | None = None
    """So many lines, words or documents make the context, whatever they take of the tokens: as
    upstream has it. None: as many as fit."""

    def rows(
        self,
        *columns: tuple[Units, np.ndarray],
        describe: Callable[[int], tuple[str, str | None, str | None]],
        ending: str = "",
    ) -> Piece:
        """One haystack piece for many rows; a row is one text of each column, joined.

        A column is its units and the order in which they are taken; all orders have the same
        length. `describe` gives role, key and value of a row when the piece is taken apart;
        `ending` follows the last row.
        """
        width = len(columns)
        units = row_by_row(columns)
        texts, counts, ids = list(units.texts), units.counts, units.ids

        # The last text is encoded anew with what follows it, because the two may share a token.
        if ending:
            last = self.encoder.ids(texts[-1] + ending)
            ids = np.concatenate([ids[: len(ids) - counts[-1]], last])
            texts[-1], counts[-1] = texts[-1] + ending, len(last)

        # A run of a hundred thousand rows is taken apart only where someone looks at it.
        def explode() -> list[Piece]:
            pieces = []
            start = 0
            for row, size in enumerate(counts.reshape(-1, width).sum(axis=1).tolist()):
                role, key, value = describe(row)
                text = "".join(texts[width * row : width * (row + 1)])
                pieces.append(Piece(text, role, ids[start : start + size], key, value))
                start += size
            return pieces

        return Piece("".join(texts), "haystack", ids, explode=explode)


@dataclass(frozen=True)
class ExampleStream:
    """What one example is drawn from. `random` begins with the cell's seed, the task's name and the
    index: it is the same at every length."""

    seed: int
    index: int
    random: Random


@dataclass(frozen=True)
class Example:
    """One prompt with its references.

    `blocks` are the pieces in order, template included, long runs unexploded; `context` is the
    range of blocks between the instruction and the question. `length` is the token budget that
    prompt, answer and thinking share.
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
        """The token ids that an engine is sent, int32: exactly one BOS where the model has one."""
        if self.whole_ids is not None:
            return self.whole_ids
        return np.concatenate([block.tokens for block in self.blocks])

    @cached_property
    def num_tokens(self) -> int:
        """The number of tokens of the prompt; known before ids are joined."""
        if self.whole_ids is not None:
            return len(self.whole_ids)
        return sum(len(block.tokens) for block in self.blocks)

    @property
    def pieces(self) -> list[Piece]:
        """All pieces in order, runs of words taken apart."""
        return [piece for block in self.blocks for piece in block.pieces]

    @property
    def digest(self) -> str:
        """A fingerprint of the prompt's text, 16 hexadecimal digits."""
        return digest(self.prompt)

    @cached_property
    def depths(self) -> list[float]:
        """Tokens before each needle in the haystack, as percent; at most 64 of them."""
        # The needle itself is not part of the haystack.
        total = sum(len(block.tokens) for block in self.context_blocks)
        depths = []
        before = 0
        for block in self.context_blocks:
            if block.role == "needle":
                depths.append(round(100 * before / max(1, total - len(block.tokens)), 2))
            before += len(block.tokens)
        return depths[:_MOST_DEPTHS]

    def text_of(self, *roles: str) -> str:
        """The text of all blocks with one of these roles, joined."""
        return "".join([block.text for block in self.blocks if block.role in roles])

    @property
    def answer_prefix(self) -> str:
        return self.text_of("answer_prefix")

    @property
    def context_blocks(self) -> tuple[Piece, ...]:
        return self.blocks[slice(*self.context)]

    @property
    def context_text(self) -> str:
        return "".join([block.text for block in self.context_blocks])

    @property
    def input(self) -> str:
        """The user's part in upstream's sense: all but chat template and answer prefix."""
        return self.text_of(*(role for role in ROLES if role not in ("template", "answer_prefix")))


# --- a prompt in two parts ------------------------------------------------------------------------


class Parts(NamedTuple):
    """A prompt in two parts, for methods that read the context first, such as compression of its
    keys and values: the context with all that stands before it, and the question with all that
    stands behind it.

    Both texts joined are the prompt's, and so are both rows of ids, int32, shape (tokens,). A token
    that spans both parts is in `question_ids`, so nothing of the question is in `context_ids`.
    """

    context: str
    """The beginning of the template, a demonstration, the instruction and the haystack."""
    question: str
    """The question, the end of the template and the answer prefix."""
    context_ids: Ids
    """Of a prompt without context BOS alone, or nothing."""
    question_ids: Ids
    """At least one."""


def split_prompt(example: Example, form: PromptFormat) -> Parts:
    """The parts of an example's prompt. `form` is the prompt format that it was made with."""
    _, end = example.context
    context = "".join([block.text for block in example.blocks[:end]])
    question = "".join([block.text for block in example.blocks[end:]])

    # The context ends at a clean cut, so the ids of its pieces are those of the prompt.
    size = sum(block.num_tokens for block in example.blocks[:end])
    if example.whole_ids is not None:
        # The prompt was encoded as one text. What its ids share with those of the context alone
        # stands for nothing but the context.
        alone = [*form.bos, *form.tokenizer.encode(context).tolist()]
        size = 0
        for one, other in zip(alone, example.ids.tolist(), strict=False):
            if one != other:
                break
            size += 1
    return Parts(context, question, example.ids[:size], example.ids[size:])


# --- answering without reading --------------------------------------------------------------------


def copy_beginning(example: Example, tokenizer: Tokenizer) -> str:
    """The first `max_new_tokens` tokens of the context, which score on cwe and fwe."""
    blocks = [block.tokens for block in example.context_blocks]
    ids = np.concatenate([np.empty(0, np.int32), *blocks])
    return tokenizer.decode(ids[: example.max_new_tokens])


def begins_alike(answer: str, beginning: str) -> bool:
    """Whether an answer looks like a copy: its first 100 letters, at least 20, are the beginning's,
    whatever blanks and lines stand between words."""
    copied = " ".join(answer.split())[:100]
    return len(copied) >= 20 and " ".join(beginning.split()).startswith(copied)

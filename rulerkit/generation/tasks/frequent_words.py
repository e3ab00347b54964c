"""Frequent words extraction (paper, section 3.3): the most frequent coded words of a text under a
zeta distribution.

A prompt of `{base: fwe, vocabulary: 5}` in 160 tokens, its lines wrapped:

    Read the following coded text and track the frequency of each coded word. Find the three most
    frequently appeared coded words. jpdxfi ... jpdxfi ... ... jpdxfi ... ... ... ... ... accsan
    jpdxfi ... ... ... ... ... ... ... ... ... ... ... frooax accsan ... ... ... ... jpdxfi ...
    jpdxfi
    Question: Do not provide any explanation. Please ignore the dots '....'. What are the three
    most frequently appeared words in the above coded text? Answer: According to the coded text
    above, the three most frequently appeared words are:

References: jpdxfi, accsan, frooax.
"""

import re
from bisect import bisect_right
from functools import lru_cache, partial
from random import Random
from string import ascii_lowercase
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.common.errors import UserError
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.pieces import PieceEncoder, Units, encode_units, joined, row_by_row
from rulerkit.generation.tasks.base import Growth, Positive, distinct
from rulerkit.generation.tasks.common_words import WordCount
from rulerkit.generation.tasks.haystacks import pool_size

_OPENING = (
    "Read the following coded text and track the frequency of each coded word. Find the {n} most "
    "frequently appeared coded words."
)
_QUESTION = (
    "Question: Do not provide any explanation. Please ignore the dots '....'. What are the {n} "
    "most frequently appeared words in the above coded text?"
)
_PREFIX = " Answer: According to the coded text above, the {n} most frequently appeared words are:"
_DOTS = "..."
_LONGEST_WORD = 100
_LONGEST_IN_TOKENS = 6
"""More tokens than a coded word usually takes, so that no word too many is cut."""
_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six"]
_NUMBERS += ["seven", "eight", "nine", "ten", "eleven", "twelve"]


@dataclass(frozen=True, kw_only=True)
class FrequentWords(WordCount):
    """Name the `k` most frequent coded words, ranks 2 to k + 1: the most frequent of all are dots.
    The word of rank r appears floor(N r^-alpha / zeta(alpha)) times."""

    family = "frequent_words"
    short_name = "fwe"
    new_tokens = (50, 3)
    question_form = (
        r"\nQuestion: .*What are the (\w+) most frequently appeared words "
        r"in the above coded text\?"
    )
    entry = re.compile("(?P<item>[a-z]+)")

    alpha: Annotated[float, Field(gt=1, lt=100)] = 2.0
    """With an alpha of 1 the sum of the frequencies does not converge."""
    k: Positive = 3
    word_length: Annotated[Positive, Field(le=_LONGEST_WORD)] = 6
    vocabulary: Positive | None = None
    """The number of distinct words, dots included; None takes a fiftieth of the length, as upstream
    does."""

    def __post_init__(self) -> None:
        if 26**self.word_length < 100 * self.k:
            raise ValueError(
                f"word_length is {self.word_length}: words of so many letters are too few for "
                f"{self.k} answers"
            )
        if self.vocabulary is not None and self.vocabulary < self.k + 2:
            raise ValueError(
                f"vocabulary is {self.vocabulary}: it must be at least k + 2 = {self.k + 2}"
            )

    @property
    def num_items(self) -> int:
        return self.k

    def make(self, stream: ExampleStream, length: int) -> Draft:
        # Only the answers: they are the same at every length.
        answers = distinct(self.k, partial(_draw, stream.random, self.word_length))
        n = _NUMBERS[self.k] if self.k < len(_NUMBERS) else str(self.k)
        return Draft(
            instruction=_OPENING.format(n=n),
            question=_QUESTION.format(n=n),
            answer_prefix=_PREFIX.format(n=n),
            references=tuple(answers),
            hidden=[_DOTS, *answers],
        )

    def growth(self, draft: Draft, length: int) -> Growth:
        # Until 2025 upstream kept no tokens free for the answer, so its prompts were too long.
        room = length if self.protocol == "paper" else length - self.answer_tokens
        return Growth(room // self.word_length, room // 32)

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        from scipy.special import zeta

        # Upstream's vocabulary is a fiftieth of the length.
        size = max(self.vocabulary or budget.length // 50, self.k + 2)
        if 26**self.word_length < 4 * size:
            raise UserError(
                f"{self.name} needs {size} distinct words: a word_length of {self.word_length} is "
                "too short"
            )

        # The most frequent words first: dots, the answers, and others from an endless row, of which
        # a longer prompt takes more: the tokens of each are counted once and kept.
        pool = _pool(budget.encoder, self.word_length, pool_size(max(budget.length, 50 * size), 16))
        answers = encode_units([" " + word for word in draft.hidden], budget.encoder)
        others = pool.others(answers.texts, budget.random)[: size - len(answers)]
        words = joined([answers, row_by_row([(pool, others)])])
        law = np.arange(1, len(words) + 1.0) ** -float(self.alpha) / float(zeta(self.alpha))

        def times(total: int) -> np.ndarray:
            """How often the word of each rank stands among so many."""
            return np.floor(total * law).astype(np.int64)

        if budget.size is not None:
            return self._of_size(words, times(budget.size), budget)

        # The most words that fit, whatever they are.
        totals = range(2 * budget.tokens + 2)
        total = bisect_right(totals, budget.tokens, key=lambda n: times(n) @ words.counts)

        # A few words fewer where the last entries round otherwise than counted, or two ranks are
        # tied: then the text would not tell which words are asked for.
        for number in range(total - 1, 0, -1):
            occurrences = times(number)
            if occurrences[self.k] <= occurrences[self.k + 1]:
                continue
            piece = self._text(words, occurrences, budget)
            if piece.num_tokens <= budget.tokens:
                return [piece]
        return None

    def _of_size(
        self, words: Units, occurrences: np.ndarray, budget: ContextBudget
    ) -> list[Piece] | None:
        """The text in which each word occurs so often, as upstream has it."""
        if occurrences[self.k] <= occurrences[self.k + 1]:
            return None
        text = self._text(words, occurrences, budget)

        # Until 2025 upstream let a text take the tokens of the answer, too. It keeps its layout
        # here, and loses as many of its last words as do not fit.
        over = text.num_tokens - budget.tokens
        taken = self.answer_tokens if self.protocol == "paper" else 0
        cut = 0
        while 0 < over <= taken:
            cut += max(1, over // _LONGEST_IN_TOKENS)
            shorter = self._text(words, occurrences, budget, cut)
            over = shorter.num_tokens - budget.tokens
            if over <= 0:
                return [shorter]
        return [text]

    def _text(
        self, words: Units, occurrences: np.ndarray, budget: ContextBudget, cut: int = 0
    ) -> Piece:
        """The words, each so often, shuffled, without the last `cut`, with the newline before the
        question."""
        order = self.shuffle(np.repeat(np.arange(len(words)), occurrences), budget)
        order = order[: len(order) - cut]

        def describe(row: int) -> tuple[str, None, None]:
            rank = order[row]
            if rank == 0:  # the dots
                return "haystack", None, None
            return "needle" if rank <= self.k else "distractor", None, None

        return budget.rows((words, order), describe=describe, ending="\n")

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        n = question[1]
        number = _NUMBERS.index(n) if n in _NUMBERS else int(n)
        return cls.most_frequent(text.rpartition("coded words.")[2], number)


def _draw(random: Random, word_length: int) -> str:
    return "".join(random.choices(ascii_lowercase, k=word_length))


@lru_cache(maxsize=8)
def _pool(encoder: PieceEncoder, word_length: int, size: int) -> Units:
    """Distinct coded words, each with a blank before it: the first of an endless row."""
    draw = partial(_draw, Random(f"coded words of {word_length}"), word_length)
    words = distinct(min(size, 26**word_length // 2), draw)
    return encode_units([" " + word for word in words], encoder)

"""Frequent words extraction (paper, section 3.3): the most frequent coded words of a text under a
zeta distribution."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from string import ascii_lowercase
from typing import ClassVar

import numpy as np

from rulerkit.errors import UserError
from rulerkit.example import ContextBudget, Draft, ExampleStream, Piece, passage, run_of_words
from rulerkit.pieces import PieceEncoder, Units
from rulerkit.tasks.base import (
    LESS_FREQUENT_WORD,
    Reading,
    Rule,
    Task,
    from_words,
    in_proportion,
    in_words,
    too_short,
)
from rulerkit.tasks.haystacks import pool_size

_OPENING = (
    "Read the following coded text and track the frequency of each coded word. Find the {n} most "
    "frequently appeared coded "
    "words."
)
_QUESTION = (
    "Question: Do not provide any explanation. Please ignore the dots '....'. What are the {n} "
    "most frequently appeared "
    "words in the above coded text?"
)
_PREFIX = " Answer: According to the coded text above, the {n} most frequently appeared words are:"
_DOTS = "..."
_MARGIN = 1.5
"""By how many standard deviations of a word's tokens the protocol `paper` expects answers to be
longer than the mean."""
_LONGEST_WORD = 100


@dataclass(frozen=True, kw_only=True)
class FrequentWords(Task):
    """Name the `k` most frequent coded words; the most frequent of all, dots, is no answer.

    The word of rank r appears floor(N r^-alpha / zeta(alpha)) times; the answers are ranks 2 to k +
    1.
    """

    family: ClassVar[str] = "frequent_words"
    category: ClassVar[str] = "aggregation"
    match: ClassVar[str] = "all"

    short_name: ClassVar[str] = "fwe"
    answer_prefix_form: ClassVar[str] = "frequently appeared words are:"
    failure_rules: ClassVar[tuple[Rule, ...]] = (LESS_FREQUENT_WORD,)

    alpha: float = 2.0
    k: int = 3
    word_length: int = 6
    vocabulary: int | None = None
    """The number of distinct words, dots included; None takes a fiftieth of the length, as upstream
    does."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.alpha, int | float) or not 1 < self.alpha < 100:
            raise self._not_allowed("alpha", "a number above 1 and below 100")
        if self.word_length > _LONGEST_WORD:
            raise self._not_allowed("word_length", f"a whole number from 1 to {_LONGEST_WORD}")
        if 26**self.word_length < 100 * self.k:
            raise UserError(
                f"word_length of the task {self.name} is {self.word_length}: too short for "
                f"{self.k} answers"
            )
        if self.vocabulary is not None and self.vocabulary < self.k + 2:
            raise self._not_allowed("vocabulary", f"at least k + 2 = {self.k + 2}")

    @property
    def default_new_tokens(self) -> int:
        return in_proportion(50, self.k, 3)

    def draft(self, stream: ExampleStream, length: int) -> Draft:
        answers: dict[str, None] = {}
        while len(answers) < self.k:
            answers["".join(stream.random.choices(ascii_lowercase, k=self.word_length))] = None
        n = in_words(self.k)
        return Draft(
            head=(passage("instruction", _OPENING.format(n=n)),),
            tail=(passage("question", _QUESTION.format(n=n)),),
            answer_prefix=_PREFIX.format(n=n),
            references=tuple(answers),
            plan=[_DOTS, *answers],
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece]:
        words = self._vocabulary(draft.plan, budget)
        per_word = words.counts
        expected = np.arange(1, len(words) + 1, dtype=float) ** -float(self.alpha) / _zeta(
            float(self.alpha)
        )

        def times(total: int) -> np.ndarray:
            return np.floor(total * expected).astype(np.int64)

        def most(costs: np.ndarray) -> int:
            fits, fails = 0, 2 * budget.tokens + 2
            while fails - fits > 1:
                middle = (fits + fails) // 2
                fits, fails = (
                    (middle, fails) if times(middle) @ costs <= budget.tokens else (fits, middle)
                )
            return fits

        total, step = most(per_word), 1
        if (
            self.protocol == "paper"
        ):  # one number of words, and with it one layout, for nearly all examples
            step = 10
            pool = self._words(budget).counts
            usual = np.full(len(words), pool.mean())
            usual[0], usual[1 : self.k + 1] = per_word[0], pool.mean() + _MARGIN * pool.std()
            total = min(total, most(usual)) // step * step
        for number in range(total, 0, -step):
            often = times(number)
            if (
                often[self.k] <= often[self.k + 1]
            ):  # a tie: the text would not tell which words are asked for
                continue
            piece = self._text(words, often, budget)
            if piece.num_tokens <= budget.tokens:
                return [piece]
        raise too_short(self, budget, 2 * int(per_word[: self.k + 1].sum()))

    @staticmethod
    def place(text: str, references: Sequence[str]) -> None:
        return None

    @staticmethod
    def listed_words(text: str) -> list[str]:
        return text.partition("coded words. ")[2].rpartition("\nQuestion:")[0].split()

    @staticmethod
    def read(text: str) -> Reading | None:
        questions = re.findall(
            r"What are the (\w+) most frequently appeared words in the above coded text\?", text
        )
        if not questions:
            return None
        before = text[: text.rfind("\nQuestion: ")]
        coded = before.rpartition("coded words.")[2]
        number = from_words(questions[-1])
        counted = Counter(coded.split())
        del counted[_DOTS]
        ranked = [word for word, _ in counted.most_common(2 * number)]
        return Reading(
            "frequent_words",
            items=ranked[:number],
            others=ranked[number:],
            occurrences=partial(
                re.compile(r"(?P<item>\S+)").finditer, before, len(before) - len(coded)
            ),
        )

    def _vocabulary(self, first: list[str], budget: ContextBudget) -> Units:
        """The words by rank: dots, the answers, then others from the pool."""
        size = max(self.vocabulary or budget.length // 50, self.k + 2)
        if 26**self.word_length < 4 * size:
            raise UserError(
                f"{self.name} needs {size} distinct words: a word_length of {self.word_length} is "
                "too short"
            )
        pool = self._words(budget)
        others = budget.random.permutation(len(pool))[:size]
        taken = [pool.position[" " + word] for word in first if " " + word in pool.position]
        others = others[~np.isin(others, taken)][: size - len(first)]
        return pool.behind(Units([" " + word for word in first], budget.encoder), others)

    def _words(self, budget: ContextBudget) -> Units:
        size = max(self.vocabulary or 0, self.k + 2, budget.length // 50)
        return _pool(budget.encoder, self.word_length, pool_size(max(budget.length, 50 * size), 16))

    def _text(self, words: Units, times: np.ndarray, budget: ContextBudget) -> Piece:
        """The words, each as often as its rank says, shuffled, with the newline before the
        question."""
        order = self.shuffle(np.repeat(np.arange(len(words)), times), budget)
        texts = [words.texts[i] for i in order.tolist()]
        ids, counts = words.pick(order), words.counts[order]
        last = budget.encoder(texts[-1] + "\n")
        ids = np.concatenate([ids[: len(ids) - counts[-1]], last])
        texts[-1] += "\n"
        counts[-1] = len(last)
        asked = self.k

        def entries() -> Iterator[tuple[str, str, int]]:
            for word, rank, count in zip(texts, order.tolist(), counts.tolist(), strict=True):
                yield (
                    word,
                    "haystack" if rank == 0 else "needle" if rank <= asked else "distractor",
                    count,
                )

        return run_of_words("".join(texts), ids, entries)


@lru_cache(maxsize=8)
def _zeta(alpha: float) -> float:
    from scipy.special import zeta

    return float(zeta(alpha))


@lru_cache(maxsize=8)
def _pool(encoder: PieceEncoder, word_length: int, size: int) -> Units:
    """Distinct coded words, each with a blank before it: the first of an endless row."""
    random, words = Random(f"coded words of {word_length}"), dict[str, None]()
    size = min(size, 26**word_length // 2)
    while len(words) < size:
        words[" " + "".join(random.choices(ascii_lowercase, k=word_length))] = None
    return Units(list(words), encoder)

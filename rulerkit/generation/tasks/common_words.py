"""Common words extraction (paper, section 3.3): which words stand most often in a numbered list.

A prompt of `{base: cwe, demonstration: false, num_cw: 2}` in 230 tokens, its lines wrapped:

    Below is a numbered list of words. In these words, some appear more often than others.
    Memorize the ones that appear most often.
    1. shoreline 2. monsoon 3. fright 4. repository 5. monsoon 6. throne 7. monsoon 8. monsoon 9.
    monsoon 10. throne 11. weakness 12. throne 13. throne 14. throne 15. monsoon 16. hydrolyze 17.
    throne
    Question: What are the 2 most common words in the above list? Answer: The top 2 words that
    appear most often in the list are:

References: throne, monsoon.

With the demonstration, as in the benchmark, a solved list of 40 words (20 below 4,096 tokens) comes
first.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import combinations
from random import Random
from string import ascii_lowercase
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.common.errors import UserError
from rulerkit.generation.corpora import Words, load
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.pieces import PieceEncoder, Units, encode_units, numbered
from rulerkit.generation.tasks.base import (
    CorpusName,
    FailureRule,
    Growth,
    JudgedAnswer,
    Positive,
    Task,
    distinct,
    shuffled_alike,
)
from rulerkit.generation.tasks.niah import draw_text

_OPENING = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
_QUESTION = "Question: What are the {n} most common words in the above list?"
_PREFIX = " Answer: The top {n} words that appear most often in the list are:"
_REDUCED_BELOW = 4096
_MOST_COMMON = 1000


def _less_frequent_words(answer: JudgedAnswer) -> str | None:
    assert isinstance(answer.judge, WordCount)
    entries = answer.judge.entry.finditer(answer.example.context_text)
    others = {match["item"].lower() for match in entries}
    others -= {reference.lower() for reference in answer.references}
    # Some words of the list are two: "contact lens".
    said = f" {' '.join(answer.words)} "
    named = [word for word in others if f" {word} " in said]
    return " ".join(sorted(named, key=said.find)) or None


class WordCount(Task):
    """What the two families share that ask which words stand most often in a text."""

    category = "aggregation"
    beginning_scores = True
    failure_rules = (
        FailureRule(
            "less frequent word",
            "A word of the list or text that stands there less often.",
            _less_frequent_words,
        ),
    )

    entry: ClassVar[re.Pattern[str]]
    """An entry of the list or text; the group `item` is the word."""

    @classmethod
    def most_frequent(cls, text: str, number: int) -> list[str]:
        """So many of the most frequent words of a list or text."""
        counts = Counter(match["item"] for match in cls.entry.finditer(text))
        return [word for word, _ in counts.most_common(number)]


@dataclass(frozen=True, kw_only=True)
class CommonWords(WordCount):
    """Name the `num_cw` words that appear `freq_cw` times each among others that appear `freq_ucw`
    times."""

    family = "common_words"
    short_name = "cwe"
    new_tokens = (120, 10)
    question_form = r"\nQuestion: What are the (\w+) most common words in the above list\?"
    entry = re.compile(r"\d+\. (?P<item>.+?)(?= \d+\. |$)")

    freq_cw: Positive = 30
    freq_ucw: Positive = 3
    num_cw: Annotated[Positive, Field(le=_MOST_COMMON)] = 10
    demonstration: bool = True
    words: CorpusName = "wonderwords"
    """The list of words: `wonderwords` or a path."""
    corpora = (("words", "words"),)

    def __post_init__(self) -> None:
        if self.freq_cw <= self.freq_ucw:
            raise ValueError(
                f"freq_cw is {self.freq_cw} and freq_ucw {self.freq_ucw}: freq_cw must be more, "
                "because common words are the more frequent ones"
            )

    @property
    def num_items(self) -> int:
        return self.num_cw

    def frequencies(self, length: int) -> tuple[int, int]:
        """How often common and other words appear: as set, or 6 and 1 below 4096 tokens, as
        upstream reduces them."""
        reduced = length < _REDUCED_BELOW and (self.freq_cw, self.freq_ucw) == (30, 3)
        return (6, 1) if reduced else (self.freq_cw, self.freq_ucw)

    def make(self, stream: ExampleStream, length: int) -> Draft:
        # Upstream may ask for any word; `clean` for none that stands inside another, because
        # naming the longer word would score for it.
        words: Words = load("words", self.words)
        singles = words.everything if self.protocol != "clean" else _uncontained(words)

        # The demonstration, the answers and the rest must not run out of words.
        enough = 3 * max(20, self.num_cw)
        if len(singles) < enough:
            raise UserError(
                f"words of the task {self.name} is {self.words}: it must be a list of {enough} "
                f"words, none in another; it has {len(singles)}"
            )

        # The answers do not depend on the length: the same question at 4K and at 128K.
        common = stream.random.sample(singles, self.num_cw)
        return Draft(
            demonstration=self._demonstration(stream, common, length),
            instruction=_OPENING,
            question=_QUESTION.format(n=self.num_cw),
            answer_prefix=_PREFIX.format(n=self.num_cw),
            references=tuple(common),
            hidden=common,
        )

    def growth(self, draft: Draft, length: int) -> Growth:
        return Growth(10, 10, f" {self.join(draft.references)}")

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        if budget.size is not None:
            # Upstream counts the common words among them.
            others = budget.size - self.num_cw
            if others < 0:
                return None
            for words, common, order in self._words_of(draft, budget):
                if len(order) >= others:
                    return [self._list(words, common, order[:others], budget)]

        # The tokens of a list are known before it is written: those of its words, each as often as
        # it stands there, and those of its numbers.
        common_count, other_count = self.frequencies(budget.length)
        numbers = numbered(" {}.", budget.encoder, budget.tokens // 3 + 16)
        for words, common, order in self._words_of(draft, budget):
            first = common_count * words.counts[common].sum()
            tokens = np.append(first, other_count * words.counts[order]).cumsum()

            # A list with more entries than there are numbers encoded does not fit anyway.
            entries = common_count * len(common) + other_count * np.arange(len(tokens))
            entries = entries[entries <= len(numbers)]
            tokens = tokens[: len(entries)] + numbers.offsets[entries]
            fitting = int(np.searchsorted(tokens, budget.tokens, side="right")) - 1
            if fitting < len(order):
                break

        # The count is exact but for the last word, whose newline may join its token.
        for number in range(fitting, -1, -1):
            piece = self._list(words, common, order[:number], budget)
            if piece.num_tokens <= budget.tokens:
                return [piece]
        return None

    def _words_of(
        self, draft: Draft, budget: ContextBudget
    ) -> Iterator[tuple[Units, np.ndarray, np.ndarray]]:
        """Words, which of them are common, and the others in the order in which a list takes them:
        all single words, then with ever more pairs behind them."""
        listed: Words = load("words", self.words)
        texts = [" " + word for word in draft.hidden]
        words = _words(listed, budget.encoder)
        common = np.array([words.position[text] for text in texts])
        singles = words.others(texts, budget.random)
        yield words, common, singles

        # A pair that holds an answer would be counted as naming it. Upstream takes words of random
        # letters instead of pairs.
        parts = {word.lower() for word in draft.hidden}
        num_pairs = min(8192, len(listed.adjectives) * len(listed.nouns) // 2)
        while True:
            words = _words(listed, budget.encoder, num_pairs, self.protocol != "clean")
            pairs = []
            places = budget.random.permutation(num_pairs) + len(words) - num_pairs
            for place in places.tolist():
                if parts.isdisjoint(words.texts[place][1:].lower().split("-")):
                    pairs.append(place)
            yield words, common, np.concatenate([singles, pairs])
            num_pairs *= 2

    def _list(
        self, words: Units, common: np.ndarray, others: np.ndarray, budget: ContextBudget
    ) -> Piece:
        """The numbered list, shuffled, with the newline before the question."""
        common_count, other_count = self.frequencies(budget.length)

        # Upstream repeats the whole list of words, so that one shuffle puts other words in the same
        # places.
        times = np.tile if self.protocol != "clean" else np.repeat
        entries = np.concatenate([times(common, common_count), times(others, other_count)])
        order = self.shuffle(entries, budget)
        numbers = numbered(" {}.", budget.encoder, len(order))
        needles = set(common.tolist())
        return budget.rows(
            (numbers, np.arange(len(order))),
            (words, order),
            describe=lambda i: ("needle" if order[i] in needles else "haystack", None, None),
            ending="\n",
        )

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        # The list is one line; a demonstration, where there is one, stands above it.
        return cls.most_frequent(text.rpartition("\n")[2], int(question[1]))

    @classmethod
    def join(cls, items: Sequence[str]) -> str:
        return " ".join(f"{i}. {word}" for i, word in enumerate(items, 1))

    def _demonstration(self, stream: ExampleStream, taken: list[str], length: int) -> str:
        """A solved list of 40 words (20 below 4096 tokens); nothing where the task has none."""
        if not self.demonstration:
            return ""

        size, common_count, other_count = (20, 3, 1) if length < _REDUCED_BELOW else (40, 10, 3)
        n = self.num_cw
        random = Random(f"{stream.seed}/{self.name}/{stream.index}/demonstration")

        # An answer that stands in the demonstration, too, would be given away there.
        free = [word for word in load("words", self.words).everything if word not in taken]
        words = random.sample(free, max(size, 2 * n))
        entries = words[:n] * common_count + words[n:] * other_count

        # Upstream shuffles with one seed, so all its demonstrations have one layout.
        if self.protocol != "clean":
            entries = [entries[i] for i in shuffled_alike(len(entries), stream.seed)]
        else:
            random.shuffle(entries)

        gap = "" if self.protocol == "paper" else " "  # in 2024 upstream wrote `are:1. word`
        question = _QUESTION.format(n=n) + _PREFIX.format(n=n)
        answer = self.join(words[:n])
        return f"{_OPENING}{self.join(entries)}\n{question}{gap}{answer}\n"


# --- words ----------------------------------------------------------------------------------------


@cache
def _uncontained(words: Words) -> list[str]:
    """The single words that stand in no other word of the lists; without hyphens, so that a pair
    contains one only as its adjective or its noun."""
    # Every part of every word that is a word itself, counted over the whole list.
    lower = {word.lower() for word in words.everything}
    parts = (
        word.lower()[start:stop]
        for word in words.everything
        for start, stop in combinations(range(len(word) + 1), 2)
    )
    occurrences = Counter(part for part in parts if part in lower)
    return [
        word
        for word in words.everything
        if not {" ", "-"} & set(word) and occurrences[word.lower()] == 1
    ]


@lru_cache(maxsize=8)
def _words(
    words: Words, encoder: PieceEncoder, num_pairs: int = 0, random_letters: bool = False
) -> Units:
    """All single words, then adjective-noun pairs or words of random letters: the first of an
    endless row, without repetition."""
    random = Random("pairs of words")

    def draw() -> str:
        letters = "".join(random.choices(ascii_lowercase, k=6)) if random_letters else ""
        return letters or draw_text(random, words)

    texts = distinct(len(words.everything) + num_pairs, draw, words.everything)
    return encode_units([" " + text for text in texts], encoder)

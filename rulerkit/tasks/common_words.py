"""Common words extraction (paper, section 3.3): which words stand most often in a numbered list."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from random import Random
from string import ascii_lowercase
from typing import ClassVar

import numpy as np

from rulerkit.corpora import load_words
from rulerkit.errors import UserError
from rulerkit.example import (
    ContextBudget,
    Draft,
    ExampleStream,
    Passage,
    Piece,
    passage,
    run_of_words,
)
from rulerkit.pieces import PieceEncoder, Units, interleave
from rulerkit.tasks.base import (
    LESS_FREQUENT_WORD,
    Reading,
    Rule,
    Task,
    cached_units,
    in_proportion,
    shuffled_alike,
    too_short,
)

_OPENING = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear "
    "most often.\n"
)
_QUESTION = "Question: What are the {n} most common words in the above list?"
_PREFIX = " Answer: The top {n} words that appear most often in the list are:"
_REDUCED_BELOW = 4096
_MOST_COMMON = 1000
_MARGIN = 3
"""Times the square root of the budget: the tokens that the protocol `paper` leaves free, so that
longer words fit too."""
_RANDOM_LETTERS = 6


@dataclass(frozen=True, kw_only=True)
class CommonWords(Task):
    """Name the `num_cw` words that appear `freq_cw` times each among others that appear `freq_ucw`
    times."""

    family: ClassVar[str] = "common_words"
    category: ClassVar[str] = "aggregation"
    match: ClassVar[str] = "all"

    short_name: ClassVar[str] = "cwe"
    answer_prefix_form: ClassVar[str] = "appear most often in the list are:"
    demonstration_opening: ClassVar[str] = _OPENING
    failure_rules: ClassVar[tuple[Rule, ...]] = (LESS_FREQUENT_WORD,)

    freq_cw: int = 30
    freq_ucw: int = 3
    num_cw: int = 10
    demonstration: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.freq_cw <= self.freq_ucw:
            raise UserError(
                f"freq_cw of the task {self.name} is {self.freq_cw}, freq_ucw {self.freq_ucw}: "
                "common words must be the "
                "more frequent ones"
            )
        if self.num_cw > _MOST_COMMON:
            raise self._not_allowed("num_cw", f"at most {_MOST_COMMON}")

    @property
    def default_new_tokens(self) -> int:
        return in_proportion(120, self.num_cw, 10)

    def frequencies(self, length: int) -> tuple[int, int]:
        """How often common and other words appear: as set, or 6 and 1 below 4096 tokens, as
        upstream reduces them."""
        reduced = length < _REDUCED_BELOW and (self.freq_cw, self.freq_ucw) == (30, 3)
        return (6, 1) if reduced else (self.freq_cw, self.freq_ucw)

    def draft(self, stream: ExampleStream, length: int) -> Draft:
        words = load_words().everything if self.protocol == "paper" else _uncontained()
        common = stream.random.sample(words, self.num_cw)
        shown = self._demonstration(stream, set(common), length) if self.demonstration else ()
        return Draft(
            head=(*shown, passage("instruction", _OPENING)),
            tail=(passage("question", _QUESTION.format(n=self.num_cw)),),
            answer_prefix=_PREFIX.format(n=self.num_cw),
            references=tuple(common),
            plan=common,
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece]:
        often, seldom = self.frequencies(budget.length)
        step = (
            10 if self.protocol == "paper" else 1
        )  # upstream adds and removes ten words at a time
        singles = _singles(budget.encoder)
        common = np.array([singles.position[" " + word] for word in draft.plan])
        order = budget.random.permutation(len(singles))
        order = order[~np.isin(order, common)]
        words, num_pairs = singles, 0
        while True:
            fitting = self._fitting(words, common, order, budget, often, seldom)
            if fitting < len(order) or fitting < 0:
                break
            num_pairs = max(8192, 2 * num_pairs)
            words = _singles_and_more(
                budget.encoder, num_pairs, random_letters=self.protocol == "paper"
            )
            made_of = {} if self.protocol == "paper" else _pairs_with(budget.encoder, num_pairs)
            barred = [i for word in draft.plan for i in made_of.get(word.lower(), ())]
            pairs = len(singles) + budget.random.permutation(num_pairs)
            order = np.concatenate(
                [order[: len(singles) - len(common)], pairs[~np.isin(pairs, barred)]]
            )
        if self.protocol == "paper":
            fitting = min(fitting, self._usual_size(words, draft, budget)) // step * step
        while fitting >= 0:
            piece = self._list(words, common, order[:fitting], budget, often, seldom)
            if piece.num_tokens <= budget.tokens:
                return [piece]
            fitting -= step
        raise too_short(
            self, budget, self._list(words, common, order[:0], budget, often, seldom).num_tokens
        )

    def _fitting(
        self,
        words: Units,
        common: np.ndarray,
        order: np.ndarray,
        budget: ContextBudget,
        often: int,
        seldom: int,
    ) -> int:
        """How many of the other words, in this order, fit beside the common ones; negative where
        those do not fit."""
        most = often * len(common) + seldom * len(order)
        numbers = _numbers(budget.encoder, _at_least(min(most, budget.tokens // 3 + 16)))
        entries = often * len(common) + seldom * np.arange(len(order) + 1)
        entries = entries[entries <= len(numbers)]
        used = np.concatenate([[0], np.cumsum(words.counts[order])])[: len(entries)] * seldom
        total = numbers.offsets[entries] + used + often * int(words.counts[common].sum())
        return int(np.searchsorted(total, budget.tokens, side="right")) - 1

    def _usual_size(self, words: Units, draft: Draft, budget: ContextBudget) -> int:
        """How many other words fit in usual examples of this cell: one number, and with it one
        layout, for nearly all."""
        left = float(budget.tokens)
        if self.demonstration:
            first = self._demonstration(
                ExampleStream(budget.seed, self.name, 0), set(), budget.length
            )
            left += sum(
                budget.piece(draft.head[0]).num_tokens - budget.piece(passage).num_tokens
                for passage in first
            )
        usual = np.random.RandomState(budget.seed).permutation(len(_singles(budget.encoder)))
        others = np.concatenate([usual[self.num_cw :], np.arange(len(usual), len(words))])
        budget = replace(budget, tokens=int(left - _MARGIN * left**0.5))
        return self._fitting(
            words, usual[: self.num_cw], others, budget, *self.frequencies(budget.length)
        )

    def _list(
        self,
        words: Units,
        common: np.ndarray,
        others: np.ndarray,
        budget: ContextBudget,
        often: int,
        seldom: int,
    ) -> Piece:
        """The numbered list, shuffled, with the newline before the question."""
        order = self.shuffle(
            np.concatenate([np.repeat(common, often), np.repeat(others, seldom)]), budget
        )
        numbers = _numbers(budget.encoder, _at_least(len(order)))
        texts, counts, ids = interleave((numbers, np.arange(len(order))), (words, order))
        last = budget.encoder(texts[-1] + "\n")
        ids = np.concatenate([ids[: len(ids) - counts[-1]], last])
        texts[-1], counts[-1] = texts[-1] + "\n", len(last)
        asked = set(common.tolist())
        per_entry = counts.reshape(-1, 2).sum(axis=1)

        def entries() -> Iterator[tuple[str, str, int]]:
            for i, (word, count) in enumerate(zip(order.tolist(), per_entry.tolist(), strict=True)):
                yield (
                    texts[2 * i] + texts[2 * i + 1],
                    "needle" if word in asked else "haystack",
                    count,
                )

        return run_of_words("".join(texts), ids, entries)

    def baselines(self) -> list[Task]:
        if not self.demonstration:
            return []
        return [replace(self, demonstration=False, name=f"{self.name}-demonstration_False")]

    @staticmethod
    def place(text: str, references: Sequence[str]) -> None:
        return None

    @staticmethod
    def listed_words(text: str) -> list[str]:
        return re.findall(
            r"\d+\. (\S+)", text[text.rfind(_OPENING.strip()) :].rpartition("\nQuestion:")[0]
        )

    @staticmethod
    def read(text: str) -> Reading | None:
        questions = re.findall(
            r"Question: What are the (\w+) most common words in the above list\?", text
        )
        if not questions:
            return None
        before = text[: text.rfind("\nQuestion: What are the")]
        start = before.rfind("\n") + 1  # the list is one line
        entry = re.compile(r"\d+\. (?P<item>.+?)(?= \d+\. |$)")
        number, opening = int(questions[-1]), text.rfind(_OPENING)
        ranked = [word for word, _ in Counter(entry.findall(before, start)).most_common(2 * number)]
        answers = re.findall(
            r"appear most often in the list are:\s*(1\. .+)", text[: max(0, opening)]
        )
        return Reading(
            "common_words",
            items=ranked[:number],
            others=ranked[number:],
            occurrences=partial(entry.finditer, before, start),
            demonstration="".join(answers[-1:]).strip(),
            opening=before[start:] if opening >= 0 else "",
            join=_numbered,
        )

    def _demonstration(
        self, stream: ExampleStream, taken: set[str], length: int
    ) -> tuple[Passage, ...]:
        """A solved list of 40 words (20 below 4096 tokens) before the question, without chat
        template."""
        size, often, seldom = (20, 3, 1) if length < _REDUCED_BELOW else (40, 10, 3)
        size = max(size, 2 * self.num_cw)
        random = Random(f"{stream.seed}/{self.name}/{stream.index}/demonstration")
        words = random.sample([word for word in load_words().everything if word not in taken], size)
        entries = words[: self.num_cw] * often + words[self.num_cw :] * seldom
        if self.protocol == "paper":
            entries = [entries[i] for i in shuffled_alike(len(entries), stream.seed)]
        else:
            random.shuffle(entries)
        listed = [text for i, word in enumerate(entries) for text in (f" {i + 1}.", f" {word}")]
        listed[0] = listed[0].strip()
        n = self.num_cw
        gap = " " if self.edition == "2025" else ""  # the 2024 edition writes `are:1. word`
        listed[-1] += "\n"
        close = _QUESTION.format(n=n) + _PREFIX.format(n=n) + gap + _numbered(words[:n]) + "\n"
        return (passage("demonstration", _OPENING, *listed, close),)


def _numbered(words: Sequence[str]) -> str:
    return " ".join(f"{i}. {word}" for i, word in enumerate(words, 1))


# --- words ----------------------------------------------------------------------------------------


@cache
def _uncontained() -> list[str]:
    """The single words that stand in no other word of the lists, so that no other word can score
    for them; without hyphens, so that a pair contains one only as its adjective or its noun."""
    words = load_words().everything
    lines = "\n".join(words).lower()
    return [word for word in words if not {" ", "-"} & set(word) and lines.count(word.lower()) == 1]


@lru_cache(maxsize=8)
def _numbers(encoder: PieceEncoder, size: int) -> Units:
    return cached_units(["1.", *[f" {i}." for i in range(2, size + 1)]], encoder)


@lru_cache(maxsize=8)
def _singles(encoder: PieceEncoder) -> Units:
    return Units([" " + word for word in load_words().everything], encoder)


@lru_cache(maxsize=8)
def _singles_and_more(encoder: PieceEncoder, number: int, random_letters: bool = False) -> Units:
    """All single words, then adjective-noun pairs or words of random letters: the first of an
    endless row, without repetition."""
    words = load_words()
    adjectives, nouns = sorted(set(words.adjectives)), sorted(set(words.nouns))
    random, distinct = Random("pairs of words"), dict.fromkeys(words.everything)
    while len(distinct) < len(words.everything) + number:
        if random_letters:
            word = "".join(random.choices(ascii_lowercase, k=_RANDOM_LETTERS))
        else:
            word = f"{adjectives[random.randrange(len(adjectives))]}-{nouns[random.randrange(len(nouns))]}"
        distinct[word] = None
    return cached_units([" " + text for text in distinct], encoder)


@lru_cache(maxsize=8)
def _pairs_with(encoder: PieceEncoder, num_pairs: int) -> dict[str, list[int]]:
    """At which positions of `_singles_and_more` the pairs made of each word stand."""
    words = _singles_and_more(encoder, num_pairs).texts
    found: dict[str, list[int]] = {}
    for i in range(len(words) - num_pairs, len(words)):
        for part in words[i].strip().lower().split("-"):
            found.setdefault(part, []).append(i)
    return found


def _at_least(size: int) -> int:
    """The next power of two, so that tables of numbers are made few times."""
    return 1 << max(10, (size - 1).bit_length())

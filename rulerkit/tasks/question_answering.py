"""Question answering among distractors (paper, section 3.4): SQuAD and HotpotQA, or their invented
stand-ins."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from random import Random
from typing import ClassVar, NamedTuple

import numpy as np

from rulerkit.corpora import Question, Source, answer_fictional, load_qa
from rulerkit.errors import UserError
from rulerkit.example import ContextBudget, Draft, ExampleStream, Piece, passage
from rulerkit.pieces import PieceEncoder, Units
from rulerkit.prompt_format import DIRECT
from rulerkit.tasks.base import (
    JudgedAnswer,
    Reading,
    Rule,
    Task,
    cached_units,
    shuffled_alike,
    too_short,
)

_INSTRUCTION = "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
_GIVEN = "The following are given documents.\n\n"
_ALONE = "Answer the question. Only give me the answer and do not output any other words.\n\n"
_LONGEST_GOLD = 3000
"""Questions whose gold documents have more characters than this are not asked (23 of SQuAD's
5,928), so that every question fits at every length from 1024 tokens on."""


_FEWER = 10
"""By how many documents the protocol `paper` shortens a prompt that does not fit."""


class _Asked(NamedTuple):
    number: int
    depths: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Answer a question from its gold documents among other documents of the same data set."""

    family: ClassVar[str] = "question_answering"
    category: ClassVar[str] = "qa"
    match: ClassVar[str] = "part"
    corpus_knob: ClassVar[str | None] = "dataset"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "dataset": ("squad", "hotpotqa", "fictional", "fictional_two_hop"),
        "context": ("documents", "none"),
    }

    short_name: ClassVar[str] = "qa"
    answer_prefix_form: ClassVar[str] = "Answer:"
    answer_prefix_within: ClassVar[int] = 200
    failure_rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "no-context answer",
            "A wrong answer, the same that the model gives to the question alone.",
            lambda answer: _answer_without_context(answer),
        ),
        Rule(
            "other document",
            "What was written stands in a document that does not hold the answer.",
            lambda answer: _other_document(answer),
        ),
    )

    dataset: str = "squad"
    context: str = "documents"
    """`none` asks the question alone: the paper's no-context baseline (its wording is ours; the
    paper gives none)."""

    @property
    def default_new_tokens(self) -> int:
        return 32

    def sources(self) -> dict[str, Source]:
        return {"dataset": load_qa(self.dataset).source}

    def draft(self, stream: ExampleStream, length: int) -> Draft:
        order = _question_order(self.dataset, None if self.protocol == "paper" else stream.seed)
        asked = order[stream.index % len(order)]
        data = load_qa(self.dataset)
        question = data.questions[asked]
        article = data.groups[question.gold[0]]
        plan = _Asked(asked, tuple(stream.random.random() for _ in question.gold))
        closing = f"Question: {question.text}"
        if self.context == "none":
            return Draft(
                (),
                (passage("question", _ALONE + closing),),
                " Answer:",
                question.answers,
                plan,
                article,
            )
        head, tail = (
            passage("instruction", _INSTRUCTION, _GIVEN),
            passage("question", _INSTRUCTION + closing),
        )
        return Draft((head,), (tail,), " Answer:", question.answers, plan, article)

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece]:
        if self.context == "none":
            return []
        data = load_qa(self.dataset)
        question = data.questions[draft.plan.number]
        bodies = _bodies(self.dataset, budget.encoder)
        gold = list(question.gold)
        if self.protocol == "paper":
            order = self._documents_of_the_paper(draft.plan.number, bodies, budget)
        else:
            order = self._documents_at_depths(draft.plan.depths, question, bodies, budget)
        if order is None:
            raise too_short(self, budget, _cost(gold, bodies, _headers(budget.encoder, 64)))
        headers = _headers(budget.encoder, _enough(len(order)))
        groups = {data.groups[g] for g in gold}
        near = {*question.related, *(d for d in order if data.groups[d] in groups)}
        roles = {
            d: "needle" if d in gold else "distractor" if d in near else "haystack" for d in order
        }
        return [
            Piece(
                headers.texts[i] + bodies.texts[document],
                roles[document],
                np.concatenate([headers.span(i, i + 1), bodies.span(document, document + 1)]),
                key=str(document),
            )
            for i, document in enumerate(order)
        ]

    def baselines(self) -> list[Task]:
        return (
            []
            if self.context == "none"
            else [replace(self, context="none", name=f"{self.name}-context_none")]
        )

    @staticmethod
    def place(text: str, references: Sequence[str]) -> tuple[float, str] | None:
        parts = re.split(r"Document (\d+):\n", text)
        for number, document in zip(parts[1::2], parts[2::2], strict=True):
            if any(reference.lower() in document.lower() for reference in references):
                return float(number), f"document {number}"
        return None

    @staticmethod
    def read(text: str) -> Reading | None:
        before, separator, question = text.rpartition("\n\nQuestion: ")
        if not separator or "do not output any other words." not in text:
            return None
        question = re.split(rf"\n|{re.escape(DIRECT)}| Answer:|<\|", question)[0].strip()
        answer = answer_fictional(before, question) or _known_answer(before, question)
        return Reading(
            "question_answering",
            items=[answer] if answer else [],
            occurrences=partial(re.compile(f"(?P<item>{re.escape(answer)})").finditer, before),
            question=question,
            empty="not found",
        )

    def _documents_at_depths(
        self, depths: tuple[float, ...], question: Question, bodies: Units, budget: ContextBudget
    ) -> list[int] | None:
        """The documents in order, the gold ones at their depths; None where the gold ones do not
        fit."""
        chosen = self._others(question.related, list(question.gold), bodies, budget)
        if chosen is None:
            return None
        order = list(budget.random.permutation(chosen)) if chosen else []
        for depth, document in sorted(zip(depths, question.gold, strict=True)):
            order.insert(int(depth * (len(chosen) + 1)) + len(order) - len(chosen), document)
        return order

    def _documents_of_the_paper(
        self, number: int, bodies: Units, budget: ContextBudget
    ) -> list[int] | None:
        """The documents in upstream's order: gold and same article first, then others, all shuffled
        with one seed.

        Their number is the most that usually fits the first question, and ten less as often as it
        must be.
        """
        data, first = load_qa(self.dataset), _question_order(self.dataset, None)[0]
        questions = [data.questions[i].text for i in (number, first)]
        mine, firsts = (len(budget.encoder(text)) for text in questions)
        near, others = self._article_first(first, budget.random)
        means = np.repeat(
            [bodies.counts[near].mean(), bodies.counts[others].mean()], [len(near), len(others)]
        )
        headers = _headers(budget.encoder, _enough(len(means)))
        size = int(
            np.searchsorted(
                np.cumsum(means + headers.counts[: len(means)]),
                budget.tokens + mine - firsts,
                "right",
            )
        )
        listed = [*chain(*self._article_first(number, budget.random))]
        while size > 0 and _cost(listed[:size], bodies, headers) > budget.tokens:
            size -= _FEWER if size > _FEWER else 1
        if size < len(data.questions[number].gold):
            return None
        listed = listed[:size]
        if related := data.questions[
            number
        ].related:  # HotpotQA's file has the question's ten documents in any order
            ten = slice(len(data.questions[number].gold) + len(related))
            listed[ten] = budget.random.permutation(listed[ten]).tolist()
        return [listed[i] for i in shuffled_alike(size, budget.seed)]

    def _article_first(
        self, number: int, random: np.random.RandomState
    ) -> tuple[list[int], list[int]]:
        """The documents with the answer, then the question's own or those of the same article; and
        all others."""
        data = load_qa(self.dataset)
        question = data.questions[number]
        near = list(question.related) or list(
            _articles(self.dataset)[data.groups[question.gold[0]]]
        )
        near = [
            document
            for document in random.permutation(near).tolist()
            if document not in question.gold
        ]
        others = random.permutation(len(data.documents))
        near = [*question.gold, *near]
        return near, others[~np.isin(others, near)].tolist()

    def _others(
        self, related: tuple[int, ...], gold: list[int], bodies: Units, budget: ContextBudget
    ) -> list[int] | None:
        """Documents beside the gold ones: the question's own first, then any, as many as fit; the
        last is chosen for its length. None where the gold documents alone do not fit. None repeats
        before all were used; gold never."""
        headers = _headers(budget.encoder, _enough(budget.tokens // int(bodies.counts.min()) + 16))
        if (left := budget.tokens - _cost(gold, bodies, headers)) < 0:
            return None
        chosen: list[int] = []
        for document in related:
            cost = int(bodies.counts[document] + headers.counts[len(gold) + len(chosen)])
            if cost <= left:
                chosen.append(document)
                left -= cost
        rest = budget.random.permutation(len(bodies))
        rest = rest[~np.isin(rest, [*gold, *chosen])]
        while True:
            first = len(gold) + len(chosen)
            numbered = headers.counts[
                first : first + len(rest)
            ]  # enough for the shortest documents, if not for all
            costs = np.cumsum(bodies.counts[rest[: len(numbered)]] + numbered)
            fitting = int(np.searchsorted(costs, left, side="right"))
            if fitting < len(rest) or not len(rest):
                break
            chosen += rest.tolist()
            left -= int(costs[-1])
            rest = budget.random.permutation(len(bodies))
            rest = rest[~np.isin(rest, gold)]
        keep = max(0, fitting - 1)
        chosen += rest[:keep].tolist()
        left -= int(costs[keep - 1]) if keep else 0
        return chosen + _last_ones(rest[keep:], left, len(gold) + len(chosen), bodies, headers)


def _answer_without_context(answer: JudgedAnswer) -> str | None:
    if not answer.without_context or answer.settings.get("context") == "none":
        return None
    return answer.without_context if _plain(answer.without_context) == _plain(answer.text) else None


def _other_document(answer: JudgedAnswer) -> str | None:
    if not (written := _plain(answer.text)):
        return None
    documents = (
        block
        for block in answer.example.blocks[slice(*answer.example.context)]
        if block.role != "needle"
    )
    with_answer = (block for block in documents if f" {written} " in f" {_plain(block.text)} ")
    return next((block.text.partition("\n")[0].strip(":") for block in with_answer), None)


def _plain(text: str) -> str:
    """Words alone, lower case, without articles and punctuation."""
    return " ".join(
        word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the")
    )


def _known_answer(documents_text: str, question: str) -> str:
    """The answer to a question of the original data sets, if all of its gold documents stand in the
    text."""
    for name in ("squad", "hotpotqa"):
        for gold, answer in _known_questions(name).get(question, ()):
            if all(document in documents_text for document in gold):
                return answer
    return ""


@lru_cache(maxsize=2)
def _known_questions(dataset: str) -> dict[str, list[tuple[list[str], str]]]:
    """The gold documents and the first answer of each question; a few questions are asked of
    several paragraphs."""
    try:
        data = load_qa(dataset)
    except UserError:  # the data set is not on this machine, so no prompt of it was made here
        return {}
    known: dict[str, list[tuple[list[str], str]]] = {}
    for question in data.questions:
        gold = [data.documents[number] for number in question.gold]
        known.setdefault(question.text, []).append((gold, question.answers[0]))
    return known


def _last_ones(
    rest: np.ndarray, left: int, number: int, bodies: Units, headers: Units
) -> list[int]:
    """One document, or two, whose length comes nearest to what is left."""
    counts = bodies.counts[rest]
    header = int(headers.counts[number])
    second = int(headers.counts[number + 1])
    by_length = np.argsort(counts, kind="stable")
    fit = int(np.searchsorted(counts[by_length], left - header, side="right")) - 1
    if fit < 0:
        return []
    best, gap = [int(rest[by_length[fit]])], left - header - int(counts[by_length[fit]])
    if len(rest) > 1 and gap > 0:
        room_for_second = left - header - second - counts[: min(64, len(rest))]
        other = np.searchsorted(counts[by_length], room_for_second, side="right") - 1
        other = np.where(
            (other >= 0) & (by_length[other] == np.arange(len(other))), other - 1, other
        )
        gaps = np.where(other >= 0, room_for_second - counts[by_length[np.maximum(other, 0)]], left)
        pick = int(np.argmin(gaps))
        if gaps[pick] < gap:
            best = [int(rest[pick]), int(rest[by_length[other[pick]]])]
    return best


def _cost(documents: list[int], bodies: Units, headers: Units) -> int:
    return int(bodies.counts[documents].sum() + headers.counts[: len(documents)].sum())


@lru_cache(maxsize=8)
def _bodies(dataset: str, encoder: PieceEncoder) -> Units:
    return cached_units([document + "\n\n" for document in load_qa(dataset).documents], encoder)


@lru_cache(maxsize=8)
def _headers(encoder: PieceEncoder, size: int) -> Units:
    return Units([f"Document {i}:\n" for i in range(1, size + 1)], encoder)


def _enough(size: int) -> int:
    return 1 << max(6, size.bit_length())


@lru_cache(maxsize=4)
def _articles(dataset: str) -> dict[int, list[int]]:
    """The documents of each article."""
    articles: dict[int, list[int]] = {}
    for document, group in enumerate(load_qa(dataset).groups):
        articles.setdefault(group, []).append(document)
    return articles


@lru_cache(maxsize=8)
def _question_order(dataset: str, seed: int | None) -> list[int]:
    """The questions in the order of one permutation per seed; without a seed, in that of the
    file."""
    data = load_qa(dataset)
    short = [
        i
        for i, q in enumerate(data.questions)
        if sum(len(data.documents[g]) for g in q.gold) <= _LONGEST_GOLD
    ]
    if seed is not None:
        Random(f"{seed}/{dataset}/questions").shuffle(short)
    return short

"""Question answering among distractors (paper, section 3.4): SQuAD and HotpotQA, or their invented
stand-ins."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from random import Random
from typing import ClassVar

import numpy as np

from rulerkit.corpora import QASet, Source, answer_fictional, load_qa
from rulerkit.errors import UserError
from rulerkit.example import ContextBudget, Draft, ExampleStream, Passage, Piece
from rulerkit.pieces import PieceEncoder, Units, encode_units
from rulerkit.prompt_format import DIRECT
from rulerkit.tasks.base import JudgedAnswer, Reading, Rule, Task, shuffled_alike, too_short

_INSTRUCTION = "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
_GIVEN = "The following are given documents.\n\n"
_ALONE = "Answer the question. Only give me the answer and do not output any other words.\n\n"
_LONGEST_GOLD = 3000
"""Questions whose gold documents have more characters than this are not asked (23 of SQuAD's
5,928), so that every question fits at every length from 1024 tokens on."""


_FEWER = 10
"""By how many documents the protocol `paper` shortens a prompt that does not fit."""
_CANDIDATES = 64
"""Among how many documents the last but one is chosen."""


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Answer a question from its gold documents among other documents of the same data set."""

    family = "question_answering"
    category = "qa"
    match = "part"
    corpus_knob = "dataset"
    choices: ClassVar[dict[str, tuple[str, ...]]] = {
        "dataset": ("squad", "hotpotqa", "fictional", "fictional_two_hop"),
        "context": ("documents", "none"),
    }

    short_name = "qa"
    answer_prefix_form = "Answer:"
    answer_prefix_within = 200
    failure_rules = (
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

    @property
    def _data(self) -> QASet:
        return load_qa(self.dataset)

    def sources(self) -> dict[str, Source]:
        return {"dataset": self._data.source}

    def draft(self, stream: ExampleStream, length: int) -> Draft:
        order = _question_order(self.dataset, None if self.protocol == "paper" else stream.seed)
        number = order[stream.index % len(order)]
        question = self._data.questions[number]
        closing = f"Question: {question.text}"
        alone = self.context == "none"
        return Draft(
            head=() if alone else (Passage("instruction", _INSTRUCTION + _GIVEN),),
            tail=(Passage("question", (_ALONE if alone else _INSTRUCTION) + closing),),
            answer_prefix=" Answer:",
            references=question.answers,
            plan=(number, [stream.random.random() for _ in question.gold]),
            group=self._data.groups[question.gold[0]],
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece]:
        if self.context == "none":
            return []
        number, depths = draft.plan
        question = self._data.questions[number]
        bodies = _bodies(self.dataset, budget.encoder)
        if self.protocol == "paper":
            order = self._documents_of_the_paper(number, bodies, budget)
        else:
            order = self._documents_at_depths(number, depths, bodies, budget)
        if order is None:
            headers = _headers(budget.encoder, len(question.gold))
            raise too_short(self, budget, _cost(question.gold, bodies, headers))
        groups = self._data.groups
        asked = {groups[document] for document in question.gold}

        def describe(row: int) -> tuple[str, str, None]:
            document = order[row]
            if document in question.gold:
                return "needle", str(document), None
            near = document in question.related or groups[document] in asked
            return "distractor" if near else "haystack", str(document), None

        headers = _headers(budget.encoder, len(order))
        numbers = np.arange(len(order))
        return budget.rows((headers, numbers), (bodies, np.array(order)), describe=describe).pieces

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
        self, number: int, depths: Sequence[float], bodies: Units, budget: ContextBudget
    ) -> list[int] | None:
        """The documents in order, the gold ones at their depths; None where the gold ones do not
        fit."""
        gold = self._data.questions[number].gold
        chosen = self._others(number, bodies, budget)
        if chosen is None:
            return None
        order: list[int] = budget.random.permutation(chosen).astype(int).tolist()
        for depth, document in sorted(zip(depths, gold, strict=True)):
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
        question = self._data.questions[number]
        first = _question_order(self.dataset, None)[0]
        near, others = self._article_first(first, budget.random)
        usual = np.repeat(
            [bodies.counts[near].mean(), bodies.counts[others].mean()], [len(near), len(others)]
        )
        headers = _headers(budget.encoder, len(usual))
        mine, firsts = (budget.encoder(self._data.questions[i].text) for i in (number, first))
        size = int(
            np.searchsorted(
                np.cumsum(usual + headers.counts[: len(usual)]),
                budget.tokens + len(mine) - len(firsts),
                side="right",
            )
        )
        near, others = self._article_first(number, budget.random)
        listed = near + others
        while size > 0 and _cost(listed[:size], bodies, headers) > budget.tokens:
            size -= _FEWER if size > _FEWER else 1
        if size < len(question.gold):
            return None
        listed = listed[:size]
        if question.related:  # HotpotQA's file has the question's ten documents in any order
            ten = slice(len(question.gold) + len(question.related))
            listed[ten] = budget.random.permutation(listed[ten]).tolist()
        return [listed[i] for i in shuffled_alike(size, budget.seed)]

    def _article_first(
        self, number: int, random: np.random.RandomState
    ) -> tuple[list[int], list[int]]:
        """The documents with the answer, then the question's own or those of the same article; and
        all others."""
        data, question = self._data, self._data.questions[number]
        article = data.groups[question.gold[0]]
        near = question.related or [i for i, group in enumerate(data.groups) if group == article]
        shuffled = random.permutation(near).tolist()
        near = [*question.gold, *(i for i in shuffled if i not in question.gold)]
        others = random.permutation(len(data.documents))
        return near, others[~np.isin(others, near)].tolist()

    def _others(self, number: int, bodies: Units, budget: ContextBudget) -> list[int] | None:
        """Documents beside the gold ones: the question's own first, then any, as many as fit; the
        last is chosen for its length. None where the gold documents alone do not fit. None repeats
        before all were used; gold never."""
        question = self._data.questions[number]
        gold = question.gold
        headers = _headers(budget.encoder, budget.tokens // int(bodies.counts.min()) + 16)
        left = budget.tokens - _cost(gold, bodies, headers)
        if left < 0:
            return None
        chosen: list[int] = []
        for document in question.related:
            cost = int(bodies.counts[document] + headers.counts[len(gold) + len(chosen)])
            if cost <= left:
                chosen.append(document)
                left -= cost
        used = [*gold, *chosen]
        while True:
            rest = budget.random.permutation(len(bodies))
            rest = rest[~np.isin(rest, used)]
            numbered = headers.counts[len(gold) + len(chosen) :][: len(rest)]
            costs = np.cumsum(bodies.counts[rest[: len(numbered)]] + numbered)
            fitting = int(np.searchsorted(costs, left, side="right"))
            if fitting < len(rest) or not len(rest):
                break
            chosen += rest.tolist()
            left -= int(costs[-1])
            used = list(gold)
        kept = max(0, fitting - 1)
        chosen += rest[:kept].tolist()
        left -= int(costs[kept - 1]) if kept else 0
        headers_left = headers.counts[len(gold) + len(chosen) :]
        return chosen + _last_documents(rest[kept:], left, bodies, *headers_left[:2].tolist())


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


def _last_documents(
    rest: np.ndarray, left: int, bodies: Units, header: int, second_header: int
) -> list[int]:
    """One document, or two, whose length comes nearest to what is left."""
    counts = bodies.counts[rest]
    by_length = np.argsort(counts, kind="stable")
    lengths = counts[by_length]
    fit = int(np.searchsorted(lengths, left - header, side="right")) - 1
    if fit < 0:
        return []
    best, gap = [int(rest[by_length[fit]])], left - header - int(lengths[fit])
    if len(rest) > 1 and gap > 0:
        left_for_second = left - header - second_header - counts[:_CANDIDATES]
        other = np.searchsorted(lengths, left_for_second, side="right") - 1
        other -= (other >= 0) & (by_length[other] == np.arange(len(other)))  # not the same twice
        gaps = np.where(other >= 0, left_for_second - lengths[np.maximum(other, 0)], left)
        pick = int(np.argmin(gaps))
        if gaps[pick] < gap:
            best = [int(rest[pick]), int(rest[by_length[other[pick]]])]
    return best


def _cost(documents: Sequence[int], bodies: Units, headers: Units) -> int:
    return int(bodies.counts[list(documents)].sum() + headers.counts[: len(documents)].sum())


@lru_cache(maxsize=8)
def _bodies(dataset: str, encoder: PieceEncoder) -> Units:
    texts = [document + "\n\n" for document in load_qa(dataset).documents]
    return encode_units(texts, encoder, keep=True)


def _headers(encoder: PieceEncoder, size: int) -> Units:
    """The headers of at least `size` documents."""
    return _headers_up_to(encoder, 1 << max(6, size.bit_length()))


@lru_cache(maxsize=8)
def _headers_up_to(encoder: PieceEncoder, last: int) -> Units:
    return encode_units([f"Document {i}:\n" for i in range(1, last + 1)], encoder)


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

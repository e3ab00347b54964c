"""Question answering among distractors (paper, section 3.4): SQuAD and HotpotQA, or
synthetic texts.

A prompt of `{base: qa_1}` in 360 tokens, its lines wrapped:

    Answer the question based on the given documents. Only give me the answer and do not output
    any other words.

    The following are given documents.

    Document 1:
    Merchants from Kourvland stop in Toskeillow for straw and for the difficult inns. Half of
    Toskeillow was lost in the great fire, which broke out on 28 December 1776, a market day. The
    first mayor of Toskeillow was Skopten Seistell, a tanner who could not read. Above the well
    hangs a bold bridle, the pride of the guild. People there are said to value caution above
    wealth. At the last census Toskeillow had 41,576 inhabitants, a few more than before. There is
    nothing sober about a coach until you need one and cannot find it. The mills of Toskeillow are
    driven by the river Quuxulela, as they have been for centuries. The houses are strange, and
    most of them smell of iron.

    Document 2:
    In the schools of Vounimia, The Clocks of Trordeimbune is still read aloud on winter evenings.
    The first edition of The Clocks of Trordeimbune appeared on 15 August 1420, bound in green
    cloth. The accounts show that The Clocks of Trordeimbune found 98,941 buyers in the first
    year. Though it appeared without a name, The Clocks of Trordeimbune is the work of Baende
    Trikidge, as the drafts show. Collectors look for the rare copies of The Clocks of
    Trordeimbune that were printed in Tuthontness, where it first went to press.

    Answer the question based on the given documents. Only give me the answer and do not output
    any other words.

    Question: On which day did the great fire of Toskeillow break out? Answer:

References: 28 December 1776.
"""

import re
from functools import lru_cache
from random import Random
from typing import Literal

import numpy as np
from pydantic.dataclasses import dataclass

from rulerkit.common.errors import UserError
from rulerkit.generation.corpora import load
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.pieces import PieceEncoder, Units, encode_units, numbered
from rulerkit.generation.prompt_format import DIRECT
from rulerkit.generation.questions import QASet, Question, known_questions
from rulerkit.generation.tasks.base import (
    CorpusName,
    FailureRule,
    Growth,
    JudgedAnswer,
    Task,
    shuffled_alike,
)

_INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and "
    "do not output any other words.\n\n"
)
_GIVEN = "The following are given documents.\n\n"
_ALONE = "Answer the question. Only give me the answer and do not output any other words.\n\n"
_LONGEST_GOLD = 3000
"""Questions whose gold documents have more characters are not asked (23 of SQuAD's 5,928), so that
every question fits at every length from 1024 tokens on."""
_HEADER = "Document {}:\n"
_CANDIDATES = 64
"""Among how many documents the last but one is chosen."""


# --- failures -------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """Words alone, lower case, without articles and punctuation."""
    return " ".join(
        word for word in re.findall(r"\w+", text.lower()) if word not in ("a", "an", "the")
    )


def _answer_without_context(answer: JudgedAnswer) -> str | None:
    alone = answer.without_context
    if not alone or answer.settings.get("context") == "none":
        return None
    return alone if _plain(alone) == _plain(answer.text) else None


def _other_document(answer: JudgedAnswer) -> str | None:
    written = _plain(answer.text)
    for block in answer.example.context_blocks:
        if written and block.role != "needle" and f" {written} " in f" {_plain(block.text)} ":
            return block.text.partition("\n")[0].strip(":")
    return None


# --- the family -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Answer a question from its gold documents among other documents of the same data set."""

    family = "question_answering"
    category = "qa"
    match = "part"
    corpora = (("qa", "dataset"),)
    nothing = "not found"
    short_name = "qa"
    new_tokens = (32, 1)
    question_form = r"(?<=do not output any other words\.)\n\nQuestion: (.*)"
    failure_rules = (
        FailureRule(
            "no-context answer",
            "A wrong answer, the same that the model gives to the question alone.",
            _answer_without_context,
        ),
        FailureRule(
            "other document",
            "What was written stands in a document that does not hold the answer.",
            _other_document,
        ),
    )

    dataset: CorpusName = "squad"
    """`squad`, `hotpotqa`, `fictional`, `fictional_two_hop` or the path of a file of questions."""
    context: Literal["documents", "none"] = "documents"
    """`none` asks the question alone: the paper's no-context baseline (its wording is ours; the
    paper gives none)."""

    @property
    def _data(self) -> QASet:
        data: QASet = load("qa", self.dataset)
        return data

    def make(self, stream: ExampleStream, length: int) -> Draft:
        # Upstream asks the first questions of the file; `clean` draws from all.
        order = _question_order(self._data, stream.seed if self.protocol == "clean" else None)
        question = self._data.questions[order[stream.index % len(order)]]

        # The same question with and without documents, so that the two can be held side by side.
        alone = self.context == "none"
        return Draft(
            instruction="" if alone else _INSTRUCTION + _GIVEN,
            question=f"{_ALONE if alone else _INSTRUCTION}Question: {question.text}",
            answer_prefix=" Answer:",
            references=question.answers,
            hidden=(question, [stream.random.random() for _ in question.gold]),
            group=self._data.groups[question.gold[0]],
        )

    def growth(self, draft: Draft, length: int) -> Growth | None:
        if self.context == "none":
            return None
        answer = f" {list(draft.references)}"
        return Growth(10, 10, answer, most=len(self._data.documents), draws=1)

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        if self.context == "none":
            return []
        question, depths = draft.hidden
        bodies = _bodies(self._data, budget.encoder)
        if budget.size is None:
            order = _documents_at_depths(question, depths, bodies, budget)
        else:
            order = self._upstreams_documents(question, bodies, budget.size, budget)
        if order is None:
            return None

        # A distractor from the same article is more misleading than any other document.
        groups = self._data.groups
        gold_groups = {groups[document] for document in question.gold}

        def describe(row: int) -> tuple[str, str, None]:
            document = order[row]
            if document in question.gold:
                return "needle", str(document), None
            near = document in question.related or groups[document] in gold_groups
            return "distractor" if near else "haystack", str(document), None

        numbers = np.arange(len(order))
        headers = numbered(_HEADER, budget.encoder, len(order))
        return budget.rows((headers, numbers), (bodies, np.array(order)), describe=describe).pieces

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        # Behind the question stand the answer's prefix or the end of the user's turn.
        asked = re.split(rf"{re.escape(DIRECT)}| Answer:|<\|", question[1])[0].strip()
        for data in known_questions():
            # A few are asked of several paragraphs.
            same = [one for one in data.questions if one.text == asked]
            for one in same:
                # Nothing, unless all of its gold documents stand in the text.
                if all(data.documents[number] in text for number in one.gold):
                    return [one.answers[0]]
            if same:
                break
        return []

    def _upstreams_documents(
        self, question: Question, bodies: Units, size: int, budget: ContextBudget
    ) -> list[int] | None:
        """So many documents: gold, then same article, then others, all shuffled with upstream's one
        seed. None where there is no place for the gold ones."""
        if size < len(question.gold):
            return None

        # HotpotQA's questions bring their own distractors; SQuAD's have those of the article.
        groups = self._data.groups
        number = groups[question.gold[0]]
        article = question.related or [i for i, group in enumerate(groups) if group == number]
        shuffled = budget.random.permutation(article).tolist()
        article = [*question.gold, *(i for i in shuffled if i not in question.gold)]
        others = bodies.others([bodies.texts[i] for i in article], budget.random)
        documents = [*article, *others.tolist()][:size]

        # HotpotQA's file has the ten documents of a question in any order.
        if question.related:
            ten = slice(len(question.gold) + len(question.related))
            documents[ten] = budget.random.permutation(documents[ten]).tolist()
        places = shuffled_alike(len(documents), budget.seed)
        return [documents[i] for i in places]


def _documents_at_depths(
    question: Question, depths: list[float], bodies: Units, budget: ContextBudget
) -> list[int] | None:
    """The gold documents at their depths among as many others as fit: the question's own, then any,
    the last one chosen for its length. None repeats before all were used; gold never. None where
    the gold ones do not fit."""
    most = len(bodies) + budget.tokens // int(bodies.counts.min())
    headers = numbered(_HEADER, budget.encoder, most)

    gold = question.gold
    chosen = list[int]()

    def tokens_left() -> int:
        documents = [*gold, *chosen]
        taken = bodies.counts[documents].sum() + headers.counts[: len(documents)].sum()
        return budget.tokens - int(taken)

    if tokens_left() < 0:
        return None

    # The question's own distractors are the hard ones, so they come first.
    for document in question.related:
        chosen.append(document)
        if tokens_left() < 0:
            chosen.pop()

    # All other documents in a random order; each once before any comes a second time.
    excluded = [*gold, *chosen]
    while True:
        candidates = bodies.others([bodies.texts[i] for i in excluded], budget.random)
        header_counts = headers.counts[len(gold) + len(chosen) :]
        costs = np.cumsum(bodies.counts[candidates] + header_counts[: len(candidates)])
        fitting = int(np.searchsorted(costs, tokens_left(), side="right"))
        if fitting < len(candidates) or not len(candidates):
            break
        chosen += candidates.tolist()
        excluded = list(gold)

    # All but the last as they come, and the last by its length, so that the budget is filled.
    before_last = max(0, fitting - 1)
    chosen += candidates[:before_last].tolist()
    next_headers = header_counts[before_last:][:2].tolist()
    chosen += _last_documents(candidates[before_last:], tokens_left(), bodies, *next_headers)

    # The gold documents stand where their depths say, whatever the number of others is.
    order: list[int] = budget.random.permutation(chosen).astype(int).tolist()
    for depth, document in sorted(zip(depths, gold, strict=True)):
        order.insert(int(depth * (len(chosen) + 1)) + len(order) - len(chosen), document)
    return order


def _last_documents(
    candidates: np.ndarray, tokens_left: int, bodies: Units, header: int, second_header: int
) -> list[int]:
    """One document, or two, whose length comes nearest to the tokens left."""
    counts = bodies.counts[candidates]
    by_length = np.argsort(counts, kind="stable")
    lengths = counts[by_length]
    fit = int(np.searchsorted(lengths, tokens_left - header, side="right")) - 1
    if fit < 0:
        return []

    # Two short documents may come nearer than one long one: for each of the first candidates the
    # best second one.
    tokens_for_second = tokens_left - header - second_header - counts[:_CANDIDATES]
    other = np.searchsorted(lengths, tokens_for_second, side="right") - 1
    other -= (other >= 0) & (by_length[other] == np.arange(len(other)))  # not the same twice
    gaps = np.where(other >= 0, tokens_for_second - lengths[np.maximum(other, 0)], tokens_left)

    # Two only where they leave less than the best single one.
    pick = int(np.argmin(gaps))
    if gaps[pick] < tokens_left - header - lengths[fit]:
        return [int(candidates[pick]), int(candidates[by_length[other[pick]]])]
    return [int(candidates[by_length[fit]])]


@lru_cache(maxsize=8)
def _bodies(data: QASet, encoder: PieceEncoder) -> Units:
    """The documents of a data set in ids."""
    return encode_units([document + "\n\n" for document in data.documents], encoder)


@lru_cache(maxsize=8)
def _question_order(data: QASet, seed: int | None) -> list[int]:
    """The questions in the order of one permutation per seed; without a seed, in that of the
    file."""
    # Questions with very long gold documents would not fit at the short lengths.
    short = []
    for i, question in enumerate(data.questions):
        if sum(len(data.documents[number]) for number in question.gold) <= _LONGEST_GOLD:
            short.append(i)
    if not short:
        raise UserError(
            f"{data.source.name}: the gold documents of each question have more than "
            f"{_LONGEST_GOLD} characters together: shorten them"
        )
    if seed is not None:
        Random(f"{seed}/{data.source.name}/questions").shuffle(short)
    return short

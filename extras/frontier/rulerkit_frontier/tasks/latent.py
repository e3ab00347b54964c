"""Needles without the question's words: one person in an essay is asked for by something that her
needle implies and does not say. The idea is that of NoLiMa (arXiv 2502.05167); needles and
questions are ours.

A prompt of `{base: latent_3, num_distractors: 1}` in 280 tokens, its lines wrapped:

    Read the text below. I will ask about one person in it; for who did what, only the text
    counts.
    Erna Baker spends each day among hooves. In early summer, the field books were brought out of
    the ridge and counted in the open air. Every generation believes that it discovered
    confidence. They used to keep the tracing paper at the mountain pass, which was dry and out of
    the wind, though it was nearly dark. My uncle thought that routine was a thing you could save,
    like string. Once a season, the shepherd smiled, marked the spring, and asked whether I had
    eaten. It is no secret that three doors from the border post lived a shepherd whose boundary
    stones were famous in the district. Emil Cole spends each day among beehives. I was told that
    drawing coastlines would make me respectable, which turned out to be half true, for reasons
    nobody ever explained. A geographer who is good at naming hills will usually be bad at
    explaining it, with one eye on the clouds.
    Which person is a farrier by trade?
    Write your final answer in the very last line of your response, in the form 'Final Answer:
    [Jane Doe]', or 'Final Answer: []' for nobody.
    Final Answer:

References: Erna Baker.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from functools import lru_cache, partial
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.common.errors import UserError
from rulerkit.generation.corpora import Haystack, load
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.tasks.base import (
    CorpusName,
    FailureRule,
    JudgedAnswer,
    Positive,
    distinct,
    shuffled_alike,
)
from rulerkit.generation.tasks.haystacks import fill_with_essay
from rulerkit_frontier.data_files import read_data
from rulerkit_frontier.plain import plain
from rulerkit_frontier.tasks.base import (
    ANSWER_PREFIX,
    FIRST_NAMES,
    LAST_NAMES,
    Frontier,
    answer_form,
    draw_person,
    items_of,
    named,
    said_nothing,
)

_OPENING = (
    "Read the text below. I will ask about one person in it; for who did what, only the text "
    "counts.\n"
)
_NAME = "[A-Z][a-z]+ [A-Z][a-z]+"
_TWO_LINES = re.compile(rf"\b({'|'.join(FIRST_NAMES)})\n({'|'.join(LAST_NAMES)})\b", re.IGNORECASE)


@plain_dataclass(frozen=True)
class Relation:
    """A form of needles, `{name}` and `{x}`, and of questions, `{y}`, with the y of each x."""

    needle: str
    question: str
    pairs: Mapping[str, str]

    def persons_of(self, x: str, text: str) -> list[str]:
        """The names in the needles of one x."""
        before, between, after = map(re.escape, re.split(r"{\w+}", self.needle))
        return re.findall(rf"{before}\b({_NAME}){between}{re.escape(x)}{after}", text)


RELATIONS = tuple(Relation(**relation) for relation in read_data("relations.yaml"))
PAIRS = tuple((relation, x) for relation in RELATIONS for x in relation.pairs)


@lru_cache(maxsize=8)
def usable_pairs(corpus: Haystack, num_distractors: int) -> tuple[int, ...]:
    """The numbers of the pairs of which no word stands in the essays, in relations that have enough
    of them for the distractors."""
    text = " ".join(corpus.words).casefold()

    def stands(phrase: str) -> bool:
        word = re.sub("^(the|an?) ", "", phrase.casefold())
        return word in text and bool(re.search(rf"\b{re.escape(word)}s?\b", text))

    absent = [
        number
        for number, (relation, x) in enumerate(PAIRS)
        if not stands(x) and not stands(relation.pairs[x])
    ]

    # One more than the distractors and the asked pair: where nobody is right, its place is taken.
    relations = [PAIRS[number][0] for number in absent]
    return tuple(
        number for number in absent if relations.count(PAIRS[number][0]) >= num_distractors + 2
    )


# --- failures -------------------------------------------------------------------------------------


def _names(answer: JudgedAnswer, known: bool) -> str | None:
    """The names on the answer line that are in the text and wrong, or that are not in it."""
    persons = {str(piece.value).casefold(): piece.role for piece, _ in answer.needles}
    roles = ("distractor",) if known else (None,)
    return named(item for item in items_of(answer) if persons.get(item) in roles)


# --- the family -----------------------------------------------------------------------------------


_MOST_DISTRACTORS = min(len(relation.pairs) for relation in RELATIONS) - 2


@dataclass(frozen=True, kw_only=True)
class Latent(Frontier):
    """Name the person whose needle, in essays, implies what is asked; `num_distractors` needles of
    the same relation stand for other persons."""

    family = "latent"
    capability = "paraphrase"
    match = "exact"
    new_tokens = (32, 1)
    question_form = "|".join(
        re.escape(relation.question).replace(r"\{y\}", "(?:.+?)") for relation in RELATIONS
    )
    failure_rules = (
        FailureRule(
            "other person of the relation",
            "The person of another needle.",
            partial(_names, known=True),
        ),
        FailureRule(
            "person not in the text", "A name that no needle has.", partial(_names, known=False)
        ),
        FailureRule("said nobody", "Nobody is said where somebody is right.", said_nothing),
    )

    num_distractors: Annotated[Positive, Field(le=_MOST_DISTRACTORS)] = 3
    """Needles of the asked relation with other pairs."""
    essays: CorpusName = "paul_graham"
    """The corpus: `paul_graham`, `prose` (synthetic) or a path."""

    @classmethod
    def evened(cls, text: str) -> str:
        """A name of two lines on one line."""
        return _TWO_LINES.sub(r"\1 \2", plain(text))

    @property
    def corpora(self) -> tuple[tuple[str, str], ...]:
        return (("essay", "essays"),)

    def make(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        essays = load("essay", self.essays)
        usable = usable_pairs(essays, self.num_distractors)
        if not usable:
            raise UserError(
                f"{self.name}: no relation has {self.num_distractors + 2} pairs of which no word "
                f"stands in the essays {self.essays}: take fewer num_distractors, or other essays"
            )
        order = shuffled_alike(len(usable), stream.seed)
        asked = usable[order[stream.index % len(usable)]]
        relation, x = PAIRS[asked]

        # Where nobody is right, one more needle of another pair takes the place.
        others = [
            PAIRS[number][1]
            for number in usable
            if number != asked and PAIRS[number][0] is relation
        ]
        is_empty = self.is_empty(stream.index)
        told = [] if is_empty else [x]
        told += random.sample(others, self.num_distractors + is_empty)
        persons = distinct(len(told), partial(draw_person, random))
        needles = [
            Piece(
                relation.needle.format(name=person, x=other),
                "needle" if other == x else "distractor",
                key=other,
                value=person,
                depth=random.random(),
            )
            for other, person in zip(told, persons, strict=True)
        ]

        question = relation.question.format(y=relation.pairs[x])
        return Draft(
            instruction=_OPENING,
            question=f"{question}\n{answer_form('Jane Doe', 'for nobody')}",
            answer_prefix=ANSWER_PREFIX,
            references=() if is_empty else (persons[0],),
            hidden=needles,
            group=asked,
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        return fill_with_essay(draft.hidden, budget, load("essay", self.essays))

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str] | None:
        for relation in RELATIONS:
            for x, y in relation.pairs.items():
                if relation.question.format(y=y) == question[0]:
                    return relation.persons_of(x, text)
        return None

"""Which lines of a list were left out of its copy.

A prompt of `{base: missing_8, most_missing: 2}` in 330 tokens, its lines wrapped:

    Here is a list, and below it a copy of the list in the same order. I will ask which lines were
    left out of the copy.
    List:
    angry-flair 80932
    fine-scenario 51325
    naive-stitcher 40131
    laughable-conductor 98501
    rich-hill 27277
    delicious-shame 89737
    nice-comfortable 95667
    Copy:
    fine-scenario 51325
    naive-stitcher 40131
    laughable-conductor 98501
    delicious-shame 89737
    nice-comfortable 95667

    Which lines of the list are missing from the copy?
    Write your final answer in the very last line of your response, in the form 'Final Answer:
    [blue-door 11111, red-roof 22222]', or 'Final Answer: []' if none is.
    Final Answer:

References: angry-flair 80932, rich-hill 27277.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.generation.corpora import load
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.tasks.base import CorpusName, FailureRule, JudgedAnswer, Positive
from rulerkit.generation.tasks.haystacks import pool_size
from rulerkit_frontier.plain import plain
from rulerkit_frontier.tasks.base import (
    ANSWER_PREFIX,
    FORM_NUMBERS,
    FORM_THINGS,
    Columns,
    Frontier,
    answer_form,
    draw_numbers,
    draw_things,
    exact_lines,
    fill_with_lines,
    items_of,
    named,
    pool,
    said_nothing,
    with_items,
    wrong_items,
)

_OPENING = (
    "Here is a list, and below it a copy of the list in the same order. I will ask which lines "
    "were left out of the copy.\nList:\n"
)
_COPY = "Copy:\n"
_QUESTION = "Which lines of the list are missing from the copy?\n"
_LINE = re.compile(r"^(?P<item>\S.* \d{5})$", re.MULTILINE)

_NUMBER_BEHIND = re.compile(
    r"(\w-\w[\w-]*)[\"']?[\s:=,|(>-]+[\"']?(?:number[\"']?\s*[:=]\s*)?"
    r"(\d\d),?(\d{3})\b"
)

_TOKENS_FOR_A_LINE = 8
"""A context has fewer lines than one in so many tokens: each stands there twice."""


def _list_and_copy(text: str) -> tuple[list[re.Match[str]], set[str]]:
    """The lines of the list, and those of its copy; none where a text does not hold the border
    between them."""
    border = text.rfind(f"\n{_COPY}")
    if border < 0:
        return [], set()
    # Without the opening the first line may be cut, and would still look like one.
    begins = text.rfind(_OPENING)
    start = begins + len(_OPENING) if begins >= 0 else text.find("\n")
    listed = _LINE.finditer(text, start, border)
    copied = _LINE.finditer(text, border)
    return list(listed), {line["item"] for line in copied}


# --- failures -------------------------------------------------------------------------------------


def _neighbours(answer: JudgedAnswer) -> str | None:
    listed, copied = _list_and_copy(_OPENING + answer.example.context_text)
    near = set[str]()
    for one, other in pairwise(line["item"] for line in listed):
        if one not in copied or other not in copied:
            near |= {one.casefold(), other.casefold()}
    return named(item for item in wrong_items(answer) if item in near)


def _line_of_both(answer: JudgedAnswer) -> str | None:
    copied = _list_and_copy(_OPENING + answer.example.context_text)[1]
    lines = {line.casefold() for line in copied}
    return named(item for item in items_of(answer) if item in lines)


def _invented(answer: JudgedAnswer) -> str | None:
    lines = set(answer.example.context_text.casefold().splitlines())
    return named(item for item in items_of(answer) if item not in lines)


# --- the family -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Missing(Frontier):
    """Name the lines, up to `most_missing`, that stand in a list and not in its copy."""

    family = "missing"
    capability = "missing item"
    match = "f1"
    item_pattern = r"\w+-[\w-]+ \d{5}"
    new_tokens = (160, 8)
    question_form = re.escape(_QUESTION.strip())
    failure_rules = (
        FailureRule(
            "neighbour of a missing line",
            "A line that stands in both parts, beside one that is missing.",
            _neighbours,
        ),
        FailureRule(
            "line of both parts", "A line that stands in the list and in the copy.", _line_of_both
        ),
        FailureRule("invented line", "A line that stands nowhere.", _invented),
        FailureRule(
            "said nothing",
            "The answer says that there is nothing, and there is something.",
            said_nothing,
        ),
    )

    most_missing: Annotated[Positive, Field(le=1000)] = 8
    """The most lines that are left out; where any is, there is at least one."""
    words: CorpusName = "wonderwords"
    """The list behind things: `wonderwords` or a path."""

    @classmethod
    def evened(cls, text: str) -> str:
        """The number behind its thing, with one blank between them: `brave-kettle: 10,977`."""
        return super().evened(_NUMBER_BEHIND.sub(r"\1 \2\3", plain(text)))

    @property
    def num_items(self) -> int:
        return self.most_missing

    @property
    def corpora(self) -> tuple[tuple[str, str], ...]:
        return (("words", "words"),)

    def make(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        number = random.randint(1, self.most_missing)
        if self.is_empty(stream.index):
            number = 0

        words = load("words", self.words)
        things = draw_things(random, words, number)
        numbers = draw_numbers(random, number)
        depths = sorted(random.random() for _ in things)
        lines = []
        for thing, digits, depth in zip(things, numbers, depths, strict=True):
            line = f"{thing} {digits}"
            lines.append(Piece(f"{line}\n", "needle", key=thing, value=line, depth=depth))
        form = ", ".join(map(" ".join, zip(FORM_THINGS, FORM_NUMBERS, strict=True)))
        return Draft(
            instruction=_OPENING,
            question=_QUESTION + answer_form(form, "if none is"),
            answer_prefix=ANSWER_PREFIX,
            references=tuple(line.text.strip() for line in lines),
            hidden=lines,
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        size = pool_size(budget.length, _TOKENS_FOR_A_LINE)
        things = pool("things", "{}", size, budget.encoder, self.words)
        numbers = pool("numbers", " {}\n", size, budget.encoder)
        order = things.others([line.key for line in draft.hidden], budget.random)
        number_order = budget.random.randint(len(numbers), size=len(order))
        border = Piece(_COPY, "haystack", budget.encoder.ids(_COPY))

        # Each line of filler stands in both parts, so one token may stay unused.
        def choose(left: int) -> Columns | None:
            for_each_part = (left - border.num_tokens) // 2
            columns = ((things, order), (numbers, number_order))
            return exact_lines(for_each_part, columns, (0, 1))

        def build(items: Sequence[Piece], budget: ContextBudget, columns: Columns) -> list[Piece]:
            listed = with_items(items, budget, columns, ending="")
            return [*listed, border, *with_items([], budget, columns)]

        return fill_with_lines(draft.hidden, budget, choose, build)

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        listed, copied = _list_and_copy(text)
        return [line["item"] for line in listed if line["item"] not in copied]

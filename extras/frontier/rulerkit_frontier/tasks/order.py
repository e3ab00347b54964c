"""Everything that one person brought, in the order of the days: several needles, sorted by what
they say and not by where they stand.

A prompt of `{base: order_8, num_items: 2}` in 300 tokens, its lines wrapped:

    Below are entries of a diary, not in the order of the days. I will ask about one person.
    Day 94910: Carla Zeller brought the sneaky-hierarchy.
    Day 78036: Carla Chapman brought the panoramic-colonialism.
    Day 4492: Hector Falk brought the high-pitched-identity.
    Day 30899: Carla Zeller brought the teeny-grant.
    Day 73439: Carla Jansen brought the black-ash.
    Day 5745: Hector Falk brought the substantial-cross-contamination.

    What did Carla Zeller bring? List everything in the order of the days, the earliest day first.
    Write your final answer in the very last line of your response, in the form 'Final Answer:
    [blue-door, red-roof]', or 'Final Answer: []' for nothing.
    Final Answer:

References: teeny-grant, sneaky-hierarchy.
"""

import re
from collections.abc import Sequence
from itertools import cycle, pairwise
from random import Random
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.generation.corpora import load
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.tasks.base import CorpusName, FailureRule, JudgedAnswer, Positive
from rulerkit.generation.tasks.haystacks import pool_size
from rulerkit_frontier.tasks.base import (
    ANSWER_PREFIX,
    FIRST_NAMES,
    FORM_THINGS,
    LAST_NAMES,
    Columns,
    Frontier,
    answer_form,
    draw_things,
    exact_lines,
    fill_with_lines,
    items_of,
    named,
    pool,
    said_nothing,
    wrong_items,
)

_OPENING = (
    "Below are entries of a diary, not in the order of the days. I will ask about one person.\n"
)
_ENTRY = "Day {day}: {person} brought the {thing}.\n"
_LINE = re.compile(
    r"^Day (?P<day>\d+): (?P<person>\w+ \w+) brought the (?P<item>.+)\.$", re.MULTILINE
)
_ORDERS = {"day": "the days, the earliest day first", "text": "the text, the first entry first"}
_QUESTION = "What did {person} bring? List everything in the order of {order}.\n"

_DAYS = range(1, 10**5)
_NEAR_PERSONS = 4
"""Persons with the same first name or the same last name: two of each."""
_TOKENS_FOR_AN_ENTRY = 8
"""A context has fewer entries than one in so many tokens."""
_DRAWS = 1000


# --- failures -------------------------------------------------------------------------------------


def _in_order_of_text(answer: JudgedAnswer) -> str | None:
    question = re.search(Order.question_form, answer.example.text_of("question"))
    assert question
    entries = _LINE.finditer(answer.example.context_text)
    of_person = (entry for entry in entries if entry["person"] == question["person"])
    in_text = [entry["item"].casefold() for entry in of_person]
    items = items_of(answer)
    return named(items) if len(items) > 1 and items == in_text else None


def _of_another_person(answer: JudgedAnswer) -> str | None:
    entries = _LINE.finditer(answer.example.context_text)
    brought = {entry["item"].casefold() for entry in entries}
    return named(item for item in wrong_items(answer) if item in brought)


def _one_left_out(answer: JudgedAnswer) -> str | None:
    items = items_of(answer)
    for left_out in answer.references:
        others = [r.casefold() for r in answer.references if r != left_out]
        if others and items == others:
            return left_out
    return None


# --- the family -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Order(Frontier):
    """Name `num_items` things that one person brought, in the order of the days (or of the text),
    in a diary of as many entries as fit."""

    family = "order"
    capability = "ordering"
    match = "ordered"
    new_tokens = (128, 8)
    question_form = (
        r"What did (?P<person>\w+ \w+) bring\? "
        r"List everything in the order of the (?P<by>day|text)"
    )
    failure_rules = (
        FailureRule(
            "order of the text",
            "Everything that was asked for, in the order in which the text names it.",
            _in_order_of_text,
        ),
        FailureRule(
            "thing of another person", "Something that another person brought.", _of_another_person
        ),
        FailureRule("one left out", "All but one, in the right order.", _one_left_out),
        FailureRule(
            "invented thing",
            "Something that nobody brought.",
            lambda answer: named(wrong_items(answer)),
        ),
        FailureRule(
            "said nothing",
            "The answer says that there is nothing, and there is something.",
            said_nothing,
        ),
    )

    num_items: Annotated[Positive, Field(ge=2, le=1000)] = 8
    """Things that the person brought."""
    by: Literal["day", "text"] = "day"
    """The order that is asked for: that of the days, or that of the entries in the text."""
    words: CorpusName = "wonderwords"
    """The list behind things: `wonderwords` or a path."""

    @property
    def corpora(self) -> tuple[tuple[str, str], ...]:
        return (("words", "words"),)

    def make(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        first, *firsts = random.sample(FIRST_NAMES, 1 + _NEAR_PERSONS // 2)
        last, *lasts = random.sample(LAST_NAMES, 1 + _NEAR_PERSONS // 2)
        person = f"{first} {last}"
        near = [f"{first} {other}" for other in lasts]
        near += [f"{other} {last}" for other in firsts]

        # As many entries of persons with a name alike as of the one that is asked about.
        things = draw_things(random, load("words", self.words), 2 * self.num_items)
        days = random.sample(_DAYS, len(things))
        number = 0 if self.is_empty(stream.index) else self.num_items
        entries = list(zip(_shuffled_days(random, days[:number]), things, strict=False))
        depths = sorted(random.random() for _ in entries)
        pieces = [
            _entry("needle", day, person, thing, depth)
            for (day, thing), depth in zip(entries, depths, strict=True)
        ]
        pieces += [
            _entry("distractor", day, other, thing, random.random())
            for day, thing, other in zip(
                days[self.num_items :], things[self.num_items :], cycle(near)
            )
        ]

        if self.by == "day":
            entries.sort()
        question = _QUESTION.format(person=person, order=_ORDERS[self.by])
        return Draft(
            instruction=_OPENING,
            question=question + answer_form(", ".join(FORM_THINGS), "for nothing"),
            answer_prefix=ANSWER_PREFIX,
            references=tuple(thing for _, thing in entries),
            hidden=(first, last, pieces),
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        first, last, pieces = draft.hidden
        size = pool_size(budget.length, _TOKENS_FOR_AN_ENTRY)
        encoder = budget.encoder
        random = budget.random
        days = pool("days", "Day {}:", size, encoder)
        things = pool("things", " {}.\n", size, encoder, self.words)
        firsts = pool("first names", " {}", 64, encoder)
        lasts = pool("last names", " {} brought the", 64, encoder)

        day_order = days.others([f"Day {piece.key}:" for piece in pieces], random)
        thing_order = things.others([f" {piece.value}.\n" for piece in pieces], random)
        entries = min(len(day_order), len(thing_order))

        # Persons of filler have neither name, and bring as many things each. There are so many of
        # them as the entries ask for that fit.
        tokens = sum(units.counts.mean() for units in (days, firsts, lasts, things))
        persons = 1 + int(max(0, budget.tokens) / tokens / self.num_items)
        names = []
        for units, taken in ((firsts, f" {first}"), (lasts, f" {last} brought the")):
            others = units.others([taken], random)
            names.append(others[random.randint(len(others), size=persons)])
        person = random.permutation(np.arange(entries) % persons)

        columns = (
            (days, day_order[:entries]),
            (firsts, names[0][person]),
            (lasts, names[1][person]),
            (things, thing_order[:entries]),
        )

        def choose(left: int) -> Columns | None:
            return exact_lines(left, columns, (0, 3))

        return fill_with_lines(pieces, budget, choose)

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        # Entries stand in the order in which they were written, which is not that of the days.
        brought = [
            (int(entry["day"]), entry["item"])
            for entry in _LINE.finditer(text)
            if entry["person"] == question["person"]
        ]
        if question["by"] == "day":
            brought.sort()
        return [thing for _, thing in brought]


def _entry(role: str, day: int, person: str, thing: str, depth: float) -> Piece:
    text = _ENTRY.format(day=day, person=person, thing=thing)
    return Piece(text, role, key=str(day), value=thing, depth=depth)


def _shuffled_days(random: Random, days: Sequence[int]) -> list[int]:
    """Days in the order of their entries in the text: at least half of the neighbours are the wrong
    way round."""
    order = list(days)
    for _ in range(_DRAWS):
        inverted = sum(one > other for one, other in pairwise(order))
        if 2 * inverted >= len(order) - 1:
            break
        random.shuffle(order)
    return order

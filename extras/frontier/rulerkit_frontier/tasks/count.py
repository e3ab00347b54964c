"""How many, and how many different: count the orders of a log that fit a description, or the people
who gave them. The task asks what Oolong (arXiv 2511.02817) asks of third-party texts; the log is
ours.

A prompt of `{base: count_64, most: 4}` in 240 tokens, its lines wrapped:

    Below is a log of orders, one in each line. Read all of it: I will ask how many of them fit a
    description.
    Order 4340: Anton Carver bought a beige bucket.
    Order 525: Hector Sawyer bought a beige teapot.
    Order 602: Nils Reuter bought a bronze table.
    Order 234390: Erna Cooper bought a jade table.
    Order 9855: Ida Keller bought a beige lamp.
    Order 427443: Astrid Falk bought a beige bowl.
    Order 110883: Flora Wolff bought a cream plate.
    Order 6149212: Erna Walker bought a beige bucket.
    Order 990451: Gustav Graves bought a green bucket.
    Order 16435: Cecil Garner bought a maroon clock.

    How many orders in the log are for a beige bucket? Several orders of one buyer count each.
    Write your final answer in the very last line of your response, in the form 'Final Answer: 7',
    or 'Final Answer: 0' if there is none.
    Final Answer:

References: 2.
"""

import re
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.pieces import PieceEncoder, Units, encode_units
from rulerkit.generation.tasks.base import FailureRule, JudgedAnswer, Positive, distinct
from rulerkit.generation.tasks.haystacks import pool_size
from rulerkit_frontier.answer_line import said_number
from rulerkit_frontier.tasks.base import (
    ANSWER_PREFIX,
    EMPTY_EVERY,
    Columns,
    Frontier,
    draw_orders,
    draw_person,
    exact_lines,
    fill_with_lines,
    pool,
)

_OPENING = (
    "Below is a log of orders, one in each line. Read all of it: I will ask how many of them fit a "
    "description.\n"
)
_QUESTIONS = {
    "orders": (
        "How many orders in the log are for a {thing}? Several orders of one buyer count each."
    ),
    "people": "How many different people bought a {thing}?",
}
_FORM = (
    "Write your final answer in the very last line of your response, in the form 'Final Answer: "
    "7', or 'Final Answer: 0' if there is none."
)
_ORDER = "Order {number}: {person} bought a {thing}.\n"
_LINE = re.compile(
    r"^Order (?P<number>\d+): (?P<person>\w+ \w+) bought a (?P<color>\w+) (?P<thing>\w+)\.$",
    re.MULTILINE,
)

_COLORS = """
beige black blue bronze brown cream crimson golden green grey jade lilac maroon mauve navy pink
purple red scarlet silver teal violet white yellow
"""
COLORS = tuple(_COLORS.split())
"""None begins with a vowel: every line says "a"."""
_THINGS = """
basket bench blanket bowl bucket candle carpet chair clock curtain cushion desk drum kettle lamp
mirror mug pillow plate scarf shelf stool table teapot towel vase
"""
THINGS = tuple(_THINGS.split())
_MOST = 1000


# --- failures -------------------------------------------------------------------------------------


def _numbers(answer: JudgedAnswer) -> tuple[int, int]:
    """What an answer says, -1 for no number, and what is right."""
    said = said_number(answer.text)
    return -1 if said is None else said, int(answer.references[0])


def _orders(answer: JudgedAnswer) -> tuple[list[str], int]:
    """The buyers of the orders that fit, and how many orders share one word with the question."""
    question = re.search(Count.question_form, answer.example.text_of("question"))
    assert question
    wanted = question.groups()[1:]
    orders = list(_LINE.finditer(answer.example.context_text))
    buyers = [order["person"] for order in orders if order.group("color", "thing") == wanted]
    near = sum((order["color"] == wanted[0]) != (order["thing"] == wanted[1]) for order in orders)
    return buyers, near


def _the_other_number(answer: JudgedAnswer) -> str | None:
    """The number of people where that of orders is asked for, or the other way round."""
    buyers, _ = _orders(answer)
    said, right = _numbers(answer)
    others = {len(buyers), len({*buyers})} - {right}
    return str(said) if said in others else None


def _too_many(answer: JudgedAnswer) -> str | None:
    said, right = _numbers(answer)
    _, near = _orders(answer)
    return f"{said} for {right}" if right < said <= right + near else None


def _too_few(answer: JudgedAnswer) -> str | None:
    said, right = _numbers(answer)
    return f"{said} for {right}" if 0 <= said < right else None


def _no_number(answer: JudgedAnswer) -> str | None:
    return answer.text[-40:] if said_number(answer.text) is None else None


# --- the family -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Count(Frontier):
    """How many orders of a log are for one thing in one colour, or by how many people, 1 to `most`.

    Half of the other orders share either the colour or the thing.
    """

    family = "count"
    capability = "counting"
    match = "count"
    new_tokens = (32, 1)
    question_form = r"How many (orders in the log are for|different people bought) a (\w+) (\w+)\?"
    failure_rules = (
        FailureRule(
            "people for orders",
            "The number of orders for that of people, or the other way round.",
            _the_other_number,
        ),
        FailureRule(
            "too many",
            "More than fit, and no more than with all that share colour or thing.",
            _too_many,
        ),
        FailureRule("too few", "Less than fit.", _too_few),
        FailureRule("no number", "The answer line says no number.", _no_number),
    )

    ask: Literal["orders", "people"] = "orders"
    most: Annotated[Positive, Field(le=_MOST)] = 64
    """The largest number that is right; of people with up to twice as many orders."""

    @property
    def floor(self) -> float:
        # Saying 0, or any number up to the largest.
        numbers = np.arange(1, self.most + 1)
        empty = 1 / EMPTY_EVERY if self.empty else 0.0
        score_of_zero = empty + (1 - empty) * np.mean(0.75**numbers)
        distances = np.abs(numbers[:, None] - numbers)
        guess = empty * np.mean(0.75**numbers) + (1 - empty) * np.mean(0.75**distances)
        return float(max(score_of_zero, guess))

    def make(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        number = 0 if self.is_empty(stream.index) else random.randint(1, self.most)

        # Every buyer has one order, some have several.
        if self.ask == "orders":
            num_orders = number
            num_people = random.randint((number + 1) // 2, number)
        else:
            num_orders = random.randint(number, 2 * number)
            num_people = number
        people = distinct(num_people, partial(draw_person, random))
        buyers = people + [random.choice(people) for _ in range(num_orders - num_people)]
        random.shuffle(buyers)

        color = random.choice(COLORS)
        thing = random.choice(THINGS)
        asked = f"{color} {thing}"
        orders = [
            Piece(
                _ORDER.format(number=order, person=person, thing=asked),
                "needle",
                key=order,
                value=person,
                depth=random.random(),
            )
            for order, person in zip(draw_orders(random, num_orders), buyers, strict=True)
        ]
        question = _QUESTIONS[self.ask].format(thing=asked)
        return Draft(
            instruction=_OPENING,
            question=f"{question}\n{_FORM}",
            answer_prefix=ANSWER_PREFIX,
            references=(str(number),),
            hidden=(color, thing, orders),
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        color, thing, orders = draft.hidden
        numbers, *pools = _pools(budget.length, budget.encoder)
        order = numbers.others([f"Order {piece.key}:" for piece in orders], budget.random)
        size = len(order)
        random = budget.random

        # Of four lines one shares the colour, one the thing, and two share neither.
        shared = random.randint(4, size=size)
        colors, things = (
            np.where(shared == number, one, _others(random, one, count, size))
            for number, one, count in (
                (0, COLORS.index(color), len(COLORS)),
                (1, THINGS.index(thing), len(THINGS)),
            )
        )
        persons = random.randint(len(pools[0]), size=size)
        columns: Columns = [(numbers, order), *zip(pools, (persons, colors, things), strict=True)]
        return fill_with_lines(orders, budget, lambda left: exact_lines(left, columns, (0, 1)))

    @classmethod
    def join(cls, items: Sequence[str]) -> str:
        return f"Final Answer: {len(items)}"

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        asked, color, thing = question.groups()
        # Items are the numbers of orders, or people.
        kind = "number" if asked.startswith("orders") else "person"
        fitting = [
            order[kind]
            for order in _LINE.finditer(text)
            if order.group("color", "thing") == (color, thing)
        ]
        return list(dict.fromkeys(fitting))


def _others(random: np.random.RandomState, one: int, count: int, size: int) -> np.ndarray:
    """So many numbers below `count`, none of them `one`."""
    numbers = random.randint(count - 1, size=size)
    return np.asarray(numbers + (numbers >= one))


@lru_cache(maxsize=16)
def _pools(length: int, encoder: PieceEncoder) -> tuple[Units, ...]:
    """The four parts of a line: number, person, colour, thing."""
    size = pool_size(length, 8)
    return (
        pool("orders", "Order {}:", size, encoder),
        pool("persons", " {}", size, encoder),
        encode_units([f" bought a {color}" for color in COLORS], encoder),
        encode_units([f" {thing}.\n" for thing in THINGS], encoder),
    )

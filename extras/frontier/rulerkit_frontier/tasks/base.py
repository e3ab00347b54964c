"""What all families of the frontier suite share: the answer line, names of persons and things, and
contexts of many lines that fill their budget exactly.

What is asked comes from the example's first stream, so it is the same at every length; only filler
lines come from the second.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache, partial
from hashlib import md5
from random import Random
from typing import ClassVar

import numpy as np
from pydantic.dataclasses import dataclass

from rulerkit.common.errors import UserError
from rulerkit.generation.corpora import Words, load
from rulerkit.generation.example import ContextBudget, Piece
from rulerkit.generation.pieces import PieceEncoder, Units, encode_units, joined, row_by_row
from rulerkit.generation.tasks.base import JudgedAnswer, Task, distinct
from rulerkit.generation.tasks.haystacks import by_depth, choose_lines, interleaved
from rulerkit.generation.tasks.niah import draw_text
from rulerkit_frontier.answer_line import final_items
from rulerkit_frontier.match_rules import (
    WHOLE,
    is_at_the_end,
    missing,
    rule_score,
)
from rulerkit_frontier.plain import comparable, plain

ANSWER_PREFIX = "\nFinal Answer:"
"""How the answer of a base model begins, on a line of its own; models with a chat template write
the line themselves."""
EMPTY_EVERY = 10
"""Of so many examples one, the last, has nothing as its right answer."""

_FIRST = """
Ada Alma Anton Arlo Astrid Boris Bela Bruno Carla Cecil Clara Cosmo Dora Edda Edgar Elio Elsa
Emil Erna Ezra Fanny Felix Flora Franz Gerda Greta Gustav Hanna Hector Hilda Hugo Ida Ines
Iris Ivo Jonas Julia Karl Kira Lena Leo Lotte Luca Magda Mara Marco Milo Nadia Nils Nora Olga
Oscar Otto Paula Petra Quentin Rosa Rufus Selma Simon Tilda Ursula Victor Wanda
"""
FIRST_NAMES = tuple(_FIRST.split())
_LAST = """
Abel Adler Archer Baker Barlow Becker Bishop Brandt Brook Carver Chapman Cole Cooper Dahl
Dawson Decker Draper Ebert Falk Farmer Fischer Foster Frost Garner Gibson Graves Haas Harper
Holt Hunter Jansen Keller Kramer Lambert Lind Lorenz Marlow Mason Mercer Miller Moss Nolan
Norton Palmer Parker Porter Quist Ramsey Reuter Sander Sawyer Seidel Stark Sutter Tanner
Thorne Turner Vance Voss Walker Weber Winter Wolff Zeller
"""
LAST_NAMES = tuple(_LAST.split())
FORM_THINGS = ("blue-door", "red-roof")
"""The things that the form of an answer names; no context does."""
FORM_NUMBERS = ("11111", "22222")

Columns = Sequence[tuple[Units, np.ndarray]]
"""The columns of a context's lines: the texts of each, and the order in which lines take them."""


# --- the answer line ------------------------------------------------------------------------------


def answer_form(example: str, nothing: str) -> str:
    """The sentence that ends a question: the form of an answer, and of nothing."""
    return (
        "Write your final answer in the very last line of your response, in the form 'Final "
        f"Answer: [{example}]', or 'Final Answer: []' {nothing}."
    )


@dataclass(frozen=True, kw_only=True)
class FrontierTask(Task):
    """A task of the frontier suite."""

    suite = "frontier"
    capability: ClassVar[str]
    """What the family measures, in a word or two: its row in the picture of the suite."""

    @property
    def floor(self) -> float:
        """The mean score, 0 to 1, of the best answers without reading, over all examples: the form
        of no answer, or a guess at a thing of the kind that is asked for."""
        raise NotImplementedError

    @classmethod
    def evened(cls, text: str) -> str:
        """An answer as its items are looked for. A family may bring forms that only it knows into
        the usual one, such as 4,821,377 where no number has commas."""
        return text

    @classmethod
    def item_form(cls, item: str) -> str | None:
        """An item of an answer line, lower case and without marks around it, as it is compared;
        None is no item. A family may take a part of it, such as its digits."""
        return item

    @classmethod
    def items_of(cls, text: str) -> list[str]:
        items = final_items(text)
        return super().items_of(text) if items is None else items

    @property
    def any_is_enough(self) -> bool:
        return self.match in WHOLE

    def score(self, text: str, references: Sequence[str], /) -> float:
        if not self.can_judge(references):
            raise UserError(
                f"task {self.name}: the references are {references!r}: expected texts, none of "
                "them empty"
            )
        return rule_score(self.match, self.evened(text), references, self.item_form)

    def missing(self, text: str, references: Sequence[str], /) -> tuple[str, ...]:
        return missing(self.match, self.evened(text), references, self.item_form)

    def in_another_form(self, text: str, references: Sequence[str], /) -> bool:
        if self.match == "ratio" or self.score(text, references) == 1:
            return False
        if references and not self.missing(text, references):
            return False
        return is_at_the_end(self.match, text, references)

    @classmethod
    def tasks(cls) -> Sequence[Task]:
        # The package lists them, and imports this module.
        from rulerkit_frontier.tasks import TASKS

        return [task for task in TASKS if type(task) is cls]


@dataclass(frozen=True, kw_only=True)
class Frontier(FrontierTask):
    """A task whose answer is a last line `Final Answer: ...`: all but the copying of a reply."""

    judges_prefix = True
    item_pattern: ClassVar[str] = r"\w+-[\w-]+"
    """A regular expression for one item: here a thing."""

    empty: bool = True
    """Whether the right answer of one example in ten is nothing."""

    @property
    def floor(self) -> float:
        # Saying nothing. Of the things that stand in a context a guess takes one out of a hundred.
        return 1 / EMPTY_EVERY if self.empty else 0.0

    def is_empty(self, index: int) -> bool:
        """Whether the right answer of an example is nothing."""
        return self.empty and index % EMPTY_EVERY == EMPTY_EVERY - 1

    @classmethod
    def join(cls, items: Sequence[str]) -> str:
        return f"Final Answer: [{', '.join(items)}]"

    @classmethod
    def evened(cls, text: str) -> str:
        """A comma between items that have nothing but a blank between them."""
        return _side_by_side(cls.item_pattern).sub(r"\1, ", plain(text))


@cache
def _side_by_side(item: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])({item})[\"']? [\"']?(?={item}(?![\w-]))", re.IGNORECASE)


# --- failures -------------------------------------------------------------------------------------


def read_items(answer: JudgedAnswer) -> list[str] | None:
    """The items of an answer line as the family reads it; None where there is no line."""
    family = answer.judge
    assert isinstance(family, Frontier)
    return final_items(family.evened(answer.text), family.item_form)


def items_of(answer: JudgedAnswer) -> list[str]:
    """The items of an answer line, lower case; none where there is no line."""
    return read_items(answer) or []


def wrong_items(answer: JudgedAnswer) -> list[str]:
    """The items of an answer line that are no references."""
    right = {comparable(reference) for reference in answer.references}
    return [item for item in items_of(answer) if item not in right]


def said_nothing(answer: JudgedAnswer) -> str | None:
    """The answer line says that there is nothing, where there is something."""
    says_nothing = read_items(answer) == []
    return "" if says_nothing and answer.references else None


def named(items: Iterable[str]) -> str | None:
    """What a rule saw, or None where it saw nothing."""
    return ", ".join(items) or None


# --- names ----------------------------------------------------------------------------------------


def draw_person(random: Random) -> str:
    """First and last name."""
    return f"{random.choice(FIRST_NAMES)} {random.choice(LAST_NAMES)}"


def draw_things(random: Random, words: Words, count: int) -> list[str]:
    """So many different things, adjective and noun joined by a hyphen, without blanks."""

    def draw() -> str:
        # "ad hoc-lava" would read as two words.
        return draw_text(random, words).replace(" ", "-")

    texts = distinct(count + len(FORM_THINGS), draw, first=FORM_THINGS)
    return texts[len(FORM_THINGS) :]


def draw_numbers(random: Random, count: int) -> list[str]:
    """So many different numbers of five digits."""
    draw = partial(_number, random)
    texts = distinct(count + len(FORM_NUMBERS), draw, first=FORM_NUMBERS)
    return texts[len(FORM_NUMBERS) :]


def _number(random: Random) -> str:
    return str(random.randrange(10**4, 10**5))


def node_name(number: int) -> str:
    """The name of a node of a graph: 10 hexadecimal digits."""
    return md5(str(number).encode()).hexdigest()[:10]


# --- pools ----------------------------------------------------------------------------------------

MOST_NUMBERS = 65_536
"""The most entries of a pool of numbers of five digits, of which there are 90,000."""


def _days(random: Random, words: Words, count: int) -> list[str]:
    return [str(day) for day in random.sample(range(1, 10**5), count)]


def draw_orders(random: Random, count: int) -> list[str]:
    """So many different numbers of three to nine digits, each length as often: of as many tokens,
    so that lines can be chosen that fill a budget."""

    def draw() -> str:
        digits = random.randint(3, 9)
        return str(random.randrange(10 ** (digits - 1), 10**digits))

    return distinct(count, draw)


_KINDS: Mapping[str, Callable[[Random, Words, int], list[str]]] = {
    "things": draw_things,
    "numbers": lambda random, words, count: draw_numbers(random, min(count, MOST_NUMBERS)),
    "orders": lambda random, words, count: draw_orders(random, count),
    "magic numbers": lambda random, words, count: distinct(
        count, lambda: str(random.randrange(10**6, 10**7))
    ),
    "days": lambda random, words, count: _days(random, words, min(count, 99_999)),
    "nodes": lambda random, words, count: [node_name(n) for n in range(count)],
    "persons": lambda random, words, count: [
        f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES
    ],
    "first names": lambda random, words, count: list(FIRST_NAMES),
    "last names": lambda random, words, count: list(LAST_NAMES),
}


def pool(
    kind: str, form: str, size: int, encoder: PieceEncoder, words: str = "wonderwords"
) -> Units:
    """The first `size` texts of an endless row of one kind, each in a form such as ` {}.` plus
    newline, with their token ids. `words` names the list behind things."""
    return _pool(kind, form, size, encoder, load("words", words))


@lru_cache(maxsize=32)
def _pool(kind: str, form: str, size: int, encoder: PieceEncoder, words: Words) -> Units:
    texts = _KINDS[kind](Random(f"pool of {kind}"), words, size)
    return encode_units([form.format(text) for text in texts], encoder)


# --- contexts of lines ----------------------------------------------------------------------------


def exact_lines(left: int, columns: Columns, chosen: tuple[int, int]) -> Columns | None:
    """As many lines as fit into the tokens left, with the entries of the two `chosen` columns
    exchanged among the last lines and later ones, so that no token is left over. None where no
    line fits."""
    orders = [order.copy() for _, order in columns]
    fixed = np.zeros(len(orders[0]), dtype=np.int64)
    for number, (units, _) in enumerate(columns):
        if number not in chosen:
            fixed += units.counts[orders[number]]

    pools = [(columns[number][0], orders[number]) for number in chosen]
    lines = choose_lines(left, fixed, pools)
    if lines == 0:
        return None
    return [(units, order[:lines]) for (units, _), order in zip(columns, orders, strict=True)]


def fill_with_lines(
    items: Iterable[Piece],
    budget: ContextBudget,
    choose: Callable[[int], Columns | None],
    build: Callable[[Sequence[Piece], ContextBudget, Columns], list[Piece]] | None = None,
) -> list[Piece] | None:
    """Lines with the items among them at their depths, and a blank line behind the last.

    `choose(left)` gives the columns of the lines that fill so many tokens. It may be asked again,
    so what it draws must be the same each time. `build` puts items and lines together otherwise
    than `with_items` does. A line of filler is the last. None where not even the items fit.
    """
    items, left = by_depth(items, budget)

    # The blank line takes no token of its own in most vocabularies, in others one or two.
    for beside in range(_MOST_FOR_BLANK_LINE):
        columns = choose(left - beside)
        if columns is None:
            return None
        pieces = (build or with_items)(items, budget, columns)
        if sum(piece.num_tokens for piece in pieces) <= budget.tokens:
            return pieces
    return None


_MOST_FOR_BLANK_LINE = 8


def with_items(
    items: Sequence[Piece], budget: ContextBudget, columns: Columns, ending: str = "\n"
) -> list[Piece]:
    """The lines of these columns with the items, ordered, among them at their depths; `ending`
    follows the last line, which is none of the items."""
    rows = row_by_row(columns)
    width = len(columns)
    lines = len(columns[0][1])

    # The last text is encoded anew with what follows it, because the two may share a token.
    last = encode_units([rows.texts[-1] + ending], budget.encoder)
    rows = joined([rows.first(len(rows) - 1), last])
    places = [width * min(int(item.depth * lines), lines - 1) for item in items]
    return interleaved(items, places, rows, len(rows))

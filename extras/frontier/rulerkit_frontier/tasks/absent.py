"""Values that may not be there: which of several keys have a value in the text, as OneRuler asks
(arXiv 2503.01996), which has two keys.

A prompt of `{base: absent_4, num_queries: 2, near: 1}` in 280 tokens, its lines wrapped:

    Please read and memorize the text below. I will ask you about it later.

    <text>
    The special magic number for "flashy-midline" is: 5169571
    The special magic number for "clever-fencing" is: 9340309
    The special magic number for "black-craft" is: 5517988
    The special magic number for "sneaky-rocket-ship" is: 6089184
    The special magic number for "black-dividend" is: 7524333
    The special magic number for "clever-reasoning" is: 8097226
    </text>

    <Question> What special magic numbers associated with "black-craft" and "clever-fencing" are
    mentioned in the provided text? Please list all that apply. If no such numbers exist, please
    answer "none".</Question>

    Write your final answer in the very last line of your response, in the form 'Final Answer:
    [1111111, 2222222]', or 'Final Answer: []' for none.
    Final Answer:

References: 5517988, 9340309.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from random import Random
from typing import Literal

from pydantic.dataclasses import dataclass

from rulerkit.generation.corpora import Words, load
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.pieces import PieceEncoder, Units
from rulerkit.generation.tasks.base import (
    CorpusName,
    FailureRule,
    JudgedAnswer,
    Positive,
    distinct,
)
from rulerkit.generation.tasks.haystacks import fill_with_essay, fill_with_needles, pool_size
from rulerkit_frontier.answer_line import in_doubt, says_nothing
from rulerkit_frontier.plain import plain
from rulerkit_frontier.tasks.base import (
    ANSWER_PREFIX,
    Frontier,
    answer_form,
    draw_things,
    items_of,
    named,
    pool,
    said_nothing,
)

_OPENING = "Please read and memorize the text below. I will ask you about it later.\n\n<text>\n"
_QUESTION = (
    "</text>\n\n<Question> What special magic numbers associated with {keys} are mentioned in the "
    'provided text? Please list all that apply. If no such numbers exist, please answer "none".'
    "</Question>\n\n"
)
_NEEDLE = 'The special magic number for "{key}" is: {value}'
_FORM_VALUES = ("1111111", "2222222")
_OCCURRENCE = re.compile(
    r'The special magic number for "(?P<key>[^"\n]+)" is: (?P<item>\d{7})(?!\d)'
)
_SEVEN_DIGITS = re.compile(r"(?<!\d)\d{7}(?!\d)")
_GROUPED = re.compile(r"(?<![\d,.])(\d)[,.' _](\d{3})[,.' _](\d{3})(?![\d])")


# --- failures -------------------------------------------------------------------------------------


def _keys(answer: JudgedAnswer) -> list[str]:
    """The keys that are asked for."""
    question = re.search(Absent.question_form, answer.example.text_of("question"))
    assert question
    return re.findall('"([^"]+)"', question[1])


def _value_of_other_key(answer: JudgedAnswer, near: bool) -> str | None:
    """Values of keys that share a word with an asked one, or of all others."""
    asked = _keys(answer)
    said = items_of(answer)
    values = [
        str(piece.value)
        for piece, _ in answer.needles
        if piece.role == "distractor"
        and piece.value in said
        and _is_near(str(piece.key), asked) == near
    ]
    return named(values)


def _invented_number(answer: JudgedAnswer) -> str | None:
    invented = [item for item in items_of(answer) if item not in answer.example.context_text]
    return named(invented)


# --- the family -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Absent(Frontier):
    """Name the values of those of `num_queries` keys that the text mentions: none to all of them.

    For each key, `near` other keys of the text share a word with it; no further one does.
    """

    family = "absent"
    capability = "absent needle"
    match = "f1"
    item_pattern = r"\d{7}"
    new_tokens = (64, 4)
    question_form = (
        r"What special magic numbers associated with (.+?) are mentioned in the provided text\? "
        "Please list all that apply\\."
    )
    failure_rules = (
        FailureRule("false none", "None is said where a key has a value.", said_nothing),
        FailureRule(
            "value of a near key",
            "The value of a key that shares a word with one that is asked for.",
            partial(_value_of_other_key, near=True),
        ),
        FailureRule(
            "value of another key",
            "The value of a key that shares no word with them.",
            partial(_value_of_other_key, near=False),
        ),
        FailureRule("invented number", "A number that is not in the text.", _invented_number),
    )

    num_queries: Positive = 4
    haystack: Literal["needle", "essay"] = "needle"
    near: Positive = 2
    """Keys that share a word with each asked one."""
    essays: CorpusName = "paul_graham"
    """The corpus behind `haystack: essay`: `paul_graham`, `prose` (synthetic) or a path."""
    words: CorpusName = "wonderwords"
    """The list behind the keys: `wonderwords` or a path."""

    @property
    def floor(self) -> float:
        # Saying nothing: none to all of the keys are present, each number of them as often.
        return 1 / (self.num_queries + 1) if self.empty else 0.0

    @property
    def num_items(self) -> int:
        return self.num_queries

    @property
    def corpora(self) -> tuple[tuple[str, str], ...]:
        words = ("words", "words")
        essays = ("essay", "essays")
        return (essays, words) if self.haystack == "essay" else (words,)

    def make(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        words = load("words", self.words)
        asked = draw_things(random, words, self.num_queries)
        near = _near_keys(random, words, asked, self.near)

        # From none of the keys to all of them, each number as often; one at least where nothing
        # shall not be right.
        least = 0 if self.empty else 1
        present = random.sample(asked, random.randint(least, self.num_queries))
        keys = [*present, *near]
        values = distinct(
            len(keys) + len(_FORM_VALUES), partial(_draw_value, random), first=_FORM_VALUES
        )
        needles = [
            Piece(
                _NEEDLE.format(key=key, value=value),
                "needle" if key in present else "distractor",
                key=key,
                value=value,
                depth=random.random(),
            )
            for key, value in zip(keys, values[len(_FORM_VALUES) :], strict=True)
        ]

        *others, last = [f'"{key}"' for key in asked]
        query = f"{', '.join(others)} and {last}" if others else last
        form = answer_form(", ".join(_FORM_VALUES), "for none")
        return Draft(
            instruction=_OPENING,
            question=_QUESTION.format(keys=query) + form,
            answer_prefix=ANSWER_PREFIX,
            references=tuple(
                str(needle.value) for key in asked for needle in needles if needle.key == key
            ),
            hidden=(asked, needles),
        )

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        asked, needles = draft.hidden
        if self.haystack == "essay":
            return fill_with_essay(needles, budget, load("essay", self.essays))

        # Lines of other keys, none of which shares a word with an asked one.
        keys, with_word = _key_pool(self.words, budget.length, budget.encoder)
        values = pool("magic numbers", " {}\n", pool_size(budget.length, 8), budget.encoder)
        taken = [
            text for key in asked for word in key.split("-") for text in with_word.get(word, ())
        ]
        taken += [f" {needle.value}\n" for needle in needles]
        before, between, _ = _NEEDLE.format(key="|", value="|").split("|")
        return fill_with_needles(
            [replace(needle, text=needle.text + "\n") for needle in needles],
            budget,
            (before.rstrip(' "'), between.strip('"').rstrip()),
            keys,
            values,
            taken,
        )

    @classmethod
    def evened(cls, text: str) -> str:
        """Numbers without separators, 4,821,377 as 4821377."""
        return super().evened(_GROUPED.sub(r"\1\2\3", plain(text)))

    @classmethod
    def item_form(cls, item: str) -> str | None:
        """The number; what names a key and none of its numbers is no item."""
        numbers = _SEVEN_DIGITS.findall(item)
        if len(numbers) == 1 and not in_doubt(item):
            return str(numbers[0])
        key, _, value = item.rpartition(":")
        if key and not numbers and says_nothing(value.strip()):
            return None
        return None if item.endswith("none") and not numbers else item

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        asked = re.findall('"([^"]+)"', question[1])
        values = {match["key"]: match["item"] for match in _OCCURRENCE.finditer(text)}
        return [values[key] for key in asked if key in values]


def _draw_value(random: Random) -> str:
    return str(random.randrange(10**6, 10**7))


def _is_near(key: str, asked: Iterable[str]) -> bool:
    """Whether a key shares a word with one of these."""
    words = {word for other in asked for word in other.split("-")}
    return not words.isdisjoint(key.split("-"))


def _near_keys(random: Random, words: Words, asked: list[str], count: int) -> list[str]:
    """For each asked key so many others that share its first or its last word."""

    def draw(key: str) -> str:
        first = key.split("-")[0]
        last = key.split("-")[-1]
        other = draw_things(random, words, 1)[0]
        if random.random() < 0.5:
            return f"{first}-{other.split('-')[-1]}"
        return f"{other.split('-')[0]}-{last}"

    keys = list(asked)
    for key in asked:
        keys = distinct(len(keys) + count, partial(draw, key), first=keys)
    return keys[len(asked) :]


@lru_cache(maxsize=16)
def _key_pool(
    words: str, length: int, encoder: PieceEncoder
) -> tuple[Units, Mapping[str, list[str]]]:
    """Keys in quotes, and those that have each word."""
    keys = pool("things", ' "{}"', pool_size(length, 8), encoder, words)
    with_word = defaultdict(list)
    for text in keys.texts:
        for word in text.strip(' "').split("-"):
            with_word[word].append(text)
    return keys, with_word

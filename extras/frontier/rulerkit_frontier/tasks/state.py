"""What is where in the end: a log of lockers whose contents are put in, swapped and emptied.

A prompt of `{base: state_4, num_operations: 3, num_lockers: 3}` in 300 tokens, its lines wrapped:

    Below is a log of what happened to some lockers, in order. Every locker was empty at first.
    Keep track of what is in which locker. Swapping works with empty lockers, too.
    Put the panoramic-banyan into locker 87694, in place of what is in it.
    Put the old-fashioned-subsidence into locker 82135, in place of what is in it.
    Swap what is in lockers 65252 and 87694.
    Swap what is in lockers 82135 and 76150.
    Swap what is in lockers 55732 and 82135.
    Put the stingy-mother-in-law into locker 47098, in place of what is in it.
    Put the substantial-cross-contamination into locker 45872, in place of what is in it.
    Swap what is in lockers 45872 and 57003.
    Put the legal-antler into locker 87694, in place of what is in it.
    Put the deafening-evening-wear into locker 55732, in place of what is in it.

    What is in locker 65252 at the end of the log?
    Write your final answer in the very last line of your response, in the form 'Final Answer:
    [blue-door]', or 'Final Answer: []' if it is empty.
    Final Answer:

References: panoramic-banyan.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random
from typing import Annotated

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from rulerkit.generation.corpora import load
from rulerkit.generation.example import ContextBudget, Draft, ExampleStream, Piece
from rulerkit.generation.pieces import encode_units, joined
from rulerkit.generation.tasks.base import CorpusName, FailureRule, JudgedAnswer, Positive
from rulerkit.generation.tasks.haystacks import pool_size
from rulerkit_frontier.tasks.base import (
    ANSWER_PREFIX,
    FORM_THINGS,
    Columns,
    Frontier,
    answer_form,
    draw_numbers,
    draw_things,
    exact_lines,
    fill_with_lines,
    named,
    pool,
    said_nothing,
    wrong_items,
)

_OPENING = (
    "Below is a log of what happened to some lockers, in order. Every locker was empty at first. "
    "Keep track of what is in which locker. Swapping works with empty lockers, too.\n"
)
_QUESTION = "What is in locker {locker} at the end of the log?\n"
_PUT = "Put the {thing} into locker {locker}, in place of what is in it.\n"
_SWAP = "Swap what is in lockers {locker} and {other}.\n"
_EMPTY = "Empty locker {locker}.\n"
_LINE = re.compile(
    r"^(?:Put the (?P<item>.+) into locker (?P<put>\d{5}), in place of what is in it\.|"
    r"Swap what is in lockers (?P<one>\d{5}) and (?P<other>\d{5})\.|"
    r"Empty locker (?P<emptied>\d{5})\.)$",
    re.MULTILINE,
)

_PATH = 4
"""One in so many operations moves what is asked for."""
_USES = 4
"""In how many lines a locker of filler stands, about."""
_SHARE_OF_OTHERS, _SHARE_OF_SWAPS = 0.5, 0.6
"""Of all lines of filler about so many put nothing in; of these so many swap."""
_FEWEST_LOCKERS = 8
"""Lockers of filler, in the shortest contexts."""
_TOKENS_FOR_A_THING = 16
"""A context puts in fewer things than one in so many tokens."""


class _Log:
    """What is in which locker, while lines are read one after the other."""

    def __init__(self) -> None:
        self.inside: dict[str, str] = {}
        self.swapped_with: dict[str, set[str]] = {}
        self.was_in: dict[str, list[str]] = {}

    def put(self, locker: str, thing: str) -> None:
        """Something comes into a locker; what was in it is gone."""
        self.inside[locker] = thing
        self.was_in.setdefault(locker, []).append(thing)

    def swap(self, one: str, other: str) -> None:
        """The contents of two lockers change places."""
        things = self.inside.pop(one, None), self.inside.pop(other, None)
        for locker, thing in ((other, things[0]), (one, things[1])):
            if thing is not None:
                self.put(locker, thing)
        self.swapped_with.setdefault(one, set()).add(other)
        self.swapped_with.setdefault(other, set()).add(one)

    def empty(self, locker: str) -> None:
        """A locker is emptied."""
        self.inside.pop(locker, None)

    def read(self, text: str) -> "_Log":
        """Executes all whole lines of a text."""
        for line in _LINE.finditer(text):
            if line["put"]:
                self.put(line["put"], line["item"])
            elif line["one"]:
                self.swap(line["one"], line["other"])
            else:
                self.empty(line["emptied"])
        return self

    def things_of_group(self, locker: str) -> list[str]:
        """All that was ever in a locker or in those that are connected with it by swaps; first
        what was in the locker itself."""
        group = [locker]
        found = {locker}
        for member in group:
            new = sorted(self.swapped_with.get(member, set()) - found)
            group += new
            found.update(new)
        things = (thing for member in group for thing in self.was_in.get(member, ()))
        return list(dict.fromkeys(things))


# --- failures -------------------------------------------------------------------------------------


def _in_group(answer: JudgedAnswer, itself: bool = False) -> str | None:
    """Something that was in a locker of the group; `itself`: in the one that is asked about."""
    question = re.search(State.question_form, answer.example.text_of("question"))
    assert question
    log = _Log().read(answer.example.context_text)
    things = log.things_of_group(question[1])
    if itself:
        things = log.was_in.get(question[1], [])
    known = {thing.casefold() for thing in things}
    return named(item for item in wrong_items(answer) if item in known)


def _said_full(answer: JudgedAnswer) -> str | None:
    return None if answer.references else named(wrong_items(answer))


# --- the family -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class State(Frontier):
    """Say what is in one of `num_lockers` lockers after `num_operations` operations on them, in a
    log of as many operations on others as fit."""

    family = "state"
    capability = "state tracking"
    match = "exact"
    new_tokens = (32, 1)
    question_form = r"What is in locker (\d{5}) at the end of the log\?"
    failure_rules = (
        FailureRule(
            "stale value",
            "Something that was in the locker before.",
            partial(_in_group, itself=True),
        ),
        FailureRule(
            "other locker of the group",
            "Something that was in a locker with which the one asked about has to do.",
            _in_group,
        ),
        FailureRule(
            "said empty", "The answer says that the locker is empty, and it is full.", said_nothing
        ),
        FailureRule(
            "said full", "The answer names something, and the locker is empty.", _said_full
        ),
    )

    num_operations: Annotated[Positive, Field(ge=3, le=1000)] = 4
    """Operations on the lockers of the group that is asked about."""
    num_lockers: Annotated[Positive, Field(ge=3, le=100)] = 4
    """Lockers of the group."""
    words: CorpusName = "wonderwords"
    """The list behind things: `wonderwords` or a path."""

    @property
    def corpora(self) -> tuple[tuple[str, str], ...]:
        return (("words", "words"),)

    def make(self, stream: ExampleStream, length: int) -> Draft:
        random = stream.random
        is_empty = self.is_empty(stream.index)
        lockers = draw_numbers(random, self.num_lockers)
        words = load("words", self.words)
        things = draw_things(random, words, self.num_operations)
        asked, operations = self._operations(random, lockers, things, is_empty)

        # Depths say when each comes, so they are in order.
        depths = sorted(random.random() for _ in operations)
        pieces = []
        for (text, role), depth in zip(operations, depths, strict=True):
            line = _LINE.match(text)
            thing = line["item"] if line else None
            pieces.append(Piece(text, role, value=thing, depth=depth))
        answer = _Log().read("".join(text for text, _ in operations)).inside.get(asked)
        return Draft(
            instruction=_OPENING,
            question=_QUESTION.format(locker=asked) + answer_form(FORM_THINGS[0], "if it is empty"),
            answer_prefix=ANSWER_PREFIX,
            references=() if answer is None else (answer,),
            hidden=(lockers, things, pieces),
        )

    def _operations(
        self, random: Random, lockers: Sequence[str], things: Sequence[str], is_empty: bool
    ) -> tuple[str, list[tuple[str, str]]]:
        """The locker that is asked about, and what happens in the group: texts and roles."""
        # The steps of the path: one puts the answer somewhere (or empties a locker), and swaps
        # bring it to the locker asked about. They are drawn backwards from there.
        earliest = 1 if is_empty else 0
        length = 1 - (-self.num_operations // _PATH)
        path = random.sample(range(earliest, self.num_operations), length)
        origin, *swaps = sorted(path)
        asked = carrier = random.choice(lockers)
        swapped = {}
        for step in reversed(swaps):
            before = random.choice([one for one in lockers if one != carrier])
            swapped[step] = before, carrier
            carrier = before

        # The log from its beginning. Behind the origin other operations touch no locker that
        # holds the answer at that time.
        log = _Log()
        operations = list[tuple[str, str]]()
        new = iter(things)
        for step in range(self.num_operations):
            # A locker that is emptied is full before, so that emptying it matters.
            is_before = is_empty and step == origin - 1
            must_fill = is_before and carrier not in log.inside
            if step in swapped:
                carrier = swapped[step][1]
                one, other = random.sample(swapped[step], 2)
                text = _SWAP.format(locker=one, other=other)
            elif step == origin and is_empty:
                text = _EMPTY.format(locker=carrier)
            elif step == origin or must_fill:
                text = _PUT.format(thing=next(new), locker=carrier)
            else:
                held = carrier if step > origin or is_before else ""
                free = [locker for locker in lockers if locker != held]
                text = _other_operation(random, log, free, new)
            log.read(text)
            operations.append((text, "needle" if step in path else "distractor"))
        return asked, operations

    def fill(self, draft: Draft, budget: ContextBudget) -> list[Piece] | None:
        # Lines have two columns. Pools of numbers have the same ones at the same places.
        group, things_of_group, operations = draft.hidden
        size = pool_size(budget.length, _TOKENS_FOR_A_THING)
        encoder = budget.encoder
        put, into = _PUT.format(thing="{}", locker="|").split(" |")
        swap = _SWAP.format(locker="{}", other="|").split(" |")[0]
        empty = _EMPTY.split(" {")[0]
        things = pool("things", put, size, encoder, self.words)
        first = joined(
            [things, pool("numbers", swap, size, encoder), encode_units([empty], encoder)]
        )
        into_lockers = pool("numbers", " {}" + into, size, encoder)
        ends = pool("numbers", " {}.\n", size, encoder)
        second = joined([into_lockers, ends])

        # No line of filler names a locker or a thing of the group.
        thing_order = things.others([put.format(thing) for thing in things_of_group], budget.random)
        lockers = ends.others([f" {locker}.\n" for locker in group], budget.random)
        seed = budget.random.randint(2**31)

        def choose(left: int) -> Columns | None:
            # Swaps and emptied lockers first, about half of all tokens; the rest is put in, and
            # the last of these lines fill what is left.
            random = np.random.RandomState(seed)
            lines = left / (things.counts.mean() + into_lockers.counts.mean())
            number = int(_SHARE_OF_OTHERS * max(0.0, lines))
            used = lockers[: max(_FEWEST_LOCKERS, int(lines / _USES))]
            one = random.randint(len(used), size=number)
            other = (one + random.randint(1, len(used), size=number)) % len(used)
            is_swap = random.random_sample(number) < _SHARE_OF_SWAPS
            start = np.where(is_swap, len(things) + used[one], len(first) - 1)
            end = len(ends) + used[other]

            tokens = first.counts[start].sum() + second.counts[end].sum()
            put_into = used[random.randint(len(used), size=len(thing_order))]
            puts = exact_lines(
                left - int(tokens), ((things, thing_order), (second, put_into)), (0, 1)
            )
            if puts is None:
                return None
            order = random.permutation(number + len(puts[0][1]))
            columns = ((first, puts[0][1], start), (second, puts[1][1], end))
            return [(units, np.concatenate(parts)[order]) for units, *parts in columns]

        return fill_with_lines(operations, budget, choose)

    @classmethod
    def read_context(cls, text: str, question: re.Match[str]) -> list[str]:
        answer = _Log().read(text).inside.get(question[1])
        return [] if answer is None else [answer]


def _other_operation(
    random: Random, log: _Log, lockers: Sequence[str], things: Iterator[str]
) -> str:
    """An operation on some of these lockers that changes something: it puts something in, swaps or
    empties."""
    full = [locker for locker in lockers if locker in log.inside]
    kind = random.choice(("put", "put", "swap", "empty"))
    if kind == "put" or not full:
        return _PUT.format(thing=next(things), locker=random.choice(lockers))
    one = random.choice(full)
    if kind == "empty":
        return _EMPTY.format(locker=one)
    other = random.choice([locker for locker in lockers if locker != one])
    return _SWAP.format(locker=one, other=other)

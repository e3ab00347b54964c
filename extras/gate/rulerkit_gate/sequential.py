"""The test of the gate: when enough was asked, and what is to be asked next.

A candidate is asked in steps. Each cell begins with a few examples and goes on to fixed numbers of
them (`Design.sizes`); a place, that is a cell, a task, a length or all, has reached a size once all
its cells have. `Sequence.look` says what follows from the answers so far: a verdict, or which cells
go on.

Why looking often makes no more false alarms. Examples are asked in the order of their index, so the
mean of a place over the first 40 examples of its cells is one number, whenever it is looked at.
There are as many such numbers as sizes and places, and their list is fixed before the first
question. The test of a place at a size takes an equal share of the error (Bonferroni over the
sizes, Holm over the places). So all tests together hold the error for any rule that chooses which
cells go on, also one that looks at the scores: a rule chooses which of the tests are looked at, and
looking at fewer of them cannot raise a false alarm. The price is that a place whose cells have
reached different sizes counts with the least of them.

The verdict *worse* takes the tests of `differences`, beyond the margin and the exact one of any
loss; *not worse* takes the mean of all cells, with the same error shared over the sizes.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from rulerkit.analysis.differences import (
    Key,
    MeanDifference,
    PairedDifferences,
    Place,
    places_of,
)
from rulerkit.scoring.statistics import holm

if TYPE_CHECKING:
    import pandas as pd

ALARMS = 0.05
"""The chance, at most, of a wrong *worse* in the whole sequence; and of a wrong *not worse*."""
FIRST = 10
"""Examples of a cell in the first round."""
MOST_HIDDEN = 10.0
"""Points: *not worse* needs that no task and no length can have lost more, whatever the mean."""
_SUSPECT = 0.01  # a place where a loss of any size is as unlikely by chance is asked for more
_MAY_BE_BEYOND = 0.2  # ... where the loss may also be larger than the margin
_MOST_EXAMPLES = 10**7


@dataclass(frozen=True)
class Design:
    """What is fixed before the first question: the cells, the most examples of each, and how much
    may be lost."""

    cells: tuple[Key, ...]
    most: int
    """Examples of a cell."""
    margin: float
    """Points that the candidate may be below."""
    noise: Mapping[str, float] = field(default_factory=dict)
    """Points by level that the baseline lost against itself: no smaller loss counts there."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of examples of a cell at which it is looked at, each twice the one before."""
        sizes = []
        size = min(FIRST, self.most)
        while size < self.most:
            sizes.append(size)
            size *= 2
        return (*sizes, self.most)

    @property
    def alarms(self) -> float:
        """The error of all tests at one size."""
        return ALARMS / len(self.sizes)

    def alarms_at(self, place: Place) -> float:
        """The error of the limit of a place at one size: the mean is looked at alone, all others
        together."""
        alone = place == self.places[-1]
        return self.alarms if alone else self.alarms / len(self.places)

    def most_hidden(self, level: str) -> float:
        """Points that no task and no length may have lost where the verdict is *not worse*."""
        return max(MOST_HIDDEN, self.margin_of(level))

    def margin_of(self, level: str) -> float:
        """Points that a place of this level may lose."""
        return max(self.margin, self.noise.get(level, 0.0))

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """All places, the mean last; of several that hold the same cells the widest."""
        distinct = {frozenset(place.cells): place for place in places_of(self.cells)}
        order = ("task", "length", "cell", "all")
        return tuple(sorted(distinct.values(), key=lambda place: order.index(place.level)))


class Tested(NamedTuple):
    """What the test of a place says at the largest size that it has reached."""

    place: Place
    size: int
    mean: MeanDifference
    p: float
    """Of a loss larger than the margin, adjusted over all places."""
    p_of_any: float
    """Of a loss of any size, for this place alone."""

    @property
    def loss(self) -> float:
        """In points."""
        return -100 * self.mean.value


class Look(NamedTuple):
    """What follows from the answers so far: a verdict, or the cells that go on and their sizes."""

    tests: list[Tested]
    """Of each place the one at its largest size, the mean last."""
    worse: list[Tested]
    """Those that show a loss beyond the margin, the most certain first."""
    is_not_worse: bool
    suspected: list[Tested]
    """Places where a loss is likely, and may be larger than the margin."""
    next: Mapping[Key, int]
    """Empty where a verdict is reached, or everything was asked."""


class Sequence:
    """The looks at the answers of two models, which only grow.

    `pairs` are as `compare.paired` gives them. A test that was made once is not made again.
    """

    def __init__(self, design: Design, pairs: "pd.DataFrame") -> None:
        self.design = design
        self._differences = PairedDifferences(pairs)
        self._tests: dict[tuple[Place, int], Tested] = {}
        self._adjusted: dict[int, list[Tested]] = {}

    def look(self, reached: Mapping[Key, int]) -> Look:
        """What follows where each cell has reached one of the sizes of the design."""
        design = self.design
        latest: dict[Place, Tested] = {}
        worse: dict[Place, Tested] = {}
        common = min(reached.values())
        at_common: list[Tested] = []
        size_of = {place: min(reached[key] for key in place.cells) for place in design.places}
        for size in design.sizes:
            places = tuple(p for p in design.places if size_of[p] >= size)
            tests = self._tests_at(size, places)
            latest |= {test.place: test for test in tests}
            found = {test.place: test for test in tests if test.p < design.alarms}
            worse |= found
            if size == common:
                at_common = tests

        tests = [latest[place] for place in design.places]
        if worse:
            by_p = sorted(worse.values(), key=lambda test: test.p)
            return Look(tests, by_p, False, [], {})

        # A place where a loss may be larger than the margin goes on alone, the likeliest first.
        suspected = [test for test in tests if _is_suspected(design, test)]
        suspected.sort(key=lambda test: _p_beyond(design, test))
        for test in suspected:
            if test.size < design.most:
                going_on = _next_sizes(design, reached, test.place.cells)
                return Look(tests, [], False, suspected, going_on)

        if _is_not_worse(design, at_common, tests):
            return Look(tests, [], True, suspected, {})
        going_on = _next_sizes(design, reached, design.cells)
        return Look(tests, [], False, suspected, going_on)

    def _tests_at(self, size: int, places: tuple[Place, ...]) -> list[Tested]:
        """The tests at a size of the places that have reached it, adjusted over all places, also
        those that have not."""
        known = self._adjusted.get(size, [])
        if len(known) == len(places):
            return known
        tests = []
        for place in places:
            if (place, size) not in self._tests:
                self._tests[place, size] = self._test(place, size)
            tests.append(self._tests[place, size])

        # A place that has not reached the size counts as a test that finds nothing.
        padding = [1.0] * (len(self.design.places) - len(tests))
        adjusted = holm([*(test.p for test in tests), *padding])
        self._adjusted[size] = [
            test._replace(p=p) for test, p in zip(tests, adjusted[: len(tests)], strict=True)
        ]
        return self._adjusted[size]

    def _test(self, place: Place, size: int) -> Tested:
        """The test of one place over the first examples of its cells, not adjusted."""
        mean = self._differences.mean(place, size)
        p_of_any = mean.p_not_below(0)
        p = mean.p_not_below(-self.design.margin_of(place.level) / 100)
        # The exact test is slow, and matters only where the other one finds something.
        if p < self.design.alarms:
            p_of_any = self._differences.p_of_any(place, size)
            p = max(p, p_of_any)
        return Tested(place, size, mean, p, p_of_any)


class Replayed(NamedTuple):
    """How a sequence over stored answers ended."""

    look: Look
    reached: Mapping[Key, int]
    num_looks: int

    @property
    def num_examples(self) -> int:
        """Pairs of answers that were looked at."""
        return sum(self.reached.values())


def replay(design: Design, pairs: "pd.DataFrame") -> Replayed:
    """The whole sequence over answers that are all there: asks what the rule asks, and ends where
    it ends."""
    sequence = Sequence(design, pairs)
    reached = dict.fromkeys(design.cells, design.sizes[0])
    now = sequence.look(reached)
    num_looks = 1
    while now.next:
        reached |= now.next
        now = sequence.look(reached)
        num_looks += 1
    return Replayed(now, reached, num_looks)


def examples_needed(design: Design, look: Look) -> int:
    """The examples of a cell with which the mean would be told from the margin, and no task or
    length could hide a large loss, if all stayed as it is."""
    from statistics import NormalDist

    def needed(test: Tested, alarms: float, points: float) -> float:
        critical = NormalDist().inv_cdf(1 - alarms)
        distance = max(abs(test.mean.value + points / 100), 1e-9)
        return test.size * (critical * test.mean.error / distance) ** 2

    mean = look.tests[-1]
    numbers = [needed(mean, design.alarms, design.margin_of("all"))]
    each = design.alarms / len(design.places)
    numbers += [
        needed(test, each, design.most_hidden(test.place.level))
        for test in look.tests
        if test.place.level in ("task", "length")
    ]
    return min(_MOST_EXAMPLES, math.ceil(max(numbers)))


# --- what a test says -----------------------------------------------------------------------------


def _is_suspected(design: Design, test: Tested) -> bool:
    """Whether a loss is likely in a place, and one beyond the margin not unlikely."""
    is_likely = test.p_of_any < _SUSPECT
    return is_likely and _p_beyond(design, test) < _MAY_BE_BEYOND


def _p_beyond(design: Design, test: Tested) -> float:
    """The p-value of a loss beyond the margin, for this place alone."""
    margin = design.margin_of(test.place.level) / 100
    return test.mean.p_not_below(-margin)


def _is_not_worse(design: Design, at_common: list[Tested], latest: list[Tested]) -> bool:
    """Whether the mean is above the margin for certain, no task or length can hide a large loss,
    and no loss is seen for certain that may be beyond the margin."""
    mean = at_common[-1].mean.lower_limit(design.alarms)
    if 100 * mean <= -design.margin_of("all"):
        return False
    each = design.alarms / len(design.places)
    for test in latest:
        level = test.place.level
        limit = 100 * test.mean.lower_limit(each)
        is_wide = level in ("task", "length")
        if is_wide and limit <= -design.most_hidden(level):
            return False
        if test.p_of_any < each and limit <= -design.margin_of(level):
            return False
    return True


# --- what goes on ---------------------------------------------------------------------------------


def _next_sizes(design: Design, reached: Mapping[Key, int], cells: Iterable[Key]) -> dict[Key, int]:
    """The cells that are behind the others of a place go on to the next size."""
    least = min(reached[key] for key in cells)
    later = [size for size in design.sizes if size > least]
    if not later:
        return {}
    return {key: later[0] for key in cells if reached[key] < later[0]}

"""The test of the gate: when enough was asked, and what is to be asked next.

A candidate is asked in steps. Each cell begins with a few examples and goes on to fixed numbers of
them (`Design.sizes`); a place, that is a cell, a task, a length or all, has reached a size once all
its cells have. `GateRule.look` says what follows from the answers so far: a verdict, or which cells
go on.

Why looking often makes no more false alarms. Examples are asked in the order of their index, so the
mean of a place over the first 40 examples of its cells is one number, whenever it is looked at.
There are as many such numbers as sizes and places, and their list is fixed before the first
question. Half of the error belongs to the last size, so that a run to the end finds nearly what a
single look finds; the other half is shared equally by all sizes (Bonferroni over the sizes, Holm
over the places). So all tests together hold the error for any rule that chooses which cells go on,
also one that looks at the scores: a rule chooses which of the tests are looked at, and looking at
fewer of them cannot raise a false alarm. The price is that a place whose cells have reached
different sizes counts with the least of them.

The verdict *worse* takes the tests of `compare`, beyond the margin and the exact one of any
loss; *not worse* takes the mean of all cells, with the same error shared over the sizes.
`verdict_of` says it, `comparison_of` is its table.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from rulerkit.analysis import compare
from rulerkit.analysis.compare import (
    CANNOT_TELL,
    NOT_WORSE,
    Comparison,
    Decision,
    Key,
    MeanDifference,
    PairedDifferences,
    Place,
    Side,
    interval_text,
    places_of,
)
from rulerkit.common.errors import counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.scoring.adaptive import Counts
from rulerkit.scoring.statistics import holm, no_difference_p

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

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of examples of a cell at which it is looked at, each twice the one before."""
        sizes = []
        size = min(FIRST, self.most)
        while size < self.most:
            sizes.append(size)
            size *= 2
        return (*sizes, self.most)

    def alarms(self, size: int) -> float:
        """The error of all tests at one size: half of it belongs to the last one, the other half to
        all sizes alike."""
        share = 0.5 / len(self.sizes)
        return ALARMS * (share + 0.5 if size == self.sizes[-1] else share)

    @property
    def most_hidden(self) -> float:
        """Points that no task and no length may have lost where the verdict is *not worse*."""
        return max(MOST_HIDDEN, self.margin)

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
    p_beyond: float
    """Of a loss larger than the margin, for this place alone, by its mean."""


class Look(NamedTuple):
    """What follows from the answers so far: a verdict, or the cells that go on and their sizes."""

    tests: list[Tested]
    """Of each place the one at its largest size, the mean last."""
    worse: list[Tested]
    """Those that show a loss beyond the margin, the most certain first."""
    is_not_worse: bool
    suspected: list[Tested]
    """Places where a loss is likely, and may be larger than the margin, the likeliest first."""
    next: Counts
    """Empty where a verdict is reached, or everything was asked."""


class GateRule:
    """What is `wanted` in each of the `rounds`: how many examples each cell is to have next.

    `differences_of` gives the answers to so many examples of each cell, in pairs; `limit_of` says
    what forbids to ask for so many, else "". A test that was made once is not made again.
    """

    def __init__(
        self,
        design: Design,
        differences_of: Callable[[Counts], PairedDifferences],
        limit_of: Callable[[Counts], str] = lambda _: "",
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.design, self._differences_of, self._limit_of = design, differences_of, limit_of
        self._say = say
        self.reached: Counts = {}
        """The examples of each cell that the last look rests on."""
        self.last: Look | None = None
        """The last look; None before the first round is complete."""
        self.stopped = ""
        """Why no more was asked before the verdict was certain; empty where it is."""
        self._wanted: Counts = {}
        self._tests: dict[tuple[Place, int], Tested] = {}

    def wanted(self) -> Counts:
        """The examples that each cell is to have, in all, by the answers so far; what it wanted
        before was asked."""
        todo = dict.fromkeys(self.design.cells, self.design.sizes[0])
        if self._wanted:
            self.reached = self._wanted
            self.last = self.look(self._differences_of(self.reached), self.reached)
            todo = self.last.next
        self.stopped = self._limit_of(self.reached | todo)
        if todo and not self.stopped:
            places = "all tasks and lengths"
            if len(todo) < len(self.design.cells):
                names = (f"{task} at {length_name(length)}" for task, length in todo)
                places = f"{listed(names, 3)}, where a loss is suspected"
            size = counted(max(todo.values()), "example")
            self._say(f"asks up to {size} of {places}")
            self._wanted = self.reached | todo
        return self._wanted

    def look(self, differences: PairedDifferences, reached: Counts) -> Look:
        """What follows where each cell has reached one of the sizes of the design."""
        design = self.design
        size_of = {place: min(reached[key] for key in place.cells) for place in design.places}
        latest: dict[Place, Tested] = {}
        worse: dict[Place, Tested] = {}
        for size in design.sizes:
            places = [place for place in design.places if size_of[place] >= size]
            tests = self._tests_at(differences, size, places)
            latest |= {test.place: test for test in tests}
            worse |= {test.place: test for test in tests if test.p < design.alarms(size)}
        tests = [latest[place] for place in design.places]
        if worse:
            return Look(tests, sorted(worse.values(), key=lambda test: test.p), False, [], {})

        # A place where a loss is likely, and one beyond the margin not unlikely, goes on alone.
        suspected = [
            test for test in tests if test.p_of_any < _SUSPECT and test.p_beyond < _MAY_BE_BEYOND
        ]
        suspected.sort(key=lambda test: test.p_beyond)
        for test in suspected:
            if test.size < design.most:
                return Look(tests, [], False, suspected, self._next(reached, test.place.cells))
        if self._is_not_worse(tests):
            return Look(tests, [], True, suspected, {})
        return Look(tests, [], False, suspected, self._next(reached, design.cells))

    def _tests_at(
        self, differences: PairedDifferences, size: int, places: list[Place]
    ) -> list[Tested]:
        """The tests at a size of the places that have reached it, adjusted over all places, also
        those that have not."""
        alarms = self.design.alarms(size)
        new = [place for place in places if (place, size) not in self._tests]
        first = differences.first(size) if new else differences
        for place in new:
            mean = first.mean(place)
            p_of_any = mean.p_not_below(0)
            p = p_beyond = mean.p_not_below(-self.design.margin / 100)
            # The exact test is slow, and matters only where the other one finds something.
            if p < alarms:
                p_of_any = no_difference_p(first.weighted(place))
                p = max(p, p_of_any)
            self._tests[place, size] = Tested(place, size, mean, p, p_of_any, p_beyond)

        # A place that has not reached the size counts as a test that finds nothing.
        tests = [self._tests[place, size] for place in places]
        padding = [1.0] * (len(self.design.places) - len(tests))
        adjusted = holm([*(test.p for test in tests), *padding])
        return [test._replace(p=p) for test, p in zip(tests, adjusted, strict=False)]

    def _is_not_worse(self, tests: list[Tested]) -> bool:
        """Whether the mean is above the margin for certain, no task or length can hide a large
        loss, and no loss is seen for certain that may be beyond the margin."""
        design = self.design
        mean = tests[-1]
        if 100 * mean.mean.lower_limit(design.alarms(mean.size)) <= -design.margin:
            return False
        for test in tests:
            each = design.alarms(test.size) / len(design.places)
            level = test.place.level
            limit = 100 * test.mean.lower_limit(each)
            if level in ("task", "length") and limit <= -design.most_hidden:
                return False
            if test.p_of_any < each and limit <= -design.margin:
                return False
        return True

    def _next(self, reached: Counts, cells: Iterable[Key]) -> Counts:
        """The cells that are behind the others of a place go on to the next size."""
        least = min(reached[key] for key in cells)
        later = [size for size in self.design.sizes if size > least]
        return {key: later[0] for key in cells if later and reached[key] < later[0]}


def examples_needed(design: Design, tests: Sequence[Tested]) -> int:
    """The examples of a cell with which the mean would be told from the margin, and no task or
    length could hide a large loss, if all stayed as it is. A margin of error falls with the root
    of the examples."""
    alarms = design.alarms(design.most)
    most = 0.0
    for test in tests:
        points, error = design.most_hidden, alarms / len(design.places)
        if test is tests[-1]:
            points, error = design.margin, alarms
        elif test.place.level == "cell":
            continue
        quantile = NormalDist().inv_cdf(1 - error)
        gap = max(abs(test.mean.value + points / 100), 1e-9)
        most = max(most, test.size * (quantile * test.mean.error / gap) ** 2)
    return min(_MOST_EXAMPLES, math.ceil(most))


# --- what is said ---------------------------------------------------------------------------------


def comparison_of(
    design: Design,
    look: Look,
    a: Side,
    b: Side,
    pairs: "pd.DataFrame",
    notes: Sequence[str],
    by: str,
) -> Comparison:
    """The comparison of all pairs so far, in which a loss is what the gate's own tests say: those
    of a single comparison would find one too often where it is looked at after each round."""
    found = compare.comparison_of(a, b, pairs, notes, design.margin, by)
    rows = found.rows
    tests = {frozenset(test.place.cells): test for test in look.tests}
    beyond = [test.place for test in look.worse]
    keys = rows.loc[rows["level"] == "cell", ["task", "length"]]
    for number, place in enumerate(places_of(keys.itertuples(index=False, name=None))):
        test = tests[frozenset(place.cells)]
        is_beyond = test.place in beyond
        alarms = design.alarms(test.size)
        each = alarms / len(design.places)
        limit = test.mean.lower_limit(alarms if test is look.tests[-1] else each)
        p = min(1.0, test.p_of_any * len(design.places))
        rows.loc[number, ["p", "p_margin", "lower_limit"]] = [p, test.p, 100 * limit]
        is_loss = is_beyond or test.p_of_any < each
        rows.loc[number, ["loss", "beyond_margin"]] = [is_loss, is_beyond]
    return found


def verdict_of(
    design: Design, look: Look | None, found: Comparison | None, stopped: str
) -> Decision:
    """The word, and a sentence with the numbers."""
    if look is None or found is None:
        reason = f"it stopped before the first round was complete: {stopped}"
        return Decision(CANNOT_TELL, f"CANNOT TELL: {reason}; --resume goes on")
    if look.worse:
        return found.verdict

    judged = f"mean {interval_text(found.mean)}, margin {counted(design.margin, 'point')}"
    if look.is_not_worse:
        return Decision(NOT_WORSE, f"NOT WORSE: {judged}; bound: {_most_lost(found)}")

    doubts = [judged]
    if look.suspected:
        names = listed((test.place.name for test in look.suspected), 2)
        doubts.append(f"a loss is seen in {names} that may be larger")
    doubts.append(f"stopped by {stopped}" if stopped else "all examples were run")
    needed = examples_needed(design, look.tests)
    doubts.append(f"about {needed} examples per task and length would tell")
    return Decision(CANNOT_TELL, f"CANNOT TELL: {'; '.join(doubts)}", needed)


def _most_lost(found: Comparison) -> str:
    """What the mean, a task or length, and a single cell can have lost without being seen: the
    limits that the verdict rests on."""
    texts = []
    levels = {"of the mean": ["all"], "of any task or length": ["task", "length"]}
    levels["of any cell"] = ["cell"]
    for name, level in levels.items():
        lowest = found.rows.loc[found.rows["level"].isin(level), "lower_limit"].min()
        # Upwards, because the limit is promised.
        most = math.ceil(-10 * min(lowest, 0.0)) / 10
        texts.append(f"{counted(most, 'point')} {name}")
    return f"lost unseen at most {listed(texts, len(texts))}"

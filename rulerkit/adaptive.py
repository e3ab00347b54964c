"""Adaptive runs: which cells get how many examples next, until a question is settled.

A run is a sequence of rounds. Round 0 gives every cell a few examples. Each further round gives
more to the cells that the question still depends on: for the effective length those of the longest
length that may be the answer, since every longer one must have failed. Examples are shared out in
proportion to the spread seen, over the root of their cost (Neyman 1934). After each round
`statistics.weighted_sum` says what the full grid can still show, with the error spent over all
looks. `replay` begins at round 0 and takes of each cell only the examples that its rounds asked
for: a run that was stopped and resumed ends as any other. `benchmarks/adaptive.py` measures cost
and errors.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulerkit.lengths import (
    OWN_SHARE,
    THRESHOLDS,
    effective_set,
    has_own_threshold,
    length_name,
    possible_lengths,
)
from rulerkit.statistics import (
    Estimate,
    WeightedCell,
    critical_value,
    look_confidences,
    weighted_sum,
)
from rulerkit.store import allowed_failures
from rulerkit.tasks import THIRTEEN, family_of

Scores = Mapping[tuple[str, int], NDArray[np.float64]]

FULL_GRID = 500
"""Examples of a cell in the full grid, the paper's number: what an adaptive run speaks about."""
FIRST = 4
"""Examples of a cell in round 0."""
_STEP = 1.2  # a look has so many times the tokens of the one before
_PRIOR = 12.0  # examples as right as the mean of all, beside those seen of a task: else a task with
# none wrong so far would get no more, and its mean would stay too high
_JUMP = 0.1  # of the tokens that seem to be needed: looks before are left out
_HALVINGS = 40


@dataclass(frozen=True)
class Rule:
    """A question, and when it is settled: one of effective length (neither `average` nor `other`),
    average over all cells, and comparison with another model."""

    confidence: float = 0.95
    max_examples: int = FULL_GRID
    average: float | None = None
    """Points: the average is wanted to plus or minus so much."""
    other: str | None = None
    """The name of another model: is the average better or worse than its?"""
    margin: float = 0.0
    """Points: by how much."""
    tasks: tuple[str, ...] = ()
    """Those that are asked."""
    lengths: tuple[int, ...] = ()
    """Those that the model can be given."""

    def describe(self, state: "State") -> str:
        """Where a run stands, in words."""
        error = 100 * (1 - self.confidence)
        words = {
            None: "not at an end: the same command goes on",
            True: f"{state.answer}, certain with an error of at most {error:.3g} %",
            False: f"{state.answer} cannot be told apart with {self.max_examples} examples a cell; "
            f"it takes about {state.needed}",
        }
        grid = self.population * sum(length for _, length in state.counts)
        spent = sum(length * count for (_, length), count in state.counts.items())
        least = f"; least possible with this error: {100 * state.floor / grid:.2f} %"
        return (
            f"adaptive ({self.question}): {words[state.settled]}. Spent: {spent:,} tokens, "
            f"{100 * spent / grid:.1f} % of the full grid's {grid:,} ({self.population} examples a "
            f"cell){least * bool(state.settled)}"
        )

    @property
    def population(self) -> int:
        """The examples of a cell in the grid that the answer is about."""
        return max(self.max_examples, FULL_GRID)

    @property
    def question(self) -> str:
        """In words."""
        if self.average is not None:
            return f"average within {self.average:g} points"
        if self.other is not None:
            return f"better or worse than {self.other} by {self.margin:g} points"
        return "effective length"


class State(NamedTuple):
    """Where a run stands. `counts`: the examples that each cell is to have, in all. `settled`: None
    while the round is open, True for certain, False where `max_examples` did not do. `answer` in
    words; `needed`: examples of a cell with which the question could be settled, by what was
    seen; `floor`: tokens that every rule with this error needs, by what was seen."""

    counts: dict[tuple[str, int], int]
    settled: bool | None
    answer: str = ""
    needed: int = 0
    floor: float = 0.0


def threshold_of(tasks: Collection[str], aligned: str) -> float | None:
    """The threshold in percent of a mean over these tasks; 0 where it is a share of the model's own
    mean, None where there is none."""
    if has_own_threshold(tasks):
        return 0.0
    for name, threshold in THRESHOLDS[aligned].items():
        if {task for task in THIRTEEN if name in ("all", family_of(task).category)} == set(tasks):
            return threshold
    return None


def replay(
    rule: Rule,
    scores: Scores,
    aligned: str = "chat",
    claimed: float | None = None,
    other: Scores | None = None,
    max_failures: float = 0,
) -> State:
    """The state after all rounds that are complete.

    `scores` (0..1) of each cell are by index, up to the first example that was not asked yet; NaN
    is a request that failed, of which `max_failures` are allowed. `other` holds those of the other
    model.
    """
    other = other or {}
    lengths = sorted({length for _, length in scores})
    tasks = {task for task, _ in scores}
    population = rule.population
    most = min([rule.max_examples, *(len(other.get(key, ())) for key in scores if rule.other)])
    sizes = [min(FIRST, most)]
    while sizes[-1] < most:
        sizes.append(min(most, math.ceil(_STEP * sizes[-1])))
    counts = dict.fromkeys(scores, sizes[0])
    threshold = threshold_of(tasks, aligned) or 0.0
    by_length = rule.average is None and rule.other is None
    relative = by_length and not threshold
    # half of the error is for failing the effective length, half for passing any longer one; an
    # interval that is narrow enough ends no test
    error = 1 - rule.confidence
    errors = (error / max(1, len(lengths) - 1) if by_length else error, error)
    shares = tuple(size / population for size in sizes)
    confidences = [look_confidences(shares, 1 - side) for side in errors]
    if rule.average is not None:
        confidences = [[rule.confidence] * len(sizes)] * 2

    def estimate(length: int, look: int) -> Estimate:
        """Points above the threshold, of the average, or above the other model."""
        number = len(tasks) * (1 if length else len(lengths))
        cells = []
        for task, at in scores:
            rows = scores[task, at][: counts[task, at]]
            if length in (0, at):
                cells.append(WeightedCell(1 / number, task, rows))
            if relative and at == lengths[0]:
                cells.append(WeightedCell(-OWN_SHARE / number, task, rows))
            if rule.other is not None:
                cells.append(WeightedCell(-1 / number, task, other[task, at][: len(rows)]))
        measured, other_side = (
            weighted_sum(cells, side[look], population=population).percent() for side in confidences
        )
        measured = measured._replace(high=other_side.high)
        return (
            Estimate(*(round(limit, 1) - threshold for limit in measured))
            if by_length
            else measured
        )

    def share_out(cells: list[tuple[str, int]], size: int) -> None:
        """Raise the counts of cells to the tokens of `size` examples each."""
        seen = [scores[key][: counts[key]] for key in cells]
        n = np.array([len(rows) for rows in seen])
        means = np.array([np.nanmean(rows) for rows in seen])
        prior = max(0.01, means.mean() * (1 - means.mean()))
        spread = np.sqrt(
            (n * np.array([np.nanvar(rows) for rows in seen]) + _PRIOR * prior) / (n + _PRIOR)
        )
        cost = np.array([length for _, length in cells], float)
        share = spread / np.sqrt(cost)
        low, high = 0.0, most / share.min()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            planned = np.clip(np.ceil(middle * share), n, most)
            low, high = (middle, high) if planned @ cost < size * cost.sum() else (low, middle)
        planned = np.clip(np.ceil(high * share), n, most).astype(int)
        counts.update(zip(cells, planned.tolist(), strict=True))

    looks = dict.fromkeys(lengths if by_length else [0], 0)
    estimates, todo = dict[int, Estimate](), list(looks)
    while all(_answered(scores[key][:n], n, max_failures) for key, n in counts.items()):
        estimates |= {length: estimate(length, looks[length]) for length in todo}
        decisive = estimates[todo[0]]
        if by_length:
            intervals = {length: (value.low, value.high) for length, value in estimates.items()}
            possible = possible_lengths(intervals, 0.0)
            settled, answer = len(possible) == 1, effective_set(intervals, 0.0, claimed)
            if relative and not estimates[lengths[0]].value:
                answer = f"none, as the mean at {length_name(lengths[0])} is 0"
            straddles = [n for n in possible if n and estimates[n].low < 0]
            pending = [n for n in straddles if sizes[looks[n]] < most]
            decisive = estimates[length := [*pending, *straddles, lengths[0]][0]]
            gap = abs(decisive.value)
        elif rule.average is not None:
            half, length = max(decisive.high - decisive.value, decisive.value - decisive.low), 0
            settled, gap = half <= rule.average, rule.average
            answer = f"average {decisive.value:.1f} ± {half:.1f}"
        else:
            length, borders = 0, (-rule.margin, rule.margin)
            settled = not any(decisive.low <= border <= decisive.high for border in borders)
            gap = min(abs(decisive.value - border) for border in borders)
            side = "better" if decisive.value > rule.margin else "worse"
            by = f"by more than {rule.margin:g} points"
            side = (
                f"{side} {by}" if abs(decisive.value) > rule.margin else f"not better or worse {by}"
            )
            side = side if settled else "better or worse not decided"
            answer = f"{side} than {rule.other} ({decisive})"
        size, whole = sizes[looks[length]], 1 / population
        half = max(decisive.high - decisive.low, 1e-9) / 2
        needed = 1 / (whole + (1 / size - whole) * (gap / half) ** 2)
        if settled or size == most:
            rows = {key: scores[key][:count] for key, count in counts.items()}
            gaps = {0: gap}
            if by_length:
                gaps = {n: abs(estimates[n].value) for n in lengths if n >= possible[-1]}
            floor = sum(least_tokens(rows, n, gap, rule) for n, gap in gaps.items())
            return State(counts, settled, answer, 0 if settled else math.ceil(needed), floor)
        looks[length] += 1
        while sizes[looks[length]] < min(most, _JUMP * needed / _STEP):
            looks[length] += 1
        share_out([key for key in scores if length in (0, key[1])], sizes[looks[length]])
        if relative and length != lengths[0]:
            share_out([key for key in scores if key[1] == lengths[0]], sizes[looks[length]])
        todo = [length]
    return State(counts, None)


def least_tokens(scores: Scores, length: int, gap: float, rule: Rule) -> float:
    """The tokens that no rule of the same error can do without, on average (Wald 1945): for
    kl(error, confidence) nats of evidence that the mean at a length (0: all) is so many points off
    a limit, with spreads known in advance and what is left of the grid as the only unknown."""
    cells = [key for key in scores if length in (0, key[1])]
    spread = np.array([np.nanstd(scores[key]) for key in cells]) / len(cells)
    cost = np.array([at for _, at in cells], float)
    sure = rule.confidence
    evidence = 2 * (2 * sure - 1) * math.log(sure / (1 - sure))
    if rule.average is not None:
        evidence = critical_value(sure) ** 2
    low, high = 1e-9, 1e9
    for _ in range(2 * _HALVINGS):
        middle = math.sqrt(low * high)
        n = np.clip(middle * spread / np.sqrt(cost), 1e-9, rule.population)
        variance = (spread**2 * (1 / n - 1 / rule.population)).sum()
        low, high = (low, middle) if variance <= (gap / 100) ** 2 / evidence else (middle, high)
    return float(n @ cost)


def _answered(rows: NDArray[np.float64], count: int, max_failures: float) -> bool:
    allowed = min(count - 1, allowed_failures(max_failures, count))
    return len(rows) == count and bool(np.isnan(rows).sum() <= allowed)

"""When an adaptive run may stop: it asks only for the examples that the effective length needs.

An adaptive run is a sequence of rounds. Round 0 gives every cell a few examples. Each further round
gives more to the tasks at one length: the longest that may be the answer, since every longer one
must have failed. After each round `statistics.weighted_sum` says what the full grid can still show,
with the error spent over all looks. `replay` begins at round 0 and takes of each cell only the
examples that its rounds asked for: a run that was stopped and resumed ends as any other.
`benchmarks/adaptive.py` measures cost and errors.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulerkit.scoring.effective_length import effective_set, possible_lengths, threshold_of
from rulerkit.scoring.statistics import WeightedCell, look_confidences, weighted_sum
from rulerkit.store.cells import is_enough

Counts = dict[tuple[str, int], int]
"""Examples of each cell."""

FULL_GRID = 500
"""Examples of a cell in the full grid, the paper's number: what an adaptive run speaks about."""
FIRST = 4
"""Examples of a cell in round 0."""
_STEP = 1.2  # a look has so many times the examples of the one before


@dataclass(frozen=True)
class StoppingRule:
    """When the effective length of a model is settled."""

    confidence: float = 0.95
    max_examples: int = FULL_GRID
    tasks: tuple[str, ...] = ()
    """Those that are asked."""
    lengths: tuple[int, ...] = ()
    """Those that the model can be given."""
    own_threshold: float | None = None
    """Percent that the family of the tasks brings."""

    @property
    def population(self) -> int:
        """The examples of a cell in the grid that the answer is about."""
        return max(self.max_examples, FULL_GRID)

    def describe(self, state: "State") -> str:
        """Where a run stands, in words."""
        # A user reads this line to learn whether the run may be stopped.
        error = 100 * (1 - self.confidence)
        words = {
            None: "not at an end: the same command goes on",
            True: f"{state.answer}, certain with an error of at most {error:.3g} %",
            False: f"{state.answer} cannot be told apart with {self.max_examples} examples a cell",
        }

        # All numbers are tokens, because a long example costs more than a short one.
        grid = self.population * sum(length for _, length in state.counts)
        spent = sum(length * count for (_, length), count in state.counts.items())
        return (
            f"adaptive (effective length): {words[state.settled]}. Spent: {spent:,} tokens, "
            f"{100 * spent / grid:.1f} % of the full grid's {grid:,} ({self.population} examples a "
            "cell)"
        )


class State(NamedTuple):
    """Where a run stands. `counts`: the examples that each cell is to have, in all. `settled`: None
    while the round is open, True for certain, False where `max_examples` did not do. `answer` in
    words."""

    counts: Counts
    settled: bool | None
    answer: str = ""


def replay(
    rule: StoppingRule,
    scores: Mapping[tuple[str, int], NDArray[np.float64]],
    aligned: str = "chat",
    claimed: float | None = None,
    max_failures: float = 0,
) -> State:
    """The state after all rounds that are complete.

    `scores` (0..1) of each cell are by index, up to the first example that was not asked yet; NaN
    is a request that failed, of which `max_failures` are allowed.
    """
    tasks = sorted({task for task, _ in scores})
    lengths = sorted({length for _, length in scores})
    threshold = threshold_of(tasks, aligned, rule.own_threshold) or 0.0

    # The examples of a cell at each look, up to the most that there can be.
    sizes = [min(FIRST, rule.max_examples)]
    while sizes[-1] < rule.max_examples:
        sizes.append(min(rule.max_examples, math.ceil(_STEP * sizes[-1])))

    # Half of the error is for failing the effective length, half for passing any longer one:
    # every further length is another chance to pass by error.
    error = 1 - rule.confidence
    shares = tuple(size / rule.population for size in sizes)
    lower = look_confidences(shares, 1 - error / max(1, len(lengths) - 1))
    upper = look_confidences(shares, 1 - error)

    # Everything is computed anew from the stored answers, so that a run that was stopped and
    # resumed takes the same decisions as one that never stopped.
    looks = dict.fromkeys(lengths, 0)
    intervals, changed = dict[int, tuple[float, float]](), lengths
    while True:
        counts = {(task, length): sizes[looks[length]] for task, length in scores}
        if not all(_is_answered(scores[key][:n], n, max_failures) for key, n in counts.items()):
            return State(counts, None)

        # A complete round: look at the lengths that have new answers.
        for length in changed:
            look = looks[length]
            rows = {task: scores[task, length][: sizes[look]] for task in tasks}
            cells = [WeightedCell(1 / len(tasks), task, rows[task]) for task in tasks]
            low = weighted_sum(cells, lower[look], population=rule.population).percent().low
            high = weighted_sum(cells, upper[look], population=rule.population).percent().high
            intervals[length] = (low, high)

        # The longest undecided length decides the answer, so it is asked next.
        possible = possible_lengths(intervals, threshold)
        answer = effective_set(intervals, threshold, claimed)
        undecided = [
            length
            for length in possible
            if looks.get(length, len(sizes)) + 1 < len(sizes)
            and round(intervals[length][0], 1) < threshold
        ]
        if len(possible) == 1 or not undecided:
            return State(counts, len(possible) == 1, answer)
        looks[undecided[0]] += 1
        changed = undecided[:1]


def _is_answered(rows: NDArray[np.float64], count: int, max_failures: float) -> bool:
    """Whether the first `count` examples of a cell were asked, and enough of them have a score."""
    failed = int(np.isnan(rows).sum())
    return is_enough(len(rows) - failed, count, failed, max_failures)

"""Effective length: which lengths a model's scores call effective (Section 4 of the paper), and
how many examples tell it.

An adaptive run is a sequence of rounds. Round 0 gives every cell a few examples. Each further round
gives more to the cells that the question still depends on: those of the longest length that may be
the answer, since every longer one must have failed. Examples are shared out in proportion to the
spread seen, over the root of their cost (Neyman 1934). After each round
`statistics.weighted_sum` says what the full grid can still show, with the error spent over all
looks. `replay` begins at round 0 and takes of each cell only the examples that its rounds asked
for: a run that was stopped and resumed ends as any other. `benchmarks/adaptive.py` measures cost
and errors.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulerkit.common.lengths import length_name
from rulerkit.common.paths import package_data
from rulerkit.generation.tasks import THIRTEEN, category_of
from rulerkit.scoring.statistics import Estimate, WeightedCell, look_confidences, weighted_sum
from rulerkit.store.cells import is_enough

THRESHOLDS: dict[str, dict[str, float]] = package_data("thresholds.yaml")
"""Llama2-7B at 4K, percent, as printed. The paper contradicts itself here (its chat categories
average to 87.2, its base ones to 79.2), so whoever shows an effective length shows the threshold
that it was judged by."""
PAPERS_THRESHOLD = "Llama2-7B at 4K"
OWN_SHARE = 0.85
"""Of a model's own mean at its shortest length: the threshold of OWN_MEAN_SUITES, which have none
of the paper's. NoLiMa (arXiv 2502.05167) takes the same share of a model's score at its shortest
lengths."""
OWN_MEAN_SUITES = ("small",)
"""The suites in which a model is held against its own mean."""
OWN_THRESHOLD = "the threshold of its family"
"""Whose score a threshold is that a family of tasks brings."""
OWN_TABLE = "its suite has a table of its own"
"""Why the mean over the tasks of a suite with a capability has no threshold."""


def effective_length(
    scores: Mapping[int, float],
    threshold: float,
    claimed: float | None = None,
    states: Mapping[int, str] = {},
) -> str:
    """The longest tested length whose score is at least the threshold, as the paper prints it.

    Shorter lengths may fail: this rule alone reproduces all 205 printed values. Scores are percent
    and compared rounded to one decimal; NaN is a length without a complete score, of which `states`
    says why ('unfinished', 'failed'; else 'not run'). '<4K' is below the shortest tested length,
    '>128K' says that the longest tested one passed and that the model claims more, or does not say
    what it claims. Missing lengths bound it: '>=16K, 32K unfinished, 64K..128K not run'. '' if no
    length is complete.
    """
    # A length without a complete score can neither pass nor fail.
    known = {length: score for length, score in scores.items() if not math.isnan(score)}
    if not known:
        return ""

    best = longest_above(known, threshold)

    # Only what lies above the longest passing length could still change the answer.
    above = [length for length in sorted(scores) if length > best]
    if known.keys() >= set(above):
        return _answer_name(best, sorted(scores), claimed)

    # Neighbours that lack their scores for one reason are written as a range.
    reasons = {length: states.get(length, "not run") for length in above}
    reasons |= dict.fromkeys(known, "")
    texts = [">=" + length_name(best) if best else "not known"]
    for reason, neighbours in groupby(above, reasons.__getitem__):
        names = [length_name(length) for length in neighbours]
        if len(names) > 1:
            names = [f"{names[0]}..{names[-1]}"]
        if reason:
            texts.append(f"{names[0]} {reason}")
    return ", ".join(texts)


def longest_above(scores: Mapping[int, float], threshold: float) -> int:
    """The longest length, in tokens, whose score (percent, NaN where there is none) is at least the
    threshold, rounded to one decimal; 0 for none. Shorter lengths may fail, as in the paper."""
    return max(
        (length for length, score in scores.items() if round(score, 1) >= threshold), default=0
    )


def effective_set(
    intervals: Mapping[int, tuple[float, float]], threshold: float, claimed: float | None = None
) -> str:
    """The effective lengths that the data cannot rule out, given the interval of each length's
    score in percent.

    Neighbours are written '4K..16K', a gap '4K, 16K'.
    """
    # Neighbouring lengths that are all possible are written as a range.
    lengths, texts = sorted(intervals), []
    possible = possible_lengths(intervals, threshold)
    for is_possible, neighbours in groupby([0, *lengths], possible.__contains__):
        if is_possible:
            names = [_answer_name(length, lengths, claimed) for length in neighbours]
            texts.append(names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}")
    return ", ".join(texts)


def family_threshold(thresholds: Iterable[float | None]) -> float | None:
    """The threshold that the families of some tasks bring; None unless all bring the same."""
    different = {
        None if threshold is None or math.isnan(threshold) else threshold
        for threshold in thresholds
    }
    return different.pop() if len(different) == 1 else None


def possible_lengths(intervals: Mapping[int, tuple[float, float]], threshold: float) -> list[int]:
    """The effective lengths that the data cannot rule out; 0 is below the shortest.

    A length can be the answer if its upper limit reaches the threshold and the lower limit of every
    longer one stays below it; NaN limits rule out nothing.
    """
    # From the longest down: a length whose lower limit passes rules out all shorter ones.
    possible = []
    for length in sorted(intervals, reverse=True):
        low, high = (round(limit, 1) for limit in intervals[length])
        if not high < threshold:
            possible.append(length)
        if low >= threshold:
            return possible
    return [*possible, 0]


def _answer_name(best: int, lengths: list[int], claimed: float | None) -> str:
    if not best:
        return f"<{length_name(lengths[0])}"

    # A model that claims more than was tested may be better still.
    more = claimed is None or math.isnan(claimed) or claimed > best
    return (">" if best == lengths[-1] and more else "") + length_name(best)


# --- adaptive runs --------------------------------------------------------------------------------

Scores = Mapping[tuple[str, int], NDArray[np.float64]]
Counts = dict[tuple[str, int], int]
"""Examples of each cell."""

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
class StoppingRule:
    """When the effective length of a model is settled."""

    confidence: float = 0.95
    max_examples: int = FULL_GRID
    tasks: tuple[str, ...] = ()
    """Those that are asked."""
    lengths: tuple[int, ...] = ()
    """Those that the model can be given."""
    suite: str = "ruler"
    """That of the tasks."""
    own_threshold: float | None = None
    """Percent that the family of the tasks brings."""

    def describe(self, state: "State") -> str:
        """Where a run stands, in words."""
        # A user reads this line to learn whether the run may be stopped.
        error = 100 * (1 - self.confidence)
        words = {
            None: "not at an end: the same command goes on",
            True: f"{state.answer}, certain with an error of at most {error:.3g} %",
            False: (
                f"{state.answer} cannot be told apart with {self.max_examples} examples a cell; "
                f"it takes about {state.needed}"
            ),
        }

        # All numbers are tokens, because a long example costs more than a short one.
        grid = self.population * sum(length for _, length in state.counts)
        spent = sum(length * count for (_, length), count in state.counts.items())
        return (
            f"adaptive (effective length): {words[state.settled]}. Spent: {spent:,} tokens, "
            f"{100 * spent / grid:.1f} % of the full grid's {grid:,} ({self.population} examples a "
            "cell)"
        )

    @property
    def population(self) -> int:
        """The examples of a cell in the grid that the answer is about."""
        return max(self.max_examples, FULL_GRID)


class State(NamedTuple):
    """Where a run stands. `counts`: the examples that each cell is to have, in all. `settled`: None
    while the round is open, True for certain, False where `max_examples` did not do. `answer` in
    words; `needed`: examples of a cell with which the question could be settled, by what was
    seen."""

    counts: Counts
    settled: bool | None
    answer: str = ""
    needed: int = 0


def threshold_of(
    tasks: Collection[str], aligned: str, suite: str = "ruler", own_threshold: float | None = None
) -> float | None:
    """The threshold in percent of a mean over these tasks of a suite; 0 where it is a share of the
    model's own mean, None where there is none. `own_threshold` is what their family brings."""
    if suite in OWN_MEAN_SUITES:
        return 0.0
    if own_threshold is not None or suite != "ruler":
        return own_threshold
    for name, threshold in THRESHOLDS[aligned].items():
        if {task for task in THIRTEEN if name in ("all", category_of(task))} == set(tasks):
            return threshold
    return None


def examples_for(gap: float, half: float, size: float, population: float = math.inf) -> float:
    """The examples of a cell with which half of an interval's width, `half` at `size` of them,
    would be as narrow as `gap`: it falls with the root, and faster where a finite grid ends."""
    whole = 1 / population
    return 1 / (whole + (1 / size - whole) * (gap / half) ** 2)


def replay(
    rule: StoppingRule,
    scores: Scores,
    aligned: str = "chat",
    claimed: float | None = None,
    max_failures: float = 0,
) -> State:
    """The state after all rounds that are complete.

    `scores` (0..1) of each cell are by index, up to the first example that was not asked yet; NaN
    is a request that failed, of which `max_failures` are allowed.
    """
    # Everything is computed anew from the stored answers, so that a run that was
    # stopped and resumed takes the same decisions as one that never stopped.
    answers = _Replay(rule, scores, aligned, claimed)
    counts = dict.fromkeys(scores, answers.sizes[0])
    looks = dict.fromkeys(answers.lengths, 0)
    estimates, changed = dict[int, Estimate](), list(looks)
    while all(_is_answered(scores[key][:n], n, max_failures) for key, n in counts.items()):
        estimates |= {length: answers.estimate(length, counts, looks[length]) for length in changed}

        # A complete round: look at it, and end or ask for more.
        length, answer, settled = answers.decide(estimates, looks)
        size, estimate = answers.sizes[looks[length]], estimates[length]
        # The examples of a cell with which the answer would be settled.
        half = max(estimate.high - estimate.low, 1e-9) / 2
        needed = examples_for(abs(estimate.value), half, size, rule.population)
        if settled or size == answers.sizes[-1]:
            return State(counts, settled, answer, 0 if settled else math.ceil(needed))

        # Looks far before the number that seems to be needed would spend error for
        # nothing.
        looks[length] += 1
        while answers.sizes[looks[length]] < min(answers.sizes[-1], _JUMP * needed / _STEP):
            looks[length] += 1
        # the threshold needs as many examples as what is held against it
        changed = [length, answers.lengths[0]] if answers.is_relative else [length]
        for at in changed:
            counts |= answers.share_out(at, counts, answers.sizes[looks[length]])
    return State(counts, None)


class _Replay:
    """The answers so far, see `replay`. `is_relative`: the threshold is a share of the model's own
    mean at the shortest length. `sizes`: the examples of a cell at each look, up to the most that
    there can be."""

    def __init__(
        self, rule: StoppingRule, scores: Scores, aligned: str, claimed: float | None
    ) -> None:
        self.rule, self.scores, self.claimed = rule, scores, claimed

        # What is asked, as far as the cells themselves say it.
        self.lengths = sorted({length for _, length in scores})
        self.tasks = {task for task, _ in scores}
        self.threshold = threshold_of(self.tasks, aligned, rule.suite, rule.own_threshold) or 0.0
        self.is_relative = not self.threshold

        most = rule.max_examples
        self.sizes = [min(FIRST, most)]
        while self.sizes[-1] < most:
            self.sizes.append(min(most, math.ceil(_STEP * self.sizes[-1])))

    @cached_property
    def confidences(self) -> tuple[list[float], list[float]]:
        """Of the lower and of the upper limit at each look. Half of the error is for failing the
        effective length, half for passing any longer one."""
        # Every further length is another chance to pass by error.
        error = 1 - self.rule.confidence
        shares = tuple(size / self.rule.population for size in self.sizes)
        longer = max(1, len(self.lengths) - 1)
        return look_confidences(shares, 1 - error / longer), look_confidences(shares, 1 - error)

    def estimate(self, length: int, counts: Counts, look: int) -> Estimate:
        """Points above the threshold."""
        # The mean at the length, less the share of the model's own where it is held against that.
        cells = []
        for task, at in self.scores:
            rows = self.scores[task, at][: counts[task, at]]
            weight = 1.0 if length == at else 0.0
            if self.is_relative and at == self.lengths[0]:
                weight -= OWN_SHARE
            if weight:
                cells.append(WeightedCell(weight / len(self.tasks), task, rows))

        # The two limits are looked at with different shares of the error.
        lower, upper = (
            weighted_sum(cells, side[look], population=self.rule.population).percent()
            for side in self.confidences
        )
        estimate = lower._replace(high=upper.high)
        # scores are held against the threshold as they are printed, with one decimal
        return Estimate(*(round(limit, 1) - self.threshold for limit in estimate))

    def decide(
        self, estimates: Mapping[int, Estimate], looks: Mapping[int, int]
    ) -> tuple[int, str, bool]:
        """What the estimates say about the effective length: the length that decides it, the
        answer in words, and whether it is settled."""
        shortest = self.lengths[0]
        intervals = {length: (value.low, value.high) for length, value in estimates.items()}

        # Estimates are points above the threshold, so the threshold is 0 here.
        possible = possible_lengths(intervals, 0.0)
        answer = effective_set(intervals, 0.0, self.claimed)
        settled = len(possible) == 1
        if self.is_relative and not estimates[shortest].value:
            answer = f"none, as the mean at {length_name(shortest)} is 0"
            settled = settled and self.sizes[looks[shortest]] == self.rule.population

        # The longest undecided length decides the answer, so it is asked first.
        undecided = [n for n in possible if n and estimates[n].low < 0]
        unfinished = [n for n in undecided if self.sizes[looks[n]] < self.sizes[-1]]
        return [*unfinished, *undecided, shortest][0], answer, settled

    def share_out(self, length: int, counts: Counts, size: int) -> Counts:
        """The counts of the cells at a length, raised to the tokens of `size` examples each."""
        # Neyman's allocation: in proportion to the spread, over the root of the cost.
        cells = [key for key in self.scores if key[1] == length]
        seen = [self.scores[key][: counts[key]] for key in cells]
        n = np.array([len(rows) for rows in seen])
        means = np.array([np.nanmean(rows) for rows in seen])
        variances = np.array([np.nanvar(rows) for rows in seen])

        # Without a prior a task with no error so far would get no further example.
        prior = max(0.01, means.mean() * (1 - means.mean()))
        spread = np.sqrt((n * variances + _PRIOR * prior) / (n + _PRIOR))

        # The factor that spends just the tokens of the look, found by bisection.
        cost = np.full(len(cells), float(length))
        share, most = spread / np.sqrt(cost), self.sizes[-1]
        low, high = 0.0, most / share.min()
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            planned = np.clip(np.ceil(middle * share), n, most)
            low, high = (middle, high) if planned @ cost < size * cost.sum() else (low, middle)
        planned = np.clip(np.ceil(high * share), n, most).astype(int)
        return dict(zip(cells, planned.tolist(), strict=True))


def _is_answered(rows: NDArray[np.float64], count: int, max_failures: float) -> bool:
    """Whether the first `count` examples of a cell were asked, and enough of them have a score."""
    failed = int(np.isnan(rows).sum())
    return is_enough(len(rows) - failed, count, failed, max_failures)

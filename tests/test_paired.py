"""Intervals of paired differences: against known values, and how often they cover the truth."""

import math

import numpy as np
import pytest

from rulerkit.compare.paired import Cells, factor_needed, tango
from rulerkit.summary.intervals import wilson


def one(differences: list[float]) -> Cells:
    return Cells([np.asarray(differences, dtype=float)[:, None]])


def mean(cells: Cells):
    return cells.mean(np.full(cells.means.shape, 1 / cells.means.size))


@pytest.mark.parametrize(("better", "worse", "n"), [(12, 2, 50), (2, 12, 86), (0, 3, 20), (7, 7, 30), (0, 0, 10)])
def test_tango_solves_its_own_equation(better: int, worse: int, n: int) -> None:
    """At both limits the score statistic is z, with the likeliest share of flips found by search, not by formula."""
    for delta in tango((better - worse) / n, (better + worse) / n, n):
        down = np.linspace(max(0.0, -delta), (1 - delta) / 2, 200_001)[1:-1]
        likelihood = better * np.log(down + delta) + worse * np.log(down)
        likelihood += (n - better - worse) * np.log1p(-2 * down - delta)
        p = down[likelihood.argmax()]
        statistic = (better - worse - n * delta) / math.sqrt(n * (2 * p + delta - delta**2))
        assert abs(statistic) == pytest.approx(1.959964, rel=2e-3)


@pytest.mark.parametrize("n", [5, 20, 500])
def test_ties_only_still_have_a_width(n: int) -> None:
    found = mean(one([0.0] * n))
    z2 = 1.959964**2
    assert (found.low, found.high) == pytest.approx((-z2 / (n + z2), z2 / (n + z2)), abs=1e-6)


@pytest.mark.parametrize("n", [5, 100])
def test_everything_moved_still_has_a_width(n: int) -> None:
    found = mean(one([-1.0] * n))
    assert found.low == pytest.approx(-1)
    assert found.value == -1 < found.high < 0
    assert one([-1.0] * n).mean(np.ones((1, 1))).pairs == pytest.approx(n)


def test_against_a_perfect_model_it_is_close_to_wilsons() -> None:
    """Where A is always right, the difference is B's share less 1."""
    found = mean(one([-1.0] * 6 + [0.0] * 94))
    low, high = wilson(0.94, 100)
    assert (found.low, found.high) == pytest.approx((low - 1, high - 1), abs=0.02)


def test_both_ways_round() -> None:
    rng = np.random.default_rng(0)
    blocks = [rng.choice([-1, 0, 0, 0, 1], (30, 3)).astype(float) for _ in range(4)]
    there, back = mean(Cells(blocks)), mean(Cells([-block for block in blocks]))
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low), abs=1e-9)


def test_fractions_vary_less_than_right_or_wrong() -> None:
    fine, coarse = mean(one([0.1, -0.1] * 50)), mean(one(([1.0, -1.0] + [0.0] * 18) * 5))
    assert fine.moved == pytest.approx(coarse.moved)
    assert 0 < fine.high - fine.low < 0.6 * (coarse.high - coarse.low)


def test_repeated_lengths_count_less_than_new_examples() -> None:
    rng = np.random.default_rng(1)
    once = rng.choice([-1.0, 0.0, 1.0], (60, 1))
    same, other = np.repeat(once, 4, axis=1), rng.choice([-1.0, 0.0, 1.0], (60, 4))
    assert mean(Cells([same])).pairs == pytest.approx(60, rel=0.1)
    assert mean(Cells([other])).pairs > 180


def test_a_missing_cell_has_no_weight() -> None:
    block = np.asarray([[0.0, math.nan], [1.0, math.nan], [0.0, math.nan]])
    found = Cells([block]).mean(np.asarray([[1.0, 0.0]]))
    assert found.value == pytest.approx(1 / 3)
    assert found.low < 1 / 3 < found.high


def test_factor_needed_is_enough_and_not_much_more() -> None:
    found = mean(one([-1.0] * 3 + [1.0] * 3 + [0.0] * 94))
    factor = factor_needed(found, 0.02)
    for times, enough in ((factor, True), (0.95 * factor, False)):
        low, high = tango(found.value, found.moved, found.pairs * times)
        assert ((high - low) / 2 < 0.02) == enough
    assert factor > 3


CASES = [  # tasks, lengths, examples, chance of better, of worse
    *((1, 1, 20, 0.0, 0.0), (1, 1, 100, 0.0, 0.01), (1, 1, 500, 0.01, 0.03), (1, 1, 20, 0.1, 0.3)),
    *((13, 1, 20, 0.0, 0.0), (13, 1, 5, 0.05, 0.05), (13, 4, 20, 0.01, 0.03), (13, 4, 20, 0.1, 0.3)),
]


@pytest.mark.parametrize("items", [1, 10], ids=["right-or-wrong", "fractions"])
@pytest.mark.parametrize(("tasks", "lengths", "examples", "better", "worse"), CASES)
def test_the_interval_covers_the_truth(
    tasks: int, lengths: int, examples: int, better: float, worse: float, items: int
) -> None:
    """95 % intervals of simulated models, whose flips at several lengths go together in half of the examples."""
    rng, trials, hits = np.random.default_rng(tasks * examples), 200, 0
    weights = np.full((tasks, lengths), 1 / tasks / lengths)
    for _ in range(trials):
        shape = (tasks, examples, items)
        shared, own = rng.random((*shape, 1)), rng.random((*shape, lengths))
        drawn = np.where(rng.random((*shape, lengths)) < 0.5, shared, own)
        flips = np.where(drawn < better, 1.0, np.where(drawn > 1 - worse, -1.0, 0.0)).mean(axis=2)
        found = Cells(list(flips)).mean(weights)
        hits += found.low - 1e-9 <= better - worse <= found.high + 1e-9
    assert hits / trials >= 0.90

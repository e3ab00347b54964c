"""The one estimator: what it equals in known cases, and that it covers the truth."""

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rulerkit.scoring.statistics import WeightedCell, holm, no_difference_p, weighted_sum, wilson

SCORES = st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]), min_size=1, max_size=30)
WEIGHTS = st.integers(-10, 10).map(lambda tenths: tenths / 10)


def array(values):
    return np.asarray(values, dtype=float)


def difference(gained, lost, task="vt"):
    return [WeightedCell(1.0, "vt", array(gained)), WeightedCell(-1.0, task, array(lost))]


def mean(scores, groups=None):
    return weighted_sum([WeightedCell(1.0, "vt", array(scores), groups)])


def shares_covered(make, truth, confidence=0.95, runs=300):
    found = [weighted_sum(make(), confidence) for _ in range(runs)]
    return np.mean([estimate.low <= truth <= estimate.high for estimate in found])


@given(st.integers(0, 40), st.integers(1, 40))
def test_a_right_or_wrong_cell_has_wilsons_interval(right, wrong):
    n = right + wrong
    found = mean([1] * right + [0] * wrong)
    assert found == pytest.approx((right / n, *wilson(right / n, n)))


def test_two_tasks_have_newcombes_interval():
    """Newcombe (1998), Statistics in Medicine 17, 873-890, Table II, method 10, (a): 56/70 against
    48/80."""
    found = weighted_sum(difference([1] * 56 + [0] * 14, [1] * 48 + [0] * 32, "cwe"))
    # the pseudo-examples of one side do not move it: each side has one cell
    assert found == pytest.approx((0.2, 0.0524, 0.3339), abs=5e-5)


@given(SCORES, SCORES, WEIGHTS, WEIGHTS)
@example([1.0, 0.0, 0.0, 0.0], [0.0, 1.0], 0.1, -0.7)  # gains above the span
def test_every_interval_holds_its_value_and_has_a_width(one, other, w, v):
    cells = [WeightedCell(w, "vt", array(one)), WeightedCell(v, "vt", array(other))]
    found = weighted_sum(cells)
    assert found.low <= found.value <= found.high
    assert found.value == pytest.approx(w * np.mean(one) + v * np.mean(other), abs=1e-9)
    assert found.high > found.low or w == v == 0
    assert found.value < 0 or math.copysign(1, found.value) == 1  # not -0.0


def test_pairs_make_a_difference_narrower_and_groups_make_it_wider():
    rng = np.random.default_rng(0)
    a = (rng.random(200) < 0.5) * 1.0
    b = np.where(rng.random(200) < 0.05, 1 - a, a)
    paired, apart = (weighted_sum(difference(b, a)), weighted_sum(difference(b, a, "cwe")))
    assert paired.high - paired.low < 0.6 * (apart.high - apart.low)
    same = np.repeat((rng.random(40) < 0.5) * 1.0, 5)
    alone = mean(same)
    grouped = mean(same, np.repeat(np.arange(40), 5))
    assert grouped.high - grouped.low == pytest.approx(
        math.sqrt(5) * (alone.high - alone.low), rel=0.1
    )


def test_missing_examples_count_only_where_they_are():
    whole = weighted_sum(
        [WeightedCell(0.5, "vt", array([1, 0, 1, 1])), WeightedCell(0.5, "vt", array([1, 1, 0]))]
    )
    assert whole.value == pytest.approx((3 / 4 + 2 / 3) / 2)
    assert mean([1, math.nan, 1, 0]) == pytest.approx(tuple(mean([1, 1, 0])))


def test_fractional_scores_have_the_width_that_was_seen():
    rng = np.random.default_rng(1)
    parts = rng.binomial(5, 0.8, 200) / 5
    found, as_binary = mean(parts), wilson(float(parts.mean()), 200)
    assert 0.4 < (found.high - found.low) / (as_binary[1] - as_binary[0]) < 0.5  # 1 / sqrt(5)


@pytest.mark.parametrize(("share", "confidence"), [(0.9, 0.95), (0.5, 0.8)])
def test_intervals_cover_the_truth(share, confidence):
    rng = np.random.default_rng(2)

    def pairs():
        a = rng.random(100) < share
        return difference(np.where(rng.random(100) < 0.5, rng.random(100) < share, a), a)

    assert abs(shares_covered(pairs, 0, confidence, 500) - confidence) < 0.035


def test_no_difference_is_mcnemars_exact_test():
    a, b = array([1] * 16 + [0] * 184), array([0] * 16 + [0] * 180 + [1] * 4)
    p = no_difference_p(difference(b, a))
    assert p == pytest.approx(sum(math.comb(20, k) for k in range(5)) / 2**20)
    assert no_difference_p(difference(a, a)) == 0.5
    assert no_difference_p(difference(a * 0, a[13:])) == 1 / 8


def test_the_test_of_fractional_scores_counts_their_steps():
    """The normal test of three equal losses would say 0.04, of three that differ a little too."""
    assert 0.1 < no_difference_p(difference([0.5, 0.5, 0.4] + [1] * 17, [1] * 20)) < 0.15


def test_a_small_cell_beside_large_ones_limits_the_interval():
    rng = np.random.default_rng(3)

    def tasks(n, p, others, q):
        sizes = [(n, p)] + [(others, q)] * 12
        return [
            WeightedCell(1 / 13, str(i), (rng.random(m) < share) * 1.0)
            for i, (m, share) in enumerate(sizes)
        ]

    assert shares_covered(lambda: tasks(5, 0.8, 100, 0.98), (0.8 + 12 * 0.98) / 13) > 0.9
    right = [WeightedCell(0.5, "vt", array([1.0] * n)) for n in (100, 2)]
    assert weighted_sum(right).low < wilson(1.0, 2)[0] / 2 + 0.5
    alike = [WeightedCell(0.5, "vt", array([1.0] * 100)) for _ in range(2)]
    assert weighted_sum(alike).low == pytest.approx(wilson(1.0, 200)[0])

    def pairs(n, p, missing):
        luck, chance, failed = rng.random((3, 500))
        often = np.where(chance < 0.8, luck, rng.random(500)) < p
        few = np.where(failed < missing, np.nan, luck < p)[:n]
        return difference(few, often)

    assert shares_covered(lambda: pairs(50, 0.98, 0), 0) > 0.9  # 0.66 if only the many counted
    assert shares_covered(lambda: pairs(500, 0.995, 0.02), 0) > 0.9  # 0.70 if all counted as flips


def test_few_groups_make_the_interval_wider():
    rng = np.random.default_rng(4)

    def cell(sizes):
        groups = np.arange(float(len(sizes))).repeat(sizes)
        means = rng.beta(7, 3, len(sizes)).repeat(sizes)
        return [WeightedCell(1.0, "qa_1", (rng.random(200) < means) * 1.0, groups)]

    # 0.83 without Student's t; 0.90 if unequal ones counted as 55 equal ones
    for sizes, most in (([50] * 4, 0.99), ([1] * 50 + [30] * 5, 0.98)):
        assert 0.92 < shares_covered(lambda sizes=sizes: cell(sizes), 0.7) < most


def test_holm_adjusts_in_order():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_a_mean_of_full_scores_is_exactly_one():
    cells = [WeightedCell(1 / 13, str(task), array([1] * 10)) for task in range(13)]
    assert weighted_sum(cells).value == 1

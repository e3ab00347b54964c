"""Do the tests notice a changed judgement? `python benchmarks/mutants.py [--only TEXT]`.

Each mutation changes one central comparison, number or sign in a copy of the package; the tests
that cover it then run in a process of their own and must fail. Prints a line for each and ends with
status 1 if one was not caught.
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
STATISTICS = ["test_statistics.py"]
LENGTHS = ["test_summary.py::test_effective_length", "test_summary.py::test_effective_set"]
SUMMARY = [f"test_summary.py::test_{name}" for name in (
    "averages_weigh_lengths", "ranks_share_ties", "a_complete_summary", "missing_examples_are_never_averaged_away",
    "the_grid_can_be_asked_for", "repetitions_are_averaged_by_example", "examples_of_a_group_are_drawn_together",
)]  # fmt: skip
GATE = [f"test_compare.py::test_{name}" for name in (
    "the_smallest_loss_is_found_and_one_example_less_is_not", "a_broken_task_is_found_though_the_mean_is_within_the_margin",
    "a_loss_is_seen_before_it_is_found_to_be_beyond_the_margin", "gains_are_no_losses_and_cells_without_a_miss_are_named",
    "the_test_of_the_margin_is_that_of_bonett_and_price", "questions_of_one_article_count_as_little_as_they_tell",
    "the_verdict_follows_from_losses_and_the_mean", "a_loss_that_may_be_larger_than_the_margin_is_no_pass",
    "a_pass_says_what_a_cell_can_have_lost", "what_the_candidate_lacks_is_no_pass", "the_power_of_a_comparison",
)]  # fmt: skip
CLAIMS = [
    "test_claims.py::test_limits_on_both_sides",
    "test_claims.py::test_a_negligible_difference_refutes_lower",
    "test_claims.py::test_a_share_of_parts_is_judged_by_what_could_still_come_of_them",
    "test_claims.py::test_a_share_that_can_just_be_reached_does_not_fail",
]


class Mutation(NamedTuple):
    """A text of a file, what replaces it, and the tests that must notice."""

    file: str
    old: str
    new: str
    tests: list[str]


def mutations(file: str, tests: list[str], *changes: tuple[str, str]) -> list[Mutation]:
    """Mutations of one file."""
    return [Mutation(file, old, new, tests) for old, new in changes]


MUTATIONS = [
    *mutations(
        "statistics.py",
        STATISTICS,
        ("inv_cdf(0.5 + confidence / 2)", "inv_cdf(0.5 + confidence)"),
        ("shrink = 1 + z * z * mass", "shrink = 1 - z * z * mass"),
        ("share * (1 - share) / num_examples", "share * (1 + share) / num_examples"),
        ("value = up - down", "value = up + down"),
        ("(up - up_low, down_high - down)", "(up - up_low, down - down_low)"),
        ("(up_high - up, down - down_low)", "(up_high - up, down_high - down)"),
        ("- 2 * correlation * one * other", "+ 2 * correlation * one * other"),
        ("np.maximum(values, 0.0)", "np.maximum(-values, 0.0)"),
        ("np.arange(len(p), 0, -1) * p[order]", "len(p) * p[order]"),
        ("np.maximum.accumulate(adjusted)", "np.asarray(adjusted)"),
        ("cdf(nearer / math.sqrt(", "cdf(-nearer / math.sqrt("),
        ("differences.sum() + sizes.min()", "differences.sum()"),
        ("(differences > 0).sum()", "(differences < 0).sum()"),
        ("max(variance, sizes @ sizes)", "sizes @ sizes"),
        ("if not variance and np.ptp(sizes)", "if np.ptp(sizes)"),
        ("if task.groups is not None:", "if False:"),
        ("max(self.seen, self._of_groups", "min(self.seen, self._of_groups"),
        ("self.scores.shape[1] * (self", "1 * (self"),
        ("(self.scores - means[:, None])", "(self.scores - means[:, None], nan=1.0)"),
    ),
    *mutations(
        "lengths.py",
        LENGTHS,
        ("_printed(score) >= threshold), default", "_printed(score) > threshold), default"),
        ("length not in known and length > best", "length not in known and length < best"),
        ("if not high < threshold", "if not high <= threshold"),
        ("if low >= threshold", "if low > threshold"),
        ("claimed > best", "claimed >= best"),
        ("best == lengths[-1] and more", "best == lengths[0] and more"),
        ("round(score, 1)", "round(score, 0)"),
    ),
    *mutations(
        "summary.py",
        SUMMARY,
        ('rank(method="min"', 'rank(method="max"'),
        (".round(9)", ""),
        ("rising[::-1]", "rising"),
        ("wanted - n <= allowed", "wanted - n < allowed"),
        ("answers == repetitions", "answers >= repetitions - 1"),
        ("numbers >= 0", "numbers > 0"),
        ("np.tile(weights, len(tasks)) / len(tasks)", "np.tile(weights, len(tasks))"),
        ('scores["index"] < num_examples', 'scores["index"] <= num_examples'),
    ),
    *mutations(
        "analysis/differences.py",
        GATE,
        ("p_not_below(-margin / 100)", "p_not_below(margin / 100)"),
        ("lower_limit(ALARMS / num_cells)", "lower_limit(ALARMS)"),
        ('frame["p"] < ALARMS', 'frame["p"] > ALARMS'),
        ("ALARMS = 0.05", "ALARMS = 0.06"),
        ("_replace(weight=share)", "_replace(weight=-share)"),
        ("if lost <= num_examples", "if lost < num_examples"),
        ("isin([0, 100])", "isin([0])"),
        ("p < ALARMS / num_tests", "p < ALARMS"),
    ),
    *mutations(
        "analysis/margin.py",
        GATE,
        ("_ADDED = 2", "_ADDED = 1"),
        ("1 + mean**2", "1"),
        ("num_groups - num_tasks", "num_groups"),
        ("stdtr(self.freedom, (self.value - limit)", "stdtr(self.freedom, (self.value + limit)"),
    ),
    *mutations(
        "analysis/compare.py",
        GATE,
        ('self.mean["low"] > -self.margin', 'self.mean["low"] < -self.margin'),
        ('self.mean["low"] > -self.margin', 'self.mean["high"] > -self.margin'),
        ('self.mean["low"] > -self.margin', 'self.mean["low"] > self.margin'),
        ("if self.lacking:", "if not self.lacking:"),
        ('self.rows["low"] <= -self.margin', 'self.rows["high"] <= -self.margin'),
    ),
    *mutations("analysis/power.py", GATE, ("flipped = 2 * flips", "flipped = 1 * flips")),
    *mutations(
        "analysis/claims.py",
        CLAIMS,
        ("holds = at_least < low and high < at_most", "holds = at_least <= low and high < at_most"),
        ("holds = at_least < low and high < at_most", "holds = at_least < low and high <= at_most"),
        ("or low > at_most\n", "or low >= at_most\n"),
        ("fails = high < fails_below", "fails = high <= fails_below"),
        ("at_least <= low and high <= at_most", "at_least < low and high <= at_most"),
        ("at_least <= low and high <= at_most", "at_least <= low and high < at_most"),
        ("high < at_least or low > at_most", "high <= at_least or low > at_most"),
        ("high < at_least or low > at_most", "high < at_least or low >= at_most"),
    ),
]


def is_caught(mutation: Mutation, folder: Path) -> bool:
    """Whether a test fails with the mutation; raises SystemExit where the text of the mutation is
    not there."""
    source = (ROOT / "rulerkit" / mutation.file).read_text(encoding="utf-8")
    if mutation.old not in source:
        raise SystemExit(
            f"{mutation.file} has no {mutation.old!r} any more: renew the list in "
            f"{Path(__file__).name}"
        )
    changed = folder / "rulerkit" / mutation.file
    changed.write_text(source.replace(mutation.old, mutation.new, 1), encoding="utf-8")
    child = os.fork()  # numpy, pandas and pytest are imported once, in the parent
    if child == 0:
        os._exit(_failed(mutation.tests, folder))
    _, status = os.waitpid(child, 0)
    changed.write_text(source, encoding="utf-8")
    return (
        os.waitstatus_to_exitcode(status) == 1
    )  # pytest's status for failed tests; 2 to 5 are other errors


def _failed(tests: list[str], folder: Path) -> int:
    import pytest

    os.chdir(folder)
    sys.path[:0] = [str(folder), str(folder / "tests")]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return int(
        pytest.main(
            [
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:xdist",
                *(f"tests/{test}" for test in tests),
            ]
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("?")[0])
    parser.add_argument("--only", default="", help="mutations of files whose name holds this text")
    only = parser.parse_args().only
    import hypothesis
    import pandas as pd

    assert hypothesis
    assert pd
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("rulerkit", "tests", "notebooks", "params"):
            shutil.copytree(
                ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(ROOT / "pyproject.toml", folder)
        sys.dont_write_bytecode = True  # two mutations within a second would share their bytecode
        chosen = [mutation for mutation in MUTATIONS if only in mutation.file]
        for tests in {tuple(mutation.tests): None for mutation in chosen}:
            if is_caught(Mutation("common/errors.py", "", "", list(tests)), folder):
                raise SystemExit(f"without any mutation a test fails: {', '.join(tests)}")
        for mutation in chosen:
            caught = is_caught(mutation, folder)
            missed += not caught
            word = "caught" if caught else "MISSED"
            print(f"{word}  {mutation.file}: {mutation.old!r} -> {mutation.new!r}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    sys.exit(missed > 0)


if __name__ == "__main__":
    main()

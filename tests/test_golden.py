"""Prompts, scores, intervals and verdicts are what they were: tests/data/golden, which
scripts/make_golden.py writes."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "make_golden.py"
spec = importlib.util.spec_from_file_location("make_golden", SCRIPT)
golden = importlib.util.module_from_spec(spec)
spec.loader.exec_module(golden)


FORMS = [
    pytest.param(
        form, id=form.tokenizer, marks=() if form.tokenizer == "builtin" else pytest.mark.slow
    )
    for form in golden.FORMS
]


@pytest.mark.parametrize("form", FORMS)
def test_prompts(form, request):
    if form.tokenizer != "builtin":
        request.getfixturevalue("data")
    if form.corpora == "original":
        expected = (golden.GOLDEN / "original_corpora.txt").read_text().strip()
        if golden.original_corpora() != expected:
            pytest.skip("the original corpora in RULERKIT_DATA are other files")

    # The suite's tasks are there where its plug-in is.
    tasks = set(golden.all_tasks())
    stored = [row for row in golden.read("prompts.csv") if row["tokenizer"] == form.tokenizer]
    stored = [row for row in stored if row["task"] in tasks]
    assert list(golden.prompt_rows(form)) == stored
    assert len(stored) >= 2 * 18


def test_scores_and_intervals_of_the_demo_at_its_first_lengths(tmp_path):
    lengths = golden.DEMO["lengths"][:2]
    rows, stored = golden.demo_rows(golden.demo_cells(tmp_path, lengths)), golden.read("demo.csv")
    of_lengths = [row for row in stored if row["length"] in map(str, lengths)]
    # A row of a model is over all of its lengths.
    assert_equal_rows([row for row in rows if row["table"] != "model"], of_lengths)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The cells of the whole demo."""
    return golden.demo_cells(tmp_path_factory.mktemp("demo"))


@pytest.mark.slow
def test_scores_and_intervals_of_the_demo(demo):
    assert_equal_rows(golden.demo_rows(demo), golden.read("demo.csv"))


@pytest.mark.slow
def test_verdicts_and_intervals_of_comparisons(demo):
    assert_equal_rows(golden.comparison_rows(demo), golden.read("comparisons.csv"))


NUMBERS = ("score", "difference", "low", "high")


def assert_equal_rows(rows, stored):
    """The same rows in the same order, with numbers equal to a hundredth of a point."""
    assert len(rows) == len(stored)
    for row, expected in zip(rows, stored, strict=True):
        for name, value in expected.items():
            if name in NUMBERS:
                assert float(row[name]) == pytest.approx(float(value), abs=0.011), (row, expected)
            else:
                assert row[name] == value, (row, expected)

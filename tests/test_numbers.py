"""One number has one interval: in tables, figures, verdicts, comparisons, the leaderboard, and what
the notebooks write."""

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.analysis.compare import compare, interval_text
from rulerkit.analysis.selection import tidy
from rulerkit.analysis.verdicts import estimate
from rulerkit.report.comparison import difference_table
from rulerkit.report.leaderboard import boards
from rulerkit.report.plots import score_by_length
from rulerkit.store.cells import read_cells

LENGTHS = [4096, 8192]
ASKED = {"lengths": LENGTHS, "num_examples": 2, "seed": 3}
LIMITS = ["low", "high"]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """Answers of a reader of all and of one with a window, whose scores are fractional on some
    tasks."""
    folder = tmp_path_factory.mktemp("numbers") / "outputs"
    rk.evaluate(rk.study(ASKED, models=["perfect", "reader-4096"], outputs=folder), progress=False)
    return folder


@pytest.fixture(scope="module")
def scores(outputs):
    return rk.score(read_cells(outputs / "predictions/main"))


def mean_of(rows):
    """The mean over the cells of some rows, with the interval that claims are judged by."""
    cells = tidy(rows, None, {})
    return estimate(cells, cells["weight"] / len(cells))


def same(one, other):
    np.testing.assert_allclose(np.array(one, float), np.array(other, float), atol=2e-4)


@pytest.mark.slow
def test_scores_have_one_interval(scores):
    summary = rk.summarize(scores)
    reader = scores[scores["model"] == "reader-4096"]
    cells = summary.cells[summary.cells["model"] == "reader-4096"].set_index(["task", "length"])
    for (task, length), examples in reader.groupby(["task", "length"]):
        same(cells.loc[(task, length), ["score", *LIMITS]], mean_of(examples))
    whole = "model == 'reader-4096' and category == 'all'"
    means = summary.lengths.query(whole)
    for _, mean in means.iterrows():
        same(mean[["score", *LIMITS]], mean_of(reader[reader["length"] == mean["length"]]))
    model = summary.models.query(whole).iloc[0]
    same(model[["avg", "avg_low", "avg_high"]], mean_of(reader))
    row = boards(scores)[0].rows.query("source == 'ours' and model.str.contains('4K')").iloc[0]
    assert row[["avg", "avg_low", "avg_high"]].isna().all(), "not all six lengths"
    columns = ["4K_low", "4K_high", "8K_low", "8K_high"]
    same(row[columns], means[LIMITS].to_numpy().ravel())
    (bars,) = score_by_length(means).collections
    for bar, (_, mean) in zip(bars.get_segments(), means.iterrows(), strict=True):
        same(bar, [[mean["length"], mean["low"]], [mean["length"], mean["high"]]])


def test_differences_have_one_interval(scores, outputs):
    found = compare("main/perfect", "main/reader-4096", outputs=outputs)
    both = tidy(scores, None, {})
    for _, row in found.rows.iterrows():
        cells = both[both["task"].eq(row["task"]) | (row["task"] == "")]
        cells = cells[cells["length"].eq(row["length"]) | (row["length"] == 0)]
        signs = cells["model"].map({"reader-4096": 2.0, "perfect": -2.0})
        same(row[["difference", *LIMITS]], estimate(cells, signs / len(cells)))
    mean = found.rows.iloc[-1]
    assert f"{mean['low']:+.1f} to {mean['high']:+.1f}" in interval_text(mean)
    limits = f"({mean['low']:+.1f} to {mean['high']:+.1f})"
    assert f"{mean['difference']:+.1f}* {limits}" in difference_table(found)

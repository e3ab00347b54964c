"""The demo of all notebooks: each must find, in its tables, the effect that was planted in its
reference readers."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest

import rulerkit as rk
from rulerkit.analysis.verdicts import FAILS, HOLDS, UNKNOWN
from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.execution import execute
from rulerkit.common.paths import package_data, project_files
from rulerkit.store.cells import read_cells
from tests.batches import outcomes
from tests.conftest import needs_extras

REPOSITORY = Path(__file__).parents[1]
DEMO = REPOSITORY / "params/batches/demo-all.yaml"
planted = pytest.mark.slow


@needs_extras
def test_the_demo_has_every_notebook():
    there = set(project_files("notebooks", ".ipynb"))
    assert {job.notebook.stem for job in read_batch(DEMO).jobs if job.notebook} == there


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "outputs"
    jobs = read_batch(DEMO, {"outputs": str(folder)}).jobs
    ended = outcomes(execute(jobs))
    assert [each for each in ended if each.state != "done"] == []
    assert len(ended) == len(jobs)
    return folder


def table(outputs, notebook, name):
    return pd.read_csv(outputs / "tables/demo-all" / notebook / f"{name}.csv")


def verdicts(outputs, notebook, name):
    return list(table(outputs, notebook, f"{name}-claims")["verdict"])


def share_within(frame, planted):
    """How many of the intervals hold what was planted: about all of them must."""
    return float(((frame["low"] <= planted) & (planted <= frame["high"])).mean())


@planted
def test_what_was_planned_is_what_was_asked(outputs):
    jobs = [job for job in read_batch(DEMO, {"outputs": str(outputs)}).jobs if job.model]
    needs = {need.path: need for job in jobs for need in job.needs()}
    cells = {cell.path: cell for cell in read_cells(outputs / "predictions")}
    assert needs.keys() == cells.keys()
    assert len(needs) > 500
    for path, need in needs.items():
        cell = cells[path]
        assert (cell.model, cell.task, cell.length) == (need.model, need.task, need.length)
        assert [row["index"] for row in cell.rows] == list(range(need.wanted)), need
    for log in outputs.rglob("notebooks/demo-all/*/*.log"):
        assert "not answered" not in log.read_text()  # as of a cell that nobody planned


@planted
def test_fading_takes_the_same_share_of_every_needle(outputs):
    """An item at distance d is found with probability 2 ** (-d / 8192), and distances are even from
    0 to the length."""
    found = table(outputs, "02_needle_types", "reader-fading")
    for length, own in found.groupby("length"):
        x = float(str(length)) / 8192 * math.log(2)
        assert share_within(own, 100 * (1 - math.exp(-x)) / x) >= 0.8
    assert verdicts(outputs, "02_needle_types", "reader-fading")[0] == FAILS


@planted
def test_confusion_needs_a_neighbour(outputs):
    found = table(outputs, "03_distractors", "reader-confused")
    alone = found["series"] == "#K = 1"
    assert (found.loc[alone, "score"] == 100).all()
    assert share_within(found[~alone], 70) >= 0.8
    assert (found.loc[~alone, "score"] < 100).all()
    steady, about_yi = verdicts(outputs, "03_distractors", "reader-confused")
    assert steady != HOLDS, "one step down is not steadily lower"
    assert about_yi == UNKNOWN


@planted
def test_dropping_takes_the_same_share_of_few_and_of_many(outputs):
    found = table(outputs, "04_multiple_needles", "reader-dropping")
    assert share_within(found, 80) >= 0.9
    assert found["score"].mean() == pytest.approx(80, abs=3)
    assert HOLDS not in verdicts(outputs, "04_multiple_needles", "reader-dropping")


@planted
def test_a_steady_fall_and_one_past_a_window(outputs):
    assert verdicts(outputs, "05_variable_tracking", "reader-fading") == [HOLDS, UNKNOWN]
    window = table(outputs, "05_variable_tracking", "reader-8192")
    assert (window.loc[window["length"] <= 8192, "score"] == 100).all()
    assert (window.loc[window["length"] > 8192, "high"] < 70).all()


@planted
def test_a_sample_misleads_where_frequencies_are_close(outputs):
    found = table(outputs, "06_frequent_words", "reader-sample")
    means = found.groupby("series", sort=False)["score"].mean()
    assert list(means.index) == ["α = 3.5", "α = 2.0", "α = 1.5", "α = 1.2"]
    assert means.iloc[1:].is_monotonic_decreasing
    # at 3.5 the third of the frequent words is too rare to be in every sample
    assert verdicts(outputs, "06_frequent_words", "reader-sample") == [FAILS]
    scores = rk.score(str(outputs / "predictions/demo-all/reader-sample"))
    (claim,) = (one for one in package_data("paper/claims.yaml") if one.get("along") == "alpha")
    narrower = claim | {"rows": "task.str.match('fwe(-|$)')", "needs": []}
    assert list(rk.claims(scores, listed=[narrower])["verdict"]) == [HOLDS]


@planted
def test_what_is_known_by_heart_stays(outputs):
    found = table(outputs, "07_question_answering", "reader-remembering")
    alone = found["series"].str.endswith("no context")
    assert share_within(found[alone], 30) >= 0.5
    read = found[~alone]
    assert (read.loc[read["length"] <= 8192, "score"] == 100).all()
    assert share_within(read[read["length"] == 32768], 25 + 75 * 0.3) == 1
    found = verdicts(outputs, "07_question_answering", "reader-remembering")
    assert found == [HOLDS, HOLDS]


@planted
def test_models_by_training_length_size_and_kind(outputs):
    windows = "reader-8192+reader-16384"
    # flat up to the window, then an abrupt drop
    expected = [HOLDS, FAILS, UNKNOWN, HOLDS, HOLDS, FAILS, FAILS]
    assert verdicts(outputs, "08_training_length", windows) == expected
    found = table(outputs, "08_training_length", windows)
    assert (found.loc[found["length"] <= found["claimed_length"], "score"] == 100).all()
    assert (found.loc[found["length"] > found["claimed_length"], "high"] < 80).all()
    assert verdicts(outputs, "09_model_size", "reader-small+reader-large") == [HOLDS, HOLDS]
    assert verdicts(outputs, "10_architectures", "reader-4096+reader-recurrent") == [HOLDS] * 3


@planted
def test_faults_follow_the_families(outputs):
    (path,) = (outputs / "tables/demo-all/11_task_correlation").glob("*+etc-?????.csv")
    found = pd.read_csv(path).set_index("task")
    assert set(found.index) == set(found.columns) == set(rk.TASKS)
    removed = found.index.difference(rk.THIRTEEN)
    assert (found.loc[removed, list(rk.THIRTEEN)].max(axis=1) > 0.8).all()


@planted
def test_thinking_helps_as_much_as_was_planted(outputs):
    (prices,) = outputs.glob("tables/demo-all/14_thinking/*-prices.csv")
    gains = pd.read_csv(prices)
    planted = 50 - 50 / 2 ** (gains["tokens"] / 256)
    assert list(gains["tokens"]) == pytest.approx([64, 256, 1024], abs=8)
    assert ((gains["low"] <= planted) & (planted <= gains["high"])).sum() >= 2
    assert (gains["value"].diff().dropna() > 0).all()


@planted
def test_a_window_hides_the_first_half_of_twice_its_length(outputs):
    recall = table(outputs, "15_depth", "reader-8192")
    needles = recall[recall["task"].str.startswith("niah")]
    beyond = needles["length"] > 8192
    assert (needles.loc[~beyond | (needles["depth_from"] >= 50), "score"] == 100).all()
    assert (needles.loc[beyond & (needles["depth_to"] <= 40), "score"] == 0).all()


@planted
def test_copies_are_told_from_other_failures(outputs):
    """The demonstration's answer is copied in prompts of more than 10K tokens, 95 times in 100."""
    found = table(outputs, "12_failures", "reader-failing")
    found = found.set_index(["task", "length", "failure"])
    assert found.loc["cwe", 4096, "copied demonstration"]["count"] == 0
    copied = found.loc["cwe", 16384, "copied demonstration"]
    assert copied["low"] < 0.95 < copied["high"] + 0.05
    assert found.loc["cwe-demonstration_False", 16384, "copied beginning"]["share"] > 0.7


@planted
def test_what_is_left_out_makes_a_model_worse(outputs):
    (path,) = (outputs / "tables/demo-all/13_compare_models").glob("*-verdicts.json")
    (found,) = json.loads(path.read_text(encoding="utf-8"))
    assert found["verdict"]["word"] == "worse"
    assert found["difference"]["low"] < -20 < found["difference"]["high"] < 0


@planted
def test_both_suites_find_the_window_and_neither_a_mute_model(outputs):
    frontier = table(outputs, "20_frontier", "reader-8192+mute")
    assert list(frontier["frontier"]) == ["8K", "-"]
    assert frontier["RULER"].iloc[0] == "8K"


@planted
def test_the_others_wrote_their_tables(outputs):
    others = ("00_the_paper", "16_sweep", "21_frontier_ladders", "leaderboard")
    for notebook in others:
        assert list((outputs / "tables/demo-all" / notebook).glob("*.csv")), notebook
    for path in outputs.rglob("tables/demo-all/*/*.csv"):
        if len(pd.read_csv(path)):
            text = path.with_suffix(".tex").read_text(encoding="utf-8")
            assert text.count(r"\toprule") == text.count(r"\bottomrule") == 1
    pictures = {path.stem for path in outputs.rglob("figures/demo-all/*/*.png")}
    assert {"reader-fading-figure_2", "reader-fading-figure_3"} <= pictures
    (caption,) = outputs.rglob("figures/demo-all/19_paper_figures/*figure_4.txt")
    assert "small reader, large reader" in caption.read_text(encoding="utf-8")
    for figure in outputs.rglob("figures/demo-all/*/*.png"):
        assert figure.with_suffix(".pdf").is_file()

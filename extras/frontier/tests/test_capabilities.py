"""The summary of the frontier suite: three effective lengths, floors taken off, apart from RULER."""

import json

import matplotlib.pyplot as plt
import pandas as pd
import pytest

import rulerkit as rk
import rulerkit_frontier as rf
from rulerkit.common.errors import UserError
from rulerkit.generation.tasks import suites
from rulerkit.generation.tasks import task as make_task
from rulerkit.scoring.summary import summarize
from rulerkit_frontier.scores import headline
from tests.test_summary import row, scores_of

TASKS = suites()["frontier"]
SIX = [4096 * 2**i for i in range(6)]


def suite_of(shares, tasks=TASKS):
    """Scores of the suite for a model that has the same share of what is above the floor on every
    task: {length: share}."""
    by_cell = {("m", length): share for length, share in shares.items()}
    return above_floors(scores_of(by_cell, tasks, n=100, suite="frontier", wanted=100))


def above_floors(scores):
    """The rows with the settings of their tasks, and their scores as shares above the floors."""
    asked = {name: make_task(name) for name in set(scores["task"])}
    floor = scores["task"].map({name: task.floor for name, task in asked.items()})
    return scores.assign(
        family=scores["task"].map({name: task.family for name, task in asked.items()}),
        settings=scores["task"].map({name: json.dumps(t.settings()) for name, t in asked.items()}),
        score=floor + (1 - floor) * scores["score"],
    )


def of_six(*percents):
    return {length: share / 100 for length, share in zip(SIX, percents, strict=True)}


# --- the three lengths ----------------------------------------------------------------------------


def test_the_headline_is_the_shorter_of_the_relative_and_the_absolute_length():
    """85 % of 82 is 69.7: kept up to 32K, while 50 is reached everywhere."""
    model = rf.frontier(suite_of(of_six(82, 80, 74, 71, 66, 58))).models.iloc[0]
    assert (model["base"], model["threshold"]) == (82.0, 69.7)
    assert (model["relative"], model["absolute"]) == ("32K", ">128K")
    assert model["effective_length"] == "32K"
    assert model["reach"] == 32768


def test_a_model_that_keeps_little_of_little_is_judged_by_the_absolute_threshold():
    model = rf.frontier(suite_of(of_six(56, 52, 51, 49, 49, 48))).models.iloc[0]
    assert (model["relative"], model["absolute"]) == (">128K", "16K")
    assert (model["threshold"], model["effective_length"]) == (50.0, "16K")


@pytest.mark.parametrize(("base", "has_headline"), [(30, True), (29, False)])
def test_below_a_mean_of_30_there_is_no_headline(base, has_headline):
    model = rf.frontier(suite_of(of_six(base, *[base] * 5))).models.iloc[0]
    assert (model["effective_length"] != "") == has_headline
    assert ("below 30" in model["why"]) != has_headline
    # A mean of 30 is below the absolute threshold everywhere.
    assert model["absolute"] == "<4K"


@pytest.mark.parametrize(("shortest", "has_headline"), [(8192, True), (16384, False)])
def test_a_share_of_the_own_mean_needs_a_short_length(shortest, has_headline):
    shares = {length: 0.9 for length in SIX if length >= shortest}
    model = rf.frontier(suite_of(shares)).models.iloc[0]
    assert (model["effective_length"] != "") == has_headline
    assert (model["relative"] != "") == has_headline
    assert model["absolute"] == ">128K"
    assert ("above 8K" in model["why"]) != has_headline


@pytest.mark.slow
def test_the_sets_hold_what_the_data_cannot_rule_out():
    """At 32K the mean is 71 and at 64K 68, both so near to 69.7 that either side is possible; at
    16K it is 74, so no shorter length can be the answer."""
    near = rf.frontier(suite_of(of_six(82, 80, 74, 71, 68, 58))).models.iloc[0]
    assert near["effective_length"] == "32K"
    assert near["effective_set"] == "16K..64K"
    clear = rf.frontier(suite_of(of_six(90, 90, 90, 90, 30, 20))).models.iloc[0]
    assert clear["effective_set"] == clear["effective_length"] == "32K"


# --- floors and means -----------------------------------------------------------------------------


def test_a_capability_is_the_mean_of_its_tasks_without_their_floors():
    """Eight replies at 60 with a floor of 14.95 are at 53; two at 10 are at 0, not below."""
    scores = suite_of({4096: 0.6})
    for name, right in (("ordinal_copy_2", 10), ("ordinal_copy_8", 60)):
        of_task = scores["task"] == name
        scores.loc[of_task, "score"] = (scores.loc[of_task, "index"] < right).astype(float)
    frontier = rf.frontier(scores)
    capability = row(frontier.capabilities, capability="k-th occurrence")
    normalised = 100 * (60 - 14.95) / (100 - 14.95) / 2
    assert capability["normalised"] == pytest.approx(normalised)
    assert capability["score"] == pytest.approx((10 + 60) / 2)
    assert capability["floor"] == pytest.approx((51.4 + 14.95) / 2)
    assert capability["low"] <= capability["normalised"] <= capability["high"]

    # All capabilities count alike, whatever the number of their tasks.
    mean = frontier.lengths.iloc[0]
    assert mean["normalised"] == pytest.approx((7 * 60 + normalised) / 8)
    assert mean["low"] < mean["normalised"] < mean["high"]


def test_what_is_not_above_its_floor_is_marked():
    scores = suite_of({4096: 0.0})
    capabilities = rf.frontier(scores).capabilities
    assert not capabilities["above_floor"].any()
    assert (capabilities["normalised"] == 0).all()


def test_there_is_no_mean_without_every_capability():
    scores = suite_of({4096: 0.9})
    without = scores[scores["task"] != "latent_3"]
    frontier = rf.frontier(without)
    assert frontier.lengths["normalised"].isna().all()
    assert "without paraphrase" in frontier.lengths["have"].iloc[0]
    assert frontier.models["effective_length"].iloc[0] == ""


def test_a_model_keeps_its_own_shortest_length_beside_one_that_has_a_shorter():
    scores = suite_of({8192: 0.9, 16384: 0.9})
    alone = rf.frontier(scores).models.iloc[0]
    other = suite_of({4096: 0.9, 8192: 0.9}).replace({"model": {"m": "other"}})
    beside = rf.frontier(pd.concat([other, scores])).models.set_index("model")
    for column in ("base_length", "effective_length", "relative", "why"):
        assert beside.loc["m", column] == alone[column]
    assert alone["effective_length"] == ">16K"
    assert beside.loc["other", "effective_length"] == ">=8K"


def test_a_reason_that_has_no_room_in_a_field_stands_below_the_figure():
    scores = suite_of(of_six(90, 90, 90, 90, 90, 90))
    some = scores[scores["task"].isin(["state_4", "latent_3"])]
    (axes,) = rf.figures.capability_map(rf.frontier(some))
    texts = [text.get_text() for text in axes.texts]
    assert max(map(len, texts)) <= 8
    assert "–" in texts
    notes = " ".join(text.get_text() for text in axes.figure.texts)
    assert "no mean, without graph search" in notes.replace("\n", " ")


def test_an_unfinished_cell_gives_no_mean_at_its_length():
    scores = suite_of(of_six(90, 90, 90, 90, 90, 90))
    late = (scores["task"] == "state_4") & (scores["length"] == SIX[-1])
    frontier = rf.frontier(scores[~(late & (scores["index"] >= 50))])
    last = row(frontier.lengths, length=SIX[-1])
    assert pd.isna(last["normalised"])
    assert "50/100" in last["have"]
    assert frontier.models["effective_length"].iloc[0] == ">=64K"


# --- beside RULER ---------------------------------------------------------------------------------


def test_nothing_of_it_enters_a_mean_of_ruler():
    ruler = scores_of({("m", 4096): 0.9, ("m", 8192): 0.5}, n=100, wanted=100)
    both = pd.concat([ruler, suite_of({4096: 0.1, 8192: 0.1})])
    alone, beside = summarize(ruler), summarize(both, suite="ruler")
    for name in ("cells", "lengths", "models"):
        pd.testing.assert_frame_equal(getattr(alone, name), getattr(beside, name))

    model = rf.frontier(both).models.iloc[0]
    assert (model["ruler"], model["ruler_reach"]) == ("4K", 4096)


def test_the_title_says_what_both_found():
    ruler = scores_of({("m", length): 0.95 for length in SIX}, n=20, wanted=20)
    suite = suite_of(of_six(90, 85, 60, 50, 40, 30))
    both = rf.frontier(pd.concat([ruler, suite])).models.iloc[0]
    assert headline(both) == "RULER says >128K, the frontier suite 8K"
    assert headline(rf.frontier(suite).models.iloc[0]) == "Frontier suite: 8K"


def test_scores_without_the_suite_are_refused():
    ruler = scores_of({("m", 4096): 0.9})
    with pytest.raises(UserError, match=r"no answers of the frontier suite.*tasks: frontier"):
        rf.frontier(ruler)


@pytest.mark.slow
def test_reports_have_a_table_for_each_suite(tmp_path, rulerkit):
    rk.evaluate(
        rk.study(
            models=["reader-2048"],
            tasks=["niah_single_1", *TASKS],
            lengths=[2048, 4096],
            num_examples=1,
            outputs=tmp_path,
        ),
        progress=False,
    )
    shown = rulerkit("report", "--by", "model", tmp_path / "predictions/main").out
    assert "mean of 1 task (niah_single_1)" in shown
    assert "frontier: the shorter of the two" in shown
    lines = rulerkit("report", tmp_path / "predictions/main", "--format", "csv").out
    assert len(lines.strip().splitlines()) == 1 + 2 * (1 + len(TASKS))
    scored = rulerkit("report", "--by", "task", tmp_path / "predictions/main").out
    assert "mean of 13 frontier tasks" in scored
    assert "RULER" in scored


def frontier_of(*names):
    """The frontier suite and RULER with invented scores, which fall with the length."""
    share = {
        (name, length): (90 - 30 * i - 25 * n) / 100
        for i, name in enumerate(names)
        for n, length in enumerate((4096, 8192, 16384))
    }
    suite = above_floors(scores_of(share, TASKS, n=20, wanted=20, suite="frontier"))
    ruler = scores_of(share, n=20, wanted=20)
    return rf.frontier(pd.concat([suite, ruler]))


@pytest.mark.slow
def test_figures_say_what_both_suites_found():
    summary = frontier_of("a model with a name of some length", "b")
    assert len(rf.figures.capability_map(summary, note="a note")) == 2
    assert rf.figures.frontier_by_length(summary).get_ylabel() == "Mean, floors taken off (%)"
    assert len(rf.figures.capabilities_by_length(summary)) == 8
    plt.close("all")


def test_the_figure_of_the_suite_says_what_it_was_made_from():
    readers = suite_of({4096: 1.0, 8192: 0.5}).assign(engine="reader")
    panels = rk.plots.of_suite(readers, "frontier")
    assert "reference readers" in panels[0].figure.get_supxlabel()
    plt.close("all")


def test_answers_given_when_the_suite_stood_in_the_core_are_resumed(tmp_path, rulerkit):
    """Their records name no module."""
    asked = ("evaluate", "reader-4096", "--tasks", "state_4", "--lengths", "4K", "-y")
    rulerkit(*asked, f"outputs: {tmp_path}", "-n", "2")
    (path,) = tmp_path.rglob("4096.json")
    record = json.loads(path.read_bytes())
    del record["result"]["task"]["module"]
    before = path.with_suffix(".jsonl").read_text()
    path.write_text(json.dumps(record))
    rulerkit(*asked, f"outputs: {tmp_path}", "-n", "3")
    after = path.with_suffix(".jsonl").read_text()
    assert after.startswith(before)
    assert len(after.splitlines()) == 3

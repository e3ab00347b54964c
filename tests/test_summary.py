"""Means, intervals and effective lengths; what is missing is never averaged away."""

import math
from itertools import product

import pandas as pd
import pytest

from rulerkit.common.errors import UserError
from rulerkit.generation.tasks import category_of
from rulerkit.report.tables import table_text
from rulerkit.scoring.effective_length import effective_length, effective_set
from rulerkit.scoring.scores import COLUMNS, THIRTEEN
from rulerkit.scoring.statistics import wilson
from rulerkit.scoring.summary import length_weights, summarize

NAN = float("nan")
K4, K8, K16, K32 = 4096, 8192, 16384, 32768


def scores_of(share, tasks=THIRTEEN, n=50, **columns):
    """Scores of cells with the same share right on every task: {(model, length): share}; `n` may be
    a function of model, length and task."""
    blank = {"run": "main", "aligned": "chat", "suite": "ruler", "own_threshold": NAN}
    blank |= {"claimed_length": NAN, "wanted": 50, "failed": 0, "failed_refused": 0}
    blank |= {"max_failures": 0.0, "adaptive": "", "engine": "reader", "seed": 42}
    blank |= dict.fromkeys(("empty", "cut_off", "cut_thought", "stand_in"), False)
    frames = []
    for ((model, length), right), task in product(share.items(), tasks):
        have = n(model, length, task) if callable(n) else n
        frame = pd.DataFrame({"index": range(have), "model": model, "label": model})
        frame["score"] = (frame["index"] < round(right * have)) * 1.0
        frames.append(frame.assign(task=task, category=category_of(task), length=length))
    scores = pd.concat(frames, ignore_index=True)
    scores = scores.assign(**blank | {"prompt_version": 1, "note": ""} | columns)
    return scores.reindex(columns=list(COLUMNS))


def row(frame, **where):
    for name, value in where.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_averages_weigh_lengths():
    assert length_weights(6) @ [6.0, 0, 0, 0, 0, 0] == pytest.approx([1, 6 / 21, 36 / 21])
    assert (length_weights(1) @ [70.0]).tolist() == [70, 70, 70]
    assert all(weights.sum() == pytest.approx(1) for weights in length_weights(7))


def test_ranks_share_ties():
    rights = {("a", K4): 0.9, ("b", K4): 0.96, ("c", K4): 0.9, ("d", K4): 0.8}
    scores = scores_of(rights, n=lambda model, length, task: 49 if model == "d" else 50)
    third = (scores["model"] == "c") & (scores["task"] == "vt")
    scores.loc[third, "score"] *= 1 - 5e-11
    models = summarize(scores).models.query("category == 'all'")
    assert models["rank_inc"].fillna(0).tolist() == [2, 1, 2, 0]


@pytest.mark.parametrize(
    ("scores", "claimed", "answer"),
    [
        ({K4: 90, K8: 85.6, K16: 85.5}, None, "8K"),
        ({K4: 90, K8: 85.56, K16: 85.54}, None, "8K"),  # as printed: 85.6 and 85.5
        ({K4: 80, K8: 90, K16: 70}, None, "8K"),  # shorter ones may fail
        ({K4: 80, K8: 70}, None, "<4K"),
        ({K4: 90, K8: 90}, None, ">8K"),
        ({K4: 90, K8: 90}, 131072, ">8K"),
        ({K4: 90, K8: 90}, 8192, "8K"),
        ({K4: 90, K8: NAN}, None, ">=4K"),
        ({K4: 90, K8: NAN, K16: 70}, None, ">=4K"),
        ({K4: 80, K8: NAN}, None, ""),
        ({K4: NAN, K8: 90, K16: 80}, None, "8K"),  # what is shorter cannot change it
        ({K4: NAN, K8: 80}, None, ""),
        ({K4: NAN}, None, ""),
    ],
)
def test_effective_length(scores, claimed, answer):
    assert effective_length(scores, 85.6, claimed) == answer


@pytest.mark.parametrize(
    ("limits", "answer"),
    [
        ({K4: (90, 95), K8: (86, 88), K16: (70, 80)}, "8K"),
        ({K4: (90, 95), K8: (84, 88), K16: (84, 86)}, "4K..>16K"),
        ({K4: (90, 95), K8: (84, 85), K16: (84, 86)}, "4K, >16K"),
        ({K4: (84, 86), K8: (80, 82), K16: (70, 75)}, "<4K..4K"),
        ({K4: (70, 75), K8: (60, 70)}, "<4K"),
        ({K4: (70, 75), K8: (86, 90)}, ">8K"),
        ({K4: (85.6, 90), K8: (70, 85.6)}, "4K..>8K"),  # both limits reach the threshold
        ({K4: (90, 95), K8: (NAN, NAN)}, "4K..>8K"),  # not run: all is possible
    ],
)
def test_effective_set(limits, answer):
    assert effective_set(limits, 85.6) == answer


def test_a_complete_summary():
    scores = scores_of({("a", K4): 1.0, ("a", K8): 0.8, ("b", K4): 0.9, ("b", K8): 0.9})
    summary = summarize(scores)
    assert len(summary.cells) == 2 * 13 * 2
    cell = row(summary.cells, model="a", task="vt", length=K8)
    numbers = cell[["score", "n", "wanted", "complete"]]
    assert numbers.tolist() == [80, 50, 50, True]
    assert (cell["low"], cell["high"]) == pytest.approx([100 * limit for limit in wilson(0.8, 50)])
    length = row(summary.lengths, model="a", category="all", length=K8)
    assert (length["score"], length["tasks"], length["n"]) == (pytest.approx(80), 13, 50)
    assert cell["low"] < length["low"] < 80 < length["high"] < cell["high"]
    assert set(summary.lengths["category"]) == {"all", "niah", "vt", "aggregation", "qa"}
    a, b = (row(summary.models, model=model, category="all") for model in "ab")
    assert (a["avg"], a["wavg_inc"], a["wavg_dec"]) == pytest.approx((90, 260 / 3, 280 / 3))
    assert a["avg_low"] < 90 < a["avg_high"]
    assert (a["rank_inc"], a["rank_dec"], b["rank_inc"], b["rank_dec"]) == (2, 1, 1, 2)
    assert (a["effective_length"], b["effective_length"]) == ("4K", ">8K")
    assert (a["effective_set"], a["threshold"], a["complete"]) == ("4K", 85.6, True)


def test_missing_examples_are_never_averaged_away():
    def have(model, length, task):
        return 30 if (length, task) == (K8, "vt") else 50

    scores = scores_of({("a", K4): 1.0, ("a", K8): 1.0}, n=have)
    summary = summarize(scores)
    cell = row(summary.cells, task="vt", length=K8)
    assert (cell["have"], cell["complete"]) == ("30/50", False)
    assert cell[["score", "low", "high"]].isna().all()
    length = row(summary.lengths, category="all", length=K8)
    assert (length["have"], length["complete"]) == ("30/50", False)
    assert math.isnan(length["score"])
    whole = row(summary.models, category="all")
    assert math.isnan(whole["avg"])
    assert math.isnan(whole["rank_inc"])
    assert (whole["effective_length"], whole["effective_set"]) == (">=4K", "4K..>8K")
    qa = row(summary.models, category="qa")
    assert (qa["avg"], qa["complete"]) == (pytest.approx(100), True)
    text = table_text(summary)
    assert all(part in text for part in ("30/50", " >=4K  ", "Incomplete"))


def test_missing_tasks_are_never_averaged_away():
    scores = scores_of({("a", K4): 1.0}, tasks=THIRTEEN[:-1])
    whole = scores_of({("b", K4): 1.0, ("b", K8): 1.0})
    summary = summarize(pd.concat([scores, whole], ignore_index=True))
    length = row(summary.lengths, category="all", model="a", length=K4)
    assert length["have"] == "12/13 tasks"
    assert math.isnan(length["score"])
    absent = row(summary.lengths, category="all", model="a", length=K8)
    assert absent["have"] == "-"
    of_a = summary.models.query("model == 'a'")
    assert math.isnan(row(of_a, category="qa")["avg"])
    asked = summarize(scores, tasks=["vt", "cwe", "niah_single_1"])
    by_category = asked.models.set_index("category")
    assert by_category.loc["all", ["avg", "tasks", "effective_length"]].tolist() == [100, 3, ""]
    # of a category all tasks were asked
    assert by_category.loc[["vt", "niah"], "effective_length"].tolist() == [">4K", ""]
    assert "mean of 3 tasks (vt, cwe, niah_single_1)" in table_text(asked)
    assert "No effective length" in table_text(asked)
    assert "100.0*" not in table_text(asked), "there is no threshold of three tasks"


def test_a_task_without_any_answer_is_left_out_of_no_mean():
    scores = scores_of({("a", K4): 0.9}, ["vt", "cwe"])
    model = row(summarize(scores).models, category="all")
    assert (model["avg"], model["tasks"]) == (pytest.approx(90), 2)
    failed = {"task": "fwe", "category": "aggregation", "suite": "ruler"}
    failed |= {"run": "main", "model": "a", "length": K4, "wanted": 50}
    failed |= {"failed": 50, "failed_refused": 0, "max_failures": 0.0}
    scores.attrs["empty_cells"] = [failed]
    assert math.isnan(row(summarize(scores).models, category="all")["avg"])


def test_only_what_has_one_protocol_and_the_same_texts_is_ranked():
    scores = scores_of({("a", K4): 0.9, ("b", K4): 0.8}, protocol="clean")
    texts = {"stand_in": True, "texts": "essays 12"}
    synthetic = scores_of({("c", K4): 1.0}, protocol="clean", **texts)
    own = scores_of({("d", K4): 0.7}, protocol="clean", **texts | {"texts": "x 3"})
    other = scores_of({("e", K4): 0.6}, protocol="paper")
    together = pd.concat([synthetic, scores, own, other], ignore_index=True)
    models = summarize(together).models.query("category == 'all'")
    assert models["rank_dec"].tolist() == [1, 1, 2, 1, 1]
    # Ranks are shown among three models or more.
    assert "1st" not in table_text(summarize(together))
    three = scores_of({("a", K4): 0.9, ("b", K4): 0.8, ("f", K4): 0.7}, protocol="clean")
    assert "(3rd)" in table_text(summarize(three))


def test_one_example_with_two_scores_is_refused():
    scores = scores_of({("a", K4): 0.9})
    twice = pd.concat([scores, scores.query("task == 'vt' and index == 3")], ignore_index=True)
    with pytest.raises(UserError, match="example 3 of task 'vt' is there twice"):
        summarize(twice)


def test_the_grid_can_be_asked_for():
    scores = scores_of({("a", K4): 1.0, ("a", K8): 1.0, ("b", K4): 1.0})
    b = row(summarize(scores).models, model="b", category="all")
    assert (b["effective_length"], b["complete"]) == (">=4K", False)
    b = row(summarize(scores, lengths=K4).models, model="b", category="all")
    assert (b["effective_length"], b["avg"]) == (">4K", pytest.approx(100))
    a = row(summarize(scores, lengths=[K8, K16]).models, model="a", category="all")
    assert a["effective_length"] == ">=8K"
    fewer = summarize(scores, "vt", ["4K"], num_examples=10)
    assert {*fewer.cells["task"]} == {"vt"}
    assert set(fewer.cells["n"]) == {10}
    assert fewer.cells["complete"].all()
    more = summarize(scores, lengths=[K4], num_examples=500)
    assert set(more.cells["have"]) == {"50/500"}
    for nothing in ({"lengths": [K32]}, {"tasks": ["vt-x"]}, {"num_examples": 0}):
        with pytest.raises(UserError, match="nothing to summarize"):
            summarize(scores, **nothing)


def test_examples_of_a_group_are_drawn_together():
    scores = scores_of({("a", K4): 0.5}, ["vt"])
    articles = scores["index"] // 25
    some = [0.0 if i < 25 else NAN for i in scores["index"]]
    widths = []
    for groups in (scores["index"], NAN, articles, some):
        cell = row(summarize(scores.assign(group=groups)).cells, task="vt")
        widths.append(cell["high"] - cell["low"])
    assert widths[1] == pytest.approx(widths[0])
    assert widths[2] > 2 * widths[0]
    assert widths[3] > 1.5 * widths[0]


def test_runs_and_alignments_stand_apart():
    chat = scores_of({("a", K4): 0.9})
    base = scores_of({("b", K4): 0.8}, aligned="base")
    again = scores_of({("a", K4): 0.7}, run="seed7")
    models = summarize(pd.concat([chat, base, again])).models
    models = models[models["category"] == "all"]
    assert models["rank_inc"].tolist() == [1, 1, 2]
    assert models["threshold"].tolist() == [85.6, 79.4, 85.6]
    assert models["effective_length"].tolist() == [">4K", ">4K", "<4K"]
    text = table_text(summarize(pd.concat([chat, again])))
    assert all(name in text for name in ("a [main]", "a [seed7]"))


def test_suites_stand_apart(capsys):
    """Nothing of another suite enters a mean, a table or a threshold of RULER."""
    rights = {("a", 4096): 0.9, ("a", 8192): 0.6}
    ruler = scores_of(rights)
    others = scores_of(rights, ["graph_bfs_2", "state_4"], suite="other")
    together = pd.concat([ruler, others], ignore_index=True)

    alone, mixed = summarize(ruler), summarize(together)
    assert table_text(mixed) == table_text(alone)
    assert mixed.cells.equals(alone.cells)
    assert "left out: tasks of other" in capsys.readouterr().err

    named = summarize(together, ["graph_bfs_2", "state_4"])
    for chosen in (named, summarize(together, suite="other")):
        assert set(chosen.cells["suite"]) == {"other"}
        model = row(chosen.models, category="all")
        assert (model["tasks"], model["effective_length"]) == (2, "")
        assert math.isnan(model["threshold"])
        assert "Not comparable with the paper: " in table_text(chosen)
    with pytest.raises(UserError, match="the tasks named are of other and ruler"):
        summarize(together, ["vt", "state_4"])


def test_other_tasks_enter_no_mean_of_the_thirteen():
    rights = {("a", 4096): 1.0}
    own = scores_of({("a", 4096): 0.0}, ["mine"]).assign(category="mine")
    scores = pd.concat([scores_of(rights), own], ignore_index=True)
    for named in (None, [*THIRTEEN, "mine"]):
        summary = summarize(scores, named)
        model = row(summary.models, category="all")
        assert (model["avg"], model["tasks"]) == (pytest.approx(100), 13)
        assert model["effective_length"] == ">4K"
        assert "mine" in set(summary.cells["task"])
    assert row(summarize(scores, ["vt", "mine"]).models, category="all")["avg"] == 50


def test_a_family_may_bring_its_threshold():
    rights = {("a", 4096): 0.9, ("a", 8192): 0.7, ("a", 16384): 0.6}
    scores = scores_of(rights, ["mine_1", "mine_2"]).assign(category="mine", own_threshold=70.0)
    model = row(summarize(scores).models, category="all")
    assert (model["threshold"], model["effective_length"]) == (70, "8K")
    assert model["threshold_of"] == "the threshold of its family"
    text = " ".join(table_text(summarize(scores)).split())
    assert "at least 70.0 (chat), the threshold of its family." in text
    # Two families with two thresholds have no common one.
    scores.loc[scores["task"] == "mine_2", "own_threshold"] = 60.0
    assert row(summarize(scores).models, category="all")["effective_length"] == ""

"""Means, intervals and effective lengths; what is missing is never averaged away."""

import csv
import io
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import rulerkit as rk
from rulerkit.errors import UserError
from rulerkit.lengths import effective_length, effective_set, length_name, parse_length
from rulerkit.scoring import COLUMNS, THIRTEEN, category
from rulerkit.statistics import wilson
from rulerkit.summary import averages, length_weights, ranks, summarize
from rulerkit.tables import FORMATS, ordinal, table_text, task_table_text

NAN = float("nan")


def scores_of(share, tasks=THIRTEEN, n=50, wanted=None, **columns):
    """Scores of cells with the same share right on every task: {(model, length): share}; `n` may be
    a function."""
    frames = []
    for (model, length), right in share.items():
        for task in tasks:
            have = n(model, length, task) if callable(n) else n
            values = np.arange(have) < round(right * have)
            about = {
                "run": "main",
                "model": model,
                "label": model,
                "aligned": "chat",
                "claimed_length": NAN,
            }
            about |= {
                "task": task,
                "category": category(task),
                "length": length,
                "index": range(have),
            }
            about |= {
                "score": values.astype(float),
                "strict": values * 0.5,
                "precision": 0.5,
                "exact": 0.0,
            }
            about |= dict.fromkeys(
                ("empty", "cut_off", "cut_thought", "refused", "stand_in"), False
            )
            about |= {
                "num_prompt_tokens": length - 100,
                "digest": "d",
                "wanted": wanted or 50,
                "engine": "reader",
            }
            about |= {"failed": 0, "failed_refused": 0, "max_failures": 0.0}
            about |= {
                "seed": 42,
                "prompt_version": 1,
                "tokenizer": "builtin",
                "template": "base",
                "note": "",
                "floor": NAN,
            }
            frames.append(pd.DataFrame({**about, **columns}))
    return pd.concat(frames, ignore_index=True).reindex(columns=COLUMNS)


def row(frame, **where):
    for name, value in where.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_lengths_have_names():
    names = {
        4096: "4K",
        131072: "128K",
        1048576: "1M",
        2097152: "2M",
        1000: "1000",
        1536: "1536",
        1024: "1K",
    }
    assert {length: length_name(length) for length in names} == names
    assert all(parse_length(name) == length for length, name in names.items())
    assert parse_length(" 128k ") == 131072
    for wrong in ("", "K", "4.5K", "-4096", "0", "long"):
        with pytest.raises(UserError, match="is no length"):
            parse_length(wrong)


def test_averages_weigh_lengths():
    assert averages([6.0, 0, 0, 0, 0, 0]) == pytest.approx((1, 6 / 21, 36 / 21))
    assert averages([70.0]) == (70, 70, 70)
    assert all(math.isnan(value) for value in averages([90, NAN]))
    assert all(weights.sum() == pytest.approx(1) for weights in length_weights(7))


def test_ranks_share_ties():
    assert ranks([90.0, 95.0, 90.0 + 1e-12, 80.0]) == [2, 1, 2, 4]
    assert math.isnan(ranks([90.0, NAN])[1])


K4, K8, K16, K32 = 4096, 8192, 16384, 32768


@pytest.mark.parametrize(
    ("scores", "claimed", "answer"),
    [
        ({K4: 90, K8: 85.6, K16: 85.5}, None, "8K"),
        ({K4: 90, K8: 85.56, K16: 85.54}, None, "8K"),  # as printed: 85.6 and 85.5
        ({K4: 80, K8: 90, K16: 70}, None, "8K"),  # shorter ones may fail
        ({K4: 80, K8: 70}, None, "<4K"),
        ({K8: 80}, None, "<8K"),
        ({K4: 90, K8: 90}, None, ">8K"),
        ({K4: 90, K8: 90}, 131072, ">8K"),
        ({K4: 90, K8: 90}, 8192, "8K"),
        ({K4: 90, K8: NAN}, None, ">=4K, 8K not run"),
        ({K4: 90, K8: NAN, K16: NAN}, None, ">=4K, 8K unfinished, 16K not run"),
        ({K4: 80, K8: NAN}, None, "not known, 8K unfinished"),
        ({K4: NAN, K8: 90, K16: 80}, None, "8K"),  # what is shorter cannot change it
        ({K4: NAN, K8: 80}, None, "not known, 4K not run"),
        ({K4: NAN}, None, ""),
    ],
)
def test_effective_length(scores, claimed, answer):
    begun = [K8] if "unfinished" in answer else []
    assert effective_length(scores, 85.6, claimed, begun) == answer


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


def test_the_effective_length_is_never_ruled_out():
    rng = np.random.default_rng(1)
    for _ in range(300):
        scores = dict(zip((K4, K8, K16, K32), rng.uniform(70, 100, 4), strict=True))
        limits = {n: (s - rng.uniform(0, 9), s + rng.uniform(0, 9)) for n, s in scores.items()}
        names = [f"<{length_name(K4)}", "4K", "8K", "16K", ">32K"]
        answer, possible = effective_length(scores, 85.6), effective_set(limits, 85.6)
        runs = [run.split("..") for run in possible.split(", ")]
        spelled = {n for run in runs for n in names[names.index(run[0]) : names.index(run[-1]) + 1]}
        assert answer in spelled


def test_a_complete_summary():
    scores = scores_of({("a", K4): 1.0, ("a", K8): 0.8, ("b", K4): 0.9, ("b", K8): 0.9})
    summary = summarize(scores)
    assert len(summary.cells) == 2 * 13 * 2
    cell = row(summary.cells, model="a", task="vt", length=K8)
    assert (cell["score"], cell["strict"], cell["n"], cell["wanted"], cell["complete"]) == (
        80,
        40,
        50,
        50,
        True,
    )
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


def test_intervals_are_never_of_zero_width():
    for share in (0.0, 1.0):
        summary = summarize(scores_of({("a", K4): share, ("a", K8): share}))
        assert (summary.cells["high"] > summary.cells["low"]).all()
        assert (summary.lengths["high"] > summary.lengths["low"]).all()
        for average in ("avg", "wavg_inc", "wavg_dec"):
            assert (summary.models[f"{average}_high"] > summary.models[f"{average}_low"]).all()


def test_missing_examples_are_never_averaged_away():
    scores = scores_of(
        {("a", n): 1.0 for n in (K4, K8)},
        n=lambda m, length, t: 30 if (length, t) == (K8, "vt") else 50,
    )
    summary = summarize(scores)
    cell = row(summary.cells, task="vt", length=K8)
    assert (cell["have"], cell["complete"]) == ("30/50", False)
    assert math.isnan(cell["score"])
    assert math.isnan(cell["low"])
    length = row(summary.lengths, category="all", length=K8)
    assert (length["have"], length["complete"]) == ("30/50", False)
    assert math.isnan(length["score"])
    whole = row(summary.models, category="all")
    assert math.isnan(whole["avg"])
    assert math.isnan(whole["rank_inc"])
    assert (whole["effective_length"], whole["effective_set"]) == (">=4K, 8K unfinished", "4K..>8K")
    qa = row(summary.models, category="qa")
    assert (qa["avg"], qa["complete"]) == (pytest.approx(100), True)
    text = table_text(summary)
    assert "30/50" in text
    assert ">=4K, 8K unfinished" in text
    assert "Incomplete" in text


def test_missing_tasks_are_never_averaged_away():
    scores = scores_of({("a", K4): 1.0}, tasks=THIRTEEN[:-1])
    summary = summarize(scores)
    length = row(summary.lengths, category="all")
    assert length["have"] == "12/13 tasks"
    assert math.isnan(length["score"])
    assert row(summary.models, category="niah")["avg"] == pytest.approx(100)
    assert math.isnan(row(summary.models, category="qa")["avg"])
    asked = summarize(scores, tasks=["vt", "cwe", "niah_single_1"])
    assert row(asked.models, category="all")["avg"] == pytest.approx(100)
    assert row(asked.models, category="all")["tasks"] == 3
    assert row(asked.models, category="all")["effective_length"] == ""
    assert (
        row(asked.models, category="vt")["effective_length"] == ">4K"
    )  # all of the category's tasks
    assert row(asked.models, category="niah")["effective_length"] == ""
    assert "Means over 3 tasks" in table_text(asked)
    assert "No effective length" in table_text(asked)


def test_the_grid_can_be_asked_for():
    scores = scores_of({("a", K4): 1.0, ("a", K8): 1.0, ("b", K4): 1.0})
    b = row(summarize(scores).models, model="b", category="all")
    assert (b["effective_length"], b["complete"]) == (">=4K, 8K not run", False)
    b = row(summarize(scores, lengths=[K4]).models, model="b", category="all")
    assert (b["effective_length"], b["avg"]) == (">4K", pytest.approx(100))
    a = row(summarize(scores, lengths=[K8, K16]).models, model="a", category="all")
    assert a["effective_length"] == ">=8K, 16K not run"
    absent = row(summarize(scores, lengths=[K4, K16]).cells, model="b", task="vt", length=K16)
    assert absent["have"] == "0/50"
    fewer = summarize(scores, lengths=[K4], num_examples=10)
    assert set(fewer.cells["n"]) == {10}
    assert fewer.cells["complete"].all()
    more = summarize(scores, lengths=[K4], num_examples=500)
    assert set(more.cells["have"]) == {"50/500"}
    for nothing in ({"lengths": [K32]}, {"tasks": ["vt-x"]}, {"num_examples": 0}):
        with pytest.raises(UserError, match="nothing to summarize"):
            summarize(scores, **nothing)


def test_repetitions_are_averaged_by_example():
    """Twice the same answers count once; an example that one repetition lacks is not counted."""
    once, again = scores_of({("a", K4): 0.8}), scores_of({("a", K4): 0.4}, run="main-repeat2")
    cell = row(summarize(pd.concat([once, again])).cells, model="a", task="vt")
    assert (cell["run"], cell["n"], cell["score"]) == ("main", 50, pytest.approx(60))
    same = row(summarize(pd.concat([once, once.assign(run="main-repeat2")])).cells, task="vt")
    alone = row(summarize(once).cells, task="vt")
    assert (same["low"], same["high"]) == (alone["low"], alone["high"])
    missing = again[~((again["task"] == "vt") & (again["index"] == 49))]
    assert row(summarize(pd.concat([once, missing])).cells, task="vt")["have"] == "49/50"
    other = summarize(pd.concat([once, again.assign(run="other-repeat2")])).cells
    assert set(other["run"]) == {"main", "other-repeat2"}


def test_examples_of_a_group_are_drawn_together():
    scores = scores_of({("a", K4): 0.5})
    alone, pairs, none = (
        row(summarize(scores.assign(group=group)).cells, task="vt")
        for group in (
            scores["index"],
            [f"article {i // 25}" for i in scores["index"]],
            float("nan"),
        )
    )
    assert alone["high"] - alone["low"] == pytest.approx(none["high"] - none["low"])
    assert pairs["high"] - pairs["low"] > 2 * (alone["high"] - alone["low"])
    first = scores.assign(group=[0.0 if i < 25 else float("nan") for i in scores["index"]])
    cell = row(summarize(first).cells, task="vt")
    assert cell["high"] - cell["low"] > 1.5 * (alone["high"] - alone["low"])


def test_other_tasks_stand_in_the_cells_only():
    summary = summarize(scores_of({("a", K4): 1.0}, tasks=[*THIRTEEN, "vt-num_hops=8"]))
    assert row(summary.cells, task="vt-num_hops=8")["category"] == "vt"
    assert row(summary.models, category="all")["tasks"] == 13
    assert row(summary.models, category="vt")["tasks"] == 1


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
    assert "a [main]" in text
    assert "a [seed7]" in text


def test_tables_in_every_format():
    scores = scores_of({("a_1", K4): 1.0, ("a_1", K8): 0.8}, stand_in=True, claimed_length=131072.0)
    summary = summarize(scores)
    plain, markdown, latex = (
        table_text(summary, format) for format in ("table", "markdown", "latex")
    )
    assert "100.0*" in plain
    assert "80.0*" not in plain
    assert "**100.0**" in markdown
    assert r"\underline{100.0}" in latex
    assert r"a\_1" in latex
    for text in (plain, markdown, latex):
        assert "128K" in text
        assert "85.6 (chat)" in text
        assert "not comparable with the paper" in text
        assert "n = 50 examples" in text
        assert "(1st)" in text
    assert "89.7 (chat)" in table_text(summary, category="vt")
    for wrong in ({"format": "html"}, {"category": "code"}):
        with pytest.raises(UserError, match="allowed"):
            table_text(summary, **wrong)


def test_csv_is_tidy():
    scores = scores_of(
        {("a", K4): 1.0, ("a", K8): 0.5}, n=lambda m, length, t: 49 if t == "cwe" else 50
    )
    lines = list(csv.DictReader(io.StringIO(table_text(summarize(scores), "csv"))))
    assert len(lines) == 26
    line = next(line for line in lines if line["task"] == "vt" and line["length"] == "8192")
    assert (float(line["score"]), float(line["threshold"]), line["n"], line["seed"]) == (
        50,
        85.6,
        "50",
        "42",
    )
    assert {
        "low",
        "high",
        "wanted",
        "empty",
        "cut_off",
        "refused",
        "stand_in",
        "engine",
        "tokenizer",
        "run",
    } <= set(line)
    gap = next(line for line in lines if line["task"] == "cwe")
    assert (gap["score"], gap["have"]) == ("", "49/50")


def test_task_table():
    scores = scores_of({("a", K4): 0.98, ("a", K8): 0.5})
    scores.loc[(scores["task"] == "vt") & (scores["index"] < 3), ["refused", "empty"]] = True
    summary = summarize(scores)
    text = task_table_text(summary, "a")
    assert "98.00 [89.5, 99.6], 3 empty, 3 refused" in text
    assert text.count("98.00") == 13
    for format in FORMATS:
        assert "qa" in task_table_text(summary, "a", format=format)
    with pytest.raises(UserError, match="unknown model 'b'"):
        task_table_text(summary, "b")


def test_ordinals():
    assert [ordinal(n) for n in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111)] == (
        ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]
    )


def test_questions_of_an_article_count_together(tmp_path: Path) -> None:
    """Each row of a question names its article; an interval over articles is not that of
    independent questions."""
    study = rk.study(
        model="reader-2048", tasks=["qa_1"], lengths=[4096], num_examples=60, outputs=str(tmp_path)
    )
    scores = rk.score(rk.evaluate(study, progress=False))
    assert scores["group"].notna().all()
    assert scores["group"].nunique() < 60
    cells = rk.summarize(scores, ["qa_1"]).cells.iloc[0]
    alone = rk.summarize(scores.assign(group=float("nan")), ["qa_1"]).cells.iloc[0]
    assert cells["high"] - cells["low"] >= alone["high"] - alone["low"]

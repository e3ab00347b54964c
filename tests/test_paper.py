"""The paper's rows by name; the leaderboard: the paper's tables from its scores,
ours among them, as files."""

import html
import io
import math
import re

import pandas as pd
import pytest
from test_summary import scores_of

from rulerkit.report import leaderboard, paper
from rulerkit.report.leaderboard import boards
from rulerkit.report.tables.models import TITLES

SIX = paper.PAPER_LENGTHS


def scores_at(share, n, **columns):
    """Scores of models that answer a share right at each length."""
    pairs = {(model, length): right[length] for model, right in share.items() for length in right}
    return scores_of(pairs, n=n, wanted=n, **{"engine": "vllm"} | columns)


def board(all_boards, number):
    return next(board for board in all_boards if board.number == str(number))


def upstream_rows():
    rows = paper.listed_rows()
    return rows[rows["source"].isin(paper.UPSTREAM)]


def markdown_rows(text):
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def check_printed_rows(all_boards, version="v3"):
    """Every cell of the paper's rows in Tables 3 and 10 to 16 is as printed."""
    differ = []
    for each in all_boards:
        category, _, aligned, _ = leaderboard.TABLES[each.number]
        printed = paper.paper_summary(version, category)
        printed = printed[printed["aligned"] == aligned] if aligned else printed
        scores = paper.paper_scores(version, category)
        scores = scores.pivot(index="slug", columns="length", values="score")
        rows = {
            row["Model"]: row
            for row in markdown_rows(each.text("markdown"))
            if not re.search(r" \((upstream|authors|ours).*\)$", row["Model"])
        }
        assert sorted(rows) == sorted(printed["model"])
        for _, expected in printed.iterrows():
            row = rows[expected["model"]]
            shown = {"Claimed": expected["claimed_length"].upper()}
            for n in SIX:
                score = scores.loc[expected["slug"], n]
                number = "" if math.isnan(score) else f"{score:.1f}"
                shown[f"{n // 1024}K"] = number
            if isinstance(expected["effective_length"], str):
                shown["Effective"] = expected["effective_length"].upper()
            for name, title in list(TITLES.items())[3:]:
                average = expected[name]
                shown[title] = "" if pd.isna(average) else f"{average:.1f}"
                rank = expected.get(name.replace("wavg", "rank"))
                if isinstance(rank, str):
                    shown[title] += f" ({re.sub('^3th', '3rd', rank)})"
            for title, said in shown.items():
                cell = html.unescape(row.get(title, said).strip("*"))
                if cell != said:
                    differ.append((each.number, row["Model"], title, cell, said))
    assert differ == []


def test_the_leaderboard_shows_what_is_printed():
    check_printed_rows(boards())


def test_scores_that_reach_the_threshold_are_underlined():
    """357 scores of version 3 exceed their threshold, one equals it, and the ten thresholds stand
    in their tables."""
    found = boards()
    upstream = int((upstream_rows()[[*SIX]] >= 85.6).sum().sum())
    underlined = sum(each.text("latex").count(r"\underline{") for each in found)
    assert underlined == 357 + 1 + 10 + upstream
    text = board(found, 3).text("latex")
    row = next(line for line in text.splitlines() if line.startswith("GPT-4 &"))
    averages = r"91.6 & 89.0\textsubscript{(2nd)} & 94.1\textsubscript{(2nd)} \\"
    assert rf"\underline{{87.0}} & 81.2 & {averages}" in row
    assert r"$>$128K" in text
    assert (text.count(r"\midrule"), board(found, 16).text("latex").count(r"\midrule")) == (2, 4)


def test_upstreams_list_adds_the_models_that_the_paper_lacks():
    rows = upstream_rows().set_index("model")
    assert rows["source"].value_counts().to_dict() == {"upstream": 15, "authors": 12}
    assert rows.loc["Qwen2.5-14B-Instruct-1M", "avg"] == pytest.approx(95.2)
    assert math.isnan(rows.loc["EXAONE-4.0-1.2B", "avg"])  # has no 128K


def ours(board):
    return board.rows[board.rows["source"] == "ours"]


def test_ours_stand_among_the_papers():
    """All right up to 64K and nothing at 128K: 83.3, 71.4, 95.2, between the models that the paper
    printed so."""
    found = boards(scores_at({"m": {n: float(n < 131072) for n in SIX}}, n=4))
    each = board(found, 3)
    row = ours(each).iloc[0]
    assert (row["avg"], row["effective_length"]) == (pytest.approx(500 / 6), "64K")
    assert row["avg_low"] < row["avg"] < row["avg_high"]
    printed = paper.paper_summary("v3", "all13").query("aligned == 'chat'")
    assert each.rows["wavg_dec"].iloc[1:].dropna().is_monotonic_decreasing
    papers = each.rows.loc[each.rows["source"] == "paper v3", "model"]
    assert list(papers) == list(printed["model"]), "in the order of the paper"
    assert each.rows["baseline"].iloc[0]
    assert ours(board(found, 12)).empty, "a chat model is not ranked among base models"
    frame = pd.read_csv(io.StringIO(each.text("csv")))
    assert len(frame) == len(each.rows)
    assert {"4K", "4K_low", "128K_high", "wavg_dec_low"} <= set(frame.columns)


@pytest.mark.slow
def test_a_model_with_fewer_lengths_has_no_average_and_changes_nobody():
    """Nor do two of them, one with 256K, and one that was run on three tasks."""
    comparable = {"protocol": "paper", "n": 4}
    shares = {
        "long": dict.fromkeys((*SIX, 262144), 1.0),
        "short": dict.fromkeys((1024, *SIX[:4]), 1.0),
        "gap": dict.fromkeys(set(SIX) - {16384}, 1.0),
    }
    scores = scores_at(shares, **comparable)
    few = scores_at({"few": dict.fromkeys(SIX, 1.0)}, **comparable)
    few = few[few["task"].isin(["vt", "cwe", "niah_single_1"])]
    scores = pd.concat([scores, few], ignore_index=True)
    found = boards(scores)
    check_printed_rows(found)

    shown = [row for row in markdown_rows(board(found, 3).text()) if "(ours" in row["Model"]]
    rows = {row["Model"].partition(" ")[0]: row for row in shown}
    for name in ("short", "gap", "few"):
        for title in ("Avg", "wAvg(inc)", "wAvg(dec)"):
            assert rows[name][title] == "-"
    effective = {name: html.unescape(row["Effective"]) for name, row in rows.items()}
    assert effective == {"long": ">128K", "short": ">=32K", "gap": ">128K", "few": "-"}
    assert rows["short"]["8K"].startswith("**100.0**")
    each = board(found, 3)
    before = board(boards(scores[scores["model"] == "long"]), 3).rows
    after = each.rows[each.rows["model"].isin(before["model"])]
    pd.testing.assert_frame_equal(before, after.reset_index(drop=True))


@pytest.mark.slow
def test_notes_say_what_differs_from_the_paper():
    scores = scores_at({"m": dict.fromkeys(SIX, 1.0)}, n=4)
    reader = scores.assign(model="r", label="r", engine="reader", tokenizer="builtin")
    few = scores[scores["task"] == "vt"].assign(model="few", label="few")
    each = board(boards(pd.concat([scores, reader, few])), 3)
    assert ours(each)["rank_dec"].isna().all()
    said = each.text("markdown") + " ".join(each.notes)
    for words in (
        "| few (ours, main) |  | - | 1/13 tasks |",
        "| r (ours, main) |",
        "Not comparable with the paper: reference readers (r).",
        "The paper has 500 examples per task and length.",
        "Another protocol than the paper's: m, r, few.",
        "Another tokenizer than the paper's: r.",
    ):
        assert words in said

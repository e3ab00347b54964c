"""The leaderboard: the paper's tables from its scores alone, ours beside them, as files and as a
page that sorts."""

import io
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from test_notebooks import files, run, shown
from test_summary import scores_of

import rulerkit as rk
from rulerkit import paper
from rulerkit.errors import UserError
from rulerkit.leaderboard import TABLES, best, board, boards, csv, everything, latex, markdown, page
from rulerkit.scoring import THIRTEEN

SIX = paper.PAPER_LENGTHS


def scores_at(share: dict[str, dict[int, float]], n: int) -> pd.DataFrame:
    """Scores of models that answer a share right at each length."""
    pairs = {
        (model, length): right
        for model, by_length in share.items()
        for length, right in by_length.items()
    }
    return scores_of(pairs, n=n, wanted=n)


# --- the paper, rebuilt ---------------------------------------------------------------------------


def test_exceptions_are_those_that_are_known() -> None:
    found = paper.exceptions()
    counts = found.groupby(["value", "decision"]).size().to_dict()
    assert counts == {
        ("avg", "slip of the paper"): 1,
        ("wavg_inc", "rounding"): 14,
        ("wavg_dec", "rounding"): 19,
        ("rank_inc", "misprint"): 5,
        ("rank_dec", "misprint"): 1,
        ("mean of 13 tasks", "rounding"): 34,
        ("mean of 13 tasks", "contradiction in the paper"): 4,
    }
    slip = found[found["decision"] == "slip of the paper"].iloc[0]
    assert (slip["version"], slip["table"], slip["model"], slip["printed"]) == (
        "v1",
        11,
        "Together (7B)",
        "66.7",
    )
    thresholds = found[found["decision"] == "contradiction in the paper"]
    assert set(thresholds["slug"]) == {"llama2-7b-chat", "llama2-7b-base"}
    assert found.loc[found["decision"] == "rounding", "difference"].abs().max() < 0.08


def test_everything_printed_is_checked() -> None:
    counts = paper.agreement().set_index("value")
    assert counts["printed"].to_dict() == {
        "avg": 287,
        "wavg_inc": 205,
        "wavg_dec": 205,
        "rank_inc": 205,
        "rank_dec": 205,
        "effective_length": 205,
        "mean of 13 tasks": 250,
    }
    assert counts.loc["avg", "halves"] == 37
    assert (counts.drop(columns=["printed", "halves"]).sum(axis=1) == counts["printed"]).all()
    assert counts.loc["effective_length", "agree"] == 205


@pytest.mark.parametrize("version", paper.VERSIONS)
def test_what_is_shown_is_what_is_printed(version: str) -> None:
    """Every score, average, rank and effective length in our CSV and Markdown, but for the
    exceptions."""
    apart = {
        (e.table, e.model, e.value)
        for e in paper.exceptions().query("version == @version").itertuples()
    }
    seen = 0
    for each in boards(version=version, order="paper"):
        rows = [
            row
            for row in csv_rows(markdown(each))
            if not re.search(r" \((upstream|authors)\)$", row["Models"])
        ]
        category, aligned, _ = TABLES[each.number]
        printed = paper.paper_summary(version, category)
        printed = printed[printed["aligned"] == aligned] if aligned else printed
        assert [row["Models"] for row in rows] == list(printed["model"])
        for row, (_, expected_row) in zip(rows, printed.iterrows(), strict=True):
            assert row["Claimed Length"] == expected_row["claimed_length"].upper()
            scores = paper.paper_row(expected_row["slug"], category, version)
            for length in SIX:
                expected = "" if scores is None or length not in scores else f"{scores[length]:.1f}"
                assert row[f"{length // 1024}K"].strip("*") == expected
            for name, head in (
                ("avg", "Avg."),
                ("wavg_inc", "wAvg. (inc)"),
                ("wavg_dec", "wAvg. (dec)"),
            ):
                if (
                    not math.isnan(expected_row[name])
                    and (expected_row["table"], expected_row["model"], name) not in apart
                ):
                    assert row[head].split(" ")[0] == f"{expected_row[name]:.1f}", (
                        each.number,
                        expected_row["model"],
                    )
                    seen += 1
            for name, head in (("rank_inc", "wAvg. (inc)"), ("rank_dec", "wAvg. (dec)")):
                if isinstance(expected_row[name], str):
                    assert row[head].endswith(f"({re.sub('^3th', '3rd', expected_row[name])})")
            if (
                isinstance(expected_row["effective_length"], str)
                and expected_row["effective_length"] != "-"
            ):
                assert (
                    row["Effective Length"].replace("&lt;", "<")
                    == expected_row["effective_length"].upper()
                )
    assert seen > 250


def csv_rows(text: str) -> list[dict[str, str]]:
    """The rows of a Markdown table."""
    lines = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_underlines_of_the_paper() -> None:
    """357 cells of version 3 exceed their threshold, one equals it, and the ten thresholds stand in
    their tables."""
    found = boards()
    assert marked() == 357 + 1 + 10
    upstream = paper.upstream_rows()
    more = int((upstream[[*SIX]] >= 85.6).sum().sum())
    assert (
        sum(latex(each).count(r"\underline{") for each in found if each.category in paper.JUDGED)
        == marked() + more
    )
    text = latex(board(found, 3))
    row = next(line for line in text.splitlines() if line.startswith("GPT-4 &"))
    assert (
        r"\underline{87.0} & 81.2 & 91.6 & 89.0\textsubscript{(2nd)} & 94.1\textsubscript{(2nd)} \\"
        in row
    )
    assert text.count(r"\midrule") == 2
    assert latex(board(found, 16)).count(r"\midrule") == 4, "each group's threshold stands apart"
    assert r"$>$128K" in text


def marked() -> int:
    scores = paper.paper_scores("v3")
    limits = scores[scores["slug"].str.startswith("llama2-7b")].set_index(["category", "aligned"])[
        "score"
    ]
    return sum(
        (kind, aligned) in limits.index and score >= limits[kind, aligned]
        for kind, aligned, score in scores[["category", "aligned", "score"]].itertuples(index=False)
    )


# --- ours -----------------------------------------------------------------------------------------


def test_ours_stand_among_the_papers() -> None:
    """All right up to 64K and nothing at 128K: 83.3, 71.4, 95.2, between the models that the paper
    printed so."""
    scores = scores_at({"m": {n: 1.0 if n < 131072 else 0.0 for n in SIX}}, n=4)
    found = boards(scores)
    rows = board(found, 3).rows
    ours = rows[rows["source"] == "ours"].iloc[0]
    assert (ours["avg"], ours["effective_length"]) == (pytest.approx(500 / 6), "64K")
    assert ours["avg_low"] < ours["avg"] < ours["avg_high"]
    printed = paper.paper_summary("v3", "all13").query("aligned == 'chat'")
    assert ours["rank_dec"] == 1 + (printed["wavg_dec"] > ours["wavg_dec"]).sum()
    assert rows["wavg_dec"].iloc[1:].dropna().is_monotonic_decreasing
    assert rows["baseline"].iloc[0]
    single = board(found, 10).rows
    assert single.loc[single["source"] == "ours", "avg"].item() == pytest.approx(500 / 6)
    assert single["rank_dec"].isna().all()
    assert "ours" not in set(board(found, 12).rows["source"]), (
        "a chat model is not ranked among base models"
    )


def test_all_rows_are_averaged_over_the_lengths_that_they_share() -> None:
    """A reader with 90 % at two lengths stands below Llama3.1 (8B), which has 95.5 and 93.8 there,
    and 88.3 over all."""
    scores = scores_at({"m": dict.fromkeys(SIX, 1.0), "short": dict.fromkeys(SIX[:2], 0.9)}, n=10)
    each = board(boards(scores), 3)
    averages = each.rows.set_index("model")["avg"]
    assert averages["Llama3.1 (8B)"] == pytest.approx((95.5 + 93.8) / 2)
    assert averages["short"] == pytest.approx(90)
    assert averages["Qwen3-14B (14B)"] == pytest.approx((98.0 + 97.8) / 2)
    assert list(averages.index).index("short") > list(averages.index).index("Llama3.1 (8B)")
    assert any("that all rows share: 4K, 8K." in note for note in each.notes)


def test_stand_in_corpora_have_no_place() -> None:
    stand_in = board(
        boards(scores_at({"m": dict.fromkeys(SIX, 1.0)}, n=2).assign(stand_in=True)), 3
    )
    assert stand_in.rows.loc[stand_in.rows["source"] == "ours", "rank_dec"].isna().all()
    assert any("not comparable with the paper" in line for line in stand_in.notes)


def test_incomplete_models_have_no_average() -> None:
    scores = scores_at({"m": dict.fromkeys(SIX[:2], 1.0)}, n=2)
    scores = scores[
        ~((scores["task"] == "vt") & (scores["length"] == 8192) & (scores["index"] == 1))
    ]
    each = board(boards(scores), 3)
    ours = each.rows[each.rows["source"] == "ours"].iloc[0]
    assert (ours[4096], ours["8192_have"]) == (pytest.approx(100), "1/2")
    assert ours["avg"] == pytest.approx(100)  # over 4K, the only complete length
    assert "1/2" in next(line for line in markdown(each).splitlines() if "(ours, " in line)
    assert "1/2" in page([each]).text


def test_order_bold_and_what_they_allow() -> None:
    with pytest.raises(UserError, match="unknown order 'wavg': did you mean"):
        boards(order="wavg")
    with pytest.raises(UserError, match="unknown choice of what is bold"):
        latex(board(boards(), 3), "us")
    with pytest.raises(UserError, match="unknown table of the paper '4'"):
        board(boards(), 4)
    by_avg = board(boards(order="avg"), 3).rows
    assert by_avg["avg"].iloc[1:].dropna().is_monotonic_decreasing
    each = board(boards(), 3)
    assert {(each.rows.loc[i, "model"], column) for i, column in best(each)} >= {
        ("Jamba-1.5-large (94B/398B)", "avg")
    }
    assert r"\textbf{96.0}" in latex(each, "best")


def test_csv_reads_back() -> None:
    each = board(boards(scores_at({"m": dict.fromkeys(SIX, 0.5)}, n=2)), 13)
    frame = pd.read_csv(io.StringIO(csv(each)))
    assert len(frame) == len(each.rows)
    assert {"4K", "4K_low", "128K_high", "wavg_dec_low"} <= set(frame.columns)


def test_nothing_run_yet(tmp_path: Path) -> None:
    assert everything(rk.study(outputs=tmp_path, model=None)) is None
    assert [each.number for each in boards(None)] == list(TABLES)


def test_names_do_not_break_the_page() -> None:
    scores = scores_at({"m": dict.fromkeys(SIX, 0.5)}, n=2).assign(label="<b>&\"'$x_1$")
    found = boards(scores)
    assert "&lt;b&gt;&amp;" in page(found).text
    assert r"\textbf{$<$b$>$\&" in latex(board(found, 3))


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no chromium here: sorting is tried in a real browser")
def test_the_page_sorts(tmp_path: Path) -> None:
    """Clicks on the heads of Table 3: names up, 128K down then up, with what is missing last both
    times."""
    scores = scores_at({"short": dict.fromkeys(SIX[:2], 1.0)}, n=2)
    clicks = """<script>
      const table = document.querySelector("table"), heads = table.tHead.rows[0].cells;
      const order = () => Array.from(table.tBodies[1].rows).map(row => row.cells[0].dataset.v).join(";");
      const said = [];
      for (const i of [0, 8, 8, 2]) { heads[i].click(); said.push(order()); }
      document.title = said.join("|");
    </script>"""
    file = tmp_path / "page.html"
    file.write_text(
        f"<meta charset=utf-8><title></title>{page(boards(scores)).text}{clicks}", encoding="utf-8"
    )
    call = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--dump-dom",
    ]
    done = subprocess.run(
        [*call, file.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title
    names, down, up, effective = (part.split(";") for part in title[1].split("|"))
    printed = paper.paper_scores("v3", "all13").query("aligned == 'chat' and length == 131072")
    upstream = paper.upstream_rows().dropna(subset=[131072])
    values = dict(zip(printed["model"], printed["score"], strict=True)) | dict(
        zip(upstream["model"], upstream[131072], strict=True)
    )
    assert len(names) == len(values) + 2  # ours, and one without 128K
    assert names == sorted(names, key=str.lower)
    assert [values[name] for name in down[:-2]] == sorted(values.values(), reverse=True)
    assert [values[name] for name in up[:-2]] == sorted(values.values())
    assert set(down[-2:]) == set(up[-2:]), "what is missing comes last"
    assert effective.index("Gemini-1.5-Pro") < effective.index("GPT-4")


# --- notebook -------------------------------------------------------------------------------------


def test_notebook_of_the_paper_alone(tmp_path: Path) -> None:
    cells = run("leaderboard", tmp_path)
    html = shown(cells, "tables", "text/html")
    assert all(f"<summary>Table {number}:" in html for number in TABLES)
    assert "contradiction in the paper" in shown(cells, "exceptions", "text/html")
    assert "287" in shown(cells, "rebuilt", "text/html")
    tables = {f"table_{number}{end}" for number in TABLES for end in (".csv", ".md", ".tex")}
    more = {"leaderboard.html", "rebuilt.csv", "exceptions.csv"}
    assert files(tmp_path / "outputs") == {
        f"tables/main/leaderboard/{name}" for name in tables | more
    }
    exceptions = pd.read_csv(tmp_path / "outputs/tables/main/leaderboard/exceptions.csv")
    assert len(exceptions) == len(paper.exceptions())


def test_notebook_shows_everything_in_outputs(tmp_path: Path) -> None:
    asked: dict[str, Any] = {"lengths": [4096], "num_examples": 2, "run": "small"}
    study = rk.study(models=["reader-4096", "mute"], outputs=tmp_path / "outputs", **asked)
    rk.evaluate(study, progress=False)
    rk.evaluate(
        rk.study(model="perfect", tasks=["vt"], outputs=tmp_path / "outputs", **asked),
        progress=False,
    )
    assert {task.name for task in study.tasks} == set(THIRTEEN)
    cells = run("leaderboard", tmp_path, run="small", paper_version="v1", bold="best", order="avg")
    html = shown(cells, "tables", "text/html")
    assert "reader (4K window)" in html
    assert "1/13 tasks" in html
    assert "Command-R (35B)" in html, "version 1 of the paper"
    rows = csv_rows(
        (tmp_path / "outputs/tables/small/leaderboard/table_14.md").read_text(encoding="utf-8")
    )
    ours = {
        row["Models"].partition(" (ours, small")[0]: row
        for row in rows
        if " (ours, small" in row["Models"]
    }
    assert set(ours) == {"reader (4K window)", "mute reader", "perfect reader"}
    assert ours["perfect reader"]["4K"].startswith("**100.0** [")

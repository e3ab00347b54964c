"""Published results: every row has its source, and figures and tables show nothing that was not
printed."""

import re

import matplotlib

matplotlib.use("Agg")

import rulerkit as rk
from rulerkit.report.paper import SERIES

ROWS = rk.paper.published_rows().to_dict("records")


def test_every_row_says_what_was_printed_where_and_who_looked():
    for row in ROWS:
        name = f"{row['model']} {row['length']}"
        assert re.fullmatch(r"\d{1,3}\.\d{1,2}", row["score"]), name
        assert 0 <= float(row["score"]) <= 100, name
        assert row["aligned"] in ("base", "chat", "unknown"), name
        assert row["thinking"] in ("yes", "no", "unknown"), name
        assert row["reported_by"] in ("developer", "competitor", "unknown"), name
        # Of a collection of scores nobody knows when it took them up.
        second_hand = row["checked"].startswith("second-hand")
        dated = re.fullmatch(r"20\d\d-\d\d", row["source_date"])
        assert dated or (second_hand and not row["source_date"]), name
        assert len(row["source"]) > 10, name
        assert len(row["checked"]) > 10, name
        assert re.fullmatch(r"(|[\w.-]+/[\w.-]+)", row["model_id"]), name


def test_a_model_and_length_stands_once_in_each_source():
    rows = rk.paper.published_rows()
    assert not rows.duplicated([*SERIES, "length"]).any()


def test_the_table_shows_scores_as_printed_and_leaves_gaps_empty():
    text = rk.paper.published_table(format="markdown")
    (line,) = [line for line in text.splitlines() if "Kimi-K2-Base" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:] == ["base", "", "", "", "", "93.79", "88.61", "", "", "", ""]
    latex = rk.paper.published_table(format="latex")
    assert "95.30 & 92.49 & 86.22 & 84.54 &  & 76.83" in latex
    for source in {row["source"] for row in ROWS}:
        assert source in text


def test_the_table_has_powers_of_two_and_1000k():
    """One model card prints fifteen lengths."""
    text = rk.paper.published_table(format="markdown")
    header = [cell.strip() for cell in text.splitlines()[0].strip("|").split("|")]
    lengths = ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1000K", "1M"]
    assert header == ["model", "kind", *lengths]
    (line,) = [line for line in text.splitlines() if "| Qwen3-Next-80B-A3B-Instruct" in line]
    rows = rk.paper.published_rows().query("model == 'Qwen3-Next-80B-A3B-Instruct'")
    assert len(rows) == 15
    assert rows.set_index("length").loc[1024000, "score"] in line
    assert rows.set_index("length").loc[98304, "score"] not in line

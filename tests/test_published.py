"""Published results: every row has its source, and figures and tables show nothing that was not
printed."""

import re
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import rulerkit as rk

ROWS = rk.paper.published_rows().to_dict("records")


FORMS = {
    "score": r"\d{1,2}\.\d{1,2}|100\.0",
    "aligned": "base|chat|unknown",
    "thinking": "yes|no|unknown",
    "reported_by": "developer|competitor|unknown",
    "source_date": r"20\d\d-\d\d|",
    "source": ".{11,}",
    "checked": ".{11,}",
    "model_id": r"|[\w.-]+/[\w.-]+",
}


def test_every_row_says_what_was_printed_where_and_who_looked():
    for row in ROWS:
        for key, form in FORMS.items():
            assert re.fullmatch(form, row[key]), f"{row['model']} {row['length']}: {key}"
        # Of a collection of scores nobody knows when it took them up.
        assert row["source_date"] or row["checked"].startswith("second-hand"), row["model"]
    one = ["model", "aligned", "thinking", "source", "length"]
    rows = rk.paper.published_rows()
    assert not rows.duplicated(one).any()
    page = (Path(__file__).parents[1] / "docs/add-results.md").read_text(encoding="utf-8")
    assert f"{len(rows)} rows of {rows['model'].nunique()} models" in page


def test_the_table_shows_scores_as_printed_and_leaves_gaps_empty():
    text = rk.paper.published_table(format="markdown")
    (line,) = [line for line in text.splitlines() if "Kimi-K2-Base" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:] == ["base", "", "", "", "", "93.79", "88.61", "", "", "", ""]
    header = [cell.strip() for cell in text.splitlines()[0].strip("|").split("|")]
    lengths = ["4K", "8K", "16K", "32K", "64K", "128K", "256K", "512K", "1000K", "1M"]
    assert header == ["model", "kind", *lengths]  # one model card prints fifteen
    latex = rk.paper.published_table(format="latex")
    assert "95.30 & 92.49 & 86.22 & 84.54 &  & 76.83" in latex
    for source in {row["source"] for row in ROWS}:
        assert source in text

"""Outputs made by the version of 21 November 2026 are read, resumed and reported by every version.

`tests/november/` is a project of that day: two readers on two tasks at two lengths, one cell
without its last answer, one notebook that failed, and predictions in upstream's layout. Paths and
host names in it were made neutral.
"""

import csv
import io
import json
import shutil
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "november"
BATCH = "params/batches/small.yaml"
RUN = "outputs/predictions/november"
TORN = f"{RUN}/reader-1024/niah_multivalue/2048.jsonl"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the project, which is the working directory."""
    copy = Path(shutil.copytree(HERE, tmp_path / "november"))
    monkeypatch.chdir(copy)
    monkeypatch.setenv("RULERKIT_HOME", str(copy))
    return copy


def scores(rulerkit):
    """The score of every cell, as `report` writes it; "" where a cell is incomplete."""
    table = csv.DictReader(io.StringIO(rulerkit("report", RUN, "--format", "csv").out))
    return {
        (row["model"], row["task"], int(row["length"])): row["score"] for row in table
    }


def test_reports_scores_and_status_of_that_day(project, rulerkit):
    full = dict.fromkeys(
        ((m, t, n) for m in ("perfect", "reader-1024") for t in ("niah_multivalue", "vt") for n in (1024, 2048)),
        "100.0000",
    )  # fmt: skip
    assert scores(rulerkit) == full | {
        ("reader-1024", "niah_multivalue", 2048): "",
        ("reader-1024", "vt", 2048): "33.3333",
    }
    said = rulerkit("score", RUN, "other", "--length", "1024").out
    assert "2/3" in said
    assert "66.67" in said  # two of three of upstream's rows hold the references
    said = rulerkit("status", BATCH, "--cells").out
    for part in (
        "3/4 cells, 11/12",
        "AssertionError: the first line",
        "4/4 cells, 12/12 examples",
    ):
        assert part in said


@pytest.mark.slow
def test_a_batch_asks_only_for_the_answer_that_is_missing(project, rulerkit):
    before = {file: file.read_bytes() for file in (project / RUN).rglob("*.jsonl")}
    assert rulerkit("batch", BATCH).status == 1  # one of its notebooks fails by design
    after = {file: file.read_bytes() for file in before}
    assert [file for file in before if after[file] != before[file]] == [project / TORN]
    rows = after[project / TORN]
    assert rows.startswith(before[project / TORN])
    assert [json.loads(line)["index"] for line in rows.splitlines()] == [0, 1, 2]
    assert scores(rulerkit)["reader-1024", "niah_multivalue", 2048] != ""
    again = rulerkit("batch", BATCH)
    assert again.status == 1
    assert "5 steps were done before; nothing was asked again" in again.out

"""Outputs made by the version of 21 November 2026 are read, resumed and reported for ever.

`tests/november/` is a project of that day: two readers on two tasks at two lengths, one cell
without its last answer, one notebook that failed, and predictions in upstream's layout. Paths and
host names in it were made neutral.
"""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "november"
PROGRAM = [sys.executable, "-c", "from rulerkit.cli import main; main()"]
BATCH = "params/batches/small.yaml"
RUN = "outputs/predictions/november"
TORN = f"{RUN}/reader-1024/niah_multivalue/2048.jsonl"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the project."""
    return Path(shutil.copytree(HERE, tmp_path / "november"))


def program(project: Path, *arguments: str, status: int = 0) -> str:
    """What a command says in the project."""
    place = os.environ | {"RULERKIT_HOME": str(project)}
    done = subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, cwd=project, env=place
    )
    assert done.returncode == status, done.stderr
    return done.stdout


def scores(project: Path) -> dict[tuple[str, str, int], str]:
    """The score of every cell, as `report` writes it; "" where a cell is incomplete."""
    table = csv.DictReader(io.StringIO(program(project, "report", RUN, "--format", "csv")))
    return {(row["model"], row["task"], int(row["length"])): row["score"] for row in table}


def rows(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_report_shows_the_scores_of_that_day(project: Path) -> None:
    perfect = {
        ("perfect", task, length): "100.0000"
        for task in ("niah_multivalue", "vt")
        for length in (1024, 2048)
    }
    assert scores(project) == perfect | {
        ("reader-1024", "niah_multivalue", 1024): "100.0000",
        ("reader-1024", "niah_multivalue", 2048): "",
        ("reader-1024", "vt", 1024): "100.0000",
        ("reader-1024", "vt", 2048): "33.3333",
    }


def test_others_predictions_are_scored_beside_ours(project: Path) -> None:
    said = program(project, "score", RUN, "other", "--length", "1024")
    assert "2/3" in said
    assert "66.67" in said  # two of three of upstream's rows hold the references


def test_status_tells_what_is_left(project: Path) -> None:
    said = program(project, "status", BATCH, "--cells")
    assert "3/4 cells, 11/12 examples" in said
    assert "AssertionError: the first line" in said
    assert "4/4 cells, 12/12 examples" in said


def test_a_batch_asks_only_for_the_answer_that_is_missing(project: Path) -> None:
    before = {file: file.read_bytes() for file in (project / RUN).rglob("*.jsonl")}
    program(project, "batch", BATCH, status=1)  # one of its notebooks fails by design
    after = {file: file.read_bytes() for file in before}
    assert [file for file in before if after[file] != before[file]] == [project / TORN]
    assert after[project / TORN].startswith(before[project / TORN])
    assert [row["index"] for row in rows(project / TORN)] == [0, 1, 2]
    assert scores(project)["reader-1024", "niah_multivalue", 2048] != ""
    again = program(project, "batch", BATCH, status=1)
    assert "5 steps were done before; nothing was asked again" in again

"""Beyond one machine: answers to one cell that lie in several places."""

import shutil
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.store.records import parse_record
from tests.records import change_rows, record_text

CELL = Path("predictions/main/reader-1024/vt/2048.jsonl")


def answered(outputs, seed=42):
    """One run of a reader on two tasks."""
    asked = {"tasks": ["vt", "niah_single_1"], "lengths": [2048], "num_examples": 8, "seed": seed}
    rk.evaluate("reader-1024", **asked, outputs=str(outputs), progress=False)
    return outputs


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return answered(tmp_path_factory.mktemp("whole") / "outputs")


def part_of(whole, place, indices, host):
    """The run as a machine has it that answered these examples of vt alone."""
    shutil.copytree(whole / "predictions", place / "predictions")
    file = place / CELL
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[index] for index in sorted(indices)))
    record = parse_record(file.with_suffix(".json").read_bytes())
    record["environment"]["host"] = host
    record["num_examples"] = max(8, *indices)
    file.with_suffix(".json").write_text(record_text(record))
    return place


SCORES = ["task", "index", "score", "digest", "wanted", "failed"]


def test_parts_of_a_cell_are_read_as_the_whole_one(tmp_path, whole, rulerkit):
    a = part_of(whole, tmp_path / "a", {0, 1, 5}, "a")
    b = part_of(whole, tmp_path / "b", {1, 2, 3, 4, 6, 7}, "b")
    expected = rk.load(whole)
    for places in ((a, b), (b, a), (a, b, a), (tmp_path,)):
        rows = rk.load(*places)
        assert rows[SCORES].equals(expected[SCORES])
    assert rk.example_of(rows.iloc[0]).digest == rows["digest"].iloc[0]
    assert list(rk.answers_of(rows)["prediction"]) == list(expected["prediction"])
    assert rk.browse(rows).num_examples == len(rows)

    one, other = rulerkit("report", whole), rulerkit("report", a, b)
    assert other.status == 0, other.err
    assert other.out.splitlines()[:4] == one.out.splitlines()[:4]
    assert "incomplete" in rulerkit("report", a).err
    assert other.err == ""


def test_another_answer_is_refused_and_both_files_are_named(tmp_path, whole, rulerkit):
    a = part_of(whole, tmp_path / "a", {0, 1}, "a")
    b = part_of(whole, tmp_path / "b", {0, 1}, "b")
    change_rows(b / CELL, pred="something else")
    ended = rulerkit("report", a, b)
    assert ended.status == 2
    (line,) = ended.lines
    for said in ("example 0 has another answer", str(a / CELL), str(b / CELL), "'something else'"):
        assert said in line


def test_places_that_were_made_differently_are_refused_and_a_damaged_one_is_left_out(
    tmp_path, whole, capsys
):
    other = answered(tmp_path / "seed", seed=7)
    with pytest.raises(rk.UserError, match=r"seed 42.*with 7"):
        rk.load(whole, other)

    damaged = part_of(whole, tmp_path / "damaged", {0, 1}, "d")
    file = damaged / CELL
    file.write_bytes(file.read_bytes().replace(b'"pred": "', b'"pred": "x', 1))
    rows = rk.load(whole, damaged)
    (line,) = capsys.readouterr().err.splitlines()
    assert len(rows) == len(rk.load(whole))
    assert f"left out: {file}, line 1: not as it was written" in line

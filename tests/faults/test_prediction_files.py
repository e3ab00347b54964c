"""Damaged records and rows: the rest is reported, what is left out is named; no
traceback, no changed number."""

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from faults import cases, damaged, result_or_line
from hypothesis import given
from hypothesis import strategies as st

import rulerkit as rk
from rulerkit.report.tables import footnotes, table_text
from rulerkit.store.cells import DamagedCell, answered, load_cell, read_cells, readable
from rulerkit.store.comparable import check_same
from tests.records import lines_of, record_of, record_text

ODD = f"pear {chr(0xD800)}\u2028\r\n\x00\x85日本語 and fig"
ABOUT = {"length": 1000, "task": "vt", "num_prompt_tokens": 970, "finish_reason": "stop"}
ABOUT |= {"depths": [0.5, 50.0], "usage": {"seconds": 0.1}}
ROWS = [
    {"index": n, "pred": f"the words are apple{n}, {ODD}", "outputs": [f"apple{n}", "pear"]}
    | {"digest": f"{n:016x}", **ABOUT}
    for n in range(4)
]
RECORD = record_of("one", label="One")


def write(folder, model, record, rows):
    path = folder / "predictions" / "main" / model / "vt" / "1024.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_bytes(record)
    path.write_bytes(rows)
    return path


def named(model):
    return record_text(record_of(model)).encode()


def good(model="one"):
    return lines_of(record_of(model), ROWS)


GOOD = good()
PLAIN = b"".join(json.dumps(row).encode() + b"\n" for row in ROWS)
"""Rows without a check, as other programs write them."""


def report(folder):
    """What `rulerkit report` does: the scores, what it left out, and the table."""
    problems = []
    cells = read_cells(folder / "predictions", report=problems.append)
    scores = rk.score(cells, report=problems.append)
    cells = readable(cells)
    check_same(cells)
    table_text(rk.summarize(scores, tasks=["vt"]), notes=footnotes(cells))
    return scores, problems


def is_reported(record, rows, unchanged):
    """Beside a damaged cell the other model's table stands; the damaged one is unchanged, shorter,
    or left out by name."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, "other", named("other"), good("other"))
        path = write(folder, "one", record, rows)
        found = result_or_line(report, folder)
        if isinstance(found, Exception):
            assert re.search("one table cannot hold both|can be counted once", str(found))
            return
        scores, problems = found
        assert (scores["model"] == "other").sum() >= len(ROWS)
        have, problem = answered(path, 4)
        damaged_rows = [line for line in problems if str(path.with_suffix("")) in line]
        assert bool(damaged_rows) == (not have and bool(problem)), (damaged_rows, problem)
        result_or_line(load_cell, path)
        if unchanged and not damaged_rows:
            ours = scores[scores["model"] == "one"]
            assert (ours["score"] == 1.0).all(), "a number changed, and nothing was said"


@pytest.mark.slow
@given(record=damaged(named("one")), rows=st.sampled_from([GOOD, PLAIN]))
@cases
def test_a_damaged_record(record, rows):
    is_reported(record, rows, False)


def test_a_record_that_lacks_a_field_is_damaged(tmp_path):
    for field in (*RECORD, *RECORD["result"]):
        record = record_of("one")
        del (record if field in record else record["result"])[field]
        path = write(tmp_path, "one", record_text(record).encode(), GOOD)
        with pytest.raises(DamagedCell, match=rf"\b{field}\b"):
            load_cell(path)
    half = record_text(record_of("one") | {"label": "\ud800"}).encode()
    with pytest.raises(DamagedCell, match="hex escape"):
        load_cell(write(tmp_path, "one", half, GOOD))


@pytest.mark.parametrize("files", [(".json",), (".jsonl",), (".json", ".jsonl")])
def test_records_of_two_models_that_are_exchanged_are_named(tmp_path, files):
    one = write(tmp_path, "one", named("one"), good("one"))
    two = write(tmp_path, "two", named("two"), good("two"))
    for suffix in files:
        first, second = one.with_suffix(suffix), two.with_suffix(suffix)
        kept = first.read_bytes()
        first.write_bytes(second.read_bytes())
        second.write_bytes(kept)
    found = result_or_line(report, tmp_path)
    assert "nothing to summarize" in str(found)
    for path in (one, two):
        with pytest.raises(DamagedCell, match=r"in the place of|another record"):
            rk.score([load_cell(path)])


def test_an_older_format_is_refused_in_one_line(tmp_path):
    path = write(tmp_path, "one", json.dumps(record_of("one") | {"format": 2}).encode(), PLAIN)
    with pytest.raises(DamagedCell, match=r"1024.json .*format 2, .*reads 4"):
        load_cell(path)


@pytest.mark.slow
@given(rows=damaged(GOOD))
@cases
def test_damaged_rows_change_no_number(rows):
    is_reported(named("one"), rows, True)


@given(bit=st.integers(0, 8 * len(GOOD) - 1))
@cases
def test_a_flipped_bit_is_noticed(bit):
    rows = bytearray(GOOD)
    rows[bit // 8] ^= 1 << bit % 8
    with TemporaryDirectory() as name:
        path = write(Path(name), "one", named("one"), bytes(rows))
        cell = load_cell(path)
        assert cell
        read = result_or_line(lambda: cell.rows)
        if isinstance(read, Exception):
            assert f"{path}, line " in str(read)
        else:
            assert all(row == ROWS[row["index"]] for row in read)
            assert cell.coverage.missing or rows[: len(GOOD) - 1] == GOOD[:-1]


def test_links_are_followed(tmp_path):
    path = write(tmp_path / "disk", "one", named("one"), GOOD)
    models = tmp_path / "predictions" / "main"
    models.mkdir(parents=True)
    (models / "linked").symlink_to(path.parents[1])
    (models / "twice").symlink_to(path.parents[1])
    scores, problems = report(tmp_path)
    assert len(scores) == 4
    assert problems == []
    (cell,) = read_cells(path.with_suffix(".json"))
    assert (cell.path, len(cell.rows)) == (path, 4)
    other = tmp_path / "1024.csv"
    other.write_text("index,pred\n")
    with pytest.raises(rk.UserError, match=r"its record 1024\.json cannot be read"):
        read_cells(other)

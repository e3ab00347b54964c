"""`rulerkit merge`: a run that was split over machines gives, put together, the answers of the whole
run; the order of places, repetition and grouping do not matter; what disagrees is refused."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.store import merge as merging
from rulerkit.store.cells import load_cell
from rulerkit.store.files import row_line
from rulerkit.store.merge import merge
from rulerkit.store.records import parse_record, record_text

CELL = Path("predictions/main/reader-1024/vt/2048.jsonl")


def answered(outputs, num_examples=8, seed=42):
    """One run of a reader on two tasks."""
    asked = {"model": "reader-1024", "tasks": ["vt", "niah_single_1"]}
    study = rk.study(
        **asked, lengths=[2048], num_examples=num_examples, seed=seed, outputs=str(outputs)
    )
    rk.evaluate(study, progress=False)
    return outputs


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return answered(tmp_path_factory.mktemp("whole") / "outputs")


def contents(outputs):
    return {
        str(file.relative_to(outputs)): file.read_bytes()
        for file in sorted((outputs / "predictions").rglob("*.json*"))
    }


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


SPLITS = st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=3, max_size=3)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(SPLITS)
def test_parts_put_together_in_any_order_and_grouping_are_one(tmp_path_factory, whole, parts):
    top = tmp_path_factory.mktemp("merge")
    a, b, c = [
        part_of(whole, top / name, indices, name)
        for name, indices in zip("abc", parts, strict=True)
    ]
    merge([a, b, c], top / "abc")
    merge([c, b, a], top / "cba")
    merge([a, b], top / "ab")
    merge([top / "ab", c], top / "ab_c")
    assert contents(top / "abc") == contents(top / "cba") == contents(top / "ab_c")

    before = contents(top / "abc")
    assert merge([a, b, c], top / "abc").written == 0
    assert contents(top / "abc") == before

    cell = load_cell(top / "abc" / CELL)
    assert cell is not None
    assert cell.present == sorted(set.union(*parts))
    hosts = {one["host"] for one in cell.record["environments"]}
    assert hosts == {"a", "b", "c"}


def test_the_merged_run_scores_as_the_whole_one(tmp_path, whole):
    a = part_of(whole, tmp_path / "a", {0, 1, 5}, "a")
    b = part_of(whole, tmp_path / "b", {1, 2, 3, 4, 6, 7}, "b")
    merge([a, b], tmp_path / "both")
    columns = ["task", "index", "score", "digest"]
    one, other = (
        rk.score(rk.read_cells(place / "predictions"))[columns]
        for place in (whole, tmp_path / "both")
    )
    assert one.equals(other)


def changed_row(place, **fields):
    """The first row of the cell with other values."""
    file = place / CELL
    first, *rest = file.read_bytes().splitlines(keepends=True)
    row = json.loads(first)
    row.pop("checksum")
    # The digest of the record is the last thing in a line but for the checksum.
    result = {"result": row.pop("result")}
    file.write_bytes(row_line(row | fields | result) + b"".join(rest))


def test_another_answer_is_refused_and_named_and_nothing_is_written(tmp_path, whole, rulerkit):
    a = part_of(whole, tmp_path / "a", {0, 1}, "a")
    b = part_of(whole, tmp_path / "b", {0, 1}, "b")
    changed_row(b, pred="something else")
    ended = rulerkit("merge", a, b, "-o", tmp_path / "out")
    assert ended.status == 2
    (line,) = ended.lines
    assert "example 0 has another answer" in line
    assert str(CELL) in line
    assert "'something else'" in line
    assert not (tmp_path / "out").exists()


def test_another_usage_of_the_same_answer_is_no_conflict(tmp_path, whole):
    a = part_of(whole, tmp_path / "a", {0, 1}, "a")
    b = part_of(whole, tmp_path / "b", {0, 1}, "b")
    changed_row(b, usage={"seconds": 3.0})
    merge([b, a], tmp_path / "out")
    cell = load_cell(tmp_path / "out" / CELL)
    assert cell is not None
    assert cell.rows[0]["usage"] == {"seconds": 3.0}


def test_records_that_disagree_damaged_lines_and_live_locks_are_refused(tmp_path, whole):
    other = answered(tmp_path / "seed", seed=7)
    with pytest.raises(UserError, match=r"seed 42.*with 7"):
        merge([whole, other], tmp_path / "out")

    damaged = part_of(whole, tmp_path / "damaged", {0, 1}, "d")
    file = damaged / CELL
    file.write_bytes(file.read_bytes().replace(b'"pred": "', b'"pred": "x', 1))
    with pytest.raises(UserError, match="line 1: not as it was written"):
        merge([whole, damaged], tmp_path / "out")

    written = part_of(whole, tmp_path / "written", {0}, "w")
    refused = pytest.raises(UserError, match="is being written by process")
    with merging.Lock((written / CELL).with_suffix(".lock")), refused:
        merge([whole, written], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_merge_that_is_killed_between_two_cells_is_ended_by_the_next(
    tmp_path, whole, monkeypatch
):
    a = part_of(whole, tmp_path / "a", {0, 1}, "a")
    b = part_of(whole, tmp_path / "b", {2}, "b")
    merge([a, b], tmp_path / "once")

    write, calls = merging.write_whole, []

    def killed(path, content):
        calls.append(path)
        if len(calls) > 2:
            raise KeyboardInterrupt
        write(path, content)

    monkeypatch.setattr(merging, "write_whole", killed)
    with pytest.raises(KeyboardInterrupt):
        merge([a, b], tmp_path / "out")
    monkeypatch.setattr(merging, "write_whole", write)
    merge([a, b], tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "once")


def test_a_plan_writes_job_files_for_any_scheduler_and_asks_nothing(tmp_path, rulerkit):
    ended = rulerkit("batch", "demo", "--plan", "-y", f"outputs: {tmp_path}")
    assert ended.status == 0
    files = [Path(line) for line in ended.out.splitlines()]
    assert files
    assert all(file.name.endswith(".job.yaml") for file in files)
    assert all(file.is_file() for file in files)
    # Models come before what reads several of them.
    reads_models = ["model: null" in file.read_text() for file in files]
    assert reads_models == sorted(reads_models)
    assert not list(tmp_path.glob("predictions/**/*.jsonl"))

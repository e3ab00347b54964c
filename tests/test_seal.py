"""Seals: the digest below a table is that of the folder, it does not depend on how the answers came
together, and whatever is changed is named."""

import json
import os
import re
import shutil
import socket
from pathlib import Path

import pandas as pd
import pytest

import rulerkit as rk
from rulerkit.analysis import seal as seals
from rulerkit.common.errors import UserError
from rulerkit.report.tables import cell_notes
from rulerkit.scoring.scores import describe
from rulerkit.store.cells import Cell, cell_files
from tests.records import lines_of, record_of

ASKED = {
    "models": ["reader-1024", "reader-2048"],
    "tasks": ["vt", "qa_1"],
    "lengths": [1024, 2048],
    "num_examples": 4,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("seal") / "outputs"
    rk.evaluate(rk.study(ASKED, outputs=outputs), progress=False)
    return outputs / "predictions/main"


@pytest.fixture
def run(made, tmp_path):
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "outputs/predictions/main"))


def states(run, sealed, **options):
    """What is not the same, by the words before the reason."""
    found = seals.verify(run, sealed, **options)
    wrong = {}
    for cell, *levels in found:
        words = [text.partition(":")[0] for text in levels if text]
        if set(words) != {"same"}:
            wrong[cell] = words
    return wrong


def test_the_digest_below_a_table_is_that_of_the_folder(run, rulerkit):
    sealed = seals.seal(run)
    scores = rk.score(rk.read_cells(run))
    assert f"Digest of these results: {sealed.digest}." in cell_notes(
        rk.summarize(scores, ["vt", "qa_1"]).cells
    )
    for _ in ("judged", "from the cache"):
        assert sealed.digest in rulerkit("report", run).out
    assert sealed.digest in rulerkit("seal", run).out
    ended = rulerkit("verify", run)
    assert (ended.status, "0 changed, 0 absent" in ended.out) == (0, True)
    assert sealed.digest in rk.plots.remarks(scores)


def test_rows_that_were_given_are_in_the_digest():
    row = {"index": 0, "pred": "a", "outputs": ["a"]}
    cells = [Cell(Path("vt/1024.jsonl"), record_of(), [row | {"pred": text}]) for text in "aab"]
    one, same, other = (cell.seal for cell in cells)
    assert (one == same, one == other) == (True, False)


def test_resumed_and_merged_runs_seal_alike(made, tmp_path):
    outputs = tmp_path / "outputs"
    for number in (1, 3, 4):
        asked = ASKED | {"num_examples": number}
        rk.evaluate(rk.study(asked, outputs=outputs), progress=False)
    resumed = outputs / "predictions/main"
    # As `cat` would have put two halves together.
    for file in resumed.rglob("*.jsonl"):
        lines = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(reversed(lines)))
    assert seals.seal(resumed).digest == seals.seal(made).digest


def test_one_changed_answer_is_named_though_its_checksum_is_right(run):
    sealed = seals.seal(run)
    assert states(run, sealed) == {}
    file = run / "reader-2048/vt/1024.jsonl"
    record = json.loads(file.with_suffix(".json").read_text())
    first, *others = map(json.loads, file.open("rb"))
    file.write_bytes(lines_of(record, [first | {"pred": "none"}, *others]))
    assert states(run, sealed) == {"main/reader-2048 vt 1024": ["changed", "same"]}


def test_what_cannot_be_had_is_absent_and_never_the_same(run):
    sealed = seals.seal(run)
    shutil.rmtree(run / "reader-1024/vt")
    other = run / "reader-1024/qa_1/1024.jsonl"
    record = json.loads(other.with_suffix(".json").read_text())
    del record["checksum"]
    record["result"]["tokenizer"]["name"] = "/nowhere/tokenizer"
    other.with_suffix(".json").write_text(seals.record_text(record))
    assert states(run, sealed) == {
        "main/reader-1024 vt 1024": ["absent", "absent"],
        "main/reader-1024 vt 2048": ["absent", "absent"],
        "main/reader-1024 qa_1 1024": ["rewritten", "absent"],
    }
    assert states(run, sealed, prompts=False) == {
        "main/reader-1024 vt 1024": ["absent"],
        "main/reader-1024 vt 2048": ["absent"],
        "main/reader-1024 qa_1 1024": ["rewritten"],
    }


@pytest.mark.parametrize("byte", [0, 10, -1])
def test_one_byte_of_any_file_of_a_cell_is_found(run, byte):
    rk.score(rk.read_cells(run))
    sealed = seals.seal(run)
    name, place = "main/reader-2048 qa_1 2048", run / "reader-2048/qa_1/2048"
    cache = run.parents[1] / "cache/scores" / place.relative_to(run.parent)
    files = cell_files(place.with_suffix(".jsonl"))[:2]
    for file in (*files, cache.with_suffix(".rows")):
        whole = file.read_bytes()
        changed = bytearray(whole)
        changed[byte] ^= 0x04
        file.write_bytes(changed)
        assert list(states(run, sealed, prompts=False)) == [name], file
        file.write_bytes(whole)


FAILED = {"time": "", "reason": "it broke", "refused": False}
SOFT = {"gold_probability": 0.5, "gold_product": 0.5, "gold_greedy": True, "num_tokens": 2}


@pytest.fixture
def sides(run):
    """The rows of a cell with every kind of file beside them: examples 0 and 1 failed once, example
    3 twice and for good."""
    path = run / "reader-2048/vt/1024.jsonl"
    record = json.loads(path.with_suffix(".json").read_text())
    rows, _, failures, soft = cell_files(path)
    attempts = [{"index": index, **FAILED} for index in (0, 1, 3, 3)]
    attempts[-1] = attempts[-1] | {"time": "later"}
    failures.write_bytes(lines_of(record, attempts))
    soft.write_bytes(lines_of(record, [{"index": i, **SOFT} for i in range(3)]))
    rows.write_bytes(b"".join(rows.read_bytes().splitlines(True)[:3]))
    rows.parents[2].joinpath("seed.txt").write_text("42\n")
    rk.score(rk.read_cells(run))
    return path


CHANGES = {
    "a line twice": lambda lines: [lines[0], *lines],
    "a line twice at the end": lambda lines: [*lines, lines[0]],
    "the first line dropped": lambda lines: lines[1:],
    "the first two exchanged": lambda lines: lines[1::-1] + lines[2:],
    "two of a record exchanged": lambda lines: [*lines[:2], *reversed(lines[2:4]), *lines[4:]],
    "a blank line": lambda lines: [*lines, b"\n"],
    "a blank at the end of a line": lambda lines: [lines[0].replace(b"\n", b" \n"), *lines[1:]],
    "no file": lambda lines: None,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("file", range(5))
def test_lines_of_any_file_are_those_that_were_sealed(run, sides, file, change):
    """What has no effect on a number is found too, and named by its file."""
    place = [*cell_files(sides), run / "seed.txt"][file]
    sealed = seals.seal(run)
    assert list(states(run, sealed, prompts=False)) == []
    old = place.read_bytes()
    new = CHANGES[change](old.splitlines(True))
    if new is None:
        place.unlink()
    else:
        place.write_bytes(b"".join(new))
    found = [one.scores for one in seals.verify(run, sealed, prompts=False)]
    wrong = [text for text in found if text != "same"]
    if new is None or b"".join(new) != old:
        assert [str(place) in text for text in wrong] == [True], wrong
    else:
        assert wrong == []


def test_lines_of_a_record_in_another_order_change_no_text_of_a_table(run):
    """Settings of a task and of an adaptive run are shown as JSON."""
    path = run / "reader-2048/vt/1024.jsonl"
    record = json.loads(path.with_suffix(".json").read_text())
    record["adaptive"] = {"question": "mean", "most": 4}
    other = dict(record, adaptive=dict(reversed(record["adaptive"].items())))
    task = dict(reversed(record["result"]["task"].items()))
    other["result"] = dict(record["result"], task=task)
    texts = [describe(Cell(path, each, []))["knobs"] for each in (record, other)]
    texts += [describe(Cell(path, r, []))["adaptive"] for r in (record, other)]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]


def test_a_cell_of_failures_alone_is_sealed_too(run, sides):
    sides.unlink()
    sealed = seals.seal(run)
    name = "main/reader-2048 vt 1024"
    (one,) = (cell for cell in sealed.cells if str(cell) == name)
    assert (one.rows, one.score) == (0, None)
    assert states(run, sealed, prompts=False) == {}
    cell_files(sides)[2].unlink()
    assert states(run, sealed, prompts=False) == {name: ["changed"]}


@pytest.mark.parametrize("lost", ["rows", "the last row", "half a row", "record"])
def test_no_number_goes_missing_without_a_line_that_names_the_file(run, rulerkit, lost):
    """A file that was cut at the end of a line has nothing wrong in it."""
    rk.score(rk.read_cells(run))
    file = run / "reader-2048/vt/2048.jsonl"
    if lost == "rows":
        file.unlink()
    elif lost == "record":
        file.with_suffix(".json").unlink()
    else:
        whole = file.read_bytes()
        end = whole.rstrip(b"\n").rfind(b"\n") + 1
        file.write_bytes(whole[: end + 20 * (lost == "half a row")])

    for command in ("report", "score"):
        ended = rulerkit(command, run)
        lines = (ended.err + ended.out).splitlines()
        assert sum(str(file) in line for line in lines) == 1
    told = []
    rk.load(run, answers=False, report=told.append)
    assert str(file) in told[0]


def test_a_disk_that_loses_rows_leaves_the_time_of_their_file(run, tmp_path, rulerkit):
    """The numbers come from the cache then; what reads the answers leaves the file out by name."""
    rk.score(rk.read_cells(run))
    file = run / "reader-2048/vt/2048.jsonl"
    time, whole = file.stat().st_mtime_ns, file.read_bytes()
    head = whole.index(b"\n") + 1
    file.write_bytes(whole[:head] + bytes(len(whole) - head))
    os.utime(file, ns=(time, time))

    table = tmp_path / "all.csv"
    ended = rulerkit("export", run, "-o", table)
    assert f"left out: {file} holds 1 answer, and held 4" in ended.err
    answers = pd.read_csv(table)
    assert len(answers) == 7 * 4
    assert not (answers["path"] == str(file)).any()
    ended = rulerkit("browse", run, "-o", tmp_path / "page.html")
    assert ("28 of 28" in ended.out, str(file) in ended.err) == (True, True)


def test_a_comparison_names_the_files_that_lack_answers(run, rulerkit):
    file = run / "reader-1024/vt/2048.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(True)[:-1]))
    ended = rulerkit("compare", run / "reader-1024", run / "reader-2048")
    assert f"incomplete: {file} (3 of 4 examples)" in ended.err


def test_a_copy_to_share_names_no_host_no_path_and_no_user(run, tmp_path, rulerkit):
    sealed = seals.seal(run)
    ended = rulerkit("seal", run, "--anonymous", "-o", tmp_path / "shared")
    assert sealed.digest in ended.out
    said = b"".join(path.read_bytes() for path in tmp_path.glob("shared/**/*.json*"))
    assert socket.gethostname().encode() not in said
    assert not re.search(rb'"(host|base_url|serve)"', said)
    assert str(tmp_path).encode() not in said
    shared = tmp_path / "shared/predictions"
    assert states(shared, seals.read_seal(shared / "seal.json")) == {}
    with pytest.raises(UserError, match="is not empty"):
        seals.anonymous(run, tmp_path / "shared")


def test_a_seal_that_was_changed_is_none(run):
    """Every byte of it counts."""
    file = run / "seal.json"
    text = seals.seal_text(seals.seal(run)).encode()
    file.write_bytes(text)
    assert seals.read_seal(file) == seals.seal(run)
    for place in range(0, len(text), 7):
        changed = bytearray(text)
        changed[place] ^= 0x04
        file.write_bytes(changed)
        with pytest.raises(UserError, match=r"seal\.json (was changed|is no)"):
            seals.read_seal(file)
    file.write_bytes(text[:-1])
    with pytest.raises(UserError, match=r"seal\.json was changed"):
        seals.read_seal(file)

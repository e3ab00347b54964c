"""Files that a disk or a person damaged: no number changes or goes missing without a line that names
the file."""

import json
import shutil
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.store.cells import is_enough, read_cells

ASKED = {"models": ["reader-1024", "reader-2048"], "tasks": ["vt", "qa_1"]}
ASKED |= {"lengths": [1024, 2048], "num_examples": 4}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("damage") / "outputs"
    rk.evaluate(rk.study(ASKED, outputs=outputs), progress=False)
    return outputs / "predictions/main"


@pytest.fixture
def run(made, tmp_path):
    """A copy that a test may change."""
    return Path(shutil.copytree(made, tmp_path / "outputs/predictions/main"))


@pytest.mark.parametrize("lost", ["rows", "the last row", "half a row", "record"])
def test_no_number_goes_missing_without_a_line_that_names_the_file(run, rulerkit, lost, capsys):
    """A file that was cut at the end of a line has nothing wrong in it."""
    rk.score(read_cells(run))
    file = run / "reader-2048/vt/2048.jsonl"
    if lost == "rows":
        file.unlink()
    elif lost == "record":
        file.with_suffix(".json").unlink()
    else:
        whole = file.read_bytes()
        end = whole.rstrip(b"\n").rfind(b"\n") + 1
        file.write_bytes(whole[: end + 20 * (lost == "half a row")])

    for by in ("model", "task"):
        ended = rulerkit("report", run, "--by", by)
        lines = (ended.err + ended.out).splitlines()
        assert sum(str(file) in line for line in lines) == 1
    capsys.readouterr()
    rk.load(run)
    assert str(file) in capsys.readouterr().err


@pytest.mark.parametrize("field", ["result", "task"])
def test_a_record_that_does_not_say_what_was_asked_leaves_the_other_cells(run, field):
    file = run / "reader-2048/vt/2048.json"
    record = json.loads(file.read_text())
    (record if field == "result" else record["result"])[field] = "vt"
    file.write_text(json.dumps(record))
    told = []
    assert len(read_cells(run, told.append)) == 7
    assert [str(file) in line for line in told] == [True]


def test_what_was_not_asked_is_no_failure():
    for have, failed, max_failures, enough in (
        (4, 0, 0, True),
        (3, 1, 0, False),
        (3, 1, 1, True),
        (3, 1, 0.25, True),
        (3, 1, 0.2, False),
        (2, 1, 3, False),  # one was not asked
        (0, 4, 4, False),  # no mean over nothing
    ):
        assert is_enough(have, 4, failed, max_failures) == enough


def test_a_run_that_was_stopped_does_not_end_well_whatever_may_fail(run, rulerkit):
    place = run.parent.parent
    command = ("evaluate", "reader-2048", "--tasks", "vt", "--lengths", "1K", "-n", "4")
    settings = ("-y", f"{{max_failures: 0.5, ask: false, outputs: {place}}}")
    assert rulerkit(*command, *settings).status == 0
    file = run / "reader-2048/vt/1024.jsonl"
    whole = file.read_bytes()
    file.write_bytes(b"".join(whole.splitlines(True)[:-1]))
    assert rulerkit(*command, *settings).status == 3
    more = (*command[:-1], "5")
    file.write_bytes(whole)
    assert rulerkit(*more, *settings).status == 3, "a fifth example was never asked"
    assert rulerkit(*command[:5], "1K,4K", "-n", "4", *settings).status == 3, "nor was 4K"

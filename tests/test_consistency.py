"""Tables hold only cells whose results are defined alike."""

import json
import shutil
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.batch.batch_file import read_batch
from rulerkit.cli.many_models import _print_leaderboard
from rulerkit.store.cells import read_cells
from rulerkit.store.comparable import check_same
from tests.records import change_record

MODELS = ("perfect", "reader-1024")
TASKS = ("vt", "niah_single_2")
LENGTHS = (1024, 2048)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two models on two tasks at two lengths, in runs `main` and `other`."""
    root = tmp_path_factory.mktemp("consistency")
    asked = {"tasks": TASKS, "lengths": LENGTHS, "num_examples": 2, "outputs": root}
    rk.evaluate(list(MODELS), **asked, progress=False)
    rk.evaluate(MODELS[0], **asked, run="other", progress=False)
    return root


@pytest.fixture
def outputs(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "outputs"))


def change(outputs, where, how):
    """Write other things into the records of the cells that a pattern names."""
    found = sorted((outputs / "predictions").glob(f"{where}.json"))
    assert found, where
    for path in found:
        change_record(path.with_suffix(".jsonl"), how)


def result(field, value):
    """A change of one field of what defines the result, named as messages name it."""

    def how(record):
        *above, last = field.split(".")
        place = record["result"]
        for name in above:
            place = place[name]
        assert last in place, field
        place[last] = value

    return how


REFUSED = [
    ("main/perfect/vt/2048", "seed", 43, "seed 42, perfect vt 2048 with 43"),
    ("main/perfect/vt/2048", "model.window", 7, "model.window null, perfect vt 2048 with 7"),
    # a model that differs from itself comes before one that differs from another model
    ("main/reader-1024/vt/2048", "task.num_hops", 9, "4, reader-1024 vt 2048 with 9"),
    ("main/reader-1024/*/*", "prompt_version", 2, "with prompt_version 1, reader-1024"),
    ("other/perfect/niah_single_2/*", "task.haystack", "noise", "1024 of run other with"),
]


def test_cells_that_share_a_table(outputs):
    """Models differ by nature in template and tokenizer, and tables show the numbers of examples."""
    change(outputs, "main/reader-1024/*/*", result("prompt_format.template", "llama3"))
    change(outputs, "main/reader-1024/vt/*", lambda record: record.update(num_examples=5))
    check_same(read_cells(outputs / "predictions"))


@pytest.mark.parametrize(("where", "field", "value", "says"), REFUSED)
def test_cells_that_do_not_share_a_table(outputs, where, field, value, says):
    change(outputs, where, result(field, value))
    with pytest.raises(rk.UserError) as error:
        check_same(read_cells(outputs / "predictions"))
    message = str(error.value)
    assert says in message
    assert field in message
    assert "\n" not in message


def test_report_and_score_refuse_to_mix(outputs, rulerkit):
    main = outputs / "predictions/main"
    change(outputs, "main/perfect/niah_single_2/*", result("seed", 43))
    ended = rulerkit("report", main)
    assert (ended.status, ended.out, len(ended.lines)) == (2, "", 1)
    assert "perfect niah_single_2 1024 was made with seed 43, perfect vt 1024 with 42" in ended.err
    assert rulerkit("report", "--by", "task", main).status == 2
    change(outputs, "main/perfect/vt/*", result("seed", 43))
    assert rulerkit("report", "--by", "task", main).status == 0, "a table per model"


def test_python_names_the_mixture(outputs, capsys):
    main = outputs / "predictions/main"
    rk.summarize(main)
    assert capsys.readouterr().err == ""
    change(outputs, "main/perfect/niah_single_2/*", result("seed", 43))
    for read in (rk.load, rk.score, rk.summarize):
        read(main)
        said = capsys.readouterr().err
        assert "perfect niah_single_2 1024 was made with seed 43, perfect vt 1024 with 42" in said


def test_leaderboards_do_the_same(outputs, capsys):
    main_results = {"notebook": "01_main_results", "parameters": {"tasks": TASKS}}
    parameters = {"lengths": LENGTHS, "num_examples": 2, "outputs": str(outputs)}
    keys = {"models": MODELS, "notebooks": [main_results], "parameters": parameters}
    (outputs / "b.yaml").write_text(json.dumps(keys))
    batch = read_batch(outputs / "b.yaml")
    _print_leaderboard(batch)
    out = capsys.readouterr().out
    assert "\nScores in percent: mean of 2 tasks (" in out, "those that notebooks ask"
    change(outputs, "main/perfect/*/*", result("seed", 43))
    _print_leaderboard(batch)
    said = capsys.readouterr().err
    assert "no leaderboard: perfect vt 1024 was made with seed 43" in said

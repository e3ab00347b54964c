"""One table of all results, its files, and the page that leads from a score to its answers."""

import json
import re
import shutil
import subprocess
from io import StringIO

import pandas as pd
import pytest

import rulerkit as rk
from rulerkit.analysis.failures import label_answers
from rulerkit.analysis.results import (
    ANSWER_COLUMNS,
    FIRST,
    LABEL_COLUMNS,
    answers_of,
    data_of,
    load,
)
from rulerkit.common.errors import UserError
from rulerkit.report.browser import browse
from rulerkit.scoring.scores import COLUMNS
from rulerkit.store.cells import read_cells
from rulerkit.store.files import write_whole
from rulerkit.store.places import find_cells

TASKS = ["niah_multikey_1", "vt", "cwe", {"base": "qa_1", "name": "questions"}]
NEARBY = {"base": "perfect", "engine": "planted", "name": "nearby", "confuse": 1.0}
ASKED = {
    "models": ["perfect", NEARBY | {"label": "perfect reader"}],
    "tasks": TASKS,
    "lengths": [1024, 2048],
    "num_examples": 6,
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """An outputs/ folder of a reader without faults and one that takes values of nearby keys."""
    folder = tmp_path_factory.mktemp("results") / "outputs"
    rk.evaluate(rk.study(ASKED, outputs=folder), progress=False)
    return folder


def content_of(page):
    """What a page of examples holds."""
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.text)
    assert match
    return dict(json.loads(match[1]))


def test_a_row_per_example_with_what_was_asked_and_written(outputs):
    results = load(outputs)
    assert list(results.columns[: len(FIRST)]) == FIRST
    assert {*COLUMNS, *ANSWER_COLUMNS, "num_keys", "num_hops"} <= set(results.columns)
    assert len(results) == 2 * len(TASKS) * 2 * 6
    for cell in read_cells(outputs / "predictions"):
        rows = results[results["path"] == str(cell.path)].set_index("index")
        for row in cell.rows:
            found = rows.loc[row["index"]]
            assert found["prediction"] == row["pred"]
            assert found["references"] == row["outputs"]
            assert found["depths"] == row["depths"]
    one = results.iloc[0]
    assert (one["family"], one["protocol"]) == ("common_words", "clean")
    assert json.loads(one["settings"])["freq_cw"] > 1


def test_places_may_be_folders_and_files_and_a_cell_counts_once(outputs):
    file = outputs / "predictions/main/perfect/vt/1024.jsonl"
    everything = load(outputs)
    pd.testing.assert_frame_equal(load(outputs, file), everything)
    assert len(load(file)) == 6
    with pytest.raises(UserError, match="unknown model or folder of predictions"):
        load(outputs / "nothing")


def test_labels_are_those_of_the_failures(outputs):
    results = load(outputs, labels=True)
    keys = results.set_index(["path", "index"])["failure"]
    for cell in read_cells(outputs / "predictions"):
        labels = {index: label for index, (label, _) in label_answers(cell, {}, {}).items()}
        assert labels == keys[str(cell.path)].to_dict()
    assert keys.nunique() > 1


def test_answers_of_some_rows(outputs):
    scores = rk.score(outputs)
    wrong = scores[scores["score"] < 1]
    assert 0 < len(wrong) < len(scores)
    rows = answers_of(wrong, labels=True)
    assert rows.index.equals(wrong.index)
    whole = load(outputs, labels=True).loc[wrong.index]
    # settings that no task of these rows has are no columns
    names = list(rows)
    pd.testing.assert_frame_equal(rows, whole[names])
    again = answers_of(load(outputs).loc[wrong.index], labels=True)
    pd.testing.assert_frame_equal(again[names], whole[names])
    twice = answers_of(pd.concat([wrong, wrong]), labels=True)  # indices stand twice
    pd.testing.assert_frame_equal(twice[names], pd.concat([whole, whole])[names])


def test_files_of_other_programs_stand_in_the_same_table_and_their_gaps_are_named(tmp_path, capsys):
    """75 answers of 100 are not 100 answers."""
    file = tmp_path / "llama/synthetic/4096/pred/vt.jsonl"
    file.parent.mkdir(parents=True)
    row = {"pred": "AAAAA", "outputs": ["AAAAA", "BBBBB"]}
    lines = [json.dumps({"index": index} | row) for index in range(100) if index % 4]
    file.write_text("\n".join(lines))
    results = load(tmp_path, labels=True)
    assert {*COLUMNS, *ANSWER_COLUMNS, *LABEL_COLUMNS} <= set(results.columns)
    assert results["score"].tolist() == [0.5] * 75
    assert results["failure"].isna().all()
    said = capsys.readouterr().err
    for words in (str(file), "25 examples have no row", "not labelled"):
        assert words in said


STRANGE = "half \ud83d of one, \x00\x1b[31m\x07\x7f bell, \r\n and \u2028 lines</script><script>"
FORMULAS = ["=1+1", "+1+1", "-2+3", "@SUM(A1)", "=cmd|'/C calc'!A0"]


@pytest.fixture
def strange(tmp_path):
    """Predictions of a model that writes what a file, a terminal or a spreadsheet could take for
    something else; of another one at one length."""
    said = iter([STRANGE, *FORMULAS])
    about = {"name": "strange", "label": "=x", "claimed_length": 131072}
    model = rk.model(lambda prompts: [next(said) for _ in prompts], **about)
    asked = {"tasks": ["qa_1"], "lengths": [1024], "num_examples": 6}
    outputs = tmp_path / "outputs"
    rk.evaluate(rk.study(asked, model=model, outputs=outputs), progress=False)
    other = rk.study(asked, model="perfect", lengths=[1024, 2048], outputs=outputs)
    rk.evaluate(other, progress=False)
    return outputs


def test_half_of_a_surrogate_pair_is_exported(strange, tmp_path, rulerkit):
    file = tmp_path / "all.jsonl"
    assert rulerkit("report", "--by", "example", strange, "-o", file).status == 0
    rows = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    assert len(rows) == 18
    written = [row["prediction"] for row in rows if row["model"] == "strange"]
    assert written[0] == STRANGE.replace("\ud83d", "\\ud83d")
    assert written[1:] == FORMULAS


def test_a_csv_holds_no_control_no_formula_and_whole_numbers(strange, tmp_path, rulerkit):
    """Also where a number is missing in a column, as a cell has no seed that was not asked."""
    file, run = tmp_path / "all.csv", strange / "predictions/main"
    assert rulerkit("report", "--by", "example", strange, "-o", file).status == 0
    for text in (file.read_text(), rulerkit("report", run, "--format", "csv").out):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
        assert not re.search(r"(^|,)[\"=+@]?[=+@]", text, re.MULTILINE)
        table = pd.read_csv(StringIO(text), dtype=str)
        assert set(table["seed"].dropna()) == {"42"}
        assert set(table["claimed_length"].dropna()) == {"131072"}
    written = pd.read_csv(file).query("model == 'strange'")["prediction"].tolist()
    assert written[1:] == [f"'{text}" for text in FORMULAS]


def test_a_page_loads_nothing_and_no_answer_ends_its_data(strange, tmp_path, rulerkit):
    file = tmp_path / "page.html"
    said = rulerkit("browse", strange, "-o", file, "--most", "12").out
    assert f"open {file} in a browser: 12 of 18 answers can be opened there" in said
    page = file.read_text()
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'")
    assert page.count("<script") == page.count("</script>") == 2


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_exports_hold_every_row_and_column(outputs, tmp_path, kind):
    if kind == "parquet":
        pytest.importorskip("pyarrow", reason="parquet needs pyarrow")
    results, file = load(outputs), tmp_path / f"results.{kind}"
    write_whole(file, data_of(results, kind))
    readers = {"csv": pd.read_csv, "parquet": pd.read_parquet}
    back = readers[kind](file) if kind in readers else pd.read_json(file, lines=True)
    assert list(back.columns) == list(results.columns)
    assert back["prediction"].fillna("").tolist() == results["prediction"].tolist()
    references = back["references"].map(json.loads if kind == "csv" else list)
    assert references.tolist() == results["references"].tolist()


def test_the_heatmap_has_the_means_and_examples_their_needles(outputs):
    results = load(outputs)
    content = content_of(browse(results.sort_values("task", ascending=False, kind="stable")))
    ours = [name for name in rk.THIRTEEN if name in content["tasks"]]
    assert content["tasks"][: len(ours)] == ours, "as in every table"
    assert content["remarks"].startswith("reference readers; synthetic texts")
    means = results.groupby(["model", "task", "length"])["score"].mean()
    assert len(content["cells"]) == len(means)
    names = ["nearby", "perfect"]
    assert content["models"] == [f"perfect reader [{name}]" for name in names]
    for model, task, length, mean, count in content["cells"]:
        key = names[model], content["tasks"][task], length
        assert mean == pytest.approx(100 * means[key], abs=0.05)
        assert count == 6
    multikey = content["tasks"].index("niah_multikey_1")
    wrong = [e for e in content["examples"] if e["t"] == multikey and e["s"] == 0]
    assert wrong
    for example in wrong:
        (needle,) = example["w"]
        assert needle[:2] == ["needle", example["d"][0]]
        assert example["r"][0] in needle[3]


def test_a_page_of_few_examples_has_the_worst_of_every_cell(outputs):
    results = load(outputs)
    examples = content_of(browse(results, most=16))["examples"]
    assert len(examples) == 16
    assert len({(e["t"], e["l"]) for e in examples}) == 8  # one question each, of both models
    worst = results.groupby(["task", "length"])["score"].min()
    assert min(e["s"] for e in examples) == 100 * worst.min()


def test_of_an_outputs_folder_the_predictions_are_read(outputs, tmp_path):
    """What was moved away from there is read no more; of folders of other names all is read."""
    for place in ("predictions/main", "old/main"):
        shutil.copytree(outputs / "predictions/main", tmp_path / "outputs" / place)
    each = len(find_cells([outputs]))
    for place in ("outputs", "outputs/predictions", "outputs/predictions/main", "outputs/old"):
        cells = find_cells([tmp_path / place])
        assert len(cells) == each
        assert not any(cell.others for cell in cells)


def test_the_page_has_rows_for_what_a_model_was_asked(outputs, tmp_path):
    """The heatmap of a model names none of the tasks that only others were asked."""
    chromium = shutil.which("chromium")
    if not chromium:
        pytest.skip("no chromium here: the page is tried in a real browser")
    scores = load(outputs)
    own = scores[(scores["model"] == "perfect") | (scores["task"] == "vt")]
    page = browse(own).save(tmp_path / "page.html")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    tables = re.findall(r'<table class="heat">(.*?)</table>', done.stdout, re.DOTALL)
    assert [table.count("<tr>") - 1 for table in tables] == [1, 4]

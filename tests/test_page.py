"""The page that a batch leaves: what ran, the leaderboard, the figures, and a way to the
answers."""

import json
import re

import pytest

import rulerkit as rk
from rulerkit.batch import morning
from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.jobs import version_of
from tests.batches import Project, told

ASKED = {"tasks": ["niah_single_1", "vt"], "lengths": [1024], "num_examples": 40}


def answered(outputs, run, fault=None, **parameters):
    """A batch whose models have answered and whose notebook was not executed."""
    file = outputs.parent / f"{run}.yaml"
    keys = {
        "models": [{"base": "perfect", "name": "checkpoint"} | (fault or {}), "reader-4096"],
        "notebooks": ["01_main_results"],
        "parameters": ASKED | {"run": run, "outputs": str(outputs)} | parameters,
    }
    file.write_text(json.dumps(keys))
    batch = read_batch(file)
    rk.evaluate(batch.study, progress=False)
    return batch


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("page") / "outputs"
    answered(outputs, "monday")
    return outputs


FAULT = {"engine": "planted", "drop": 0.3}


def test_failures_come_first_by_word_and_colour_with_the_date(outputs):
    batch = answered(outputs, "tuesday", FAULT)
    last = batch.jobs[-1]
    last.record.parent.mkdir(parents=True, exist_ok=True)
    last.record.write_text(json.dumps({"state": "failed", "error": "<no plot>"}))
    text = morning.steps(batch)
    last.record.unlink()
    assert re.match(
        r"^<h2>\w+, \d\d \w+ \d{4}, \d\d:\d\d .*</h2><p>Batch tuesday, run tuesday: ", text
    )
    assert "1 of 4 steps failed, 1 open." in text
    states = re.findall(r'<td style="(.*?)">(\w+)</td><td[^>]*>(.*?)</td>', text)
    assert [state for _, state, _ in states] == ["failed", "missing", "done", "done"]
    assert states[0][0].startswith("color: #c03000")
    assert "&lt;no plot&gt;" in text
    assert "2/2 cells, 80/80 examples" in text


def test_a_checkpoint_that_was_replaced_is_marked(outputs, tmp_path):
    batch = answered(outputs, "tuesday", FAULT)
    job = batch.jobs[0]
    before = version_of({**job.model, "drop": 0.5})
    job.record.parent.mkdir(parents=True, exist_ok=True)
    job.record.write_text(json.dumps({"answered_by": before}))
    text = morning.steps(batch)
    board, _ = morning.leaderboard(batch, "text")
    job.record.unlink()
    assert "Answers of an earlier checkpoint or of other settings: checkpoint." in board
    words = "the checkpoint or the settings of checkpoint changed after it answered"
    assert re.search(rf'<td style="color: #9a6700.*?">outdated</td>.*?{words}', text)


def test_more_examples_than_the_batch_asks_for_do_not_count(outputs):
    batch = answered(outputs, "monday", num_examples=3)
    board, _ = morning.leaderboard(batch, "text")
    assert "n = 3 examples each" in board


def test_a_figure_of_the_batch_has_its_caption_below_it(outputs):
    """Those that another night has drawn of other models in the same run are not of this batch."""
    batch = answered(outputs, "tuesday", FAULT)
    folder = outputs / "figures/tuesday/01_main_results"
    folder.mkdir(parents=True)
    for name in ("checkpoint", "checkpoint-tasks", "checkpoint+other", "other", "checkpoint2"):
        (folder / f"{name}.png").write_bytes(b"x")
    (folder / "checkpoint.txt").write_text("What <it> shows.\n")
    text = morning.figures(batch)
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    assert captions == ["What &lt;it&gt; shows.", "checkpoint-tasks"]


def test_a_page_of_outputs_that_cannot_be_written_is_shown(tmp_path):
    """It is made anew only for a notebook that was executed since."""
    notebook, made = tmp_path / "leaderboard.ipynb", tmp_path / "leaderboard.html"
    notebook.write_text("{}")
    made.write_text("of this notebook")
    assert morning.as_html(notebook) == made
    assert made.read_text() == "of this notebook"


@pytest.mark.slow
def test_a_batch_leaves_its_page_which_loads_nothing(tmp_path):
    project = Project(tmp_path / "project")
    project.notebook("50_own")
    asked = {"run": "monday", "lengths": [1024], "num_examples": 12, "tasks": ["vt"]}
    steps = {"notebooks": ["50_own"], "together": ["leaderboard"], "parameters": asked}
    text = project.call("batch", project.batch({"models": [told("nightly")], **steps})).stdout
    page = project.root / "outputs/notebooks/monday/all/leaderboard.html"
    said = page.read_text()
    assert f"page:      {page}" in text
    assert f"answers:   {project.root}/outputs/pages/monday.html" in text
    assert re.search(r"Batch mine, run monday: 0 of 2 steps failed", said)
    assert " src=" not in re.sub('src="data:', "", said), "nothing is loaded"
    body = re.sub("<[^>]*>", " ", said[said.index("<body") :]).split()
    assert re.match(r"\w+day, \d\d \w+ \d{4}", " ".join(body)), "date and time first"

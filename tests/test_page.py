"""The page that a batch leaves: what ran, what changed since the last run and a baseline, and a way
to the answers."""

import json
import re
from typing import Any

import pytest

import rulerkit as rk
from rulerkit.batch import morning
from rulerkit.batch.batch_file import read_batch
from tests.batches import Project, told

ASKED: dict[str, Any] = {"tasks": ["niah_single_1", "vt"], "lengths": [1024], "num_examples": 40}


def answered(outputs, run, fault=None, parameters=None, **keys):
    """A batch whose models have answered and whose notebook was not executed."""
    file = outputs.parent / f"{run}.yaml"
    keys |= {
        "models": [{"base": "perfect", "name": "checkpoint"} | (fault or {}), "reader-4096"],
        "notebooks": ["01_main_results"],
        "parameters": ASKED | {"run": run, "outputs": str(outputs)} | (parameters or {}),
    }
    file.write_text(json.dumps(keys))
    batch = read_batch(file)
    rk.evaluate(batch.study, progress=False)
    return batch


def examples_of(page):
    """The examples that a page of answers holds: place -> scores of both sides."""
    content = json.loads(re.search(r'id="data">(.*?)</script>', page.read_text())[1])
    scores = {}
    for example in content["examples"]:
        place = f"{content['tasks'][example['t']]}/{example['l']}/{example['i']}"
        scores.setdefault(place, set()).add(example["s"])
    return scores


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    outputs = tmp_path_factory.mktemp("page") / "outputs"
    batch = answered(outputs, "monday", parameters={"repeat": 2})
    assert "No earlier run" in morning.changes(batch).text
    return outputs


FAULT = {"engine": "planted", "drop": 0.3}


def test_the_page_says_what_became_worse_and_opens_the_answers(outputs):
    batch = answered(outputs, "tuesday", FAULT)
    text = morning.changes(batch).text
    assert "checkpoint since monday<" in text
    (verdict,) = re.findall('<p style="color: #c03000.*?">(.*?)</p>', text)
    assert re.match(r"WORSE: .* -\d\d\.\d points \(95 % CI -\d+", verdict)
    (link,) = re.findall('href="(.*?)"', text)
    page = (outputs / "notebooks/tuesday/all" / link).resolve()
    changed = examples_of(page)
    assert f"{len(changed)} answers changed their score" in text
    assert all(len(scores) == 2 for scores in changed.values())  # each changed its score


def test_failures_come_first_by_word_and_colour_with_the_date(outputs):
    batch = answered(outputs, "tuesday", FAULT)
    last = batch.jobs[-1]
    last.record.parent.mkdir(parents=True, exist_ok=True)
    last.record.write_text(json.dumps({"state": "failed", "error": "<no plot>"}))
    text = morning.steps(batch).text
    last.record.unlink()
    assert re.match(
        r"<p><b>\w+, \d\d \w+ \d{4}, \d\d:\d\d .*</b>: batch tuesday, run tuesday; ", text
    )
    assert "1 of 4 steps failed, 1 open" in text
    states = re.findall(r'<td style="(.*?)">(\w+)</td><td[^>]*>(.*?)</td>', text)
    assert [state for _, state, _ in states] == ["failed", "missing", "done", "done"]
    assert states[0][0].startswith("color: #c03000")
    assert "&lt;no plot&gt;" in text
    assert "2/2 cells, 80/80 examples" in text


def test_a_checkpoint_that_was_replaced_is_marked(outputs, tmp_path):
    batch = answered(outputs, "tuesday", FAULT)
    job = batch.jobs[0]
    before = [{**job.model, "drop": 0.5}, 0]
    job.record.parent.mkdir(parents=True, exist_ok=True)
    job.record.write_text(json.dumps({"answered_by": before, "model": job.model}))
    text = morning.steps(batch).text
    board = morning.leaderboard_text(batch)
    job.record.unlink()
    assert "Answers of an earlier checkpoint or of other settings: checkpoint." in board
    words = "the checkpoint or the settings of checkpoint changed after it answered"
    assert re.search(rf'<td style="color: #9a6700.*?">outdated</td>.*?{words}', text)


def test_other_prompts_are_not_compared(outputs):
    batch = answered(outputs, "seed-1", parameters={"seed": 1})
    assert "Not comparable: " in morning.changes(batch).text
    batch = answered(outputs, "seed-1", parameters={"seed": 1, "num_examples": 3})
    assert "n = 3 examples each" in morning.leaderboard_text(batch)


def test_a_figure_has_the_question_that_it_answers_below_it(outputs):
    batch = answered(outputs, "tuesday", FAULT)
    folder = outputs / "figures/tuesday/01_main_results"
    folder.mkdir(parents=True)
    for name in ("reader-4096-tasks", "checkpoint+reader-4096", "other"):
        (folder / f"{name}.png").write_bytes(b"x")
    text = morning.figures(batch).text
    captions = re.findall("<figcaption>(.*?)</figcaption>", text)
    question = captions[0].partition("? ")[0] + "?"
    assert captions == [
        f"{question} checkpoint, reader (4K window).",
        question,
        f"{question} By tasks: reader (4K window).",
    ]


@pytest.mark.slow
def test_the_page_of_the_second_night_says_what_became_worse(tmp_path):
    """It is the executed notebook as HTML, and loads nothing."""
    project = Project(tmp_path / "project")
    project.notebook("50_own")
    batch = project.batch(
        {
            "models": [told("nightly")],
            "notebooks": ["50_own"],
            "together": ["leaderboard"],
            "parameters": {"run": "monday", "lengths": [1024], "num_examples": 12, "tasks": ["vt"]},
        }
    )
    assert project.call("batch", batch).returncode == 0
    project.set("nightly", "wrong", 1)
    text = project.call("batch", batch, "-y", "run: tuesday").stdout
    page = project.root / "outputs/notebooks/tuesday/all/leaderboard.html"
    said = page.read_text()
    assert f"page:      {page}" in text
    assert f"answers:   {project.root}/outputs/pages/tuesday.html" in text
    assert "WORSE: vt at 1K -100.0 points (95 % CI -100.0 to -" in said
    assert re.search(r"batch mine, run tuesday; nothing failed", said)
    assert " src=" not in re.sub('src="data:', "", said), "nothing is loaded"
    (link,) = {link for link in re.findall('href="([^"#]+)"', said) if "since" in link}
    assert len(examples_of(page.parent / link).popitem()[1]) == 2

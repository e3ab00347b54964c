"""The page that a batch leaves: what ran, what changed since the last run and a baseline, and a way
to the answers."""

import json
import os
import pty
import re
import sys
from typing import Any

import nbformat
import pytest

import rulerkit as rk
from rulerkit.batch.batch_file import read_batch
from rulerkit.cli.many_models import print_leaderboard
from rulerkit.common.errors import UserError
from tests.batches import Project, told

ASKED: dict[str, Any] = {"tasks": ["niah_single_1", "vt"], "lengths": [1024], "num_examples": 40}


def links(page):
    """The files that a page leads to, each with the example that it opens."""
    found = re.findall(r'(?:href|src)="([^"#]+)#?([^"]*)"', page.read_text())
    return [(page.parent / name, place) for name, place in found]


def write_page(outputs, run, fault=None, parameters=None, **keys):
    """The page of a batch whose models have answered and whose notebook was not executed."""
    file = outputs.parent / f"{run}.yaml"
    keys |= {
        "models": ["reader-4096", {"base": "perfect", "name": "checkpoint"} | (fault or {})],
        "notebooks": ["01_main_results"],
        "parameters": ASKED | {"run": run, "outputs": str(outputs)} | (parameters or {}),
    }
    file.write_text(json.dumps(keys))
    batch = read_batch(file)
    rk.evaluate(batch.study, progress=False)
    print_leaderboard(batch)
    return outputs / "index.html"


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
    assert "since" not in write_page(outputs, "monday", parameters={"repeat": 2}).read_text()
    return outputs


def test_the_page_says_what_became_worse_and_opens_the_answers(outputs):
    page = write_page(outputs, "tuesday", {"engine": "planted", "drop": 0.3})
    text = page.read_text()
    assert re.search("done +checkpoint predictions +2/2 cells, 80/80 examples\n", text)
    assert re.search("missing +checkpoint 01_main_results", text)
    assert "<h1>reader (4K window), checkpoint: 2 tasks at 1K</h1>" in text
    assert text.index("Leaderboard") < text.index("since monday") < text.index("What ran")
    assert str(outputs.parent) not in text
    assert "checkpoint since monday<" in text
    (verdict,) = re.findall('<p class="worse">(.*?)</p>', text)
    assert "tuesday/checkpoint is worse than monday/checkpoint" in verdict
    assert re.search(r"mean -\d\d\.\d\d points \[-\d+", verdict)
    assert all(path.is_file() for path, _ in links(page))
    places = [place for path, place in links(page) if "tuesday-checkpoint-changes" in path.name]
    changed = examples_of(outputs / "pages/tuesday-checkpoint-changes.html")
    assert len(places) == 13
    assert set(places) - {""} <= changed.keys()
    assert all(len(scores) == 2 for scores in changed.values())  # each changed its score


def test_each_model_is_compared_with_the_baseline_too(outputs):
    write_page(outputs, "tuesday", {"engine": "planted", "drop": 0.3})
    page = write_page(
        outputs, "thursday", {"engine": "planted", "drop": 0.3}, baseline="monday", margin=60
    )
    verdicts = re.findall(r"<h2>checkpoint since (\w+)</h2>\s*<p>([^:]*)", page.read_text())
    assert (
        "checkpoint is not worse than monday/checkpoint by more than 60 points"
        in dict(verdicts)["monday"]
    )
    assert "<h2>reader-4096 since monday</h2>" in page.read_text()
    page = write_page(
        outputs, "thursday", {"engine": "planted", "drop": 0.3}, baseline="tuesday/checkpoint"
    )
    assert page.read_text().count("<h2>checkpoint since ") == 1, "the last run is the baseline"
    pages = [path for path, _ in links(page) if path.parent.parent.name == "batches"]
    assert [path.parent.name for path in pages][:2] == ["thursday", "tuesday"]
    assert all(path.is_file() for path, _ in links(pages[1]))
    assert "tuesday/checkpoint is worse than monday/checkpoint" in pages[1].read_text()
    with pytest.raises(
        UserError, match=r"^baseline in \S+: unknown model .* did you mean 'monday/"
    ):
        write_page(outputs, "friday", baseline="mondy/checkpoint")


def test_other_prompts_are_not_compared(outputs):
    page = write_page(outputs, "seed-1", parameters={"seed": 1})
    assert "Not comparable: " in page.read_text()
    page = write_page(outputs, "seed-1", parameters={"seed": 1, "num_examples": 3})
    assert "<p>n = 3 examples per task and length" in page.read_text()


def test_figures_and_notebooks_are_linked(outputs):
    figure = outputs / "figures/wednesday/01_main_results/m.png"
    notebook = outputs / "notebooks/wednesday/m/01_main_results.ipynb"
    for file in (figure, notebook):
        file.parent.mkdir(parents=True)
    figure.write_bytes(b"")
    cells = [nbformat.v4.new_markdown_cell("# A <script>title</script>")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    page = write_page(outputs, "wednesday", {"engine": "planted", "drop": 0.9})
    others = ["m-tasks", "reader-4096-tasks", "checkpoint", "checkpoint+reader-4096"]
    for name in others:
        figure.with_stem(name).write_bytes(b"")
    page = write_page(outputs, "wednesday", {"engine": "planted", "drop": 0.9})
    shown = re.findall(r"<figcaption>(.*?)</figcaption>", page.read_text())
    assert shown == ["checkpoint+reader-4096", "m", "m-tasks", "checkpoint", "reader-4096-tasks"], (
        "of several models or none first, then the lowest mean"
    )
    assert {(figure, ""), (notebook.with_suffix(".html"), "")} <= set(links(page))
    assert " src=" not in notebook.with_suffix(".html").read_text(), "nothing loaded"
    before = notebook.with_suffix(".html").stat().st_mtime_ns
    write_page(outputs, "wednesday", {"engine": "planted", "drop": 0.9})
    assert notebook.with_suffix(".html").stat().st_mtime_ns == before  # made once


@pytest.mark.slow
def test_two_nights_of_a_batch_on_a_terminal(tmp_path, monkeypatch):
    """The second night is followed on a terminal: how many steps have ended, a line per running step."""
    project = Project(tmp_path / "project")
    project.notebook("50_own")
    batch = project.batch(
        {
            "models": [told("nightly")],
            "notebooks": ["50_own"],
            "parameters": {"run": "monday", "lengths": [1024], "num_examples": 12, "tasks": ["vt"]},
        }
    )
    assert project.call("batch", batch).returncode == 0
    project.set("nightly", "wrong", 1)
    project.set("nightly", "pace", 0.5)
    for name, value in {**project.environment, "TERM": "xterm", "COLUMNS": "150"}.items():
        monkeypatch.setenv(name, value)
    screen = b""

    def read(terminal):
        nonlocal screen
        seen = os.read(terminal, 10_000)
        screen += seen
        return seen

    command = [sys.executable, "-m", "rulerkit", "batch", str(batch), "-y", "run: tuesday"]
    assert pty.spawn(command, read) == 0
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", screen.decode())
    assert re.search(r"0/2 steps", text)
    assert re.search(
        r"nightly predictions: 0/1 cells, \d+/12 examples; [\d,]+ tokens left; about", text
    )
    assert re.search(r"1/2 steps\s+nightly 50_own: executing", text)
    assert re.search(r"\bdone +nightly 50_own", text)
    page = project.root / "outputs/index.html"
    assert "by more than 1 point: vt at 1K -100.00 points [-100.00, -" in page.read_text()
    (file, place), *_ = (link for link in links(page) if link[1])
    assert len(examples_of(file)[place]) == 2

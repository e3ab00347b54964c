"""The page that a batch leaves: what ran, what changed since the last run, and a way to the
answers."""

import json
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest

import rulerkit as rk
from rulerkit.batch.page import write_page
from rulerkit.tables import table_text

ASKED: dict[str, Any] = {"tasks": ["niah_single_1", "vt"], "lengths": [1024], "num_examples": 40}


def links(page: Path) -> list[Path]:
    """The files that a page leads to."""
    return [page.parent / name for name in re.findall(r'(?:href|src)="([^"]+)"', page.read_text())]


def page_of(outputs, study):
    cells = rk.evaluate(study, progress=False)
    scores = rk.score(cells)
    text = table_text(rk.summarize(scores, ASKED["tasks"]), notes=["A note."])
    return write_page(outputs, study.run, cells, scores, text)


def write_run(outputs: Path, run: str, **fault: float) -> Path:
    models = ["reader-4096", {"base": "perfect", "name": "checkpoint", **fault}]
    study = rk.study(ASKED, models=models, run=run, outputs=outputs)
    return page_of(outputs, study)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    outputs = tmp_path_factory.mktemp("page") / "outputs"
    first = write_run(outputs, "monday").read_text()
    assert "since" not in first
    return outputs


def test_the_page_says_what_became_worse_and_opens_the_answers(outputs: Path) -> None:
    page = write_run(outputs, "tuesday", drop=0.3)
    text = page.read_text()
    assert "checkpoint: 80 of 80 examples in 2 cells" in text
    assert "A note." in text
    assert "checkpoint since monday" in text
    (verdict,) = re.findall('<p class="worse">(.*?)</p>', text)
    assert "tuesday/checkpoint is worse than monday/checkpoint" in verdict
    assert re.search(r"mean -\d\d\.\d\d points \[-\d+", verdict)
    assert all(path.is_file() for path in links(page))
    (changes,) = (path for path in links(page) if path.name == "tuesday-checkpoint-changes.html")
    data = re.search(r'id="data">(.*?)</script>', changes.read_text())
    assert data
    examples = json.loads(data[1])["examples"]
    by_example: dict[tuple[int, int], set[float]] = {}
    for example in examples:
        by_example.setdefault((example["t"], example["i"]), set()).add(example["s"])
    assert by_example
    assert all(len(scores) == 2 for scores in by_example.values())  # each changed its score


def test_other_prompts_are_not_compared(outputs: Path) -> None:
    study = rk.study(ASKED, models=["reader-4096"], run="seed-1", seed=1, outputs=outputs)
    page = page_of(outputs, study)
    assert "Not comparable: " in page.read_text()


def test_figures_and_notebooks_are_linked(outputs: Path) -> None:
    figure = outputs / "figures/wednesday/01_main_results/m.png"
    notebook = outputs / "notebooks/wednesday/m/01_main_results.ipynb"
    for file in (figure, notebook):
        file.parent.mkdir(parents=True)
    figure.write_bytes(b"")
    cells = [nbformat.v4.new_markdown_cell("# A <script>title</script>")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    page = write_run(outputs, "wednesday")
    assert {figure, notebook.with_suffix(".html")} <= set(links(page))
    before = notebook.with_suffix(".html").stat().st_mtime_ns
    write_run(outputs, "wednesday")
    assert notebook.with_suffix(".html").stat().st_mtime_ns == before  # made once

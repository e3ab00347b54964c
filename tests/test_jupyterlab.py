"""Every notebook by hand, and the page of answers: in a real JupyterLab in a headless browser, as a
person would."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

import rulerkit as rk
from rulerkit.common.paths import home
from rulerkit.evaluation.notebook import notebook_parameters

NOTEBOOKS = sorted((home() / "notebooks").glob("*.ipynb"))
SMALL = {"num_examples": 2, "lengths": [2048, 4096], "steps": 3}
BROWSER = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = (
    "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 1'>\x1b]0;x\x07\u202e"
)
PATIENCE = 900.0  # seconds for one notebook on a busy machine
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab over small copies of all notebooks: its folder and its address."""
    if not BROWSER:
        pytest.skip("no chromium here: install it, or name it with CHROMIUM")
    pytest.importorskip("playwright", reason="pip install playwright, which drives the browser")
    folder = tmp_path_factory.mktemp("lab")
    for path in NOTEBOOKS:
        known = notebook_parameters(path)
        given = {name: value for name, value in SMALL.items() if name in known}
        given["outputs"] = str(folder / "outputs" / path.stem)
        small = parameterize_notebook(load_notebook_node(str(path)), given)
        nbformat.write(small, folder / path.name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = "--no-browser --allow-root --expose-app-in-browser --ip=127.0.0.1"
    options += f" --port={port} --IdentityProvider.token=t --LabApp.news_url=None"
    call = [sys.executable, "-m", "jupyter", "lab", *options.split()]
    call += [f"--ServerApp.root_dir={folder}"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(call, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}/lab"
    try:
        _await(lambda: _answers(address), 60, "JupyterLab did not start")
        yield folder, address
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def browser(lab):
    from playwright.sync_api import sync_playwright

    flags = "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync"
    flags += " --disable-background-networking --disable-component-update"
    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=BROWSER, args=flags.split())
        yield chromium
        chromium.close()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_all_cells_run_without_an_error(path, lab, browser):
    folder, address = lab
    page = browser.new_page(viewport={"width": 1200, "height": 6000})
    _run_all_cells(page, f"{address}/tree/{path.name}?token=t&reset")

    def finished():
        page.keyboard.press("Control+s")
        page.wait_for_timeout(1500)
        cells = _saved(folder / path.name)
        failed = any(output.output_type == "error" for cell in cells for output in cell.outputs)
        idle = page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").count() > 0
        return failed or (idle and all(cell.execution_count for cell in cells))

    _await(finished, PATIENCE, f"{path.name} was not run to its end")
    page.close()
    outputs = [output for cell in _saved(folder / path.name) for output in cell.outputs]
    assert [output.evalue for output in outputs if output.output_type == "error"] == []
    told = [output.text for output in outputs if output.get("name") == "stderr"]
    assert [text for text in told if "Warning" in text] == []
    # What was asked is one line; a widget would be lost in the saved notebook.
    data = [output.data for output in outputs if "data" in output]
    assert not any("application/vnd.jupyter.widget-view+json" in shown for shown in data)
    if list((folder / "outputs" / path.stem).rglob("*.jsonl")):
        texts = [shown.get("text/plain", "") for shown in data]
        assert any(re.fullmatch(r"[\d.]+[kM]? tokens in \d+ s", text) for text in texts), texts


@pytest.fixture(scope="module")
def results(lab):
    """Results of two models whose answers are hostile; one wrote 10 MB."""
    outputs = lab[0] / "hostile"
    answers = {"one": [HOSTILE, "not here"], "two": [HOSTILE + "x" * 10_000_000, "nor here"]}
    models = [
        rk.model(lambda prompts, texts=texts: [*texts, *texts][: len(prompts)], name=name)
        for name, texts in answers.items()
    ]
    asked = {"tasks": ["niah_single_1", "vt"], "lengths": [1024], "num_examples": 2}
    rk.evaluate(rk.study(asked, models=models, outputs=outputs), progress=False)
    return outputs


@pytest.mark.parametrize("where", ["file", "lab"])
def test_from_a_score_to_its_answers(where, results, lab, browser, tmp_path):
    """The page of `rk.browse`, from a file without a network and in a notebook: heatmap, table,
    filter, example, both models side by side, keys. Nothing that a model wrote runs."""
    folder, address = lab
    page = browser.new_page(viewport={"width": 1200, "height": 1400})
    problems = []
    if where == "file":
        file = rk.browse(rk.load(results)).save(tmp_path / "page.html").as_uri()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda call: call.url.startswith(file) or problems.append(call.url))
        page.goto(f"{file}#vt/1024/1")
        assert page.locator("#example h2").inner_text() == "Example 1: vt at 1K"
        page.keyboard.press("Escape")
        view = page
    else:
        source = f"import rulerkit as rk\nrk.browse(rk.load({str(results)!r}))"
        cells = [nbformat.v4.new_code_cell(source)]
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
        nbformat.write(notebook, folder / "browse.ipynb")
        _run_all_cells(page, f"{address}/tree/browse.ipynb?token=t&reset")
        view = page.frame_locator("iframe[title=Examples]")
        view.locator(".heat td").first.wait_for(timeout=60_000)
    rows, sides, title = (view.locator(css) for css in (".list tbody tr", ".side", "#example h2"))
    view.locator(".heat td").first.click()
    assert rows.count() == 2
    view.locator("#filter").select_option("right")
    assert rows.count() == 0
    view.locator("#filter").select_option("wrong")
    view.locator("#search").fill("onerror")
    assert rows.count() == 1
    view.locator("#search").fill("")
    rows.first.click()
    assert sides.count() == 2
    assert "window.ran" in sides.locator("pre").first.inner_text()
    opened = title.inner_text()
    page.keyboard.press("j")
    assert title.inner_text() != opened
    view.locator("body").press("Escape")
    assert sides.count() == 0
    assert view.locator("body").evaluate("() => window.ran ?? window.parent.ran ?? null") is None
    assert problems == []
    page.close()


def _run_all_cells(page, address):
    page.goto(address)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.wait_for_selector("[data-status=idle]", timeout=60_000)
    page.wait_for_timeout(1500)
    has_begun = page.locator(".jp-InputPrompt", has_text=re.compile(r"\[[*\d]+\]"))
    for _ in range(5):  # where the kernel was not ready, nothing is run
        page.click("text=Run >> nth=0")
        page.wait_for_timeout(500)
        page.click("text=Run All Cells")
        page.wait_for_timeout(3000)
        if has_begun.count():
            return


def _saved(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def _answers(address):
    try:
        with urllib.request.urlopen(f"{address}?token=t", timeout=5):
            return True
    except OSError:
        return False


def _await(done, seconds, otherwise):
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until, otherwise
        time.sleep(0.3)

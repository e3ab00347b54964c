"""The notebooks: kept plain enough to be read, and run for real in the ways that people run
them."""

import ast
import json
import os
import re
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import nbformat
import papermill
import pytest

from rulerkit.common.paths import home
from rulerkit.store.files import Lock

REPOSITORY = Path(__file__).parents[1]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
THE_PAPER = "00_the_paper"  # several questions, and committed with its outputs
MOST_CELLS = 13  # the question, its parameters, its study, and ten more
SMALL = {"lengths": [4096, 8192], "seed": 7}


PROGRAMS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.While, ast.Lambda, ast.Try)
"""What no cell holds; a figure may draw its lines in a loop, and leave a panel out."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_plain_enough_to_be_read(path):
    """First the question, perhaps a cell that installs rulerkit, then the parameters; no programs.
    The notebook of the whole paper alone is long, has outputs, and tells results in its text."""
    is_plain = path.stem != THE_PAPER
    text = path.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
    notebook = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert notebook["metadata"]["language_info"]["file_extension"] == ".py", "as a script as well"
    cells = notebook["cells"]
    assert len(cells) <= MOST_CELLS or not is_plain
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert re.fullmatch(r"[a-z0-9-]+", cell["id"]), "ids are words: differences can be read"
        assert not (is_plain and cell.get("outputs")), f"{cell['id']} has outputs: strip them"
        assert cell.get("execution_count") is None
        assert cell["source"].strip()
        if cell["cell_type"] == "markdown":  # only places in the paper may be numbers: others age
            places = (
                r"`[^`]*`|\]\([^)]*\)|Llama2-7B('s score at 4K)?"
                r"|(Section|Table|Figure|Appendix)s? [\dA-Z.]+( (to|and) [\d.]+)?"
            )
            number = re.search(r".{0,30}\d.{0,30}", re.sub(places, "", cell["source"]))
            assert not (is_plain and number), f"{cell['id']}: {number}"
            continue
        for node in ast.walk(ast.parse(cell["source"])):  # magics and `!pip` fail here
            assert not isinstance(node, PROGRAMS), f"{ast.unparse(node)!r} belongs in the package"
        assert "sys.path" not in cell["source"]
        assert "print(" not in cell["source"], "a final expression shows it better"
    question, parameters, *rest = [cell for cell in cells if cell["id"] != "install"]
    for word in ("# ", "?", "**Reads**", "**Writes**"):
        assert word in question["source"]
    assert parameters["metadata"]["tags"] == ["parameters"]
    assert not any("parameters" in cell["metadata"].get("tags", []) for cell in rest)
    source = next(cell["source"] for cell in rest if cell["cell_type"] == "code")
    assert f'notebook="{path.stem}"' in source
    names = []
    for line in parameters["source"].splitlines():
        value, _, comment = line.partition("  # ")
        node = ast.parse(value).body[0]
        assert isinstance(node, ast.Assign), line
        ast.literal_eval(node.value)
        assert comment.strip(), f"{line}: say what it is"
        names.append(value.split(" = ")[0])
    inspected = papermill.inspect_notebook(path)
    assert set(inspected) == set(names)
    assert all(entry["help"] for entry in inspected.values())


def run(name, folder, **parameters):
    """Execute a notebook with papermill, from another working directory; the code cells of the
    executed copy."""
    source, target = home() / "notebooks" / f"{name}.ipynb", folder / "out.ipynb"
    given = {"outputs": str(folder / "outputs"), **parameters}
    executed = papermill.execute_notebook(source, target, given, progress_bar=False, cwd=folder)
    return [cell for cell in executed["cells"] if cell["cell_type"] == "code"]


def shown(cells, name, kind):
    """What a cell shows, as one kind of data."""
    outputs = next(cell["outputs"] for cell in cells if cell["id"] == name)
    return "".join("".join(output.get("data", {}).get(kind, "")) for output in outputs)


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def kept(notebook):
    """What its cells show, but for the pixels of figures: they differ with their libraries."""
    return [
        (cell["id"], sorted(data := output["data"]), data.get("text/markdown"))
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
    ]


@pytest.mark.slow
def test_the_notebook_of_the_paper_shows_what_it_would_show_again(monkeypatch):
    monkeypatch.syspath_prepend(str(home() / "scripts"))
    import make_paper_notebook

    path = home() / f"notebooks/{THE_PAPER}.ipynb"
    committed = json.loads(path.read_text(encoding="utf-8"))
    again = make_paper_notebook.renewed()
    assert kept(again) == kept(committed), "run python scripts/make_paper_notebook.py"
    assert len([kinds for _, kinds, _ in kept(committed) if "image/png" in kinds]) == 4
    assert path.stat().st_size < 1_500_000


@pytest.mark.slow
def test_the_notebook_of_the_paper_judges_a_model_beside_it(tmp_path):
    cells = run(THE_PAPER, tmp_path, models=["reader-4096"], lengths=[4096, 8192], num_examples=2)
    for section in (4, 5, 6):
        claims = shown(cells, f"claims-{section}", "text/markdown")
        assert "| printed, " in claims
        assert "| yours | " in claims
        (caption,) = tmp_path.rglob(f"reader-4096-section_{section}.txt")
        assert "reference readers; synthetic texts" in caption.read_text(encoding="utf-8")
    (notes,) = tmp_path.rglob("*-claims-notes.tex")
    assert "Not comparable with the paper: reference readers" in notes.read_text(encoding="utf-8")


@pytest.mark.slow
def test_main_results_of_one_model(tmp_path):
    cells = run("01_main_results", tmp_path, model="reader-4096", num_examples=4, **SMALL)
    by_task = shown(cells, "tasks", "text/markdown")
    assert by_task.count("100.0 (") >= 13
    assert "| qa_2 |" in by_task
    leader = re.search(".*reader.*", shown(cells, "leaderboard", "text/markdown"))[0]
    assert leader.split(" | ")[2].startswith("4K"), "the effective length of a reader is its window"
    outputs = tmp_path / "outputs"
    ends = (".pdf", ".png", ".tex", ".txt")
    made = {f"reader-4096{name}{end}" for name in ("", "-tasks") for end in ends}
    assert files(outputs / "figures/main/01_main_results") == made
    ends = [
        ".md",
        ".csv",
        ".tex",
        "-notes.tex",
        "-tasks.md",
        "-claims.csv",
        "-claims.tex",
    ]
    made = {f"reader-4096{end}" for end in (*ends, "-claims-notes.tex")}
    assert files(outputs / "tables/main/01_main_results") == made
    assert len(list((outputs / "predictions/main/reader-4096").rglob("*.jsonl"))) == 26


@pytest.mark.slow
def test_a_notebook_waits_for_a_cell_that_another_process_writes(tmp_path):
    """It answers the other cells first, and shows no bar but one line."""
    folder = tmp_path / "outputs/predictions/main/reader-1024"
    (folder / "vt").mkdir(parents=True)

    def release():
        while not (folder / "cwe/1024.jsonl").exists():
            time.sleep(0.1)
        time.sleep(1)
        lock.__exit__()

    with Lock(folder / "vt/1024.lock") as lock:
        threading.Thread(target=release, daemon=True).start()
        asked = {"tasks": ["vt", "cwe"], "lengths": [1024], "num_examples": 2}
        cells = run("01_main_results", tmp_path, model="reader-1024", **asked)
    (evaluated,) = [cell for cell in cells if cell["id"] == "evaluate"]
    texts = [output.get("text", "") for output in evaluated["outputs"]]
    assert "waiting for 1 cell: " in "".join(texts)
    line = shown(cells, "evaluate", "text/plain")
    assert re.fullmatch(r"[\d.]+k tokens in \d+ s", line, re.IGNORECASE)
    assert len((folder / "vt/1024.jsonl").read_text().splitlines()) == 2


@pytest.mark.slow
def test_notebooks_install_rulerkit_where_it_is_missing(tmp_path):
    """As in Google Colab, in an environment with Jupyter's kernel alone: the first of them
    installs it, from a clone of this tree in place of its address; all run to their end."""
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    address = pyproject["project"]["urls"]["Repository"]
    programs = tmp_path / "venv/bin"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [programs / "python", "-m", "pip", "install", "--quiet", "ipykernel", "papermill"]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no package registry: {done.stderr[-200:]}")

    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", REPOSITORY, checkout], check=True)
    # The environment of the tests has the tree on its path.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    clean["RULERKIT_HOME"] = str(tmp_path)
    small = ["-p", "model", "reader-1024", "-y", "{lengths: [1024], num_examples: 1}"]
    for name in ("17_tasks", "02_needle_types", "05_variable_tracking"):
        text = (REPOSITORY / f"notebooks/{name}.ipynb").read_text(encoding="utf-8")
        assert f"git+{address}" in text
        path = address.removeprefix("https://github.com/")
        assert f"/github/{path}/blob/main/notebooks/{name}.ipynb" in text
        (tmp_path / "in.ipynb").write_text(
            text.replace(f"git+{address}", checkout.as_uri()), encoding="utf-8"
        )
        asked = [] if name == "17_tasks" else small
        command = [programs / "papermill", "in.ipynb", "out.ipynb", *asked]
        subprocess.run(command, cwd=tmp_path, env=clean, check=True)


@pytest.mark.slow
def test_models_of_one_label_are_two_sides_and_one_model_is_none(tmp_path):
    small = {"tasks": ["vt"], "num_examples": 2, **SMALL}
    models = [
        {"base": f"reader-{window}", "name": f"reader-{window}-again", "label": "ours"}
        for window in (8192, 4096)
    ]
    run("13_compare_models", tmp_path, models=models, **small)
    (path,) = tmp_path.rglob("*-verdicts.csv")
    compared = "ours [reader-4096-again] against ours [reader-8192-again]"
    assert compared in path.read_text(encoding="utf-8")
    with pytest.raises(papermill.PapermillExecutionError, match=r"\[FIRST, SECOND\]"):
        run("13_compare_models", tmp_path, models=models[:1], **small)
    # One of the two has answers.
    models = [models[0], "perfect"]
    with pytest.raises(papermill.PapermillExecutionError, match="two models or more are compared"):
        run("13_compare_models", tmp_path, models=models, ask=False, **small)

"""The notebooks: kept plain enough to be read, and run for real in the ways that people run
them."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest

from rulerkit.paths import home

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
MOST_CELLS = 12
SMALL: dict[str, Any] = {"lengths": [4096, 8192], "seed": 7}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code(notebook: nbformat.NotebookNode) -> list[str]:
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


# --- rules ----------------------------------------------------------------------------------------


def test_there_are_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS][:2] == ["00_tasks", "01_main_results"]


@every_notebook
def test_valid_short_and_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len(notebook["cells"]) <= MOST_CELLS
    ids = [cell["id"] for cell in notebook["cells"]]
    assert all(re.fullmatch(r"[a-z0-9-]+", each) for each in ids), (
        "ids are words, so that differences can be read"
    )
    assert len(set(ids)) == len(ids)
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), f"{cell['id']} has outputs: strip them"
        assert cell.get("execution_count") is None
        assert cell["source"].strip()


@every_notebook
def test_opens_with_the_question_then_the_parameters(path: Path) -> None:
    first, second, *rest = read(path)["cells"]
    assert first["cell_type"] == "markdown"
    for word in ("?", "Section", "**Reads**", "**Writes**"):
        assert word in first["source"]
    assert second["metadata"]["tags"] == ["parameters"]
    assert not any("parameters" in cell["metadata"].get("tags", []) for cell in rest)
    assert f'notebook="{path.stem}"' in next(
        cell["source"] for cell in rest if cell["cell_type"] == "code"
    )


@every_notebook
def test_parameters_are_one_literal_a_line_with_help(path: Path) -> None:
    for line in read(path)["cells"][1]["source"].splitlines():
        value, _, comment = line.partition("  # ")
        node = ast.parse(value).body[0]
        assert isinstance(node, ast.Assign), line
        ast.literal_eval(node.value)
        assert comment.strip(), f"{line}: say what it is"


@every_notebook
def test_papermill_lists_the_parameters(path: Path) -> None:
    found = papermill.inspect_notebook(path)
    assert set(found) == {
        line.split(" = ")[0] for line in read(path)["cells"][1]["source"].splitlines()
    }
    assert all(entry["help"] for entry in found.values())


@every_notebook
def test_no_programs_in_notebooks(path: Path) -> None:
    banned = (
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.ClassDef,
        ast.For,
        ast.While,
        ast.Lambda,
        ast.If,
        ast.Try,
    )
    for source in code(read(path)):
        for node in ast.walk(ast.parse(source)):  # magics and `!pip` are no Python and fail here
            assert not isinstance(node, banned), (
                f"{ast.unparse(node)!r} belongs into the package, where it is tested"
            )
        assert "sys.path" not in source
        assert "print(" not in source, "a final expression shows it better"


@every_notebook
def test_no_results_in_the_text(path: Path) -> None:
    """Numbers go stale; only what names a place in the paper may be a number."""
    for cell in read(path)["cells"]:
        if cell["cell_type"] == "markdown":
            text = re.sub(
                r"`[^`]*`|\]\([^)]*\)|(Section|Table|Figure|Appendix)s? [\dA-Z.]+|Llama2-7B",
                "",
                cell["source"],
            )
            assert not re.search(r"\d", text), (
                f"{cell['id']}: {re.search(r'.{0,30}[0-9].{0,30}', text)}"
            )


@every_notebook
def test_saved_as_jupyter_saves(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
    assert set(read(path)["metadata"]) == {"kernelspec", "language_info"}


# --- running --------------------------------------------------------------------------------------


def run(name: str, folder: Path, **parameters: Any) -> list[Any]:
    """Execute a notebook with papermill, from another working directory; the code cells of the
    executed copy."""
    source, target = home() / "notebooks" / f"{name}.ipynb", folder / "out.ipynb"
    given = {"outputs": str(folder / "outputs"), **parameters}
    executed = papermill.execute_notebook(source, target, given, progress_bar=False, cwd=folder)
    return [cell for cell in executed["cells"] if cell["cell_type"] == "code"]


def shown(cells: list[Any], name: str, kind: str) -> str:
    """What a cell shows, as one kind of data."""
    outputs = next(cell["outputs"] for cell in cells if cell["id"] == name)
    return "".join("".join(output.get("data", {}).get(kind, "")) for output in outputs)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_tasks(tmp_path: Path) -> None:
    from rulerkit.tasks import THIRTEEN

    cells = run("00_tasks", tmp_path, **SMALL)
    page = shown(cells, "examples", "text/html")
    assert all(f"<b>{task}</b>" in page for task in THIRTEEN)
    assert shown(cells, "figure-1", "image/png")
    assert files(tmp_path / "outputs") == {
        f"figures/main/00_tasks/figure_1{s}" for s in (".pdf", ".png")
    }


def test_main_results_of_one_model(tmp_path: Path) -> None:
    cells = run("01_main_results", tmp_path, model="reader-4096", num_examples=4, **SMALL)
    by_task = shown(cells, "tasks", "text/markdown")
    assert by_task.count("100.00 [") >= 13
    assert "| qa_2 |" in by_task
    leader = next(
        line
        for line in shown(cells, "leaderboard", "text/markdown").splitlines()
        if "reader" in line
    )
    assert leader.split(" | ")[2].startswith("4K"), "the effective length of a reader is its window"
    assert "**100.0**" in leader
    assert "WARNING" in shown(cells, "beside", "text/html")
    assert shown(cells, "score-by-length", "image/png")
    assert shown(cells, "tasks-by-length", "image/png")
    outputs = tmp_path / "outputs"
    made = {"reader-4096" + end for end in (".pdf", ".png", "-tasks.pdf", "-tasks.png")}
    assert files(outputs / "figures/main/01_main_results") == made
    made = {
        "reader-4096" + end
        for end in (
            ".md",
            ".csv",
            ".tex",
            "-tasks.md",
            "-paper.csv",
            "-against-paper.csv",
            "-claims.csv",
        )
    }
    assert files(outputs / "tables/main/01_main_results") == made
    assert len(list((outputs / "predictions/main/reader-4096").rglob("*.jsonl"))) == 26


def test_main_results_of_several_models_and_other_tasks(tmp_path: Path) -> None:
    models = ["reader-4096", "perfect", {"base": "perfect", "name": "p2", "label": "Llama3.1 (8B)"}]
    tasks = ["niah_single_1", {"base": "niah_multikey_1", "num_keys": 8}]
    cells = run(
        "01_main_results",
        tmp_path,
        models=models,
        tasks=tasks,
        lengths=[4096],
        num_examples=2,
        run="other",
    )
    leaderboard = shown(cells, "leaderboard", "text/markdown")
    assert "No effective length" in leaderboard
    assert "Means over 2 tasks" in leaderboard
    beside = shown(cells, "beside", "text/html")
    assert "paper v3" in beside, "a model that the paper has stands beside its row"
    assert "not comparable: protocol" in beside
    assert "WARNING" in beside
    assert (tmp_path / "outputs/figures/other/01_main_results/reader-4096+perfect+p2.pdf").is_file()


def test_a_second_run_asks_nothing(tmp_path: Path) -> None:
    small = {"model": "reader-4096", "tasks": ["vt"], "lengths": [4096], "num_examples": 2}
    run("01_main_results", tmp_path, **small)
    before = {
        path: path.stat().st_mtime_ns
        for path in (tmp_path / "outputs/predictions").rglob("*.jsonl")
    }
    run("01_main_results", tmp_path, **small)
    assert before
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_unknown_parameters_are_errors_that_name_the_known(tmp_path: Path) -> None:
    with pytest.raises(
        papermill.PapermillExecutionError,
        match=r"unknown parameter 'lenghts'.*did you mean 'lengths'",
    ):
        run("01_main_results", tmp_path, lenghts=[4096])
    assert not (tmp_path / "outputs").exists()


def test_a_string_where_a_list_belongs_shows_papermills_option(tmp_path: Path) -> None:
    with pytest.raises(papermill.PapermillExecutionError, match="-y 'lengths: "):
        run("01_main_results", tmp_path, lengths="[4096]")


def test_the_command_of_the_readme_from_another_folder(tmp_path: Path) -> None:
    root = home()
    command = [
        *(
            sys.executable,
            "-m",
            "papermill",
            str(root / "notebooks/01_main_results.ipynb"),
            "out.ipynb",
        ),
        *(
            "-f",
            str(root / "params/models/reader-8192.yaml"),
            "-f",
            str(root / "params/sizes/smoke.yaml"),
        ),
        *("-p", "outputs", str(tmp_path / "outputs")),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "RULERKIT_HOME"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    table = (tmp_path / "outputs/tables/main/01_main_results/reader-8192.md").read_text(
        encoding="utf-8"
    )
    assert re.search(r"\| reader \(8K window\).*\| 8K ", table)
    assert {path.name for path in tmp_path.iterdir()} == {"out.ipynb", "outputs"}

"""A project of its own for tests of batches: the repository's params/ and notebooks/, and small
notebooks more."""

import ast
import json
import shutil
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PARAMETERS = """\
model = "reader-8192"
models = None
tasks = ["vt"]
lengths = [1024]
num_examples = 1
run = "main"
outputs = "outputs"
"""
SMALL = """\
import rulerkit as rk
study = rk.study(globals(), notebook="10_small")
cells = rk.evaluate(study, progress=False)
print(study.title, [len(cell.rows) for cell in cells])
"""
FAILS = SMALL + 'assert study.title != "reader-1024", "the first line\\nthe last line"\n'
FREE = 'import rulerkit as rk\nprint("seed", rk.study(globals(), notebook="30_free", model=None).seed)\n'


def notebook(path, parameters, source):
    """Write a notebook: its parameters, the cell tagged `study` with the lines up to the one that
    assigns `study` at the top level, and a cell with the rest."""
    lines, statements = source.splitlines(keepends=True), ast.parse(source).body
    end = max((s.end_lineno for s in statements if _assigns_study(s)), default=0)
    parts = [
        ("parameters", ["parameters"], parameters),
        ("study", ["study"], "".join(lines[:end])),
        ("source", [], "".join(lines[end:])),
    ]
    cells = [
        {
            "cell_type": "code",
            "execution_count": None,
            "outputs": [],
            "id": name,
            "metadata": {"tags": tags} if tags else {},
            "source": text,
        }
        for name, tags, text in parts
        if text
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    content = {"cells": cells, "metadata": {"kernelspec": kernel}}
    path.write_text(json.dumps(content | {"nbformat": 4, "nbformat_minor": 5}))


def _assigns_study(statement):
    return isinstance(statement, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "study" for target in statement.targets
    )


def make_project(root):
    """A project root with the repository's params/ and notebooks/, and three small notebooks
    more."""
    for name in ("params", "notebooks"):
        shutil.copytree(REPOSITORY / name, root / name)
    notebook(root / "notebooks/10_small.ipynb", PARAMETERS, SMALL)
    notebook(root / "notebooks/20_fails.ipynb", PARAMETERS, FAILS)
    notebook(
        root / "notebooks/30_free.ipynb", 'seed = 42\nrun = "main"\noutputs = "outputs"\n', FREE
    )
    return root

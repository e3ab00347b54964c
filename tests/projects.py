"""A project of its own for tests of batches: the repository's params/ and notebooks/, and small
notebooks more."""

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
FAILS = (
    SMALL + 'assert study.title != "reader-1024", "the first line\\nthe last line"\n'
)
FREE = 'import rulerkit as rk\nprint("seed", rk.study(globals(), notebook="30_free", model=None).seed)\n'


def notebook(path, parameters, source):
    empty = {"cell_type": "code", "execution_count": None, "outputs": []}
    cells = [
        {
            **empty,
            "id": "parameters",
            "metadata": {"tags": ["parameters"]},
            "source": parameters,
        },
        {**empty, "id": "source", "metadata": {}, "source": source},
    ]
    about = {
        "kernelspec": {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
    }
    path.write_text(
        json.dumps(
            {"cells": cells, "metadata": about, "nbformat": 4, "nbformat_minor": 5}
        )
    )


def make_project(root):
    """A project root with the repository's params/ and notebooks/, and three small notebooks
    more."""
    for name in ("params", "notebooks"):
        shutil.copytree(REPOSITORY / name, root / name)
    notebook(root / "notebooks/10_small.ipynb", PARAMETERS, SMALL)
    notebook(root / "notebooks/20_fails.ipynb", PARAMETERS, FAILS)
    notebook(
        root / "notebooks/30_free.ipynb",
        'seed = 42\nrun = "main"\noutputs = "outputs"\n',
        FREE,
    )
    return root

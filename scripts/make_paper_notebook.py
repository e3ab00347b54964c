"""Runs notebooks/00_the_paper.ipynb and keeps its outputs in it: the one notebook that is committed
with them, so that a reader of the repository sees its figures.

    python scripts/make_paper_notebook.py
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import papermill

NOTEBOOK = Path(__file__).parents[1] / "notebooks/00_the_paper.ipynb"


def renewed() -> dict[str, Any]:
    """The notebook, run on what the paper prints, without what differs from run to run."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "out.ipynb")
        given = {"outputs": folder}
        papermill.execute_notebook(NOTEBOOK, target, given, progress_bar=False, cwd=folder)
        book: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))

    cells = [cell for cell in book["cells"] if "injected-parameters" not in tags_of(cell)]
    for cell in cells:
        cell["metadata"] = {"tags": tags} if (tags := tags_of(cell)) else {}
        if cell["cell_type"] == "code":
            cell["execution_count"] = None
            for output in cell["outputs"]:
                output["metadata"] = {}
                if "execution_count" in output:
                    output["execution_count"] = None
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    # Without the ending nbconvert names a script .txt.
    language = {"file_extension": ".py", "name": "python"}
    metadata = {"kernelspec": kernel, "language_info": language}
    return book | {"cells": cells, "metadata": metadata}


def tags_of(cell: dict[str, Any]) -> list[str]:
    tags: list[str] = cell["metadata"].get("tags", [])
    return tags


def main() -> None:
    text = json.dumps(renewed(), indent=1, ensure_ascii=False)
    NOTEBOOK.write_text(text + "\n", encoding="utf-8")
    print(f"{NOTEBOOK.name}: {len(text) / 1000:.0f} KB")


if __name__ == "__main__":
    sys.exit(main())

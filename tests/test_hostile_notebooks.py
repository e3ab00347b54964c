"""A plan runs no notebook: cells that are not tagged leave no trace before their turn."""

import json

import pytest

from rulerkit.batch.batch_file import read_batch, studies_of
from rulerkit.common.errors import UserError
from tests.projects import PARAMETERS

STUDY = 'import rulerkit as rk\nstudy = rk.study(globals(), notebook="mine")\n'
TRACE = 'open("TRACE", "a").write("x")\n'


def write(path, *cells):
    """A notebook of cells: (tag or "", source)."""
    content = [
        {
            "cell_type": "code",
            "execution_count": None,
            "outputs": [],
            "id": f"cell-{number}",
            "metadata": {"tags": [tag]} if tag else {},
            "source": source.replace("TRACE", str(path.parent / "trace")),
        }
        for number, (tag, source) in enumerate(cells)
    ]
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        json.dumps({"cells": content, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )
    return path


def test_planning_and_status_execute_no_other_cell(tmp_path, monkeypatch):
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    asks = (("parameters", PARAMETERS), ("study", STUDY))
    write(tmp_path / "notebooks/mine.ipynb", ("", TRACE), *asks, ("", TRACE))
    write(tmp_path / "notebooks/untagged.ipynb", asks[0], ("", TRACE + STUDY + TRACE))
    path = tmp_path / "b.yaml"
    path.write_text("{models: [mute, perfect], notebooks: [untagged, mine]}")

    batch = read_batch(path)
    asks, *_ = batch.jobs
    assert {need.model for need in asks.needs()} == {"mute"}
    assert not (tmp_path / "notebooks/trace").exists()

    # A notebook that does not say what it asks runs after the others, and asks by itself.
    first, last = (job.run for job in batch.jobs if job.run and job.name == "mute")
    assert (first.notebook.stem, last.notebook.stem) == ("mine", "untagged")
    assert "ask: false" in first.command[-1]
    assert "ask: false" not in last.command[-1]


def test_cells_that_need_others_are_named(tmp_path):
    path = write(
        tmp_path / "notebooks/a.ipynb",
        ("", "number = 1\n"),
        ("parameters", PARAMETERS),
        ("study", STUDY + "number + 1\n"),
    )
    with pytest.raises(UserError, match=r"a cannot be planned \(NameError: .*are run alone"):
        studies_of(path, {})

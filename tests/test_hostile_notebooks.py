"""A plan runs no notebook: cells that do anything leave no trace before their turn."""

import json

import pytest

from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.notebooks import studies_of
from rulerkit.batch.status import jobs_in, statuses
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
    asks = (("parameters", PARAMETERS), ("study", f"import no_such_module\n{STUDY}"))
    write(tmp_path / "notebooks/mine.ipynb", ("", TRACE), *asks, ("", TRACE))
    write(tmp_path / "notebooks/untagged.ipynb", asks[0], ("", TRACE + STUDY + TRACE))
    path = tmp_path / "b.yaml"
    path.write_text("{models: [mute, perfect], notebooks: [untagged, mine]}")

    batch = read_batch(path)
    by_name = {job.name: job for job in batch.jobs}
    assert {need.model for need in by_name["mute"].steps[0].cells} == {"mute"}
    for job in batch.jobs:
        job.save()

    # What is asked stands in the files of the jobs: the notebook may be gone.
    shown = [status.step.title for status in statuses(batch.jobs)]
    write(tmp_path / "notebooks/mine.ipynb", ("study", TRACE))
    found = jobs_in(tmp_path / "outputs/notebooks/main")
    assert sorted(status.step.title for status in statuses(found)) == sorted(shown)
    assert all(job.steps[0].cells for job in found if job.model)
    assert not (tmp_path / "notebooks/trace").exists()

    # A notebook that does not say what it asks runs after the others, and asks by itself.
    first, last = by_name["mute"].runs
    assert (first.notebook.stem, last.notebook.stem) == ("mine", "untagged")
    assert "ask: false" in first.command[-1]
    assert "ask: false" not in last.command[-1]


@pytest.mark.parametrize(
    ("cell", "named"),
    [
        (TRACE + STUDY, "write"),
        (STUDY + "rk.evaluate(study)\n", "rk.evaluate"),
        (STUDY + "ask = rk.evaluate\nask(study)\n", "rk.evaluate"),
        (STUDY + "sorted([study], key=rk.evaluate)\n", "rk.evaluate"),
        (STUDY + "kit = rk\nkit.evaluate(study)\n", "`rk` itself"),
        (STUDY + "from rulerkit import evaluate\nevaluate(study)\n", "import rulerkit as rk"),
        (STUDY + "import rulerkit.evaluation.evaluate as e\n", "import rulerkit as rk"),
        (STUDY + "study.save_table('x')\n", "study.save_table"),
        (STUDY + "from pathlib import Path\nPath('TRACE').touch()\n", "touch"),
        (STUDY + "def ask():\n    pass\nask()\n", "functiondef"),
        (STUDY + "with rk.Session() as s:\n    pass\n", "statement `with`"),
        (STUDY + "[].__class__.__base__.__subclasses__()\n", "__subclasses__"),
        (STUDY + "exec('1')\n", "`exec`"),
        (STUDY + "rk.TASKS = {}\n", "rk.TASKS"),
    ],
)
def test_a_study_cell_that_does_more_is_refused(tmp_path, cell, named):
    path = write(tmp_path / "notebooks/a.ipynb", ("parameters", PARAMETERS), ("study", cell))
    with pytest.raises(UserError, match="does more than build a study") as error:
        studies_of(path, {})
    assert named in str(error.value)
    assert not (tmp_path / "notebooks/trace").exists()


def test_parameters_are_read_and_not_executed(tmp_path):
    path = write(
        tmp_path / "notebooks/a.ipynb", ("parameters", PARAMETERS + TRACE), ("study", STUDY)
    )
    with pytest.raises(UserError, match="literals"):
        studies_of(path, {})
    assert not (tmp_path / "notebooks/trace").exists()

"""What a notebook would ask, found out before anybody is asked: from its own first lines, whatever
they look like."""

import json

import pytest

from rulerkit.batch.jobs import needs_of, studies_of
from rulerkit.common.errors import UserError
from tests.projects import REPOSITORY, notebook

PARAMETERS = 'model = "perfect"\ntasks = ["vt"]\nlengths = [1024]\nnum_examples = 2\noutputs = "outputs"\n'
START = 'import rulerkit as rk\nstudy = rk.study(globals(), notebook="mine")\n'


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path, monkeypatch):
    """An empty project, in which planning leaves no file behind."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    yield
    assert {path.name for path in tmp_path.rglob("*")} <= {"notebooks", "mine.ipynb"}


def asked(home, *cells, **parameters):
    """Model, task, length and number of examples of what a notebook with these cells would ask."""
    path = home / "notebooks/mine.ipynb"
    notebook(path, PARAMETERS, cells[0])
    book = json.loads(path.read_text())
    book["cells"] += [{**book["cells"][1], "source": source} for source in cells[1:]]
    path.write_text(json.dumps(book))
    needs = needs_of(studies_of(path, parameters))
    return [(need.model, need.task, need.length, need.wanted) for need in needs]


@pytest.mark.parametrize("name", ["00_tasks", "01_main_results", "08_training_length"])
def test_notebooks_of_the_kit_can_be_planned(name):
    """All of them are held to what they ask by test_demo_all."""
    path = REPOSITORY / f"notebooks/{name}.ipynb"
    needs = needs_of(studies_of(path, {"outputs": "/nowhere"}))
    assert bool(needs) == (name != "00_tasks")
    assert all(
        str(need.path).startswith("/nowhere/predictions/main/") for need in needs
    )


@pytest.mark.parametrize(
    ("name", "wrong", "value"),
    [
        ("02_needle_types", "needles", "passkey"),
        ("05_variable_tracking", "hops", 4),
        ("15_depth", "tasks", "vt"),
        ("19_paper_figures", "sizes", "perfect"),
        ("07_question_answering", "questions", ["Squad"]),
    ],
)
def test_one_value_or_a_wrong_one_is_no_list(name, wrong, value):
    with pytest.raises(
        UserError, match=f"{wrong}.* (it takes a list in|'Squad': allowed: SQuAD)"
    ):
        studies_of(REPOSITORY / f"notebooks/{name}.ipynb", {wrong: value})


@pytest.mark.parametrize(
    "cells",
    [
        (START, "scores = rk.score(rk.evaluate(study, progress=False))[0]\n"),
        (
            START,
            "rk.evaluate(study)[0].rows\n",
            'raise RuntimeError("nobody runs this")\n',
        ),
        (START, "from rulerkit import evaluate\ncells = evaluate(study)\n"),
        (
            "%matplotlib inline\n"
            + START
            + "  \n!ls\n?rk.score\nrk.score?\nrk.evaluate(study)\n",
            "%%bash\nls | head (\n",
        ),
        (START, "%%time\ncells = rk.evaluate(study)\n"),
        (START, "%time cells = rk.evaluate(study)\n"),
        (
            START + "def ask(study):\n    return rk.evaluate(study)\n",
            "cells = ask(study)\n",
        ),
        (
            START
            + "def ask(s):\n    return rk.evaluate(s)\ndef both(s):\n    return ask(s)\n",
            "cells = both(study)\n",
        ),
        (START, "ask = lambda: rk.evaluate(study)\n", "cells = ask()\n"),
        (START, "from rulerkit import evaluate as ask\ncells = ask(study)\n"),
        (
            "get_ipython()\nassert __name__ == '__main__'\n"
            + START
            + "display(study)\n"
            + "print(rk.evaluate(study))\n",
        ),
    ],
)
def test_what_is_asked_is_found_wherever_it_stands(cells, tmp_path, capsys):
    """The model's module would fail: nobody is asked and no model is loaded."""
    spec = {"name": "absent", "entry": "no_such_module:load"}
    assert asked(tmp_path, *cells, model=spec) == [("absent", "vt", 1024, 2)]
    assert capsys.readouterr().out == ""


def test_two_questions_are_joined_and_the_larger_number_counts(tmp_path):
    more = 'rk.evaluate(rk.study(globals(), num_examples=5, tasks=["fwe", "vt"]))\n'
    longer = 'rk.evaluate(rk.study(globals(), lengths=["2K"]))\n'
    assert sorted(
        asked(tmp_path, START, more, "cells = rk.evaluate(study)\n", longer)
    ) == [
        ("perfect", "fwe", 1024, 5),
        ("perfect", "vt", 1024, 5),
        ("perfect", "vt", 2048, 2),
    ]


def test_a_notebook_that_asks_nobody_is_not_run(tmp_path):
    stop = 'raise RuntimeError("nobody runs this")\n'
    for source in (START, 'study = "evaluate(study)"\n'):
        assert asked(tmp_path, source + stop) == []


@pytest.mark.parametrize(
    ("cells", "parameters", "says"),
    [
        (
            (START + "rk.evaluate(study)\n",),
            {"lenghts": [1024]},
            "did you mean 'lengths'",
        ),
        (
            (START + "1 / 0\n", "rk.evaluate(study)\n"),
            {},
            "ZeroDivisionError: division by zero",
        ),
        (
            (START + "if study:\ncells = rk.evaluate(study)\n",),
            {},
            "Error: expected an indented",
        ),
        ((START, "for n in (2, 4):\n    rk.evaluate(study)[0]\n"), {}, "IndexError"),
    ],
)
def test_what_fails_before_the_last_question_is_one_line(
    cells, parameters, says, tmp_path
):
    """A question that planning does not see would be missing when its notebook is executed."""
    with pytest.raises(
        UserError, match=f"^mine(:| cannot be planned) .*{says}"
    ) as error:
        asked(tmp_path, *cells, **parameters)
    assert "\n" not in str(error.value)

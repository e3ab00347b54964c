"""What a notebook asks is known before it runs: from its cells tagged `parameters` and `study`, and
from nothing else."""

import json
from pathlib import Path

import pytest

import rulerkit as rk
from rulerkit.batch.batch_file import studies_of
from rulerkit.batch.jobs import Job, needs_of
from rulerkit.common.errors import UserError
from tests.projects import REPOSITORY, notebook

PARAMETERS = """\
model = "perfect"
tasks = ["vt"]
lengths = [1024]
num_examples = 2
outputs = "outputs"
"""
START = "import rulerkit as rk\n"
STUDY = 'study = rk.study(globals(), notebook="mine")\n'


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path, monkeypatch):
    """An empty project, in which planning leaves no file behind."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield
    assert {path.name for path in tmp_path.rglob("*")} <= {"notebooks", "mine.ipynb"}


def asked(home, source, **parameters):
    """Model, task, length and number of examples of what a notebook with this source would ask."""
    path = home / "notebooks/mine.ipynb"
    notebook(path, PARAMETERS, source)
    needs = needs_of(studies_of(path, parameters))
    return [(need.model, need.task, need.length, need.wanted) for need in needs]


def test_one_value_or_a_wrong_one_is_no_list():
    for name, wrong, said in (
        ("02_needle_types", {"needles": "passkey"}, "needles.* expected a list in"),
        ("05_variable_tracking", {"hops": 4}, "hops.* expected a list in"),
        ("07_question_answering", {"questions": ["Squad"]}, "'Squad': allowed: SQuAD"),
    ):
        with pytest.raises(UserError, match=said):
            studies_of(REPOSITORY / f"notebooks/{name}.ipynb", wrong)


def test_a_model_is_done_only_for_what_it_was_asked():
    """The digest by which it is known holds the rule of an adaptive run, too."""
    asked = {"model": "perfect", "lengths": [1024, 2048], "outputs": "outputs"}
    counts = ({"num_examples": "adaptive", "max_examples": 60}, {"num_examples": 60})
    jobs = []
    for count in counts:
        study = rk.study(asked | count, complete=False)
        jobs.append(Job(Path("outputs"), "perfect", "predictions", (study,), model={}))
    assert jobs[0].made_from() != jobs[1].made_from()


def test_no_other_line_of_a_notebook_runs(tmp_path, capsys):
    """The model's module would fail, too: nobody is asked and no model is loaded."""
    source = f"{START}{STUDY}open('written', 'w')\nrk.evaluate(study)\n%matplotlib inline\n"
    spec = {"name": "absent", "entry": "no_such_module:load"}
    path = tmp_path / "notebooks/mine.ipynb"
    notebook(path, PARAMETERS, START + STUDY)
    book = json.loads(path.read_text())
    book["cells"].append({**book["cells"][1], "metadata": {}, "source": source})
    path.write_text(json.dumps(book))
    (need,) = needs_of(studies_of(path, {"model": spec}))
    assert (need.model, need.task, need.length, need.wanted) == ("absent", "vt", 1024, 2)
    assert capsys.readouterr().out == ""


def test_several_studies_are_joined_and_the_larger_number_counts(tmp_path):
    source = START + (
        "study = [\n"
        "    rk.study(globals()),\n"
        '    rk.study(globals(), num_examples=5, tasks=["fwe", "vt"]),\n'
        '    rk.study(globals(), lengths=["2K"]),\n'
        "]\n"
    )
    assert sorted(asked(tmp_path, source)) == [
        ("perfect", "fwe", 1024, 5),
        ("perfect", "vt", 1024, 5),
        ("perfect", "vt", 2048, 2),
    ]


@pytest.mark.parametrize(
    ("source", "parameters", "says"),
    [
        (STUDY, {"lenghts": [1024]}, "did you mean 'lengths'"),
        ("1 / 0\n" + STUDY, {}, "ZeroDivisionError: division by zero"),
        ("study = absent\n", {}, "must not need other cells"),
        ("study = 5\n", {}, "must assign `study`, such as `study = rk.study("),
    ],
)
def test_a_notebook_that_cannot_be_planned_is_named_with_the_reason(
    source, parameters, says, tmp_path
):
    with pytest.raises(UserError) as said:
        asked(tmp_path, START + source, **parameters)
    assert str(said.value).startswith("mine")
    assert says in str(said.value)
    assert "\n" not in str(said.value)

"""What a notebook would ask, found out before anybody is asked: from its own first lines, whatever
they look like."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rulerkit.batch import read_batch
from rulerkit.batch.jobs import needs_of
from rulerkit.batch.needs import studies_of
from rulerkit.errors import UserError
from tests.projects import notebook

REPOSITORY = Path(__file__).parents[1]
NOTEBOOKS = sorted((REPOSITORY / "notebooks").glob("*.ipynb"))
PARAMETERS = (
    'model = "perfect"\ntasks = ["vt"]\nlengths = [1024]\nnum_examples = 2\noutputs = "outputs"\n'
)
START = 'import rulerkit as rk\nstudy = rk.study(globals(), notebook="mine")\n'
ASKED = [("perfect", "vt", 1024, 2)]


@pytest.fixture(autouse=True)
def nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A project of its own, in which planning leaves no file behind."""
    root = tmp_path / "project"
    for folder in ("params", "notebooks"):
        (root / folder).mkdir(parents=True)
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    monkeypatch.chdir(root)
    yield
    assert {path.name for path in root.rglob("*")} <= {
        "params",
        "notebooks",
        "mine.ipynb",
        "mine.yaml",
    }


def asked(*cells: str, **parameters: Any) -> list[tuple[str, str, int, int]]:
    """Model, task, length and number of examples of what a notebook with these cells would ask."""
    path = Path("notebooks/mine.ipynb")
    notebook(path, PARAMETERS, cells[0])
    book = json.loads(path.read_text())
    for number, source in enumerate(cells[1:]):
        book["cells"].append({**book["cells"][1], "id": f"more{number}", "source": source})
    path.write_text(json.dumps(book))
    needs = needs_of(studies_of(path, parameters))
    return [(need.model, need.task, need.length, need.wanted) for need in needs]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_of_the_house_can_be_planned(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it plans is held to what it asks by test_demo_all."""
    monkeypatch.setenv("RULERKIT_HOME", str(REPOSITORY))
    needs = needs_of(studies_of(path, {"outputs": "/nowhere"}))
    assert bool(needs) == (path.stem not in ("00_tasks", "leaderboard"))
    assert all(str(need.path).startswith("/nowhere/predictions/main/") for need in needs)


@pytest.mark.parametrize(
    "cells",
    [
        (START + "cells = rk.evaluate(study)\n",),
        (START, "scores = rk.score(rk.evaluate(study, progress=False))[0]\n"),
        (START, "rk.evaluate(study)[0].rows\n", 'raise RuntimeError("nobody runs this")\n'),
        (START, "from rulerkit import evaluate\ncells = evaluate(study)\n"),
        (
            "%matplotlib inline\n" + START + "  \n!ls\ncells = rk.evaluate(study)\n",
            "%%bash\nls | head (\n",
        ),
        (START, "%%time\ncells = rk.evaluate(study)\n"),
        (START, 'text = ("%d"\n% 3)\ncells = rk.evaluate(study) if text == "3" else None\n'),
        (START + "def ask(study):\n    return rk.evaluate(study)\n", "cells = ask(study)\n"),
        (START + "for length in study.lengths:\n    cells = rk.evaluate(study)\n",),
        (START, "if study.models:\n    cells = rk.evaluate(study)\n"),
        ("get_ipython()\nassert __name__ == '__main__'\n" + START + "print(rk.evaluate(study))\n",),
    ],
    ids=[
        "plain",
        "in-a-call",
        "answers-used",
        "by-name",
        "magics",
        "cell-magic",
        "percent",
        "def",
        "loop",
        "if",
        "ipython",
    ],
)
def test_what_is_asked_is_found_wherever_it_stands(
    cells: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(*cells) == ASKED
    assert capsys.readouterr().out == ""


def test_two_questions_are_joined_and_the_larger_number_counts() -> None:
    more = 'rk.evaluate(rk.study(globals(), num_examples=5, tasks=["fwe", "vt"]))\n'
    found = asked(
        START,
        more,
        "cells = rk.evaluate(study)\n",
        'rk.evaluate(rk.study(globals(), lengths=["2K"]))\n',
    )
    assert sorted(found) == [
        ("perfect", "fwe", 1024, 5),
        ("perfect", "vt", 1024, 5),
        ("perfect", "vt", 2048, 2),
    ]


def test_parameters_take_the_place_that_papermill_gives_them() -> None:
    cells = (START.replace("study =", "lengths = lengths * 2\nstudy ="), "rk.evaluate(study)\n")
    given = {"num_examples": 7, "models": ["mute", "reader-4096"], "lengths": [2048]}
    assert asked(*cells, **given) == [("mute", "vt", 2048, 7), ("reader-4096", "vt", 2048, 7)]


@pytest.mark.parametrize("source", [START, "1\n", "# nothing\n", 'study = "evaluate(study)"\n'])
def test_a_notebook_that_asks_nobody_is_not_run(source: str) -> None:
    assert asked(source + 'raise RuntimeError("nobody runs this")\n') == []


@pytest.mark.parametrize(
    ("cells", "parameters", "says"),
    [
        (
            (START + "rk.evaluate(study)\n",),
            {"lenghts": [1024]},
            "unknown parameter 'lenghts': did you mean 'lengths'",
        ),
        (
            (START + "rk.evaluate(study)\n",),
            {"num_examples": 0},
            "num_examples: 0 is not allowed; it takes a whole number",
        ),
        (
            (START + "rk.evaluate(study)\n",),
            {"tasks": ["vtt"]},
            "unknown task 'vtt': did you mean 'vt'",
        ),
        (
            ("import no_such_module\n" + START, "rk.evaluate(study)\n"),
            {},
            "ModuleNotFoundError: No module named",
        ),
        ((START + "1 / 0\n", "rk.evaluate(study)\n"), {}, "ZeroDivisionError: division by zero"),
        (
            (START + "cells = rk.evaluate(study)\ncells[0]\nrk.evaluate(study)\n",),
            {},
            "IndexError: .*line of its own",
        ),
        (
            (START + "if study:\ncells = rk.evaluate(study)\n",),
            {},
            "(SyntaxError|IndentationError): expected an indented",
        ),
        ((START, "a = rk.evaluate(study)[0], rk.evaluate(study)\n"), {}, "IndexError"),
        (
            (START, "rk.evaluate(study)\n", "rk.evaluate(rk.study(globals(), lengths=[]))\n"),
            {},
            "lengths: .*list",
        ),
        (
            (START, "for n in (2, 4):\n    rk.evaluate(rk.study(globals(), num_examples=n))[0]\n"),
            {},
            "IndexError",
        ),
    ],
)
def test_what_fails_before_the_last_question_is_told_in_one_line(
    cells: tuple[str, ...], parameters: dict[str, Any], says: str
) -> None:
    """A question that is not heard in planning would be missing when its notebook is executed."""
    with pytest.raises(UserError, match=f"^mine(:| cannot be planned) .*{says}") as error:
        asked(*cells, **parameters)
    assert "\n" not in str(error.value)


def test_nobody_is_asked_and_no_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's module would fail at once, and nothing is answered twice by planning within a
    question."""
    spec = {"name": "absent", "entry": "no_such_module:load"}
    assert asked(START + "rk.evaluate(study)\n", model=spec) == [("absent", "vt", 1024, 2)]


def test_a_wrong_parameter_of_any_notebook_stops_a_batch_before_it_begins() -> None:
    notebook(
        Path("notebooks/mine.ipynb"),
        PARAMETERS,
        START.replace("globals()", 'globals(), tasks=["vt", 3]') + "rk.evaluate(study)\n",
    )
    Path("params/mine.yaml").write_text('{"models": ["perfect"], "notebooks": ["mine"]}')
    with pytest.raises(UserError, match=r"^mine: .*3"):
        read_batch(Path("params/mine.yaml"))

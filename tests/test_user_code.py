"""What tells a Python function from a changed one: its name and source, or the user's `version`."""

import subprocess
import sys
from functools import partial

import pytest

import rulerkit as rk
from rulerkit.common.errors import UserError

RATIO = 0.5


def plain(prompts):
    import re

    return [re.sub("a", "b", "a") for _ in prompts]


def names_a_global(prompts):
    return [str(RATIO) for _ in prompts]


def calls_another(prompts):
    def inner(prompt):
        return plain([prompt])[0]

    return [inner(prompt) for prompt in prompts]


class Holder:
    def __init__(self, ratio):
        self.ratio = ratio

    def __call__(self, prompts):
        return [f"ratio {self.ratio}" for _ in prompts]


def asked(function, folder, **spec):
    model = rk.model(function, name="m", **spec)
    one = {"tasks": ["niah_single_1"], "lengths": [1024], "num_examples": 1}
    study = rk.study(model=model, outputs=folder, **one)
    (cell,) = rk.evaluate(study, progress=False)
    (again,) = rk.evaluate(study, progress=False)
    assert [row["pred"] for row in again.rows] == [row["pred"] for row in cell.rows]
    return cell.rows[0]["pred"]


def test_an_object_whose_parameters_nobody_knows_is_a_model(tmp_path):
    class Equal:
        """`inspect` finds no signature of what cannot be a key."""

        def __eq__(self, other):
            return True

        def __call__(self, prompts):
            return ["x" for _ in prompts]

    assert asked(Equal(), tmp_path, version="1", tokenizer="builtin") == "x"


@pytest.mark.parametrize(
    ("function", "is_enough"),
    [
        (plain, True),
        (names_a_global, False),
        (calls_another, False),
        (Holder(1), False),
        (partial(plain), False),
        (eval("lambda prompts: prompts"), False),
    ],
)
def test_what_the_source_does_not_say(function, is_enough):
    identity = rk.model(function, name="m").identity()
    assert ("source" in identity) == is_enough
    assert ("version" in identity) != is_enough


@pytest.mark.slow
def test_a_function_of_its_source_goes_on_and_a_changed_one_is_refused(tmp_path, capsys):
    def use(text):
        (tmp_path / "mine.py").write_text(
            "import rulerkit as rk\n"
            f"def answer(prompts): return [{text!r} for _ in prompts]\n"
            "study = rk.study(model=rk.model(answer, name='m'), tasks=['niah_single_1'],\n"
            "                 lengths=[1024], num_examples=1)\n"
            "print(rk.evaluate(study, progress=False)[0].rows[0]['pred'])\n"
        )
        command = [sys.executable, "mine.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    first, again, changed = use("one"), use("one"), use("two")
    assert first.stdout == again.stdout == "one\n"
    assert "version" not in first.stderr
    assert "was made with model.source" in changed.stderr


def test_any_other_goes_on_with_the_same_version_alone(tmp_path, capsys):
    assert asked(Holder(0.5), tmp_path / "free") == "ratio 0.5"
    said = capsys.readouterr().err
    assert said.count("only with the same `version`") == 1
    with pytest.raises(UserError, match="with the same `version` goes on") as caught:
        asked(Holder(0.5), tmp_path / "free")
    assert "\n" not in str(caught.value)

    capsys.readouterr()
    named = tmp_path / "named"
    assert asked(Holder(0.5), named, version="1") == "ratio 0.5"
    assert asked(Holder(0.9), named, version="1") == "ratio 0.5"
    with pytest.raises(UserError, match=r'made with model.version "1", now it is "2"'):
        asked(Holder(0.9), named, version="2")
    assert "with the same `version`" not in capsys.readouterr().err


def test_an_entry_needs_a_version_where_it_names_code_of_the_user(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_entry.py").write_text(
        "RATIO = 0.5\ndef load():\n    return [RATIO].copy\n"
        "def free():\n    return lambda prompts: prompts\n"
    )
    entry = {"name": "m", "entry": "my_entry:load"}
    assert rk.load_model(entry).identity()["version"].startswith("none, run ")
    assert rk.load_model({**entry, "version": "1"}).identity()["version"] == "1"
    assert "version" not in rk.load_model({"name": "m", "entry": "my_entry:free"}).identity()

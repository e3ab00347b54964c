"""Small models: trained here on new examples, stopped and resumed, and the one that is shipped."""

import json

import pytest

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.common.paths import resolve
from rulerkit.evaluation.study import load_files
from tests.projects import REPOSITORY

torch = pytest.importorskip("torch")
SMALL = load_files(["params/sizes/small.yaml"])
SHAPE = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16}
SHAPE |= {"intermediate_size": 16, "num_attention_heads": 2}


def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    from rulerkit.inference import training
    from rulerkit.inference.training import train

    monkeypatch.setattr(training, "EVERY", 1)
    monkeypatch.setattr(training, "TOKENS", 512)
    tasks = rk.study(SMALL).tasks[:3]
    weights, histories = [], []
    for name, minutes in (("whole", None), ("parts", 0)):
        given = (training.CONFIG | SHAPE, tmp_path / name, tasks, 200, 3)
        reports = []
        while len(reports) < 3:
            history = train(*given, minutes=minutes, report=reports.append)
        assert [len(report) for report in reports] == [1, 2, 3]
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
        histories.append(history.drop(columns="seconds"))
        assert json.loads((tmp_path / name / "training.json").read_text())["steps"] == 3
    assert weights[0] == weights[1]
    assert histories[0].equals(histories[1])
    again = train(*given, report=pytest.fail)
    assert again.equals(history.round(4)), "what is complete is not done again"
    with pytest.raises(UserError, match="another training"):
        train(*given, seed=1)
    with pytest.raises(
        UserError, match="steps: 0 is not allowed; it takes a whole number"
    ):
        train(*given[:-1], 0)
    for wrong, says in (
        ({"curriculum": [1, 2, 3]}, r"curriculum: \[1, 2, 3\] .* a list of points"),
        ({"minutes": "one"}, "minutes: 'one' is not allowed; it takes a number"),
        (
            {"config": SHAPE | {"model_type": "llamma"}},
            "of the architecture llamma .*Unrecognized",
        ),
    ):
        arguments = {
            "config": SHAPE,
            "folder": tmp_path / "wrong",
            "tasks": tasks,
            "length": 200,
        }
        with pytest.raises(UserError, match=says):
            train(**(arguments | wrong), steps=3)
    assert not (tmp_path / "wrong").exists(), (
        "so that the right values are not refused there"
    )


@pytest.mark.parametrize(
    ("name", "length"), [("small-llama", 256), ("small-mamba2", 512)]
)
def test_shipped_models_answer_single_needles(tmp_path, name, length):
    """The Llama at its training length, the Mamba-2 at twice that."""
    tasks = [
        task
        for task in SMALL["tasks"]
        if task["base"] in ("niah_single_1", "niah_single_2")
    ]
    asked = SMALL | {"tasks": tasks, "lengths": [length], "num_examples": 10}
    scores = rk.score(rk.evaluate(rk.study(asked, model=name, outputs=tmp_path)))
    assert scores["score"].mean() >= 0.9


def test_the_weights_are_small_and_found_from_any_project(tmp_path, monkeypatch):
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    folder = resolve("rulerkit/data/small")
    assert folder == REPOSITORY / "rulerkit/data/small"
    assert sum(file.stat().st_size for file in folder.rglob("*.safetensors")) < 12e6
    for file in sorted((REPOSITORY / "params/models").glob("small-*.yaml")):
        model = rk.load_model(load_files([file])["model"])
        assert model.too_long(max(SMALL["lengths"])) is None
        assert (resolve(model.spec["path"]) / "model.safetensors").is_file(), file

"""Small models: trained by the script of notebook 18, stopped and resumed, and those that are
kept."""

import json
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import papermill
import pytest
import yaml

import rulerkit as rk
from rulerkit.common.errors import UserError
from rulerkit.common.paths import resolve
from rulerkit.evaluation.study import load_files
from tests.projects import REPOSITORY

SCRIPT = REPOSITORY / "notebooks/train_small_models.py"
SMALL = load_files(["params/sizes/small.yaml"])
SHAPE = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16}
SHAPE |= {"intermediate_size": 16, "num_attention_heads": 2}
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="training needs torch")


@pytest.fixture(scope="module")
def training():
    """The names of the script."""
    return SimpleNamespace(**runpy.run_path(str(SCRIPT)))


def test_a_training_that_was_stopped_ends_as_if_it_had_not_been(tmp_path, monkeypatch, training):
    train = training.train
    monkeypatch.setitem(train.__globals__, "EVERY", 1)
    monkeypatch.setitem(train.__globals__, "TOKENS", 512)
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


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"steps": 0}, "steps: 0 is invalid: expected a whole number"),
        ({"curriculum": [1, 2, 3]}, "a list of points"),
        ({"rates": [0.1]}, "expected two numbers"),
        ({"minutes": "one"}, "expected a number"),
        ({"config": SHAPE | {"model_type": "llamma"}}, "of the architecture llamma .*Unrecognized"),
    ],
)
def test_what_is_no_training_is_refused_before_its_folder_is_made(tmp_path, training, wrong, says):
    tasks = rk.study(SMALL).tasks[:1]
    given = {"config": SHAPE, "folder": tmp_path / "m", "tasks": tasks, "length": 200, "steps": 3}
    with pytest.raises(UserError, match=says):
        training.train(**(given | wrong))
    assert not (tmp_path / "m").exists(), "so that the right values are not refused there"


def test_adamw_alone_trains_all_weights(tmp_path, training):
    tasks = rk.study(SMALL).tasks[:2]
    config = training.CONFIG | SHAPE
    history = training.train(config, tmp_path, tasks, 128, 2, rates=[0, 0.004])
    assert history["step"].tolist() == [2]


@pytest.mark.slow
def test_the_script_runs_from_the_command_line(tmp_path):
    call = [sys.executable, str(SCRIPT), "mine", "--steps", "2", "--config", json.dumps(SHAPE)]
    first = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert first.stdout.split()[:2] == ["step", "length"]
    assert (tmp_path / "mine/model.safetensors").is_file()
    other = subprocess.run([*call, "--seed", "1"], cwd=tmp_path, capture_output=True, text=True)
    assert other.returncode == 2
    assert "holds the values of another training" in other.stderr
    assert "Traceback" not in other.stderr


TINY = {"steps": 2, "layers": 1, "width": 16, "lengths": [256], "num_examples": 1}
TINY |= {"more": {"intermediate_size": 16, "num_attention_heads": 2}, "name": "mine"}


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["", "notebooks"])
def test_notebook_18_finds_its_script_from_the_root_and_from_its_folder(tmp_path, folder):
    """As papermill and `rulerkit batch` start it, and as JupyterLab does."""
    source = REPOSITORY / "notebooks/18_train_small_models.ipynb"
    given = TINY | {"outputs": str(tmp_path)}
    papermill.execute_notebook(
        source, tmp_path / "out.ipynb", given, progress_bar=False, cwd=REPOSITORY / folder
    )
    assert (tmp_path / "models/mine/model.safetensors").is_file()
    assert (tmp_path / "figures/main/18_train_small_models/mine-training.png").is_file()


@pytest.mark.slow
def test_notebook_18_runs_in_a_batch_of_another_project(tmp_path, monkeypatch, rulerkit):
    """Its script is that of the project, a copy of the kit's."""
    for name in ("18_train_small_models.ipynb", SCRIPT.name):
        (tmp_path / "notebooks").mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / "notebooks" / name, tmp_path / "notebooks")
    (tmp_path / "params").mkdir()
    batch = {"models": ["mute"], "notebooks": ["18_train_small_models"], "parameters": TINY}
    (tmp_path / "train.yaml").write_text(yaml.safe_dump(batch))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    assert rulerkit("batch", "train.yaml").status == 0
    assert (tmp_path / "outputs/models/mine/model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "length"), [("small-llama", 256), ("small-mamba2", 512)])
def test_kept_models_answer_single_needles(tmp_path, name, length):
    """The Llama at its training length, the Mamba-2 at twice that."""
    tasks = [task for task in SMALL["tasks"] if task["base"] in ("niah_single_1", "niah_single_2")]
    asked = SMALL | {"tasks": tasks, "lengths": [length], "num_examples": 10}
    scores = rk.score(rk.evaluate(rk.study(asked, model=name, outputs=tmp_path)))
    assert scores["score"].mean() >= 0.9


def test_the_weights_are_found_from_any_project(tmp_path, monkeypatch):
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    for file in sorted((REPOSITORY / "params/models").glob("small-*.yaml")):
        model = rk.load_model(load_files([file])["model"])
        assert model.too_long(max(SMALL["lengths"])) is None
        assert (resolve(model.spec["path"]) / "model.safetensors").is_file(), file

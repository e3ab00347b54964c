"""Parameters: composed from files, completed by defaults, checked once, and what stands in them
found again by name."""

import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

import rulerkit as rk
from rulerkit.errors import UserError
from rulerkit.settings import Parameters, read_yaml
from rulerkit.studies import Study, expand, known_names, load_files, notebook_parameters, study
from rulerkit.tasks import THIRTEEN

REPOSITORY = Path(__file__).parents[1]


ALIASES = "".join(
    f"{key}: &{key} [{', '.join(9 * ['*' + base])}]\n"
    for base, key in zip("abcdef", "bcdefg", strict=True)
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project root of its own, with the repository's params/ and notebooks/; the working
    directory is elsewhere."""
    root = tmp_path / "project"
    for name in ("params", "notebooks"):
        shutil.copytree(REPOSITORY / name, root / name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return root


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(asked: Study) -> list[str]:
    return [model["name"] if isinstance(model, dict) else model.name for model in asked.models]


def notebook(path: Path, source: str) -> Path:
    cell: dict[str, Any] = {
        "cell_type": "code",
        "metadata": {"tags": ["parameters"]},
        "source": source,
    }
    return write(
        path, json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    )


def globals_of(injected: str, **values: Any) -> dict[str, Any]:
    """A notebook's globals behind papermill: its cells in `In`, the injected one among them, and
    all names set."""
    cells = [
        "",
        "lengths = [4096]\nsteps = 3",
        f"# Parameters\n{injected}",
        "import rulerkit as rk\nlenghts = 3",
    ]
    return {
        "In": cells,
        "get_ipython": lambda: None,
        "_i1": cells[1],
        "rk": rk,
        "lenghts": 3,
        **values,
    }


# --- defaults and composing -----------------------------------------------------------------------


def test_defaults(project: Path) -> None:
    asked = study()
    assert names(asked) == ["reader-8192"]
    assert tuple(task.name for task in asked.tasks) == THIRTEEN
    assert asked.lengths == (4096, 8192, 16384, 32768)
    assert (asked.num_examples, asked.seed, asked.run, asked.corpora) == (20, 42, "main", "builtin")
    assert asked.outputs == project / "outputs"
    assert asked.predictions == project / "outputs/predictions/main"


def test_the_notebook_has_the_same_defaults(project: Path) -> None:
    path = project / "notebooks/01_main_results.ipynb"
    cells = json.loads(path.read_text())["cells"]
    given: dict[str, Any] = {}
    exec(
        "".join(next(c for c in cells if "parameters" in c["metadata"].get("tags", []))["source"]),
        given,
    )
    left_out = ("repeat", "edition", "max_failures")
    defaults = {
        name: field.default
        for name, field in Parameters.model_fields.items()
        if name not in left_out
    }
    assert {name: given[name] for name in defaults} == defaults


def test_files_compose_and_later_ones_win(project: Path, tmp_path: Path) -> None:
    mine = write(tmp_path / "elsewhere/mine.yaml", "num_examples: 3\nrun: second\n")
    merged = load_files(
        ["params/models/reader-4096.yaml", project / "params/sizes/paper.yaml", "mine.yaml"]
    )
    assert merged == load_files(["params/models/reader-4096.yaml", "params/sizes/paper.yaml", mine])
    asked = study(merged)
    assert names(asked) == ["reader-4096"]
    assert asked.lengths == (4096, 8192, 16384, 32768, 65536, 131072)
    assert (asked.num_examples, asked.run, asked.corpora) == (3, "second", "original")


def test_keywords_win_over_the_source(project: Path) -> None:
    assert study({"seed": 1, "num_examples": 5}, seed=2).seed == 2
    assert study({"seed": 1, "num_examples": 5}, seed=2).num_examples == 5


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "params").glob("[ms]*/*.yaml")), ids=lambda path: path.stem
)
def test_every_file_of_params_can_be_used(path: Path) -> None:
    asked = study(load_files([path]))
    assert asked.title == (path.stem if path.parent.name == "models" else "reader-8192")


# --- models ---------------------------------------------------------------------------------------


def test_a_model_file_with_a_mapping_and_a_base(project: Path) -> None:
    text = "model: {base: llama-3.1-8b, path: checkpoints/1000, name: r7-1000, label: Ours}"
    write(project / "params/models/ours.yaml", text)
    for source in (
        load_files(["params/models/ours.yaml"]),
        {"model": "ours"},
        {"models": ["ours"]},
    ):
        (model,) = study(source).models
        assert isinstance(model, dict)
        assert (model["name"], model["label"], model["path"]) == (
            "r7-1000",
            "Ours",
            "checkpoints/1000",
        )
        assert (model["claimed_length"], model["engine"]) == (131072, "vllm")


def test_a_variant_has_a_stable_folder_safe_name(project: Path) -> None:
    spec = {"base": "llama-3.1-8b", "template": "base"}
    assert (
        names(study(model=spec))
        == names(study(model=dict(reversed(spec.items()))))
        == ["llama-3.1-8b-template_base"]
    )


def test_globs_expand_below_the_project_root(project: Path, tmp_path: Path) -> None:
    for step in (2000, 1000, 3000):
        (project / f"checkpoints/r7-{step}").mkdir(parents=True)
    (tmp_path / "elsewhere/checkpoints/r7-9000").mkdir(parents=True)
    asked = study(models=["perfect", "checkpoints/r7-*"])
    assert names(asked) == ["perfect", "r7-1000", "r7-2000", "r7-3000"]
    assert expand(["mute", "checkpoints/r7-[12]000"]) == [
        "mute",
        *(str(project / f"checkpoints/r7-{step}") for step in (1000, 2000)),
    ]
    assert names(study(models=["params/models/reader-[0-9]*.yaml"])) == [
        "reader-16384",
        "reader-32768",
        "reader-4096",
        "reader-8192",
    ]


def test_models_win_over_model_and_none_leaves_it(project: Path) -> None:
    assert names(study(model="mute", models=["perfect", "reader-16K"])) == [
        "perfect",
        "reader-16384",
    ]
    assert names(study(model="mute", models=None)) == ["mute"]
    assert names(study(model=None)) == []


def test_models_made_in_python(project: Path) -> None:
    echo = rk.model(lambda prompts: [prompt[-5:] for prompt in prompts], name="echo")
    asked = study(
        notebook="01_main_results",
        models=["mute", echo],
        tasks=["vt"],
        lengths=[1024],
        num_examples=2,
    )
    assert asked.models[1] is echo
    assert asked.title == "mute+echo"
    mute, cell = rk.evaluate(asked, progress=False)
    assert (mute.model, cell.model) == ("mute", "echo")
    assert all(len(row["pred"]) == 5 for row in cell.rows)
    assert cell.path == project / "outputs/predictions/main/echo/vt/1024.jsonl"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"model": 5},
            "a model is a name, a path, a hub id or a mapping (several stand in `models`); seen: 5",
        ),
        ({"model": ["mute"]}, "several stand in `models`"),
        ({"models": [5]}, "a model is a name, a path, a hub id or a mapping"),
        ({"models": "mute"}, "-y 'models: [reader-4096, reader-8192]'"),
        ({"models": []}, "models: [] is not allowed; it takes a list"),
        ({"models": ["mute", {"base": "mute"}]}, "mute stands there twice"),
        ({"models": ["nothing/*"]}, "nothing matches 'nothing/*'"),
        ({"model": "raeder-8192"}, "did you mean 'reader-8192'"),
        ({"model": {"base": "reader-8192", "windw": 3}}, "did you mean 'window'"),
        ({"model": {"base": "perfect", "name": "a/b"}}, "cannot name a folder"),
    ],
)
def test_what_is_no_model(project: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        study(given)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


# --- tasks and corpora ----------------------------------------------------------------------------


def test_tasks_with_base_and_knobs(project: Path) -> None:
    asked = study(
        tasks=[
            "vt",
            {"base": "niah_multikey_1", "num_keys": 8},
            {"base": "vt", "num_hops": 2, "name": "v2"},
        ]
    )
    assert [task.name for task in asked.tasks] == ["vt", "niah_multikey_1-num_keys_8", "v2"]
    assert [task.settings().get("num_keys") for task in asked.tasks] == [None, 8, None]
    assert asked.tasks[2].settings()["num_hops"] == 2
    assert len(study(tasks=["vt", "vt"]).tasks) == 1


def test_corpora_reach_every_task(project: Path) -> None:
    tasks = ["niah_single_2", "qa_1", "qa_2", "vt"]
    settings = [task.settings() for task in study(tasks=tasks, corpora="original").tasks]
    assert [each.get("essays") for each in settings] == ["paul_graham", None, None, None]
    assert [each.get("dataset") for each in settings] == [None, "squad", "hotpotqa", None]
    assert all(
        source.stand_in for task in study(tasks=tasks).tasks for source in task.sources().values()
    )


# --- values ---------------------------------------------------------------------------------------


def test_lengths_are_read_sorted_and_counted_once(project: Path) -> None:
    assert study(lengths=["8K", 4096, "4096", 8192]).lengths == (4096, 8192)


def test_python_may_give_tuples(project: Path) -> None:
    asked = study(models=("mute", "perfect"), tasks=THIRTEEN[:2], lengths=(4096,))
    assert (names(asked), len(asked.tasks), asked.lengths) == (["mute", "perfect"], 2, (4096,))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"num_exampels": 3}, "did you mean 'num_examples'"),
        ({"tasks": "vt"}, "with papermill: -y 'tasks: [niah_single_1, vt]'"),
        ({"tasks": []}, "tasks: [] is not allowed; it takes a list"),
        ({"tasks": [5]}, "a task is a name or a mapping"),
        ({"tasks": ["vtt"]}, "did you mean 'vt'"),
        ({"tasks": [{"base": "vt", "num_hopz": 3}]}, "did you mean 'num_hops'"),
        ({"lengths": 4096}, "with papermill: -y 'lengths: [4096, 8192]'"),
        (
            {"lengths": ["4X"]},
            "lengths: ['4X'] is not allowed; it takes a list of tokens from 1 to 16M",
        ),
        ({"lengths": [[4096]]}, "lengths: [[4096]] is not allowed"),
        ({"lengths": [4096.0]}, "lengths: [4096.0] is not allowed"),
        ({"lengths": [0]}, "lengths: [0] is not allowed"),
        ({"lengths": [2**24 + 1]}, "it takes a list of tokens from 1 to 16M"),
        ({"lengths": ["9" * 5000]}, "it takes a list of tokens from 1 to 16M"),
        ({"lengths": [date(2024, 1, 2)]}, "it takes a list of tokens from 1 to 16M"),
        ({"num_examples": 0}, "a whole number from 1 to 1000000"),
        ({"num_examples": 10**6 + 1}, "a whole number from 1 to 1000000"),
        ({"num_examples": True}, "a whole number from 1 to 1000000"),
        ({"seed": -1}, "a whole number from 0 on"),
        ({"seed": 2**63}, "a whole number from 0 on, below 2**63"),
        ({"run": ".."}, "names a folder"),
        ({"run": "a\n"}, "names a folder"),
        ({"run": "a" * 101}, "names a folder: at most 100 letters"),
        ({"run": False}, "run: False is not allowed; it takes what names a folder"),
        ({"run": 1.1}, "put a text that looks like a number in quotes"),
        (
            {"tasks": [{"base": "vt", "num_hops": 10**6}]},
            "it must be a whole number from 1 to 100000",
        ),
        (
            {"tasks": [{"base": "vt", "num_chains": 9000}]},
            "ask for 45000 items: they may ask for at most 10000",
        ),
        (
            {"tasks": [{"base": "niah_multikey_1", "num_values": 10**5}]},
            "they may ask for at most 100000",
        ),
        (
            {"tasks": [{"base": "fwe", "word_length": 101}]},
            "it must be a whole number from 1 to 100",
        ),
        ({"tasks": [{"base": "vt", "name": "a" * 201}]}, "at most 200 letters"),
        ({"corpora": "orginal"}, "did you mean 'original'"),
        ({"outputs": 5}, "the path of a folder"),
    ],
)
def test_values_that_are_not_allowed(project: Path, given: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        study(given)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_run_may_be_a_number(project: Path) -> None:
    assert study(run=2).predictions == project / "outputs/predictions/2"


def test_relative_paths_count_from_the_project_root(project: Path, tmp_path: Path) -> None:
    assert study(outputs="results/a").outputs == project / "results/a"
    assert study(outputs=str(tmp_path / "b")).outputs == tmp_path / "b"
    (project / "checkpoints/one").mkdir(parents=True)
    assert names(study(model="checkpoints/one")) == ["one"]
    (tmp_path / "elsewhere/checkpoints/two").mkdir(parents=True)
    with pytest.raises(UserError, match=r"no folder .*project/checkpoints/two"):
        rk.load_model({"path": "checkpoints/two"})


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds nothing: it must hold `name: value` lines"),
        ("- 1\n- 2\n", "holds a list"),
        ("1: 2\n", "it must hold `name: value` lines"),
        ("lengths: [4096", "is not YAML"),
        ("num_exampels: 3", "unknown parameter in"),
        ("run: a\nseed: 1\nrun: b\n", "the key 'run' stands twice"),
        ("model: {base: mute, label: a, label: b}", "the key 'label' stands twice"),
        (
            "run: no",
            "'no' is not a plain value: write numbers as 10 or 0.5, truth as true or false, and "
            "any",
        ),
        ("seed: 010", "'010' is not a plain value"),
        ("seed: 1_000", "'1_000' is not a plain value"),
        ("run: 2024-05-13", "'2024-05-13' is not a plain value"),
        ("lengths: [1:30]", "'1:30' is not a plain value"),
        ("a: &a [1,1,1,1,1,1,1,1,1,1]\n" + ALIASES, "it holds more than 100000 values"),
        ("models: [mute]\nnotebooks: [01_main_results]\n", "unknown parameter in"),
    ],
)
def test_files_that_hold_no_parameters(project: Path, text: str, says: str) -> None:
    path = write(project / "params/broken.yaml", text)
    with pytest.raises(UserError) as error:
        load_files([path])
    assert says in str(error.value)
    assert "broken.yaml" in str(error.value)
    assert "\n" not in str(error.value)


def test_merged_keys_of_yaml_may_be_overridden(project: Path) -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {<<: *a, x: 2}\nc: {<<: *b, x: 3}\n"
    content = read_yaml(write(project / "params/merged.yaml", text))
    assert content == {"a": {"x": 1, "y": 1}, "b": {"x": 2, "y": 1}, "c": {"x": 3, "y": 1}}


def test_files_that_cannot_be_read(project: Path) -> None:
    with pytest.raises(
        UserError, match=r"cannot read .*nothere.yaml: No such file .*; parameter files lie in"
    ):
        load_files(["nothere.yaml"])
    with pytest.raises(UserError, match="Is a directory"):
        load_files(["params"])
    (project / "latin.yaml").write_bytes("run: caf\xe9".encode("latin-1"))
    with pytest.raises(UserError, match="is not YAML"):
        read_yaml(project / "latin.yaml")


# --- notebooks ------------------------------------------------------------------------------------


def test_in_a_notebook_only_known_names_are_read(project: Path) -> None:
    source = globals_of(
        "num_examples = 3\nlengths = [8192]", num_examples=3, lengths=[8192], seed=7, text="x"
    )
    asked = study(source, notebook="01_main_results")
    assert (asked.num_examples, asked.lengths, asked.seed) == (3, (8192,), 7)


def test_what_papermill_injects_and_nobody_knows_is_an_error(project: Path) -> None:
    with pytest.raises(
        UserError, match="unknown parameter 'num_exampels': did you mean 'num_examples'"
    ):
        study(globals_of("num_exampels = 3", num_exampels=3))


def test_parameters_of_another_notebook_may_pass(project: Path) -> None:
    source = globals_of("steps = 3", steps=3)
    with pytest.raises(UserError, match="unknown parameter 'steps'"):
        study(source)
    notebook(
        project / "notebooks/90_training.ipynb",
        "steps: int = 10  # of training\nlengths = [4096]\n",
    )
    assert notebook_parameters(project / "notebooks/90_training.ipynb") == ["steps", "lengths"]
    assert set(known_names()) >= {*Parameters.model_fields, "steps"}
    assert study(source).num_examples == 20
    write(project / "params/steps.yaml", "steps: 4\nseed: 5\n")
    assert study(load_files(["params/steps.yaml"])).seed == 5


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        "{}",
        '{"cells": [1]}',
        '{"cells": 5}',
        '{"cells": [{"metadata": {"tags": ["parameters"]}}]}',
    ],
)
def test_a_broken_notebook_is_named(project: Path, text: str) -> None:
    write(project / "notebooks/90_broken.ipynb", text)
    with pytest.raises(
        UserError, match=r"90_broken.ipynb is no notebook: .*; repair it, or move it out of"
    ):
        study(seed=3)


def test_a_parameters_cell_that_is_no_python_is_named(project: Path) -> None:
    notebook(project / "notebooks/90_broken.ipynb", "a = 1\nb = = 2\n")
    with pytest.raises(
        UserError, match=r"90_broken.ipynb: the cell tagged `parameters` .* line 2: invalid syntax"
    ):
        study(seed=3)


# --- where tables and figures go ------------------------------------------------------------------


def test_tables_are_named_after_the_models_they_show(project: Path) -> None:
    asked = study(notebook="01_main_results", models=["perfect", "reader-4096"], run="second")
    folder = project / "outputs/tables/second/01_main_results"
    assert asked.save_table("a | b", suffix=".md") == folder / "perfect+reader-4096.md"
    assert asked.save_table("a,b", "tasks", ".csv") == folder / "perfect+reader-4096-tasks.csv"
    assert (folder / "perfect+reader-4096.md").read_text() == "a | b"
    many = study(models=[f"reader-{window}" for window in range(1000, 1020)])
    assert len(many.title) <= 80
    assert many.title.endswith("+etc")


def test_figures_are_saved_as_pdf_and_png(project: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    asked = study(notebook="00_tasks", model=None)
    folder = project / "outputs/figures/main/00_tasks"
    assert asked.save_figure(axes, "figure_1") == [folder / "figure_1.pdf", folder / "figure_1.png"]
    assert (folder / "figure_1.pdf").read_bytes().startswith(b"%PDF")
    assert (folder / "figure_1.png").read_bytes().startswith(b"\x89PNG")


def test_an_outputs_folder_that_cannot_be_written_is_one_line(project: Path) -> None:
    from matplotlib.figure import Figure

    write(project / "results", "a file where a folder should be")
    asked = study(outputs="results")
    with pytest.raises(
        UserError, match=r"cannot write .*results/tables.*: Not a directory; choose .* `outputs:`"
    ):
        asked.save_table("text")
    with pytest.raises(UserError, match=r"cannot write .*results/figures.*: Not a directory"):
        asked.save_figure(Figure())
    assert (project / "results").read_text() == "a file where a folder should be"


def test_parameters_survive_yaml(project: Path) -> None:
    """What a batch writes as -y is read back as it was."""
    given = {
        "model": {"base": "reader-4096", "window": "4K"},
        "tasks": [{"base": "fwe", "alpha": 2.5}],
        "lengths": [1024],
    }
    again = yaml.safe_load(yaml.safe_dump(given, default_flow_style=True, width=10**6))
    assert study(again) == study(given)


def test_a_repeated_study_has_a_folder_for_each_repetition(tmp_path: Path) -> None:
    asked = study(
        {
            "model": "perfect",
            "tasks": ["niah_single_1"],
            "lengths": [1024],
            "num_examples": 2,
            "repeat": 2,
        },
        outputs=tmp_path,
    )
    cells = rk.evaluate(asked, progress=False)
    assert [cell.run for cell in cells] == ["main", "main-repeat2"]
    assert [row["digest"] for row in cells[0].rows] == [row["digest"] for row in cells[1].rows]


def test_the_last_model_stays_loaded_until_another_is_asked_for(project: Path) -> None:
    loads, closed = [], []

    def build(name: str) -> Any:
        made = rk.model(lambda prompts: [name] * len(prompts), name=name)
        made.close = lambda: closed.append(name)
        loads.append(name)
        return made

    one, two = build("one"), build("two")
    small = {"tasks": ["niah_single_1"], "lengths": [1024]}
    rk.evaluate(study(model=one, num_examples=1, **small), progress=False)
    rk.evaluate(study(model=one, num_examples=2, **small), progress=False)
    assert closed == []
    rk.evaluate(study(models=[one, two], num_examples=3, **small), progress=False)
    assert closed == ["one"]
    with pytest.raises(rk.UserError):
        rk.evaluate(study(model=two, tasks=["cwe"], lengths=[128], num_examples=1), progress=False)
    assert closed == ["one"]
    rk.close()
    assert closed == ["one", "two"]


def test_a_model_that_breaks_off_keeps_its_answers_and_the_next_one_runs(
    project: Path, capsys: Any
) -> None:
    def broken(prompts: list[str]) -> list[str]:
        if len(calls) > 2:
            raise rk.UserError("the key is refused")
        calls.append(prompts)
        return ["?"] * len(prompts)

    calls: list[list[str]] = []
    models = [rk.model(broken, name="broken", batch_size=1), "perfect"]
    asked = study(models=models, tasks=["niah_single_1"], lengths=[512, 1024], num_examples=2)
    cells = rk.evaluate(asked, progress=False)
    assert {(cell.model, cell.length): len(cell.rows) for cell in cells} == {
        ("broken", 512): 2,
        ("broken", 1024): 1,
        ("perfect", 512): 2,
        ("perfect", 1024): 2,
    }
    assert capsys.readouterr().err == "the key is refused\n"
    rk.close()

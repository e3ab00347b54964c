"""Parameters: composed from files, completed by defaults, checked once, and what stands in them
found again by name."""

import json
import math
import re

import pandas as pd
import pytest

import rulerkit as rk
from rulerkit.cli.given import study_of
from rulerkit.common.errors import UserError
from rulerkit.common.render import render, table_files
from rulerkit.common.settings import Parameters
from rulerkit.evaluation.notebook import known_names, notebook_parameters
from rulerkit.evaluation.study import load_files, study
from rulerkit.generation.tasks import THIRTEEN
from tests.projects import REPOSITORY


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty project root; the working directory is elsewhere."""
    root = tmp_path / "project"
    for folder in (root, tmp_path / "elsewhere"):
        folder.mkdir()
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return root


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(asked):
    return [model["name"] if isinstance(model, dict) else model.name for model in asked.models]


def notebook(path, source):
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": source}
    return write(path, json.dumps({"cells": [cell]}))


def globals_of(injected, **values):
    """A notebook's globals behind papermill: its cells in `In`, the injected one among them, and
    all names set."""
    cells = ["", "lengths = [4096]", f"# Parameters\n{injected}", "lenghts = 3"]
    return {"In": cells, "__name__": "__main__", "rk": rk, "lenghts": 3, **values}


def test_a_notebook_that_was_exported_as_a_script_is_read_by_its_globals(project):
    source = "import rulerkit as rk\nmine = 3\nlengths = [4096]\nstudy = rk.study(globals())\n"
    names = {"__name__": "__main__"}
    exec(source, names)
    assert names["study"].lengths == (4096,)


def test_defaults_are_those_of_the_notebook(project):
    asked = study()
    assert names(asked) == ["reader-8192"]
    assert tuple(task.name for task in asked.tasks) == THIRTEEN
    assert asked.predictions == project / "outputs/predictions/main"
    cells = json.loads((REPOSITORY / "notebooks/01_main_results.ipynb").read_text())["cells"]
    given = {}
    exec("".join(cells[1]["source"]), given)
    for name, field in Parameters.model_fields.items():
        assert name in ("max_failures", "plugins") or given[name] == field.default, name


def test_files_compose_and_later_ones_win(project, tmp_path):
    mine = write(tmp_path / "elsewhere/mine.yaml", "num_examples: 3\nrun: second\n")
    files = ["params/models/reader-4096.yaml", REPOSITORY / "params/sizes/paper.yaml"]
    merged = load_files([*files, "mine.yaml"])
    assert merged == load_files([*files, mine])
    asked = study(merged)
    assert names(asked) == ["reader-4096"]
    assert asked.lengths == (4096, 8192, 16384, 32768, 65536, 131072)
    assert (asked.num_examples, asked.run) == (3, "second")
    assert study(merged, seed=2).seed == 2


def test_every_file_of_params_can_be_used():
    for path in sorted((REPOSITORY / "params").glob("[ms]*/*.yaml")):
        asked = study(load_files([path]))
        assert asked.title == (path.stem if path.parent.name == "models" else "reader-8192")


def test_paths_count_from_the_project_root(project, tmp_path, monkeypatch):
    for step in (2000, 1000):
        (project / f"checkpoints/r7-{step}").mkdir(parents=True)
    (tmp_path / "elsewhere/checkpoints/r7-9000").mkdir(parents=True)
    asked = study(models=["perfect", "checkpoints/r7-2000", "checkpoints/r7-1000"])
    assert names(asked) == ["perfect", "r7-2000", "r7-1000"]
    with pytest.raises(UserError, match=r"no folder .*project/checkpoints/r7-9000"):
        rk.load_model({"path": "checkpoints/r7-9000"})
    here = write(tmp_path / "elsewhere/checkpoints/r7-9000/config.json", "{}").parent
    last = "./checkpoints/r7-9000"
    for model, settings in (([last], None), (None, [f"model: {last}"])):
        asked = study_of(model, None, None, None, None, settings)
        assert asked.models[0]["path"] == str(here)
    assert study(outputs="results/a").outputs == project / "results/a"
    assert study(outputs=str(tmp_path / "b")).outputs == tmp_path / "b"
    monkeypatch.delenv("RULERKIT_HOME")
    (tmp_path / "elsewhere/params").mkdir()  # as `rulerkit notebooks` makes it
    (tmp_path / "elsewhere/notebooks").mkdir()
    assert study(outputs="a").outputs == tmp_path / "elsewhere/a"


def test_models_win_over_model_and_may_be_made_in_python(project):
    assert names(study(model="mute", models=["reader-16K"])) == ["reader-16384"]
    assert names(study(model="mute", models=None)) == ["mute"]
    assert names(study(model=None)) == []
    echo = rk.model(lambda prompts: [prompt[-5:] for prompt in prompts], name="echo")
    asked = study(models=["mute", echo], tasks=["vt"], lengths=[1024], num_examples=2)
    assert asked.title == "mute+echo"
    cells = rk.evaluate(asked, progress=False)
    assert [cell.model for cell in cells] == ["mute", "echo"]
    assert all(len(row["pred"]) == 5 for row in cells[1].rows)
    assert cells[1].path == project / "outputs/predictions/main/echo/vt/1024.jsonl"


CHAIN = {"base": "vt", "num_hops": 2, "name": "chain"}
REFUSED = [
    ({"model": 5}, "a hub id or a mapping (several stand in `models`); seen: 5"),
    ({"models": "mute"}, "-y 'models: [reader-4096, reader-8192]'"),
    ({"models": ["mute", {"base": "mute"}]}, "models: mute named twice"),
    ({"models": ["nothing/*"]}, "there is no folder"),
    ({"model": {"base": "perfect", "name": "a/b"}}, "cannot name a folder"),
    ({"model": {"path": "a/b", "sampling": {"top_k": 0}}}, "sampling.top_k: 0 is invalid"),
    ({"tasks": [CHAIN, CHAIN | {"num_hops": 3}]}, "two different tasks are named chain"),
    ({"tasks": [CHAIN | {"name": "vt"}]}, "vt is another task's name"),
    ({"tasks": 3}, "with papermill: -y 'tasks: [niah_single_1, vt]'"),
    *(({"lengths": lengths}, "tokens from 1 to 16M") for lengths in (["4X"], [0], [2**24 + 1])),
    *(({"num_examples": number}, "from 1 to 1000000") for number in (0, 10**6 + 1, True)),
    *(({"run": run}, "names a folder") for run in ("..", "a\n", "a" * 101, False)),
    ({"corpora": "orginal"}, "expected one of builtin, original"),
]


@pytest.mark.parametrize(("given", "says"), REFUSED)
def test_what_is_refused_is_one_line(project, given, says):
    with pytest.raises(UserError) as error:
        study(given)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_variant_may_have_the_name_of_its_base(project):
    assert study(tasks=[{"base": "vt", "max_new_tokens": 60, "name": "vt"}]).tasks[0].name == "vt"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it must hold `name: value` lines"),
        ("lengths: [4096", "is not YAML"),
        ("model: {base: mute, label: a, label: b}", "the key 'label' stands twice"),
        ("seed: 010", "010 would be another number"),
        ("seed: 1:30", "1:30 would be another number"),
    ],
)
def test_files_that_hold_no_parameters(project, text, says):
    path = write(project / "params/broken.yaml", text)
    with pytest.raises(UserError, match=r"broken\.yaml") as error:
        load_files([path])
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_in_a_notebook_only_known_names_are_read(project):
    source = globals_of("num_examples = 3", num_examples=3, lengths=[8192], seed=7, text="x")
    asked = study(source, notebook="01_main_results")
    assert (asked.num_examples, asked.lengths, asked.seed) == (3, (8192,), 7)
    for wrong in ("num_exampels", "epochs"):
        with pytest.raises(UserError, match=f"unknown parameter '{wrong}'"):
            study(globals_of(f"{wrong} = 3"))
    path = notebook(
        project / "notebooks/90.ipynb", "epochs: int = 10  # of training\nlengths = [1]\n"
    )
    assert notebook_parameters(path) == ["epochs", "lengths"]
    assert set(known_names()) >= {*Parameters.model_fields, "epochs"}
    assert study(globals_of("epochs = 3", epochs=3)).num_examples == 20
    write(project / "params/epochs.yaml", "epochs: 4\nseed: 5\n")
    assert study(load_files(["params/epochs.yaml"])).seed == 5


def test_tables_and_figures_are_named_after_the_models_they_show(project):
    from matplotlib.figure import Figure

    asked = study(notebook="01_main", models=["perfect", "reader-4096"], run="second")
    table = asked.save_table("a | b", "tasks")
    assert table == project / "outputs/tables/second/01_main/perfect+reader-4096-tasks.md"
    assert table.read_text() == "a | b"
    frame = pd.DataFrame({"a_b": ["50 %", None], "n": [-1.23456, math.nan], "k": [131072, 2]})
    csv = asked.save_table(frame, "numbers")
    assert csv.read_text().startswith("a_b,n,k\n50 %,-1.23456,131072\n")
    tex = csv.with_suffix(".tex")
    *_, head, _, first, second, _, _ = tex.read_text().splitlines()
    assert head == r"\textbf{a\_b} & \textbf{n} & \textbf{k} \\"
    assert (first, second) == (r"50 \% & $-$1.235 & 131072 \\", r" &  & 2 \\")
    pdf, png = study(notebook="17_tasks", model=None).save_figure(Figure().subplots(), "figure_1")
    assert pdf == project / "outputs/figures/main/17_tasks/figure_1.pdf"
    assert (pdf.read_bytes()[:4], png.read_bytes()[1:4]) == (b"%PDF", b"PNG")
    tables = [asked.save_table(frame, "x", notes=["n = 5 %"]), asked.save_table(frame[:0], "x")]
    assert tables[0] == tables[1]
    assert not [*tables[1].parent.glob("*x*.tex")], "nothing to print"
    seven = [f"reader-{window}" for window in range(1000, 1007)]
    many, others = study(models=seven).title, study(models=[*seven[:6], "reader-2000"]).title
    assert len(many) <= 80
    assert re.fullmatch(r"(reader-\d{4}\+)+etc-\w{5}", many)
    assert many != others, "one would overwrite the other"


def test_latex_breaks_long_texts_and_keeps_notes_in_a_file_of_their_own(tmp_path):
    table = pd.DataFrame({"claim": ["long " * 20, "a"], "verdict": "holds", "n": [1.0, 2.0]})
    long = r">{\raggedright\arraybackslash}p{0.85\linewidth}"
    body, notes = table_files(tmp_path / "t.tex", render(table, "latex", ["n = 5 %"])).items()
    assert f"\\begin{{tabular}}{{{long}lr}}\n" in body[1]
    assert notes[0] == tmp_path / "t-notes.tex"
    assert "n = 5 \\%\n" in notes[1]
    assert "{lr}\n" in render(table[["verdict", "n"]], "latex")


def test_a_made_model_stays_until_another_is_asked_for(project):
    closed = []

    def build(name):
        made = rk.model(lambda prompts: [name] * len(prompts), name=name, version="1")
        made.close = lambda: closed.append(name)
        return made

    one, two = build("one"), build("two")
    small = {"tasks": ["niah_single_1"], "lengths": [1024]}
    both = study(models=[one, two], num_examples=3, **small)
    rk.evaluate(study(model=one, num_examples=1, **small), progress=False)
    assert closed == []
    # two was made by the caller, who closes it
    rk.evaluate(both, progress=False)
    assert closed == ["one"]


def test_a_model_that_breaks_off_keeps_its_answers_and_the_next_one_runs(project, capsys):
    def broken(prompts):
        if len(calls) > 2:
            raise rk.UserError("the key is refused")
        calls.append(prompts)
        return ["?"] * len(prompts)

    calls = []
    models = [rk.model(broken, name="broken", batch_size=1, version="1"), "perfect"]
    asked = study(models=models, tasks=["niah_single_1"], lengths=[512, 1024], num_examples=2)
    cells = rk.evaluate(asked, progress=False)
    rows = [(cell.model, cell.length, len(cell.rows)) for cell in cells]
    assert rows[:2] == [("broken", 512, 2), ("broken", 1024, 1)]
    assert rows[2:] == [("perfect", 512, 2), ("perfect", 1024, 2)]
    assert capsys.readouterr().err == "the key is refused\n"

"""Batches: planned and checked as a whole, then executed by real papermill, whatever single notebooks do."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rulerkit.batch import Batch, execute, read_batch
from rulerkit.errors import UserError
from tests.projects import FREE, make_project, notebook

REPOSITORY = Path(__file__).parents[1]
Notebook = dict[str, Any]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project root; the working directory is elsewhere."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    root = make_project(tmp_path / "project")
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    return root


def plan(project: Path, content: Any, **settings: Any) -> Batch:
    path = project / "params/batches/mine.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_batch(path, settings)


def rulerkit(root: Path, *arguments: object) -> "subprocess.CompletedProcess[str]":
    call = [sys.executable, "-c", "from rulerkit.cli import main; main()", *map(str, arguments)]
    env = {**os.environ, "RULERKIT_HOME": str(root)}
    return subprocess.run(call, capture_output=True, text=True, timeout=300, cwd=root.parent, env=env, check=False)


# --- planning ---------------------------------------------------------------------------------------------------------


def test_the_demo_as_it_would_run(project: Path) -> None:
    before = sorted(project.rglob("*"))
    ended = rulerkit(project, "batch", "params/batches/demo.yaml", "--dry-run")
    assert (ended.returncode, ended.stderr) == (0, "")
    *runs, total = ended.stdout.splitlines()
    titles = ["all 00_tasks", *(f"{name} 01_main_results" for name in DEMO), "all 01_main_results"]
    assert [line.split("  ")[0].strip() for line in runs] == titles
    assert runs[1].endswith(f"{project}/outputs/notebooks/demo/reader-4096/01_main_results.ipynb")
    assert "15,974,400 tokens" in runs[1]  # 13 tasks x 20 examples x (4K + 8K + 16K + 32K)
    assert "79,872,000 tokens" in runs[-1]  # of five models
    assert total.startswith("7 notebooks")
    assert sorted(project.rglob("*")) == before


DEMO = ("reader-4096", "reader-8192", "reader-16384", "perfect", "mute")


@pytest.mark.parametrize("path", sorted((REPOSITORY / "params/batches").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_batch_of_params_can_be_planned(project: Path, path: Path) -> None:
    assert read_batch(path).runs


def test_runs_know_their_parameters(project: Path) -> None:
    batch = plan(
        project,
        {
            "models": ["mute", {"base": "reader-4096", "window": 512}],
            "notebooks": ["10_small", "30_free"],
            "together": ["notebooks/20_fails.ipynb"],
            "size": "smoke",
            "parameters": {"num_examples": 3, "seed": 1},
        },
        seed=2,
        run="r",
    )
    assert [run.title for run in batch.runs] == ["mute 10_small", "reader-512 10_small", "all 30_free", "all 20_fails"]
    first, second, free, over_all = (run.parameters for run in batch.runs)
    common = {"lengths": [4096, 8192, 16384, 32768], "num_examples": 3, "seed": 2, "run": "r"}
    assert first == {**common, "model": "mute"}
    assert second["model"] == {"base": "reader-4096", "window": 512}
    assert free == {"seed": 2, "run": "r"}
    assert over_all == {**common, "models": ["mute", {"base": "reader-4096", "window": 512}]}
    assert batch.runs[1].output == project / "outputs/notebooks/r/reader-512/10_small.ipynb"


def test_globs_stand_for_models(project: Path) -> None:
    for step in (1000, 2000):
        (project / f"checkpoints/r7-{step}").mkdir(parents=True)
    batch = plan(project, {"models": ["checkpoints/*", "mute"], "notebooks": ["10_small"], "together": ["10_small"]})
    assert [run.subject for run in batch.runs] == ["r7-1000", "r7-2000", "mute", "all"]
    assert batch.runs[0].parameters["model"] == str(project / "checkpoints/r7-1000")
    assert batch.runs[3].parameters["models"][2] == "mute"


def test_models_of_the_command_line_replace_those_of_the_file(project: Path) -> None:
    batch = plan(project, {"models": ["mute"], "notebooks": ["10_small"]}, models=["perfect", "reader-1024"])
    assert [run.subject for run in batch.runs] == ["perfect", "reader-1024"]
    assert all("models" not in run.parameters for run in batch.runs)


def test_a_notebook_over_several_models_runs_once(project: Path) -> None:
    notebook(project / "notebooks/40_compare.ipynb", 'models = ["mute"]\nrun = "main"\n', FREE)
    batch = plan(project, {"models": ["mute", "perfect"], "notebooks": ["40_compare"]})
    assert [(run.subject, run.parameters) for run in batch.runs] == [("all", {"models": ["mute", "perfect"]})]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds nothing"),
        ("- mute", "holds a list"),
        ("models: [mute", "is not YAML"),
        ({"models": ["mute"], "notebook": ["10_small"]}, "unknown key in .*: did you mean 'notebooks'"),
        ({"models": ["mute"], "notebooks": ["10_smal"]}, "unknown notebook '10_smal': did you mean '10_small'"),
        ({"models": ["mute"], "together": ["nothere.ipynb"]}, "unknown notebook .* allowed: 00_tasks, 01_main_results"),
        ({"models": ["mute"], "notebooks": ["10_small"], "size": "smok"}, "unknown size .*: did you mean 'smoke'"),
        ({"models": ["mute"], "notebooks": ["10_small"], "size": ["smoke"]}, "unknown size"),
        ({"models": "mute", "notebooks": ["10_small"]}, "models in .* is 'mute': it must be a list"),
        ({"models": ["mute"], "notebooks": "10_small"}, "notebooks in .* it must be a list"),
        ({"models": ["mute"], "notebooks": None}, "notebooks in .* it must be a list"),
        ({"models": ["mute"]}, "needs `models:` and `notebooks:` or `together:`"),
        ({"notebooks": ["10_small"]}, "needs `models:` and `notebooks:` or `together:`"),
        ({"models": [], "notebooks": ["10_small"]}, "needs `models:`"),
        ({"models": ["mut"], "notebooks": ["10_small"]}, "unknown model 'mut': did you mean 'mute'"),
        ({"models": ["mute", "mute"], "notebooks": ["10_small"]}, "mute stands there twice"),
        ({"models": ["checkpoints/*"], "notebooks": ["10_small"]}, "nothing matches 'checkpoints/\\*'"),
        ({"models": ["mute"], "notebooks": ["10_small", "10_small"]}, "runs mute 10_small twice"),
        ({"models": ["mute"], "notebooks": ["10_small"], "parameters": [1]}, "parameters in .* `name: value` lines"),
        ({"models": ["mute"], "notebooks": ["10_small"], "parameters": {"lenths": [1]}}, "did you mean 'lengths'"),
        ({"models": ["mute"], "notebooks": ["10_small"], "parameters": {"lengths": 4096}}, "lengths is 4096: .* list"),
        ({"models": ["mute"], "notebooks": ["10_small"], "parameters": {"model": "mute"}}, "it takes a list, `models:"),
    ],
)
def test_errors_are_found_before_anything_runs(project: Path, content: Any, says: str) -> None:
    with pytest.raises(UserError, match=says) as error:
        plan(project, content)
    assert "\n" not in str(error.value)
    assert not (project / "outputs").exists()


def test_an_error_in_the_file_is_one_line_and_status_two(project: Path) -> None:
    content = {"models": ["mute"], "notebooks": ["10_small", "10_smal"]}
    with pytest.raises(UserError) as error:
        plan(project, content)
    ended = rulerkit(project, "batch", "params/batches/mine.yaml")
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", f"rulerkit: {error.value}\n")
    assert not (project / "outputs").exists()


# --- running ----------------------------------------------------------------------------------------------------------


class Ran(NamedTuple):
    """A batch that was executed: where, how the command ended, and the notebooks it left, by subject and name."""

    root: Path
    ended: "subprocess.CompletedProcess[str]"
    books: dict[str, Notebook]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Two readers, two notebooks each, of which one fails for one reader, one without a model, one over both."""
    root = make_project(tmp_path_factory.mktemp("batch") / "project")
    content = {
        "models": ["reader-1024", "perfect"],
        "notebooks": ["20_fails", "10_small", "30_free"],
        "together": ["10_small"],
        "parameters": {"run": "r", "lengths": [1024], "num_examples": 1, "tasks": ["vt"], "seed": 5},
    }
    (root / "params/batches/mine.yaml").write_text(json.dumps(content))
    ended = rulerkit(root, "batch", "params/batches/mine.yaml", "--jobs", 3)
    paths = (root / "outputs/notebooks/r").rglob("*.ipynb")
    return Ran(root, ended, {f"{path.parent.name} {path.stem}": json.loads(path.read_text()) for path in paths})


def said(book: Notebook) -> str:
    return "".join("".join(out.get("text", [])) for cell in book["cells"] for out in cell.get("outputs", []))


def test_executed_notebooks_lie_by_run_and_model(ran: Ran) -> None:
    assert sorted(ran.books) == [
        "all 10_small",
        "all 30_free",
        "perfect 10_small",
        "perfect 20_fails",
        "reader-1024 10_small",
        "reader-1024 20_fails",
    ]
    assert "perfect [1]" in said(ran.books["perfect 20_fails"])
    assert "reader-1024 [1]" in said(ran.books["reader-1024 10_small"])
    assert "reader-1024+perfect [1, 1]" in said(ran.books["all 10_small"])
    assert "seed 5" in said(ran.books["all 30_free"])
    log = (ran.root / "outputs/notebooks/r/perfect/10_small.log").read_text()
    assert log.startswith("$ ")
    assert "papermill" in log.splitlines()[0]


def test_a_failing_notebook_stops_nobody_and_keeps_its_error(ran: Ran) -> None:
    assert ran.ended.returncode == 1
    assert "Traceback" not in ran.ended.stderr
    done = re.findall(r"^done +(.+)$", ran.ended.stdout, re.MULTILINE)
    own = {"reader-1024 10_small", "perfect 20_fails", "perfect 10_small", "all 30_free"}
    assert set(done) == {*own, "all 10_small"}
    assert done[-1] == "all 10_small"
    errors = [
        output
        for cell in ran.books["reader-1024 20_fails"]["cells"]
        for output in cell.get("outputs", [])
        if output["output_type"] == "error"
    ]
    assert [error["evalue"] for error in errors] == ["the first line\nthe last line"]


def test_what_failed_is_named_with_the_command_to_repeat_it(ran: Ran) -> None:
    lines = ran.ended.stdout.splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("FAILED"))
    assert lines[place] == "FAILED  reader-1024 20_fails: AssertionError: the first line the last line"
    assert lines[place + 1].split() == ["log:", f"{ran.root}/outputs/notebooks/r/reader-1024/20_fails.log"]
    label, _, command = lines[place + 2].strip().partition(" ")
    assert label == "again:"
    env = {**os.environ, "RULERKIT_HOME": str(ran.root)}
    again = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=120, env=env, check=False)
    assert again.returncode != 0
    assert again.stderr.rstrip().endswith("the last line")


def test_the_leaderboard_and_the_places_end_the_report(ran: Ran) -> None:
    leaderboard, figures, tables, notebooks = ran.ended.stdout.rstrip().rsplit("\n", 3)
    assert re.search(r"^perfect reader .*100\.0", leaderboard, re.MULTILINE)
    assert "reader (1K window)" in leaderboard
    for line, kind in ((figures, "figures"), (tables, "tables"), (notebooks, "notebooks")):
        assert line.split() == [f"{kind}:", f"{ran.root}/outputs/{kind}/r"]


def test_one_model_is_never_asked_by_two_notebooks_at_once(ran: Ran) -> None:
    """They would write the same predictions, and the second would be refused."""

    def span(subject: str, name: str) -> tuple[str, str]:
        about = ran.books[f"{subject} {name}"]["metadata"]["papermill"]
        return about["start_time"], about["end_time"]

    for subject in ("reader-1024", "perfect"):
        assert span(subject, "20_fails")[1] <= span(subject, "10_small")[0]
        assert span(subject, "10_small")[1] <= span("all", "10_small")[0]


def test_unwritable_outputs_fail_every_run_and_raise_nothing(project: Path) -> None:
    (project / "outputs").write_text("a file where a folder should be")
    batch = plan(project, {"models": ["mute", "perfect"], "notebooks": ["10_small"], "together": ["10_small"]})
    ended = list(execute(batch))
    assert [run.title for run, _ in ended][-1] == "all 10_small"
    assert len(ended) == 3
    for _, error in ended:
        assert error is not None
        assert re.fullmatch(r"cannot write .*ipynb: Not a directory; choose another folder with `outputs:`", error)
    assert (project / "outputs").read_text() == "a file where a folder should be"


def test_a_notebook_that_never_starts_shows_the_last_line_of_its_log(project: Path) -> None:
    path = project / "notebooks/10_small.ipynb"
    path.write_text(path.read_text().replace('"python3"', '"no-such-kernel"'))
    ((run, error),) = execute(plan(project, {"models": ["mute"], "notebooks": ["10_small"]}))
    assert error is not None
    assert re.fullmatch(r"exit status \d+: .*no-such-kernel.*", error)
    assert run.log.read_text().rstrip().endswith(error.partition(": ")[2])

"""Batches: planned and checked as a whole, then executed by real papermill, whatever single
notebooks do; again, only what is missing."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import rulerkit as rk
from rulerkit.batch import Batch, read_batch
from rulerkit.batch.execution import Outcome
from rulerkit.batch.jobs import read_job
from rulerkit.batch.queue import execute
from rulerkit.errors import UserError
from tests.batches import Project, printed, told
from tests.projects import FREE, make_project, notebook

REPOSITORY = Path(__file__).parents[1]
one_story = pytest.mark.xdist_group("batch")


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


# --- planning -------------------------------------------------------------------------------------


def test_the_demo_as_it_would_run(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    before = sorted(project.root.rglob("*"))
    ended = project.call("batch", "params/batches/demo.yaml", "--dry-run")
    assert (ended.returncode, ended.stderr) == (0, "")
    *lines, total = ended.stdout.splitlines()
    own = [f"{name} {what}" for name in DEMO for what in ("predictions", "01_main_results")]
    assert [line.split("  ")[0].strip() for line in lines] == [
        *own,
        "all 00_tasks",
        "all 01_main_results",
    ]
    assert re.search(
        " 15,974,400 tokens, 0 GPUs$", lines[0]
    )  # 13 tasks x 20 examples x (4K + 8K + 16K + 32K)
    assert lines[1].endswith(
        f"{project.root}/outputs/notebooks/demo/reader-4096/01_main_results.ipynb"
    )
    assert total.startswith("7 notebooks; 79,872,000 tokens")  # of five models
    assert sorted(project.root.rglob("*")) == before


DEMO = ("reader-4096", "reader-8192", "reader-16384", "perfect", "mute")


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / "params/batches").glob("*.yaml")), ids=lambda path: path.stem
)
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
    assert [run.title for run in batch.runs] == [
        "mute 10_small",
        "reader-512 10_small",
        "all 30_free",
        "all 20_fails",
    ]
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
    batch = plan(
        project,
        {"models": ["checkpoints/*", "mute"], "notebooks": ["10_small"], "together": ["10_small"]},
    )
    assert [run.subject for run in batch.runs] == ["r7-1000", "r7-2000", "mute", "all"]
    assert batch.runs[0].parameters["model"] == str(project / "checkpoints/r7-1000")
    assert batch.runs[3].parameters["models"][2] == "mute"


def test_models_of_the_command_line_replace_those_of_the_file(project: Path) -> None:
    batch = plan(
        project, {"models": ["mute"], "notebooks": ["10_small"]}, models=["perfect", "reader-1024"]
    )
    assert [run.subject for run in batch.runs] == ["perfect", "reader-1024"]
    assert all("models" not in run.parameters for run in batch.runs)


def test_a_notebook_over_several_models_runs_once(project: Path) -> None:
    notebook(project / "notebooks/40_compare.ipynb", 'models = ["mute"]\nrun = "main"\n', FREE)
    batch = plan(project, {"models": ["mute", "perfect"], "notebooks": ["40_compare"]})
    assert [(run.subject, run.parameters) for run in batch.runs] == [
        ("all", {"models": ["mute", "perfect"]})
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "holds nothing"),
        ("- mute", "holds a list"),
        ("models: [mute", "is not YAML"),
        (
            {"models": ["mute"], "notebook": ["10_small"]},
            "unknown key in .*: did you mean 'notebooks'",
        ),
        (
            {"models": ["mute"], "notebooks": ["10_smal"]},
            "unknown notebook '10_smal': did you mean '10_small'",
        ),
        (
            {"models": ["mute"], "together": ["nothere.ipynb"]},
            "unknown notebook .* allowed: 00_tasks, 01_main_results",
        ),
        (
            {"models": ["mute"], "notebooks": ["10_small"], "size": "smok"},
            "unknown size .*: did you mean 'smoke'",
        ),
        (
            {"models": ["mute"], "notebooks": ["10_small"], "size": ["smoke"]},
            "size: .* a name in params/sizes/",
        ),
        (
            {"models": "mute", "notebooks": ["10_small"]},
            ": models: 'mute' is not allowed; it takes a list",
        ),
        ({"models": ["mute"], "notebooks": "10_small"}, ": notebooks: .* it takes a list"),
        ({"models": ["mute"], "notebooks": None}, "needs `models:` and `notebooks:`"),
        ({"models": ["mute"], "notebooks": [{"models": ["mute"]}]}, "is no notebook: give a name"),
        (
            {"models": ["mute"], "notebooks": [{"notebok": "10_small"}]},
            "unknown key of a notebook .* 'notebook'",
        ),
        (
            {"models": ["mute"], "notebooks": [{"notebook": "10_small", "models": "mute"}]},
            "models: 'mute' .* a list",
        ),
        (
            {"models": ["mute"], "notebooks": [{"notebook": "10_small", "parameters": [1]}]},
            "parameters: .* lines",
        ),
        ({"models": ["mute"], "notebooks": ["x" * 400]}, "unknown notebook"),
        ({"models": ["mute"]}, "needs `models:` and `notebooks:` or `together:`"),
        ({"notebooks": ["10_small"]}, "needs `models:` and `notebooks:` or `together:`"),
        ({"models": [], "notebooks": ["10_small"]}, "needs `models:`"),
        (
            {"models": ["mut"], "notebooks": ["10_small"]},
            "unknown model 'mut': did you mean 'mute'",
        ),
        ({"models": ["mute", "mute"], "notebooks": ["10_small"]}, "mute stands there twice"),
        (
            {"models": ["checkpoints/*"], "notebooks": ["10_small"]},
            "nothing matches 'checkpoints/\\*'",
        ),
        ({"models": ["mute"], "notebooks": ["10_small", "10_small"]}, "runs mute 10_small twice"),
        (
            {"models": ["mute"], "notebooks": ["10_small"], "parameters": [1]},
            ": parameters: .* `name: value` lines",
        ),
        (
            {"models": ["mute"], "notebooks": ["10_small"], "parameters": {"lenths": [1]}},
            "did you mean 'lengths'",
        ),
        (
            {"models": ["mute"], "notebooks": ["10_small"], "parameters": {"lengths": 4096}},
            "lengths: 4096 .* it takes a list",
        ),
        (
            {"models": ["mute"], "notebooks": ["10_small"], "parameters": {"model": "mute"}},
            "it takes a list, `models:",
        ),
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
    for command in ("batch", "status"):
        call = [sys.executable, "-m", "rulerkit", command, "params/batches/mine.yaml"]
        ended = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (
            2,
            "",
            f"rulerkit: {error.value}\n",
        )
    assert not (project / "outputs").exists()


# --- jobs -----------------------------------------------------------------------------------------


def test_a_job_for_each_model_and_one_for_each_notebook_over_several(project: Path) -> None:
    notebook(project / "notebooks/40_found.ipynb", 'run = "main"\noutputs = "outputs"\n', FREE)
    content = {
        "models": ["mute", "perfect"],
        "notebooks": [
            "10_small",
            {"notebook": "20_fails", "models": ["mute"], "parameters": {"num_examples": 4}},
        ],
        "together": [{"notebook": "10_small", "models": ["perfect", "reader-1024"]}, "40_found"],
        "parameters": {"lengths": [1024], "num_examples": 2, "run": "r"},
    }
    jobs = plan(project, content).jobs
    folder = project / "outputs/notebooks/r"
    assert [(job.title, [run.title for run in job.runs], job.after) for job in jobs] == [
        ("mute predictions", ["mute 10_small", "mute 20_fails"], ()),
        ("perfect predictions", ["perfect 10_small"], ()),
        ("reader-1024 predictions", [], ()),
        ("all 10_small", ["all 10_small"], ("perfect", "reader-1024")),
        ("all 40_found", ["all 40_found"], ("mute", "perfect", "reader-1024")),
    ]
    assert [job.file for job in jobs[2:4]] == [
        folder / "reader-1024/mine.job.yaml",
        folder / "all/mine-10_small.job.yaml",
    ]
    assert [(need.task, need.length, need.wanted) for need in jobs[0].needs] == [("vt", 1024, 4)]
    assert [need.wanted for need in jobs[0].reads(jobs[0].runs[0])] == [2]
    assert {need.model for need in jobs[4].needs} == {"mute", "perfect", "reader-1024"}


def test_a_batch_knows_that_one_of_its_notebooks_asks_for_the_original_texts(project: Path) -> None:
    original = {"notebook": "20_fails", "parameters": {"corpora": "original"}}
    assert plan(project, {"models": ["mute"], "notebooks": ["10_small"]}).corpora == "builtin"
    assert (
        plan(project, {"models": ["mute"], "notebooks": ["10_small", original]}).corpora
        == "original"
    )


def test_no_notebook_is_forgotten_whomever_it_asks(project: Path) -> None:
    """One asks nobody, though it is about a model; one asks another model beside its own, so it
    waits for both."""
    asks = 'import rulerkit as rk\nrk.evaluate(rk.study(globals(), models=[model, "perfect"]))\n'
    parameters = 'model = "mute"\nmodels = None\ntasks = ["vt"]\nlengths = [1024]\nrun = "main"\noutputs = "outputs"\n'
    notebook(project / "notebooks/40_asks_nobody.ipynb", parameters, "print(model)\n")
    notebook(project / "notebooks/41_beside.ipynb", parameters, asks)
    jobs = plan(project, {"models": ["mute", "reader-1024"], "notebooks": ["40_asks_nobody"]}).jobs
    assert [(job.model, [run.title for run in job.runs]) for job in jobs] == [
        (None, ["mute 40_asks_nobody"]),
        (None, ["reader-1024 40_asks_nobody"]),
    ]
    assert len({job.file for job in jobs} | {job.stem for job in jobs}) == 4
    dotted = [{"base": "mute", "name": name} for name in ("llama-3.1-8b", "llama-3.3-70b")]
    first, second = plan(project, {"models": dotted, "notebooks": ["40_asks_nobody"]}).jobs
    assert first.lock.name == "llama-3.1-8b-40_asks_nobody.lock"
    assert {first.lock, first.record, first.log}.isdisjoint(
        {second.lock, second.record, second.log}
    )
    jobs = plan(
        project, {"models": ["mute", "reader-1024"], "notebooks": ["40_asks_nobody", "41_beside"]}
    ).jobs
    assert [(job.name, [run.title for run in job.runs], job.after) for job in jobs] == [
        ("mute", ["mute 40_asks_nobody"], ()),
        ("perfect", [], ()),
        ("reader-1024", ["reader-1024 40_asks_nobody"], ()),
        ("mute-41_beside", ["mute 41_beside"], ("mute", "perfect")),
        ("reader-1024-41_beside", ["reader-1024 41_beside"], ("perfect", "reader-1024")),
    ]


def test_a_job_file_holds_all_of_a_job(project: Path) -> None:
    content = {
        "models": [{"base": "reader-4096", "window": 512, "label": "ein Leser, ü"}, "mute"],
        "notebooks": ["10_small"],
        "together": ["20_fails"],
        "parameters": {
            "lengths": ["1K"],
            "num_examples": 2,
            "tasks": [{"base": "vt", "num_hops": 2}],
        },
    }
    for job in plan(project, content).jobs:
        job.save()
        again = read_job(job.file)
        assert replace(again, asks=()) == replace(job, asks=())
        assert [(a.notebook, a.parameters) for a in again.asks] == [
            (a.notebook, a.parameters) for a in job.asks
        ]
        assert again.needs == job.needs
        before = job.file.stat()
        job.save()
        assert job.file.stat() == before, "written again only where it differs"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot read .*No such file"),
        ("", "holds nothing"),
        ("model: [", "is not YAML"),
        ("name: a\nmodel: null\n", "is no job file .*KeyError"),
        (
            "models: [mute]\nnotebooks: [10_small]\n",
            "is no job file .*`rulerkit batch` writes them",
        ),
        ("{home: /, name: a, model: null, asks: [3], runs: [], after: []}", "is no job file"),
        ("{home: /, name: a, model: mute, asks: [], runs: [], after: []}", "is no job file"),
        ("{home: /, name: a, model: {name: a}, asks: [], runs: [], after: []}", "is no job file"),
        ("{home: /, name: a, model: null, asks: [], runs: 3, after: []}", "is no job file"),
    ],
)
def test_a_broken_job_file_is_one_line(project: Path, content: str | None, says: str) -> None:
    file = project / "a.job.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=says) as error:
        read_job(file)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


# --- running, and running again -------------------------------------------------------------------


class Ran(NamedTuple):
    """What a call left: how it ended, its executed notebooks and when each was written, and what
    was asked in it."""

    ended: "subprocess.CompletedProcess[str]"
    books: dict[str, dict[str, Any]]
    written: dict[str, float]
    asked: list[tuple[str, str]]
    logs: dict[str, str]


class Story(NamedTuple):
    """One batch, called again and again."""

    project: Project
    first: Ran
    repeated: Ran
    """The command that the failure names, from another folder."""
    changed: Ran
    """With the fault mended, another parameter of one notebook, and two cells deleted, one of which
    is answered otherwise."""
    last: Ran
    """Nothing was left to do."""

    def written(self, before: Ran, after: Ran) -> set[str]:
        """The notebooks that were executed between two calls."""
        return {name for name, when in after.written.items() if before.written.get(name) != when}


def call(project: Project, *arguments: object, cwd: Path | None = None) -> Ran:
    before = len(project.journal())
    ended = project.call(*arguments, cwd=cwd)
    written = project.executed("r")
    books = {name: project.book(name, "r") for name in written}
    folder = project.root / "outputs/notebooks/r"
    logs = {
        str(file.relative_to(folder).with_suffix("")): file.read_text()
        for file in folder.rglob("*.log")
    }
    asked = [(row.model, row.prompt) for row in project.journal()[before:]]
    return Ran(ended, books, written, asked, logs)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Two models; a notebook each, one that fails for one of them, one over both: all over the same
    cells."""
    project = Project(tmp_path_factory.mktemp("batch") / "project")
    fails = 'from pathlib import Path\nassert not Path("{}").exists(), "the first line\\nthe last line"\n'
    project.notebook("50_own")
    project.notebook("51_fails", source=fails.format(project.root / "fails"))
    project.notebook("52_both")
    own = {"notebook": "50_own", "parameters": {"shade": "red", "tasks": ["vt"]}}
    fwe = {
        "notebook": "51_fails",
        "models": [told("first")],
        "parameters": {"tasks": ["fwe"], "num_examples": 4},
    }
    content: dict[str, Any] = {
        "models": [told("first"), told("second")],
        "notebooks": [fwe, own],
        "together": ["52_both"],
        "parameters": {"run": "r", "seed": 5, "lengths": [1024], "tasks": ["vt", "fwe"]},
    }
    batch = project.batch(content)
    (project.root / "fails").touch()
    first = call(project, "batch", batch, "--jobs", 3)

    (again,) = {
        line.partition("again: ")[2]
        for line in first.ended.stdout.splitlines()
        if "again: " in line
    }
    (project.root / "elsewhere").mkdir()
    repeated = call(project, *shlex.split(again)[1:], cwd=project.root / "elsewhere")

    (project.root / "fails").unlink()
    own["parameters"] = {"shade": "green", "tasks": ["vt"]}
    project.batch(content)
    for cell in ("first/fwe/1024", "second/vt/1024"):
        (project.root / f"outputs/predictions/r/{cell}.jsonl").unlink()
    project.set("first", "wrong", 1)
    changed = call(project, "batch", batch)
    return Story(project, first, repeated, changed, call(project, "batch", batch))


@pytest.mark.slow
@one_story
def test_executed_notebooks_lie_by_run_and_model(story: Story) -> None:
    books = story.first.books
    assert sorted(books) == ["all/52_both", "first/50_own", "first/51_fails", "second/50_own"]
    assert "second 2 rows" in printed(books["second/50_own"])
    assert "first+second 10 rows" in printed(books["all/52_both"]), (
        "4 of them were asked for by another notebook"
    )
    command, *_ = story.first.logs["second/50_own"].splitlines()
    assert command.startswith("$ RULERKIT_ASK=never ")
    assert " -m papermill " in command


@pytest.mark.slow
@one_story
def test_inference_that_is_shared_is_done_once(story: Story) -> None:
    """2 examples for one notebook and 4 for another are 4; no notebook asks by itself."""
    assert set(Counter(story.first.asked).values()) == {1}
    assert Counter(model for model, _ in story.first.asked) == {"first": 6, "second": 4}
    assert story.project.rows("r") == {
        "first/fwe/1024": [0, 1, 2, 3],
        "first/vt/1024": [0, 1],
        "second/fwe/1024": [0, 1],
        "second/vt/1024": [0, 1],
    }


@pytest.mark.slow
@one_story
def test_a_failing_notebook_stops_nobody_and_keeps_its_error(story: Story) -> None:
    assert story.first.ended.returncode == 1
    done = re.findall(r"^done +(.+)$", story.first.ended.stdout, re.MULTILINE)
    assert set(done) == {
        "first predictions",
        "second predictions",
        "first 50_own",
        "second 50_own",
        "all 52_both",
    }
    assert done[-1] == "all 52_both"
    cells = story.first.books["first/51_fails"]["cells"]
    errors = [
        out for cell in cells for out in cell.get("outputs", []) if out["output_type"] == "error"
    ]
    assert [error["evalue"] for error in errors] == ["the first line\nthe last line"]


@pytest.mark.slow
@one_story
def test_what_failed_is_named_with_the_command_to_repeat_it(story: Story) -> None:
    root, lines = story.project.root, story.first.ended.stdout.splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("FAILED"))
    assert lines[place].split(maxsplit=1) == [
        "FAILED",
        "first 51_fails: AssertionError: the first line the last line",
    ]
    assert lines[place + 1].split() == ["log:", f"{root}/outputs/notebooks/r/first/51_fails.log"]
    assert lines[place + 2].split() == [
        "again:",
        "rulerkit",
        "run",
        f"{root}/outputs/notebooks/r/first/mine.job.yaml",
    ]
    assert story.first.logs["first/51_fails"].rstrip().endswith("the last line")
    assert "1 steps are not done: first 51_fails (failed)" in story.first.ended.stderr


@pytest.mark.slow
@one_story
def test_the_leaderboard_and_the_places_end_the_report(story: Story) -> None:
    leaderboard, figures, tables, notebooks = story.last.ended.stdout.rstrip().rsplit("\n", 3)
    assert re.search(r"^second .*100\.0", leaderboard, re.MULTILINE)
    assert re.search(r"^first .*50\.0", leaderboard, re.MULTILINE)
    for line, kind in ((figures, "figures"), (tables, "tables"), (notebooks, "notebooks")):
        assert line.split() == [f"{kind}:", f"{story.project.root}/outputs/{kind}/r"]


@pytest.mark.slow
@one_story
def test_one_notebook_of_a_model_after_the_other(story: Story) -> None:
    def span(name: str) -> tuple[str, str]:
        about = story.first.books[name]["metadata"]["papermill"]
        return about["start_time"], about["end_time"]

    assert span("first/51_fails")[1] <= span("first/50_own")[0]
    assert max(span("first/50_own")[1], span("second/50_own")[1]) <= span("all/52_both")[0]


@pytest.mark.slow
@one_story
def test_the_command_to_repeat_it_does_that_alone(story: Story) -> None:
    assert story.repeated.ended.returncode == 1
    assert story.written(story.first, story.repeated) == {"first/51_fails"}
    assert story.repeated.asked == []
    assert "2 steps were done before" in story.repeated.ended.stdout


@pytest.mark.slow
@one_story
def test_only_what_has_changed_is_done_again(story: Story) -> None:
    """A cell that was deleted is answered again; where that changed nothing, nobody who reads it is
    executed again."""
    assert story.changed.ended.returncode == 0
    assert Counter(model for model, _ in story.changed.asked) == {"first": 4, "second": 2}
    assert set(story.changed.asked) < set(story.first.asked)
    expected = {"first/51_fails", "first/50_own", "second/50_own", "all/52_both"}
    assert story.written(story.repeated, story.changed) == expected
    assert '"shade": "green"' in json.dumps(
        story.changed.books["second/50_own"]["metadata"]["papermill"]
    )


@pytest.mark.slow
@one_story
def test_where_nothing_is_left_nothing_is_done(story: Story) -> None:
    assert (story.last.ended.returncode, story.last.ended.stderr) == (0, "")
    assert story.last.ended.stdout.startswith("6 steps were done before; nothing was asked again\n")
    assert story.last.asked == []
    assert story.written(story.changed, story.last) == set()
    assert list(story.project.root.rglob("*.lock")) == []


# --- what a notebook of a batch gets --------------------------------------------------------------


def test_where_nobody_may_be_asked_what_is_kept_is_returned(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = rk.study(
        {"model": "perfect", "tasks": ["vt", "fwe"], "lengths": [1024], "num_examples": 1}
    )
    rk.evaluate(replace(asked, tasks=asked.tasks[:1]), progress=False)
    monkeypatch.setenv("RULERKIT_ASK", "never")
    cells = rk.evaluate(replace(asked, num_examples=2))
    assert [(cell.task, len(cell.rows)) for cell in cells] == [("vt", 1)]
    assert capsys.readouterr().err.splitlines() == [
        "not answered: perfect vt at 1024: 1 of 2 examples",
        "not answered: perfect fwe at 1024: 0 of 2 examples",
    ]
    with pytest.raises(UserError, match="was made with seed 42, now it is 7"):
        rk.evaluate(replace(asked, seed=7))
    with pytest.raises(
        UserError,
        match=r"^nothing was answered yet \(perfect vt at 1024: 0 of 1 .*`rulerkit batch`",
    ) as error:
        rk.evaluate(replace(asked, run="other"))
    assert "\n" not in str(error.value)


# --- what a disk or a kernel refuses --------------------------------------------------------------


def test_unwritable_outputs_are_one_line(project: Path) -> None:
    (project / "outputs").write_text("a file where a folder should be")
    batch = plan(
        project,
        {"models": ["mute", "perfect"], "notebooks": ["10_small"], "together": ["10_small"]},
    )
    with pytest.raises(
        UserError, match=r"cannot write .*job\.yaml: (Not a directory|File exists)"
    ) as error:
        batch.jobs[0].save()
    assert "\n" not in str(error.value)
    *models, last = execute(batch.jobs)
    assert [(each.title, each.state) for each in [*sorted(models), last]] == [
        *((f"{name} predictions", "failed") for name in ("mute", "perfect")),
        ("all 10_small", "failed"),
    ]
    assert all(
        re.match("cannot write .*make room or choose a folder that can be written", each.says)
        for each in [*models, last]
    )
    assert (project / "outputs").read_text() == "a file where a folder should be"


def test_a_notebook_that_never_starts_shows_the_last_line_of_its_log(project: Path) -> None:
    path = project / "notebooks/10_small.ipynb"
    path.write_text(path.read_text().replace('"python3"', '"no-such-kernel"'))
    (job,) = plan(project, {"models": ["mute"], "notebooks": ["10_small"]}).jobs
    job.save()
    predictions, failed = execute([job])
    assert (predictions.state, failed.state) == ("done", "failed")
    assert re.fullmatch(r"exit status \d+: .*no-such-kernel.*", failed.says)
    assert failed.log == job.runs[0].log
    assert job.runs[0].log.read_text().rstrip().endswith(failed.says.partition(": ")[2])


def test_what_is_wrong_in_one_job_stops_no_other(project: Path) -> None:
    """A notebook that was taken away since, a row that nobody can read: told, and the others go
    on."""
    content = {
        "models": ["mute", "perfect"],
        "notebooks": ["10_small"],
        "parameters": {"lengths": [1024]},
    }
    jobs = [replace(job, runs=()) for job in plan(project, content).jobs]
    for job in jobs:
        job.save()
    assert [outcome.state for outcome in execute(jobs)] == ["done", "done"]
    shutil.copy(project / "notebooks/10_small.ipynb", project / "notebooks/gone.ipynb")
    gone = replace(jobs[0].asks[0], notebook=project / "notebooks/gone.ipynb")
    broken, other = replace(jobs[0], asks=(gone,)), replace(jobs[1], asks=jobs[1].asks)
    (project / "notebooks/gone.ipynb").unlink()
    ended: list[Outcome] = list(execute([broken, other]))
    assert sorted((each.title, each.state) for each in ended) == [
        ("mute predictions", "failed"),
        ("perfect predictions", "kept"),
    ]
    assert "gone.ipynb is no notebook" in next(
        each.says for each in ended if each.state == "failed"
    )

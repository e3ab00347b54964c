"""Batches: planned and checked as a whole, then executed by real papermill, whatever single
notebooks do; again, only what is missing."""

import json
import os
import re
import shlex
import shutil
import subprocess
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

import rulerkit as rk
from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.execution import execute
from rulerkit.batch.status import report, statuses
from rulerkit.common.errors import UserError
from tests.batches import Project, outcomes, told
from tests.conftest import needs_extras
from tests.projects import FREE, PARAMETERS, REPOSITORY, make_project, notebook
from tests.records import change_rows


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The project root; the working directory is elsewhere."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    root = make_project(tmp_path / "project")
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    return root


def plan(project, content, **settings):
    path = project / "params/batches/mine.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_batch(path, settings)


@needs_extras
def test_the_demo_as_it_would_run(tmp_path):
    project = Project(tmp_path / "project")
    before = sorted(project.root.rglob("*"))
    ended = project.call("batch", "params/batches/demo.yaml", "--dry-run")
    assert (ended.returncode, ended.stderr) == (0, "")
    listed, _, costs = ended.stdout.partition("\n\n")
    *lines, total = listed.splitlines()
    titles = [" ".join(line.split()[1:3]) for line in lines]
    over_all = {"all 17_tasks", "all 01_main_results", "all leaderboard"}
    assert {title for title in titles if not title.endswith(" predictions")} == over_all
    assert titles[-1] == "all leaderboard"
    # 13 tasks x 10 examples x (4K + 8K + 16K + 32K)
    assert lines[0].endswith(" 0/52 cells, 0/520 examples; 7,987,200 tokens left")
    assert total == "8 steps: 8 missing; 39,936,000 tokens left"
    assert re.search(r"perfect +32K +130 ", costs)
    assert "together: " in costs
    assert sorted(project.root.rglob("*")) == before


@needs_extras
@pytest.mark.parametrize("name", ["demo-all", "demo-small", "one-model", "paper", "small"])
def test_every_batch_of_params_can_be_planned(project, name):
    assert read_batch(REPOSITORY / f"params/batches/{name}.yaml").jobs


def test_runs_know_their_parameters(project):
    (project / "checkpoints/r7-1000").mkdir(parents=True)
    content = {
        "models": ["mute", {"base": "reader-4096", "window": 512}, "checkpoints/r7-1000"],
        "notebooks": ["10_small", "30_free"],
        "together": ["notebooks/20_fails.ipynb"],
        "size": "smoke",
        "parameters": {"num_examples": 3, "seed": 1},
    }
    jobs = plan(project, content, seed=2, run="r").jobs
    runs = [job for job in jobs if job.notebook]
    first, second, third, free, over_all = (run.parameters for run in runs)
    common = {"lengths": [4096, 8192, 16384, 32768], "num_examples": 3, "seed": 2, "run": "r"}
    assert first == {**common, "model": "mute"}
    assert second["model"] == {"base": "reader-4096", "window": 512}
    assert third["model"] == "checkpoints/r7-1000"
    assert free == {"seed": 2, "run": "r"}
    assert over_all == {**common, "models": ["mute", second["model"], third["model"]]}
    assert runs[1].output == project / "outputs/notebooks/r/reader-512/10_small.ipynb"


ONE = {"models": ["mute"], "notebooks": ["10_small"]}

SETS_RUN = [{"notebook": "10_small", "parameters": {"run": "x"}}]
TAKES_NO_MODELS = [{"notebook": "30_free", "models": ["mute"]}]
ANOTHER_MUTE = [{"notebook": "20_fails", "models": [{"base": "reader-1024", "name": "mute"}]}]
BAD_BATCHES = [
    ({"notebooks": ["10_smal"]}, "unknown notebook '10_smal': did you mean '10_small'"),
    ({"size": "smok"}, "unknown size .*: did you mean 'smoke'"),
    ({"notebooks": []}, "needs `models:` and `notebooks:` or `together:`"),
    ({"notebooks": [], "together": ["leaderboard"]}, "no notebook of it asks a model: add one"),
    ({"notebooks": SETS_RUN}, "sets run among its parameters"),
    ({"notebooks": TAKES_NO_MODELS}, "takes no `models`; its"),
    ({"models": ["checkpoints/*"]}, r"there is no folder .*checkpoints/\*"),
    ({"models": ["notebooks/10_small.ipynb"]}, r"there is no folder .*10_small\.ipynb"),
    ({"notebooks": ["10_small", "10_small"]}, "runs mute 10_small twice"),
    ({"notebooks": ["10_small", *ANOTHER_MUTE]}, "two models named mute, which differ in window"),
    ({"together": ["40_python"]}, "asks echo, a model made in Python, .* in params/models"),
]


@pytest.mark.parametrize(("content", "says"), BAD_BATCHES)
def test_errors_are_found_before_anything_runs(project, content, says):
    echoes = 'import rulerkit as rk\nechoes = rk.model(list, name="echo", tokenizer="builtin")\n'
    study = "study = rk.study(globals(), model=echoes, num_examples=1)\n"
    parameters = 'run = "main"\noutputs = "outputs"\n'
    notebook(project / "notebooks/40_python.ipynb", parameters, echoes + study)
    with pytest.raises(UserError, match=says) as error:
        plan(project, ONE | content)
    assert "\n" not in str(error.value)
    assert not (project / "outputs").exists()


def names(jobs):
    return tuple(job.name for job in jobs)


def test_a_job_for_each_model_and_one_for_each_notebook_over_several(project):
    notebook(project / "notebooks/40_found.ipynb", 'run = "main"\noutputs = "outputs"\n', FREE)
    more = {"notebook": "20_fails", "models": ["mute"], "parameters": {"num_examples": 4}}
    content = {
        "models": ["mute", "perfect"],
        "notebooks": ["10_small", more],
        "together": [{"notebook": "10_small", "models": ["perfect", "reader-1024"]}, "40_found"],
        "parameters": {"lengths": [1024], "num_examples": 2, "run": "r"},
    }
    jobs = plan(project, content).jobs
    folder = project / "outputs/notebooks/r"
    assert [(job.name, job.title, names(job.after)) for job in jobs] == [
        ("mute", "mute predictions", ()),
        ("perfect", "perfect predictions", ()),
        ("reader-1024", "reader-1024 predictions", ()),
        ("mute", "mute 10_small", ("mute",)),
        ("perfect", "perfect 10_small", ("perfect",)),
        ("mute", "mute 20_fails", ("mute",)),
        ("10_small", "all 10_small", ("perfect", "reader-1024")),
        ("40_found", "all 40_found", names(jobs[:-1])),
    ]
    assert jobs[2].record == folder / "reader-1024/predictions.json"
    assert jobs[6].record == folder / "all/10_small.json"
    assert [(need.task, need.length, need.wanted) for need in jobs[0].needs()] == [("vt", 1024, 4)]
    assert [need.wanted for need in jobs[3].needs()] == [2]
    assert {need.model for need in jobs[7].needs()} == {"mute", "perfect", "reader-1024"}


def test_no_notebook_is_forgotten_whomever_it_asks(project):
    """One asks nobody; one asks another model beside its own, so it waits for both."""
    asks = 'import rulerkit as rk\nstudy = rk.study(globals(), models=[model, "perfect"])\n'
    notebook(project / "notebooks/40_asks_nobody.ipynb", PARAMETERS, "print(model)\n")
    notebook(project / "notebooks/41_beside.ipynb", PARAMETERS, asks)
    both = ["40_asks_nobody", "41_beside"]
    jobs = plan(project, {"models": ["mute", "reader-1024"], "notebooks": both}).jobs
    assert {job.title: names(job.after) for job in jobs if job.notebook} == {
        "mute 41_beside": ("mute", "perfect"),
        "reader-1024 41_beside": ("reader-1024", "perfect"),
        "mute 40_asks_nobody": ("mute",),
        "reader-1024 40_asks_nobody": ("reader-1024",),
    }


class Ran(NamedTuple):
    """What a call left: how it ended, when each executed notebook was written, and what was asked
    in it."""

    ended: "subprocess.CompletedProcess[str]"
    written: dict[str, float]
    asked: list[tuple[str, str]]

    def since(self, before):
        """The notebooks that were executed since another call."""
        return {name for name, when in self.written.items() if before.written.get(name) != when}


class Story(NamedTuple):
    """One batch, called again and again. `repeated` is the command that the failure names, from
    another folder; before `changed` the fault was corrected, a parameter of one notebook changed,
    and two cells deleted, one of which is answered otherwise."""

    project: Project
    first: Ran
    said: dict[str, str]
    repeated: Ran
    changed: Ran
    last: Ran


def call(project, *arguments, cwd=None):
    before = len(project.journal())
    ended = project.call(*arguments, cwd=cwd)
    written = project.executed("r")
    asked = [(row.model, row.prompt) for row in project.journal()[before:]]
    return Ran(ended, written, asked)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """Two models; a notebook each, one that fails for one of them, and one over both."""
    project = Project(tmp_path_factory.mktemp("batch") / "project")
    fails = 'from pathlib import Path\nassert not Path("{}").exists(), "the first line\\nthe last line"\n'
    project.notebook("50_own")
    project.notebook("51_fails", source=fails.format(project.root / "fails"))
    project.notebook("52_both")
    own = {"notebook": "50_own", "parameters": {"shade": "red", "tasks": ["vt"]}}
    fwe = {"notebook": "51_fails", "models": [told("first")]}
    fwe["parameters"] = {"tasks": ["fwe"], "num_examples": 4}
    content = {"models": [told("first"), told("second")], "notebooks": [fwe, own]}
    content |= {"together": ["52_both"]}
    content["parameters"] = {"run": "r", "lengths": [1024], "tasks": ["vt", "fwe"]}
    batch = project.batch(content)
    (project.root / "fails").touch()
    first = call(project, "batch", batch)
    said = {name: project.said(name, "r") for name in first.written}
    again = first.ended.stdout.partition("again: ")[2].splitlines()[0]
    (project.root / "elsewhere").mkdir()
    repeated = call(project, *shlex.split(again)[1:], cwd=project.root / "elsewhere")
    (project.root / "fails").unlink()
    own["parameters"] = {"shade": "green", "tasks": ["vt"]}
    project.batch(content)
    for cell in ("first/fwe/1024", "second/vt/1024"):
        (project.root / f"outputs/predictions/r/{cell}.jsonl").unlink()
    project.set("first", "wrong", 1)
    changed = call(project, "batch", batch)
    return Story(project, first, said, repeated, changed, call(project, "batch", batch))


@pytest.mark.slow
def test_inference_that_is_shared_is_done_once(story):
    assert set(Counter(story.first.asked).values()) == {1}
    models = [model for model, _ in story.first.asked]
    assert models == ["first"] * 6 + ["second"] * 4, "one model answers after the other"
    assert story.project.rows("r") == {
        "first/fwe/1024": [0, 1, 2, 3],
        "first/vt/1024": [0, 1],
        "second/fwe/1024": [0, 1],
        "second/vt/1024": [0, 1],
    }
    said = story.said
    assert sorted(said) == ["all/52_both", "first/50_own", "first/51_fails", "second/50_own"]
    assert "second 2 rows" in said["second/50_own"]
    both = said["all/52_both"]
    assert "first+second 10 rows" in both, "4 of them were asked for by another notebook"


@pytest.mark.slow
def test_a_failing_notebook_stops_nobody_and_names_the_command_to_repeat_it(story):
    assert story.first.ended.returncode == 1
    done = re.findall(r"^done +(\S+ \S+)", story.first.ended.stdout, re.MULTILINE)
    own = ["first 50_own", "first predictions", "second 50_own", "second predictions"]
    assert sorted(done) == ["all 52_both", *own]
    root, said = story.project.root, " ".join(story.first.ended.stdout.split())
    log = root / "outputs/notebooks/r/first/51_fails.log"
    reason = f"failed first 51_fails AssertionError: the first line the last line log: {log} "
    assert f"{reason}again: rulerkit batch {root}/params/batches/mine.yaml --only first" in said
    assert re.match(r"\$ \S+ -m papermill ", log.read_text())
    assert "1 step is not done: first 51_fails (failed)" in story.first.ended.stderr
    assert story.repeated.ended.returncode == 1
    assert story.repeated.since(story.first) == {"first/51_fails"}
    assert story.repeated.asked == []
    assert "2 steps were done before" in story.repeated.ended.stdout


@pytest.mark.slow
def test_only_what_has_changed_is_done_again(story):
    assert story.changed.ended.returncode == 0
    assert Counter(model for model, _ in story.changed.asked) == {"first": 4, "second": 2}
    assert set(story.changed.asked) < set(story.first.asked)
    expected = {"first/51_fails", "first/50_own", "second/50_own", "all/52_both"}
    assert story.changed.since(story.repeated) == expected
    about = story.project.book("second/50_own", "r")["metadata"]["papermill"]
    assert about["parameters"]["shade"] == "green"


@pytest.mark.slow
def test_where_nothing_is_left_nothing_is_done(story):
    assert (story.last.ended.returncode, story.last.ended.stderr) == (0, "")
    assert "\n6 steps were done before; nothing was asked again\n" in story.last.ended.stdout
    assert story.last.asked == []
    assert story.last.since(story.changed) == set()
    assert list(story.project.root.rglob("*.lock")) == []
    leaderboard, _, place = story.last.ended.stdout.rstrip().rpartition("\n")
    assert re.search(r"^second .*100\.0", leaderboard, re.MULTILINE)
    assert re.search(r"^first .*50\.0", leaderboard, re.MULTILINE)
    assert place == f"files:     {story.project.root}/outputs/{{figures,tables,notebooks}}/r"


@pytest.mark.slow
@pytest.mark.parametrize(("length", "transport"), [(0, "ipc"), (100, "tcp")])
def test_kernels_that_start_at_one_moment_are_given_no_port_twice(tmp_path, length, transport):
    """They have none, unless the folder for temporary files has a name too long for a socket."""
    project = Project(tmp_path / "project")
    shows = "from ipykernel import get_connection_info\nprint(get_connection_info())\n"
    project.notebook("50_own", source=shows)
    batch = project.batch({"models": ["mute"], "notebooks": ["50_own"]})
    folder = tmp_path / ("n" * length)
    folder.mkdir(exist_ok=True)
    short = Path("/tmp", f"rulerkit-{uuid.uuid4().hex[:8]}")
    short.symlink_to(folder)
    ended = project.call("batch", batch, TMPDIR=str(folder if length else short))
    short.unlink()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f'"transport": "{transport}"' in project.said("mute/50_own", "main")


def test_where_nobody_may_be_asked_what_is_stored_is_returned(project, capsys):
    asked = rk.study("perfect", tasks=["vt", "fwe"], lengths=[1024], num_examples=1)
    rk.evaluate(replace(asked, tasks=asked.tasks[:1]), progress=False)
    asked = replace(asked, ask=False)
    cells = rk.evaluate(replace(asked, num_examples=2))
    assert [(cell.task, len(cell.rows)) for cell in cells] == [("vt", 1)]
    said = "perfect vt at 1024: 1 of 2 examples; perfect fwe at 1024: 0 of 2 examples"
    assert capsys.readouterr().err == f"not answered: {said}\n"
    with pytest.raises(UserError, match=r"^nothing was answered yet \(perfect vt at 1024: 0 of 1 "):
        rk.evaluate(replace(asked, run="other"))


def status_of(project, content):
    """The state and message of the notebook, and all that the report says."""
    found = statuses(plan(project, content).jobs)
    return found[-1].state, found[-1].message, "\n".join(report(found))


@pytest.mark.slow
def test_status_says_what_has_changed_since_a_notebook_was_executed(project):
    assert [one.state for one in outcomes(execute(plan(project, ONE).jobs))] == ["done", "done"]
    edited = ONE | {"parameters": {"tasks": ["vt"]}}
    *state, said = status_of(project, edited)
    changed = "outdated", "the notebook, its parameters or its answers have changed since"
    assert tuple(state) == changed
    assert f"again: rulerkit batch {project}/params/batches/mine.yaml" in said
    rows = project / "outputs/predictions/main/mute/vt/1024.jsonl"
    change_rows(rows, pred="x")
    assert status_of(project, ONE)[:2] == changed
    rows.unlink()
    assert status_of(project, ONE)[:2] == changed


@pytest.mark.slow
def test_a_task_that_does_not_fit_a_length_leaves_the_other_cells(project):
    parameters = {"tasks": ["vt", "niah_single_1"], "lengths": [300, 1024]}
    content = {"models": ["perfect"], "together": ["10_small"], "parameters": parameters}
    assert [one.state for one in outcomes(execute(plan(project, content).jobs))] == ["done", "done"]
    found = statuses(plan(project, content).jobs)
    assert [one.state for one in found] == ["done", "done"]
    assert "3/3 cells, 3/3 examples; not run: vt at 300" in report(found)[0]
    # Answers of the same time and size are not read again.
    rows = project / "outputs/predictions/main/perfect/vt/1024.jsonl"
    before = rows.stat()
    rows.write_bytes(bytes(before.st_size))
    os.utime(rows, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert statuses(plan(project, content).jobs)[0].state == "done"
    rows.touch()
    assert statuses(plan(project, content).jobs)[0].state == "incomplete"


@pytest.mark.slow
def test_a_changed_checkpoint_is_noticed(project):
    """The same weights copied anew pass."""
    folder = project / "checkpoints/x"
    shutil.copytree(REPOSITORY / "rulerkit/data/small/llama", folder)
    parameters = {"tasks": ["niah_single_2"], "lengths": [1024], "num_examples": 1}
    model = {"base": "small-llama", "path": str(folder)}
    content = {"models": [model], "together": ["10_small"], "parameters": parameters}

    def execute_all():
        jobs = plan(project, content).jobs
        before = [status.state for status in statuses(jobs)]
        return before, [(status.state, status.message) for status in outcomes(execute(jobs))]

    assert execute_all() == (["missing", "missing"], [("done", "")] * 2)
    (weights,) = folder.glob("*.safetensors")
    os.utime(weights, (1, 1))
    assert execute_all() == (["outdated", "done"], [("done", ""), ("done before", "")])
    weights.write_bytes(weights.read_bytes()[:-64] + bytes(64))
    content["parameters"] = parameters | {"max_failures": 1}
    before, (asked, read) = execute_all()
    assert before == ["outdated", "outdated"]
    assert asked[0] == "failed"
    assert "was made with model.fingerprint" in asked[1]
    changed = "the checkpoint or the settings of x changed after it answered"
    assert read == ("missing", changed)

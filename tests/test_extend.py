"""Families and engines from outside: the packages of docs/extend.md, and small ones, installed and
used like ours."""

import json
import os
import re
import shutil
import subprocess
import sys
from hashlib import md5

import pytest

import rulerkit as rk
from rulerkit.common import plugins
from rulerkit.generation.tasks import recorded_task
from rulerkit.generation.tasks.base import score_of
from tests.conftest import needs_extras
from tests.projects import REPOSITORY

PAGE = (REPOSITORY / "docs/extend.md").read_text()
MODELS = ["perfect", {"engine": "numbers", "name": "near", "window": 600}]
ASKED = {"tasks": ["boxes", "boxes_20", "vt"], "lengths": [1024, 2048], "num_examples": 10}


def write_packages(folder):
    """The files that the page shows, below a folder."""
    shown = re.findall(r"`(\w+/[\w.]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 4
    for name, text in shown:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def call(*arguments, cwd, path="", fails=False):
    places = [path, REPOSITORY, *REPOSITORY.glob("extras/*")]
    found = os.pathsep.join(str(place) for place in places if place)
    environment = os.environ | {"PYTHONPATH": found, "RULERKIT_HOME": str(cwd)}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def rulerkit(*arguments, **options):
    return call("-m", "rulerkit", *arguments, **options)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project whose answers come from the packages of the page, and where these are installed."""
    root = write_packages(tmp_path_factory.mktemp("extend"))
    site, places = root / "site", (root / "boxes", root / "numbers_engine")
    pip = "-m pip install --quiet --no-deps --no-build-isolation --disable-pip-version-check"
    call(*pip.split(), "--target", site, *places, cwd=root)
    for place in places:
        shutil.rmtree(place)
    asked = json.dumps(ASKED | {"models": MODELS})
    rulerkit("evaluate", "-y", asked, cwd=root, path=site)
    return root, site


@pytest.mark.slow
def test_both_are_used_like_ours(project):
    root, site = project
    here = {"cwd": root, "path": site}
    shown = rulerkit("report", "--by", "task", "outputs/predictions", **here)
    assert re.search(r"^boxes_20 +100", shown, re.MULTILINE)

    assert "boxes_20" in rulerkit("tasks", **here)
    rulerkit("browse", "outputs", "-o", "page.html", **here)
    assert "boxes_20" in (root / "page.html").read_text()
    compared = rulerkit("compare", "main/perfect", "main/near", fails=True, **here)
    assert "worse" in compared
    record = json.loads(next(root.rglob("boxes/1024.json")).read_text())
    assert record["result"]["task"]["module"] == "boxes"
    assert record["result"]["task"]["match"] == "own"


@pytest.mark.slow
def test_nothing_is_judged_without_the_module(project):
    root, _ = project
    for by in ("model", "task"):
        said = rulerkit("report", "outputs/predictions", "--by", by, cwd=root)
        said = " ".join(said.split())
        left_out = re.findall(r"left out: \S+?perfect/(\S+).jsonl: the answers of boxes", said)
        assert left_out == ["boxes/1024", "boxes/2048", "boxes_20/1024", "boxes_20/2048"]
        assert "family boxes, which is in boxes and cannot be imported" in said
        assert "100.0" in said or "1/13 tasks" in said
    asked = json.dumps({"model": MODELS[1], "tasks": ["vt"], "lengths": [1024]})
    refused = rulerkit("evaluate", "-y", asked, fails=True, cwd=root)
    assert "unknown engine" in refused


def test_a_record_imports_no_module_that_is_no_plug_in(tmp_path, monkeypatch):
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    (tmp_path / "acts.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    settings = {"name": "x", "family": "x", "match": "own"}
    for module in ("acts", "acts.x", "antigravity", "", ".", "a..b", "no_such"):
        with pytest.raises(rk.UserError, match="cannot be imported"):
            recorded_task(settings | {"module": module})
    assert not (tmp_path / "trace").exists()
    assert "antigravity" not in sys.modules


BARE = """
from pydantic.dataclasses import dataclass
from rulerkit.generation.example import Draft, Piece
from rulerkit.generation.tasks.base import Task
from rulerkit.generation.tasks.haystacks import fill_with_sentences

@dataclass(frozen=True, kw_only=True)
class Bare(Task):
    family = "bare"
    new_tokens = (8, 1)

    def make(self, stream, length):
        word = stream.random.choice(["ochre", "teal"])
        needle = Piece(f"The word is {word}.\\n", "needle", value=word)
        return Draft("Read this.\\n", "Which word?", " It is", (word,), hidden=[needle])

    def fill(self, draft, budget):
        return fill_with_sentences(draft.hidden, budget)

families = [Bare]
"""

VT = 'tasks = classmethod(lambda cls: [cls(name="vt")]); family = "bare"'
BREAKS = [
    ('family = "bare"', VT, "its task vt has the name of one of rulerkit"),
    ('family = "bare"', 'family = "niah"', "its family niah has the name of one of rulerkit"),
    ("new_tokens = (8, 1)", "", "brings no `family` or no `new_tokens`"),
    ("new_tokens = (8, 1)", 'new_tokens = (8, 1); match = "own"', "says match = 'own'"),
    ("families = [Bare]", "families = [3]", "is no family"),
    ("families = [Bare]", "families = 3", "families is 3"),
    ("families = [Bare]", "", "it brings none of families, engines"),
    ("families = [Bare]", "engines = {'openai': object}", "its engine openai has the name of one"),
    ("families = [Bare]", "families = 'no_such:X'", "no_such:X cannot be imported"),
    ("from pydantic.dataclasses", "from dataklasses", "cannot be imported"),
    ("from pydantic.dataclasses", "from dataclasses", "is no dataclass of pydantic"),
]


def own_module(folder, monkeypatch, text):
    """The name of a new plug-in module in a project of its own."""
    name = f"own_{md5(text.encode()).hexdigest()[:8]}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.setenv("RULERKIT_HOME", str(folder))
    monkeypatch.setattr(plugins, "_NAMED", {})
    monkeypatch.syspath_prepend(str(folder))
    return name


@needs_extras
@pytest.mark.parametrize(("old", "new", "message"), BREAKS)
def test_a_plug_in_that_breaks_the_contract_is_refused(tmp_path, monkeypatch, old, new, message):
    assert old in BARE
    name = own_module(tmp_path, monkeypatch, BARE.replace(old, new))
    with pytest.raises(rk.UserError, match=message):
        rk.study("perfect", plugins=[name], tasks=["bare"])


def test_two_plug_ins_with_one_family_are_refused(tmp_path, monkeypatch):
    one, two = (own_module(tmp_path, monkeypatch, BARE + end) for end in ("", "\n"))
    said = f"plug-in {two}: its family bare has the name of one of {one}"
    with pytest.raises(rk.UserError, match=said):
        rk.study("perfect", plugins=[one, two], tasks=["bare"])


@pytest.mark.parametrize("value", [2, -0.1, float("nan"), None, "1"])
def test_a_score_is_a_number_from_0_to_1(value):
    names = {}
    exec(BARE, names)  # the module of a plug-in

    class Judged(names["Bare"]):
        match = "own"

        def score(self, text, references):
            return value

    with pytest.raises(rk.UserError, match=r"family bare gave .*a number from 0 to 1"):
        score_of(Judged(name="bare"), "teal", ("teal",))


RAISES = [
    ("        word =", '        raise KeyError("key")\n        word =', "KeyError"),
    ("        return fill", '        raise KeyError("key")\n        return fill', "KeyError"),
    ("return fill_with_sentences(draft.hidden, budget)", "return 3", "of bare at 1024 tokens: "),
    ("(word,), hidden", "(' ',), hidden", "or an empty one"),
]


@pytest.mark.parametrize(("old", "new", "message"), RAISES)
def test_an_error_in_a_family_is_one_line(tmp_path, monkeypatch, old, new, message):
    assert old in BARE
    name = own_module(tmp_path, monkeypatch, BARE.replace(old, new))
    asked = {"tasks": ["bare"], "lengths": [1024], "num_examples": 1}
    with pytest.raises(rk.UserError) as caught:
        rk.evaluate("perfect", plugins=[name], **asked, progress=False)
    said = str(caught.value)
    assert message in said
    assert "\n" not in said
    if "KeyError" in new:
        assert said == f"plug-in {name}: example 0 of bare at 1024 tokens: KeyError: 'key'"


ENGINE = """
from rulerkit.inference.model import Answer, Model, Failure

class Mine(Model):
    on_gpu = False

    def identity(self):
        return {"engine": "mine"}

    def answer(self, examples):
        for example in examples:
            if example.index == 1:
                raise KeyError("key")
            yield example, Answer("teal", "stop", 1)

engines = {"mine": Mine}
"""
TWICE = "            yield example, Failure('no')\n            yield"
FAULTY = [
    ("    def identity", "    def other", "abstract class Mine"),
    ("engines", "engines", "answer of the model own: KeyError: 'key'"),
    ("yield example, Answer", 'yield "teal" #', "the model own: "),
    ("            yield", TWICE, "example 0 of vt twice"),
]


@pytest.mark.parametrize(("old", "new", "message"), FAULTY)
def test_an_error_in_an_engine_is_one_line(tmp_path, monkeypatch, old, new, message):
    """What it answered before stays."""
    assert old in ENGINE
    name = own_module(tmp_path, monkeypatch, ENGINE.replace(old, new))
    asked = {"tasks": ["vt"], "lengths": [1024], "num_examples": 3}
    said = []
    try:
        study = rk.study(model={"engine": "mine", "name": "own"}, plugins=[name], **asked)
        rk.evaluate(study, progress=False, failed=said.append)
    except rk.UserError as error:
        said.append(error)
    (line,) = said
    assert message in str(line)
    if "answer of" in message:
        (rows,) = tmp_path.rglob("vt/1024.jsonl")
        assert len(rows.read_text().splitlines()) == 1


@pytest.mark.slow
def test_a_broken_installed_plug_in_is_left_out_and_a_bare_family_does_all(tmp_path):
    site = installed(tmp_path / "site", "broken", "import no_such_module")
    here = {"cwd": tmp_path, "path": site}
    (tmp_path / "own.py").write_text(BARE)
    said = rulerkit("tasks", **here)
    named = "left out: the plug-in broken of the installed package broken: it cannot be imported"
    assert said.count(named) == 1
    assert "niah_single_1" in said
    asked = "{plugins: [own, tests.planted_readers], models: [perfect, floor-copy]}"
    more = ("--tasks", "bare", "--lengths", "1K", "-n", "5")
    rulerkit("evaluate", "-y", asked, *more, **here)
    table = rulerkit("report", "--by", "task", "outputs/predictions", **here)
    assert re.search(r"^bare +100", table, re.MULTILINE)
    rulerkit("browse", "outputs", "-o", "page.html", **here)
    rulerkit("compare", "main/perfect", "main/floor-copy", **here)


ONE_FILE = BARE.replace(
    "new_tokens = (8, 1)", 'new_tokens = (8, 1); match = "own"\n    suite = "bare"'
).replace(
    "families = [Bare]",
    '''    def score(self, text, references):
        return float(references[0] in text)


def table(scores, tasks=None, lengths=None, num_examples=None, format="text", notes=()):
    return f"bare: {100 * scores['score'].mean():.0f} % as {format}\\n"


def figure(scores, ax=None):
    import matplotlib.pyplot as plt

    ax = ax or plt.figure().subplots()
    ax.plot(scores.groupby("length")["score"].mean())
    return ax


def read_words(path, report):
    raise rk.UserError(f"{path} holds no words")


def judge_again(cells, names):
    return f"{len(cells)} cells by {', '.join(names)}\\n"


def as_lines(cells, tallies, dataset):
    return f"{tallies['n'].sum()} answers for {dataset}\\n"


app = typer.Typer()


@app.command()
def words(number: int = 2):
    """Say some words."""
    typer.echo("teal " * number)


families = [Bare]
readers = {"*.words": read_words}
scorers = {"some": judge_again, "other": judge_again}
formats = {"lines": as_lines}
capabilities = {"bare": Capability(table, figure)}
commands = "bare_kit:app"
project = Path(__file__).parent / "bare_project"''',
)
ONE_FILE = f"from pathlib import Path\n\nimport typer\n\nimport rulerkit as rk\nfrom rulerkit.common.plugins import Capability\n{ONE_FILE}"
FIGURE = """
import matplotlib
matplotlib.use("agg")
import rulerkit as rk
scores = rk.score("outputs")
print(rk.plots.of_suite(scores, "bare").lines[0].get_xydata().tolist())
"""


def installed(site, module, text):
    """A folder from which a package with one module is found, as if it were installed."""
    about = site / f"{module}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Name: {module}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[rulerkit.plugins]\nx = {module}\n")
    (site / f"{module}.py").write_text(text)
    return site


@pytest.mark.slow
@needs_extras
def test_one_file_brings_a_family_a_table_a_figure_a_reader_and_a_command(tmp_path):
    site = installed(tmp_path / "site", "bare_kit", ONE_FILE)
    params = site / "bare_project/params/sizes"
    params.mkdir(parents=True)
    (params / "bare.yaml").write_text("tasks: bare\nlengths: [1K, 2K]\nnum_examples: 2\n")
    here = {"cwd": tmp_path, "path": site}

    shown = rulerkit("evaluate", "perfect", "--file", "params/sizes/bare.yaml", **here)
    assert "bare: 0 % as text" in shown
    assert "bare: 0 % as text" in rulerkit("report", "--by", "task", "outputs/predictions", **here)
    as_markdown = ("--by", "model", "--format", "markdown")
    table = rulerkit("report", "outputs/predictions", *as_markdown, **here)
    assert table == "bare: 0 % as markdown\n"
    assert call("-c", FIGURE, **here) == "[[1024.0, 0.0], [2048.0, 0.0]]\n"

    said = rulerkit("--help", **here)
    assert re.search(r"Plug-ins.*\n.*words +Say some words", said)
    assert rulerkit("words", "--number", "3", **here) == "teal teal teal \n"
    (tmp_path / "some.words").write_text("teal")
    assert "holds no words" in rulerkit("report", "--by", "task", "some.words", fails=True, **here)
    report = ("report", "outputs/predictions")
    assert rulerkit(*report, "--as", "some", "--as", "other", **here) == "2 cells by some, other\n"
    of_format = ("--format", "lines", "--dataset", "a/b")
    assert rulerkit(*report, *of_format, **here) == "4 answers for a/b\n"
    rulerkit("notebooks", "mine", **here)
    assert (tmp_path / "mine/params/sizes/bare.yaml").exists()
    assert (tmp_path / "mine/notebooks/17_tasks.ipynb").exists()

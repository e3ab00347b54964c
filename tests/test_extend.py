"""Families and engines from outside: the packages of docs/extend.md, and small ones, installed and
used like ours."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from rulerkit.common.errors import UserError
from rulerkit.generation.tasks import judge_of
from tests.projects import REPOSITORY

PAGE = (REPOSITORY / "docs/extend.md").read_text()
MODELS = [
    "perfect",
    {"engine": "numbers", "name": "near", "window": 600},
    {"engine": "numbers", "name": "all"},
]
ASKED = {
    "tasks": ["boxes", "boxes_20"],
    "lengths": [1024, 2048],
    "num_examples": 10,
}


def write_packages(folder):
    """The files that the page shows, below a folder."""
    shown = re.findall(r"`(\w+/[\w.]+)`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert len(shown) == 4
    for name, text in shown:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    for path in folder.glob("*/*.py"):
        assert len(path.read_text().splitlines()) < 150
    return folder


def call(*arguments, cwd, path="", fails=False):
    environment = os.environ | {
        "PYTHONPATH": str(path),
        "RULERKIT_HOME": str(cwd),
    }
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def rulerkit(*arguments, **options):
    return call("-m", "rulerkit", *arguments, **options)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A project whose answers come from the packages of the page, and where these are installed."""
    root = tmp_path_factory.mktemp("extend")
    packages, site = write_packages(root), root / "site"
    call(
        *("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"),
        *("--disable-pip-version-check", "--target", site),
        *(packages / "boxes", packages / "numbers_engine"),
        cwd=root,
    )
    for name in ("boxes", "numbers_engine"):
        shutil.rmtree(root / name)
    asked = json.dumps(ASKED | {"models": MODELS[:2]})
    rulerkit("evaluate", "-y", asked, cwd=root, path=site)
    return root, site


@pytest.mark.slow
def test_both_are_used_like_ours(project):
    root, site = project
    here = {"cwd": root, "path": site}
    shown = rulerkit("score", "outputs/predictions", **here)
    assert re.search(r"^boxes_20 +100", shown, re.MULTILINE)
    table = rulerkit(
        "report", "outputs/predictions", "--category", "boxes", **here
    )
    assert "the threshold of its family" in table
    assert re.search(r"perfect reader\b.*100\.0", table)

    assert "boxes_20" in rulerkit("tasks", **here)
    rulerkit("browse", "outputs", "-o", "page.html", **here)
    page = (root / "page.html").read_text()
    assert "boxes_20" in page
    compared = rulerkit(
        "compare", "main/perfect", "main/near", fails=True, **here
    )
    assert "worse" in compared
    record = json.loads(next(root.rglob("boxes/1024.json")).read_text())
    assert record["result"]["task"]["module"] == "boxes"
    assert record["result"]["task"]["match"] == "own"
    assert re.fullmatch(r"[0-9a-f]{16}", record["family_source"])
    assert set(record["floors"]) == {"copy", "nothing"}
    assert record["floors"]["nothing"] == pytest.approx(0.2)


@pytest.mark.slow
def test_nothing_is_judged_without_the_module(project):
    root, _ = project
    refused = rulerkit("score", "outputs/predictions", fails=True, cwd=root)
    assert "family boxes, which is in boxes and cannot be imported" in refused
    assert not re.search(r"\d\.\d\d \[", refused), "a score by another rule"
    refused = rulerkit("report", "outputs/predictions", fails=True, cwd=root)
    assert "cannot be imported" in refused
    asked = json.dumps({"model": MODELS[2], "tasks": ["vt"], "lengths": [1024]})
    refused = rulerkit("evaluate", "-y", asked, fails=True, cwd=root)
    assert "unknown engine" in refused


@pytest.mark.slow
def test_a_batch_names_them_and_its_jobs_carry_them(tmp_path):
    """`plugins` in a batch, of modules in the project root that nobody installed."""
    for package in write_packages(tmp_path).glob("*/*.py"):
        shutil.copy(package, tmp_path / f"my_{package.name}")
    plugins = ["my_boxes", "my_numbers_engine"]
    batch = {
        "plugins": plugins,
        "models": MODELS[:2],
        "notebooks": ["01_main_results"],
        "parameters": ASKED,
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(batch))
    rulerkit("batch", "mine.yaml", cwd=tmp_path)
    assert "done" in rulerkit("status", "mine.yaml", cwd=tmp_path)
    job = next(tmp_path.rglob("near/*.job.yaml"))
    assert "my_numbers_engine" in job.read_text()
    rulerkit("run", job, cwd=tmp_path)
    assert "2 tasks at 1K to 2K" in (tmp_path / "outputs/index.html").read_text()


def test_a_record_imports_no_module_that_is_no_plug_in(tmp_path, monkeypatch):
    """Records may come from anybody."""
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    (tmp_path / "acts.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w')")
    settings = {"name": "x", "family": "x", "match": "own"}
    for module in ("acts", "acts.x", "antigravity", "", ".", "a..b", "no_such"):
        with pytest.raises(UserError, match="cannot be imported"):
            judge_of(settings | {"module": module, "judges": True})
    assert not (tmp_path / "trace").exists()
    assert "antigravity" not in sys.modules


BARE = """
from dataclasses import dataclass
from rulerkit.generation.example import Draft, Piece
from rulerkit.generation.tasks.base import Task
from rulerkit.generation.tasks.haystacks import fill_with_sentences

@dataclass(frozen=True, kw_only=True)
class Bare(Task):
    family = "bare"
    new_tokens = (8, 1)
    floors = ()

    def draft(self, stream, length):
        word = stream.random.choice(["ochre", "teal"])
        needle = Piece(f"The word is {word}.\\n", "needle", value=word)
        return Draft("Read this.\\n", "Which word?", " It is", (word,), plan=[needle])

    def fill(self, draft, budget):
        return fill_with_sentences(draft.plan, budget)

TASKS = [Bare(name="bare")]
"""


@pytest.mark.slow
def test_what_is_optional_is_optional(tmp_path):
    (tmp_path / "bare_tasks.py").write_text(BARE)
    asked = {
        "plugins": ["bare_tasks"],
        "models": ["perfect", "floor-copy"],
        "tasks": ["bare"],
        "lengths": [1024],
        "num_examples": 5,
    }
    here = {"cwd": tmp_path}
    rulerkit("evaluate", "-y", json.dumps(asked), **here)
    table = rulerkit(
        "report", "outputs/predictions", "--category", "bare", **here
    )
    assert "No effective length" in table
    rulerkit("browse", "outputs", "-o", "page.html", **here)
    rulerkit("compare", "main/perfect", "main/floor-copy", **here)
    # A named rule needs no module: the record says which, and the score is the same.
    (tmp_path / "bare_tasks.py").unlink()
    shutil.rmtree(tmp_path / "outputs/cache", ignore_errors=True)
    assert (
        rulerkit("report", "outputs/predictions", "--category", "bare", **here)
        == table
    )


BREAKS = [
    (
        'Bare(name="bare")',
        'Bare(name="vt")',
        "its task vt has the name of one of rulerkit",
    ),
    (
        'family = "bare"',
        'family = "niah"',
        "its family niah has the name of one of rulerkit",
    ),
    ("new_tokens = (8, 1)", "", "the family Bare brings no `new_tokens`"),
    ("floors = ()", 'match = "own"', "says match = 'own'"),
    ("floors = ()", 'match = "f11"', "match of the family bare"),
    ("TASKS = [", "NOTHING = [", "neither TASKS"),
    ('TASKS = [Bare(name="bare")]', "TASKS = [3]", "which is no task"),
    ('TASKS = [Bare(name="bare")]', "TASKS = 3", "TASKS is 3"),
    ("from dataclasses", "from dataklasses", "cannot be imported"),
]
REFUSED = """
import sys
import rulerkit as rk
from rulerkit.common import plugins

for name in sys.argv[1:]:
    plugins._LOADED.clear()
    try:
        rk.study(plugins=[name], model="perfect", tasks=["bare"], lengths=[1024])
        print("nothing")
    except rk.UserError as error:
        print(error)
plugins._LOADED.clear()
try:
    rk.study(plugins=["one", "two"], model="perfect", tasks=["bare"])
except rk.UserError as error:
    print(error)
"""


def test_a_plug_in_that_breaks_the_contract_is_refused(tmp_path):
    names = []
    for number, (old, new, _) in enumerate(BREAKS):
        assert old in BARE
        names.append(f"mine_{number}")
        (tmp_path / f"{names[-1]}.py").write_text(BARE.replace(old, new))
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(BARE)
    *said, clash = call("-c", REFUSED, *names, cwd=tmp_path).splitlines()
    assert "plug-in two: its task bare has the name of one of one" in clash
    for (_, _, message), line in zip(BREAKS, said, strict=True):
        assert message in line


@pytest.mark.parametrize("value", [2, -0.1, float("nan"), None, "1"])
def test_a_score_is_a_number_from_0_to_1(value):
    """Before anything is stored."""
    names = {}
    exec(BARE, names)  # the module of a plug-in

    class Judged(names["Bare"]):
        match = "own"

        def score(self, text, references):
            return value

    with pytest.raises(
        UserError, match=r"family bare gave .*a number from 0 to 1"
    ):
        Judged(name="bare").score("teal", ("teal",))


def test_an_engine_with_the_name_of_one_of_ours_is_refused(tmp_path, monkeypatch):
    import rulerkit as rk
    from rulerkit.common import plugins

    (tmp_path / "clashing.py").write_text("ENGINES = {'openai': object}")
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    monkeypatch.setattr(plugins, "_LOADED", {})
    with pytest.raises(UserError, match="its engine openai has the name of one"):
        rk.study(plugins=["clashing"], model="perfect", tasks=["vt"])

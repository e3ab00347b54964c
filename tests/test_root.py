"""Where results go, and what the address of a server stands for."""

import json
import os
import re
import subprocess
import sys

import pytest

import rulerkit as rk
from rulerkit.common import paths
from rulerkit.common.errors import UserError
from tests.projects import SMALL, notebook

ASKED = ("--tasks", "vt", "--lengths", "1K", "-n", "1")
ANSWERS = "outputs/predictions/main/perfect/vt/1024.jsonl"


@pytest.fixture
def project(tmp_path):
    for name in ("params/models", "notebooks", "deep/er"):
        (tmp_path / "project" / name).mkdir(parents=True)
    return tmp_path / "project"


def test_an_empty_folder_is_its_own_root(nowhere, rulerkit):
    ended = rulerkit("evaluate", "perfect", *ASKED)
    assert (ended.status, "project root" in ended.out) == (0, False)
    assert (nowhere / ANSWERS).exists()
    assert not (paths.KIT / "outputs/predictions/main/perfect/vt/1024.jsonl").exists()  # fmt: skip


@pytest.mark.parametrize("place", ["notebooks", "deep/er"])
def test_a_folder_inside_a_project_belongs_to_it(nowhere, project, rulerkit, monkeypatch, place):
    monkeypatch.chdir(project / place)
    own = "model: {engine: reader, window: 100, label: mine}"
    (project / "params/models/perfect.yaml").write_text(own)
    ended = rulerkit("evaluate", "perfect", *ASKED)
    assert ended.out.startswith(f"project root: {project} (the nearest folder with ")
    assert "mine" in ended.out, "the project's own file"
    assert len(list((project / "outputs").rglob("1024.jsonl"))) == 1
    assert not (project / place / "outputs").exists()
    assert rulerkit("report").status == 0, "commands look where evaluate writes"


@pytest.mark.slow
def test_papermill_writes_where_its_kernel_works(nowhere, project):
    """Called from an empty folder, results lie there; with the project as working directory, in
    the project."""
    parameters = 'model = "perfect"\ntasks = ["vt"]\nlengths = [1024]\nnum_examples = 1\n'
    file = project / "notebooks/10_small.ipynb"
    notebook(file, parameters, SMALL)
    call = [sys.executable, "-m", "papermill", str(file), "out.ipynb"]
    for more, place in (((), nowhere), (("--cwd", file.parent), project)):
        subprocess.run([*call, *map(str, more)], cwd=nowhere, check=True)
        assert (place / ANSWERS).exists()


def test_an_address_is_a_model(nowhere, serve, rulerkit):
    server = serve()
    host = server.url.removeprefix("http://").removesuffix("/v1")
    ended = rulerkit("evaluate", f"http://{host}", *ASKED, "-y", "tokenizer: builtin")
    assert ended.status == 0, ended.err
    (record,) = nowhere.rglob("1024.json")
    assert record.parents[1].name == f"m-{host.replace(':', '-')}"
    model = json.loads(record.read_text())["result"]["model"]
    assert (model["engine"], model["path"]) == ("openai", "m")
    described = {"base_url": server.url, "engine": "openai", "path": "m"}
    in_python = rk.study(model=server.url).models[0]
    assert described.items() <= in_python.items()

    server.listing = {"data": [{"id": "org/a"}, {"id": "org/b"}]}
    with pytest.raises(UserError, match=r"serves 2 models \(org/a, org/b\): name"):
        rk.study(model=server.url)
    chosen = rk.study(model={"base": server.url, "path": "org/b"}).models[0]
    assert (chosen["path"], chosen["label"].split()[0]) == ("org/b", "b")


def test_help_is_grouped_and_errors_are_red_on_a_terminal(rulerkit):
    said = rulerkit("--help").out
    assert re.search("─ Every day ─.*─ Look closer ─.*─ Set up ─", said, re.DOTALL)
    words = re.findall(r"^│ ([a-z]+) ", said, re.MULTILINE)
    assert words[:5] == ["evaluate", "report", "browse", "batch", "status"]
    import pty

    reader, writer = pty.openpty()
    code = "from rulerkit.cli import main; main()"
    subprocess.run([sys.executable, "-c", code, "evaluate"], stderr=writer, check=False)
    os.close(writer)
    assert os.read(reader, 100).startswith(b"\x1b[31m\x1b[1mrulerkit:\x1b[0m no model")

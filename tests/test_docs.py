"""The pages for users: the reference follows the code, their Python runs, the citation is whole."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rulerkit as rk
from tests.conftest import needs_extras

ROOT = Path(__file__).resolve().parent.parent

PAGES = [
    (["README.md", "docs/student.md"], "mine", 13 * 2),
    (["docs/author.md"], "reader-4096", 3 * 2),
]


@needs_extras
def test_the_reference_is_what_the_code_says(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    monkeypatch.delitem(sys.modules, "make_reference", raising=False)
    import make_reference

    written = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
    assert written == make_reference.reference(), "run python scripts/make_reference.py"


@pytest.mark.slow
@pytest.mark.parametrize(("pages", "model", "cells"), PAGES)
def test_the_code_of_pages_runs_as_printed(tmp_path, monkeypatch, pages, model, cells):
    import matplotlib.pyplot as plt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in pages)
    with plt.rc_context():
        codes = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        codes.sort(key=lambda code: "import rulerkit" not in code)  # which makes the summary
        exec("\n".join(codes), {})
    plt.close("all")
    assert len(list(tmp_path.rglob(f"{model}/*/*.jsonl"))) == cells


def test_the_citation_has_what_its_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["version"] == rk.__version__


@pytest.mark.slow
def test_the_first_command_of_the_readme_prints_what_stands_below_it(tmp_path):
    """By uvx from this tree, in an empty folder, without a clone or an environment."""
    uvx = shutil.which("uvx", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uvx is None:
        pytest.skip("uvx is not installed")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command = re.search(r"^ {4}uvx (.*)$", text, re.MULTILINE)[1]
    printed = re.search(r"^```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]
    words = command.replace("git+URL", str(ROOT)).split()
    # The environment of the tests has the tree on its path.
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([uvx, *words], capture_output=True, text=True, cwd=tmp_path, env=clean)
    if "Failed to fetch" in done.stderr:
        pytest.skip(f"no package registry: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    for line in printed.splitlines():
        assert line in done.stdout

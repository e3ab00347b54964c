"""The pages for users: each command runs as printed, or is named below with the reason why not and
has options that exist; no line is too long to read."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import typer
import yaml

from rulerkit.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
PAGES += [
    ROOT / "benchmarks/README.md",
    ROOT / "notebooks/small_models/README.md",
]
PAGES += sorted((ROOT / "docs").glob("*.md"))
FOR_USERS = [
    page
    for page in PAGES
    if page.parent.name == "docs" or page.name == "README.md"
]
FOR_USERS = [
    page
    for page in FOR_USERS
    if page.parent.name not in ("benchmarks", "small_models")
]

NOT_RUN = {
    r"pip install|make demo": "the environment of the tests is installed; CI runs the demo",
    r"rulerkit fetch": "downloads models and texts",
    r"--slurm": "needs a cluster; test_slurm submits to one",
    r"Qwen/|llama-3\.1-8b|lwm-7b-chat": "downloads a model and needs a GPU",
    r"rulerkit serve": "runs until it is stopped",
    r"batches/one-model\.yaml": "needs a GPU",
    r"batches/small\.yaml|18_train_small_models": "trains, or asks for ten minutes; test_training",
    r"num_examples: adaptive": "asks for thousands of examples; test_adaptive runs it",
    r"--tasks frontier": "minutes; test_frontier asks these tasks",
}
"""Commands that are not run, and why."""
WORDS = {"MODEL": "reader-1024", "OTHER": "reader-2048", "NAME": "reader-1024"}
"""What stands for something of the reader's."""


def commands_of(page):
    """The commands in the blocks of a page, continued lines joined, without what follows `#`."""
    text = re.sub(r" *\\\n\s*", " ", page.read_text(encoding="utf-8"))
    # a quoted parameter may go on over lines
    text = re.sub(r"('[^'\n]*\n[^'\n]*')", lambda m: " ".join(m[1].split()), text)
    starts = r"^ {4}((?:rulerkit|papermill|pip|make|python) .*)$"
    found = re.findall(starts, text, re.MULTILINE)
    return [re.sub(r"\s+#.*$", "", command).strip() for command in found]


def all_commands():
    return {
        command: page.name
        for page in FOR_USERS
        if page.name != "reference.md"
        for command in commands_of(page)
    }


def reason(command):
    return next(
        (why for what, why in NOT_RUN.items() if re.search(what, command)), ""
    )


@pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}"
)
def test_lines_are_short(page):
    """A row of a table cannot be broken; the reference is made from the code."""
    lines = page.read_text(encoding="utf-8").splitlines()
    long = [line for line in lines if len(line) > 100 and line.strip()[:1] != "|"]
    assert long == [] or page.name == "reference.md"


@pytest.mark.parametrize("command", all_commands())
def test_options_of_commands_exist(command):
    """Also of those that are not run: the subcommand, its options, its files, the keys of `-y`."""
    words = shlex.split(command)
    if words[0] == "make":
        assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8")
    if words[0] == "pip":
        extra = re.search(r"\[(\w+)\]", command)
        assert extra
        assert f"\n{extra[1]} = [" in (ROOT / "pyproject.toml").read_text(
            encoding="utf-8"
        )
    if words[0] == "rulerkit":
        known = typer.main.get_command(app).commands[words[1]]
        names = {name for parameter in known.params for name in parameter.opts}
        used = [word for word in words[2:] if re.match(r"--?[a-z]", word)]
        assert set(used) <= names
    files = re.findall(r"(?:params|notebooks)/[\w./-]+\.(?:yaml|ipynb)", command)
    assert [file for file in files if not (ROOT / file).exists()] == []
    for flag, value in pairwise(words):
        if flag == "-y":
            assert isinstance(yaml.safe_load(value), dict)


def test_every_command_that_is_not_run_is_needed_in_the_list():
    commands = all_commands()
    unused = [
        what for what in NOT_RUN if not any(re.search(what, c) for c in commands)
    ]
    assert unused == []


@pytest.mark.slow
def test_commands_run_as_printed(tmp_path):
    """In a fresh copy of the tree, with the answers that they read."""
    files = subprocess.run(
        ["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True
    ).stdout.split()
    for file in files:
        if file.startswith(("params/", "notebooks/")):
            target = tmp_path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / file, target)

    folder = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "RULERKIT_HOME": str(tmp_path),
    }

    def run(command):
        return subprocess.run(
            shlex.split(command),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=900,
        )

    asked = "--tasks vt,niah_single_2 --lengths 1K,4K -n 4"
    for name in ("baseline", "candidate", "reader-1024"):
        model = f"'{{base: reader-1024, name: {name}}}'"
        assert run(f"rulerkit evaluate {model} {asked}").returncode == 0

    failed = {}
    for command in all_commands():
        if reason(command):
            continue
        for word, stands_for in WORDS.items():
            command = re.sub(rf"\b{word}\b", stands_for, command)
        done = run(command)
        # 1 and 3 are verdicts of compare and status
        is_verdict = command.split()[1] in ("compare", "status")
        if done.returncode and not (is_verdict and done.returncode in (1, 3)):
            failed[command] = done.stderr[-500:]
    assert failed == {}

"""The pages for users: each command and each block of code runs as printed, or is named below with
the reason why not and is tried without its GPU, cluster or network."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
import yaml

from rulerkit.cli.app import add_plugins, app
from rulerkit.common.paths import resolve
from rulerkit.common.settings import BatchKeys, ModelKeys, Parameters
from tests.conftest import needs_extras
from tests.test_extend import write_packages

ROOT = Path(__file__).resolve().parent.parent
DOCS = sorted((ROOT / "docs").glob("*.md"))
FOR_USERS = [ROOT / "README.md", *[page for page in DOCS if page.name != "reference.md"]]
OTHERS = ("docs/reference.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")
OTHERS += ("benchmarks/README.md", "notebooks/small_models/README.md", "skills/rulerkit/SKILL.md")
PAGES = [*FOR_USERS, *(ROOT / name for name in OTHERS)]

NOT_RUN = {
    r"report lm-eval/": "reads files of lm-evaluation-harness; test_scorers has some",
    r"^pip install|^make|^uvx|^git ": "installs the kit; CI and test_docs run these",
    r"rulerkit fetch": "downloads models and texts",
    r"--format hf": "needs all thirteen tasks; test_hub has them",
    r"--slurm": "needs a cluster; test_slurm submits to one",
    r"Qwen/|(?<!main/)llama-3\.1-8b|lwm-7b-chat": "downloads a model and needs a GPU",
    r"^rsync": "needs a second machine; test_many_machines reads what it brings",
    r"batches/one-model\.yaml|^vllm ": "needs a GPU",
    r"localhost:8000": "needs two servers; test_gate starts them",
    r"batches/small\.yaml|18_train_small_models": "trains, or asks for ten minutes; test_training",
    r"num_examples: adaptive": "asks for thousands of examples; test_adaptive runs it",
}
"""Commands that are not run, and why. Those with a dry run have it."""
SMALLER = {
    r"19_paper_figures": "-y 'lengths: [2048]' -y 'short_lengths: [1024]' -y 'num_examples: 1'"
    " -y 'chat: [reader-1024]' -y 'base: [reader-1024]' -y 'sizes: [reader-1024]'"
    " -y 'architectures: [reader-1024]'",
    r"--tasks frontier|tasks: \[niah_single_2\]": "--lengths 4K -n 1",
    r"rulerkit gate": "-n 4",
}
"""What is added to commands that would take minutes."""
WORDS = {
    "MODEL": "reader-1024",
    "OTHER": "reader-2048",
    "NAME": "reader-1024",
    "BASELINE": "baseline",
    "CANDIDATE": "candidate",
    "main/llama-3.1-8b": "main/reader-1024",
}
"""What stands for something of the reader's."""
PYTHON_BLOCKS = dict.fromkeys(("README.md", "student.md", "author.md"), "test_docs.py")
PYTHON_BLOCKS |= {"extend.md": "test_extend.py", "methods.md": "test_methods.py"}
HERE = ("add-results.md", "frontier.md", "lab.md", "models.md")
PYTHON_BLOCKS |= dict.fromkeys(HERE, "test_pages.py")
"""Which test runs the Python of a page."""
OF_THE_READER = ("params/site.yaml", "params/models/x.yaml")
ONE_CELL = {"tasks": ["vt"], "lengths": [1024], "num_examples": 1}
PROGRAMS = ("rulerkit", "vllm", "papermill", "pip", "make", "python", "jupyter", "rsync")
PROGRAMS += ("uvx", "git")


class Block(NamedTuple):
    """Code of a page, and the language that its fence names; '' for an indented block."""

    language: str
    text: str


def blocks_of(page):
    """The fenced and the indented blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    fenced = r"^```(\w*)\n(.*?)^```$"
    indented = r"(?<=\n\n)((?: {4}[^\n]*\n|\n(?= {4}))+)"
    return [
        Block(match[1] or "", match[2] if match[3] is None else match[3])
        for match in re.finditer(f"{fenced}|{indented}", text, re.M | re.S)
    ]


def commands_in(text):
    """The commands of a block in one line each: continued where a line ends in a backslash or a
    quotation is open."""
    commands, begun = [], ""
    for line in text.splitlines():
        begun = f"{begun} {line.strip()}" if begun else line.strip()
        if begun.endswith("\\"):
            begun = begun[:-1].rstrip()
            continue
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:  # a quotation goes on in the next line
            continue
        if words:
            commands.append(shlex.join(words))
        begun = ""
    assert not begun, f"no end of {begun}"
    return commands


def is_commands(block):
    first = (block.text.split() or [""])[0]
    return block.language == "bash" or (not block.language and first in PROGRAMS)


def all_commands():
    return {
        command: page.name
        for page in FOR_USERS
        for block in blocks_of(page)
        if is_commands(block)
        for command in commands_in(block.text)
    }


def inline_commands():
    """Those within sentences and tables; what cannot be taken apart is a part of one."""
    found = {}
    for page in FOR_USERS:
        text = page.read_text(encoding="utf-8")
        for command in re.findall(r"`((?:rulerkit|make) [^`]+)`", text):
            found[" ".join(command.split())] = page.name
    return found


def reason(command):
    return next((why for what, why in NOT_RUN.items() if re.search(what, command)), "")


def of_tests(command):
    """A command with the words that stand for something of the reader's."""
    for word, stands_for in WORDS.items():
        command = re.sub(rf"\b{word}\b", stands_for, command)
    return command


@needs_extras
@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_links_lead_to_files_and_sections(page):
    """A link to a folder works on some sites, and breaks the build of ours."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for name, section in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", text):
        if "://" in f"{name}#{section}":
            continue
        target = page.parent / name if name else page
        assert target.is_file(), name
        if section:
            titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w\s-]", "", title.lower()).replace(" ", "-") for title in titles]
            assert section in slugs, f"{name}#{section}"


@needs_extras
@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.name}")
def test_files_that_pages_name_exist(page):
    folders = "params|notebooks|rulerkit|tests|scripts|docs|extras"
    named = re.findall(rf"(?<![\w/])((?:{folders})/[\w./-]+\w)", page.read_text(encoding="utf-8"))
    for path in {path for path in named if path.islower()}.difference(OF_THE_READER):
        assert (ROOT / path).exists() or resolve(path).exists(), path


@pytest.mark.parametrize("command", {**all_commands(), **inline_commands()})
def test_options_of_commands_exist(command):
    """Also of those that are not run: the subcommand, its options, its files, the keys of `-y`."""
    words = shlex.split(command)
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        targets = [word for word in words[1:] if "=" not in word]
        assert [t for t in targets if f"\n{t}:" not in makefile] == []
    extras = re.search(r"^pip install (?:-e )?\S*\.\[([\w,]+)\]", command)
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in extras[1].split(",") if extras else ():
        assert f"\n{extra} = [" in pyproject
    if words[0] == "rulerkit" and words[1] != "--help":
        add_plugins()
        command_line = typer.main.get_command(app)
        known = command_line.get_command(typer.Context(command_line), words[1])
        if known is None and words[1] == "gate":
            pytest.skip("a command of extras/, which is not installed")
        names = {name for parameter in known.params for name in parameter.opts}
        used = [word for word in words[2:] if re.match(r"--?[a-z]", word)]
        assert {*used} <= {*names, "--help"}
    files = re.findall(r"(?:params|notebooks)/[\w./-]+\.(?:yaml|ipynb)", command)
    assert [file for file in files if not (ROOT / file).exists()] == []
    for flag, value in pairwise(words):
        if flag == "-y":
            assert isinstance(yaml.safe_load(value), dict)


def test_every_block_is_run_or_read():
    """Python by the test that is named above, commands below; YAML holds keys that exist."""
    known = {key for kind in (BatchKeys, ModelKeys, Parameters) for key in kind.model_fields}
    for page in FOR_USERS:
        for block in blocks_of(page):
            if block.language == "python":
                test = ROOT / "tests" / PYTHON_BLOCKS[page.name]
                assert page.name in test.read_text(encoding="utf-8")
            elif block.language == "toml":
                assert page.name == "extend.md"  # whose packages are installed
            elif block.language in ("yaml", "") and not is_commands(block):
                keys = yaml.safe_load(block.text).keys()
                assert keys <= known or keys & {"jobs", "steps"}, block  # a workflow
            else:
                assert block.language in ("bash", "bibtex", "text", "")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Runs a command in a copy of the tree, which has the answers and packages that the commands
    read."""
    root = write_packages(tmp_path_factory.mktemp("pages"))
    listed = ["git", "ls-files", "params", "notebooks", "docs", "Makefile", "pyproject.toml"]
    for file in subprocess.check_output(listed, text=True, cwd=ROOT).split():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, root / file)

    programs = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "RULERKIT_HOME": str(root),
        "PYTHONPATH": str(root / "site"),
        "HF_HUB_OFFLINE": "1",
    }

    def run(command):
        how = {"cwd": root, "env": environment, "capture_output": True, "text": True}
        return subprocess.run(["bash", "-c", command], **how, timeout=900)

    run.root = root
    pip = f"{sys.executable} -m pip install --quiet --no-deps --no-build-isolation"
    assert run(f"{pip} --target site ./boxes ./numbers_engine").returncode == 0
    asked = "--tasks vt,qa_1,niah_single_2 --lengths 1K,4K,8K -n 4"
    for name in ("baseline", "candidate", "reader-1024"):
        model = f"'{{base: reader-1024, name: {name}}}'"
        assert run(f"rulerkit evaluate {model} {asked}").returncode == 0
    planned = {"models": ["reader-1024"], "together": ["01_main_results"], "parameters": ONE_CELL}
    (root / "planned.yaml").write_text(yaml.safe_dump(planned))
    return run


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in all_commands() if not reason(command)])
def test_commands_run_as_printed(run, command):
    """In a copy of the tree, with the answers that they read."""
    smaller = [words for what, words in SMALLER.items() if re.search(what, command)]
    done = run(" ".join([of_tests(command), *smaller]))
    # 1 and 3 are verdicts
    is_verdict = re.match("rulerkit (compare|gate|status)", command)
    allowed = (0, 1, 3) if is_verdict else (0,)
    assert done.returncode in allowed, done.stderr[-1000:]
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", [command for command in all_commands() if reason(command)])
def test_other_commands_have_a_dry_run(run, command):
    """Up to the point where the GPU, the cluster or the network would come."""
    command = of_tests(command)
    if re.match("rulerkit (evaluate|batch)", command):
        if "adaptive" in command:
            command += " --tasks vt,niah_single_2 --lengths 1K,4K"
        command += " --dry-run"
    elif re.match("rulerkit check", command):
        # the tokenizer of the model would be downloaded, and the paper's texts
        command = command.replace("llama-3.1-8b", "reader-8192").replace("128K", "8K")
        command += " -y 'corpora: builtin'"
    elif command.startswith("papermill"):
        command += " --prepare-only"
    elif command.startswith("make"):
        command = command.replace("make", "make --dry-run", 1)
    else:
        pytest.skip(reason(command))  # its options were looked at above
    done = run(command)
    assert done.returncode in ((0, 3) if "check" in command else (0,)), done.stderr[-1000:]


def python_of(page):
    return [block.text for block in blocks_of(ROOT / "docs" / page) if block.language == "python"]


@pytest.mark.slow
def test_the_python_of_pages_for_many_runs(run, monkeypatch):
    """`lab.md` compares two folders of answers, equal ones of too few examples to tell;
    `models.md` asks fewer and shorter prompts."""
    import matplotlib.pyplot as plt

    root = run.root
    monkeypatch.chdir(root)
    monkeypatch.setenv("RULERKIT_HOME", str(root))
    for page in ("frontier.md", "add-results.md"):
        exec("\n".join(python_of(page)), {})
        plt.close("all")

    answers = root / "outputs/predictions/main/baseline"
    shutil.copytree(answers, root / "baseline/predictions/main/baseline")
    (block,) = python_of("lab.md")
    names = {}
    exec(block, names)
    with pytest.raises(AssertionError, match="CANNOT TELL"):
        names["test_the_new_kernel"]()

    tokenizer = ROOT / "rulerkit/data/small/tokenizer/tokenizer.json"
    (root / "path/to").mkdir(parents=True)
    shutil.copyfile(tokenizer, root / "path/to/tokenizer.json")
    (block,) = python_of("models.md")
    # the tokenizer of the small models needs more tokens than others
    smaller = block.replace('"4K", "32K"', '"8K"').replace("=50", "=1")
    assert smaller.count("8K") == smaller.count("=1") == 1
    exec(smaller, {"my_pipeline": lambda prompt: prompt[-100:]})
    assert len(list((root / "outputs").rglob("mine/*/*.jsonl"))) == 13

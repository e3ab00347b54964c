"""Rules of the source that a program can check: the order of imports, what they cost, docstrings,
pinned versions."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "rulerkit"

ORDER = re.findall(
    r"^    (common <.*< cli)$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE
)[0].split(" < ")
"""The folders from the lowest on, as one line of CONTRIBUTING.md says: each imports only those
before it."""

HEAVY = {"numpy", "pandas", "scipy", "torch", "transformers", "tokenizers", "vllm", "matplotlib"}
HEAVY |= {"papermill", "openai"}
"""What starting the command line must not import."""


def modules():
    """All modules of the package by their dotted name without `rulerkit.`; the package's own is
    ''."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path, known):
    """The modules of this package that a file imports, in functions and for type checking too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "rulerkit":
                inner = name.partition(".")[2]
                found.add(next((m for m in (inner, inner.rpartition(".")[0]) if m in known), ""))
    return found


def nodes_below(*folders):
    """Every node of the source in some folders, with its place."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node


def test_a_folder_imports_only_folders_before_it_and_no_package_of_extras():
    files, order = modules(), ORDER
    for name, path in files.items():
        folder = name.partition(".")[0]
        below = order[: order.index(folder) + 1] if folder in order else order
        for used in imports_of(path, set(files)):
            assert not used or used.partition(".")[0] in below, f"{name} imports {used}"
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"rulerkit_(frontier|gate|harnesses|inspect|lm_eval)|\bextras/", text
        ), name


LONGEST_FUNCTION = 60  # lines, signature and docstring included
DEEPEST = 3  # blocks inside each other
_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try)


def depth_of(node, depth=0):
    """How many blocks stand inside each other in a function; `elif` is no deeper than `if`."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        orelse = isinstance(node, ast.If) and child in node.orelse
        is_elif = orelse and isinstance(child, ast.If) and len(node.orelse) == 1
        is_block = isinstance(child, _BLOCKS) and not is_elif
        deepest = max(deepest, depth_of(child, depth + is_block))
    return deepest


def test_functions_are_short_and_flat():
    for place, node in nodes_below("rulerkit"):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < LONGEST_FUNCTION, place
            assert depth_of(node) <= DEEPEST, place


def test_files_are_read_and_written_as_utf8():
    """A program in another locale reads the same files, and reads what this one wrote."""
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--preview"]
    folders = ("rulerkit", "scripts", "benchmarks", "notebooks")
    done = subprocess.run([*ruff, "--select", "PLW1514", *folders], cwd=ROOT, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_line_starts_light():
    command = [sys.executable, "-X", "importtime", "-c", "import rulerkit.cli"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    imported = {*re.findall(r"\| +(\w+)[.\w]*$", done.stderr, re.MULTILINE)}
    assert "rulerkit" in imported
    assert imported & HEAVY == set()


def test_generation_needs_no_model_library_and_a_task_its_own_family_alone():
    code = (
        "import sys; from rulerkit.generation.tasks import TASKS, family_of, task\n"
        "family_of('qa_1'), family_of('any', 'question_answering')\n"
        "print([name for name in sys.modules if name.endswith(('.niah', '.common_words'))])\n"
        "from rulerkit.generation.generate import generate\n"
        "for name in TASKS: generate(task(name).with_corpora('builtin'), 4096, 1)[0].ids\n"
        f"print(sorted(set(sys.modules) & {HEAVY - {'numpy', 'scipy', 'tokenizers'}!r}))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT) == b"[]\n[]\n"


EXTRAS = {
    "core": [],
    "notebooks": ["notebooks", "figures"],
    "dev": ["dev", "notebooks", "figures"],
    "vllm": ["vllm", "transformers", "notebooks", "figures"],
}
"""What each file of requirements/ holds beside the core."""


@pytest.mark.parametrize("name", EXTRAS)
def test_requirements_are_hashed_and_satisfy_pyproject(name):
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    text = (ROOT / "requirements" / f"{name}.txt").read_text(encoding="utf-8")
    assert not re.search(r"://|^\s*-(?!-hash=sha256:)", text, re.MULTILINE), "options or addresses"
    pins = {}
    for line in text.replace("\\\n", "").splitlines():
        pin, *hashes = line.split(" --hash=sha256:")
        requirement = Requirement(pin.strip())
        (only,) = requirement.specifier
        assert (only.operator, bool(hashes)) == ("==", True), pin
        pins.setdefault(canonicalize_name(requirement.name), []).append(only.version)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    asked = project["dependencies"] + [
        line
        for extra in EXTRAS[name]
        for line in project["optional-dependencies"][extra]
        if not line.startswith("rulerkit[")
    ]
    for wanted in map(Requirement, asked):
        versions = pins.get(canonicalize_name(wanted.name))
        assert versions, f"{wanted.name} is missing: make requirements"
        assert [version for version in versions if version not in wanted.specifier] == [], wanted

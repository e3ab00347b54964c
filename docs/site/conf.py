"""The site: README and the pages of docs/ as they stand, the functions from their docstrings, and a
live example with executed notebooks. `make docs` builds it; nothing is uploaded.

The source is the root of the repository, so that a page and a link are the same on the site and in
the repository.
"""

import ast
import re
import shutil
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

project = "rulerkit"
author = "The rulerkit maintainers"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = [
    "*.md",
    "docs/*.md",
    "docs/site/*.md",
    "benchmarks/README.md",
    "extras/inspect/README.md",
    "extras/lm_eval/README.md",
    "notebooks/small_models/README.md",
]
suppress_warnings = ["myst.header"]  # a page of ours may begin with any level
myst_heading_anchors = 4  # those of GitHub
myst_enable_extensions = ["strikethrough"]

html_theme = "furo"
_project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_repository = _project["project"]["urls"].get("Repository")
if _repository and "OWNER" not in _repository:
    html_theme_options = {
        "source_repository": _repository,
        "source_branch": "main",
        "source_directory": "",
    }
html_title = "rulerkit"
html_show_sphinx = False
html_copy_source = False
# what `make docs` has run: the page of a batch, the answers, executed notebooks
html_extra_path = [str(ROOT / "outputs/site/example")]
exclude_patterns = ["AGENTS.md", "batch/predictions", "batch/cache", "batch/tables"]

autodoc_typehints = "none"
autodoc_member_order = "bysource"
default_role = "literal"  # docstrings write names as `name`

# The pages in the order of the navigation; a page that is not named here comes last.
FIRST = ["docs/student", "docs/models", "docs/author", "docs/gate", "docs/lab", "docs/benchmark"]
LAST = ["docs/site/example", "docs/site/functions", "docs/reference"]
PROJECT = [
    "CONTRIBUTING",
    "benchmarks/README",
    "extras/inspect/README",
    "extras/lm_eval/README",
    "notebooks/small_models/README",
]
PROJECT += ["SECURITY", "CHANGELOG"]


def pages() -> dict[str, list[str]]:
    """The pages of the navigation by the caption above them."""
    found = [f"docs/{file.stem}" for file in sorted((ROOT / "docs").glob("*.md"))]
    others = [page for page in found if page not in FIRST + LAST]
    return {"Guide": [*FIRST, *others, *LAST], "Project": PROJECT}


def navigation() -> str:
    """The navigation as a hidden part of the front page."""
    parts = [
        "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```"])
        for caption, names in pages().items()
    ]
    return "\n\n" + "\n\n".join(parts) + "\n"


def functions() -> str:
    """A section for each public name, from its docstring; those of `rk.plots` and the like follow
    their module."""
    stub = ast.parse((ROOT / "rulerkit/__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = [(node.module, alias.name) for node in imports for alias in node.names]

    parts = ["# Functions\n\nWhat `import rulerkit as rk` gives, from its docstrings.\n"]
    for module, name in names:
        path = f"rulerkit.{module}.{name}"
        if name.isupper():
            continue  # a constant has no docstring of its own
        place = ROOT / path.replace(".", "/")
        if place.is_dir() or place.with_suffix(".py").is_file():
            # public names have their own sections; `set` is matplotlib's
            own = [other for within, other in names if within == f"{module}.{name}"]
            kind = "module"
            options = f"   :members:\n   :exclude-members: {', '.join(['set', *own])}\n"
        elif name[0].isupper():
            kind, options = "class", "   :members:\n"
        else:
            kind, options = "function", ""
        directive = f".. auto{kind}:: {path}\n{options}"
        parts.append(f"## `rk.{name}`\n\n```{{eval-rst}}\n{directive}```\n")
    return "\n".join(parts)


def fill_page(app, name: str, source: list[str]) -> None:
    """Add what is made from other files to the pages that have room for it."""
    if name == "README":
        source[0] += navigation()
    elif name == "docs/site/functions":
        source[0] = functions()


def as_text(app, what, name, obj, options, lines: list[str]) -> None:
    """Docstrings are plain text with names in backticks: what reStructuredText would take for
    emphasis or a link is escaped."""
    for i, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        parts[::2] = [re.sub(r"([*|\\]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]]
        lines[i] = "".join(parts)


def make_index(app, error: Exception | None) -> None:
    """The front page under the name that a browser opens."""
    if error is None:
        folder = Path(app.outdir)
        shutil.copyfile(folder / "README.html", folder / "index.html")


def setup(app) -> None:
    app.connect("source-read", fill_page)
    app.connect("autodoc-process-docstring", as_text)
    app.connect("build-finished", make_index)

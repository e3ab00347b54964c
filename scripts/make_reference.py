"""Writes docs/reference.md from the code: commands, keys of parameter files, parameters of
notebooks, columns of results.

    python scripts/make_reference.py
"""

import ast
import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

import typer

from rulerkit.analysis import results
from rulerkit.cli.app import add_plugins, app
from rulerkit.common import settings
from rulerkit.scoring import scores as scoring

ROOT = Path(__file__).resolve().parent.parent

KINDS = {
    "Every model": settings.ModelKeys,
    "Engine `transformers`, `vllm` and `rwkv`": settings.WeightsKeys,
    "Engine `transformers`, `vllm` and `openai`": settings.NetworkKeys,
    "Engine `transformers` and `function`": settings.CodeKeys,
    "Engine `transformers` and `vllm`": settings.CheckpointKeys,
    "Engine `transformers`": settings.TransformersKeys,
    "Engine `vllm` and `openai`": settings.ServerKeys,
    "Engine `vllm`": settings.VllmKeys,
    "Engine `openai`": settings.OpenAIKeys,
    "Engine `function`": settings.FunctionKeys,
    "Engine `reader`": settings.ReaderKeys,
    "A study: `rulerkit evaluate`, notebooks": settings.Parameters,
    "A batch": settings.BatchKeys,
    "A notebook of a batch": settings.NotebookKeys,
    "A Slurm cluster: `params/site.yaml`": settings.Site,
}


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table, and an empty line."""
    lines = [heads, ["---"] * len(heads), *rows]
    return ["| " + " | ".join(cell.replace("|", r"\|") for cell in row) + " |" for row in lines] + [
        ""
    ]


def key_rows(keys: type[settings.Keys]) -> list[list[str]]:
    """A row for each key that the class itself defines: name, what it takes, default."""
    rows = []
    for name in keys.__annotations__:
        field = keys.model_fields.get(name)
        if not field:
            continue
        takes = field.description or " or ".join(map(str, get_args(field.annotation)))
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        rows.append(
            [
                f"`{name}`",
                " ".join(takes.split()),
                "" if default in (None, "", [], {}, sys.executable) else f"`{json.dumps(default)}`",
            ]
        )
    return rows


def command_lines(name: str, command: Any) -> list[str]:
    """A section about one command: what it does, its arguments and options."""
    text = re.sub(r"\[/?bold\]", "", command.help or "")
    lines = [f"### rulerkit {name}", "", *(" ".join(p.split()) + "\n" for p in text.split("\n\n"))]
    rows = []
    for parameter in command.params:
        if parameter.param_type_name == "option":
            label = ", ".join(
                f"`{option}`" for option in (*parameter.opts, *parameter.secondary_opts)
            )
        else:
            label = f"`{(parameter.metavar or parameter.name or '').upper()}`"
        default = parameter.default
        shown = "" if default in (None, False, "") or callable(default) else f"`{default}`"
        rows.append([label, " ".join((getattr(parameter, "help", "") or "").split()), shown])
    return lines + (table(["argument or option", "meaning", "default"], rows) if rows else [])


def notebook_rows(path: Path) -> list[list[str]]:
    """A row for each line of a notebook's cell of parameters: name, default, comment."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    cell = next(c for c in cells if "parameters" in c["metadata"].get("tags", []))
    source = "".join(cell["source"])
    lines, rows = source.splitlines(), []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign):
            name = ast.unparse(statement.targets[0])
            last = lines[(statement.end_lineno or 1) - 1].encode()
            comment = last[statement.end_col_offset or 0 :].decode().strip().lstrip("# ")
            rows.append([f"`{name}`", comment, f"`{ast.unparse(statement.value)}`"])
    return rows


def reference() -> str:
    """The whole page."""
    lines = ["# Reference", "", "Made from the code by `scripts/make_reference.py`.", ""]
    lines += ["## Commands", ""]
    add_plugins()
    commands: Any = typer.main.get_command(app)
    for name in commands.list_commands(typer.Context(commands)):
        lines += command_lines(name, commands.commands[name])
    lines += ["## Keys of parameter files", ""]
    for title, keys in KINDS.items():
        lines += [f"### {title}", "", *table(["key", "takes", "default"], key_rows(keys))]
    lines += ["## Parameters of notebooks", ""]
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        rows = notebook_rows(path)
        lines += [f"### {path.stem}", "", *table(["parameter", "meaning", "default"], rows)]
    lines += [
        "## Columns of `rk.load`",
        "",
        "One row per example, in this order; scores are 0 to 1 here, and 0 to 100 in tables. Every",
        "setting of the tasks (`num_keys`, `depth`) is a column, too.",
        "",
    ]
    columns = scoring.COLUMNS | results.ANSWER_COLUMNS | results.LABEL_COLUMNS
    names = list(dict.fromkeys([*results.FIRST, *columns]))
    rows = []
    for name in names:
        given_by = "`score`, `load`"
        if name in results.ANSWER_COLUMNS:
            given_by = "`load`"
        if name in results.LABEL_COLUMNS:
            given_by = "`load(labels=True)`"
        rows.append([f"`{name}`", columns[name], given_by])
    lines += table(["column", "meaning", "given by"], rows)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "reference.md").write_text(reference(), encoding="utf-8")

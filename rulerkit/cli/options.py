"""The options that several commands share, and how commands read values and print."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit import escape
from rulerkit.errors import UserError

Task = Annotated[
    str, typer.Argument(help="A task's name, or a mapping: '{base: vt, num_hops: 6}'.")
]
Length = Annotated[
    str, typer.Option(help="Token budget: template, prompt and answer together; 4096 or 4K.")
]
FileTask = Annotated[
    str | None, typer.Option(help="The task of the files, where their names do not tell.")
]
FileLength = Annotated[
    str | None, typer.Option(help="Their nominal length, where folders do not tell.")
]
Seed = Annotated[int, typer.Option(help="Another seed asks other questions.")]
Tokenizer = Annotated[
    str,
    typer.Option(
        help="builtin, a Hugging Face name or folder, a tokenizer file, or a tiktoken encoding."
    ),
]
Corpora = Annotated[
    str,
    typer.Option(
        help="builtin stand-ins, the original texts (`rulerkit fetch`), or files: '{essay: texts}'."
    ),
]
Protocol = Annotated[
    str,
    typer.Option(help="clean, or paper: prompts and layouts of upstream at the time of the paper."),
]
Template = Annotated[
    str,
    typer.Option(help="auto (the tokenizer's own), base, or a form of the paper: llama2, qwen ..."),
]
Predictions = Annotated[
    str,
    typer.Argument(
        help="A folder of predictions, run/model, or a model's name in outputs/predictions."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file", "-f", help="Parameter files, later ones win: -f model.yaml -f size.yaml"
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", "-y", metavar="YAML", help="A parameter: -y 'lengths: [4K, 8K]'. Repeatable."
    ),
]
MaxFailures = Annotated[
    float | None,
    typer.Option(
        "--max-failures",
        min=0,
        help="A share (below 1) or a number of a cell's examples: means are over the rest.",
    ),
]


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a text, made safe for a terminal, to stdout or stderr."""
    typer.echo(escape.terminal(text), err=err, nl=nl)


def settings_of(settings: list[str] | None) -> dict[str, Any]:
    """The parameters given as YAML on the command line."""
    from rulerkit.settings import parse_yaml

    merged: dict[str, Any] = {}
    for text in settings or []:
        content = parse_yaml(text, f"-y {text!r}")
        if not isinstance(content, dict):
            raise UserError(
                f"-y {text!r} says no `name: value`; write it like -y 'num_examples: 5'"
            )
        merged |= content
    return merged


def study_of(files: list[Path] | None, settings: list[str] | None, model: str | None = None) -> Any:
    """The study of parameter files, settings and a model; `UserError` where no model is named."""
    from rulerkit.studies import load_files, study

    given = load_files(files or []) | settings_of(settings) | ({"model": model} if model else {})
    asked = study(given)
    if not asked.models or not {"model", "models"} & given.keys():
        raise UserError(
            "no model is named: give a name of params/models (llama-3.1-8b), a folder or hub id "
            "(org/name), a reader (reader-8192), a file (-f params/models/x.yaml) or -y 'model: X'"
        )
    return asked


def task_of(text: str, protocol: str, corpora: str) -> Any:
    """A task given on the command line, and its corpora: names, or mappings in YAML."""
    from rulerkit.settings import parse_yaml
    from rulerkit.tasks import task

    spec = parse_yaml(text, f"the task {text!r}") if text.lstrip().startswith("{") else text
    return task(spec, protocol).with_corpora(parse_yaml(corpora, "--corpora"))

"""How commands are made of functions, the options that several of them share, and how they read
values and print."""

import inspect
import re
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit import escape
from rulerkit.errors import UserError

SHARED = """
files: Parameter files, later ones win: -f model.yaml -f size.yaml
settings: A parameter: -y 'lengths: [4K, 8K]'. Repeatable.
length: Token budget: template, prompt and answer together; 4096 or 4K.
seed: Another seed asks other questions.
tokenizer: builtin, a Hugging Face name or folder, a tokenizer file, or a tiktoken encoding.
corpora: builtin stand-ins, the original texts (`rulerkit fetch`), or files: '{essay: texts}'.
protocol: clean, or paper: prompts and layouts of upstream at the time of the paper.
template: auto (the tokenizer's own), base, or a form of the paper: llama2, qwen ...
max_failures: A share (below 1) or a number of a cell's examples: means are over the rest.
jobs: Jobs side by side; default: as GPUs and processors allow.
gpus: The GPUs to use, 0,1 or 0-3; '' for none. Default: all visible.
place: Outputs folders, folders or files of predictions, or patterns; default: outputs.
"""
"""Arguments and options that mean the same in several commands."""

Count = Annotated[int, typer.Option(min=1)]
CountOrNone = Annotated[int | None, typer.Option(min=1)]
Files = Annotated[list[Path] | None, typer.Option("--file", "-f")]
Set = Annotated[list[str] | None, typer.Option("--set", "-y", metavar="YAML")]
Output = Annotated[Path, typer.Option("--output", "-o")]
MaxFailures = Annotated[float | None, typer.Option(min=0)]


def described(function: Callable[..., None]) -> Callable[..., None]:
    """A function as typer takes it: its parameters before `*` are arguments, those behind it
    options. Lines below `Args:` in its docstring, and SHARED, say what each is."""
    text, _, lines = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:")
    about = dict(re.findall(r"(?m)^ *(\w+): (.*)", SHARED + re.sub(r"\n {8,}", " ", lines)))
    signature, parameters = inspect.signature(function), []
    for name, parameter in signature.parameters.items():
        kind, is_option = parameter.annotation, parameter.kind is parameter.KEYWORD_ONLY
        info = copy(getattr(kind, "__metadata__", [None])[0])
        if info:
            kind = kind.__origin__
        elif kind is bool:  # without --no-...
            info = typer.Option(f"--{name.replace('_', '-')}")
        else:
            info = typer.Option() if is_option else typer.Argument()
        info.help = about[name]
        parameters.append(parameter.replace(annotation=Annotated[kind, info]))
    function.__doc__ = re.sub(r"(?<!\n)\n(?![\n ])", " ", text)  # typer keeps the ends of lines
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


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

    given = load_files(files or []) | settings_of(settings)
    given |= {"model": model_of(model)} if model else {}
    asked = study(given)
    if not asked.models or not {"model", "models"} & given.keys():
        raise UserError(
            "no model is named: give a name of params/models (llama-3.1-8b), a folder or hub id "
            "(org/name), a reader (reader-8192), a file (-f params/models/x.yaml) or -y 'model: X'"
        )
    return asked


def model_of(name: str) -> str:
    """A model given on the command line: a folder or file of the working directory by its whole
    path."""
    from rulerkit.settings import known_models

    path = Path(name).expanduser().absolute()
    here = path.is_file() or (path / "config.json").is_file()
    return str(path) if here and name not in known_models() else name


def task_of(text: str, protocol: str, corpora: str) -> Any:
    """A task given on the command line, and its corpora: names, or mappings in YAML."""
    from rulerkit.settings import parse_yaml
    from rulerkit.tasks import task

    spec = parse_yaml(text, f"the task {text!r}") if text.lstrip().startswith("{") else text
    return task(spec, protocol).with_corpora(parse_yaml(corpora, "--corpora"))

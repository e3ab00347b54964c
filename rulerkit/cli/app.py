"""The application that the commands belong to, the groups of its help, and what ends it."""

import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer

import rulerkit as rk
from rulerkit.cli.printing import echo, say_error
from rulerkit.common.errors import UserError

MEASURE = "Measure"
LOOK = "Look"
MANY_MODELS = "Many models"
SET_UP = "Set up"
GROUPS = (MEASURE, LOOK, MANY_MODELS, SET_UP)
"""The groups of the help, in their order."""

app = typer.Typer(
    name="rulerkit",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    suggest_commands=True,
)

_INTERRUPTED = 130  # what typer makes of Ctrl-C
_WRONG_USE = 2
_UsageError: Any = typer.BadParameter.__bases__[0]  # typer gives it no name


@app.callback(invoke_without_command=True, no_args_is_help=True)
def start(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """How much of its context does a language model really use? RULER (arXiv 2404.06654) with error
    bars.

    MODEL is a name (`rulerkit models`), a folder, a hub id (org/name), the address of a server
    (http://localhost:8000), or a mapping in quotes. A first look, without GPU or download:
    `rulerkit evaluate reader-4096 --tasks vt --lengths 4K,8K`.
    """
    if version:
        echo(f"rulerkit {rk.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; what the user can correct is one line and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Answers hold letters that the terminal may not have.
            stream.reconfigure(errors="backslashreplace")
    try:
        status = app(prog_name="rulerkit", standalone_mode=False)
    except UserError as error:
        say_error(str(error))
        sys.exit(error.status)
    except _UsageError as error:
        _say_usage(error)
        sys.exit(_WRONG_USE)

    if status == _INTERRUPTED:
        echo("\nrulerkit: stopped; run the same command again to resume", err=True)
    sys.exit(status if isinstance(status, int) else 0)


def _say_usage(error: Any) -> None:
    """What is wrong with the words of the command, and where its help is; without any word, the
    help itself."""
    command = error.ctx.command_path if error.ctx else "rulerkit"
    if not sys.argv[1:]:
        error.show()
        return
    problem = " ".join(error.format_message().split()).rstrip(".")
    say_error(f"{problem} (see `{command} --help`)")

"""The application that the commands belong to, the groups of its help, and what ends it."""

import gc
import sys
from functools import cache
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.main import get_command_name

import rulerkit as rk
from rulerkit.cli.printing import echo, say_error
from rulerkit.common.errors import ExitStatus, UserError, remark
from rulerkit.common.plugins import BRINGS, brought

EVERY_DAY = "Every day"
LOOK = "Look closer"
SET_UP = "Set up"
COMMANDS = (
    *("evaluate", "report", "browse", "batch", "status"),
    *("compare", "show", "tasks", "models"),
    *("check", "generate", "notebooks", "fetch"),
)
"""The commands in the order of the help, whose groups are the three above."""

app = typer.Typer(
    name="rulerkit",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    suggest_commands=True,
)


@cache
def add_plugins() -> None:
    """Let the commands of plug-ins stand beside ours, for the help and for words that are none of
    ours: the others start without them."""
    for module, plugin in brought("commands"):
        if not isinstance(plugin, typer.Typer):
            remark(f"left out: the commands of {module}: expected {BRINGS['commands']}")
            continue
        for command in plugin.registered_commands:
            function: Any = command.callback
            name = command.name or get_command_name(function.__name__)
            if name not in COMMANDS:
                command.rich_help_panel = command.rich_help_panel or "Plug-ins"
                app.registered_commands.append(command)


_INTERRUPTED = 130  # what typer makes of Ctrl-C
_UsageError: Any = typer.BadParameter.__bases__[0]  # typer gives it no name


@app.callback(invoke_without_command=True, no_args_is_help=True)
def start(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """How much of its context does a language model really use? RULER (arXiv 2404.06654) with error
    bars.

    MODEL is a name (`rulerkit models`), a folder, a hub id (org/name), the address of a server
    (http://localhost:8000), or a mapping in quotes. Try it without a GPU or a download:
    `rulerkit evaluate reader-4096`.
    """
    if version:
        echo(f"rulerkit {rk.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; what the user can correct is one line and exit status 2."""
    # Most objects that a command makes stay to its end, so garbage is looked for less often.
    gc.set_threshold(50_000)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Answers hold letters that the terminal may not have.
            stream.reconfigure(errors="backslashreplace")
    try:
        if not sys.argv[1:] or sys.argv[1] not in COMMANDS:
            add_plugins()
        status = app(prog_name="rulerkit", standalone_mode=False)
    except UserError as error:
        say_error(str(error))
        sys.exit(error.status)
    except _UsageError as error:
        command = error.ctx.command_path if error.ctx else "rulerkit"
        if sys.argv[1:]:
            problem = " ".join(error.format_message().split()).rstrip(".")
            say_error(f"{problem} (see `{command} --help`)")
        else:
            error.show()
        sys.exit(ExitStatus.WRONG_USE)

    if status == _INTERRUPTED:
        echo("\nrulerkit: stopped; run the same command again to resume", err=True)
    sys.exit(status if isinstance(status, int) else 0)

"""What commands print: texts made safe for a terminal."""

import signal
import sys

import typer

from rulerkit.common import escape


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a text, made safe for a terminal, to stdout or stderr."""
    typer.echo(escape.terminal(text), err=err, nl=nl)


def say_error(text: str) -> None:
    """Print what is wrong as one line on stderr, on a terminal with the name in red."""
    name = typer.style("rulerkit:", fg="red", bold=True)
    # Without a terminal the colour is left out.
    typer.echo(f"{name} {escape.one_line(text)}", err=True)


def end_in_order() -> None:
    """End on SIGTERM as on an error, so that servers and steps are ended, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def name_root() -> None:
    """One line that says where results go, where that is not the working directory."""
    from rulerkit.common.paths import home_text

    if text := home_text():
        echo(text)

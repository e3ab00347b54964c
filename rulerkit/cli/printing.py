"""What commands print: texts made safe for a terminal, and what models would be asked."""

import signal
import sys
from typing import TYPE_CHECKING

import typer

from rulerkit.common import escape
from rulerkit.common.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rulerkit.common.settings import JSON
    from rulerkit.evaluation.study import Study
    from rulerkit.inference.model import Model


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


def print_plan(asked: "Iterable[tuple[JSON | Model, list[Study]]]") -> None:
    """What models are asked, as `plan_text` takes it. Raises UserError, behind the table, where the
    weights of some are cut short."""
    from rulerkit.batch.plan import plan_text

    text, broken = plan_text(asked)
    echo(text, nl=False)
    if broken:
        raise UserError("; ".join(map(str, broken)))

"""The command line. Heavy modules are imported inside the commands, so that --help answers at
once.

A command is one function of the file of its group: `measure`, `look`, `many_models`, `set_up`.
`options` holds the options that mean the same everywhere, `given` reads them, and `printing`
prints.
"""

from rulerkit.cli import look, many_models, measure, set_up
from rulerkit.cli.app import COMMANDS, app, main

app.registered_commands.sort(key=lambda command: COMMANDS.index(str(command.name)))

__all__ = ["app", "look", "main", "many_models", "measure", "set_up"]

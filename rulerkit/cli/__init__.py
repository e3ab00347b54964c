"""The command line. Heavy modules are imported inside the commands, so that --help answers at
once.

A command is one function of the file of its group: `measure`, `look`, `many_models`, `set_up`.
`options` holds the options that mean the same everywhere, `given` reads them, and `printing`
prints.
"""

from rulerkit.cli import look, many_models, measure, set_up
from rulerkit.cli.app import GROUPS, app, main

app.registered_commands.sort(key=lambda command: GROUPS.index(str(command.rich_help_panel)))

__all__ = ["app", "look", "main", "many_models", "measure", "set_up"]

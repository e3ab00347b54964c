"""`python -m rulerkit` is the command `rulerkit`."""

from rulerkit.cli import main

main()

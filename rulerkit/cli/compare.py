"""The command `compare`: is one model worse than another on the same examples? Its exit status
answers scripts."""

from pathlib import Path
from typing import Annotated

import typer

from rulerkit.cli.options import MaxFailures, echo

Side = Annotated[
    str,
    typer.Argument(
        help="A folder of predictions, run/model, or a model's name in outputs/predictions."
    ),
]


def compare(
    a: Side,
    b: Side,
    margin: Annotated[float, typer.Option(help="How many points B may be below A.")] = 1.0,
    by: Annotated[
        str, typer.Option(help="digest asks for the same prompts; index pairs other prompts too.")
    ] = "digest",
    max_failures: MaxFailures = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything as JSON.")] = False,
    outputs: Annotated[Path, typer.Option(help="Where predictions/ lies.")] = Path("outputs"),
) -> None:
    """Is B worse than A? Paired differences on the same examples, those that flipped, and a
    verdict.

    Ends with 0: not worse by more than the margin; 1: worse; 3: cannot tell with so few examples;
    2: cannot compare.
    """
    from rulerkit.compare import compare as look
    from rulerkit.compare import difference_table, flips_text, json_text

    found = look(a, b, margin, by, outputs=outputs, max_failures=max_failures)
    if as_json:
        echo(json_text(found), nl=False)
    else:
        echo(difference_table(found) + "\nexamples that flipped:\n" + flips_text(found))
    raise typer.Exit(found.verdict.status)

"""Arguments and options that mean the same in all commands."""

from pathlib import Path
from typing import Annotated

import typer

ONE_MODEL = (
    "A name (`rulerkit models`), a folder, a hub id (org/name), the address of a server "
    "(http://...), or a mapping: '{base: NAME, KEY: VALUE}'."
)

OneModel = Annotated[list[str] | None, typer.Argument(metavar="MODEL", help=ONE_MODEL)]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        metavar="TASKS",
        help="Names with commas between (vt,qa_1), a mapping ('{base: vt, num_hops: 6}'), all for "
        "the thirteen, or the suite of a plug-in. Repeatable.",
    ),
]
Lengths = Annotated[
    list[str] | None,
    typer.Option(
        "--lengths",
        metavar="LENGTHS",
        help="Tokens of template, prompt and answer together, with commas between: 4K,8K or 4096. "
        "Repeatable.",
    ),
]
NumExamples = Annotated[
    int | None,
    typer.Option(
        "--num-examples", "-n", min=1, max=10**6, help="The most examples of each task and length."
    ),
]
Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file", "-f", help="Parameter files, later ones win: -f model.yaml -f size.yaml"
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-y",
        metavar="YAML",
        help="A parameter, or a key of the model or the batch file: -y 'seed: 7' "
        "-y 'max_length: 32K'. Repeatable.",
    ),
]
Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PLACE]...",
        help="Folders or files of predictions (ours, or of plug-ins, such as upstream's pred/ "
        "tree and lm-eval's samples), RUN or RUN/MODEL; default: outputs. A cell that stands in "
        "several places has the rows of all.",
    ),
]
PairedBy = Annotated[
    str, typer.Option(help="digest asks for the same prompts; index pairs other prompts too.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Everything as JSON.")]
HubDataset = Annotated[str, typer.Option(help="hf: the benchmark's data set on the hub, ORG/NAME.")]
ReportBy = Annotated[
    str,
    typer.Option(
        help="model: the leaderboard; task: a table for each model; example: a row for each "
        "answer. Default: task where there is one model, else model."
    ),
]
ReportFormat = Annotated[
    str,
    typer.Option(
        help="text, markdown, latex, csv, parquet, jsonl, or that of a plug-in, such as hf: the "
        ".eval_results of one model's repository on the Hugging Face hub. Default: as the name "
        "of --output ends, else text."
    ),
]
ReportFile = Annotated[
    Path | None, typer.Option("--output", "-o", help="The file to write, in place of stdout.")
]
OtherScorers = Annotated[
    list[str] | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="Also judge by another harness' scorer, such as lm-eval or nemo-skills:think "
        "(docs/scorers.md). Repeatable; all for all of them.",
    ),
]

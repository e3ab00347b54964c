"""The commands that look before anything is spent: `check` at prompts and files, `plan` at cost."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit.cli.options import Set, Tokenizer, echo, settings_of
from rulerkit.errors import UserError

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file", "-f", help="Parameter files, later ones win: -f model.yaml -f size.yaml"
    ),
]


def check(
    data: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]...", help="Data or predictions: ours, upstream's, lm-eval's samples."
        ),
    ] = None,
    files: Files = None,
    settings: Set = None,
    ask: Annotated[
        bool | None,
        typer.Option(
            "--ask/--no-ask",
            help="Put two short examples to the model; done unasked where that is cheap.",
        ),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="The task of the files, where names do not tell.")
    ] = None,
    length: Annotated[
        str | None, typer.Option(help="Their nominal length, where folders do not tell.")
    ] = None,
    tokenizer: Tokenizer = "builtin",
) -> None:
    """Look for what would spoil the scores: in a model's prompts before a GPU is paid for, or in
    somebody's files.

    `rulerkit check -f params/models/x.yaml` looks at every task at the shortest and longest length;
    `rulerkit check FILE.jsonl --task vt --length 4K --tokenizer x` at data or predictions. Ends
    with status 1 on any FAIL.
    """
    if data and (files or settings):
        raise UserError(
            "give either files to look at, or the parameters of a model (-f, -y), not both"
        )
    if not data and not files and not settings:
        raise UserError(
            "nothing to look at: name a model (-f params/models/x.yaml) or files of JSON lines"
        )
    if (
        bad := _check_files(data, task, length, tokenizer)
        if data
        else _check_models(files or [], settings, ask)
    ):
        echo(f"\n{bad} of these would spoil scores; mend them first", err=True)
        raise typer.Exit(1)


def _check_models(files: list[Path], settings: list[str] | None, ask: bool | None) -> int:
    from rulerkit.checks import FAIL, summary_lines
    from rulerkit.checks import check as look

    asked, bad = _study(files, settings), 0
    for name, findings in look(asked, ask, _gpus_per_node()).items():
        lengths = " and ".join(str(n) for n in sorted({min(asked.lengths), max(asked.lengths)}))
        echo(f"{name}: {len(asked.tasks)} tasks at {lengths} tokens")
        lines = summary_lines(findings)
        echo("\n".join(f"  {line}" for line in lines))
        bad += sum(line.startswith(FAIL) for line in lines)
    return bad


def _check_files(data: list[Path], task: str | None, length: str | None, tokenizer: str) -> int:
    from rulerkit.audit import audit, read_file
    from rulerkit.checks import FAIL
    from rulerkit.lengths import parse_length
    from rulerkit.tokenizers import load_tokenizer

    bad, vocabulary = 0, load_tokenizer(tokenizer)
    for path in data:
        for cell in read_file(path, vocabulary, task, parse_length(length) if length else None):
            echo(f"{path}: {cell.task} at {cell.length}, {len(cell.rows)} rows")
            for finding in audit(cell):
                echo(
                    f"  {finding.level:4}  {finding.name:15} {finding.seen}; {finding.mend}".rstrip(
                        "; "
                    )
                )
                bad += finding.level == FAIL
    return bad


def plan(
    files: Files = None,
    settings: Set = None,
    gpu: Annotated[str, typer.Option(help="h100, h200, a100, a100-40, l40s or 4090.")] = "h100",
    memory: Annotated[
        float | None, typer.Option(help="GiB of one card, in place of that of --gpu.", min=1)
    ] = None,
    params: Annotated[
        str | None, typer.Option(help="Parameters, such as 8B; where not all are active: 47B/13B.")
    ] = None,
    mfu: Annotated[
        float, typer.Option(help="Assumed share of the card's peak in prefill.", min=0.01, max=1)
    ] = 0.4,
    replicas: Annotated[
        int | None,
        typer.Option(
            help="Servers that answer side by side; default: as the model's file says.", min=1
        ),
    ] = None,
    calibrate: Annotated[
        bool,
        typer.Option(
            "--calibrate", help="Time a few short examples with the model, here, and extrapolate."
        ),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare", help="In place of cost: the examples that `rulerkit compare` will need."
        ),
    ] = False,
    margin: Annotated[float, typer.Option(help="With --compare: the margin in points.")] = 1.0,
    flips: Annotated[
        float,
        typer.Option(help="With --compare: the share of answers that changes each way by chance."),
    ] = 0.02,
) -> None:
    """Tell what a study costs before it is run: tokens, FLOPs, KV cache, requests that fit, hours
    per cell.

    Takes the parameter files of `evaluate`: -f params/models/x.yaml -f params/sizes/paper.yaml.
    """
    from rulerkit.plan import card, plan_study

    if compare:
        from rulerkit.compare import power_text
        from rulerkit.studies import load_files, study

        asked = study(load_files(files or []) | settings_of(settings))
        echo(power_text(len(asked.tasks), len(asked.lengths), asked.num_examples, margin, flips))
        return
    asked = _study(files or [], settings)
    plans = plan_study(asked, card(gpu, memory), params, mfu, calibrate, _gpus_per_node(), replicas)
    echo("\n\n".join(each.text() for each in plans))


def _gpus_per_node() -> int:
    """What params/site.yaml says, else the size of the largest common node."""
    from rulerkit.checks import GPUS_PER_NODE
    from rulerkit.settings import read_site

    return read_site().whole_nodes or GPUS_PER_NODE


def _study(files: list[Path], settings: list[str] | None) -> Any:
    from rulerkit.studies import load_files, study

    asked = study(load_files(files) | settings_of(settings))
    if not asked.models:
        raise UserError("model is None: nobody is asked; name one, such as -y 'model: reader-8192'")
    return asked

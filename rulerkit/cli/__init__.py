"""The command line. Heavy modules are imported inside the commands, so that --help answers at
once."""

import sys
from collections import defaultdict
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit import __version__, escape
from rulerkit.cli.batches import batch, run, serve, status
from rulerkit.cli.options import (
    Corpora,
    FileLength,
    Files,
    FileTask,
    Length,
    MaxFailures,
    Predictions,
    Protocol,
    Seed,
    Set,
    Task,
    Template,
    Tokenizer,
    echo,
    settings_of,
    study_of,
    task_of,
)
from rulerkit.cli.results import browse, export, show_answer
from rulerkit.errors import UserError

app = typer.Typer(
    name="rulerkit",
    help="How much of its context does a language model really use? RULER (arXiv 2404.06654) with error bars.\n\n"
    "A first look, without GPU or download: [bold]rulerkit show niah_multikey_1 --length "
    "1024[/bold], then "
    "[bold]rulerkit batch params/batches/demo.yaml[/bold].",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        echo(f"rulerkit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


@app.command()
def tasks() -> None:
    """List the tasks: the thirteen of the benchmark and the five that Figure 5 of the paper
    adds."""
    from dataclasses import fields

    from rulerkit.tasks import FAMILIES, TASKS, THIRTEEN

    for each in TASKS.values():
        default = {knob.name: knob.default for knob in fields(each)}
        differs = [
            f"{k}={getattr(each, k)}" for k in each.knobs() if getattr(each, k) != default[k]
        ]
        mark = " " if each.name in THIRTEEN else "+"
        echo(
            f"{mark} {each.name:18} {each.category:12} "
            f"{', '.join(differs) or f'the default {each.family}'}"
        )
    echo("\n+ beyond the thirteen (Figure 5). Knobs of a family, for '{base: TASK, KNOB: VALUE}':")
    for family in FAMILIES:
        knobs = [
            f"{knob.name}={knob.default}" for knob in fields(family) if knob.name in family.knobs()
        ]
        echo(f"  {family.family:18} {', '.join(knobs)}")


@app.command()
def show(
    task: Task,
    length: Length = "4096",
    index: Annotated[int, typer.Option(help="Which example.", min=0)] = 0,
    seed: Seed = 42,
    tokenizer: Tokenizer = "builtin",
    corpora: Corpora = "builtin",
    protocol: Protocol = "clean",
    template: Template = "auto",
    model: Annotated[
        str | None,
        typer.Option(help="Show the answer too: a folder of predictions, run/model, or a name."),
    ] = None,
) -> None:
    """Show one example with the roles of its pieces marked; with --model as this model was asked it,
    and what it wrote."""
    from rulerkit.lengths import parse_length
    from rulerkit.other_formats import Order
    from rulerkit.view import to_terminal

    if model:
        return show_answer(model, task, parse_length(length), index, sys.stdout.isatty())
    asked = task_of(task, protocol, corpora)
    example = Order(asked, parse_length(length), index + 1, seed, tokenizer, template).examples()[
        index
    ]
    typer.echo(to_terminal(example, color=sys.stdout.isatty()))


@app.command()
def generate(
    tasks: Annotated[
        list[str],
        typer.Argument(metavar="TASK...", help="Names or mappings; `all` for the thirteen."),
    ],
    output: Annotated[
        Path,
        typer.Option(help="The JSONL file; for several cells a folder, laid out as upstream does."),
    ],
    length: Annotated[
        list[str] | None, typer.Option(help="Token budget, 4096 or 4K; may be given several times.")
    ] = None,
    num_examples: Annotated[int, typer.Option(help="How many examples of each.", min=1)] = 500,
    seed: Seed = 42,
    tokenizer: Tokenizer = "builtin",
    corpora: Corpora = "builtin",
    protocol: Protocol = "clean",
    template: Template = "auto",
    workers: Annotated[
        int, typer.Option(help="Processes; the files are the same whatever their number.", min=1)
    ] = 1,
) -> None:
    """Write examples as upstream's JSONL: index, input, outputs, length, answer_prefix, and a few
    fields more."""
    from rulerkit.lengths import parse_length
    from rulerkit.other_formats import Order, write_grid
    from rulerkit.tasks import THIRTEEN

    asked = [
        task_of(name, protocol, corpora)
        for given in tasks
        for name in (THIRTEEN if given == "all" else (given,))
    ]
    lengths = [parse_length(each) for each in length or ["4096"]]
    orders = [
        Order(each, tokens, num_examples, seed, tokenizer, template)
        for tokens in lengths
        for each in asked
    ]
    if len(orders) == 1 and output.is_dir():
        raise UserError(
            f"--output {output} is a folder: give the name of a file, such as {output / 'vt.jsonl'}"
        )
    inside = [output / str(o.length) / "data" / o.task.name / "validation.jsonl" for o in orders]
    write_grid(orders, inside if len(orders) > 1 else [output], workers)
    echo(f"{len(orders)} x {num_examples} examples: {output}")


@app.command()
def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(help="A name of params/models, a folder, a hub id (org/name) or a reader."),
    ] = None,
    files: Files = None,
    settings: Set = None,
    model_option: Annotated[
        str | None, typer.Option("--model", "-m", help="The same as MODEL.")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start anew; old predictions are moved aside, not deleted."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the cells and tokens; uses no network.")
    ] = False,
) -> None:
    """Let a model answer all tasks at all lengths, store its predictions, and print the scores.

    Takes the same parameter files as papermill. What was answered before is not asked again: run
    the same command again to resume.
    """
    from rulerkit.evaluation import evaluate as run

    asked = study_of(files, settings, model or model_option)
    if dry_run:
        _list_cells(asked)
        return
    errors: list[UserError] = []
    cells = run(asked, fresh=fresh, failed=errors.append)
    _print_scores(cells, [task.name for task in asked.tasks], asked.lengths, asked.num_examples)
    echo(f"\npredictions: {asked.predictions}")
    for error in errors:
        echo(f"rulerkit: {error}", err=True)
    if errors:
        raise typer.Exit(1)


@app.command()
def score(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Prediction files or folders: ours, upstream's, lm-eval's samples."),
    ],
    task: FileTask = None,
    length: FileLength = None,
    max_failures: MaxFailures = None,
) -> None:
    """Score predictions, whoever made them: rulerkit's, upstream's pred/ tree, or
    lm-evaluation-harness' samples."""
    from rulerkit.lengths import parse_length
    from rulerkit.other_formats import read_predictions

    nominal = parse_length(length) if length else None
    cells = [cell for path in paths for cell in read_predictions(path, task, nominal)]
    _print_scores(cells, None, _lengths(cells), max_failures=max_failures)


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(help="A folder of predictions: outputs/predictions/main, or one model's."),
    ],
    format: Annotated[
        str, typer.Option(help="table, csv (one row per model, task, length), markdown or latex.")
    ] = "table",
    category: Annotated[str, typer.Option(help="all, niah, vt, aggregation or qa.")] = "all",
    max_failures: MaxFailures = None,
) -> None:
    """The leaderboard over a folder of predictions, with intervals; needs no model, tokenizer or
    corpus.

    Cells that were made otherwise (another seed, other prompts, another checkpoint of that name)
    are not mixed: it is said which and why. Where only the environment differs (GPU, versions,
    commit), a line below the table says so.
    """
    from rulerkit.evaluation import check_same
    from rulerkit.scoring import describe
    from rulerkit.scoring import score as judge
    from rulerkit.store import read_cells
    from rulerkit.summary import summarize
    from rulerkit.tables import footnotes, table_text

    problems: list[str] = []
    cells = read_cells(folder, report=problems.append, scan=False)
    scores = judge(cells, problems.append, max_failures)
    for problem in problems:
        echo(problem, err=True)
    if not cells:
        raise UserError(f"no predictions in {folder}: it should hold <model>/<task>/<length>.jsonl")
    shown = [
        each for each in cells if format == "csv" or category in ("all", describe(each)["category"])
    ]
    check_same(shown)
    notes = [*footnotes(shown, scores), *(f"{problem}." for problem in problems)]
    echo(table_text(summarize(scores, lengths=_lengths(cells)), format, category, notes), nl=False)


@app.command()
def compare(
    a: Predictions,
    b: Predictions,
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
    from rulerkit.compare import compare as compare_predictions
    from rulerkit.compare import difference_table, flips_text, json_text

    result = compare_predictions(a, b, margin, by, outputs=outputs, max_failures=max_failures)
    if as_json:
        echo(json_text(result), nl=False)
    else:
        echo(difference_table(result) + "\nexamples that flipped:\n" + flips_text(result))
    raise typer.Exit(result.verdict.status)


@app.command()
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
    task: FileTask = None,
    length: FileLength = None,
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
    if data:
        bad = _check_files(data, task, length, tokenizer)
    elif files or settings:
        bad = _check_models(files, settings, ask)
    else:
        raise UserError(
            "nothing to look at: name a model (-f params/models/x.yaml) or files of JSON lines"
        )
    if bad:
        echo(f"\n{bad} of these would spoil scores; mend them first", err=True)
        raise typer.Exit(1)


@app.command()
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
    per cell; dollars where the model's file has prices.

    Takes the parameter files of `evaluate`: -f params/models/x.yaml -f params/sizes/paper.yaml.
    """
    from dataclasses import replace

    from rulerkit.plan import bill_text, card, plan_study

    if compare:
        from rulerkit.compare import power_text
        from rulerkit.studies import load_files, study

        asked = study(load_files(files or []) | settings_of(settings))
        echo(power_text(len(asked.tasks), len(asked.lengths), asked.num_examples, margin, flips))
        return
    asked = study_of(files, settings)
    texts = [bill_text(asked, spec) for spec in asked.models if "prices" in spec]
    sized = replace(asked, models=tuple(spec for spec in asked.models if "prices" not in spec))
    if sized.models:
        gpus = card(gpu, memory), params, mfu, calibrate, _gpus_per_node(), replicas
        texts += [each.text() for each in plan_study(sized, *gpus)]
    echo("\n\n".join(texts))


@app.command()
def fetch(
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", "-f", help="A batch file, or parameter files: -f params/models/x.yaml"
        ),
    ] = None,
    settings: Set = None,
) -> None:
    """Download what a batch or a model needs, so that it runs on nodes without a network.

    With -f: the models of the hub, their tokenizers, and the original corpora where the files ask
    for them; what is there is left alone. Without: the original essays, SQuAD and HotpotQA, from
    their owners' addresses.
    """
    from rulerkit import corpora
    from rulerkit.paths import cache_dir

    if not files and not settings:
        found = corpora.fetch()
        echo(f"{len(found)} files in {cache_dir()}; `corpora: original` uses them")
        return
    from rulerkit.batch import read_batch
    from rulerkit.offline import fetch_all
    from rulerkit.paths import resolve_file
    from rulerkit.settings import read_yaml
    from rulerkit.studies import load_files, study

    given = settings_of(settings)
    paths = [resolve_file(file) for file in files or []]
    batches = [path for path in paths if {"notebooks", "together"} & read_yaml(path).keys()]
    asked: list[Any] = [read_batch(path, given) for path in batches]
    others = [path for path in paths if path not in batches]
    if others or not batches:
        asked.append(study(load_files(others) | given))
    models = [model for each in asked for model in each.models]
    original = any(each.corpora == "original" for each in asked)
    failed = False
    for state, line in fetch_all(models, "original" if original else "builtin"):
        echo(f"{state:8} {line}")
        failed |= state == "failed"
    if failed:
        raise typer.Exit(1)


@app.command()
def notebooks(
    folder: Annotated[
        Path, typer.Argument(help="Where to; `notebooks` and `params` are made in it.")
    ],
) -> None:
    """Copy the notebooks and parameter files of the kit into a folder, which becomes a project of
    its own.

    Files that are there are left alone. Then, in that folder: `jupyter lab`, papermill, or
    `rulerkit batch params/batches/demo.yaml`.
    """
    import shutil

    from rulerkit.paths import KIT

    counts = {"copied": 0, "there before": 0}
    try:
        for name in ("notebooks", "params"):
            for source in sorted((KIT / name).rglob("[!.]*.*")):
                target = folder / source.relative_to(KIT)
                counts["there before" if target.exists() else "copied"] += 1
                if not target.exists():
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(source, target)
    except OSError as error:
        raise UserError(
            f"cannot write into {folder}: {error.strerror}; choose another folder"
        ) from error
    echo(f"{counts['copied']} files copied to {folder}, {counts['there before']} were there before")


for command in (batch, run, status, serve, browse, export):
    app.command()(command)


# --- helpers --------------------------------------------------------------------------------------


def _lengths(cells: list[Any]) -> list[int]:
    """The lengths at which any example was answered or failed."""
    return sorted({cell.length for cell in cells if cell.present or cell.failures})


def _print_scores(cells: list[Any], *grid: Any, max_failures: float | None = None) -> None:
    from rulerkit.evaluation import check_same
    from rulerkit.scoring import score as judge
    from rulerkit.summary import summarize
    from rulerkit.tables import footnotes, task_table_text

    by_model = defaultdict(list)
    for cell in cells:
        by_model[cell.run, cell.model].append(cell)
    for group in by_model.values():  # each model may have been asked differently
        check_same(group)
    scores = judge(cells, max_failures=max_failures)
    summary = summarize(scores, *grid)
    for (name, model), group in by_model.items():
        notes = footnotes(group, scores.query("run == @name and model == @model"))
        echo(f"\n{model} ({name})")
        echo(task_table_text(summary, model, name, notes=notes), nl=False)


def _list_cells(study: Any) -> None:
    """The cells of a study, as parameters and stored predictions tell, and the tokens left."""
    from rulerkit.batch import needs_of
    from rulerkit.batch.status import grid

    needs = needs_of([study])
    for model in dict.fromkeys(need.model for need in needs):
        echo(grid(model, [need for need in needs if need.model == model]) + "\n")
    echo(
        f"{len(needs)} cells, {sum(need.have for need in needs):,} of "
        f"{sum(need.wanted for need in needs):,} examples are answered; "
        f"{sum(need.tokens_left for need in needs):,} tokens of prompts and answers left, at most"
    )


def _check_models(files: list[Path] | None, settings: list[str] | None, ask: bool | None) -> int:
    from rulerkit.checks import FAIL, summary_lines
    from rulerkit.checks import check as look

    asked, bad = study_of(files, settings), 0
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


def _gpus_per_node() -> int:
    """What params/site.yaml says, else the size of the largest common node."""
    from rulerkit.checks import GPUS_PER_NODE
    from rulerkit.settings import read_site

    return read_site().whole_nodes or GPUS_PER_NODE


_INTERRUPTED = 130  # what typer makes of Ctrl-C


def main() -> None:
    """Run the command line; what the user can mend is one line and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # letters that the terminal has not
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        echo(f"rulerkit: {escape.one_line(str(error))}", err=True)
        sys.exit(2)
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            echo("\nrulerkit: stopped; run the same command again to resume", err=True)
        raise

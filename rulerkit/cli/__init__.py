"""The command line. Heavy modules are imported inside the commands, so that --help answers at
once."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

import rulerkit as rk
from rulerkit import escape
from rulerkit.cli.batches import batch, run, serve, status
from rulerkit.cli.options import (
    Count,
    CountOrNone,
    Files,
    MaxFailures,
    Output,
    Set,
    described,
    echo,
    settings_of,
    study_of,
    task_of,
)
from rulerkit.errors import UserError, unknown


def tasks() -> None:
    """List the tasks: the thirteen of the benchmark and the five that Figure 5 of the paper
    adds."""
    from dataclasses import fields

    from rulerkit.tasks import FAMILIES

    for each in rk.TASKS.values():
        default = {knob.name: knob.default for knob in fields(each)}
        differs = [
            f"{k}={getattr(each, k)}" for k in each.knobs() if getattr(each, k) != default[k]
        ]
        mark = " " if each.name in rk.THIRTEEN else "+"
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


def show(
    task: str,
    *,
    length: str = "4096",
    index: Annotated[int, typer.Option(min=0)] = 0,
    seed: int = 42,
    tokenizer: str = "builtin",
    corpora: str = "builtin",
    protocol: str = "clean",
    template: str = "auto",
    model: str | None = None,
) -> None:
    """Show one example with the roles of its pieces marked; with --model as this model was asked it,
    and what it wrote.

    Args:
        task: A task's name, or a mapping: '{base: vt, num_hops: 6}'.
        index: Which example.
        model: Show the answer too: a folder of predictions, run/model, or a name.
    """
    from rulerkit.lengths import parse_length
    from rulerkit.view import to_terminal

    if model:
        return _show_answer(model, task, parse_length(length), index, sys.stdout.isatty())
    asked = task_of(task, protocol, corpora)
    form = rk.PromptFormat(tokenizer, template)
    examples = rk.generate(asked, length, index + 1, seed, form)
    typer.echo(to_terminal(examples[index], color=sys.stdout.isatty()))


def generate(
    task: list[str],
    *,
    output: Output,
    length: list[str] | None = None,
    num_examples: Count = 500,
    seed: int = 42,
    tokenizer: str = "builtin",
    corpora: str = "builtin",
    protocol: str = "clean",
    template: str = "auto",
    workers: Count = 1,
) -> None:
    """Write examples as upstream's JSONL: index, input, outputs, length, answer_prefix, and a few
    fields more.

    Args:
        task: Names or mappings; `all` for the thirteen.
        output: The JSONL file; for several cells a folder, laid out as upstream does.
        length: Token budget, 4096 or 4K; may be given several times.
        num_examples: How many examples of each.
        workers: Processes; the files are the same whatever their number.
    """
    from rulerkit.other_formats import write_grid

    asked = [
        task_of(name, protocol, corpora)
        for given in task
        for name in (rk.THIRTEEN if given == "all" else (given,))
    ]
    form = rk.PromptFormat(tokenizer, template)
    cells = [
        rk.generate(each, tokens, num_examples, seed, form)
        for tokens in length or ["4096"]
        for each in asked
    ]
    if len(cells) == 1 and output.is_dir():
        raise UserError(
            f"--output {output} is a folder: give the name of a file, such as {output / 'vt.jsonl'}"
        )
    inside = [output / str(c.length) / "data" / c.task.name / "validation.jsonl" for c in cells]
    write_grid(cells, inside if len(cells) > 1 else [output], workers)
    echo(f"{len(cells)} x {num_examples} examples: {output}")


def evaluate(
    model: str | None = None,
    *,
    files: Files = None,
    settings: Set = None,
    model_option: Annotated[str | None, typer.Option("--model", "-m")] = None,
    fresh: bool = False,
    dry_run: bool = False,
) -> None:
    """Let a model answer all tasks at all lengths, store its predictions, and print the scores.

    Takes the same parameter files as papermill. What was answered before is not asked again: run
    the same command again to resume. Ends with status 1 where a model stopped with an error, or a
    task at a length has no answer.

    Args:
        model: A name of params/models, a folder, a hub id (org/name) or a reader.
        model_option: The same as MODEL.
        fresh: Start anew; old predictions are moved aside, not deleted.
        dry_run: Only list the cells and tokens; uses no network.
    """
    asked = study_of(files, settings, model or model_option)
    if dry_run:
        _list_cells(asked)
        return
    errors: list[UserError] = []
    cells = rk.evaluate(asked, fresh=fresh, failed=errors.append)
    wanted = None if asked.adaptive else asked.num_examples
    _print_scores(cells, [task.name for task in asked.tasks], asked.lengths, wanted)
    echo(f"\npredictions: {asked.predictions}")
    for error in errors:
        echo(f"rulerkit: {error}", err=True)
    if errors or not all(cell.present for cell in cells):
        raise typer.Exit(1)


def score(
    path: list[Path],
    *,
    task: str | None = None,
    length: str | None = None,
    max_failures: MaxFailures = None,
) -> None:
    """Score predictions, whoever made them: rulerkit's, upstream's pred/ tree, or
    lm-evaluation-harness' samples.

    Args:
        path: Prediction files or folders: ours, upstream's, lm-eval's samples.
        task: The task of the files, where their names do not tell.
        length: Their nominal length, where folders do not tell.
    """
    from rulerkit.lengths import parse_length
    from rulerkit.other_formats import read_predictions
    from rulerkit.paths import resolve_file

    nominal = parse_length(length) if length else None
    paths = map(resolve_file, path)
    cells = [cell for file in paths for cell in read_predictions(file, task, nominal)]
    _print_scores(cells, max_failures=max_failures)


def report(
    folder: Path,
    *,
    format: str = "table",
    category: str = "all",
    max_failures: MaxFailures = None,
) -> None:
    """The leaderboard over a folder of predictions, with intervals; needs no model, tokenizer or
    corpus.

    Cells that were made otherwise (another seed, other prompts, another checkpoint of that name)
    are not mixed: it is said which and why. Where only the environment differs (GPU, versions,
    commit), a line below the table says so.

    Args:
        folder: A folder of predictions: outputs/predictions/main, or one model's.
        format: table, csv (one row per model, task, length), markdown or latex.
        category: all, niah, vt, aggregation or qa.
    """
    from rulerkit.evaluation import check_same
    from rulerkit.paths import resolve_file
    from rulerkit.scoring import describe
    from rulerkit.tables import footnotes, table_text

    problems: list[str] = []
    folder = resolve_file(folder)
    cells = rk.read_cells(folder, report=problems.append, scan=False)
    scores = rk.score(cells, problems.append, max_failures)
    for problem in problems:
        echo(problem, err=True)
    if not cells:
        raise UserError(f"no predictions in {folder}: it should hold <model>/<task>/<length>.jsonl")
    shown = [
        each for each in cells if format == "csv" or category in ("all", describe(each)["category"])
    ]
    check_same(shown)
    notes = [*footnotes(shown, scores), *(f"{problem}." for problem in problems)]
    echo(table_text(rk.summarize(scores), format, category, notes), nl=False)


def compare(
    a: str,
    b: str,
    *,
    margin: float = 1.0,
    by: str = "digest",
    max_failures: MaxFailures = None,
    json: bool = False,
    soft: bool = False,
    outputs: Path = Path("outputs"),
) -> None:
    """Is B worse than A? Paired differences on the same examples, those that flipped, and a
    verdict.

    Ends with 0: not worse by more than the margin; 1: worse; 3: cannot tell with so few examples;
    2: cannot compare.

    Args:
        a: A folder of predictions, run/model, or a model's name in outputs/predictions.
        b: A folder of predictions, run/model, or a model's name in outputs/predictions.
        margin: How many points B may be below A.
        by: digest asks for the same prompts; index pairs other prompts too.
        json: Everything as JSON.
        soft: Judge the probability of the right answer.
        outputs: Where predictions/ lies.
    """
    from rulerkit.compare import compare as compare_predictions
    from rulerkit.compare import difference_table, flips_text, json_text

    result = compare_predictions(
        a, b, margin, by, outputs=outputs, max_failures=max_failures, soft=soft
    )
    if json:
        echo(json_text(result), nl=False)
    else:
        echo(difference_table(result) + "\nexamples that flipped:\n" + flips_text(result))
    raise typer.Exit(result.verdict.status)


def check(
    data: list[Path] | None = None,
    *,
    files: Files = None,
    settings: Set = None,
    ask: bool | None = None,
    task: str | None = None,
    length: str | None = None,
    tokenizer: str = "builtin",
) -> None:
    """Look for what would spoil the scores: in a model's prompts before a GPU is paid for, or in
    somebody's files.

    `rulerkit check -f params/models/x.yaml` looks at every task at the shortest and longest length;
    `rulerkit check FILE.jsonl --task vt --length 4K --tokenizer x` at data or predictions. Ends
    with status 1 on any FAIL.

    Args:
        data: Data or predictions: ours, upstream's, lm-eval's samples.
        ask: Put two short examples to the model; done unasked where that is cheap.
        task: The task of the files, where their names do not tell.
        length: Their nominal length, where folders do not tell.
    """
    if data and (files or settings):
        raise UserError(
            "give either files to look at, or the parameters of a model (-f, -y), not both"
        )
    if data:
        reports = _check_files(data, task, length, tokenizer)
    elif files or settings:
        reports = _check_models(files, settings, ask)
    else:
        raise UserError(
            "nothing to look at: name a model (-f params/models/x.yaml) or files of JSON lines"
        )
    bad = 0
    for title, lines in reports:
        echo("\n  ".join([title, *lines]))
        bad += sum(line.startswith("FAIL") for line in lines)
    if bad:
        echo(f"\n{bad} of these would spoil scores; mend them first", err=True)
        raise typer.Exit(1)


def plan(
    *,
    files: Files = None,
    settings: Set = None,
    gpu: str = "h100",
    memory: Annotated[float | None, typer.Option(min=1)] = None,
    params: str | None = None,
    mfu: Annotated[float, typer.Option(min=0.01, max=1)] = 0.4,
    replicas: CountOrNone = None,
    calibrate: bool = False,
    compare: bool = False,
    margin: float = 1.0,
    flips: float = 0.02,
) -> None:
    """Tell what a study costs before it is run: tokens, FLOPs, KV cache, requests that fit, hours
    per cell; dollars where the model's file has prices.

    Takes the parameter files of `evaluate`: -f params/models/x.yaml -f params/sizes/paper.yaml.

    Args:
        gpu: h100, h200, a100, a100-40, l40s or 4090.
        memory: GiB of one card, in place of that of --gpu.
        params: Parameters, such as 8B; where not all are active: 47B/13B.
        mfu: Assumed share of the card's peak in prefill.
        replicas: Servers that answer side by side; default: as the model's file says.
        calibrate: Time a few short examples with the model, here, and extrapolate.
        compare: In place of cost: the examples that `rulerkit compare` will need.
        margin: With --compare: the margin in points.
        flips: With --compare: the share of answers that changes each way by chance.
    """
    from rulerkit.adaptive import FIRST
    from rulerkit.plan import bill_text, card, plan_model

    if compare:
        from rulerkit.compare import power_text
        from rulerkit.studies import load_files, study

        asked = study(load_files(files or []) | settings_of(settings))
        echo(power_text(len(asked.tasks), len(asked.lengths), asked.num_examples, margin, flips))
        return
    asked = study_of(files, settings)
    options = card(gpu, memory), params, mfu, calibrate, _gpus_per_node(), replicas
    texts = [
        bill_text(asked, spec) if "prices" in spec else plan_model(spec, asked, *options).text()
        for spec in asked.models
    ]
    if asked.adaptive:
        texts.append(
            f"adaptive: at most what stands above, {asked.num_examples} examples a cell; at least "
            f"round 0, {FIRST} examples, {100 * FIRST / asked.num_examples:.1f} % of the tokens"
        )
    echo("\n\n".join(texts))


def fetch(*, files: Files = None, settings: Set = None) -> None:
    """Download what a batch or a model needs, so that it runs on nodes without a network.

    With -f: the models of the hub, their tokenizers, and the original corpora where the files ask
    for them; what is there is left alone. Without: the original essays, SQuAD and HotpotQA, from
    their owners' addresses.

    Args:
        files: A batch file, or parameter files: -f params/models/x.yaml
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


def notebooks(folder: Path) -> None:
    """Copy the notebooks and parameter files of the kit into a folder, which becomes a project of
    its own.

    Files that are there are left alone. Then, in that folder: `jupyter lab`, papermill, or
    `rulerkit batch params/batches/demo.yaml`.

    Args:
        folder: Where to; `notebooks` and `params` are made in it.
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


def export(
    place: list[str] | None = None,
    *,
    output: Output = Path("results.csv"),
    format: str | None = None,
    labels: bool = False,
) -> None:
    """Write one table of all results for other programs: a row per example, with what was asked and
    written.

    docs/reference.md lists the columns.

    Args:
        output: The file to write.
        format: parquet, csv or jsonl; default: as the file's name ends.
        labels: Also say what went wrong; makes examples again.
    """
    from rulerkit.results import export as write

    results = rk.load(*place or (), labels=labels)
    write(results, output, format)
    echo(f"{len(results)} rows, {len(results.columns)} columns: {output}")


def browse(
    place: list[str] | None = None, *, output: Output = Path("examples.html"), most: Count = 1000
) -> None:
    """Write a page that leads from each score to the answers behind it; it opens in a browser
    without a network.

    Args:
        output: The HTML file to write.
        most: How many answers the page holds.
    """
    results = rk.load(*place or ())
    page = rk.browse(results, most)
    echo(
        f"open {page.save(output)} in a browser: {page.num_examples} of {len(results)} answers can "
        "be opened there"
    )


# --- helpers --------------------------------------------------------------------------------------


def _show_answer(model: str, task: str, length: int, index: int, color: bool) -> None:
    """Print an example as a model was asked it, what it wrote, and the score."""
    from rulerkit.compare import find
    from rulerkit.failures import remaker
    from rulerkit.view import to_terminal

    cells = {(cell.task, cell.length): cell for cell in find(model)}
    if (task, length) not in cells:
        known = [f"{name} --length {tokens}" for name, tokens in cells]
        raise unknown("task and length of this model", f"{task} --length {length}", known)
    cell = cells[task, length]
    if index not in cell.present:
        raise UserError(
            f"{model} has no answer to example {index} of {task} at {length}: it has {cell.wanted} "
            "examples, from 0; those without an answer are in its *.failures.jsonl"
        )
    example = remaker(cell)(next(row for row in cell.rows if row["index"] == index))
    rows = rk.answers_of(rk.score([cell]), cells=[cell])
    row: Any = rows[rows["index"] == index].iloc[0]
    typer.echo(to_terminal(example, color), nl=False)
    typer.echo(f"{escape.terminal(cell.model)} wrote: {escape.terminal(row['prediction'].strip())}")
    typer.echo(f"score: {100 * row['score']:.0f} of 100 ({row['finish_reason']})")


def _print_scores(cells: list[Any], *grid: Any, max_failures: float | None = None) -> None:
    from rulerkit.evaluation import check_same
    from rulerkit.tables import footnotes, task_table_text

    by_model = defaultdict(list)
    for cell in cells:
        by_model[cell.run, cell.model].append(cell)
    for group in by_model.values():  # each model may have been asked differently
        check_same(group)
    scores = rk.score(cells, max_failures=max_failures)
    summary = rk.summarize(scores, *grid)
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
        f"{sum(need.tokens_left for need in needs):,} tokens of prompts and answers left, "
        + ("in this round of the adaptive run" if study.adaptive else "at most")
    )


Reports = Iterator[tuple[str, list[str]]]
"""Of each model or file a title, and a line for each check."""


def _check_models(
    files: list[Path] | None, settings: list[str] | None, ask: bool | None
) -> Reports:
    from rulerkit.checks import check, summary_lines

    asked = study_of(files, settings)
    lengths = " and ".join(str(n) for n in sorted({min(asked.lengths), max(asked.lengths)}))
    for name, findings in check(asked, ask, _gpus_per_node()).items():
        title = f"{name}: {len(asked.tasks)} tasks at {lengths} tokens"
        yield title, summary_lines(findings)


def _check_files(data: list[Path], task: str | None, length: str | None, tokenizer: str) -> Reports:
    from rulerkit.audit import audit, read_file
    from rulerkit.checks import summary_lines
    from rulerkit.lengths import parse_length

    vocabulary = rk.load_tokenizer(tokenizer)
    for path in data:
        for cell in read_file(path, vocabulary, task, parse_length(length) if length else None):
            title = f"{path}: {cell.task.name} at {cell.length}, {len(cell.rows)} rows"
            yield title, summary_lines(audit(cell))


def _gpus_per_node() -> int:
    """What params/site.yaml says, else the size of the largest common node."""
    from rulerkit.checks import GPUS_PER_NODE
    from rulerkit.settings import read_site

    return read_site().whole_nodes or GPUS_PER_NODE


def _start(*, version: bool = False) -> None:
    """How much of its context does a language model really use? RULER (arXiv 2404.06654) with error
    bars.

    A first look, without GPU or download: [bold]rulerkit show niah_multikey_1 --length 1024[/bold],
    then [bold]rulerkit batch params/batches/demo.yaml[/bold].

    Args:
        version: Show the version.
    """
    if version:
        echo(f"rulerkit {rk.__version__}")
        raise typer.Exit


app = typer.Typer(
    name="rulerkit",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.callback(invoke_without_command=True, no_args_is_help=True)(described(_start))
for function in (
    *(tasks, show, generate, evaluate, score, report, compare, check, plan, fetch, notebooks),
    *(batch, run, status, serve, browse, export),
):
    app.command()(described(function))

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

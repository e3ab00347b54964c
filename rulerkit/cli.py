"""The command line. Heavy modules are imported inside the commands, so that --help answers at
once."""

import inspect
import os
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing
from copy import copy
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

import rulerkit as rk
from rulerkit.common import escape
from rulerkit.common.errors import UserError, check_known, counted
from rulerkit.common.lengths import parse_length
from rulerkit.common.paths import KIT, cache_dir, resolve_file

SHARED = """
files: Parameter files, later ones win: -f model.yaml -f size.yaml
settings: A parameter: -y 'lengths: [4K, 8K]'. Repeatable.
length: Token budget: template, prompt and answer together; 4096 or 4K.
seed: Another seed asks other questions.
tokenizer: builtin, a Hugging Face name or folder, a tokenizer file, or a tiktoken encoding.
corpora: builtin stand-ins, the original texts (`rulerkit fetch`), or files: '{essay: texts}'.
protocol: clean, or paper: prompts and layouts of upstream at the time of the paper.
template: auto (the tokenizer's own), base, or a form of the paper: llama2, qwen ...
max_failures: A share (below 1) or a number of a cell's examples: means are over the rest.
jobs: Jobs side by side; default: as GPUs and processors allow.
gpus: The GPUs to use, 0,1 or 0-3; '' for none. Default: all visible.
place: Outputs folders, folders or files of predictions, or patterns; default: outputs.
"""
"""Arguments and options that mean the same in several commands."""

Positive = Annotated[int, typer.Option(min=1)]
PositiveOrNone = Annotated[int | None, typer.Option(min=1)]
ParameterFiles = Annotated[list[Path] | None, typer.Option("--file", "-f")]
Set = Annotated[list[str] | None, typer.Option("--set", "-y", metavar="YAML")]
Output = Annotated[Path, typer.Option("--output", "-o")]
OutputFile = Annotated[Path, typer.Option("--output", "-o", dir_okay=False)]
MaxFailures = Annotated[float | None, typer.Option(min=0)]


def described(function: Callable[..., None]) -> Callable[..., None]:
    """A function as typer takes it: its parameters before `*` are arguments, those behind it
    options. Lines below `Args:` in its docstring, and SHARED, say what each is."""
    text, _, lines = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:")
    about = dict(
        re.findall(r"(?m)^ *(\w+): (.*)", SHARED + re.sub(r"\n {8,}", " ", lines))
    )
    signature, parameters = inspect.signature(function), []
    for name, parameter in signature.parameters.items():
        kind, is_option = parameter.annotation, parameter.kind is parameter.KEYWORD_ONLY
        info = copy(getattr(kind, "__metadata__", [None])[0])
        if info:
            kind = kind.__origin__
        elif kind is bool:  # without --no-...
            info = typer.Option(f"--{name.replace('_', '-')}")
        else:
            info = typer.Option() if is_option else typer.Argument()
        info.help = about[name]
        parameters.append(parameter.replace(annotation=Annotated[kind, info]))
    function.__doc__ = re.sub(
        r"(?<!\n)\n(?![\n ])", " ", text
    )  # typer keeps the ends of lines
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a text, made safe for a terminal, to stdout or stderr."""
    typer.echo(escape.terminal(text), err=err, nl=nl)


def settings_of(
    settings: list[str] | None, files: list[Path] | None = None
) -> dict[str, Any]:
    """The parameters of files, and over them those given as YAML on the command line."""
    from rulerkit.common.settings import parse_yaml
    from rulerkit.evaluation.study import load_files

    merged = load_files(files or [])
    for text in settings or []:
        content = parse_yaml(text, f"-y {text!r}")
        if not isinstance(content, dict):
            raise UserError(
                f"-y {text!r} holds no `name: value`; write it like -y 'num_examples: 5'"
            )
        merged |= content
    return merged


def study_of(
    files: list[Path] | None, settings: list[str] | None, model: str | None = None
) -> Any:
    """The study of parameter files, settings and a model; `UserError` where no model is named."""
    given = settings_of(settings, files)
    given |= {"model": model_of(model)} if model else {}
    asked = rk.study(given)
    if not asked.models or not {"model", "models"} & given.keys():
        raise UserError(
            "no model is named: give a name of params/models (llama-3.1-8b), a folder or hub id "
            "(org/name), a reader (reader-8192), a file (-f params/models/x.yaml) or -y 'model: X'"
        )
    return asked


def model_of(name: str) -> str:
    """A model given on the command line: a folder or file of the working directory by its whole
    path."""
    from rulerkit.common.settings import known_models

    path = Path(name).expanduser().absolute()
    return str(path) if path.exists() and name not in known_models() else name


def task_of(text: str, protocol: str, corpora: str) -> Any:
    """A task given on the command line, and its corpora: names, or mappings in YAML."""
    from rulerkit.common.settings import parse_yaml

    spec = (
        parse_yaml(text, f"the task {text!r}")
        if text.lstrip().startswith("{")
        else text
    )
    return rk.task(spec, protocol).with_corpora(parse_yaml(corpora, "--corpora"))


# --- commands -------------------------------------------------------------------------------------


def tasks() -> None:
    """List the tasks: the thirteen of the benchmark and the five that Figure 5 of the paper
    adds."""
    from rulerkit.generation.tasks import FAMILIES

    for task in rk.TASKS.values():
        default = type(task)(name=task.name)
        differs = [
            f"{name}={getattr(task, name)}"
            for name in task.knobs()
            if getattr(task, name) != getattr(default, name)
        ]
        mark = " " if task.name in rk.THIRTEEN else "+"
        text = ", ".join(differs) or f"the default {task.family}"
        echo(f"{mark} {task.name:18} {task.category:12} {text}")
    echo("\n+ beyond the thirteen. Knobs of a family, for '{base: TASK, KNOB: VALUE}':")
    for family in FAMILIES:
        default = family(name=family.family)
        knobs = [f"{name}={getattr(default, name)}" for name in family.knobs()]
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
    """Show one example with the role of each piece marked; with --model, the prompt that this model
    was sent, and its answer.

    Args:
        task: A task's name, or a mapping: '{base: vt, num_hops: 6}'.
        index: Which example.
        model: Show the answer too: a folder of predictions, run/model, or a name.
    """
    if model:
        name = (
            task_of(task, protocol, corpora).name
            if task.lstrip().startswith("{")
            else task
        )
        example, answer = _answered(model, name, parse_length(length), index)
    else:
        form = rk.PromptFormat(rk.load_tokenizer(tokenizer), template)
        asked = task_of(task, protocol, corpora)
        example, answer = rk.generate(asked, length, index + 1, seed, form)[index], ""
    typer.echo(rk.view.to_terminal(example, color=sys.stdout.isatty()), nl=not model)
    echo(answer, nl=False)


def generate(
    task: list[str],
    *,
    output: Output,
    length: list[str] | None = None,
    num_examples: Positive = 500,
    seed: int = 42,
    tokenizer: str = "builtin",
    corpora: str = "builtin",
    protocol: str = "clean",
    template: str = "auto",
    workers: Positive = 1,
) -> None:
    """Write examples as upstream's JSONL: index, input, outputs, length, answer_prefix, and a few
    fields more.

    Args:
        task: Names or mappings; `all` for the thirteen.
        output: The JSONL file; for several cells, or where it is a folder, upstream's tree in it.
        length: Token budget, 4096 or 4K; may be given several times.
        num_examples: How many examples of each.
        workers: Processes; the files are the same whatever their number.
    """
    from rulerkit.analysis.other_formats import write_grid
    from rulerkit.generation.tasks import by_name

    asked = by_name(
        task_of(name, protocol, corpora)
        for given in task
        for name in (rk.THIRTEEN if given == "all" else (given,))
    )
    form = rk.PromptFormat(rk.load_tokenizer(tokenizer), template)
    cells = [
        rk.generate(one, tokens, num_examples, seed, form)
        for tokens in dict.fromkeys(map(parse_length, length or ["4096"]))
        for one in asked.values()
    ]
    paths = [output]
    if len(cells) > 1 or output.is_dir():
        paths = [
            output / f"{c.length}/data/{c.task.name}/validation.jsonl" for c in cells
        ]
    write_grid(cells, paths, workers)
    echo(f"{len(cells)} x {num_examples} examples: {output}")


def evaluate(
    model: str | None = None,
    *,
    files: ParameterFiles = None,
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
    # A job that its scheduler starts again goes on with what it has written.
    is_restarted = int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0
    cells = rk.evaluate(asked, fresh=fresh and not is_restarted, failed=errors.append)
    if any(cell.present for cell in cells):
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
        task: The task of the files, where their names do not say.
        length: Their nominal length, where their folders do not say.
    """
    from rulerkit.analysis.other_formats import read_predictions

    nominal = parse_length(length) if length else None
    files = map(resolve_file, path)
    cells = [cell for file in files for cell in read_predictions(file, task, nominal)]
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

    Cells made in different ways (another seed, other prompts, another checkpoint of that name) are
    not mixed: a message names them and says why. Where only the environment differs (GPU, versions,
    commit), a line below the table says so.

    Args:
        folder: A folder of predictions: outputs/predictions/main, or one model's.
        format: table, csv (one row per model, task, length), markdown or latex.
        category: all, niah, vt, aggregation, qa, or the category of a family of your own.
    """
    from rulerkit.report.tables import footnotes, table_text
    from rulerkit.scoring.scores import describe
    from rulerkit.store.comparable import check_same

    problems: list[str] = []
    folder = resolve_file(folder)
    cells = rk.read_cells(folder, report=problems.append, scan=False)
    scores = rk.score(cells, problems.append, max_failures)
    for problem in problems:
        echo(problem, err=True)
    if not cells:
        raise UserError(
            f"no predictions in {folder}: it should hold <model>/<task>/<length>.jsonl"
        )
    shown = [
        cell
        for cell in cells
        if format == "csv" or category in ("all", describe(cell)["category"])
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
    from rulerkit.analysis.compare import compare as compare_predictions
    from rulerkit.report.comparison import difference_table, flips_text, json_text

    result = compare_predictions(
        a, b, margin, by, outputs=outputs, max_failures=max_failures, soft=soft
    )
    if json:
        echo(json_text(result), nl=False)
    else:
        echo(
            difference_table(result) + "\nexamples that flipped:\n" + flips_text(result)
        )
    raise typer.Exit(result.verdict.status)


def check(
    *,
    files: ParameterFiles = None,
    settings: Set = None,
    ask: bool | None = None,
) -> None:
    """Find what would make scores wrong in a model's prompts, before a GPU is paid for.

    `rulerkit check -f params/models/x.yaml` checks every task at the shortest and the longest
    length. Ends with status 1 on any FAIL.

    Args:
        ask: Send the model two short examples; by default only where that is cheap.
    """
    from rulerkit.batch import checks

    study = study_of(files, settings)
    ends = sorted({min(study.lengths), max(study.lengths)})
    subject = (
        f"{counted(len(study.tasks), 'task')} at {' and '.join(map(str, ends))} tokens"
    )
    failed = 0
    for name, findings in checks.check(study, ask).items():
        lines = checks.summary_lines(findings)
        echo("\n  ".join([f"{name}: {subject}", *lines]))
        failed += sum(line.startswith("FAIL") for line in lines)
    if failed:
        echo(f"\n{failed} of these would make scores wrong; fix them first", err=True)
        raise typer.Exit(1)


def plan(
    *,
    files: ParameterFiles = None,
    settings: Set = None,
    compare: bool = False,
    margin: float = 1.0,
    flips: float = 0.02,
) -> None:
    """Count what a study asks before it runs: examples and tokens by length, and dollars where the
    model's file has prices; of an adaptive run the least and the most.

    Takes the parameter files of `evaluate`: -f params/models/x.yaml -f params/sizes/paper.yaml.

    Args:
        compare: In place of cost: the examples that `rulerkit compare` will need.
        margin: With --compare: the margin in points.
        flips: With --compare: the share of answers that changes each way by chance.
    """
    if compare:
        from rulerkit.analysis.compare import power_text

        study = rk.study(settings_of(settings, files))
        num_tasks, num_lengths = len(study.tasks), len(study.lengths)
        echo(power_text(num_tasks, num_lengths, study.num_examples, margin, flips))
        return

    from rulerkit.batch.plan import plan_model

    study = study_of(files, settings)
    echo("\n\n".join(plan_model(model, study).text() for model in study.models))


def fetch(*, files: ParameterFiles = None, settings: Set = None) -> None:
    """Download what a batch or a model needs, so that it runs on nodes without a network.

    With -f: the models of the hub, their tokenizers, and the original corpora where the files ask
    for them; what is there is kept. Without: the original essays and SQuAD from their owners'
    addresses, and HotpotQA from a pinned copy on the hub.

    Args:
        files: A batch file, or parameter files: -f params/models/x.yaml
    """
    from rulerkit.generation import corpora

    if not files and not settings:
        files_fetched = corpora.fetch()
        echo(
            f"{len(files_fetched)} files in {cache_dir()}; `corpora: original` uses them"
        )
        return
    from rulerkit.batch.jobs import read_batch
    from rulerkit.batch.offline import fetch_all
    from rulerkit.common.settings import read_yaml
    from rulerkit.evaluation.study import BATCH_KEYS

    paths = [resolve_file(file) for file in files or []]
    asked: list[Any]
    if paths and BATCH_KEYS & read_yaml(paths[0]).keys():
        asked = [read_batch(path, settings_of(settings)) for path in paths]
    else:
        asked = [rk.study(settings_of(settings, paths))]
    models = [model for entry in asked for model in entry.models]
    original = any(entry.corpora == "original" for entry in asked)
    states = set()
    for state, line in fetch_all(models, "original" if original else "builtin"):
        echo(f"{state:8} {line}")
        states.add(state)
    raise typer.Exit(1 if "failed" in states else 0)


def notebooks(folder: Path) -> None:
    """Copy the notebooks and parameter files of the kit into a folder, which becomes a project of
    its own.

    Existing files are kept. Then, in that folder: `jupyter lab`, papermill, or
    `rulerkit batch params/batches/demo.yaml`.

    Args:
        folder: Where to; `notebooks` and `params` are made in it.
    """
    import shutil

    copied = there = 0
    try:
        for source in sorted(
            [*KIT.glob("notebooks/**/[!.]*.*"), *KIT.glob("params/**/[!.]*.*")]
        ):
            if source.suffix == ".pyc":
                continue
            target = folder / source.relative_to(KIT)
            if target.exists():
                there += 1
            else:
                copied += 1
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    except OSError as error:
        raise UserError(
            f"cannot write into {folder}: {error.strerror}; choose another folder"
        ) from error
    echo(f"{copied} files copied to {folder}, {there} were there before")


def export(
    place: list[str] | None = None,
    *,
    output: OutputFile = Path("results.csv"),
    format: str | None = None,
    labels: bool = False,
) -> None:
    """Write one table of all results for other programs: a row per example, with what was asked and
    written.

    docs/reference.md lists the columns.

    Args:
        output: The file to write.
        format: parquet, csv or jsonl; default: as the file's name ends.
        labels: Also label what went wrong; examples are generated again for it.
    """
    from rulerkit.analysis.results import export as write

    results = rk.load(*place or (), labels=labels)
    write(results, output, format)
    echo(f"{counted(len(results), 'row')}, {len(results.columns)} columns: {output}")


def browse(
    place: list[str] | None = None,
    *,
    output: OutputFile = Path("examples.html"),
    most: Positive = 1000,
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


def batch(
    file: Path,
    *,
    settings: Set = None,
    jobs: PositiveOrNone = None,
    gpus: str | None = None,
    slurm: bool = False,
    site: Path | None = None,
    dry_run: bool = False,
) -> None:
    """Let the models of a batch file answer, execute its notebooks through papermill, print the
    leaderboard.

    Only what is missing is done: run the same command again to resume. On this machine models share
    the GPUs; with --slurm each gets a job, and notebooks over several models follow. `rulerkit
    status` follows both.

    Args:
        file: A batch file, such as params/batches/demo.yaml.
        slurm: Submit one job per model to Slurm, and return.
        site: The site file of --slurm; default: params/site.yaml.
        dry_run: Only list what would run; with --slurm, print the job scripts.
    """
    _refuse_windows()
    from rulerkit.batch.jobs import read_batch
    from rulerkit.batch.status import report, statuses

    if (site and not slurm) or (slurm and (jobs or gpus is not None)):
        raise UserError("--site goes with --slurm; --jobs and --gpus go without it")
    planned = read_batch(resolve_file(file), settings_of(settings))
    if slurm:
        _submit(planned, site, dry_run)
    elif dry_run:
        echo("\n".join(report(statuses(planned.jobs))))
    else:
        for job in planned.jobs:
            job.save()
        failed, elsewhere = _execute(planned.jobs, gpus, jobs)
        if elsewhere:
            echo(
                "another process is doing a part of this batch: run the same command again once it has "
                "ended",
                err=True,
            )
        else:
            print_leaderboard(planned)
        if failed or elsewhere:
            raise typer.Exit(1)


def run(
    files: list[Path], *, jobs: PositiveOrNone = None, gpus: str | None = None
) -> None:
    """Run jobs that `rulerkit batch` has planned, on this machine: the command for any scheduler
    but Slurm.

    Args:
        files: Job files: outputs/notebooks/RUN/MODEL/BATCH.job.yaml.
    """
    _refuse_windows()
    from rulerkit.batch.jobs import read_job

    paths = dict.fromkeys(file.absolute() for file in files)
    failed, _ = _execute([read_job(path) for path in paths], gpus, jobs)
    if failed:
        raise typer.Exit(1)


def status(file: Path, *, settings: Set = None, cells: bool = False) -> None:
    """Show the progress of a batch: what is done, running, queued, failed or missing, by its files,
    also while it runs on another machine.

    The exit code is 0 where all is done, 1 where something failed, is incomplete or was
    interrupted, else 3: work is running, queued, missing or outdated.

    Args:
        file: The batch file, or outputs/notebooks/RUN.
        cells: Every cell of the models that are not done.
    """
    from rulerkit.batch.jobs import read_batch
    from rulerkit.batch.status import exit_code, grid, jobs_in, report, statuses

    path = resolve_file(file)
    jobs = (
        jobs_in(path) if path.is_dir() else read_batch(path, settings_of(settings)).jobs
    )
    states = statuses(jobs)
    echo("\n".join(report(states)))
    for job in jobs:
        if cells and job.model and job.steps[0].unanswered:
            echo("\n" + grid(job.name, job.steps[0].cells, job.not_run(job.name)))
    raise typer.Exit(exit_code(states))


def serve(
    model: str,
    *,
    settings: Set = None,
    node: Annotated[int, typer.Option(hidden=True)] = 0,
) -> None:
    """Start a model's servers and leave them running until Ctrl-C: evaluate, papermill, JupyterLab
    and batches use them.

    All visible GPUs are used, one server for each group that the model needs (`replicas`). Every
    process on this machine and of this user that asks the same model with the same parameters uses
    them. Without this command a model is loaded by the process that asks it, a notebook's kernel
    for instance, and ends with it.

    Args:
        model: A model's name, path or hub id, or its parameter file.
        settings: A key of the model: -y 'replicas: 2'. Repeatable.
        node: The rank of this node, of several that share a model.
    """
    from rulerkit.batch.execution import GpuPool
    from rulerkit.common.gpus import visible_gpus
    from rulerkit.common.settings import read_yaml
    from rulerkit.inference.model import gpus_and_nodes
    from rulerkit.inference.process import find_servers, registered
    from rulerkit.inference.servers import ServerEngine, Vllm

    is_job, changes = model.endswith(".job.yaml"), settings_of(settings)
    base = read_yaml(resolve_file(model))["model"] if is_job else model_of(model)
    engine = rk.load_model({"base": base, **changes} if changes else base)
    if node and isinstance(engine, Vllm):
        command = engine.follow(node)
        os.execvpe(command[0], command, os.environ | engine.variables())
    if not isinstance(engine, ServerEngine) or not engine.startable:
        raise UserError(
            f"model {engine.name} (engine {engine.engine}) is no server that can be started: use "
            "`engine: vllm`, or `engine: openai` with `serve: COMMAND`"
        )
    if servers := find_servers(engine.about_server):
        raise UserError(f"model {engine.name} is served already, at {servers[0].url}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    visible = visible_gpus()
    pool, needed = GpuPool(visible), gpus_and_nodes(engine.spec)[0]
    gpus = pool.hold(needed or 1, len(visible)) if visible else []
    if gpus is None:
        raise UserError(
            f"model {engine.name} needs {needed} GPUs: other processes hold {', '.join(visible)}"
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    try:
        engine.start()
        engine.wait_until_ready()
        addresses = [replica.address for replica in engine.alive()]
        with registered(engine.about_server(), addresses):
            for address in addresses:
                echo(f"{engine.name} answers at {address.url}")
            echo("Ctrl-C ends it.")
            while engine.alive():
                time.sleep(1)
    except KeyboardInterrupt:
        echo(f"{engine.name}: ended")
    finally:
        engine.close()


# --- helpers --------------------------------------------------------------------------------------


def _answered(model: str, task: str, length: int, index: int) -> tuple[Any, str]:
    """An example as a model was asked it; what it wrote, and the score."""
    from rulerkit.analysis.compare import find
    from rulerkit.analysis.failures import remaker

    cells = {f"{cell.task} --length {cell.length}": cell for cell in find(model)}
    asked = f"{task} --length {length}"
    check_known("task and length of this model", asked, cells)
    cell = cells[asked]
    if index not in cell.present:
        raise UserError(
            f"{model} has no answer to example {index} of {task} at {length}: it has {cell.wanted} "
            "examples, from 0; those without an answer are in its *.failures.jsonl"
        )
    row = next(row for row in cell.rows if row["index"] == index)
    score = rk.score([cell]).set_index("index")["score"][index]
    text = f"{cell.model} wrote: {row['pred'].strip()}\nscore: {100 * score:.0f} of 100"
    return remaker(cell)(row), f"{text} ({row['finish_reason']})\n"


def _print_scores(
    cells: list[Any], *grid: Any, max_failures: float | None = None
) -> None:
    from rulerkit.report.tables import footnotes, task_table_text
    from rulerkit.scoring.summary import base_run
    from rulerkit.store.comparable import check_same

    by_model = defaultdict(list)
    for cell in cells:
        by_model[base_run(cell.run), cell.model].append(cell)
    for group in by_model.values():  # each model may have been asked differently
        check_same(group)
    scores = rk.score(cells, max_failures=max_failures)
    summary = rk.summarize(scores, *grid)
    for (name, model), group in by_model.items():
        rows = scores[
            (scores["run"].map(base_run) == name) & (scores["model"] == model)
        ]
        notes = footnotes(group, rows)
        echo(f"\n{model} ({name})")
        echo(task_table_text(summary, model, name, notes=notes), nl=False)


def _list_cells(study: Any) -> None:
    """The cells of a study, as parameters and stored predictions tell, and the tokens left."""
    from rulerkit.batch.jobs import needs_of
    from rulerkit.batch.status import grid

    needs = needs_of([study])
    for model in dict.fromkeys(need.model for need in needs):
        echo(grid(model, [need for need in needs if need.model == model]) + "\n")
    echo(
        f"{counted(len(needs), 'cell')}, {sum(need.have for need in needs):,} of "
        f"{sum(need.wanted for need in needs):,} examples are answered; "
        f"{sum(need.tokens_left for need in needs):,} tokens of prompts and answers left, "
        + ("in this round of the adaptive run" if study.adaptive else "at most")
    )


def _refuse_windows() -> None:
    if os.name == "nt":
        raise UserError(
            "batches need POSIX process groups, which Windows does not have: run this command in "
            "WSL; `rulerkit evaluate`, `score`, `report` and the notebooks run on Windows too"
        )


def _execute(jobs: Any, gpus: str | None, side_by_side: int | None) -> tuple[int, int]:
    """Do jobs, print each step that ends; returns how many steps are not done, and how many jobs
    were left to another process."""
    from rich.console import Console
    from rich.text import Text

    from rulerkit.batch.execution import check, execute, use_gpus
    from rulerkit.batch.status import describe, details

    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that steps are ended in order
    usable = use_gpus(gpus)
    check(jobs, usable)
    count, last = sum(len(job.steps) for job in jobs), dict[Path, Any]()
    console, due = Console(), 0.0
    with (
        closing(execute(jobs, usable, side_by_side)) as statuses,  # type: ignore[type-var]
        console.status("") as shown,
    ):
        for status in statuses:
            if status:
                last[status.step.record] = status
                if status.state not in ("running", "done before"):
                    text = "\n".join(describe(status))
                    console.out(escape.terminal(text), highlight=False)
            elif console.is_terminal and time.monotonic() > due:  # counting reads files
                running = [entry for entry in last.values() if entry.state == "running"]
                lines = [f"{entry.step.title}: {details(entry)}" for entry in running]
                text = "\n".join([f"{len(last) - len(running)}/{count} steps", *lines])
                shown.update(Text(escape.terminal(text)))
                due = time.monotonic() + 2
    states = [status.state for status in last.values()]
    if before := states.count("done before"):
        were = "was" if before == 1 else "were"
        echo(f"{counted(before, 'step')} {were} done before; nothing was asked again")
    well = ("done", "done before", "elsewhere")
    left = [
        f"{step.title} ({state})"
        for step, state, _ in last.values()
        if state not in well
    ]
    if left:
        are = "is" if len(left) == 1 else "are"
        echo(
            f"{counted(len(left), 'step')} {are} not done: {', '.join(left)}", err=True
        )
    return len(left), states.count("elsewhere")


def _submit(planned: Any, site_file: Path | None, dry_run: bool) -> None:
    from rulerkit.batch import slurm
    from rulerkit.batch.offline import missing_of
    from rulerkit.common.settings import read_site

    site = read_site(site_file)
    todo = slurm.submissions(planned.jobs, site)
    if not todo:
        echo("everything is done; nothing to submit")
        return
    if dry_run:
        for submission in todo:
            after = f"  after {', '.join(submission.after)}" if submission.after else ""
            echo(f"# {submission.script}{after}\n{submission.text(site)}")
    if site.offline and (missing := missing_of(planned.models, planned.corpora)):
        raise UserError(
            f"not there for nodes without a network: {'; '.join(missing)}: get what is missing "
            f"with `rulerkit fetch -f {planned.path}`, or say `offline: false` in params/site.yaml "
            "where nodes have a network"
        )
    if not dry_run:
        for submission, number, before in slurm.submit(todo, site):
            state = "in queue" if before else "submitted"
            echo(f"{state} {number}  {submission.name}  log: {submission.log}")
        echo(f"follow it with: rulerkit status {planned.path}")


def print_leaderboard(batch: Any) -> None:
    """The leaderboard of a batch's models, its page, and where its figures, tables and notebooks
    lie."""
    from rulerkit.batch.page import write_page
    from rulerkit.report.tables import footnotes, table_text
    from rulerkit.store.comparable import check_same

    study = batch.study
    needs = {
        need.path: need
        for job in batch.jobs
        if job.model
        for need in job.steps[0].cells
    }
    asked = dict.fromkeys(need.task for need in needs.values())
    tasks = [task.name for task in study.tasks if task.name in asked] or [*asked]
    cells = [
        cell
        for folder in study.folders
        if folder.is_dir()
        for cell in rk.read_cells(folder)
        if cell.path in needs
        and cell.task in tasks
        and cell.length in study.lengths
        and cell.rows
    ]
    scores, board = None, "no answer yet"
    try:
        check_same(cells)
        if cells:
            scores = rk.score(cells)
            # more may be stored
            wanted = scores["path"].map(
                {str(path): need.wanted for path, need in needs.items()}
            )
            scores = scores.assign(wanted=wanted)[scores["index"] < wanted]
            summary, notes = (
                rk.summarize(scores, tasks, study.lengths),
                footnotes(cells, scores),
            )
            echo("\n" + table_text(summary, notes=notes))
            board = table_text(summary, "html", notes=notes)
    except UserError as error:  # the batch itself is done
        reason = f"no leaderboard: {error}"
        echo(f"\n{reason}", err=True)
        board = escape.html(reason)
    try:
        page = str(write_page(batch, scores, board))
    except UserError as error:
        page = f"not written: {error}"
    echo(f"{'page:':10} {page}")
    for kind in ("figures", "tables", "notebooks"):
        echo(f"{kind + ':':10} {study.outputs / kind / study.run}")


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
    *(
        tasks,
        show,
        generate,
        evaluate,
        score,
        report,
        compare,
        check,
        plan,
        fetch,
        notebooks,
    ),
    *(batch, run, status, serve, browse, export),
):
    app.command()(described(function))

_INTERRUPTED = 130  # what typer makes of Ctrl-C


def main() -> None:
    """Run the command line; what the user can correct is one line and exit status 2."""
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

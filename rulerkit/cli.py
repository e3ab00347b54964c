"""The command line. Heavy modules are imported inside the commands, so that --help answers at
once."""

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import closing
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import rulerkit as rk
from rulerkit.common import escape
from rulerkit.common.errors import UserError, check_known, counted, shortened
from rulerkit.common.lengths import parse_length
from rulerkit.common.paths import KIT, cache_dir, resolve_file

if TYPE_CHECKING:
    from rulerkit.batch.batch_file import Batch
    from rulerkit.batch.jobs import Job
    from rulerkit.common.settings import JSON
    from rulerkit.evaluation.study import Study
    from rulerkit.generation.example import Example
    from rulerkit.generation.tasks import Task
    from rulerkit.store.cells import Cell

app = typer.Typer(
    name="rulerkit",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

_INTERRUPTED = 130  # what typer makes of Ctrl-C


# --- options that mean the same in several commands -----------------------------------------------

Files = Annotated[
    list[Path] | None,
    typer.Option(
        "--file",
        "-f",
        help="Parameter files, later ones win: -f model.yaml -f size.yaml",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-y",
        metavar="YAML",
        help="A parameter: -y 'lengths: [4K, 8K]'. Repeatable.",
    ),
]
Seed = Annotated[
    int, typer.Option("--seed", help="Random seed for the examples.")
]
Tokenizer = Annotated[
    str,
    typer.Option(
        "--tokenizer",
        help="builtin, a Hugging Face name or folder, a tokenizer file, or a tiktoken encoding.",
    ),
]
Corpora = Annotated[
    str,
    typer.Option(
        "--corpora",
        help="builtin stand-ins, the original texts (`rulerkit fetch`), or files: "
        "'{essay: texts}'.",
    ),
]
Protocol = Annotated[
    str,
    typer.Option(
        "--protocol",
        help="clean, or paper: prompts and layouts of upstream at the time of the paper.",
    ),
]
Template = Annotated[
    str,
    typer.Option(
        "--template",
        help="auto (the tokenizer's own), base, or a form of the paper: llama2, qwen ...",
    ),
]
MaxFailures = Annotated[
    float | None,
    typer.Option(
        "--max-failures",
        min=0,
        help="A share (below 1) or a number of a cell's examples that may lack an answer: the "
        "mean is taken over the others.",
    ),
]
SideBySide = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        min=1,
        help="Jobs side by side; default: as GPUs and processors allow.",
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        help="The GPUs to use, 0,1 or 0-3; '' for none. Default: all visible.",
    ),
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Only list what would be done; uses no network."
    ),
]
Places = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PLACE]...",
        help="Outputs folders, folders or files of predictions, or patterns; default: outputs.",
    ),
]


# --- one task -------------------------------------------------------------------------------------


@app.command()
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

    echo(
        "\n+ beyond the thirteen. Knobs of a family, for '{base: TASK, KNOB: VALUE}':"
    )
    for family in FAMILIES:
        default = family(name=family.family)
        knobs = [f"{name}={getattr(default, name)}" for name in family.knobs()]
        echo(f"  {family.family:18} {', '.join(knobs)}")


@app.command()
def show(
    task: Annotated[
        str,
        typer.Argument(
            help="A task's name, or a mapping: '{base: vt, num_hops: 6}'."
        ),
    ],
    length: Annotated[
        str,
        typer.Option(
            help="Token budget: template, prompt and answer together; 4096 or 4K."
        ),
    ] = "4096",
    index: Annotated[int, typer.Option(min=0, help="Which example.")] = 0,
    seed: Seed = 42,
    tokenizer: Tokenizer = "builtin",
    corpora: Corpora = "builtin",
    protocol: Protocol = "clean",
    template: Template = "auto",
    model: Annotated[
        str | None,
        typer.Option(
            help="Show the answer too: a folder of predictions, run/model, or a name."
        ),
    ] = None,
) -> None:
    """Show one example with the role of each piece marked; with --model, the prompt that this model
    was sent, and its answer."""
    if model:
        name = task
        if _is_mapping(task):
            name = task_of(task, protocol, corpora).name
        example, answer = _answered(model, name, parse_length(length), index)
    else:
        form = rk.PromptFormat(rk.load_tokenizer(tokenizer), template)
        asked = task_of(task, protocol, corpora)
        example, answer = (
            rk.generate(asked, length, index + 1, seed, form)[index],
            "",
        )
    typer.echo(
        rk.view.to_terminal(example, color=sys.stdout.isatty()), nl=not model
    )
    echo(answer, nl=False)


@app.command()
def generate(
    task: Annotated[
        list[str],
        typer.Argument(help="Names or mappings; `all` for the thirteen."),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The JSONL file; for several cells, or where it is a folder, upstream's tree "
            "in it.",
        ),
    ],
    length: Annotated[
        list[str] | None,
        typer.Option(
            help="Token budget, 4096 or 4K; may be given several times."
        ),
    ] = None,
    num_examples: Annotated[
        int, typer.Option(min=1, help="How many examples of each.")
    ] = 500,
    seed: Seed = 42,
    tokenizer: Tokenizer = "builtin",
    corpora: Corpora = "builtin",
    protocol: Protocol = "clean",
    template: Template = "auto",
    workers: Annotated[
        int,
        typer.Option(
            min=1, help="Processes; the files are the same whatever their number."
        ),
    ] = 1,
) -> None:
    """Write examples as upstream's JSONL: index, input, outputs, length, answer_prefix, and a few
    fields more."""
    from rulerkit.analysis.other_formats import write_grid
    from rulerkit.generation.tasks import by_name

    names = list[str]()
    for given in task:
        names += rk.THIRTEEN if given == "all" else [given]
    asked = by_name(task_of(name, protocol, corpora) for name in names)
    form = rk.PromptFormat(rk.load_tokenizer(tokenizer), template)
    lengths = dict.fromkeys(parse_length(text) for text in length or ["4096"])
    cells = [
        rk.generate(one, tokens, num_examples, seed, form)
        for tokens in lengths
        for one in asked.values()
    ]

    paths = [output]
    if len(cells) > 1 or output.is_dir():
        paths = [
            output / f"{cell.length}/data/{cell.task.name}/validation.jsonl"
            for cell in cells
        ]
    write_grid(cells, paths, workers)
    echo(f"{len(cells)} x {num_examples} examples: {output}")


# --- one study ------------------------------------------------------------------------------------


@app.command()
def evaluate(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A name of params/models, a folder, a hub id (org/name) or a reader."
        ),
    ] = None,
    files: Files = None,
    settings: Settings = None,
    model_option: Annotated[
        str | None, typer.Option("--model", "-m", help="The same as MODEL.")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh",
            help="Start anew; old predictions are moved aside, not deleted.",
        ),
    ] = False,
    dry_run: DryRun = False,
) -> None:
    """Let a model answer all tasks at all lengths, store its predictions, and print the scores.

    Takes the same parameter files as papermill. What was answered before is not asked again: run
    the same command again to resume. Ends with status 1 where a model stopped with an error, or a
    task at a length has no answer.
    """
    study = study_of(files, settings, model or model_option)
    if dry_run:
        _list_cells(study)
        return

    # A job that its scheduler starts again goes on with what it has written.
    is_restarted = int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0
    errors: list[UserError] = []
    cells = rk.evaluate(
        study, fresh=fresh and not is_restarted, failed=errors.append
    )

    if any(cell.present for cell in cells):
        wanted = None if study.adaptive else study.num_examples
        names = [task.name for task in study.tasks]
        _print_scores(cells, names, study.lengths, wanted)
    echo(f"\npredictions: {study.predictions}")
    for error in errors:
        echo(f"rulerkit: {error}", err=True)
    if errors or not all(cell.present for cell in cells):
        raise typer.Exit(1)


@app.command()
def check(
    files: Files = None,
    settings: Settings = None,
    ask: Annotated[
        bool | None,
        typer.Option(
            help="Send the model two short examples; by default only where that is cheap."
        ),
    ] = None,
) -> None:
    """Find what would make scores wrong in a model's prompts, before a GPU is paid for.

    `rulerkit check -f params/models/x.yaml` checks every task at the shortest and the longest
    length. Ends with status 1 on any FAIL.
    """
    from rulerkit.batch import checks

    study = study_of(files, settings)
    ends = sorted({min(study.lengths), max(study.lengths)})
    at_lengths = " and ".join(str(length) for length in ends)
    subject = f"{counted(len(study.tasks), 'task')} at {at_lengths} tokens"

    failed = 0
    for name, findings in checks.check(study, ask).items():
        lines = checks.summary_lines(findings)
        echo("\n  ".join([f"{name}: {subject}", *lines]))
        failed += sum(line.startswith(checks.FAIL) for line in lines)
    if failed:
        echo(
            f"\n{failed} of these would make scores wrong; fix them first",
            err=True,
        )
        raise typer.Exit(1)


@app.command()
def plan(
    files: Files = None,
    settings: Settings = None,
    compare: Annotated[
        bool,
        typer.Option(
            "--compare",
            help="In place of cost: the examples that `rulerkit compare` will need.",
        ),
    ] = False,
    margin: Annotated[
        float, typer.Option(help="With --compare: the margin in points.")
    ] = 1.0,
    flips: Annotated[
        float,
        typer.Option(
            help="With --compare: the share of answers that changes each way by chance."
        ),
    ] = 0.02,
) -> None:
    """Count what a study asks before it runs: examples and tokens by length, and dollars where the
    model's file has prices; of an adaptive run the least and the most.

    Takes the parameter files of `evaluate`: -f params/models/x.yaml -f params/sizes/paper.yaml.
    """
    if compare:
        from rulerkit.analysis.power import power_text

        study = rk.study(settings_of(settings, files))
        num_tasks, num_lengths = len(study.tasks), len(study.lengths)
        echo(
            power_text(num_tasks, num_lengths, study.num_examples, margin, flips)
        )
        return

    from rulerkit.batch.plan import plan_model

    study = study_of(files, settings)
    echo("\n\n".join(plan_model(model, study).text() for model in study.models))


@app.command()
def conform(
    checkout: Annotated[
        Path,
        typer.Argument(help="A checkout of RULER, with its data downloaded."),
    ],
    tokenizer: Annotated[
        str,
        typer.Option(help="A folder or hub id that both sides can read."),
    ],
    python: Annotated[
        Path | None,
        typer.Option(
            help="The Python of an environment that runs the checkout, if another."
        ),
    ] = None,
    task: Annotated[
        list[str] | None, typer.Option(help="A task; may be given several times.")
    ] = None,
    length: Annotated[
        list[str] | None,
        typer.Option(
            help="Token budget, 4096 or 4K; may be given several times."
        ),
    ] = None,
    num_examples: Annotated[
        int, typer.Option(min=2, help="How many examples of each.")
    ] = 60,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for each task and length.")
    ] = 600,
) -> None:
    """Run the generator of a checkout of RULER beside ours, and say task by task whether the
    prompts are alike: template, size, fill, depths, layouts, and what copying the beginning scores.

    Ours are those of `protocol: paper`, in the edition of the checkout (2024, or since May 2025).
    Ends with 0 where all are equal, else with 1. `docs/benchmark.md` names what is known to differ.

    Example: rulerkit conform ~/RULER --python ~/RULER/venv/bin/python --tokenizer Qwen/Qwen2.5-7B
    """
    from rulerkit.analysis.conform import Upstream
    from rulerkit.analysis.conform import conform as run_both

    upstream = Upstream(checkout, python or Path(sys.executable), timeout)
    echo(f"upstream of {upstream.edition} / ours")
    lengths = [parse_length(text) for text in length or ["4096"]]
    names = task or list(rk.THIRTEEN)
    num_equal, num_all = 0, 0
    for found in run_both(upstream, tokenizer, names, lengths, num_examples):
        echo(found.text)
        num_all += 1
        num_equal += found.is_equal
    echo(f"{num_equal} of {num_all} are equal")
    if num_equal < num_all:
        raise typer.Exit(1)


@app.command()
def fetch(
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            "-f",
            help="A batch file, or parameter files: -f params/models/x.yaml",
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Download what a batch or a model needs, so that it runs on nodes without a network.

    With -f: the models of the hub, their tokenizers, and the original corpora where the files ask
    for them; what is there is kept. Without: the original essays and SQuAD from their owners'
    addresses, and HotpotQA from a pinned copy on the hub.
    """
    from rulerkit.generation import downloads

    if not files and not settings:
        fetched = downloads.fetch()
        echo(
            f"{len(fetched)} files in {cache_dir()}; `corpora: original` uses them"
        )
        return

    from rulerkit.batch.batch_file import read_batch
    from rulerkit.batch.offline import fetch_all
    from rulerkit.common.yaml_files import read_yaml
    from rulerkit.evaluation.notebook import BATCH_KEYS

    paths = [resolve_file(file) for file in files or []]
    wanted: list[Any]
    if paths and BATCH_KEYS & read_yaml(paths[0]).keys():
        wanted = [read_batch(path, settings_of(settings)) for path in paths]
    else:
        wanted = [rk.study(settings_of(settings, paths))]
    models = [model for entry in wanted for model in entry.models]
    is_original = any(entry.corpora == "original" for entry in wanted)

    states = set()
    for state, line in fetch_all(
        models, "original" if is_original else "builtin"
    ):
        echo(f"{state:8} {line}")
        states.add(state)
    raise typer.Exit(1 if "failed" in states else 0)


# --- results --------------------------------------------------------------------------------------


@app.command()
def score(
    path: Annotated[
        list[Path],
        typer.Argument(
            help="Prediction files or folders: ours, upstream's, lm-eval's samples."
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(help="The task of the files, where their names do not say."),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(
            help="Their nominal length, where their folders do not say."
        ),
    ] = None,
    max_failures: MaxFailures = None,
) -> None:
    """Score predictions, whoever made them: rulerkit's, upstream's pred/ tree, or
    lm-evaluation-harness' samples."""
    from rulerkit.analysis.other_formats import read_predictions

    nominal = parse_length(length) if length else None
    cells: list[Cell] = []
    for file in path:
        cells += read_predictions(resolve_file(file), task, nominal)
    _print_scores(cells, max_failures=max_failures)


@app.command()
def report(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder of predictions: outputs/predictions/main, or one model's."
        ),
    ],
    format: Annotated[
        str,
        typer.Option(
            help="table, csv (one row per model, task, length), markdown or latex."
        ),
    ] = "table",
    category: Annotated[
        str,
        typer.Option(
            help="all, niah, vt, aggregation, qa, or the category of a family of your own."
        ),
    ] = "all",
    max_failures: MaxFailures = None,
) -> None:
    """The leaderboard over a folder of predictions, with intervals; needs no model, tokenizer or
    corpus.

    Cells made in different ways (another seed, other prompts, another checkpoint of that name) are
    not mixed: a message names them and says why. Where only the environment differs (GPU, versions,
    commit), a line below the table says so.
    """
    from rulerkit.report.tables import footnotes, table_text
    from rulerkit.scoring.scores import describe
    from rulerkit.store.comparable import check_same

    folder = resolve_file(folder)
    problems: list[str] = []
    cells = rk.read_cells(folder, report=problems.append, scan=False)
    scores = rk.score(cells, problems.append, max_failures)
    for problem in problems:
        echo(problem, err=True)
    if not cells:
        raise UserError(
            f"no predictions in {folder}: it should hold <model>/<task>/<length>.jsonl"
        )

    shows_all = format == "csv" or category == "all"
    shown = [
        cell
        for cell in cells
        if shows_all or describe(cell)["category"] == category
    ]
    check_same(shown)
    notes = [*footnotes(shown, scores), *(f"{problem}." for problem in problems)]
    echo(table_text(rk.summarize(scores), format, category, notes), nl=False)


@app.command()
def compare(
    a: Annotated[
        str,
        typer.Argument(
            help="A folder of predictions, run/model, or a model's name in outputs/predictions."
        ),
    ],
    b: Annotated[str, typer.Argument(help="The same for the other side.")],
    margin: Annotated[
        float, typer.Option(help="How many points B may be below A.")
    ] = 1.0,
    by: Annotated[
        str,
        typer.Option(
            help="digest asks for the same prompts; index pairs other prompts too."
        ),
    ] = "digest",
    max_failures: MaxFailures = None,
    json: Annotated[
        bool, typer.Option("--json", help="Everything as JSON.")
    ] = False,
    soft: Annotated[
        bool,
        typer.Option("--soft", help="Judge the probability of the right answer."),
    ] = False,
    outputs: Annotated[
        Path, typer.Option(help="Where predictions/ lies.")
    ] = Path("outputs"),
) -> None:
    """Is B worse than A? Paired differences on the same examples, those that flipped, and a
    verdict.

    Ends with 0: not worse by more than the margin; 1: worse; 3: cannot tell with so few examples;
    2: cannot compare.
    """
    from rulerkit.report.comparison import difference_table, flips_text, json_text

    found = rk.compare(
        a, b, margin, by, outputs=outputs, max_failures=max_failures, soft=soft
    )
    if json:
        echo(json_text(found), nl=False)
    else:
        flipped = flips_text(found)
        echo(f"{difference_table(found)}\nexamples that flipped:\n{flipped}")
    raise typer.Exit(found.verdict.status)


@app.command()
def export(
    place: Places = None,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", dir_okay=False, help="The file to write."),
    ] = Path("results.csv"),
    format: Annotated[
        str | None,
        typer.Option(
            help="parquet, csv or jsonl; default: as the file's name ends."
        ),
    ] = None,
    labels: Annotated[
        bool,
        typer.Option(
            "--labels",
            help="Also label what went wrong; examples are generated again for it.",
        ),
    ] = False,
) -> None:
    """Write one table of all results for other programs: a row per example, with what was asked and
    written.

    docs/reference.md lists the columns.
    """
    from rulerkit.analysis.results import export as write

    results = rk.load(*place or (), labels=labels)
    write(results, output, format)
    echo(
        f"{counted(len(results), 'row')}, {len(results.columns)} columns: {output}"
    )


@app.command()
def browse(
    place: Places = None,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", dir_okay=False, help="The HTML file to write."
        ),
    ] = Path("examples.html"),
    most: Annotated[
        int, typer.Option(min=1, help="How many answers the page holds.")
    ] = 1000,
) -> None:
    """Write a page that leads from each score to the answers behind it; it opens in a browser
    without a network."""
    results = rk.load(*place or ())
    page = rk.browse(results, most)
    echo(
        f"open {page.save(output)} in a browser: {page.num_examples} of {len(results)} answers can "
        "be opened there"
    )


# --- many models ----------------------------------------------------------------------------------


@app.command()
def batch(
    file: Annotated[
        Path,
        typer.Argument(help="A batch file, such as params/batches/demo.yaml."),
    ],
    settings: Settings = None,
    jobs: SideBySide = None,
    gpus: Gpus = None,
    slurm: Annotated[
        bool,
        typer.Option(
            "--slurm", help="Submit one job per model to Slurm, and return."
        ),
    ] = False,
    site: Annotated[
        Path | None,
        typer.Option(help="The site file of --slurm; default: params/site.yaml."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Only list what would run; with --slurm, print the job scripts.",
        ),
    ] = False,
) -> None:
    """Let the models of a batch file answer, execute its notebooks through papermill, print the
    leaderboard.

    Only what is missing is done: run the same command again to resume. On this machine models share
    the GPUs; with --slurm each gets a job, and notebooks over several models follow. `rulerkit
    status` follows both.
    """
    _refuse_windows()
    from rulerkit.batch.batch_file import read_batch
    from rulerkit.batch.status import report, statuses

    if (site and not slurm) or (slurm and (jobs or gpus is not None)):
        raise UserError(
            "--site goes with --slurm; --jobs and --gpus go without it"
        )

    planned = read_batch(resolve_file(file), settings_of(settings))
    if slurm:
        _submit(planned, site, dry_run)
        return
    if dry_run:
        echo("\n".join(report(statuses(planned.jobs))))
        return

    _run_here(planned, gpus, jobs)


def _run_here(planned: "Batch", gpus: str | None, jobs: int | None) -> None:
    """Execute the jobs of a batch on this machine, and print its leaderboard."""
    for job in planned.jobs:
        job.save()
    failed, elsewhere = _execute(planned.jobs, gpus, jobs)

    # A leaderboard before the end would show models with some of their answers.
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


@app.command()
def run(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Job files: outputs/notebooks/RUN/MODEL/BATCH.job.yaml."
        ),
    ],
    jobs: SideBySide = None,
    gpus: Gpus = None,
) -> None:
    """Run jobs that `rulerkit batch` has planned, on this machine: the command for any scheduler
    but Slurm."""
    _refuse_windows()
    from rulerkit.batch.jobs import read_job

    paths = dict.fromkeys(file.absolute() for file in files)
    failed, _ = _execute([read_job(path) for path in paths], gpus, jobs)
    if failed:
        raise typer.Exit(1)


@app.command()
def status(
    file: Annotated[
        Path, typer.Argument(help="The batch file, or outputs/notebooks/RUN.")
    ],
    settings: Settings = None,
    cells: Annotated[
        bool,
        typer.Option(
            "--cells", help="Every cell of the models that are not done."
        ),
    ] = False,
) -> None:
    """Show the progress of a batch: what is done, running, queued, failed or missing, by its files,
    also while it runs on another machine.

    The exit code is 0 where all is done, 1 where something failed, is incomplete or was
    interrupted, else 3: work is running, queued, missing or outdated.
    """
    from rulerkit.batch.batch_file import read_batch
    from rulerkit.batch.status import exit_code, grid, jobs_in, report, statuses

    path = resolve_file(file)
    if path.is_dir():
        jobs = jobs_in(path)
    else:
        jobs = read_batch(path, settings_of(settings)).jobs
    states = statuses(jobs)
    echo("\n".join(report(states)))
    for job in jobs:
        if cells and job.model and job.steps[0].unanswered:
            echo("\n" + grid(job.name, job.steps[0].cells, job.not_run(job.name)))
    raise typer.Exit(exit_code(states))


@app.command()
def serve(
    model: Annotated[
        str,
        typer.Argument(
            help="A model's name, path or hub id, or its parameter file."
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-y",
            metavar="YAML",
            help="A key of the model: -y 'replicas: 2'. Repeatable.",
        ),
    ] = None,
    node: Annotated[
        int,
        typer.Option(
            hidden=True,
            help="The rank of this node, of several that share a model.",
        ),
    ] = 0,
) -> None:
    """Start a model's servers and leave them running until Ctrl-C: evaluate, papermill, JupyterLab
    and batches use them.

    All visible GPUs are used, one server for each group that the model needs (`replicas`). Every
    process on this machine and of this user that asks the same model with the same parameters uses
    them. Without this command a model is loaded by the process that asks it, a notebook's kernel
    for instance, and ends with it.
    """
    from rulerkit.batch import serving
    from rulerkit.common.yaml_files import read_yaml

    if model.endswith(".job.yaml"):
        base = read_yaml(resolve_file(model))["model"]
    else:
        base = model_of(model)
    changes = settings_of(settings)
    engine = rk.load_model({"base": base, **changes} if changes else base)
    if node:
        serving.follow(engine, node)

    _end_in_order()
    try:
        serving.serve(engine, echo)
    except KeyboardInterrupt:
        echo(f"{engine.name}: ended")


# --- set up ---------------------------------------------------------------------------------------


@app.command()
def notebooks(
    folder: Annotated[
        Path,
        typer.Argument(help="Where to; `notebooks` and `params` are made in it."),
    ],
) -> None:
    """Copy the notebooks and parameter files of the kit into a folder, which becomes a project of
    its own.

    Existing files are kept. Then, in that folder: `jupyter lab`, papermill, or
    `rulerkit batch params/batches/demo.yaml`.
    """
    import shutil

    sources = [*KIT.glob("notebooks/**/[!.]*.*"), *KIT.glob("params/**/[!.]*.*")]
    copied = there = 0
    try:
        for source in sorted(sources):
            target = folder / source.relative_to(KIT)
            if source.suffix == ".pyc":
                continue
            if target.exists():
                there += 1
                continue
            copied += 1
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    except OSError as error:
        raise UserError(
            f"cannot write into {folder}: {error.strerror}; choose another folder"
        ) from error
    echo(f"{copied} files copied to {folder}, {there} were there before")


@app.callback(invoke_without_command=True, no_args_is_help=True)
def start(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.")
    ] = False,
) -> None:
    """How much of its context does a language model really use? RULER (arXiv 2404.06654) with error
    bars.

    A first look, without GPU or download: `rulerkit show niah_multikey_1 --length 1024`, then
    `rulerkit batch params/batches/demo.yaml`.
    """
    if version:
        echo(f"rulerkit {rk.__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; what the user can correct is one line and exit status 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Answers hold letters that the terminal may not have.
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        echo(f"rulerkit: {escape.one_line(str(error))}", err=True)
        sys.exit(2)
    except SystemExit as ended:
        if ended.code == _INTERRUPTED:
            echo(
                "\nrulerkit: stopped; run the same command again to resume",
                err=True,
            )
        raise


# --- what is given --------------------------------------------------------------------------------


def settings_of(
    settings: list[str] | None, files: list[Path] | None = None
) -> "JSON":
    """The parameters of files, and over them those given as YAML on the command line."""
    from rulerkit.common.yaml_files import parse_yaml

    merged = rk.load_files(files or [])
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
) -> "Study":
    """The study of parameter files, settings and a model; `UserError` where no model is named."""
    given = settings_of(settings, files)
    if model:
        named = {key for key in ("model", "models") if given.get(key) is not None}
        if named:
            key = named.pop()
            raise UserError(
                f"two models are named: {model} as an argument, and `{key}: "
                f"{shortened(given[key])}` in -y or -f; leave one of the two out"
            )
        given["model"] = model_of(model)

    study = rk.study(given)
    # A study has a model by default, which nobody may have meant here.
    is_named = "model" in given or "models" in given
    if not study.models or not is_named:
        raise UserError(
            "no model is named: give a name of params/models (llama-3.1-8b), a folder or hub id "
            "(org/name), a reader (reader-8192), a file (-f params/models/x.yaml) or -y 'model: X'"
        )
    return study


def model_of(name: str) -> str:
    """A model given on the command line: a folder or file of the working directory by its whole
    path."""
    from rulerkit.common.model_files import known_models

    path = Path(name).expanduser().absolute()
    is_path = path.exists() and name not in known_models()
    return str(path) if is_path else name


def task_of(text: str, protocol: str, corpora: str) -> "Task":
    """A task given on the command line, and its corpora: names, or mappings in YAML."""
    from rulerkit.common.yaml_files import parse_yaml

    spec = parse_yaml(text, f"the task {text!r}") if _is_mapping(text) else text
    return rk.task(spec, protocol).with_corpora(parse_yaml(corpora, "--corpora"))


def _is_mapping(text: str) -> bool:
    return text.lstrip().startswith("{")


# --- what is printed ------------------------------------------------------------------------------


def echo(text: str, err: bool = False, nl: bool = True) -> None:
    """Print a text, made safe for a terminal, to stdout or stderr."""
    typer.echo(escape.terminal(text), err=err, nl=nl)


def _answered(
    model: str, task: str, length: int, index: int
) -> "tuple[Example, str]":
    """An example as a model was asked it; and what it wrote, with the score, as text."""
    from rulerkit.analysis.remake import remaker
    from rulerkit.analysis.sides import find

    cells = {f"{cell.task} --length {cell.length}": cell for cell in find(model)}
    wanted = f"{task} --length {length}"
    check_known("task and length of this model", wanted, cells)
    cell = cells[wanted]
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
    cells: "list[Cell]", *grid: Any, max_failures: float | None = None
) -> None:
    """The scores of each model by task and length; `grid` as `summarize` takes it."""
    from rulerkit.report.tables import footnotes, task_table_text
    from rulerkit.scoring.summary import base_run
    from rulerkit.store.comparable import check_same

    # Each model may have been asked in another way, so each has a table of its own.
    by_model = defaultdict(list)
    for cell in cells:
        by_model[base_run(cell.run), cell.model].append(cell)
    for group in by_model.values():
        check_same(group)

    scores = rk.score(cells, max_failures=max_failures)
    summary = rk.summarize(scores, *grid)
    runs = scores["run"].map(base_run)
    for (name, model), group in by_model.items():
        rows = scores[(runs == name) & (scores["model"] == model)]
        notes = footnotes(group, rows)
        echo(f"\n{model} ({name})")
        echo(task_table_text(summary, model, name, notes=notes), nl=False)


def _list_cells(study: "Study") -> None:
    """The cells of a study, as parameters and stored predictions tell, and the tokens left."""
    from rulerkit.batch.jobs import needs_of
    from rulerkit.batch.status import grid, tokens_left

    needs = needs_of([study])
    for model in dict.fromkeys(need.model for need in needs):
        echo(grid(model, [need for need in needs if need.model == model]) + "\n")

    have = sum(need.have for need in needs)
    wanted = sum(need.wanted for need in needs)
    left = sum(need.tokens_left for need in needs)
    most = sum(need.most_tokens_left for need in needs) if left else 0
    echo(
        f"{counted(len(needs), 'cell')}, {have:,} of {wanted:,} examples are answered; "
        f"{tokens_left(left, most)}"
    )


def print_leaderboard(batch: "Batch") -> None:
    """The leaderboard of a batch's models, its page, and where its figures, tables and notebooks
    lie."""
    from rulerkit.batch.leaderboard import leaderboard
    from rulerkit.batch.page import write_page

    board = leaderboard(batch)
    if board.text:
        echo("\n" + board.text)
    if board.problem:
        echo("\n" + board.problem, err=True)

    try:
        page = str(write_page(batch, board.scores, board.html))
    except UserError as error:
        page = f"not written: {error}"
    echo(f"{'page:':10} {page}")
    for kind in ("figures", "tables", "notebooks"):
        echo(f"{kind + ':':10} {batch.study.outputs / kind / batch.study.run}")


# --- running and submitting -----------------------------------------------------------------------


def _refuse_windows() -> None:
    if os.name == "nt":
        raise UserError(
            "batches need POSIX process groups, which Windows does not have: run this command in "
            "WSL; `rulerkit evaluate`, `score`, `report` and the notebooks run on Windows too"
        )


def _end_in_order() -> None:
    """End on SIGTERM as on an error, so that servers and steps are ended, too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _execute(
    jobs: "list[Job]", gpus: str | None, side_by_side: int | None
) -> tuple[int, int]:
    """Do jobs, print each step that ends; returns how many steps are not done, and how many jobs
    were left to another process."""
    from rich.console import Console

    from rulerkit.batch.execution import check, execute
    from rulerkit.batch.gpu_pool import use_gpus

    _end_in_order()
    usable = use_gpus(gpus)
    check(jobs, usable)

    console = Console()
    num_steps = sum(len(job.steps) for job in jobs)
    # Closing ends the steps that run, also where this process is told to end.
    with closing(execute(jobs, usable, side_by_side)) as statuses:  # type: ignore[type-var]
        last = _follow(statuses, console, num_steps)
    return _print_outcome(last)


def _follow(statuses: Iterable[Any], console: Any, num_steps: int) -> list[Any]:
    """Print each step as it ends, and on a terminal how far the others are; returns the last status
    of each step."""
    from rulerkit.batch.status import describe

    last = dict[Path, Any]()  # by the record of the step
    next_count = 0.0
    with console.status("") as shown:
        for status in statuses:
            if status:
                last[status.step.record] = status
            if status and status.state not in ("running", "done before"):
                text = "\n".join(describe(status))
                console.out(escape.terminal(text), highlight=False)
            if (
                not status
                and console.is_terminal
                and time.monotonic() > next_count
            ):
                # Counting answers reads files: not at every look.
                shown.update(_progress(list(last.values()), num_steps))
                next_count = time.monotonic() + 2
    return list(last.values())


def _progress(statuses: list[Any], num_steps: int) -> Any:
    """How many steps have ended, and how far the others are, for a terminal."""
    from rich.text import Text

    from rulerkit.batch.status import details

    running = [status for status in statuses if status.state == "running"]
    lines = [f"{len(statuses) - len(running)}/{num_steps} steps"]
    lines += [f"{status.step.title}: {details(status)}" for status in running]
    return Text(escape.terminal("\n".join(lines)))


def _print_outcome(statuses: list[Any]) -> tuple[int, int]:
    """Say what was done before and what is not done; returns how many steps are not done, and how
    many were left to another process."""
    states = [status.state for status in statuses]
    before = states.count("done before")
    if before:
        were = "was" if before == 1 else "were"
        echo(
            f"{counted(before, 'step')} {were} done before; nothing was asked again"
        )

    well = ("done", "done before", "elsewhere")
    left = [
        f"{status.step.title} ({status.state})"
        for status in statuses
        if status.state not in well
    ]
    if left:
        are = "is" if len(left) == 1 else "are"
        steps = counted(len(left), "step")
        echo(f"{steps} {are} not done: {', '.join(left)}", err=True)
    return len(left), states.count("elsewhere")


def _submit(planned: "Batch", site_file: Path | None, dry_run: bool) -> None:
    """Submit the jobs of a batch to Slurm, or print their scripts."""
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
            after = (
                f"  after {', '.join(submission.after)}"
                if submission.after
                else ""
            )
            echo(f"# {submission.script}{after}\n{submission.text(site)}")

    missing = missing_of(planned.models, planned.corpora) if site.offline else []
    if missing:
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

"""Commands that set up: downloads, notebooks of one's own, files of examples."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import rulerkit as rk
from rulerkit.cli.app import SET_UP, app
from rulerkit.cli.given import EXAMPLES, MODELS, Given, one_model, settings_of
from rulerkit.cli.options import Files, Lengths, NumExamples, OneModel, Settings, Tasks
from rulerkit.cli.printing import echo
from rulerkit.common.errors import ExitStatus, UserError
from rulerkit.common.paths import cache_dir, plugin_projects, resolve, resolve_file
from rulerkit.common.project import FOLDERS, KIT


@app.command("fetch", rich_help_panel=SET_UP)
def fetch(
    model: OneModel = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", "-f", help="A batch file, or parameter files: -f params/models/x.yaml"
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Download what a model or a batch needs, for machines without a network.

    With MODEL or -f: models of the hub, tokenizers, and the original corpora if the files name
    them. Without: the original corpora (essays, SQuAD, HotpotQA) from their owners' addresses.
    """
    from rulerkit.cli import downloads

    if not model and not files and not settings:
        fetched = downloads.fetch()
        echo(f"{len(fetched)} files in {cache_dir()}; `corpora: original` uses them")
        return

    from rulerkit.batch.batch_file import read_batch
    from rulerkit.common.yaml_files import read_yaml
    from rulerkit.evaluation.study import BATCH_KEYS

    paths = [resolve_file(file) for file in files or []]
    wanted: list[Any]
    if paths and BATCH_KEYS & read_yaml(paths[0]).keys():
        if model:
            raise UserError(
                f"{files[0] if files else ''} is a batch file, which names its models: leave out "
                f"{' '.join(model)}"
            )
        wanted = [read_batch(path, settings_of(settings)) for path in paths]
    else:
        given = Given(model, files=paths, settings=settings)
        wanted = [given.study("reader-8192", (*MODELS, "corpora"))]
    models = [model for entry in wanted for model in entry.models]
    is_original = any(entry.corpora == "original" for entry in wanted)

    failed = False
    for described in models:
        try:
            for what in _fetch_model(described):
                echo(f"there    {what}")
        except UserError as error:
            echo(f"failed   {error}")
            failed = True
    if is_original:
        try:
            downloads.fetch()
            echo(f"there    corpora: original: {cache_dir()}")
        except UserError as error:
            echo(f"failed   {error}")
            failed = True
    if failed:
        raise typer.Exit(ExitStatus.FAILED)


def _fetch_model(described: Any) -> Iterator[str]:
    """Download the repository of a model and its tokenizer, where they are on the hub, or its
    tiktoken encoding; yields what is there."""
    from rulerkit.common.hub import download, is_hub_id

    engine: Any = rk.load_model(described)
    path = engine.spec.get("path", "")
    # The weights of the engine rwkv are one file of a repository.
    repository, _, what = path.rpartition("/")
    if not what.endswith(".pth"):
        repository, what = path, "*"
    if is_hub_id(repository) and not resolve(path).exists():
        revision = engine.spec.get("revision")
        yield str(download(f"model {engine.name}", repository, revision, [what]))

    tokenizer = engine.tokenizer_name()
    if tokenizer not in (path, "builtin") and not resolve(tokenizer).exists():
        rk.load_tokenizer(tokenizer)
        yield f"tokenizer {tokenizer}"


@app.command("notebooks", rich_help_panel=SET_UP)
def notebooks(
    folder: Annotated[
        Path, typer.Argument(help="Where to; `notebooks` and `params` are made in it.")
    ],
) -> None:
    """Copy the kit's notebooks and parameter files into a folder of your own.

    Existing files are kept. Then, in that folder: `jupyter lab`, papermill, or
    `rulerkit batch params/batches/demo.yaml`.
    """
    import shutil

    sources = {
        source.relative_to(root): source
        for root in (*plugin_projects(), KIT)
        for kind in FOLDERS
        for source in sorted(root.glob(f"{kind}/**/[!.]*.*"))
    }
    copied = there = 0
    try:
        for inside, source in sources.items():
            target = folder / inside
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


@app.command("generate", rich_help_panel=SET_UP)
def generate(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="The JSONL file; for several cells, or where it is a folder, upstream's tree "
            "in it.",
        ),
    ],
    model: OneModel = None,
    tasks: Tasks = None,
    lengths: Lengths = None,
    num_examples: NumExamples = None,
    files: Files = None,
    settings: Settings = None,
) -> None:
    """Write examples as upstream's JSONL: index, input, outputs, length, answer_prefix, and more.

    No model is needed: a tokenizer is enough, given by -y 'tokenizer: NAME'. With MODEL, its
    tokenizer and template are used; with neither, the built-in tokenizer and plain text.

    Example: rulerkit generate Qwen/Qwen2.5-7B --tasks all --lengths 4K,32K -n 500 -o data
    """
    from rulerkit.store.other_formats import write_grid

    given = Given(model, tasks, lengths, num_examples, files, settings)
    study = given.study("perfect", (*EXAMPLES, "num_examples"))
    described = one_model(study)
    form = rk.load_model(described).prompt_format
    cells = [
        rk.generate(task, tokens, study.num_examples, study.seed, form)
        for tokens in study.lengths
        for task in study.tasks
    ]

    paths = [output]
    if len(cells) > 1 or output.is_dir():
        paths = [output / f"{cell.length}/data/{cell.task.name}/validation.jsonl" for cell in cells]
    write_grid(cells, paths)
    echo(f"{len(cells)} x {study.num_examples} examples: {output}")

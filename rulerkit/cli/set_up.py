"""Commands that set up: the paper's texts, notebooks of one's own, files of examples."""

from pathlib import Path
from typing import Annotated

import typer

import rulerkit as rk
from rulerkit.cli.app import SET_UP, app
from rulerkit.cli.given import EXAMPLES, one_model, study_of
from rulerkit.cli.options import Files, Lengths, NumExamples, OneModel, Settings, Tasks
from rulerkit.cli.printing import echo
from rulerkit.common.errors import UserError
from rulerkit.common.paths import cache_dir, roots
from rulerkit.common.project import FOLDERS


@app.command("fetch", rich_help_panel=SET_UP)
def fetch() -> None:
    """Download the paper's texts from their owners' addresses: essays, SQuAD, HotpotQA.

    A model comes with `hf download ORG/NAME`.
    """
    from rulerkit.cli import downloads

    fetched = downloads.fetch()
    echo(f"{len(fetched)} files in {cache_dir()}; `corpora: original` uses them")


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

    from rulerkit.store.files import disk

    # The kit's first: where a plug-in has a file of the same name, the plug-in's counts.
    sources = dict[Path, Path]()
    for root in reversed(roots()[1:]):
        files = [file for kind in FOLDERS for file in root.glob(f"{kind}/**/[!.]*.*")]
        for file in sorted(files):
            if file.is_file() and file.suffix != ".pyc":
                sources[folder / file.relative_to(root)] = file

    missing = [target for target in sources if not target.exists()]
    with disk(folder, "choose another folder"):
        for target in missing:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(sources[target], target)
    there = len(sources) - len(missing)
    echo(f"{len(missing)} files copied to {folder}, {there} were there before")


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
    from rulerkit.store.example_files import write_examples

    uses = (*EXAMPLES, "num_examples")
    first = {"model": "perfect"}
    study = study_of(model, tasks, lengths, num_examples, files, settings, first, uses)
    described = one_model(study)
    form = rk.load_model(described).prompt_format
    cells = [
        rk.generate(task, tokens, study.num_examples, study.seed, form)
        for tokens in study.lengths
        for task in study.tasks
    ]

    paths = [output]
    if len(cells) > 1 and output.suffix == ".jsonl":
        raise UserError(
            f"{output} would be one file, and {len(cells)} cells are asked for: give one of "
            "--tasks and one of --lengths, or a folder"
        )
    if len(cells) > 1 or output.is_dir():
        paths = [output / f"{cell.length}/data/{cell.task.name}/validation.jsonl" for cell in cells]
    write_examples(cells, paths)
    echo(f"{len(cells)} x {study.num_examples} examples: {output}")

"""The command that gets what runs need to a machine with a network, for those that have none."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from rulerkit.cli.options import Set, echo, settings_of


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
    from rulerkit.offline import fetch_all

    failed = False
    for state, line in fetch_all(*_asked(files or [], settings_of(settings))):
        echo(f"{state:8} {line}")
        failed |= state == "failed"
    if failed:
        raise typer.Exit(1)


def _asked(files: Iterable[Path], settings: dict[str, Any]) -> tuple[list[Any], str]:
    """All models of batch files and of parameter files, and the corpora, `original` if any file
    says so."""
    from rulerkit.batch import read_batch
    from rulerkit.paths import resolve_file
    from rulerkit.settings import read_yaml
    from rulerkit.studies import load_files, study

    paths = [resolve_file(file) for file in files]
    batches = [path for path in paths if {"notebooks", "together"} & read_yaml(path).keys()]
    models: list[Any] = []
    corpora = set()
    for batch in (read_batch(path, settings) for path in batches):
        models += batch.models
        corpora.add(batch.corpora)
    others = [path for path in paths if path not in batches]
    if others or not batches:
        asked = study(load_files(others) | settings)
        models += asked.models
        corpora.add(asked.corpora)
    return models, "original" if "original" in corpora else "builtin"

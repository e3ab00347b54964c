"""The page of a batch: what ran, the leaderboard, what changed since the last run of each model and
since a baseline, the answers behind the scores, executed notebooks with their figures."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.analysis.compare import Comparison, compare, find
from rulerkit.analysis.results import load
from rulerkit.batch.jobs import Batch
from rulerkit.batch.status import report, statuses
from rulerkit.common.errors import UserError
from rulerkit.common.escape import fill
from rulerkit.common.paths import package_text
from rulerkit.report.browser import browse
from rulerkit.report.comparison import difference_table
from rulerkit.scoring.summary import base_run
from rulerkit.store.files import write_whole

if TYPE_CHECKING:
    import pandas as pd


def write_page(batch: Batch, scores: "pd.DataFrame | None", leaderboard: str) -> Path:
    """Write the page of a batch into the folder of outputs: how far each step is, the leaderboard as
    HTML, the scores behind it (None where there are none), and what changed. It is written twice:
    as `pages/batches/RUN/BATCH.html`, which stays, and as `index.html`, which leads to the pages of
    all batches. Pages of answers go to `pages/`, notebooks become HTML beside themselves."""
    outputs, run = batch.study.outputs, batch.study.run
    answers = (
        None if scores is None else browse(scores).save(outputs / f"pages/{run}.html")
    )
    values: dict[str, Any] = {
        "answers": answers,
        "leaderboard": leaderboard,
        "name": f"{run}: {batch.path.stem}",
        "steps": report(statuses(batch.jobs)),
        "changes": [*_changes(batch)],
        "notebooks": [*_notebooks(outputs, run)],
    }
    for file in (
        outputs / f"pages/batches/{run}/{batch.path.stem}.html",
        outputs / "index.html",
    ):
        newest_first = sorted(
            outputs.glob("pages/batches/*/*.html"), key=_time, reverse=True
        )
        values |= {
            "here": file.parent,
            "relative": os.path.relpath,
            "batches": newest_first,
        }
        write_whole(file, fill(package_text("batch.html"), **values))
    return file


def _changes(batch: Batch) -> Iterator[tuple[str, str, Comparison | str, str, Path]]:
    """Each model against its last other run, and against the baseline of the batch: its name, that
    of the other side, their comparison or why there is none, the differences as HTML, and the page
    of the answers whose score changed."""
    outputs, run, named = batch.study.outputs, batch.study.run, batch.keys.baseline
    predictions = outputs / "predictions"
    for model in (model["name"] for model in batch.models):
        if not (predictions / run / model).exists():
            continue  # it failed, as its step says
        others = [
            folder
            for folder in predictions.glob(f"*/{model}")
            if base_run(folder.parent.name) == folder.parent.name != run
        ]
        sides: dict[str, Any] = {}
        if others:
            last = max(others, key=_newest_answer)
            sides[last.parent.name] = last
        if named:
            cells = find(named, outputs)
            cells = [cell for cell in cells if cell.model == model] or cells
            if not others or last not in cells[0].path.parents:
                sides[named] = cells
        for number, (name, before) in enumerate(sides.items()):
            page = outputs / "pages" / f"{run}-{model}-changes{number or ''}.html"
            try:
                result = compare(before, predictions / run / model, batch.keys.margin)
            except UserError as error:
                yield model, name, str(error), "", page
                continue
            flips, keys = result.flips, ["task", "length", "index"]
            if len(flips):
                places = {
                    cell.path for side in (result.a, result.b) for cell in side.cells
                }
                browse(load(*places).merge(flips[keys], on=keys)).save(page)
            yield model, name, result, difference_table(result, "html"), page


def _newest_answer(folder: Path) -> float:
    return max(map(_time, folder.rglob("*.jsonl")), default=0.0)


def _time(file: Path) -> float:
    return file.stat().st_mtime


def _notebooks(outputs: Path, run: str) -> Iterator[tuple[str, list[Path], list[Path]]]:
    """Each notebook's name, its executions as HTML, and its figures; an execution that did not
    change is not converted again."""
    executed = (outputs / "notebooks" / run).rglob("[!.]*.ipynb")
    files = sorted(executed, key=lambda file: (file.stem, file))
    for name, group in groupby(files, lambda file: file.stem):
        pages = []
        for file in group:
            page = file.with_suffix(".html")
            if not page.exists() or _time(page) < _time(file):
                with suppress(
                    ValueError
                ):  # half a notebook, where its run was interrupted
                    _convert(file, page)
            pages.append(page if page.exists() else file)
        yield name, pages, sorted((outputs / "figures" / run / name).rglob("*.png"))


def _convert(notebook: Path, page: Path) -> None:
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # as for papermill
    from nbconvert import HTMLExporter

    exporter: Any = HTMLExporter(embed_images=True)  # type: ignore[no-untyped-call]
    write_whole(page, exporter.from_filename(str(notebook))[0])

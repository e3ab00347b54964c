"""The page of a batch, `outputs/index.html`: what ran, the leaderboard, what changed since the last
run of each model and since a baseline, the answers behind the scores, executed notebooks with their
figures."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.batch import Batch
from rulerkit.batch.status import report, statuses
from rulerkit.browser import browse
from rulerkit.compare import WORSE, Comparison, compare, difference_table, find
from rulerkit.errors import UserError
from rulerkit.escape import html
from rulerkit.results import load
from rulerkit.store import write_whole
from rulerkit.summary import base_run

if TYPE_CHECKING:
    import pandas as pd

_STYLE = """
:root {color-scheme: light dark} body {font: 15px/1.5 system-ui, sans-serif; max-width: 76em; margin: 1.5em auto; padding: 0 1em}
h1 {font-size: 1.4em} h2 {font-size: 1.1em; margin-top: 1.8em} pre {white-space: pre-wrap; font: 13px/1.45 ui-monospace, monospace}
.worse {color: #c03000; font-weight: 600} @media (prefers-color-scheme: dark) {.worse {color: #ff8a5c}}
figure {display: inline-block; margin: .5em 1em .5em 0; vertical-align: top} figure img {max-width: 34em; background: #fff}
figcaption {font-size: .85em; opacity: .8}
"""
_MOST_FLIPS = 12  # examples that the page links one by one


def write_page(batch: Batch, scores: "pd.DataFrame | None", leaderboard: str) -> Path:
    """Write `index.html` into the folder of outputs: how far each step of a batch is, the leaderboard
    as text, the scores behind it (None where there are none), and what changed. Pages of answers go
    to `pages/`, notebooks become HTML beside themselves."""
    outputs, run = batch.study.outputs, batch.study.run
    steps = "\n".join(report(statuses(batch.jobs)))
    parts = [
        f"<h1>{html(run)}</h1><h2>What ran</h2><pre>{html(steps)}</pre>",
        f"<h2>Leaderboard</h2><pre>{html(leaderboard)}</pre>",
    ]
    if scores is not None:
        page = browse(scores).save(outputs / "pages" / f"{run}.html")
        parts.append(f"<p>{_link(outputs, page, 'The answers behind the scores')}</p>")
    parts += [*_changes(batch), *_notebooks(outputs, run)]
    head = f'<meta charset="utf-8"><title>{html(run)}</title><style>{_STYLE}</style>'
    file = outputs / "index.html"
    write_whole(file, f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}\n")
    return file


def _changes(batch: Batch) -> Iterator[str]:
    """Each model against its last other run, and against the baseline of the batch."""
    outputs, run, named = batch.study.outputs, batch.study.run, batch.keys.baseline
    predictions = outputs / "predictions"
    for model in (model["name"] for model in batch.models):
        sides: dict[str, Any] = {}
        for last in sorted(predictions.glob(f"*/{model}"), key=_last_change):
            if base_run(last.parent.name) == last.parent.name != run:
                sides = {last.parent.name: last}
        if named:
            cells = find(named, outputs)
            sides[named] = [cell for cell in cells if cell.model == model] or cells
        for number, (name, before) in enumerate(sides.items()):
            yield f"<h2>{html(model)} since {html(name)}</h2>"
            try:
                comparison = compare(before, predictions / run / model, batch.keys.margin)
            except UserError as error:
                yield f"<p>Not comparable: {html(str(error))}</p>"
                continue
            verdict = comparison.verdict
            kind = ' class="worse"' if verdict.word == WORSE else ""
            yield f"<p{kind}>{html(verdict.text)}.</p>"
            if len(comparison.flips):
                page = outputs / "pages" / f"{run}-{model}-changes{number or ''}.html"
                yield from _flips(outputs, comparison, page)
            table = f"<pre>{html(difference_table(comparison))}</pre>"
            yield f"<details><summary>Differences by task and length</summary>{table}</details>"


def _last_change(folder: Path) -> float:
    return max((file.stat().st_mtime for file in folder.rglob("*.jsonl")), default=0.0)


def _flips(outputs: Path, comparison: Comparison, page: Path) -> Iterator[str]:
    """A page of the examples whose score changed, of both sides, with links to those that lost
    most."""
    flips = comparison.flips.sort_values("difference", kind="stable")
    keys = ["task", "length", "index"]
    places = {cell.path for side in (comparison.a, comparison.b) for cell in side.cells}
    browse(load(*places).merge(flips[keys], on=keys)).save(page)
    yield f"<p>{_link(outputs, page, f'{len(flips)} answers changed their score')}: "
    links = []
    for flip in flips.head(_MOST_FLIPS).to_dict("records"):
        place = "/".join(str(flip[key]) for key in keys)
        text = f"{place} ({flip['difference']:+.0f} points)"
        links.append(_link(outputs, page, text, f"#{place}"))
    yield ", ".join(links) + "</p>"


def _notebooks(outputs: Path, run: str) -> Iterator[str]:
    """Executed notebooks as HTML, each with its figures; one that did not change is not converted
    again."""
    executed = (outputs / "notebooks" / run).rglob("[!.]*.ipynb")
    for name, files in groupby(
        sorted(executed, key=lambda file: (file.stem, file)), lambda file: file.stem
    ):
        yield f"<h2>{html(name)}</h2><p>Notebooks: "
        for file in files:
            page = file.with_suffix(".html")
            if not page.exists() or page.stat().st_mtime < file.stat().st_mtime:
                with suppress(ValueError):  # half a notebook, where its run was interrupted
                    _convert(file, page)
            yield _link(outputs, page if page.exists() else file, file.parent.name) + " "
        yield "</p>"
        for figure in sorted((outputs / "figures" / run / name).rglob("*.png")):
            source, title = html(os.path.relpath(figure, outputs)), html(figure.stem)
            image = f'<img src="{source}" alt="{title}" loading="lazy">'
            yield f"<figure>{image}<figcaption>{title}</figcaption></figure>"


def _convert(notebook: Path, page: Path) -> None:
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # as for papermill
    from nbconvert import HTMLExporter

    exporter: Any = HTMLExporter(embed_images=True)  # type: ignore[no-untyped-call]
    write_whole(page, exporter.from_filename(str(notebook))[0])


def _link(outputs: Path, page: Path, text: str, anchor: str = "") -> str:
    return f'<a href="{html(os.path.relpath(page, outputs) + anchor)}">{html(text)}</a>'

"""The page of a batch, `outputs/index.html`: what ran, the leaderboard, what changed since the last
run of each model, the answers behind the scores, figures and executed notebooks."""

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.browser import browse
from rulerkit.compare import Comparison, compare, difference_table, flips_text
from rulerkit.errors import UserError
from rulerkit.escape import html
from rulerkit.results import load
from rulerkit.store import Cell, write_whole

if TYPE_CHECKING:
    import pandas as pd

_STYLE = """
:root {color-scheme: light dark} body {font: 15px/1.5 system-ui, sans-serif; max-width: 76em; margin: 1.5em auto; padding: 0 1em}
h1 {font-size: 1.4em} h2 {font-size: 1.1em; margin-top: 1.8em} pre {white-space: pre-wrap; font: 13px/1.45 ui-monospace, monospace}
.worse {color: #c03000; font-weight: 600} @media (prefers-color-scheme: dark) {.worse {color: #ff8a5c}}
figure {display: inline-block; margin: .5em 1em .5em 0; vertical-align: top} figure img {max-width: 34em; background: #fff}
figcaption {font-size: .85em; opacity: .8}
"""


def write_page(
    outputs: Path, run: str, cells: Sequence[Cell], scores: "pd.DataFrame", leaderboard: str
) -> Path:
    """Write `index.html` into the folder of outputs, about one run: the cells that its batch asked
    for, their scores, and the leaderboard as text. Pages of answers go to `pages/`, notebooks
    become HTML beside themselves."""
    page = browse(scores).save(_pages(outputs) / f"{run}.html")
    parts = [
        f"<h1>{html(run)}</h1>",
        *_progress(cells),
        *("<h2>Leaderboard</h2>", _pre(leaderboard)),
        f"<p>{_link(outputs, page, 'The answers behind the scores')}</p>",
        *_changes(outputs, run, cells),
        *_figures(outputs, run),
        *_notebooks(outputs, run),
    ]
    head = f'<meta charset="utf-8"><title>{html(run)}</title><style>{_STYLE}</style>'
    file = outputs / "index.html"
    write_whole(file, f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}\n")
    return file


def _progress(cells: Iterable[Cell]) -> Iterator[str]:
    """How much of what was asked each model has answered."""
    models: dict[str, list[Cell]] = {}
    for cell in cells:
        models.setdefault(cell.model, []).append(cell)
    yield "<h2>What ran</h2><ul>"
    for model, asked in models.items():
        have, wanted = sum(len(c.present) for c in asked), sum(c.wanted for c in asked)
        failed = sum(len(cell.failures) for cell in asked)
        failures = f", {failed} requests failed" if failed else ""
        yield f"<li>{html(model)}: {have} of {wanted} examples in {len(asked)} cells{failures}</li>"
    yield "</ul>"


def _changes(outputs: Path, run: str, cells: Sequence[Cell]) -> Iterator[str]:
    """Each model against its last other run on the same prompts."""
    for model in dict.fromkeys(cell.model for cell in cells):
        here = outputs / "predictions" / run / model
        others = [path for path in here.parent.parent.glob(f"*/{model}") if path != here]
        if not others:
            continue
        before = max(others, key=_last_change)
        yield f"<h2>{html(model)} since {html(before.parent.name)}</h2>"
        try:
            comparison = compare(before, here)
        except UserError as error:
            yield f"<p>Not comparable: {html(str(error))}</p>"
            continue
        verdict = comparison.verdict
        kind = ' class="worse"' if verdict.word == "worse" else ""
        yield f"<p{kind}>{html(verdict.text)}.</p>"
        if len(comparison.flips):
            page = _flips_page(outputs, comparison, f"{run}-{model}-changes.html")
            link = _link(outputs, page, f"{len(comparison.flips)} answers changed their score")
            yield f"<p>{link}</p>"
        table = difference_table(comparison) + "\n" + flips_text(comparison)
        yield f"<details><summary>Differences by task and length</summary>{_pre(table)}</details>"


def _last_change(folder: Path) -> float:
    return max((file.stat().st_mtime for file in folder.rglob("*.jsonl")), default=0.0)


def _flips_page(outputs: Path, comparison: Comparison, name: str) -> Path:
    """A page of the examples whose score changed, of both sides."""
    places = {cell.path for side in (comparison.a, comparison.b) for cell in side.cells}
    keys = ["task", "length", "index"]
    results = load(*places)
    return browse(results.merge(comparison.flips[keys], on=keys)).save(_pages(outputs) / name)


def _figures(outputs: Path, run: str) -> Iterator[str]:
    files = sorted((outputs / "figures" / run).rglob("*.png"))
    if files:
        yield "<h2>Figures</h2>"
    for file in files:
        name = html(f"{file.parent.name}: {file.stem}")
        source = html(os.path.relpath(file, outputs))
        yield f'<figure><img src="{source}" alt="{name}"><figcaption>{name}</figcaption></figure>'


def _notebooks(outputs: Path, run: str) -> Iterator[str]:
    """Executed notebooks as HTML; one that did not change is not converted again."""
    files = sorted((outputs / "notebooks" / run).rglob("[!.]*.ipynb"))
    if files:
        yield "<h2>Notebooks</h2><ul>"
    for file in files:
        page = file.with_suffix(".html")
        if not page.exists() or page.stat().st_mtime < file.stat().st_mtime:
            _convert(file, page)
        yield f"<li>{_link(outputs, page, f'{file.parent.name}: {file.stem}')}</li>"
    yield "</ul>" * bool(files)


def _convert(notebook: Path, page: Path) -> None:
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]  # as for papermill
    from nbconvert import HTMLExporter

    exporter: Any = HTMLExporter(embed_images=True)  # type: ignore[no-untyped-call]
    write_whole(page, exporter.from_filename(str(notebook))[0])


def _pages(outputs: Path) -> Path:
    folder = outputs / "pages"
    folder.mkdir(exist_ok=True)
    return folder


def _link(outputs: Path, page: Path, text: str) -> str:
    return f'<a href="{html(os.path.relpath(page, outputs))}">{html(text)}</a>'


def _pre(text: str) -> str:
    return f"<pre>{html(text)}</pre>"

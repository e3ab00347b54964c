"""What a batch shows in the morning: the parts of notebooks/leaderboard.ipynb, which is executed as
the last job of a batch and written as HTML."""

import os
import sys
from base64 import b64encode
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.analysis.compare import compare
from rulerkit.analysis.results import load
from rulerkit.batch.batch_file import Batch, read_batch
from rulerkit.batch.status import details, statuses
from rulerkit.common import escape
from rulerkit.common.errors import UserError, listed, remark
from rulerkit.common.paths import resolve_file
from rulerkit.common.settings import JSON
from rulerkit.evaluation.notebook import first_heading
from rulerkit.report.browser import browse
from rulerkit.report.comparison import difference_table
from rulerkit.report.tables import footnotes, table_text
from rulerkit.report.view import Html
from rulerkit.scoring.scores import score
from rulerkit.scoring.summary import of_one_suite, summarize
from rulerkit.store.cells import Cell, read_cells, readable
from rulerkit.store.comparable import check_same
from rulerkit.store.files import write_whole
from rulerkit.store.places import base_run

if TYPE_CHECKING:
    import pandas as pd

# What needs a look comes first, in red; then what is not up to date.
_WRONG = ("failed", "incomplete", "interrupted")
_OPEN = ("outdated", "missing", "queued", "waiting", "running")
_RED, _AMBER = "color: #c03000; font-weight: 600", "color: #9a6700; font-weight: 600"


def page(batch: str, settings: JSON | None = None) -> Html:
    """How far a batch is, its leaderboard, what changed, and its figures; `settings` are what `-y`
    gave. Without a batch file there is nothing to show."""
    if not batch:
        return Html("<p>No batch file is named.</p>")
    read = read_batch(resolve_file(batch), settings)
    parts = {
        "Steps": steps(read),
        "Leaderboard": leaderboard(read),
        "What changed": changes(read),
        "Figures": figures(read),
    }
    return Html("".join(f"<h3>{title}</h3>{part.text}" for title, part in parts.items()))


def steps(batch: Batch) -> Html:
    """Date and time, and how far each job of a batch is: failures first, then what is missing or
    out of date, such as a checkpoint that was replaced after it answered."""
    now = datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M %Z")
    # What this notebook is made for runs at the moment.
    found = [one for one in statuses(batch.jobs) if not (one.job.run and one.job.run.is_page)]
    order = [*_WRONG, *_OPEN, "done"]
    rows = []
    for status in sorted(found, key=lambda one: order.index(one.state)):
        style = _RED if status.state in _WRONG else _AMBER if status.state in _OPEN else ""
        said = details(status) if status.job.model or status.state != "done" else ""
        left = 'style="text-align: left"'
        rows.append(
            f'<tr><td style="{style}">{status.state}</td><td {left}>{status.job.title}</td>'
            f"<td {left}>{escape.html(said)}</td></tr>"
        )
    wrong = sum(status.state in _WRONG for status in found)
    open_ones = sum(status.state in _OPEN for status in found)
    verdict = f"{wrong} of {len(found)} steps failed" if wrong else "nothing failed"
    if open_ones:
        verdict += f", {open_ones} open"
    return Html(
        f"<p><b>{now}</b>: batch {escape.html(batch.path.stem)}, run "
        f"{escape.html(batch.study.run)}; {verdict}.</p><table>{''.join(rows)}</table>"
    )


def leaderboard(batch: Batch) -> Html:
    """The leaderboard of a batch, or why there is none, and a page of the answers behind it."""
    try:
        cells, scores = answered(batch)
    except UserError as error:
        return Html(f"<p>No leaderboard: {escape.html(str(error))}</p>")
    if not cells:
        return Html("<p>No answer yet.</p>")
    file = browse(scores).save(answers_page(batch))
    link = f"../../../pages/{file.name}"
    return Html(
        f"{_table(batch, cells, scores, 'html')}"
        f'<p><a href="{link}">The answers behind the scores</a></p>'
    )


def answers_page(batch: Batch) -> Path:
    """The page of the answers behind the leaderboard of a batch."""
    return batch.study.outputs / f"pages/{batch.study.run}.html"


def leaderboard_text(batch: Batch) -> str:
    """The leaderboard of a batch for a terminal. Raises `UserError` where its cells cannot share a
    table."""
    cells, scores = answered(batch)
    return _table(batch, cells, scores, "text") if cells else "no answer yet"


def answered(batch: Batch) -> "tuple[list[Cell], pd.DataFrame]":
    """The cells that the notebooks of a batch read and that have an answer, models in the order of
    the batch, and their scores. Raises `UserError` where they cannot share a table."""
    study = batch.study
    needs = {need.path: need for job in batch.jobs if job.model for need in job.needs()}
    # The tasks of the batch's study first; where none of them is asked, all others.
    asked = {need.task for need in needs.values()}
    tasks = {task.name for task in study.tasks} & asked or asked
    order = [described["name"] for described in batch.models]
    cells = [
        cell
        for folder in study.folders
        if folder.is_dir()
        for cell in readable(read_cells(folder), remark)
        if cell.path in needs and cell.task in tasks and cell.length in study.lengths and cell.rows
    ]
    cells.sort(key=lambda cell: order.index(cell.model))
    check_same(cells)
    scores = score(cells)
    if not cells:
        return cells, scores
    # An earlier batch may have stored more examples than this one asks for.
    wanted = scores["path"].map({str(path): need.wanted for path, need in needs.items()})
    scores = scores.assign(wanted=wanted)[scores["index"] < wanted]
    # Of several suites one has the means, and so one table.
    return cells, of_one_suite(scores)


def _table(batch: Batch, cells: list[Cell], scores: "pd.DataFrame", format: str) -> str:
    found = set(scores["task"])
    tasks = [task.name for task in batch.study.tasks if task.name in found]
    summary = summarize(scores, tasks or None, batch.study.lengths)
    notes = footnotes(cells, scores)
    changed = [job.name for job in batch.jobs if job.model and job.changed]
    if changed:
        notes.append(
            f"Answers of an earlier checkpoint or of other settings: {listed(changed, 5)}."
        )
    return table_text(summary, format, notes=notes, in_order=True)


def changes(batch: Batch) -> Html:
    """Each model against its last other run, in the order of the batch: the verdict, a loss in red,
    the differences, and a page of the answers that changed their score."""
    parts = []
    for described in batch.models:
        model = described["name"]
        answers = batch.study.predictions / model
        before = _last_run(batch, model)
        if before is None or not answers.exists():
            continue
        name = before.parent.name
        title = f"<h4>{escape.html(model)} since {escape.html(name)}</h4>"
        try:
            found = compare(before, answers)
        except UserError as error:
            parts.append(f"{title}<p>Not comparable: {escape.html(str(error))}</p>")
            continue
        style = f' style="{_RED}"' if found.verdict.word == "worse" else ""
        parts.append(f"{title}<p{style}>{escape.html(found.verdict.text)}</p>")
        if not found.flips.empty:
            page = f"pages/{batch.study.run}-{model}-since-{name}.html"
            files = {cell.path for side in (found.a, found.b) for cell in side.cells}
            shown = load(*files).merge(found.flips[["task", "length", "index"]])
            browse(shown).save(batch.study.outputs / page)
            link = escape.html(f"../../../{page}")
            parts.append(
                f'<p><a href="{link}">{len(found.flips)} answers changed their score</a></p>'
            )
        parts.append(
            "<details><summary>Differences by task and length</summary>"
            f"{difference_table(found, 'html')}</details>"
        )
    return Html("".join(parts) or "<p>No earlier run of these models to compare with.</p>")


def _last_run(batch: Batch, model: str) -> Path | None:
    """The answers of a model in the run before this one, if any; repetitions of a run are no runs
    of their own."""
    run = batch.study.run
    others = [
        folder
        for folder in (batch.study.outputs / "predictions").glob(f"*/{model}")
        if folder.parent.name != run and base_run(folder.parent.name) == folder.parent.name
    ]

    def newest_answer(folder: Path) -> float:
        return max((file.stat().st_mtime for file in folder.rglob("*.jsonl")), default=0.0)

    return max(others, key=newest_answer, default=None)


def figures(batch: Batch) -> Html:
    """The figures that the notebooks of a batch have drawn, those over all models first, each with
    what it shows in words: the question of its notebook and the models."""
    parts = []
    notebooks = {job.run.notebook.stem: job.run.notebook for job in batch.jobs if job.run}
    for name, notebook in notebooks.items():
        question = first_heading(notebook)
        folder = batch.study.outputs / "figures" / batch.study.run / name
        for file in sorted(folder.rglob("*.png"), key=lambda file: ("+" not in file.stem, file)):
            picture = b64encode(file.read_bytes()).decode()
            caption = escape.html(f"{question} {_shown_in(file.stem, batch.models)}".strip())
            parts.append(
                f'<figure><img style="max-width: 60em" src="data:image/png;base64,{picture}" '
                f'alt="{escape.html(file.stem)}"><figcaption>{caption}</figcaption></figure>'
            )
    return Html("".join(parts) or "<p>No figure was drawn.</p>")


def _shown_in(name: str, models: list[JSON]) -> str:
    """The models and the part of the result after which a figure is named, in words: of
    `reader-8192-tasks` the label of reader-8192, and `tasks`."""
    labels = {each["name"]: str(each.get("label") or each["name"]) for each in models}
    shown, part = list[str](), ""
    for named in name.split("+"):
        owners = [model for model in labels if f"{named}-".startswith(f"{model}-")]
        if owners:
            # It belongs to reader-8192, also where there is a model `reader`.
            owner = max(owners, key=len)
            shown.append(labels[owner])
            part = named.removeprefix(owner).removeprefix("-")
    words = f"By {part}: " if part else ""
    return f"{words}{', '.join(shown)}." if shown else ""


def as_html(notebook: Path) -> Path:
    """An executed notebook as HTML beside it, which loads nothing from the network; the notebook
    itself where it cannot be converted."""
    page = notebook.with_suffix(".html")
    # Half a notebook, where its run was interrupted, cannot be read.
    with suppress(ValueError, FileNotFoundError):
        # Optional for jsonschema, and half of its start-up time.
        sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
        from jinja2 import DictLoader
        from nbconvert import HTMLExporter

        exporter: Any = HTMLExporter(  # type: ignore[no-untyped-call]
            embed_images=True,
            exclude_input=True,
            extra_loaders=[DictLoader({"page.html.j2": _WITHOUT_SCRIPTS})],
            template_file="page.html.j2",
        )
        write_whole(page, exporter.from_filename(os.fspath(notebook))[0])
    return page if page.exists() else notebook


_WITHOUT_SCRIPTS = """\
{% extends "lab/index.html.j2" %}
{% block html_head_js_requirejs %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
"""

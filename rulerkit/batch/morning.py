"""What a batch shows in the morning: the parts of notebooks/leaderboard.ipynb, which is executed as
the last job of a batch and written as HTML."""

import os
import re
import sys
from base64 import b64encode
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.batch.batch_file import Batch, read_batch
from rulerkit.batch.status import OPEN, WRONG, details, in_order, statuses
from rulerkit.common import escape
from rulerkit.common.errors import UserError, listed
from rulerkit.common.paths import resolve_file
from rulerkit.common.settings import JSON
from rulerkit.report.browser import browse
from rulerkit.report.tables import footnotes, table_text
from rulerkit.report.view import Html
from rulerkit.scoring.scores import score
from rulerkit.scoring.summary import choose_suite, summarize, tally
from rulerkit.store.cells import Cell, load_cell
from rulerkit.store.comparable import check_same
from rulerkit.store.files import write_whole

if TYPE_CHECKING:
    import pandas as pd

_LEFT = "text-align: left"
_RED, _AMBER = "color: #c03000; font-weight: 600", "color: #9a6700; font-weight: 600"


def page(batch: str, settings: JSON | None = None) -> Html:
    """How far a batch is, its leaderboard with a page of the answers behind it, and its figures;
    `settings` are what `-y` gave. Without a batch file there is nothing to show."""
    if not batch:
        return Html("<p>No batch file is named.</p>")
    read = read_batch(resolve_file(batch), settings)
    try:
        board, scores = leaderboard(read, "html")
        if len(scores):
            file = browse(scores).save(answers_page(read))
            link = f"../../../pages/{file.name}"
            board += f'<p><a href="{link}">The answers behind the scores</a></p>'
    except UserError as error:
        board = f"<p>No leaderboard: {escape.html(str(error))}</p>"
    parts = {"Leaderboard": board, "Figures": figures(read)}
    below = [f"<h3>{title}</h3>{text}" for title, text in parts.items()]
    return Html("".join([steps(read), *below]))


def steps(batch: Batch) -> str:
    """Date and time, and how far each job of a batch is: failures first, then what is missing or
    out of date, such as a checkpoint that was replaced after it answered."""
    now = datetime.now().astimezone().strftime("%A, %d %B %Y, %H:%M %Z")
    # What this notebook is made for runs at the moment.
    found = [one for one in statuses(batch.jobs) if not one.job.is_page]
    rows = []
    for status in in_order(found):
        style = _RED if status.state in WRONG else _AMBER if status.state in OPEN else ""
        said = "" if status.job.notebook and status.state == "done" else details(status)
        rows.append(
            f'<tr><td style="{style}">{status.state}</td><td style="{_LEFT}">{status.job.title}'
            f'</td><td style="{_LEFT}">{escape.html(said)}</td></tr>'
        )
    wrong = sum(status.state in WRONG for status in found)
    open_ones = sum(status.state in OPEN for status in found)
    name, run = escape.html(batch.path.stem), escape.html(batch.study.run)
    return (
        f"<h2>{now}</h2><p>Batch {name}, run {run}: {wrong} of {len(found)} steps failed, "
        f"{open_ones} open.</p><table>{''.join(rows)}</table>"
    )


def leaderboard(batch: Batch, format: str) -> "tuple[str, pd.DataFrame]":
    """The leaderboard of a batch, models in its order, and the scores behind it. Raises `UserError`
    where its cells cannot share a table."""
    needs = [need for job in batch.jobs if job.model for need in job.needs()]
    # The tasks of the batch's study first; where none of them is asked, all others.
    asked = {need.task for need in needs}
    tasks = {task.name for task in batch.study.tasks} & asked or asked
    cells, wanted = list[Cell](), dict[str, int]()
    for need in needs:
        if need.have and need.task in tasks and need.length in batch.study.lengths:
            cell = load_cell(need.path)
            cells += [cell] if cell else []
            wanted[str(need.path)] = need.wanted
    check_same(cells)
    scores = score(cells)
    if not cells:
        return "no answer yet", scores

    # An earlier batch may have stored more examples than this one asks for.
    scores = scores.assign(wanted=scores["path"].map(wanted))
    # Of several suites one has the means, and so one table.
    chosen = choose_suite(scores["suite"])
    scores = scores[(scores["index"] < scores["wanted"]) & (scores["suite"] == chosen)]
    found = set(scores["task"])
    order = [task.name for task in batch.study.tasks if task.name in found]
    tallies = tally(scores)
    summary = summarize(tallies, order or None, batch.study.lengths)
    notes = footnotes(cells, tallies)
    changed = [job.name for job in batch.jobs if job.model and job.changed()]
    if changed:
        notes.append(
            f"Answers of an earlier checkpoint or of other settings: {listed(changed, 5)}."
        )
    return table_text(summary, format, notes=notes, in_order=True), scores


def answers_page(batch: Batch) -> Path:
    """The page of the answers behind the leaderboard of a batch."""
    return batch.study.outputs / f"pages/{batch.study.run}.html"


def figures(batch: Batch) -> str:
    """The figures that the notebooks of a batch have drawn of its models, each with the caption
    saved beside it."""
    drawn: dict[Path, None] = {}
    for job in batch.jobs:
        name = job.step
        folder = batch.study.outputs / "figures" / batch.study.run / name
        # Figures of other nights lie there too: those of this batch are named after its models,
        # but for notebooks that ask none.
        titles = [study.title for study in job.studies if study.notebook == name] or [""]
        for file in sorted(folder.rglob("*.png"), key=lambda file: file.stem):
            if any(not title or f"{file.stem}-".startswith(f"{title}-") for title in titles):
                drawn[file] = None

    parts = []
    for file in drawn:
        saved = file.with_suffix(".txt")
        caption = saved.read_text(encoding="utf-8") if saved.exists() else file.stem
        picture = b64encode(file.read_bytes()).decode()
        parts.append(
            f'<figure><img style="max-width: 60em" src="data:image/png;base64,{picture}" '
            f'alt="{escape.html(file.stem)}"><figcaption>{escape.html(caption.strip())}'
            "</figcaption></figure>"
        )
    return "".join(parts) or "<p>No figure was drawn.</p>"


def as_html(notebook: Path) -> Path:
    """An executed notebook as HTML beside it, which loads nothing from the network, without the
    cells tagged `about`: in the morning the date comes first. The notebook itself where it cannot
    be converted."""
    page = notebook.with_suffix(".html")
    if page.exists() and page.stat().st_mtime >= notebook.stat().st_mtime:
        return page
    # Half a notebook, where its run was interrupted, cannot be read.
    with suppress(ValueError, FileNotFoundError):
        # Optional for jsonschema, and half of its start-up time.
        sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
        from nbconvert import HTMLExporter
        from traitlets.config import Config

        exporter: Any = HTMLExporter(  # type: ignore[no-untyped-call]
            embed_images=True,
            exclude_input=True,
            exclude_output_prompt=True,
            config=Config({"TagRemovePreprocessor": {"remove_cell_tags": ["about"]}}),
        )
        text = exporter.from_filename(os.fspath(notebook))[0]
        # Those of nbconvert come from the network.
        write_whole(page, re.sub("<script.*?</script>", "", text, flags=re.DOTALL))
    return page if page.exists() else notebook

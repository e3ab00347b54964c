"""The page of a batch: the leaderboard, what changed since the last run of each model and since a
baseline, the answers behind the scores, executed notebooks with their figures, and what ran."""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.analysis.compare import Comparison, compare
from rulerkit.analysis.results import load
from rulerkit.batch.batch_file import Batch
from rulerkit.batch.status import report, statuses
from rulerkit.common.errors import UserError, counted, listed
from rulerkit.common.escape import fill
from rulerkit.common.lengths import length_name
from rulerkit.common.paths import package_text
from rulerkit.report.browser import browse
from rulerkit.report.comparison import difference_table
from rulerkit.store.files import write_whole
from rulerkit.store.places import base_run, find_cells

if TYPE_CHECKING:
    import pandas as pd


class Change(NamedTuple):
    """A model against an earlier run, or against the baseline of the batch."""

    model: str
    other: str
    """The name of the other side."""
    comparison: Comparison | str
    """What was found, or why there is nothing to compare."""
    table: str
    """The differences as HTML."""
    page: Path
    """The answers whose score changed; written where there are some."""


def write_page(batch: Batch, scores: "pd.DataFrame | None", leaderboard: str) -> Path:
    """Write the page of a batch into the folder of outputs: how far each step is, the leaderboard
    as HTML, the scores behind it (None where there are none), and what changed.

    It is written twice: as `pages/batches/RUN/BATCH.html`, which stays, and as `index.html`, which
    leads to the pages of all batches. Pages of answers go to `pages/`, notebooks become HTML beside
    themselves.
    """
    outputs, run = batch.study.outputs, batch.study.run
    answers = None
    # The lowest mean comes first: whoever opens the page looks for what went wrong.
    models = [described["name"] for described in batch.models]
    if scores is not None:
        answers = browse(scores).save(outputs / f"pages/{run}.html")
        means = scores.groupby("model")["score"].mean()
        models.sort(key=lambda name: means.get(name, -1.0))
    changes = sorted(_changes(batch, models), key=_loss)
    values: dict[str, Any] = {
        "answers": answers,
        "leaderboard": leaderboard,
        "title": _title(batch, scores),
        "run": run,
        "batch": batch.path.name,
        "steps": [
            step.replace(f"{outputs.parent}{os.sep}", "") for step in report(statuses(batch.jobs))
        ],
        "changes": changes,
        "notebooks": sorted(
            _notebooks(outputs, run, models),
            # what compares all models stands first
            key=lambda notebook: notebook[0] not in _names(batch.keys.together),
        ),
    }

    # The page that stays comes first, so that the index lists it too.
    own = outputs / f"pages/batches/{run}/{batch.path.stem}.html"
    index = outputs / "index.html"
    for file in (own, index):
        pages = outputs.glob("pages/batches/*/*.html")
        places = {
            "here": file.parent,
            "relative": os.path.relpath,
            "batches": sorted(pages, key=_time, reverse=True),
        }
        write_whole(file, fill(package_text("batch.html"), **values, **places))
    return index


def _title(batch: Batch, scores: "pd.DataFrame | None") -> str:
    """What was measured: models, tasks and lengths."""
    labels = [str(described.get("label") or described["name"]) for described in batch.models]
    title = listed(labels, 3)
    if scores is None:
        return title
    tasks, lengths = scores["task"].unique(), sorted(scores["length"].unique())
    what = counted(len(tasks), "task") if len(tasks) > 1 else tasks[0]
    ends = dict.fromkeys([lengths[0], lengths[-1]])
    return f"{title}: {what} at {' to '.join(map(length_name, ends))}"


def _names(entries: Sequence[Any]) -> list[str]:
    """The names of notebooks in a batch file, where each is a name or a mapping."""
    return [
        Path(str(entry["notebook"] if isinstance(entry, dict) else entry)).stem for entry in entries
    ]


def _loss(change: Change) -> float:
    """The key by which changes are sorted: the largest loss first, what has no comparison last."""
    if isinstance(change.comparison, str):
        return math.inf
    return float(change.comparison.rows["difference"].iloc[-1])


def _changes(batch: Batch, models: Sequence[str]) -> Iterator[Change]:
    """Each model against its last other run, and against the baseline of the batch."""
    outputs, run = batch.study.outputs, batch.study.run
    for model in models:
        answers = outputs / "predictions" / run / model
        if not answers.exists():
            continue  # it failed, as its step says
        for number, (name, before) in enumerate(_sides(batch, model).items()):
            page = outputs / "pages" / f"{run}-{model}-changes{number or ''}.html"
            try:
                found = compare(before, answers, batch.keys.margin)
            except UserError as error:
                yield Change(model, name, str(error), "", page)
                continue
            _write_flips(found, page)
            yield Change(model, name, found, difference_table(found, "html"), page)


def _sides(batch: Batch, model: str) -> dict[str, Any]:
    """What a model is compared with, by name: the folder of its last other run, and the cells of
    the baseline."""
    outputs, run, baseline = (batch.study.outputs, batch.study.run, batch.keys.baseline)
    sides: dict[str, Any] = {}

    # Repetitions of a run are no runs of their own.
    others = [
        folder
        for folder in (outputs / "predictions").glob(f"*/{model}")
        if folder.parent.name != run and base_run(folder.parent.name) == folder.parent.name
    ]
    last = max(others, key=_newest_answer, default=None)
    if last:
        sides[last.parent.name] = last

    if baseline:
        cells = find_cells([baseline], outputs=outputs, scan=True)
        of_model = [cell for cell in cells if cell.model == model]
        cells = of_model or cells
        is_shown_already = last and last in cells[0].path.parents
        if not is_shown_already:
            sides[baseline] = cells
    return sides


def _write_flips(found: Comparison, page: Path) -> None:
    """The page of the answers whose score changed, of both sides."""
    if found.flips.empty:
        return
    files = {cell.path for side in (found.a, found.b) for cell in side.cells}
    keys = ["task", "length", "index"]
    browse(load(*files).merge(found.flips[keys], on=keys)).save(page)


def _newest_answer(folder: Path) -> float:
    return max(map(_time, folder.rglob("*.jsonl")), default=0.0)


def _time(file: Path) -> float:
    return file.stat().st_mtime


def _notebooks(
    outputs: Path, run: str, models: Sequence[str]
) -> Iterator[tuple[str, list[Path], list[Path]]]:
    """Each notebook's name, its executions as HTML, and its figures: those of several models first,
    then in the order of `models`."""
    executed = (outputs / "notebooks" / run).rglob("[!.]*.ipynb")
    files = sorted(executed, key=lambda file: (file.stem, file))
    places = {name: i for i, name in enumerate(models)}
    for name, group in groupby(files, lambda file: file.stem):
        in_order = sorted(group, key=lambda file: places.get(file.parent.name, -1))
        figures = (outputs / "figures" / run / name).rglob("*.png")
        yield (
            name,
            [_page_of(file) for file in in_order],
            sorted(figures, key=lambda file: (_place(file.stem, models), file.stem)),
        )


def _place(figure: str, models: Sequence[str]) -> int:
    """The place of the model after which a figure is named; -1 where it is named after several, or
    after none."""
    owners = [name for name in models if figure == name or figure.startswith(f"{name}-")]
    # 'reader-8192-tasks' belongs to 'reader-8192', also where there is a model 'reader'
    return models.index(max(owners, key=len)) if owners else -1


def _page_of(executed: Path) -> Path:
    """An executed notebook as HTML; the notebook itself where it cannot be converted. One that did
    not change is not converted again."""
    page = executed.with_suffix(".html")
    if not page.exists() or _time(page) < _time(executed):
        # Half a notebook, where its run was interrupted, cannot be read.
        with suppress(ValueError):
            _convert(executed, page)
    return page if page.exists() else executed


_WITHOUT_SCRIPTS = """\
{% extends "lab/index.html.j2" %}
{% block html_head_js_requirejs %}{% endblock %}
{% block html_head_js_mathjax %}{% endblock %}
{% block html_head_js_mermaidjs %}{% endblock %}
"""


def _convert(notebook: Path, page: Path) -> None:
    # Optional for jsonschema, and half of its start-up time.
    sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
    from jinja2 import DictLoader
    from nbconvert import HTMLExporter

    # Without its scripts, a page loads nothing from the network; ours has no mathematics.
    template = {"page.html.j2": _WITHOUT_SCRIPTS}
    exporter: Any = HTMLExporter(  # type: ignore[no-untyped-call]
        embed_images=True, extra_loaders=[DictLoader(template)], template_file="page.html.j2"
    )
    write_whole(page, exporter.from_filename(str(notebook))[0])

"""From a number to the answers behind it: a page with a heatmap, the examples of a cell, and each
example with what was asked, what was written and where it stands in the prompt.

The page is one HTML file with its own script: it opens in a notebook, or from a file without a
network. It holds the windows of a prompt around needles, not the prompts.
"""

import html
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.analysis.depth import BINS, Position, bin_numbers, places
from rulerkit.analysis.remake import remaker
from rulerkit.analysis.results import answers_of
from rulerkit.common.errors import UserError, shorten
from rulerkit.common.paths import package_text
from rulerkit.common.progress import progress_bar
from rulerkit.generation.tasks import in_order
from rulerkit.report.tables.notes import names_of, remarks
from rulerkit.scoring.scores import as_scores
from rulerkit.store.files import write_whole
from rulerkit.store.places import CELL_ON_DISK, cells_of_rows

if TYPE_CHECKING:
    import pandas as pd

MOST_EXAMPLES = 1000
_MOST_WINDOWS = 6
_AROUND, _WITHIN, _WRITTEN = 70, 200, 700  # characters
_MODEL = ["run", "model"]


@dataclass(frozen=True)
class Page:
    """A browser of examples: a notebook shows it, `save` writes it."""

    text: str
    num_examples: int
    """How many answers can be opened."""

    def _repr_html_(self) -> str:
        page = html.escape(self.text)
        style = "width:100%;height:640px;border:1px solid rgba(128,128,128,.4)"
        return f'<iframe srcdoc="{page}" style="{style}" title="Examples"></iframe>'

    def save(self, path: str | Path) -> Path:
        """Write the page as one file that needs no network."""
        path = Path(path)
        write_whole(path, self.text)
        return path


def browse(scores: Any, most: int = MOST_EXAMPLES) -> Page:
    """A page to browse the rows of `load` or `score`, or cells or places.

    The heatmaps are of all rows. At most `most` examples can be opened, the same of every model:
    those with the lowest scores of each task and length first. Raises UserError for no rows.
    """
    import pandas as pd

    scores = as_scores(scores, "browse")
    if scores.empty:
        raise UserError("nothing to browse: there is no scored example among the rows given")
    tasks = in_order(scores["task"])
    models = scores.groupby(_MODEL, sort=False).ngroup()
    scores = scores.assign(m=models, t=pd.Categorical(scores["task"], tasks).codes)
    rows = _chosen(scores, most)
    stored = cells_of_rows(rows, "browse")
    if "prediction" not in rows:
        rows = answers_of(rows, cells=stored.values())
    remake = {key: remaker(cell) for key, cell in stored.items()}
    digest, made = "", None  # of the last row: models are asked the same
    examples = []
    for row in progress_bar(rows.to_dict("records"), "answers", delay=3):
        if digest != row["digest"] or made is None:
            digest = row["digest"]
            try:
                example = remake[tuple(row[name] for name in CELL_ON_DISK)](row)
                made = example.prompt, places(example)
            except (UserError, IndexError):
                made = None  # it cannot be made again, or comes out differently
        examples.append(
            {
                "m": row["m"],
                "t": row["t"],
                "l": int(row["length"]),
                "i": int(row["index"]),
                "s": round(100 * float(row["score"]), 1),
                "f": row["finish_reason"],
                "p": str(row["prediction"])[:_WRITTEN],
                "r": [shorten(reference, _WITHIN) for reference in row["references"]],
                "d": row["depths"][:1],
                "w": _windows(row, *made) if made else [],
            }
        )
    deep = scores if "depths" in scores else rows
    deep = deep[deep["depths"].map(len) == 1]
    content = {
        "models": list(names_of(scores.drop_duplicates("m"))),
        "tasks": tasks,
        "cells": _means(scores),
        "depths": _means(deep, bin_numbers(deep["depths"].str[0], BINS)),
        "examples": examples,
        "all": len(scores),
        "remarks": remarks(scores),
    }
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    page = package_text("browse.html").replace("{{DATA}}", data)
    return Page(page, len(examples))


def _chosen(scores: "pd.DataFrame", most: int) -> "pd.DataFrame":
    """The rows that can be opened: questions with the lowest score of any model first, in turn from
    all tasks and lengths, each with the answers of all models."""
    keys = ["task", "length", "index"]
    questions = scores.groupby(keys, sort=False)["score"].agg(["min", "size"]).reset_index()
    questions = questions.sort_values(["min", "index"], kind="stable")
    turns = questions.groupby(["task", "length"], sort=False).cumcount()
    questions = questions.assign(turn=turns).sort_values("turn", kind="stable")
    fits = questions["size"].cumsum() <= most
    fits.iloc[0] = True
    return questions.loc[fits, keys].merge(scores, on=keys, how="left")


def _means(rows: "pd.DataFrame", *by: Any) -> list[Any]:
    """Model, task, length, bin of the depth where it is given, mean score and number of rows."""
    scores = rows.groupby(["m", "t", "length", *by], sort=False)["score"].agg(["mean", "size"])
    return [
        [*map(int, key), round(100 * mean, 1), int(n)]
        for key, mean, n in scores.itertuples(name=None)
    ]


def _windows(row: Any, prompt: str, pieces: list[Position]) -> list[Any]:
    """Windows of the prompt around needles: [role, depth, before, text, after]. What is missing in
    the answer comes first, where there is no room for all."""
    # By their text: a word of a list stands in many places.
    needles: dict[str, Position] = {}
    for place in pieces:
        if place.piece.role == "needle":
            needles.setdefault(prompt[place.start : place.end], place)

    # Compared in lower case, as the score is.
    said = row["prediction"].lower()
    missed = [r.lower() for r in row["references"] if r.lower() not in said]
    first = sorted(needles, key=lambda text: not any(m in text.lower() for m in missed))
    windows = []
    for text in sorted(first[:_MOST_WINDOWS], key=lambda text: needles[text].start):
        place = needles[text]
        before = prompt[max(0, place.start - _AROUND) : place.start]
        after = prompt[place.end : place.end + _AROUND]
        windows.append([place.piece.role, place.depth, before, shorten(text, _WITHIN), after])
    return windows

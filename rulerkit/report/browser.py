"""From a number to the answers behind it: a page with a heatmap, the examples of a cell, and each
example with what was asked, what was written and where it stands in the prompt.

The page is one HTML file with its own script: it opens in a notebook, or from a file without a
network. It holds the windows of a prompt around needles and around what was wrongly written, not
the prompts.
"""

import html
import json
import re
from base64 import b64encode
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.analysis.depth import BINS, Position, bin_numbers, places
from rulerkit.analysis.remake import remaker
from rulerkit.analysis.results import answers_of
from rulerkit.common.errors import UserError, shorten
from rulerkit.common.paths import package_text
from rulerkit.common.progress import progress_bar
from rulerkit.generation.prompt_format import without_thought
from rulerkit.generation.tasks import family_of
from rulerkit.report.tables.notes import names_of, remarks
from rulerkit.scoring.scores import as_scores, clean
from rulerkit.store.files import write_whole
from rulerkit.store.places import CELL, cells_of_rows

if TYPE_CHECKING:
    import pandas as pd

MOST_EXAMPLES = 1000
_MOST_WINDOWS = 6
_MOST_ITEMS = 8  # items of an answer that are traced
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
    models = scores.groupby(_MODEL, sort=False).ngroup()
    scores = scores.assign(m=models, t=pd.factorize(scores["task"])[0])
    rows = _chosen(scores, most)
    stored = cells_of_rows(rows, "browse")
    if "prediction" not in rows:
        rows = answers_of(rows, cells=stored.values())
    remake = {key: remaker(cell) for key, cell in stored.items()}
    digest, prompt = "", None  # of the last row: models are asked the same
    examples = []
    for row in progress_bar(rows.to_dict("records"), "answers", delay=3):
        if digest != row["digest"] or prompt is None:
            key = tuple(row[name] for name in CELL)
            digest, prompt = row["digest"], _prompt(remake[key], row)
        example = {
            "m": row["m"],
            "t": row["t"],
            "l": int(row["length"]),
            "i": int(row["index"]),
            "s": round(100 * float(row["score"]), 1),
            "f": row["finish_reason"],
            "p": str(row["prediction"])[:_WRITTEN],
            "r": [shorten(reference, _WITHIN) for reference in row["references"]],
            "d": row["depths"][:1],
        }
        examples.append(example | _traced(row, prompt))
    deep = scores if "depths" in scores else rows
    deep = deep[deep["depths"].map(len) == 1]
    content = {
        "models": list(names_of(scores.drop_duplicates("m"))),
        "tasks": list(scores["task"].unique()),
        "cells": _means(scores),
        "depths": _means(deep, bin_numbers(deep["depths"].str[0], BINS)),
        "examples": examples,
        "all": len(scores),
        "remarks": remarks(scores),
    }
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    template = package_text("browse.html")
    # Only the page's own script and style may run, whatever an answer smuggles in.
    for name, tag in (("{{STYLE}}", "style"), ("{{SCRIPT}}", "script")):
        (content_of_tag,) = re.findall(rf"<{tag}>(.*?)</{tag}>", template, re.DOTALL)
        digest = b64encode(sha256(content_of_tag.encode()).digest()).decode()
        template = template.replace(name, f"'sha256-{digest}'")
    return Page(template.replace("{{DATA}}", data), len(examples))


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


# --- what is shown of a prompt --------------------------------------------------------------------


def _prompt(remake: Any, row: Any) -> tuple[str, list[Position]] | None:
    """The text of a prompt and the places of its pieces; None where it cannot be made again, or
    comes out differently."""
    try:
        example = remake(row)
    except (UserError, IndexError):
        return None
    return example.prompt, places(example)


def _traced(row: Any, made: tuple[str, list[Position]] | None) -> dict[str, Any]:
    """`w`: windows of the prompt, [role, depth, before, text, after]; `x`: items of the answer that
    are no reference, [item, role of the piece that holds it or '', depth]."""
    if made is None:
        return {"w": [], "x": []}
    whole, pieces = made

    # Everything is compared in lower case, as the score is.
    prompt = whole.lower()
    said = row["prediction"].lower()
    wanted = [r.lower() for r in row["references"] if r.lower() not in said]

    # By what they show: a word of a list stands in many places.
    windows: dict[str, Position] = {}
    for place in pieces:
        if place.role == "needle":
            text = prompt[place.start : place.end]
            windows.setdefault(next((missed for missed in wanted if missed in text), text), place)

    # Where a wrong item of the answer comes from: the piece of the prompt that holds it.
    items: list[Any] = []
    for item in _wrong_items(row):
        match = re.search(rf"(?<!\w){re.escape(item)}(?!\w)", prompt)
        start, end = match.span() if match else (-1, -1)
        held = next((place for place in pieces if place.start <= start < place.end), None)
        if held:
            windows[item] = held._replace(start=start, end=end)
            wanted.append(item)
        items.append([item, held.role if held else "", held.depth if held else 0.0])

    # What is missing or wrong first, where there is no room for all.
    first = sorted(windows, key=lambda shown: shown not in wanted)[:_MOST_WINDOWS]
    shown = sorted((windows[text] for text in first), key=lambda place: place.start)
    shown_windows = []
    for place in shown:
        before = whole[max(0, place.start - _AROUND) : place.start]
        text = shorten(whole[place.start : place.end], _WITHIN)
        after = whole[place.end : place.end + _AROUND]
        shown_windows.append([place.role, place.depth, before, text, after])
    return {"w": shown_windows, "x": items}


def _wrong_items(row: Any) -> list[str]:
    """Items of an answer that are no reference, lower case."""
    wanted = {reference.lower() for reference in row["references"]}
    if row["category"] == "qa" and row["score"]:
        return []
    text = clean(without_thought(row["prediction"]) or "")
    items = family_of(row["task"], row["family"]).items_of(text)
    wrong = [
        item
        for item in dict.fromkeys(items)
        if len(item) > 2 and not any(item in w or w in item for w in wanted)
    ]
    return wrong[:_MOST_ITEMS]

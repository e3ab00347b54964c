"""From a number to the answers behind it: a page with a heatmap, the examples of a cell, and each
example with what was asked, what was written and where it stands in the prompt.

The page is one HTML file with its own script: it opens in a notebook, or from a file without a
network. It holds the windows of a prompt around needles and around what was wrongly written, not
the prompts.
"""

import html
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.depth import BINS, Place, bin_numbers, places
from rulerkit.errors import UserError, shorten
from rulerkit.failures import remaker
from rulerkit.prompt_format import without_thought
from rulerkit.results import answers_of, find_cells
from rulerkit.scoring import category, clean
from rulerkit.store import write_whole
from rulerkit.tables import names_of
from rulerkit.tasks.base import named_items

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

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
        write_whole(Path(path), self.text)
        return Path(path)


def browse(scores: "pd.DataFrame", most: int = MOST_EXAMPLES) -> Page:
    """A page to browse the rows of `load` or `score`.

    The heatmaps are of all rows. At most `most` examples can be opened, the same of every model:
    those with the lowest scores of each task and length first. Raises UserError for no rows.
    """
    from rulerkit.plots import remarks

    if scores.empty:
        raise UserError("nothing to browse: there is no scored example among the rows given")
    scores = scores.reset_index(drop=True)
    models = scores.drop_duplicates(_MODEL)
    keys = zip(models["run"], models["model"], strict=True)
    numbers = {key: number for number, key in enumerate(keys)}
    tasks = list(dict.fromkeys(scores["task"]))
    rows = scores.loc[_chosen(scores, most)]
    stored = find_cells(dict.fromkeys(rows["path"]))
    if "prediction" not in rows:
        rows = answers_of(rows, cells=stored)
    remake = {str(cell.path): remaker(cell) for cell in stored}
    prompts: dict[str, tuple[str, list[Place]] | None] = {}  # by digest: models are asked the same
    for row in rows[["path", "index", "digest"]].to_dict("records"):
        if prompts.get(row["digest"]) is None:
            prompts[row["digest"]] = _prompt(remake[row["path"]], row)
    examples = [
        {
            "m": numbers[row["run"], row["model"]],
            "t": tasks.index(row["task"]),
            "l": int(row["length"]),
            "i": int(row["index"]),
            "s": round(100 * float(row["score"]), 1),
            "f": row["finish_reason"],
            "p": str(row["prediction"])[:_WRITTEN],
            "r": [shorten(reference, _WITHIN) for reference in row["references"]],
            "d": row["depths"][:1],
            **_traced(row, prompts[row["digest"]]),
        }
        for row in rows.to_dict("records")
    ]
    deep = scores if "depths" in scores else rows
    deep = deep[deep["depths"].map(len) == 1]
    content = {
        "models": list(names_of(models)),
        "tasks": tasks,
        "cells": _means(scores, numbers, tasks),
        "depths": _means(deep, numbers, tasks, bin_numbers(deep["depths"].str[0], BINS)),
        "examples": examples,
        "all": len(scores),
        "remarks": remarks(scores),
    }
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    template = (files("rulerkit") / "data" / "browse.html").read_text(encoding="utf-8")
    return Page(template.replace("{{DATA}}", data), len(examples))


def _chosen(scores: "pd.DataFrame", most: int) -> "NDArray[Any]":
    """The rows that can be opened: questions with the lowest score of any model first, in turn from
    all tasks and lengths, each with the answers of all models."""
    keys = ["task", "length", "index"]
    questions = scores.groupby(keys, sort=False)["score"].agg(["min", "size"]).reset_index()
    questions = questions.sort_values(["min", "index"], kind="stable")
    turn = questions.groupby(["task", "length"], sort=False).cumcount()
    questions = questions.assign(turn=turn).sort_values("turn", kind="stable")
    within = questions[questions["size"].cumsum() <= max(most, 1)]
    chosen = (within if len(within) else questions[:1])[keys].assign(order=range(len(within) or 1))
    merged = scores[keys].reset_index().merge(chosen, on=keys)
    return merged.sort_values(["order", "level_0"])["level_0"].to_numpy()


def _means(rows: "pd.DataFrame", numbers: Any, tasks: Sequence[str], *by: Any) -> list[Any]:
    """Model, task, length, bin of the depth where it is given, mean score and number of rows."""
    groups = rows.groupby([*_MODEL, "task", "length", *by], sort=False)["score"]
    return [
        [numbers[key[:2]], tasks.index(key[2]), *map(int, key[3:]), round(100 * mean, 1), int(n)]
        for key, mean, n in groups.agg(["mean", "size"]).itertuples(name=None)
    ]


# --- what is shown of a prompt --------------------------------------------------------------------


def _prompt(remake: Any, row: Any) -> tuple[str, list[Place]] | None:
    """The text of a prompt and the places of its pieces; None where it cannot be made again, or
    comes out differently."""
    try:
        example = remake(row)
    except (UserError, IndexError):
        return None
    return example.prompt, places(example)


def _traced(row: Any, made: tuple[str, list[Place]] | None) -> dict[str, Any]:
    """`w`: windows of the prompt, [role, depth, before, text, after]; `x`: items of the answer that
    are no reference, [item, role of the piece that holds it or '', depth]."""
    if made is None:
        return {"w": [], "x": []}
    whole, pieces = made
    prompt = whole.lower()
    missed = [r.lower() for r in row["references"] if r.lower() not in row["prediction"].lower()]
    windows, shown_texts = [], set[str]()
    for role, depth, start, end, _ in pieces:
        text = prompt[start:end]
        named = next((text_missed for text_missed in missed if text_missed in text), text)
        if role == "needle" and named not in shown_texts:  # a word of a list stands in many places
            shown_texts.add(named)
            windows.append((named == text, role, depth, start, end))
    items = []
    for item in _wrong_items(row):
        match = re.search(rf"(?<!\w){re.escape(item)}(?!\w)", prompt)
        at = match.start() if match else -1
        held = next((place for place in pieces if place.start <= at < place.end), None)
        role, depth = (held.role, held.depth) if held else ("", 0.0)
        items.append([item, role, depth])
        if role:
            windows.append((False, role, depth, at, at + len(item)))
    shown = sorted(windows, key=lambda window: window[0])[:_MOST_WINDOWS]
    shown.sort(key=lambda window: window[3])
    return {"w": [[*w[1:3], *_window(whole, *w[3:])] for w in shown], "x": items}


def _wrong_items(row: Any) -> list[str]:
    """Items of an answer that are no reference, lower case; of an answer in a sentence its numbers
    and long words."""
    wanted = {reference.lower() for reference in row["references"]}
    if category(row["task"]) == "qa" and row["score"]:
        return []
    text = clean(without_thought(row["prediction"]) or "")[:_WRITTEN]
    items = [item for item in named_items(text) if len(item.split()) <= 4]
    items = items or re.findall(r"\d{4,}|[^\W\d_]{5,}(?:-\w+)*", text.lower())
    wrong = [
        item
        for item in dict.fromkeys(items)
        if len(item) > 2 and not any(item in w or w in item for w in wanted)
    ]
    return wrong[:_MOST_ITEMS]


def _window(prompt: str, start: int, end: int) -> tuple[str, str, str]:
    """The text before, the text itself, and the text after, cut short."""
    text = prompt[start:end]
    return (
        prompt[max(0, start - _AROUND) : start],
        text if len(text) <= _WITHIN else f"{text[:_WITHIN]}…",
        prompt[end : end + _AROUND],
    )

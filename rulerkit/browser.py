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
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.depth import BINS, Place, bin_numbers, places
from rulerkit.errors import UserError, shorten
from rulerkit.failures import examples_of
from rulerkit.generation import Examples
from rulerkit.prompt_format import without_thought
from rulerkit.results import answers_of, find_cells
from rulerkit.scoring import category, clean
from rulerkit.store import Cell, write_whole
from rulerkit.summary import cell_rows
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
    if scores.empty:
        raise UserError("nothing to browse: there is no scored example among the rows given")
    scores = scores.reset_index(drop=True)
    models = scores.drop_duplicates(_MODEL)[[*_MODEL, "label"]]
    names = dict(
        zip(zip(models["run"], models["model"], strict=True), names_of(models), strict=True)
    )
    numbers = {name: number for number, name in enumerate(names)}
    tasks = list(dict.fromkeys(scores["task"]))
    cells = [
        [numbers[key[:2]], tasks.index(key[2]), int(key[3]), *_mean(scores, rows)]
        for key, rows in cell_rows(scores, [*_MODEL, "task", "length"]).items()
    ]
    rows = scores.loc[_chosen(scores, most)]
    stored = find_cells(dict.fromkeys(rows["path"]))
    if "prediction" not in rows:
        rows = answers_of(rows, cells=stored)
    examples_of_path = {str(cell.path): _examples(cell) for cell in stored}
    prompts: dict[str, _Prompt | None] = {}  # by digest: models are asked the same
    for path, index, digest in rows[["path", "index", "digest"]].itertuples(index=False):
        if prompts.get(digest) is None:
            prompts[digest] = _prompt(examples_of_path[path], index, digest)
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
    content = {
        "models": list(names.values()),
        "tasks": tasks,
        "cells": cells,
        "depths": _by_depth(scores if "depths" in scores else rows, numbers, tasks),
        "examples": examples,
        "all": len(scores),
    }
    data = json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")
    template = (files("rulerkit") / "data" / "browse.html").read_text(encoding="utf-8")
    return Page(template.replace("{{DATA}}", data))


def _mean(scores: "pd.DataFrame", rows: Any) -> tuple[float, int]:
    return round(100 * float(scores["score"].to_numpy()[rows].mean()), 1), len(rows)


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


def _by_depth(rows: "pd.DataFrame", numbers: dict[Any, int], tasks: Sequence[str]) -> list[Any]:
    """Model, task, length, bin of the depth, mean score and number, of examples with one needle."""
    single = rows[rows["depths"].map(len) == 1]
    if single.empty:
        return []
    bins = bin_numbers(single["depths"].str[0], BINS)
    groups = single.assign(bin=bins).groupby([*_MODEL, "task", "length", "bin"])["score"]
    return [
        [numbers[key[:2]], tasks.index(key[2]), *map(int, key[3:]), round(100 * mean, 1), int(n)]
        for key, mean, n in groups.agg(["mean", "size"]).itertuples(name=None)
    ]


# --- what is shown of a prompt --------------------------------------------------------------------


def _examples(cell: Cell) -> Examples | None:
    """The examples of a cell; None where they cannot be made again."""
    try:
        return examples_of(cell)
    except UserError:
        return None


class _Prompt(NamedTuple):
    """The text of a prompt and the places of its pieces."""

    text: str
    places: list[Place]


def _prompt(examples: Examples | None, index: int, digest: str) -> _Prompt | None:
    """The prompt of an example; None where it cannot be made again, or comes out differently."""
    if examples is None or index >= len(examples):
        return None
    example = examples[index]
    return _Prompt(example.prompt, places(example)) if example.digest == digest else None


def _traced(row: Any, made: _Prompt | None) -> dict[str, Any]:
    """`w`: windows of the prompt, [role, depth, before, text, after]; `x`: items of the answer that
    are no reference, [item, role of the piece that holds it or '', depth]."""
    if made is None:
        return {"w": [], "x": []}
    prompt = made.text.lower()
    missed = [r.lower() for r in row["references"] if r.lower() not in row["prediction"].lower()]
    windows, shown_texts = [], set[str]()
    for role, depth, start, end, _ in made.places:
        text = prompt[start:end]
        named = next((text_missed for text_missed in missed if text_missed in text), text)
        if role == "needle" and named not in shown_texts:  # a word of a list stands in many places
            shown_texts.add(named)
            windows.append((named == text, role, depth, start, end))
    items = []
    for item in _wrong_items(row):
        at = _position(prompt, item)
        role, depth = _role_at(made.places, at)
        items.append([item, role, depth])
        if at >= 0 and role:
            windows.append((False, role, depth, at, at + len(item)))
    shown = sorted(windows, key=lambda window: window[0])[:_MOST_WINDOWS]
    return {
        "w": [
            [role, depth, *_window(made.text, start, end)]
            for _, role, depth, start, end in sorted(shown, key=lambda window: window[3])
        ],
        "x": items,
    }


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


def _position(prompt: str, item: str) -> int:
    """Where an item stands in a prompt as a word of its own; -1 where it does not."""
    match = re.search(rf"(?<!\w){re.escape(item)}(?!\w)", prompt)
    return match.start() if match else -1


def _role_at(places: Sequence[Place], at: int) -> tuple[str, float]:
    place = next((place for place in places if place.start <= at < place.end), None)
    return (place.role, place.depth) if place else ("", 0.0)


def _window(prompt: str, start: int, end: int) -> tuple[str, str, str]:
    """The text before, the text itself, and the text after, cut short."""
    text = prompt[start:end]
    return (
        prompt[max(0, start - _AROUND) : start],
        text if len(text) <= _WITHIN else f"{text[:_WITHIN]}…",
        prompt[end : end + _AROUND],
    )

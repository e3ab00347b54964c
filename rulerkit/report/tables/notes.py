"""What a reader must know of the scores in a table or a figure: reference readers, synthetic
texts, incomplete cells, adaptive runs."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from rulerkit.common import escape
from rulerkit.common.errors import counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.generation.corpora import OWN_TEXTS
from rulerkit.inference.model import COMPRESSED
from rulerkit.scoring.scores import own_labels
from rulerkit.scoring.summary import READERS, STAND_IN, texts_words

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler


def names_of(rows: pd.DataFrame) -> "pd.Series[str]":
    """The label of each row's model; where several models share one, with the model's name or
    run."""
    names = own_labels(rows)
    in_several_runs = rows["run"].groupby(names).transform("nunique") > 1
    return names.mask(in_several_runs, names + " [" + rows["run"] + "]")


def unusual(cells: pd.DataFrame) -> "dict[str, pd.Series[bool]]":
    """What a reader of a table or a figure must know of some cells, rows or labels, and which of
    them it holds for."""
    facts = {READERS: cells["engine"] == "reader"}
    for suite in cells["suite"].unique():
        if suite != "ruler":
            facts[f"suite {suite}"] = cells["suite"] == suite
    if "note" in cells:
        facts[COMPRESSED] = cells["note"].str.contains(COMPRESSED, na=False)
    if "stand_in" in cells:
        facts[OWN_TEXTS] = cells["note"].str.contains(OWN_TEXTS, na=False)
        facts[STAND_IN] = cells["stand_in"].astype(bool) & ~facts[OWN_TEXTS]
    if "complete" in cells:
        facts["incomplete"] = ~cells["complete"]
    return facts


def texts_notes(frame: pd.DataFrame) -> list[str]:
    """The line below a table that says what the texts are where they are not the paper's."""
    words = texts_words(frame)
    return [f"Not comparable with the paper: {words}."] if words else []


def cell_notes(cells: pd.DataFrame) -> list[str]:
    """What a reader of a table must know of the cells of a summary that it shows: one line each.
    Names of models are listed where a fact holds for some of them."""
    notes, names = [], names_of(cells)
    departures = []
    facts = unusual(cells)
    is_incomplete = facts.pop("incomplete")
    for what, is_so in facts.items():
        who = names[is_so].unique()
        if len(who) == names.nunique():
            departures.append(what)
        elif len(who):
            departures.append(f"{what} ({listed(who, 12)})")
    if departures:
        notes.append(f"Not comparable with the paper: {', '.join(departures)}.")
    if is_incomplete.any():
        notes.append("Incomplete cells enter no mean; the same command completes those it began.")

    # A mean over the rest is not the mean that was asked for.
    rest = cells["rest"]
    if rest.any():
        places = names + " on " + cells["task"] + " at "
        places += cells["length"].map(length_name)
        means = (places + ": " + rest)[rest != ""]
        notes.append(f"Means without failed requests (max_failures): {listed(means, 5, '; ')}.")

    # Notes are lists in one text; each is said once, and of whom where not all models have it.
    names_by_note: dict[str, dict[str, None]] = {}
    for name, note in zip(names, cells["note"].fillna(""), strict=True):
        for part in filter(None, note.split("; ")):
            names_by_note.setdefault(part, {})[name] = None
    names_by_note.pop(COMPRESSED, None)
    for part, having in sorted(names_by_note.items()):
        text = part[:1].upper() + part[1:]
        is_shared = len(having) == names.nunique()
        notes.append(f"{text}." if is_shared else f"{text}: {listed(having, 6)}.")
    return notes


_ADAPTIVE_NOTE = (
    "Adaptive runs: means after the first look are up to half a point too far from the threshold; "
    "their 95 % intervals hold 93 to 94 % (89 % where scores fall evenly)."
)
"""Simulated with the stopping rule, November 2026; the answer of the run is not touched by it."""


def model_notes(models: pd.DataFrame) -> list[str]:
    """Lines for the models of adaptive runs: what was found, for how many tokens."""
    adaptive = models[models["adaptive"] != ""]
    if adaptive.empty:
        return []
    return [*(adaptive["label"] + ": " + adaptive["adaptive"] + "."), _ADAPTIVE_NOTE]


def remarks(cells: pd.DataFrame) -> str:
    """What a figure must say below itself of the cells (or the labels) that it shows: reference
    readers, another suite, synthetic texts, texts of the user's, incomplete cells."""
    return "; ".join(what for what, is_so in unusual(cells).items() if is_so.any())


def saved_notes(cells: pd.DataFrame) -> list[str]:
    """The lines below a table that does not name its models: these, how many examples its scores
    are over, and `cell_notes`."""
    notes = [f"Models: {listed(names_of(cells).unique(), 12)}."]
    complete = cells.loc[cells["complete"], "n"]
    if len(complete):
        n = counted(number_range(complete), "example")
        notes.append(f"n = {n} per task and length, scores in percent.")
    return notes + cell_notes(cells)


_FLUSH_LEFT = "text-align: left; vertical-align: top"


def show(frame: pd.DataFrame, index: bool = False, **format: Any) -> "Styler":
    """A DataFrame for a notebook: its text is never read as HTML or mathematics. Its caption says
    where the texts are not the paper's. `format` goes to `Styler.format`."""
    from pandas.api.types import is_numeric_dtype

    def visible(value: Any) -> Any:
        return escape.one_line(value) if isinstance(value, str) else value

    shown = frame.map(visible).rename(index=visible, columns=visible)
    styler = shown.style.format(escape="html", **format)
    for axis in (0, 1):
        styler = styler.format_index(escape="html", axis=axis)
    # pandas sets all columns flush right, which is for numbers
    texts = [f".col{i}" for i, kind in enumerate(shown.dtypes) if not is_numeric_dtype(kind)]
    if texts:
        styler = styler.set_table_styles([{"selector": ", ".join(texts), "props": _FLUSH_LEFT}])
    styler = styler.set_table_attributes('class="dataframe mathjax_ignore tex2jax_ignore"')
    if words := texts_words(frame):
        styler = styler.set_caption(f"{words}: not comparable with the paper")
    return styler if index else styler.hide(axis="index")


def number_range(numbers: "pd.Series[int]") -> str:
    """'50', or '49 to 50'."""
    return " to ".join(map(str, sorted({numbers.min(), numbers.max()})))

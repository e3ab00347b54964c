"""The table of the frontier suite: what each model keeps of its own mean, and beside it RULER's
effective length."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rulerkit.common.lengths import length_name
from rulerkit.common.render import Field, render
from rulerkit.report.tables.notes import names_of, texts_notes
from rulerkit.scoring.summary import texts_words
from rulerkit_frontier.scores import (
    ABSOLUTE,
    LEAST_BASE,
    OWN_SHARE,
    FrontierSummary,
    as_frontier,
    frontier,
)

if TYPE_CHECKING:
    import pandas as pd


def frontier_table(summary: FrontierSummary) -> "pd.DataFrame":
    """The headline of the frontier suite as text, a row per model: its mean at the shortest length
    with the floors taken off, the relative, the absolute and the shorter effective length, each
    with those that the data cannot rule out, RULER's, and the share of answers that are right in
    another form."""
    import pandas as pd

    summary = as_frontier(summary, "frontier_table")
    models = summary.models
    base = models["base"].map("{:.1f}".format).where(models["base"].notna(), "")
    shortest = models["base_length"].map(length_name)
    columns = {
        "model": names_of(models) + models["thinking"].map({True: " (thinking)", False: ""}),
        "mean": base.where(base == "", base + " at " + shortest),
        "relative": _with_set(models, "relative", "relative_set"),
        "absolute": _with_set(models, "absolute", "absolute_set"),
        "frontier": _with_set(models, "effective_length", "effective_set"),
        "RULER": models["ruler"].replace("", "-"),
        "other form": models["other_form"].map("{:.1f} %".format),
        "note": models["why"],
    }
    table = pd.DataFrame(columns)
    table.attrs["texts"] = texts_words(summary.cells)
    return table if models["why"].any() else table.drop(columns="note")


def _with_set(models: "pd.DataFrame", column: str, possible: str) -> "pd.Series[str]":
    """Effective lengths, in brackets those that the data cannot rule out."""
    lengths, sets = models[column], models[possible]
    several = lengths + " [" + sets + "]"
    is_open = (lengths != "") & (sets != "") & (sets != lengths)
    return several.where(is_open, lengths).replace("", "-")


def frontier_text(summary: FrontierSummary, format: str = "text", notes: Iterable[str] = ()) -> str:
    """`frontier_table` as plain text, Markdown, LaTeX or HTML, with its rules below."""
    summary = as_frontier(summary, "frontier_text")
    table = frontier_table(summary)
    rules = [
        "mean: over the eight capabilities of the frontier suite, 0 where an answer without "
        "reading scores, 100 for all right.",
        f"relative: longest length that keeps {100 * OWN_SHARE:g} % of that mean; absolute: "
        f"longest with a mean of at least {ABSOLUTE:g}; frontier: the shorter of the two, none "
        f"where the mean is below {LEAST_BASE:g}; in brackets all that the 95 % intervals cannot "
        "rule out.",
        *texts_notes(summary.cells),
        "other form: share of answers that hold all that is right at their end, in a form that is "
        "not judged as right; rk.failures shows them.",
        *notes,
    ]
    return render(table.map(Field), format, rules)


def table(
    scores: Any,
    tasks: Sequence[str] | None = None,
    lengths: Any = None,
    num_examples: int | None = None,
    format: str = "text",
    notes: Iterable[str] = (),
) -> str:
    """The headline as `rulerkit report` prints it."""
    return frontier_text(frontier(scores, tasks, lengths, num_examples), format, notes)

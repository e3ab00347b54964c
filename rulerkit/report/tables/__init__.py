"""The tables of a summary, and what stands below them.

Every table says below it what its reader must know: the threshold, the number of examples, whether
stand-in corpora were used. A score at or above the threshold is marked: underlined in LaTeX, as in
the paper; bold in Markdown; with a star in plain text.

A module holds the tables of one subject, `layout` what all of them share. Open `models` first.
"""

from rulerkit.report.tables.footnotes import footnotes, usage_notes
from rulerkit.report.tables.layout import FORMATS, Field, number_range, ordinal, render, show
from rulerkit.report.tables.models import (
    TITLES,
    board_rows,
    models_text,
    origin,
    table_text,
    thresholds_text,
)
from rulerkit.report.tables.notes import (
    cell_notes,
    model_notes,
    names_of,
    remarks,
    saved_notes,
    suite_words,
    texts_notes,
    unusual,
)
from rulerkit.report.tables.tasks import task_table_text

__all__ = [
    "FORMATS",
    "TITLES",
    "Field",
    "board_rows",
    "cell_notes",
    "footnotes",
    "model_notes",
    "models_text",
    "names_of",
    "number_range",
    "ordinal",
    "origin",
    "remarks",
    "render",
    "saved_notes",
    "show",
    "suite_words",
    "table_text",
    "task_table_text",
    "texts_notes",
    "thresholds_text",
    "unusual",
    "usage_notes",
]

"""The tables of a summary, and what stands below them.

Every table says below it what its reader must know: the threshold, the number of examples, whether
synthetic texts were used. A score at or above the threshold is marked: underlined in LaTeX, as in
the paper; bold in Markdown; with a star in plain text.

A module holds the tables of one subject; `common/render.py` writes all of them. Open `models`
first.
"""

from rulerkit.report.tables.footnotes import footnotes as footnotes
from rulerkit.report.tables.footnotes import usage_notes as usage_notes
from rulerkit.report.tables.models import table_text as table_text
from rulerkit.report.tables.notes import cell_notes as cell_notes
from rulerkit.report.tables.notes import names_of as names_of
from rulerkit.report.tables.notes import saved_notes as saved_notes
from rulerkit.report.tables.notes import show as show
from rulerkit.report.tables.paper import paper_table as paper_table
from rulerkit.report.tables.tasks import task_table_text as task_table_text

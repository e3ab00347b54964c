"""The verdicts of claims as a table for a notebook."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rulerkit.analysis.claims import FAILS, HOLDS, NOT_APPLICABLE, UNKNOWN, Verdict, verdict_table
from rulerkit.report.tables import show

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler


_COLORS = {HOLDS: "#d9efe6", FAILS: "#f9dcc9", UNKNOWN: "#eeeeee", NOT_APPLICABLE: "#ffffff"}


def show_verdicts(verdicts: Sequence[Verdict]) -> "Styler":
    """The verdicts as a small coloured table for a notebook."""
    props = "text-align: left; vertical-align: top; color: black; max-width: 34em"
    left: Any = [{"selector": "td, th", "props": props}]
    styler = show(verdict_table(verdicts)).set_table_styles(left)
    return styler.apply(lambda row: [f"background-color: {_COLORS[row['verdict']]}"] * 3, axis=1)

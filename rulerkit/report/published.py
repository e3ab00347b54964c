"""Scores that others have published since the paper: each figure as printed, with its source.

They were measured with other harnesses, prompts and numbers of examples (`docs/scorers.md`), so
they stand in a table of their own, are never averaged, and get no rank. docs/add-results.md says
how a row is added.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.common.escape import csv_text
from rulerkit.common.lengths import length_name
from rulerkit.report.tables.layout import Field, render

if TYPE_CHECKING:
    import pandas as pd

SECOND_HAND = "second-hand"
"""How `checked` begins where the source itself was not seen."""
SERIES = ["model", "aligned", "thinking", "source"]
"""What the scores of one row of the table have in common: two sources of one model are two rows."""
_FILE = Path(__file__).parents[1] / "data" / "paper" / "published.csv"


def published_rows() -> "pd.DataFrame":
    """A row per model, length and source, in the columns of the file that docs/add-results.md
    explains; `score` is percent as printed, a text."""
    import pandas as pd

    # Scores stay texts: 95.30 keeps its zero.
    rows = pd.read_csv(_FILE, dtype=str, keep_default_na=False)
    return rows.astype({"length": int})


def published_table(format: str = "text") -> str:
    """All published scores as printed, a row per model and source; what was not published is
    empty. `format` is table, markdown or latex, or csv for the rows themselves."""
    rows = published_rows()
    if format == "csv":
        return csv_text(rows)

    numbers = {source: n for n, source in enumerate(rows["source"].unique(), 1)}
    lengths = sorted(rows["length"].unique())
    body: list[Any] = []
    groups: Any = rows.groupby("aligned", sort=True)
    for aligned, of_kind in groups:
        # A line stands between base and chat models.
        body += [None] if body else []
        series: Any = of_kind.groupby(SERIES, sort=False)
        for (model, _, thinking, source), of_model in series:
            printed = dict(zip(of_model["length"], of_model["score"], strict=True))
            is_second = of_model["checked"].str.startswith(SECOND_HAND).any()
            said = ", thinking" if thinking == "yes" else ""
            body.append(
                [
                    Field(f"{model}{said} [{numbers[source]}]"),
                    aligned + (" *" if is_second else ""),
                    *(printed.get(length, "") for length in lengths),
                ]
            )

    notes = [
        "Percent as printed. Not comparable by default: each source has its own scorer, prompts "
        "and number of examples. Empty: not published.",
        "*: second-hand, the source itself was not seen.",
        *(f"[{n}] {source}." for source, n in numbers.items()),
    ]
    header = ["model", "kind", *map(length_name, lengths)]
    return render(header, body, format, notes)

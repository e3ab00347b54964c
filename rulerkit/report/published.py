"""Scores that others have published since the paper: each figure as printed, with its source.

They were measured with other harnesses, prompts and numbers of examples (`docs/scorers.md`), so
they stand in a table of their own, are never averaged, and get no rank. docs/add-results.md says
how a row is added.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.common.lengths import length_name
from rulerkit.common.render import Field, render

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
    empty. `format` is table, markdown or latex, or csv or json for the rows themselves."""
    import pandas as pd

    rows = published_rows()
    if format in ("csv", "json"):
        return render(rows, format)

    numbers = {source: n for n, source in enumerate(rows["source"].unique(), 1)}
    lengths = sorted(rows["length"].unique())
    body = []
    # Base models stand before chat models.
    groups: Any = rows.sort_values("aligned", kind="stable").groupby(SERIES, sort=False)
    for (model, aligned, thinking, source), of_model in groups:
        printed = dict(zip(of_model["length"], of_model["score"], strict=True))
        is_second = of_model["checked"].str.startswith(SECOND_HAND).any()
        said = ", thinking" if thinking == "yes" else ""
        name = f"{model}{said} [{numbers[source]}]"
        scores = [Field(printed.get(length, "")) for length in lengths]
        body.append([Field(name), aligned + (" *" if is_second else ""), *scores])

    notes = [
        "Percent as printed. Not comparable by default: each source has its own scorer, prompts "
        "and number of examples. Empty: not published.",
        "*: second-hand, the source itself was not seen.",
        *(f"[{n}] {source}." for source, n in numbers.items()),
    ]
    table = pd.DataFrame(body, columns=["model", "kind", *map(length_name, lengths)])
    return render(table, format, notes, table["kind"].str.split().str[0])

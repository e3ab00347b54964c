"""Scores that others have published since the paper: each figure as printed, with its source.

They were measured with other harnesses, prompts and numbers of examples (`docs/scorers.md`), so
they stand beside yours in grey, are never averaged, and get no rank. docs/add-results.md says how a
row is added.
"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.common.errors import check_known
from rulerkit.common.escape import csv_text
from rulerkit.common.lengths import length_name
from rulerkit.report.tables import Field, render

if TYPE_CHECKING:
    import pandas as pd

SECOND_HAND = "second-hand"
"""How `checked` begins where the source itself was not seen."""
KINDS = ("base", "chat", "unknown")
"""Base models, chat models, and those of which the source does not say."""
SERIES = ["model", "aligned", "thinking", "source"]
"""What one line of a figure has in common: two sources of one model are two lines."""
_FILE = Path(__file__).parents[1] / "data" / "paper" / "published.csv"


@cache
def _rows() -> "pd.DataFrame":
    import pandas as pd

    # Scores stay texts: 95.30 keeps its zero.
    rows = pd.read_csv(_FILE, dtype=str, keep_default_na=False)
    return rows.astype({"length": int})


def published_rows(kind: str = "") -> "pd.DataFrame":
    """A row per model, length and source, in the columns of the file that docs/add-results.md
    explains; `score` is percent as printed, a text. `kind` is one of KINDS; '' for all."""
    if kind:
        check_known("kind of model", kind, KINDS)
    rows = _rows()
    return rows[rows["aligned"] == kind] if kind else rows.copy()


def numbered_sources(rows: "pd.DataFrame") -> dict[str, int]:
    """Source -> its number, from 1, in the order of the rows."""
    return {source: n for n, source in enumerate(rows["source"].unique(), 1)}


def series_name(key: Any, number: int) -> str:
    """How one series is called: the model, whether it thinks where the source says so, and the
    number of the source."""
    model, _, thinking, _ = key
    said = {"yes": ", thinking", "no": ""}.get(thinking, "")
    return f"{model}{said} [{number}]"


def sources_note(rows: "pd.DataFrame") -> str:
    """The sources with their numbers, and what a reader must know of such figures."""
    listed = [f"[{n}] {source}" for source, n in numbered_sources(rows).items()]
    return "; ".join(
        [
            "as published, with other harnesses, prompts and numbers of examples: not comparable "
            "by default",
            "hollow: second-hand, the source itself was not seen",
            *listed,
        ]
    )


def published_table(kind: str = "", format: str = "table") -> str:
    """All published scores as printed, a row per model and source; what was not published is
    empty. `format` is one of tables.FORMATS, or csv for the rows themselves."""
    rows = published_rows(kind)
    if format == "csv":
        return csv_text(rows)

    numbers = numbered_sources(rows)
    lengths = sorted(rows["length"].unique())
    body: list[Any] = []
    groups: Any = rows.groupby("aligned", sort=True)
    for aligned, of_kind in groups:
        # A line stands between base and chat models.
        body += [None] if body else []
        series: Any = of_kind.groupby(SERIES, sort=False)
        for key, of_model in series:
            printed = dict(zip(of_model["length"], of_model["score"], strict=True))
            is_second = of_model["checked"].str.startswith(SECOND_HAND).any()
            body.append(
                [
                    Field(series_name(key, numbers[key[3]])),
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

"""A comparison as text and as JSON: differences by task and length, the examples that flipped, and the verdict."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rulerkit.claims import FAILS, HOLDS, UNKNOWN, Verdict
from rulerkit.compare import CANNOT_TELL, NOT_WORSE, WORSE, Comparison
from rulerkit.errors import unknown
from rulerkit.escape import csv_text
from rulerkit.lengths import length_name
from rulerkit.tables import FORMATS, Field, render

if TYPE_CHECKING:
    import pandas as pd

_SHOWN = 12


def difference_table(found: Comparison, format: str = "table") -> str:
    """Differences B - A with intervals, a row per task and a column per length; marked where the interval leaves out 0.

    `format` is one of tables.FORMATS; 'csv' is `Comparison.rows`.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if format == "csv":
        return csv_text(found.rows, "%.4f")
    lengths = sorted(int(n) for n in found.rows["length"].unique() if n)
    by_place = {(row["task"], row["length"]): row for _, row in found.rows.iterrows()}
    tasks = [str(task) for task in found.rows.loc[found.rows["level"] == "task", "task"]]
    header = ["B - A (points)", *map(length_name, lengths), "all lengths"]
    body = [[Field(task or "mean"), *(_field(by_place.get((task, n))) for n in [*lengths, 0])] for task in [*tasks, ""]]
    return render(header, body, format, [*about(found), found.verdict.text + "."])


def about(found: Comparison) -> list[str]:
    """What a reader of the differences must know."""
    cells = found.rows[found.rows["level"] == "cell"]
    n = f"{cells['n'].min()} to {cells['n'].max()}" if cells["n"].min() < cells["n"].max() else f"{cells['n'].max()}"
    chance = f"{(1 - found.confidence) * len(cells):.1f}"
    percent = f"{100 * found.confidence:g} %"
    notes = [
        f"A: {found.a.name} ({found.a.label}); B: {found.b.name} ({found.b.label}).",
        f"Paired by {found.by}, {n} examples per task and length, in brackets the {percent} intervals for pairs; marked "
        f"where they leave out 0, as about {chance} of {len(cells)} would by chance between equal models.",
    ]
    if found.same_model:
        notes.append("One model, served alike, asked twice: the differences are the noise floor of serving it.")
    return notes + [note + "." for note in found.notes]


def flips_text(found: Comparison) -> str:
    """Which examples flipped each way, by task and length."""
    lines = []
    for key, own in found.flips.groupby(["task", "length"], sort=False):
        task, length = str(key[0]), int(own["length"].iloc[0])
        better, worse = (_indices(own[mask]) for mask in (own["difference"] > 0, own["difference"] < 0))
        parts = [f"{what} {text}" for what, text in (("better", better), ("worse", worse)) if text]
        lines.append(f"{task} at {length_name(length)}: {'; '.join(parts)}")
    return "\n".join(lines) or "No example has another score."


def to_json(found: Comparison) -> dict[str, Any]:
    """All of a comparison, fit for JSON; numbers in points, examples by task, length and index."""
    verdict = found.verdict
    overall = found.rows[found.rows["level"] == "all"].iloc[0]
    return {
        "a": {"name": found.a.name, "label": found.a.label},
        "b": {"name": found.b.name, "label": found.b.label},
        "verdict": {"word": verdict.word, "status": verdict.status, "text": verdict.text, "needed": verdict.needed},
        "margin": found.margin,
        "confidence": found.confidence,
        "paired_by": found.by,
        "same_model": found.same_model,
        "difference": {name: round(float(overall[name]), 4) for name in ("difference", "low", "high", "a", "b")},
        "rows": json.loads(found.rows.to_json(orient="records", double_precision=4)),
        "flips": json.loads(found.flips.to_json(orient="records", double_precision=4)),
        "notes": list(found.notes),
    }


def json_text(found: Comparison) -> str:
    """`to_json` as text."""
    return json.dumps(to_json(found), indent=2) + "\n"


def _field(row: "pd.Series[Any] | None") -> Field:
    if row is None:
        return Field("")
    low, high = row["low"], row["high"]
    return Field(f"{row['difference']:+.1f} [{low:+.1f}, {high:+.1f}]", bool(low > 0 or high < 0))


def _indices(rows: "pd.DataFrame") -> str:
    numbers: Sequence[int] = [int(i) for i in rows["index"]]
    if not numbers:
        return ""
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return f"{len(numbers)} (example{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:_SHOWN]))}{more})"


def as_verdict(found: Comparison) -> Verdict:
    """The verdict in the words of `claims`, on the claim that B is not worse than A by more than the margin."""
    words = {NOT_WORSE: HOLDS, WORSE: FAILS, CANNOT_TELL: UNKNOWN}
    points = f"{found.margin:g} point{'s' if found.margin != 1 else ''}"
    claim = f"{found.b.name} is not worse than {found.a.name} by more than {points}"
    return Verdict(claim, words[found.verdict.word], found.verdict.text)

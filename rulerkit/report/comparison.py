"""The text of a comparison: its table, its notes, the examples that flipped, JSON."""

import json
from typing import Any

from rulerkit.analysis.compare import Comparison, Decision
from rulerkit.common import escape
from rulerkit.common.errors import check_type, counted, listed
from rulerkit.common.lengths import length_name
from rulerkit.common.render import Field, render
from rulerkit.common.settings import JSON
from rulerkit.report.tables.notes import number_range

_MOST_FLIPS = 8


def difference_table(
    comparison: Comparison, format: str = "text", verdict: Decision | None = None
) -> str:
    """The verdict, then the differences B - A in points, a row per task and a column per length,
    with their intervals; marked where the interval leaves out 0.

    `format` is text, markdown, latex or html; 'csv' and 'json' are `Comparison.rows`. `verdict`
    stands in place of the comparison's own, such as that of the gate.
    """
    import pandas as pd

    check_type(comparison, Comparison, "difference_table", "a comparison")
    rows = comparison.rows
    if format in ("csv", "json"):
        return render(rows, format)

    # Every row of the comparison has its field: by task and length, 0 and '' for means.
    fields = dict[Any, Field]()
    each_row: Any = rows.itertuples()
    for row in each_row:
        is_marked = row.low > 0 or row.high < 0
        interval = f"({row.low:+z.1f} to {row.high:+z.1f})"
        fields[row.task, row.length] = Field(f"{row.difference:+z.1f}", is_marked, small=interval)

    lengths = [*sorted(set(rows["length"]) - {0}), 0]
    header = ["B - A (points)", *map(length_name, lengths[:-1]), "all lengths"]
    body = [
        [Field(task or "mean"), *(fields.get((task, length), Field("")) for length in lengths)]
        for task in [*filter(None, rows["task"].unique()), ""]
    ]
    table = render(pd.DataFrame(body, columns=header), format, _notes(comparison))
    line = (verdict or comparison.verdict).text
    if format == "text":
        return f"{line}\n\n{table}"
    if format == "latex":
        return table
    shown = f"<p>{escape.html(line)}</p>" if format == "html" else f"**{escape.markdown(line)}**"
    return f"{shown}\n\n{table}"


def _notes(comparison: Comparison) -> list[str]:
    """What a reader of the differences must know: the two sides, and what differs."""
    a, b, rows = comparison.a, comparison.b, comparison.rows
    examples = counted(number_range(rows.loc[rows["level"] == "cell", "n"]), "pair")
    notes = [
        f"A: {a.name} ({a.label}); B: {b.name} ({b.label}); {examples} per task and length; in "
        "brackets the 95 % interval, marked where it leaves out 0."
    ]
    if comparison.notes:
        notes.append(f"Note: {'; '.join(comparison.notes)}.")
    return notes


def flips_text(comparison: Comparison) -> str:
    """Which examples flipped each way, by task and length."""
    lines = []
    groups: Any = comparison.flips.groupby(["task", "length"], sort=False)
    for (task, length), flips in groups:
        parts = []
        for way, sign in (("better", 1), ("worse", -1)):
            indices = flips.loc[sign * flips["difference"] > 0, "index"]
            if len(indices):
                number = counted(len(indices), "example")
                parts.append(f"{number} {way} ({listed(indices, _MOST_FLIPS)})")
        lines.append(f"{task} at {length_name(length)}: {'; '.join(parts)}")
    return "\n".join(lines) or "No example changed."


def json_text(comparison: Comparison, verdict: Decision | None = None, **more: Any) -> str:
    """All of a comparison as JSON, numbers in points; docs/commands.md lists the keys. `verdict`
    stands in place of the comparison's own; `more` are further keys."""
    verdict = verdict or comparison.verdict
    # pandas writes numpy's numbers and NaN as JSON does.
    rows, flips = (
        json.loads(frame.to_json(orient="records", double_precision=4))
        for frame in (comparison.rows, comparison.flips)
    )
    a, b = comparison.a, comparison.b
    content: JSON = {
        "a": {"name": a.name, "label": a.label},
        "b": {"name": b.name, "label": b.label},
        "verdict": {**verdict._asdict(), "status": verdict.status},
        "margin": comparison.margin,
        "paired_by": comparison.by,
        "difference": {name: rows[-1][name] for name in ("a", "b", "difference", "low", "high")},
        "rows": rows,
        "flips": flips,
        "notes": comparison.notes,
        **more,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"

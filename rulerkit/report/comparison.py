"""The text of a comparison: its table, its notes, the examples that flipped, JSON."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rulerkit.analysis.compare import (
    NOT_WORSE,
    Comparison,
    Decision,
    compare,
    differing,
    keys_text,
)
from rulerkit.analysis.differences import ALARMS, LEVELS, interval_text
from rulerkit.common.errors import UserError, check_type, counted, listed, points_text
from rulerkit.common.lengths import length_name
from rulerkit.common.render import Field, render
from rulerkit.common.settings import JSON
from rulerkit.evaluation.study import Study
from rulerkit.report.tables.notes import number_range
from rulerkit.store.cells import Cell

_MOST_FLIPS = 12


def difference_table(
    comparison: Comparison, format: str = "text", verdict: Decision | None = None
) -> str:
    """Differences B - A with intervals, a row per task and a column per length; marked where the
    interval leaves out 0.

    `format` is table, markdown, latex or html; 'csv' and 'json' are `Comparison.rows`. `verdict`
    stands in place of the comparison's own, such as that of the gate.
    """
    import pandas as pd

    check_type(comparison, Comparison, "difference_table", "a comparison")
    rows = comparison.rows
    if format in ("csv", "json"):
        return render(rows, format)

    # Every row of the comparison has its field: by task and length, 0 and '' for means.
    each_row: Any = rows.itertuples()
    fields = {
        (row.task, row.length): Field(
            f"{row.difference:+.1f} [{row.low:+.1f}, {row.high:+.1f}]", row.low > 0 or row.high < 0
        )
        for row in each_row
    }

    lengths = [*sorted(set(rows["length"]) - {0}), 0]
    header = ["B - A (points)", *map(length_name, lengths[:-1]), "all lengths"]
    body = [
        [Field(task or "mean"), *(fields.get((task, length), Field("")) for length in lengths)]
        for task in [*filter(None, rows["task"].unique()), ""]
    ]
    notes = [*_notes(comparison), (verdict or comparison.verdict).text + "."]
    return render(pd.DataFrame(body, columns=header), format, notes)


def _notes(comparison: Comparison) -> list[str]:
    """What a reader of the differences must know."""
    a, b, rows = comparison.a, comparison.b, comparison.rows
    cells = rows[rows["level"] == "cell"]
    # The weakest row of each level: what could have gone unseen somewhere.
    smallest = rows.groupby("level")["smallest_loss"].agg(lambda losses: losses.max(skipna=False))
    examples = counted(number_range(cells["n"]), "example")
    weakest = _losses_text(smallest[list(LEVELS)])
    notes = [
        f"A: {a.name} ({a.label}); B: {b.name} ({b.label}).",
        f"Paired by {comparison.by}, {examples} per task and length, in "
        f"brackets the {100 * comparison.confidence:g} % intervals; marked where they leave out 0.",
        "The smallest loss of whole answers that would be found to be more than "
        f"{points_text(comparison.margin)}, where nothing else differs and each question is lost "
        f"at all its lengths (Holm-adjusted, {100 * ALARMS:g} %): {weakest}.",
    ]

    # Equal scores at 0 or 100 are no sign that two models are alike.
    unable = cells.loc[cells["unable"], ["task", "length"]].to_numpy()
    if len(unable):
        notes.append(
            "Unable to tell, because all answers are right, or all are wrong, on both sides: "
            f"{keys_text(unable)}."
        )
    if comparison.same_model:
        notes.append(
            "One model, served alike, asked twice: the differences are the noise floor of serving "
            "it."
        )
    return notes + [note + "." for note in comparison.notes]


def _losses_text(smallest: Iterable[float]) -> str:
    """The smallest losses of the levels, in the order of LEVELS, in words."""
    texts = []
    for level, loss in zip(LEVELS.values(), smallest, strict=True):
        if math.isnan(loss):
            texts.append(f"{level} none (too few examples)")
        else:
            texts.append(f"{level} {loss:.1f} points")
    return ", ".join(texts)


def seeds_text(comparison: Comparison) -> str:
    """Whether a model does better on the questions of A, which have been public, than on those of
    B, which nobody has seen: a sentence with an interval, over all tasks but QA.

    Raises UserError where the two sides are not one model under two seeds.
    """
    a, b = comparison.a, comparison.b
    others = [text for text in differing(a, b) if not text.startswith("seed: ")]
    seeds = []
    for side in (a, b):
        of_side = {result["seed"] for result in side.results.values()}
        seeds.append(of_side.pop() if len(of_side) == 1 else None)
    if None in seeds or seeds[0] == seeds[1] or others:
        seen = "; ".join(others) or "no other seed"
        raise UserError(
            f"{a.name} and {b.name} are not one model under two seeds ({seen}): evaluate the model "
            "again with `seed: fresh` and another `run`, and compare the runs by index"
        )
    if (comparison.rows["category"] == "qa").any():
        raise UserError(
            "QA asks public questions under every seed: compare the other tasks (tasks=..., "
            "--tasks)"
        )

    public, unseen = seeds
    mean = comparison.mean
    if mean["high"] < 0:
        answer = "does better on the public questions"
    elif mean["low"] > 0:
        answer = "does better on the unseen questions"
    else:
        answer = "is not seen to do better on either"
    return (
        f"{b.label} {answer}: {mean['b']:.1f} on questions that nobody has seen (seed {unseen}), "
        f"{mean['a']:.1f} on those of seed {public}; the difference is {interval_text(mean)}, over "
        f"{comparison.rows['n'].iloc[-1]} examples of each."
    )


def flips_text(comparison: Comparison) -> str:
    """Which examples flipped each way, by task and length."""
    lines = []
    groups: Any = comparison.flips.groupby(["task", "length"], sort=False)
    for (task, length), flips in groups:
        ways = {"better": flips["difference"] > 0, "worse": flips["difference"] < 0}
        parts = [
            f"{way} {count} (example{'s' if count > 1 else ''} "
            f"{listed(flips.loc[rows, 'index'], _MOST_FLIPS)})"
            for way, rows in ways.items()
            if (count := rows.sum())
        ]
        lines.append(f"{task} at {length_name(length)}: {'; '.join(parts)}")
    return "\n".join(lines) or "No example has another score."


def json_text(comparison: Comparison, verdict: Decision | None = None, **more: Any) -> str:
    """All of a comparison as JSON, numbers in points; docs/commands.md lists the keys. `verdict`
    stands in place of the comparison's own; `more` are further keys."""
    verdict = verdict or comparison.verdict
    # pandas writes numpy's numbers and NaN as JSON does.
    rows, flips = (
        json.loads(frame.to_json(orient="records", double_precision=4))
        for frame in (comparison.rows, comparison.flips)
    )
    sides = {"a": comparison.a, "b": comparison.b}
    content: JSON = {
        **{name: {"name": side.name, "label": side.label} for name, side in sides.items()},
        "verdict": {**verdict._asdict(), "status": verdict.status},
        "margin": comparison.margin,
        "confidence": comparison.confidence,
        "paired_by": comparison.by,
        "same_model": comparison.same_model,
        "difference": {name: rows[-1][name] for name in ("a", "b", "difference", "low", "high")},
        "rows": rows,
        "flips": flips,
        "notes": comparison.notes,
        **more,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def assert_not_worse(a: str | Path, b: str | Path, margin: float = 1.0, **options: Any) -> None:
    """Raise AssertionError with the table of differences unless `compare(a, b, margin)` finds B not
    worse: for tests."""
    comparison = compare(a, b, margin, **options)
    if comparison.verdict.word != NOT_WORSE:
        raise AssertionError("\n" + difference_table(comparison))


def compare_study(
    study: Study, cells: Iterable[Cell], margin: float = 1.0, by: str = "digest"
) -> Comparison:
    """Compare the two models of a study, or its one model that answered twice, on what the study
    asks. Raises UserError where the cells are not of two."""
    by_side: dict[str, list[Cell]] = {}
    for cell in cells:
        name = cell.run if len(study.models) == 1 else cell.model
        by_side.setdefault(name, []).append(cell)

    if len(by_side) != 2:
        raise UserError(
            "a comparison needs the predictions of two models, or of one model twice; found "
            f"{', '.join(by_side) or 'none'}"
        )
    a, b = by_side.values()
    return compare(a, b, margin=margin, by=by, num_examples=study.num_examples)

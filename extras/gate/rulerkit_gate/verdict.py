"""What the gate says: its verdict in a sentence, and the comparison behind it as a table."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rulerkit.analysis.compare import CANNOT_TELL, NOT_WORSE, WORSE, Comparison, Decision
from rulerkit.analysis.differences import interval_text, judge_pairs
from rulerkit.analysis.sides import Side, lacking_cells
from rulerkit.common.errors import listed, points_text
from rulerkit_gate.sequential import Design, Look, Place, Tested
from rulerkit_gate.sequential import examples_needed as needed_of

if TYPE_CHECKING:
    import pandas as pd

_CONFIDENCE = 0.95
_MOST_NAMED = 4
_ENOUGH = 100_000  # examples of a cell: nobody asks for more


def verdict_of(
    design: Design, look: Look | None, found: Comparison | None, stopped: str
) -> Decision:
    """The word, and a sentence with the numbers."""
    if look is None or found is None:
        reason = f"it stopped before the first round was complete: {stopped}"
        return Decision(CANNOT_TELL, f"cannot tell, as {reason}; --resume goes on")
    a, b = found.a.name, found.b.name
    worse = f"worse than {a} by more than {points_text(design.margin)}"
    if any(points > design.margin for points in design.noise.values()):
        worse += " and the noise of serving"
    mean = f"mean {interval_text(found.mean)}"

    if look.worse:
        # The mean is told in any case.
        places = [_place_text(found, test) for test in look.worse if test.place.level != "all"]
        parts = [listed(places, _MOST_NAMED, "; "), mean]
        text = "; ".join(filter(None, parts))
        return Decision(WORSE, f"{b} is {worse}: {text}")

    if look.is_not_worse:
        return Decision(NOT_WORSE, f"{b} is not {worse}: {mean}; {_most_lost(design, look)}")

    needed = needed_of(design, look)
    doubts = [mean]
    if look.suspected:
        names = listed((_place_text(found, t) for t in look.suspected), 2, "; ")
        doubts.append(f"a loss is seen in {names}, and it may be larger")
    doubts.append(f"stopped by {stopped}" if stopped else "all examples were asked")
    if needed <= _ENOUGH:
        doubts.append(f"it would take about {needed} examples of each task and length")
    else:
        doubts.append("the loss is so near the margin that no number would do")
    return Decision(CANNOT_TELL, f"cannot tell whether {b} is {worse}: {'; '.join(doubts)}", needed)


def _place_text(found: Comparison, test: Tested) -> str:
    """A place with its difference, and the interval of what was asked there."""
    row = _row_of(found.rows, test.place)
    return f"{test.place.name} {interval_text(row)}"


def _row_of(rows: "pd.DataFrame", place: Place) -> "pd.Series[Any]":
    is_place = (
        (rows["level"] == place.level)
        & (rows["task"] == place.task)
        & (rows["length"] == place.length)
    )
    return rows[is_place].iloc[0]


def _most_lost(design: Design, look: Look) -> str:
    """What the mean, a task or length, and a single cell can have lost without being seen: the
    limits that the verdict rests on."""
    most: dict[str, float] = {}
    for test in look.tests:
        level = "task or length"
        if test.place.level == "cell":
            level = "cell"
        if test is look.tests[-1]:
            level = "mean"
        lost = max(0.0, -100 * test.mean.lower_limit(design.alarms_at(test.place)))
        # Upwards, because the limit is promised.
        most[level] = max(most.get(level, 0.0), math.ceil(10 * lost) / 10)
    texts = [f"at most {points_text(most['mean'])} of the mean"]
    for level in ("task or length", "cell"):
        if level in most:
            texts.append(f"{points_text(most[level])} of any {level}")
    return f"{listed(texts, len(texts))} can have been lost unseen"


def comparison_of(
    design: Design,
    pairs: "pd.DataFrame",
    sides: Sequence[Side],
    notes: Sequence[str],
    look: Look,
    by: str,
) -> Comparison:
    """The comparison of all pairs so far, in which a loss is what the gate's own tests say: those
    of a single comparison would find one too often where it is looked at after each round."""

    rows, cells = judge_pairs(pairs, design.margin, _CONFIDENCE)
    tests = {frozenset(test.place.cells): test for test in look.tests}
    beyond = {frozenset(test.place.cells) for test in look.worse}
    each = design.alarms / len(design.places)
    for number, row in rows.iterrows():
        keys = frozenset(
            key
            for key in design.cells
            if row["task"] in ("", key[0]) and row["length"] in (0, key[1])
        )
        test = tests[keys]
        rows.loc[number, "p"] = min(1.0, test.p_of_any * len(design.places))
        rows.loc[number, "loss"] = keys in beyond or test.p_of_any < each
        rows.loc[number, "p_margin"] = test.p
        rows.loc[number, "beyond_margin"] = keys in beyond
        limit = test.mean.lower_limit(design.alarms_at(test.place))
        rows.loc[number, "lower_limit"] = 100 * limit

    columns = ["task", "length", "index", "digest", "a", "b", "difference"]
    flips = pairs[pairs["difference"] != 0][columns].reset_index(drop=True)
    flips["difference"] *= 100
    a, b = sides
    return Comparison(
        a,
        b,
        margin=design.margin,
        confidence=_CONFIDENCE,
        by=by,
        rows=rows,
        flips=flips,
        cells=tuple(cells),
        lacking=tuple(lacking_cells(a, b)),
        missing=(),
        notes=tuple(notes),
    )

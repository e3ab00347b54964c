"""What the gate says: its verdict in a sentence, and the comparison behind it as a table."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rulerkit.analysis import compare
from rulerkit.analysis.compare import CANNOT_TELL, NOT_WORSE, WORSE, Comparison, Decision, Side
from rulerkit.analysis.differences import Place, interval_text, places_of
from rulerkit.common.errors import listed, points_text
from rulerkit_gate.sequential import Design, Look, Tested
from rulerkit_gate.sequential import examples_needed as needed_of

if TYPE_CHECKING:
    import pandas as pd

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
    sides: tuple[Side, Side],
    notes: Sequence[str],
    look: Look,
    by: str,
) -> Comparison:
    """The comparison of all pairs so far, in which a loss is what the gate's own tests say: those
    of a single comparison would find one too often where it is looked at after each round."""

    found = compare.comparison_of(*sides, pairs, notes, design.margin, by)
    tests = {frozenset(test.place.cells): test for test in look.tests}
    beyond = {frozenset(test.place.cells) for test in look.worse}
    each = design.alarms / len(design.places)
    cells = found.rows.loc[found.rows["level"] == "cell", ["task", "length"]]
    places = places_of(cells.itertuples(index=False, name=None))
    for number, place in enumerate(places):
        keys = frozenset(place.cells)
        test = tests[keys]
        limit = test.mean.lower_limit(design.alarms_at(test.place))
        found.rows.loc[number, ["p", "p_margin", "lower_limit"]] = [
            min(1.0, test.p_of_any * len(design.places)),
            test.p,
            100 * limit,
        ]
        found.rows.loc[number, ["loss", "beyond_margin"]] = [
            keys in beyond or test.p_of_any < each,
            keys in beyond,
        ]
    return found

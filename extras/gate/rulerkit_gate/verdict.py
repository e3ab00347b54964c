"""What the gate says: the comparison with the gate's own tests, and its verdict in a sentence."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rulerkit.analysis import compare
from rulerkit.analysis.compare import CANNOT_TELL, NOT_WORSE, Comparison, Decision, Side
from rulerkit.analysis.differences import interval_text, places_of
from rulerkit.common.errors import listed, points_text
from rulerkit_gate.sequential import Design, Look, examples_needed

if TYPE_CHECKING:
    import pandas as pd

_ENOUGH = 100_000  # examples of a cell: nobody asks for more


def comparison_of(
    design: Design,
    look: Look,
    a: Side,
    b: Side,
    pairs: "pd.DataFrame",
    notes: Sequence[str],
    by: str,
) -> Comparison:
    """The comparison of all pairs so far, in which a loss is what the gate's own tests say: those
    of a single comparison would find one too often where it is looked at after each round."""
    found = compare.comparison_of(a, b, pairs, notes, design.margin, by)
    rows = found.rows
    tests = {frozenset(test.place.cells): test for test in look.tests}
    beyond = [test.place for test in look.worse]
    each = design.alarms / len(design.places)
    keys = rows.loc[rows["level"] == "cell", ["task", "length"]]
    for number, place in enumerate(places_of(keys.itertuples(index=False, name=None))):
        test = tests[frozenset(place.cells)]
        is_beyond = test.place in beyond
        limit = test.mean.lower_limit(design.alarms_at(test.place))
        p = min(1.0, test.p_of_any * len(design.places))
        rows.loc[number, ["p", "p_margin", "lower_limit"]] = [p, test.p, 100 * limit]
        is_loss = is_beyond or test.p_of_any < each
        rows.loc[number, ["loss", "beyond_margin"]] = [is_loss, is_beyond]
    return found


def verdict_of(
    design: Design, look: Look | None, found: Comparison | None, stopped: str
) -> Decision:
    """The word, and a sentence with the numbers."""
    if look is None or found is None:
        reason = f"it stopped before the first round was complete: {stopped}"
        return Decision(CANNOT_TELL, f"cannot tell, as {reason}; --resume goes on")
    if look.worse:
        return found.verdict

    worse = f"worse than {found.a.name} by more than {points_text(design.margin)}"
    if any(points > design.margin for points in design.noise.values()):
        worse += " and the noise of serving"
    mean = f"mean {interval_text(found.mean)}"
    if look.is_not_worse:
        text = f"{found.b.name} is not {worse}: {mean}; {_most_lost(design, look)}"
        return Decision(NOT_WORSE, text)

    doubts = [mean]
    if look.suspected:
        names = listed((test.place.name for test in look.suspected), 2)
        doubts.append(f"a loss is seen in {names}, and it may be larger")
    doubts.append(f"stopped by {stopped}" if stopped else "all examples were asked")
    needed = examples_needed(design, look)
    if needed <= _ENOUGH:
        doubts.append(f"it would take about {needed} examples of each task and length")
    else:
        doubts.append("the loss is so near the margin that no number would do")
    text = f"cannot tell whether {found.b.name} is {worse}: {'; '.join(doubts)}"
    return Decision(CANNOT_TELL, text, needed)


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

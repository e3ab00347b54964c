"""What the paper says, held against the data: a claim holds, does not hold, or cannot be judged, by intervals.

Everything rests on `contrast`: a weighted sum of mean scores with its interval. Example i of a task asks the same at
every length and of every model, so what is compared there is compared example by example; different tasks ask
different things and count as independent. A claim with several parts holds if every part does.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.lengths import length_name
from rulerkit.tables import show

if TYPE_CHECKING:
    import pandas as pd
    from pandas.io.formats.style import Styler

HOLDS, FAILS, UNKNOWN, ELSEWHERE = "holds", "does not hold", "cannot be judged with this data", "not applicable"
MARGIN = 2.0
"""Points: a difference that is certainly smaller than this is called none."""
_DRAWN = 2.0  # examples' worth, half right and half wrong, that keep an interval from having no width
_COLORS = {HOLDS: "#d9efe6", FAILS: "#f9dcc9", UNKNOWN: "#eeeeee", ELSEWHERE: "#ffffff"}


class Verdict(NamedTuple):
    """A claim, what the data say of it, and the numbers that were seen."""

    claim: str
    verdict: str
    seen: str


class Estimate(NamedTuple):
    """Points (percent) with the limits of an interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f} [{self.low:.1f}, {self.high:.1f}]"


def verdict_table(verdicts: Iterable[Verdict]) -> "pd.DataFrame":
    """Columns claim, verdict, seen."""
    import pandas as pd

    return pd.DataFrame(list(verdicts), columns=list(Verdict._fields))


def show_verdicts(verdicts: Iterable[Verdict]) -> "Styler":
    """The verdicts as a small table for a notebook."""
    shaded = show(verdict_table(verdicts)).apply(
        lambda row: [f"background-color: {_COLORS.get(row['verdict'], '')}"] * 3, axis=1
    )
    left: list[Any] = [
        {"selector": "td, th", "props": "text-align: left; vertical-align: top; color: black; max-width: 34em"}
    ]
    return shaded.set_table_styles(left)


def select(scores: "pd.DataFrame", **wanted: object) -> "pd.DataFrame":
    """The rows whose columns hold these values; a list or tuple stands for any of them, None for all."""
    for column, value in wanted.items():
        if isinstance(value, list | tuple | set):
            scores = scores[scores[column].isin(list(value))]
        elif value is not None:
            scores = scores[scores[column] == value]
    return scores


def asked_for(scores: "pd.DataFrame", num_examples: int) -> "pd.DataFrame":
    """The first so many examples of each cell, however many earlier runs have left there."""
    return scores[scores["index"] < num_examples].assign(wanted=num_examples)


# --- intervals --------------------------------------------------------------------------------------------------------


def contrast(parts: Sequence[tuple[float, "pd.DataFrame"]], confidence: float = 0.95) -> Estimate | None:
    """The sum of weight times mean score over parts, in points; None where a part's cells are missing or incomplete.

    Each part is a weight and rows of `score`; its mean is that of its cells (model, task, length), all alike. Examples
    with the same task and index are one observation in every part. Normal limits over a centre that is drawn towards
    chance by two examples' worth, so that all right does not mean no doubt.
    """
    totals: dict[str, dict[int, float]] = {}
    spans: dict[str, float] = {}
    middles: dict[str, float] = {}
    for weight, rows in parts:
        if not _complete(rows):
            return None
        cells = rows.groupby(["run", "model", "task", "length"])
        share = weight / cells.ngroups
        for task, own in rows.groupby("task"):
            name, sums = str(task), own.groupby("index")["score"].sum()
            count = len(own) / len(sums)
            spans[name] = spans.get(name, 0.0) + abs(share) * count
            middles[name] = middles.get(name, 0.0) + share * count / 2
            found = totals.setdefault(name, {})
            for index, value in sums.items():
                found[int(str(index))] = found.get(int(str(index)), 0.0) + share * float(value)
    drawn = _DRAWN / len(totals)
    value = centre = variance = 0.0
    for name, found in totals.items():
        x, span, middle = np.asarray(list(found.values())), spans[name], middles[name]
        n = x.size + drawn
        own_centre = (x.sum() + drawn * middle) / n
        ends = ((middle + end * span / 2 - own_centre) ** 2 for end in (-1, 1))
        spread = (((x - own_centre) ** 2).sum() + drawn / 2 * sum(ends)) / n
        value, centre, variance = value + float(x.mean()), centre + own_centre, variance + spread / n
    half = NormalDist().inv_cdf(0.5 + confidence / 2) * math.sqrt(variance)
    least, most = (sum(middles.values()) + end * sum(spans.values()) / 2 for end in (-1, 1))
    limits = max(least, min(value, centre - half)), min(most, max(value, centre + half))
    return Estimate(*(100 * v for v in (value, *limits)))


def _complete(rows: "pd.DataFrame") -> bool:
    if rows.empty:
        return False
    cells = rows.groupby(["run", "model", "task", "length"])
    return bool((cells["index"].nunique() >= cells["wanted"].max()).all()) and (cells["index"].nunique().nunique() == 1)


def difference(a: "pd.DataFrame", b: "pd.DataFrame", confidence: float = 0.95) -> Estimate | None:
    """Mean of a less mean of b."""
    return contrast([(1.0, a), (-1.0, b)], confidence)


def ratio_difference(a: "tuple[pd.DataFrame, pd.DataFrame]", b: "tuple[pd.DataFrame, pd.DataFrame]") -> Estimate | None:
    """What a keeps less what b keeps, in points: each is (rows at the start, rows at the end), kept = end / start."""
    parts: list[tuple[float, pd.DataFrame]] = []
    value = 0.0
    for sign, (start, end) in ((1.0, a), (-1.0, b)):
        first, last = float(start["score"].mean()), float(end["score"].mean())
        if not first > 0:
            return None
        parts += [(sign / first, end), (-sign * last / first**2, start)]
        value += sign * last / first
    found = contrast(parts)  # linear around the two means, where it is zero by construction
    return found and Estimate(100 * value, 100 * value + found.low, 100 * value + found.high)


# --- judging ----------------------------------------------------------------------------------------------------------


def _judged(claim: str, name: str, found: Estimate | None, holds: Callable[[Estimate], bool],
            fails: Callable[[Estimate], bool]) -> Verdict:  # fmt: skip
    if found is None:
        return missing(claim, name)
    return Verdict(claim, HOLDS if holds(found) else FAILS if fails(found) else UNKNOWN, f"{name}: {found}")


def missing(claim: str, what: str) -> Verdict:
    """The verdict where cells are missing or incomplete."""
    return Verdict(claim, UNKNOWN, f"{what}: not all of it was run")


def lower(claim: str, a: "pd.DataFrame", b: "pd.DataFrame", name: str, confidence: float = 0.95) -> Verdict:
    """a is lower than b: their difference is below zero; fails where it is certainly above -MARGIN."""
    found = difference(a, b, confidence)
    return _judged(claim, name, found, lambda d: d.high < 0, lambda d: d.low > -MARGIN)


def about(
    claim: str, a: "pd.DataFrame", b: "pd.DataFrame", points: float, name: str, within: float | None = None
) -> Verdict:
    """a is about `points` below b: give or take `within`, by default a quarter of the points and at least 5."""
    give = max(5.0, points / 4) if within is None else within
    low, high = points - give, points + give
    return _judged(
        claim, name, difference(b, a), lambda d: d.low >= low and d.high <= high, lambda d: d.high < low or d.low > high
    )


def above(claim: str, rows: "pd.DataFrame", threshold: float, name: str) -> Verdict:
    """The mean reaches a threshold (percent)."""
    return _judged(claim, name, contrast([(1.0, rows)]), lambda s: s.low >= threshold, lambda s: s.high < threshold)


def below(claim: str, rows: "pd.DataFrame", threshold: float, name: str) -> Verdict:
    """The mean stays below a threshold (percent)."""
    return _judged(claim, name, contrast([(1.0, rows)]), lambda s: s.high < threshold, lambda s: s.low >= threshold)


def falls(claim: str, groups: Mapping[str, "pd.DataFrame"], what: str = "", steadily: bool = False) -> Verdict:
    """Lower from group to group: lower at the end, and no step certainly up. `steadily`: nor all in one step."""
    names, rows = list(groups), list(groups.values())
    if len(names) < 2:
        return Verdict(claim, UNKNOWN, f"{what}only {', '.join(names) or 'nothing'} to compare")
    name = f"{what}{names[-1]} less {names[0]}"
    whole = lower(claim, rows[-1], rows[0], name)
    steps = [difference(rows[i + 1], rows[i], 1 - 0.05 / (len(rows) - 1)) for i in range(len(rows) - 1)]
    if any(step is None for step in steps):
        return missing(claim, what or "the whole row")
    up = [(i, step) for i, step in enumerate(steps) if step is not None and step.low > 0]
    if not up and steadily and len(rows) > 2 and whole.verdict == HOLDS:
        i = min(range(len(steps)), key=lambda k: steps[k].value if steps[k] else 0.0)  # type: ignore[union-attr]
        rest = contrast([(1.0, rows[-1]), (-1.0, rows[0]), (-1.0, rows[i + 1]), (1.0, rows[i])])
        name = f"{whole.seen}; without the step {names[i]} to {names[i + 1]}"
        return _judged(claim, name, rest, lambda d: d.high < 0, lambda d: d.low > -MARGIN)
    if not up:
        return whole
    rises = ", ".join(f"{names[i]} to {names[i + 1]} rises by {step}" for i, step in up)
    return Verdict(claim, FAILS, f"{whole.seen}; {rises}")


def falls_with_length(claim: str, rows: "pd.DataFrame", name: str) -> Verdict:
    """Steadily lower with the length."""
    return falls(claim, by_length(rows), f"{name}, ", steadily=True)


def by_length(rows: "pd.DataFrame") -> "dict[str, pd.DataFrame]":
    """The rows of each length, shortest first, by the length's name."""
    return {length_name(int(n)): rows[rows["length"] == n] for n in sorted(rows["length"].unique())}


def straight(claim: str, rows: "pd.DataFrame", name: str, within: float = 5.0) -> Verdict:
    """Linear in log length: no length's mean is further than `within` points from the line through all of them."""
    lengths = sorted(int(n) for n in rows["length"].unique())
    if len(lengths) < 3:
        return Verdict(claim, UNKNOWN, f"{name}: {len(lengths)} lengths, a line needs at least 3 to be tested")
    x = np.log2(lengths)
    design = np.column_stack([np.ones_like(x), x])
    residual = np.eye(len(x)) - design @ np.linalg.pinv(design)
    groups = [rows[rows["length"] == n] for n in lengths]
    found = [
        contrast([(float(w), g) for w, g in zip(line, groups, strict=True) if abs(w) > 1e-9], 1 - 0.05 / len(x))
        for line in residual
    ]
    off = [each for each in found if each is not None]
    if len(off) < len(found):
        return missing(claim, name)
    worst = max(range(len(off)), key=lambda i: abs(off[i].value))
    inside = all(each.low >= -within and each.high <= within for each in off)
    outside = any(each.low > within or each.high < -within for each in off)
    seen = f"{name}: farthest from its line at {length_name(lengths[worst])}, by {off[worst]}"
    return Verdict(claim, HOLDS if inside else FAILS if outside else UNKNOWN, seen)


def abrupt(claim: str, rows: "pd.DataFrame", beyond: float, name: str) -> Verdict:
    """The fall per doubling past a length is greater than the mean fall per doubling up to it (flat where one length)."""
    lengths = sorted(int(n) for n in rows["length"].unique())
    inside, outside = [n for n in lengths if n <= beyond], [n for n in lengths if n > beyond]
    if not inside or not outside:
        side = "beyond" if inside else "up to"
        return Verdict(claim, UNKNOWN, f"{name}: nothing was run {side} {length_name(int(beyond))}")
    first, edge, after = inside[0], inside[-1], outside[0]
    weights = {edge: 1 / np.log2(after / edge), after: -1 / np.log2(after / edge)}
    if edge > first:
        weights[first] = -1 / np.log2(edge / first)
        weights[edge] += 1 / np.log2(edge / first)
    found = contrast([(float(w), rows[rows["length"] == n]) for n, w in weights.items()])
    label = f"{name}: fall {length_name(edge)} to {length_name(after)} less the mean fall before, per doubling"
    return _judged(claim, label, found, lambda d: d.low > 0, lambda d: d.high < MARGIN)


def every(claim: str, parts: Sequence[Verdict]) -> Verdict:
    """Holds if all parts do, fails if any does; parts that are not applicable do not count."""
    counted = [part for part in parts if part.verdict != ELSEWHERE]
    if not counted:
        return Verdict(claim, ELSEWHERE, "; ".join(part.seen for part in parts))
    found = {part.verdict for part in counted}
    verdict = FAILS if FAILS in found else UNKNOWN if UNKNOWN in found else HOLDS
    return Verdict(claim, verdict, "; ".join(part.seen for part in counted))


def some(claim: str, parts: Sequence[Verdict]) -> Verdict:
    """Holds if any part does, fails if all do."""
    if any(part.verdict == HOLDS for part in parts):
        return Verdict(claim, HOLDS, "; ".join(part.seen for part in parts if part.verdict == HOLDS))
    verdict = FAILS if parts and all(part.verdict == FAILS for part in parts) else UNKNOWN
    return Verdict(claim, verdict, "; ".join(part.seen for part in parts))


def not_shown(claim: str, *models: str) -> Verdict:
    """The verdict on a claim that names models which are not among those shown."""
    return Verdict(claim, ELSEWHERE, f"about {', '.join(models)}, not among the models shown")

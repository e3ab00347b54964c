"""What each kind of claim means: a function from a claim of `data/paper/claims.yaml`, whose head
says it in words, and the rows of `selection.tidy` to a verdict.

A claim holds, or does not, where no value within the interval says otherwise; else it cannot be
judged. Rows of examples have the intervals of `statistics.weighted_sum`; printed scores are known
to one decimal.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rulerkit.analysis import correlation
from rulerkit.analysis.selection import Missing, select, setting
from rulerkit.common.errors import UserError, shorten
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.generation.tasks.niah import NEAR
from rulerkit.scoring.effective_length import THRESHOLDS
from rulerkit.scoring.statistics import Estimate, WeightedCell, weighted_sum
from rulerkit.scoring.summary import CELL, weighted_cells

Claim = Mapping[str, Any]

HOLDS = "✓ holds"
FAILS = "✗ does not hold"
UNKNOWN = "? cannot be judged"
NEGLIGIBLE = 2.0
"""Points: where a claim says "lower" without saying by how much, a difference certainly smaller
than this refutes it."""
ROUNDING = 0.05
"""Points by which a printed score may be off."""
_OPPOSITE = {"lower by": "higher by", "higher by": "lower by"}
_MOST_SHOWN = 6  # verdicts whose numbers are shown
Part = tuple[float, pd.DataFrame]
"""A weight and the rows whose mean it multiplies."""


# --- a verdict by an interval ---------------------------------------------------------------------


class Verdict(NamedTuple):
    """One of the three words, the numbers that were seen, and what is missing to judge."""

    word: str
    seen: str = ""
    missing: str = ""


def estimate(parts: Sequence[Part], confidence: float = 0.95) -> Estimate:
    """The sum of weight times mean score over parts, in points, with its interval.

    The mean of a part is that of its cells (run, model, task, length): all weigh the same, or what
    the column `weight` says. Examples with the same task and index are one observation in every
    part. Rows without an index are means as printed.
    """
    cells: list[WeightedCell] = []
    printed, rounding = 0.0, 0.0
    for weight, rows in parts:
        rows = rows.assign(weight=rows.get("weight", 1.0))
        if "index" not in rows:
            # a printed row is a cell
            mean = np.average(rows["score"], weights=rows["weight"])
            printed += 100 * weight * float(mean)
            rounding += abs(weight) * ROUNDING
            continue
        weights = rows.groupby(CELL)["weight"].first()
        weights *= weight / weights.sum()
        for key, cell in weighted_cells(rows, CELL).items():
            cells.append(cell._replace(weight=float(weights[key])))
    if not cells:
        return Estimate(printed, printed - rounding, printed + rounding)
    return weighted_sum(cells, confidence).percent()


def within(interval: Sequence[float], limits: Any, words: str = "") -> Verdict:
    """Whether a value lies between two limits, or above one, by its interval. What is to be above 0
    is refuted by less than NEGLIGIBLE."""
    at_least, at_most = limits if isinstance(limits, Sequence) else (limits, inf)
    value, low, high = interval
    # neither is true where the interval contains a limit, or where it is NaN
    word = UNKNOWN
    if at_least < low and high < at_most:
        word = HOLDS
    elif high < (NEGLIGIBLE if at_least == 0 else at_least) or low > at_most:
        word = FAILS

    if value < 0 and words in _OPPOSITE:
        words, value, low, high = _OPPOSITE[words], -value, -high, -low
    seen = f"{words} {round(value, 2):g} [{round(low, 2):g}, {round(high, 2):g}]".strip()
    return Verdict(word, seen, "more examples" if word == UNKNOWN else "")


def share_of(parts: Mapping[str, Verdict], limits: Sequence[float]) -> Verdict:
    """The share of parts that hold lies between two limits (0..1), however the parts that cannot be
    judged would turn out."""
    words = Counter(part.word for part in parts.values())
    low = words[HOLDS] / len(parts)
    high = low + words[UNKNOWN] / len(parts)
    word = UNKNOWN
    if limits[0] <= low and high <= limits[1]:
        word = HOLDS
    elif high < limits[0] or low > limits[1]:
        word = FAILS

    seen = "; ".join(f"{name}: {part.seen}" for name, part in parts.items() if part.seen)
    if len(parts) > _MOST_SHOWN:
        seen = f"{words[HOLDS]} of {len(parts)}"
        if others := [name for name, part in parts.items() if part.word == FAILS]:
            seen += f"; not {shorten(', '.join(others), 120)}"
    missing = dict.fromkeys(part.missing for part in parts.values() if part.missing)
    return Verdict(word, seen, "; ".join(missing) if word == UNKNOWN else "")


# --- one mean, or two -----------------------------------------------------------------------------


def _level(claim: Claim, frame: pd.DataFrame) -> Verdict:
    rows, limit = select(frame, claim["rows"], claim), claim["limit"]
    if limit == "threshold":
        limit = THRESHOLDS[rows["aligned"].iloc[0]]["all"]
    elif limit == "chance":
        limit = 100 * float((2 * NEAR / rows["length"]).clip(upper=1).mean())
    limits = (limit, inf) if claim["kind"] == "above" else (-inf, limit)
    return within(estimate([(1, rows)]), limits, "share" if "answers" in claim else "mean")


def _difference(claim: Claim, frame: pd.DataFrame) -> Verdict:
    rows, than = (select(frame, claim[side], claim) for side in ("rows", "than"))
    if set(rows.index) == set(than.index):
        raise Missing("a second length")
    if claim["rows"].get("lengths") == claim["than"].get("lengths"):
        _check_lengths([rows, than])
    sign = 1 if claim["kind"] == "lower" else -1
    difference = estimate([(sign, than), (-sign, rows)])
    return within(difference, claim.get("by", 0), f"{claim['kind']} by")


def _check_lengths(groups: Sequence[pd.DataFrame]) -> None:
    """Raise Missing where groups are means over other lengths."""
    if len({frozenset(group["length"]) for group in groups}) > 1:
        raise Missing("the same lengths of all that is compared")


# --- several lengths, tasks or models -------------------------------------------------------------


def _by_length(rows: pd.DataFrame, fewest: int = 2) -> dict[int, pd.DataFrame]:
    groups = {length: rows[rows["length"] == length] for length in sorted(rows["length"].unique())}
    if len(groups) < fewest:
        raise Missing(f"{fewest} lengths")
    return groups


def _along(claim: Claim, frame: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each length, model or task by its name, in the order in which they are to
    fall."""
    rows, along = select(frame, claim["rows"], claim), claim["along"]
    is_length = along in rows
    values: Any = rows[along] if is_length else rows["task"].map(lambda task: setting(task, along))
    order = sorted(values.dropna().unique(), reverse=claim.get("order") == "descending")
    lacking = [f"{end:g}" for end in claim.get("ends", ()) if end not in order]
    if lacking or len(order) < 2:
        lacked = f"{along} {' and '.join(lacking)}" if lacking else f"a second value of {along}"
        raise Missing(lacked)
    if along != "length":
        _check_lengths([group for _, group in rows.groupby([values, "who"])])
    return {
        length_name(int(value)) if is_length else f"{along} {value:g}": rows[values == value]
        for value in order
    }


def _falls(claim: Claim, frame: pd.DataFrame) -> Verdict:
    """The mean is lower in the last group than in the first, and no step is certainly up."""
    groups = _along(claim, frame)
    first, *_, last = groups
    fall = within(estimate([(1, groups[first]), (-1, groups[last])]), 0, "lower by")
    seen = f"{first} to {last} {fall.seen}"

    # The intervals of all steps hold together (Bonferroni): among many steps of a model that falls,
    # one would else be certainly up by chance.
    steps = list(pairwise(groups))
    rises = {}
    for a, b in steps:
        rises[a, b] = estimate([(-1, groups[a]), (1, groups[b])], 1 - 0.05 / len(steps))
    up = [f"; {a} to {b} higher by {rises[a, b]}" for a, b in steps if rises[a, b].low > 0]
    if up:
        return Verdict(FAILS, seen + "".join(up))
    if not claim.get("steadily") or fall.word != HOLDS or len(steps) < 2:
        return fall._replace(seen=seen)

    # The fall up to the largest step, and that from it on. Where the step is at an end, a group
    # stands on both sides and its weights cancel.
    before, after = min(steps, key=lambda step: rises[step].value)
    weights = Counter([first, after])
    weights.subtract([before, last])
    rest: list[Part] = [(weight, groups[name]) for name, weight in weights.items() if weight]
    found = within(estimate(rest), 0, "lower by")
    return found._replace(seen=f"{seen}; without {before} to {after} {found.seen}")


def _from_end_to_end(claim: Claim, frame: pd.DataFrame) -> Verdict:
    """What two sides lose from the shortest to the longest length, in points or as a share."""
    parts: list[Part] = []
    offset, words = 0.0, "more points lost:"
    for sign, side in ((1, "rows"), (-1, "than")):
        groups = _by_length(select(frame, claim[side]))
        first, last = groups[min(groups)], groups[max(groups)]
        by_first, by_last = 1.0, -1.0
        if claim["kind"] == "loses share":
            start, end = estimate([(1, first)]).value, estimate([(1, last)]).value
            if not start > 0:
                raise Missing(f"anything right at {length_name(min(groups))}")
            # The quotient to first order: its derivatives, which add up to 0, are the weights.
            by_first, by_last = 100 * end / start**2, -100 / start
            offset, words = offset - sign * 100 * end / start, "more percent lost:"
        parts += [(sign * by_first, first), (sign * by_last, last)]
    interval = [offset + limit for limit in estimate(parts)]
    return within(interval, 0, words)


def _largest_fall(claim: Claim, frame: pd.DataFrame) -> Verdict:
    """The fall past a length is larger than each before it; the intervals hold together."""
    groups = _by_length(select(frame, claim["rows"]))
    steps = list(pairwise(groups))
    last = [step for step in steps if step[1] > parse_length(claim["past"])][:1]
    earlier = [step for step in steps if step[1] <= parse_length(claim["past"])]
    if not last or not earlier:
        raise Missing(f"a length past {claim['past']}, and two up to it")
    found = {}
    for step in earlier:
        signs = zip((1, -1, -1, 1), (*last[0], *step), strict=True)
        parts = [(sign, groups[length]) for sign, length in signs]
        name = " to ".join(map(length_name, step))
        found[name] = within(estimate(parts, 1 - 0.05 / len(earlier)), 0, "less by")
    return share_of(found, [1, 1])


def _line(groups: Mapping[int, pd.DataFrame]) -> tuple[Any, Any]:
    """Of the line of least squares through the means in log length: the weights of the means in its
    slope (points a doubling), and in their distances from it."""
    design = np.stack([np.ones(len(groups)), np.log2(list(groups))], axis=1)
    solution = np.linalg.pinv(design)
    return solution[1], np.eye(len(groups)) - design @ solution


def _abrupt(claim: Claim, frame: pd.DataFrame) -> Verdict:
    """The fall past the training length, less what the line would fall over as many doublings."""
    beyond = select(frame, {**claim["rows"], "lengths": "shortest past trained"})
    inside = _by_length(select(frame, {**claim["rows"], "lengths": "up to trained"}))
    edge, after = max(inside), int(beyond["length"].iloc[0])
    slope, _ = _line(inside)
    line = [(float(weight), rows) for weight, rows in zip(slope, inside.values(), strict=True)]
    doublings = float(np.log2(after / edge))
    fall: list[Part] = [(1, inside[edge]), (-1, beyond)]
    excess = fall + [(doublings * weight, rows) for weight, rows in line]
    found = within(estimate(excess), claim["by"], "more by")
    words = f"{length_name(edge)} to {length_name(after)} lower by {estimate(fall)}"
    return found._replace(seen=f"{words}, before {estimate(line)} a doubling; {found.seen}")


def _linear(claim: Claim, frame: pd.DataFrame) -> Verdict:
    """The line falls, and no mean is far from it; the intervals of the distances hold together."""
    groups = _by_length(select(frame, claim["rows"]), fewest=3)
    rows = list(groups.values())
    slope, distances = _line(groups)
    doublings = float(np.log2(max(groups) / min(groups)))
    fall = estimate(list(zip(-doublings * slope, rows, strict=True)))
    found = {"line": within(fall, 0, "lower by")}
    for length, weights in zip(groups, distances, strict=True):
        distance = estimate(list(zip(weights, rows, strict=True)), 1 - 0.05 / len(rows))
        limits = (-claim["within"], claim["within"])
        found[length_name(length)] = within(distance, limits, "off by")
    verdict = share_of(found, [1, 1])
    a_doubling = estimate(list(zip(slope, rows, strict=True)))
    return verdict._replace(seen=f"{a_doubling} a doubling; {verdict.seen}")


def _out_of_order(claim: Claim, frame: pd.DataFrame) -> Verdict:
    """Some model is lower than one of a smaller training length; the intervals of all pairs hold
    together."""
    rows = select(frame, claim["rows"]).dropna(subset=["trained"])
    models: dict[Any, pd.DataFrame] = dict(iter(rows.groupby("who", sort=False)))
    trained = rows.groupby("who")["trained"].first()
    pairs = [(a, b) for a in models for b in models if trained[a] < trained[b]]
    if not pairs:
        raise Missing("models of two training lengths")
    _check_lengths(list(models.values()))
    found = {}
    for less, more in pairs:
        difference = estimate([(1, models[less]), (-1, models[more])], 1 - 0.05 / len(pairs))
        found[f"{more} than {less}"] = within(difference, 0, "lower by")
    verdict = share_of(found, [1 / len(pairs), 1])
    holding = [f"{name}: {part.seen}" for name, part in found.items() if part.word == HOLDS]
    return verdict._replace(seen="; ".join(holding[:3]) or verdict.seen)


def _correlation(claim: Claim, frame: pd.DataFrame) -> Verdict:
    """Correlations of the tasks over models and lengths: each must hold, or some for `moderate`."""
    if "thirteen" in set(frame["task"]):
        raise Missing("scores of single tasks")
    try:
        intervals = correlation.judged_intervals(frame, claim["kind"])
    except UserError as error:
        raise Missing(str(error)) from None
    limits = {
        "cohesive": (1e-9, inf),
        "redundant": claim.get("limit"),
        "moderate": (-2, claim.get("limit")),
    }
    found = {name: within(value, limits[claim["kind"]]) for name, value in intervals.items()}
    if not found:
        raise Missing("tasks to compare")
    some = 1 / len(found) if claim["kind"] == "moderate" else 1
    return share_of(found, [some, 1])


KINDS: dict[str, Callable[[Claim, pd.DataFrame], Verdict]] = {
    "above": _level,
    "below": _level,
    "lower": _difference,
    "higher": _difference,
    "falls": _falls,
    "loses share": _from_end_to_end,
    "loses points": _from_end_to_end,
    "largest fall": _largest_fall,
    "abrupt": _abrupt,
    "linear": _linear,
    "out of order": _out_of_order,
    "cohesive": _correlation,
    "redundant": _correlation,
    "moderate": _correlation,
}

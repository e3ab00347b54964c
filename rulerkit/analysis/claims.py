"""Judge what the paper says by the scores at hand: a claim holds, does not hold, cannot be judged,
or does not apply.

A notebook states each claim in one of its cells and picks the rows; the functions here compare
means by the intervals of `statistics.weighted_sum`. Rows are those of `asked`: one row per example,
`score` in 0..1. Thresholds and differences are in points (percent). Where no rows are given, the
study does not ask what the claim is about, and the claim does not apply. Where an answer is
missing, nothing is judged.

First come the rows, then claims about one interval (`judge`, `lower`, `above`), about a row of
groups (`falls`), about several verdicts (`every`, `some`), and about shares of errors (`rate`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import inf
from typing import Any, NamedTuple

import pandas as pd

from rulerkit.common.errors import unknown
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.evaluation.study import Study
from rulerkit.generation.tasks import task
from rulerkit.scoring.statistics import Estimate, WeightedCell, weighted_sum
from rulerkit.scoring.summary import CELL, merge_repetitions, weighted_cells

HOLDS = "holds"
FAILS = "does not hold"
UNKNOWN = "cannot be judged with this data"
NOT_APPLICABLE = "not applicable"
NEGLIGIBLE = 2.0
"""Points: where a claim says "lower" without saying by how much, a difference certainly smaller
than this refutes it."""
Part = tuple[float, pd.DataFrame]
"""A weight and the rows whose mean it multiplies."""
_MISSING = "answers are missing"
_LOWER = "lower by "
_HIGHER = "higher by "


class Verdict(NamedTuple):
    """A claim, what the data say of it, and the numbers that were seen."""

    claim: str
    verdict: str
    seen: str


def verdict_table(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """Columns claim, verdict, seen."""
    rows = [verdicts] if isinstance(verdicts, Verdict) else list(verdicts)
    return pd.DataFrame(rows, columns=list(Verdict._fields))


# --- rows -----------------------------------------------------------------------------------------


def asked(scores: pd.DataFrame, study: Study) -> pd.DataFrame:
    """A row for each example that the study asks of each model in `scores`; the score is NaN where
    the answer is missing. Of an adaptive run only answered examples have rows."""
    scores = merge_repetitions(scores)
    models = scores[["run", "model", "label", "claimed_length"]]
    models = models.drop_duplicates(["run", "model"])

    # all that is asked: a claim must not be judged by the examples that happen to be there
    names = [task.name for task in study.tasks]
    examples = product(names, study.lengths, range(study.num_examples))
    grid = pd.DataFrame(examples, columns=["task", "length", "index"])

    # an adaptive run stops by itself, so what has no answer was not asked
    how: Any = "inner" if study.adaptive else "left"
    answered = scores.drop(columns=["label", "claimed_length"])
    rows = models.merge(grid, how="cross")
    return rows.merge(answered, how=how, on=[*CELL, "index"])


def by_label(frame: pd.DataFrame, tasks: Mapping[str, Any], panel: str = "") -> pd.DataFrame:
    """The rows of some tasks (label to task, as `rk.task` takes it), with the columns `panel` and
    `series`, the label."""
    parts = []
    for label, spec in tasks.items():
        of_task = frame[frame["task"] == task(spec).name]
        parts.append(of_task.assign(panel=panel, series=label))

    rows = pd.concat(parts or [frame[:0]], ignore_index=True)
    return rows.reindex(columns=["panel", "series", *frame.columns])


def by_model(rows: pd.DataFrame, label: str = "label") -> Iterator[tuple[str, pd.DataFrame]]:
    """'LABEL: ' ('' where there is one model) and the rows of each model without the lengths that
    it was not given.

    Where there are no rows, they are yielded once, so that the claim still has its line.
    """
    if rows.empty:
        yield "", rows
    several = rows[label].nunique() > 1
    for name, of_model in rows.groupby(label, sort=False):
        who = f"{name}: " if several else ""
        # a model with a shorter limit than others has no answer at the longest lengths
        by_length = of_model.groupby("length")["score"]
        num_answers = by_length.transform("count")
        yield who, of_model[num_answers > 0]


def model_rows(rows: pd.DataFrame, name: str) -> pd.DataFrame:
    """The rows of the model with this name or label. Raises UserError where it is not among those
    shown."""
    is_named = (rows["model"] == name) | (rows["label"] == name)
    chosen = rows[is_named]
    if chosen.empty:
        raise unknown("model among those shown", name, rows["model"].unique())
    return chosen


def training_lengths(
    rows: pd.DataFrame, given: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Training length in tokens by label: `given` by name or label, else what the model claims;
    unknown ones left out.

    Raises UserError where `given` names a model that is not shown.
    """
    claimed = rows.groupby("label", sort=False)["claimed_length"]
    trained = claimed.max().astype(float)
    for name, length in (given or {}).items():
        label = model_rows(rows, name)["label"].iloc[0]
        trained[label] = parse_length(length)
    known = trained.dropna()
    return {str(label): length for label, length in known.items()}


# --- one interval ---------------------------------------------------------------------------------


def judge(
    claim: str,
    interval: Sequence[float],
    at_least: float = 0,
    at_most: float = inf,
    seen: str = "",
    fails_below: float | None = None,
) -> Verdict:
    """Whether a value lies between two limits, by its interval (value, low, high) in the unit of
    the limits.

    A value that is certainly below `fails_below` fails; None takes `at_least`. What is lower by
    less than nothing is shown as higher.
    """
    if fails_below is None:
        fails_below = at_least
    value, low, high = interval
    # neither is true where the interval contains a limit, or where it is NaN
    holds = at_least < low and high < at_most
    fails = high < fails_below or low > at_most
    verdict = _verdict(holds, fails)

    if seen.endswith(_LOWER) and value < 0:
        seen = seen.removesuffix(_LOWER) + _HIGHER
        value, low, high = -value, -high, -low
    shown = f"{round(value, 2):g} [{round(low, 2):g}, {round(high, 2):g}]"
    return Verdict(claim, verdict, seen + shown)


def _verdict(holds: bool, fails: bool) -> str:
    if holds:
        return HOLDS
    return FAILS if fails else UNKNOWN


def estimate(parts: Sequence[Part], confidence: float = 0.95) -> Estimate:
    """The sum of weight times mean score over parts, in points, with its interval.

    The mean of a part is that of its cells (run, model, task, length): all weigh the same, or what
    the column `weight` says. Examples with the same task and index are one observation in every
    part.
    """
    cells: list[WeightedCell] = []
    for weight, rows in parts:
        weighted_rows = rows.assign(weight=rows.get("weight", 1.0))
        weights = weighted_rows.groupby(CELL)["weight"].first()
        weights *= weight / weights.sum()
        for key, cell in weighted_cells(rows, CELL).items():
            cells.append(cell._replace(weight=float(weights[key])))
    return weighted_sum(cells, confidence).percent()


def weighted(
    claim: str,
    parts: Sequence[Part],
    at_least: float = 0,
    at_most: float = inf,
    seen: str = "",
    confidence: float = 0.95,
    offset: float = 0,
) -> Verdict:
    """The sum of weight times mean score over parts, plus `offset`, lies between `at_least` and
    `at_most` points."""
    if any(rows.empty for _, rows in parts):
        return Verdict(claim, NOT_APPLICABLE, "not asked")
    if any(_lacks_answers(rows) for _, rows in parts):
        return Verdict(claim, UNKNOWN, _MISSING)

    interval = [offset + limit for limit in estimate(parts, confidence)]
    # A claim that names no size cannot be refuted by an interval that contains 0, however narrow
    # it is: so a difference of next to nothing refutes it.
    fails_below = NEGLIGIBLE if at_least == 0 else at_least
    return judge(
        claim, interval, at_least=at_least, at_most=at_most, seen=seen, fails_below=fails_below
    )


def above(claim: str, rows: pd.DataFrame, threshold: float) -> Verdict:
    """The mean is above a threshold."""
    return weighted(claim, parts=[(1, rows)], at_least=threshold, seen="mean ")


def below(claim: str, rows: pd.DataFrame, threshold: float) -> Verdict:
    """The mean is below a threshold."""
    return weighted(claim, parts=[(1, rows)], at_least=-inf, at_most=threshold, seen="mean ")


def lower(
    claim: str,
    rows: pd.DataFrame,
    than: pd.DataFrame,
    by_at_least: float = 0,
    by_at_most: float = inf,
    confidence: float = 0.95,
) -> Verdict:
    """The mean of the rows is lower than that of others, by so many points."""
    return weighted(
        claim,
        parts=[(1, than), (-1, rows)],
        at_least=by_at_least,
        at_most=by_at_most,
        seen=_LOWER,
        confidence=confidence,
    )


def keeps_more(claim: str, rows: pd.DataFrame, than: pd.DataFrame) -> Verdict:
    """From the shortest to the longest length the rows keep a greater share of their mean than
    others do.

    The interval of the difference of the two quotients is linear around the means that were seen.
    """
    parts: list[Part] = []
    value = 0.0
    for sign, side in ((100.0, rows), (-100.0, than)):
        groups = _groups(side, "length")
        if len(groups) < 2:
            return Verdict(claim, NOT_APPLICABLE, "fewer than two lengths were asked")
        shortest, *_, longest = groups
        first = _mean(groups[shortest])
        last = _mean(groups[longest])
        if not first > 0:  # also where it is NaN
            return Verdict(claim, UNKNOWN, f"nothing is right at {shortest}")

        # last / first, developed to first order: its derivatives are the weights of both means
        by_last = sign / first
        by_first = -sign * last / first**2
        parts += [(by_last, groups[longest]), (by_first, groups[shortest])]
        value += sign * last / first
    # both derivatives together give 0, so the value itself is the offset
    return weighted(claim, parts, seen="keeps more by ", offset=value)


def _lacks_answers(rows: pd.DataFrame) -> bool:
    return bool(rows["score"].isna().any())


def _mean(rows: pd.DataFrame) -> float:
    """The mean score of the cells of some rows, in percent."""
    of_cells = rows.groupby(CELL)["score"].mean()
    return float(100 * of_cells.mean())


# --- a row of groups ------------------------------------------------------------------------------


def _groups(rows: pd.DataFrame, by: str | Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """The rows of each length from the shortest, of each value of another column, or of each task
    of a mapping by label."""
    if isinstance(by, Mapping):
        rows, by = by_label(rows, by), "series"
    groups = {}
    for value, group in rows.groupby(by, sort=by == "length"):
        name = str(value)
        if by == "length":
            name = length_name(int(name))
        groups[name] = group
    return groups


def falls(
    claim: str, rows: pd.DataFrame, by: str | Mapping[str, Any], steadily: bool = False
) -> Verdict:
    """The mean falls from group to group: it is lower in the last than in the first, and no step is
    certainly up.

    `steadily`: it falls without its largest step too. `by` is a column or a mapping from label to
    task.
    """
    groups = _groups(rows, by)
    if len(groups) < 2:
        found = ", ".join(groups) or "none"
        return Verdict(claim, NOT_APPLICABLE, f"fewer than two: {found}")
    if any(_lacks_answers(group) for group in groups.values()):
        return Verdict(claim, UNKNOWN, _MISSING)

    names = list(groups)
    first, last = names[0], names[-1]
    whole = lower(claim, groups[last], than=groups[first])
    seen = f"{first} to {last} {whole.seen}"

    # The intervals of all steps hold together (Bonferroni): among many steps of a model that falls,
    # one would else be certainly up by chance.
    steps = list(pairwise(names))
    confidence = 1 - 0.05 / len(steps)
    rises = {}
    for before, after in steps:
        parts = [(-1, groups[before]), (1, groups[after])]
        rises[before, after] = estimate(parts, confidence)
    certain = [
        f"{before} to {after} {_HIGHER}{rise}"
        for (before, after), rise in rises.items()
        if rise.low > 0
    ]
    if certain:
        return Verdict(claim, FAILS, "; ".join([seen, *certain]))

    if steadily and whole.verdict == HOLDS and len(steps) > 1:
        largest = min(steps, key=lambda step: rises[step].value)
        return _falls_without(claim, groups, largest, seen)
    return whole._replace(seen=seen)


def _falls_without(
    claim: str, groups: dict[str, pd.DataFrame], step: tuple[str, str], seen: str
) -> Verdict:
    """Whether the mean falls from the first to the last group, one step left out."""
    first, *_, last = groups
    before, after = step
    # The fall up to the step, and that from the step on. Where the step is at an end, a group
    # stands on both sides and its weights cancel.
    weights = Counter({first: 1})
    weights[after] += 1
    weights[before] -= 1
    weights[last] -= 1
    parts: list[Part] = []
    for name, weight in weights.items():
        if weight != 0:
            parts.append((weight, groups[name]))
    seen = f"{seen}; without {before} to {after} {_LOWER}"
    return weighted(claim, parts, seen=seen)


# --- several verdicts -----------------------------------------------------------------------------


def among(claim: str, parts: Sequence[Verdict], at_least: float = 0, at_most: float = 1) -> Verdict:
    """The share of parts that hold lies between two limits (0..1), however the parts that cannot be
    judged would turn out.

    Parts that are not applicable do not count.
    """
    seen = "; ".join(f"{part.claim}: {part.seen}" for part in parts)
    counted = [part.verdict for part in parts if part.verdict != NOT_APPLICABLE]
    if not counted:
        return Verdict(claim, NOT_APPLICABLE, seen or "not asked")

    # the share if none of the unknown parts holds, and if all do
    low = counted.count(HOLDS) / len(counted)
    high = low + counted.count(UNKNOWN) / len(counted)
    holds = at_least <= low and high <= at_most
    fails = high < at_least or low > at_most
    return Verdict(claim, _verdict(holds, fails), seen)


def every(claim: str, parts: Sequence[Verdict]) -> Verdict:
    """All parts hold."""
    return among(claim, parts, at_least=1)


def some(claim: str, parts: Sequence[Verdict]) -> Verdict:
    """At least one part holds; those that do are shown."""
    holding = [part for part in parts if part.verdict == HOLDS]
    one_of_them = 1 / max(1, len(parts))
    return among(claim, holding or parts, at_least=one_of_them)


# --- shares of errors -----------------------------------------------------------------------------


def rate(
    claim: str,
    rows: pd.DataFrame,
    labels: Sequence[str],
    at_least: float = 0,
    at_most: float = inf,
) -> Verdict:
    """The share of answers with one of these labels (rows of `failures.label`) lies between two
    limits in percent."""
    if rows.empty:
        return Verdict(claim, NOT_APPLICABLE, "there is no such answer")

    # a share is a mean of 0 and 1; cells weigh by their answers, so that all answers weigh the same
    hits = rows["label"].isin(labels)
    sizes = rows.groupby(CELL)["label"].transform("size")
    counted = rows.assign(score=hits.astype(float), weight=sizes)
    seen = f"{hits.sum()} of {len(rows)}, percent "
    return weighted(claim, parts=[(1, counted)], at_least=at_least, at_most=at_most, seen=seen)

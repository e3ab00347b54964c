"""Judge what the paper says by the scores at hand: a claim holds, does not hold, cannot be judged,
or does not apply.

A notebook states each claim in one of its cells and picks the rows; the functions here compare
means by the intervals of `statistics.weighted_sum`. Rows are those of `asked`: one row per example,
`score` in 0..1. Thresholds and differences are in points (percent). Where no rows are given, the
study does not ask what the claim is about, and the claim does not apply. Where an answer is missing, nothing
is judged.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from rulerkit.common.errors import unknown
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.evaluation.study import Study
from rulerkit.generation.tasks import task
from rulerkit.scoring.statistics import Estimate, WeightedCell, weighted_sum
from rulerkit.scoring.summary import CELL, merge_repetitions, weighted_cells

if TYPE_CHECKING:
    import pandas as pd


HOLDS, FAILS = "holds", "does not hold"
UNKNOWN, NOT_APPLICABLE = "cannot be judged with this data", "not applicable"
NEGLIGIBLE = 2.0
"""Points: where a claim says "lower" without saying by how much, a difference certainly smaller
than this refutes it."""
_LOWER = "lower by "


class Verdict(NamedTuple):
    """A claim, what the data say of it, and the numbers that were seen."""

    claim: str
    verdict: str
    seen: str


def verdict_table(verdicts: Sequence[Verdict]) -> "pd.DataFrame":
    """Columns claim, verdict, seen."""
    return pd.DataFrame(verdicts, columns=list(Verdict._fields))


# --- rows -----------------------------------------------------------------------------------------


def asked(scores: "pd.DataFrame", study: Study) -> "pd.DataFrame":
    """A row for each example that the study asks of each model in `scores`; the score is NaN where
    the answer is missing."""
    scores = merge_repetitions(scores)
    models = scores[["run", "model", "label", "claimed_length"]].drop_duplicates(
        ["run", "model"]
    )
    names = [task.name for task in study.tasks]
    examples = product(names, study.lengths, range(study.num_examples))
    grid = pd.DataFrame(examples, columns=["task", "length", "index"])
    answered = scores.drop(columns=["label", "claimed_length"])
    how: Any = (
        "inner" if study.adaptive else "left"
    )  # an adaptive run asks for what it needs
    return models.merge(grid, how="cross").merge(answered, how=how, on=[*CELL, "index"])


def by_label(
    frame: "pd.DataFrame", tasks: Mapping[str, Any], panel: str = ""
) -> "pd.DataFrame":
    """The rows of some tasks (label to task, as `rk.task` takes it), with the columns `panel` and
    `series`, the label."""
    parts = [
        frame[frame["task"] == task(spec).name].assign(panel=panel, series=label)
        for label, spec in tasks.items()
    ]
    rows = pd.concat(parts or [frame[:0]], ignore_index=True)
    return rows.reindex(columns=["panel", "series", *frame.columns])


def by_model(
    rows: "pd.DataFrame", label: str = "label"
) -> "Iterator[tuple[str, pd.DataFrame]]":
    """'LABEL: ' ('' where there is one model) and the rows of each model without the lengths that
    it was not given.

    Where there are no rows, they are yielded once.
    """
    several = rows[label].nunique() > 1
    if rows.empty:
        yield "", rows
    for name, model in rows.groupby(label, sort=False):
        given = model.groupby("length")["score"].transform("count") > 0
        yield f"{name}: " if several else "", model[given]


def training_lengths(
    rows: "pd.DataFrame", given: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Training length in tokens by label: `given` by name or label, else what the model claims;
    unknown ones left out.

    Raises UserError where `given` names a model that is not shown.
    """
    trained = rows.groupby("label", sort=False)["claimed_length"].max().astype(float)
    for name, length in (given or {}).items():
        trained[model_rows(rows, name)["label"].iloc[0]] = parse_length(length)
    return {str(label): length for label, length in trained.dropna().items()}


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
    value, low, high = interval
    holds = at_least < low and high < at_most
    fails = high < (at_least if fails_below is None else fails_below) or low > at_most
    if seen.endswith(_LOWER) and value < 0:
        seen = seen.removesuffix(_LOWER) + "higher by "
        value, low, high = -value, -high, -low
    shown = "{:g} [{:g}, {:g}]".format(
        *(round(number, 2) for number in (value, low, high))
    )
    return Verdict(claim, HOLDS if holds else FAILS if fails else UNKNOWN, seen + shown)


Part = tuple[float, "pd.DataFrame"]


def estimate(parts: Sequence[Part], confidence: float = 0.95) -> Estimate:
    """The sum of weight times mean score over parts, in points, with its interval.

    The mean of a part is that of its cells (run, model, task, length): all weigh the same, or what
    the column `weight` says. Examples with the same task and index are one observation in every
    part.
    """
    cells: list[WeightedCell] = []
    for weight, rows in parts:
        weights = (
            rows.assign(weight=rows.get("weight", 1.0)).groupby(CELL)["weight"].first()
        )
        weights *= weight / weights.sum()
        cells += [
            cell._replace(weight=float(weights[key]))
            for key, cell in weighted_cells(rows, CELL).items()
        ]
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
    if any(rows["score"].isna().any() for _, rows in parts):
        return Verdict(claim, UNKNOWN, "answers are missing")
    interval = [offset + limit for limit in estimate(parts, confidence)]
    fails_below = NEGLIGIBLE if at_least == 0 else at_least
    return judge(claim, interval, at_least, at_most, seen, fails_below)


def above(claim: str, rows: "pd.DataFrame", threshold: float) -> Verdict:
    """The mean is above a threshold."""
    return weighted(claim, [(1, rows)], threshold, seen="mean ")


def below(claim: str, rows: "pd.DataFrame", threshold: float) -> Verdict:
    """The mean is below a threshold."""
    return weighted(claim, [(1, rows)], -inf, threshold, seen="mean ")


def lower(
    claim: str,
    rows: "pd.DataFrame",
    than: "pd.DataFrame",
    by_at_least: float = 0,
    by_at_most: float = inf,
    confidence: float = 0.95,
) -> Verdict:
    """The mean of the rows is lower than that of others, by so many points."""
    return weighted(
        claim, [(1, than), (-1, rows)], by_at_least, by_at_most, _LOWER, confidence
    )


def keeps_more(claim: str, rows: "pd.DataFrame", than: "pd.DataFrame") -> Verdict:
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
        (shortest, start), *_, (_, end) = groups.items()
        first, last = (
            100 * group.groupby(CELL)["score"].mean().mean() for group in (start, end)
        )
        if not first > 0:
            return Verdict(claim, UNKNOWN, f"nothing is right at {shortest}")
        parts += [(sign / first, end), (-sign * last / first**2, start)]
        value += sign * last / first
    return weighted(claim, parts, seen="keeps more by ", offset=value)


# --- a row of groups ------------------------------------------------------------------------------


def _groups(
    rows: "pd.DataFrame", by: str | Mapping[str, Any]
) -> "dict[str, pd.DataFrame]":
    """The rows of each length from the shortest, of each value of another column, or of each task
    of a mapping by label."""
    if isinstance(by, Mapping):
        rows, by = by_label(rows, by), "series"
    groups = rows.groupby(by, sort=by == "length")
    return {
        length_name(int(str(key))) if by == "length" else str(key): group
        for key, group in groups
    }


def falls(
    claim: str,
    rows: "pd.DataFrame",
    by: str | Mapping[str, Any],
    steadily: bool = False,
) -> Verdict:
    """The mean falls from group to group: it is lower in the last than in the first, and no step is
    certainly up.

    `steadily`: it falls without its largest step too. `by` is a column or a mapping from label to
    task.
    """
    groups = _groups(rows, by)
    if len(groups) < 2:
        return Verdict(
            claim, NOT_APPLICABLE, f"fewer than two: {', '.join(groups) or 'none'}"
        )
    if any(group["score"].isna().any() for group in groups.values()):
        return Verdict(claim, UNKNOWN, "answers are missing")
    first, *_, last = groups
    whole = lower(claim, groups[last], groups[first])
    seen = f"{first} to {last} {whole.seen}"
    steps = list(pairwise(groups))
    rises = {
        (one, other): estimate(
            [(-1, groups[one]), (1, groups[other])], 1 - 0.05 / len(steps)
        )
        for one, other in steps
    }
    certain = [
        f"{' to '.join(step)} higher by {rise}"
        for step, rise in rises.items()
        if rise.low > 0
    ]
    if certain:
        return Verdict(claim, FAILS, "; ".join([seen, *certain]))
    if steadily and whole.verdict == HOLDS and len(steps) > 1:
        before, after = min(steps, key=lambda step: rises[step].value)
        weights = Counter([first, after])
        weights.subtract([before, last])
        parts = [(weight, groups[name]) for name, weight in weights.items() if weight]
        return weighted(
            claim, parts, seen=f"{seen}; without {before} to {after} {_LOWER}"
        )
    return whole._replace(seen=seen)


# --- several verdicts -----------------------------------------------------------------------------


def among(
    claim: str, parts: Sequence[Verdict], at_least: float = 0, at_most: float = 1
) -> Verdict:
    """The share of parts that hold lies between two limits (0..1), however the parts that cannot be
    judged would turn out.

    Parts that are not applicable do not count.
    """
    counted = [part.verdict for part in parts if part.verdict != NOT_APPLICABLE]
    seen = "; ".join(f"{part.claim}: {part.seen}" for part in parts)
    if not counted:
        return Verdict(claim, NOT_APPLICABLE, seen or "not asked")
    low = counted.count(HOLDS) / len(counted)
    high = low + counted.count(UNKNOWN) / len(counted)
    holds, fails = at_least <= low and high <= at_most, high < at_least or low > at_most
    return Verdict(claim, HOLDS if holds else FAILS if fails else UNKNOWN, seen)


def every(claim: str, parts: Sequence[Verdict]) -> Verdict:
    """All parts hold."""
    return among(claim, parts, at_least=1)


def some(claim: str, parts: Sequence[Verdict]) -> Verdict:
    """At least one part holds; those that do are shown."""
    holding = [part for part in parts if part.verdict == HOLDS]
    return among(claim, holding or parts, at_least=1 / max(1, len(parts)))


# --- shares of errors -----------------------------------------------------------------------------


def rate(
    claim: str,
    rows: "pd.DataFrame",
    labels: Sequence[str],
    at_least: float = 0,
    at_most: float = inf,
) -> Verdict:
    """The share of answers with one of these labels (rows of `failures.label`) lies between two
    limits in percent."""
    if rows.empty:
        return Verdict(claim, NOT_APPLICABLE, "there is no such answer")
    hits = rows["label"].isin(labels)
    sizes = rows.groupby(CELL)["label"].transform("size")
    counted = rows.assign(score=hits * 1.0, weight=sizes)
    return weighted(
        claim,
        [(1, counted)],
        at_least,
        at_most,
        f"{int(hits.sum())} of {len(rows)}, percent ",
    )


def model_rows(rows: "pd.DataFrame", name: str) -> "pd.DataFrame":
    """The rows of the model with this name or label. Raises UserError where it is not among those
    shown."""
    chosen = rows[(rows["model"] == name) | (rows["label"] == name)]
    if chosen.empty:
        raise unknown("model among those shown", name, rows["model"].unique())
    return chosen

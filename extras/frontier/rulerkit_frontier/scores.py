"""The frontier suite: how far each capability reaches, and where the mean of all of them ends.

A cell's score is held against its floor: normalised, it is 0 at the floor and 100 for a full score,
`100 max(0, score - floor) / (100 - floor)`. A capability is the mean of its tasks, and the mean of
the suite is that of all its capabilities. Three effective lengths are read off this mean:

- *relative*: the longest length at which the model keeps 85 % of its own mean at the shortest one,
- *absolute*: the longest length at which the mean is at least 50,
- the *headline*, the shorter of the two; none where the model's own mean is below 30.

NoLiMa (arXiv 2502.05167) takes the same 85 %, of a score at 250 to 1,000 tokens. A score at 4K is
lower than that for most models, so the relative length here is kinder than NoLiMa's. Nothing of
this enters a mean or a threshold of RULER.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.generation.tasks import THIRTEEN
from rulerkit.scoring.effective_length import effective_length, effective_set, longest_above
from rulerkit.scoring.scores import as_scores
from rulerkit.scoring.statistics import Estimate, WeightedCell, weighted_sum
from rulerkit.scoring.summary import CELL, Summary, summarize, weighted_cells
from rulerkit_frontier.tasks import FAMILIES

if TYPE_CHECKING:
    import pandas as pd

SUITE, RULER = "frontier", "ruler"
OWN_SHARE = 0.85
"""Of a model's own mean at its shortest length: what the relative length keeps."""
ABSOLUTE = 50.0
"""The normalised mean, in percent, that the absolute effective length asks for."""
LEAST_BASE = 30.0
"""The normalised mean at the shortest length below which there is no headline: a share of little is
reached by luck."""
LONGEST_BASE = 8192
"""The longest length, in tokens, whose mean can be what a model keeps a share of."""

_ABOUT = ["run", "model", "label", "aligned", "claimed_length"]
_Row = dict[str, Any]


class FrontierSummary(NamedTuple):
    """Tidy tables of percents, and RULER's summary of the same models beside them.

    All have the columns run, model, label, aligned, claimed_length, thinking (whether any answer
    followed a thought) and other_form (of `cells` the number, of the others the share, in percent,
    of answers that are right in another form than the rules judge as right).

    `cells`: a row per model, task and length: capability, task, length, score (raw), floor, low,
    high (of the raw score), normalised, n, complete, have.
    `capabilities`: a row per model, capability and length: length, score (mean of the raw scores),
    normalised, low, high (of the normalised mean), floor (mean), above_floor (whether the raw mean
    is above it), tasks, complete, have; reach (the longest length, in tokens, that keeps 85 % of
    the capability's own mean at the shortest length; 0 for none).
    `lengths`: a row per model and length: normalised, low, high, capabilities, complete, have.
    `models`: a row per model: base (normalised mean at `base_length`, in tokens), threshold,
    effective_length and effective_set (the headline), relative, relative_set, absolute,
    absolute_set (texts, '' for none), reach (the relative one in tokens, 0 for none), why (why
    there is no headline, else ''), ruler (RULER's effective length, '' where not all its tasks were
    asked) and ruler_reach (in tokens).
    `ruler` is `summarize` of the rows of RULER, None where there are none.
    """

    cells: "pd.DataFrame"
    capabilities: "pd.DataFrame"
    lengths: "pd.DataFrame"
    models: "pd.DataFrame"
    ruler: Summary | None


def frontier(
    scores: Any,
    tasks: str | Sequence[str] | None = None,
    lengths: int | str | Sequence[int | str] | None = None,
    num_examples: int | None = None,
) -> FrontierSummary:
    """Summarize the rows of `score`, or cells or places, that belong to the frontier suite.

    Without `tasks`, a capability is the mean of those of its tasks that any model was asked. A
    length has a mean only where every capability is complete there. `lengths` and `num_examples`
    are those of `summarize`. Raises UserError where no row is of this suite.
    """
    import pandas as pd

    scores = as_scores(scores, "frontier")
    if SUITE not in set(scores["suite"]):
        raise UserError(
            "no answers of the frontier suite among these scores; evaluate with "
            "`tasks: frontier` first"
        )
    summary = summarize(scores, tasks, lengths, num_examples, suite=SUITE)
    of_suite = scores[scores["suite"] == SUITE]
    asked = of_suite
    if num_examples is not None:
        asked = asked[asked["index"] < num_examples]
    examples = weighted_cells(asked, CELL)

    cells = summary.cells.assign(capability=summary.cells["category"].map(capability_names()))
    cells["floor"] = 100 * cells["task"].map(_floors(of_suite))
    cells["normalised"] = _normalised(cells)
    parts: dict[str, list[_Row]] = {"capabilities": [], "lengths": [], "models": []}
    for _, of_model in cells.groupby(["run", "model"], sort=False):
        for name, rows in _rows_of_model(of_model, examples).items():
            parts[name] += rows
    frames = {name: pd.DataFrame(rows) for name, rows in parts.items()}

    # RULER stands beside it as the mean of all thirteen, or not at all.
    ruler = None
    if not set(THIRTEEN).isdisjoint(scores["task"]):
        ruler = summarize(scores, THIRTEEN, None, num_examples, suite=RULER)
    models = frames["models"]
    models["ruler"], models["ruler_reach"] = _ruler(models, ruler)
    return FrontierSummary(cells, ruler=ruler, **frames)


def as_frontier(given: Any, who: str) -> FrontierSummary:
    """A summary of the frontier suite as it is, else that of whatever `frontier` takes, for the
    function `who`."""
    if isinstance(given, FrontierSummary):
        return given
    return frontier(as_scores(given, who))


def capability_names() -> dict[str, str]:
    """Family of the frontier suite -> the capability that it measures, in the suite's order."""
    return {family.category: family.capability for family in FAMILIES}


def headline(model: Mapping[str, Any]) -> str:
    """What a row of `FrontierSummary.models` says in one line, such as `RULER says 64K, the
    frontier suite 8K`."""
    reach = model["effective_length"] or "none"
    if model["ruler"]:
        return f"RULER says {model['ruler']}, the frontier suite {reach}"
    return f"Frontier suite: {reach}"


def _floors(scores: "pd.DataFrame") -> dict[str, float]:
    """The floor (0 to 1) of each task by its settings, which stand in the rows."""
    families = {family.family: family for family in FAMILIES}
    floors = {}
    for task, name, text in scores[["task", "family", "settings"]].drop_duplicates("task").values:
        family, settings = families[name], json.loads(text)
        known = {key: settings[key] for key in family.setting_names() if key in settings}
        floors[task] = family(name=task, **known).floor
    return floors


def _normalised(cells: "pd.DataFrame") -> "pd.Series[float]":
    """Scores in percent with their floor taken off, at least 0."""
    score, floor = cells["score"].astype(float), cells["floor"].astype(float)
    return 100 * (score - floor).clip(lower=0) / (100 - floor)


# --- one model ------------------------------------------------------------------------------------


def _rows_of_model(
    cells: "pd.DataFrame", examples: Mapping[Any, WeightedCell]
) -> dict[str, list[_Row]]:
    """The rows of one model for each table of a FrontierSummary."""
    about: _Row = {name: cells[name].iloc[0] for name in _ABOUT}
    about["thinking"] = bool((cells["reasoning_tokens"] > 0).any())
    by_length: dict[int, list[Any]] = {
        int(str(length)): rows.to_dict("records") for length, rows in cells.groupby("length")
    }
    # Lengths below those that this model was asked belong to others of the table.
    asked = [length for length, rows in by_length.items() if _is_asked(rows)]
    first = min(asked, default=min(by_length))
    by_length = {n: rows for n, rows in by_length.items() if n >= first}
    mean = _Means(examples)

    # Each capability over all lengths, in the order of the suite.
    capabilities: list[_Row] = []
    names = [name for name in capability_names().values() if name in set(cells["capability"])]
    for name in names:
        rows = {
            length: [row for row in of_length if row["capability"] == name]
            for length, of_length in by_length.items()
        }
        of_capability = [
            {"capability": name, **_capability_row(length, members, mean)}
            for length, members in rows.items()
        ]
        reach = _reach_of(of_capability)
        capabilities += [{**about, **row, "reach": reach} for row in of_capability]

    # Their mean, which exists only where no capability is missing.
    missing = [name for name in capability_names().values() if name not in names]
    lengths = [
        _length_row(length, of_length, missing, mean) for length, of_length in by_length.items()
    ]
    model = _model_row(by_length, lengths, about["claimed_length"], mean)
    return {
        "capabilities": capabilities,
        "lengths": [{**about, **row} for row in lengths],
        "models": [{**about, **model}],
    }


def _is_asked(rows: Iterable[_Row]) -> bool:
    return any(row["n"] or row["failed"] for row in rows)


class _Means(NamedTuple):
    """Weighted means of normalised scores, with intervals."""

    examples: Mapping[Any, WeightedCell]

    def of(self, rows: Sequence[_Row], shares: Iterable[float]) -> Estimate:
        """The sum of share times normalised score, in percent; NaN where a cell has none.

        The floor is taken as known. Where a score lies below it, the part that is cut off at 0
        moves the interval as a whole.
        """
        if not rows or any(np.isnan(row["normalised"]) for row in rows):
            return Estimate(np.nan, np.nan, np.nan)
        cells, offset = [], 0.0
        for row, share in zip(rows, shares, strict=True):
            weight = share / (1 - row["floor"] / 100)
            key = tuple(row[name] for name in CELL)
            cells.append(self.examples[key]._replace(weight=weight))
            offset += share * row["normalised"] - weight * row["score"]
        estimate = weighted_sum(cells).percent()
        # A floor that is taken off again leaves errors of rounding behind.
        return Estimate(*(round(number + offset, 9) + 0.0 for number in estimate))


def _shares(rows: Sequence[_Row]) -> list[float]:
    """The share of each cell in the mean: capabilities count alike, and so do the tasks of one."""
    names = [row["capability"] for row in rows]
    return [1 / len(set(names)) / names.count(name) for name in names]


def _mean_of(rows: Sequence[_Row], mean: _Means) -> Estimate:
    """The mean over the capabilities of these cells; no limit is below 0 or above 100."""
    estimate = mean.of(rows, _shares(rows))
    return Estimate(*np.clip(estimate, 0, 100).tolist())


def _other_form(rows: Iterable[_Row]) -> float:
    """The share of the answers of these cells, in percent, that are right in another form."""
    rows = list(rows)
    n = sum(row["n"] for row in rows)
    return 100 * sum(row["other_form"] for row in rows) / n if n else np.nan


def _capability_row(length: int, rows: Sequence[_Row], mean: _Means) -> _Row:
    """One capability at one length."""
    estimate = _mean_of(rows, mean)
    score = float(np.mean([row["score"] for row in rows]))
    floor = float(np.mean([row["floor"] for row in rows]))
    return {
        "length": length,
        "score": score,
        "normalised": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "floor": floor,
        "above_floor": round(score - floor, 9) > 0,
        "other_form": _other_form(rows),
        "tasks": len(rows),
        "complete": all(row["complete"] for row in rows),
        "have": next((row["have"] for row in rows if row["have"]), ""),
    }


def _reach_of(rows: Sequence[_Row]) -> int:
    """The longest length, in tokens, at which a capability keeps its share of the score at the
    shortest length; 0 for none."""
    scores = {row["length"]: row["normalised"] for row in rows}
    base = scores[min(scores)]
    if min(scores) > LONGEST_BASE or not base > 0:
        return 0
    return longest_above(scores, round(OWN_SHARE * base, 1))


def _length_row(length: int, rows: Sequence[_Row], missing: Sequence[str], mean: _Means) -> _Row:
    """The mean of all capabilities at one length."""
    estimate = Estimate(np.nan, np.nan, np.nan)
    if not missing:
        estimate = _mean_of(rows, mean)
    have = next((row["have"] for row in rows if row["have"]), "")
    return {
        "length": length,
        "normalised": estimate.value,
        "low": estimate.low,
        "high": estimate.high,
        "other_form": _other_form(rows),
        "capabilities": len({row["capability"] for row in rows}),
        "complete": not np.isnan(estimate.value),
        "have": f"without {', '.join(missing)}" if missing else have,
    }


# --- effective lengths ----------------------------------------------------------------------------


def _model_row(
    by_length: Mapping[int, list[_Row]], lengths: Sequence[_Row], claimed: float, mean: _Means
) -> _Row:
    """The three effective lengths of a model."""
    scores = {row["length"]: row["normalised"] for row in lengths}
    shortest = min(scores)
    base = scores[shortest]
    no_share, why = _why_not(shortest, base)

    # How far the mean at each length lies above each of the thresholds: low and high limits.
    own_share = round(OWN_SHARE * base, 1)
    above_share = _above_own_share(by_length, shortest, mean)
    above_absolute = {
        row["length"]: (row["low"] - ABSOLUTE, row["high"] - ABSOLUTE) for row in lengths
    }
    # Both ask for the longest length above a threshold, so the shorter of the two is the
    # longest length above both.
    above_both = {
        length: tuple(np.minimum(above_absolute[length], limits).tolist())
        for length, limits in above_share.items()
    }

    row: _Row = {"base_length": shortest, "base": base, "why": why}
    row["other_form"] = _other_form(chain.from_iterable(by_length.values()))
    row["reach"] = 0 if no_share else longest_above(scores, own_share)
    both = max(own_share, ABSOLUTE)
    row["threshold"] = np.nan if why else both
    for name, set_name, threshold, above, none in (
        ("relative", "relative_set", own_share, above_share, no_share),
        ("absolute", "absolute_set", ABSOLUTE, above_absolute, ""),
        ("effective_length", "effective_set", both, above_both, why),
    ):
        row[name] = row[set_name] = ""
        if none:
            continue
        intervals = {
            length: (threshold + low, threshold + high) for length, (low, high) in above.items()
        }
        row[name] = effective_length(scores, threshold, claimed)
        row[set_name] = effective_set(intervals, threshold, claimed)
    return row


def _why_not(shortest: int, base: float) -> tuple[str, str]:
    """Why a model has no share of its own mean to keep, and why it has no headline; '' where it
    has."""
    at = length_name(shortest)
    no_share = ""
    if shortest > LONGEST_BASE:
        no_share = f"the shortest length asked is {at}, above 8K"
    elif np.isnan(base):
        no_share = f"the mean at {at} is not complete"
    elif base <= 0:
        no_share = f"the mean at {at} is at its floor"
    if no_share or base >= LEAST_BASE:
        return no_share, no_share
    return "", f"the mean at {at} is {base:.1f}, below {LEAST_BASE:g}"


def _above_own_share(
    by_length: Mapping[int, list[_Row]], shortest: int, mean: _Means
) -> dict[int, tuple[float, float]]:
    """The interval, by length, of the mean there less the share of that at the shortest length:
    the same questions are asked at both, so the difference is paired."""
    base = by_length[shortest]
    intervals = {}
    for length, rows in by_length.items():
        if length == shortest:
            shares = [(1 - OWN_SHARE) * share for share in _shares(base)]
            estimate = mean.of(base, shares)
        else:
            shares = _shares(rows) + [-OWN_SHARE * share for share in _shares(base)]
            estimate = mean.of([*rows, *base], shares)
        intervals[length] = (estimate.low, estimate.high)
    return intervals


# --- RULER beside it ------------------------------------------------------------------------------


def of_ruler(
    summary: Summary | None, model: Mapping[str, Any]
) -> "tuple[pd.DataFrame, pd.DataFrame]":
    """RULER's rows of one model over all its tasks: of `lengths` and of `models`.

    The two suites may have been asked in runs of different names: where the model's own run has
    no RULER, another run of the same model stands in for it, if there is just one.
    """
    import pandas as pd

    if summary is None:
        return pd.DataFrame(), pd.DataFrame()
    models = summary.models[
        (summary.models["category"] == "all") & (summary.models["model"] == model["model"])
    ]
    in_run = models[models["run"] == model["run"]]
    chosen = models if in_run.empty and len(models) == 1 else in_run
    lengths = summary.lengths[summary.lengths["category"] == "all"]
    return lengths.merge(chosen[["run", "model"]]), chosen


def _ruler(models: "pd.DataFrame", summary: Summary | None) -> "tuple[list[str], list[int]]":
    """RULER's effective length of each model, as text and in tokens; '' and 0 for none."""
    texts, tokens = [], []
    records: list[Any] = models.to_dict("records")
    for model in records:
        lengths, row = of_ruler(summary, model)
        known = not row.empty and bool(row["effective_length"].iloc[0])
        texts.append(row["effective_length"].iloc[0] if known else "")
        scores = dict(zip(lengths["length"], lengths["score"], strict=True)) if known else {}
        tokens.append(longest_above(scores, row["threshold"].iloc[0]) if known else 0)
    return texts, tokens

"""Judge what the paper says in Sections 4 to 6 by scores: those of one's own models, or those that
the paper prints.

The claims are data, `rulerkit/data/paper/claims.yaml`, whose head says what each key means. `tidy`
makes one frame of a row per example, `select` takes from it the rows that a claim names, and each
of KINDS compares their means. A claim holds, or does not, where no value within the interval says
otherwise; else it cannot be judged.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise, permutations
from math import inf
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rulerkit.analysis.correlation import judged_intervals
from rulerkit.common.errors import (
    UserError,
    check_known,
    check_type,
    first_line,
    listed,
    shorten,
)
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.common.paths import package_data
from rulerkit.generation.tasks import TASKS, THIRTEEN
from rulerkit.generation.tasks import task as make_task
from rulerkit.generation.tasks.niah import NEAR
from rulerkit.scoring.effective_length import THRESHOLDS
from rulerkit.scoring.scores import COLUMNS, as_scores
from rulerkit.scoring.statistics import Estimate, WeightedCell, weighted_sum
from rulerkit.scoring.summary import (
    CELL,
    model_rows,
    texts_words,
    weighted_cells,
)
from rulerkit.store.cells import is_enough
from rulerkit.store.places import check_columns, is_table

Claim = Mapping[str, Any]

HOLDS = "✓ holds"
FAILS = "✗ does not hold"
UNKNOWN = "? cannot be judged"
NEGLIGIBLE = 2.0
"""Points: where a claim says "lower" without saying by how much, a difference certainly smaller
than this refutes it."""
ROUNDING = 0.05
"""Points by which a printed score may be off."""
_KEYS = (
    "section place claim number together kind parts every share rows than answers among limit by"
)
_KEYS += " along steadily past within"
_WHERE = "models tasks lengths at weights"
_MOST_SHOWN = 6  # verdicts whose numbers are shown


Parts = Sequence[tuple[float, pd.DataFrame]]
"""Weights, and the rows whose means they multiply."""


class Missing(Exception):  # noqa: N818 - it is no error
    """What a claim cannot be judged without, in words."""


class Verdict(NamedTuple):
    """One of the three words, the numbers that were seen, and what is missing to judge."""

    word: str
    seen: str = ""
    missing: str = ""


Verdicts = Mapping[str, Verdict]


def claims(
    scores: Any,
    section: str | None = None,
    *,
    listed: Sequence[Claim] | None = None,
    reference: str | None = None,
    trained: Mapping[str, Any] | None = None,
) -> pd.DataFrame:
    """The claims of a section of the paper (`5, distractors`, or `5`), or of all, judged by scores:
    a row per claim, and per model where each is judged by itself. Columns section, claim, verdict
    (a mark and words), seen (points, with 95 % intervals), missing (without what it cannot be
    judged).

    `scores` are what `rk.score` takes or gives, rows of `rk.answers_of(labels=True)`, or
    `rk.paper.score_rows()`. `listed` are claims of your own in place of the paper's, written as in
    `data/paper/claims.yaml`. `reference` names the model that others are held against, `trained`
    gives training lengths by model; without, a model's is what it claims. Raises UserError for an
    unknown section or model, and for a table without model, task, length and score.
    """
    chosen = package_data("paper/claims.yaml") if listed is None else listed
    for claim in chosen:
        _check(claim)
    if section is not None:
        # "5, distractors", or "5" for all of Section 5
        names = [str(claim.get("section", "")) for claim in chosen]
        sections = {name: name.split(",")[0] for name in names}
        check_known("section of the claims", section, [*sections, *set(sections.values())])
        chosen = [
            claim
            for claim, name in zip(chosen, names, strict=True)
            if section in (name, sections[name])
        ]

    frame = tidy(scores, reference, trained or {})
    rows = []
    for claim in chosen:
        models: dict[Any, pd.DataFrame] = {"": frame}
        if not claim.get("together"):
            models = dict(iter(frame.groupby("who", sort=False))) or models
        found = {who: judge(claim, of_model) for who, of_model in models.items()}
        if len(set(found.values())) == 1:  # one line says it of all models
            found = {"": next(iter(found.values()))}
        for who, verdict in found.items():
            text = f"{who}: {claim['claim']}" if who else claim["claim"]
            rows.append((claim.get("section", ""), text, *verdict))
    table = pd.DataFrame(rows, columns=["section", "claim", "verdict", "seen", "missing"])
    table.attrs["texts"] = texts_words(frame)
    return table


def _check(claim: Claim) -> None:
    """Raise UserError for a key or a kind that claims do not have."""
    check_type(claim, Mapping, "claims", "a list of claims, each a mapping")
    for key in claim:
        check_known("key of a claim", key, _KEYS.split())
    # A misspelt key would select all lengths, tasks or models.
    for key in (*(claim.get("rows") or ()), *(claim.get("than") or ())):
        check_known("key of the rows of a claim", key, _WHERE.split())
    if "parts" not in claim:
        check_known("kind of a claim", claim.get("kind"), list(KINDS))
    for part in claim.get("parts", ()):
        _check(part)


def judge(claim: Claim, frame: pd.DataFrame) -> Verdict:
    """What rows of `tidy` say of a claim."""
    try:
        if "parts" in claim:
            parts = enumerate(claim["parts"], 1)
            found: Verdicts = {str(number): judge(part, frame) for number, part in parts}
        elif claim.get("every"):
            found = _for_every(claim, frame)
        else:
            found = KINDS[claim["kind"]](claim, frame)
        least = 1 / len(found) if claim.get("kind") in _SOME else 1
        return share_of(found, claim.get("share", [least, 1]))
    except Missing as missing:
        return Verdict(UNKNOWN, "", str(missing))
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        name = shorten(claim.get("claim", claim))
        raise UserError(f"the claim {name} cannot be read: {first_line(error)}") from error


def _for_every(claim: Claim, frame: pd.DataFrame) -> Verdicts:
    """The verdicts for each of the models, tasks or lengths that the `rows` of a claim name."""
    axis, *others = [claim["every"]] if isinstance(claim["every"], str) else claim["every"]
    column, rows = "who" if axis == "model" else axis, claim["rows"]
    named = {key: rows[key] for key in ("models", f"{axis}s") if key in rows}
    found = {}
    for value in _filtered(frame, named)[column].unique():
        part = {**claim, "rows": {**rows, f"{axis}s": [value]}, "every": others}
        part.pop("share", None)
        name = length_name(int(value)) if axis == "length" else value
        found[name] = judge(part, frame)
    return found


# --- the rows that a claim is about ---------------------------------------------------------------


def tidy(scores: Any, reference: str | None, trained: Mapping[str, Any]) -> pd.DataFrame:
    """Rows of scores with what claims select by: a name for each model (`who`), its lengths
    (`claimed`, `trained`), its `role` (reference or others), the training length of the
    `reference`; and `complete`, whether all answers of the cell are there."""
    frame: pd.DataFrame = scores
    # Rows of `score` that were read from a file lack empty texts; printed scores are other rows.
    if not is_table(scores) or set(COLUMNS) <= set(scores):
        frame = as_scores(scores, "claims")
    check_columns(frame, ["model", "task", "length", "score"], "claims")
    frame = frame.reset_index(drop=True)
    columns: dict[str, Any] = {"run": "", "label": frame["model"], "aligned": "chat"}
    columns["claimed_length"] = np.nan
    frame = frame.assign(**{name: columns[name] for name in columns if name not in frame})

    in_several = frame.groupby("label")["run"].transform("nunique") > 1
    who = frame["label"].mask(in_several, frame["label"] + " [" + frame["run"] + "]")
    claimed = frame["claimed_length"].astype(float)
    frame = frame.assign(who=who, claimed=claimed, trained=claimed, reference=np.nan, role="")
    for name, length in trained.items():
        frame.loc[model_rows(frame, name).index, "trained"] = float(parse_length(length))
    if reference is not None:
        of_model = model_rows(frame, reference)
        frame["role"] = np.where(frame.index.isin(of_model.index), "reference", "others")
        frame["reference"] = of_model["trained"].max()

    # of an adaptive run only what was answered was asked
    frame["complete"] = frame["score"].notna()
    if {"wanted", "failed", "max_failures", "adaptive"} <= set(frame):
        answered = frame.groupby(CELL)["score"].transform("count")
        asked = [frame[name] for name in ("wanted", "failed", "max_failures")]
        enough = [is_enough(*of_cell) for of_cell in zip(answered, *asked, strict=True)]
        frame["complete"] = np.array(enough) | (frame["adaptive"] != "")
    return frame


def select(frame: pd.DataFrame, where: Mapping[str, Any], claim: Claim) -> pd.DataFrame:
    """The rows of some models, tasks and lengths, with a column `weight` of their cells; where the
    claim is about `answers`, the score of a row is whether its label is one of these. Raises
    Missing where a task, a length or an answer is not there."""
    rows = _filtered(frame, where)
    if "answers" in claim:
        if "failure" not in rows or rows["failure"].isna().any():
            raise Missing("labels of the answers (`rk.answers_of(scores, labels=True)`)")
        if among := claim.get("among"):
            is_wrong = rows["failure"] != "complete"
            rows = rows[is_wrong if among == "wrong" else rows["failure"].isin(among)]
        if rows.empty:
            raise Missing("such answers")
        # all answers weigh the same, so a cell as much as it has of them
        hits = rows["failure"].isin(claim["answers"]).astype(float)
        return rows.assign(score=hits, weight=rows.groupby(CELL)["task"].transform("size"))

    # a mean over what happens to be there would be another one
    cells = rows.drop_duplicates(CELL)
    for who, of_model in cells.groupby("who", sort=False):
        tasks, lengths = of_model["task"].unique(), of_model["length"].unique()
        if len(of_model) < len(tasks) * len(lengths):
            raise Missing(f"{who} at all lengths of {listed(tasks, 3)}")
    for cell in cells[~cells["complete"]].to_dict("records"):
        raise Missing(f"answers to {cell['task']} at {length_name(cell['length'])}")

    weight: Any = 1.0
    if "weights" in where:
        weight = rows["length"].rank(method="dense", ascending=where["weights"] == "long")
    return rows.assign(weight=weight)


def _filtered(frame: pd.DataFrame, where: Mapping[str, Any]) -> pd.DataFrame:
    """The rows of some models, tasks and lengths, whether or not their cells are complete."""
    if frame.empty:
        raise Missing("scores")
    rows = _named(frame, where.get("models"), ["model", "label", "who"])
    rows = rows[rows["task"].isin(_tasks(rows, where.get("tasks")))]
    rows = _named(rows, where.get("lengths"), ["length"])
    of_model = rows.groupby("who")["length"]
    is_shortest = rows["length"] == of_model.transform("min")
    is_longest = rows["length"] == of_model.transform("max")
    ends = {"shortest": is_shortest, "longest": is_longest, "ends": is_shortest | is_longest}
    return rows[ends[where["at"]]] if "at" in where else rows


def _named(rows: pd.DataFrame, names: Any, columns: Sequence[str]) -> pd.DataFrame:
    """The rows that have one of the names in one of the columns, or for which a condition is true;
    None stands for all."""
    if names is None:
        return rows
    if isinstance(names, str):
        try:
            chosen = rows.query(names, engine="python")
        except Exception as error:
            raise UserError(f"a claim has the condition {names!r}: {first_line(error)}") from error
    else:
        chosen = rows[rows[columns].isin(names).any(axis=1)]
    if chosen.empty:
        if isinstance(names, str):
            raise Missing(f"scores where {names}")
        raise Missing(f"scores of {' or '.join(map(str, names))}")
    return chosen


def _tasks(rows: pd.DataFrame, names: Any) -> list[str]:
    """The tasks that the `tasks` of a claim name: names, which must be there, and patterns."""
    there = list(rows["task"].unique())
    is_whole = "thirteen" in there or set(THIRTEEN) <= set(there)
    if names is None and not is_whole:
        return there
    # the paper prints the mean of the thirteen under one name
    if names in (None, "thirteen"):
        names = "thirteen" if "thirteen" in there else THIRTEEN
    names = [names] if isinstance(names, str) else names
    lacking = [name for name in names if name not in there and not set("*[") & set(name)]
    found = [task for task in there if any(fnmatchcase(task, name) for name in names)]
    if lacking or not found:
        raise Missing(f"the task {listed(lacking or names, 3)}")
    return found


def setting(task: str, name: str) -> float:
    """A number of a task's settings, such as `num_keys`, by the task's name; of a haystack of
    needles the number of keys is infinite."""
    base, *changes = task.split("-")
    settings = dict(vars(make_task(base))) if base in TASKS else {}
    for change in changes:
        changed, _, value = change.rpartition("_")
        settings[changed] = value
    if name == "num_keys" and settings.get("haystack") == "needle":
        return inf
    return float(settings[name])


# --- a verdict by an interval ---------------------------------------------------------------------


def estimate(parts: Parts, confidence: float = 0.95) -> Estimate:
    """The sum of weight times mean score over parts, in points, with its interval.

    The mean of a part is that of its cells (run, model, task, length): all weigh the same, or what
    the column `weight` says. Examples with the same task and index are one observation in every
    part. Rows without an index are means as printed, known to one decimal.
    """
    cells: list[WeightedCell] = []
    printed, rounding = 0.0, 0.0
    for weight, rows in parts:
        rows = rows.assign(weight=rows.get("weight", 1.0))
        if "index" not in rows:
            printed += 100 * weight * float(np.average(rows["score"], weights=rows["weight"]))
            rounding += abs(weight) * ROUNDING
            continue
        weights = rows.groupby(CELL)["weight"].first()
        weights *= weight / weights.sum()
        for key, cell in weighted_cells(rows, CELL).items():
            cells.append(cell._replace(weight=float(weights[key])))
    if not cells:
        return Estimate(printed, printed - rounding, printed + rounding)
    return weighted_sum(cells, confidence).percent()


def within(interval: Sequence[float], at_least: float, at_most: float = inf) -> Verdict:
    """Whether a value lies between two limits, by its interval. What is to be above 0 is refuted by
    less than NEGLIGIBLE."""
    value, low, high = interval
    # neither is true where the interval contains a limit, or where it is NaN
    word = UNKNOWN
    if at_least < low and high < at_most:
        word = HOLDS
    elif high < (NEGLIGIBLE if at_least == 0 else at_least) or low > at_most:
        word = FAILS
    # 0 is added, as -0.0 is shown with its sign.
    value, low, high = (round(number, 2) + 0.0 for number in interval)
    seen = f"{value:g} [{low:g}, {high:g}]"
    return Verdict(word, seen, "more examples" if word == UNKNOWN else "")


def all_within(tests: Mapping[str, Parts], at_least: float, at_most: float = inf) -> Verdicts:
    """As `within`, for several sums whose intervals hold together (Bonferroni)."""
    confidence = 1 - 0.05 / len(tests)
    return {n: within(estimate(parts, confidence), at_least, at_most) for n, parts in tests.items()}


def share_of(parts: Verdicts, limits: Sequence[float]) -> Verdict:
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


# --- the kinds of claims --------------------------------------------------------------------------


def _level(claim: Claim, frame: pd.DataFrame) -> Verdicts:
    rows, limit = select(frame, claim["rows"], claim), claim["limit"]
    if limit == "threshold":
        limit = THRESHOLDS[rows["aligned"].iloc[0]]["all"]
    elif limit == "chance":
        limit = 100 * float((2 * NEAR / rows["length"]).clip(upper=1).mean())
    limits = (limit, inf) if claim["kind"] == "above" else (-inf, limit)
    return {"mean": within(estimate([(1, rows)]), *limits)}


def _difference(claim: Claim, frame: pd.DataFrame) -> Verdicts:
    than = {**claim["rows"], **claim["than"]}
    ours, theirs = select(frame, claim["rows"], claim), select(frame, than, claim)
    if set(ours.index) == set(theirs.index):
        raise Missing("a second length")
    if not {"lengths", "at"} & set(claim["than"]):
        _check_lengths([ours, theirs])
    by = claim.get("by", 0)
    limits = by if isinstance(by, Sequence) else (by, inf)
    sign = 1 if claim["kind"] == "lower" else -1
    difference = estimate([(sign, theirs), (-sign, ours)])
    return {f"{claim['kind']} by": within(difference, *limits)}


def _check_lengths(groups: Sequence[pd.DataFrame]) -> None:
    """Raise Missing where groups are means over other lengths."""
    if len({frozenset(group["length"]) for group in groups}) > 1:
        raise Missing("the same lengths of all that is compared")


def _groups(claim: Claim, frame: pd.DataFrame, fewest: int = 2) -> dict[str, pd.DataFrame]:
    """The rows of each length, model or task by its name, from the lowest value of `along` on."""
    rows, along = select(frame, claim["rows"], claim), claim.get("along", "length")
    is_length = along in rows
    values: Any = rows[along] if is_length else rows["task"].map(lambda task: setting(task, along))
    order = sorted(values.dropna().unique())
    if len(order) < fewest:
        raise Missing(f"{fewest} values of {along}")
    if along != "length":
        _check_lengths([group for _, group in rows.groupby([values, "who"])])
    return {
        length_name(int(value)) if is_length else f"{along} {value:g}": rows[values == value]
        for value in order
    }


def _falls(claim: Claim, frame: pd.DataFrame) -> Verdicts:
    """The mean is lower in the last group than in the first, `steadily` also without the largest
    step, and no step is certainly up: among many steps of a model that falls, one would else be so
    by chance, so their intervals hold together."""
    groups = _groups(claim, frame)
    names = list(groups) if claim["kind"] == "falls" else list(groups)[::-1]
    first, *_, last = names
    whole = _fall(groups, [first], [last])
    found = {f"{first} to {last} lower by": whole}
    steps: dict[str, Parts] = {}
    for one, other in pairwise(names):
        steps[f"{one} to {other} higher by"] = [(-1, groups[one]), (1, groups[other])]
    for name, step in all_within(steps, 0).items():
        if step.word == HOLDS:
            found[name] = step._replace(word=FAILS)

    if claim.get("steadily") and whole.word == HOLDS and len(steps) > 1:
        largest = min(steps, key=lambda name: estimate(steps[name]).value)
        before, after = list(pairwise(names))[list(steps).index(largest)]
        rest = _fall(groups, [first, after], [before, last])
        found[f"without {before} to {after} lower by"] = rest
    return found


def _fall(groups: Mapping[str, pd.DataFrame], starts: list[str], ends: list[str]) -> Verdict:
    """Whether the means fall from starts to ends; a group that is both cancels."""
    weights = Counter(starts)
    weights.subtract(ends)
    return within(estimate([(weight, groups[n]) for n, weight in weights.items() if weight]), 0)


def _out_of_order(claim: Claim, frame: pd.DataFrame) -> Verdicts:
    """Some model is lower than one of a smaller training length."""
    rows = select(frame, claim["rows"], claim).dropna(subset=["trained"])
    models: dict[Any, pd.DataFrame] = dict(iter(rows.groupby("who", sort=False)))
    _check_lengths(list(models.values()))
    trained = rows.groupby("who")["trained"].first()
    pairs: dict[str, Parts] = {}
    for less, more in permutations(models, 2):
        if trained[less] < trained[more]:
            pairs[f"{more} than {less} lower by"] = [(1, models[less]), (-1, models[more])]
    if not pairs:
        raise Missing("models of two training lengths")
    return all_within(pairs, 0)


def _loses(claim: Claim, frame: pd.DataFrame) -> Verdicts:
    """What `rows` lose from the shortest to the longest length, less what `than` loses; in points,
    or as shares."""
    parts, offset = list[tuple[float, pd.DataFrame]](), 0.0
    for sign, side in ((1, claim["rows"]), (-1, {**claim["rows"], **claim["than"]})):
        groups = list(_groups({"rows": side}, frame).values())
        first, last = groups[0], groups[-1]
        by_first, by_last = 1.0, -1.0
        if claim["kind"] == "loses share":
            start, end = estimate([(1, first)]).value, estimate([(1, last)]).value
            if not start > 0:
                raise Missing("anything right at the shortest length")
            # The quotient to first order: its derivatives, which add up to 0, are the weights.
            by_first, by_last = 100 * end / start**2, -100 / start
            offset -= sign * 100 * end / start
        parts += [(sign * by_first, first), (sign * by_last, last)]
    return {"loses more by": within([offset + limit for limit in estimate(parts)], 0)}


def _largest_fall(claim: Claim, frame: pd.DataFrame) -> Verdicts:
    """The fall into the first length past a limit is larger than each before it."""
    groups = _groups(claim, frame)
    of_lengths = pd.concat(groups.values())
    past = of_lengths["trained"].max()
    if claim["past"] != "trained":
        past = parse_length(claim["past"])
    inside = of_lengths.loc[of_lengths["length"] <= past, "length"].nunique()
    if inside < 2 or inside == len(groups):
        raise Missing(f"a length past {claim['past']}, and two up to it")

    *earlier, (before, after) = list(pairwise(groups))[:inside]
    falls: dict[str, Parts] = {}
    for one, other in earlier:
        name = f"{before} to {after} lower than {one} to {other} by"
        signs = {before: 1, after: -1, one: -1}
        signs[other] = 1 + signs.get(other, 0)
        falls[name] = [(sign, groups[length]) for length, sign in signs.items()]
    return all_within(falls, claim.get("by", 0))


def _linear(claim: Claim, frame: pd.DataFrame) -> Verdicts:
    """The line of least squares in log length falls, and no mean is far from it."""
    groups = _groups(claim, frame, fewest=3)
    rows = list(groups.values())
    doublings = np.log2([of_length["length"].iloc[0] for of_length in rows])
    design = np.stack([np.ones(len(rows)), doublings], axis=1)
    solution = np.linalg.pinv(design)
    # the weights of the means in the slope, and in their distances from the line
    span = doublings[-1] - doublings[0]
    fall = estimate(list(zip(-span * solution[1], rows, strict=True)))
    distances: dict[str, Parts] = {}
    for name, weights in zip(groups, np.eye(len(rows)) - design @ solution, strict=True):
        distances[name] = list(zip(weights, rows, strict=True))
    off = all_within(distances, -claim["within"], claim["within"])
    falls = f"over {span:g} doublings lower by"
    return {falls: within(fall, 0), "off the line": share_of(off, [1, 1])}


def _correlation(claim: Claim, frame: pd.DataFrame) -> Verdicts:
    if "thirteen" in set(frame["task"]):
        raise Missing("scores of single tasks")
    try:
        intervals = judged_intervals(frame, claim["kind"])
    except UserError as error:
        raise Missing(str(error)) from None
    if not intervals:
        raise Missing("tasks to compare")
    limits = (-2, claim["limit"]) if claim["kind"] == "moderate" else (claim.get("limit", 1e-9),)
    return {name: within(interval, *limits) for name, interval in intervals.items()}


KINDS: dict[str, Callable[[Claim, pd.DataFrame], Verdicts]] = {
    "above": _level,
    "below": _level,
    "lower": _difference,
    "higher": _difference,
    "falls": _falls,
    "rises": _falls,
    "out of order": _out_of_order,
    "loses share": _loses,
    "loses points": _loses,
    "largest fall": _largest_fall,
    "linear": _linear,
    "cohesive": _correlation,
    "redundant": _correlation,
    "moderate": _correlation,
}
_SOME = ("out of order", "moderate")
"""The kinds of which one part must hold, not all."""

"""Judge what the paper says in Sections 4 to 6 by scores: your own, or those that the paper prints.

`claim_schema` says what a claim is, `selection` takes the cells that it names, and each of KINDS
compares means of them: a mean is a weight for each cell, and so is a difference of means. A claim
holds, or does not, where no value within the interval says otherwise; else it cannot be judged.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, permutations
from math import inf
from typing import Any

import numpy as np
import pandas as pd

from rulerkit.analysis.claim_schema import Claim, read_claims
from rulerkit.analysis.correlation import judged_intervals
from rulerkit.analysis.selection import Missing, hits, means_along, means_of, select, tidy, where
from rulerkit.analysis.verdicts import (
    FAILS,
    HOLDS,
    UNKNOWN,
    Verdict,
    Verdicts,
    all_within,
    estimate,
    share_of,
    within,
)
from rulerkit.common.errors import UserError, check_known, first_line, shorten
from rulerkit.common.lengths import length_name, parse_length
from rulerkit.generation.tasks.niah import NEAR
from rulerkit.scoring.effective_length import THRESHOLDS


def claims(
    scores: Any,
    section: str | None = None,
    *,
    listed: Sequence[Mapping[str, Any]] | None = None,
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
    chosen = read_claims(listed, section)
    cells = tidy(scores, reference, trained or {})
    rows = []
    for claim in chosen:
        models: dict[Any, pd.DataFrame] = {"": cells}
        if not claim.together:
            models = dict(iter(cells.groupby("who", sort=False))) or models
        found = {who: judge(claim, of_model) for who, of_model in models.items()}
        if len(set(found.values())) == 1:  # one line says it of all models
            found = {"": next(iter(found.values()))}
        for who, verdict in found.items():
            text = f"{who}: {claim.claim}" if who else claim.claim
            rows.append((claim.section, text, *verdict))
    table = pd.DataFrame(rows, columns=["section", "claim", "verdict", "seen", "missing"])
    table.attrs = cells.attrs
    return table


def judge(claim: Claim, cells: pd.DataFrame) -> Verdict:
    """What a table of `tidy` says of a claim."""
    try:
        if lacking := set(claim.needs) - set(cells.loc[cells["each"], "task"]):
            raise Missing(f"the task {', '.join(sorted(lacking))}")
        if claim.parts:
            names = [part.claim for part in claim.parts]
            if "" in names or len(set(names)) < len(names):
                raise ValueError("each of its parts needs a `claim`, a name of its own")
            found = {part.claim: judge(part, cells) for part in claim.parts}
        elif claim.every:
            found = _for_every(claim, cells)
        else:
            check_known("kind of a claim", claim.kind, KINDS)
            cells = hits(cells, claim) if claim.answers else cells
            found = KINDS[claim.kind](claim, cells)
    except Missing as missing:
        return Verdict(UNKNOWN, "", str(missing))
    except (ArithmeticError, TypeError, ValueError) as error:
        name = shorten(claim.claim)
        raise UserError(f"the claim {name} cannot be read: {first_line(error)}") from error
    return share_of(found, claim.share)


def _for_every(claim: Claim, cells: pd.DataFrame) -> Verdicts:
    """The verdicts for each of the models, tasks or lengths of the cells that `every` names."""
    (axis, condition), *others = claim.every.items()
    column = "who" if axis == "model" else axis
    found = {}
    for value in where(cells[cells["each"]], condition)[column].unique().tolist():
        than = claim.than.replace(f"@{column}", repr(value))
        needs = [] if axis == "task" else claim.needs
        change = {"than": than, "every": dict(others), "share": (1, 1), "needs": needs}
        name = length_name(int(value)) if axis == "length" else value
        of_value = cells.assign(each=cells["each"] & (cells[column] == value))
        found[name] = judge(claim.model_copy(update=change), of_value)
    return found


# --- the kinds of claims --------------------------------------------------------------------------


def _level(claim: Claim, cells: pd.DataFrame) -> Verdicts:
    """The mean of `rows` is above or below a limit."""
    rows, limit = select(cells, claim), claim.limit
    means = means_of({"mean": rows})
    if limit == "threshold":
        limit = THRESHOLDS[rows["aligned"].iloc[0]]["all"]
    elif limit == "chance":
        limit = 100 * float(means["mean"] @ (2 * NEAR / rows["length"]).clip(upper=1))
    return all_within(cells, dict(means), (limit, inf) if claim.kind == "above" else (-inf, limit))


def _difference(claim: Claim, cells: pd.DataFrame) -> Verdicts:
    """The mean of `rows` is lower or higher than that of `than`."""
    ours, theirs = select(cells, claim), select(cells, claim, claim.than)
    if ours.index.equals(theirs.index):
        raise Missing("a second length")
    names_lengths = re.search("length|shortest|longest", claim.than)
    if not names_lengths and set(ours["length"]) != set(theirs["length"]):
        raise Missing("the same lengths of all that is compared")
    means = means_of({"ours": ours, "theirs": theirs})
    lower = means["theirs"] - means["ours"]
    limits = tuple(claim.limit) if isinstance(claim.limit, list) else (claim.limit, inf)
    by = lower if claim.kind == "lower" else -lower
    return all_within(cells, {f"{claim.kind} by": by}, limits)


def _loses(claim: Claim, cells: pd.DataFrame) -> Verdicts:
    """From the shortest to the longest length `rows` lose a greater share than `than`."""
    value, weights = 0.0, pd.Series(dtype=float)
    for sign, than in ((1, None), (-1, claim.than)):
        means = means_along(cells, claim, than)
        first, last = means.iloc[:, 0], means.iloc[:, -1]
        start, end = estimate(cells, first).value, estimate(cells, last).value
        if not start > 0:
            raise Missing("anything right at the shortest length")
        # The quotient to first order: its derivatives, which add up to 0, are the weights.
        loss = 100 * (end / start**2 * first - last / start)
        value -= sign * 100 * end / start
        weights = loss.mul(sign).add(weights, fill_value=0)
    return {"loses more by": within([value + limit for limit in estimate(cells, weights)])}


def _falls(claim: Claim, cells: pd.DataFrame) -> Verdicts:
    """The mean is lower in the last group than in the first, `falls steadily` also without the
    largest step, and no step is certainly up: among many steps of a model that falls, one would
    else be so by chance, so their intervals hold together."""
    means = means_along(cells, claim)
    names = list(means)[::-1] if claim.kind == "rises" else list(means)
    whole = means[names[0]] - means[names[-1]]
    found = all_within(cells, {f"{names[0]} to {names[-1]} lower by": whole})
    (verdict,) = found.values()

    steps = {f"{one} to {other}": means[other] - means[one] for one, other in pairwise(names)}
    for name, step in all_within(cells, steps).items():
        if step.word == HOLDS:
            found[f"{name} higher by"] = step._replace(word=FAILS)

    if claim.kind == "falls steadily" and verdict.word == HOLDS and len(steps) > 1:
        largest = min(steps, key=lambda name: estimate(cells, steps[name]).value)
        found |= all_within(cells, {f"without {largest} lower by": whole + steps[largest]})
    return found


def _out_of_order(claim: Claim, cells: pd.DataFrame) -> Verdicts:
    """Some model is lower than one of a smaller training length."""
    rows = select(cells, claim)
    means = means_of(dict(iter(rows.groupby("who", sort=False))))
    trained: Any = rows.groupby("who")["trained"].first()
    tests = {}
    for less, more in permutations(means, 2):
        if trained[less] < trained[more]:
            tests[f"{more} lower than {less} by"] = means[less] - means[more]
    if not tests:
        raise Missing("models of two training lengths")
    return all_within(cells, tests)


def _largest_fall(claim: Claim, cells: pd.DataFrame) -> Verdicts:
    """The fall into the first length past a limit is larger than each before it."""
    means = means_along(cells, claim)
    past = cells["trained"].max() if claim.past == "trained" else parse_length(claim.past)
    num_inside = sum(parse_length(name) <= past for name in means)
    if num_inside < 2 or num_inside == len(means.columns):
        raise Missing(f"a length past {claim.past}, and two up to it")

    *earlier, (before, after) = list(pairwise(means))[:num_inside]
    falls = {}
    for one, other in earlier:
        name = f"{before} to {after} lower than {one} to {other} by"
        falls[name] = means[before] - means[after] - (means[one] - means[other])
    return all_within(cells, falls, (claim.limit, inf))


def _linear(claim: Claim, cells: pd.DataFrame) -> Verdicts:
    """The line of least squares in log length falls, and no mean is far from it."""
    means = means_along(cells, claim, fewest=3)
    doublings = np.log2([parse_length(name) for name in means])
    design = np.stack([np.ones(len(doublings)), doublings], axis=1)
    solution = np.linalg.pinv(design)
    span = doublings[-1] - doublings[0]
    found = all_within(cells, {f"over {span:g} doublings lower by": means @ solution[1] * -span})

    distances = means - means.to_numpy() @ (design @ solution).T
    off = all_within(cells, dict(distances), (-claim.limit, claim.limit))
    return found | {"off the line": share_of(off, (1, 1))}


def _correlation(claim: Claim, cells: pd.DataFrame) -> Verdicts:
    """Whether tasks correlate: see `judged_intervals`."""
    if "thirteen" in set(cells["task"]):
        raise Missing("scores of single tasks")
    try:
        intervals = judged_intervals(cells, claim.kind)
    except UserError as error:
        raise Missing(str(error)) from None
    limits = (-2, claim.limit) if claim.kind == "moderate" else (claim.limit or 1e-9, inf)
    return {name: within(interval, limits) for name, interval in intervals.items()}


KINDS: dict[str, Callable[[Claim, pd.DataFrame], Verdicts]] = {
    "above": _level,
    "below": _level,
    "lower": _difference,
    "higher": _difference,
    "loses share": _loses,
    "falls": _falls,
    "falls steadily": _falls,
    "rises": _falls,
    "out of order": _out_of_order,
    "largest fall": _largest_fall,
    "linear": _linear,
    "cohesive": _correlation,
    "redundant": _correlation,
    "moderate": _correlation,
}

"""Is anything broken in B? Two models, checkpoints or set-ups of one model on the same examples.

`compare` finds the two sides, pairs their examples, and judges the differences. They are B - A in
points (0..100), with the intervals of `statistics.weighted_sum`. A mean over tasks and lengths
weighs each length the same, and in it each task. With a margin in points `Comparison.verdict` is

- *worse*: somewhere, in the mean, a task, a length or a cell, the loss is larger than the margin
  for certain: the one-sided limit of `MeanDifference` lies below minus the margin,
  adjusted by Holm's method over all these tests, at most 5 % false alarms over all of them;
- *not worse*: the interval of the mean lies above minus the margin, B has all that A has, and no
  loss is seen in a place where it may be larger than the margin. The sentence says how much a
  single cell can have lost unseen;
- *cannot tell*: neither.

That a loss of any size is seen is another test, which is more sensitive: the exact sign test, again
adjusted by Holm's method. Tests of the same cells, such as a task with one length, count once.

The test of the margin is Bonett and Price's adjusted Wald test for paired proportions (2012): two
examples are added, one gained and one lost. Its size holds for few examples and few flips, where
the plain normal test is wrong far too often. Here it is extended to means over tasks and lengths,
to fractional scores, and to examples that are drawn together, such as questions on one article.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.common.errors import UserError, check_known, counted, listed, remark
from rulerkit.common.lengths import length_name, parse_grid
from rulerkit.generation.tasks import in_order
from rulerkit.scoring.scores import score
from rulerkit.scoring.statistics import WeightedCell, holm, no_difference_p, weighted_sum
from rulerkit.scoring.summary import check_one_suite, choose_suite, texts_words, weighted_cells
from rulerkit.store.cells import Cell, allowed_failures, readable
from rulerkit.store.comparable import describe_first, differences, snapshot_notes
from rulerkit.store.places import as_cells, find_cells

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, int]
"""A task and a length."""

NOT_WORSE = "not worse"
WORSE = "worse"
CANNOT_TELL = "cannot tell"
EXIT = {NOT_WORSE: 0, WORSE: 1, CANNOT_TELL: 3}
"""Exit statuses for scripts; 2 is a `UserError`'s."""
PAIRINGS = ("digest", "index")
"""What two answers must share to be a pair, beside task, length and index."""
ALARMS = 0.05
"""The chance, at most, that any loss is seen between equal models; and that anything is called
worse by more than the margin where nothing is."""
_MOST_NAMED = 4  # cells, settings or losses in one text
_MOST_EXAMPLES = 10**9  # where the search for a number of examples ends
_ADDED = 2  # examples: one gained, one lost
_CELL = ["task", "length"]
_EXAMPLE = ["task", "length", "index"]
_DIGESTS = ("model.fingerprint", "model.loaded", "model.weights")
_ASKED_BY = ("tokenizer", "prompt", "seed", "sources", "task")


class Side(NamedTuple):
    """One model's predictions: its cells by task and length, without those of which too many
    requests failed, the rows of `score` of what is compared, and the cells that lack answers."""

    name: str
    label: str
    cells: dict[Key, Cell]
    scores: "pd.DataFrame"
    partial: set[Key]


class Decision(NamedTuple):
    """One of the three words, one line that begins with it and has the numbers, and the examples
    needed per task and length (else None)."""

    word: str
    text: str
    needed: int | None = None

    @property
    def status(self) -> int:
        return EXIT[self.word]


@dataclass(frozen=True)
class Comparison:
    """Two models on the same examples.

    `rows`: level ('cell', 'task', 'length', 'all'), task, length (0 where it is a mean over
    lengths), category, n (pairs), better, worse (examples with a higher and a lower score), a, b,
    difference, low, high (points), p and loss (of any loss: adjusted, and whether one is seen),
    p_margin and beyond_margin (of a loss larger than the margin), lower_limit (points: what was
    lost is less than this, in all cells at once).
    `flips`: a row per example whose answers have other scores: task, length, index, digest, a, b
    (0..1), difference (points).
    """

    a: Side
    b: Side
    margin: float
    by: str
    rows: "pd.DataFrame"
    flips: "pd.DataFrame"
    cells: Sequence[WeightedCell]
    """Those of the difference of the means."""
    lacking: str
    """What A has and B lacks or has in part, in words; "" where all is compared."""
    notes: Sequence[str]

    @property
    def mean(self) -> "pd.Series[Any]":
        """The row of the difference of the means."""
        return self.rows.iloc[-1]

    @cached_property
    def verdict(self) -> Decision:
        """Whether anything in B is worse than in A by more than the margin."""
        rows = self.rows
        judged = f"mean {interval_text(self.mean)}, margin {counted(self.margin, 'point')}"
        is_cell = rows["level"] == "cell"

        # A loss anywhere decides, also where the mean hides it.
        beyond = rows[rows["beyond_margin"]].sort_values("high", kind="stable")
        if len(beyond):
            cells = counted(is_cell.sum(), "single cell")
            num_worse = (is_cell & rows["beyond_margin"]).sum()
            text = f"WORSE: {_place_text(beyond.iloc[0])}; for certain in {num_worse} of {cells}"
            return Decision(WORSE, text)

        doubts = [self.lacking] if self.lacking else []
        losses = rows[rows["loss"]].sort_values("p", kind="stable")
        larger = losses[losses["low"] <= -self.margin]
        if len(larger):
            doubts.append(f"a loss is seen that may be larger: {_place_text(larger.iloc[0])}")

        if not doubts and self.mean["low"] > -self.margin:
            within = ""
            if len(losses):
                within = f"; a loss within the margin: {_place_text(losses.iloc[0])}"
            # Upwards, because the limit is promised.
            most = math.ceil(-10 * rows.loc[is_cell, "lower_limit"].min()) / 10
            bound = f"bound: no cell lost more than {counted(max(most, 0.0), 'point')}"
            return Decision(NOT_WORSE, f"NOT WORSE: {judged}{within}; {bound}")

        needed = None
        # An interval that lies below already would say nothing about the number of examples.
        if self.mean["low"] <= -self.margin <= self.mean["high"]:
            needed = self._examples_needed()
            doubts.append(f"about {needed} examples per task and length would tell")
        elif self.mean["high"] < -self.margin:
            doubts.append("too few answers changed for a verdict")
        return Decision(CANNOT_TELL, f"CANNOT TELL: {'; '.join([judged, *doubts])}", needed)

    def _examples_needed(self) -> int:
        """The examples per task and length from which on the interval of the mean would leave out
        minus the margin, if scores stayed as they are."""
        num_examples = float(self.rows.loc[self.rows["level"] == "cell", "n"].median())

        def decides(number: int) -> bool:
            mean = weighted_sum(self.cells, times=number / num_examples).percent()
            return mean.low > -self.margin or mean.high < -self.margin

        # The interval only gets narrower with more examples, so a bisection finds the first number.
        return 1 + bisect_left(range(1, _MOST_EXAMPLES), True, key=decides)


def compare(
    a: Any,
    b: Any,
    margin: float = 1.0,
    by: str = "digest",
    outputs: str | Path = "outputs",
    tasks: str | Sequence[str] | None = None,
    lengths: int | str | Sequence[int | str] | None = None,
    num_examples: int | None = None,
) -> Comparison:
    """Compare two models on the examples that both answered; `margin` in points.

    Each side is a folder of predictions, `run/model`, a model's name in `outputs/predictions`, or
    its cells, or all their rows of `load`. `by='index'` pairs examples whose prompts differ. A cell
    in which more requests failed than its study allows is left out. `tasks`, `lengths`,
    `num_examples`: None takes all. Raises UserError for what cannot be compared.
    """
    check_margin(margin)
    check_known("way to pair examples", by, PAIRINGS)
    chosen_tasks, chosen_lengths = parse_grid(tasks, lengths)

    # Each side by the name that the user wrote, "" where it is cells.
    names, chosen = list[str](), list[list[Cell]]()
    for given in (a, b):
        name = ""
        if isinstance(given, str | Path):
            name = str(given)
            cells = readable(find_cells([name], outputs=outputs), remark)
        else:
            cells = as_cells(given, "compare")
        names.append(name)
        chosen.append(_chosen(name, cells, chosen_tasks, chosen_lengths))

    # No mean is over two suites; one that only one side was asked cannot be meant.
    suites = [{cell.about.suite for cell in cells} for cells in chosen]
    if suites[0] & suites[1] and len(suites[0] | suites[1]) > 1:
        if chosen_tasks is not None:
            check_one_suite(suites[0] | suites[1])
        suite = choose_suite(suites[0] & suites[1])
        chosen = [[cell for cell in cells if cell.about.suite == suite] for cells in chosen]

    side_a = side_of(chosen[0], names[0], num_examples=num_examples)
    side_b = side_of(chosen[1], names[1], num_examples=num_examples)
    # A stored baseline and the model of today may have one name, and so may files of other
    # programs: then only what the user wrote tells the sides apart.
    if side_a.name == side_b.name:
        side_a = side_a._replace(name=names[0] or side_a.name)
        side_b = side_b._replace(name=names[1] or side_b.name)
    pairs, notes = paired(side_a, side_b, by)
    return comparison_of(side_a, side_b, pairs, notes, margin, by, _lacking(side_a, side_b))


def _chosen(
    name: str, cells: Sequence[Cell], tasks: Sequence[str] | None, lengths: Sequence[int] | None
) -> list[Cell]:
    """The cells of a side that are to be compared; UserError where it has none of a task or length
    that was named."""
    chosen = []
    for cell in cells:
        is_named = tasks is None or cell.task in tasks
        if is_named and (lengths is None or cell.length in lengths):
            chosen.append(cell)

    there = {cell.task for cell in chosen} | {length_name(cell.length) for cell in chosen}
    wanted = [*(tasks or ()), *map(length_name, lengths or ())]
    if missing := [one for one in wanted if one not in there]:
        held = keys_text((cell.task, cell.length) for cell in cells)
        raise UserError(
            f"{name or 'one side'} has no answers to {listed(missing, _MOST_NAMED)}, which is to "
            f"be compared; it has {held or 'none'}"
        )
    return chosen


def check_margin(margin: float) -> None:
    """Raise a UserError for what is no number of points above 0."""
    if not isinstance(margin, Real) or not 0 < margin < math.inf:
        raise UserError(f"margin is {margin!r}: it must be a number of points above 0, such as 1.0")


def comparison_of(
    a: Side,
    b: Side,
    pairs: "pd.DataFrame",
    notes: Sequence[str],
    margin: float,
    by: str,
    lacking: str = "",
) -> Comparison:
    """The comparison of two sides whose examples were `paired`, of all pairs or of some."""
    rows, cells = judge_pairs(pairs, margin)
    rows.attrs["texts"] = texts_words(pairs)
    if rows.attrs["texts"]:
        notes = [*notes, f"not comparable with the paper: {rows.attrs['texts']}"]

    flips = pairs.loc[pairs["difference"] != 0, [*_EXAMPLE, "digest", "a", "b", "difference"]]
    flips = flips.reset_index(drop=True)
    flips["difference"] *= 100
    return Comparison(a, b, margin, by, rows, flips, cells, lacking, notes)


# --- two sides ------------------------------------------------------------------------------------


def side_of(
    cells: Sequence[Cell],
    name: str = "",
    max_failures: float | None = None,
    num_examples: int | None = None,
) -> Side:
    """One side of a comparison, with the first `num_examples` of each cell; None takes all. `name`
    is what the user wrote. Raises UserError for more than one model or run."""
    scores = score(cells)
    most = math.inf if num_examples is None else num_examples
    scores = scores[scores["index"] < most]
    models = list(dict.fromkeys(zip(scores["run"], scores["model"], strict=True)))
    if len(models) != 1:
        found = ", ".join("/".join(model) for model in models)
        raise UserError(
            f"{name or 'one side'} holds {found or 'no answer to compare'}: a side is one model "
            "in one run; name its folder"
        )
    ((run, model),) = models

    answered = set(zip(scores["task"], scores["length"], strict=True))
    kept: dict[Key, Cell] = {}
    partial = set()
    for cell in cells:
        key = (cell.task, cell.length)
        coverage = cell.coverage.of_first(int(min(cell.wanted, most)))
        if max_failures is not None:
            coverage = replace(coverage, max_failures=max_failures)
        # What failed often is no sample of the cell: hard examples may fail more often than others.
        allowed = allowed_failures(coverage.max_failures, coverage.wanted)
        if key in answered and len(coverage.failed) <= allowed:
            kept.setdefault(key, cell)
        if not coverage.is_enough:
            partial.add(key)
    return Side(
        name=f"{run}/{model}" if run else model,
        label=str(scores["label"].iloc[0]),
        cells=kept,
        scores=scores[scores.set_index(_CELL).index.isin(list(kept))],
        partial=partial,
    )


def paired(a: Side, b: Side, by: str) -> tuple["pd.DataFrame", list[str]]:
    """The examples that both answered, and what a reader must know about the two.

    Columns task, category, length, index, digest, a, b (scores 0..1), difference (b - a), `group`
    where the scores have it. Pairs have the same task, length and index, and with `by='digest'` the
    same prompt: other prompts are a `UserError` that names the cells.
    """
    paths_a = {cell.path.resolve() for cell in a.cells.values()}
    paths_b = {cell.path.resolve() for cell in b.cells.values()}
    if paths_a & paths_b:
        raise UserError(
            f"{a.name} and {b.name} are the same predictions; name two models, or two runs of one"
        )

    scores_b = b.scores[[*_EXAMPLE, "digest", "score"]]
    pairs = a.scores.merge(scores_b, on=_EXAMPLE, suffixes=("_a", "_b"))
    if pairs.empty:
        held = [f"{side.name} has {keys_text(side.cells) or 'none'}" for side in (a, b)]
        raise UserError(
            f"nothing is left to compare, as {a.name} and {b.name} have no task, length and index "
            f"in common: {'; '.join(held)}"
        )
    notes = []
    num_pairs = pairs.groupby(_CELL).size()
    answered_a, answered_b = a.scores.groupby(_CELL).size(), b.scores.groupby(_CELL).size()
    most: Any = answered_a.combine(answered_b, max, fill_value=0).astype(int)
    if left_out := [key for key, number in most.items() if num_pairs.get(key, 0) < number]:
        notes.append(
            f"{len(pairs)} of {most.sum()} examples were answered by both; the others, in "
            f"{keys_text(left_out)}, are left out"
        )

    settings = differing(a, b)
    # an empty digest is one that nobody knows: it is not equal to another
    is_other = (pairs["digest_a"] != pairs["digest_b"]) | (pairs["digest_a"] == "")
    if is_other.any():
        if by == "digest":
            raise _not_the_same_prompts(a, b, pairs[is_other], settings)
        few = f"{is_other.sum()} of {len(pairs)} pairs"
        notes.insert(0, f"paired by index: {few} have prompts that differ or are not known")

    pairs = pairs.rename(columns={"score_a": "a", "score_b": "b", "digest_a": "digest"})
    pairs["difference"] = pairs["b"] - pairs["a"]
    if settings:
        notes.append(f"settings that differ, A | B: {'; '.join(settings)}")
    return pairs, notes + snapshot_notes([*a.cells.values(), *b.cells.values()])


def _lacking(a: Side, b: Side) -> str:
    """What A has and B lacks, in words: not asked, not readable, failed too often, or answered in
    part."""
    answered_a, answered_b = a.scores.groupby(_CELL).size(), b.scores.groupby(_CELL).size()
    lacking = []
    for key in a.cells:
        # A shorter run of the same cells is no damage: B need not have more than it was to have.
        is_partial = key in b.partial and answered_b.get(key, 0) < answered_a[key]
        if key not in b.cells or is_partial:
            lacking.append(key)
    if not lacking:
        return ""
    return (
        f"{b.name} lacks {keys_text(lacking)}, which {a.name} has (name the tasks and lengths to "
        "compare, if they are to be left out)"
    )


def _not_the_same_prompts(
    a: Side, b: Side, different: "pd.DataFrame", settings: Sequence[str]
) -> UserError:
    """The error for pairs with other prompts: the cells, and the settings that explain it."""
    keys = sorted(set(zip(different["task"], different["length"], strict=True)))
    reasons = [setting for setting in settings if setting.startswith(_ASKED_BY)]
    reason = "; ".join(reasons[:_MOST_NAMED]) or "digests differ, or are not on record"
    return UserError(
        f"{a.name} and {b.name} were not asked the same prompts in {keys_text(keys)} ({reason}): "
        "compare runs with the same tokenizer, template, seed and corpora, or pair with "
        'by="index" (--by index), which does not compare the prompts'
    )


def differing(a: Side, b: Side) -> list[str]:
    """Result-defining settings that differ between cells of the two, the models' names apart:
    'engine: vllm | openai'."""
    texts: dict[str, None] = {}
    for key, cell in a.cells.items():
        if key not in b.cells:
            continue
        result, other_result = cell.record["result"], b.cells[key].record["result"]
        # Files of other programs do not say how they were made: they have no seed.
        if None in (result["seed"], other_result["seed"]):
            continue
        for change in differences(result, other_result):
            field, one, other, _ = describe_first([change])
            # Digests say nothing to a reader, and several of them differ at once.
            if field.startswith(_DIGESTS):
                texts["other weights or configuration"] = None
            elif field != "model.name":
                texts[f"{field}: {one} | {other}"] = None
    return list(texts)


def keys_text(keys: Iterable[Key]) -> str:
    """Cells in words: 'vt at 4K, cwe at 4K and 3 more'."""
    texts = (f"{task} at {length_name(length)}" for task, length in keys)
    return listed(texts, _MOST_NAMED)


# --- differences ----------------------------------------------------------------------------------


class Place(NamedTuple):
    """What a mean is taken over: a cell, a task, a length, or all."""

    level: str
    task: str
    """Empty for a mean over tasks."""
    length: int
    """0 for a mean over lengths."""
    cells: tuple[Key, ...]

    @property
    def weights(self) -> list[float]:
        """The weight of each cell: each length weighs the same, and in it each task. So a length at
        which fewer tasks were asked counts as much as the others."""
        lengths = [length for _, length in self.cells]
        num_lengths = len(set(lengths))
        return [1 / num_lengths / lengths.count(length) for length in lengths]

    @property
    def name(self) -> str:
        """In words, such as `vt at 4K`."""
        if self.level == "all":
            return "the mean"
        at = f"at {length_name(self.length)}" if self.length else ""
        return f"{self.task or 'all tasks'} {at}".strip()


def places_of(cells: Iterable[Key]) -> list[Place]:
    """All places of some cells, level by level, the mean last. With one length each task is also a
    cell: several places may hold the same cells."""
    cells = list(cells)
    tasks = dict.fromkeys(task for task, _ in cells)
    lengths = sorted({length for _, length in cells})
    named = [("cell", task, length) for task, length in cells]
    named += [("task", task, 0) for task in tasks]
    named += [("length", "", length) for length in lengths]
    named += [("all", "", 0)]

    places = []
    for level, task, length in named:
        inside = [key for key in cells if task in ("", key[0]) and length in (0, key[1])]
        places.append(Place(level, task, length, tuple(inside)))
    return places


class MeanDifference(NamedTuple):
    """A mean of paired differences, drawn towards 0 by the added examples, and its standard error
    (both in shares, -1..1). `freedom` are the degrees of freedom of Student's t: infinite where
    each answer is drawn alone."""

    value: float
    error: float
    freedom: float = math.inf

    def p_not_below(self, limit: float) -> float:
        """The one-sided p-value against a true mean of at least `limit`: small where the mean is
        below it for certain."""
        from scipy.special import stdtr

        return float(stdtr(self.freedom, (self.value - limit) / self.error))

    def lower_limit(self, alarms: float) -> float:
        """The true mean lies above this but for a chance of `alarms`; a mean of scores loses 1 at
        most."""
        from scipy.special import stdtrit

        limit = self.value - float(stdtrit(self.freedom, 1 - alarms)) * self.error
        return max(limit, -1.0)


class PairedDifferences:
    """The differences of all pairs of a comparison, ready for means over places.

    `pairs` has task, length, index, a, b (0..1) and difference (-1..1), and `group` where examples
    share something; NaN there is an example that shares nothing.
    """

    def __init__(self, pairs: "pd.DataFrame") -> None:
        self.pairs = pairs
        self._values = pairs["difference"].to_numpy(dtype=float)
        self._rows: dict[Any, Any] = pairs.groupby(_CELL, sort=False).indices

        # Examples of one task that share an index were drawn together at all lengths, and so were
        # the questions of one article: such differences are added up before they are squared.
        shared = "example " + pairs["index"].astype(str)
        if "group" in pairs:
            shared = shared.mask(pairs["group"].notna(), "group " + pairs["group"].astype(str))
        self._clusters, _ = (pairs["task"] + " " + shared).factorize()

    def first(self, num_examples: int) -> "PairedDifferences":
        """Those of the first examples of each cell."""
        return PairedDifferences(self.pairs[self.pairs["index"] < num_examples])

    @cached_property
    def _sides(self) -> list[dict[Any, WeightedCell]]:
        return [weighted_cells(self.pairs.assign(score=self.pairs[side])) for side in "ba"]

    def weighted(self, place: Place) -> list[WeightedCell]:
        """The cells of B with their weights, and those of A with the same below 0."""
        cells = []
        for key, weight in zip(place.cells, place.weights, strict=True):
            for side, sign in zip(self._sides, (1, -1), strict=True):
                cells.append(side[key]._replace(weight=sign * weight))
        return cells

    def mean(self, place: Place) -> MeanDifference:
        """The mean over a place."""
        rows_of_cells = [self._rows[cell] for cell in place.cells]
        rows = np.concatenate(rows_of_cells)
        sizes = [len(some) for some in rows_of_cells]
        weights = np.repeat(np.divide(place.weights, sizes), sizes)

        # Where cells differ in size, so many answers of equal weight have the same sum of squares.
        num_answers = 1 / float(weights @ weights)
        shrink = num_answers / (num_answers + _ADDED)
        means = np.repeat([self._values[some].mean() for some in rows_of_cells], sizes)
        deviations = weights * (self._values[rows] - shrink * means)
        clusters = self._clusters[rows]
        of_clusters = np.bincount(clusters, weights=deviations)

        mean = shrink * float(weights @ self._values[rows])
        of_added = _ADDED * (1 + mean**2) / num_answers**2
        variance = shrink**2 * (float(of_clusters @ of_clusters) + of_added)

        # Few groups say little about how much groups differ: Student's t with as many degrees of
        # freedom as there are groups, less one for each task. The answers to one example at several
        # lengths are a group too, and where each answer was drawn alone, nothing is added.
        freedom = math.inf
        num_groups = len(np.unique(clusters))
        if num_groups < len(rows):
            num_tasks = len({task for task, _ in place.cells})
            freedom = max(1.0, float(num_groups - num_tasks))
        return MeanDifference(mean, math.sqrt(variance), freedom)


def judge_pairs(pairs: "pd.DataFrame", margin: float) -> "tuple[pd.DataFrame, list[WeightedCell]]":
    """The rows of a `Comparison` of pairs as `paired` gives them, one for each of
    `places_of(cells)`; and the cells of the difference of the means."""
    import pandas as pd

    by_cell = pairs.assign(
        n=1, better=pairs["difference"] > 0, worse=pairs["difference"] < 0
    ).groupby(_CELL)
    counts = by_cell[["n", "better", "worse"]].sum()
    of_cell: dict[Any, Any] = counts.join(by_cell[["a", "b"]].mean()).to_dict("index")
    category = pairs.groupby("task")["category"].first()
    order = in_order(pairs["task"])
    places = places_of(sorted(of_cell, key=lambda key: (order.index(key[0]), key[1])))

    differences = PairedDifferences(pairs)
    rows: list[dict[str, Any]] = []
    for place in places:
        row: dict[str, Any] = {"level": place.level, "task": place.task, "length": place.length}
        row["category"] = category[place.task] if place.task else ""
        cells = [of_cell[key] for key in place.cells]
        for name in ("n", "better", "worse"):
            row[name] = sum(cell[name] for cell in cells)
        for side in ("a", "b"):
            row[side] = 100 * float(np.dot(place.weights, [cell[side] for cell in cells]))
        estimate = weighted_sum(differences.weighted(place)).percent()
        row |= {"difference": estimate.value, "low": estimate.low, "high": estimate.high}

        mean = differences.mean(place)
        row |= {"p": no_difference_p(differences.weighted(place)), "loss": False}
        # A loss beyond the margin is a loss. Where many answers flip each way in few examples, the
        # test of the margin alone would find one too often (13 % of runs with 20 examples of which
        # 40 % flip each way); the exact test of any loss holds there.
        row |= {"p_margin": max(row["p"], mean.p_not_below(-margin / 100)), "beyond_margin": False}
        # No cell can have lost more than its limit, in all cells at once.
        row["lower_limit"] = 100 * mean.lower_limit(ALARMS / len(of_cell))
        rows.append(row)

    # So many tests would find something by chance: adjusted, ALARMS holds for all of them together.
    # Places of the same cells are one test.
    distinct = {frozenset(place.cells): row for place, row in zip(places, rows, strict=True)}
    for name, found in (("p", "loss"), ("p_margin", "beyond_margin")):
        adjusted = holm([row[name] for row in distinct.values()])
        p_of = dict(zip(distinct, adjusted, strict=True))
        for row, place in zip(rows, places, strict=True):
            row[name] = p_of[frozenset(place.cells)]
            row[found] = row[name] < ALARMS
    return pd.DataFrame(rows), differences.weighted(places[-1])


def interval_text(row: "pd.Series[Any]") -> str:
    """The difference of a row with its interval: `-1.2 points (95 % CI -2.0 to -0.4)`."""
    return f"{row['difference']:+z.1f} points (95 % CI {row['low']:+z.1f} to {row['high']:+z.1f})"


def _place_text(row: "pd.Series[Any]") -> str:
    """Where a row of the table stands, with its difference and interval."""
    name = Place(row["level"], row["task"], int(row["length"]), ()).name
    return f"{name} {interval_text(row)}"

"""The gate: is anything broken in B? Two models, checkpoints or set-ups of one model on the same
examples.

Differences are B - A in points (0..100), paired by example, with the intervals of
`statistics.weighted_sum`. A mean over tasks and lengths weighs each length the same, and in it each
task. With a margin in points the verdict is

- *worse*: a loss is seen in the mean, a task, a length or a cell. A loss is seen where it exceeds
  the margin and its one-sided p-value (`no_difference_p`), adjusted by Holm's method over all these
  tests, is below 0.05. Tests of the same cells, such as a task with one length, count once;
- *not worse*: no loss is seen, and the interval of the mean lies above minus the margin;
- *cannot tell*: neither. The verdict says how many examples it would take if the differences stayed
  as they are.
"""

import glob
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.analysis.other_formats import read_predictions
from rulerkit.common.errors import UserError, check_known, counted, listed, unknown
from rulerkit.common.lengths import length_name, parse_grid
from rulerkit.common.paths import resolve_file
from rulerkit.scoring.scores import THIRTEEN, score
from rulerkit.scoring.statistics import (
    WeightedCell,
    critical_value,
    holm,
    no_difference_p,
    weighted_sum,
)
from rulerkit.scoring.summary import base_run, merge_repetitions, weighted_cells
from rulerkit.store.cells import Cell, allowed_failures, read_cells
from rulerkit.store.comparable import describe_first, differences, snapshot_notes

if TYPE_CHECKING:
    import pandas as pd


NOT_WORSE, WORSE, CANNOT_TELL = "not worse", "worse", "cannot tell"
EXIT = {NOT_WORSE: 0, WORSE: 1, CANNOT_TELL: 3}
"""Exit statuses for scripts; 2 is a `UserError`'s."""
ALARMS = 0.05
"""The chance that any loss is seen between equal models, at most."""
PAIRINGS = ("digest", "index")
LEVELS = {"cell": "a cell", "task": "a task", "length": "a length", "all": "the mean"}
_MOST_NAMED = 4
_MOST_FLIPS = 12
_ROUNDING = 1e-9  # points: a loss of just the margin is none, however it was rounded
_COLUMNS = [
    *(
        "level",
        "task",
        "category",
        "length",
        "n",
        "a",
        "b",
        "difference",
        "low",
        "high",
    ),
    *("better", "worse", "unable", "p", "smallest_loss", "loss"),
]
_DIGESTS = ("model.fingerprint", "model.loaded", "model.weights")
_MEAN = ["a", "b", "difference", "low", "high"]
Key = tuple[str, int]


class Decision(NamedTuple):
    """One of the three words, a sentence with the numbers, and the examples needed per task and
    length (else None)."""

    word: str
    text: str
    needed: int | None = None

    @property
    def status(self) -> int:
        return EXIT[self.word]


class Side(NamedTuple):
    """One model's predictions of one run and of its repetitions: its cells, the rows of `score` of
    what is compared, and by task and length the settings on record (of several repetitions those of
    the first), without the cells of which too many requests failed: of these the number of failed
    requests. It answered each example in all `repetitions`, but for those `lacking`."""

    name: str
    label: str
    cells: Sequence[Cell]
    scores: "pd.DataFrame"
    results: dict[Key, dict[str, Any]]
    failed: dict[Key, int]
    repetitions: int
    lacking: int


@dataclass(frozen=True)
class Comparison:
    """Two models on the same examples.

    `rows`: level ('cell', 'task', 'length', 'all'), task, category, length (0 where it is a mean
    over lengths), n (pairs), a, b, difference, low, high (points), better, worse (examples with a
    higher and a lower score), p (of a loss, adjusted), smallest_loss (the smallest loss of whole
    answers that could have been seen if nothing else differed, points; NaN where there are too few examples), loss (whether
    one is seen), unable (a cell all right, or all wrong, on both sides). `flips`: a row per example
    whose answers have other scores: task, length, index, digest, a, b (0..1), difference (points).
    """

    a: Side
    b: Side
    margin: float
    confidence: float
    by: str
    rows: "pd.DataFrame"
    flips: "pd.DataFrame"
    cells: tuple[WeightedCell, ...]
    """Those of the difference of the means."""
    notes: tuple[str, ...]
    soft: "pd.DataFrame"
    """Over the examples with soft scores on both sides: a row for `accuracy` and one for
    `probability` (of the right answer) with measure, a, b, difference, low, high (points) and
    `needed`, the examples per task and length that would show such a difference."""

    @property
    def same_model(self) -> bool:
        """Both sides are one model, served alike: the differences are the noise floor of serving
        it."""
        other = self.b.results
        return all(
            result["seed"] is not None and other.get(key, result) == result
            for key, result in self.a.results.items()
        )

    @property
    def mean(self) -> "pd.Series[Any]":
        """The row of the difference of the means."""
        return self.rows.iloc[-1]

    @cached_property
    def verdict(self) -> Decision:
        """Whether anything in B is worse than in A by more than the margin."""
        models, seen = (
            f"worse than {self.a.name} by more than {_points(self.margin)}",
            self.mean,
        )
        mean = f"mean {_interval(seen)}"
        if self.rows["loss"].any():
            # with one length each task is a cell, and one of a level is the mean
            sizes = self.rows["level"].value_counts()
            levels = ["cell", *sizes.index[sizes.between(2, sizes["cell"] - 1)]]
            losses = self.rows[self.rows["loss"] & self.rows["level"].isin(levels)]
            losses = losses.sort_values("p", kind="stable")
            names = [f"{_place(row)} {_interval(row)}" for _, row in losses.iterrows()]
            seen_in = "; ".join(filter(None, [listed(names, _MOST_NAMED), mean]))
            return Decision(WORSE, f"{self.b.name} is {models}: {seen_in}")
        if seen["low"] > -self.margin:
            below = ", though its mean is below for certain" if seen["high"] < 0 else ""
            text = f"{self.b.name} is not {models}{below}, and no task, length or cell is seen to be"
            return Decision(NOT_WORSE, f"{text}: {mean}")
        text = f"cannot tell whether {self.b.name} is {models}: {mean}"
        if seen["high"] < -self.margin:
            text += "; it is below for certain, but too few examples differ for the test of a loss"
            return Decision(CANNOT_TELL, text)
        needed = examples_needed(self.rows, self.cells, self.confidence, self.margin)
        return Decision(
            CANNOT_TELL,
            f"{text}; would need about {needed} examples per task and length",
            needed,
        )


def compare(
    a: str | Path | Sequence[Cell],
    b: str | Path | Sequence[Cell],
    margin: float = 1.0,
    by: str = "digest",
    confidence: float = 0.95,
    outputs: str | Path = "outputs",
    max_failures: float | None = None,
    soft: bool = False,
    **grid: Any,
) -> Comparison:
    """Compare two models on the examples that both answered; `margin` in points.

    Each side is a folder of predictions, `run/model`, a model's name in `outputs/predictions`, or
    its cells; A may be a stored baseline. The repetitions of a run (`repeat`) belong to its side,
    unless the other side names them. `by='index'` pairs examples whose prompts differ. A cell in
    which more requests failed than `max_failures` allows, by default that of its record, is left
    out. With `soft` all is about the probability of the right answer, of the examples that have
    soft scores on both sides. `grid` says what is compared: tasks, lengths, num_examples; None takes all.
    """
    import pandas as pd

    _check_margin(margin)
    check_known("way to pair examples", by, PAIRINGS)
    (name_a, cells_a), (name_b, cells_b) = (
        (str(given), find(given, outputs))
        if isinstance(given, str | Path)
        else ("", list(given))
        for given in (a, b)
    )
    first = _side(name_a, cells_a, cells_b, max_failures, **grid)
    second = _side(name_b, cells_b, cells_a, max_failures, **grid)
    if first.name == second.name:  # a stored baseline, or files of other programs
        first = first._replace(name=name_a or first.name)
        second = second._replace(name=name_b or second.name)
    pairs, notes = paired(first, second, by)
    answers, with_soft = pairs, pairs.dropna(subset=["gold_a", "gold_b"])
    gold = with_soft.assign(a=with_soft["gold_a"], b=with_soft["gold_b"])
    gold = gold.assign(difference=gold["b"] - gold["a"], variance=0.0)
    measures = {"accuracy": with_soft, "probability": gold} if len(gold) else {}
    if soft and not measures:
        raise UserError(
            f"{first.name} and {second.name} share no example with soft scores: evaluate both with "
            "`soft: true`"
        )
    if soft:
        pairs = gold
        notes.insert(0, "scores are the probability of the right answer")
    means = []
    for measure, measured in measures.items():
        rows, cells = judge_pairs(measured, margin, confidence)
        mean, needed = rows.iloc[-1], examples_needed(rows, cells, confidence)
        means.append({"measure": measure, **mean[_MEAN], "needed": needed})
        number = "over a million" if needed > 10**6 else f"about {needed}"
        notes.append(
            f"{measure} of the {len(measured)} examples with soft scores: {_interval(mean)}; "
            f"{number} examples per task and length would show such a difference"
        )
        if measure == "probability" and mean["high"] < 0 and not soft:
            notes[-1] += "; soft=True (--soft) judges this loss"
    rows, cells = judge_pairs(pairs, margin, confidence)
    columns = ["task", "length", "index", "digest", "a", "b", "difference"]
    flips = (
        answers.loc[pairs.index, columns]
        .query("difference != 0")
        .reset_index(drop=True)
    )
    flips["difference"] *= 100
    soft_means = pd.DataFrame(means, columns=["measure", *_MEAN, "needed"])
    return Comparison(
        first,
        second,
        margin,
        confidence,
        by,
        rows,
        flips,
        tuple(cells),
        tuple(notes),
        soft_means,
    )


def compare_study(
    study: Any, cells: Iterable[Cell], margin: float = 1.0, by: str = "digest"
) -> Comparison:
    """Compare the two models of a study, or its one model that answered twice, on what the study
    asks."""
    sides: dict[str, list[Cell]] = {}
    for cell in cells:
        name = cell.run if len(study.models) == 1 else cell.model
        sides.setdefault(name, []).append(cell)
    if len(sides) != 2:
        raise UserError(
            "a comparison needs the predictions of two models, or of one model twice; found "
            f"{', '.join(sides) or 'none'}"
        )
    a, b = sides.values()
    return compare(a, b, margin, by, num_examples=study.num_examples)


# --- differences ----------------------------------------------------------------------------------


def judge_pairs(
    pairs: "pd.DataFrame", margin: float, confidence: float
) -> "tuple[pd.DataFrame, list[WeightedCell]]":
    """The rows of a `Comparison` of pairs as `paired` gives them, and the cells of the difference
    of the means."""
    import pandas as pd

    cells_a, cells_b = (
        weighted_cells(pairs.assign(score=pairs[side])) for side in ("a", "b")
    )
    tasks = [*THIRTEEN, *pairs["task"]]
    variance, difference = pairs.get("variance", 0.0), pairs["difference"]
    flips = pairs.assign(
        better=difference > 0, worse=difference < 0, n=1, variance=variance
    )
    counts = ["n", "better", "worse"]
    rules = dict.fromkeys(counts, "sum") | {"category": "first"}
    rules |= dict.fromkeys(["a", "b", "variance"], "mean")
    by_cell = flips.groupby(["task", "length"]).agg(rules).reset_index()
    by_cell = by_cell.sort_values(
        "task", key=lambda names: names.map(tasks.index), kind="stable"
    )
    rows, tests = [], []
    for level in LEVELS:
        of_task = by_cell["task"] if level in ("cell", "task") else ""
        of_length = by_cell["length"] if level in ("cell", "length") else 0
        places = by_cell.assign(of_task=of_task, of_length=of_length)
        for (task, length), members in places.groupby(
            ["of_task", "of_length"], sort=False
        ):
            lengths = members.groupby("length")["n"]
            shares = 1 / lengths.ngroups / lengths.transform("size")
            keys = zip(members["task"], members["length"], strict=True)
            weights = dict(zip(keys, shares, strict=True))
            cells = [
                cell._replace(weight=sign * weight)
                for key, weight in weights.items()
                for sign, cell in ((1, cells_b[key]), (-1, cells_a[key]))
            ]
            category = members["category"].iloc[0] if task else ""
            row = {"level": level, "task": task, "length": length, "category": category}
            row |= members[counts].sum()
            row |= {side: 100 * (members[side] * shares).sum() for side in ("a", "b")}
            rows.append(row | weighted_sum(cells, confidence).percent()._asdict())
            of_mean = (shares**2 * members["variance"] / members["n"]).sum()
            tests.append((frozenset(weights), no_difference_p(cells, of_mean)))
    distinct = dict(tests)
    adjusted = dict(zip(distinct, holm(list(distinct.values())), strict=True))
    frame = pd.DataFrame(rows).rename(columns={"value": "difference"})
    is_full = (frame["a"] == frame["b"]) & frame["a"].isin([0, 100])
    frame["unable"] = is_full & (frame["level"] == "cell")
    frame["p"] = [adjusted[keys] for keys, _ in tests]
    frame["smallest_loss"] = [
        smallest_loss(n, len(distinct), margin) for n in frame["n"]
    ]
    frame["loss"] = (frame["p"] < ALARMS) & (frame["difference"] < -margin - _ROUNDING)
    return frame[_COLUMNS], cells


def examples_needed(
    rows: "pd.DataFrame",
    cells: Iterable[WeightedCell],
    confidence: float,
    margin: float = 0.0,
) -> int:
    """The examples per task and length from which on the interval of a mean difference, as
    `judge_pairs` gives it, would leave out minus the margin, if scores stayed as they are."""
    num_examples = float(rows.loc[rows["level"] == "cell", "n"].median())

    def decides(number: int) -> bool:
        mean = weighted_sum(cells, confidence, number / num_examples).percent()
        return mean.low > -margin or mean.high < -margin

    return 1 + bisect_left(range(1, 10**9), True, key=decides)


def smallest_loss(num_examples: int, num_tests: int, margin: float = 0.0) -> float:
    """The smallest loss (points) that `num_tests` tests can see in so many examples where nothing
    else differs.

    So many examples must be lost as pass Holm's first threshold; NaN where there are not so many.
    """
    lost = math.floor(math.log2(num_tests / ALARMS)) + 1
    lost = max(lost, math.floor(num_examples * margin / 100 + _ROUNDING) + 1)
    return 100 * lost / num_examples if lost <= num_examples else math.nan


def _check_margin(margin: float) -> None:
    if not isinstance(margin, Real) or not 0 < margin < math.inf:
        raise UserError(
            f"margin is {margin!r}: it must be a number of points above 0, such as 1.0"
        )


# --- the power of a comparison before it is run ---------------------------------------------------


def power_text(
    num_tasks: int,
    num_lengths: int,
    num_examples: int,
    margin: float = 1.0,
    flips: float = 0.02,
) -> str:
    """How many examples a comparison of equal models needs, and what it sees, in words.

    `flips` is the assumed share of answers that change each way by chance. The mean of equal models
    then lies within the margin with a chance of 90 %. Raises UserError for impossible values.
    """
    _check_margin(margin)
    if not 0 <= flips <= 0.5:
        raise UserError(
            f"flips is {flips!r}: it must be the share of answers that change each way, 0 to 0.5"
        )
    z, num_cells = critical_value(0.95), num_tasks * num_lengths

    def is_enough(examples: int) -> bool:
        """Whether gains and losses, as many as are expected of equal models, with Wilson's limits
        and a difference that 9 of 10 exceed, leave the mean within the margin."""
        pairs = examples * num_cells
        flipped = 2 * flips * pairs
        wide = critical_value(0.8) * math.sqrt(flipped) + math.sqrt(
            z**2 * flipped + z**4
        )
        return wide < margin / 100 * pairs

    needed = 1 + bisect_left(range(1, 10**15), True, key=is_enough)
    # a mean over one task, or one length, is no test of its own
    num_tests = (num_tasks + (num_tasks > 1)) * (num_lengths + (num_lengths > 1))
    smallest = [
        smallest_loss(num_examples * cells, num_tests, margin)
        for cells in (1, num_lengths, num_tasks, num_cells)
    ]
    return (
        f"{counted(num_tasks, 'task')} at {counted(num_lengths, 'length')}, margin {_points(margin)}, 95 % intervals:\n"
        f"- needs {needed} examples per task and length (now {num_examples}) "
        f"for the mean, where {100 * flips:g} % of the answers of equal models flip each way: then "
        "9 of 10 comparisons of equals end with 'not worse'\n"
        f"- the smallest loss that {num_examples} examples can show, where nothing else flips: "
        f"{_losses(smallest)}"
    )


# --- the two sides --------------------------------------------------------------------------------


def find(
    name: str | Path, outputs: str | Path = "outputs", scan: bool = True
) -> list[Cell]:
    """The predictions that a name means; without `scan` rows are checked when they are first read.

    A file or folder of predictions (ours or others'), else `run/model` or `run` in
    `outputs/predictions`, else a model's name that stands there in one run only.
    """
    root = resolve_file(outputs) / "predictions"
    for path in (resolve_file(name), root / name):
        # a checkpoint in the working directory is no folder of predictions
        if name and path.exists() and not (path / "config.json").exists():
            return read_predictions(path, scan=scan)
    known = sorted(path for path in root.glob("*/*") if path.is_dir())
    # of a run and its repetitions the run
    matches = {
        base_run(path.parent.name): path
        for path in known[::-1]
        if path.name == str(name)
    }
    if len(matches) == 1:
        (path,) = matches.values()
        return read_cells(path, scan=scan)
    names = sorted(
        f"{path.parent.name}/{path.name}" for path in matches.values() or known
    )
    if matches:
        raise UserError(
            f"model {str(name)!r} has predictions in several runs: name one of {', '.join(names)}"
        )
    raise unknown(
        "model or folder of predictions", name, names, f"Predictions lie in {root}"
    )


def _repetitions(cells: Sequence[Cell], other: Sequence[Cell]) -> list[Cell]:
    """The cells of the repetitions of a side's runs, but for those that the other side names."""
    taken = {cell.path.resolve() for cell in [*cells, *other]}
    repetitions = []
    # <predictions>/<run>/<model>
    for folder in {cell.path.absolute().parents[1] for cell in cells}:
        for path in sorted(
            folder.parent.parent.glob(f"*-repeat*/{glob.escape(folder.name)}")
        ):
            if base_run(path.parent.name) == folder.parent.name:
                repetitions += [
                    c for c in read_cells(path) if c.path.resolve() not in taken
                ]
    return repetitions


def _side(
    name: str,
    cells: Sequence[Cell],
    other: Sequence[Cell],
    max_failures: float | None,
    tasks: str | Sequence[str] | None = None,
    lengths: int | str | Sequence[int | str] | None = None,
    num_examples: int | None = None,
) -> Side:
    """One side of these tasks and lengths, with the first `num_examples` examples of each cell, and
    with its repetitions where it was given by name (else '').

    Raises UserError for more than one model or run.
    """
    if name:
        cells = [*cells, *_repetitions(cells, other)]
    most = math.inf if num_examples is None else num_examples
    tasks, tokens = parse_grid(tasks, lengths)
    chosen = [
        cell
        for cell in cells
        if (tasks is None or cell.task in tasks)
        and (tokens is None or cell.length in tokens)
    ]
    answers = score(chosen)
    answers = answers[answers["index"] < most]
    scores = merge_repetitions(answers)
    models = dict.fromkeys(zip(scores["run"], scores["model"], strict=True))
    if len(models) != 1:
        raise UserError(
            f"{name or 'one side'} holds {', '.join(map('/'.join, models)) or 'no answer to compare'}: a side is "
            "one model in one run; name its folder"
        )
    label = str(scores["label"].iloc[0])
    results: dict[Key, dict[str, Any]] = {}
    failed: dict[Key, int] = {}
    for cell in chosen:
        key = (cell.task, cell.length)
        results.setdefault(key, cell.record["result"])
        num_failed = sum(index < most for index in cell.failures)
        allowed = cell.about.max_failures if max_failures is None else max_failures
        if num_failed > allowed_failures(allowed, cell.wanted):
            failed[key] = num_failed
    lacking = len(answers.drop_duplicates(["task", "length", "index"])) - len(scores)
    answered = set(zip(scores["task"], scores["length"], strict=True)) - failed.keys()
    results = {key: result for key, result in results.items() if key in answered}
    scores = scores[scores.set_index(["task", "length"]).index.isin(results)]
    return Side(
        "/".join(filter(None, *models)),
        label,
        chosen,
        scores,
        results,
        failed,
        answers["run"].nunique(),
        lacking,
    )


def paired(a: Side, b: Side, by: str) -> tuple["pd.DataFrame", list[str]]:
    """The examples that both answered, and what a reader must know about the two.

    Columns task, category, length, index, digest, a, b (scores 0..1), difference (b - a), `group`
    where the scores have it, gold_a and gold_b (0..1; NaN without soft scores). Pairs have the same
    task, length and index, and with `by='digest'` the same prompt: other prompts are a `UserError`
    that names the cells. Where the two answered different numbers of times, `variance` is that of
    the difference if their answers were dealt to the two at random: a mean of many answers of an
    equal model is often a little below one answer, and seldom far above it.
    """
    notes = []
    for side in (a, b):
        if side.failed:
            notes.append(
                f"{sum(side.failed.values())} requests of {side.name} failed, more than "
                f"max_failures allows: left out {_keys(side.failed)}"
            )
        if side.lacking:
            notes.append(
                f"{side.lacking} examples lack an answer in one of the repetitions of {side.name}: "
                "left out"
            )
    if {cell.path.resolve() for cell in a.cells} & {
        cell.path.resolve() for cell in b.cells
    }:
        raise UserError(
            f"{a.name} and {b.name} are the same predictions; name two models, or two runs of one"
        )
    keys = ["task", "length", "index"]
    theirs = b.scores[[*keys, "digest", "score", "gold_probability"]]
    pairs = a.scores.merge(theirs, on=keys, suffixes=("_a", "_b"))
    if pairs.empty:
        held = [f"{side.name} has {_keys(side.results) or 'none'}" for side in (a, b)]
        raise UserError(
            f"nothing is left to compare, as {a.name} and {b.name} have no task, length and index "
            f"in common: {'; '.join(held + notes)}"
        )
    shared = [key for key in a.results if key in b.results]
    for side in (a, b):
        if alone := [key for key in side.results if key not in shared]:
            notes.append(f"only {side.name} has {_keys(alone)}: left out")
    most = max(
        side.scores.set_index(keys[:2]).index.isin(shared).sum() for side in (a, b)
    )
    if len(pairs) < most:
        notes.append(
            f"{len(pairs)} of {most} examples were answered by both; the others are left out"
        )
    settings = differing(a, b)
    other_prompts = (pairs["digest_a"] != pairs["digest_b"]) | (pairs["digest_a"] == "")
    if other_prompts.any() and by == "digest":
        kinds = ("tokenizer", "prompt", "seed", "sources", "task")
        reasons = [note for note in settings if note.startswith(kinds)]
        different = pairs[other_prompts]
        if (different[["digest_a", "digest_b"]] == "").any(axis=None):
            reasons = ["predictions of other programs carry no digest"]
        named = sorted({*zip(different["task"], different["length"], strict=True)})
        raise UserError(
            f"{a.name} and {b.name} were not asked the same prompts in {_keys(named)} "
            f"({'; '.join(reasons[:_MOST_NAMED]) or 'digests differ'}): compare runs with the same "
            'tokenizer, template, seed and corpora, or pair with by="index" (--by index), which '
            "does not compare the prompts"
        )
    if other_prompts.any():
        few = f"{other_prompts.sum()} of {len(pairs)} pairs"
        notes.insert(
            0, f"paired by index: {few} have prompts that differ or are not known"
        )
    names = {"score_a": "a", "score_b": "b", "digest_a": "digest"}
    names |= {"gold_probability_a": "gold_a", "gold_probability_b": "gold_b"}
    pairs = pairs.rename(columns=names)
    pairs["difference"] = (pairs["b"] - pairs["a"]).round(
        12
    )  # means over repetitions are rounded
    if a.repetitions != b.repetitions:
        total, product = a.repetitions + b.repetitions, a.repetitions * b.repetitions
        share = (a.repetitions * pairs["a"] + b.repetitions * pairs["b"]) / total
        pairs["variance"] = share * (1 - share) * total**2 / (total - 1) / product
    return pairs, [*notes, *settings, *snapshot_notes([*a.cells, *b.cells])]


def differing(a: Side, b: Side) -> list[str]:
    """Result-defining settings that differ between cells of the two, the models' names apart:
    'engine: vllm | openai'."""
    settings: dict[str, list[Key]] = {}
    # files of other programs do not say how they were made
    common = [
        key
        for key, result in a.results.items()
        if key in b.results and None not in (result["seed"], b.results[key]["seed"])
    ]
    for key in common:
        for change in differences(a.results[key], b.results[key]):
            field, one, other, _ = describe_first([change])
            if field != "model.name":
                text = f"{field}: {one} | {other}"
                if field.startswith(_DIGESTS):
                    text = "other weights or configuration"
                settings.setdefault(text, []).append(key)
    return [
        text + (f" ({_keys(keys)})" if len(keys) < len(common) else "")
        for text, keys in settings.items()
    ]


def _keys(keys: Iterable[Key]) -> str:
    return listed((f"{task} at {length}" for task, length in keys), _MOST_NAMED)


# --- text and JSON --------------------------------------------------------------------------------


def _place(row: "pd.Series[Any]") -> str:
    length = f"at {length_name(int(row['length']))}" if row["length"] else ""
    return f"{row['task']} {length}".strip()


def _interval(row: "pd.Series[Any]") -> str:
    return f"{row['difference']:+.2f} points [{row['low']:+.2f}, {row['high']:+.2f}]"


def _points(number: float) -> str:
    return counted(f"{number:g}", "point")


def _losses(smallest: Iterable[float]) -> str:
    """The smallest losses of the levels."""
    return ", ".join(
        f"{level} "
        + ("none (too few examples)" if math.isnan(loss) else f"{loss:.1f} points")
        for level, loss in zip(LEVELS.values(), smallest, strict=True)
    )

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
import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.claims import FAILS, HOLDS, UNKNOWN, Verdict
from rulerkit.errors import UserError, listed, shorten, unknown
from rulerkit.escape import csv_text
from rulerkit.evaluation import ABSENT, differences, snapshot_notes
from rulerkit.lengths import length_name
from rulerkit.other_formats import read_predictions
from rulerkit.paths import resolve
from rulerkit.scoring import THIRTEEN, score
from rulerkit.statistics import WeightedCell, critical_value, holm, no_difference_p, weighted_sum
from rulerkit.store import Cell, allowed_failures, read_cells
from rulerkit.summary import base_run, merge_repetitions, weighted_cells
from rulerkit.tables import FORMATS, Field, number_range, render

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
_TIMES = np.geomspace(1, 1e6, 14000)  # times as many examples, in steps of 0.1 %
_COLUMNS = [
    *("level", "task", "category", "length", "n", "a", "b", "difference", "low", "high"),
    *("better", "worse", "unable", "p", "smallest_loss", "loss"),
]
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


@dataclass(frozen=True)
class Side:
    """One model's predictions of one run and of its repetitions."""

    name: str
    cells: tuple[Cell, ...]

    @property
    def label(self) -> str:
        return str(self.cells[0].record.get("label") or self.cells[0].model)

    @cached_property
    def by_key(self) -> dict[Key, Cell]:
        """A cell per task and length; of several repetitions the first."""
        return {(cell.task, cell.length): cell for cell in reversed(self.cells)}


@dataclass(frozen=True)
class Comparison:
    """Two models on the same examples.

    `rows`: level ('cell', 'task', 'length', 'all'), task, category, length (0 where it is a mean
    over lengths), n (pairs), a, b, difference, low, high (points), better, worse (examples with a
    higher and a lower score), p (of a loss, adjusted), smallest_loss (the smallest that could have
    been seen if nothing else differed, points; NaN where there are too few examples), loss (whether
    one is seen), unable (a cell all right, or all wrong, on both sides). `flips`: a row per example
    whose score differs: task, length, index, digest, a, b (0..1), difference (points).
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

    @property
    def same_model(self) -> bool:
        """Both sides are one model, served alike: the differences are the noise floor of serving
        it."""
        return all(one == other for _, one, other in _results(self.a, self.b))

    @property
    def mean(self) -> "pd.Series[Any]":
        """The row of the difference of the means."""
        return self.rows.iloc[-1]

    @cached_property
    def verdict(self) -> Decision:
        """Whether anything in B is worse than in A by more than the margin."""
        models, seen = f"worse than {self.a.name} by more than {_points(self.margin)}", self.mean
        mean = f"mean {_interval(seen)}"
        if self.rows["loss"].any():
            losses = self.rows[self.rows["loss"]].sort_values("p", kind="stable")
            names = [f"{_place(row)} {_interval(row)}" for _, row in losses.iterrows()]
            text = f"{self.b.name} is {models}: {listed(names, _MOST_NAMED)}; {mean}"
            return Decision(WORSE, text)
        if seen["low"] > -self.margin:
            below = ", though its mean is below for certain" if seen["high"] < 0 else ""
            text = f"{self.b.name} is not {models}{below}, and no task, length or cell lost more"
            return Decision(NOT_WORSE, f"{text}: {mean}")
        num_examples = self.rows.loc[self.rows["level"] == "cell", "n"].median()
        times = _TIMES[min(bisect_left(_TIMES, True, key=self._decides), len(_TIMES) - 1)]
        needed = math.ceil(num_examples * times)
        text = f"cannot tell whether {self.b.name} is {models}: {mean}"
        return Decision(
            CANNOT_TELL, f"{text}; would need about {needed} examples per task and length", needed
        )

    def _decides(self, times: float) -> bool:
        """Whether so many times as many examples would decide, if the mean stayed as it is."""
        mean = weighted_sum(self.cells, self.confidence, times).percent()
        return mean.low > -self.margin or mean.high < -self.margin


def compare(
    a: "str | Path | Side",
    b: "str | Path | Side",
    margin: float = 1.0,
    by: str = "digest",
    confidence: float = 0.95,
    outputs: str | Path = "outputs",
    max_failures: float | None = None,
    **grid: Any,
) -> Comparison:
    """Compare two models on the examples that both answered; `margin` in points.

    Each side is a `Side`, a folder of predictions, `run/model`, or a model's name in
    `outputs/predictions`; A may be a stored baseline. The repetitions of a run (`repeat`) belong to
    its side, unless the other side names them. `by='index'` pairs examples whose prompts differ. A
    cell in which more requests failed than `max_failures` allows, by default that of its record, is
    left out. `grid` is what `choose` takes: tasks, lengths, num_examples.
    """
    _check_margin(margin)
    cells_a, cells_b = (
        list(given.cells) if isinstance(given, Side) else find(given, outputs) for given in (a, b)
    )
    first, second = (
        given
        if isinstance(given, Side)
        else side(choose([*cells, *_repetitions(cells, other)], **grid), str(given))
        for given, cells, other in ((a, cells_a, cells_b), (b, cells_b, cells_a))
    )
    first, second, failed_notes = without_failed(first, second, max_failures)
    pairs, notes = paired(first, second, by)
    rows, cells = judge_pairs(pairs, margin, confidence)
    columns = ["task", "length", "index", "digest", "a", "b", "difference"]
    flips = pairs.loc[pairs["difference"] != 0, columns].reset_index(drop=True)
    flips["difference"] *= 100
    notes = failed_notes + notes
    return Comparison(
        first, second, margin, confidence, by, rows, flips, tuple(cells), tuple(notes)
    )


def compare_study(
    study: Any, cells: Sequence[Cell], margin: float = 1.0, by: str = "digest"
) -> Comparison:
    """Compare the two models of a study, or its one model that answered twice, on what the study
    asks."""
    wanted = {"tasks": [task.name for task in study.tasks], "lengths": study.lengths}
    first, second = sides(choose(cells, **wanted, num_examples=study.num_examples))
    return compare(first, second, margin, by)


def assert_not_worse(
    a: "str | Path | Side", b: "str | Path | Side", margin: float = 1.0, **options: Any
) -> None:
    """Raise AssertionError with the table of differences unless `compare(a, b, margin)` finds B not
    worse: for tests."""
    comparison = compare(a, b, margin, **options)
    if comparison.verdict.word != NOT_WORSE:
        raise AssertionError("\n" + difference_table(comparison))


def asked(model_a: Any, model_b: Any = None) -> dict[str, Any]:
    """The parameters of a study of two models; without a second one, of one model that answers
    twice."""
    if isinstance(model_a, list | tuple) or isinstance(model_b, list | tuple) or model_a is None:
        raise UserError(
            f"model_a is {model_a!r}, model_b is {model_b!r}: each is one model; only model_b may "
            "be None"
        )
    twice = model_b is None or model_b == model_a
    return (
        {"models": [model_a], "repeat": 2} if twice else {"models": [model_a, model_b], "repeat": 1}
    )


# --- differences ----------------------------------------------------------------------------------


def judge_pairs(
    pairs: "pd.DataFrame", margin: float, confidence: float
) -> "tuple[pd.DataFrame, list[WeightedCell]]":
    """The rows of a `Comparison` of pairs as `paired` gives them, and the cells of the difference
    of the means."""
    import pandas as pd

    first, second = (weighted_cells(pairs.assign(score=pairs[side])) for side in ("a", "b"))
    flips = pairs.assign(better=pairs["difference"] > 0, worse=pairs["difference"] < 0, n=1)
    rules = {
        "category": "first",
        "n": "sum",
        "better": "sum",
        "worse": "sum",
        "a": "mean",
        "b": "mean",
    }
    by_cell: Any = flips.groupby(["task", "length"]).agg(rules)
    rows, tests = [], []
    for level, task, length, keys in _levels(first):
        lengths = [key[1] for key in keys]
        weights = [1 / len(set(lengths)) / lengths.count(length) for length in lengths]
        cells = [
            cell._replace(weight=sign * weight)
            for key, weight in zip(keys, weights, strict=True)
            for sign, cell in ((1, second[key]), (-1, first[key]))
        ]
        difference = weighted_sum(cells, confidence).percent()
        members = by_cell.loc[keys]
        a, b = (100 * float(members[side] @ weights) for side in ("a", "b"))
        counts = members[["n", "better", "worse"]].sum().to_dict()
        rows.append(
            {
                "level": level,
                "task": task,
                "length": length,
                "a": a,
                "b": b,
                **counts,
                "category": members["category"].iloc[0] if task else "",
                "difference": difference.value,
                "low": difference.low,
                "high": difference.high,
                "unable": level == "cell" and (a, b) in ((0, 0), (100, 100)),
            }
        )
        tests.append((frozenset(keys), no_difference_p(cells)))
    distinct = dict(tests)
    adjusted = dict(zip(distinct, holm(list(distinct.values())), strict=True))
    frame = pd.DataFrame(rows).assign(p=[adjusted[keys] for keys, _ in tests])
    frame["smallest_loss"] = [smallest_loss(n, len(distinct), margin) for n in frame["n"]]
    frame["loss"] = (frame["p"] < ALARMS) & (frame["difference"] < -margin)
    return frame[_COLUMNS], cells


def smallest_loss(num_examples: int, num_tests: int, margin: float = 0.0) -> float:
    """The smallest loss (points) that `num_tests` tests can see in so many examples where nothing
    else differs.

    So many examples must be lost as pass Holm's first threshold; NaN where there are not so many.
    """
    lost = math.ceil(NormalDist().inv_cdf(1 - ALARMS / num_tests) ** 2)
    lost = max(lost, math.floor(num_examples * margin / 100) + 1)
    return 100 * lost / num_examples if lost <= num_examples else math.nan


def _levels(cells: Iterable[Key]) -> Iterator[tuple[str, str, int, list[Key]]]:
    """What is compared: level, task ('' for all), length (0 for all), and its cells."""
    cells = list(cells)
    order = [*THIRTEEN, *(task for task, _ in cells)]
    keys = sorted(cells, key=lambda key: (order.index(key[0]), key[1]))
    for key in keys:
        yield ("cell", *key, [key])
    for task in dict.fromkeys(task for task, _ in keys):
        yield "task", task, 0, [key for key in keys if key[0] == task]
    for length in sorted({length for _, length in keys}):
        yield "length", "", length, [key for key in keys if key[1] == length]
    yield "all", "", 0, keys


def _check_margin(margin: float) -> None:
    if not margin > 0:
        raise UserError(f"margin is {margin!r}: it must be a number of points above 0, such as 1.0")


# --- the power of a comparison before it is run ---------------------------------------------------


def power_text(
    num_tasks: int, num_lengths: int, num_examples: int, margin: float = 1.0, flips: float = 0.02
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
    z, share, num_cells = critical_value(0.95), margin / 100, num_tasks * num_lengths
    pairs = max(2 * flips * ((z + critical_value(0.8)) / share) ** 2, z * z * (1 / share - 1))
    needed = math.ceil(pairs / num_cells)
    cells = [(str(task), length) for task in range(num_tasks) for length in range(num_lengths)]
    num_tests = len({frozenset(members) for *_, members in _levels(cells)})
    lines = [
        f"{num_tasks} tasks at {num_lengths} lengths, margin {_points(margin)}, 95 % intervals:",
        f"- needs {needed} examples per task and length (now {num_examples}) for the mean, where "
        f"{100 * flips:g} % of the answers of equal models flip each way: then 9 of 10 comparisons "
        "of equals end with 'not worse'",
    ]
    for n in sorted({needed, num_examples}):
        counts = (n, n * num_lengths, n * num_tasks, n * num_cells)
        smallest = [smallest_loss(count, num_tests, margin) for count in counts]
        lines.append(
            f"- the smallest loss that {n} examples can show, where nothing else flips: "
            f"{_losses(smallest)}"
        )
    return "\n".join(lines)


# --- the two sides --------------------------------------------------------------------------------


def find(name: str | Path, outputs: str | Path = "outputs") -> list[Cell]:
    """The predictions that a name means.

    A file or folder of predictions (ours or others'), else `run/model` or `run` in
    `outputs/predictions`, else a model's name that stands there in one run only.
    """
    given = Path(name).expanduser()
    root = resolve(outputs) / "predictions"
    for path in (given.absolute(), resolve(given), root / given):
        if path.exists():
            return read_predictions(path)
    known = sorted(f"{path.parent.name}/{path.name}" for path in root.glob("*/*") if path.is_dir())
    matches = [folder for folder in known if folder.rpartition("/")[2] == str(name)]
    if len(matches) > 1:
        raise UserError(
            f"model {str(name)!r} has predictions in several runs: name one of {', '.join(matches)}"
        )
    if not matches:
        raise unknown("model or folder of predictions", name, known, f"Predictions lie in {root}")
    return read_cells(root / matches[0])


def _repetitions(cells: Sequence[Cell], other: Sequence[Cell]) -> list[Cell]:
    """The cells of the repetitions of a side's runs, but for those that the other side names."""
    taken = {cell.path.resolve() for cell in [*cells, *other]}
    repetitions = []
    # <predictions>/<run>/<model>
    for folder in {cell.path.absolute().parents[1] for cell in cells}:
        pattern = f"{glob.escape(folder.parent.name)}-repeat*/{glob.escape(folder.name)}"
        for path in sorted(folder.parent.parent.glob(pattern)):
            repetitions += [cell for cell in read_cells(path) if cell.path.resolve() not in taken]
    return repetitions


def side(cells: Iterable[Cell], name: str = "") -> Side:
    """The cells of one model and run, with its repetitions; those without any answer are left out.

    Raises UserError for more than one model or run.
    """
    answered = tuple(cell for cell in cells if cell.rows)
    if len({(base_run(cell.run), cell.model) for cell in answered}) != 1:
        held = dict.fromkeys(f"{cell.run}/{cell.model}" for cell in answered)
        raise UserError(
            f"{name or 'one side'} holds {', '.join(held) or 'no answer at all'}: a side is one "
            "model in one run; name its folder"
        )
    return Side("/".join(filter(None, (answered[0].run, answered[0].model))), answered)


def sides(cells: Iterable[Cell]) -> tuple[Side, Side]:
    """The two sides in cells of two models, or of one model in two runs, in the order in which they
    first come."""
    cells = list(cells)
    one_model = len({(base_run(cell.run), cell.model) for cell in cells}) == 1
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        run = cell.run if one_model else base_run(cell.run)
        groups.setdefault((run, cell.model), []).append(cell)
    if len(groups) != 2:
        seen = ", ".join(f"{run}/{model}" for run, model in groups) or "none"
        raise UserError(
            f"a comparison needs the predictions of two models, or of one model twice; found {seen}"
        )
    first, second = map(side, groups.values())
    return first, second


def choose(
    cells: Iterable[Cell],
    tasks: Sequence[str] | None = None,
    lengths: Sequence[int] | None = None,
    num_examples: int | None = None,
) -> list[Cell]:
    """Of the cells those of these tasks and lengths, each with its first `num_examples` examples;
    None takes all."""
    most, chosen = math.inf if num_examples is None else num_examples, []
    for cell in cells:
        if (tasks is None or cell.task in tasks) and (lengths is None or cell.length in lengths):
            part = Cell(cell.path, cell.record, [row for row in cell.rows if row["index"] < most])
            part.failures = {i: failure for i, failure in cell.failures.items() if i < most}
            chosen.append(part)
    return chosen


def paired(a: Side, b: Side, by: str = "digest") -> tuple["pd.DataFrame", list[str]]:
    """The examples that both answered, and what a reader must know about the two.

    Columns task, category, length, index, digest, a, b (scores 0..1), difference (b - a), and
    `group` where the scores have it. Pairs have the same task, length and index, and with
    `by='digest'` the same prompt: other prompts are a `UserError` that names the cells.
    """
    if by not in PAIRINGS:
        raise unknown("way to pair examples", by, PAIRINGS)
    if not a.by_key.keys() & b.by_key.keys():
        held = " | ".join(f"{side.name} has {_keys(side.by_key)}" for side in (a, b))
        raise UserError(f"{a.name} and {b.name} have no task and length in common: {held}")
    if {cell.path.resolve() for cell in a.cells} & {cell.path.resolve() for cell in b.cells}:
        raise UserError(
            f"{a.name} and {b.name} are the same predictions; name two models, or two runs of one"
        )
    notes, scores, counts = [], [], []
    for side, other in ((a, b), (b, a)):
        if alone := [key for key in side.by_key if key not in other.by_key]:
            notes.append(f"only {side.name} has {_keys(alone)}: left out")
        cells = [cell for cell in side.cells if (cell.task, cell.length) in other.by_key]
        counts.append(sum(len(cell.rows) for cell in side.by_key.values() if cell in cells))
        scores.append(merge_repetitions(score(cells)))
    keys = ["task", "length", "index"]
    pairs = scores[0].merge(scores[1][[*keys, "digest", "score"]], on=keys, suffixes=("_a", "_b"))
    if pairs.empty:
        raise UserError(
            f"{a.name} and {b.name} answered no example of the same task, length and index"
        )
    if len(pairs) < max(counts):
        notes.append(
            f"{len(pairs)} of {max(counts)} examples were answered by both; the others are left out"
        )
    settings = differing(a, b)
    other_prompts = (pairs["digest_a"] != pairs["digest_b"]) | (pairs["digest_a"] == "")
    if other_prompts.any() and by == "digest":
        kinds = ("tokenizer", "prompt", "seed", "sources", "task")
        reasons = [note for note in settings if note.startswith(kinds)]
        if (pairs.loc[other_prompts, ["digest_a", "digest_b"]] == "").any(axis=None):
            reasons = ["predictions of other programs carry no digest"]
        places = pairs.loc[other_prompts, ["task", "length"]].drop_duplicates()
        named = places.sort_values(["task", "length"]).itertuples(index=False, name=None)
        raise UserError(
            f"{a.name} and {b.name} were not asked the same prompts in {_keys(named)} "
            f"({'; '.join(reasons[:_MOST_NAMED]) or 'digests differ'}): compare runs with the same "
            "tokenizer, template, seed and corpora, or pair by index (`--by index`), which does "
            "not compare the prompts"
        )
    if other_prompts.any():
        notes.insert(
            0,
            f"paired by index: {other_prompts.sum()} of {len(pairs)} pairs have prompts that "
            "differ or are not known",
        )
    pairs = pairs.rename(columns={"score_a": "a", "score_b": "b", "digest_a": "digest"})
    pairs["difference"] = pairs["b"] - pairs["a"]
    columns = ["task", "category", "length", "index", "digest", "a", "b", "difference", "group"]
    return pairs[columns], [*notes, *settings, *snapshot_notes([*a.cells, *b.cells])]


def without_failed(
    a: Side, b: Side, max_failures: float | None = None
) -> tuple[Side, Side, list[str]]:
    """The sides without the cells in which too many requests of one of them failed, and notes that
    name these cells.

    Raises UserError where nothing is left.
    """
    notes, failed = [], set[Key]()
    for side in (a, b):
        counts: dict[Key, int] = {}
        for cell in side.cells:
            allowed = cell.record.get("max_failures", 0) if max_failures is None else max_failures
            if len(cell.failures) > allowed_failures(allowed, cell.wanted):
                counts[cell.task, cell.length] = len(cell.failures)
        if counts:
            notes.append(
                f"{sum(counts.values())} requests of {side.name} failed, more than max_failures "
                f"allows: left out {_keys(counts)}"
            )
            failed |= counts.keys()
    first, second = (
        replace(side, cells=tuple(c for c in side.cells if (c.task, c.length) not in failed))
        for side in (a, b)
    )
    if not (first.cells and second.cells):
        raise UserError(
            f"nothing is left to compare: {'; '.join(notes)}; answer them again, or allow more "
            "max_failures"
        )
    return first, second, notes


def differing(a: Side, b: Side) -> list[str]:
    """Result-defining settings that differ between cells of the two, the models' names apart:
    'engine: vllm | openai'."""
    settings: dict[str, list[Key]] = {}
    results = list(_results(a, b))
    for key, one, other in results:
        for field, *values in differences(one, other):
            # records of other programs lack whole sections
            if field != "model.name" and ("." in field or ABSENT not in values):
                settings.setdefault(f"{field}: {' | '.join(map(_brief, values))}", []).append(key)
    return [
        text + (f" ({_keys(keys)})" if len(keys) < len(results) else "")
        for text, keys in settings.items()
    ]


def _results(a: Side, b: Side) -> "Iterator[tuple[Key, dict[str, Any], dict[str, Any]]]":
    """The settings on record of each task and length that both have."""
    for key, cell in a.by_key.items():
        if key in b.by_key:
            yield key, cell.record["result"], b.by_key[key].record["result"]


def _keys(keys: Iterable[Key]) -> str:
    return listed((f"{task} at {length}" for task, length in keys), _MOST_NAMED)


def _brief(value: Any) -> str:
    return "-" if value is ABSENT else shorten(value, 40)


# --- text and JSON --------------------------------------------------------------------------------


def difference_table(comparison: Comparison, format: str = "table") -> str:
    """Differences B - A with intervals, a row per task and a column per length; marked where the
    interval leaves out 0.

    `format` is one of tables.FORMATS; 'csv' is `Comparison.rows`.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    rows = comparison.rows
    if format == "csv":
        return csv_text(rows, "%.4f")
    by_place = {(row["task"], row["length"]): _field(row) for _, row in rows.iterrows()}
    lengths = sorted({length for _, length in by_place if length})
    tasks = [*dict.fromkeys(task for task, _ in by_place if task), ""]
    header = ["B - A (points)", *map(length_name, lengths), "all lengths"]
    body = [
        [Field(task or "mean"), *(by_place.get((task, n), Field("")) for n in [*lengths, 0])]
        for task in tasks
    ]
    notes = [*table_notes(comparison), comparison.verdict.text + "."]
    return render(header, body, format, notes)


def table_notes(comparison: Comparison) -> list[str]:
    """What a reader of the differences must know."""
    a, b, rows = comparison.a, comparison.b, comparison.rows
    cells = rows[rows["level"] == "cell"]
    smallest = rows.groupby("level")["smallest_loss"].agg(lambda losses: losses.max(skipna=False))
    notes = [
        f"A: {a.name} ({a.label}); B: {b.name} ({b.label}).",
        f"Paired by {comparison.by}, {number_range(cells['n'])} examples per task and length, in "
        f"brackets the {100 * comparison.confidence:g} % intervals; marked where they leave out 0.",
        "The smallest loss that could have been seen, where nothing else differs (Holm-adjusted, "
        f"{100 * ALARMS:g} %): {_losses(smallest[list(LEVELS)])}.",
    ]
    unable = cells[cells["unable"]]
    if len(unable):
        notes.append(
            "Unable to tell, because all answers are right, or all are wrong, on both sides: "
            f"{_keys(zip(unable['task'], unable['length'], strict=True))}."
        )
    if comparison.same_model:
        notes.append(
            "One model, served alike, asked twice: the differences are the noise floor of serving "
            "it."
        )
    return notes + [note + "." for note in comparison.notes]


def flips_text(comparison: Comparison) -> str:
    """Which examples flipped each way, by task and length."""
    lines = []
    for _, flips in comparison.flips.groupby(["task", "length"], sort=False):
        ways = {"better": flips["difference"] > 0, "worse": flips["difference"] < 0}
        parts = [
            f"{way} {len(indices)} (example{'s' * (len(indices) > 1)} "
            f"{listed(indices, _MOST_FLIPS)})"
            for way, mask in ways.items()
            if len(indices := flips.loc[mask, "index"])
        ]
        place = f"{flips['task'].iloc[0]} at {length_name(int(flips['length'].iloc[0]))}"
        lines.append(f"{place}: {'; '.join(parts)}")
    return "\n".join(lines) or "No example has another score."


def json_text(comparison: Comparison) -> str:
    """All of a comparison as JSON; numbers in points, examples by task, length and index."""
    verdict, mean = comparison.verdict, comparison.mean
    sides = {"a": comparison.a, "b": comparison.b}
    content = {
        **{letter: {"name": side.name, "label": side.label} for letter, side in sides.items()},
        "verdict": {**verdict._asdict(), "status": verdict.status},
        "margin": comparison.margin,
        "confidence": comparison.confidence,
        "paired_by": comparison.by,
        "same_model": comparison.same_model,
        "difference": mean[["difference", "low", "high", "a", "b"]]
        .astype(float)
        .round(4)
        .to_dict(),
        "rows": json.loads(comparison.rows.to_json(orient="records", double_precision=4)),
        "flips": json.loads(comparison.flips.to_json(orient="records", double_precision=4)),
        "notes": comparison.notes,
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def claim_verdict(comparison: Comparison) -> Verdict:
    """The verdict in the words of `claims`, on the claim that nothing in B is worse than in A by
    more than the margin."""
    a, b, verdict = comparison.a.name, comparison.b.name, comparison.verdict
    words = {NOT_WORSE: HOLDS, WORSE: FAILS, CANNOT_TELL: UNKNOWN}
    claim = f"{b} is not worse than {a} by more than {_points(comparison.margin)}"
    return Verdict(claim, words[verdict.word], verdict.text)


def labels(comparison: Comparison) -> tuple[str, str]:
    """What to call A and B in a figure: their labels, or names where they share one."""
    a, b = comparison.a, comparison.b
    return (a.label, b.label) if a.label != b.label else (a.name, b.name)


def _place(row: "pd.Series[Any]") -> str:
    length = f"at {length_name(int(row['length']))}" if row["length"] else ""
    return f"{row['task']} {length}".strip() or "mean"


def _interval(row: "pd.Series[Any]") -> str:
    return f"{row['difference']:+.2f} points [{row['low']:+.2f}, {row['high']:+.2f}]"


def _field(row: "pd.Series[Any]") -> Field:
    low, high = row["low"], row["high"]
    return Field(f"{row['difference']:+.1f} [{low:+.1f}, {high:+.1f}]", bool(low > 0 or high < 0))


def _points(number: float) -> str:
    return f"{number:g} point{'s' if number != 1 else ''}"


def _losses(smallest: Iterable[float]) -> str:
    """The smallest losses of the levels."""
    return ", ".join(
        f"{level} " + ("none (too few examples)" if math.isnan(loss) else f"{loss:.1f} points")
        for level, loss in zip(LEVELS.values(), smallest, strict=True)
    )

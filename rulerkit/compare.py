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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.claims import FAILS, HOLDS, UNKNOWN
from rulerkit.claims import Verdict as ClaimVerdict
from rulerkit.errors import UserError, unknown
from rulerkit.escape import csv_text
from rulerkit.evaluation import ABSENT, differences, snapshot_notes
from rulerkit.lengths import length_name
from rulerkit.other_formats import read_predictions
from rulerkit.paths import resolve
from rulerkit.scoring import THIRTEEN, score
from rulerkit.statistics import WeightedCell, critical_value, holm, no_difference_p, weighted_sum
from rulerkit.store import Cell, allowed_failures, read_cells
from rulerkit.summary import base_run, merge_repetitions, weighted_cells
from rulerkit.tables import FORMATS, Field, render

if TYPE_CHECKING:
    import pandas as pd

NOT_WORSE, WORSE, CANNOT_TELL = "not worse", "worse", "cannot tell"
EXIT = {NOT_WORSE: 0, WORSE: 1, CANNOT_TELL: 3}
"""Exit statuses for scripts; 2 is a `UserError`'s."""
ALARMS = 0.05
"""The chance that any loss is seen between equal models, at most."""
PAIRINGS = ("digest", "index")
LEVELS = {"cell": "a cell", "task": "a task", "length": "a length", "all": "the mean"}
_SHOWN = 4
_FLIPS_SHOWN = 12
_MOST = 1e6  # times as many examples
Key = tuple[str, int]


class Verdict(NamedTuple):
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
        pairs = [(cell, self.b.by_key.get(key)) for key, cell in self.a.by_key.items()]
        return all(one.record["result"] == other.record["result"] for one, other in pairs if other)

    @cached_property
    def verdict(self) -> Verdict:
        """Whether anything in B is worse than in A by more than the margin."""
        mean = self.rows[self.rows["level"] == "all"].iloc[0]
        margin = _points(self.margin)
        seen = f"mean {_interval(mean)}"
        if self.rows["loss"].any():
            losses = _losses(self.rows[self.rows["loss"]])
            return Verdict(
                WORSE,
                f"{self.b.name} is worse than {self.a.name} by more than {margin}: {losses}; "
                f"{seen}",
            )
        if mean["low"] > -self.margin:
            below = ", though its mean is below for certain" if mean["high"] < 0 else ""
            text = f"{self.b.name} is not worse than {self.a.name} by more than {margin}{below}, and no task, length or cell"
            return Verdict(NOT_WORSE, f"{text} lost more: {seen}")
        counts = self.rows.loc[self.rows["level"] == "cell", "n"]
        needed = math.ceil(float(counts.median()) * self._times_needed(float(mean["difference"])))
        text = f"cannot tell whether {self.b.name} is worse than {self.a.name} by more than {margin}: {seen}"
        return Verdict(
            CANNOT_TELL, f"{text}; would need about {needed} examples per task and length", needed
        )

    def _times_needed(self, difference: float) -> float:
        """How many times as many examples would decide, if the mean stayed as it is."""
        room = abs(
            difference + self.margin
        )  # between the mean and the margin: the interval must fit into it

        def decides(times: float) -> bool:
            found = weighted_sum(self.cells, self.confidence, times).percent()
            return (
                found.value - found.low < room
                if difference > -self.margin
                else found.high < -self.margin
            )

        few, many = 1.0, 1.0
        while not decides(many) and many < _MOST:
            few, many = many, 2 * many
        while many - few > 0.01 * many:
            middle = (few + many) / 2
            few, many = (few, middle) if decides(middle) else (middle, many)
        return many


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
    if not margin > 0:
        raise UserError(f"margin is {margin!r}: it must be a number of points above 0, such as 1.0")
    given_a, given_b = (
        list(given.cells) if isinstance(given, Side) else find(given, outputs) for given in (a, b)
    )
    first = (
        a
        if isinstance(a, Side)
        else side(choose(given_a + _repetitions(given_a, given_b), **grid), str(a))
    )
    second = (
        b
        if isinstance(b, Side)
        else side(choose(given_b + _repetitions(given_b, given_a), **grid), str(b))
    )
    first, second, failed = without_failed(first, second, max_failures)
    pairs, notes = paired(first, second, by)
    notes = failed + notes
    rows, cells = judge_pairs(pairs, margin, confidence)
    flips = pairs[pairs["difference"] != 0].drop(columns=["category", "group"], errors="ignore")
    flips = flips.assign(difference=100 * flips["difference"]).reset_index(drop=True)
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
    found = compare(a, b, margin, **options)
    if found.verdict.word != NOT_WORSE:
        raise AssertionError("\n" + difference_table(found))


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

    categories = dict(zip(pairs["task"].astype(str), pairs["category"].astype(str), strict=True))
    first, second = (weighted_cells(pairs.assign(score=pairs[side])) for side in ("a", "b"))
    positions, moved = pairs.groupby(["task", "length"]).indices, pairs["difference"].to_numpy()
    rows, tests = [], []
    cells: list[WeightedCell] = []
    for level, task, length, keys in _levels(first):
        weights = _weights(keys)
        cells = [
            each[key]._replace(weight=sign * weights[key])
            for key in keys
            for sign, each in ((1, second), (-1, first))
        ]
        found = weighted_sum(cells, confidence).percent()
        means = [
            100 * sum(weights[key] * np.nanmean(side[key].scores) for key in keys)
            for side in (first, second)
        ]
        differences = np.concatenate([moved[positions[key]] for key in keys])
        tests.append((frozenset(keys), no_difference_p(cells)))
        rows.append(
            {
                "level": level,
                "task": task,
                "category": categories.get(task, ""),
                "length": length,
                "n": len(differences),
                "a": means[0],
                "b": means[1],
                "difference": found.value,
                "low": found.low,
                "high": found.high,
                "better": int((differences > 0).sum()),
                "worse": int((differences < 0).sum()),
                "unable": level == "cell" and means in ([0, 0], [100, 100]),
            }
        )
    return _judged(pd.DataFrame(rows), tests, margin), cells


def _judged(
    rows: "pd.DataFrame", tests: list[tuple[frozenset[Key], float]], margin: float
) -> "pd.DataFrame":
    """The rows with p, smallest_loss and loss."""
    distinct = dict(tests)
    adjusted = dict(zip(distinct, holm(list(distinct.values())), strict=True))
    p = [adjusted[keys] for keys, _ in tests]
    smallest = [smallest_loss(n, len(distinct), margin) for n in rows["n"]]
    return rows.assign(
        p=p, smallest_loss=smallest, loss=(np.asarray(p) < ALARMS) & (rows["difference"] < -margin)
    )


def smallest_loss(num_examples: int, num_tests: int, margin: float = 0.0) -> float:
    """The smallest loss (points) that `num_tests` tests can see in so many examples where nothing
    else differs.

    So many examples must be lost as pass Holm's first threshold; NaN where there are not so many.
    """
    lost = math.ceil(NormalDist().inv_cdf(1 - ALARMS / num_tests) ** 2)
    lost = max(lost, math.floor(num_examples * margin / 100) + 1)
    return 100 * lost / num_examples if lost <= num_examples else math.nan


def _levels(cells: Mapping[Key, Any]) -> Iterator[tuple[str, str, int, list[Key]]]:
    """What is compared: level, task ('' for all), length (0 for all), and its cells."""
    present = dict.fromkeys(task for task, _ in cells)
    tasks = [
        *(task for task in THIRTEEN if task in present),
        *(task for task in present if task not in THIRTEEN),
    ]
    lengths = sorted({length for _, length in cells})
    order = [(task, length) for task in tasks for length in lengths if (task, length) in cells]
    yield from (("cell", *key, [key]) for key in order)
    yield from (("task", task, 0, [key for key in order if key[0] == task]) for task in tasks)
    yield from (
        ("length", "", length, [key for key in order if key[1] == length]) for length in lengths
    )
    yield "all", "", 0, order


def _weights(keys: Sequence[Key]) -> dict[Key, float]:
    """Each length weighs the same, and in it each task that is there."""
    lengths = [length for _, length in keys]
    return {key: 1 / len(set(lengths)) / lengths.count(key[1]) for key in keys}


# --- the power of a comparison before it is run ---------------------------------------------------


def power_text(
    num_tasks: int, num_lengths: int, num_examples: int, margin: float = 1.0, flips: float = 0.02
) -> str:
    """How many examples a comparison of equal models needs, and what it sees, in words.

    `flips` is the assumed share of answers that change each way by chance. The mean of equal models
    then lies within the margin with a chance of 90 %. Raises UserError for impossible values.
    """
    if not margin > 0:
        raise UserError(f"margin is {margin!r}: it must be a number of points above 0, such as 1.0")
    if not 0 <= flips <= 0.5:
        raise UserError(
            f"flips is {flips!r}: it must be the share of answers that change each way, 0 to 0.5"
        )
    z, share, cells = critical_value(0.95), margin / 100, num_tasks * num_lengths
    pairs = max(2 * flips * ((z + critical_value(0.8)) / share) ** 2, z * z * (1 / share - 1))
    needed = math.ceil(pairs / cells)
    keys = {(str(task), length): None for task in range(num_tasks) for length in range(num_lengths)}
    tests = len({frozenset(members) for *_, members in _levels(keys)})
    lines = [
        f"{num_tasks} tasks at {num_lengths} lengths, margin {_points(margin)}, 95 % intervals:",
        f"- needs {needed} examples per task and length (now {num_examples}) for the mean, where "
        f"{100 * flips:g} % of the "
        "answers of equal models flip each way: then 9 of 10 comparisons of equals end with 'not "
        "worse'",
    ]
    for n in sorted({needed, num_examples}):
        counts = {
            "a cell": n,
            "a task": n * num_lengths,
            "a length": n * num_tasks,
            "the mean": n * cells,
        }
        losses = ", ".join(
            f"{name} {_loss(smallest_loss(count, tests, margin))}" for name, count in counts.items()
        )
        lines.append(
            f"- the smallest loss that {n} examples can show, where nothing else flips: {losses}"
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
    matches = [each for each in known if each.rpartition("/")[2] == str(name)]
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
    found = []
    for folder in {
        cell.path.absolute().parents[1] for cell in cells
    }:  # <predictions>/<run>/<model>
        pattern = f"{glob.escape(folder.parent.name)}-repeat*/{glob.escape(folder.name)}"
        for repetition in sorted(folder.parent.parent.glob(pattern)):
            found += [cell for cell in read_cells(repetition) if cell.path.resolve() not in taken]
    return found


def side(cells: Iterable[Cell], name: str = "") -> Side:
    """The cells of one model and run, with its repetitions; those without any answer are left out.

    Raises UserError for more than one model or run.
    """
    answered = [cell for cell in cells if cell.rows]
    if len({(base_run(cell.run), cell.model) for cell in answered}) != 1:
        several = (
            ", ".join(dict.fromkeys(f"{cell.run}/{cell.model}" for cell in answered))
            or "no answer at all"
        )
        raise UserError(
            f"{name or 'one side'} holds {several}: a side is one model in one run; name its folder"
        )
    return Side("/".join(filter(None, (answered[0].run, answered[0].model))), tuple(answered))


def sides(cells: Iterable[Cell]) -> tuple[Side, Side]:
    """The two sides in cells of two models, or of one model in two runs, in the order in which they
    first come."""
    by_model: dict[Any, list[Cell]] = {}
    by_run: dict[Any, list[Cell]] = {}
    for cell in cells:
        by_model.setdefault((base_run(cell.run), cell.model), []).append(cell)
        by_run.setdefault((cell.run, cell.model), []).append(cell)
    groups = by_run if len(by_model) == 1 else by_model
    if len(groups) != 2:
        seen = ", ".join(f"{run}/{model}" for run, model in groups) or "none"
        raise UserError(
            f"a comparison needs the predictions of two models, or of one model twice; found {seen}"
        )
    first, second = (side(members) for members in groups.values())
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
            part.failures = {
                index: failure for index, failure in cell.failures.items() if index < most
            }
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
    common = [key for key in a.by_key if key in b.by_key]
    if not common:
        raise UserError(
            f"{a.name} and {b.name} have no task and length in common: {_held(a)} | {_held(b)}"
        )
    if {cell.path.resolve() for cell in a.cells} & {cell.path.resolve() for cell in b.cells}:
        raise UserError(
            f"{a.name} and {b.name} are the same predictions; name two models, or two runs of one"
        )
    first, second = (
        merge_repetitions(score(cell for cell in side.cells if (cell.task, cell.length) in common))
        for side in (a, b)
    )
    keys = ["task", "length", "index"]
    rows = first.merge(second[[*keys, "digest", "score"]], on=keys, suffixes=("_a", "_b"))
    if rows.empty:
        raise UserError(
            f"{a.name} and {b.name} answered no example of the same task, length and index"
        )
    other = (rows["digest_a"] != rows["digest_b"]) | (rows["digest_a"] == "")
    if by == "digest" and other.any():
        cells = (
            rows.loc[other, ["task", "length"]].drop_duplicates().sort_values(["task", "length"])
        )
        raise UserError(_other_prompts(a, b, list(cells.itertuples(index=False, name=None))))
    rows = rows.rename(columns={"score_a": "a", "score_b": "b", "digest_a": "digest"})
    rows["difference"] = rows["b"] - rows["a"]
    columns = ["task", "category", "length", "index", "digest", "a", "b", "difference", "group"]
    return rows[[name for name in columns if name in rows]], [
        *[
            f"paired by index: {other.sum()} of {len(rows)} pairs have prompts that differ or are "
            "not known"
        ]
        * int(other.any()),
        *_left_out(a, b, len(rows)),
        *differing(a, b),
        *snapshot_notes([*a.cells, *b.cells]),
    ]


def without_failed(
    a: Side, b: Side, max_failures: float | None = None
) -> tuple[Side, Side, list[str]]:
    """The sides without the cells in which too many requests of one of them failed, and notes that
    name these cells.

    Raises UserError where nothing is left.
    """
    notes = []
    failed = set[Key]()
    for side in (a, b):
        too_many: dict[Key, int] = {}
        for cell in side.cells:
            allowed = cell.record.get("max_failures", 0) if max_failures is None else max_failures
            if len(cell.failures) > allowed_failures(allowed, cell.wanted):
                too_many[cell.task, cell.length] = len(cell.failures)
        if too_many:
            count, cells = sum(too_many.values()), _keys(list(too_many))
            notes.append(
                f"{count} requests of {side.name} failed, more than max_failures allows: left out "
                f"{cells}"
            )
            failed |= set(too_many)
    first, second = (
        replace(
            side, cells=tuple(cell for cell in side.cells if (cell.task, cell.length) not in failed)
        )
        for side in (a, b)
    )
    if failed and not (first.cells and second.cells):
        raise UserError(
            f"nothing is left to compare: {'; '.join(notes)}; answer them again, or allow more "
            "max_failures"
        )
    return first, second, notes


def differing(a: Side, b: Side) -> list[str]:
    """Result-defining settings that differ between cells of the two, the models' names apart:
    'engine: vllm | openai'."""
    found: dict[str, list[Key]] = {}
    common = [key for key in a.by_key if key in b.by_key]
    for key in common:
        records = (side.by_key[key].record["result"] for side in (a, b))
        for field, *values in differences(*records):
            known_on_both = (
                "." in field or ABSENT not in values
            )  # records of other programs lack whole sections
            if field != "model.name" and known_on_both:
                found.setdefault(f"{field}: {' | '.join(map(_brief, values))}", []).append(key)
    return [
        text + (f" ({_keys(keys)})" if len(keys) < len(common) else "")
        for text, keys in found.items()
    ]


def _other_prompts(a: Side, b: Side, keys: list[Key]) -> str:
    why = [
        note
        for note in differing(a, b)
        if note.startswith(("tokenizer", "prompt", "seed", "sources", "task"))
    ]
    if any(
        not row.get("digest") for side in (a, b) for key in keys for row in side.by_key[key].rows
    ):
        why = ["predictions of other programs carry no digest"]
    return (
        f"{a.name} and {b.name} were not asked the same prompts in {_keys(keys)} "
        f"({'; '.join(why[:_SHOWN]) or 'digests differ'}): "
        "compare runs with the same tokenizer, template, seed and corpora, or pair by index (`--by "
        "index`), which does not "
        "compare the prompts"
    )


def _left_out(a: Side, b: Side, pairs: int) -> list[str]:
    notes = []
    for one, other in ((a, b), (b, a)):
        if alone := [key for key in one.by_key if key not in other.by_key]:
            notes.append(f"only {one.name} has {_keys(alone)}: left out")
    rows = max(
        sum(
            len(cell.rows)
            for key, cell in side.by_key.items()
            if key in a.by_key and key in b.by_key
        )
        for side in (a, b)
    )
    return notes + [
        f"{pairs} of {rows} examples were answered by both; the others are left out"
    ] * (pairs < rows)


def _held(side: Side) -> str:
    return f"{side.name} has {_keys(list(side.by_key))}"


def _keys(keys: Sequence[Key]) -> str:
    return _listed([f"{task} at {length}" for task, length in keys])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (
        f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    )


def _brief(value: Any) -> str:
    text = "-" if value is ABSENT else " ".join(str(value).split())
    return text if len(text) <= 40 else f"{text[:39]}…"


# --- text and JSON --------------------------------------------------------------------------------


def difference_table(found: Comparison, format: str = "table") -> str:
    """Differences B - A with intervals, a row per task and a column per length; marked where the
    interval leaves out 0.

    `format` is one of tables.FORMATS; 'csv' is `Comparison.rows`.
    """
    if format not in FORMATS:
        raise unknown("format", format, FORMATS)
    if format == "csv":
        return csv_text(found.rows, "%.4f")
    lengths = sorted(int(n) for n in found.rows["length"].unique() if n)
    by_place = {(row["task"], row["length"]): row for _, row in found.rows.iterrows()}
    tasks = [str(task) for task in found.rows.loc[found.rows["level"] == "task", "task"]]
    header = ["B - A (points)", *map(length_name, lengths), "all lengths"]
    body = [
        [Field(task or "mean"), *(_field(by_place.get((task, n))) for n in [*lengths, 0])]
        for task in [*tasks, ""]
    ]
    return render(header, body, format, [*table_notes(found), found.verdict.text + "."])


def table_notes(found: Comparison) -> list[str]:
    """What a reader of the differences must know."""
    cells = found.rows[found.rows["level"] == "cell"]
    n = (
        f"{cells['n'].min()} to {cells['n'].max()}"
        if cells["n"].min() < cells["n"].max()
        else f"{cells['n'].max()}"
    )
    smallest = [
        f"{name} {_loss(float(found.rows.loc[found.rows['level'] == level, 'smallest_loss'].max(skipna=False)))}"
        for level, name in LEVELS.items()
    ]
    unable = cells.loc[cells["unable"], ["task", "length"]].itertuples(index=False, name=None)
    notes = [
        f"A: {found.a.name} ({found.a.label}); B: {found.b.name} ({found.b.label}).",
        f"Paired by {found.by}, {n} examples per task and length, in brackets the "
        f"{100 * found.confidence:g} % intervals; "
        "marked where they leave out 0.",
        "The smallest loss that could have been seen, where nothing else differs (Holm-adjusted, "
        f"{100 * ALARMS:g} %): "
        f"{', '.join(smallest)}.",
    ]
    if unable:
        notes.append(
            "Unable to tell, because all answers are right, or all are wrong, on both sides: "
            f"{_keys(list(unable))}."
        )
    if found.same_model:
        notes.append(
            "One model, served alike, asked twice: the differences are the noise floor of serving "
            "it."
        )
    return notes + [note + "." for note in found.notes]


def flips_text(found: Comparison) -> str:
    """Which examples flipped each way, by task and length."""
    lines = []
    for _, flips in found.flips.groupby(["task", "length"], sort=False):
        better, worse = (
            _indices(flips[mask]) for mask in (flips["difference"] > 0, flips["difference"] < 0)
        )
        parts = [f"{what} {text}" for what, text in (("better", better), ("worse", worse)) if text]
        lines.append(
            f"{flips['task'].iloc[0]} at {length_name(int(flips['length'].iloc[0]))}: "
            f"{'; '.join(parts)}"
        )
    return "\n".join(lines) or "No example has another score."


def json_text(found: Comparison) -> str:
    """All of a comparison as JSON; numbers in points, examples by task, length and index."""
    verdict = found.verdict
    mean = found.rows[found.rows["level"] == "all"].iloc[0]
    content = {
        "a": {"name": found.a.name, "label": found.a.label},
        "b": {"name": found.b.name, "label": found.b.label},
        "verdict": {
            "word": verdict.word,
            "status": verdict.status,
            "text": verdict.text,
            "needed": verdict.needed,
        },
        "margin": found.margin,
        "confidence": found.confidence,
        "paired_by": found.by,
        "same_model": found.same_model,
        "difference": {
            name: round(float(mean[name]), 4) for name in ("difference", "low", "high", "a", "b")
        },
        "rows": json.loads(found.rows.to_json(orient="records", double_precision=4)),
        "flips": json.loads(found.flips.to_json(orient="records", double_precision=4)),
        "notes": list(found.notes),
    }
    return json.dumps(content, indent=2, allow_nan=False) + "\n"


def claim_verdict(found: Comparison) -> ClaimVerdict:
    """The verdict in the words of `claims`, on the claim that nothing in B is worse than in A by
    more than the margin."""
    words = {NOT_WORSE: HOLDS, WORSE: FAILS, CANNOT_TELL: UNKNOWN}
    claim = f"{found.b.name} is not worse than {found.a.name} by more than {_points(found.margin)}"
    return ClaimVerdict(claim, words[found.verdict.word], found.verdict.text)


def labels(found: Comparison) -> tuple[str, str]:
    """What to call A and B in a figure: their labels, or names where they share one."""
    one, other = found.a.label, found.b.label
    return (one, other) if one != other else (found.a.name, found.b.name)


def _losses(rows: "pd.DataFrame") -> str:
    """The losses that were seen, the clearest first."""
    texts = []
    for _, row in rows.sort_values("p", kind="stable").iterrows():
        places = [str(row["task"])] if row["task"] else []
        places += [f"at {length_name(int(row['length']))}"] if row["length"] else []
        texts.append(f"{' '.join(places) or 'mean'} {_interval(row)}")
    return _listed(texts)


def _interval(row: "pd.Series[Any]") -> str:
    return f"{row['difference']:+.2f} points [{row['low']:+.2f}, {row['high']:+.2f}]"


def _points(number: float) -> str:
    return f"{number:g} point{'s' if number != 1 else ''}"


def _loss(points: float) -> str:
    return "none (too few examples)" if math.isnan(points) else f"{points:.1f} points"


def _field(row: "pd.Series[Any] | None") -> Field:
    if row is None:
        return Field("")
    low, high = row["low"], row["high"]
    return Field(f"{row['difference']:+.1f} [{low:+.1f}, {high:+.1f}]", bool(low > 0 or high < 0))


def _indices(rows: "pd.DataFrame") -> str:
    numbers: Sequence[int] = [int(i) for i in rows["index"]]
    if not numbers:
        return ""
    more = f" and {len(numbers) - _FLIPS_SHOWN} more" if len(numbers) > _FLIPS_SHOWN else ""
    return f"{len(numbers)} (example{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers[:_FLIPS_SHOWN]))}{more})"

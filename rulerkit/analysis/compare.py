"""Is anything broken in B? Two models, checkpoints or set-ups of one model on the same examples.

`compare` finds the two sides, pairs their examples, and judges the differences (`differences`).
They are B - A in points (0..100), with the intervals of `statistics.weighted_sum`. A mean over
tasks and lengths weighs each length the same, and in it each task. With a margin in points
`Comparison.verdict` is

- *worse*: somewhere, in the mean, a task, a length or a cell, the loss is larger than the margin
  for certain: the one-sided limit of `MeanDifference` lies below minus the margin,
  adjusted by Holm's method over all these tests, at most 5 % false alarms over all of them;
- *not worse*: the interval of the mean lies above minus the margin, B has all that A has, and no
  loss is seen in a place where it may be larger than the margin. The sentence says how much a
  single cell can have lost unseen;
- *cannot tell*: neither.

That a loss of any size is seen is another test, which is more sensitive: the exact sign test, again
adjusted by Holm's method. Tests of the same cells, such as a task with one length, count once.
"""

import glob
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.analysis.differences import Key, Place, interval_text, judge_pairs
from rulerkit.common.errors import (
    UserError,
    check_known,
    counted,
    listed,
    points_text,
    remark,
)
from rulerkit.common.lengths import length_name, parse_grid
from rulerkit.generation.tasks import all_tasks
from rulerkit.scoring.scores import lacking_line, score
from rulerkit.scoring.statistics import WeightedCell, weighted_sum
from rulerkit.scoring.summary import choose_suite, merge_repetitions, texts_words
from rulerkit.store.cells import Cell, allowed_failures, read_cells, readable
from rulerkit.store.comparable import describe_first, differences, snapshot_notes
from rulerkit.store.places import as_cells, base_run, find_cells

if TYPE_CHECKING:
    import pandas as pd


NOT_WORSE = "not worse"
WORSE = "worse"
CANNOT_TELL = "cannot tell"
EXIT = {NOT_WORSE: 0, WORSE: 1, CANNOT_TELL: 3}
"""Exit statuses for scripts; 2 is a `UserError`'s."""
PAIRINGS = ("digest", "index")
"""What two answers must share to be a pair, beside task, length and index."""
MOST_NAMED = 4
"""Cells, settings or losses that one text names."""
_MOST_EXAMPLES = 10**9  # where the search for a number of examples ends
_CELL = ["task", "length"]
_EXAMPLE = ["task", "length", "index"]
_DIGESTS = ("model.fingerprint", "model.loaded", "model.weights")
_ASKED_BY = ("tokenizer", "prompt", "seed", "sources", "task")


class Side(NamedTuple):
    """One model's predictions of one run and of its repetitions: its cells, the rows of `score` of
    what is compared, and by task and length the settings on record (of several repetitions those of
    the first), without the cells of which too many requests failed: of these the number of failed
    requests. `expected` are the examples that each cell was to have, less the failures that are
    allowed. `lacking` are the examples without an answer in one of its repetitions."""

    name: str
    label: str
    cells: Sequence[Cell]
    scores: "pd.DataFrame"
    results: dict[Key, dict[str, Any]]
    failed: dict[Key, int]
    expected: dict[Key, float]
    lacking: int


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

    `rows`: level ('cell', 'task', 'length', 'all'), task, category, length (0 where it is a mean
    over lengths), n (pairs), a, b, difference, low, high (points), better, worse (examples with a
    higher and a lower score), p and loss (of any loss: adjusted, and whether one is seen), p_margin
    and beyond_margin (of a loss larger than the margin), lower_limit (points: what was lost is less
    than this, in all cells at once), smallest_loss (the smallest loss of whole answers that would
    be found to be beyond the margin if nothing else differed, points; NaN where there are too few
    examples), unable (a cell all right, or all wrong, on both sides).
    `flips`: a row per example whose answers have other scores: task, length, index, digest, a, b
    (0..1), difference (points).
    """

    a: Side
    b: Side
    margin: float
    confidence: float
    by: str
    rows: "pd.DataFrame"
    flips: "pd.DataFrame"
    cells: Sequence[WeightedCell]
    """Those of the difference of the means."""
    lacking: str
    """What A has and B lacks or has in part, or what the caller named and is not compared, in
    words; "" where all is compared."""
    notes: Sequence[str]

    @property
    def same_model(self) -> bool:
        """Whether both sides are one model, served alike: then the differences are the noise
        of serving it."""
        for key, result in self.a.results.items():
            # Files of other programs name no seed: nobody knows how their model was served. A cell
            # that B lacks is no difference.
            if result["seed"] is None or self.b.results.get(key, result) != result:
                return False
        # Another address may serve another model by the same name.
        addresses = []
        for side in (self.a, self.b):
            kept = [cell for cell in side.cells if (cell.task, cell.length) in side.results]
            environments = [cell.record.get("environment") or {} for cell in kept]
            addresses.append({environment.get("base_url") for environment in environments})
        return addresses[0] == addresses[1]

    @property
    def mean(self) -> "pd.Series[Any]":
        """The row of the difference of the means."""
        return self.rows.iloc[-1]

    @cached_property
    def verdict(self) -> Decision:
        """Whether anything in B is worse than in A by more than the margin."""
        rows = self.rows
        mean = f"mean {interval_text(self.mean, self.confidence)}"
        judged = f"{mean}, margin {points_text(self.margin)}"
        is_cell = rows["level"] == "cell"

        # A loss anywhere decides, also where the mean hides it.
        beyond = rows[rows["beyond_margin"]].sort_values("high", kind="stable")
        if len(beyond):
            cells = counted(is_cell.sum(), "cell")
            num_worse = (is_cell & rows["beyond_margin"]).sum()
            text = f"WORSE: {self.place(beyond.iloc[0])}; {num_worse} of {cells}"
            return Decision(WORSE, text)

        doubts = []
        if self.lacking:
            doubts.append(self.lacking)
        losses = rows[rows["loss"]].sort_values("p", kind="stable")
        may_be_larger = losses[losses["low"] <= -self.margin]
        if len(may_be_larger):
            doubts.append(f"a loss is seen that may be larger: {self.place(may_be_larger.iloc[0])}")

        if not doubts and self.mean["low"] > -self.margin:
            within = ""
            if len(losses):
                within = f"; a loss within the margin: {self.place(losses.iloc[0])}"
            elif self.mean["high"] < 0:
                within = "; the mean is lower for certain"
            # Upwards, because the limit is promised.
            most = math.ceil(-10 * rows.loc[is_cell, "lower_limit"].min()) / 10
            bound = f"bound: no cell lost more than {points_text(max(most, 0.0))}"
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
            mean = weighted_sum(self.cells, self.confidence, number / num_examples).percent()
            return mean.low > -self.margin or mean.high < -self.margin

        # The interval only gets narrower with more examples, so a bisection finds the first number.
        return 1 + bisect_left(range(1, _MOST_EXAMPLES), True, key=decides)

    def place(self, row: "pd.Series[Any]") -> str:
        """Where a row of the table stands, with its difference and interval."""
        name = Place(row["level"], row["task"], int(row["length"]), ()).name
        return f"{name} {interval_text(row, self.confidence)}"


def compare(
    a: Any,
    b: Any,
    margin: float = 1.0,
    by: str = "digest",
    confidence: float = 0.95,
    outputs: str | Path = "outputs",
    max_failures: float | None = None,
    tasks: str | Sequence[str] | None = None,
    lengths: int | str | Sequence[int | str] | None = None,
    num_examples: int | None = None,
) -> Comparison:
    """Compare two models on the examples that both answered; `margin` in points.

    Each side is a folder of predictions, `run/model`, a model's name in `outputs/predictions`, or
    its cells, or all their rows of `load`. The repetitions of a run (`repeat`) belong to its side,
    as many as the other side has, unless that names them. `by='index'` pairs examples whose prompts
    differ. A cell in which more requests failed than `max_failures` allows, by default that of its
    record, is left out. `tasks`, `lengths`, `num_examples`: None takes all. Raises UserError for
    what cannot be compared.
    """
    check_margin(margin)
    check_known("way to pair examples", by, PAIRINGS)
    chosen_tasks, chosen_lengths = parse_grid(tasks, lengths)

    # Each side by the name that the user wrote, "" where it is cells.
    names, found = list[str](), list[list[Cell]]()
    for given in (a, b):
        if isinstance(given, str | Path):
            names.append(str(given))
            found.append(readable(find_cells([given], outputs=outputs), remark))
        else:
            names.append("")
            found.append(as_cells(given, "compare"))
    everything = [*found[0], *found[1]]
    for task in chosen_tasks or ():
        check_known("task", task, dict.fromkeys([*(c.task for c in everything), *all_tasks()]))

    suite = _common_suite(found, chosen_tasks)

    whole = []
    for name, cells in zip(names, found, strict=True):
        cells = cells + (_repetitions(cells, everything) if name else [])
        whole.append(_chosen(name, cells, chosen_tasks, chosen_lengths, suite))
    # A mean of many answers is no pair of one answer: both sides have the same number of them.
    repetitions = max(1, min(len({cell.run for cell in cells}) for cells in whole))
    sides = [
        side_of(_first_runs(cells, repetitions), name, max_failures, num_examples)
        for name, cells in zip(names, whole, strict=True)
    ]

    # A stored baseline and the model of today may have one name, and so may files of other
    # programs: then only what the user wrote tells the sides apart.
    side_a, side_b = sides
    if side_a.name == side_b.name:
        side_a = side_a._replace(name=names[0] or side_a.name)
        side_b = side_b._replace(name=names[1] or side_b.name)
    pairs, notes = paired(side_a, side_b, by)
    lacking = _lacking(side_a, side_b, chosen_tasks, chosen_lengths)
    return comparison_of(side_a, side_b, pairs, notes, margin, by, confidence, lacking)


def _common_suite(sides: Sequence[Sequence[Cell]], tasks: Sequence[str] | None) -> str | None:
    """The suite whose cells are compared, as no mean is over two; None where there is one only. A
    suite that only one side was asked cannot be meant."""
    a, b = (
        {cell.about.suite for cell in cells if tasks is None or cell.task in tasks}
        for cells in sides
    )
    if a & b and len(a | b) > 1:
        return choose_suite(a & b, is_named=tasks is not None)
    return None


def _chosen(
    name: str,
    cells: Sequence[Cell],
    tasks: Sequence[str] | None,
    lengths: Sequence[int] | None,
    suite: str | None,
) -> list[Cell]:
    """The cells of a side that are to be compared; UserError where it has others only."""
    chosen = []
    for cell in cells:
        is_named = tasks is None or cell.task in tasks
        has_length = lengths is None or cell.length in lengths
        if is_named and has_length and suite in (None, cell.about.suite):
            chosen.append(cell)
    if cells and not chosen:
        found = keys_text((cell.task, cell.length) for cell in cells)
        raise UserError(
            f"{name or 'one side'} has none of the tasks and lengths that are to be compared; it "
            f"has {found}"
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
    by: str = "digest",
    confidence: float = 0.95,
    lacking: str = "",
) -> Comparison:
    """The comparison of two sides whose examples were `paired`, of all pairs or of some."""
    rows, cells = judge_pairs(pairs, margin, confidence)
    compared = a.scores[a.scores["task"].isin(rows["task"])]
    rows.attrs["texts"] = texts_words(compared)
    if rows.attrs["texts"]:
        notes = [*notes, f"not comparable with the paper: {rows.attrs['texts']}"]

    flips = pairs.loc[pairs["difference"] != 0, [*_EXAMPLE, "digest", "a", "b", "difference"]]
    flips = flips.reset_index(drop=True)
    flips["difference"] *= 100
    return Comparison(a, b, margin, confidence, by, rows, flips, cells, lacking, notes)


# --- one side -------------------------------------------------------------------------------------


def side_of(
    cells: Sequence[Cell],
    name: str = "",
    max_failures: float | None = None,
    num_examples: int | None = None,
) -> Side:
    """One side of a comparison, with the first `num_examples` of each cell; None takes all. `name`
    is what the user wrote. Raises UserError for more than one model or run."""
    # Of a side that was given by name the files that lack answers are named.
    answers = score(cells)
    if name and (line := lacking_line(cells)):
        remark(line)
    most = math.inf if num_examples is None else num_examples
    answers = answers[answers["index"] < most]
    # An example that one of several repetitions did not answer is left out of the mean over them.
    scores = merge_repetitions(answers)
    models = list(dict.fromkeys(zip(scores["run"], scores["model"], strict=True)))
    if len(models) != 1:
        found = ", ".join("/".join(model) for model in models)
        raise UserError(
            f"{name or 'one side'} holds {found or 'no answer to compare'}: a side is one model "
            "in one run; name its folder"
        )
    ((run, model),) = models

    results: dict[Key, dict[str, Any]] = {}
    failed: dict[Key, int] = {}
    expected: dict[Key, float] = {}
    for cell in cells:
        key = (cell.task, cell.length)
        results.setdefault(key, cell.record["result"])
        num_failed = sum(index < most for index in cell.coverage.failed)
        share = cell.about.max_failures if max_failures is None else max_failures
        allowed = allowed_failures(share, cell.wanted)
        expected.setdefault(key, min(cell.wanted, most) - allowed)
        if num_failed > allowed:
            failed[key] = num_failed

    # What failed often is no sample of the cell: hard examples may fail more often than others.
    kept = set(zip(scores["task"], scores["length"], strict=True)) - failed.keys()
    return Side(
        name=f"{run}/{model}" if run else model,
        label=str(scores["label"].iloc[0]),
        cells=cells,
        scores=scores[scores.set_index(_CELL).index.isin(list(kept))],
        results={key: result for key, result in results.items() if key in kept},
        failed=failed,
        expected=expected,
        lacking=len(answers.drop_duplicates(_EXAMPLE)) - len(scores),
    )


def _first_runs(cells: Sequence[Cell], number: int) -> list[Cell]:
    """The cells of the first `number` repetitions of a side; those of another run, which cannot be
    on one side with them, stay."""
    runs = sorted({cell.run for cell in cells}, key=lambda run: (base_run(run), len(run), run))
    kept = {*runs[:number], *(run for run in runs if base_run(run) != base_run(runs[0]))}
    return [cell for cell in cells if cell.run in kept]


def _repetitions(cells: Sequence[Cell], taken: Sequence[Cell]) -> list[Cell]:
    """The cells of the repetitions of a side's runs, but for those that are `taken`."""
    paths = {cell.path.resolve() for cell in taken}
    repetitions: list[Cell] = []
    # A cell lies at <predictions>/<run>/<model>/<task>/<length>.jsonl.
    folders = dict.fromkeys(cell.path.absolute().parents[1] for cell in cells)
    for folder in folders:
        run, predictions = folder.parent.name, folder.parent.parent
        for path in sorted(predictions.glob(f"*-repeat*/{glob.escape(folder.name)}")):
            # The pattern also finds the repetitions of other runs, and a run `main-repeated`.
            if base_run(path.parent.name) == run:
                repetitions += read_cells(path)
    return [cell for cell in repetitions if cell.path.resolve() not in paths]


# --- two sides ------------------------------------------------------------------------------------


def paired(a: Side, b: Side, by: str) -> tuple["pd.DataFrame", list[str]]:
    """The examples that both answered, and what a reader must know about the two.

    Columns task, category, length, index, digest, a, b (scores 0..1), difference (b - a), `group`
    where the scores have it. Pairs have the same task, length and index, and with `by='digest'` the
    same prompt: other prompts are a `UserError` that names the cells.
    """
    paths_a = {cell.path.resolve() for cell in a.cells}
    paths_b = {cell.path.resolve() for cell in b.cells}
    if paths_a & paths_b:
        raise UserError(
            f"{a.name} and {b.name} are the same predictions; name two models, or two runs of one"
        )

    scores_b = b.scores[[*_EXAMPLE, "digest", "score"]]
    pairs = a.scores.merge(scores_b, on=_EXAMPLE, suffixes=("_a", "_b"))
    notes = _notes_of_left_out(a, b, len(pairs))
    if pairs.empty:
        held = [f"{side.name} has {keys_text(side.results) or 'none'}" for side in (a, b)]
        raise UserError(
            f"nothing is left to compare, as {a.name} and {b.name} have no task, length and index "
            f"in common: {'; '.join(held + notes)}"
        )

    settings = differing(a, b)
    # an empty digest is one that nobody knows: it is not equal to another
    is_other = pairs["digest_a"] != pairs["digest_b"]
    other_prompts = is_other | (pairs["digest_a"] == "")
    if other_prompts.any():
        if by == "digest":
            raise _not_the_same_prompts(a, b, pairs[other_prompts], settings)
        few = f"{other_prompts.sum()} of {len(pairs)} pairs"
        note = f"paired by index: {few} have prompts that differ or are not known"
        notes.insert(0, note)

    pairs = pairs.rename(columns={"score_a": "a", "score_b": "b", "digest_a": "digest"})
    # means over repetitions are rounded, so that equal ones differ by nothing
    pairs["difference"] = (pairs["b"] - pairs["a"]).round(12)

    if settings:
        notes.append(f"settings that differ, A | B: {'; '.join(settings)}")
    notes += snapshot_notes([*a.cells, *b.cells])
    return pairs, notes


def _notes_of_left_out(a: Side, b: Side, num_pairs: int) -> list[str]:
    """What is left out because of failures, or because one of two sides does not have it."""
    shared = [key for key in a.results if key in b.results]
    notes = []
    for side in (a, b):
        if side.failed:
            number = counted(sum(side.failed.values()), "request")
            notes.append(
                f"{number} of {side.name} failed, more than max_failures allows: left out "
                f"{keys_text(side.failed)}"
            )
        if side.lacking:
            notes.append(
                f"{side.lacking} examples lack an answer in one of the repetitions of "
                f"{side.name}: left out"
            )
    for side in (a, b):
        alone = [key for key in side.results if key not in shared]
        if alone and shared:
            notes.append(f"only {side.name} has {keys_text(alone)}: left out")

    # Cells that one side lacks are named above: here only examples of shared cells count.
    most = max(side.scores.set_index(_CELL).index.isin(shared).sum() for side in (a, b))
    if num_pairs < most:
        notes.append(
            f"{num_pairs} of {most} examples were answered by both; the others are left out"
        )
    return notes


def _lacking(a: Side, b: Side, tasks: Sequence[str] | None, lengths: Sequence[int] | None) -> str:
    """What A has and B lacks (not asked, not readable, failed too often, or answered in part); else
    what the caller named and is not compared. In words."""
    answered_a = a.scores.groupby(_CELL).size()
    answered_b = b.scores.groupby(_CELL).size()
    lacking = []
    for key in a.results:
        # A shorter run of the same cells is no damage: B need not have more than it was to have.
        enough = min(answered_a[key], b.expected.get(key, 1))
        if answered_b.get(key, 0) < enough:
            lacking.append(key)
    if lacking:
        return (
            f"{b.name} lacks {keys_text(lacking)}, which {a.name} has (name the tasks and lengths "
            "to compare, if they are to be left out)"
        )

    # Named tasks and lengths mean each task at each length; one of them alone is to be there.
    compared = [key for key in a.results if key in b.results]
    there = {part for key in compared for part in key}
    missing = [task for task in tasks or () if task not in there]
    missing += [length_name(length) for length in lengths or () if length not in there]
    if tasks is not None and lengths is not None:
        missing = [keys_text([key]) for key in product(tasks, lengths) if key not in compared]
    if missing:
        return f"nothing is compared in {listed(missing, MOST_NAMED)}, which was named"
    return ""


def _not_the_same_prompts(
    a: Side, b: Side, different: "pd.DataFrame", settings: Sequence[str]
) -> UserError:
    """The error for pairs with other prompts: the cells, and the settings that explain it."""
    cells = zip(different["task"], different["length"], strict=True)
    keys = sorted(set(cells))
    reasons = [setting for setting in settings if setting.startswith(_ASKED_BY)]
    digests = different[["digest_a", "digest_b"]]
    if (digests == "").any(axis=None):
        reasons = ["predictions of other programs carry no digest"]
    reason = "; ".join(reasons[:MOST_NAMED]) or "digests differ"
    return UserError(
        f"{a.name} and {b.name} were not asked the same prompts in {keys_text(keys)} ({reason}): "
        "compare runs with the same tokenizer, template, seed and corpora, or pair with "
        'by="index" (--by index), which does not compare the prompts'
    )


def differing(a: Side, b: Side) -> list[str]:
    """Result-defining settings that differ between cells of the two, the models' names apart:
    'engine: vllm | openai'."""
    cells_of: dict[str, list[Key]] = {}
    num_shared = 0
    for key, result in a.results.items():
        other_result = b.results.get(key)
        # Files of other programs do not say how they were made: they have no seed.
        if not other_result or None in (result["seed"], other_result["seed"]):
            continue
        num_shared += 1
        for change in differences(result, other_result):
            field, one, other, _ = describe_first([change])
            text = f"{field}: {one} | {other}"
            # Digests say nothing to a reader, and several of them differ at once.
            if field.startswith(_DIGESTS):
                text = "other weights or configuration"
            if field != "model.name":
                cells_of.setdefault(text, []).append(key)

    # What differs everywhere needs no list of cells.
    return [
        text if len(keys) >= num_shared else f"{text} ({keys_text(keys)})"
        for text, keys in cells_of.items()
    ]


def keys_text(keys: Iterable[Key]) -> str:
    """Cells in words: 'vt at 4K, cwe at 4K and 3 more'."""
    texts = (f"{task} at {length_name(length)}" for task, length in keys)
    return listed(texts, MOST_NAMED)

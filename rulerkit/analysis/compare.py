"""The gate: is anything broken in B? Two models, checkpoints or set-ups of one model on the same
examples.

Read `compare` first: it finds the two sides and pairs their examples (`sides`), and judges the
differences (`differences`). `Comparison.verdict` says what follows from them:

Differences are B - A in points (0..100), paired by example, with the intervals of
`statistics.weighted_sum`. A mean over tasks and lengths weighs each length the same, and in it each
task. With a margin in points the verdict is

- *worse*: somewhere, in the mean, a task, a length or a cell, the loss is larger than the margin
  for certain: the one-sided limit of `margin.MeanDifference` lies below minus the margin,
  adjusted by Holm's method over all these tests, at most 5 % false alarms over all of them;
- *not worse*: the interval of the mean lies above minus the margin, B has all that A has, and no
  loss is seen in a place where it may be larger than the margin. The sentence says how much a
  single cell can have lost unseen;
- *cannot tell*: neither.

That a loss of any size is seen is another test, which is more sensitive: the exact sign test, again
adjusted by Holm's method. Tests of the same cells, such as a task with one length, count once.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.analysis.differences import (
    check_margin,
    examples_needed,
    interval_text,
    judge_pairs,
)
from rulerkit.analysis.sides import (
    MOST_NAMED,
    PAIRINGS,
    Grid,
    Key,
    Side,
    find,
    keys_text,
    lacking_cells,
    make_side,
    missing_cells,
    paired,
)
from rulerkit.common.errors import UserError, check_known, listed, points_text
from rulerkit.common.lengths import length_name, parse_grid
from rulerkit.evaluation.study import Study
from rulerkit.generation.tasks import all_tasks
from rulerkit.scoring.statistics import WeightedCell
from rulerkit.scoring.summary import choose_suite, texts_words
from rulerkit.store.cells import Cell
from rulerkit.store.places import as_cells

if TYPE_CHECKING:
    import pandas as pd


NOT_WORSE = "not worse"
WORSE = "worse"
CANNOT_TELL = "cannot tell"
EXIT = {NOT_WORSE: 0, WORSE: 1, CANNOT_TELL: 3}
"""Exit statuses for scripts; 2 is a `UserError`'s."""
MOST_FLIPS = 12
"""Flipped examples that a text names for each task and length."""
_FLIP_COLUMNS = ["task", "length", "index", "digest", "a", "b", "difference"]


class Decision(NamedTuple):
    """One of the three words, a sentence with the numbers, and the examples needed per task and
    length (else None)."""

    word: str
    text: str
    needed: int | None = None

    @property
    def status(self) -> int:
        return EXIT[self.word]


def _addresses(side: Side) -> set[str]:
    """Where the servers of a side listen; "None" for a model that is no server's."""
    answered = [cell for cell in side.cells if cell.coverage.have]
    environments = [cell.record.get("environment") or {} for cell in answered]
    return {str(environment.get("base_url")) for environment in environments}


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
    cells: tuple[WeightedCell, ...]
    """Those of the difference of the means."""
    lacking: tuple[Key, ...]
    """The cells that A has and B lacks, or has a part of, by task and length."""
    missing: tuple[str, ...]
    """Tasks, lengths or cells that the caller named and that are not compared, as one of the two
    has no answers to them."""
    notes: tuple[str, ...]

    @property
    def same_model(self) -> bool:
        """Whether both sides are one model, served alike: then the differences are the noise floor
        of serving it."""
        for key, result in self.a.results.items():
            # files of other programs name no seed: nobody knows how their model was served
            if result["seed"] is None:
                return False
            # a cell that B lacks is no difference
            if self.b.results.get(key, result) != result:
                return False
        # Another address may serve another model by the same name.
        return _addresses(self.a) == _addresses(self.b)

    @property
    def seeds(self) -> tuple[int, int] | None:
        """The seeds of the two sides where each has one and they differ: then the questions do."""
        of_sides = [
            {result["seed"] for result in side.results.values()} for side in (self.a, self.b)
        ]
        if of_sides[0] == of_sides[1] or any(
            len(seeds) != 1 or None in seeds for seeds in of_sides
        ):
            return None
        (a,), (b,) = of_sides
        return int(a), int(b)

    @property
    def mean(self) -> "pd.Series[Any]":
        """The row of the difference of the means."""
        return self.rows.iloc[-1]

    @cached_property
    def verdict(self) -> Decision:
        """Whether anything in B is worse than in A by more than the margin."""
        mean = f"mean {interval_text(self.mean)}"
        worse = f"worse than {self.a.name} by more than {points_text(self.margin)}"

        # A loss anywhere decides, also where the mean hides it.
        beyond = self.rows[self.rows["beyond_margin"]].sort_values("p_margin")
        if len(beyond):
            text = "; ".join([*self._places(beyond), mean])
            return Decision(WORSE, f"{self.b.name} is {worse}: {text}")

        doubts = self._doubts()
        if not doubts and self.mean["low"] > -self.margin:
            text = f"{self.b.name} is not {worse}{self._though()}: {mean}; "
            return Decision(NOT_WORSE, text + self._most_lost())

        needed = None
        # An interval that lies below already would say nothing about the number of examples.
        if self.mean["low"] <= -self.margin <= self.mean["high"]:
            needed = examples_needed(self.rows, self.cells, self.confidence, self.margin)
            doubts.append(
                f"the interval would leave the margin out with about {needed} examples per task "
                "and length"
            )
        elif self.mean["high"] < -self.margin:
            doubts.append(
                "the interval of the mean lies below, but too few answers changed for a verdict"
            )
        text = "; ".join([mean, *doubts])
        return Decision(
            CANNOT_TELL, f"cannot tell whether {self.b.name} is {worse}: {text}", needed
        )

    def _doubts(self) -> list[str]:
        """Why B may be worse than a mean within the margin says."""
        doubts = []
        if self.lacking:
            doubts.append(
                f"{self.b.name} lacks {keys_text(self.lacking)}, which {self.a.name} has (name the "
                "tasks and lengths to compare, if they are to be left out)"
            )
        elif self.missing:
            doubts.append(
                f"nothing is compared in {listed(self.missing, MOST_NAMED)}, which was named"
            )
        may_be_larger = self.rows["low"] <= -self.margin
        losses = self.rows[self.rows["loss"] & may_be_larger].sort_values("p")
        if len(losses):
            places = "; ".join(self._places(losses)) or "the mean"
            doubts.append(f"a loss is seen in {places}, and it may be larger")
        return doubts

    def _though(self) -> str:
        """What a verdict of *not worse* says of losses within the margin."""
        if self.mean["high"] < 0:
            return ", though its mean is below for certain"
        losses = self.rows[self.rows["loss"]].sort_values("p")
        if losses.empty:
            return ""
        places = "; ".join(self._places(losses)) or "the mean"
        return f", though a loss within it is seen in {places}"

    def _most_lost(self) -> str:
        """What a single cell can have lost without being seen."""
        of_cells = self.rows[self.rows["level"] == "cell"]
        # upwards, because the limit is promised
        most = math.ceil(-10 * of_cells["lower_limit"].min()) / 10
        points = points_text(max(most, 0.0))
        if len(of_cells) == 1:
            return f"it cannot have lost more than {points}"
        return f"no cell can have lost more than {points}"

    def _places(self, rows: "pd.DataFrame") -> list[str]:
        """Where rows of the table stand, with their intervals: cells, tasks and lengths, not the
        mean, the most certain first."""
        # With one length each task is a cell, and one task or length is the mean: such a row says
        # the same once more, so a level is named only where its rows are neither.
        sizes = self.rows["level"].value_counts()
        are_neither = sizes.between(2, sizes["cell"] - 1)
        levels = ["cell", *sizes.index[are_neither]]
        named = rows[rows["level"].isin(levels)]
        texts = [f"{_place(row)} {interval_text(row)}" for _, row in named.iterrows()]
        return [listed(texts, MOST_NAMED)] if texts else []


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
    its cells, or all their rows of `load`; A may be a stored baseline. The repetitions of a run
    (`repeat`) belong to its side, unless the other side names them. `by='index'` pairs examples
    whose prompts differ. A cell in which more requests failed than `max_failures` allows, by
    default that of its record, is left out. `tasks`, `lengths` and `num_examples` say what is
    compared; None takes all. Raises UserError for what cannot be compared.
    """
    check_margin(margin)
    check_known("way to pair examples", by, PAIRINGS)

    name_a, cells_a = _cells_of(a, outputs)
    name_b, cells_b = _cells_of(b, outputs)
    grid = Grid(*parse_grid(tasks, lengths), num_examples)
    known = dict.fromkeys([*(cell.task for cell in (*cells_a, *cells_b)), *all_tasks()])
    for task in grid.tasks or ():
        check_known("task", task, known)
    cells_a, cells_b = _of_one_suite(cells_a, cells_b, grid)
    side_a = make_side(name_a, cells_a, cells_b, max_failures, grid)
    side_b = make_side(name_b, cells_b, cells_a, max_failures, grid)

    # A stored baseline and the model of today may have one name, and so may files of other
    # programs: then only what the user wrote tells the sides apart.
    if side_a.name == side_b.name:
        side_a = side_a._replace(name=name_a or side_a.name)
        side_b = side_b._replace(name=name_b or side_b.name)

    missing = missing_cells(side_a, side_b, grid)
    return _compare_sides(side_a, side_b, missing, margin, by, confidence)


def _cells_of(given: Any, outputs: str | Path) -> tuple[str, list[Cell]]:
    """The name by which a side was given, '' where it was given as cells, and its cells."""
    if isinstance(given, str | Path):
        return str(given), find(given, outputs)
    return "", as_cells(given, "compare")


def _of_one_suite(
    cells_a: list[Cell], cells_b: list[Cell], grid: Grid
) -> tuple[list[Cell], list[Cell]]:
    """The cells of both sides that are of one suite: no mean is over two. A suite that only one
    side was asked cannot be meant."""
    suites_a, suites_b = (
        {cell.about.suite for cell in cells if grid.tasks is None or cell.task in grid.tasks}
        for cells in (cells_a, cells_b)
    )
    suites = suites_a & suites_b
    if not suites or len(suites_a | suites_b) < 2:
        return cells_a, cells_b
    suite = choose_suite(suites, is_named=grid.tasks is not None)
    return (
        [cell for cell in cells_a if cell.about.suite == suite],
        [cell for cell in cells_b if cell.about.suite == suite],
    )


def _compare_sides(
    a: Side, b: Side, missing: Sequence[str], margin: float, by: str, confidence: float
) -> Comparison:
    """Pair the examples of two sides, and judge their differences."""
    pairs, notes = paired(a, b, by)

    rows, cells = judge_pairs(pairs, margin, confidence)
    compared = a.scores[a.scores["task"].isin(rows["task"])]
    rows.attrs["texts"] = texts_words(compared)
    if rows.attrs["texts"]:
        notes.append(f"{rows.attrs['texts']}: not comparable with the paper")

    flips = pairs[_FLIP_COLUMNS].query("difference != 0")
    flips = flips.reset_index(drop=True)
    flips["difference"] *= 100
    return Comparison(
        a=a,
        b=b,
        margin=margin,
        confidence=confidence,
        by=by,
        rows=rows,
        flips=flips,
        cells=tuple(cells),
        lacking=tuple(lacking_cells(a, b)),
        missing=tuple(missing),
        notes=tuple(notes),
    )


def compare_study(
    study: Study, cells: Iterable[Cell], margin: float = 1.0, by: str = "digest"
) -> Comparison:
    """Compare the two models of a study, or its one model that answered twice, on what the study
    asks. Raises UserError where the cells are not of two."""
    by_side: dict[str, list[Cell]] = {}
    for cell in cells:
        name = cell.run if len(study.models) == 1 else cell.model
        by_side.setdefault(name, []).append(cell)

    if len(by_side) != 2:
        raise UserError(
            "a comparison needs the predictions of two models, or of one model twice; found "
            f"{', '.join(by_side) or 'none'}"
        )
    a, b = by_side.values()
    return compare(a, b, margin=margin, by=by, num_examples=study.num_examples)


def _place(row: "pd.Series[Any]") -> str:
    """Where a row of a comparison stands, such as `vt at 4K`."""
    length = f"at {length_name(int(row['length']))}" if row["length"] else ""
    return f"{row['task']} {length}".strip()

"""Asking in rounds: what was answered says what is asked next, until nothing more is wanted.

`rounds` is the loop, of adaptive runs as of the gate over two models. `StudyRule` says how many
examples each cell of a study is to have, by the rows on disk; when an adaptive run may stop is in
`scoring.effective_length`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rulerkit.common.errors import remark
from rulerkit.evaluation.study import Study, StudyCell, name_of
from rulerkit.generation.generate import asked_record
from rulerkit.scoring.effective_length import FIRST, Counts, State, replay
from rulerkit.scoring.scores import judged
from rulerkit.store.cells import Cell, DamagedCell, load_cell
from rulerkit.store.comparable import check_result
from rulerkit.store.records import plain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def rounds(wanted: Callable[[], Counts]) -> Iterator[tuple[int, dict[str, int]]]:
    """What is to be asked, round by round: a length, and the examples that each task is to have
    there, in all; the shortest length first. `wanted` gives the examples that each cell is to have,
    in all, by the answers so far.

    The caller asks for them before it goes on. It ends where a round would ask for nothing new: the
    rule has enough, or requests failed, and to send them again at once would seldom help.
    """
    asked: Counts = {}
    while True:
        new = {cell: number for cell, number in wanted().items() if number != asked.get(cell)}
        if not new:
            return
        for length in sorted({length for _, length in new}):
            yield length, {task: number for (task, at), number in new.items() if at == length}
        asked |= new


class StudyRule:
    """The examples that the only model of a study is to have at some lengths: a fixed number, or as
    many as an adaptive run needs by the rows on disk. Rows at the lengths of `anew` do not count,
    as they are moved aside."""

    def __init__(self, study: Study, lengths: Sequence[int], anew: Collection[int] = ()) -> None:
        self.adaptive = None
        if study.adaptive:
            names = tuple(task.name for task in study.tasks)
            self.adaptive = replace(study.adaptive, tasks=names, lengths=tuple(lengths))
        self._study = replace(study, lengths=tuple(lengths))
        self._anew = anew
        self._state = State({}, None)

    def wanted(self) -> Counts:
        """The examples that each cell is to have, in all, by the answers so far."""
        study = self._study
        if not self.adaptive:
            names = [task.name for task in study.tasks]
            return {(name, n): study.num_examples for name in names for n in study.lengths}

        scores = dict[tuple[str, int], "NDArray[np.float64]"]()
        aligned, claimed = "chat", None
        for stored in stored_cells(replace(study, repeat=1)):
            cell = None if stored.asked.length in self._anew else stored.cell
            scores[stored.asked.task.name, stored.asked.length] = _scores_by_index(cell)
            if cell:
                aligned, claimed = cell.about.aligned, cell.about.claimed_length
        self._state = replay(self.adaptive, scores, aligned, claimed, study.max_failures)
        return self._state.counts

    def describe(self) -> str:
        """How an adaptive run ended; "" for another."""
        return self.adaptive.describe(self._state) if self.adaptive else ""


def _scores_by_index(cell: Cell | None) -> "NDArray[np.float64]":
    """The scores of a cell by index, up to the first example that was not asked. A failed request
    counts as asked; its score is NaN."""
    import numpy as np

    score_of = dict[int, float]()
    if cell:
        rows = judged(cell)
        score_of = dict.fromkeys(cell.coverage.failed, np.nan)
        score_of |= zip(rows["index"].tolist(), rows["score"].tolist(), strict=True)

    # Rows may have gaps: what follows the first gap was not asked in this order.
    in_a_row = list[float]()
    while len(in_a_row) in score_of:
        in_a_row.append(score_of[len(in_a_row)])
    return np.array(in_a_row)


def wanted(
    study: Study, not_run: Callable[[str], Collection[int]] = lambda _: ()
) -> dict[Path, int]:
    """The number of examples that a study asks for, by the file of each cell; of an adaptive run,
    that of the round that is open or was the last.

    `not_run` gives the lengths that a model, by its name, cannot be given.
    """
    numbers = {}
    for described in study.models:
        of_model = replace(study, models=(described,))
        skipped = not_run(name_of(described))
        lengths = [length for length in study.lengths if length not in skipped]
        counts = StudyRule(of_model, lengths).wanted()
        otherwise = FIRST if study.adaptive else study.num_examples
        for cell in of_model.cells():
            numbers[cell.path] = counts.get((cell.task.name, cell.length), otherwise)
    return numbers


class StoredCell(NamedTuple):
    """A cell of a study, and what of it is on disk: None where there is nothing, or what cannot be
    read."""

    asked: StudyCell
    cell: Cell | None

    @property
    def path(self) -> Path:
        return self.asked.path

    @property
    def name(self) -> str:
        """Model, task and length, for messages."""
        return f"{self.asked.model} {self.asked.task.name} at {self.asked.length}"


def stored_cells(study: Study) -> Iterator[StoredCell]:
    """Each cell of a study as it is on disk; a damaged one is named on stderr. Needs no model.

    Raises `UserError` where rows were made for other questions than those of the study.
    """
    for asked in study.cells():
        try:
            cell = load_cell(asked.path)
            if cell:
                cell.about.max_failures = study.max_failures
            if cell and cell.coverage.have:
                questions = plain(asked_record(asked.task, asked.length, study.seed))
                check_result(cell, cell.record["result"] | questions)
        except DamagedCell as error:
            remark(f"left out: {error}")
            cell = None
        yield StoredCell(asked, cell)

"""Adaptive runs: how many examples of each cell are to be asked next, by the rows on disk.

The rule itself, and when it may stop, is in `scoring.stopping`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rulerkit.common.errors import remark
from rulerkit.common.settings import JSON
from rulerkit.evaluation.study import Study, StudyCell, name_of
from rulerkit.generation.generate import asked_record
from rulerkit.scoring.scores import judged
from rulerkit.scoring.stopping import FIRST, Scores, State, replay
from rulerkit.store.cells import Cell, DamagedCell, load_cell
from rulerkit.store.comparable import check_result
from rulerkit.store.records import plain


def planned(study: Study, lengths: Sequence[int], fresh: bool = False) -> State:
    """How many examples of each cell the only model of a study is to have at some lengths.

    Of an adaptive run this depends on the rows on disk; `fresh` takes none of them into account.
    """
    rule = study.adaptive
    study = replace(study, lengths=tuple(lengths))
    if not rule:
        names = [task.name for task in study.tasks]
        counts = {(name, length): study.num_examples for name in names for length in lengths}
        return State(counts, None)

    scores, record = _scores_by_index(study, fresh)
    return replay(
        rule,
        scores,
        record.get("aligned", "chat"),
        record.get("claimed_length"),
        study.max_failures,
    )


def wanted(
    study: Study, not_run: Callable[[str], Collection[int]] = lambda _: ()
) -> dict[Path, int]:
    """The number of examples that a study asks for, by the file of each cell; of an adaptive run,
    that of the round that is open or was the last.

    `not_run` gives the lengths that a model, by its name, cannot be given.
    """
    counts = {}
    for described in study.models:
        of_model = replace(study, models=(described,))
        skipped = not_run(name_of(described))
        lengths = [length for length in study.lengths if length not in skipped]
        state = planned(of_model, lengths)
        otherwise = FIRST if study.adaptive else study.num_examples
        for cell in of_model.cells():
            key = cell.task.name, cell.length
            counts[cell.path] = state.counts.get(key, otherwise)
    return counts


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


def _scores_by_index(study: Study, fresh: bool = False) -> tuple[Scores, JSON]:
    """The scores of the cells of a study's only model by index, up to the first example that was
    not asked; and the record of one of them, empty where there is none.

    A failed request counts as asked; its score is NaN.
    """
    import numpy as np

    scores, record = dict[tuple[str, int], Any](), dict[str, Any]()
    for stored in stored_cells(replace(study, repeat=1)):
        score_of = dict[int, float]()
        if stored.cell and not fresh:
            rows = judged(stored.cell)
            for index in stored.cell.coverage.failed:
                score_of[index] = np.nan
            indices, of_rows = rows["index"].tolist(), rows["score"].tolist()
            score_of.update(zip(indices, of_rows, strict=True))
            record = record or stored.cell.record

        # Rows may have gaps: what follows the first gap was not asked in this order.
        in_a_row = list[float]()
        while len(in_a_row) in score_of:
            in_a_row.append(score_of[len(in_a_row)])
        key = stored.asked.task.name, stored.asked.length
        scores[key] = np.array(in_a_row)
    return scores, record

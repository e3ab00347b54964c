"""Adaptive runs: how many examples of each cell are asked next, judged by the rows on disk."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import count, product, takewhile
from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError, remark
from rulerkit.common.settings import JSON
from rulerkit.evaluation.study import Study, name_of
from rulerkit.evaluation.writer import _check_result
from rulerkit.generation.generate import asked_record
from rulerkit.generation.tasks import Task
from rulerkit.scoring.scores import judged
from rulerkit.scoring.stopping import FIRST, Scores, State, replay
from rulerkit.store.cells import (
    Cell,
    DamagedCell,
    load_cell,
)
from rulerkit.store.records import plain


def planned(study: Study, lengths: Sequence[int], fresh: bool = False) -> State:
    """How many examples of each cell the only model of a study is to have at some lengths: of an
    adaptive run by the rows on disk, or, where `fresh`, before any."""
    rule, study = study.adaptive, replace(study, lengths=tuple(lengths))
    if not rule:
        cells = product((task.name for task in study.tasks), lengths)
        return State(dict.fromkeys(cells, study.num_examples), None)
    scores, record = _by_index(study, fresh)
    others: Scores = {}
    if rule.other:
        others, _ = _by_index(replace(study, models=({"name": rule.other},)))
        if not all(map(len, others.values())):
            raise UserError(
                f"question: {rule.other} has no answers in {study.predictions} for all of these "
                "tasks and lengths: let it answer them first, under the same run and seed"
            )
    limits = record.get("claimed_length"), others, study.max_failures
    return replay(rule, scores, record.get("aligned", "chat"), *limits)


def _by_index(study: Study, fresh: bool = False) -> tuple[Scores, JSON]:
    """The scores of the cells of a study's only model by index, up to the first example that was
    not asked; and the record of one of them."""
    import numpy as np

    scores, record = dict[tuple[str, int], Any](), dict[str, Any]()
    for cell, (_, _, task, length) in _stored(replace(study, repeat=1)):
        of_cell = dict[int, float]()
        if cell and not fresh:
            rows = judged(cell)
            of_cell |= dict.fromkeys(cell.failures, np.nan)
            of_cell |= zip(rows["index"].tolist(), rows["score"].tolist(), strict=True)
            record = record or cell.record
        asked = takewhile(of_cell.__contains__, count())
        scores[task.name, length] = np.array([of_cell[index] for index in asked])
    return scores, record


def wanted(
    study: Study, not_run: Callable[[str], Collection[int]] = lambda _: ()
) -> dict[Path, int]:
    """The examples that a study asks for by the file of each cell; of an adaptive run, those of the
    round that is open or was the last. `not_run`: the lengths that a model cannot be given."""
    counts = {}
    for spec in study.models:
        alone = replace(study, models=(spec,))
        skipped = not_run(name_of(spec))
        state = planned(
            alone, [length for length in study.lengths if length not in skipped]
        )
        rest = FIRST if study.adaptive else study.num_examples
        for _, path, task, length in alone.cells():
            counts[path] = state.counts.get((task.name, length), rest)
    return counts


def _stored(study: Study) -> Iterator[tuple[Cell | None, tuple[str, Path, Task, int]]]:
    """Each cell of a study as it is stored, and what it is; None where there is none or a damaged
    one. Needs no model."""
    for place in study.cells():
        _, path, task, length = place
        try:
            cell = load_cell(path)
            if cell and cell.present:
                asked = plain(asked_record(task, length, study.seed))
                _check_result(cell, cell.record["result"] | asked)
            if cell:
                cell.about.max_failures = study.max_failures
        except DamagedCell as error:
            remark(f"left out: {error}")
            cell = None
        yield cell, place

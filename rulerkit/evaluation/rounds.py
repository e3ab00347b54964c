"""Asking in rounds: what was answered says what is asked next, until nothing more is wanted.

`rounds` is the loop, of adaptive runs as of the gate over two models. `counts_of` says how many
examples each cell of a study is to have, by the rows on disk; when an adaptive run may stop is in
`scoring.adaptive`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from rulerkit.common.errors import remark
from rulerkit.evaluation.study import Study, StudyCell, name_of
from rulerkit.generation.generate import asked_record
from rulerkit.scoring.scores import judged
from rulerkit.store.cells import Cell, DamagedCell, load_cell
from rulerkit.store.comparable import check_result
from rulerkit.store.records import plain

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rulerkit.scoring.adaptive import Counts, State


def rounds(counts: "Callable[[], Counts]") -> Iterator[tuple[int, dict[str, int]]]:
    """What is to be asked, round by round: a length, and the examples that each task is to have
    there, in all; the shortest length first. `counts` gives the examples that each cell is to have,
    in all, by the answers so far.

    The caller asks for them before it goes on. It ends where a round would ask for nothing new: the
    rule has enough, or requests failed, and to send them again at once would seldom help.
    """
    asked: Counts = {}
    while True:
        new = {cell: number for cell, number in counts().items() if number != asked.get(cell)}
        if not new:
            return
        for length in sorted({length for _, length in new}):
            yield length, {task: number for (task, at), number in new.items() if at == length}
        asked |= new


def at_lengths(study: Study, lengths: Sequence[int]) -> Study:
    """A study at some of its lengths, which the rule of an adaptive run is about."""
    rule = study.adaptive and replace(study.adaptive, lengths=tuple(lengths))
    return replace(study, lengths=tuple(lengths), adaptive=rule)


def counts_of(study: Study, anew: Collection[int] = ()) -> "Counts":
    """How many examples each cell of a study of one model is to have, in all: a fixed number, or as
    many as an adaptive run needs by the rows on disk."""
    if study.adaptive:
        return state_of(study, anew).counts
    names = [task.name for task in study.tasks]
    return dict.fromkeys(product(names, study.lengths), study.num_examples)


def state_of(study: Study, anew: Collection[int] = ()) -> "State":
    """Where the adaptive run of one model stands, by the rows on disk. Rows at the lengths of
    `anew` do not count, as they are moved aside."""
    import numpy as np

    from rulerkit.scoring.adaptive import replay

    assert study.adaptive
    scores = dict[tuple[str, int], "NDArray[np.float64]"]()
    aligned, claimed = "chat", None
    for asked, cell in stored_cells(study):
        score_of = dict[int, float]()
        if cell and asked.length not in anew:
            aligned, claimed = cell.about.aligned, cell.about.claimed_length
            # A failed request counts as asked; its score is NaN.
            rows = judged(cell)
            score_of = dict.fromkeys(cell.coverage.failed, np.nan)
            score_of |= zip(rows["index"].tolist(), rows["score"].tolist(), strict=True)

        # Rows may have gaps: what follows the first gap was not asked in this order.
        in_a_row = list[float]()
        while len(in_a_row) in score_of:
            in_a_row.append(score_of[len(in_a_row)])
        scores[asked.task.name, asked.length] = np.array(in_a_row)
    return replay(study.adaptive, scores, aligned, claimed, study.max_failures)


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
        counts = counts_of(at_lengths(of_model, lengths))
        # What cannot be asked stays as wanting as the cells of the first round.
        least = min(counts.values(), default=study.num_examples)
        for cell in of_model.cells():
            numbers[cell.path] = counts.get((cell.task.name, cell.length), least)
    return numbers


def stored_cells(study: Study) -> Iterator[tuple[StudyCell, Cell | None]]:
    """Each cell of a study with what of it is on disk: None where there is nothing, or what cannot
    be read, which stderr names. Needs no model.

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
        yield asked, cell

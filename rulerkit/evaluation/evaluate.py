"""Evaluation: models answer the examples of a study, and each answer is on disk at once.

`evaluate` asks only for what is missing, so the same call resumes after an interruption. It takes
the models one after the other; `_ask_model` takes the lengths of one, in the rounds of its study;
`writer.ask_length` sends the examples of one length and appends each answer to its cell.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rulerkit.common.errors import DoesNotFit, ModelError, TooLong, UserError, listed, remark
from rulerkit.common.lengths import length_name
from rulerkit.common.paths import cell_file
from rulerkit.common.progress import progress_bar
from rulerkit.common.settings import JSON
from rulerkit.evaluation.rounds import at_lengths, counts_of, rounds, state_of, stored_cells, wanted
from rulerkit.evaluation.study import Study
from rulerkit.evaluation.study import study as make_study
from rulerkit.evaluation.writer import ask_length
from rulerkit.generation.generate import Examples, generate
from rulerkit.inference.model import Model, load_model
from rulerkit.store.cells import Cell, answered

_MOST_NAMED = 10  # incomplete cells that are named one by one
_ALWAYS_FITS = 4096
"""From this length on, in tokens, all examples of a task fit where its first one does."""

NotRun = Callable[[str, int, str, str], None]
"""Receives the model's name, a length that it cannot be given, the reason, and the task that does
not fit into this length; "" where it is the model."""


def evaluate(
    study: Any = None,
    *,
    fresh: bool = False,
    progress: bool = True,
    not_run: NotRun | None = None,
    failed: Callable[[ModelError], None] | None = None,
    **parameters: Any,
) -> list[Cell]:
    """Let every model of a study answer all its tasks at all its lengths, shortest first; returns
    the cells, that is one model on one task at one length each, in the order of the models.

    `study` is one, or what `rk.study` takes: `evaluate("perfect", tasks=["vt"])`. Only what has no
    answer yet is asked; `fresh` moves old predictions aside. With `ask: false` no model is asked:
    the stored cells are returned, and what is missing is named.

    A request that fails is never a score of zero: its example gets no row, the reason is written to
    `<length>.failures.jsonl` beside the cell, and the next call asks again. Until then the cell has
    no mean, unless `max_failures` of the study allows so many failures.

    A length that a model cannot be given, or that a task does not fit into, is left out, named on
    stderr, and told to `not_run`. The error of a model goes to `failed`, or to stderr; the
    other models still run. Models that were loaded here are closed in the end; one that you made
    (`rk.load_model`, `rk.model`) stays loaded for the next call, and is yours to close.

    Raises `UserError` for a length, a corpus or a record that does not fit, before anything is
    asked, and the error of a model (`ModelError`) where no cell has an answer.
    """
    checked = _study_of(study, parameters)
    if not checked.ask:
        return _cells_without_asking(checked)

    # What is wrong with a cell is said by its writer.
    tokens_left, errors = dict[Path, int](), list[ModelError]()
    for asked in checked.cells():
        have, _ = (0, "") if fresh else answered(asked.path, checked.num_examples)
        tokens_left[asked.path] = asked.length * (checked.num_examples - have)
    tokens = sum(tokens_left.values())
    with progress_bar(total=tokens, unit_scale=True, disable=not progress or not tokens) as bar:
        cells = _ask_models(checked, _Call(fresh, not_run, tokens_left, errors, bar))

    if errors and not any(cell.coverage.have for cell in cells):
        raise errors[0]
    if not cells and not errors and not not_run and checked.models:
        raise UserError("nothing was asked: none of the lengths fits, for the reasons above")
    for error in errors:
        if failed:
            failed(error)
        else:
            remark(str(error))
    return cells


@dataclass
class _Call:
    """What all models of one call of `evaluate` share."""

    fresh: bool
    not_run: NotRun | None
    tokens_left: dict[Path, int]
    """By file, the tokens of all examples that had no answer before anything was asked."""
    errors: list[ModelError]
    """Those of the models so far."""
    bar: Any

    def leave_out(self, model: Model, length: int, reason: str, task: str = "") -> None:
        """Name a length that a model cannot be given, or a task that does not fit into it."""
        at = "" if task else f"{model.name} at {length_name(length)}: "
        remark(f"not run: {at}{reason}")
        if self.not_run:
            self.not_run(model.name, length, reason, task)


def _study_of(given: Any, parameters: JSON) -> Study:
    """The study that is given, or that a model and parameters describe."""
    if given is None and not {"model", "models"} & parameters.keys():
        raise UserError(
            "evaluate needs a study or a model: rk.evaluate(study), or "
            'rk.evaluate("reader-4096", tasks=["vt"], lengths=["4K"])'
        )
    if not isinstance(given, Study):
        return make_study(given, **parameters)
    if parameters:
        raise UserError(
            "evaluate takes a study, or models with parameters, not both: give models and "
            "parameters to rk.study"
        )
    return given


# --- before anything is asked ---------------------------------------------------------------------


Asked = dict[tuple[str, int], Examples]
"""The examples of each task at each length that they fit into."""


def _fitting(study: Study, model: Model, call: _Call) -> Asked:
    """The examples of all tasks at the lengths that they fit into; what does not fit is named.

    Raises `UserError` for what would fail later: a corpus with which no example can be made, and
    lengths that no task fits into. The question of an adaptive run needs them all.
    """
    asked, too_short = Asked(), list[tuple[int, str, str]]()
    for task in study.tasks:
        fits = None
        for length in study.lengths:
            # What fits into a length fits into all longer ones.
            if fits is not None:
                asked[task.name, length] = replace(fits, length=length, kept={})
                continue
            examples = generate(task, length, study.num_examples, study.seed, model.prompt_format)
            some = study.num_examples if length < _ALWAYS_FITS else 1
            # Examples that were answered fit, and none is made.
            if not call.tokens_left[cell_file(study.predictions, model.name, task.name, length)]:
                some = 0
            try:
                # What is made here is not made again when it is asked.
                examples.kept.update({index: examples[index] for index in range(some)})
            except DoesNotFit as error:
                too_short.append((length, str(error), task.name))
            else:
                asked[task.name, length] = fits = examples

    if too_short and (not asked or study.adaptive):
        _, reason, _ = too_short[0]
        raise UserError(reason)
    for length, reason, name in too_short:
        call.leave_out(model, length, reason, name)
    return asked


# --- the models ---------------------------------------------------------------------------------


def _ask_models(study: Study, call: _Call) -> list[Cell]:
    """Let the models of a study answer one after the other; returns their cells. All are checked
    before the first one is asked; one whose server fails then is left out."""
    cells = list[Cell]()
    ready: list[tuple[Study, Model, Asked]] = []
    for described in study.models:
        of_model = replace(study, models=(described,))
        # Nothing is loaded here: a model reads its weights when it answers first.
        model = load_model(described)
        try:
            ready.append((of_model, model, _fitting(of_model, model, call)))
        except ModelError as error:
            call.errors.append(error)
            cells += _stored(of_model)

    for number, (of_model, model, asked) in enumerate(ready, 1):
        # Two may not fit on one GPU; the caller may ask the last one again, if it is theirs.
        stays_open = number == len(ready) and model in study.models
        try:
            cells += _ask_model(of_model, model, asked, call)
        except ModelError as error:
            # What it answered is on disk.
            stays_open = False
            call.errors.append(error)
            cells += _stored(of_model)
        finally:
            if not stays_open:
                model.close()
    return cells


def _ask_model(study: Study, model: Model, asked: Asked, call: _Call) -> list[Cell]:
    """Let the only model of a study answer at all lengths that it can be given, in one round, or in
    those of an adaptive run; returns its cells. Raises `ModelError` where its work ends early."""
    written = dict[Path, Cell]()  # a later round replaces earlier states of a cell
    lengths = list[int]()
    for length in study.lengths:
        if reason := model.too_long(length):
            call.leave_out(model, length, reason)
        else:
            lengths.append(length)
    anew = set(lengths) if call.fresh else set[int]()  # what is asked first moves old rows aside

    while lengths:
        # The question of an adaptive run is about the lengths that remain.
        left = at_lengths(study, lengths)
        try:
            for length, counts in rounds(partial(counts_of, left, anew)):
                names = [name for name in counts if (name, length) in asked]
                examples = [asked[name, length].first(counts[name]) for name in names]
                is_new = length in anew
                cells = ask_length(model, examples, left, is_new, call.bar)
                written |= {cell.path: cell for cell in cells}
                anew.discard(length)
        except TooLong as error:
            call.leave_out(model, length, str(error))
            lengths.remove(length)
        else:
            if left.adaptive:
                text = left.adaptive.describe(state_of(left, anew))
                remark(f"{model.label or model.name}: {text}")
            break
    return list(written.values())


def _stored(study: Study) -> list[Cell]:
    """The cells that have an answer, as they are on disk."""
    return [cell for _, cell in stored_cells(study) if cell]


# --- without asking -------------------------------------------------------------------------------


def _cells_without_asking(study: Study) -> list[Cell]:
    """The cells that have an answer, complete or not; what is missing is named."""
    counts = wanted(study)
    cells, missing = list[Cell](), list[str]()
    for asked, cell in stored_cells(study):
        number = counts[asked.path]
        have = len(cell.coverage.of_first(number).have) if cell else 0
        if cell and have:
            cells.append(cell)
        if have < number:
            name = f"{asked.model} {asked.task.name} at {asked.length}"
            missing.append(f"{name}: {have} of {number} examples")

    if missing:
        remark(f"not answered: {listed(missing, _MOST_NAMED, '; ')}")
    if missing and not cells:
        raise UserError(
            f"nothing was answered yet ({missing[0]}, ...), and `ask: false` forbids to ask: let "
            "the models answer first, with `rulerkit batch`, which asks what a notebook's cell "
            "tagged `study` assigns, or set `ask: true`"
        )
    return cells

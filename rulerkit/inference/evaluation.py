"""Whole studies: each model answers all tasks at all lengths, or it is only written down what it
would be asked."""

import atexit
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.errors import ModelError, TooLong, UserError, remark
from rulerkit.generation import asked_record, generate
from rulerkit.inference import kept, predict_cells
from rulerkit.inference.cells import Cell, DamagedCell, print_problem
from rulerkit.inference.progress import Progress
from rulerkit.tasks import Task

if TYPE_CHECKING:
    from rulerkit.models import Model
    from rulerkit.studies import Study

ASK = "RULERKIT_ASK"
"""Environment variable; `never`: `evaluate` asks nobody and returns what is kept."""

NotRun = Callable[[str, int, str], None]
"""Told of a model's name, a length that it cannot be given, and why."""
Failed = Callable[[ModelError], None]
"""Told why a model stopped answering."""


def evaluate(
    study: "Study",
    fresh: bool = False,
    progress: bool = True,
    not_run: NotRun | None = None,
    failed: Failed | None = None,
) -> list[Cell]:
    """Let every model of a study answer all its tasks at all its lengths, shortest first; only what
    is missing.

    A length that a model cannot be given is named, with what would make it fit, and left out.
    Models come one after the other, each loaded when it has something to answer and closed before
    the next; the last one stays loaded for the next call, until another model is asked for or
    `close` is called.

    Where a model stops with an error, the other models still run and the cells hold what it
    answered until then; the error goes to `failed`, or to stderr at the end. It is raised where no
    model has an answer.

    Where the environment says RULERKIT_ASK=never (as `rulerkit batch` does for its notebooks, once
    their models have answered) nobody is asked: what is kept is returned, and what is missing is
    named.
    """
    if _asked is not None:
        _asked.append(study)
        return []
    if os.environ.get(ASK) == "never":
        return _all_kept(study)
    fresh = fresh and not int(
        os.environ.get("SLURM_RESTART_COUNT") or 0
    )  # a requeued job goes on with what it has
    models = _ready(study.models)
    for model in models:
        for task in (
            study.tasks
        ):  # what does not fit, or which corpus is missing, is said before hours are spent
            _ = generate(task, study.lengths[0], 1, study.seed, model.prompt_format)[0].num_tokens
    tokens = study.repeat * len(models) * len(study.tasks) * sum(study.lengths) * study.num_examples
    cells: list[Cell] = []
    errors: list[ModelError] = []
    with Progress(tokens, disable=not progress) as bar:
        for spec, model in zip(study.models, models, strict=True):
            if not _loaded or _loaded[0][1] is not model:
                close()
                _loaded.append((spec, model))
            try:
                for length in study.lengths:
                    try:
                        cells += _one_length(study, model, length, fresh, bar)
                    except TooLong as reason:
                        remark(f"not run: {model.name} at {length}: {reason}")
                        if not_run:
                            not_run(model.name, length, str(reason))
            except ModelError as error:
                close()
                errors.append(error)
                known = {cell.path for cell in cells}
                cells += [
                    cell
                    for cell, _ in _stored(study, model.name)
                    if cell and cell.path not in known
                ]
            except BaseException:
                close()
                raise
    if errors and not any(cell.present for cell in cells):
        raise errors[0]
    for problem in errors:
        if failed:
            failed(problem)
        else:
            remark(str(problem))
    return cells


def _stored(
    study: "Study", model: str | None = None
) -> Iterator[tuple[Cell | None, tuple[str, Path, Task, int]]]:
    """Each cell of a study, or of one of its models, as it is stored, with what it is; None where
    there is none, or where it is damaged, which is said."""
    for place in study.cells():
        name, path, task, length = place
        if model in (None, name):
            try:
                cell = kept(path, asked_record(task, length, study.seed))
            except DamagedCell as error:
                print_problem(f"left out: {error}")
                cell = None
            if cell:
                cell.record["max_failures"] = study.max_failures
            yield cell, place


def _one_length(
    study: "Study", model: "Model", length: int, fresh: bool, bar: Progress
) -> Iterator[Cell]:
    """All tasks at one length; raises `TooLong`, before or after loading, where the model cannot be
    given it."""
    if reason := model.too_long(length):
        raise TooLong(reason)
    for folder in study.folders:
        cells = [
            generate(task, length, study.num_examples, study.seed, model.prompt_format)
            for task in study.tasks
        ]
        yield from predict_cells(model, cells, folder, fresh, bar, study.max_failures)


def _all_kept(study: "Study") -> list[Cell]:
    """The cells that are there, complete or not, from the files alone; what is missing is named."""
    cells, missing = [], []
    for cell, (name, _, task, length) in _stored(study):
        have = sum(index < study.num_examples for index in cell.present) if cell else 0
        cells += [cell] if cell and cell.present else []
        if have < study.num_examples:
            missing.append(
                f"{name} {task.name} at {length}: {have} of {study.num_examples} examples"
            )
    for line in missing[:_NAMED]:
        remark(f"not answered: {line}")
    if more := missing[_NAMED:]:
        remark(f"not answered: {len(more)} cells more")
    if not cells:
        raise UserError(
            f"nothing was answered yet ({missing[0]}, ...), and {ASK}=never forbids to ask: let "
            "the models answer first, "
            f"with `rulerkit batch`, or unset {ASK}"
        )
    return cells


_NAMED = 10  # cells that are named one by one

_asked: "list[Study] | None" = None


@contextmanager
def asked_studies() -> "Iterator[list[Study]]":
    """Within, `evaluate` asks nobody and returns nothing: it adds its studies to the list that is
    given."""
    global _asked
    before, _asked = _asked, []
    try:
        yield _asked
    finally:
        _asked = before


_loaded: list[tuple[Any, "Model"]] = []
"""The model that is loaded now, if any, with what it was described by."""


@atexit.register
def close() -> None:
    """Give back what the last `evaluate` left loaded: memory, a GPU, the engine's process."""
    while _loaded:
        _loaded.pop()[1].close()


def _ready(specs: Iterable[Any]) -> list["Model"]:
    """The models that specs describe, no weights read yet; the one that is loaded is used again if
    it is the first."""
    from rulerkit.models import load_model

    first, *others = specs or [None]
    if not _loaded or _loaded[0][0] != first:
        close()
    same = [_loaded[0][1]] if _loaded else [load_model(first)] if first is not None else []
    return same + [load_model(spec) for spec in others]

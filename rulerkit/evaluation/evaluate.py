"""Evaluation: models answer the examples of a study, and each answer is on disk at once.

`predict` lets one model answer the examples of one cell, `evaluate` all cells of a study; both ask
only for what is missing. `check_same` says whether cells may share a table: the `result` of their
records must agree; their environments (GPU, versions, commit) may differ, which becomes a footnote
(`tables.footnotes`).
"""

import atexit
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rulerkit.common.errors import ModelError, TooLong, UserError, listed, remark
from rulerkit.common.progress import progress_bar
from rulerkit.evaluation.adaptive import _stored, planned, wanted
from rulerkit.evaluation.study import Study
from rulerkit.evaluation.writer import predict_cells
from rulerkit.generation.generate import generate
from rulerkit.inference.model import Model, load_model
from rulerkit.scoring.scores import completeness
from rulerkit.store.cells import (
    Cell,
)

ASK = "RULERKIT_ASK"
"""Environment variable; `never`: `evaluate` asks no model and returns what is stored."""
_LISTED = 10  # incomplete cells that are named one by one


# --- one model, several cells ---------------------------------------------------------------------


# --- studies --------------------------------------------------------------------------------------


def evaluate(
    study: Study,
    fresh: bool = False,
    progress: bool = True,
    not_run: Callable[[str, int, str], None] | None = None,
    failed: Callable[[ModelError], None] | None = None,
) -> list[Cell]:
    """Let every model of a study answer all its tasks at all its lengths, shortest first; only what
    is missing.

    A length that a model cannot be given is left out and named, with the reason, on stderr and to
    `not_run`. Models come one after the other, each loaded when it has something to answer and
    closed before the next; the last one stays loaded for the next call, until another model is
    asked for or `close` is called.

    Where a model stops with an error, the other models still run and the cells hold its answers
    until then; the error goes to `failed`, or to stderr at the end. It is raised where no model has
    an answer.

    With `soft: true` the probability of the right answer is stored too; a model that does not tell
    it is a `UserError` before any is asked.

    Where all answers of a Python function or of a loaded checkpoint are stored, one line says so:
    not every change of code is seen.

    With RULERKIT_ASK=never in the environment (`rulerkit batch` sets it for its notebooks) no model
    is asked: the stored cells are returned, and what is missing is named.
    """
    if _asked is not None:
        _asked.append(study)
        return []
    if os.environ.get(ASK) == "never":
        return _stored_cells(study)
    fresh = fresh and not int(
        os.environ.get("SLURM_RESTART_COUNT") or 0
    )  # a requeued job resumes
    from rulerkit.evaluation.soft import gold_logprobs

    models: list[Any] = _ready(study.models)
    for model in models:
        if study.soft:
            gold_logprobs(model, ())  # raises where it does not tell
        for (
            task
        ) in study.tasks:  # raises for a length or corpus before anything is asked
            _ = generate(task, study.lengths[0], 1, study.seed, model.prompt_format)[
                0
            ].num_tokens
    wanted = study.num_examples
    tokens = sum(
        length * (wanted if fresh else wanted - completeness(path, wanted).have)
        for _, path, _, length in study.cells()
    )
    cells, errors = list[Cell](), list[ModelError]()
    with progress_bar(tokens, disable=not progress) as bar:
        for spec, model in zip(study.models, models, strict=True):
            if not _loaded or _loaded[0][1] is not model:
                close()
                _loaded.append((spec, model))
            alone = replace(study, models=(spec,))
            if getattr(model, "budget", None) is not None:
                rows = [
                    row for cell, _ in _stored(alone) if cell for row in cell.stream()
                ]
                model.spent = float(
                    sum((row.get("usage") or {}).get("cost", 0) for row in rows)
                )
            try:
                answered, asked = _ask(alone, model, fresh, bar, not_run)
            except BaseException as error:
                close()
                if not isinstance(error, ModelError):
                    raise
                errors.append(error)
                answered, asked = [cell for cell, _ in _stored(alone) if cell], True
            in_python = not isinstance(spec, dict) or "entry" in spec
            if in_python and answered and not asked:
                remark(
                    f"{model.name}: nothing was asked, all answers are stored; a change that its "
                    "record does not hold, such as a patch elsewhere, is not seen: another `name` "
                    "or `run`, or fresh=True, asks again"
                )
            cells += answered
    if not cells and study.models and not not_run and not errors:
        raise UserError(
            "nothing was asked: none of the lengths fits, for the reasons above"
        )
    if errors and not any(cell.present for cell in cells):
        raise errors[0]
    for problem in errors:
        (failed or (lambda error: remark(str(error))))(problem)
    return cells


def _ask(
    study: Study,
    model: Any,
    fresh: bool,
    bar: Any,
    not_run: Callable[[str, int, str], None] | None,
) -> tuple[list[Cell], bool]:
    """Let the only model of a study answer at all lengths that it can be given: everything at once,
    or in the rounds of an adaptive run, until its question is settled or requests fail. Returns the
    cells, and whether anything was asked."""
    cells, asked, any_asked = dict[Path, Cell](), dict[tuple[str, int], int](), False
    lengths, rule = list(study.lengths), study.adaptive
    while lengths:
        try:
            for length in lengths:
                if reason := model.too_long(length):
                    raise TooLong(reason)
            state = planned(study, lengths, fresh)
            if state.counts.items() <= asked.items():
                break
            if rule:
                names = tuple(task.name for task in study.tasks)
                rule = replace(rule, tasks=names, lengths=tuple(lengths))
            for length in lengths:
                counts = {key: n for key, n in state.counts.items() if key[1] == length}
                if counts.items() <= asked.items():
                    continue
                for model.repetition, folder in enumerate(study.folders):
                    examples = [
                        generate(
                            task,
                            length,
                            counts[task.name, length],
                            study.seed,
                            model.prompt_format,
                        )
                        for task in study.tasks
                    ]
                    stored, were_asked = predict_cells(
                        model,
                        examples,
                        folder,
                        fresh,
                        bar,
                        study.max_failures,
                        study.soft,
                        rule,
                    )
                    cells |= {cell.path: cell for cell in stored}
                    any_asked |= were_asked
                asked |= counts
            fresh = False
        except TooLong as reason:
            remark(f"not run: {model.name} at {length}: {reason}")
            if not_run:
                not_run(model.name, length, str(reason))
            lengths.remove(length)
            if rule:  # begins again, with another rule
                asked.clear()
    if rule and lengths:
        remark(f"{model.label or model.name}: {rule.describe(state)}")
    return list(cells.values()), any_asked


def _stored_cells(study: Study) -> list[Cell]:
    """The cells that have an answer, complete or not; what is missing is named."""
    cells, missing, counts = [], [], wanted(study)
    for cell, (name, path, task, length) in _stored(study):
        have = sum(index < counts[path] for index in cell.present) if cell else 0
        if cell and have:
            cells.append(cell)
        if have < counts[path]:
            missing.append(
                f"{name} {task.name} at {length}: {have} of {counts[path]} examples"
            )
    if missing:
        remark(f"not answered: {listed(missing, _LISTED, '; ')}")
    if not cells:
        raise UserError(
            f"nothing was answered yet ({missing[0]}, ...), and {ASK}=never forbids to ask: let "
            f"the models answer first, with `rulerkit batch`, or unset {ASK}"
        )
    return cells


_asked: list[Study] | None = None


@contextmanager
def asked_studies() -> Iterator[list[Study]]:
    """Within, `evaluate` asks no model and returns nothing: it appends its study to the list."""
    global _asked
    before, _asked = _asked, []
    try:
        yield _asked
    finally:
        _asked = before


_loaded: list[tuple[Any, "Model"]] = []
"""The model that is loaded now, if any, with its description."""


@atexit.register
def close() -> None:
    """Free what the last `evaluate` left loaded: memory, a GPU, the engine's process."""
    while _loaded:
        _loaded.pop()[1].close()


def _ready(specs: Iterable[Any]) -> list[Model]:
    """The models that specs describe, no weights read yet; a model that is loaded is used again."""
    loaded: tuple[Any, Any] = _loaded[0] if _loaded else (None, None)
    return [loaded[1] if spec == loaded[0] else load_model(spec) for spec in specs]


# --- which cells may share a table ----------------------------------------------------------------

"""Evaluation: models answer the examples of a study, and each answer is on disk at once.

`evaluate` asks only for what is missing, so the same call resumes after an interruption. What it
does, from the outside to the inside:

- `evaluate` takes the models one after the other,
- `_ask_model` takes the lengths of one model, in one round or in those of an adaptive run,
- `writer.predict_cells` sends the examples of one length and appends each answer to its cell.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rulerkit.common.errors import DoesNotFit, ModelError, TooLong, UserError, listed, remark
from rulerkit.common.lengths import length_name
from rulerkit.common.progress import progress_bar
from rulerkit.common.settings import JSON
from rulerkit.evaluation.rounds import StudyRule, rounds, stored_cells, wanted
from rulerkit.evaluation.session import Session
from rulerkit.evaluation.study import Study
from rulerkit.evaluation.study import study as make_study
from rulerkit.evaluation.writer import Predicted, predict_cells
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import Task
from rulerkit.inference.model import Model
from rulerkit.scoring.scores import completeness
from rulerkit.store.cells import Cell
from rulerkit.store.places import is_table

_MOST_NAMED = 10  # incomplete cells that are named one by one
_ALWAYS_FITS = 4096
"""From this length on, in tokens, all examples of a task fit where its first one does."""

NotRun = Callable[[str, int, str], None]
"""Receives the model's name, a length that it cannot be given, and the reason."""


def evaluate(
    study: Any = None,
    *,
    fresh: bool = False,
    progress: bool = True,
    not_run: NotRun | None = None,
    failed: Callable[[ModelError], None] | None = None,
    session: Session | None = None,
    **parameters: Any,
) -> list[Cell]:
    """Let every model of a study answer all its tasks at all its lengths, shortest first.

    `study` is a study, several of them, or what `rk.study` takes, with the same parameters:
    `evaluate("reader-4096", tasks=["vt"], lengths=["4K"])`.

    Only what has no answer yet is asked, so the same call resumes. Each answer is written to disk
    as it arrives. Returns the cells, that is one model on one task at one length each; of several
    studies all cells, in the order of the studies.

    A request that fails is never a score of zero: its example gets no row. The attempt is written
    to `<length>.failures.jsonl` beside the cell, with the reason; stderr says how many there are;
    the next call asks for that example again. Until then the cell is incomplete, and it has no mean
    unless `max_failures` of the study allows so many failures.

    A length that a model cannot be given, or that a task does not fit into, is left out and named
    on stderr, the first also to `not_run`. Where a model stops with an error, the other models
    still run, and the cells hold its answers until then; the error goes to `failed`, or to stderr.

    `fresh` moves old predictions aside and starts anew. Models come one after the other, each
    loaded when it has something to answer and closed before the next; with a `session` the last one
    stays loaded. Where the study says `ask: false` no model is asked: the stored cells are
    returned, and what is missing is named.

    Raises `UserError` for a length, a corpus or a record that does not fit, before anything is
    asked, and the error of a model (`ModelError`) where no cell has an answer.
    """
    studies = _studies_of(study, parameters)
    cells: list[Cell] = []
    with ExitStack() as stack:
        shared = session or stack.enter_context(Session())
        for one in studies:
            cells += _evaluate(one, fresh, progress, not_run, failed, shared)
    return cells


def _studies_of(given: Any, parameters: JSON) -> list[Study]:
    """The studies that are given, or the one that a model and parameters describe."""
    is_one = isinstance(given, str | Mapping) or is_table(given)
    if isinstance(given, Iterable) and not is_one:
        given = list(given)
    several = given if isinstance(given, list) else [given]
    are_studies = [isinstance(one, Study) for one in several]

    if not any(are_studies):
        if given is None and not {"model", "models"} & parameters.keys():
            raise UserError(
                "evaluate needs a study or a model: rk.evaluate(study), or "
                'rk.evaluate("reader-4096", tasks=["vt"], lengths=["4K"])'
            )
        return [make_study(given, **parameters)]

    if parameters:
        raise UserError(
            f"evaluate has a study, and {', '.join(parameters)} beside it: give parameters to "
            "rk.study, or to evaluate with a model in place of the study"
        )
    if not all(are_studies):
        raise UserError("evaluate takes studies or models, not both in one list")
    return several


def _evaluate(
    study: Study,
    fresh: bool,
    progress: bool,
    not_run: NotRun | None,
    failed: Callable[[ModelError], None] | None,
    session: Session,
) -> list[Cell]:
    """Evaluate one study."""
    if not study.ask:
        return _cells_without_asking(study)
    cells, errors = _ask_models(study, fresh, progress, not_run, session)

    if errors and not any(cell.present for cell in cells):
        raise errors[0]
    if not cells and study.models and not not_run and not errors:
        raise UserError("nothing was asked: none of the lengths fits, for the reasons above")
    for error in errors:
        if failed:
            failed(error)
        else:
            remark(str(error))
    return cells


def _ask_models(
    study: Study, fresh: bool, progress: bool, not_run: NotRun | None, session: Session
) -> tuple[list[Cell], list[ModelError]]:
    """Let one model after the other answer; returns all cells, and the errors of the models that
    stopped."""
    models = [session.find(described) for described in study.models]
    fitting = [_check_before_asking(study, model) for model in models]

    cells, errors = list[Cell](), list[ModelError]()
    tokens = _tokens_to_ask(study, fresh)
    with progress_bar(tokens, disable=not progress) as bar:
        for described, model, fits in zip(study.models, models, fitting, strict=True):
            session.use(described, model)
            of_model = replace(study, models=(described,))
            _set_spent(model, of_model)
            try:
                answered, any_asked = _ask_model(of_model, model, fits, fresh, bar, not_run)
            except ModelError as error:
                # The next model still runs; what this one answered is on disk.
                session.close()
                errors.append(error)
                cells += [stored.cell for stored in stored_cells(of_model) if stored.cell]
                continue
            except BaseException:
                session.close()
                raise

            cells += answered
            # Of a model that is a Python object, or made by one, not all changes are seen.
            is_from_python = isinstance(described, Model) or "entry" in described
            if answered and not any_asked and is_from_python:
                remark(
                    f"{model.name}: nothing was asked, all answers are stored; a change that its "
                    "record does not hold, such as a patch elsewhere, is not seen: another `name` "
                    "or `run`, or fresh=True, asks again"
                )
    return cells, errors


# --- before anything is asked ---------------------------------------------------------------------


_Fits = set[tuple[str, int]]
"""Tasks with the lengths that their examples fit into."""


def _check_before_asking(study: Study, model: Model) -> _Fits:
    """The tasks with the lengths that their examples fit into; what does not fit is named.

    Raises `UserError` for what would fail later: a corpus with which no example can be made, and
    lengths that no task fits into. The question of an adaptive run needs them all.
    """
    fits, too_short = set[tuple[str, int]](), list[str]()
    for task in study.tasks:
        for length in study.lengths:
            reason = _too_short(study, model, task, length)
            if not reason:
                # What fits here fits into all longer lengths.
                fits |= {(task.name, n) for n in study.lengths if n >= length}
                break
            too_short.append(reason)
    if too_short and (not fits or study.adaptive):
        raise UserError(too_short[0])
    for reason in too_short:
        remark(f"not run: {reason}")
    return fits


def _too_short(study: Study, model: Model, task: Task, length: int) -> str:
    """Why examples of a task do not fit into a length; "" where they do."""
    number = study.num_examples if length < _ALWAYS_FITS else 1
    try:
        for example in generate(task, length, number, study.seed, model.prompt_format):
            _ = example.num_tokens
    except DoesNotFit as error:
        return str(error)
    return ""


def _tokens_to_ask(study: Study, fresh: bool) -> int:
    """What the progress bar counts: the lengths of all examples without an answer."""
    tokens = 0
    for cell in study.cells():
        missing = study.num_examples
        if not fresh:
            missing -= completeness(cell.path, study.num_examples).have
        tokens += cell.length * missing
    return tokens


def _set_spent(model: Any, study: Study) -> None:
    """Tell a model with a budget in dollars what its stored answers have cost."""
    if getattr(model, "budget", None) is None:
        return
    spent = 0.0
    for stored in stored_cells(study):
        for row in stored.cell.stream() if stored.cell else ():
            usage = row.get("usage") or {}
            spent += usage.get("cost", 0)
    model.spent = spent


# --- one model ------------------------------------------------------------------------------------


def _ask_model(
    study: Study, model: Any, fits: _Fits, fresh: bool, bar: Any, not_run: NotRun | None
) -> tuple[list[Cell], bool]:
    """Let the only model of a study answer at all lengths that it can be given; returns its cells,
    and whether it was asked for anything.

    A study with a number of examples is one round. An adaptive run asks a few examples of each
    cell, looks at the scores, and asks for more where its question needs them; it ends when the
    question is settled or requests fail.
    """
    answered = dict[Path, Cell]()  # a later round replaces earlier states of a cell
    any_asked = False
    lengths = list(study.lengths)
    anew = set(lengths) if fresh else set[int]()  # what is asked first moves old rows aside

    def leave_out(length: int, reason: str) -> None:
        remark(f"not run: {model.name} at {length_name(length)}: {reason}")
        if not_run:
            not_run(model.name, length, reason)
        lengths.remove(length)

    for length in study.lengths:
        if reason := model.too_long(length):
            leave_out(length, reason)

    while lengths:
        # The rule of an adaptive run speaks of the lengths that remain.
        rule = StudyRule(study, lengths, anew)
        try:
            for length, counts in rounds(rule):
                due = {task: n for task, n in counts.items() if (task, length) in fits}
                told = _ask_length(study, model, length, due, length in anew, bar, rule)
                answered |= {cell.path: cell for cell in told.cells}
                any_asked |= told.any_asked
                anew.discard(length)
        except TooLong as error:
            leave_out(length, str(error))
            continue
        if text := rule.describe():
            remark(f"{model.label or model.name}: {text}")
        break
    return list(answered.values()), any_asked


def _ask_length(
    study: Study,
    model: Any,
    length: int,
    counts: Mapping[str, int],
    fresh: bool,
    bar: Any,
    rule: StudyRule,
) -> Predicted:
    """Let a model answer so many examples of each task at one length, in each repetition."""
    cells, any_asked = list[Cell](), False
    for repetition, folder in enumerate(study.folders):
        # A model that draws its answers draws others in each repetition.
        model.repetition = repetition

        examples = [
            generate(task, length, counts[task.name], study.seed, model.prompt_format)
            for task in study.tasks
            if task.name in counts
        ]
        told = predict_cells(model, examples, folder, fresh, bar, study.max_failures, rule.adaptive)
        cells += told.cells
        any_asked |= told.any_asked
    return Predicted(cells, any_asked)


# --- without asking -------------------------------------------------------------------------------


def _cells_without_asking(study: Study) -> list[Cell]:
    """The cells that have an answer, complete or not; what is missing is named."""
    counts = wanted(study)
    cells, missing = list[Cell](), list[str]()
    for stored in stored_cells(study):
        number = counts[stored.path]
        have = 0
        if stored.cell:
            have = sum(index < number for index in stored.cell.present)
            if have:
                cells.append(stored.cell)
        if have < number:
            missing.append(f"{stored.name}: {have} of {number} examples")

    if missing:
        remark(f"not answered: {listed(missing, _MOST_NAMED, '; ')}")
    if missing and not cells:
        raise UserError(
            f"nothing was answered yet ({missing[0]}, ...), and `ask: false` forbids to ask: let "
            "the models answer first, with `rulerkit batch`, or set `ask: true`"
        )
    return cells

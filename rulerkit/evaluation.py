"""Evaluation: models answer the examples of a study, and each answer is on disk at once.

`predict` lets one model answer the examples of one cell, `evaluate` all cells of a study; both ask
only for what is missing. `check_same` says whether cells may share a table: the `result` of their
records must agree; their environments (GPU, versions, commit) may differ, which becomes a footnote
(`tables.footnotes`).
"""

import atexit
import json
import math
import os
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import count, product, takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

from rulerkit.adaptive import FIRST, Scores, State, StoppingRule, replay
from rulerkit.errors import ModelError, TooLong, UserError, listed, remark, shorten
from rulerkit.floors import floors
from rulerkit.generation import Examples, asked_record, generate
from rulerkit.models import Answer, Failure, Model, load_model, refuse_echo
from rulerkit.paths import cell_file
from rulerkit.scoring import completeness, judged
from rulerkit.settings import JSON
from rulerkit.store import (
    FORMAT,
    WAYS_OUT,
    Cell,
    DamagedCell,
    Lock,
    Log,
    cell_files,
    disk,
    failures_file,
    load_cell,
    machine,
    plain,
    progress_bar,
    soft_file,
    write_whole,
)
from rulerkit.studies import Study, name_of
from rulerkit.tasks import Task

ASK = "RULERKIT_ASK"
"""Environment variable; `never`: `evaluate` asks no model and returns what is stored."""
ABSENT = object()
_LISTED = 10  # incomplete cells that are named one by one
_LONGEST = 60  # characters of a value in a message
_BEFORE = 20  # and how many of them before the first that differs


# --- one model, several cells ---------------------------------------------------------------------


def predict(
    model: Model,
    examples: Examples,
    folder: Path,
    fresh: bool = False,
    progress: Any = None,
    soft: bool = False,
) -> Cell:
    """Let a model answer the examples that have no answer yet; returns the cell with all its rows.

    See `predict_cells`, which does the same for several cells at once.
    """
    return predict_cells(model, [examples], folder, fresh, progress, soft=soft)[0][0]


def predict_cells(
    model: Model,
    cells: Sequence[Examples],
    folder: Path,
    fresh: bool = False,
    progress: Any = None,
    max_failures: float = 0,
    soft: bool = False,
    rule: StoppingRule | None = None,
) -> tuple[list[Cell], bool]:
    """Let a model answer the examples of several tasks that have no answer yet, in one stream;
    returns the cells that then have answers, and whether anything was asked.

    `folder` is `predictions/<run>`. Rows are appended as the model answers. Answers of an earlier
    session stay where the record names the same task, length, seed, prompts, tokenizer, corpora
    and model; `fresh` moves the old files aside first. A request that failed is listed
    beside its cell and on stderr, and is sent again by the next call; `max_failures` is recorded
    for those who take means, and so is the `rule` of an adaptive run. With `soft` the soft scores
    that are missing are computed afterwards, of new and of earlier answers, and stored beside them.
    `progress`: None for a new bar, False for none, or a bar over many cells.

    Errors: `UserError` where a record or a prompt's digest differs, another process writes or the
    disk refuses; `ModelError` where the model raises a `UserError`, returns prompts, or leaves
    examples out; other errors of the model pass on. Every answer until then is on disk.
    """
    about = {
        "run": folder.name,
        "label": model.label,
        "claimed_length": model.claimed_length,
        "aligned": model.aligned,
        "max_failures": max_failures,
        "adaptive": rule and plain(asdict(rule)),
    }
    with ExitStack() as stack:
        jobs = [_Job(model, examples, folder, about, fresh, stack) for examples in cells]
        if unanswered := [job for job in jobs if job.missing]:
            length, bar = jobs[0].length, progress
            if isinstance(progress, bool | None):
                tokens = length * sum(len(job.missing) for job in unanswered)
                bar = stack.enter_context(progress_bar(tokens, disable=progress is False))
            tasks = f"{jobs[0].task} " if len(jobs) == 1 else ""
            bar.set_description_str(f"{model.name} {tasks}{length}", refresh=False)
            _answer(model, unanswered, bar)
    stored = [cell for job in jobs if (cell := load_cell(job.path))]
    if soft:
        _add_soft(model, stored, cells)
    return stored, bool(unanswered)


class _Job:
    """A cell and its examples without an answer; it is locked until `held` is closed. Nothing is
    written before the first answer."""

    def __init__(
        self,
        model: Model,
        examples: Examples,
        folder: Path,
        about: JSON,
        fresh: bool,
        stack: ExitStack,
    ) -> None:
        self.examples, self.failures = examples, list[Failure]()
        self.result = plain(
            {**examples.record(), "model": {"name": model.name, **model.identity()}}
        )
        self.task, self.length = self.result["task"]["name"], self.result["length"]
        names = _folder_name(model.name), _folder_name(self.task)
        self.path = cell_file(folder, *names, self.length)
        self.held = stack.enter_context(ExitStack())
        if not fresh:
            self._compare(about)
            if not self.missing and self.record == self.stored:
                return
        with disk(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = self.held.enter_context(Lock(self.path.with_suffix(".lock")))
        if fresh:
            _move_aside(self.path)
        cell = self._compare(about)  # another process may have written since
        if not self.missing:
            self._write_record()
            return
        if cell:
            _check_digests(cell, examples)
        _ = examples[self.missing[0]]  # fails before anything is written
        self.record |= {"result": self.result, **_environments(self.record, model)}
        if "floors" not in self.record:
            # nothing for examples that this package did not make
            is_ours = isinstance(examples, Examples)
            self.record["floors"] = floors(examples) if is_ours else {}
        self.left = set(self.missing)

    def _compare(self, about: JSON) -> Cell | None:
        """Read what is stored, and find out what is missing; rows made under another record are
        never mixed with new ones."""
        cell = load_cell(self.path)
        present: list[int] = []
        self.stored: JSON = {}
        if cell and cell.present:
            _check_result(cell, self.result)
            present = cell.present
            # earlier versions did not write all of these
            self.stored = {"max_failures": 0, "adaptive": None, **cell.record}
        self.missing = sorted(set(range(len(self.examples))) - set(present))
        most = max(len(self.examples), self.stored.get("num_examples", 0))
        self.record = {"format": FORMAT, **self.stored, **about, "num_examples": most}
        return cell

    def _write_record(self) -> None:
        write_whole(self.path.with_suffix(".json"), json.dumps(self.record, indent=2) + "\n")

    @cached_property
    def log(self) -> Log:
        """The file of rows, open; the record is written first."""
        self._write_record()
        return self.held.enter_context(Log(self.path))

    def add_failure(self, index: int, failure: Failure) -> None:
        """Append an attempt without an answer to the file of failures beside the cell."""
        self.failures.append(failure)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with Log(failures_file(self.path)) as log:
            log.append({"index": index, "time": now, **failure._asdict()})


def _answer(model: Model, jobs: list[_Job], bar: Any) -> None:
    """Append a row for each missing example to the file of its cell, as the model answers."""
    by_task = {job.task: job for job in jobs}
    asked = model.answer(job.examples[index] for job in jobs for index in job.missing)
    try:
        with closing(_errors_named(asked)) as answers:  # an engine may have requests under way
            for example, answer in answers:
                job = by_task[example.task]
                job.left.remove(example.index)
                job.lock.check()
                log = job.log
                if isinstance(answer, Failure):
                    job.add_failure(example.index, answer)
                else:
                    log.append(_row(example, answer, model.name))
                    tokens = example.num_tokens + answer.num_tokens
                    bar.total += tokens - job.length
                    bar.update(tokens)
                if not job.left:
                    job.held.close()  # its lock is not left behind if this process is killed later
    finally:
        for job in jobs:
            if job.failures:
                remark(
                    f"{model.name}: {len(job.failures)} of {job.record['num_examples']} examples "
                    f"of {job.task} at {job.length} have no answer ({job.failures[0].reason}): "
                    f"{failures_file(job.path)} lists them, and the same command asks for them "
                    "again"
                )
    for job in jobs:
        if job.left:
            raise ModelError(
                f"{model.name} left {len(job.left)} of {len(job.missing)} examples of {job.path} "
                f"unanswered, the first is example {min(job.left)}: the others are on disk; the same "
                "command asks for these again"
            )


def _add_soft(model: Model, cells: Sequence[Cell], questions: Sequence[Examples]) -> None:
    """Append the soft scores that are missing to the file beside each cell: of the likeliest
    reference `gold_probability` (geometric mean over its tokens, 0..1), `gold_product` and
    `num_tokens`; `gold_greedy`: whether greedy decoding writes one of the references."""
    from rulerkit.soft import gold_logprobs

    asked, logs = [], {}
    with ExitStack() as stack:
        for cell, examples in zip(cells, questions, strict=True):
            if missing := [index for index in cell.without_soft if index < len(examples)]:
                lock = stack.enter_context(Lock(cell.path.with_suffix(".lock")))
                _check_digests(cell, examples)
                side = soft_file(cell.path)
                logs[cell.task] = lock, stack.enter_context(Log(side))
                asked += [(examples, index) for index in missing]
                del cell.soft  # it is read again
        if asked:
            remark(f"{model.name}: soft scores of {len(asked)} examples at {cells[0].length}")
        golds = gold_logprobs(model, (examples[index] for examples, index in asked))
        for example, answers in _errors_named(golds):
            lock, log = logs[example.task]
            lock.check()
            best = max(([token.logprob for token in row] for row in answers), key=fmean)
            soft = {
                "gold_probability": math.exp(fmean(best)),
                "gold_product": math.exp(sum(best)),
                "gold_greedy": any(all(token.greedy for token in row) for row in answers),
                "num_tokens": len(best),
            }
            log.append({"index": example.index, "task": example.task, **soft})


def _errors_named(answers: Iterable[Any]) -> Generator[Any]:
    """The answers; a `UserError` of the model becomes a `ModelError`: other models may go on."""
    try:
        yield from answers
    except TooLong:
        raise
    except UserError as error:
        raise ModelError(str(error)) from error


def _row(example: Any, answer: Answer, name: str) -> JSON:
    refuse_echo(name, example, answer.text)
    row = {
        "index": example.index,
        "pred": answer.text,
        "outputs": list(example.references),
        "length": example.num_tokens + example.max_new_tokens,
        "task": example.task,
        "digest": example.digest,
        "num_prompt_tokens": example.num_tokens,
        "finish_reason": answer.finish_reason,
        "depths": list(example.depths),
    }
    if example.group is not None:
        row["group"] = example.group
    if answer.usage:
        row["usage"] = dict(answer.usage)
    return row


def _check_result(cell: Cell, result: JSON) -> None:
    """Raise a `UserError` where the rows of a cell were made under another record."""
    if changes := differences(cell.record["result"], result):
        field, old, new, more = describe_first(changes)
        raise UserError(
            f"{cell.path} was made with {field} {old}, now it is {new}{more}: {WAYS_OUT}"
        )


def _check_digests(cell: Cell, examples: Examples) -> None:
    """The prompts of the first and the last answer must still be those that were answered."""
    rows = [row for row in cell.rows if row["index"] < len(examples)]
    for row in rows[:1] + rows[1:][-1:]:
        digest = examples[row["index"]].digest
        if digest != row["digest"]:
            raise UserError(
                f"{cell.path}: the prompt of example {row['index']} is no longer the one that was "
                f"answered (digest {row['digest']}, now {digest}): {WAYS_OUT}"
            )


def _move_aside(path: Path) -> None:
    """Rename old files with the time, rows first: a record without rows is ignored."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for file in cell_files(path):
        with disk(file):
            if file.exists():
                os.rename(file, file.with_name(f"{file.stem}.{now}.bak{file.suffix}"))


def _environments(record: JSON, model: Model) -> JSON:
    """The environment of the last writer and, where they changed, all environments."""
    now = plain(machine(model.environment()))
    known = record.get("environments") or [record.get("environment", now)]
    if now not in known:
        known = [*known, now]
    return {"environment": now} | ({"environments": known} if known[1:] else {})


def _folder_name(name: str) -> str:
    if name.startswith(".") or "/" in name or "\\" in name or not name:
        raise UserError(
            f"{name!r} cannot name a folder of predictions: give the model or task a name without "
            "slashes"
        )
    return name


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
    fresh = fresh and not int(os.environ.get("SLURM_RESTART_COUNT") or 0)  # a requeued job resumes
    from rulerkit.soft import gold_logprobs

    models: list[Any] = _ready(study.models)
    for model in models:
        if study.soft:
            gold_logprobs(model, ())  # raises where it does not tell
        for task in study.tasks:  # raises for a length or corpus before anything is asked
            _ = generate(task, study.lengths[0], 1, study.seed, model.prompt_format)[0].num_tokens
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
                rows = [row for cell, _ in _stored(alone) if cell for row in cell.stream()]
                model.spent = float(sum((row.get("usage") or {}).get("cost", 0) for row in rows))
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
        raise UserError("nothing was asked: none of the lengths fits, for the reasons above")
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
                            task, length, counts[task.name, length], study.seed, model.prompt_format
                        )
                        for task in study.tasks
                    ]
                    stored, were_asked = predict_cells(
                        model, examples, folder, fresh, bar, study.max_failures, study.soft, rule
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
        state = planned(alone, [length for length in study.lengths if length not in skipped])
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


def _stored_cells(study: Study) -> list[Cell]:
    """The cells that have an answer, complete or not; what is missing is named."""
    cells, missing, counts = [], [], wanted(study)
    for cell, (name, path, task, length) in _stored(study):
        have = sum(index < counts[path] for index in cell.present) if cell else 0
        if cell and have:
            cells.append(cell)
        if have < counts[path]:
            missing.append(f"{name} {task.name} at {length}: {have} of {counts[path]} examples")
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

_RULES = (
    ("run model", "task length sources"),
    ("run model task", "length"),
    ("task", "length prompt_format tokenizer model"),
    ("", "task length sources seed prompt_version prompt_format tokenizer model"),
)
"""Cells that share the first fields agree in their `result` except in the second ones: the cells of
one model in one run, of one of its tasks, of one task over all models, and all cells (which leaves
the protocol). Tokens for thinking are part of the prompt format, so they may differ between models;
`max_new_tokens` is part of the task, and may not."""
_DEFAULTS = {"protocol": "clean", "prompt_format.thinking_room": "inside"}
"""What holds of records made before there were two."""
_FREE = r"tokenizer\.name|sources\..*\.(note|stand_in)|task\.(essays|dataset|words)"
"""Fields that may differ: fingerprints are compared instead."""


def check_same(cells: Iterable[Cell]) -> None:
    """Raise a `UserError` where cells cannot share a table: their results are defined differently.

    Cells without rows and files of other programs, which do not say what defines them, are skipped.
    The numbers of examples may differ: tables show them.
    """
    ours = [cell for cell in cells if cell.present and cell.about.format]
    by_room: dict[str, Cell] = {}
    for cell in ours:
        form = cell.about.result.prompt_format
        if form.thinking_tokens:
            by_room.setdefault(form.thinking_room, cell)
    if len(by_room) > 1:
        (old, cell), (new, other), *_ = by_room.items()
        raise _mixed(cell, other, [("prompt_format.thinking_room", old, new)])
    for shared, free in _RULES:
        first: dict[tuple[str, ...], tuple[Cell, JSON]] = {}
        for cell in ours:
            result = cell.record["result"]
            defining = {field: result[field] for field in result if field not in free.split()}
            key = tuple(getattr(cell, name) for name in shared.split())
            other, before = first.setdefault(key, (cell, defining))
            if changes := differences(before, defining):
                raise _mixed(other, cell, changes)


def _mixed(one: Cell, other: Cell, changes: list[tuple[str, Any, Any]]) -> UserError:
    field, old, new, more = describe_first(changes)
    names = [f"{cell.model} {cell.task} {cell.length}" for cell in (one, other)]
    if one.run != other.run:
        names = [f"{names[0]} of run {one.run}", f"{names[1]} of run {other.run}"]
    return UserError(
        f"{names[0]} was made with {field} {old}, {names[1]} with {new}{more}, and one table "
        "cannot hold both: report one of them alone, give it a place of its own with run: NAME, or "
        "answer it anew with fresh=True (--fresh), which moves the old files aside"
    )


def differences(old: JSON, new: JSON) -> list[tuple[str, Any, Any]]:
    """Field, old and new value wherever two records differ in what defines their results."""
    if old == new:
        return []
    before, after = _DEFAULTS | dict(_values(old)), _DEFAULTS | dict(_values(new))
    changes = []
    for field in {**before, **after}:
        pair = before.get(field, ABSENT), after.get(field, ABSENT)
        if pair[0] != pair[1] and _counts(field, ABSENT in pair):
            changes.append((field, *pair))
    return changes


def _values(record: JSON, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of a record with its field, such as `task.num_hops`."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _values(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _counts(field: str, one_lacks_it: bool) -> bool:
    """Whether a difference in a field makes other results."""
    if field.startswith("model.engine_args."):  # early records hold all of them
        from rulerkit.models.server import NEUTRAL_ARGUMENTS

        return field.split(".")[2] not in NEUTRAL_ARGUMENTS
    if field.startswith(("model.weights", "model.code")):
        return not one_lacks_it  # they are compared by the digests that both records hold
    return not re.fullmatch(_FREE, field)


def describe_first(changes: list[tuple[str, Any, Any]]) -> tuple[str, str, str, str]:
    """The first of some differences in words: field, old value, new value, and how many more there
    are. Long values are cut around the first character that differs."""
    field, *values = changes[0]
    texts = ["absent" if value is ABSENT else json.dumps(value) for value in values]
    alike = len(os.path.commonprefix(texts))  # noqa: RUF071
    if alike > _BEFORE:
        texts = [f"…{text[alike - _BEFORE :]}" for text in texts]
    old, new = (shorten(text, _LONGEST) for text in texts)
    more = f" (and {len(changes) - 1} more differences)" if changes[1:] else ""
    return shorten(field), old, new, more

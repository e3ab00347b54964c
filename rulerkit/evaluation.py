"""Predictions: what a model said, kept row by row as it says it, so that nothing is asked or paid
for twice.

A cell is one model on one task at one length: `predictions/<run>/<model>/<task>/<length>.jsonl`, a
row per example, and `<length>.json` beside it, the record of how they were made. The two files
alone say whether a cell is complete. Requests that failed are listed in `<length>.failures.jsonl`,
a line per attempt.
"""

import atexit
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rulerkit.errors import ModelError, TooLong, UserError, remark
from rulerkit.generation import asked_record, generate
from rulerkit.paths import cell_file
from rulerkit.store import (
    FORMAT,
    WAYS_OUT,
    Bar,
    Cell,
    DamagedCell,
    Lock,
    Log,
    Progress,
    disk,
    failures_file,
    load_cell,
    machine,
    plain,
    print_problem,
    write_whole,
)
from rulerkit.tasks import Task

if TYPE_CHECKING:
    from rulerkit.models import Answer, Failure, Model
    from rulerkit.studies import Study


class Examples(Protocol):
    """What `generate` returns, as far as it matters here: examples made when they are asked for."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...
    def record(self) -> dict[str, Any]: ...


def predict(
    model: "Model",
    examples: Examples,
    folder: Path,
    fresh: bool = False,
    progress: Bar | Literal[False] | None = None,
) -> Cell:
    """Let a model answer the examples that have no answer yet, and return the cell with all its
    rows.

    See `predict_cells`, which does the same for several cells at once.
    """
    return predict_cells(model, [examples], folder, fresh, progress)[0]


def predict_cells(
    model: "Model",
    cells: Sequence[Examples],
    folder: Path,
    fresh: bool = False,
    progress: Bar | Literal[False] | None = None,
    max_failures: float = 0,
) -> list[Cell]:
    """Let a model answer the examples of several tasks that have no answer yet, in one stream;
    returns the whole cells.

    `folder` is `predictions/<run>`. Rows are appended as the model answers, each to the file of its
    cell; what an earlier session answered stays, if its record names the same task, length, seed,
    prompts, tokenizer, corpora and model. `fresh` moves the old files aside first. An example that
    failed is listed in the ledger beside its cell, named on stderr, and asked again by the next
    call; `max_failures` stands in the record for those who take means. `progress`: None for a bar
    of its own, False for none, or a bar over many cells.

    Errors: `UserError` where a record or a prompt's digest differs, another process writes or the
    disk refuses; `ModelError` where the model raises a `UserError`, returns prompts, or leaves
    examples out; what else the model raises passes on. Every answer until then is on disk.
    """
    with ExitStack() as locks:
        todo = [_Todo(model, examples, folder, fresh, locks, max_failures) for examples in cells]
        missing = [each for each in todo if each.missing]
        bar = _start(progress, model, todo) if missing or progress is not None else None
        try:
            if missing:
                _answer(model, missing, bar)
        except TooLong:
            for each in missing:
                each.discard_empty()
            raise
        finally:
            if progress is None and isinstance(bar, Progress):
                bar.close()
    return [(load_cell(each.cell.path) or each.cell) for each in todo]


class _Todo:
    """A cell, and which of its examples have no answer yet; where there are any, it is locked until
    `held` is closed."""

    def __init__(
        self,
        model: "Model",
        examples: Examples,
        folder: Path,
        fresh: bool,
        locks: ExitStack,
        max_failures: float,
    ) -> None:
        self.examples, self.missing = examples, list[int]()
        self.held = locks.enter_context(ExitStack())
        path, result = _place(model, examples, folder)
        about = {
            "label": model.label,
            "claimed_length": model.claimed_length,
            "aligned": model.aligned,
            "run": folder.name,
            "max_failures": max_failures,
        }
        if not fresh and (cell := load_cell(path)):
            _check_result(cell, result)
            asked = cell.record["num_examples"] >= len(examples)
            if (
                asked
                and not _missing(cell, examples)
                and about.items() <= {"max_failures": 0, **cell.record}.items()
            ):
                self.cell = cell
                return
        with disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self.lock = self.held.enter_context(Lock(path.with_suffix(".lock")))
        if fresh:
            _move_aside(path)
        cell = load_cell(path, repair=True) or Cell(path, {}, [])
        _check_result(cell, result)
        self.missing = _missing(cell, examples)
        if self.missing:
            _check_digests(cell, examples)
            examples[
                self.missing[0]
            ]  # what cannot be generated fails here, before anything is written
        record = {
            "format": cell.record["format"] if cell.present else FORMAT,
            "result": result,
            **_environments(cell, model if self.missing else None),
            **about,
        }
        if self.missing and (known := cell.record.get("floors") or _floors(examples)):
            record["floors"] = known
        record["num_examples"] = max(
            cell.record["num_examples"] if cell.present else 0, len(examples)
        )
        if record != cell.record:
            write_whole(path.with_suffix(".json"), json.dumps(record, indent=2) + "\n")
        self.cell = Cell(path, record)

    def add_failure(self, index: int, failure: "Failure") -> None:
        """Append an attempt without an answer to the ledger beside the cell."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        with Log(failures_file(self.cell.path)) as ledger:
            ledger.append(
                {"index": index, "time": now, "reason": failure.reason, "refused": failure.refused}
            )

    def discard_empty(self) -> None:
        """Remove the files of a cell that has no row: nothing was begun."""
        path = self.cell.path
        if not path.exists() or not path.stat().st_size:
            for file in (path, path.with_suffix(".json")):
                file.unlink(missing_ok=True)


def kept(path: Path, asked: dict[str, Any]) -> Cell | None:
    """A cell as it is kept, complete or not; None where nothing is. Nobody is asked, and no model
    is needed.

    `asked` is the `asked_record` of its questions. Errors: `UserError` where it holds the answers
    to others.
    """
    cell = load_cell(path)
    if cell:
        known = {field: value for field, value in cell.record["result"].items() if field in asked}
        _check_result(cell, plain(asked), known)
    return cell


def _place(model: "Model", examples: Examples, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Where a cell lies, and what defines its rows."""
    result = plain({**examples.record(), "model": {"name": model.name, **model.identity()}})
    names = _folder_name(model.name), _folder_name(result["task"]["name"])
    return cell_file(folder, *names, result["length"]), result


def _answer(model: "Model", cells: list[_Todo], bar: Bar | None) -> None:
    """Append a row for each missing example to the file of its cell, as the model answers."""
    from rulerkit.models import Failure

    left = {each.cell.task: set(each.missing) for each in cells}
    failures: dict[str, list[Failure]] = {task: [] for task in left}
    total = sum(map(len, left.values()))
    by_task = {
        each.cell.task: (each, each.held.enter_context(Log(each.cell.path))) for each in cells
    }
    answers = model.answer(each.examples[index] for each in cells for index in each.missing)
    try:
        for example, answer in _errors_named(answers):
            if example.index not in left.get(example.task, ()):
                raise ValueError(
                    f"{model.name} answered example {example.index}, which is not asked for (again)"
                )
            cell, log = by_task[example.task]
            cell.lock.check()
            if isinstance(answer, Failure):
                cell.add_failure(example.index, answer)
                failures[example.task].append(answer)
            else:
                log.append(_row(example, answer, model.name))
                if bar is not None:
                    bar.update(example.num_tokens + answer.num_tokens)
            left[example.task].remove(example.index)
            if not left[example.task]:
                cell.held.close()  # its lock is not left behind if this process is killed later
    finally:
        getattr(answers, "close", lambda: None)()  # an engine may have requests under way
        for task, failed in failures.items():
            if failed:
                _report_failures(model.name, by_task[task][0].cell, failed)
    if lacking := {task: indices for task, indices in left.items() if indices}:
        task = next(iter(lacking))
        raise ModelError(
            f"{model.name} left {sum(map(len, lacking.values()))} of {total} examples of "
            f"{by_task[task][0].cell.path} "
            f"unanswered, the first is example {min(lacking[task])}: the others are kept; the same "
            "command asks for these "
            "again"
        )


def _errors_named(
    answers: "Iterator[tuple[Any, Answer | Failure]]",
) -> "Iterator[tuple[Any, Answer | Failure]]":
    """The answers; a `UserError` of the model becomes a `ModelError`, after which other models can
    go on."""
    try:
        yield from answers
    except TooLong:
        raise
    except UserError as error:
        raise ModelError(str(error)) from error


def _report_failures(name: str, cell: Cell, failures: "list[Failure]") -> None:
    """One line on stderr, beside any progress bar."""
    remark(
        f"{name}: {len(failures)} of {cell.wanted} examples of {cell.task} at {cell.length} have "
        "no answer "
        f"({failures[0].reason}): {failures_file(cell.path)} lists them, and the same command asks "
        "for them again"
    )


def _floors(examples: Examples) -> dict[str, float]:
    """What answers without reading score on these examples; nothing for examples that this package
    did not make."""
    from rulerkit import floors, generation

    return floors.floors(examples) if isinstance(examples, generation.Examples) else {}


def _row(example: Any, answer: "Answer", name: str) -> dict[str, Any]:
    if not isinstance(answer.text, str):
        raise TypeError(
            f"{name} answered example {example.index} with {answer.text!r}, which is no text"
        )
    if _echoes(answer.text, example.prompt):
        raise ModelError(
            f"{name} returned the prompt of example {example.index} of {example.task}: the engine "
            "returns the prompt "
            "with its answer, which would score 100 everywhere; let it return only the new text"
        )
    usage = {"usage": dict(answer.usage)} if answer.usage else {}
    group = {} if getattr(example, "group", None) is None else {"group": int(example.group)}
    return {
        "index": example.index,
        "pred": answer.text,
        "outputs": list(example.references),
        "length": int(example.num_tokens) + int(example.max_new_tokens),
        "task": example.task,
        "digest": example.digest,
        "num_prompt_tokens": int(example.num_tokens),
        "finish_reason": answer.finish_reason,
        "depths": [float(depth) for depth in example.depths],
        **group,
        **usage,
    }


def _echoes(text: str, prompt: str) -> bool:
    """Whether a text holds the prompt: stretches from three places of it, in a text at least half
    as long.

    Not only its end, where engines drop the template's special tokens; and not any stretch in a
    short text, since a base model may babble the question again and a thinking one quotes what it
    reads.
    """
    if not prompt or 2 * len(text) < len(prompt):
        return False
    said, asked = " ".join(text.split()), " ".join(prompt.split())
    places = [len(asked) * quarter // 4 for quarter in (1, 2, 3)]
    return all(asked[place : place + 100] in said for place in places)


def _missing(cell: Cell, examples: Examples) -> list[int]:
    present = set(cell.present)
    return [index for index in range(len(examples)) if index not in present]


def _start(progress: Bar | Literal[False] | None, model: "Model", cells: list[_Todo]) -> Bar | None:
    if progress is False:
        return None
    length = cells[0].cell.length
    wanted = sum(len(each.examples) for each in cells)
    bar = Progress(length * wanted) if progress is None else progress
    if isinstance(bar, Progress):
        done = wanted - sum(len(_missing(each.cell, each.examples)) for each in cells)
        task = f" {cells[0].cell.task}" if len(cells) == 1 else ""
        bar.start(f"{model.name}{task} {length}", length, done, wanted)
    return bar


def _check_result(cell: Cell, result: dict[str, Any], stored: dict[str, Any] | None = None) -> None:
    """Rows made under another record are never mixed with new ones; a record without rows binds
    nobody."""
    found = differences(stored or cell.record["result"], result) if cell.present else []
    if found:
        field, old, new, more = first_of(found)
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
                "answered (digest "
                f"{row['digest']}, now {digest}): {WAYS_OUT}"
            )


def _move_aside(path: Path) -> None:
    """Give old files a name with the time, rows first: a record without rows binds nobody."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for file in (path, path.with_suffix(".json"), failures_file(path)):
        with disk(file):
            if file.exists():
                os.rename(file, file.with_name(f"{file.stem}.{now}.bak{file.suffix}"))


def _environments(cell: Cell, model: "Model | None") -> dict[str, Any]:
    """Where the rows come from: the last writer's surroundings and, where they changed, all of
    them."""
    if model is None:
        return {
            key: cell.record[key] for key in ("environment", "environments") if key in cell.record
        }
    now = plain(machine(model.environment()))
    known = cell.record.get("environments") or [cell.record["environment"]] if cell.present else []
    known = known if now in known else [*known, now]
    return {"environment": now, "environments": known} if len(known) > 1 else {"environment": now}


def _folder_name(name: str) -> str:
    if name.startswith(".") or "/" in name or "\\" in name or not name:
        raise UserError(
            f"{name!r} cannot name a folder of predictions: give the model or task a name without "
            "slashes"
        )
    return name


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


ABSENT = object()
_LONGEST = 60  # characters of a value in a message
_BEFORE = 20  # and how many of them before the first that differs

_RULES: tuple[tuple[Callable[[Cell], tuple[str, ...]], tuple[str, ...]], ...] = (
    (lambda cell: (cell.run, cell.model), ("task", "length", "sources")),
    (lambda cell: (cell.run, cell.model, cell.task), ("length",)),
    (lambda cell: (cell.task,), ("length", "prompt_format", "tokenizer", "model")),
    (
        lambda cell: (),
        (
            "task",
            "length",
            "sources",
            "seed",
            "prompt_version",
            "prompt_format",
            "tokenizer",
            "model",
        ),
    ),
)
"""Cells of one key agree in all that defines them but these fields: the cells of one model in one
run, of one of its tasks, of one task whoever answered it, and all cells (which leaves the
protocol). Room for a thought is part of the prompt format, so it may differ between models; the
room for an answer is part of the task, and may not."""

_FACTS = {
    **{
        name: name
        for name in ("gpu", "tensor_parallel_size", "pipeline_parallel_size", "device", "strategy")
    },
    "rulerkit": "rulerkit",
    "git": "commit",
    "python": "python",
}
"""What of an environment is told beside the versions of packages, and by what name."""
_FEW = 4  # values of a field that are listed
_MODELS_NAMED = 3  # models of a value that are named


def differences(old: Any, new: Any, field: str = "") -> list[tuple[str, Any, Any]]:
    """Field, old and new value wherever two records differ in what decides. A tokenizer's name and
    the words about a corpus do not: their fingerprints do. Nor do arguments of vLLM that leave
    answers alone. Weights are compared by the rules of digests that both records hold."""
    if field == "model.engine_args":
        old, new = _deciding(old), _deciding(new)
    if field == "protocol":  # records made before there were two name none
        old, new = ("clean" if value is ABSENT else value for value in (old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [(key, f"{field}.{key}" if field else key) for key in {**old, **new}]
        return [
            d
            for key, name in keys
            for d in differences(old.get(key, ABSENT), new.get(key, ABSENT), name)
        ]
    if field.startswith("model.weights") and ABSENT in (old, new):
        return []
    information = field == "tokenizer.name" or re.fullmatch(r"sources\..*\.(note|stand_in)", field)
    return [] if information or old == new else [(field, old, new)]


def _deciding(arguments: Any) -> Any:
    """Of the arguments of vLLM those that change answers; early records hold the others too."""
    from rulerkit.models.server import NEUTRAL_ARGUMENTS

    if not isinstance(arguments, dict):
        return arguments
    return {
        name: value for name, value in arguments.items() if not NEUTRAL_ARGUMENTS.fullmatch(name)
    } or ABSENT


def first_of(found: list[tuple[str, Any, Any]]) -> tuple[str, str, str, str]:
    """The first of some differences, as a message says it: field, old value, new value, and how
    many more there are. Of long values the place is shown where they differ."""
    field, *values = found[0]
    texts = ["absent" if value is ABSENT else json.dumps(value) for value in values]
    start = max(0, _alike(*texts) - _BEFORE) if max(map(len, texts)) > _LONGEST else 0
    cut = [("..." if start else "") + text[start:] for text in texts]
    old, new = [text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..." for text in cut]
    return field, old, new, f" (and {len(found) - 1} more differences)" if found[1:] else ""


def check_same(cells: Iterable[Cell]) -> None:
    """Raise a `UserError` where cells cannot stand in one table, because what defines their results
    differs.

    Cells without rows bind nobody, and files that others wrote do not say what defines them: both
    are passed over. The numbers of examples may differ: tables show them.
    """
    ours = [cell for cell in cells if cell.present and "format" in cell.record]
    for key, free in _RULES:
        first: dict[tuple[str, ...], Cell] = {}
        for cell in ours:
            one = first.setdefault(key(cell), cell)
            if found := differences(_bound(one, free), _bound(cell, free)):
                raise _mixed(one, cell, found)


def _bound(cell: Cell, free: tuple[str, ...]) -> dict[str, Any]:
    return {field: value for field, value in cell.record["result"].items() if field not in free}


def _mixed(one: Cell, other: Cell, found: list[tuple[str, Any, Any]]) -> UserError:
    field, old, new, more = first_of(found)
    runs = one.run != other.run
    names = [
        f"{c.model} {c.task} {c.length}" + (f" of run {c.run}" if runs else "")
        for c in (one, other)
    ]
    return UserError(
        f"{names[0]} was made with {field} {old}, {names[1]} with {new}{more}, and one table "
        "cannot hold both: report "
        f"{_alone(one, other)} or {_alone(other, one)} alone, give one of them a place of its own "
        "with run: NAME, or "
        "answer it anew with --fresh, which moves the old files aside"
    )


def _alone(cell: Cell, other: Cell) -> Path:
    """The highest folder that holds one cell and not the other; where they stand beside each other,
    the file."""
    shared = _alike(cell.path.parts, other.path.parts)
    return Path(*cell.path.parts[: shared + 1]) if shared else cell.path


def _alike(one: Sequence[str], other: Sequence[str]) -> int:
    """How much is the same from the start on."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


# --- footnotes ------------------------------------------------------------------------------------


def footnotes(cells: Iterable[Cell]) -> list[str]:
    """What is to be said below a table of cells: a line where they were not all made in one
    environment, a line for each model that a service answered with several versions of, and a line
    for each row that was passed over because another row of its example came first, and a line for
    each model whose requests all failed.

    Of environments only what differs, and who had it; hosts are left out. A cell that was answered
    in several environments counts in each. What a model never had (a service: a GPU) is no
    difference.
    """
    cells = list(cells)
    answered = [cell for cell in cells if cell.present]
    names = _names(answered)
    had: dict[str, dict[str, list[str]]] = {field: {} for field in _FACTS.values()}
    for key, name in names.items():
        facts = [
            facts for cell in answered if (cell.run, cell.model) == key for facts in _facts(cell)
        ]
        for field in dict.fromkeys(field for each in facts for field in each):
            for value in dict.fromkeys(each.get(field, "none") for each in facts):
                had.setdefault(field, {}).setdefault(value, []).append(name)
    told = [
        _told(field, values, len(names) > 1) for field, values in had.items() if len(values) > 1
    ]
    notes = [f"Environments differ: {'; '.join(told)}."] if told else []
    notes += snapshot_notes(answered) + [
        f"{warning}." for cell in answered for warning in cell.warnings
    ]
    silent = {model: label for model, label in _names(cells).items() if model not in names}
    for model, label in silent.items():
        failures = [
            each
            for cell in cells
            if (cell.run, cell.model) == model
            for each in cell.failures.values()
        ]
        if failures:
            notes.append(
                f"{label} has no answer: {len(failures)} requests failed, the first: "
                f"{failures[0].reason}."
            )
    return notes


def snapshot_notes(cells: Iterable[Cell]) -> list[str]:
    """A line for each model whose service named several versions of it in its replies, with the
    cells that hold several.

    The rows of the cells must have been read, as by `score`.
    """
    by_model: dict[str, dict[str, list[Cell]]] = {}
    for cell in cells:
        for snapshot in sorted(cell.snapshots):
            by_model.setdefault(cell.model, {}).setdefault(snapshot, []).append(cell)
    notes = []
    for model, versions in by_model.items():
        if len(versions) > 1:
            counts = [
                f"{version} ({len(cells)} cell{'s' * (len(cells) > 1)})"
                for version, cells in versions.items()
            ]
            several = {
                cell.path: cell
                for cells in versions.values()
                for cell in cells
                if len(cell.snapshots) > 1
            }
            mixed = [
                f"{c.run} {c.task} {c.length} ({', '.join(sorted(c.snapshots))})"
                for c in several.values()
            ]
            within = f"; the version changed within {_listed(mixed)}" if mixed else ""
            notes.append(
                f"The service answered with several versions of {model}: {_listed(counts)}{within}."
            )
    return notes


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - _FEW} more" if len(texts) > _FEW else ""
    return ", ".join(texts[:_FEW]) + more


def _facts(cell: Cell) -> Iterator[dict[str, str]]:
    """What is known of each environment that a cell was answered in, and may matter."""
    record = cell.record
    for each in record.get("environments") or [
        record[key] for key in ("environment",) if key in record
    ]:
        known = {shown: each.get(name) for name, shown in _FACTS.items()} | each.get("packages", {})
        facts = {name: str(value) for name, value in known.items() if value is not None}
        if "commit" in facts:
            facts["commit"] = re.sub(r"^([0-9a-f]{7})[0-9a-f]+", r"\1", facts["commit"])
        if "device" in facts:
            facts["device"] = facts["device"].partition(":")[
                0
            ]  # which of several like GPUs says nothing
        yield facts


def _told(field: str, values: dict[str, list[str]], several: bool) -> str:
    if len(values) > _FEW:
        return f"{len(values)} values of {field}"
    who = [
        f" ({', '.join(names) if len(names) <= _MODELS_NAMED else f'{len(names)} models'})"
        for names in values.values()
    ]
    return f"{field} " + ", ".join(
        value + (by if several else "") for value, by in zip(values, who, strict=True)
    )


def _names(cells: Iterable[Cell]) -> dict[tuple[str, str], str]:
    """Each model of each run by the name that tables give it: see `names_of` of `tables`."""
    labels = {(cell.run, cell.model): str(cell.record.get("label") or cell.model) for cell in cells}
    runs, given = {run for run, _ in labels}, list(labels.values())
    return {
        (run, model): label
        if given.count(label) == 1
        else f"{model} [{run}]"
        if len(runs) > 1
        else model
        for (run, model), label in labels.items()
    }

"""The two sides of a comparison: whose predictions a name means, and the examples that both
answered.

`find` turns a name into cells, `make_side` cells into one side, and `paired` two sides into pairs
of scores, with notes on what was left out and which settings differ.
"""

import glob
import math
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.common.errors import UserError, counted, listed, remark, unknown
from rulerkit.common.lengths import length_name
from rulerkit.common.paths import holds_checkpoint, resolve_file
from rulerkit.scoring.scores import lacking_line, score
from rulerkit.scoring.summary import base_run, merge_repetitions
from rulerkit.store.cells import Cell, allowed_failures, read_cells
from rulerkit.store.comparable import describe_first, differences, snapshot_notes
from rulerkit.store.other_formats import read_predictions

if TYPE_CHECKING:
    import pandas as pd


PAIRINGS = ("digest", "index")
"""What two answers must share to be a pair, beside task, length and index."""
MOST_NAMED = 4
"""Cells, settings or losses that one text names."""
_EXAMPLE = ["task", "length", "index"]
_CELL = ["task", "length"]
_DIGESTS = ("model.fingerprint", "model.loaded", "model.weights")
_ASKED_BY = ("tokenizer", "prompt", "seed", "sources", "task")
Key = tuple[str, int]
"""A task and a length."""


class Grid(NamedTuple):
    """What of two sides is compared: tasks, lengths in tokens, and the first so many examples of
    each; None takes all."""

    tasks: Sequence[str] | None = None
    lengths: Sequence[int] | None = None
    num_examples: int | None = None


class Side(NamedTuple):
    """One model's predictions of one run and of its repetitions: its cells, the rows of `score` of
    what is compared, and by task and length the settings on record (of several repetitions those of
    the first), without the cells of which too many requests failed: of these the number of failed
    requests. `expected` are the examples that each cell was to have, less the failures that are
    allowed. It answered each example in all `repetitions`, but for those `lacking`."""

    name: str
    label: str
    cells: Sequence[Cell]
    scores: "pd.DataFrame"
    results: dict[Key, dict[str, Any]]
    failed: dict[Key, int]
    expected: dict[Key, float]
    repetitions: int
    lacking: int


# --- from a name to a side ------------------------------------------------------------------------


def find(name: str | Path, outputs: str | Path = "outputs", scan: bool = True) -> list[Cell]:
    """The predictions that a name means; without `scan` rows are checked when they are first read.

    A file or folder of predictions (ours or others'), else `run/model` or `run` in
    `outputs/predictions`, else a model's name that stands there in one run only. Raises UserError
    for a name that means none or several.
    """
    root = resolve_file(outputs) / "predictions"
    for path in (resolve_file(name), root / name):
        # a checkpoint in the working directory is no folder of predictions
        if name and path.exists() and not holds_checkpoint(path):
            return read_predictions(path, scan=scan)

    # The name of a model: of a run and its repetitions the run counts. It sorts before them, so it
    # is set last.
    folders = sorted(path for path in root.glob("*/*") if path.is_dir())
    by_run = {}
    for path in reversed(folders):
        if path.name == str(name):
            by_run[base_run(path.parent.name)] = path
    if len(by_run) == 1:
        (path,) = by_run.values()
        return read_cells(path, scan=scan)

    if by_run:
        names = _run_and_model(by_run.values())
        raise UserError(
            f"model {str(name)!r} has predictions in several runs: name one of {', '.join(names)}"
        )
    raise unknown(
        "model or folder of predictions",
        name,
        _run_and_model(folders),
        f"Predictions lie in {root}",
    )


def _run_and_model(folders: Iterable[Path]) -> list[str]:
    """Folders of predictions as a user names them: `run/model`."""
    return sorted(f"{folder.parent.name}/{folder.name}" for folder in folders)


def make_side(
    name: str, cells: Sequence[Cell], other: Sequence[Cell], max_failures: float | None, grid: Grid
) -> Side:
    """One side of a comparison, with its repetitions where it was given by name (else '').

    `other` are the cells of the other side. Raises UserError for more than one model or run.
    """
    if name:
        cells = [*cells, *_repetitions(cells, other)]
    cells = _compared(name, cells, grid)
    most = math.inf if grid.num_examples is None else grid.num_examples

    # of a side that was given by name the files that lack answers are named
    answers = score(cells)
    if name and (line := lacking_line(cells)):
        remark(line)

    # an example that one of several repetitions did not answer is left out of the mean over them
    answers = answers[answers["index"] < most]
    scores = merge_repetitions(answers)
    num_answered = len(answers.drop_duplicates(_EXAMPLE))

    runs_and_models = zip(scores["run"], scores["model"], strict=True)
    models = list(dict.fromkeys(runs_and_models))
    if len(models) != 1:
        found = ", ".join("/".join(model) for model in models)
        raise UserError(
            f"{name or 'one side'} holds {found or 'no answer to compare'}: a side is one model "
            "in one run; name its folder"
        )
    ((run, model),) = models

    results: dict[Key, dict[str, Any]] = {}
    failed: dict[Key, int] = {}
    expected: dict[Key, float] = {}
    for cell in cells:
        key = (cell.task, cell.length)
        results.setdefault(key, cell.record["result"])
        num_failed = sum(index < most for index in cell.coverage.failed)
        share = cell.about.max_failures if max_failures is None else max_failures
        allowed = allowed_failures(share, cell.wanted)
        expected.setdefault(key, min(cell.wanted, most) - allowed)
        if num_failed > allowed:
            failed[key] = num_failed

    # What failed often is no sample of the cell: hard examples may fail more often than others.
    answered = set(zip(scores["task"], scores["length"], strict=True))
    kept = answered - failed.keys()
    is_kept = scores.set_index(_CELL).index.isin(list(kept))
    return Side(
        name=f"{run}/{model}" if run else model,
        label=str(scores["label"].iloc[0]),
        cells=cells,
        scores=scores[is_kept],
        results={key: result for key, result in results.items() if key in kept},
        failed=failed,
        expected=expected,
        repetitions=answers["run"].nunique(),
        lacking=num_answered - len(scores),
    )


def _compared(name: str, cells: Sequence[Cell], grid: Grid) -> list[Cell]:
    """The cells of a side that are to be compared; UserError where it has others only."""
    compared = [
        cell
        for cell in cells
        if (grid.tasks is None or cell.task in grid.tasks)
        and (grid.lengths is None or cell.length in grid.lengths)
    ]
    if cells and not compared:
        found = keys_text((cell.task, cell.length) for cell in cells)
        raise UserError(
            f"{name or 'one side'} has none of the tasks and lengths that are to be compared; it "
            f"has {found}"
        )
    return compared


def _repetitions(cells: Sequence[Cell], other: Sequence[Cell]) -> list[Cell]:
    """The cells of the repetitions of a side's runs, but for those that the other side names."""
    taken = {cell.path.resolve() for cell in [*cells, *other]}
    repetitions: list[Cell] = []
    # a cell lies at <predictions>/<run>/<model>/<task>/<length>.jsonl
    folders = dict.fromkeys(cell.path.absolute().parents[1] for cell in cells)
    for folder in folders:
        run, predictions = folder.parent.name, folder.parent.parent
        pattern = f"*-repeat*/{glob.escape(folder.name)}"
        for path in sorted(predictions.glob(pattern)):
            # the pattern also finds the repetitions of other runs, and a run named `main-repeated`
            if base_run(path.parent.name) == run:
                repetitions += read_cells(path)
    return [cell for cell in repetitions if cell.path.resolve() not in taken]


# --- from two sides to pairs ----------------------------------------------------------------------


def paired(a: Side, b: Side, by: str) -> tuple["pd.DataFrame", list[str]]:
    """The examples that both answered, and what a reader must know about the two.

    Columns task, category, length, index, digest, a, b (scores 0..1), difference (b - a), `group`
    where the scores have it. Pairs have the same task, length and index, and with `by='digest'` the
    same prompt: other prompts are a `UserError` that names the cells. Where the two answered
    different numbers of times, `variance` is that of the difference, see `_dealt_variance`.
    """
    paths_a = {cell.path.resolve() for cell in a.cells}
    paths_b = {cell.path.resolve() for cell in b.cells}
    if paths_a & paths_b:
        raise UserError(
            f"{a.name} and {b.name} are the same predictions; name two models, or two runs of one"
        )

    notes = _notes_of_failures(a) + _notes_of_failures(b)
    scores_b = b.scores[[*_EXAMPLE, "digest", "score"]]
    pairs = a.scores.merge(scores_b, on=_EXAMPLE, suffixes=("_a", "_b"))
    if pairs.empty:
        held = [f"{side.name} has {keys_text(side.results) or 'none'}" for side in (a, b)]
        raise UserError(
            f"nothing is left to compare, as {a.name} and {b.name} have no task, length and index "
            f"in common: {'; '.join(held + notes)}"
        )
    notes += _notes_of_left_out(a, b, len(pairs))

    settings = differing(a, b)
    # an empty digest is one that nobody knows: it is not equal to another
    is_other = pairs["digest_a"] != pairs["digest_b"]
    other_prompts = is_other | (pairs["digest_a"] == "")
    if other_prompts.any():
        if by == "digest":
            raise _not_the_same_prompts(a, b, pairs[other_prompts], settings)
        few = f"{other_prompts.sum()} of {len(pairs)} pairs"
        note = f"paired by index: {few} have prompts that differ or are not known"
        notes.insert(0, note)

    pairs = pairs.rename(columns={"score_a": "a", "score_b": "b", "digest_a": "digest"})
    # means over repetitions are rounded, so that equal ones differ by nothing
    pairs["difference"] = (pairs["b"] - pairs["a"]).round(12)
    if a.repetitions != b.repetitions:
        pairs["variance"] = _dealt_variance(pairs, a.repetitions, b.repetitions)

    if settings:
        notes.append(f"settings that differ, A | B: {'; '.join(settings)}")
    notes += snapshot_notes([*a.cells, *b.cells])
    return pairs, notes


def _notes_of_failures(side: Side) -> list[str]:
    """What of a side is left out because requests failed."""
    notes = []
    if side.failed:
        notes.append(
            f"{counted(sum(side.failed.values()), 'request')} of {side.name} failed, more than "
            f"max_failures allows: left out {keys_text(side.failed)}"
        )
    if side.lacking:
        notes.append(
            f"{side.lacking} examples lack an answer in one of the repetitions of {side.name}: "
            "left out"
        )
    return notes


def _notes_of_left_out(a: Side, b: Side, num_pairs: int) -> list[str]:
    """What is left out because one of two sides does not have it."""
    shared = [key for key in a.results if key in b.results]
    notes = []
    for side in (a, b):
        alone = [key for key in side.results if key not in shared]
        if alone:
            notes.append(f"only {side.name} has {keys_text(alone)}: left out")

    # cells that one side lacks are named above: here only examples of shared cells count
    numbers = []
    for side in (a, b):
        is_shared = side.scores.set_index(_CELL).index.isin(shared)
        numbers.append(is_shared.sum())
    most = max(numbers)
    if num_pairs < most:
        notes.append(
            f"{num_pairs} of {most} examples were answered by both; the others are left out"
        )
    return notes


def lacking_cells(a: Side, b: Side) -> list[Key]:
    """The cells that A has and B lacks: not asked, not readable, failed too often, or answered in
    part."""
    answered_a = a.scores.groupby(_CELL).size()
    answered_b = b.scores.groupby(_CELL).size()
    lacking = []
    for key in a.results:
        # A shorter run of the same cells is no damage: B need not have more than it was to have.
        enough = min(answered_a[key], b.expected.get(key, 1))
        if answered_b.get(key, 0) < enough:
            lacking.append(key)
    return lacking


def missing_cells(a: Side, b: Side, grid: Grid) -> list[str]:
    """What the caller named and one of the two has no answers to, in words. Named tasks and lengths
    mean each task at each length; tasks alone, or lengths alone, are to be there at all."""
    compared = [key for key in a.results if key in b.results]
    if grid.tasks is not None and grid.lengths is not None:
        wanted = product(grid.tasks, grid.lengths)
        missing = [key for key in wanted if key not in compared]
        return [keys_text(missing)] if missing else []
    if grid.tasks is not None:
        have = {task for task, _ in compared}
        return [task for task in grid.tasks if task not in have]
    have_lengths = {length for _, length in compared}
    return [length_name(length) for length in grid.lengths or () if length not in have_lengths]


def _not_the_same_prompts(
    a: Side, b: Side, different: "pd.DataFrame", settings: Sequence[str]
) -> UserError:
    """The error for pairs with other prompts: the cells, and the settings that explain it."""
    cells = zip(different["task"], different["length"], strict=True)
    keys = sorted(set(cells))
    reasons = [setting for setting in settings if setting.startswith(_ASKED_BY)]
    digests = different[["digest_a", "digest_b"]]
    if (digests == "").any(axis=None):
        reasons = ["predictions of other programs carry no digest"]
    reason = "; ".join(reasons[:MOST_NAMED]) or "digests differ"
    return UserError(
        f"{a.name} and {b.name} were not asked the same prompts in {keys_text(keys)} ({reason}): "
        "compare runs with the same tokenizer, template, seed and corpora, or pair with "
        'by="index" (--by index), which does not compare the prompts'
    )


def _dealt_variance(pairs: "pd.DataFrame", num_a: int, num_b: int) -> "pd.Series[float]":
    """The variance of each difference if the answers of both sides were dealt to the two at random,
    `num_a` and `num_b` of them.

    A mean of many answers of an equal model is often a little below one answer, and seldom far
    above it: without this the sign test takes that for a loss.
    """
    total = num_a + num_b
    share = (num_a * pairs["a"] + num_b * pairs["b"]) / total
    of_one_answer = share * (1 - share)
    # drawing without replacement: the variance of a difference of two means of one finite set
    variance: pd.Series[float] = of_one_answer * total**2 / (total - 1) / (num_a * num_b)
    return variance


def differing(a: Side, b: Side) -> list[str]:
    """Result-defining settings that differ between cells of the two, the models' names apart:
    'engine: vllm | openai'."""
    # files of other programs do not say how they were made
    shared = []
    for key, result in a.results.items():
        other_result = b.results.get(key)
        if not other_result:
            continue
        if result["seed"] is not None and other_result["seed"] is not None:
            shared.append(key)

    cells_of: dict[str, list[Key]] = {}
    for key in shared:
        for change in differences(a.results[key], b.results[key]):
            field, one, other, _ = describe_first([change])
            if field == "model.name":
                continue
            text = f"{field}: {one} | {other}"
            # digests say nothing to a reader, and several of them differ at once
            if field.startswith(_DIGESTS):
                text = "other weights or configuration"
            cells_of.setdefault(text, []).append(key)

    # what differs everywhere needs no list of cells
    texts = []
    for text, keys in cells_of.items():
        texts.append(text if len(keys) >= len(shared) else f"{text} ({keys_text(keys)})")
    return texts


def keys_text(keys: Iterable[Key]) -> str:
    """Cells in words: 'vt at 4K, cwe at 4K and 3 more'."""
    texts = (f"{task} at {length_name(length)}" for task, length in keys)
    return listed(texts, MOST_NAMED)

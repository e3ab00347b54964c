"""What may stand in one table: cells that were made alike, and what is to be said below it of where
they were made.

The `result` of a record decides: cells that differ in it are not mixed. Its environments (GPU,
versions, commit, how many GPUs share a model) may differ, and become a footnote.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.inference.cells import Cell

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
_NAMED = 3  # models of a value that are named


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
        f" ({', '.join(names) if len(names) <= _NAMED else f'{len(names)} models'})"
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

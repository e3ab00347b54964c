"""Which cells may share a table: those whose results are defined alike."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from typing import Any

from rulerkit.common.errors import UserError, counted, listed, shorten
from rulerkit.common.settings import JSON
from rulerkit.generation.generate import Examples
from rulerkit.store.cells import WAYS_OUT, Cell
from rulerkit.store.records import OPTIONAL, defining

_FEW = 4  # values of a field that a footnote lists
_LONGEST = 60  # characters of a value in a message
_BEFORE = 20  # and how many of them before the first that differs
_ABSENT = object()

Change = tuple[str, Any, Any]
"""A field, its old and its new value."""


def check_same(cells: Iterable[Cell]) -> None:
    """Raise a `UserError` where cells cannot share a table: their results are defined differently.

    Cells without rows and files of other programs, which do not say what defines them, are skipped.
    The numbers of examples may differ: tables show them.
    """
    # What cells share -> the first that has it, and what all of them must say alike.
    first: dict[tuple[str, ...], tuple[Cell, JSON]] = {}
    for cell in cells:
        if not (cell.coverage.have and cell.about.format):
            continue
        asked = {**cell.record["result"], "length": 0}
        answered = {name: asked.pop(name) for name in ("prompt_format", "tokenizer", "model")}
        answered |= {name: asked[name] for name in ("seed", "prompt_version")}
        alike: dict[tuple[str, ...], JSON] = {
            ("model", cell.run, cell.model): answered,
            ("task", cell.task): asked,
            ("table",): {"protocol": asked["protocol"]},
        }
        # Room for a thought beside the length, or inside it, makes two different lengths.
        if cell.about.thinking_tokens:
            room = answered["prompt_format"].get("thinking_room")
            alike["thought",] = {"prompt_format": {"thinking_room": room}}

        for shared, said in alike.items():
            other, before = first.setdefault(shared, (cell, said))
            if changes := differences(before, said):
                raise _mixed(other, cell, changes)


def by_model(cells: Iterable[Cell]) -> dict[tuple[str, str], list[Cell]]:
    """The cells of each model of each run."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.run, cell.model), []).append(cell)
    return groups


def _mixed(one: Cell, other: Cell, changes: list[Change]) -> UserError:
    field, old, new, more = describe_first(changes)

    # Two runs of one model have cells of the same name.
    names = [f"{cell.model} {cell.task} {cell.length}" for cell in (one, other)]
    if one.run != other.run:
        names = [f"{names[0]} of run {one.run}", f"{names[1]} of run {other.run}"]
    return UserError(
        f"{names[0]} was made with {field} {old}, {names[1]} with {new}{more}, and one table "
        "cannot hold both: report one of them alone, give it a place of its own with run: NAME, or "
        "answer it anew with fresh=True (--fresh), which moves the old files aside"
    )


def snapshot_notes(cells: Iterable[Cell]) -> list[str]:
    """A line for each model whose service named several versions of it in its replies. The rows of
    the cells must have been read, as by `score`."""
    # A model served elsewhere may be exchanged without notice: its replies are the only witness.
    versions: dict[str, Counter[str]] = {}
    for cell in cells:
        versions.setdefault(cell.model, Counter()).update(sorted(cell.snapshots))
    notes = []
    for model, counts in versions.items():
        if len(counts) > 1:
            texts = [f"{name} ({counted(n, 'cell')})" for name, n in counts.items()]
            notes.append(
                f"The service answered with several versions of {model}: {listed(texts, _FEW)}."
            )
    return notes


def differences(old: JSON, new: JSON) -> list[Change]:
    """Field, old and new value wherever two records differ in what defines their results."""
    if old == new:
        return []
    # All fields of both, in the order of the older record.
    before, after = defining(old), defining(new)
    changes = []
    for field in {**before, **after}:
        one, other = before.get(field, _ABSENT), after.get(field, _ABSENT)
        one_lacks_it = _ABSENT in (one, other) and field.startswith(OPTIONAL)
        if one != other and not one_lacks_it:
            changes.append((field, one, other))
    return changes


def describe_first(changes: list[Change]) -> tuple[str, str, str, str]:
    """The first of some differences in words: field, old value, new value, and how many more there
    are. Long values, such as templates, are cut around the first character that differs."""
    field, *values = changes[0]
    texts = ["absent" if value is _ABSENT else json.dumps(value) for value in values]
    alike = len(os.path.commonprefix(texts))  # noqa: RUF071
    if alike > _BEFORE:
        texts = [f"…{text[alike - _BEFORE :]}" for text in texts]
    old, new = (shorten(text, _LONGEST) for text in texts)
    more = f" (and {len(changes) - 1} more differences)" if changes[1:] else ""
    return shorten(field), old, new, more


def check_result(cell: Cell, result: JSON) -> None:
    """Raise a `UserError` where the rows of a cell were made under another record."""
    changes = differences(cell.record["result"], result)
    if changes:
        field, old, new, more = describe_first(changes)
        if field == "model.version" and "none, run" in old + new:
            more += "; a function of Python with the same `version` goes on with its stored answers"
        raise UserError(
            f"{cell.path} was made with {field} {old}, now it is {new}{more}: {WAYS_OUT}"
        )


def check_digests(cell: Cell, examples: Examples) -> None:
    """Raise a `UserError` where the prompts of the first and the last answer are not those that
    were answered: a change of the generator or of the tokenizer changes all prompts."""
    rows = [row for row in cell.rows if row["index"] < len(examples)]
    for row in rows[:1] + rows[-1:]:
        digest = examples[row["index"]].digest
        if digest != row["digest"]:
            raise UserError(
                f"{cell.path}: the prompt of example {row['index']} is no longer the one that was "
                f"answered (digest {row['digest']}, now {digest}): {WAYS_OUT}"
            )

"""Generates the examples of a cell again from its record, to see what was asked.

Predictions hold no prompts: they would be a hundred times as large. The record says all that an
example depends on, and the digest of each row whether the prompt is the one of then.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from rulerkit.common.errors import UserError, listed, shortened
from rulerkit.generation.example import Example
from rulerkit.generation.generate import Examples
from rulerkit.generation.prompt_format import SETTINGS, PromptFormat
from rulerkit.generation.tasks import recorded_task
from rulerkit.store.cells import Cell
from rulerkit.store.places import CELL_ON_DISK, cells_of_rows, is_table


def examples_of(cell: Cell) -> Examples:
    """The examples of a cell, generated again from its record.

    Raises UserError where the record does not say all, or the tokenizer or a corpus is not here.
    """
    result = cell.record["result"]
    try:
        stored = result["prompt_format"]
        settings = {name: stored[name] for name in SETTINGS if name in stored}
        prompt_format = PromptFormat(result["tokenizer"]["name"], **settings)

        settings = {**result["task"], "protocol": cell.about.protocol}
        task = recorded_task(settings)
        return Examples(
            task, int(result["length"]), cell.wanted, int(result["seed"]), prompt_format
        )
    except (KeyError, TypeError) as error:
        reason = f"the record does not say all ({type(error).__name__}: {error})"
        raise _not_generated(cell, reason) from error


def remaker(cell: Cell) -> Callable[[Mapping[str, Any]], Example]:
    """A function from a row of a cell to the example that it answers; raises UserError where its
    prompt comes out differently."""
    # loading the tokenizer and the corpora takes seconds: once, and only if an example is needed
    examples = cache(partial(examples_of, cell))

    def remake(row: Mapping[str, Any]) -> Example:
        if not 0 <= row["index"] < cell.wanted:
            raise UserError(
                f"{cell.path} has {cell.wanted} examples, and none with index {row['index']}: is "
                "`index` the column of the results, or that of the table?"
            )
        example = examples()[row["index"]]
        if example.digest != row["digest"]:
            reason = f"the prompt of example {row['index']} comes out differently"
            raise _not_generated(cell, f"{reason}: a corpus or the tokenizer is another now")
        return example

    return remake


def example_of(row: Any) -> Example:
    """The example that a row of `load` or `score` answers, generated again: its `prompt` is what
    the model was sent, `rk.show` shows it.

    `row` is a row of the table, such as `table.iloc[0]`, or a mapping. Raises UserError where the
    tokenizer or a corpus is not here, or is another than then.
    """
    import pandas as pd

    names = [*CELL_ON_DISK, "index", "digest"]
    is_row = hasattr(row, "keys") and not is_table(row)
    if not is_row or not set(names) <= set(row.keys()):
        raise UserError(
            "example_of takes a row of `rk.load`, such as table.iloc[0], with the columns "
            f"{listed(names, 9)}; seen: {shortened(row)}"
        )
    values = {name: row[name] for name in names}
    (cell,) = cells_of_rows(pd.DataFrame([values]), "example_of").values()
    example: Example = remaker(cell)(values)
    return example


def _not_generated(cell: Cell, reason: str) -> UserError:
    return UserError(
        f"{cell.path}: its examples cannot be generated again: {reason}; do it where they were made"
    )

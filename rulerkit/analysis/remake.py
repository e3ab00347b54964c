"""Generates the examples of a cell again from its record, to see what was asked.

Predictions hold no prompts: they would be a hundred times as large. The record says all that an
example depends on, and the digest of each row whether the prompt is the one of then.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.generation.example import Example
from rulerkit.generation.generate import PROMPT_VERSIONS, Examples
from rulerkit.generation.prompt_format import SETTINGS, PromptFormat
from rulerkit.generation.tasks import family_here
from rulerkit.store.cells import Cell


def examples_of(cell: Cell) -> Examples:
    """The examples of a cell, generated again from its record.

    Raises UserError where the record does not say all, or the tokenizer or a corpus is not here.
    """
    result = cell.record["result"]
    try:
        stored = result["prompt_format"]
        settings = {name: stored[name] for name in SETTINGS if name in stored}
        prompt_format = PromptFormat(result["tokenizer"]["name"], **settings)

        knobs = {**result["task"], "protocol": result["protocol"]}
        family = family_here(knobs)
        if family is None:
            raise _not_generated(
                cell,
                f"its family {knobs['family']} ({knobs.get('module', 'of another version')}) "
                "cannot be imported",
            )
        names = ("name", "protocol", *family.knobs())
        chosen: dict[str, Any] = {name: knobs.get(name) for name in names}
        task = family(**chosen)

        return Examples(
            task,
            int(result["length"]),
            cell.wanted,
            int(result["seed"]),
            prompt_format,
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
        example = examples()[row["index"]]
        if example.digest != row["digest"]:
            result = cell.about.result
            ours = PROMPT_VERSIONS.get(result.protocol or "clean")
            raise _not_generated(
                cell,
                f"the prompt of example {row['index']} comes out differently, so this rulerkit "
                f"(prompt version {ours}, the cell's {result.prompt_version}), the tokenizer or a "
                "corpus is not the one of then",
            )
        return example

    return remake


def _not_generated(cell: Cell, reason: str) -> UserError:
    return UserError(
        f"{cell.path}: its examples cannot be generated again to see what went wrong: {reason}; "
        "label it where it was made"
    )

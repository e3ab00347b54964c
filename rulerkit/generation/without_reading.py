"""Floors: the scores of answers without reading. A score that is not above its floor says nothing
about the model.

A family declares which rules may answer it so (`Task.floors`); RULER's families have one, the
beginning of the context copied, and the reference reader `floor-copy` answers by it. What solves a
task from a part of the text is no floor, however short the part. Another floor, an answer to the
question alone, needs the model itself: a task with `context: none`.
"""

from collections.abc import Callable

import numpy as np

from rulerkit.generation.example import Example
from rulerkit.generation.generate import Examples
from rulerkit.generation.tokenizers import Ids, Tokenizer

NUM_EXAMPLES = 20
"""From how many examples of a cell its floors are computed."""


def copy_beginning(example: Example, tokenizer: Tokenizer) -> str:
    """The first `max_new_tokens` tokens of the context."""
    return tokenizer.decode(_context_ids(example)[: example.max_new_tokens])


FLOORS: dict[str, Callable[[Example, Tokenizer], str]] = {
    "copy": copy_beginning,
}
"""Name of a floor -> its rule, which turns an example into an answer."""


def floors(examples: Examples) -> dict[str, float]:
    """The mean score (0 to 1) of each of the family's rules over the first 20 examples of a
    cell."""
    chosen = [
        examples[index] for index in range(min(NUM_EXAMPLES, len(examples)))
    ]
    tokenizer, score = examples.prompt_format.tokenizer, examples.task.score
    return {
        name: sum(
            score(FLOORS[name](example, tokenizer), example.references)
            for example in chosen
        )
        / len(chosen)
        for name in examples.task.floors
    }


def _context_ids(example: Example) -> Ids:
    return np.concatenate(
        [np.empty(0, np.int32), *(b.tokens for b in example.context_blocks)]
    )

"""Floors: the scores of answers without reading. A score that is not above its floor says nothing
about the model.

The rules are the beginning of the context copied, the form of nothing where nothing can be right,
and a guess among things of the kind that is asked for; a family brings the last two, and may leave
out all (`Task.floors`). The reference reader `floor-copy` answers by the first. What solves a task
from a part of the text is no floor, however short the part. Another floor, an answer to the
question alone, needs the model itself: a task with `context: none`.
"""

from collections.abc import Callable

import numpy as np

from rulerkit.generation.example import Example
from rulerkit.generation.generate import Examples
from rulerkit.generation.tasks import Task
from rulerkit.generation.tokenizers import Ids, Tokenizer

NUM_EXAMPLES = 20
"""From how many examples of a cell its floors are computed."""


def copy_beginning(example: Example, tokenizer: Tokenizer) -> str:
    """The first `max_new_tokens` tokens of the context."""
    return tokenizer.decode(_context_ids(example)[: example.max_new_tokens])


FLOORS: dict[str, Callable[[Task, Example, Tokenizer], str | None]] = {
    "copy": lambda task, example, tokenizer: copy_beginning(example, tokenizer),
    "nothing": lambda task, example, tokenizer: task.nothing or None,
    "guess": lambda task, example, tokenizer: task.guess(example),
}
"""Name of a floor -> its rule, which turns an example into an answer; None where the family brings
none."""


def floors(examples: Examples) -> dict[str, float]:
    """The mean score (0 to 1) of each of the family's rules over the first 20 examples of a cell;
    without those of which the family brings nothing."""
    chosen = [
        examples[index] for index in range(min(NUM_EXAMPLES, len(examples)))
    ]
    task, tokenizer = examples.task, examples.prompt_format.tokenizer
    means = {}
    for name in task.floors:
        scores = []
        for example in chosen:
            answer = FLOORS[name](task, example, tokenizer)
            if answer is not None:
                text = task.judged_prefix(example) + answer
                scores.append(task.score(text, example.references))
        if scores:
            means[name] = sum(scores) / len(scores)
    return means


def _context_ids(example: Example) -> Ids:
    return np.concatenate(
        [np.empty(0, np.int32), *(b.tokens for b in example.context_blocks)]
    )

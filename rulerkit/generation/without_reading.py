"""Floors: the scores of answers without reading. A score that is not above its floor says nothing
about the model.

The rules are the beginning of the context copied, the form of nothing where nothing can be right,
and a guess among things of the kind that is asked for; a family brings the last two, and may leave
out all (`Task.floors`). A guess counts with the mean over all that could be guessed. What solves a
task from a part of the text is no floor, however short the part. Another floor, an answer to the
question alone, needs the model itself: a task with `context: none`.
"""

from collections.abc import Callable, Mapping

import numpy as np

from rulerkit.generation.example import Example
from rulerkit.generation.generate import Examples
from rulerkit.generation.tasks import Task
from rulerkit.generation.tokenizers import Ids, Tokenizer

NUM_EXAMPLES = 20
"""From how many examples of a cell the score of copying is computed; the others take them all."""


def copy_beginning(example: Example, tokenizer: Tokenizer) -> str:
    """The first `max_new_tokens` tokens of the context."""
    return tokenizer.decode(_context_ids(example)[: example.max_new_tokens])


def begins_alike(answer: str, beginning: str) -> bool:
    """Whether an answer looks like a copy: its first 100 letters, at least 20, are the beginning's,
    whatever blanks and lines stand between words."""
    copied = " ".join(answer.split())[:100]
    return len(copied) >= 20 and " ".join(beginning.split()).startswith(copied)


FLOORS: dict[str, Callable[[Task, Example, Tokenizer], Mapping[str, int]]] = {
    "copy": lambda task, example, tokenizer: {copy_beginning(example, tokenizer): 1},
    "nothing": lambda task, example, tokenizer: {task.nothing: 1} if task.nothing else {},
    "guess": lambda task, example, tokenizer: task.guess(example),
}
"""Name of a floor -> its rule, which turns an example into answers, each with how often it is
given; none where the family brings none."""


def floor_of(name: str, task: Task, example: Example, tokenizer: Tokenizer) -> float | None:
    """The mean score (0 to 1) of the answers of one rule to an example; None where it has none."""
    prefix, total = task.judged_prefix(example), 0.0
    answers = FLOORS[name](task, example, tokenizer)
    for answer, times in answers.items():
        total += times * task.score(prefix + answer, example.references)
    return total / sum(answers.values()) if answers else None


def floors(examples: Examples) -> dict[str, float]:
    """The mean score (0 to 1) of each of the family's rules over the examples of a cell; without
    those of which the family brings nothing."""
    task, tokenizer = examples.task, examples.prompt_format.tokenizer
    scores: dict[str, list[float]] = {name: [] for name in task.floors}

    # Copying needs no more than a few; what else there is differs by the examples.
    others = bool(task.nothing) or type(task).guess is not Task.guess
    number = len(examples) if others else min(NUM_EXAMPLES, len(examples))
    for index in range(number):
        example = examples[index]
        for name, of_rule in scores.items():
            if name == "copy" and index >= NUM_EXAMPLES:
                continue
            score = floor_of(name, task, example, tokenizer)
            if score is not None:
                of_rule.append(score)
    return {name: sum(of_rule) / len(of_rule) for name, of_rule in scores.items() if of_rule}


def _context_ids(example: Example) -> Ids:
    return np.concatenate([np.empty(0, np.int32), *(b.tokens for b in example.context_blocks)])

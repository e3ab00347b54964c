"""Floors: the scores of answers without reading. A score that is not above its floor says nothing
about the model.

Two rules answer without reading: one copies the beginning of the context, one names the most
frequent words of its last 5,000 tokens. The reference readers `floor-copy` and `floor-frequent`
answer by the same rules. The third floor, an answer to the question alone, needs the model itself:
a task with `context: none`.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from rulerkit.generation.example import Example
from rulerkit.generation.generate import Examples
from rulerkit.generation.tokenizers import Ids, Tokenizer

NUM_EXAMPLES = 20
"""From how many examples of a cell its floors are computed."""
_LAST_TOKENS = 5000
_PUNCTUATION = ".,:;?!\"'()[]"


def copy_beginning(example: Example, tokenizer: Tokenizer) -> str:
    """The first `max_new_tokens` tokens of the context."""
    return tokenizer.decode(_context_ids(example)[: example.max_new_tokens])


def most_frequent_words(example: Example, tokenizer: Tokenizer) -> str:
    """The most frequent words of the last 5,000 tokens of the context, as many as `max_new_tokens`
    tokens hold."""
    text = tokenizer.decode(_context_ids(example)[-_LAST_TOKENS:])
    words = (word.strip(_PUNCTUATION) for word in text.split())
    counted = Counter(
        word for word in words if any(letter.isalpha() for letter in word)
    )
    listed = ", ".join(
        word for word, _ in counted.most_common(example.max_new_tokens)
    )
    return tokenizer.decode(tokenizer.encode(listed)[: example.max_new_tokens])


FLOORS: dict[str, Callable[[Example, Tokenizer], str]] = {
    "copy": copy_beginning,
    "frequent": most_frequent_words,
}
"""Name of a floor -> its rule, which turns an example into an answer."""


def floors(examples: Examples) -> dict[str, float]:
    """The mean score (0 to 1) of each rule over the first 20 examples of a cell."""
    chosen = [
        examples[index] for index in range(min(NUM_EXAMPLES, len(examples)))
    ]
    tokenizer, score = examples.prompt_format.tokenizer, examples.task.score
    return {
        name: sum(
            score(answer(example, tokenizer), example.references)
            for example in chosen
        )
        / len(chosen)
        for name, answer in FLOORS.items()
    }


def _context_ids(example: Example) -> Ids:
    return np.concatenate(
        [np.empty(0, np.int32), *(b.tokens for b in example.context_blocks)]
    )

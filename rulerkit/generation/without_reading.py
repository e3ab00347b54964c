"""Copying the beginning of the context: an answer without reading that scores on cwe and fwe."""

import numpy as np

from rulerkit.generation.example import Example
from rulerkit.generation.tokenizers import Tokenizer


def copy_beginning(example: Example, tokenizer: Tokenizer) -> str:
    """The first `max_new_tokens` tokens of the context."""
    blocks = (block.tokens for block in example.context_blocks)
    ids = np.concatenate([np.empty(0, np.int32), *blocks])
    return tokenizer.decode(ids[: example.max_new_tokens])


def begins_alike(answer: str, beginning: str) -> bool:
    """Whether an answer looks like a copy: its first 100 letters, at least 20, are the beginning's,
    whatever blanks and lines stand between words."""
    copied = " ".join(answer.split())[:100]
    return len(copied) >= 20 and " ".join(beginning.split()).startswith(copied)

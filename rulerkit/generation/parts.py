"""A prompt in two parts, context and question, for methods that read the context first: compression
of its keys and values or of its text, and sparse attention."""

from typing import NamedTuple

from rulerkit.generation.example import Example
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tokenizers import Ids


class Parts(NamedTuple):
    """The context of a prompt, with all that stands before it, and its question, with all that
    stands behind it.

    The two texts joined are the text of the prompt; the two rows of ids joined are its ids, with
    exactly one BOS where the model has one. A token that spans both parts is in `question_ids`: so
    nothing of the question is in `context_ids`.
    """

    context: str
    """The beginning of the template, a demonstration, the instruction and the haystack."""
    question: str
    """The question, the end of the template and the answer prefix."""
    context_ids: Ids
    """int32, shape (tokens,): BOS and the context. Of a prompt without context BOS alone, or
    nothing."""
    question_ids: Ids
    """int32, shape (tokens,), at least one."""


def split_prompt(example: Example, form: PromptFormat) -> Parts:
    """The parts of an example's prompt. `form` is the prompt format that it was made with."""
    _, end = example.context
    blocks = example.blocks
    context = "".join([block.text for block in blocks[:end]])
    question = "".join([block.text for block in blocks[end:]])

    if example.whole_ids is None:
        # The context ends at a clean cut, so the ids of its pieces are those of the prompt.
        size = sum(block.num_tokens for block in blocks[:end])
    else:
        # The prompt was encoded as one text. What its ids share with those of the context alone
        # stands for nothing but the context.
        alone = [*form.bos, *form.tokenizer.encode(context).tolist()]
        size = _num_shared(alone, example.ids.tolist())
    return Parts(context, question, example.ids[:size], example.ids[size:])


def _num_shared(one: list[int], other: list[int]) -> int:
    """How many ids two rows share at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    differ = (place for place, (a, b) in pairs if a != b)
    return next(differ, min(len(one), len(other)))

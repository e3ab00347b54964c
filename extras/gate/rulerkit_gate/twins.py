"""Prompts that differ where the check of a server wants it: fresh ones, twins, clones, next turns.

All ask for the values of one key, `{base: niah_multivalue, haystack: noise}`, so that a block of
one prompt that is read in another one speaks about the key asked for. A prompt begins with a line
that no other one has:

    Record 483920175526 a a a.
    Some special magic numbers are hidden within the following text. Make sure to memorize it. ...
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random

import numpy as np

from rulerkit.common.errors import UserError
from rulerkit.common.settings import JSON
from rulerkit.generation.example import Example, Piece
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import FORMS, MARK, PromptFormat
from rulerkit.generation.tasks import task as make_task

_NUMBER = re.compile(r"(?<!\d)\d{7}(?!\d)")
_MOST_TRIES = 1000
_HEAD = "Record {}{}.\n"
_FILL = 4  # tokens kept free for letters that fill the line at the beginning


def numbers_in(text: str) -> list[str]:
    """The numbers of seven digits in a text, as values are."""
    return _NUMBER.findall(text)


@dataclass(frozen=True)
class Prompt:
    """A prompt as an example. Of a next turn: the example before it, and its answer."""

    example: Example
    before: Example | None = None
    answer: str = ""

    @property
    def values(self) -> tuple[str, ...]:
        """The values in the order in which they stand in the text."""
        return tuple(str(block.value) for block in self.example.blocks if block.role == "needle")

    @property
    def length(self) -> int:
        return self.example.length


class Prompts:
    """Makes the prompts of one run. No value and no record number is used twice."""

    def __init__(self, form: PromptFormat, seed: int) -> None:
        self.form, self.random = form, Random(f"prompts of {seed}")
        self.num_values = 12
        self.used = set[str]()
        """All values so far."""
        self._seed = seed

    def task(self) -> JSON:
        """What all prompts are made of."""
        return {
            "base": "niah_multivalue",
            "haystack": "noise",
            "num_values": self.num_values,
            "name": "serving",
        }

    @property
    def answer_tokens(self) -> int:
        return make_task(self.task()).answer_tokens

    def fresh(self, length: int, tokens: int) -> Prompt:
        """A prompt of so many tokens that shares nothing with another one but its layout: it has
        new values. `length` is that of the prompt and its answer, at most.

        Raises `DoesNotFit` where the values do not fit.
        """
        record = self._record()
        # The line at the beginning comes out of the length; a few letters fill what is left.
        room = self.form.tokenizer.count(_HEAD.format(record, "")) + _FILL
        budget = tokens + self.answer_tokens - room
        base = generate(self.task(), budget, 1, self._seed, self.form)[0]
        base = replace(base, length=length)
        made = self._with_head(base, _HEAD.format(record, ""))
        missing = tokens - made.num_tokens
        if missing > 0:
            made = self._with_head(base, _HEAD.format(record, " a" * missing))
        return Prompt(self._redrawn(made, 0))

    def like(self, prompt: Prompt) -> Prompt:
        """A fresh prompt of the same layout."""
        return self.fresh(prompt.length, prompt.example.num_tokens)

    def twin(self, prompt: Prompt, share: float) -> Prompt:
        """The same prompt up to the first digit of the value of a needle, that at this share of
        all; from there on all values are new."""
        first = int(share * len(prompt.values))
        return replace(prompt, example=self._redrawn(prompt.example, first))

    def clone(self, prompt: Prompt) -> Prompt:
        """The same prompt, cold: with another number in its first line."""
        blocks = list(prompt.example.blocks)
        place = _opening(blocks)
        text = blocks[place].text
        old = text.removeprefix("Record ")[:12]
        blocks[place] = replace(blocks[place], text=text.replace(old, self._record(old), 1))
        return replace(prompt, example=self._encoded(prompt.example, blocks))

    def turn(self, prompt: Prompt, answer: str) -> Prompt:
        """The prompt with its answer, and the question once more."""
        example = prompt.example
        between = Piece(next_turn(self.form), "template")
        again = [block for block in example.blocks[example.context[1] :] if block.text]
        blocks = [*example.blocks, Piece(answer, "question"), between, *again]
        longer = self._encoded(example, blocks)
        return Prompt(longer, example, answer)

    def _record(self, old: str = "") -> str:
        """A number for the first line; of as many tokens as the `old` one."""
        count = self.form.tokenizer.count
        for _ in range(_MOST_TRIES):
            record = str(self.random.randrange(10**11, 10**12))
            if not old or count(f"Record {record}") == count(f"Record {old}"):
                break
        return record

    def _with_head(self, example: Example, head: str) -> Example:
        blocks = list(example.blocks)
        place = _opening(blocks)
        blocks[place] = replace(blocks[place], text=head + blocks[place].text)
        return self._encoded(example, blocks)

    def _encoded(self, example: Example, blocks: Sequence[Piece]) -> Example:
        """The example with other texts, encoded anew: one BOS where the model has one."""
        text = self.form.tokenizer.encode("".join([block.text for block in blocks]))
        ids = np.concatenate([np.array(self.form.bos, dtype=np.int32), text])
        return replace(example, blocks=tuple(blocks), whole_ids=ids)

    def _redrawn(self, example: Example, first: int) -> Example:
        """The example with new values from needle `first` on, of as many tokens each."""
        blocks, new = list(example.blocks), dict[str, str]()
        number = 0
        for place, block in enumerate(blocks):
            if block.role != "needle":
                continue
            if number >= first:
                old = str(block.value)
                new[old] = self._value(old)
                text = block.text.replace(old, new[old])
                blocks[place] = replace(block, text=text, value=new[old])
            number += 1
        references = tuple(new.get(value, value) for value in example.references)
        return replace(self._encoded(example, blocks), references=references)

    def _value(self, old: str) -> str:
        """A value that was never used, with another first digit and as many tokens."""
        count = self.form.tokenizer.count
        for _ in range(_MOST_TRIES):
            value = str(self.random.randrange(10**6, 10**7))
            is_new = value not in self.used and value[0] != old[0]
            if is_new and count(f" {value}.") == count(f" {old}."):
                break
        self.used.add(value)
        return value


def next_turn(form: PromptFormat) -> str:
    """The template's text between an answer and the user's next words; a line end and the
    beginning of the form where a template of the tokenizer cannot be asked."""
    if form.form not in FORMS:
        roles = ("user", "assistant", "user")
        with suppress(UserError):
            parts = form.rendered([{"role": role, "content": MARK} for role in roles])
            if parts.count(MARK) == 3:
                return parts.split(MARK)[2]
    return "\n" + form.around[0].removeprefix(form.leading_text)


def _opening(blocks: Sequence[Piece]) -> int:
    """The place of the first words of the user's part."""
    return next(i for i, block in enumerate(blocks) if block.role == "instruction")

"""Examples as a function: (task, length, prompt format, seed, index) to one example that fills its
token budget."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

from rulerkit.errors import UserError
from rulerkit.example import ContextBudget, Draft, Example, ExampleStream, Passage, Piece, passage
from rulerkit.pieces import PieceEncoder, piece_encoder, settle
from rulerkit.prompt_format import DIRECT, PromptFormat
from rulerkit.tasks import Task, task
from rulerkit.tokenizers import Ids

PROMPT_VERSION = 1
"""Raised whenever any prompt changes; golden digests in the tests hold it."""

_FITTING_ROUNDS = 12


def generate(
    task: str | dict[str, Any] | Task,
    length: int,
    num_examples: int,
    seed: int = 42,
    prompt_format: PromptFormat | None = None,
) -> "Examples":
    """The examples of one cell, made when they are asked for.

    A task's name stands for the original corpora; `task(name).with_corpora("builtin")` reads the
    stand-ins. `length` is the token budget of each: template, prompt, answer and thinking together.
    Index i asks the same question at every length, and is the same whatever else was generated.
    """
    return Examples(_task(task), length, num_examples, seed, prompt_format or PromptFormat())


_task = task


@dataclass(frozen=True)
class Examples:
    """A lazy row of examples: `len`, `[index]`, iteration; any index on its own."""

    task: Task
    length: int
    num_examples: int
    seed: int
    prompt_format: PromptFormat

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("num_examples", 1), ("seed", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name} is {value!r}: it must be a whole number from {least} on")

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.num_examples:
            raise IndexError(f"index {index} of {self.num_examples} examples")
        return _compose(self.task, self.length, index, self.seed, self.prompt_format)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(self.num_examples))

    def record(self) -> dict[str, Any]:
        """What defines these examples, ready for JSON."""
        token = self.prompt_format.tokenizer
        return asked_record(self.task, self.length, self.seed) | {
            "prompt_format": self.prompt_format.settings(),
            "tokenizer": {"name": token.name, "fingerprint": token.fingerprint},
        }


def asked_record(task: Task, length: int, seed: int) -> dict[str, Any]:
    """What defines the questions, whoever is asked; ready for JSON."""
    return {
        "task": task.settings(),
        "length": length,
        "seed": seed,
        "protocol": task.protocol,
        "prompt_version": PROMPT_VERSION,
        "sources": {knob: vars(source) for knob, source in task.sources().items()},
    }


# --- composing ------------------------------------------------------------------------------------


def _compose(task: Task, length: int, index: int, seed: int, form: PromptFormat) -> Example:
    """Draft, encode what is fixed, fill the rest."""
    example_stream = ExampleStream(seed, task.name, index)
    draft = task.draft(example_stream, length)
    second_seed = example_stream.random.getrandbits(32)
    head, tail = _fixed(draft, form)
    encoder = piece_encoder(form.tokenizer)
    budget = length - task.answer_tokens - form.thinking_tokens

    def filled(left: int) -> Example:
        context = task.fill(
            draft, ContextBudget(length, left, encoder, np.random.RandomState(second_seed), seed)
        )
        blocks, inside = tuple(head + context + tail), (len(head), len(head) + len(context))
        return Example(
            index,
            task.name,
            length,
            draft.references,
            task.answer_tokens,
            blocks,
            inside,
            group=draft.group,
        )

    if encoder.exact:
        left = budget - sum(piece.num_tokens for piece in head + tail)
        if left < 0:
            raise _does_not_fit(task, length, budget - left, budget)
        example = filled(left)
        if _exact(example, encoder):
            return example
    fixed = len(_whole("".join(piece.text for piece in head + tail), form))
    if fixed > budget:
        raise _does_not_fit(task, length, fixed, budget)
    return _fitted(filled, fixed, budget, form)


def _fitted(
    filled: Callable[[int], Example], fixed: int, budget: int, form: PromptFormat
) -> Example:
    """The fullest example within the budget where pieces cannot be joined exactly: the whole is
    encoded, and the budget corrected by what was over or missing, a few times."""
    left = 2 * (budget - fixed)  # pieces count for more alone than together
    best: Example | None = None
    for _ in range(_FITTING_ROUNDS):
        try:
            example = filled(left)
        except UserError:
            if best is None:
                raise
            break
        example = replace(example, whole_ids=_whole(example.prompt, form))
        over = example.num_tokens - budget
        if over <= 0 and (best is None or example.num_tokens > best.num_tokens):
            best = example
        counted = sum(piece.num_tokens for piece in example.blocks[slice(*example.context)])
        share = max(0.1, (example.num_tokens - fixed) / max(1, counted))
        step = ceil(over / share) if over > 0 else int(over / share)
        if step == 0 or not counted:
            break
        left -= step
    if best is None:
        raise UserError(
            f"{example.task} was not fitted into {example.length} tokens in {_FITTING_ROUNDS} "
            "rounds"
        )
    return best


def _fixed(draft: Draft, form: PromptFormat) -> tuple[list[Piece], list[Piece]]:
    """The pieces before and after the context. Borders with the template are encoded in one, the
    context's are clean."""
    before, after = form.around
    closing = [Passage("answer_prefix", (draft.answer_prefix,))]
    ends = [passage("question", DIRECT), *closing, passage("template", after)]
    tail = [
        *draft.tail,
        *(ends if form.closes_user_turn else [passage("template", after), *closing]),
    ]
    start = [passage("template", before), *draft.head]
    bos = [Piece("", "template", np.array(form.bos, dtype=np.int32))] if form.bos else []
    if not draft.head:
        return bos, _joint([*start, *tail], form, start=True, end=True)
    frame, content = settle(
        [before, start[1].parts[0]]
    )  # the template's last blanks go to what follows
    first = _joint([passage("template", frame), passage(start[1].role, content)], form, start=True)
    rest = piece_encoder(form.tokenizer).many(start[1].parts[1:])
    instruction = replace(
        first[-1],
        text=first[-1].text + "".join(start[1].parts[1:]),
        tokens=np.concatenate([first[-1].tokens, *rest]),
    )
    encoder = piece_encoder(form.tokenizer)
    more = [
        Piece(p.text, p.role, np.concatenate(encoder.many(p.parts)), p.key, p.value)
        for p in draft.head[1:]
    ]
    return bos + first[:-1] + [instruction, *more], _joint(tail, form, end=True)


def _joint(
    passages: list[Passage], form: PromptFormat, start: bool = False, end: bool = False
) -> list[Piece]:
    """Neighbours encoded as one text; empty ones are left out."""
    passages = [p for p in passages if p.text]
    ids = piece_encoder(form.tokenizer).joint([p.text for p in passages], start, end)
    return [Piece(p.text, p.role, i, p.key, p.value) for p, i in zip(passages, ids, strict=True)]


def _exact(example: Example, encoder: PieceEncoder) -> bool:
    """Whether the ids of the pieces, joined, are known to be those of the whole."""
    first, last = example.context
    blocks = example.blocks[max(0, first - 1) : last + 1]
    return all(
        encoder.clean_cut(left.text, right.text) for left, right in pairwise(blocks) if left.text
    )


def _whole(text: str, form: PromptFormat) -> Ids:
    return np.concatenate([np.array(form.bos, dtype=np.int32), form.tokenizer.encode(text)])


def _does_not_fit(task: Task, length: int, fixed: int, budget: int) -> UserError:
    return UserError(
        f"{task.name} does not fit into {length} tokens: instruction, question and template take "
        f"{fixed}, the answer (and "
        f"thinking) {length - budget}; take a longer length"
    )

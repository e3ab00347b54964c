"""Examples as a function: (task, length, prompt format, seed, index) to one example that fills its
token budget."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import ceil

import numpy as np

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import parse_length
from rulerkit.common.settings import JSON
from rulerkit.generation.example import (
    ContextBudget,
    Draft,
    Example,
    ExampleStream,
    Piece,
)
from rulerkit.generation.pieces import PieceEncoder, piece_encoder, settle
from rulerkit.generation.prompt_format import DIRECT, PromptFormat
from rulerkit.generation.tasks import Task
from rulerkit.generation.tasks import task as make_task
from rulerkit.generation.tokenizers import Ids

PROMPT_VERSION = 1
"""Raised whenever any prompt changes; golden digests in the tests hold it."""

_FITTING_ROUNDS = 12


def generate(
    task: str | JSON | Task,
    length: int | str,
    num_examples: int,
    seed: int = 42,
    prompt_format: PromptFormat | None = None,
) -> "Examples":
    """The examples of one cell, made when they are asked for.

    A task's name stands for the original corpora; `task(name).with_corpora("builtin")` reads the
    stand-ins. `length` is the token budget of each, such as 4096 or 4K: template, prompt and answer
    together, and a thought where `thinking_room: inside` says so.
    Index i asks the same question at every length, and is the same whatever else was generated.
    """
    tokens = parse_length(length)
    if min(num_examples, seed) < 0:
        raise UserError(
            f"num_examples is {num_examples}, seed {seed}: each must be a whole number from 0 on"
        )
    return Examples(
        make_task(task),
        tokens,
        num_examples,
        seed,
        prompt_format or PromptFormat(),
    )


@dataclass(frozen=True)
class Examples:
    """A lazy row of examples: `len`, `[index]`, iteration; any index on its own."""

    task: Task
    length: int
    num_examples: int
    seed: int
    prompt_format: PromptFormat

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.num_examples:
            raise IndexError(f"index {index} of {self.num_examples} examples")
        if example := self._compose(index, self.length):
            return example

        # The message names the shortest length that would do.
        longer = (2**power for power in range(8, 18) if 2**power > self.length)
        fitting = next(
            (length for length in longer if self._compose(index, length)), None
        )
        hint = f" (example {index} fits into {fitting} tokens)" if fitting else ""
        raise UserError(
            f"{self.task.name} does not fit into {self.length} tokens, with its template, question "
            f"and answer: take a longer length{hint}, or leave the task out"
        )

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(self.num_examples))

    def record(self) -> JSON:
        """What defines these examples, ready for JSON."""
        token = self.prompt_format.tokenizer
        return asked_record(self.task, self.length, self.seed) | {
            "prompt_format": self.prompt_format.settings(),
            "tokenizer": {"name": token.name, "fingerprint": token.fingerprint},
        }

    def _compose(self, index: int, length: int) -> Example | None:
        """Draft the example, encode what is fixed, fill the rest of the length with context. None
        where its pieces do not fit into the length."""
        # Everything is drawn from the stream of this example, in this order, so that
        # any example can be made on its own.
        task, seed, form = self.task, self.seed, self.prompt_format
        stream = ExampleStream(seed, task.name, index)
        draft = task.draft(stream, length)
        second_seed = stream.random.getrandbits(32)

        # What is left of the length, once head, tail, answer and thought have their
        # tokens, is for the context.
        head, tail = _fixed(draft, form)

        encoder = piece_encoder(form.tokenizer)
        budget = length - task.answer_tokens - form.thinking_inside

        def filled(tokens: int) -> Example | None:
            """The example with so many tokens of context; None where its pieces do not fit."""
            random = np.random.RandomState(second_seed)
            room = ContextBudget(length, tokens, encoder, random, seed)
            context = task.fill(draft, room) if tokens >= 0 else None
            if context is None:
                return None
            return Example(
                index,
                task.name,
                length,
                draft.references,
                task.answer_tokens,
                blocks=(*head, *context, *tail),
                context=(len(head), len(head) + len(context)),
                group=draft.group,
            )

        # The usual way: token ids of pieces are joined, and nothing is encoded twice.
        if encoder.exact:
            example = filled(
                budget - sum(piece.num_tokens for piece in head + tail)
            )
            if example is None or _clean(example, encoder):
                return example
        return _fitted(filled, head + tail, budget, form)


def asked_record(task: Task, length: int, seed: int) -> JSON:
    """What defines the questions, whoever is asked; ready for JSON."""
    return {
        "task": task.settings(),
        "length": length,
        "seed": seed,
        "protocol": task.protocol,
        "prompt_version": PROMPT_VERSION,
        "sources": {
            knob: vars(source) for knob, source in task.sources().items()
        },
    }


# --- composing ------------------------------------------------------------------------------------


def _clean(example: Example, encoder: PieceEncoder) -> bool:
    """Whether the ids of the pieces of the context and their neighbours can be joined."""
    # Only the borders around the context can be unclean; all others were encoded as one
    # text.
    first, last = example.context
    blocks = example.blocks[max(0, first - 1) : last + 1]
    return all(
        encoder.clean_cut(a.text, b.text) for a, b in pairwise(blocks) if a.text
    )


def _fitted(
    filled: Callable[[int], Example | None],
    fixed: list[Piece],
    budget: int,
    form: PromptFormat,
) -> Example | None:
    """The fullest example within the budget where pieces cannot be joined exactly: the whole is
    encoded, and the budget corrected by what was over or missing, a few times."""
    # A guess from the budget, then corrected: the pieces alone count for more than
    # together.
    num_fixed = len(_whole("".join(piece.text for piece in fixed), form))
    tokens = 2 * (budget - num_fixed)  # pieces count for more alone than together
    best: Example | None = None
    for _ in range(_FITTING_ROUNDS):
        example = filled(tokens)
        if example is None:
            break

        # The whole prompt is encoded, so what counts is exact here, too.
        example = replace(example, whole_ids=_whole(example.prompt, form))
        excess = example.num_tokens - budget
        if excess <= 0 and (best is None or example.num_tokens > best.num_tokens):
            best = example

        # How many tokens of the whole a token of a piece stands for.
        counted = sum(piece.num_tokens for piece in example.context_blocks)
        share = max(0.1, (example.num_tokens - num_fixed) / max(1, counted))
        step = ceil(excess / share) if excess > 0 else int(excess / share)
        if step == 0 or not counted:
            break
        tokens -= step
    return best


def _fixed(draft: Draft, form: PromptFormat) -> tuple[list[Piece], list[Piece]]:
    """The pieces before and after the context. Where the template meets the task's text, both are
    encoded as one; the borders of the context are clean cuts."""
    encoder = piece_encoder(form.tokenizer)
    before, after = form.around
    question, prefix = (
        draft.question,
        "" if form.prefix_in == "none" else draft.answer_prefix,
    )

    # The prefix stands behind the template, where the model goes on with it; or, for
    # services that take no such start, at the end of the user's turn.
    closing = [(after, "template"), (prefix, "answer_prefix")]
    if form.closes_user_turn:
        question += DIRECT
        closing.reverse()
    tail = [(question, "question"), *closing]
    bos = (
        [Piece("", "template", np.array(form.bos, dtype=np.int32))]
        if form.bos
        else []
    )

    # Without context all is one text.
    if not draft.instruction:
        return bos, _joint(
            [(before, "template"), *tail], encoder, starts=True, ends=True
        )
    role = "demonstration" if draft.demonstration else "instruction"
    # blanks at the end of the template go to what follows
    frame, content = settle([before, draft.demonstration or draft.instruction])
    head = bos + _joint(
        [(frame, "template"), (content, role)], encoder, starts=True
    )

    # The solved example ends in newlines, so the instruction begins at a clean cut.
    if draft.demonstration:
        head += _joint([(draft.instruction, "instruction")], encoder)
    return head, _joint(tail, encoder, ends=True)


def _joint(
    parts: list[tuple[str, str]],
    encoder: PieceEncoder,
    starts: bool = False,
    ends: bool = False,
) -> list[Piece]:
    """Pieces of texts and roles whose borders are not clean cuts, encoded as one text; a token that
    spans two texts goes to the first."""
    # The borders inside are not clean, so all is encoded as one, and the ids are dealt
    # out by the length of each beginning.
    parts = [(text, role) for text, role in parts if text]
    *before, whole = accumulate(text for text, _ in parts)
    (ids,) = encoder.encode([whole], starts, ends)
    sizes = [min(len(part), len(ids)) for part in encoder.encode(before, starts)]
    bounds = accumulate([0, *sizes, len(ids)], max)
    return [
        Piece(text, role, ids[start:stop])
        for (text, role), (start, stop) in zip(
            parts, pairwise(bounds), strict=True
        )
    ]


def _whole(text: str, form: PromptFormat) -> Ids:
    return np.concatenate(
        [np.array(form.bos, dtype=np.int32), form.tokenizer.encode(text)]
    )

"""Examples as a function: (task, length, prompt format, seed, index) to one example that fills its
token budget."""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from math import ceil
from random import Random

import numpy as np

from rulerkit.common.errors import DoesNotFit, UserError
from rulerkit.common.lengths import parse_length
from rulerkit.common.plugins import errors_of, is_outside
from rulerkit.common.settings import JSON
from rulerkit.generation.corpora import load
from rulerkit.generation.example import ContextBudget, Draft, Example, ExampleStream, Piece
from rulerkit.generation.pieces import PieceEncoder, piece_encoder, settle
from rulerkit.generation.prompt_format import DIRECT, PromptFormat
from rulerkit.generation.tasks import Task
from rulerkit.generation.tasks import task as make_task
from rulerkit.generation.tasks.base import Growth
from rulerkit.generation.tokenizers import Ids

PROMPT_VERSIONS = {"clean": 1, "paper": 3, "upstream": 3}
"""Protocol -> the version of its prompts, raised whenever one of them changes; golden digests in
the tests hold them."""

_Made = tuple[Draft, int, Example]
"""What was made, the seed of the example's second stream, and the example without its context."""


def generate(
    task: str | JSON | Task,
    length: int | str,
    num_examples: int,
    seed: int = 42,
    prompt_format: PromptFormat | None = None,
    corpora: str | None = None,
) -> "Examples":
    """The examples of one cell, made when they are asked for.

    A task's name stands for the original corpora; `corpora="builtin"` takes the synthetic texts.
    `length` is the token budget of each, such as 4096 or 4K: template, prompt and answer
    together, and a thought where `thinking_room: inside` says so.
    Index i asks the same question at every length, and is the same whatever else was generated.
    """
    tokens = parse_length(length)
    if min(num_examples, seed) < 0:
        raise UserError(
            f"num_examples is {num_examples}, seed {seed}: each must be a whole number from 0 on"
        )
    asked = make_task(task)
    if corpora is not None:
        asked = asked.with_corpora(corpora)
    return Examples(asked, tokens, num_examples, seed, prompt_format or PromptFormat())


@dataclass(frozen=True)
class Examples:
    """A lazy row of examples: `len`, `[index]`, iteration; any index on its own."""

    task: Task
    length: int
    num_examples: int
    seed: int
    prompt_format: PromptFormat
    kept: dict[int, Example] = field(default_factory=dict, repr=False, compare=False)
    """Examples that were made before they are asked for."""

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < self.num_examples:
            raise IndexError(f"index {index} of {self.num_examples} examples")
        if index in self.kept:
            return self.kept.pop(index)
        if example := self._example(index):
            return example
        raise self._too_short(index)

    def __iter__(self) -> Iterator[Example]:
        return (self[index] for index in range(self.num_examples))

    def first(self, number: int) -> "Examples":
        """The first so many of these."""
        # All of them are these themselves, which know upstream's size already.
        return self if number == len(self) else replace(self, num_examples=number)

    def record(self) -> JSON:
        """What defines these examples, ready for JSON."""
        token = self.prompt_format.tokenizer
        return asked_record(self.task, self.length, self.seed) | {
            "prompt_format": self.prompt_format.settings(),
            "tokenizer": {"name": token.name, "fingerprint": token.fingerprint},
        }

    def _example(self, index: int) -> Example | None:
        """What the task makes of the index, its context filled up to the length; None where not
        even the needles fit."""
        what = f"example {index} of {self.task.name} at {self.length} tokens"
        with errors_of(type(self.task), what):
            made = self._make(index)
            if self.task.protocol != "clean" and self._upstreams_size:
                return self._as_upstream(made, *self._upstreams_size)

            # Where ids of pieces can be joined, tokens are counted and nothing is encoded twice.
            if piece_encoder(self.prompt_format.tokenizer).exact:
                example = self._fill(made)
                if example is None or example.whole_ids is None:
                    return example
            return self._fitted(made)

    def _too_short(self, index: int) -> DoesNotFit:
        """The error for an example that does not fit; it names a length that would do."""
        hint = ""
        for longer in (2**power for power in range(8, 18) if 2**power > self.length):
            if replace(self, length=longer)._example(index):
                hint = f" (example {index} fits into {longer} tokens)"
                break
        return DoesNotFit(
            f"{self.task.name} does not fit into {self.length} tokens, with its template, question "
            f"and answer: take a longer length{hint}, or leave the task out"
        )

    def _make(self, index: int) -> _Made:
        """What example `index` asks, and the example without its context."""
        random = Random(f"{self.seed}/{self.task.name}/{index}")
        stream = ExampleStream(self.seed, index, random)
        draft = self.task.make(stream, self.length)
        second_seed = random.getrandbits(32)
        if is_outside(type(self.task)) and not self.task.can_judge(draft.references):
            raise UserError(
                f"{self.task.name}: example {index} has no references, or an empty one, and the "
                f"rule {self.task.match} knows no question whose right answer is nothing: let the "
                "family name another rule, or draw references"
            )

        # A prefix that is a part of the answer is for models that only go on with a text.
        form, question, prefix = self.prompt_format, draft.question, draft.answer_prefix
        before, after = form.around
        if form.prefix_in == "none" or (self.task.judges_prefix and form.form != "base"):
            prefix = ""

        # The prefix stands behind the template, where the model goes on with it; or, for services
        # that take no such start, at the end of the user's turn.
        tail = [(question, "question"), (after, "template"), (prefix, "answer_prefix")]
        if form.prefix_in == "user" and prefix:
            tail = [(question + DIRECT, "question"), (prefix, "answer_prefix"), (after, "template")]
        bos = Piece("", "template", np.array(form.bos, dtype=np.int32))
        head = [bos] if form.bos else []

        # Where the template meets the task's text, both are encoded as one; the borders of the
        # context are clean cuts. Without context all is one text.
        encoder = piece_encoder(form.tokenizer)
        if draft.instruction:
            # Blanks at the end of the template go to what follows.
            texts = settle([before, draft.demonstration, draft.instruction])
            parts = list(zip(texts, ("template", "demonstration", "instruction"), strict=True))
            head += _joint(parts, encoder, starts=True)
            blocks = [*head, *_joint(tail, encoder, ends=True)]
        else:
            whole = [(before, "template"), *tail]
            blocks = [*head, *_joint(whole, encoder, starts=True, ends=True)]
        example = Example(
            index,
            self.task.name,
            self.length,
            draft.references,
            self.task.answer_tokens,
            blocks=tuple(blocks),
            context=(len(head), len(head)),
            group=draft.group,
        )
        return draft, second_seed, example

    def _fill(
        self, made: _Made, tokens: int | None = None, size: int | None = None
    ) -> Example | None:
        """The example with a context of so many tokens, of all that are left, or of so many lines,
        words or documents, however long; None where it does not hold the needles."""
        draft, second_seed, frame = made
        if tokens is None:
            tokens = self._most_tokens - frame.num_tokens
        if size is not None:
            tokens = max(0, tokens)
        if tokens < 0:
            return None
        encoder = piece_encoder(self.prompt_format.tokenizer)
        random = np.random.RandomState(second_seed)
        budget = ContextBudget(self.length, tokens, encoder, random, self.seed, size)
        context = self.task.fill(draft, budget)
        if context is None:
            return None

        first, _ = frame.context
        last = first + len(context)
        blocks = (*frame.blocks[:first], *context, *frame.blocks[first:])
        example = replace(frame, blocks=blocks, context=(first, last))
        # Only the borders around the context can be unclean; all others were encoded as one text.
        borders = pairwise(blocks[max(0, first - 1) : last + 1])
        if encoder.exact and all(encoder.clean_cut(a.text, b.text) for a, b in borders if a.text):
            return example
        return replace(example, whole_ids=self._encoded(example.prompt))

    def _fitted(self, made: _Made) -> Example | None:
        """An example within the length, the fullest that was found, where pieces cannot be joined
        exactly: the whole is encoded, and the budget corrected a few times by what was over or
        missing."""
        most = self._most_tokens
        *_, frame = made
        num_fixed = len(self._encoded(frame.prompt))
        tokens = 2 * (most - num_fixed)  # pieces count for more alone than together
        best: Example | None = None
        for _ in range(12):
            example = self._fill(made, tokens)
            if example is None:
                break
            excess = example.num_tokens - most
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

    @property
    def _most_tokens(self) -> int:
        """What a prompt may take of the length, beside the answer and a thought."""
        return self.length - self.task.answer_tokens - self.prompt_format.thinking_inside

    def _encoded(self, text: str) -> Ids:
        """A whole prompt's ids, encoded as one text."""
        bos = np.array(self.prompt_format.bos, dtype=np.int32)
        return np.concatenate([bos, self.prompt_format.tokenizer.encode(text)])

    # --- the protocols `paper` and `upstream` -----------------------------------------------------

    def _as_upstream(self, made: _Made, size: int, step: int) -> Example | None:
        """The example in the size that upstream finds with its first one, shortened in upstream's
        steps until it fits."""
        while size > 0:
            example = self._fill(made, size=size)
            if example is None or example.num_tokens <= self._most_tokens:
                return example
            # Upstream would try the smallest size for ever.
            size -= step if size > step else 1
        return None

    @cached_property
    def _upstreams_size(self) -> tuple[int, int] | None:
        """How many lines, words or documents upstream's first example has, and its step; where that
        depends on the words that are drawn, the median over several examples, which may as well be
        first. None where upstream has no such task."""
        draft, *_ = self._make(0)
        growth = self.task.growth(draft, self.length)
        if growth is None:
            return None
        sizes = sorted(self._size_of(self._make(i), growth) for i in range(growth.draws))
        return sizes[len(sizes) // 2], growth.step

    def _size_of(self, made: _Made, growth: Growth) -> int:
        """The size that upstream finds with an example."""
        # Upstream of 2024 lengthens by whole steps and counts the answer as part of the prompt;
        # since 2025 it searches the longest that fits.
        room, step = self._most_tokens, growth.step
        if growth.answer is None:
            room = self.length if self.task.protocol == "paper" else room
        elif self.task.protocol == "paper":
            room -= self.prompt_format.tokenizer.count(growth.answer)
        else:
            step = 1

        def is_too_long(number: int) -> bool:
            example = self._fill(made, size=growth.start + number * step)
            return example is not None and example.num_tokens > room

        # Twice as far each time, until it is too long or there is no more; then by halves.
        far = 1
        while not is_too_long(far):
            if growth.most is not None and growth.start + far * step >= growth.most:
                return growth.most
            far *= 2
        number = bisect_left(range(far), True, key=is_too_long) - 1
        return growth.start + max(0, number) * step


def asked_record(task: Task, length: int, seed: int) -> JSON:
    """What defines the questions, whoever is asked; ready for JSON."""
    # The lists of wonderwords have no source.
    loaded = {name: load(kind, getattr(task, name)) for kind, name in task.corpora}
    sources = {name: vars(corpus.source) for name, corpus in loaded.items() if corpus.source}
    return {
        "task": task.settings(),
        "length": length,
        "seed": seed,
        "protocol": task.protocol,
        "prompt_version": PROMPT_VERSIONS[task.protocol],
        "sources": sources,
    }


def _joint(
    parts: list[tuple[str, str]], encoder: PieceEncoder, starts: bool = False, ends: bool = False
) -> list[Piece]:
    """Pieces of texts and roles whose borders are not clean cuts: encoded as one, their ids dealt
    out by the length of each beginning. A token that spans two texts goes to the first."""
    parts = [(text, role) for text, role in parts if text]
    *before, whole = accumulate(text for text, _ in parts)
    (ids,) = encoder.encode([whole], starts, ends)
    sizes = [min(len(part), len(ids)) for part in encoder.encode(before, starts)]
    bounds = accumulate([0, *sizes, len(ids)], max)
    return [
        Piece(text, role, ids[start:stop])
        for (text, role), (start, stop) in zip(parts, pairwise(bounds), strict=True)
    ]

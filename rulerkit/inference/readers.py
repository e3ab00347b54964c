"""Reference readers: models that answer by rule from the prompt text alone.

A reader with a window sees only the last tokens of its prompt, so its effective length is known by
construction and the whole evaluation can be calibrated on a laptop. `perfect` sees everything,
`mute` nothing; `floor-copy` does not read at all
(`rulerkit.generation.without_reading`). The families' files hold the rules (`Task.read`). Effects
are faults of known size that make a reader err as real models do (paper, section 5); the figures
must then show them.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate
from random import Random

import numpy as np

from rulerkit.common.paths import package_data
from rulerkit.common.settings import JSON, READER_EFFECTS, Spec
from rulerkit.generation.example import Example
from rulerkit.generation.tasks import read_prompt
from rulerkit.generation.tasks.base import Reading
from rulerkit.generation.tokenizers import Ids, Tokenizer
from rulerkit.generation.without_reading import copy_beginning
from rulerkit.inference.model import Answers, Engine, cut, with_reasoning

FLOOR_LABELS: dict[str, str] = package_data("model_keys.yaml")["floor_labels"]
READER_VERSION = 1
"""Raised whenever a reader would answer the same prompt differently."""

_CHUNK = 64
_COPIED_WORDS = 40
_MARKS = 8  # tokens that the marks of a thought may take
_NEIGHBOURS = 2
"""How many values on either side of an item `_confuse` chooses from."""

Distances = Callable[[Sequence[int]], Sequence[float]]
"""Positions of characters -> how many tokens before the end of the prompt they stand."""


class Reader(Engine):
    """Answers from the last `window` tokens of a prompt by the families' rules, with the effects of
    its spec.

    It never uses the references.
    """

    on_gpu = False

    def __init__(self, spec: Spec) -> None:
        super().__init__(
            {"aligned": "chat", **spec}
        )  # the thresholds of the paper's chat models apply
        self.window: int | None = spec.get("window")
        self.effects = [key for key in _EFFECTS if key in spec]
        self._thought: int = spec.get("thinking_tokens", 0)
        self.label = spec.get("label", self._label())
        self.claimed_length = spec.get("claimed_length", self.window or None)

    def identity(self) -> JSON:
        """The window, the effects and the version of the rules."""
        rules = {"engine": "reader", "window": self.window, "reader_version": READER_VERSION}
        return rules | self.given((*READER_EFFECTS, "floor"))

    def answer(self, examples: Iterable[Example]) -> Answers:
        """One example after the other."""
        tokenizer = self.prompt_format.tokenizer
        for example in examples:
            text = self._answer_text(example)
            if "thought" in self.spec and self._thought > _MARKS:
                thought = " hm" * (self._thought - _MARKS)
                text = f"<think>{thought}</think>{text}"
            answer = cut(text, tokenizer, self.most_tokens(example))
            usage = with_reasoning(answer.text, self.prompt_format, answer.usage)
            yield example, answer._replace(usage=usage)

    def _answer_text(self, example: Example) -> str:
        """The answer to the visible tokens; empty where they are no prompt of this package.

        A prompt of length L leaves room for its answer, so a window of L tokens sees all of it.
        Each effect has a random stream of its own, keyed by the model's name, the effect and the
        text, so answers repeat exactly and effects are independent of each other.
        """
        tokenizer = self.prompt_format.tokenizer
        if "floor" in self.spec:
            return copy_beginning(example, tokenizer)

        # A window keeps the end of the prompt, where the question stands.
        size = example.num_tokens
        window = size if self.window is None else self.window
        ids = example.ids[max(0, size - window) :]
        text = tokenizer.decode(ids) if len(ids) else ""
        if (reading := read_prompt(text)) is None:
            return ""

        # The effects are drawn from the text that was read, so the same prompt has the
        # same answer in every process.
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        distances = partial(tokens_to_end, ids, tokenizer)
        for key in self.effects:
            too_short = key == "copy" and len(ids) < self.spec.get("copy_from", 0)
            if reading.fixed_answer is None and not too_short:
                random, size = (Random(f"{self.name}/{key}/{digest}"), self.spec[key])
                if key == "drop" and "thought" in self.spec:
                    size *= 2 ** (-self._thought / self.spec["thought"])
                reading = _EFFECTS[key][0](reading, size, random, distances)
        return reading.text

    def _label(self) -> str:
        """The name of a reader in tables and figures."""
        if "floor" in self.spec:
            return FLOOR_LABELS[self.spec["floor"]]

        # The two ends: a reader of everything, and one of nothing.
        if not self.effects and not self.window:
            return "perfect reader" if self.window is None else "mute reader"

        # Otherwise the label says what is wrong with this reader.
        parts = [
            _EFFECTS[key][1].format(tokens=self.spec[key], percent=100 * self.spec[key])
            for key in self.effects
        ]
        if self.window is not None:
            size = f"{self.window} tokens" if self.window % 1024 else f"{self.window // 1024}K"
            parts.insert(0, f"{size} window")
        return f"reader ({', '.join(parts)})"


def tokens_to_end(ids: Ids, tokenizer: Tokenizer, positions: Sequence[int]) -> Sequence[float]:
    """How many tokens before the end of a prompt the characters at these positions stand, to a few
    tokens."""
    # Decoding token by token would take far longer; chunks are near
    # enough.
    starts = range(0, len(ids), _CHUNK)
    characters = [len(tokenizer.decode(ids[start : start + _CHUNK])) for start in starts]
    before: Sequence[float] = np.interp(
        positions, [0, *accumulate(characters)], [*starts, len(ids)]
    )
    return [len(ids) - tokens for tokens in before]


# --- effects --------------------------------------------------------------------------------------


def _copy(reading: Reading, share: float, random: Random, distances: Distances) -> Reading:
    """Answers with the demonstration's answer; without a demonstration, with the beginning of the
    context."""
    copied = reading.demonstration or " ".join(reading.opening.split()[:_COPIED_WORDS])
    return replace(reading, fixed_answer=copied) if copied and random.random() < share else reading


def _fade(reading: Reading, half: float, random: Random, distances: Distances) -> Reading:
    """Finds an item that stands d tokens before the end with probability 2 ** (-d / half)."""
    positions = _positions(reading)
    away = distances([positions[item] for item in reading.items])
    items = [
        item
        for item, tokens in zip(reading.items, away, strict=True)
        if random.random() < 2 ** (-tokens / half)
    ]
    return replace(reading, items=items)


def _drop(reading: Reading, share: float, random: Random, distances: Distances) -> Reading:
    """Leaves out each item with the same probability."""
    return replace(reading, items=[item for item in reading.items if random.random() >= share])


def _confuse(reading: Reading, share: float, random: Random, distances: Distances) -> Reading:
    """Replaces an item by one of its nearest neighbours: another key's value (for several values,
    also one already given), another chain's variable, a less frequent word. An item without such
    neighbours stays."""
    given: list[str] = []

    # Values that were given stay candidates only where one key has several values.
    positions = _positions(reading)
    for item in reading.items:
        confused = random.random() < share
        repeatable = given if reading.family == "niah" else []
        near = _nearest(
            item, [*repeatable, *(o for o in reading.others if o not in given)], positions
        )
        given.append(random.choice(near) if confused and near else item)
    return replace(reading, items=given)


def _remember(reading: Reading, share: float, random: Random, distances: Distances) -> Reading:
    """Answers a share of the invented questions from memory; where it reads no answer, it guesses,
    always the same."""
    if reading.question not in _answers():
        return reading
    answer, guess = _remembered(reading.question)
    if Random(f"known/{reading.question}").random() < share:
        return replace(reading, fixed_answer=answer)
    return reading if reading.items else replace(reading, fixed_answer=guess)


_EFFECTS: dict[str, tuple[Callable[[Reading, float, Random, Distances], Reading], str]] = {
    "copy": (_copy, "copies {percent:g}%"),
    "fade": (_fade, "fades by half every {tokens} tokens"),
    "drop": (_drop, "drops {percent:g}%"),
    "confuse": (_confuse, "confuses {percent:g}%"),
    "memory": (_remember, "remembers {percent:g}%"),
}
"""Key of a spec -> its effect and the words of a label, in the order in which effects apply."""


def _positions(reading: Reading) -> dict[str, int]:
    """The character at which each value stands: the mean for a word that occurs often, 0 for one
    that occurs nowhere (yes and no are answers of HotpotQA)."""
    # A word that is asked for may stand in a text a thousand times.
    starts: dict[str, list[int]] = {value: [] for value in (*reading.items, *reading.others)}
    for match in reading.occurrences():
        value = match["item"]
        if value in starts:
            starts[value].append(match.start())
    return {value: sum(places) // max(1, len(places)) for value, places in starts.items()}


def _nearest(item: str, others: Sequence[str], positions: Mapping[str, int]) -> list[str]:
    """The others that stand nearest to an item, at most `_NEIGHBOURS` on either side."""
    place = positions[item]
    nearest = sorted(others, key=lambda other: abs(positions[other] - place))
    before = [other for other in nearest if positions[other] < place]
    after = [other for other in nearest if positions[other] >= place]
    return before[:_NEIGHBOURS] + after[:_NEIGHBOURS]


@cache
def _answers() -> dict[str, tuple[str, ...]]:
    """All questions of the invented worlds with their answers."""
    from rulerkit.generation.corpora import load_qa

    names = ("fictional", "fictional_two_hop")
    return {
        question.text: question.answers for name in names for question in load_qa(name).questions
    }


@cache
def _remembered(question: str) -> tuple[str, str]:
    """The answer to a question, and the wrong guess of a reader that does not know it: another
    question's answer."""
    # The guess must be wrong, and must not hold the answer by chance either.
    answers, random = _answers()[question], Random(f"guess/{question}")
    others = list(_answers().values())
    while True:
        guess = random.choice(others)[0]
        if not any(answer.lower() in guess.lower() for answer in answers):
            return answers[0], guess

"""Reference readers: programs that answer by rule from the prompt text alone, through the same door as a real model.

A reader with a window sees only the last tokens of its prompt, so its effective length is known by construction and the
whole instrument can be calibrated on a laptop. `perfect` sees everything, `mute` nothing. Planted effects (`effects`)
make a reader err in ways and at rates that are known, for those who read figures to find again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from rulerkit.example import Example
from rulerkit.models import Answer, Engine, cut
from rulerkit.models.readers.effects import KEYS as EFFECT_KEYS
from rulerkit.models.readers.effects import Effect, answer_with, effects_of
from rulerkit.models.readers.reading import Distance
from rulerkit.models.spec import Key, tokens
from rulerkit.tokenizers import Ids

READER_VERSION = 1
"""Raised whenever a reader would answer the same prompt differently."""

_WINDOW = Key("a number of tokens, such as 8192 or 8K (0 sees nothing, none at all sees everything)", tokens)
KEYS = {"window": _WINDOW} | EFFECT_KEYS


class Reader(Engine):
    """Reads the last `window` tokens of a prompt by the families' rules; never looks at the references.

    Effects of the spec change what it then says.
    """

    on_gpu = False

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self.window: int | None = spec.get("window")
        self.effects = effects_of(spec)
        self.label = spec.get("label", reader_label(self.window, self.effects))
        self.claimed_length = spec.get("claimed_length", self.window or None)

    @property
    def aligned(self) -> str:
        """`chat` unless the spec says otherwise: the paper's chat thresholds are then those it is measured by."""
        return str(self.spec.get("aligned", "chat"))

    def identity(self) -> dict[str, Any]:
        """The window, the effects and the version of the rules."""
        planted = {key: self.spec[key] for key in EFFECT_KEYS if key in self.spec}
        return {"engine": "reader", "window": self.window, "reader_version": READER_VERSION, **planted}

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """One after the other, as they come."""
        tokenizer = self.prompt_format.tokenizer
        for example in examples:
            ids = example.ids
            # A prompt of length L leaves room for its answer, so a window of L tokens sees all of it.
            seen = ids if self.window is None else ids[max(0, len(ids) - self.window) :]
            yield example, cut(self._read(seen) or "", tokenizer, example.max_new_tokens)

    def _read(self, ids: Ids) -> str | None:
        from rulerkit.tasks import read_answer

        tokenizer = self.prompt_format.tokenizer
        if not len(ids):
            return None
        if not self.effects:
            return read_answer(tokenizer.decode(ids))
        return answer_with(self.effects, tokenizer.decode(ids), self.name, cache(lambda: Distance(ids, tokenizer)))


def reader_label(window: int | None, effects: Sequence[Effect] = ()) -> str:
    """How a reader is called in tables and figures."""
    if effects:
        seen = [] if window is None else [reader_label(window).removeprefix("reader (").removesuffix(")")]
        return f"reader ({', '.join([*seen, *(effect.words() for effect in effects)])})"
    if window is None:
        return "perfect reader"
    if window == 0:
        return "mute reader"
    return f"reader ({window // 1024}K window)" if window % 1024 == 0 else f"reader ({window} tokens window)"

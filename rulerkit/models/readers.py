"""Reference readers: programs that answer by rule from the prompt text alone, through the same door as a real model.

A reader with a window sees only the last tokens of its prompt, so its effective length is known by construction and the
whole instrument can be calibrated on a laptop. `perfect` sees everything, `mute` nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rulerkit.example import Example
from rulerkit.models import Answer, Engine, cut
from rulerkit.models.spec import Key, tokens

READER_VERSION = 1
"""Raised whenever a reader would answer the same prompt differently."""

KEYS = {"window": Key("a number of tokens, such as 8192 or 8K (0 sees nothing, none at all sees everything)", tokens)}


class Reader(Engine):
    """Reads the last `window` tokens of a prompt by the families' rules; never looks at the references."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        super().__init__(spec)
        self.window: int | None = spec.get("window")
        self.label = spec.get("label", reader_label(self.window))
        self.claimed_length = spec.get("claimed_length", self.window or None)

    @property
    def aligned(self) -> str:
        """`chat` unless the spec says otherwise: the paper's chat thresholds are then those it is measured by."""
        return str(self.spec.get("aligned", "chat"))

    def identity(self) -> dict[str, Any]:
        """The window and the version of the rules."""
        return {"engine": "reader", "window": self.window, "reader_version": READER_VERSION}

    def answer(self, examples: Iterable[Example]) -> Iterator[tuple[Example, Answer]]:
        """One after the other, as they come."""
        from rulerkit.tasks import read_answer

        tokenizer = self.prompt_format.tokenizer
        for example in examples:
            ids = example.ids
            # A prompt of length L leaves room for its answer, so a window of L tokens sees all of it.
            seen = ids if self.window is None else ids[max(0, len(ids) - self.window) :]
            text = read_answer(tokenizer.decode(seen)) if len(seen) else None
            yield example, cut(text or "", tokenizer, example.max_new_tokens)


def reader_label(window: int | None) -> str:
    """How a reader is called in tables and figures."""
    if window is None:
        return "perfect reader"
    if window == 0:
        return "mute reader"
    return f"reader ({window // 1024}K window)" if window % 1024 == 0 else f"reader ({window} tokens window)"

"""Reference readers: models that answer by rule from the prompt text alone.

A reader with a window sees only the last tokens of its prompt, so its effective length is known by
construction and the whole evaluation can be calibrated on a laptop. `perfect` sees everything,
`mute` nothing. The families' files hold the rules (`Task.read`).
"""

from collections.abc import Iterable

from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.generation.tasks import read_answer
from rulerkit.generation.tokenizers import Ids
from rulerkit.inference.model import Answers, Model, cut, with_reasoning

READER_VERSION = 1
"""Raised whenever a reader would answer the same prompt differently."""


class Reader(Model):
    """Answers from the last `window` tokens of a prompt by the families' rules. It never uses the
    references."""

    on_gpu = False

    def __init__(self, spec: Spec) -> None:
        # The thresholds of the paper's chat models apply.
        super().__init__({"aligned": "chat", **spec})
        self.window: int | None = spec.get("window")
        self.label = spec.get("label", self._label())
        self.claimed_length = spec.get("claimed_length", self.window or None)

    def identity(self) -> JSON:
        """The window and the version of the rules."""
        return {"engine": "reader", "window": self.window, "reader_version": READER_VERSION}

    def answer(self, examples: Iterable[Example]) -> Answers:
        """One example after the other."""
        tokenizer = self.prompt_format.tokenizer
        for example in examples:
            answer = cut(self.answer_text(example), tokenizer, self.most_tokens(example))
            usage = with_reasoning(answer.text, self.prompt_format, answer.usage)
            yield example, answer._replace(usage=usage)

    def answer_text(self, example: Example) -> str:
        """The answer to the visible tokens; empty where they are no prompt of this package."""
        ids = self.visible(example)
        text = self.prompt_format.tokenizer.decode(ids) if len(ids) else ""
        return read_answer(text, example.task) or ""

    def visible(self, example: Example) -> Ids:
        """The last tokens of the prompt: a window keeps its end, where the question stands. A
        prompt of length L leaves room for its answer, so a window of L tokens sees all of it."""
        size = example.num_tokens
        window = size if self.window is None else self.window
        return example.ids[max(0, size - window) :]

    def _label(self) -> str:
        """The name of a reader in tables and figures."""
        if self.window is None:
            return str(self.name)
        return f"reader ({window_words(self.window)})"


def window_words(window: int) -> str:
    """What a label says of a window: `8K window`, `1000-token window`."""
    size = f"{window}-token" if window % 1024 else f"{window // 1024}K"
    return f"{size} window"

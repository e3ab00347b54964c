"""One progress bar over many cells, in tokens."""

import sys
from typing import Any, Protocol, Self


class Bar(Protocol):
    """A progress bar, told of the tokens of each example that was answered."""

    def update(self, tokens: int, /) -> Any: ...


class Progress:
    """One bar over one or many cells, in tokens, with the time left: `tokens` is length x examples,
    over all.

    The total is mended as cells turn out to be partly done, and examples shorter than their budget.
    """

    def __init__(self, tokens: int, **options: Any) -> None:
        from tqdm.auto import tqdm

        often = 0.2 if sys.stderr.isatty() else 5.0  # a job's log keeps every refresh
        looks: dict[str, Any] = {
            "unit": " tokens",
            "unit_scale": True,
            "smoothing": 0.1,
            "mininterval": often,
        }
        self.bar = tqdm(total=tokens, **(looks | options))
        self._total = tokens
        self._length = self._done = self._wanted = 0

    def start(self, title: str, length: int, done: int, wanted: int) -> None:
        """Cells of one length begin, `done` of their `wanted` examples answered by an earlier
        session."""
        self._length, self._done, self._wanted = length, done, wanted
        self.bar.total = self._total = max(0, self._total - length * done)
        self.bar.set_description_str(title, refresh=False)
        self.bar.set_postfix_str(f"{done}/{wanted} examples", refresh=False)

    def update(self, tokens: int) -> None:
        """One more example was answered, `tokens` long with its answer."""
        self._done += 1
        self.bar.total = self._total = max(0, self._total + tokens - self._length)
        self.bar.set_postfix_str(f"{self._done}/{self._wanted} examples", refresh=False)
        self.bar.update(tokens)

    def close(self) -> None:
        self.bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

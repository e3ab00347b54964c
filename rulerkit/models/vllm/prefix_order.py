"""The order in which prompts are sent to an engine that keeps the keys and values of prefixes."""

from bisect import bisect_left, insort

from rulerkit.example import Example
from rulerkit.tokenizers import Ids


class PrefixOrder:
    """Prompts that wait, given out in the order of their token ids, so that neighbours share the longest prefixes.

    The order goes round: `take` returns what follows the prompt that was taken last, however much came in between. The
    cache of a whole cell is then reused as well as if all its prompts had been sorted beforehand.
    """

    def __init__(self) -> None:
        self._waiting: list[Example] = []
        self._last: _Prefix | None = None
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, example: Example) -> None:
        insort(self._waiting, example, key=_Prefix)
        self.tokens += example.num_tokens

    def take(self) -> Example:
        """The next prompt, taken out; `IndexError` where none waits."""
        place = bisect_left(self._waiting, self._last, key=_Prefix) if self._last else 0
        example = self._waiting.pop(place % len(self._waiting) if self._waiting else 0)
        self._last = _Prefix(example)
        self.tokens -= example.num_tokens
        return example


class _Prefix:
    """Compares prompts by their ids, as lists would be, at the speed of arrays."""

    def __init__(self, example: Example) -> None:
        self.ids: Ids = example.ids

    def __lt__(self, other: "_Prefix") -> bool:
        shared = min(len(self.ids), len(other.ids))
        differs = self.ids[:shared] != other.ids[:shared]
        place = int(differs.argmax()) if shared else 0
        if shared and differs[place]:
            return bool(self.ids[place] < other.ids[place])
        return len(self.ids) < len(other.ids)

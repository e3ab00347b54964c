"""The order in which prompts are sent, so that neighbours share what a server has cached."""

from bisect import bisect_left, insort
from collections.abc import Iterable
from operator import itemgetter

from rulerkit.generation.example import Example

AHEAD = 512  # examples made ahead and put in order, at most
AHEAD_TOKENS = 32 * 2**20  # and their tokens: about half a gigabyte


class PromptQueue:
    """Examples that wait, given out in the order of their token ids, so that neighbours share the
    longest prefixes.

    A server gets the prompt that follows the one it got last, and after the end of the order the
    first one again. The cache of a whole cell is then reused as well as if all its prompts had been
    sorted beforehand.
    """

    def __init__(self, examples: Iterable[Example] = ()) -> None:
        self._source = iter(examples)
        self.waiting: list[tuple[bytes, Example]] = []  # with their place in the order
        self.stop = ""  # why no more is asked

    def make(self) -> bool:
        """Make one more example; False where there is none, or enough are made."""
        tokens = num_tokens(example for _, example in self.waiting)
        enough = len(self.waiting) >= AHEAD or tokens >= AHEAD_TOKENS
        if self.stop or enough or (example := next(self._source, None)) is None:
            return False
        self.add(example)
        return True

    def ready(self) -> bool:
        """Whether a prompt waits that is still to be sent; makes one where none does."""
        return not self.stop and (bool(self.waiting) or self.make())

    def add(self, example: Example) -> None:
        """Put an example in its place."""
        insort(self.waiting, (_order(example), example), key=itemgetter(0))

    def take(self, last: Example | None) -> Example:
        """The example that follows `last`, taken out; the first one where there is no last."""
        place = bisect_left(self.waiting, _order(last), key=itemgetter(0)) if last else 0
        return self.waiting.pop(place % len(self.waiting))[1]


def _order(example: Example) -> bytes:
    """Bytes that compare as the token ids of a prompt."""
    return example.ids.astype(">i4").tobytes()


def num_tokens(examples: Iterable[Example]) -> int:
    """The tokens of several prompts."""
    return sum(example.num_tokens for example in examples)

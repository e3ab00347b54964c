"""What a server reads of a prompt, judged for each reply by its counts.

A server counts the tokens of each prompt. Where it counts as our tokenizer does, the count says
exactly whether the whole prompt was read. Where its tokenizer is another one, its counts of a part
of a task's prompt say how many tokens the whole one should have.
"""

from dataclasses import dataclass, field

from rulerkit.generation.example import Example
from rulerkit.inference.refusals import RequestError
from rulerkit.inference.reply import Reply

SAMPLE = 2000  # characters of a prompt that a server counts, so that it is known how it counts all
_SLACK = 3  # tokens: a template may trim a text, and tokens may join at its ends
_LEAST_SHARE = 0.75
"""Of the tokens that an estimate expects. Over the thirteen tasks at 2K and 16K and six tokenizers,
estimates were at most 9 % too high (and in cwe up to 20 % too low)."""


@dataclass
class ServerCounts:
    """How one server counts the prompts that are sent by one path."""

    known: bool = False
    """Whether it says how many tokens it read."""
    exact: bool = False
    """Whether it counts tokens as the run's tokenizer does."""
    frame: int = 0
    """Tokens that it adds to each prompt."""
    ratio: float = 1.0
    """How many tokens it counts for one of ours, where counts are not exact."""
    ratios: dict[str, float] = field(default_factory=dict)
    """The same by task."""

    def check(self, example: Example, sent: int, reply: Reply) -> None:
        """Raise `RequestError` where the server read fewer than the `sent` tokens of an example."""
        counted = reply.prompt_tokens
        if not self.known or counted is None:
            return
        ratio = 1.0 if self.exact else self.ratios.get(example.task, self.ratio)
        expected = round(self.frame + ratio * sent)
        slack = _SLACK if self.exact else (1 - _LEAST_SHARE) * expected

        # Some services count apart what they had cached.
        cached = reply.cached_tokens or 0
        is_apart = self.exact or cached > counted
        is_sum_right = is_apart and abs(counted + cached - expected) <= slack
        if counted < expected - slack and not is_sum_right:
            raise RequestError(
                f"the server cut the prompt: it read {counted} of {expected} tokens "
                f"(length {example.length})",
                "cut",
            )

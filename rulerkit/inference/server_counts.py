"""What a server reads of a prompt and writes of an answer, judged for each reply by its counts.

A server counts the tokens of each prompt. Where it counts as our tokenizer does, the count says
exactly whether the whole prompt was read. Where its tokenizer is another one, its counts of a part
of a task's prompt say how many tokens the whole one should have.
"""

from dataclasses import dataclass, field

from rulerkit.generation.example import Example
from rulerkit.generation.tokenizers import Tokenizer
from rulerkit.inference.model import Answer, cut
from rulerkit.inference.refusals import RequestError
from rulerkit.inference.reply import Reply

_SLACK = 3  # tokens: a template may trim a text, and tokens may join at its ends
_SURPLUS = 0.02  # of a prompt: a date in its frame may be longer than that of another day
_LEAST_SHARE = 0.75
"""Of the tokens that an estimate expects. Over the thirteen tasks and eight tokenizers, estimates
were up to 23 % too high (fwe, whose examples have words of their own), else up to 8 %."""
_SAMPLE_PARTS, _SAMPLE_SIZE = 8, 250  # characters


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
    leaves_out_cached: bool | None = None
    """Whether its counts leave out what it had cached; None while no reply has shown it."""

    def learn(self, task: str, count: int | None, ours: int) -> None:
        """Take its count of a part of a task's prompt, which has `ours` tokens for us; None where
        it gave none."""
        self.ratios[task] = self.ratio
        if count:
            self.ratios[task] = max(1, count - self.frame) / ours

    def check(self, example: Example, sent: int, reply: Reply) -> str:
        """Raise `RequestError` where the server read fewer than the `sent` tokens
        of an example. Else why a cut may go unseen, though the server counted before; mostly
        empty."""
        counted = reply.prompt_tokens
        if not self.known:
            return ""
        if counted is None:
            return "its server leaves out how many tokens it read of some prompts"
        ratio = 1.0 if self.exact else self.ratios.get(example.task, self.ratio)
        expected = round(self.frame + ratio * sent)
        slack = _SLACK if self.exact else (1 - _LEAST_SHARE) * expected
        least, most = expected - slack, expected + slack

        # Some services count apart what they had cached: a reply shows whether this one does.
        cached = reply.cached_tokens or 0
        is_sum_right = least <= counted + cached <= most
        if self.leaves_out_cached is None and cached:
            if counted + cached > most:
                self.leaves_out_cached = False
            elif counted < least and is_sum_right and (self.exact or cached > counted):
                self.leaves_out_cached = True
        if self.exact and counted > most + _SURPLUS * expected:
            return f"its server counts {counted} tokens of a prompt that should have {expected}"
        if counted >= least or (self.leaves_out_cached and is_sum_right):
            return ""
        raise RequestError(
            f"the server cut the prompt: it read {counted} of {expected} tokens "
            f"(length {example.length})",
            "cut",
        )


def whole_count(reply: Reply) -> int | None:
    """The tokens that a server read of a tiny request; more cached ones than that were counted
    apart."""
    counted, cached = reply.prompt_tokens, reply.cached_tokens or 0
    if counted is None or cached <= counted:
        return counted
    return counted + cached


def sample_of(text: str) -> str:
    """A few hundred tokens from all parts of a prompt: as a server counts these, it counts the
    whole."""
    if len(text) <= _SAMPLE_PARTS * _SAMPLE_SIZE:
        return text
    step = (len(text) - _SAMPLE_SIZE) // (_SAMPLE_PARTS - 1)
    parts = []
    for number in range(_SAMPLE_PARTS):
        part = text[number * step : number * step + _SAMPLE_SIZE]
        # Words are left whole: the halves of one have more tokens.
        parts.append(part[part.find(" ") : part.rfind(" ")])
    return "".join(parts)


def kept_within(
    text: str, written: int | None, limit: int, counts: ServerCounts, tokenizer: Tokenizer
) -> Answer | None:
    """An answer that is longer than its limit, cut there; None for one that keeps it.

    A server whose tokenizer is another one may write more tokens of ours than of its own, but not
    twice as many.
    """
    if written is None:
        is_believed = not counts.exact
    else:
        is_believed = written <= limit
    most = 2 * limit if is_believed else limit
    if tokenizer.count(text) <= most:
        return None
    return cut(text, tokenizer, limit)

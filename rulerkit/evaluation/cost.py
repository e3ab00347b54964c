"""What a study costs, at most, before it is run."""

from collections.abc import Mapping
from typing import NamedTuple

from rulerkit.common.errors import counted
from rulerkit.common.settings import Spec
from rulerkit.evaluation.study import Study


class Cost(NamedTuple):
    """Examples, the tokens that are read and written for them, and dollars; None where prices are
    unknown."""

    examples: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    dollars: float | None = None

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    def plus(self, other: "Cost") -> "Cost":
        """Both together."""
        known = [cost.dollars for cost in (self, other) if cost.dollars is not None]
        return Cost(
            self.examples + other.examples,
            self.prompt_tokens + other.prompt_tokens,
            self.answer_tokens + other.answer_tokens,
            sum(known) if known else None,
        )

    def text(self) -> str:
        """In words."""
        text = f"{counted(f'{self.examples:,}', 'example')}, {self.tokens:,} tokens"
        return f"{text}, ${self.dollars:,.2f}" if self.dollars else text


def cost_of(study: Study, spec: Spec, counts: Mapping[tuple[str, int], int]) -> Cost:
    """What so many examples of each task and length cost one model: every prompt fills its length,
    every answer and thought is as long as it may be, and nothing is cached.

    `spec` is the model's mapping; `prices` in it are dollars for a million tokens.
    """
    answer_tokens = {task.name: task.answer_tokens for task in study.tasks}
    thought = spec.get("thinking_tokens", 0)
    # Answers are inside the length, and thoughts only where the model's file says so.
    inside = thought if spec.get("thinking_room") == "inside" else 0
    read = written = 0
    for (task, length), number in counts.items():
        read += number * (length - answer_tokens[task] - inside)
        written += number * (answer_tokens[task] + thought)

    cost = Cost(sum(counts.values()), read, written)
    prices = spec.get("prices")
    if prices:
        dollars = (read * prices["prompt"] + written * prices["completion"]) / 1e6
        cost = cost._replace(dollars=dollars)
    return cost

"""What a study costs, at most, before it is run."""

from collections.abc import Mapping
from typing import NamedTuple

from rulerkit.common.errors import counted
from rulerkit.common.settings import Spec
from rulerkit.evaluation.study import Study


class Cost(NamedTuple):
    """Examples, and the tokens that are read and written for them."""

    examples: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.answer_tokens

    def plus(self, other: "Cost") -> "Cost":
        """Both together."""
        return Cost(
            self.examples + other.examples,
            self.prompt_tokens + other.prompt_tokens,
            self.answer_tokens + other.answer_tokens,
        )

    def text(self) -> str:
        """In words."""
        return f"{counted(f'{self.examples:,}', 'example')}, {self.tokens:,} tokens"


def cost_of(study: Study, spec: Spec, counts: Mapping[tuple[str, int], int]) -> Cost:
    """What so many examples of each task and length cost one model: every prompt fills its length,
    and every answer and thought is as long as it may be. `spec` is the model's mapping."""
    answer_tokens = {task.name: task.answer_tokens for task in study.tasks}
    thought = spec.get("thinking_tokens", 0)
    # Answers are inside the length, and thoughts only where the model's file says so.
    inside = thought if spec.get("thinking_room") == "inside" else 0
    read = written = 0
    for (task, length), number in counts.items():
        read += number * (length - answer_tokens[task] - inside)
        written += number * (answer_tokens[task] + thought)

    return Cost(sum(counts.values()), read, written)

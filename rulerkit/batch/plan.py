"""What a study costs before it is run: examples and tokens, and dollars where prices are known.

An adaptive run asks only what its question needs. Its least is the first round, its most are all
examples that it may ask for; both stand in the table.
"""

from contextlib import closing
from typing import NamedTuple

from rulerkit.common.errors import UserError, counted
from rulerkit.common.lengths import length_name
from rulerkit.common.render import render
from rulerkit.common.settings import Spec
from rulerkit.evaluation.cost import Cost, costs_by_length
from rulerkit.evaluation.study import Study
from rulerkit.inference.model import Model, load_model
from rulerkit.scoring.effective_length import FIRST


class LengthCost(NamedTuple):
    """What all cells of one length cost one model, at most. `why_not` says why the length will not
    be run; it is empty where it will."""

    length: int
    cost: Cost
    why_not: str = ""


class Plan(NamedTuple):
    """A study's cost for one model, by length."""

    model: str
    num_tasks: int
    lines: list[LengthCost]
    least_share: float
    """Of an adaptive run, the share of everything that its first round asks; else 1."""
    prices_date: str
    """The day on which the prices were read; empty where there are none, or none is given."""

    @property
    def asked(self) -> list[LengthCost]:
        """The lengths that will be run."""
        return [line for line in self.lines if not line.why_not]

    @property
    def cost(self) -> Cost:
        """Of all lengths that will be run."""
        total = Cost()
        for line in self.asked:
            total = total.plus(line.cost)
        return total

    def text(self) -> str:
        """A table with a row for each length, the sum, and what was assumed."""
        import pandas as pd

        has_prices = self.cost.dollars is not None
        header = ["length", "examples", "prompt tokens", "answer tokens", "tokens/cell"]
        if has_prices:
            header += ["$/cell", "$"]

        rows = []
        for line in self.asked:
            row = [
                length_name(line.length),
                f"{line.cost.examples:,}",
                f"{line.cost.prompt_tokens:,}",
                f"{line.cost.answer_tokens:,}",
                f"{line.cost.tokens / self.num_tasks:,.0f}",
            ]
            dollars = line.cost.dollars
            if dollars is not None:
                row += [f"{dollars / self.num_tasks:,.2f}", f"{dollars:,.2f}"]
            rows.append(row)

        if self.least_share < 1:
            notes = [
                f"at most: {self._sum(1.0)}",
                f"at least: {self._sum(self.least_share)}, the first round of an adaptive run",
            ]
        else:
            notes = [f"together: {self._sum(1.0)}"]
        notes += [
            f"{length_name(line.length)} is not run: {line.why_not}"
            for line in self.lines
            if line.why_not
        ]
        if has_prices:
            read = f", read on {self.prices_date}" if self.prices_date else ""
            notes.append(
                "dollars are the most: answers as long as they may be, nothing cached, the "
                f"prices of the model's file{read}"
            )

        title = f"{self.model}: {counted(self.num_tasks, 'task')}"
        return f"{title}\n{render(pd.DataFrame(rows, columns=header), notes=notes)}".rstrip()

    def _sum(self, share: float) -> str:
        cost = self.cost
        text = f"{share * cost.examples:,.0f} examples, {share * cost.tokens:,.0f} tokens"
        if cost.dollars is not None:
            text += f", ${share * cost.dollars:,.2f}"
        return text


def plan_model(described: Spec | Model, study: Study) -> Plan:
    """The cost of a study for one model, which is described but not started.

    A length that the model cannot be given is listed with the reason and not counted.
    """
    with closing(load_model(described)) as model:
        spec: Spec = getattr(model, "spec", {})
        limits = {}
        for length in study.lengths:
            try:
                limits[length] = model.too_long(length) or ""
            except UserError:
                # Its config.json is not here, so nothing says how long its prompts may be.
                limits[length] = ""

    lines = [
        LengthCost(length, cost, limits[length])
        for length, cost in costs_by_length(study, spec).items()
    ]
    least_share = FIRST / study.num_examples if study.adaptive else 1.0
    date = str(spec.get("prices", {}).get("date", ""))
    return Plan(model.name, len(study.tasks), lines, min(1.0, least_share), date)

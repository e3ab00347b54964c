"""What models are asked before they are: examples and tokens."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.common.render import render
from rulerkit.common.settings import Spec
from rulerkit.evaluation.cost import Cost, cost_of
from rulerkit.evaluation.study import Study
from rulerkit.inference.model import Model, load_model
from rulerkit.scoring.effective_length import FIRST


def plan_text(asked: Iterable[tuple[Spec | Model, list[Study]]]) -> str:
    """A table of what models are asked in their studies, with a row for each model and length, and
    the command of each server that would be started. No model is started. Raises `UserError` for
    weights that are cut short.

    A length that a model cannot be given is named with the reason and not counted. Of an adaptive
    run the table has all examples that it may ask for, and a line what its first round asks.
    """
    import pandas as pd

    rows: list[list[Any]] = []
    notes: list[str] = []
    commands: list[str] = []
    total = least = Cost()
    for described, studies in asked:
        model = load_model(described)
        if checkpoint := getattr(model, "checkpoint", None):
            checkpoint.check_weights()
        spec: Spec = getattr(model, "spec", {})
        costs, firsts = _by_length(model, spec, studies)
        for length in sorted(costs):
            if why_not := _too_long(model, length):
                notes.append(f"{model.name}: {length_name(length)} is not run: {why_not}")
                continue
            total, least = total.plus(costs[length]), least.plus(firsts[length])
            asked_for = (f"{number:,}" for number in costs[length])
            rows.append([model.name, length_name(length), *asked_for])
        # Of a checkpoint that is not here yet nobody knows the arguments.
        with suppress(UserError):
            command = getattr(model, "shown_command", str)()
            commands += [f"{model.name} starts: {command}\n"] if command else []

    frame = pd.DataFrame(
        rows, columns=["model", "length", "examples", "prompt tokens", "answer tokens"]
    )
    if least == total:
        together = [f"together: {total.text()}"]
    else:
        together = [
            f"at most: {total.text()}",
            f"at least: {least.text()}, the first round of an adaptive run",
        ]
    return "\n".join([render(frame, notes=[*together, *notes]), *commands])


def _by_length(
    model: Model, spec: Spec, studies: Iterable[Study]
) -> tuple[dict[int, Cost], dict[int, Cost]]:
    """What a model is asked at each length, and the least of it; a cell that several studies ask
    for counts once, with the most examples."""
    cells = {}
    for study in sorted(studies, key=lambda study: study.num_examples):
        for cell in study.cells():
            if cell.model == model.name:
                cells[cell.path] = study, cell.task.name, cell.length

    most: dict[int, Cost] = defaultdict(Cost)
    least: dict[int, Cost] = defaultdict(Cost)
    for study, task, length in cells.values():
        number = study.num_examples
        first = min(FIRST, number) if study.adaptive else number
        most[length] = most[length].plus(cost_of(study, spec, {(task, length): number}))
        least[length] = least[length].plus(cost_of(study, spec, {(task, length): first}))
    return most, least


def _too_long(model: Model, length: int) -> str:
    """Why a model cannot be given a length; empty where it can, or where only a server knows."""
    spec: Spec = getattr(model, "spec", {})
    most = spec.get("max_length")
    if most is not None and length > most:
        return f"max_length is {most}"
    if model.engine == "openai" or "base_url" in spec:
        return ""
    try:
        return model.too_long(length) or ""
    except UserError:
        # Its config.json is not here, so nothing says how long its prompts may be.
        return ""

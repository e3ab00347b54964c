"""What models are asked before they are: examples and tokens."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from rulerkit.batch.jobs import needs_of
from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.common.render import render
from rulerkit.common.settings import JSON
from rulerkit.evaluation.cost import Cost, cost_of
from rulerkit.evaluation.study import Study
from rulerkit.inference.model import Model, load_model


def plan_text(asked: Iterable[tuple[JSON | Model, list[Study]]]) -> str:
    """A table of what models are asked in their studies, with a row for each model and length: how
    many examples, how many of them are answered, and the tokens of all at most; and the command of
    each server that would be started. No model is started.

    A length that a model cannot be given is named with the reason and not counted. Of an adaptive
    run all examples count that it may ask for. Raises UserError where a model's weights are cut
    short.
    """
    import pandas as pd

    rows: list[list[Any]] = []
    notes: dict[str, None] = {}
    commands: list[str] = []
    total, left = Cost(), 0
    for described, studies in asked:
        model = load_model(described)
        if checkpoint := getattr(model, "checkpoint", None):
            checkpoint.check_weights()
        study_of = {task.name: study for study in studies for task in study.tasks}
        whole = [replace(study, models=(described,), adaptive=None) for study in studies]
        for need in needs_of(whole):
            length = length_name(need.length)
            if why_not := _too_long(model, need.length):
                notes[f"{model.name}: {length} is not run: {why_not}"] = None
                continue
            wanted = {(need.task, need.length): need.wanted}
            cost = cost_of(study_of[need.task], model.spec, wanted)
            total = total.plus(cost)
            left += need.tokens_left
            numbers = (cost.examples, need.have, cost.prompt_tokens, cost.answer_tokens)
            rows.append([model.name, length, *numbers])
        # Of a checkpoint that is not here yet nobody knows the arguments.
        with suppress(UserError):
            command = getattr(model, "shown_command", str)()
            commands += [f"{model.name} starts: {command}\n"] if command else []

    columns = ["model", "length", "examples", "answered", "prompt tokens", "answer tokens"]
    frame = pd.DataFrame(rows, columns=columns)
    frame = frame.groupby(["model", "length"], sort=False, as_index=False).sum()
    frame[columns[2:]] = frame[columns[2:]].map("{:,}".format)
    together = f"together: {total.text()}; {left:,} tokens left"
    return "\n".join([render(frame, notes=[together, *notes]), *commands])


def _too_long(model: Model, length: int) -> str:
    """Why a model cannot be given a length; empty where it can, or where only a server knows."""
    most = model.spec.get("max_length")
    if most is not None and length > most:
        return f"max_length is {most}"
    if model.engine == "openai" or "base_url" in model.spec:
        return ""
    try:
        return model.too_long(length) or ""
    except UserError:
        # Its config.json is not here, so nothing says how long its prompts may be.
        return ""

"""A new family of tasks touches its own file and one line: everything else works for it."""

import importlib
import re
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import pytest

from rulerkit import failures, tasks
from rulerkit.evaluation import predict
from rulerkit.example import Draft, Piece
from rulerkit.floors import floors
from rulerkit.generation import generate
from rulerkit.models import load_model
from rulerkit.scoring import score
from rulerkit.tasks.base import Reading, Rule, Task
from rulerkit.tasks.haystacks import fill_with_sentences

NAMES, COLOURS = ("Ada", "Bo", "Cy", "Di"), ("ochre", "teal", "puce", "mauve", "azure", "coral")


def colour_of_another_name(answer):
    others = [str(piece.value) for piece, _ in answer.needles if piece.role == "distractor"]
    return next((colour for colour in others if colour in answer.words), None)


@dataclass(frozen=True, kw_only=True)
class Colours(Task):
    """Say which colour one of four names has."""

    family: ClassVar[str] = "colours"
    category: ClassVar[str] = "niah"
    short_name: ClassVar[str] = "colours"
    new_tokens: ClassVar[tuple[int, int]] = (16, 1)
    question_form: ClassVar[str] = r"What about (\w+)\?"
    answer_prefix_form: ClassVar[str] = r"has the colour"
    failure_rules: ClassVar[tuple[Rule, ...]] = (
        Rule("other name", "The colour of another name.", colour_of_another_name),
    )

    def draft(self, stream, length):
        colours = stream.random.sample(COLOURS, len(NAMES))
        lines = [
            Piece(
                f"{name} has the colour {colour}.\n",
                role,
                key=name,
                value=colour,
                depth=stream.random.random(),
            )
            for role, name, colour in zip(
                ["needle"] + ["distractor"] * 3, NAMES, colours, strict=True
            )
        ]
        return Draft(
            "Remember all colours.\n",
            f"What about {NAMES[0]}?",
            f" {NAMES[0]} has the colour",
            (colours[0],),
            plan=lines,
        )

    def fill(self, draft, budget):
        return fill_with_sentences(draft.plan, budget)

    @staticmethod
    def read_context(text, question):
        line = re.compile(r"(?P<name>\w+) has the colour (?P<item>\w+)\.")
        colours = {match["name"]: match["item"] for match in line.finditer(text)}
        return Reading(
            "colours",
            items=[colour for name, colour in colours.items() if name == question[1]],
            others=[colour for name, colour in colours.items() if name != question[1]],
            occurrences=partial(line.finditer, text),
        )


@pytest.fixture
def colours(monkeypatch):
    """The family in the one line that lists families."""
    monkeypatch.setattr(tasks, "FAMILIES", (*tasks.FAMILIES, Colours))
    importlib.reload(failures)
    yield Colours(name="colours")
    monkeypatch.undo()
    importlib.reload(failures)


def test_everything_works_for_a_new_family(colours, tmp_path):
    examples = generate(colours, 1024, 12)
    assert all(900 < example.num_tokens + 16 <= 1024 for example in examples)
    cells = {}
    for effects in ({}, {"confuse": 1.0}, {"window": 200}):
        name = "-".join(["reader", *effects])
        model = load_model({"engine": "reader", "name": name, **effects})
        cells[name] = predict(model, examples, tmp_path / "main", progress=False)
    means = score(cells.values()).groupby("model")["score"].mean()
    assert means["reader"] == 1
    assert means["reader-confuse"] == 0
    assert 0 < means["reader-window"] < 1
    assert set(failures.label([cells["reader-confuse"]])["label"]) == {"other name"}
    assert "other name" in failures.LABELS
    assert floors(examples)["copy"] < 1

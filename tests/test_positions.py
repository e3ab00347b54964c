"""Positions that are free: over 500 examples the answer's depth passes for uniform, and no layout
comes twice.

Upstream re-seeds its shuffles for every example: there the gold document of qa_1 is number 24 of 26
at 4K, always.
"""

from random import Random

import pytest

from rulerkit.corpora import load_qa
from rulerkit.example import Example, Piece
from rulerkit.generation import generate
from rulerkit.tasks import THIRTEEN, task

EXAMPLES = 500


def depth_of_an_answer(example: Example, random: Random) -> float:
    """Where one answer drawn among an example's stands in the context, 0 to 1: by tokens, for QA by
    document."""
    start, stop = example.context
    pieces: list[Piece] = [
        p for b in example.blocks[start:stop] for p in (b.explode() if b.explode else [b])
    ]
    sizes = [1 if example.task.startswith("qa") else piece.num_tokens for piece in pieces]
    answers = [i for i, piece in enumerate(pieces) if piece.role == "needle"]
    chosen = answers[random.randrange(len(answers))]
    return (sum(sizes[:chosen]) + random.random() * sizes[chosen]) / sum(sizes)


@pytest.mark.parametrize("name", THIRTEEN)
def test_answers_may_stand_anywhere(name: str) -> None:
    from scipy.stats import kstest

    random = Random(f"which answer of {name}")
    examples = generate(task(name).with_corpora("builtin"), 4096, EXAMPLES)
    depths, layouts = [], set()
    for example in examples:
        depths.append(depth_of_an_answer(example, random))
        layouts.add(example.context_text)
    assert kstest(depths, "uniform").pvalue > 0.01
    assert len(layouts) == EXAMPLES


def test_questions_come_from_all_articles() -> None:
    data = load_qa("fictional")
    asked = generate(task("qa_1").with_corpora("builtin"), 4096, EXAMPLES)
    gold = {int(str(p.key)) for example in asked for p in example.blocks if p.role == "needle"}
    assert {data.groups[document] for document in gold} == set(data.groups)

"""Positions that are free: over 300 examples the answer's depth passes for uniform, and no layout
comes twice. Upstream re-seeds its shuffles for every example."""

from random import Random

import pytest

from rulerkit.generation.corpora import load
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import THIRTEEN, task

EXAMPLES = 300


def depth_of_an_answer(example, random):
    """Where one answer drawn among an example's stands in the context, 0 to 1: by tokens, for QA by
    document."""
    pieces = [p for p in example.pieces if p.role in ("haystack", "needle", "distractor")]
    sizes = [1 if example.task.startswith("qa") else piece.num_tokens for piece in pieces]
    answers = [i for i, piece in enumerate(pieces) if piece.role == "needle"]
    chosen = answers[random.randrange(len(answers))]
    return (sum(sizes[:chosen]) + random.random() * sizes[chosen]) / sum(sizes)


QUICK = ("niah_single_2", "vt", "qa_1")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in THIRTEEN]
)
def test_answers_may_stand_anywhere(name):
    from scipy.stats import kstest

    random = Random(f"which answer of {name}")
    examples = list(generate(task(name).with_corpora("builtin"), 4096, EXAMPLES))
    depths = [depth_of_an_answer(example, random) for example in examples]
    assert kstest(depths, "uniform").pvalue > 0.01
    assert len({example.context_text for example in examples}) == EXAMPLES
    if name == "qa_1":
        groups = load("qa", "fictional").groups
        gold = {int(str(p.key)) for e in examples for p in e.blocks if p.role == "needle"}
        assert {groups[document] for document in gold} == set(groups)

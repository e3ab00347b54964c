"""Readers with planted effects: what is planted is found again, at its rate."""

import pytest

from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import task
from rulerkit.inference.model import load_model
from rulerkit.scoring.scores import score
from rulerkit.scoring.statistics import wilson
from tests.records import predict

MANY = 120


def reader(**effects):
    return load_model({"engine": "planted", "name": "planted", **effects})


def within(seen, planted, num_trials):
    """Whether a planted rate lies in the 99.9 % interval of what was seen in independent trials."""
    low, high = wilson(seen, num_trials, 0.999)
    return low <= planted <= high


@pytest.mark.parametrize(
    ("effects", "spec", "items", "expected"),
    [
        ({"drop": 0.3}, "cwe", 10, 0.7),
        # The first has no other key to be taken for.
        ({"confuse": 0.4}, "niah_multiquery", 4, (1 + 3 * 0.6) / 4),
        ({"copies": 0.35}, {"base": "cwe", "demonstration": False}, 1, 0.65),
        ({"drop": 0.5, "memory": 0.4}, "qa_1", 1, 0.4 + 0.6 * 0.5),
    ],
)
def test_a_planted_rate_is_the_one_that_is_scored(effects, spec, items, expected, tmp_path):
    examples = generate(task(spec).with_corpora("builtin"), 1024, MANY)
    cell = predict(reader(**effects), examples, tmp_path / "run", progress=False)
    seen = float(score([cell])["score"].mean())
    assert within(seen, expected, MANY * items), f"{seen:.3f} seen, {expected:.3f} planted"
    assert not within(seen, expected - 0.3, MANY * items), "it would pass for any rate"


def test_effects_belong_to_the_identity_and_the_label():
    dropping = reader(base="reader-8192", drop=0.2)
    # Old predictions stay valid.
    plain = {"engine": "reader", "window": 8192, "reader_version": 1}
    assert load_model("reader-8192").identity() == plain
    assert dropping.identity() == plain | {"drop": 0.2}
    assert dropping.label == "reader (8K window, drops 20%)"

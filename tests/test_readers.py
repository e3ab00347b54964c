"""Readers with planted effects: what is planted is found again, at its rate."""

import pytest

from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import DIRECT
from rulerkit.generation.tasks import task
from rulerkit.inference.model import load_model
from rulerkit.scoring.scores import score
from rulerkit.scoring.statistics import wilson
from tests.records import predict

MANY = 120


def asked(spec, length=2048, num_examples=MANY):
    return generate(task(spec).with_corpora("builtin"), length, num_examples)


def reader(**effects):
    return load_model({"engine": "planted", "name": "planted", **effects})


def mean_score(model, examples, folder):
    return float(score([predict(model, examples, folder / "run", progress=False)])["score"].mean())


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
        ({"confuse": 0.4}, "vt_2_chains", 3, 0.6),
        ({"copies": 0.35}, {"base": "cwe", "demonstration": False}, 1, 0.65),
        ({"drop": 0.5, "memory": 0.4}, "qa_1", 1, 0.4 + 0.6 * 0.5),
    ],
)
def test_a_planted_rate_is_the_one_that_is_scored(effects, spec, items, expected, tmp_path):
    seen = mean_score(reader(**effects), asked(spec), tmp_path)
    assert within(seen, expected, MANY * items), f"{seen:.3f} seen, {expected:.3f} planted"
    assert not within(seen, expected - 0.3, MANY * items), "it would pass for any rate"


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.parametrize(("name", "half"), [("niah_single_2", 1500), ("vt", 1500)])
def test_what_fades_is_found_less_often_the_farther_it_stands(name, half):
    near, far, expected = [], [], []
    for example, answer in reader(fade=half).answer(asked(name, 4096)):
        before = 0
        for piece in example.pieces:
            if piece.role == "needle":
                away = example.num_tokens - before
                found = str(piece.key if name == "vt" else piece.value) in answer.text
                (near if away < 2048 else far).append(found)
                expected.append(2 ** (-away / half))
            before += piece.num_tokens
    planted = sum(expected) / len(expected)
    assert within(sum(near + far) / len(expected), planted, len(expected))
    assert sum(near) / len(near) > sum(far) / len(far) + 0.1


def test_effects_read_the_question_in_prompts_that_ask_for_a_direct_answer(tmp_path):
    model = reader(drop=0.0, template="gpt-4")
    one = task("qa_1").with_corpora("builtin")
    examples = generate(one, 2048, 5, prompt_format=model.prompt_format)
    assert DIRECT in examples[0].prompt
    assert mean_score(model, examples, tmp_path) == 1


def test_effects_belong_to_the_identity_and_the_label():
    plain, dropping = load_model("reader-8192"), reader(base="reader-8192", drop=0.2)
    # Old predictions stay valid.
    assert plain.identity() == {"engine": "reader", "window": 8192, "reader_version": 1}
    assert dropping.identity() == plain.identity() | {"drop": 0.2}
    assert dropping.engine == "reader"
    assert dropping.label == "reader (8K window, drops 20%)"
    assert reader(fade="8K").label == "reader (fades by half every 8192 tokens)"

"""The reference readers on the original corpora: their scores are known, so the whole instrument
is."""

import os

import pytest

import rulerkit as rk
from rulerkit.generation.tasks.base import string_match_all, string_match_part
from rulerkit.scoring.effective_length import THRESHOLDS

pytestmark = pytest.mark.skipif(
    "RULERKIT_DATA" not in os.environ, reason="RULERKIT_DATA names no original corpora"
)
TOKENIZERS = (
    "llama-2",
    pytest.param("llama-3", marks=pytest.mark.slow),
    pytest.param("qwen2.5", marks=pytest.mark.slow),
)


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
def test_readers_answer_exactly_what_is_inside_their_window(tokenizer):
    """All of the prompt scores 100 in every task; half of it is below the threshold."""
    folder = f"{os.environ['RULERKIT_DATA']}/tokenizers/{tokenizer}"
    specs = ({"engine": "reader"}, {"window": 4096}, {"window": 2048})
    models = [rk.load_model({**spec, "name": "reader", "tokenizer": folder}) for spec in specs]
    halves = []
    for name in rk.THIRTEEN:
        match = string_match_part if rk.task(name).match == "part" else string_match_all
        examples = list(rk.generate(name, 4096, 4, prompt_format=models[0].prompt_format))
        answers = [[answer.text for _, answer in model.answer(examples)] for model in models]
        whole, window, half = (
            sum(
                match(text, example.references)
                for text, example in zip(texts, examples, strict=True)
            )
            / len(examples)
            for texts in answers
        )
        assert whole == window == 1, name
        halves.append(half)
    assert 100 * sum(halves) / len(halves) < THRESHOLDS["chat"]["all"]

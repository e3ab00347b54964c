"""Soft scores: the probability of the right answer, as a real small model gives it, stored beside
its answers and compared.

`tests/test_vllm.py` holds vLLM's to those of transformers.
"""

import json
import math

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.analysis.compare import compare
from rulerkit.common.errors import UserError
from rulerkit.common.paths import resolve
from rulerkit.evaluation.soft import Token, reference_ids
from rulerkit.inference.model import load_model
from rulerkit.report.comparison import difference_table
from rulerkit.store.cells import soft_file
from tests.test_openai import client, serving
from tests.text_server import ReaderServer

NEEDLES = [
    {"base": f"niah_{kind}", "name": f"niah_{kind}_small", "max_new_tokens": 12}
    for kind in ("single_2", "multikey_1")
]
CHAINS = {"base": "vt", "name": "vt_small", "num_hops": 2, "demonstration": False}


def asked(folder, model, soft=True, **more):
    common = {"tasks": NEEDLES, "lengths": [256], "num_examples": 3, "outputs": str(folder)}
    return rk.study(common | more, model=model, soft=soft)


def test_soft_scores_are_what_the_network_says_and_are_added_to_stored_answers(tmp_path):
    torch = pytest.importorskip("torch")
    tasks = [*NEEDLES, CHAINS | {"max_new_tokens": 24}]
    rk.evaluate(asked(tmp_path, "small-llama", soft=False, tasks=tasks), progress=False)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.jsonl")}
    study = asked(tmp_path, "small-llama", tasks=tasks)
    cells = rk.evaluate(study, progress=False)
    assert {path: path.read_bytes() for path in files} == files
    scores = rk.load(tmp_path)
    assert scores["gold_probability"].isna().equals(scores["task"] == "vt_small")
    soft = scores.dropna(subset=["gold_probability"])
    assert (soft["gold_greedy"] == soft["score"]).all()
    assert soft["score"].nunique() == 2

    model = load_model(study.models[0])
    network = model.load()
    cell = next(cell for cell in cells if cell.task == "niah_multikey_1_small")
    for example in rk.generate(study.tasks[1], 256, 3, prompt_format=model.prompt_format):
        (ids,) = reference_ids(example, model.prompt_format)
        whole = [*example.ids.tolist(), *ids]
        text = example.prompt + " " + example.references[0]
        assert whole[1:] == model.prompt_format.tokenizer.encode(text).tolist()  # behind the BOS
        with torch.no_grad():
            probabilities = network(torch.tensor([whole])).logits[0].double().softmax(-1)
        own = [float(probabilities[len(whole) - len(ids) - 1 + i, t]) for i, t in enumerate(ids)]
        row = cell.soft[example.index]
        assert row["gold_product"] == pytest.approx(math.prod(own), rel=1e-4)
        assert row["gold_probability"] == pytest.approx(math.prod(own) ** (1 / len(ids)), rel=1e-4)
        assert row["num_tokens"] == len(ids)

    path = soft_file(cell.path)  # a torn line is computed again, and so is all after --fresh
    path.write_bytes(path.read_bytes()[:-9])
    again = {cell.task: cell.soft for cell in rk.evaluate(study, progress=False)}
    for index, row in cell.soft.items():
        assert again[cell.task][index] == pytest.approx(row)
    chunked = {"base": "small-llama", "name": "chunked", "prefill_chunk_size": 100}
    for task, rows in ((c.task, c.soft) for c in rk.evaluate(asked(tmp_path, chunked))):
        for index, row in rows.items():
            expected = again[task][index]["gold_probability"]
            assert row["gold_probability"] == pytest.approx(expected, rel=1e-4)
    rk.evaluate(study, fresh=True, progress=False)
    assert list(path.parent.glob("256.soft.*.bak.jsonl"))
    assert len(path.read_bytes().splitlines()) == 3


def test_models_that_do_not_tell_are_refused_before_they_are_asked(tmp_path):
    with pytest.raises(UserError, match=r"reader-4096 .* leave `soft` out"):
        rk.evaluate(asked(tmp_path, "reader-4096"), progress=False)
    said = pytest.raises(UserError, match="engine transformers or vllm")
    with serving(ReaderServer(rk.load_tokenizer("builtin"))) as server, said:
        rk.evaluate(asked(tmp_path, client(server)), progress=False)
    assert server.real == []
    assert list(tmp_path.rglob("*.jsonl")) == []


def test_a_model_whose_generate_was_replaced_does_not_tell(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs torch too")
    network = load_model("small-llama").load()
    network.generate = lambda **options: options["input_ids"]
    words = resolve("rulerkit/data/small/tokenizer")
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(words)
    model = rk.model((network, tokenizer), name="patched")
    with pytest.raises(UserError, match="its `generate` was replaced, and soft scores come from"):
        rk.evaluate(asked(tmp_path, model), progress=False)


def soft_model(name, chance):
    """A function that answers by its chance, and says a probability for each token."""

    def gold_logprobs(references):
        for example, rows in references:
            p = chance(example)
            yield (
                example,
                [[Token(math.log(p / (n + 1)), p > 0.5)] * len(r) for n, r in enumerate(rows)],
            )

    model = rk.model(lambda prompts: ["nothing"] * len(prompts), name=name, tokenizer="builtin")
    model.gold_logprobs = gold_logprobs
    return model


def test_of_several_references_the_likeliest_counts(tmp_path):
    model = soft_model("m", lambda example: 0.6)
    questions = [
        {"question": f"Who is {i}?", "answers": [f"King {i}", f"the {i} king"]}
        | {"gold_documents": [f"{i} is King {i}."], "other_documents": [f"{i} is no queen."]}
        for i in range(40)
    ]
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    (tmp_path / "own.jsonl").write_text(lines, encoding="utf-8")
    qa = {"qa": str(tmp_path / "own.jsonl")}
    study = asked(tmp_path, model, tasks=["qa_1"], lengths=[1024], corpora=qa)
    (cell,) = rk.evaluate(study, progress=False)
    assert all(len(row["outputs"]) == 2 for row in cell.rows)
    for row in cell.soft.values():
        assert (row["gold_probability"], row["gold_greedy"]) == (pytest.approx(0.6), True)


def test_compare_shows_the_soft_difference_and_judges_it_where_asked(tmp_path):
    random = np.random.RandomState(0)
    noise = random.uniform(0.3, 0.6, 40)
    for name, loss in (("a", 0.0), ("b", 0.1)):
        model = soft_model(name, lambda example, loss=loss: noise[example.index] - loss)
        rk.evaluate(asked(tmp_path, model, num_examples=40, lengths=[512]), progress=False)
    by_accuracy = compare("a", "b", outputs=tmp_path)
    accuracy, probability = by_accuracy.soft.to_dict("records")
    assert by_accuracy.verdict.word == "not worse" or by_accuracy.verdict.needed
    assert (accuracy["difference"], probability["difference"]) == (0, pytest.approx(-10))
    assert probability["high"] < 0
    assert probability["needed"] < 40 < accuracy["needed"]
    assert "probability of the 80 examples with soft scores: -10.00" in difference_table(
        by_accuracy
    )
    assert "soft=True (--soft) judges this loss" in difference_table(by_accuracy)
    assert "judges this loss" not in difference_table(compare("b", "a", outputs=tmp_path))
    by_probability = compare("a", "b", outputs=tmp_path, soft=True)
    assert by_probability.verdict.word == "worse"
    assert by_probability.flips.empty, "no answer has another score"
    more = compare("a", "b", outputs=tmp_path, soft=True, num_examples=2 * probability["needed"])
    assert more.mean["high"] < 0, "a few more than were said show the difference"
    rk.evaluate(asked(tmp_path, "mute", soft=False, num_examples=2, lengths=[512]))
    with pytest.raises(UserError, match="share no example with soft scores"):
        compare("mute", "b", outputs=tmp_path, by="index", soft=True)

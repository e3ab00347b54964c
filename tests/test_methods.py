"""Methods that are not models: functions that take the two parts of a prompt, caches compressed
without the question, and functions that fail at some prompts."""

import re
from pathlib import Path

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.common.errors import ModelError
from rulerkit.generation.example import split_prompt
from rulerkit.generation.tokenizers import Tokenizer
from rulerkit.inference.model import model
from tests.records import predict


def needles(form, count, base="niah_multikey_1", length=256):
    spec = {"base": base, "name": "needle_small", "max_new_tokens": 12}
    made = rk.task(spec).with_corpora("builtin")
    return rk.generate(made, length, count, prompt_format=form)


@pytest.mark.parametrize("template", ["base", "llama3", "glm"])
def test_parts_joined_are_the_prompt(vocabulary, template):
    form = rk.PromptFormat(vocabulary, template=template)
    alone = {"base": "qa_1", "context": "none"}
    for spec in ("niah_multiquery", rk.task("vt", "paper"), "cwe", "qa_1", alone):
        example = rk.generate(rk.task(spec).with_corpora("builtin"), 1024, 1, prompt_format=form)[0]
        parts = split_prompt(example, form)
        assert parts.context + parts.question == example.prompt
        joined = np.concatenate([parts.context_ids, parts.question_ids])
        whole = [*form.bos, *vocabulary.encode(example.prompt).tolist()]
        assert joined.tolist() == example.ids.tolist() == whole
        assert joined.dtype == np.int32

        after = form.around[1]
        tail = example.text_of("question") + after + example.answer_prefix
        if example.context_blocks:
            assert parts.question == tail
            assert parts.context.endswith(example.context_text)
            text = vocabulary.decode(parts.context_ids[len(form.bos) :])
            plain = vocabulary.decode(vocabulary.encode(parts.context))
            assert text == plain, "the ids are those of the context"
        else:
            assert parts.context_ids.tolist() == list(form.bos)


def test_a_token_across_the_border_belongs_to_the_question():
    """A vocabulary whose tokens are three letters each has no clean cut."""

    def encode(text):
        threes = [text[i : i + 3].encode()[:4] for i in range(0, len(text), 3)]
        return [int.from_bytes(three, "big") % 2**31 for three in threes]

    def encode_many(texts):
        return [encode(text) for text in texts]

    form = rk.PromptFormat(Tokenizer(encode_many, str), template="base")
    inside = 0
    for example in needles(form, 6, length=512):
        assert example.whole_ids is not None
        parts = split_prompt(example, form)
        joined = [*parts.context_ids.tolist(), *parts.question_ids.tolist()]
        assert joined == form.tokenizer.encode(example.prompt).tolist()
        # All whole tokens of the context, and none that holds a letter of the question.
        assert len(parts.context_ids) == len(parts.context) // 3
        inside += len(parts.context) % 3 > 0
    assert inside, "one border at least lies inside a token"


def test_tables_say_that_the_context_was_compressed(tmp_path):
    def answer(parts):
        return ["none" for _ in parts]

    spec = {"takes": "parts", "tokenizer": "builtin"}
    ours = model(answer, name="ours", **spec)
    plain = rk.load_model("perfect")
    cells = [predict(one, needles(one.prompt_format, 2), tmp_path) for one in (ours, plain)]
    note = "the context was compressed without the question"
    assert [cell.about.protocol_note for cell in cells] == [note, None]
    assert "protocol_note" not in cells[1].record
    summary = rk.summarize(rk.score(cells))
    notes = rk.tables.cell_notes(summary.cells)
    assert f"{note} (ours)" in notes[0]
    assert note in rk.plots.remarks(summary.cells)


class Capricious:
    """Answers with the number of the call; has no answer for one prompt, and raises at another."""

    def __init__(self, none, raising):
        self.none, self.raising, self.calls = none, raising, 0

    def __call__(self, prompts):
        self.calls += 1
        if any(self.raising in prompt for prompt in prompts):
            raise ValueError("this prompt is odd")
        return [None if self.none in prompt else "42" for prompt in prompts]


def test_what_fails_is_kept_and_asked_again_and_the_rest_is_stored(tmp_path):
    form = rk.PromptFormat("builtin")
    examples = needles(form, 6)
    answers = Capricious(examples[1].prompt, examples[4].prompt)
    one = model(answers, name="m")
    cell = predict(one, examples, tmp_path)
    assert cell.coverage.have == {0, 2, 3, 5}
    reasons = {index: failure.reason for index, failure in cell.coverage.failed.items()}
    assert sorted(reasons) == [1, 4]
    assert reasons[1] == "example 1: the function returned None"
    assert reasons[4].startswith("example 4: the function raised ValueError: this prompt is odd (")
    assert "test_methods.py, line " in reasons[4]
    assert answers.calls == 7, "the batch, then each of its prompts alone"

    # The next call asks for these two alone: both at once, then each.
    again = predict(one, examples, tmp_path)
    assert answers.calls == 10
    assert again.coverage.have == cell.coverage.have


def test_a_function_that_only_raises_ends_the_work_with_the_first_example(tmp_path):
    def broken(prompts):
        return [nothing for _ in prompts]  # noqa: F821

    examples = needles(rk.PromptFormat("builtin"), 12)
    with pytest.raises(ModelError) as caught:
        predict(model(broken, name="broken"), examples, tmp_path)
    said = str(caught.value)
    assert "\n" not in said
    for part in ("first 8 prompts", "NameError", "line "):
        assert part in said


def texts(one, examples):
    return {example.index: answer.text for example, answer in one.answer(examples)}


@pytest.mark.slow
def test_the_module_of_the_notebook_compresses_what_the_context_left(tmp_path):
    pytest.importorskip("torch").set_num_threads(1)
    plain = rk.load_model("small-llama")
    examples = needles(plain.prompt_format, 8, "niah_single_1")

    def one(ratio):
        made = {"model": plain.spec, "method": "notebooks.compressed_cache:window", "ratio": ratio}
        spec = {"entry": "notebooks.compressed_cache:compressed", "entry_with": made}
        spec |= {"name": f"window-{ratio}", "takes": "parts", "batch_size": 1, "template": "base"}
        return rk.load_model(spec | {"tokenizer": plain.spec["tokenizer"]})

    whole, least = one(0), one(0.98)
    assert whole.identity() != least.identity()
    assert texts(whole, examples) == texts(plain, examples)
    cells = [predict(model, examples, tmp_path) for model in (whole, least)]
    assert cells[0].about.protocol_note.startswith("the context was compressed")
    scores = rk.score(cells).groupby("model")["score"].mean()
    assert scores[least.name] < scores[whole.name] - 0.5


def test_the_code_of_the_page_runs_as_printed():
    page = Path(__file__).parents[1].joinpath("docs/methods.md").read_text("utf-8")
    function, press = re.findall(r"```python\n(.*?)```", page, re.S)
    assert "KnormPress" in press  # kvpress is not installed with the tests

    names = {"answer_from": lambda context, question: str(len(context))}
    exec(function, names)
    examples = needles(names["mine"].prompt_format, 2, length=1024)
    assert set(texts(names["mine"], examples).values()) == {"2000"}

"""`rulerkit check` passes popular chat templates, and catches every fault that is put in."""

import json
from dataclasses import replace

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.batch.checks import Case, check, check_case, check_model
from rulerkit.evaluation.study import study
from rulerkit.generation.example import Piece
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import read_answer, task
from tests.test_prompt_format import LLAMA3_LIKE
from tests.tiny_llama import save_tokenizer

LENGTH = 2048
TASKS_CHECKED = ("niah_multikey_2", "niah_multivalue", "vt", "cwe", "fwe", "qa_2")
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{{ '<start_of_turn>' + m.role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)
# name -> (chat template, special tokens, the one that is BOS, whether the tokenizer adds it)
TEMPLATES = {
    "llama-3.1": (
        LLAMA3_LIKE,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|begin_of_text|>",
        True,
    ),
    "qwen2.5": (CHATML, ("<|im_start|>", "<|im_end|>"), None, False),
    "gemma": (GEMMA, ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"), "<bos>", True),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A byte-level BPE vocabulary, trained on prompts."""
    tasks = [task(name).with_corpora("builtin") for name in TASKS_CHECKED]
    texts = [example.prompt for one in tasks for example in generate(one, 4096, 2, seed=7)]
    place = tmp_path_factory.mktemp("trained")
    save_tokenizer(place, texts, 6000, bos=False)
    return place / "tokenizer.json"


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """Makes a folder with the tokenizer and chat template of one of TEMPLATES, and a config.json
    beside them."""
    from tokenizers import Tokenizer, normalizers, processors

    def make(name, template=None, lower=False):
        text, special, bos, added = TEMPLATES[name]
        place = tmp_path_factory.mktemp(name.replace(".", "-"))
        backend = Tokenizer.from_file(str(trained))
        backend.add_special_tokens(list(special))
        if lower:
            backend.normalizer = normalizers.Lowercase()
        if added and bos:
            backend.post_processor = processors.TemplateProcessing(
                single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
            )
        backend.save(str(place / "tokenizer.json"))
        settings = {"bos_token": bos, "eos_token": special[1], "add_bos_token": added}
        settings["chat_template"] = template or text
        (place / "tokenizer_config.json").write_text(json.dumps(settings))
        config = {"model_type": "llama", "vocab_size": backend.get_vocab_size()}
        (place / "config.json").write_text(json.dumps(config))
        return place

    return make


def asked_of(tokenizer, function=None, **spec):
    return rk.model(function or answers, name="m", tokenizer=str(tokenizer), **spec)


def answers(prompts):
    return [read_answer(prompt) or "" for prompt in prompts]


def one(model, spec="vt", length=LENGTH, index=0):
    asked = task(spec).with_corpora("builtin")
    return Case(model, asked, generate(asked, length, index + 1, 42, model.prompt_format)[index])


def fails(findings):
    return {finding.name for finding in findings}


@pytest.mark.parametrize(
    ("name", "prefix_in"),
    [("llama-3.1", "assistant"), pytest.param("gemma", "user", marks=pytest.mark.slow)],
)
def test_popular_templates_pass(folder, name, prefix_in):
    model = asked_of(folder(name), prefix_in=prefix_in)
    tasks = [task(name).with_corpora("builtin") for name in ("niah_multivalue", "vt", "qa_2")]
    assert fails(check_model(model, tasks, [LENGTH])) == set()


def with_ids(whole, ids, example=None):
    return whole._replace(example=replace(example or whole.example, whole_ids=ids))


def with_blocks(whole, blocks, example=None):
    """The case of an example with other pieces, and the ids of its text."""
    changed = replace(example or whole.example, blocks=tuple(blocks))
    return with_ids(whole, ids_of(whole, changed.prompt), changed)


def ids_of(whole, text):
    form = whole.model.prompt_format
    return np.array([*form.bos, *form.tokenizer.encode(text)], np.int32)


def template_not_counted(whole):
    """Made for the bare tokenizer, and framed afterwards."""
    form = whole.model.prompt_format
    made = generate(whole.task, LENGTH, 1, 42, PromptFormat(form.tokenizer, template="base"))[0]
    before, after = (Piece(text, "template") for text in form.around)
    *rest, prefix = made.blocks
    return with_blocks(whole, [before, *rest, after, prefix], made)


def changed_ids(change):
    return lambda whole: with_ids(whole, np.concatenate(change(whole.example.ids)))


FAULTS = [
    ("BOS", changed_ids(lambda ids: [ids[:1], ids])),
    ("BOS", changed_ids(lambda ids: [ids[1:]])),
    (
        "needles",
        lambda whole: with_blocks(whole, [b for b in whole.example.blocks if b.role != "needle"]),
    ),
    ("budget", template_not_counted),
]


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_faulty_prompt_is_caught(folder, name, fault):
    whole = one(asked_of(folder("llama-3.1")))
    assert fails(check_case(whole)) == set()
    (finding,) = [f for f in check_case(fault(whole)) if f.name == name]
    assert finding.fix
    assert finding.where == f"vt at {LENGTH}, example 0"


def test_the_template_of_another_model(folder):
    own = folder("llama-3.1")
    for form, found in (("qwen", {"template"}), (CHATML, {"template"}), ("base", set())):
        assert fails(check_case(one(asked_of(own, template=form)))) == found, form


def test_the_tokenizer_of_another_model(folder):
    own = folder("gemma")
    right = rk.load_model({"path": str(own), "name": "m"})
    assert fails(check_case(one(right))) == set()
    other = str(folder("gemma", lower=True))
    wrong = rk.load_model({"path": str(own), "name": "m", "tokenizer": other})
    assert "tokenizer" in fails(check_case(one(wrong)))


def test_a_chat_model_without_a_template_is_a_finding(folder):
    place = folder("qwen2.5")
    (place / "tokenizer_config.json").write_text("{}")
    spec = {"path": str(place), "name": "m", "aligned": "chat"}
    found = check(study({"models": [spec], "lengths": [LENGTH]}))["m"]
    assert fails(found) == {"prompt"}
    assert "no chat template" in found[0].seen

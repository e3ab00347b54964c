"""Vocabularies of every kind: counts on the real essays, round trips, special tokens, and what is
no tokenizer."""

import json
import unicodedata

import pytest

from rulerkit.common.errors import UserError
from rulerkit.generation.tokenizers import load_tokenizer

MISTRAL = "mistral/mistral_instruct_tokenizer_"
ESSAY_TOKENS = {  # tokens of PaulGrahamEssays.json, as counted by the vocabularies' own libraries
    "llama-2": 803_956,
    "llama-3": 694_684,
    "qwen2.5": 699_592,
    "mistral/tokenizer.model.v1": 785_185,
    f"{MISTRAL}240216.model.v2": 785_185,
    f"{MISTRAL}241114.model.v7": 785_185,
    "gpt-neox/20B_tokenizer.json": 730_592,
    "rwkv": 713_819,
    "cl100k_base": 694_767,
    "o200k_base": 679_937,
    "deepseek-v4": 696_295,
}
BOS = {"llama-2": 1, "llama-3": 128000, "mistral/tokenizer.model.v1": 1}
MIXED = (
    "The grass is green.  Two blanks, naïve café, “quotes” — 3,141.59 & 50%!\n\nVAR ABCDE = VAR "
    "XYZWQ \n"
    "中文字符 日本語 한국어 עברית العربية हिन्दी 🙂👩‍👩‍👧 x² ½\tTab\r\nCRLF "
    "550e8400-e29b-41d4-a716-446655440000.\n"
)


def load(data, name):
    return load_tokenizer(str(data / "tokenizers" / name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ESSAY_TOKENS)
def test_counts_on_the_essays(request, data, name):
    text = json.loads((data / "essays/PaulGrahamEssays.json").read_text(encoding="utf-8"))["text"]
    if name.endswith("_base"):
        vocabulary = request.getfixturevalue("encoding")(name)
    else:
        vocabulary = load(data, name)
    assert vocabulary.count(text) == ESSAY_TOKENS[name]
    want = 1 if name.startswith(MISTRAL) else BOS.get(name)
    assert vocabulary.leading_ids == (() if want is None else (want,))
    assert want not in vocabulary.encode("plain text").tolist()


def test_round_trip(vocabulary):
    back = vocabulary.decode(vocabulary.encode(MIXED))
    assert unicodedata.normalize("NFC", back) == unicodedata.normalize("NFC", MIXED)


@pytest.mark.parametrize(
    ("name", "text", "first", "last"),
    [
        ("llama-3", "<|begin_of_text|>a<|eot_id|>", [128000, 64], 128009),
        ("qwen2.5", "<|im_start|>a<|im_end|>", [151644, 64], 151645),
        (f"{MISTRAL}240323.model.v3", "<s>[INST] Hi[/INST]", [1, 3], 4),
    ],
)
def test_special_tokens_in_a_text_become_their_ids(data, name, text, first, last):
    ids = load(data, name).encode(text).tolist()
    assert (ids[:2], ids[-1]) == (first, last)


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"tokenizer_config.json": {"chat_template": "config"}}, "config"),
        ({"chat_template.jinja": "jinja", "tokenizer_config.json": {"chat_template": "config"}}, "jinja"),
        ({"tokenizer_config.json": {"chat_template": [
            {"name": "rag", "template": "rag"}, {"name": "default", "template": "plain"}]}}, "plain"),
        ({}, None),
    ],
)  # fmt: skip
def test_the_chat_template_of_a_folder(data, tmp_path, files, template):
    (tmp_path / "tokenizer.model").symlink_to(data / "tokenizers" / "mistral/tokenizer.model.v1")
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    assert load_tokenizer(str(tmp_path)).chat_template == template


@pytest.mark.parametrize("spec", ["nothing", "org/x--y", "", "\0"])
def test_a_name_of_nothing(spec):
    with pytest.raises(UserError) as error:
        load_tokenizer(spec)
    assert "\n" not in str(error.value)

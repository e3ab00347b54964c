"""Damaged tokenizer files: a tokenizer that gives ids and text, or one line; no traceback, no
crash, no hang."""

import json
import shutil

import pytest
from faults import cases, result_or_line
from hypothesis import given
from hypothesis import strategies as st

from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tokenizers import load_tokenizer

TEXT = "It is 12:30.\n\nVAR AB = 5 — <s>naïve 中文</s>"
TEMPLATE = "{% for m in messages %}<s>{{ m['content'] }}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
SETTINGS = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>"},
    "add_bos_token": True,
    "chat_template": TEMPLATE,
}
ADDED = {"<|im_start|>": 280, "<|im_end|>": 281}
BYTES = [(bytes([byte]), byte) for byte in range(256)] + [(b"It", 256), (b" is", 257)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A small file of each kind, and the settings beside it."""
    import sentencepiece
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("tokenizers")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=letters,
        show_progress=False,
    )
    backend.train_from_iterator([TEXT] * 9, trainer)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT.replace("\n", " ")] * 9),
        model_prefix=str(folder / "small"),
        vocab_size=300,
        byte_fallback=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return {
        "tokenizer.json": backend.to_str().encode(),
        "tokenizer.model": (folder / "small.model").read_bytes(),
        "rwkv_vocab.txt": b"".join(
            b"%d %r %d\n" % (rank + 1, token, len(token)) for token, rank in BYTES
        ),
    }


def read(spec):
    """What a tokenizer makes of a text, and of a chat."""
    load_tokenizer.cache_clear()
    tokenizer = load_tokenizer(spec)
    ids = tokenizer.encode(TEXT)
    _ = PromptFormat(tokenizer).around, PromptFormat(tokenizer).bos
    return len(ids), tokenizer.decode(ids)


def test_the_files_are_good(files, tmp_path):
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        assert "12:30" in read(str(tmp_path / name))[1]


@cases
@given(data=st.data())
def test_a_damaged_tokenizer_is_one_line(files, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("tokenizer")
    name = data.draw(st.sampled_from(list(files)))
    contents = {
        name: files[name],
        "tokenizer_config.json": json.dumps(SETTINGS).encode(),
        "added_tokens.json": json.dumps(ADDED).encode(),
    }
    target = data.draw(st.sampled_from(list(contents)))
    content = contents[target]
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        stop = start + data.draw(st.sampled_from([0, 1, 2, 5, 60, len(content)]))
        junk = data.draw(
            st.binary(max_size=4)
            | st.sampled_from([b"null", b"[]", b"{}", b"-1", b"1e9", b'"x"', b"99999999"])
        )
        content = content[:start] + junk + content[stop:]
    for path, text in (contents | {target: content}).items():
        (folder / path).write_bytes(text)
    result_or_line(read, str(folder / name))
    shutil.rmtree(folder)

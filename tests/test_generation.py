"""Examples as a function: exact ids, full budgets, the same example from anywhere, golden
digests."""

import hashlib
import json
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.generation.example import ROLES
from rulerkit.generation.pieces import piece_encoder
from rulerkit.generation.tokenizers import Tokenizer

QA = ("qa_1", "qa_2")
RULER = list(rk.TASKS)
ONE_OF_EACH = ("niah_single_1", "niah_single_2", "niah_multikey_3", "vt", "cwe", "fwe", "qa_1")
"""A task of each kind of haystack."""


def builtin(spec):
    return rk.task(spec).with_corpora("builtin")


def filled(example):
    """The share of the length that prompt and answer take, in percent."""
    return 100 * (example.num_tokens + example.max_new_tokens) / example.length


def check_example(example, bos, tokenizer):
    """Text and ids are their pieces, joined; the budget holds; needles are where pieces say."""
    pieces = example.pieces
    assert "".join(piece.text for piece in pieces) == example.prompt
    assert {piece.role for piece in pieces} <= set(ROLES)
    assert example.ids.dtype == np.int32
    assert np.array_equal(example.ids, [*bos, *tokenizer.encode(example.prompt)])
    assert example.num_tokens == len(example.ids) <= example.length - example.max_new_tokens
    if example.whole_ids is not None:
        return
    assert np.array_equal(np.concatenate([piece.tokens for piece in pieces]), example.ids)
    needles = [piece for piece in pieces if piece.role == "needle"]
    for piece in needles:
        text = unicodedata.normalize("NFC", tokenizer.decode(piece.tokens).strip())
        assert text == unicodedata.normalize("NFC", piece.text.strip())
    family, texts = rk.task(example.task).family, [piece.text for piece in needles]
    if family == "niah":
        assert len(texts) == len(example.references)
    if family != "question_answering":
        assert all(any(reference in text for text in texts) for reference in example.references)


@pytest.mark.parametrize("length", [1024, 4096])
def test_every_task_fits_and_fills(vocabulary, length):
    form = rk.PromptFormat(vocabulary, template="base")
    wanted = {1024: (90.0, 70.0), 4096: (99.0, 90.0)}[length]
    for name in RULER if vocabulary.name == "builtin" else ONE_OF_EACH:
        example = rk.generate(builtin(name), length, 1, prompt_format=form)[0]
        check_example(example, form.bos, vocabulary)
        assert filled(example) >= wanted[name in QA], name


def test_lines_of_one_size_fill_too():
    asked = builtin({"base": "niah_multikey_2", "key": "numbers"})
    assert all(filled(example) >= 99 for n in (4096, 8192) for example in rk.generate(asked, n, 2))


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["gpt-neox", "llama-2", "rwkv"])
def test_the_longest_of_the_paper(data, folder):
    """On the original corpora."""
    tokenizer = rk.load_tokenizer(str(data / "tokenizers" / folder))
    form = rk.PromptFormat(tokenizer, template="base")
    for name in ("niah_multikey_1", "niah_multikey_3", "vt", "cwe", "fwe", "qa_2"):
        example = rk.generate(name, 131072, 8, prompt_format=form)[7]
        check_example(example, form.bos, tokenizer)
        assert filled(example) >= (99.5 if name in QA else 99.9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["niah_single_2", "cwe", "qa_1"])
def test_a_million_tokens(name):
    """Corpora do not run out: essays start again, words are paired, documents repeat."""
    example = rk.generate(builtin(name), 1_048_576, 1)[0]
    assert 99.9 <= filled(example) <= 100
    assert name in QA or all(text in example.context_text for text in example.references)


def test_where_pieces_cannot_be_joined_prompts_are_encoded_whole(data):
    """A vocabulary for which no way of joining is exact."""
    inner = rk.load_tokenizer(str(data / "tokenizers" / "llama-2"))

    def backwards(texts):
        return [inner.encode(text)[::-1].tolist() for text in texts]

    tokenizer = Tokenizer(backwards, inner.decode, (1,))
    form = rk.PromptFormat(tokenizer, template="llama2")
    assert not piece_encoder(tokenizer).exact
    for name in ("niah_single_2", "niah_multikey_3", "vt", "cwe", "fwe", "qa_1"):
        example = rk.generate(builtin(name), 4096, 1, prompt_format=form)[0]
        check_example(example, (1,), tokenizer)
        assert filled(example) >= (97 if name in QA else 99)


def fingerprint(example):
    """What defines an example: prompt, references, answer tokens."""
    parts = [example.prompt, *example.references, str(example.max_new_tokens)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def test_an_example_is_the_same_from_anywhere():
    """Alone in another process, in a row, after other tasks and lengths, of a longer cell."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from test_generation import *\n"
        "names = list(rk.THIRTEEN)[::-1]\n"
        "print(json.dumps({n: fingerprint(rk.generate(builtin(n), 2048, 8)[7]) for n in names}))"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    alone = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for name in rk.THIRTEEN:
        row = list(rk.generate(builtin(name), 2048, 8))
        assert [example.index for example in row] == list(range(8))
        assert len({example.digest for example in row}) == 8
        assert fingerprint(row[7]) == alone[name]
        assert fingerprint(rk.generate(builtin(name), 2048, 500)[7]) == alone[name]
        other = rk.generate(builtin(name), 2048, 1, seed=43)[0]
        assert other.references != row[0].references


@pytest.mark.parametrize("name", rk.THIRTEEN)
def test_lengths_are_paired(name):
    """Example i asks the same at every length, with what is asked for at nearly the same depth."""
    coarse = {"niah": 2.5, "vt": 4.0, "qa": 9.0}
    for index in range(5):
        short, long = (rk.generate(builtin(name), length, 10)[index] for length in (4096, 32768))
        assert short.references == long.references
        assert short.text_of("question") == long.text_of("question")
        assert short.answer_prefix == long.answer_prefix
        if rk.task(name).category != "aggregation":
            apart = [abs(a - b) for a, b in zip(short.depths, long.depths, strict=True)]
            assert max(apart) < coarse[rk.task(name).category], (short.depths, long.depths)


@pytest.mark.parametrize("spec", [*rk.THIRTEEN, {"base": "qa_1", "context": "none"}])
def test_too_short_lengths(spec):
    messages = []
    for length in (1, 40, 128, 160, 256, 400, 700):
        try:
            example = rk.generate(builtin(spec), length, 1)[0]
        except rk.UserError as error:
            messages.append((length, str(error)))
        else:
            assert filled(example) <= 100
    assert len(messages) >= 2
    for length, text in messages:
        assert "\n" not in text
        assert str(length) in text
        longer = int(re.search(r"longer length \(example 0 fits into (\d+) tokens\)", text)[1])
        assert filled(rk.generate(builtin(spec), longer, 1)[0]) <= 100

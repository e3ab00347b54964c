"""Tokens that stand around a text, and tokens that stand beside a vocabulary: as transformers reads
them, or the folder is refused in one line."""

import json
import random
import re

import pytest

from rulerkit.common.errors import UserError
from rulerkit.generation.generate import generate
from rulerkit.generation.prompt_format import PromptFormat
from rulerkit.generation.tasks import task
from rulerkit.generation.tokenizers import load_tokenizer
from tests.test_openai import ask, ask_and_check, client, serving, some
from tests.text_server import ReaderServer

TEXT = "It is 12:30 on a sunny day. One of the magic numbers is: 1234567. user assistant"
SPECIAL = ("[gMASK]", "<sop>", "<s>", "</s>")


def small_tokenizer(folder, around, **beside):
    """A folder with a byte-pair tokenizer that puts tokens around a text, and files beside it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    about = {"vocab_size": 400, "special_tokens": list(SPECIAL), "show_progress": False}
    about["initial_alphabet"] = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator([TEXT] * 9, trainers.BpeTrainer(**about))
    numbered = [(token, number) for number, token in enumerate(SPECIAL)]
    backend.post_processor = processors.TemplateProcessing(single=around, special_tokens=numbered)
    backend.save(str(folder / "tokenizer.json"))
    write(folder, beside)


def small_sentencepiece(folder, **beside):
    """A folder with a SentencePiece model as Llama 2's is made, and files beside it."""
    import sentencepiece

    about = {"model_type": "bpe", "vocab_size": 400, "byte_fallback": True, "minloglevel": 2}
    about |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
    about |= {"hard_vocab_limit": False, "model_prefix": str(folder / "tokenizer")}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter([TEXT] * 9), **about)
    write(folder, beside)


def write(folder, files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def token(content, **more):
    return {"content": content, "special": True, "normalized": False} | more


@pytest.mark.parametrize("more", [{}, {"add_bos_token": False}])
@pytest.mark.parametrize(
    ("around", "leading", "closing"),
    [("$A", (), ()), ("<s> $A", (2,), ()), ("[gMASK] <sop> <s> $A </s>", (0, 1, 2), (3,))],
)
def test_what_is_put_around_a_text_is_what_transformers_puts(
    tmp_path, around, leading, closing, more
):
    about = {"bos_token": "<s>", "eos_token": "</s>"} | more
    small_tokenizer(tmp_path, around, tokenizer_config=about)
    ours = load_tokenizer(str(tmp_path))
    assert ours.leading_ids == leading

    # A plain prompt begins with all of them, and nothing stands behind it.
    form = PromptFormat(ours, template="base")
    assert form.bos == form.leading_ids == leading
    assert form.leading_text == "".join(SPECIAL[number] for number in leading)
    made = generate(task("qa_1").with_corpora("builtin"), 2048, 1, prompt_format=form)[0]
    assert made.ids.tolist() == [*leading, *ours.encode(made.prompt).tolist()]
    assert made.num_tokens <= 2048 - made.max_new_tokens

    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = [*leading, *ours.encode(TEXT).tolist(), *closing]
    assert theirs(TEXT).input_ids == ids


@pytest.mark.parametrize(("path", "adds"), [("ids", 0), ("ids", 2), ("text", 0), ("text", 2)])
@pytest.mark.parametrize("template", ["base", "[gMASK]<sop>U: {{ messages[0].content }}"])
def test_a_server_reads_two_leading_tokens_once(tmp_path, path, adds, template):
    small_tokenizer(tmp_path, "[gMASK] <sop> $A")
    with serving(ReaderServer(load_tokenizer(str(tmp_path)), adds)) as server:
        model = client(server, prompt_path=path, tokenizer=str(tmp_path), template=template)
        examples, _ = ask_and_check(model)
        prompts = [each.ids.tolist() for each in examples]
        for body in server.real:
            sent = body["prompt"]
            if path == "text":
                sent = server.tokenizer.encode(sent).tolist()
            read = [0, 1][:adds] + sent
            assert read[:2] == [0, 1]
            assert read in prompts


def test_a_server_that_ends_each_prompt_is_refused(tmp_path):
    """Where the tokenizer puts a token behind a text, the model would read an end."""
    small_tokenizer(tmp_path, "<s> $A </s>")
    with serving(ReaderServer(load_tokenizer(str(tmp_path)), 2)) as server:
        model = client(server, tokenizer=str(tmp_path), prompt_path="text")
        answers, problem = ask(model, some(model))
        assert (answers, server.real) == ({}, [])
        assert "use `prompt_path: chat`" in problem


MARKS = ("<|im_end|>", "<|im_start|>")
NAMES = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
BESIDE = {
    "added_tokens": dict.fromkeys(MARKS, 400),
    "tokenizer_config": {"added_tokens_decoder": {"400": token(MARKS[0])}},
    "special_tokens_map": NAMES,
}


@pytest.mark.parametrize("make", [small_tokenizer, small_sentencepiece])
@pytest.mark.parametrize("file", BESIDE)
def test_a_vocabulary_that_lacks_a_token_named_beside_it_is_refused(tmp_path, make, file):
    around = ("<s> $A",) if make is small_tokenizer else ()
    make(tmp_path, *around, **{file: BESIDE[file]})
    with pytest.raises(UserError, match=r"<\|im_end\|>.*save_pretrained") as error:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(error.value)


def test_the_folder_that_the_message_names_is_read_as_transformers_reads_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "whole").mkdir()
    small_tokenizer(tmp_path, "<s> $A", tokenizer_config=NAMES, added_tokens={MARKS[1]: 401})
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    theirs.save_pretrained(tmp_path / "whole")
    ours = load_tokenizer(str(tmp_path / "whole"))
    assert ours.eos_token == "<|im_end|>"
    draw = random.Random(1)
    bits = [*MARKS, "<s>", "</s>", " ", "  ", "\n", "user", "It is", "<", "é", "中", "\t"]
    for text in ["".join(draw.choices(bits, k=10)) for _ in range(60)]:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text).tolist() == ids, text


def test_a_sentencepiece_model_without_the_first_blank_is_refused(tmp_path):
    """`legacy: false`: behind a token no blank would be put before a text."""
    small_sentencepiece(tmp_path, tokenizer_config={"legacy": False})
    with pytest.raises(UserError, match="legacy"):
        load_tokenizer(str(tmp_path))


RANKS = "IQ== 0\nIg== 1\nIw== 2\n"
TEKKEN = json.dumps({"config": {}, "vocab": [{"rank": 0, "token_bytes": "AA=="}]})


@pytest.mark.parametrize(
    ("name", "content"), [("tokenizer.model", RANKS), ("tekken.json", TEKKEN), ("vocab.json", "{}")]
)
def test_a_folder_without_a_whole_tokenizer_names_what_is_needed(tmp_path, name, content):
    (tmp_path / name).write_text(content, encoding="utf-8")
    for place, words in ((tmp_path, r"tokenizer\.json"), (tmp_path / name, re.escape(name))):
        with pytest.raises(UserError, match=words) as raised:
            load_tokenizer(str(place))
        assert "\n" not in str(raised.value)

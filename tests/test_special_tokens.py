"""Tokens that stand around a text, and tokens that stand beside a vocabulary: as transformers reads
them, or the folder is refused in one line."""

import json
import random

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
    """A folder with a byte-pair tokenizer that puts tokens around a text, and files beside it; the
    size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT] * 9, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single=around, special_tokens=[(token, n) for n, token in enumerate(SPECIAL)]
    )
    backend.save(str(folder / "tokenizer.json"))
    write(folder, beside)
    return backend.get_vocab_size()


def small_sentencepiece(folder, **beside):
    """A folder with a SentencePiece model as Llama 2's is made, and files beside it; its size."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 9),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    write(folder, beside)
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    return model.get_piece_size()


def write(folder, files):
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


def token(content, **more):
    return {"content": content, "special": True, "normalized": False} | more


# --- around a text --------------------------------------------------------------------------------


@pytest.mark.parametrize("add_bos_token", [None, False])
@pytest.mark.parametrize(
    ("around", "leading", "closing"),
    [
        ("$A", (), ()),
        ("<s> $A", (2,), ()),
        ("[gMASK] <sop> $A", (0, 1), ()),
        ("[gMASK] <sop> <s> $A </s>", (0, 1, 2), (3,)),
        ("$A </s>", (), (3,)),
    ],
)
def test_what_is_put_around_a_text_is_what_transformers_puts(
    tmp_path, around, leading, closing, add_bos_token
):
    about = {"bos_token": "<s>", "eos_token": "</s>"}
    if add_bos_token is not None:
        about["add_bos_token"] = add_bos_token
    small_tokenizer(tmp_path, around, tokenizer_config=about)
    ours = load_tokenizer(str(tmp_path))
    assert (ours.leading_ids, ours.closing_ids) == (leading, closing)

    # A plain prompt begins with all of them, and nothing stands behind it; it fills its length.
    form = PromptFormat(ours, template="base")
    assert form.bos == form.leading_ids == leading
    assert form.leading_text == "".join(SPECIAL[number] for number in leading)
    for name in ("vt", "qa_1"):
        made = generate(task(name).with_corpora("builtin"), 4096, 1, prompt_format=form)[0]
        ids = [*leading, *ours.encode(made.prompt).tolist()]
        assert made.ids.tolist() == ids
        assert len(ids) <= 4096 - made.max_new_tokens

    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = [*leading, *ours.encode(TEXT).tolist(), *closing]
    assert theirs(TEXT).input_ids == ids


@pytest.mark.parametrize(("path", "adds"), [("ids", 0), ("ids", 2), ("text", 0), ("text", 2)])
@pytest.mark.parametrize("template", ["base", "[gMASK]<sop>U: {{ messages[0].content }}"])
def test_a_server_reads_two_leading_tokens_once(tmp_path, path, adds, template):
    small_tokenizer(tmp_path, "[gMASK] <sop> $A")
    with serving(ReaderServer(load_tokenizer(str(tmp_path)), adds)) as server:
        about = {"tokenizer": str(tmp_path), "template": template}
        model = client(server, prompt_path=path, **about)
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
        about = {"tokenizer": str(tmp_path), "prompt_path": "text"}
        model = client(server, **about)
        answers, problem = ask(model, some(model))
        assert (answers, server.real) == ({}, [])
        assert "use `prompt_path: chat`" in problem


# --- beside a vocabulary --------------------------------------------------------------------------

MARKS = ("<|im_end|>", "<|im_start|>")
CHATML = "<s><|im_start|>user\nIt is <|im_end|> \n<|im_start|>assistant\nA  day</s> a"


def beside(size):
    """The files in which special tokens stand, by how they are given, and whether blanks before
    and behind a mark are its own."""
    numbers = {text: size + n for n, text in enumerate(MARKS)}
    decoder = {str(number): token(text) for text, number in numbers.items()}
    names = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
    more = {"additional_special_tokens": ["<|im_start|>"]}
    strips = {"lstrip": True, "rstrip": True}
    swallowing = decoder | {str(size + 1): token("<|im_start|>", **strips)}
    return {
        "added_tokens.json": {
            "added_tokens": dict(reversed(numbers.items())),
            "tokenizer_config": names,
        },
        "added_tokens_decoder": {"tokenizer_config": names | {"added_tokens_decoder": decoder}},
        "names": {"tokenizer_config": names | more},
        "special_tokens_map.json": {"special_tokens_map": names | more},
        "blanks": {"tokenizer_config": names | {"added_tokens_decoder": swallowing}},
    }


GIVEN = ("added_tokens.json", "added_tokens_decoder", "names", "special_tokens_map.json", "blanks")


def texts(number=60):
    """Texts in which special tokens stand beside everything."""
    rest = [" ", "  ", "\n", "user", "It is", "<", "é", "中", "\t"]
    draw = random.Random(1)
    bits = [*MARKS, "<s>", "</s>", *rest]
    yield CHATML
    for _ in range(number):
        yield "".join(draw.choices(bits, k=10))


@pytest.mark.parametrize("given", GIVEN[:-1])
def test_tokens_beside_a_sentencepiece_model(tmp_path, given):
    """Each is one token, with the id and the neighbours that transformers' slow tokenizer gives."""
    size = small_sentencepiece(tmp_path)
    plain = load_tokenizer(str(tmp_path))
    files = beside(size)[given]
    write(tmp_path, files)
    load_tokenizer.cache_clear()
    ours = load_tokenizer(str(tmp_path))
    assert [ours.encode(mark).tolist() for mark in MARKS] == [[size], [size + 1]]
    assert ours.eos_token == "<|im_end|>"
    assert ours.leading_ids == plain.leading_ids == (1,)
    assert ours.fingerprint != plain.fingerprint
    back = ours.decode(ours.encode(CHATML))
    assert back == CHATML.replace("<s>", "").replace("</s>", " ")

    slow = pytest.importorskip("transformers.tokenization_utils_sentencepiece")
    from transformers import AddedToken

    about = files.get("tokenizer_config", {}) | files.get("special_tokens_map", {})
    decoder = {n: AddedToken(t, special=True) for n, t in ((1, "<s>"), (2, "</s>"))}
    for n, mark in enumerate(MARKS):
        decoder[size + n] = AddedToken(mark, special=True)
    theirs = slow.SentencePieceBackend(
        vocab_file=str(tmp_path / "tokenizer.model"),
        added_tokens_decoder=decoder,
        **{name: about[name] for name in ("bos_token", "eos_token")},
    )
    for text in texts():
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text).tolist() == ids, text


def test_a_sentencepiece_model_whose_token_swallows_blanks_is_refused(tmp_path):
    size = small_sentencepiece(tmp_path)
    write(tmp_path, beside(size)["blanks"])
    with pytest.raises(UserError, match=r"<\|im_start\|>.*tokenizer\.json") as error:
        load_tokenizer(str(tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", GIVEN)
def test_tokens_beside_a_tokenizer_json(tmp_path, given):
    transformers = pytest.importorskip("transformers")
    size = small_tokenizer(tmp_path, "<s> $A")
    write(tmp_path, beside(size)[given])
    ours = load_tokenizer(str(tmp_path))
    assert [ours.encode(mark).tolist() for mark in MARKS] == [[size], [size + 1]]
    assert ours.eos_token == "<|im_end|>"
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in texts():
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text).tolist() == ids, text


def test_a_model_folder_without_the_first_blank(tmp_path):
    """`legacy: false`: behind a token no blank is put before a text, at the beginning it is."""
    decoder = {"1": token("<s>")}
    about = {"added_tokens_decoder": decoder, "add_bos_token": False}
    small_sentencepiece(tmp_path, tokenizer_config=about | {"legacy": False})
    ours = load_tokenizer(str(tmp_path))
    first, behind = ours.encode("user"), ours.encode("<s>user")[1:]
    assert first.tolist() != behind.tolist()
    assert ours.decode(ours.encode("user<s>user")) == "useruser"
    assert (ours.leading_ids, ours.bos_token) == ((), "<s>")


# --- vocabularies that are not whole tokenizers ---------------------------------------------------

RANKS = "IQ== 0\nIg== 1\nIw== 2\n"
TEKKEN = json.dumps({"config": {}, "vocab": [{"rank": 0, "token_bytes": "AA=="}]})


@pytest.mark.parametrize("as_folder", [True, False])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.model", RANKS),
        ("tekken.json", TEKKEN),
        ("vocab.json", "{}"),
    ],
)
def test_a_folder_without_a_whole_tokenizer_names_what_is_needed(
    tmp_path, name, content, as_folder
):
    (tmp_path / name).write_text(content, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError) as raised:
        load_tokenizer(str(tmp_path if as_folder else tmp_path / name))
    assert "\n" not in str(raised.value)
    assert as_folder is False or "tokenizer.json" in str(raised.value)

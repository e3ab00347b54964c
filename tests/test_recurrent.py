"""Models whose memory is a state: tiny random Mamba, Mamba-2, Jamba and RWKV checkpoints in the
layouts they come in. Their weights mean nothing, but all else is real."""

import shutil
from dataclasses import replace
from importlib.util import find_spec

import pytest
from tiny_recurrent import NETWORKS, SHAPES, VOCABULARY, build, write_pth

from rulerkit.common.errors import UserError
from rulerkit.generation.corpora import load
from rulerkit.generation.generate import generate
from rulerkit.generation.tasks import task
from rulerkit.inference.model import load_model, model
from tests.records import predict
from tests.tiny_llama import save_tokenizer

needs_rwkv = pytest.mark.skipif(
    find_spec("rwkv") is None, reason="the rwkv engine needs the rwkv package"
)

# torch is imported where it is used: the quick tests collect this file, too.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torch") is None, reason="checkpoints need torch"),
]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A folder with a byte-pair tokenizer like GPT-NeoX': no BOS, and token 0 ends a text."""
    import torch

    # so that lists of words fit into 1K
    text = load("essay", "prose").words + 3 * load("words", "wonderwords").everything
    folder = tmp_path_factory.mktemp("words")
    assert save_tokenizer(folder, [" ".join(text)], VOCABULARY, bos=False) == VOCABULARY
    torch.set_num_threads(1)  # idle threads that spin make tiny models slow on a busy machine
    return folder


@pytest.fixture(scope="module")
def specs(words, tmp_path_factory):
    """A spec of each kind, as a parameter file would write it."""
    root = tmp_path_factory.mktemp("models")
    made = {}
    for name, kind in NETWORKS.items():
        network = build(kind)
        network.save_pretrained(root / name)
        shutil.copytree(words, root / name, dirs_exist_ok=True)
        made[name] = {"path": str(root / name), "device": "cpu"}
    write_pth(root / "rwkv-7.pth")
    made["rwkv-7"] = {"engine": "rwkv", "path": str(root / "rwkv-7.pth")}
    return {name: {"name": name} | spec for name, spec in made.items()}


def asked(one, name, length, count):
    return generate(
        task(name).with_corpora("builtin"), length, count, prompt_format=one.prompt_format
    )


def answers_of(one, count=3, most=16):
    """The first tokens of its answers to a few prompts of 1K."""
    prompts = asked(one, "niah_single_2", 1024, count)
    short = (replace(example, max_new_tokens=most) for example in prompts)
    return {example.index: answer for example, answer in one.answer(short)}


@pytest.mark.parametrize("kind", [*NETWORKS, pytest.param("rwkv-7", marks=needs_rwkv)])
def test_prompts_are_answered(kind, specs, tmp_path):
    one = load_model(specs[kind])
    texts = []
    for name, length, count in (("niah_single_2", 1024, 1), ("cwe", 1024, 1), ("vt", 4096, 2)):
        cell = predict(one, asked(one, name, length, count), tmp_path / "run", progress=False)
        assert [row["index"] for row in cell.rows] == list(range(count))
        for row in cell.rows:
            assert row["num_prompt_tokens"] < row["length"] <= length
            assert row["finish_reason"] in ("stop", "length")
            texts.append(row["pred"])
    assert one.too_long(1 << 20) is None or kind == "jamba"
    assert len(set(texts)) > 2, "the answers hardly depend on the prompts"
    one.close()
    assert texts[0].startswith(answers_of(one, count=1)[0].text[:-4])  # loaded again


@pytest.mark.parametrize("kind", SHAPES)
def test_an_answer_does_not_depend_on_its_batch(kind, words):
    import transformers

    pair = (build(kind).float().eval(), transformers.PreTrainedTokenizerFast.from_pretrained(words))
    alone, batched = (model(pair, name="tiny", batch_size=size) for size in (1, 8))
    prompts = [
        replace(example, index=10 * i + example.index, max_new_tokens=16)
        for i, length in enumerate((400, 512, 600))
        for example in asked(alone, "niah_single_2", length, 2)
    ]
    assert len({example.num_tokens for example in prompts}) > 2
    expected = {example.index: answer for example, answer in alone.answer(prompts)}
    assert {example.index: answer for example, answer in batched.answer(prompts)} == expected
    assert len({answer.text for answer in expected.values()}) > 1, "the prompts change little"


@needs_rwkv
def test_what_is_no_rwkv_file_is_named(specs, tmp_path):
    import torch

    (tmp_path / "a.pth").write_bytes(b"torn")
    torch.save({"emb.weight": torch.zeros(1)}, tmp_path / "b.pth")
    for spec, message in [
        ({"path": str(tmp_path / "a.pth")}, "cannot be loaded"),
        ({"path": str(tmp_path)}, "`path` takes a .pth file, here or on the hub"),
        ({"path": "BlinkDL/rwkv-5-world"}, r"org/name/FILE\.pth"),
    ]:
        with pytest.raises(UserError, match=message) as caught:
            answers_of(load_model(specs["rwkv-7"] | spec))
        assert "\n" not in str(caught.value)

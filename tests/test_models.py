"""Models: what a parameter file may say of them, and that each engine answers an example by its ids
alone."""

import json
import os
import shutil
import sys
from contextlib import contextmanager
from functools import wraps
from random import Random

import numpy as np
import pytest

import rulerkit as rk
from rulerkit.common.model_files import known_models, read_spec
from rulerkit.generation.example import Example, Piece
from tests.tiny_llama import save_llama, save_tokenizer


def example(text, form, index=0, most=12, length=4096):
    """A prompt of one block, with the BOS of the model where it has one."""
    ids = np.concatenate([np.asarray(form.bos, dtype=np.int32), form.tokenizer.encode(text)])
    return Example(index, "any", length, ("x",), most, (Piece(text, "question", ids),), (0, 1))


def answers(one, asked):
    return {e.index: answer for e, answer in one.answer(asked)}


@contextmanager
def one_line(words):
    """A `UserError` on one line."""
    with pytest.raises(rk.UserError, match=words) as caught:
        yield
    assert "\n" not in str(caught.value)


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "params" / "models").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    return tmp_path


def test_names_of_models_and_of_their_variants(project):
    expected = {"engine": "reader", "window": 3072, "name": "reader-3072"}
    assert read_spec("reader-3K") == read_spec("reader-3072") == expected
    assert read_spec({"window": "1M"})["name"] == "reader-1048576"
    hub = {"engine": "transformers", "path": "Qwen/Qwen2.5-7B", "name": "Qwen2.5-7B"}
    assert read_spec("Qwen/Qwen2.5-7B") == hub
    keys = "path: org/seven, name: seven, label: Seven, template: auto, concurrency: 3"
    (project / "params/models/seven.yaml").write_text(f"model: {{{keys}, engine: vllm}}")
    assert {"seven", "perfect", "reader-<tokens>"} <= set(known_models())
    base = {"base": "seven"}
    assert read_spec(base) == read_spec("seven")
    variant = read_spec(base | {"template": "base", "thinking_tokens": 8})
    assert (variant["name"], variant["label"]) == ("seven", "Seven")
    named = read_spec(base | {"template": "base", "name": "plain"})
    assert (named["name"], "label" in named) == ("plain", False)
    other = read_spec(base | {"path": "org/eight"})
    assert (other["name"], "label" in other) == ("eight", False)


def test_each_example_is_drawn_with_a_seed_of_its_own():
    one = rk.load_model({"path": "org/m", "engine": "vllm", "sampling": {"temperature": 0.6}})
    form = rk.load_model("perfect").prompt_format
    seeds = [one.sampling(example("a", form, index))["seed"] for index in (0, 1, 0)]
    assert seeds[0] == seeds[2] != seeds[1]


def test_a_function_is_a_model():
    batches = []

    def last_word(prompts):
        batches.append(prompts)
        return [prompt.split()[-1] for prompt in prompts]

    one = rk.model(last_word, name="last", batch_size=2, label="Last word")
    form = one.prompt_format
    asked = [example(text, form, i) for i, text in enumerate(["a b", "c d", "e f"])]
    assert {i: a.text for i, a in answers(one, asked).items()} == {0: "b", 1: "d", 2: "f"}
    assert [len(batch) for batch in batches] == [2, 1]


def test_a_function_may_take_ids_and_learn_how_much_it_may_write():
    def count(ids, max_new_tokens):
        return [f"{len(one)} {one.dtype} {max_new_tokens} and more and more" for one in ids]

    one = rk.model(count, name="count", takes="ids", tokenizer="builtin")
    answer = answers(one, [example("a b c", one.prompt_format, most=4)])[0]
    assert answer.text.startswith("3 int")
    assert (answer.finish_reason, answer.num_tokens) == ("length", 4)
    with one_line("needs the `tokenizer`"):
        rk.model(count, name="count", takes="ids")


def test_what_a_function_may_not_return():
    for function, words in (
        (lambda prompts: "yes", "returned 'yes'; it must return a list of 1 texts"),
        (lambda prompts: [7] * len(prompts), r"returned \[7\]; it must return a list of 1 texts"),
    ):
        one = rk.model(function, name="bad")
        with one_line(words):
            answers(one, [example("a long way to go " * 30, one.prompt_format)])


def test_an_entry_is_called_when_it_is_first_asked(project, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = "def load():\n    return lambda prompts: ['yes'] * len(prompts)\n"
    (project / "my_entry_models.py").write_text(source)
    one = rk.load_model({"entry": "my_entry_models:load", "name": "mine"})
    assert "my_entry_models" not in sys.modules
    asked = [example("a", rk.load_model("perfect").prompt_format)]
    assert answers(one, asked)[0].text == "yes"
    for entry, words in [
        ("my_entry_models:lod", "entry my_entry_models:lod .* has no attribute 'lod'"),
        ("my_entry_modelz:load", "No module named"),
        ("json:dumps", "entry json:dumps cannot be loaded: TypeError: .* missing 1 required"),
    ]:
        with one_line(words):
            answers(rk.load_model({"entry": entry, "name": "m"}), asked)


@pytest.fixture(scope="module")
def words():
    random = Random(7)
    sizes = random.choices(range(2, 8), k=400)
    known = ["".join(random.choices("abcdefghijklmnop", k=size)) for size in sizes]
    return random.choices(known, k=8000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, words):
    """A tiny random Llama with a byte-pair tokenizer that puts a BOS before a text."""
    torch = pytest.importorskip("torch", reason="the transformers engine needs torch")

    made = tmp_path_factory.mktemp("models") / "tiny"
    size = save_tokenizer(made, [" ".join(words)], 600, "<|mark|>")
    torch.set_num_threads(1)  # idle threads that spin make tiny models slow on a busy machine
    save_llama(made, size)
    return made


def tiny(folder, **more):
    return rk.load_model({"path": str(folder), "device": "cpu"} | more)


def loaded(folder):
    """The pair that a user loads with transformers."""
    transformers = pytest.importorskip("transformers")
    network = transformers.LlamaForCausalLM.from_pretrained(folder, dtype="float32")
    return network, transformers.PreTrainedTokenizerFast.from_pretrained(folder)


def prompts(one, words, lengths, most=12):
    return [
        example(" ".join(words[13 * i : 13 * i + n]), one.prompt_format, i, most=most + i % 3)
        for i, n in enumerate(lengths)
    ]


def copied(folder, to, **files):
    """A copy of a checkpoint with other contents of its JSON files."""
    shutil.copytree(folder, to)
    for name, content in files.items():
        (to / f"{name}.json").write_text(json.dumps(content))
    return to


LENGTHS = [40, 300, 7, 120, 300, 41, 40, 5, 260, 90, 3]


def test_batched_answers_equal_those_one_by_one_and_those_of_plain_generate(folder, words):
    torch = pytest.importorskip("torch")
    alone = tiny(folder, batch_size=1)
    asked = prompts(alone, words, LENGTHS)
    assert all((e.ids == 0).sum() == 1 and e.ids[0] == 0 for e in asked)
    one_by_one = answers(alone, asked)
    assert sorted(one_by_one) == list(range(len(asked)))
    assert answers(tiny(folder, batch_size=4), asked) == one_by_one
    network, _ = loaded(folder)
    decode = alone.prompt_format.tokenizer.decode
    for e in asked:
        ids = torch.tensor(e.ids)[None].long()
        out = network.generate(ids, max_new_tokens=e.max_new_tokens, do_sample=False)
        new = [token for token in out[0, e.num_tokens :].tolist() if token != 1]
        assert one_by_one[e.index].text == decode([token for token in new if token > 2])
        assert one_by_one[e.index].num_tokens == len(new)
    texts = {answer.text for answer in one_by_one.values()}
    assert len(texts) > len(asked) // 2, "the model looks at its prompt"
    alone.close()
    assert answers(alone, asked[:1]) == {0: one_by_one[0]}


def test_an_answer_stops_at_the_checkpoints_stop_tokens(folder, words, tmp_path):
    torch = pytest.importorskip("torch")
    asked = prompts(tiny(folder), words, [50, 60, 70], most=20)
    free = answers(tiny(folder), asked)
    assert {answer.finish_reason for answer in free.values()} == {"length"}
    assert [free[e.index].num_tokens for e in asked] == [20, 21, 22]
    marks = ["<think>", "</think>"]
    thinking = tiny(folder, thinking_tokens=9, thinking_marks=marks, max_length=4105)
    assert answers(thinking, asked[:1])[0].num_tokens == 29, "a thought has tokens of its own"
    ids = torch.tensor(asked[0].ids)[None].long()
    out = loaded(folder)[0].generate(ids, max_new_tokens=20, do_sample=False)
    new = out[0, asked[0].num_tokens :].tolist()
    # Of what a chat checkpoint brings only the stop tokens count.
    generation = {"eos_token_id": [1, new[2]], "do_sample": True, "temperature": 0.7}
    generation |= {"repetition_penalty": 3.0, "max_length": 8}
    copy = copied(folder, tmp_path / "stops", generation_config=generation)
    stopped = answers(tiny(copy), asked)
    assert stopped[0].finish_reason == "stop"
    assert stopped[0].num_tokens == new.index(new[2])
    assert free[0].text.startswith(stopped[0].text)


def test_a_folder_is_identified_by_its_files_wherever_it_lies(folder, tmp_path):
    copy = copied(folder, tmp_path / "copy")
    identity = tiny(folder).identity()
    assert list(identity) == ["engine", "fingerprint", "dtype"]
    other = {"hf_overrides": {"rope_theta": 9.0}}
    assert tiny(folder, **other).identity() == identity | other
    assert tiny(copy).identity() == identity
    assert tiny(copy, dtype="bfloat16").identity() != identity
    assert tiny(folder).environment()["path"] == str(folder)


def test_a_prompt_beyond_the_models_limit_is_refused_before_anything_is_answered(folder, words):
    asked = prompts(tiny(folder), words, [50, 3000])
    with one_line(r"example 1 of any needs \d+ tokens: its limit is 4096 .* `max_length: \d+`"):
        next(tiny(folder).answer(asked))
    assert len(answers(tiny(folder, max_length="16K"), asked)) == 2


def test_weights_that_are_cut_short_are_seen_before_they_are_loaded(folder, tmp_path, rulerkit):
    place = tmp_path / "cut"
    shutil.copytree(folder, place)
    (weights,) = place.glob("*.safetensors")
    os.truncate(weights, weights.stat().st_size - 5)
    spec = f"{{path: {place}, name: cut, engine: transformers}}"
    ended = rulerkit("evaluate", spec, "--dry-run", "--tasks", "vt", "--lengths", "1K")
    assert ended.status == 2
    assert "model.safetensors is cut short or damaged (" in ended.err


def test_folders_that_are_no_models(tmp_path, folder, words):
    with one_line(r"no folder .*nowhere"):
        tiny(tmp_path / "nowhere")
    asked = prompts(tiny(folder), words, [9])
    for name, file, content, said in (
        ("torn-weights", "model.safetensors", b"\0" * 9, "is cut short or damaged"),
        ("torn-config", "config.json", b"{", "cannot be read as JSON"),
    ):
        (copied(folder, tmp_path / name) / file).write_bytes(content)
        with one_line(f"{name}/{file} {said}"):
            answers(tiny(tmp_path / name), asked)
    config = json.loads((folder / "config.json").read_text())
    deeper = config | {"num_hidden_layers": config["num_hidden_layers"] + 1}
    with one_line(r"lacks \d+ weights of the model, such as model\.layers\."):
        answers(tiny(copied(folder, tmp_path / "deeper", config=deeper)), asked)
    with one_line("cannot be loaded: .*(CUDA|cuda|NVIDIA)"):
        answers(tiny(folder, device="cuda:99"), asked)
    with one_line("is a folder, which has no revision abc"):
        tiny(folder, revision="abc")
    with one_line("`tokenizer: builtin` mean nothing"):
        _ = tiny(folder, tokenizer="builtin").prompt_format
    small = json.loads((folder / "config.json").read_text()) | {"vocab_size": 300}
    with one_line(r"id \d+ is beyond the model's vocabulary of 300: drop `tokenizer"):
        answers(tiny(copied(folder, tmp_path / "vocabulary", config=small)), asked)


def test_a_loaded_pair_is_a_model(folder, words, monkeypatch):
    torch = pytest.importorskip("torch")
    network, tokenizer = loaded(folder)
    network.generation_config.do_sample = True
    one = rk.model((network, tokenizer), name="mine")
    by_path = tiny(folder)
    asked = prompts(by_path, words, LENGTHS)
    assert one.prompt_format.tokenizer.fingerprint == by_path.prompt_format.tokenizer.fingerprint
    assert one.prompt_format.bos == by_path.prompt_format.bos == (0,)
    assert answers(one, asked) == answers(by_path, asked)
    assert network.generation_config.do_sample  # given back as it came
    # The same model goes on, unless it was changed; another one with a version alone.
    before = one.identity()
    assert before["version"].startswith("none, run ")
    assert before == one.identity() != rk.model((network, tokenizer), name="mine").identity()
    attention = network.model.layers[1].self_attn
    with monkeypatch.context() as patched:
        patched.setattr(attention, "forward", lambda **inputs: (inputs["hidden_states"], None))
        assert one.identity() != before
    assert one.identity() == before
    with torch.no_grad():
        network.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    assert one.identity() != before
    named = rk.model(loaded(folder), name="mine", version="1").identity()
    assert rk.model((network, tokenizer), name="mine", version="1").identity() == named
    assert named["version"] == "1"


@pytest.mark.slow
def test_batches_are_halved_where_memory_ends_and_long_examples_go_one_by_one(folder, words):
    torch = pytest.importorskip("torch")
    network, tokenizer = loaded(folder)
    forward, sizes = network.forward, []
    capacity = 10**9

    @wraps(forward)
    def on_a_small_device(input_ids=None, **kwargs):
        """Has memory for `capacity` tokens at a time; notes the size of each batch."""
        if input_ids.shape[1] > 1:
            sizes.append(len(input_ids))
        if input_ids.numel() > capacity:
            raise torch.OutOfMemoryError("out of memory. Tried to allocate 9 GiB")
        return forward(input_ids=input_ids, **kwargs)

    network.forward = on_a_small_device
    asked = prompts(tiny(folder), words, [300] * 9)
    expected = answers(tiny(folder), asked)
    widest = max(e.num_tokens for e in asked)
    capacity = 3 * widest
    assert answers(rk.model((network, tokenizer), name="small"), asked) == expected
    assert sizes == [8, 4, 2, 2, 4, 2, 2, 1]
    capacity = widest - 1
    with one_line(r"out of memory at a single prompt of .*`device: spread`"):
        answers(rk.model((network, tokenizer), name="small"), asked)


def test_a_cached_hub_model_needs_no_network(folder, words, tmp_path, monkeypatch):
    repository = tmp_path / "models--org--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    copied(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    one = rk.load_model({"path": "org/tiny", "device": "cpu"})
    identity = {"engine": "transformers", "path": "org/tiny", "revision": commit}
    assert one.identity() == identity | {"dtype": "float32"}
    pinned = rk.load_model({"path": "org/tiny", "revision": commit, "device": "cpu"})
    same = pinned.prompt_format.tokenizer.fingerprint
    assert same == one.prompt_format.tokenizer.fingerprint
    served = rk.load_model({"path": "org/tiny", "engine": "vllm", "dtype": "float32"})
    assert f"--revision {commit} " in served.shown_command()
    asked = prompts(one, words, [40, 7])
    assert answers(one, asked) == answers(tiny(folder), asked)
    with one_line("no folder .*org/none; as a hub id: .*does not hold it: .*hf download org/none"):
        rk.load_model("org/none").identity()


def test_overrides_change_the_configuration(folder, words):
    plain = tiny(folder)
    asked = prompts(plain, words, [600, 40])
    expected = answers(plain, asked)
    longer = tiny(folder, hf_overrides={"max_position_embeddings": 9000})
    assert plain.too_long(5000)
    assert (longer.too_long(9000), bool(longer.too_long(9001))) == (None, True)
    assert answers(longer, asked) == expected
    yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0}
    scaled = tiny(folder, hf_overrides={"rope_parameters": yarn}, max_length="16K")
    assert (scaled.too_long(16384), bool(scaled.too_long(16385))) == (None, True)
    assert answers(scaled, asked) != expected
    for wrong, said in [
        ({"rope_parameters": {"rope_type": "nonsense", "factor": 4}}, "nonsense"),
        ({"rope_parameters": yarn | {"factor": "four"}}, "four"),
        ({"max_position_embeddings": "many"}, "many"),
        ({"max_positions": 9000}, "unexpected keyword argument"),
    ]:
        with one_line(f"cannot be loaded with hf_overrides .*{said}"):
            answers(tiny(folder, hf_overrides=wrong), asked)
    said = tiny(folder, max_length=99).too_long(200)
    assert "its limit is 99 tokens (max_length)" in said


def test_the_limit_that_a_configuration_states(tmp_path):
    text = {"text_config": {"max_position_embeddings": 9000}}
    for config, overrides, limit in [
        ({"max_position_embeddings": 4096}, {}, 4096),
        ({"seq_length": 2048}, {"rope_theta": 3}, 2048),
        ({"d_model": 64}, {}, None),
        ({"max_position_embeddings": 4096}, {"max_position_embeddings": 8192}, 8192),
        (text, {}, 9000),
        (text, {"text_config": {"max_position_embeddings": 10000}}, 10000),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert tiny(tmp_path, hf_overrides=overrides or None).limit() == limit

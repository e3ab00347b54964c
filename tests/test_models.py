"""Models: what a parameter file may say of them, and that each engine answers an example by its ids
alone."""

import json
import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from datetime import date
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rulerkit.models as models
from rulerkit.checkpoint import Checkpoint, max_positions
from rulerkit.errors import UserError
from rulerkit.example import Example, Piece
from rulerkit.generation import generate
from rulerkit.models import Answer, Model, load_model, model
from rulerkit.models.checkpoints import CheckpointEngine
from rulerkit.prompt_format import PromptFormat
from rulerkit.settings import (
    ENGINE_KEYS,
    READER_EFFECTS,
    UNNAMED_KEYS,
    ReaderKeys,
    check_spec,
    keys_of,
    known_models,
    read_spec,
    takes,
)
from rulerkit.tasks import THIRTEEN, task
from tests.tiny_llama import save_llama, save_tokenizer

ROOT = Path(__file__).resolve().parent.parent
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="the transformers engine needs torch"
)


def example(
    text: str, form: PromptFormat, index: int = 0, most: int = 12, length: int = 4096
) -> Example:
    """A prompt of one block, with the BOS of the model where it has one."""
    ids = np.concatenate([np.asarray(form.bos, dtype=np.int32), form.tokenizer.encode(text)])
    return Example(index, "any", length, ("x",), most, (Piece(text, "question", ids),), (0, 1))


def said(one: Model, asked: list[Example]) -> dict[int, Answer]:
    return {e.index: answer for e, answer in one.answer(asked)}


# --- what a parameter file may say ----------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project root."""
    (tmp_path / "params" / "models").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    return tmp_path


def write(project: Path, name: str, text: str) -> None:
    (project / "params" / "models" / f"{name}.yaml").write_text(
        textwrap.dedent(text), encoding="utf-8"
    )


@pytest.mark.parametrize(
    "file", sorted((ROOT / "params" / "models").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_model_file_of_the_repository_reads_and_is_called_as_its_file(file: Path) -> None:
    assert read_spec(file.stem) == read_spec(str(file))
    assert load_model(file.stem).name == file.stem


def test_readers_of_any_window_need_no_file(project: Path) -> None:
    assert (
        read_spec("reader-8K")
        == read_spec("reader-8192")
        == {"engine": "reader", "window": 8192, "name": "reader-8192"}
    )
    assert read_spec("perfect") == {"engine": "reader", "name": "perfect"}
    assert read_spec("mute") == {"engine": "reader", "name": "mute", "window": 0}
    assert read_spec({"window": "1M"})["name"] == "reader-1048576"
    assert load_model("reader-8K").label == "reader (8K window)"
    assert load_model("reader-5000").label == "reader (5000 tokens window)"
    assert (load_model("reader-8K").claimed_length, load_model("mute").claimed_length) == (
        8192,
        None,
    )


def test_a_file_named_as_a_reader_may_say_just_its_name(project: Path) -> None:
    write(project, "reader-8192", "model: reader-8192")
    assert read_spec("reader-8192")["window"] == 8192


def test_a_hub_id_a_folder_and_a_path_are_models(project: Path) -> None:
    (project / "checkpoints" / "1000").mkdir(parents=True)
    (project / "checkpoints" / "1000" / "config.json").write_text("{}")
    assert read_spec("Qwen/Qwen2.5-7B") == {
        "engine": "transformers",
        "path": "Qwen/Qwen2.5-7B",
        "name": "Qwen2.5-7B",
    }
    assert read_spec("checkpoints/1000")["name"] == "1000"
    (project / "mine.yaml").write_text(
        "model: {base: checkpoints/1000, name: r7, claimed_length: 128K}"
    )
    spec = read_spec("mine.yaml")
    assert (spec["path"], spec["name"], spec["claimed_length"]) == (
        "checkpoints/1000",
        "r7",
        131072,
    )


def test_a_variant_is_named_after_what_differs(project: Path) -> None:
    write(
        project,
        "seven",
        "model: {path: org/seven, name: seven, label: Seven, slug: s, template: auto}",
    )
    assert read_spec({"base": "seven"}) == read_spec("seven")
    assert read_spec({"base": "seven", "batch_size": 2})["name"] == "seven"
    variant = read_spec({"base": "seven", "template": "base", "thinking_tokens": 8})
    assert variant["name"] == "seven-template_base-thinking_tokens_8"
    assert "label" not in variant
    assert variant["slug"] == "s"
    assert read_spec({"base": "seven", "label": "Ours", "dtype": "float32"})["label"] == "Ours"
    long = read_spec({"base": "seven", "system_prompt": "You are good. " * 9})["name"]
    assert long == read_spec({"base": "seven", "system_prompt": "You are good. " * 9})["name"]
    assert len(long) < 40
    other = read_spec({"base": "seven", "path": "org/eight"})
    assert (other["name"], "label" in other, "slug" in other) == ("eight", False, False)
    assert "template" not in read_spec({"base": "seven", "template": None})


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("reader-8k4", ["unknown model 'reader-8k4'", "perfect", "hub id"]),
        ("llama", ["unknown model 'llama'", "did you mean 'llama-x'"]),
        ({"path": "a/b", "windows": 5}, ["unknown key", "'windows'", "did you mean 'window'"]),
        (
            {"path": "a/b", "window": 5},
            ["unknown key", "'window'", "engine transformers", "batch_size"],
        ),
        ({"path": "a/b", "batch_size": 0}, ["batch_size: 0", "at least 1"]),
        ({"path": "a/b", "aligned": "yes"}, ["aligned: 'yes'", "chat, base"]),
        ({"path": "a/b", "engine": "vlm"}, ["unknown engine", "'vlm'", "reader"]),
        ({"label": "x"}, ["nothing says who answers", "path"]),
        ({"path": "a/b", "name": "../up"}, ["'../up' cannot name a folder"]),
        ({"path": "a/b", "name": False}, ["name: False", "in quotes"]),
        ({"path": "a/b", "hours": 43200}, ["hours: 43200", "at most 744"]),
        ({"path": "a/b", "max_length": 2**24 + 1}, ["max_length: 16777217", "such as 32K"]),
        ({"path": "a/b", "dtype": "bfloat"}, ["dtype: 'bfloat'", "did you mean 'bfloat16'?"]),
        (
            {"path": "a/b", "hf_overrides": {"since": {"on": date(2024, 1, 2)}}},
            ["hf_overrides: ", "over config.json"],
        ),
        (
            {"path": "a/b", "base_url": "http://x/v1", "replicas": "al"},
            ["replicas: 'al'", "`auto` or a whole number"],
        ),
        ({"path": "a/b", "engine": ["vllm"]}, ["unknown engine"]),
        ("x" * 5000, ["unknown model"]),
        ("~nobody-of-this-name/x", ["unknown model"]),
        ({"entry": "mine:load"}, ["needs a name"]),
        ("selves", ["its own base", "selves.yaml"]),
        ("itself", ["itself.yaml", "is not YAML"]),
        ("torn", ["torn.yaml", "is not YAML"]),
        ("two", ["two.yaml", "one key, `model:`"]),
        ("nowhere.yaml", ["nowhere.yaml", "No such file"]),
        (7, ["seen: 7", "rulerkit.model(it, name=...)"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line(project: Path, spec: Any, words: list[str]) -> None:
    write(project, "llama-x", "model: org/llama-x")
    write(project, "selves", "model: {base: selves.yaml, label: x}")
    write(project, "itself", "model: &it {base: *it}")
    write(project, "torn", "model: {a: [")
    write(project, "two", "model: perfect\nlengths: [4096]\n")
    if spec == "selves":
        spec = str(project / "params" / "models" / "selves.yaml")
        write(project, "selves", f"model: {{base: {spec}, label: x}}")
    with pytest.raises(UserError) as caught:
        load_model(spec)
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == [], message


VALUES = st.one_of(
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.lists(st.text()),
    st.dictionaries(st.integers(), st.none()),
)


@given(engine=st.sampled_from([*ENGINE_KEYS]), data=st.data(), value=VALUES)
def test_any_value_of_any_key_is_taken_or_refused_in_one_line(
    engine: str, data: Any, value: Any
) -> None:
    key = data.draw(st.sampled_from(list(keys_of(ENGINE_KEYS[engine]))))
    problem = ""
    try:
        check_spec({"engine": engine, "name": "m", key: value}, "m")
    except UserError as error:
        problem = str(error)
    assert len(problem.splitlines()) <= 1
    assert key in problem or not problem


def test_an_engine_is_named_or_follows_from_the_keys(project: Path) -> None:
    for keys, engine in [
        ({"path": "a/b"}, "transformers"),
        ({"path": "a/b", "base_url": "http://localhost/v1"}, "openai"),
        ({"path": "a/b", "serve": "serve {path} --port {port}"}, "openai"),
        ({"entry": "mine:load", "name": "x"}, "function"),
        ({"window": "8K"}, "reader"),
        ({"path": "a/b", "engine": "vllm"}, "vllm"),
    ]:
        assert read_spec(keys)["engine"] == engine


def test_how_a_model_is_served_does_not_enter_the_name_of_a_variant(project: Path) -> None:
    write(project, "seven", "model: {path: org/seven, name: seven, engine: vllm, in_flight: 3}")
    served = {
        "replicas": 2,
        "concurrency": 64,
        "start_timeout": 60,
        "timeout": 5,
        "max_retries": 0,
        "in_flight": None,
    }
    assert read_spec({"base": "seven", **served})["name"] == "seven"
    assert read_spec({"base": "seven", "replicas": "auto"})["replicas"] == "auto"


def test_every_engine_has_its_keys_and_every_key_its_words() -> None:
    assert ENGINE_KEYS.keys() == models.ENGINES.keys()
    assert {key for kind in ENGINE_KEYS.values() for key in keys_of(kind)} >= UNNAMED_KEYS
    assert [key for key in keys_of(ReaderKeys) if key in READER_EFFECTS] == list(READER_EFFECTS)
    assert all(takes(engine, key) for engine, kind in ENGINE_KEYS.items() for key in keys_of(kind))


def test_known_models_are_the_files_and_the_readers(project: Path) -> None:
    write(project, "seven", "model: org/seven")
    assert known_models() == [
        "seven",
        "perfect",
        "mute",
        "floor-copy",
        "floor-frequent",
        "reader-<tokens>",
    ]


def test_nothing_heavy_is_imported_by_making_a_model() -> None:
    code = "import sys, rulerkit.models as m; m.load_model('llama-3.1-8b'); m.load_model('reader-8K').prompt_format\n"
    code += (
        "print([n for n in ('torch', 'transformers', 'pandas', 'matplotlib') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


# --- readers --------------------------------------------------------------------------------------


def test_a_reader_finds_what_lies_within_its_window_and_nothing_before_it() -> None:
    form = load_model("perfect").prompt_format
    for asked in generate(task("niah_single_1"), 2048, 4, prompt_format=form):
        needle = next(i for i, piece in enumerate(asked.pieces) if piece.role == "needle")
        behind = sum(piece.num_tokens for piece in asked.pieces[needle + 1 :])
        inside = load_model(f"reader-{behind + asked.pieces[needle].num_tokens}")
        assert asked.references[0] in said(inside, [asked])[asked.index].text
        assert (
            asked.references[0]
            not in said(load_model(f"reader-{behind}"), [asked])[asked.index].text
        )


@pytest.mark.parametrize("name", THIRTEEN)
def test_a_window_as_long_as_the_budget_sees_everything(name: str) -> None:
    form = load_model("reader-4096").prompt_format
    asked = list(generate(task(name).with_corpora("builtin"), 4096, 2, prompt_format=form))
    answers = said(load_model("reader-4096"), asked)
    assert answers == said(load_model("perfect"), asked)
    assert all(
        reference.lower() in answers[e.index].text.lower()
        for e in asked
        for reference in e.references
    )
    assert {answer.finish_reason for answer in answers.values()} == {"stop"}
    assert set(said(load_model("mute"), asked).values()) == {Answer("", "stop", 0)}


def test_a_reader_is_cut_at_the_tokens_it_may_write() -> None:
    one = load_model("perfect")
    asked = next(iter(generate(task("vt"), 2048, 1, prompt_format=one.prompt_format)))
    whole = said(one, [asked])[0]
    cut = said(one, [replace(asked, max_new_tokens=2)])[0]
    assert (cut.finish_reason, cut.num_tokens) == ("length", 2)
    assert whole.num_tokens > 2
    assert whole.text.startswith(cut.text)


# --- functions ------------------------------------------------------------------------------------


def test_a_function_is_a_model() -> None:
    seen: list[Any] = []

    def last_word(prompts: list[str]) -> list[str]:
        seen.append(prompts)
        return [prompt.split()[-1] for prompt in prompts]

    one = model(last_word, name="last", batch_size=2, label="Last word")
    form = one.prompt_format
    asked = [example(text, form, i) for i, text in enumerate(["a b", "c d", "e f"])]
    assert {i: a.text for i, a in said(one, asked).items()} == {0: "b", 1: "d", 2: "f"}
    assert [len(batch) for batch in seen] == [2, 1]
    assert one.identity()["function"].endswith("last_word")
    assert load_model(one) is one
    assert (one.label, one.engine, one.aligned) == ("Last word", "function", "base")


def test_a_function_may_take_ids_and_be_told_how_much_it_may_say() -> None:
    def count(ids: list[np.ndarray], max_new_tokens: int) -> list[str]:
        return [f"{len(one)} {one.dtype} {max_new_tokens} and more and more" for one in ids]

    one = model(count, name="count", takes="ids", tokenizer="builtin")
    answer = said(one, [example("a b c", one.prompt_format, most=4)])[0]
    assert answer == Answer("3 int32 ", "length", 4) or answer.text.startswith("3 int")
    assert answer.finish_reason == "length"
    with pytest.raises(UserError, match="needs the `tokenizer`"):
        model(count, name="count", takes="ids")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        (lambda prompts: "yes", "returned 'yes'; it must return a list of 1 texts"),
        (lambda prompts: ["yes"] * 3, r"returned \['yes', 'yes', 'yes'\]"),
        (lambda prompts: [None] * len(prompts), r"returned \[None\]"),
        (lambda prompts: [prompt + " yes" for prompt in prompts], "returned the prompt"),
    ],
)
def test_what_a_function_may_not_return(answers: Any, words: str) -> None:
    one = model(answers, name="bad")
    with pytest.raises(UserError, match=words):
        said(one, [example("a long way to go " * 30, one.prompt_format)])


def test_what_cannot_be_a_model() -> None:
    with pytest.raises(UserError, match="a str cannot answer"):
        model("perfect", name="p")
    with pytest.raises(UserError, match="unknown key"):
        model(len, name="p", windows=3)


def test_an_entry_is_called_when_it_is_first_asked(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (project / "my_entry_models.py").write_text(
        "loaded = []\ndef load():\n    loaded.append(1)\n    return lambda prompts: ['yes'] * "
        "len(prompts)\n"
    )
    one = load_model({"entry": "my_entry_models:load", "name": "mine"})
    assert one.identity() == {
        "engine": "function",
        "entry": "my_entry_models:load",
        "takes": "prompts",
    }
    assert "my_entry_models" not in sys.modules
    assert said(one, [example("a", models.load_model("perfect").prompt_format)])[0].text == "yes"
    for entry, words in [
        ("my_entry_models:lod", "entry my_entry_models:lod: .* has no attribute 'lod'"),
        ("my_entry_modelz:load", "No module named"),
        ("my_entry_models", "is not allowed"),
    ]:
        with pytest.raises(UserError, match=words):
            said(load_model({"entry": entry, "name": "m"}), [example("a", one.prompt_format)])


# --- transformers: a tiny random model with real weights and a real tokenizer, on disk ------------


@pytest.fixture(scope="module")
def words() -> str:
    random = Random(7)
    letters = [
        "".join(random.choices("abcdefghijklmnop", k=random.randint(2, 7))) for _ in range(400)
    ]
    return " ".join(random.choices(letters, k=8000))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, words: str) -> Path:
    """A two-layer Llama of 0.3 M random weights, saved with a byte-pair tokenizer that puts a BOS
    before a text."""
    torch: Any = pytest.importorskip("torch", reason="the transformers engine needs torch")

    made = tmp_path_factory.mktemp("models") / "tiny"
    size = save_tokenizer(made, [words], 600, "<|mark|>")
    torch.set_num_threads(1)  # idle threads that spin make tiny models slow on a busy machine
    save_llama(made, size)
    return made


def prompts(one: Model, words: str, lengths: list[int], most: int = 12) -> list[Example]:
    text = words.split()
    form = one.prompt_format
    return [
        example(" ".join(text[13 * i : 13 * i + n]), form, i, most=most + i % 3)
        for i, n in enumerate(lengths)
    ]


LENGTHS = [40, 300, 7, 120, 300, 41, 40, 5, 260, 90, 3]


@needs_torch
def test_batched_answers_equal_those_one_by_one_and_those_of_plain_generate(
    folder: Path, words: str
) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")

    alone = load_model({"path": str(folder), "batch_size": 1, "device": "cpu"})
    asked = prompts(alone, words, LENGTHS)
    assert all((e.ids == 0).sum() == 1 and e.ids[0] == 0 for e in asked)
    one_by_one = said(alone, asked)
    assert sorted(one_by_one) == list(range(len(asked)))
    assert (
        said(load_model({"path": str(folder), "batch_size": 4, "device": "cpu"}), asked)
        == one_by_one
    )
    assert (
        said(load_model({"path": str(folder), "device": "cpu", "prefill_chunk_size": 32}), asked)
        == one_by_one
    )
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for e in asked:
        out = network.generate(
            torch.tensor(e.ids)[None].long(), max_new_tokens=e.max_new_tokens, do_sample=False
        )
        new = [token for token in out[0, e.num_tokens :].tolist() if token != 1]
        assert one_by_one[e.index].text == alone.prompt_format.tokenizer.decode(
            [t for t in new if t > 2]
        )
        assert one_by_one[e.index].num_tokens == len(new)
    assert (
        len({answer.text for answer in one_by_one.values()}) > len(asked) // 2
    )  # the model does look at its prompt
    alone.close()
    assert said(alone, asked[:1]) == {0: one_by_one[0]}


@needs_torch
def test_an_answer_stops_at_the_checkpoints_stop_tokens(
    folder: Path, words: str, tmp_path: Path
) -> None:
    asked = prompts(load_model(str(folder)), words, [50, 60, 70], most=20)
    free = said(load_model({"path": str(folder), "device": "cpu"}), asked)
    assert {a.finish_reason for a in free.values()} == {"length"}
    assert [free[e.index].num_tokens for e in asked] == [20, 21, 22]
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")

    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    out = network.generate(
        torch.tensor(asked[0].ids)[None].long(), max_new_tokens=20, do_sample=False
    )
    third = int(out[0, asked[0].num_tokens + 2])
    first = out[0, asked[0].num_tokens :].tolist().index(third)
    copy = copied(folder, tmp_path / "stops")
    # what a chat checkpoint brings: several stop tokens, sampling and a penalty, of which only the
    # first counts here
    settings = {
        "eos_token_id": [1, third],
        "do_sample": True,
        "temperature": 0.7,
        "repetition_penalty": 3.0,
    }
    (copy / "generation_config.json").write_text(json.dumps(settings | {"max_length": 8}))
    stopped = said(load_model({"path": str(copy), "device": "cpu"}), asked)
    assert stopped[0].finish_reason == "stop"
    assert stopped[0].num_tokens == first
    assert free[0].text.startswith(stopped[0].text)


def copied(folder: Path, to: Path) -> Path:
    import shutil

    shutil.copytree(folder, to)
    return to


@needs_torch
def test_a_thought_has_its_own_tokens_beside_those_of_the_answer(folder: Path, words: str) -> None:
    one = load_model({"path": str(folder), "device": "cpu", "thinking_tokens": 9})
    asked = prompts(one, words, [50])
    assert said(one, asked)[0].num_tokens == asked[0].max_new_tokens + 9


@needs_torch
def test_a_folder_is_known_by_its_files_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    copy = copied(folder, tmp_path / "copy")
    spec = {"path": str(folder), "device": "cpu"}
    identity = load_model(spec).identity()
    assert list(identity) == ["engine", "fingerprint", "weights", "dtype"]
    changes = {
        "hf_overrides": {"rope_theta": 9.0},
        "attn_implementation": "eager",
        "quantization": "bitsandbytes",
    }
    for key, value in changes.items():
        assert load_model(spec | {key: value}).identity() == identity | {key: value}
    assert load_model(str(copy)).identity() == identity
    full = load_model({"path": str(copy), "fingerprint": "full"})
    assert full.name == load_model(str(copy)).name
    assert full.identity()["weights"].items() > identity["weights"].items()
    assert load_model({"path": str(copy), "dtype": "bfloat16"}).identity() != identity
    weights = copy / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    changed = load_model(str(copy)).identity()
    assert changed["fingerprint"] != identity["fingerprint"]
    assert changed["weights"] != identity["weights"]
    assert load_model(str(folder)).environment()["path"] == str(folder)


@needs_torch
def test_a_prompt_beyond_the_models_limit_is_refused_before_anything_is_answered(
    folder: Path, words: str
) -> None:
    one = load_model({"path": str(folder), "device": "cpu"})
    asked = prompts(one, words, [50, 3000])
    with pytest.raises(
        UserError,
        match=r"example 1 of any needs \d+ tokens: its limit is 4096 .* `max_length: \d+`",
    ):
        next(one.answer(asked))
    longer = load_model({"path": str(folder), "device": "cpu", "max_length": "16K"})
    assert len(said(longer, asked)) == 2


@needs_torch
def test_folders_that_are_no_models(tmp_path: Path, folder: Path, words: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"is no model: there is no config\.json"):
        load_model(str(tmp_path / "empty"))
    with pytest.raises(UserError, match=r"no folder .*nowhere"):
        load_model({"path": str(tmp_path / "nowhere")})
    asked = prompts(load_model(str(folder)), words, [9])
    spoilt: list[tuple[str, Any]] = [
        ("no-weights", lambda f: (f / "model.safetensors").unlink()),
        ("torn-weights", lambda f: (f / "model.safetensors").write_bytes(b"\0" * 9)),
        ("torn-config", lambda f: (f / "config.json").write_text("{")),
        ("no-kind", lambda f: (f / "config.json").write_text('{"vocab_size": 3}')),
        ("speech", lambda f: (f / "config.json").write_text('{"model_type": "wav2vec2"}')),
    ]
    for name, spoil in spoilt:
        copy = copied(folder, tmp_path / name)
        spoil(copy)
        with pytest.raises(UserError) as caught:
            said(load_model({"path": str(copy), "device": "cpu"}), asked)
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)
    for device, words in [
        ("gpu", "is not allowed"),
        ("cuda:x", "is not allowed"),
        ("cuda:99", "this machine has"),
    ]:
        with pytest.raises(UserError, match=f"device.*{device}.*{words}"):
            load_model({"path": str(folder), "device": device}).identity()


@needs_torch
def test_a_loaded_pair_is_a_model(
    folder: Path, words: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")

    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    network.generation_config.do_sample = True
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    one = model((network, tokenizer), name="mine")
    by_path = load_model({"path": str(folder), "device": "cpu"})
    asked = prompts(by_path, words, LENGTHS)
    assert one.prompt_format.tokenizer.fingerprint == by_path.prompt_format.tokenizer.fingerprint
    assert one.prompt_format.bos == by_path.prompt_format.bos == (0,)
    assert said(one, asked) == said(by_path, asked)
    assert network.generation_config.do_sample  # handed back as it came
    before = one.identity()
    with torch.no_grad():
        network.model.layers[1].mlp.up_proj.weight.mul_(1.5)
    assert one.identity() != before
    with pytest.raises(UserError, match="pair"):
        model(network, name="mine")
    with pytest.raises(
        UserError, match="attn_implementation does not apply to a model that is loaded"
    ):
        model((network, tokenizer), name="mine", attn_implementation="eager")
    monkeypatch.setattr(sys, "path", list(sys.path))
    (project / "my_pair_models.py").write_text(
        "from transformers import AutoModelForCausalLM as M, PreTrainedTokenizerFast as T\n"
        f"def load():\n    return M.from_pretrained({str(folder)!r}), "
        f"T.from_pretrained({str(folder)!r})\n"
    )
    entered = load_model({"entry": "my_pair_models:load", "name": "entered"})
    assert entered.prompt_format.bos == (0,)
    assert said(entered, asked) == said(by_path, asked)


@needs_torch
def test_a_batch_that_does_not_fit_is_halved_and_later_batches_stay_small(
    folder: Path, words: str
) -> None:
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")

    network = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    forward, capacity, sizes = network.forward, 0, []

    @wraps(forward)
    def on_a_small_device(input_ids: Any = None, **kwargs: Any) -> Any:
        """The real model with memory for `capacity` tokens at a time; notes the size of each batch
        of prompts."""
        if input_ids.shape[1] > 1:
            sizes.append(len(input_ids))
        if input_ids.numel() > capacity:
            raise torch.OutOfMemoryError("out of memory. Tried to allocate 9 GiB")
        return forward(input_ids=input_ids, **kwargs)

    network.forward = on_a_small_device
    plain = load_model({"path": str(folder), "device": "cpu"})
    asked = prompts(plain, words, [300] * 9)
    expected = said(plain, asked)
    pair = network, transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    widest = max(e.num_tokens for e in asked)
    capacity = 3 * widest
    assert said(model(pair, name="small"), asked) == expected
    assert sizes == [8, 4, 2, 2, 4, 2, 2, 1]
    capacity = widest - 1
    assert said(model(pair, name="small", prefill_chunk_size=64, batch_size=1), asked) == expected
    with pytest.raises(
        UserError, match=r"out of memory at a single prompt of .*set `prefill_chunk_size`"
    ):
        said(model(pair, name="small"), asked)


@needs_torch
def test_long_examples_are_answered_one_by_one_unless_the_spec_gives_a_batch_size(
    folder: Path, words: str
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    network = transformers.LlamaForCausalLM.from_pretrained(folder)
    forward, sizes = network.forward, []

    @wraps(forward)
    def counting(input_ids: Any = None, **kwargs: Any) -> Any:
        sizes.append(len(input_ids))
        return forward(input_ids=input_ids, **kwargs)

    network.forward = counting
    pair = network, transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for spec, length, size in [({}, 8192, 3), ({}, 16384, 1), ({"batch_size": 2}, 16384, 2)]:
        one = model(pair, name="tiny", max_length=16384, **spec)
        said(one, [replace(example, length=length) for example in prompts(one, words, [40] * 3)])
        assert max(sizes) == size
        sizes.clear()


@needs_torch
def test_a_cached_hub_model_is_known_by_its_commit_and_needs_no_network(
    folder: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "hub" / "models--org--tiny"
    commit = "0123456789abcdef0123456789abcdef01234567"
    copied(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    code = """
        from rulerkit.errors import UserError
        from rulerkit.models import load_model
        import numpy as np, json
        from rulerkit.example import Example, Piece
        one = load_model({"path": "org/tiny", "device": "cpu"})
        ids = one.prompt_format.tokenizer.encode("abc def")
        asked = [Example(0, "any", 99, ("x",), 4, (Piece("abc def", "question", ids),), (0, 1))]
        answers = [answer.num_tokens for _, answer in one.answer(asked)]
        pinned = load_model({"path": "org/tiny", "revision": one.identity()["revision"], "device": "cpu"})
        try:
            load_model("org/none").identity()
        except UserError as error:
            message = str(error)
        same = pinned.prompt_format.tokenizer.fingerprint == one.prompt_format.tokenizer.fingerprint
        print(json.dumps([one.identity(), answers, message, same]))
    """
    env = os.environ | {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    identity, answers, message, same = json.loads(done.stdout.splitlines()[-1])
    assert identity == {
        "engine": "transformers",
        "path": "org/tiny",
        "revision": commit,
        "dtype": "float32",
    }
    assert (answers, same) == ([4], True)
    assert "org/none" in message
    assert "hf download org/none" in message


@needs_torch
def test_overrides_are_merged_into_the_configuration(
    folder: Path, words: str, tmp_path: Path
) -> None:
    spec = {"path": str(folder), "device": "cpu"}
    plain = load_model(spec)
    asked = prompts(plain, words, [600, 40])
    longer = load_model(spec | {"hf_overrides": {"max_position_embeddings": 9000}})
    assert (plain.too_long(5000), longer.too_long(9000)) == (plain.too_long(5000), None)
    assert plain.too_long(5000)
    assert longer.too_long(9001)
    assert said(longer, asked) == said(plain, asked)
    for name, kind in (
        ("rope_parameters", "rope_type"),
        ("rope_scaling", "type"),
    ):  # the newer and the older names
        scaled = load_model(spec | {"hf_overrides": {name: {kind: "yarn", "factor": 4.0}}})
        assert scaled.too_long(16384) is None
        assert scaled.too_long(16385)
        assert said(scaled, asked) != said(plain, asked)
    older = copied(folder, tmp_path / "older")
    config = json.loads((older / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    (older / "config.json").write_text(json.dumps(config | {"rope_theta": 8 * theta}))
    given = load_model({"path": str(older), "device": "cpu", "hf_overrides": {"rope_theta": theta}})
    assert (
        said(given, asked)
        == said(plain, asked)
        != said(load_model({"path": str(older), "device": "cpu"}), asked)
    )
    assert said(load_model(spec | {"attn_implementation": "eager"}), asked) == said(plain, asked)


@needs_torch
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hf_overrides": {"max_position_embeddings": "many"}}, "state no usable limit"),
        ({"hf_overrides": {"rope_parameters": "yarn"}}, "state no usable limit"),
        ({"hf_overrides": {"rope_parameters": {"rope_type": "yran"}}}, "cannot be loaded: .*yran"),
        (
            {"hf_overrides": {"num_hidden_layers": 3}},
            r"lacks 9 weights of the model, such as model\.layers\.2",
        ),
        ({"hf_overrides": {"hidden_size": 32}}, "do not have the shapes"),
        ({"hf_overrides": []}, "is not allowed; it takes a mapping"),
        ({"attn_implementation": "nothere"}, "nothere.* is not supported"),
        ({"attn_implementation": 7.5}, "it takes a text, such as sdpa"),
        ({"quantization": "nothere"}, "Unknown quantization type, got nothere"),
        ({"quantization": {"bits": 4}}, "no `quant_method`"),
        ({"quantization": True}, "is not allowed; it takes the name of a method"),
    ],
)
def test_a_change_that_cannot_be_is_said_in_one_line(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    asked = prompts(load_model(str(folder)), "a b c d e", [4])
    with pytest.raises(UserError, match=message) as caught:
        said(load_model({"path": str(folder), "device": "cpu"} | change), asked)
    assert "\n" not in str(caught.value)


# --- what a checkpoint's files say ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"n_positions": 1024}, 1024),
        ({"d_model": 64}, None),
        ({"text_config": {"max_position_embeddings": 8192}}, 8192),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"rope_type": "llama3", "factor": 8},
            },
            131072,
        ),
        ({"max_position_embeddings": 32768, "rope_scaling": {"type": "yarn", "factor": 4}}, 131072),
        (
            {
                "max_position_embeddings": 4096,
                "rope_parameters": {"rope_type": "linear", "factor": 8},
            },
            32768,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
    ],
)
def test_the_limit_that_a_configuration_states(config: dict[str, Any], limit: int | None) -> None:
    assert max_positions(config) == limit


@pytest.mark.parametrize(
    ("config", "spec", "overrides"),
    [
        ({}, {}, {}),
        ({}, {"max_length": "16K"}, {"max_position_embeddings": 16384}),
        ({"text_config": {"max_position_embeddings": 4096}}, {"max_length": 4096}, {}),
        (
            {"text_config": {"max_position_embeddings": 4096}},
            {"max_length": 5000},
            {"text_config": {"max_position_embeddings": 5000}},
        ),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, {"max_length": "16K"}, {}),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "yarn", "factor": 4.0}},
            {},
            {
                "max_position_embeddings": 16384,
                "rope_parameters": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "rope_theta": 5e5,
                    "original_max_position_embeddings": 4096,
                },
            },
        ),
    ],
)
def test_vllm_is_given_the_positions_that_it_does_not_derive(
    tmp_path: Path, config: dict[str, Any], spec: dict[str, Any], overrides: dict[str, Any]
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "llama", "max_position_embeddings": 4096} | config)
    )
    one = load_model({"path": str(tmp_path), **spec})
    assert isinstance(one, CheckpointEngine)
    assert one.vllm_overrides() == overrides


def test_stop_tokens_come_from_all_that_name_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 7]}')
    added = [
        {"id": 9, "content": "<|end|>", "special": True},
        {"id": 8, "content": "<think>", "special": True},
    ]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    found = Checkpoint("x", str(tmp_path))
    assert found.stop_ids("<|end|>") == [2, 7, 9]
    assert found.special_ids() == {9}

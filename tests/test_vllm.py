"""vLLM's server as the kit starts it: the order of prompts, and real servers on the CPU, sent ids,
killed and starved of memory.

The servers' tests run where vllm is installed: `make test-vllm` makes an environment of its own for
them.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import rulerkit as rk
import rulerkit.models.server as server
from rulerkit.errors import UserError
from rulerkit.evaluation import close, evaluate
from rulerkit.example import Example, Piece
from rulerkit.generation import Examples, generate
from rulerkit.models import load_model
from rulerkit.models.client import Address, Reply, RequestError
from rulerkit.models.server import PromptQueue, Vllm
from rulerkit.store import Cell
from rulerkit.tasks import THIRTEEN, task
from tests.processes import gone_within, processes
from tests.tiny_llama import save_llama, save_tokenizer

TASKS = ("niah_single_2", "vt", "cwe", "qa_1")
needs_vllm = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vllm is not installed: make test-vllm"
)
pytestmark = pytest.mark.xdist_group("vllm")

# --- without an engine: the order, the mapping, what does not fit ---------------------------------


def prompt(*ids: int) -> Example:
    tokens = np.array(ids, dtype=np.int32)
    return Example(0, "any", 4096, ("x",), 8, (Piece("", "question", tokens),), (0, 1))


def taken(order: PromptQueue, last: Example | None = None) -> list[list[int]]:
    """All that waits, in the order in which one server gets it."""
    got = []
    while order:
        last = order.take(last)
        got.append(last.ids.tolist())
    return got


def test_prompts_are_taken_in_the_order_of_their_ids() -> None:
    random = Random(5)
    lists = [[random.randrange(3) for _ in range(random.randrange(9))] for _ in range(200)]
    order = PromptQueue()
    for ids in lists:
        order.add(prompt(*ids))
    assert order.tokens == sum(map(len, lists))
    assert taken(order) == sorted(lists)
    assert (order.tokens, len(order)) == (0, 0)
    with pytest.raises(IndexError):
        order.take()


def test_what_comes_in_late_waits_for_its_turn_and_the_order_goes_round() -> None:
    order = PromptQueue()
    for first in (5, 1, 9):
        order.add(prompt(first, 0))
    first_taken = order.take()
    last = order.take(first_taken)
    assert [first_taken.ids[0], last.ids[0]] == [1, 5]
    for first in (4, 7, 5):
        order.add(prompt(first, 0))
    assert taken(order, last) == [[5, 0], [7, 0], [9, 0], [4, 0]]


def test_each_server_goes_on_from_its_own_last_prompt() -> None:
    order = PromptQueue()
    for first in range(10):
        order.add(prompt(first))
    one, two = order.take(None, 0.0), order.take(None, 0.5)
    assert [one.ids[0], two.ids[0]] == [0, 5]
    for _ in range(4):
        one, two = order.take(one), order.take(two)
    assert [one.ids[0], two.ids[0]] == [4, 9]
    assert len(order) == 0


def test_examples_that_stream_in_share_nearly_as_much_with_their_neighbours_as_sorted_ones() -> (
    None
):
    """Essay prompts of one cell, made 20 ahead and more: shared prefixes of neighbours, in
    tokens."""

    def shared(row: list[Example]) -> int:
        return sum(
            int(np.argmax(np.append(a.ids[:800] != b.ids[:800], True))) for a, b in pairwise(row)
        )

    asked = list(generate(task("niah_single_2").with_corpora("builtin"), 1024, 60))
    assert all(e.num_tokens >= 800 for e in asked)
    order, row = PromptQueue(), []
    for number, example in enumerate(asked):
        order.add(example)
        if number >= 20:
            row.append(order.take(row[-1] if row else None))
    while order:
        row.append(order.take(row[-1]))
    assert sorted(e.index for e in row) == list(range(60))
    best = shared(sorted(asked, key=lambda e: e.ids.tolist()))
    assert shared(asked) < 0.75 * best
    assert shared(row) > 0.9 * best


def config(folder: Path, **more: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "max_position_embeddings": 4096} | more)
    )
    return str(folder)


def test_only_what_changes_the_answers_is_part_of_a_models_identity(tmp_path: Path) -> None:
    base = {"path": config(tmp_path / "m"), "engine": "vllm", "dtype": "bfloat16"}
    identity = load_model(base).identity()
    assert (identity["engine"], identity["prompt_path"], identity["dtype"]) == (
        "vllm",
        "ids",
        "bfloat16",
    )
    same = {
        "tensor_parallel_size": 4,
        "gpu_memory_utilization": 0.5,
        "max_num_seqs": 3,
        "in_flight": 9,
        "replicas": 2,
    }
    same["engine_args"] = {"enable_prefix_caching": False, "kv_cache_memory_bytes": 2**30}
    assert load_model(base | same).identity() == identity
    for other in (
        {"quantization": "fp8"},
        {"kv_cache_dtype": "fp8"},
        {"hf_overrides": {"rope_theta": 1e6}},
        {"batch_invariant": True},
        {"engine_args": {"block_size": 32}},
        {"dtype": "float32"},
    ):
        assert load_model(base | other).identity() != identity


def test_a_length_beyond_the_model_is_told_with_what_would_make_it_fit(tmp_path: Path) -> None:
    base = {"path": config(tmp_path / "m"), "engine": "vllm", "dtype": "bfloat16"}
    assert load_model(base).too_long(4096) is None
    reason = load_model(base).too_long(8192)
    assert reason
    assert all(word in reason for word in ("4096", "hf_overrides", "max_length: 8192"))
    yarn = {
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 4096,
        }
    }
    assert load_model(base | {"hf_overrides": yarn}).too_long(16384) is None
    assert load_model(base | {"hf_overrides": yarn}).too_long(16385)
    longer = load_model(base | {"max_length": "16K"})
    assert longer.too_long(16384) is None
    assert isinstance(longer, Vllm)
    assert longer.arguments()["hf_overrides"] == {"max_position_embeddings": 16384}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"gpu_memory_utilization": 90}, "above 0, at most 1"),
        ({"tensor_parallel_size": 0}, "GPUs"),
        ({"engine_args": 3}, "vllm serve"),
        ({"batch_size": 4}, "unknown key"),
    ],
)
def test_a_mapping_with_a_mistake_is_refused(
    tmp_path: Path, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        load_model({"path": config(tmp_path / "m"), "engine": "vllm"} | more)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no model: there is no config\.json"):
        load_model({"path": str(tmp_path), "engine": "vllm"})
    with pytest.raises(UserError, match="`path` is missing"):
        load_model({"engine": "vllm", "name": "x"})


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_without_vllm_the_first_answer_says_what_to_install(tmp_path: Path) -> None:
    one = load_model(
        {
            "path": config(tmp_path / "m"),
            "engine": "vllm",
            "tokenizer": "builtin",
            "dtype": "float32",
        }
    )
    with pytest.raises(UserError, match=r"pip install 'rulerkit\[vllm\]'"):
        next(one.answer([prompt(1, 2)]))


def test_arguments_become_the_command_line_of_the_server(tmp_path: Path) -> None:
    more = {
        "hf_overrides": {"rope_theta": 1e6},
        "max_length": "8K",
        "trust_remote_code": False,
        "max_num_seqs": 8,
    }
    more["engine_args"] = {
        "enable_prefix_caching": False,
        "served_model_name": ["a", "b"],
        "load_format": None,
    }
    one = load_model(
        {"path": config(tmp_path / "m"), "engine": "vllm", "dtype": "float32", "name": "m"} | more
    )
    assert isinstance(one, Vllm)
    line = one.command(Address("http://127.0.0.1:4321/v1", "secret"))
    text = " ".join(line)
    for words in (
        f"{tmp_path}/m",
        "--port 4321 ",
        "--max-model-len 8192",
        '--hf-overrides {"rope_theta": 1000000.0, "max_position_embeddings": 8192}',
        "--no-enable-prefix-caching",
        "--served-model-name a b",
        "--no-trust-remote-code",
        "--skip-tokenizer-init",
        "--max-num-seqs 8",
    ):
        assert words in text
    assert "secret" not in text  # it goes through the environment
    assert "load-format" not in text
    assert one.variables()["VLLM_NO_USAGE_STATS"] == "1"


def test_a_model_of_text_and_images_is_started_for_text_alone(tmp_path: Path) -> None:
    folder = config(tmp_path / "m", vision_config={}, text_config={"max_position_embeddings": 8192})
    one: Any = load_model({"path": folder, "engine": "vllm", "dtype": "float32"})
    assert one.arguments()["language_model_only"] is True
    assert one.too_long(8192) is None
    assert "8192" in one.too_long(8193)


def test_several_nodes_share_one_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the job script starts them; over real nodes this was not run."""
    monkeypatch.delenv("RULERKIT_MASTER", raising=False)
    base = {"path": config(tmp_path / "m"), "engine": "vllm", "dtype": "bfloat16", "nodes": 2}
    one: Any = load_model(base | {"tensor_parallel_size": 8, "pipeline_parallel_size": 2})
    with pytest.raises(UserError, match="RULERKIT_MASTER=HOST:PORT"):
        one.follow(1)
    monkeypatch.setenv("RULERKIT_MASTER", "node7:20123")
    shared = "--nnodes 2 --node-rank {} --master-addr node7 --master-port 20123"
    assert shared.format(0) in " ".join(one.command(Address("http://127.0.0.1:1/v1", "k")))
    call = " ".join(one.follow(1))
    assert shared.format(1) in call
    assert "vllm.entrypoints.cli.main serve " in call
    assert " --headless " in call
    odd: Any = load_model(base | {"tensor_parallel_size": 3})
    with pytest.raises(UserError, match="`nodes: 2` does not divide"):
        odd.follow(1)


def test_what_the_server_read_must_be_what_it_was_sent(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    save_tokenizer(tmp_path / "m", ["some words to learn"], 300)
    one: Any = load_model(
        {"path": config(tmp_path / "m"), "engine": "vllm", "dtype": "float32", "name": "m"}
    )
    asked = prompt(5, 6, 7)

    def reply(**choice: Any) -> Reply:
        whole = {
            "prompt_token_ids": [5, 6, 7],
            "token_ids": [70, 71],
            "finish_reason": "length",
            **choice,
        }
        return Reply.model_validate({"choices": [whole], "usage": {"prompt_tokens": 3}})

    answer = one.read(asked, reply())
    assert (answer.finish_reason, answer.num_tokens, answer.usage["prompt_tokens"]) == (
        "length",
        2,
        3,
    )
    for wrong in ([5, 6], [0, 5, 6, 7], [5, 6, 8], None):
        with pytest.raises(
            UserError, match=r"vLLM read \d prompt tokens of example 0 of any, other than the 3"
        ):
            one.read(asked, reply(prompt_token_ids=wrong))
    for end in ("error", "abort", None):
        with pytest.raises(RequestError, match=f"finish_reason {end}"):
            one.read(asked, reply(finish_reason=end))


# --- real servers ---------------------------------------------------------------------------------

BYTES = 2 * 2 * 32 * 4  # keys and values of a token: two layers, one head of 32 numbers in float32


def spec(folder: Path, **more: Any) -> dict[str, Any]:
    return {"path": str(folder), "engine": "vllm", "dtype": "float32", "name": "tiny"} | more


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama of random weights with a byte-pair tokenizer; several tokens end an answer,
    and its generation_config.json asks for sampling and a penalty, which nobody may heed."""
    torch: Any = pytest.importorskip("torch")

    folder = tmp_path_factory.mktemp("models") / "tiny"
    texts = [generate(task(name).with_corpora("builtin"), 4096, 1)[0].prompt for name in TASKS]
    size = save_tokenizer(folder, texts, 2000)
    torch.set_num_threads(1)
    save_llama(folder, size, head_dim=32, max_position_embeddings=32768)
    settings = {
        "eos_token_id": [1, *range(300, 320)],
        "do_sample": True,
        "temperature": 0.7,
        "repetition_penalty": 3.0,
    }
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module", autouse=True)
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody else's servers are found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("registry")))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


def cell(one: Any, name: str, length: int, count: int) -> Examples:
    return generate(
        task(name).with_corpora("builtin"), length, count, prompt_format=one.prompt_format
    )


def rows(cells: Iterable[Cell]) -> dict[tuple[str, int], tuple[str, str]]:
    return {
        (row["task"], row["index"]): (row["pred"], row["finish_reason"])
        for done in cells
        for row in done.rows
    }


def thirteen(model: dict[str, Any], folder: Path, length: int, count: int) -> list[Cell]:
    """The cells of all tasks; the model is closed after them."""
    study = rk.study(model=model, lengths=[length], num_examples=count, outputs=str(folder))
    return evaluate(study, progress=False)


@needs_vllm
def test_thirteen_tasks_are_answered_as_by_transformers_and_the_server_stays_for_the_next_call(
    tiny: Path, tmp_path: Path
) -> None:
    try:
        ours = thirteen(spec(tiny), tmp_path / "vllm", 4096, 2)
        theirs = thirteen(
            {"path": str(tiny), "name": "tiny", "device": "cpu"}, tmp_path / "transformers", 4096, 2
        )
        assert rows(ours) == rows(theirs)
        assert len(rows(ours)) == 26
        for row in (row for done in ours for row in done.rows):
            assert row["usage"]["prompt_tokens"] == row["num_prompt_tokens"]
            assert 0 <= row["usage"]["cached_tokens"] < row["num_prompt_tokens"]
        assert {row["finish_reason"] for done in ours for row in done.rows} == {"stop", "length"}
        assert len({row["pred"] for done in ours for row in done.rows}) > 13
        record = ours[0].record
        assert record["result"]["model"]["prompt_path"] == "ids"
        assert record["environment"]["packages"]["vllm"]
        longer = spec(tiny)
        first = thirteen(longer, tmp_path / "stays", 1024, 1)
        process = server.ServerEngine._running.replicas[0].process.pid  # type: ignore[union-attr]
        address = server.ServerEngine._running.replicas[0].address  # type: ignore[union-attr]
        assert address.get("/v1/models")[0] == 200
        assert address._replace(key="a stranger's").get("/v1/models")[0] == 401
        again = thirteen(longer, tmp_path / "stays", 1024, 2)
        assert server.ServerEngine._running.replicas[0].process.pid == process  # type: ignore[union-attr]
        assert rows(first).items() <= rows(again).items()
    finally:
        close()


def behind_base_url(
    folder: Path, count: int, monkeypatch: pytest.MonkeyPatch, *flags: str
) -> dict[tuple[str, int], str]:
    """The answers to the thirteen tasks at 4K of a vLLM server that a user's command starts, asked
    at its `base_url`."""
    more = "--dtype float32 --max-model-len 8192 --enforce-eager --generation-config vllm --host 127.0.0.1"
    line = f"VLLM_CPU_KVCACHE_SPACE=1 {sys.executable} -m vllm.entrypoints.openai.api_server --model {{path}} {more}"
    common = {
        "path": str(folder),
        "extra_body": {"stop_token_ids": [1]},
    }  # that of the checkpoints saved below
    command = f"{line} {shlex.join(flags)} --port {{port}} --api-key {{key}}"
    one: Any = load_model(common | {"serve": command, "name": "own"})
    try:
        one.open()
        one.wait_until_ready()
        monkeypatch.setenv("KEY_OF_TINY", one.replicas[0].address.key)
        where = {"base_url": one.replicas[0].address.url, "api_key_env": "KEY_OF_TINY"}
        other: Any = load_model(common | where | {"name": "there"})
        assert other.prompt_path == "ids"
        asked = [example for name in THIRTEEN for example in cell(other, name, 4096, count)]
        return {
            (example.task, example.index): answer.text for example, answer in other.answer(asked)
        }
    finally:
        one.close()


def broken_ends(cells: Iterable[Cell]) -> dict[tuple[str, int], str]:
    """The texts of rows; vLLM's own detokenizer leaves half a character at the end out, ours shows
    a broken one."""
    return {key: text.rstrip("\ufffd") for key, (text, _) in rows(cells).items()}


@needs_vllm
def test_qwen3_with_yarn_beyond_its_positions_answers_as_by_transformers(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    torch: Any = pytest.importorskip("torch")
    folder = shutil.copytree(
        tiny, tmp_path / "qwen3", ignore=shutil.ignore_patterns("*.safetensors")
    )
    torch.manual_seed(1)
    shape = {
        "vocab_size": 2000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "head_dim": 32,
    }
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 2048}
    made = transformers.Qwen3Config(**shape, initializer_range=0.2, bos_token_id=0, eos_token_id=1)
    transformers.Qwen3ForCausalLM(made).save_pretrained(folder)
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 2048,
        "rope_theta": 10000.0,
    }
    over = {"hf_overrides": {"rope_parameters": yarn, "max_position_embeddings": 8192}}
    try:
        ours = thirteen(spec(folder, **over), tmp_path / "vllm", 4096, 2)
        plain = {
            "path": str(folder),
            "engine": "transformers",
            "name": "tiny",
            "device": "cpu",
            **over,
        }
        theirs = thirteen(plain, tmp_path / "transformers", 4096, 2)
        assert rows(ours) == rows(theirs)
        assert len(rows(ours)) == 26
    finally:
        close()
    flags = ("--hf-overrides", json.dumps(over["hf_overrides"]))
    assert behind_base_url(folder, 2, monkeypatch, *flags) == broken_ends(theirs)


@needs_vllm
def test_mamba2_without_positions_answers_as_by_transformers(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers: Any = pytest.importorskip("transformers")
    torch: Any = pytest.importorskip("torch")
    folder = shutil.copytree(
        tiny, tmp_path / "mamba2", ignore=shutil.ignore_patterns("*.safetensors")
    )
    torch.manual_seed(2)
    shape = {
        "vocab_size": 2000,
        "hidden_size": 64,
        "state_size": 16,
        "num_hidden_layers": 2,
        "expand": 2,
        "n_groups": 1,
    }
    made = transformers.Mamba2Config(
        **shape,
        num_heads=4,
        head_dim=32,
        chunk_size=64,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.2,
    )
    transformers.Mamba2ForCausalLM(made).save_pretrained(folder)
    try:
        ours = thirteen(spec(folder), tmp_path / "vllm", 4096, 1)
        plain = {"path": str(folder), "engine": "transformers", "name": "tiny", "device": "cpu"}
        theirs = thirteen(plain, tmp_path / "transformers", 4096, 1)
        assert rows(ours) == rows(theirs)
        assert len(rows(ours)) == 13
    finally:
        close()
    assert behind_base_url(folder, 1, monkeypatch) == broken_ends(theirs)


MESSAGES = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}{% if m['role'] == "
    "'user' %}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@needs_vllm
def test_a_server_of_ones_own_gives_the_same_answers_by_ids_text_and_prefill(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM once more, started by a user's command, with its own tokenizer; then the same server
    behind `base_url`."""
    folder = shutil.copytree(tiny, tmp_path / "tiny")
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"chat_template": MESSAGES})
    )
    flags = "--dtype float32 --max-model-len 8192 --enforce-eager --generation-config vllm --host 127.0.0.1"
    line = f"VLLM_CPU_KVCACHE_SPACE=1 {sys.executable} -m vllm.entrypoints.openai.api_server --model {{path}} {flags}"
    # the engines end an answer at the ids that the checkpoint names; so must the requests
    common = {"path": str(folder), "extra_body": {"stop_token_ids": [1, *range(300, 320)]}}
    served = common | {"serve": f"{line} --port {{port}} --api-key {{key}}", "name": "served"}
    plain: Any = load_model({"path": str(folder), "name": "tiny", "device": "cpu"})

    try:
        started = thirteen(served, tmp_path / "serve", 4096, 2)
        assert started[0].record["result"]["model"]["prompt_path"] == "ids"
        theirs = thirteen(
            {"path": str(folder), "name": "tiny", "device": "cpu"},
            tmp_path / "transformers",
            4096,
            2,
        )
        assert {key: text for key, (text, _) in rows(started).items()} == broken_ends(theirs)
        one: Any = load_model(served)
        one.open()
        one.wait_until_ready()
        (replica,) = one.replicas
        monkeypatch.setenv("KEY_OF_TINY", replica.address.key)
        where = {"base_url": replica.address.url, "api_key_env": "KEY_OF_TINY"}
        for path, adds_bos in (("ids", False), ("text", True), ("prefill", True)):
            other: Any = load_model({**common, **where, "prompt_path": path, "name": path})
            assert (other.server.adds_bos, other.server.exact, other.server.limit) == (
                adds_bos,
                True,
                8192,
            )
            assert "8192" in (other.too_long(16384) or "")
            for name in ("niah_single_1", "vt", "fwe"):
                asked = cell(other, name, 2048, 2)
                answers = {example.index: answer.text for example, answer in other.answer(asked)}
                expected = plain.answer(cell(plain, name, 2048, 2))
                assert answers == {
                    example.index: answer.text.rstrip("\ufffd") for example, answer in expected
                }, path
    finally:
        close()
        if server.ServerEngine._running:
            server.ServerEngine._running.close()


@needs_vllm
def test_of_two_replicas_one_is_killed_and_the_other_answers_the_rest(
    tiny: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    one = load_model(
        spec(
            tiny, replicas=2, max_length="8K", engine_args={"kv_cache_memory_bytes": BYTES * 2**15}
        )
    )
    assert isinstance(one, Vllm)
    asked = cell(one, "niah_single_2", 2048, 40)
    answers: dict[int, str] = {}
    try:
        one.open()
        one.wait_until_ready()
        for example, answer in one.answer(asked):
            assert example.index not in answers
            answers[example.index] = answer.text
            if len(answers) == 6:
                replica, other = one.replicas
                assert len(replica.under_way) >= 10, "about half of the forty were sent to it"
                assert len(other.under_way) >= 10
                process = replica.process
                assert process
                (guarded,) = (
                    Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                )
                os.killpg(int(guarded), signal.SIGKILL)
    finally:
        one.close()
    assert sorted(answers) == list(range(40))
    assert "the other servers take over its work" in capfd.readouterr().err
    plain = load_model(
        {"path": str(tiny), "engine": "transformers", "name": "tiny", "device": "cpu"}
    )
    assert {example.index: answer.text for example, answer in plain.answer(asked)} == answers


@needs_vllm
def test_after_a_killed_parent_nothing_is_left_and_the_same_command_ends_with_the_same_rows(
    tiny: Path, tmp_path: Path
) -> None:
    code = """if True:
        import json, sys
        from pathlib import Path
        import rulerkit as rk
        study = rk.study(model=json.loads(sys.argv[1]), tasks=["niah_single_2"], lengths=[2048], num_examples=24,
                         outputs=sys.argv[2])
        rk.evaluate(study, progress=False)
        """
    command = [
        sys.executable,
        "-c",
        code,
        json.dumps(spec(tiny, concurrency=2)),
        str(tmp_path / "cut"),
    ]
    parent = subprocess.Popen(command, env=os.environ | {"RULERKIT_TEST_MARK": str(tmp_path)})
    file = tmp_path / "cut/predictions/main/tiny/niah_single_2/2048.jsonl"
    until = time.monotonic() + 240
    while not (file.exists() and file.read_text().count("\n") >= 4) and time.monotonic() < until:
        assert parent.poll() is None
        time.sleep(0.01)
    assert (
        len(processes(str(tmp_path), "environ")) >= 4
    )  # the parent, the guard, the server and its engine
    parent.kill()
    parent.wait()
    assert gone_within(20, str(tmp_path), "environ"), processes(str(tmp_path), "environ")
    before = file.read_text()
    assert 4 <= before.count("\n") < 24
    plain = load_model(
        {"path": str(tiny), "engine": "transformers", "name": "tiny", "device": "cpu"}
    )
    whole = {e.index: a.text for e, a in plain.answer(cell(plain, "niah_single_2", 2048, 24))}
    assert subprocess.run(command).returncode == 0
    assert file.read_text().startswith(before)
    assert {
        row["index"]: row["pred"] for row in map(json.loads, file.read_text().splitlines())
    } == whole


class _AsMade(PromptQueue):
    """The control: prompts in the order in which they come."""

    def add(self, example: Example) -> None:
        self._waiting.append(example)
        self.tokens += example.num_tokens

    def take(self, last: Example | None = None, start: float = 0.0) -> Example:
        example = self._waiting.pop(0)
        self.tokens -= example.num_tokens
        return example


@needs_vllm
def test_the_order_reuses_more_of_a_scarce_cache_and_what_it_cannot_hold_is_not_run(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    one = load_model(
        spec(tiny, engine_args={"kv_cache_memory_bytes": BYTES * 4608, "block_size": 32})
    )
    assert isinstance(one, Vllm)
    essays = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue")
    asked = [e for name in essays for e in cell(one, name, 2048, 10)]
    Random(3).shuffle(asked)

    def run() -> tuple[float, dict[Any, str]]:
        said = list(one.answer(asked))
        usages = [answer.usage or {} for _, answer in said]
        rate = sum(u["cached_tokens"] for u in usages) / sum(u["prompt_tokens"] for u in usages)
        return rate, {(e.task, e.index): a.text for e, a in said}

    not_run = []
    try:
        one.open()
        one.wait_until_ready()
        ordered, texts = run()
        monkeypatch.setattr(server, "PromptQueue", _AsMade)
        shuffled, same = run()
        print(f"served from the cache: {ordered:.1%} in our order, {shuffled:.1%} shuffled")
        assert texts == same
        assert ordered > 1.5 * shuffled > 0
        process = one.replicas[0].process
        assert process
        pid = process.pid
        study = rk.study(
            model=one,
            tasks=["vt", "cwe"],
            lengths=[1024, 8192],
            num_examples=2,
            outputs=str(tmp_path),
        )
        done = evaluate(study, progress=False, not_run=lambda *words: not_run.append(words))
        assert [(each.task, each.length, len(each.rows)) for each in done] == [
            ("vt", 1024, 2),
            ("cwe", 1024, 2),
        ]
        assert one.replicas[0].process is process
        assert process.pid == pid
    finally:
        close()
        one.close()
    assert [words[:2] for words in not_run] == [("tiny", 8192)]
    assert "room for 45" in not_run[0][2]
    assert capfd.readouterr().err.count("not run: tiny at ") == 1


@needs_vllm
def test_a_server_that_cannot_start_is_one_line(tiny: Path) -> None:
    one = load_model(
        spec(tiny, max_length="16K", engine_args={"kv_cache_memory_bytes": BYTES * 8192})
    )
    assert isinstance(one, Vllm)
    with pytest.raises(UserError) as caught:
        list(one.answer(cell(one, "vt", 1024, 1)))
    message = str(caught.value)
    print(message)
    assert "\n" not in message
    for words in (
        "model tiny: its server did not start",
        "its log is",
        "KV",
        "tensor_parallel_size",
        "max_length",
    ):
        assert words in message
    one.close()

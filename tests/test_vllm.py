"""vLLM: the order of prompts, and a real engine on the CPU that is sent ids, killed, interrupted and starved of memory.

The engine's tests run where vllm is installed: `make test-vllm` makes an environment of its own for them.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import rulerkit.models.vllm as room
from rulerkit.errors import TooLong, UserError
from rulerkit.example import Example, Piece
from rulerkit.generation import Examples, generate
from rulerkit.inference import predict
from rulerkit.inference.cells import Cell
from rulerkit.inference.evaluation import close, evaluate
from rulerkit.models import load_model
from rulerkit.models.vllm import Vllm
from rulerkit.models.vllm.prefix_order import PrefixOrder
from rulerkit.models.vllm.process import reason
from rulerkit.studies import Study
from rulerkit.tasks import task

TASKS = ("niah_single_2", "vt", "cwe", "qa_1")
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed: make test-vllm")
pytestmark = pytest.mark.xdist_group("vllm")

# --- without an engine: the order, the mapping, what does not fit -----------------------------------------------------


def prompt(*ids: int) -> Example:
    tokens = np.array(ids, dtype=np.int32)
    return Example(0, "any", 4096, ("x",), 8, (Piece("", "question", tokens),), (0, 1))


def taken(order: PrefixOrder) -> list[list[int]]:
    return [order.take().ids.tolist() for _ in range(len(order))]


def test_prompts_are_taken_in_the_order_of_their_ids() -> None:
    random = Random(5)
    lists = [[random.randrange(3) for _ in range(random.randrange(9))] for _ in range(200)]
    order = PrefixOrder()
    for ids in lists:
        order.add(prompt(*ids))
    assert order.tokens == sum(map(len, lists))
    assert taken(order) == sorted(lists)
    assert (order.tokens, len(order)) == (0, 0)
    with pytest.raises(IndexError):
        order.take()


def test_what_comes_in_late_waits_for_its_turn_and_the_order_goes_round() -> None:
    order = PrefixOrder()
    for first in (5, 1, 9):
        order.add(prompt(first, 0))
    assert [order.take().ids[0], order.take().ids[0]] == [1, 5]
    for first in (4, 7, 5):
        order.add(prompt(first, 0))
    assert taken(order) == [[5, 0], [7, 0], [9, 0], [4, 0]]


def test_examples_that_stream_in_share_nearly_as_much_with_their_neighbours_as_sorted_ones() -> None:
    """Essay prompts of one cell, made 20 ahead and more: shared prefixes of neighbours, in tokens."""

    def shared(row: list[Example]) -> int:
        return sum(int(np.argmax(np.append(a.ids[:800] != b.ids[:800], True))) for a, b in pairwise(row))

    asked = list(generate(task("niah_single_2").with_corpora("builtin"), 1024, 60))
    assert all(e.num_tokens >= 800 for e in asked)
    order, row = PrefixOrder(), []
    for number, example in enumerate(asked):
        order.add(example)
        if number >= 20:
            row.append(order.take())
    row += [order.take() for _ in range(len(order))]
    assert sorted(e.index for e in row) == list(range(60))
    best = shared(sorted(asked, key=lambda e: e.ids.tolist()))
    assert shared(asked) < 0.75 * best
    assert shared(row) > 0.9 * best


def config(folder: Path, **more: Any) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", "max_position_embeddings": 4096} | more))
    return str(folder)


def test_only_what_changes_the_answers_is_part_of_a_models_identity(tmp_path: Path) -> None:
    base = {"path": config(tmp_path / "m"), "engine": "vllm", "dtype": "bfloat16"}
    identity = load_model(base).identity()
    assert (identity["engine"], identity["prompt_path"], identity["dtype"]) == ("vllm", "ids", "bfloat16")
    same = {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.5, "max_num_seqs": 3, "in_flight": 9}
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
    yarn = {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}
    assert load_model(base | {"hf_overrides": yarn}).too_long(16384) is None
    assert load_model(base | {"hf_overrides": yarn}).too_long(16385)
    longer = load_model(base | {"max_length": "16K"})
    assert longer.too_long(16384) is None
    assert isinstance(longer, Vllm)
    assert longer._settings()["hf_overrides"] == {"max_position_embeddings": 16384}


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"gpu_memory_utilization": 90}, "above 0, at most 1"),
        ({"tensor_parallel_size": 0}, "GPUs"),
        ({"engine_args": 3}, "vllm.LLM"),
        ({"batch_size": 4}, "unknown key"),
    ],
)
def test_a_mapping_with_a_mistake_is_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_model({"path": config(tmp_path / "m"), "engine": "vllm"} | more)


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"is no model: there is no config\.json"):
        load_model({"path": str(tmp_path), "engine": "vllm"})
    with pytest.raises(UserError, match="`path` is missing"):
        load_model({"engine": "vllm", "name": "x"})


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_without_vllm_the_first_answer_says_what_to_install(tmp_path: Path) -> None:
    one = load_model({"path": config(tmp_path / "m"), "engine": "vllm", "tokenizer": "builtin", "dtype": "float32"})
    with pytest.raises(UserError, match=r"pip install 'rulerkit\[vllm\]'"):
        next(one.answer([prompt(1, 2)]))


def test_a_log_is_told_by_its_root_cause() -> None:
    log = (
        "(EngineCore pid=7) ERROR 11-20 12:25:11 [core.py:1] ValueError: 16.0 GiB KV cache is needed. Try increasing x\n"
        "Traceback (most recent call last):\n"
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    )
    assert reason(log) == "ValueError: 16.0 GiB KV cache is needed."
    assert reason("[rank0]: OSError: no weights\n") == "OSError: no weights"
    assert reason("one\n\ntwo\nthree\nfour\n") == "two | three | four"
    assert reason("") == "it left no word"


# --- a real engine ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer Llama of random weights with a byte-pair tokenizer; several tokens end an answer, and its
    generation_config.json asks for sampling and a penalty, which nobody may heed."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    folder = tmp_path_factory.mktemp("models") / "tiny"
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=2000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    texts = [generate(task(name).with_corpora("builtin"), 4096, 1)[0].prompt for name in TASKS]
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = transformers.LlamaConfig(
        vocab_size=backend.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=32768,
        initializer_range=0.2,  # so that logits are not flat and greedy answers differ
        bos_token_id=0,
        eos_token_id=1,
    )
    transformers.LlamaForCausalLM(shape).save_pretrained(folder)
    settings = {"eos_token_id": [1, *range(300, 320)], "do_sample": True, "temperature": 0.7, "repetition_penalty": 3.0}
    (folder / "generation_config.json").write_text(json.dumps(settings))
    return folder


BYTES = 2 * 2 * 32 * 4  # keys and values of a token: two layers, one head of 32 numbers in float32


def spec(folder: Path, **more: Any) -> dict[str, Any]:
    return {"path": str(folder), "engine": "vllm", "dtype": "float32", "name": "tiny"} | more


@pytest.fixture(scope="module")
def environment() -> Iterator[None]:
    """One thread: idle ones that spin make tiny models slow on a busy machine."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    yield
    os.environ.pop("OMP_NUM_THREADS") if before is None else os.environ.update(OMP_NUM_THREADS=before)


@pytest.fixture(scope="module")
def engine(tiny: Path, environment: None) -> Iterator[Vllm]:
    one = load_model(spec(tiny, engine_args={"kv_cache_memory_bytes": BYTES * 2**19}))
    assert isinstance(one, Vllm)
    yield one
    one.close()


def cell(one: Any, name: str, length: int, count: int) -> Examples:
    return generate(task(name).with_corpora("builtin"), length, count, prompt_format=one.prompt_format)


def rows(done: Cell) -> dict[int, tuple[str, str]]:
    return {row["index"]: (row["pred"], row["finish_reason"]) for row in done.rows}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_within(seconds: float, pid: int) -> bool:
    until = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(pid)


@needs_vllm
def test_cells_of_four_tasks_are_answered_as_by_transformers(engine: Vllm, tiny: Path, tmp_path: Path) -> None:
    other = load_model({"path": str(tiny), "engine": "transformers", "name": "tiny", "device": "cpu"})
    finishes = set()
    for name in TASKS:
        for length in (1024, 2048):
            asked = cell(engine, name, length, 4)
            ours = predict(engine, asked, tmp_path / "vllm", progress=False)
            theirs = predict(other, asked, tmp_path / "transformers", progress=False)
            assert rows(ours) == rows(theirs)
            assert sorted(rows(ours)) == [0, 1, 2, 3]
            for row in ours.rows:
                assert row["usage"]["prompt_tokens"] == row["num_prompt_tokens"] == asked[row["index"]].num_tokens
                assert 0 <= row["usage"]["cached_tokens"] < row["num_prompt_tokens"]
                finishes.add(row["finish_reason"])
            assert len({row["pred"] for row in ours.rows}) > 1
    assert finishes == {"stop", "length"}
    record = ours.record
    assert record["result"]["model"]["prompt_path"] == "ids"
    assert record["environment"]["packages"]["vllm"]


@needs_vllm
def test_the_engine_stays_loaded_from_cell_to_cell(engine: Vllm, tmp_path: Path) -> None:
    predict(engine, cell(engine, "vt", 1024, 1), tmp_path / "one", progress=False)
    assert engine._child
    first = engine._child.process.pid
    predict(engine, cell(engine, "cwe", 1024, 1), tmp_path / "one", progress=False)
    assert engine._child.process.pid == first


@needs_vllm
def test_an_interrupt_ends_the_cell_cleanly_and_the_next_session_goes_on(engine: Vllm, tmp_path: Path) -> None:
    asked = cell(engine, "niah_single_2", 2048, 24)
    whole = rows(predict(engine, asked, tmp_path / "whole", progress=False))
    file = tmp_path / "cut" / "tiny" / "niah_single_2" / "2048.jsonl"

    def interrupt() -> None:
        while not file.exists() or file.stat().st_size == 0:
            time.sleep(0.002)
        os.kill(os.getpid(), signal.SIGINT)

    few = load_model(spec(Path(engine.spec["path"]), in_flight=2, engine_args=engine.spec["engine_args"]))
    assert isinstance(few, Vllm)
    few._child, room.Vllm._loaded = engine._child, few  # the engine that is loaded already
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        predict(few, asked, tmp_path / "cut", progress=False)
    thread.join()
    room.Vllm._loaded = engine
    kept = len(file.read_text().splitlines())
    assert 1 <= kept < 24
    done = predict(engine, asked, tmp_path / "cut", progress=False)
    assert rows(done) == whole
    assert len(file.read_text().splitlines()) == 24


@needs_vllm
def test_killed_half_way_the_engine_goes_too_and_the_same_command_ends_with_the_same_rows(
    engine: Vllm, tiny: Path, tmp_path: Path
) -> None:
    asked = cell(engine, "niah_single_2", 2048, 24)
    whole = rows(predict(engine, asked, tmp_path / "whole", progress=False))
    code = """if True:
        import json, sys
        from pathlib import Path
        from rulerkit.generation import generate
        from rulerkit.inference import predict
        from rulerkit.models import load_model
        from rulerkit.tasks import task
        one = load_model(json.loads(sys.argv[1]))
        examples = generate(task("niah_single_2").with_corpora("builtin"), 2048, 24, prompt_format=one.prompt_format)
        one._running()
        print(one._child.process.pid, flush=True)
        predict(one, examples, Path(sys.argv[2]), progress=False)
        """
    mine = spec(tiny, in_flight=2, engine_args=engine.spec["engine_args"])
    command = [sys.executable, "-c", code, json.dumps(mine), str(tmp_path / "cut")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = int(parent.stdout.readline())
    file = tmp_path / "cut" / "tiny" / "niah_single_2" / "2048.jsonl"
    until = time.monotonic() + 120
    while not (file.exists() and file.read_text().count("\n") >= 4) and time.monotonic() < until:
        assert parent.poll() is None
        time.sleep(0.01)
    assert alive(child)
    parent.kill()
    parent.wait()
    assert gone_within(15, child)
    kept = file.read_text().count("\n")
    assert 4 <= kept < 24
    assert rows(predict(engine, asked, tmp_path / "cut", progress=False)) == whole
    assert file.read_text().count("\n") == 24


@needs_vllm
def test_an_engine_that_dies_is_told_in_one_line_and_started_again(engine: Vllm, tmp_path: Path) -> None:
    asked = cell(engine, "vt", 1024, 8)
    whole = rows(predict(engine, asked, tmp_path / "whole", progress=False))
    answers = engine.answer(asked)
    next(answers)
    assert engine._child
    os.killpg(engine._child.process.pid, signal.SIGKILL)
    with pytest.raises(UserError) as caught:
        list(answers)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in ("model tiny: vLLM ended", "-9", "its log is", "answers so far"))
    assert engine._child.log.exists()
    engine._child.log.unlink()
    assert {e.index: (a.text, a.finish_reason) for e, a in engine.answer(asked)} == whole


class _AsMade:
    """The control: prompts in the order in which they come."""

    def __init__(self) -> None:
        self.waiting: list[Example] = []
        self.tokens = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, example: Example) -> None:
        self.waiting.append(example)

    def take(self) -> Example:
        return self.waiting.pop(0)


@needs_vllm
def test_the_order_reuses_more_of_a_scarce_cache_and_what_it_cannot_hold_is_not_run(
    engine: Vllm, tiny: Path, environment: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(engine.answer(cell(engine, "vt", 1024, 1)))
    assert engine._child
    before = engine._child.process.pid
    scarce = load_model(
        spec(tiny, name="scarce", engine_args={"kv_cache_memory_bytes": BYTES * 4608, "block_size": 32})
    )
    assert isinstance(scarce, Vllm)
    essays = ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue")
    asked = [e for name in essays for e in cell(scarce, name, 2048, 10)]
    Random(3).shuffle(asked)

    def run() -> tuple[float, dict[Any, str]]:
        said = list(scarce.answer(asked))
        usages = [answer.usage or {} for _, answer in said]
        rate = sum(u["cached_tokens"] for u in usages) / sum(u["prompt_tokens"] for u in usages)
        return rate, {(e.task, e.index): a.text for e, a in said}

    ordered, texts = run()
    assert not alive(before)  # another model was asked for
    monkeypatch.setattr(room, "PrefixOrder", _AsMade)
    shuffled, same = run()
    print(f"served from the cache: {ordered:.1%} in our order, {shuffled:.1%} shuffled")
    assert texts == same
    assert ordered > 1.5 * shuffled > 0
    assert scarce.too_long(4096) is None
    reason = scarce.too_long(8192)
    assert reason
    assert "kv_cache_dtype" in reason
    with pytest.raises(
        TooLong, match=r"example 0 of vt needs \d+ tokens: .*room for 45\d\d tokens.*tensor_parallel_size"
    ):
        list(scarce.answer(cell(scarce, "vt", 8192, 1)))
    assert scarce._child
    pid = scarce._child.process.pid
    start = time.monotonic()
    scarce.close()
    print(f"closed in {time.monotonic() - start:.1f} s")
    assert not alive(pid)


@needs_vllm
def test_a_length_that_has_no_room_is_not_run_though_it_is_the_first_and_shorter_ones_are(
    tiny: Path, tmp_path: Path, environment: None, capfd: pytest.CaptureFixture[str]
) -> None:
    """That it has no room is known once the engine is loaded, which then stays so."""
    one = load_model(spec(tiny, engine_args={"kv_cache_memory_bytes": BYTES * 2560}))
    assert isinstance(one, Vllm)
    tasks = tuple(task(name).with_corpora("builtin") for name in ("vt", "cwe"))
    told = []

    def asked(*lengths: int) -> list[tuple[str, int, int]]:
        study = Study("any", (one,), tasks, lengths, 2, 42, "room", "builtin", tmp_path)
        done = evaluate(study, progress=False, not_run=lambda *words: told.append(words))
        return [(cell.task, cell.length, len(cell.rows)) for cell in done]

    try:
        assert asked(4096) == []
        assert one._child
        engine = one._child.process.pid
        assert asked(1024, 8192) == [("vt", 1024, 2), ("cwe", 1024, 2)]
        assert one._child.process.pid == engine
    finally:
        close()
    assert [words[:2] for words in told] == [("tiny", 4096), ("tiny", 8192)]
    assert all("room for 2432 tokens" in words[2] for words in told)
    assert capfd.readouterr().err.count("not run: tiny at ") == 2


@needs_vllm
def test_an_engine_that_cannot_start_is_told_in_one_line(tiny: Path, tmp_path: Path, environment: None) -> None:
    import shutil

    small = spec(tiny, max_length="16K", engine_args={"kv_cache_memory_bytes": BYTES * 8192})
    broken = shutil.copytree(tiny, tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"\0" * 9)
    for mapping, words in ((small, ["KV", "tensor_parallel_size", "max_length"]), (spec(broken), ["Error"])):
        one = load_model(mapping)
        assert isinstance(one, Vllm)
        with pytest.raises(UserError) as caught:
            list(one.answer(cell(one, "vt", 1024, 1)))
        message = str(caught.value)
        print(message)
        assert "\n" not in message
        assert all(word in message for word in ["vLLM did not start", "its log is", *words])
        assert one._child
        one._child.log.unlink()
        one.close()

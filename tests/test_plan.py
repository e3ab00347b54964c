"""The planner: sizes and caches as published shapes have them, requests that fit, time that adds up
or was measured."""

import json
import re
import time

import pytest

import rulerkit as rk
from rulerkit.batch.plan import (
    GIB,
    card,
    plan_model,
    shape_of,
)
from rulerkit.common.errors import UserError
from rulerkit.evaluation.study import study

LLAMA = {
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
}
LLAMA |= {"max_position_embeddings": 131072, "model_type": "llama"}
CONFIGS = {
    "llama-3.1-8b": LLAMA,
    "chatglm3-6b": {"num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096}
    | {"multi_query_group_num": 2, "kv_channels": 128},
    "jamba-1.5-mini": LLAMA
    | {"attn_layer_period": 8, "attn_layer_offset": 4, "model_type": "jamba"},
    "mamba": {"hidden_size": 2560, "num_hidden_layers": 64, "model_type": "mamba"},
}


# --- shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("llama-3.1-8b", 128),
        ("chatglm3-6b", 28),
        ("jamba-1.5-mini", 16),
        ("mamba", 0),
    ],
)
def test_cache_of_published_models(name, kib):
    shape = shape_of(CONFIGS[name], {}, "7B")
    assert shape.kv_bytes(1000) == kib * 1024 * 1000


def test_one_layer_of_six_of_gemma_3_attends_to_everything():
    """Its config.json has a window of 1,024 and does not say in which layers."""
    sizes = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256}
    config = sizes | {
        "model_type": "gemma3_text",
        "sliding_window": 1024,
        "num_hidden_layers": 48,
    }
    shape = shape_of({"text_config": config}, {}, "12B")
    a_layer = 2 * 8 * 256 * 2  # bytes of keys and values of a token
    assert shape.kv_bytes(100_000) == (8 * 100_000 + 40 * 1024) * a_layer


# --- plans ----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def planned(gpu="h100", parameters=None, memory=None, **more):
    asked = {"lengths": ["4K", "128K"], "num_examples": 500} | more
    (model,) = asked["models"]
    return plan_model(model, study(asked), card(gpu, memory), parameters)


def test_a_plan_of_a_checkpoint(folder):
    """Llama 3.1 8B at 128K: 16 GiB a request, 3.3 of them on a card of 80 GB, 6.7 on one of 141."""
    spec = {"path": str(folder), "name": "m", "engine": "vllm", "parameters": "8.03B"}
    plan = planned(models=[spec])
    short, long = plan.lines
    assert long.tokens == 13 * 500 * 131072
    assert long.kv_bytes == 16 * GIB
    assert long.fits == pytest.approx(3.3, abs=0.1)
    assert planned("h200", models=[spec]).lines[1].fits == pytest.approx(6.7, abs=0.15)
    assert long.flops / (13 * 500) == shape_of(LLAMA, {}, "8.03B").prefill_flops(131072)
    prefill = (
        500 * shape_of(LLAMA, {}, "8.03B").prefill_flops(131072) / (989e12 * 0.4) / 3600
    )
    assert prefill < long.hours < 1.2 * prefill
    assert plan.hours == pytest.approx(13 * (short.hours + long.hours))
    two = planned(models=[spec | {"tensor_parallel_size": 2}]).lines[1]
    assert two.kv_bytes == 8 * GIB
    assert two.hours == pytest.approx(long.hours / 2, rel=0.1)
    assert two.fits > 2 * long.fits
    text = plan.text()
    assert re.search(r"128K +851,968,000 +42,956 +16.00 +3.3 ", text)
    assert "40 % of 989 TFLOP/s" in text.partition("assumed:")[2]


def test_what_does_not_fit_is_named_and_not_counted(folder):
    spec = {"path": str(folder), "name": "m", "parameters": "8.03B"}
    small = planned("4090", models=[spec])
    assert small.lines[0].why_not == ""
    assert "not one request fits" in small.lines[1].why_not
    assert small.hours == 13 * (small.lines[0].hours or 0)
    assert planned("4090", models=[spec], repeat=3).hours == pytest.approx(
        3 * small.hours
    )
    assert "tensor_parallel_size" in small.text()
    assert (
        "the weights alone do not fit"
        in planned(memory=12, models=[spec]).lines[0].why_not
    )
    assert (
        "max_position_embeddings"
        in planned(models=[spec], lengths=["4K", "1M"]).lines[1].why_not
    )


def test_nothing_known_says_what_to_give():
    with pytest.raises(UserError, match="--params 8B") as said:
        planned(models=["reader-8192"])
    assert "\n" not in str(said.value)
    with pytest.raises(UserError, match="did you mean 'h100'"):
        card("h10")


# --- measured -------------------------------------------------------------------------------------


def slow(prompts):
    time.sleep(sum(map(len, prompts)) * 1e-6)
    return ["x"] * len(prompts)


def test_a_calibration_is_extrapolated():
    """A function that takes a microsecond a character: 4K by measurement, 8K twice that."""
    model = rk.model(slow, name="slow")
    asked = study(
        {
            "models": [model],
            "lengths": ["4K", "8K"],
            "num_examples": 10,
            "tasks": ["niah_single_1"],
        }
    )
    plan = plan_model(model, asked, card("h100"), calibrate=True)
    characters = len(rk.generate(rk.task("niah_single_1"), 4096, 1)[0].prompt)
    short, long = (line.hours or 0 for line in plan.lines)
    assert short * 3600 == pytest.approx(10 * characters * 1e-6, rel=0.3)
    assert long == pytest.approx(2 * short)
    assert "4 examples of niah_single_1 at 4096 tokens took" in plan.text()


def test_gpus_are_counted_by_node(monkeypatch, tmp_path):
    shares = {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
        "parameters": "37B/671B",
    }
    spec = {"engine": "vllm", "path": "org/none", "name": "m", **shares}
    plan = plan_model(spec, study(), card("h200"))
    assert "16 GPUs do not fit one node of 8: set nodes: 2" in plan.lines[0].why_not
    spec |= {"parameters": "8B", "nodes": 2}
    plan = plan_model(spec, study(), card("h200"))
    assert "16 x H200 (141 GB), 2 nodes of 8" in plan.text()
    assert all(not line.why_not for line in plan.lines)
    (tmp_path / "params").mkdir()
    (tmp_path / "params/site.yaml").write_text("whole_nodes: 4")
    monkeypatch.setenv("RULERKIT_HOME", str(tmp_path))
    plan = plan_model(spec, study(), card("h200"))
    assert "set nodes: 4" in plan.lines[0].why_not


# --- the commands ---------------------------------------------------------------------------------


def test_the_check_command(rulerkit, tmp_path):
    settings = ("-y", "tasks: [vt, niah_single_1]", "-y", "lengths: [1K, 2K]")
    status, out, _ = rulerkit("check", "-y", "model: perfect", *settings)
    assert status == 0
    assert out.startswith("perfect: 2 tasks at 1024 and 2048 tokens\n  ok    ")
    assert "both ends" in out
    bad = ("-y", "tasks: [{base: vt, max_new_tokens: 4}]")
    status, out, err = rulerkit("check", "-y", "model: perfect", *bad)
    assert status == 1
    assert "FAIL  answer room" in out
    assert "fix them first" in err
    file = tmp_path / "vt.jsonl"
    size = ("--length", "2K", "--num-examples", "9")
    rulerkit("generate", "vt", "--output", str(file), *size)
    told = ("--task", "vt", "--length", "2K", "--tokenizer", "builtin")
    assert (
        rulerkit("check", str(tmp_path), *told).status == 0
    )  # a folder: all files in it
    (tmp_path / "empty").mkdir()
    nothing = rulerkit("check", str(tmp_path / "empty"))
    assert (nothing.status, "no .jsonl file" in nothing.err) == (2, True)
    status, out, _ = rulerkit("check", str(file), "--task", "vt", "--length", "1K")
    assert status == 1
    assert "FAIL  budget" in out

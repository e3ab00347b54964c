"""vLLM's own configuration of a model: our files pass, and what vLLM cannot start is a FAIL with
its reason.

Each kind of checkpoint is a tiny config.json with the positions and scaling of the real one. The
tests that build vLLM's configuration run where vllm is installed: `make test-vllm`.
"""

import json
from importlib.util import find_spec

import pytest

import rulerkit as rk
from rulerkit.batch.checks import (
    FAIL,
    NOTE,
    OK,
    check_vllm,
    examine,
    vllm_arguments,
)
from tests.tiny_llama import save_tokenizer

needs_vllm = pytest.mark.skipif(
    find_spec("vllm") is None, reason="vllm is not installed: make test-vllm"
)

K = 1024
SMALL = {
    "hidden_size": 512,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "head_dim": 16,
}
SMALL |= {"num_attention_heads": 32, "num_key_value_heads": 8}


def config(architecture, model_type, positions, **more):
    """A config.json."""
    kind = {
        "architectures": [architecture],
        "model_type": model_type,
        "max_position_embeddings": positions,
    }
    return SMALL | kind | {"torch_dtype": "bfloat16"} | more


def seeing(architecture, model_type, text, vision, **more):
    """A config.json of a model that also takes images."""
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
    }
    vision_config = sizes | {"image_size": 28, "patch_size": 14, "model_type": vision}
    kind = {
        "architectures": [architecture],
        "model_type": model_type,
        "torch_dtype": "bfloat16",
    }
    return kind | {"text_config": SMALL | text, "vision_config": vision_config} | more


YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32,
    "beta_slow": 1,
}
OLMO_YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
}
MAMBA2 = {
    "mamba_n_heads": 32,
    "mamba_d_head": 32,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
}
LATENT = {
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
}
DUAL_CHUNK = {
    "chunk_size": 262144,
    "local_size": 8192,
    "original_max_position_embeddings": 262144,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LLAMA3 |= {"original_max_position_embeddings": 8192}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 8}
FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}

# A file of params/models/ -> the config.json of its checkpoint, reduced, and the longest length
# that must pass
CHECKPOINTS = {
    "llama-3.1-8b": (
        config("LlamaForCausalLM", "llama", 128 * K, rope_scaling=LLAMA3),
        128 * K,
    ),
    "qwen3-8b": (config("Qwen3ForCausalLM", "qwen3", 40960), 128 * K),
    "qwen2.5-7b-1m": (
        config(
            "Qwen2ForCausalLM", "qwen2", 1010000, dual_chunk_attention_config=DUAL_CHUNK
        ),
        256 * K,
    ),
    "phi3-medium-14b": (
        config(
            "Phi3ForCausalLM",
            "phi3",
            128 * K,
            original_max_position_embeddings=4096,
            rope_scaling=LONGROPE,
            pad_token_id=0,
            eos_token_id=1,
        ),
        128 * K,
    ),
    "granite-4.0-h-tiny": (
        config(
            "GraniteMoeHybridForCausalLM",
            "granitemoehybrid",
            128 * K,
            layer_types=["mamba", "attention"] * 2,
            **MAMBA2,
        ),
        128 * K,
    ),
    "olmo-3-7b": (
        config(
            "Olmo3ForCausalLM",
            "olmo3",
            64 * K,
            sliding_window=4096,
            rope_scaling=OLMO_YARN,
        ),
        64 * K,
    ),
    "deepseek-v3": (
        config(
            "DeepseekV3ForCausalLM",
            "deepseek_v3",
            160 * K,
            rope_scaling=YARN,
            quantization_config=FP8,
            n_routed_experts=8,
            n_group=1,
            topk_group=1,
            **LATENT,
        ),
        128 * K,
    ),
    "chatglm3-6b": (
        {
            "architectures": ["ChatGLMModel"],
            "model_type": "chatglm",
            "seq_length": 128 * K,
            "hidden_size": 512,
            "num_attention_heads": 32,
            "kv_channels": 16,
            "num_layers": 2,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "padded_vocab_size": 1000,
        },
        128 * K,
    ),
    "gemma-3-12b": (
        seeing(
            "Gemma3ForConditionalGeneration",
            "gemma3",
            {
                "model_type": "gemma3_text",
                "sliding_window": 1024,
                "max_position_embeddings": 128 * K,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            "siglip_vision_model",
        ),
        128 * K,
    ),
}


def written(folder, content):
    """A checkpoint's folder with nothing but its configuration."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(content))
    return folder


def arguments(folder, base=None, **more):
    """What vLLM is started with for a file of params/models/ whose checkpoint lies in a folder."""
    spec = {"base": base} if base else {"engine": "vllm"}
    model = rk.load_model({**spec, "path": str(folder), "name": "m", **more})
    text_only = (
        {"language_model_only": True}
        if "vision_config" in (folder / "config.json").read_text()
        else {}
    )
    return vllm_arguments(model) | text_only


# --- with vLLM ------------------------------------------------------------------------------------


SLOW = ("chatglm3-6b",)
"""vLLM takes ten seconds for each architecture. The others are one of each kind: llama3's scaling,
YaRN, longrope, dual chunk, sliding window, hybrid, vision, latent attention."""


@needs_vllm
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else [])
        for n in CHECKPOINTS
    ],
)
def test_our_files_start_and_go_as_far_as_they_say(name, tmp_path):
    content, longest = CHECKPOINTS[name]
    folder = written(tmp_path / "m", content)
    if (
        "dual_chunk_attention_config" in content
    ):  # the real checkpoint brings this file too
        (folder / "sparse_attention_config.json").write_text(
            json.dumps({"0": {"0": ["vertical_and_slash", 1, 1, 1.0]}})
        )
    settings = arguments(folder, name)
    seen, _, level, *_ = examine(settings, longest)
    if "vision_config" in content and not find_spec("torchvision"):
        assert (level, "torchvision" in seen) == (NOTE, True)
        return
    assert level == OK, seen
    allowed = int(seen.split(", ")[1].split()[0])
    assert allowed >= longest
    seen, mend, level, *_ = examine(settings, allowed + 1)
    assert (level, mend != "") == (FAIL, True)
    assert str(allowed + 1) in seen


@needs_vllm
def test_yarn_without_positions_as_model_cards_give_it_starts_all_the_same(tmp_path):
    folder = written(tmp_path / "m", config("Qwen3ForCausalLM", "qwen3", 40960))
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32 * K,
        "rope_theta": 1e6,
    }
    settings = arguments(folder, hf_overrides={"rope_parameters": yarn})
    assert examine(settings, 128 * K).level == OK
    assert examine(settings, 128 * K + 1).level == FAIL


@needs_vllm
def test_a_model_without_positions_takes_the_length_that_is_set(tmp_path):
    content = config(
        "Mamba2ForCausalLM",
        "mamba2",
        None,
        num_heads=64,
        head_dim=16,
        state_size=16,
        n_groups=1,
    )
    folder = written(tmp_path / "m", content)
    assert examine(arguments(folder, max_length="8K"), 8 * K).level == OK
    assert examine(arguments(folder, max_length="8K"), 8 * K + 1).level == FAIL


LLAMA = config("LlamaForCausalLM", "llama", 8 * K)
REFUSED = {
    "dual chunk attention": (
        config(
            "Qwen2ForCausalLM", "qwen2", 1010000, dual_chunk_attention_config=DUAL_CHUNK
        ),
        {},
        "no dual-chunk attention",
    ),
    "dropped architecture": (
        LLAMA,
        {"hf_overrides": {"architectures": ["BaichuanForCausalLM"]}},
        "was supported in vLLM until v0.23.0",
    ),
    "heads": (
        LLAMA,
        {"tensor_parallel_size": 3},
        "attention heads (32) must be divisible by tensor parallel size (3)",
    ),
    "unknown argument": (LLAMA, {"engine_args": {"no_such": 1}}, "no_such"),
}


@needs_vllm
@pytest.mark.parametrize("fault", REFUSED)
def test_what_vllm_refuses_is_a_fail_on_one_line(fault, tmp_path):
    content, more, reason = REFUSED[fault]
    seen, mend, level, *_ = examine(
        arguments(written(tmp_path / "m", content), **more), 4096
    )
    assert (level, reason in seen, mend != "") == (FAIL, True, True), seen
    assert "\n" not in seen
    assert len(seen) < 250


@needs_vllm
def test_the_command_builds_the_configuration(tmp_path, rulerkit):
    folder = written(tmp_path / "m", LLAMA)
    vocabulary = save_tokenizer(folder, ["one two three"], 400)
    (folder / "config.json").write_text(json.dumps(LLAMA | {"vocab_size": vocabulary}))
    settings = (
        "-y",
        "tasks: [vt]",
        "-y",
        "lengths: [4096]",
        "-y",
        "corpora: builtin",
        "--no-ask",
    )
    for shares, status, line in (
        (1, 0, "ok    vLLM config"),
        (3, 1, "must be divisible by tensor parallel size (3)"),
    ):
        model = f"model: {{path: {folder}, engine: vllm, name: m, tensor_parallel_size: {shares}}}"
        ended = rulerkit("check", *settings, "-y", model)
        assert line in ended.out
        assert ended.status == status, ended


# --- without vLLM ---------------------------------------------------------------------------------


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_without_vllm_one_note_says_so():
    (finding,) = check_vllm({"model": "x"}, [4096])
    assert (finding.level, "vllm is not installed" in finding.seen) == (NOTE, True)

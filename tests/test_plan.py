"""`--dry-run` counts what a study asks, and `check` works from the command line."""

import pytest

import rulerkit as rk
from rulerkit.batch.plan import plan_text
from rulerkit.common.errors import UserError


def planned(**parameters):
    study = rk.study({"lengths": ["4K", "128K"], "num_examples": 500} | parameters)
    return plan_text((model, [study]) for model in study.models)


def test_a_plan_counts_every_example_at_its_length():
    text = planned(model="perfect")
    rows = [line.split()[:3] for line in text.splitlines() if line.startswith("perfect")]
    assert rows == [["perfect", "4K", "6,500"], ["perfect", "128K", "6,500"]]
    assert 13 * 500 * (4096 + 131072) == 878_592_000
    assert "together: 13,000 examples, 878,592,000 tokens" in text


def test_a_cell_of_two_studies_counts_once():
    asked = {"model": "perfect", "lengths": ["4K"], "tasks": ["vt", "cwe"]}
    few = rk.study(asked, num_examples=10)
    many = rk.study(asked, num_examples=50, tasks=["vt"])
    text = plan_text([(few.models[0], [many, few])])
    assert f"together: 60 examples, {60 * 4096:,} tokens" in text


def test_a_length_beyond_the_model_is_named_and_not_counted(tmp_path):
    config = '{"model_type": "llama", "max_position_embeddings": 8192}'
    (tmp_path / "config.json").write_text(config)
    text = planned(model={"path": str(tmp_path), "name": "m", "engine": "vllm"})
    assert f"together: 6,500 examples, {13 * 500 * 4096:,} tokens" in text
    assert "128K is not run: " in text
    assert "max_position_embeddings" in text


def test_a_model_whose_weights_are_cut_short_is_an_error(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "model.safetensors").write_bytes((1000).to_bytes(8, "little"))
    broken = {"path": str(tmp_path), "name": "broken", "engine": "vllm"}
    with pytest.raises(UserError, match=r"model\.safetensors is cut short"):
        planned(models=["perfect", broken], tasks=["vt"], lengths=["4K"])


def test_the_check_command(rulerkit):
    settings = ("-y", "tasks: [vt, niah_single_1]", "-y", "lengths: [1K, 2K]")
    status, out, _ = rulerkit("check", "-y", "model: perfect", *settings)
    assert status == 0
    assert out.startswith("perfect: 2 tasks at 1024 and 2048 tokens\n  ok    ")
    bad = ("-y", "tasks: [{base: vt, max_new_tokens: 4}]")
    status, out, err = rulerkit("check", "-y", "model: perfect", *bad)
    assert status == 1
    assert "FAIL  answer room" in out
    assert "fix them first" in err

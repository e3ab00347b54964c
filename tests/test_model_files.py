"""The files of params/models/: every one can be read, and those of the paper's checkpoints say what
the paper says."""

import csv
from pathlib import Path

import pytest

from rulerkit.checks import gpus_beyond_node
from rulerkit.lengths import parse_length
from rulerkit.prompt_format import FORMS
from rulerkit.settings import read_spec

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "params" / "models").glob("*.yaml"))
PAPER = {
    row["slug"]: row
    for row in csv.DictReader((ROOT / "rulerkit" / "data" / "paper" / "models.csv").open())
}

FORM_OF = {  # Table 6 -> the form's name; two entries stand for two models each
    "GPT-4": "gpt-4",
    "Llama3/Llama3.1": "llama3",
    "Command-R": "command-r",
    "Yi/Base": "base",
    "Llama2/Others": "llama2",
    "GLM": "glm",
    "Phi3": "phi3",
    "": "gpt-4",  # Gemini: Table 6 names none, and this is its only other form for a service
}
SHARED = {"Qwen/DBRX": ("qwen", "dbrx"), "LWM/LongChat": ("lwm", "longchat")}

HEADS = {  # attention heads, from the checkpoints' config.json; those not here have not been looked up
    "llama3-1-70b": 64,
    "llama3-1-8b": 32,
    "gradientai-llama3-70b": 64,
    "command-r-plus-104b": 96,
    "command-r-35b": 64,
    "qwen2-72b": 64,
    "yi-34b": 56,
    "yi-9b": 32,
    "yi-6b": 32,
    "mixtral-8x22b": 48,
    "mixtral-8x7b": 32,
    "mixtral-8x7b-base": 32,
    "phi3-medium-14b": 40,
    "dbrx": 48,
    "longalpaca-13b": 40,
    "jamba-52b-base": 32,
    **{
        slug: 32
        for slug in PAPER
        if slug.startswith(("lwm", "together", "longchat", "llama2", "mistral", "yarn"))
    },
}

specs = pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)


@specs
def test_a_file_reads_under_its_own_name_and_begins_by_saying_what_it_is(file: Path) -> None:
    assert file.read_text(encoding="utf-8").startswith("# ")
    assert read_spec(str(file))["name"] == file.stem


@specs
def test_a_file_of_the_paper_says_what_the_paper_says(file: Path) -> None:
    spec = read_spec(str(file))
    if "slug" not in spec:
        return
    row = PAPER[spec["slug"]]
    if (
        spec["engine"] == "rwkv"
    ):  # the paper's export needs remote code; the file names it and leads to its source
        assert row["checkpoint"] in file.read_text(encoding="utf-8").splitlines()[0]
    else:
        assert row["checkpoint"] in spec.values()
    claimed = row["claimed_in_score_tables"].partition(";")[0] or row["context_length"]
    assert spec["claimed_length"] == parse_length(claimed)
    assert spec["aligned"] == ("chat" if row["aligned"] == "true" else "base")
    assert spec.get("parameters", "-") == row["parameters"]
    form = FORM_OF.get(row["template"]) or next(
        f for f in SHARED[row["template"]] if row["slug"].startswith(f)
    )
    assert spec.get("template", "gpt-4" if spec["engine"] == "openai" else "auto") == form
    assert form in FORMS


@specs
def test_a_model_is_shared_by_gpus_that_divide_its_heads(file: Path) -> None:
    spec = read_spec(str(file))
    if "tensor_parallel_size" in spec:
        assert spec["tensor_parallel_size"] in (1, 2, 4, 8)
        assert HEADS.get(spec.get("slug", ""), 8) % spec["tensor_parallel_size"] == 0


@specs
def test_a_models_gpus_fit_its_nodes(file: Path) -> None:
    spec = read_spec(str(file))
    nodes = spec.get("nodes", 1)
    assert gpus_beyond_node(spec, nodes) == ""
    assert spec.get("tensor_parallel_size", 1) * spec.get("pipeline_parallel_size", 1) % nodes == 0


@specs
def test_a_model_may_be_given_what_it_claims(file: Path) -> None:
    spec = read_spec(str(file))
    if spec["engine"] != "vllm":
        return
    assert spec["claimed_length"] <= spec.get("max_length", spec["claimed_length"])
    overrides = spec.get("hf_overrides", {})
    if rope := overrides.get(
        "rope_parameters"
    ):  # vLLM does not multiply the factor into the positions
        assert (
            rope["factor"] * rope["original_max_position_embeddings"]
            == overrides["max_position_embeddings"]
        )
        assert overrides["max_position_embeddings"] >= spec["claimed_length"]


@specs
def test_a_model_goes_as_far_as_the_paper_took_it(file: Path) -> None:
    spec = read_spec(str(file))
    longest = spec.get("max_length", spec.get("claimed_length", 0))
    experiments = PAPER[spec["slug"]]["experiments"] if "slug" in spec else ""
    if spec["engine"] != "vllm":
        return  # a state has no limit, and a service sets its own
    if "main" in experiments or "base" in experiments:
        assert longest >= 128 * 1024
    if "training_length" in experiments or "model_size" in experiments:
        assert longest >= 256 * 1024
    if "architecture" in experiments:
        assert longest >= 8 * 1024


def test_each_checkpoint_of_the_paper_has_one_file() -> None:
    found = [read_spec(str(file)).get("slug") for file in FILES]
    assert sorted(slug for slug in found if slug) == sorted(PAPER)
    assert len(PAPER) == 40

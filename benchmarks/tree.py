"""Time and peak memory of `report`, `leaderboard` and `status` on many models: `python
benchmarks/tree.py 10 20 40`.

Writes a tree of 13 tasks x 6 lengths x 500 examples for each model into a temporary folder, then
runs each command twice, in a process of its own: first without the cache of judged cells, then with
it.
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rulerkit.generation.tasks import family_of
from rulerkit.scoring.scores import THIRTEEN
from rulerkit.store.files import row_line
from rulerkit.store.records import FORMAT, record_text, result_digest

LENGTHS = (4096, 8192, 16384, 32768, 65536, 131072)
NUM_EXAMPLES = 500
REFERENCES = {"niah_multivalue": 4, "niah_multiquery": 4, "vt": 5, "cwe": 10, "fwe": 3}
CODE = {
    "report": "import sys; from rulerkit.cli import main; sys.argv = ['rulerkit', 'report', sys.argv[1]]; main()",
    "leaderboard": "import sys; import rulerkit as rk; from rulerkit.report.leaderboard import boards, everything; "
    "study = rk.study(models=None, model=None, outputs=sys.argv[1].partition('/predictions')[0]); "
    "print(len(boards(everything(study))))",
    "load": "import sys; from rulerkit.analysis.results import load; print(len(load(sys.argv[1], answers=False)))",
    "load answers": "import sys; from rulerkit.analysis.results import load; print(len(load(sys.argv[1])))",
    "status": "import sys; from pathlib import Path; from rulerkit.scoring.scores import completeness; "
    "print(sum(completeness(path, 500).have for path in Path(sys.argv[1]).rglob('*.jsonl')))",
}


PEAK = (
    "import atexit, sys, resource; "
    "atexit.register(lambda: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "
    "file=sys.stderr))"
)


def record(model: str, task: str, length: int) -> dict[str, Any]:
    """A record as `predict` writes it."""
    family = family_of(task)
    kind = {"family": family.family, "category": family.category, "match": family.match}
    result = {
        "task": {"name": task, **kind, "edition": "2025"},
        "length": length,
        "seed": 42,
        "protocol": "clean",
        "prompt_version": 1,
        "prompt_format": {"template": "base", "thinking_tokens": 0, "before": "", "after": ""},
        "tokenizer": {"name": "builtin", "fingerprint": "f00"},
        "sources": {},
        "model": {"name": model, "engine": "vllm"},
    }
    return {
        "format": FORMAT,
        "result": result,
        "run": "main",
        "label": model,
        "claimed_length": 131072,
        "aligned": "chat",
        "suite": "ruler",
        "threshold": None,
        "max_failures": 0,
        "adaptive": None,
        "num_examples": NUM_EXAMPLES,
        "environment": {"packages": {}},
        "floors": {},
    }


def write_model(outputs: Path, model: str) -> None:
    """The predictions of a model that answers nine of ten examples."""
    rng = random.Random(model)
    for task in THIRTEEN:
        folder = outputs / "predictions" / "main" / model / task
        folder.mkdir(parents=True)
        for length in LENGTHS:
            about = record(model, task, length)
            result = result_digest(about["result"])
            (folder / f"{length}.json").write_text(record_text(about), encoding="utf-8")
            with open(folder / f"{length}.jsonl", "wb") as file:
                for index in range(NUM_EXAMPLES):
                    references = [
                        str(rng.randrange(10**6, 10**7)) for _ in range(REFERENCES.get(task, 1))
                    ]
                    right = references if rng.random() < 0.9 else references[1:]
                    row = {
                        "index": index,
                        "pred": f" {', '.join(right)}. The special magic numbers in the text are these.",
                        "outputs": references,
                        "length": length,
                        "task": task,
                        "digest": f"{rng.getrandbits(64):016x}",
                        "num_prompt_tokens": length - 130,
                        "finish_reason": "stop",
                        "depths": [50.0] * len(references),
                        "result": result,
                    }
                    file.write(row_line(row))


def measure(code: str, folder: Path) -> tuple[float, float]:
    """Seconds and peak memory (MiB) of a program in a process of its own."""
    wrapped = f"{PEAK}; {code}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", wrapped, str(folder)],
        env=environment,  # imports as on a machine that has run the program before
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return time.perf_counter() - start, int(done.stderr.split()[-1]) / 1024


def main() -> None:
    """A line per number of models and command: seconds and MiB, first and second time."""

    with TemporaryDirectory() as name:
        outputs, written = Path(name), 0
        for models in map(int, sys.argv[1:] or ("10", "20", "40")):
            for number in range(written, models):
                write_model(outputs, f"model-{number:02}")
            written = models
            for command, code in CODE.items():
                if command != "status":
                    for file in (outputs / "cache").rglob("*.rows"):
                        file.unlink()
                runs = [measure(code, outputs / "predictions" / "main") for _ in range(2)]
                said = "   ".join(f"{seconds:6.1f} s {memory:6.0f} MiB" for seconds, memory in runs)
                print(f"{models:3} models  {command:12} {said}", flush=True)


if __name__ == "__main__":
    main()

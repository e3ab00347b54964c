"""How much processor time `rulerkit status` takes over a batch whose models have answered.

A reference reader answers a few examples of the thirteen tasks; its cells become those of as many
models as are asked for, at the six lengths of the paper.

    python benchmarks/status.py --models 100
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import rulerkit as rk
from rulerkit.batch.batch_file import read_batch
from rulerkit.batch.jobs import update_record, version_of
from rulerkit.common.lengths import parse_length
from rulerkit.store.cells import read_cells
from rulerkit.store.records import result_digest, row_line

LENGTHS = ("4K", "8K", "16K", "32K", "64K", "128K")


def make_project(root: Path, num_models: int, num_examples: int) -> None:
    """A project whose models have all their answers, each in a file of params/models."""
    asked = rk.study(
        model="reader-131072", lengths=["4K"], num_examples=num_examples, outputs=root / "made"
    )
    rk.evaluate(asked)
    cells = read_cells(root / "made" / "predictions")
    names = [f"model-{number:03}" for number in range(num_models)]
    for folder in ("params/models", "params/batches", "notebooks"):
        (root / folder).mkdir(parents=True)

    for name in names:
        described = f"model: {{base: reader-131072, name: {name}}}\n"
        (root / f"params/models/{name}.yaml").write_text(described, encoding="utf-8")
        for cell in cells:
            for length in map(parse_length, LENGTHS):
                result = cell.record["result"] | {"length": length}
                result["model"] = result["model"] | {"name": name}
                record = cell.record | {"result": result}
                path = root / f"outputs/predictions/main/{name}/{cell.task}/{length}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")
                check = result_digest(result)
                path.write_bytes(b"".join(row_line(row, check) for row in cell.rows))

    batch = {
        "models": names,
        "notebooks": ["01_main_results"],
        "together": ["leaderboard"],
        "parameters": {"lengths": [*LENGTHS], "num_examples": num_examples},
    }
    file = root / "params/batches/all.yaml"
    file.write_text(json.dumps(batch), encoding="utf-8")

    # As after the batch has ended.
    os.environ["RULERKIT_HOME"] = str(root)
    for job in read_batch(file).jobs:
        record = {"state": "done", "made_from": job.made_from()}
        if job.model:
            record["answered_by"] = version_of(job.model)
        else:
            job.output.parent.mkdir(parents=True, exist_ok=True)
            job.output.touch()
        update_record(job.record, **record)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--num-examples", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="keep the project here, or use one made before")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        root = (arguments.folder or Path(temporary)).absolute()
        if not (root / "params").exists():
            make_project(root, arguments.models, arguments.num_examples)
        command = [sys.executable, "-m", "rulerkit", "status", root / "params/batches/all.yaml"]
        done = subprocess.run(
            command,
            env=os.environ | {"RULERKIT_HOME": str(root)},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(done.stdout.splitlines()[-1])
        seconds = used.ru_utime + used.ru_stime
        print(f"{seconds:.2f} s of a processor, {used.ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()

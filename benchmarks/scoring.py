"""How long `rulerkit report` takes over a folder of predictions, and how much memory.

A reference reader answers a few examples of the thirteen tasks; their rows are repeated, each
under an index of its own, until the folder has the rows that are asked for.

    python benchmarks/scoring.py --rows 100000
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import rulerkit as rk
from rulerkit.common.lengths import parse_length
from rulerkit.store.cells import read_cells
from rulerkit.store.records import result_digest, row_line

LENGTHS = ("4K", "8K", "16K", "32K", "64K", "128K")
MADE = 20  # examples of a cell that a reader answers


def make_folder(place: Path, num_rows: int) -> Path:
    """A folder of predictions with at least `num_rows` rows, in cells of the thirteen tasks."""
    study = rk.study(
        model="reader-131072", lengths=["4K"], num_examples=MADE, outputs=place / "small"
    )
    rk.evaluate(study)
    folder = place / "predictions" / "main"
    cells = read_cells(place / "small" / "predictions")
    of_cell = -(-num_rows // (len(cells) * len(LENGTHS)))
    for cell in cells:
        for length in map(parse_length, LENGTHS):
            record = cell.record | {"num_examples": of_cell, "run": "main"}
            record["result"] = record["result"] | {"length": length}
            path = folder / cell.model / cell.task / f"{length}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.with_suffix(".json").write_text(json.dumps(record), encoding="utf-8")
            result = result_digest(record["result"])
            with path.open("wb") as file:
                for index in range(of_cell):
                    row = cell.rows[index % MADE] | {"index": index}
                    file.write(row_line(row, result))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--folder", type=Path, help="keep the rows here, or use those made before")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as temporary:
        place = arguments.folder or Path(temporary)
        folder = place / "predictions" / "main"
        if not folder.exists():
            make_folder(place, arguments.rows)
        code = "from rulerkit.cli import main; main()"
        call = [sys.executable, "-c", code, "report", str(folder)]
        subprocess.run(call, check=True, stdout=subprocess.DEVNULL)

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    print(json.dumps({"cpu_seconds": round(seconds, 2), "peak_mb": used.ru_maxrss // 1024}))


if __name__ == "__main__":
    main()

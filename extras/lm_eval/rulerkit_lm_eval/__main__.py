"""`python -m rulerkit_lm_eval` prints the folder of the tasks, for `lm_eval run --include_path`."""

from pathlib import Path

print(Path(__file__).parent / "tasks")

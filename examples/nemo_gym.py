"""RULER in NeMo Gym: write examples as rows of its server `ruler`, and read its rollouts back.

    python examples/nemo_gym.py write rows.jsonl --tasks vt,qa_1 --lengths 4K
    python examples/nemo_gym.py read rollouts.jsonl gym/my-model
    rulerkit report gym

The prompt is one user message that ends in the answer prefix. Gym's reward is the score that
rulerkit gives, and `rulerkit report` judges the answers itself.
"""

import argparse
import json
from pathlib import Path

import rulerkit as rk
from rulerkit.common.lengths import parse_length


def write(file: Path, tasks: str, lengths: str, num_examples: int, tokenizer: str) -> None:
    """Rows for Gym: the message, the references, the length and the task."""
    prompt_format = rk.PromptFormat(tokenizer, template="base", prefix_in="user")
    with file.open("w", encoding="utf-8") as lines:
        for task in tasks.split(","):
            for length in lengths.split(","):
                examples = rk.generate(
                    task, length, num_examples, prompt_format=prompt_format, corpora="builtin"
                )
                for example in examples:
                    row = {
                        "responses_create_params": {
                            "input": [{"role": "user", "content": example.prompt}],
                            "max_output_tokens": example.max_new_tokens,
                        },
                        "outputs": list(example.references),
                        "length": parse_length(length),
                        "subset": task,
                    }
                    lines.write(json.dumps(row) + "\n")


def read(rollouts: Path, folder: Path) -> None:
    """Gym's rollouts as predictions in upstream's layout, FOLDER/LENGTH/pred/TASK.jsonl."""
    written: dict[Path, list[dict]] = {}
    for line in rollouts.read_text(encoding="utf-8").splitlines():
        rollout = json.loads(line)
        # Rows of Gym's own converter say how long a prompt is, not which length was asked for.
        nominal = 2 ** (rollout["length"] - 1).bit_length()
        parts = [part for item in rollout["response"]["output"] for part in item.get("content", [])]
        cut = rollout["response"].get("incomplete_details") or {}
        file = folder / str(nominal) / "pred" / f"{rollout['subset']}.jsonl"
        rows = written.setdefault(file, [])
        rows.append(
            {
                "index": len(rows),
                "pred": "".join(part.get("text", "") for part in parts),
                "outputs": rollout["outputs"],
                "finish_reason": "length" if cut.get("reason") == "max_output_tokens" else "stop",
            }
        )
    for file, rows in written.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("file", type=Path)
    writing.add_argument("--tasks", default=",".join(rk.THIRTEEN))
    writing.add_argument("--lengths", default="4K")
    writing.add_argument("-n", type=int, default=20)
    writing.add_argument("--tokenizer", default="builtin")
    reading = commands.add_parser("read")
    reading.add_argument("rollouts", type=Path)
    reading.add_argument("folder", type=Path)
    given = parser.parse_args()
    if given.command == "write":
        write(given.file, given.tasks, given.lengths, given.n, given.tokenizer)
    else:
        read(given.rollouts, given.folder)


if __name__ == "__main__":
    main()

"""Files of examples in upstream's form, for other programs to answer."""

import json
from collections.abc import Sequence
from pathlib import Path

from rulerkit.common.paths import completed
from rulerkit.generation.generate import Examples
from rulerkit.store.files import disk


def write_examples(cells: Sequence[Examples], paths: Sequence[Path]) -> None:
    """Write the examples of each cell to its file as upstream's JSONL, with a few more fields;
    whole or not at all."""
    # Raises for what does not fit before anything is written.
    for examples in cells:
        _ = examples[0]
    for examples, path in zip(cells, paths, strict=True):
        with (
            disk(path, "choose another --output"),
            completed(path) as part,
            part.open("w", encoding="utf-8", errors="surrogatepass") as file,
        ):
            for index in range(len(examples)):
                example = examples[index]
                # As in upstream's files, and what our own tasks add.
                row = {
                    "index": index,
                    "input": example.input,
                    "outputs": list(example.references),
                    "length": example.num_tokens + example.max_new_tokens,
                    "answer_prefix": example.answer_prefix,
                    "context": example.context_text,
                    "question": example.text_of("question"),
                    "task": example.task,
                    "max_new_tokens": example.max_new_tokens,
                    "protocol": examples.task.protocol,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")

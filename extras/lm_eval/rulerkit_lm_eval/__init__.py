"""RULER as tasks of lm-evaluation-harness, with the prompts and the scores of rulerkit.

The files in `tasks/` name the two functions below. lm-evaluation-harness sends each prompt as it
is, and writes a log that `rulerkit report` reads.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import rulerkit as rk
from rulerkit.common.errors import UserError


def examples(
    task: str,
    lengths: str | Sequence[str | int] = "4K",
    num_examples: int = 100,
    seed: int = 42,
    corpora: str = "builtin",
    protocol: str = "clean",
    template: str = "base",
    tokenizer: str = "",
    pretrained: str = "",
    model: str = "",
    **_: Any,
) -> dict[str, Any]:
    """The examples of one task at all lengths, as the split `test` of a dataset.

    The arguments from `lengths` to `template` come from `--metadata`, the last three from
    `--model_args`, among all others that a model takes. `template` is `base` for a base model, or
    `auto`: then the prompt is written with the model's chat template, and `--apply_chat_template`
    must not be given.
    """
    # The harness imports this module before it looks at any task.
    from datasets import Dataset

    name = tokenizer or pretrained or model
    if not name:
        raise UserError(
            "no tokenizer: lengths are counted in tokens; give --model_args pretrained=FOLDER, or "
            "tokenizer=NAME beside the model of a server"
        )
    prompt_format = rk.PromptFormat(rk.load_tokenizer(name), template=template)
    given = lengths.split(",") if isinstance(lengths, str) else lengths
    cells = [
        rk.generate(rk.task(task, protocol), length, num_examples, seed, prompt_format, corpora)
        for length in given
    ]

    # One example of each length in turn, so that `--limit` leaves as many of each.
    rows = []
    for index in range(num_examples):
        for cell in cells:
            example = cell[index]
            rows.append(
                {
                    "task": task,
                    "index": index,
                    "max_length": example.length,
                    "prompt": example.prompt,
                    "outputs": list(example.references),
                    "num_prompt_tokens": example.num_tokens,
                    "tokenizer": name,
                    "protocol": protocol,
                }
            )
    return {"test": Dataset.from_list(rows)}


def scored(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """The score of one answer, 0 to 1, under the name of its length."""
    return {str(doc["max_length"]): rk.judge(doc["task"], results[0], doc["outputs"])}

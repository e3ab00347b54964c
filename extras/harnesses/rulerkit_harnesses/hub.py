"""The `.eval_results` of a model's repository on the Hugging Face hub: an entry for each length."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rulerkit.common.errors import UserError
from rulerkit.common.lengths import length_name
from rulerkit.scoring.summary import Summary, summarize, texts_words
from rulerkit.store.cells import Cell

if TYPE_CHECKING:
    import pandas as pd


def hub_text(cells: Sequence[Cell], tallies: "pd.DataFrame", dataset: str) -> str:
    """What `.eval_results/ruler.yaml` holds: an entry for each length at which all thirteen tasks
    are complete, in percent, dated by the last answer. The interval goes into the notes: the format
    has no field for it. `tallies` are rows of `tally`, `dataset` is that of the benchmark.

    Raises UserError where the cells are of several models or runs, or no length is complete.
    """
    import yaml

    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", dataset):
        raise UserError(
            "--format hf needs --dataset ORG/NAME, the benchmark's data set on the hub, which "
            f"holds an eval.yaml; seen: {dataset or 'nothing'}"
        )
    names = {f"{cell.run}/{cell.model}" for cell in cells}
    if len(names) > 1:
        raise UserError(
            f"--format hf is for one model in one run, and here are {', '.join(sorted(names))}: "
            "name the folder of one, outputs/predictions/RUN/MODEL"
        )

    of_ruler = [cell for cell in cells if cell.about.suite == "ruler"]
    if not of_ruler:
        raise UserError("--format hf is for the tasks of RULER, and none is here")
    summary = summarize(tallies, suite="ruler")
    lengths = summary.lengths
    is_complete = (lengths["category"] == "all") & lengths["whole"] & lengths["score"].notna()
    time = max(cell.path.stat().st_mtime for cell in of_ruler)
    entries = []
    for row in lengths[is_complete].to_dict("records"):
        task = f"ruler_{length_name(row['length']).lower()}"
        entries.append(
            {
                "dataset": {"id": dataset, "task_id": task},
                "value": round(float(row["score"]), 2),
                "date": datetime.fromtimestamp(time, UTC).date().isoformat(),
                "notes": _notes(of_ruler[0], row, summary),
            }
        )
    if not entries:
        raise UserError("there is no length at which all thirteen tasks are complete")
    text: str = yaml.safe_dump(entries, sort_keys=False, allow_unicode=True)
    return text


def _notes(cell: Cell, row: Mapping[Any, Any], summary: Summary) -> str:
    """What was asked and how, and the interval of a length's mean, in one line."""
    result, length = cell.record["result"], int(row["length"])
    thinks = result["prompt_format"]["thinking_tokens"]
    words = texts_words(summary.cells).replace(";", ",")
    return (
        f"RULER, {int(row['tasks'])} tasks, {length_name(length)} ({length} tokens with "
        f"{result['tokenizer']['name']}), {int(row['n'])} examples each, "
        f"95 % interval {row['low']:.1f} to {row['high']:.1f}, protocol "
        f"{result['protocol']}, seed {result['seed']}"
        f"{f', {words}' if words else ''}, "
        f"{'thinking' if thinks else 'no thinking'}, "
        f"rulerkit {cell.record['environment'].get('rulerkit') or 'unknown'}"
    )


formats = {"hf": hub_text}
"""What the plug-in brings to `report --format`."""

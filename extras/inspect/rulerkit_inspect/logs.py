"""Logs of inspect_ai (`.eval` files) that `inspect eval rulerkit_inspect/ruler` wrote, as cells.

What the model wrote is judged again here; the scores in the log are not read. A sample that ended
with an error has no answer, and its cell is incomplete.
"""

from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError, first_line
from rulerkit.common.settings import JSON
from rulerkit.store.cells import Cell, Report

_FINISH = {"stop": "stop", "max_tokens": "length", "model_length": "length"}
"""Why an answer ended; after any other reason there is none."""
_USAGE = {
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "reasoning_tokens": "reasoning_tokens",
    "cached_tokens": "input_tokens_cache_read",
    "cost": "total_cost",
}


def read_log(file: Path, report: Report) -> list[Cell]:
    """The cells of a log, a run for each repetition (`epochs`).

    Raises UserError for logs that are damaged or of another task.
    """
    # A second to import, which only logs need.
    from inspect_ai import log

    try:
        header = log.read_eval_log(str(file), header_only=True)
        # Messages and events are most of a file, and hold nothing more.
        samples = log.read_eval_log_samples(
            str(file),
            all_samples_required=False,
            exclude_fields={"messages", "events", "store", "attachments"},
        )
        if header.eval.task.rpartition("/")[2] != "ruler":
            raise UserError(
                f"{file} is a log of the task {header.eval.task}, not of rulerkit_inspect/ruler"
            )
        return _cells(file, header.eval, list(samples))
    except UserError:
        raise
    except Exception as error:  # whatever its readers raise for a damaged file
        raise UserError(
            f"{file} cannot be read as a log of rulerkit_inspect/ruler ({type(error).__name__}: "
            f"{first_line(error)}): evaluate again, or take the file away"
        ) from error


def _cells(file: Path, evaluation: Any, samples: list[Any]) -> list[Cell]:
    rows: dict[tuple[int, str, int], list[JSON]] = {}
    abouts: dict[tuple[int, str, int], JSON] = {}
    wanted: dict[tuple[int, str, int], int] = {}
    for sample in samples:
        about = sample.metadata
        asked = about["asked"]
        key = (sample.epoch, asked["task"]["name"], asked["length"])
        abouts.setdefault(key, about)
        wanted[key] = wanted.get(key, 0) + 1
        row = _row(sample)
        if row:
            rows.setdefault(key, []).append(row)

    cells = []
    for key, about in abouts.items():
        epoch, _, _ = key
        run = "inspect" if epoch == 1 else f"inspect-repeat{epoch}"
        record = _record(evaluation, about) | {
            "run": run,
            "num_examples": max(wanted[key], about["index"] + 1),
        }
        answered = sorted(rows.get(key, []), key=lambda row: int(row["index"]))
        cells.append(Cell(file, record, answered))
    if not any(rows.values()):
        raise UserError(
            f"{file} holds no answer: every sample ended with an error; `inspect eval-retry` asks "
            "again"
        )
    return cells


def _row(sample: Any) -> JSON | None:
    """A row of predictions; None where the sample has no answer."""
    about, output = sample.metadata, sample.output
    if sample.error or not output or not output.choices:
        return None
    finish = _FINISH.get(output.stop_reason)
    if finish is None and output.stop_reason != "unknown":
        return None

    target = sample.target
    row: JSON = {
        "index": about["index"],
        "pred": _written(output),
        "outputs": [target] if isinstance(target, str) else list(target),
        "finish_reason": finish or "",
        "digest": about["digest"],
        "num_prompt_tokens": about["num_prompt_tokens"],
    }
    if about["answer_prefix"]:
        row["answer_prefix"] = about["answer_prefix"]
    if output.usage:
        counts = {ours: getattr(output.usage, theirs, None) for ours, theirs in _USAGE.items()}
        row["usage"] = {name: count for name, count in counts.items() if count is not None}
    return row


def _written(output: Any) -> str:
    """What the model wrote, with the thought that a provider took apart put back before it."""
    content = output.message.content
    thoughts = []
    if not isinstance(content, str):
        thoughts = [part.reasoning for part in content if part.type == "reasoning"]
    if not thoughts:
        return str(output.completion)
    joined = "\n".join(thoughts)
    is_cut = not output.completion and output.stop_reason != "stop"
    return f"<think>{joined}" if is_cut else f"<think>{joined}</think>{output.completion}"


def _record(evaluation: Any, about: JSON) -> JSON:
    """What the log says of how a cell was made, in the fields of a record."""
    generation = evaluation.model_generate_config.model_dump(exclude_none=True)
    packages = {name: str(number) for name, number in evaluation.packages.items()}
    return {
        # A log is no file of ours: nothing is appended to it.
        "format": None,
        "label": evaluation.model,
        "claimed_length": None,
        "adaptive": None,
        "aligned": "chat",
        "suite": about["suite"],
        "threshold": None,
        "max_failures": 0,
        "environment": {"packages": packages},
        "result": about["asked"]
        | {
            "model": {
                "name": evaluation.model.rpartition("/")[2],
                "engine": "inspect",
                "path": evaluation.model,
                "sampling": generation,
            }
        },
    }


readers = {"*.eval": read_log}

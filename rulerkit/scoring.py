"""Judging: one row per example, by upstream's two string matches and by a strict score beside them.

A score is a number from 0 to 1 here and in every row; tables multiply by 100, in one place (`summary`).
"""

import re
import string
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.errors import UserError, unknown
from rulerkit.inference.cells import Cell
from rulerkit.tasks import CATEGORIES as CATEGORIES
from rulerkit.tasks import THIRTEEN as THIRTEEN
from rulerkit.tasks.base import string_match_all as string_match_all
from rulerkit.tasks.base import string_match_part as string_match_part

if TYPE_CHECKING:
    import pandas as pd

OTHER_NAMES = {"qa_squad": "qa_1", "qa_hotpot": "qa_2", "qa_hotpotqa": "qa_2"}
"""What others call a task of ours; lm-evaluation-harness also writes `ruler_` before the name."""

_FAMILY = re.compile(r"(niah|vt|cwe|fwe|qa)(?![a-zA-Z])")
_CATEGORY = {"niah": "niah", "vt": "vt", "cwe": "aggregation", "fwe": "aggregation", "qa": "qa"}
_CONTROL = re.compile(r"[\x00-\x1f]")
_ITEM_BORDER = re.compile(r"[,;\n]|\s+and\s+|(?:^|(?<=\s))(?:and\s+|\d{1,3}[.)](?=\s))")
_AROUND_ITEM = string.whitespace + "\"'`*.“”‘’"
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Strict(NamedTuple):
    """Judged by all that was said, each 0..1; `exact` asks for everything right and nothing else."""

    precision: float
    f1: float
    exact: float


def task_name(name: str) -> str:
    """Our name of a task that a file of ours or of others names; raises UserError for one of no known family."""
    ours = name.removeprefix("ruler_")
    ours = OTHER_NAMES.get(ours, ours)
    category(ours)
    return ours


def category(task: str) -> str:
    """'niah', 'vt', 'aggregation' or 'qa', by the first letters of a task's name, so that variants have one too."""
    if found := _FAMILY.match(task):
        return _CATEGORY[found[1]]
    raise unknown("task", task, THIRTEEN, "Other names must begin with niah, vt, cwe, fwe or qa; --task names it")


def cut_thought(prediction: str) -> bool:
    """Whether a thinking model's answer never came to the end of its thought."""
    return "</think>" not in prediction


def clean(prediction: str, thinking: bool = False) -> str:
    """The prediction as it is judged: stripped, control characters as newlines, stripped again.

    Of a thinking model, what stands before the last `</think>` is cut off first; a thought that was never closed
    stays whole (`cut_thought` tells them apart), because no rule could say where its answer begins.
    """
    if thinking:
        prediction = prediction.rpartition("</think>")[2]
    return _CONTROL.sub("\n", prediction.strip()).strip()


def named_items(prediction: str) -> list[str]:
    """The distinct items that a prediction lists, lower case, in order: without numbering, quotes and full stops."""
    items = (item.strip(_AROUND_ITEM).lower() for item in _ITEM_BORDER.split(prediction))
    return list(dict.fromkeys(item for item in items if item))


def strict_items(prediction: str, references: Iterable[str]) -> Strict:
    """Precision and F1 over the distinct items named: a wrong word costs, and so does a sentence around the answer."""
    named, wanted = set(named_items(prediction)), {reference.lower() for reference in references}
    right = len(named & wanted)
    return Strict(right / len(named) if named else 0.0, 2 * right / (len(named) + len(wanted)), float(named == wanted))


def strict_answer(prediction: str, references: Iterable[str]) -> Strict:
    """SQuAD's normalised exact match and F1 over words, the best over the references."""
    said = _squad_words(prediction)
    return max((_overlap(said, _squad_words(reference)) for reference in references), key=lambda s: (s.f1, s.exact))


def _squad_words(text: str) -> list[str]:
    return [w for w in text.lower().translate(_PUNCTUATION).split() if w not in ("a", "an", "the")]


def _overlap(said: list[str], wanted: list[str]) -> Strict:
    if not said or not wanted:
        same = float(said == wanted)
        return Strict(same, same, same)
    right = (Counter(said) & Counter(wanted)).total()
    return Strict(right / len(said), 2 * right / (len(said) + len(wanted)), float(said == wanted))


def score(cells: Iterable[Cell]) -> "pd.DataFrame":
    """Judge predictions: a DataFrame with one row per example, in the order of the cells.

    `score`, `strict` (F1), `precision` and `exact` are 0..1; `wanted` is the number of examples that the cell was to
    have; `empty`, `cut_off`, `cut_thought` and `refused` say what else happened to the answer. The columns after
    `wanted` describe the cell and are the same in all its rows.
    Raises UserError where a row has no prediction or no references, and where two cells are the same one.
    """
    import pandas as pd

    frames, seen = [], dict[tuple[Any, ...], Path]()
    for cell in cells:
        about = describe(cell)
        key = tuple(about[name] for name in ("run", "model", "task", "length"))
        if key in seen:
            raise UserError(
                f"{cell.path}: run {key[0]!r}, model {key[1]!r}, task {key[2]!r} at length {key[3]} is also in "
                f"{seen[key]}; a cell can be counted once: name only one of the two files"
            )
        seen[key] = cell.path
        frame = pd.DataFrame([_judge(cell, row, about) for row in cell.rows], columns=ROW_COLUMNS)
        frames.append(frame.assign(**about))
    if not frames:
        return pd.DataFrame(columns=COLUMNS)
    return pd.concat([frame for frame in frames if len(frame)] or frames[:1], ignore_index=True)[COLUMNS]


CELL_COLUMNS = ["run", "model", "label", "aligned", "claimed_length", "task", "category", "length"]
ROW_COLUMNS = [
    *("index", "score", "strict", "precision", "exact", "empty", "cut_off", "cut_thought", "refused"),
    *("num_prompt_tokens", "digest"),
]
PROTOCOL_COLUMNS = ["wanted", "floor", "stand_in", "engine", "seed", "prompt_version", "tokenizer", "template", "note"]
COLUMNS = CELL_COLUMNS + ROW_COLUMNS + PROTOCOL_COLUMNS


def describe(cell: Cell) -> dict[str, Any]:
    """What a cell's record says of all its rows: CELL_COLUMNS and PROTOCOL_COLUMNS."""
    record, result = cell.record, cell.record["result"]
    task, model, sources = result["task"], result["model"], result.get("sources", {})
    notes = {source["note"] for source in sources.values() if source.get("note")}
    if result.get("protocol") == "paper":
        notes.add("Protocol paper: prompts and layouts of upstream at the time of the paper")
    return {
        "run": record.get("run", ""),
        "model": model["name"],
        "label": record.get("label") or model["name"],
        "aligned": record.get("aligned", "chat"),
        "claimed_length": float(record.get("claimed_length") or "nan"),
        "task": task["name"],
        "category": task.get("category") or category(task["name"]),
        "length": int(result["length"]),
        "wanted": int(record["num_examples"]),
        "floor": max(record.get("floors", {}).values(), default=float("nan")),
        "stand_in": any(source.get("stand_in", False) for source in sources.values()),
        "engine": model.get("engine", ""),
        "seed": result.get("seed"),
        "prompt_version": result.get("prompt_version"),
        "tokenizer": result.get("tokenizer", {}).get("name", ""),
        "template": result.get("prompt_format", {}).get("template", ""),
        "note": "; ".join(sorted(notes)),
    }


def _judge(cell: Cell, row: dict[str, Any], about: dict[str, Any]) -> list[Any]:
    """One row of ROW_COLUMNS."""
    raw, references = row.get("pred"), row.get("outputs")
    if not isinstance(raw, str) or not references:
        raise UserError(
            f"{cell.path}: example {row.get('index')} has no {'prediction' if references else 'references'}, which is "
            "never scored as zero; take the row out of the file, or answer it again"
        )
    result = cell.record["result"]
    part = result["task"].get("match", "part" if about["category"] == "qa" else "all") == "part"
    thinking = result.get("prompt_format", {}).get("thinking_tokens", 0) > 0
    text, reason = clean(raw, thinking), row.get("finish_reason", "")
    value = (string_match_part if part else string_match_all)(text, references)
    strict = (strict_answer if part else strict_items)(text, references)
    lost = thinking and cut_thought(raw)
    return [
        row["index"], value, strict.f1, strict.precision, strict.exact,
        not text, reason == "length" or lost, lost, reason == "refused",
        row.get("num_prompt_tokens"), row.get("digest", ""),
    ]  # fmt: skip

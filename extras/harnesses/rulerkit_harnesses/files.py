"""Predictions of RULER and lm-evaluation-harness, read as cells.

| who | file | rows |
|---|---|---|
| RULER | `<model>/<benchmark>/<length>/pred/<task>.jsonl` | index, pred, input, outputs |
| lm-evaluation-harness | `samples_<task>_<time>.jsonl` | the example in `doc`, all lengths |

RULER writes a task that was answered in parts to `<task>-0.jsonl`, `<task>-1.jsonl`, and its niah
files of 2025 repeat `index`, so rows are numbered by their lines.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NotRequired

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from rulerkit.common.errors import UserError, first_line
from rulerkit.common.json_text import parse_json
from rulerkit.common.lengths import parse_length
from rulerkit.common.settings import JSON
from rulerkit.generation.tasks import Task, family_of
from rulerkit.store.cells import Cell, Report
from rulerkit.store.records import Count, Whole, checked

OTHER_NAMES = {"qa_squad": "qa_1", "qa_hotpot": "qa_2", "qa_hotpotqa": "qa_2"}
"""What others call a task of ours; in lm-evaluation-harness `ruler_` stands before the name, or
`rulerkit_` where the prompts are ours."""

_SAMPLES = "samples_"
_TIME = re.compile(r"_\d{4}-\d\d-\d\dT.*$")  # when the harness ran
_PART = re.compile(r"(-\d+)+$")  # of a task that was answered in parts
_SHORTEST = 256  # a folder named 0 or 42 is a part or a seed, not a length


@with_config(ConfigDict(strict=True))
class PredictionRow(TypedDict):
    """A row that can be scored."""

    max_length: NotRequired[Count | None]
    doc_id: NotRequired[int | str | None]
    filter: NotRequired[str]
    pred: str
    outputs: list[str]
    finish_reason: NotRequired[str]
    num_prompt_tokens: NotRequired[Whole | None]
    digest: NotRequired[str]
    harness_score: NotRequired[float | None]
    """0..1: what lm-evaluation-harness gave, in its own samples files."""


_ROW = TypeAdapter(PredictionRow)


# --- reading --------------------------------------------------------------------------------------


def read_file(file: Path, report: Report) -> list[Cell]:
    """The cells of a task, one for each length, in a file of its own or in parts, whichever of them
    is given. What must be known of the rows is passed to `report`.

    Raises UserError for an empty file, a row that cannot be scored (with file and line), another
    answer to an example that has one, and where names do not tell task and length.
    """
    files = _parts_of(file)
    file = files[0]
    stem = _TIME.sub("", file.stem.removeprefix(_SAMPLES))
    try:
        name = task_name(_PART.sub("", stem))
        task = family_of(name)(name=name)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None

    by_length: dict[int, list[JSON]] = {}
    for part in files:
        for length, row in _checked_rows(part, task):
            by_length.setdefault(length, []).append(row)
    return [_cell(file, task, length, rows, report) for length, rows in by_length.items()]


def _parts_of(file: Path) -> list[Path]:
    """The files beside a file that hold the same task, in order: they are one cell, and none
    without one of them."""
    if file.name.startswith(_SAMPLES):
        return [file]
    whole = _PART.sub("", file.stem)
    parts = []
    for other in sorted(file.parent.glob("*.jsonl")):
        # A record beside a file makes it one of rulerkit's own.
        if _PART.sub("", other.stem) == whole and not other.with_suffix(".json").is_file():
            parts.append(other)
    return parts


def _checked_rows(file: Path, task: Task) -> Iterator[tuple[int, JSON]]:
    """The rows of a file, each behind its length."""
    answers = dict[str, tuple[int, str]]()
    for line, row in _rows_of(file, task):
        length = row.get("max_length") or _names_of(file)[1]
        if not length:
            raise UserError(
                f"{file}: no folder above it is named by a length: lay it out as 4096/pred/vt.jsonl"
            )

        # Indices repeat in upstream's files, and prompts may be left out of them.
        names = [row.get(key) for key in ("index", "doc_id", "input")]
        key = json.dumps([length, row["outputs"], names])
        first, answer = answers.setdefault(key, (line, row["pred"]))
        if any(name is not None for name in names) and answer != row["pred"]:
            raise UserError(
                f"{file}, line {line}: another answer to the example of line {first}: keep one "
                "of the two lines"
            )
        yield length, row
    if not answers:
        raise UserError(f"{file} is empty: it holds no predictions; answer the task again")


def _rows_of(file: Path, task: Task) -> Iterator[tuple[int, JSON]]:
    """The rows of a file with upstream's field names, and their lines. Of a document that several
    filters list, the first one counts."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error}): give a text file of JSON lines"
        ) from None

    filters = dict[Any, str]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            if not isinstance(row, dict):
                raise ValueError(f"a {type(row).__name__} where an object is expected")
            if "doc" in row:
                row = _from_harness(row)
            checked(_ROW, row)
            if not task.can_judge(row["outputs"]):
                raise ValueError("outputs: no references, or an empty one")
        except ValueError as error:
            raise UserError(
                f"{file}, line {number}: {first_line(error)}; predictions are JSON lines with "
                "`pred`, a text, and `outputs`, a list of texts that are not empty: answer the "
                "example again, or take the line out"
            ) from None
        document, applied = row.get("doc_id", f"line {number}"), row.get("filter", "")
        if filters.setdefault(document, applied) == applied:
            yield number, row


def _from_harness(row: JSON) -> JSON:
    """A row of lm-evaluation-harness with upstream's field names."""
    doc = row["doc"] if isinstance(row["doc"], dict) else {}
    # Lists of lists, one for each request and repetition: the first answer counts.
    answer = row.get("filtered_resps") or row.get("resps")
    while isinstance(answer, list) and answer:
        answer = answer[0]

    # The digest of the prompt pairs two runs of the harness, as ours are paired.
    named: JSON = {"pred": answer}
    if "digest" not in doc:
        named["digest"] = str(row.get("prompt_hash") or "")[:16]
    # Its metrics are named by lengths, and -1 is its word for another length than the row's.
    said = row.get(str(doc.get("max_length")))
    if isinstance(said, int | float) and said != -1:
        named["harness_score"] = float(said)
    return {**row, "outputs": None, **doc, **named}


def _cell(file: Path, task: Task, length: int, rows: list[JSON], report: Report) -> Cell:
    """A cell as `read_cells` gives it, with what is known of predictions of another program."""
    about = rows[0]  # a task package of ours says how its prompts were made
    record: JSON = {
        "format": None,
        "run": "lm-eval" if file.name.startswith(_SAMPLES) else "upstream",
        "num_examples": len(rows),
        "label": None,
        "claimed_length": None,
        "aligned": "chat",
        "suite": "ruler",
        "threshold": None,
        "max_failures": 0,
        "adaptive": None,
        "environment": {"packages": {}},
        "result": {
            "task": {
                "name": task.name,
                "family": "",
                "category": task.category,
                "match": task.match,
            },
            "length": length,
            "model": {"name": _names_of(file)[0], "engine": ""},
            "seed": None,
            "prompt_version": None,
            "protocol": about.get("protocol"),
            "sources": {},
            "tokenizer": {"name": str(about.get("tokenizer") or ""), "fingerprint": ""},
            "prompt_format": {"template": "", "after": "", "thinking_tokens": 0},
        },
    }
    numbered = []
    for index, row in enumerate(rows):
        known = {key: row[key] for key in PredictionRow.__annotations__ if key in row}
        numbered.append({**known, "index": index})

    # Where each row has an index of its own, those that lack one are seen.
    given = {row["index"] for row in rows if isinstance(row.get("index"), int)}
    most = max(given, default=0) + 1
    if len(given) == len(rows) < most:
        report(
            f"{file}: {len(rows)} rows, and `index` runs to {most - 1}: {most - len(rows)} "
            "examples have no row, and the mean is over the others"
        )
    return Cell(file, record, numbered)


# --- what names say -------------------------------------------------------------------------------


def task_name(name: str) -> str:
    """Our name of a task that a file of ours or of others names; raises UserError for one of no
    known family."""
    ours = name.removeprefix("ruler_").removeprefix("rulerkit_")
    ours = OTHER_NAMES.get(ours, ours)
    family_of(ours)
    return ours


def _names_of(file: Path) -> tuple[str, int]:
    """The model and the length that the folders of a file name: `<model>/<benchmark>/<length>/pred`
    in upstream's tree, else the nearest folder that names a length, and the nearest one that names
    none; "unnamed" and 0 where there is none."""
    folders = [folder.name for folder in file.resolve().parents]
    model, length = "", 0
    for name in folders:
        try:
            tokens = parse_length(name)
        except UserError:
            tokens = 0
        if not tokens and name != "pred":
            model = model or name
        if tokens >= _SHORTEST:
            length = length or tokens
    if folders[0] == "pred" and len(folders) > 4:
        model = folders[3]
    return model or "unnamed", length


readers = {"pred/*.jsonl": read_file, "samples_*.jsonl": read_file, "*.jsonl": read_file}
"""What the plug-in reads, by the patterns of the files' names."""

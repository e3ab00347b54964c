"""Judging: one row per example, by upstream's two string matches and by a strict score beside them.

A score is a number from 0 to 1 here and in every row; tables multiply by 100, in one place
(`summary`).
"""

import json
import os
import re
import string
from array import array
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zipfile import BadZipFile

from rulerkit.errors import UserError
from rulerkit.store import Cell, Report, stamp
from rulerkit.tasks import CATEGORIES as CATEGORIES
from rulerkit.tasks import THIRTEEN as THIRTEEN
from rulerkit.tasks import base, family_of
from rulerkit.tasks.base import named_items as named_items
from rulerkit.tasks.base import string_match_all as string_match_all
from rulerkit.tasks.base import string_match_part as string_match_part

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

OTHER_NAMES = {"qa_squad": "qa_1", "qa_hotpot": "qa_2", "qa_hotpotqa": "qa_2"}
"""What others call a task of ours; lm-evaluation-harness also writes `ruler_` before the name."""

_CONTROL = re.compile(r"[\x00-\x1f]")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Strict(NamedTuple):
    """Judged by all that was said, each 0..1; `exact` asks for everything right and nothing
    else."""

    precision: float
    f1: float
    exact: float


def task_name(name: str) -> str:
    """Our name of a task that a file of ours or of others names; raises UserError for one of no
    known family."""
    ours = name.removeprefix("ruler_")
    ours = OTHER_NAMES.get(ours, ours)
    category(ours)
    return ours


def category(task: str) -> str:
    """'niah', 'vt', 'aggregation' or 'qa', by the first letters of a task's name, so that variants
    have one too."""
    return family_of(task).category


def cut_thought(prediction: str) -> bool:
    """Whether a thinking model's answer never came to the end of its thought."""
    return "</think>" not in prediction


def clean(prediction: str, thinking: bool = False) -> str:
    """The prediction as it is judged: stripped, control characters as newlines, stripped again.

    Of a thinking model, what stands before the last `</think>` is cut off first; a thought that was
    never closed stays whole (`cut_thought` tells them apart), because no rule could say where its
    answer begins.
    """
    if thinking:
        prediction = prediction.rpartition("</think>")[2]
    return _CONTROL.sub("\n", prediction.strip()).strip()


def strict_items(prediction: str, references: Iterable[str]) -> Strict:
    """Precision and F1 over the distinct items named: a wrong word costs, and so does a sentence
    around the answer."""
    named, wanted = set(named_items(prediction)), {reference.lower() for reference in references}
    right = len(named & wanted)
    return Strict(
        right / len(named) if named else 0.0,
        2 * right / (len(named) + len(wanted)),
        float(named == wanted),
    )


def strict_answer(prediction: str, references: Iterable[str]) -> Strict:
    """SQuAD's normalised exact match and F1 over words, the best over the references."""
    said = _squad_words(prediction)
    return max(
        (_overlap(said, _squad_words(reference)) for reference in references),
        key=lambda s: (s.f1, s.exact),
    )


def _squad_words(text: str) -> list[str]:
    return [w for w in text.lower().translate(_PUNCTUATION).split() if w not in ("a", "an", "the")]


def _overlap(said: list[str], wanted: list[str]) -> Strict:
    if not said or not wanted:
        same = float(said == wanted)
        return Strict(same, same, same)
    right = (Counter(said) & Counter(wanted)).total()
    return Strict(right / len(said), 2 * right / (len(said) + len(wanted)), float(said == wanted))


def score(
    cells: Iterable[Cell], report: Report | None = None, max_failures: float | None = None
) -> "pd.DataFrame":
    """Judge predictions: a DataFrame with one row per example, in the order of the cells.

    What was judged before, of files that did not change, is taken from `outputs/cache`, which may
    be deleted at any time.

    `score`, `strict` (F1), `precision` and `exact` are 0..1; `wanted` is the number of examples
    that the cell was to have, `failed` of how many the requests failed, `failed_refused` how many
    of these the service refused; `empty`, `cut_off`, `cut_thought` and `refused` say what else
    happened to the answer; `group` numbers what questions share, their article (NaN for other tasks
    and older rows). The columns from `wanted` on describe the cell and are the same in all its
    rows. Cells without a row are described in `attrs["empty_cells"]`, by the columns that describe
    a cell. `max_failures` overrules what the records say.

    Raises UserError where a row is damaged or has no references; with `report` the cell is left out
    and told to it. Also where two cells are the same one.
    """
    import numpy as np
    import pandas as pd

    abouts, judged, seen = [], list[Judged](), dict[tuple[Any, ...], Path]()
    cache = JudgedCache()
    for cell in cells:
        try:
            values = cache.judged(cell)
            about = describe(cell) | (
                {} if max_failures is None else {"max_failures": max_failures}
            )
        except UserError as error:
            if not report:
                raise
            report(f"left out: {error}")
            cell.present = array("l")
            continue
        key = tuple(about[name] for name in ("run", "model", "task", "length"))
        if key in seen:
            raise UserError(
                f"{cell.path}: run {key[0]!r}, model {key[1]!r}, task {key[2]!r} at length "
                f"{key[3]} is also in "
                f"{seen[key]}; a cell can be counted once: name only one of the two files"
            )
        seen[key] = cell.path
        abouts.append(about)
        judged.append(values)
    cache.save()
    counts = [len(values["index"]) for values in judged]
    empty = [about for about, count in zip(abouts, counts, strict=True) if not count]
    if not any(counts):
        table = pd.DataFrame(columns=COLUMNS)
        table.attrs["empty_cells"] = empty
        return table
    table = pd.DataFrame(abouts, columns=CELL_COLUMNS + PROTOCOL_COLUMNS).take(
        np.repeat(np.arange(len(counts)), counts)
    )
    columns = {name: np.concatenate([values[name] for values in judged]) for name in ROW_COLUMNS}
    columns["digest"] = columns["digest"].astype(str)
    table = table.reset_index(drop=True).assign(**columns)[COLUMNS]
    table.attrs["empty_cells"] = empty
    return table


CELL_COLUMNS = ["run", "model", "label", "aligned", "claimed_length", "task", "category", "length"]
ROW_COLUMNS = [
    *(
        "index",
        "score",
        "strict",
        "precision",
        "exact",
        "empty",
        "cut_off",
        "cut_thought",
        "refused",
    ),
    *("num_prompt_tokens", "digest", "group"),
]
PROTOCOL_COLUMNS = [
    *("wanted", "failed", "failed_refused", "max_failures", "floor"),
    *("stand_in", "engine", "seed", "prompt_version", "tokenizer", "template", "note"),
]
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
        "wanted": cell.wanted,
        "failed": len(cell.failures),
        "failed_refused": sum(failure.refused for failure in cell.failures.values()),
        "max_failures": float(record.get("max_failures", 0)),
        "floor": max(record.get("floors", {}).values(), default=float("nan")),
        "stand_in": any(source.get("stand_in", False) for source in sources.values()),
        "engine": model.get("engine", ""),
        "seed": result.get("seed"),
        "prompt_version": result.get("prompt_version"),
        "tokenizer": result.get("tokenizer", {}).get("name", ""),
        "template": result.get("prompt_format", {}).get("template", ""),
        "note": "; ".join(sorted(notes)),
    }


Judged = dict[str, "NDArray[Any]"]
"""ROW_COLUMNS of the examples of a cell, by index."""


class JudgedCache:
    """Judged cells by time and size of their files: one file per model of a run,
    `outputs/cache/scores/RUN/MODEL.npz`.

    Only cells in `outputs/predictions` have one. A file that is damaged, or made by other code, is
    made anew; where none can be written, nothing is kept.
    """

    def __init__(self) -> None:
        self._files: dict[Path, dict[str, dict[str, Any]]] = {}
        self._changed = set[Path]()

    def judged(self, cell: Cell) -> Judged:
        """The judged rows of a cell, which learns from them which examples it holds."""
        run = cell.path.parent.parent.parent
        if not cell.stored or run.parent.name != "predictions":
            return _judged(cell)
        file = (
            run.parent.parent
            / "cache"
            / "scores"
            / run.name
            / f"{cell.path.parent.parent.name}.npz"
        )
        if file not in self._files:
            self._files[file] = _read_cache(file)
        name, now = (
            f"{cell.path.parent.name}/{cell.path.stem}",
            [list(each) for each in stamp(cell.path)],
        )
        entry = self._files[file].get(name)
        if not entry or entry["stamp"] != now:
            values = _judged(cell)
            snapshots = sorted(cell.snapshots)
            entry = {
                "stamp": now,
                "warnings": cell.warnings,
                "snapshots": snapshots,
                "values": values,
            }
            self._files[file][name] = entry
            self._changed.add(file)
        known: Judged = entry["values"]
        cell.warnings, cell.snapshots = entry["warnings"], set(entry["snapshots"])
        cell.present = array("l", known["index"].tolist())
        return known

    def save(self) -> None:
        """Write what is new."""
        import numpy as np

        for file in self._changed:
            entries = self._files[file]
            about = [
                {**each, "name": name, "values": len(each["values"]["index"])}
                for name, each in entries.items()
            ]
            columns: dict[str, Any] = {
                c: np.concatenate([each["values"][c] for each in entries.values()])
                for c in ROW_COLUMNS
            }
            head = np.frombuffer(json.dumps([_code_version(), about]).encode(), np.uint8)
            temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
            with suppress(OSError):
                file.parent.mkdir(parents=True, exist_ok=True)
                with temporary.open("wb") as out:
                    np.savez(out, about=head, **columns)
                temporary.replace(file)


def _read_cache(file: Path) -> dict[str, dict[str, Any]]:
    """The cells in a file of the cache, by task and length."""
    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as content:
            version, about = json.loads(content["about"].tobytes())
            columns = (
                {name: content[name] for name in ROW_COLUMNS} if version == _code_version() else {}
            )
        entries, start = {}, 0
        for each in about if columns else ():
            stop = start + each["values"]
            entries[each.pop("name")] = each | {
                "values": {name: column[start:stop] for name, column in columns.items()}
            }
            start = stop
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile):
        return {}
    return entries


@cache
def _code_version() -> str:
    """A digest of the code that judges: what other code judged is judged again."""
    files = (Path(__file__), Path(base.__file__))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _judged(cell: Cell) -> Judged:
    import numpy as np

    result = cell.record["result"]
    task, kind = result["task"], result["task"].get("category") or category(result["task"]["name"])
    part = task.get("match", "part" if kind == "qa" else "all") == "part"
    thinking = result.get("prompt_format", {}).get("thinking_tokens", 0) > 0
    rows = sorted(
        (_judge(cell, row, part, thinking) for row in cell.stream()), key=lambda row: row[0]
    )
    columns = (
        dict(zip(ROW_COLUMNS, zip(*rows, strict=True), strict=True))
        if rows
        else dict.fromkeys(ROW_COLUMNS, ())
    )
    kinds: dict[str, Any] = dict.fromkeys(ROW_COLUMNS, bool) | {
        "index": int,
        "num_prompt_tokens": float,
        "digest": "S",
    }
    kinds |= dict.fromkeys(("score", "strict", "precision", "exact", "group"), float)
    if None not in columns["num_prompt_tokens"]:
        kinds["num_prompt_tokens"] = int
    return {name: np.asarray(columns[name], kind) for name, kind in kinds.items()}


def _judge(cell: Cell, row: dict[str, Any], part: bool, thinking: bool) -> tuple[Any, ...]:
    """One row of ROW_COLUMNS."""
    raw, references = row.get("pred"), row.get("outputs")
    if not isinstance(raw, str) or not references:
        raise UserError(
            f"{cell.path}: example {row.get('index')} has no "
            f"{'prediction' if references else 'references'}, which is "
            "never scored as zero; take the row out of the file, or answer it again"
        )
    text, reason = clean(raw, thinking), row.get("finish_reason", "")
    value = (string_match_part if part else string_match_all)(text, references)
    strict = (strict_answer if part else strict_items)(text, references)
    lost = thinking and cut_thought(raw)
    return (
        row["index"], value, strict.f1, strict.precision, strict.exact,
        not text, reason == "length" or lost, lost, reason == "refused",
        row.get("num_prompt_tokens"), str(row.get("digest", "")).encode("ascii", "backslashreplace"),
        row.get("group"),
    )  # fmt: skip

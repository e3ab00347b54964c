"""Judging: one row per example, by upstream's two string matches and by a strict score beside them.

A score is a number from 0 to 1 here and in every row; tables multiply by 100, in one place
(`summary`).
"""

import json
import os
import re
import string
import subprocess
import sys
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import sha256
from io import BytesIO
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zipfile import BadZipFile

from rulerkit.errors import UserError
from rulerkit.store import (
    Cell,
    Report,
    failure_counts,
    load_cell,
    read_cells,
    stamp,
    time_and_size,
    write_whole,
)
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
    text = prediction.strip()
    return text if text.isprintable() else _CONTROL.sub("\n", text).strip()


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


_CELL = {
    "run": "name of the run, the folder in outputs/predictions",
    "model": "name of the model, its folder in the run",
    "label": "what tables and figures call the model",
    "aligned": "chat or base; it chooses the threshold",
    "claimed_length": "tokens that the model claims to take; NaN where nobody says",
    "task": "name of the task or variant",
    "family": "name of the task's family; '' where the file does not name it",
    "category": "niah, vt, aggregation or qa",
    "length": "tokens: template, prompt and answer together",
}
_ROW = {
    "index": "number of the example, from 0; the same question at every length",
    "score": "0 to 1: the share of references found, or whether any is (qa)",
    "strict": "0 to 1: F1 over all items that the prediction names",
    "precision": "0 to 1: the share of the items named that are references",
    "exact": "1 where everything is right and nothing else is named, else 0",
    "empty": "whether the prediction is empty",
    "cut_off": "whether the prediction ended at the room for the answer",
    "cut_thought": "whether a thinking model never ended its thought",
    "refused": "whether the service refused to answer (rows of earlier versions)",
    "num_prompt_tokens": "tokens of the prompt as it was sent",
    "digest": "digest of the prompt; pairs examples of two models",
    "group": "number of the article that questions share; NaN for other tasks and older rows",
}
_PROTOCOL = {
    "wanted": "examples that the cell was to have",
    "failed": "examples whose requests failed",
    "failed_refused": "failed examples that the service refused",
    "max_failures": "share or number of failures with which a mean is taken over the rest",
    "floor": "0 to 1: the better score of two rules that do not read; NaN where not recorded",
    "stand_in": "whether a corpus was a stand-in, so that scores are not comparable with the paper's",
    "engine": "what ran the model",
    "seed": "seed of the examples",
    "prompt_version": "version of the prompts",
    "tokenizer": "name of the tokenizer that lengths are counted with",
    "template": "name of the prompt format",
    "protocol": "clean or paper; '' where the file does not say",
    "knobs": "settings of the task, as JSON",
    "note": "protocol, substitute corpora and files of one's own, in words",
    "path": "file of the predictions",
}
_NAMED = ("name", "family", "category")
COLUMNS = _CELL | _ROW | _PROTOCOL
"""The columns of `score` and what they mean. Those of a cell are the same in all its rows."""
CELL_COLUMNS, ROW_COLUMNS, PROTOCOL_COLUMNS = list(_CELL), list(_ROW), list(_PROTOCOL)


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
        "family": task.get("family", ""),
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
        "protocol": result.get("protocol", "clean" if "format" in record else ""),
        "knobs": json.dumps({k: v for k, v in task.items() if k not in _NAMED}),
        "note": "; ".join(sorted(notes)),
        "path": str(cell.path),
    }


def score(
    cells: Iterable[Cell], report: Report | None = None, max_failures: float | None = None
) -> "pd.DataFrame":
    """Judge predictions: a DataFrame with one row per example, in the order of the cells.

    Cells whose files did not change since they were judged are read from `outputs/cache`, which may
    be deleted at any time.

    COLUMNS says what the columns mean. `attrs["empty_cells"]` describes the cells without a row.
    `max_failures` overrides the records.

    Raises UserError where a row is damaged or has no references (with `report`, leaves the cell out
    and calls it), and where two cells are the same one.
    """
    import numpy as np
    import pandas as pd

    cells = list(cells)
    _judge_in_parallel(cells)
    descriptions, judged, seen = [], list[Judged](), dict[tuple[Any, ...], Path]()
    with _Cache() as cache:
        for cell in cells:
            try:
                values = cache.judged(cell)
                about = describe(cell)
            except UserError as error:
                if not report:
                    raise
                report(f"left out: {error}")
                cell.present = array("l")
                continue
            if max_failures is not None:
                about["max_failures"] = max_failures
            key = tuple(about[name] for name in ("run", "model", "task", "length"))
            if key in seen:
                raise UserError(
                    f"{cell.path}: run {key[0]!r}, model {key[1]!r}, task {key[2]!r} at length "
                    f"{key[3]} is also in {seen[key]}; a cell can be counted once: name only one "
                    "of the two files"
                )
            seen[key] = cell.path
            descriptions.append(about)
            judged.append(values)
    counts = [len(values["index"]) for values in judged]
    table = pd.DataFrame(columns=list(COLUMNS))
    if any(counts):
        rows = np.repeat(np.arange(len(counts)), counts)
        table = pd.DataFrame(descriptions, columns=CELL_COLUMNS + PROTOCOL_COLUMNS).take(rows)
        columns = {name: np.concatenate([v[name] for v in judged]) for name in ROW_COLUMNS}
        columns["digest"] = columns["digest"].astype(str)
        table = table.reset_index(drop=True).assign(**columns)[list(COLUMNS)]
    table.attrs["empty_cells"] = [
        about for about, count in zip(descriptions, counts, strict=True) if not count
    ]
    return table


# --- judged cells on disk -------------------------------------------------------------------------

Judged = dict[str, "NDArray[Any]"]
"""ROW_COLUMNS of the examples of a cell, by index."""

_PARALLEL = 20_000_000
"""Bytes of rows to judge from which on other processes help."""


class _Entry(NamedTuple):
    """A judged cell: the stamp of its files, what reading them said, and its columns."""

    stamp: list[list[int]]
    warnings: list[str]
    snapshots: list[str]
    values: Judged


class _Cache:
    """Judged cells by time and size of their files: `outputs/cache/scores/RUN/MODEL.npz`.

    A file that is damaged, or made by other code, is made anew; where none can be written, nothing
    is stored. What is new is written at the end of the `with` block.
    """

    def __init__(self) -> None:
        self._files: dict[Path, dict[str, _Entry]] = {}
        self._changed = set[Path]()

    def judged(self, cell: Cell) -> Judged:
        """The judged rows of a cell; also sets which examples it holds."""
        file = _cache_file(cell.path) if cell.on_disk else None
        if file is None:
            return _judged(cell)
        if file not in self._files:
            self._files[file] = _read_cache(file)
        entries, name, now = self._files[file], _cell_name(cell.path), stamp(cell.path)
        if name not in entries or entries[name].stamp != now:
            values = _judged(cell)
            entries[name] = _Entry(now, cell.warnings, sorted(cell.snapshots), values)
            self._changed.add(file)
        entry = entries[name]
        cell.warnings, cell.snapshots = entry.warnings, set(entry.snapshots)
        cell.present = array("l", entry.values["index"].tolist())
        return entry.values

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        import numpy as np

        for file in self._changed:
            entries = self._files[file]
            about = [
                [name, *entry[:3], len(entry.values["index"])] for name, entry in entries.items()
            ]
            columns: dict[str, Any] = {
                name: np.concatenate([entry.values[name] for entry in entries.values()])
                for name in ROW_COLUMNS
            }
            head = np.frombuffer(json.dumps([_code_version(), about]).encode(), np.uint8)
            out = BytesIO()
            np.savez(out, about=head, **columns)
            with suppress(OSError, UserError):
                write_whole(file, out.getvalue())


def _cache_file(path: Path) -> Path | None:
    """The file of the cache for the model of a prediction file; only `outputs/predictions` has."""
    return _cache_file_of(path.parent.parent)


@cache
def _cache_file_of(model: Path) -> Path | None:
    outputs = model.parents[2] if len(model.parents) > 2 else Path()
    if model.parent.parent.name != "predictions":
        return None
    return outputs / "cache" / "scores" / model.parent.name / f"{model.name}.npz"


def _cell_name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def _read_cache(file: Path, names: Sequence[str] = ROW_COLUMNS) -> dict[str, _Entry]:
    """The cells in a file of the cache, by task and length, with the columns `names`."""
    import numpy as np

    entries, start = {}, 0
    try:
        with np.load(file, allow_pickle=False) as content:
            code, about = json.loads(content["about"].tobytes())
            if code != _code_version():
                return {}
            columns = {name: content[name] for name in names}
        for name, then, warnings, snapshots, count in about:
            values = {key: column[start : start + count] for key, column in columns.items()}
            entries[name] = _Entry(then, warnings, snapshots, values)
            start += count
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile):
        return {}
    return entries


@cache
def _code_version() -> str:
    """A digest of the code that judges: what other code judged is judged again."""
    files = (Path(__file__), Path(base.__file__))
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _judge_in_parallel(cells: list[Cell]) -> None:
    """Fill the cache of the models with much to judge, in one process per CPU.

    Errors are ignored here: what the cache lacks afterwards is judged by the caller.
    """
    sizes = Counter[str]()
    judged = dict[Path, float]()
    for cell in cells:
        if not (file := _cache_file(cell.path) if cell.on_disk else None):
            continue
        if file not in judged:
            judged[file] = time_and_size(file)[0]
        time, size = time_and_size(cell.path)
        if time > judged[file]:
            sizes[str(cell.path.parent.parent)] += size
    workers = min(len(sizes), os.cpu_count() or 1)
    if workers < 2 or sizes.total() < _PARALLEL:
        return
    folders = [folder for folder, _ in sizes.most_common()]
    helpers = [
        subprocess.Popen(
            [sys.executable, "-c", _HELPER, *folders[n::workers]],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for n in range(workers)
    ]
    try:
        for helper in helpers:
            helper.wait()
    finally:
        for helper in helpers:
            helper.kill()


_HELPER = (
    "import sys; from rulerkit.scoring import judge_folder; list(map(judge_folder, sys.argv[1:]))"
)


def judge_folder(folder: str) -> None:
    """Judge the cells of one model into the cache."""
    with _Cache() as cache:
        for cell in read_cells(Path(folder), report=lambda _: None, scan=False):
            with suppress(UserError):
                cache.judged(cell)


def _judged(cell: Cell) -> Judged:
    import numpy as np

    result = cell.record["result"]
    kind = result["task"].get("category") or category(result["task"]["name"])
    part = result["task"].get("match", "part" if kind == "qa" else "all") == "part"
    thinking = result.get("prompt_format", {}).get("thinking_tokens", 0) > 0
    rows = sorted(
        (_judge(cell, row, part, thinking) for row in cell.stream()), key=lambda row: row[0]
    )
    columns = dict(zip(ROW_COLUMNS, zip(*rows, strict=True) if rows else repeat(()), strict=False))
    kinds: dict[str, Any] = dict.fromkeys(ROW_COLUMNS, bool) | {"index": int, "digest": "S"}
    kinds |= dict.fromkeys(("score", "strict", "precision", "exact", "group"), float)
    kinds["num_prompt_tokens"] = float if None in columns["num_prompt_tokens"] else int
    return {name: np.asarray(columns[name], kind) for name, kind in kinds.items()}


def _judge(cell: Cell, row: dict[str, Any], part: bool, thinking: bool) -> tuple[Any, ...]:
    """One row of ROW_COLUMNS."""
    raw, references = row.get("pred"), row.get("outputs")
    if not isinstance(raw, str) or not references:
        raise UserError(
            f"{cell.path}: example {row.get('index')} has no "
            f"{'prediction' if references else 'references'}, which is never scored as zero; take "
            "the row out of the file, or answer it again"
        )
    text, reason = clean(raw, thinking), row.get("finish_reason", "")
    value = (string_match_part if part else string_match_all)(text, references)
    strict = (strict_answer if part else strict_items)(text, references)
    unfinished = thinking and cut_thought(raw)
    return (
        row["index"], value, strict.f1, strict.precision, strict.exact,
        not text, reason == "length" or unfinished, unfinished, reason == "refused",
        row.get("num_prompt_tokens"), str(row.get("digest", "")).encode("ascii", "backslashreplace"),
        row.get("group"),
    )  # fmt: skip


# --- completeness ---------------------------------------------------------------------------------


class Completeness(NamedTuple):
    """How many of the examples asked for have an answer, and what is wrong, if anything."""

    have: int
    problem: str = ""


def completeness(path: Path, wanted: int) -> Completeness:
    """How far a cell is towards `wanted` examples; a cell that may stop early has all of them then.

    `status`, `batch`, `report` and `score` share this count. A cell that did not change is not read
    again, nor one that was judged.
    """
    return _completeness(path, wanted, str(stamp(path)))


@lru_cache(maxsize=100_000)
def _completeness(path: Path, wanted: int, _: str) -> Completeness:
    try:
        cell = load_cell(path)
        if not cell:
            return Completeness(0)
        file = _cache_file(path)
        entry = _cached_indices(file, str(stamp(file))).get(_cell_name(path)) if file else None
        if entry and entry.stamp == stamp(path):
            cell.present, cell.warnings = array("l", entry.values["index"].tolist()), entry.warnings
        have = sum(index < wanted for index in cell.present)
    except UserError as error:
        return Completeness(0, str(error))
    failed = [failure for index, failure in cell.failures.items() if index < wanted]
    problem = ""
    if have >= min(wanted, cell.record.get("complete_with") or wanted):
        have = wanted
    elif failed:
        refused = sum(failure.refused for failure in failed)
        problem = f"{failure_counts(len(failed), refused)}: {failed[0].reason}"
    return Completeness(have, "; ".join([*cell.warnings[:1], *[problem] * bool(problem)]))


@lru_cache(maxsize=1000)
def _cached_indices(file: Path, _: str) -> dict[str, _Entry]:
    return _read_cache(file, ["index"])

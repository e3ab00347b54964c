"""Prediction files that others wrote, read as cells, so that `score` has one way for all of them.

- RULER's own: `<model>/<benchmark>/<length>/pred/<task>.jsonl`, rows of index, pred, input,
  outputs, others, length; a task answered in parts has files `<task>-0.jsonl`, `<task>-1.jsonl`.
  Its 2025 niah files repeat `index`, so rows are known by their line.
- lm-evaluation-harness' `samples_<task>_<time>.jsonl`: the example in `doc`, all lengths of a task
  in one file.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from rulerkit.errors import UserError, first_line
from rulerkit.example import Example
from rulerkit.generation import Examples, generate
from rulerkit.lengths import parse_length
from rulerkit.prompt_format import PromptFormat
from rulerkit.scoring import category, task_name
from rulerkit.store import (
    Cell,
    Count,
    Report,
    Whole,
    check_schema,
    parse_json,
    print_problem,
    read_cells,
)
from rulerkit.tasks import Task

_SAMPLES = re.compile(r"samples_(.+?)(?:_\d{4}-\d\d-\d\dT.*)?$")
_PART = re.compile(r"-\d+$")
_SHORTEST = 256  # a folder named 0 or 42 is a part or a seed, not a length


class _Row(BaseModel):
    """What is read of a row."""

    model_config = ConfigDict(strict=True)

    pred: str
    outputs: Annotated[list[str], Field(min_length=1)]
    finish_reason: str = ""
    num_prompt_tokens: Whole | None = None
    digest: str = ""
    max_length: Count | None = None
    doc_id: int | str | None = None
    filter: str = ""


def read_predictions(
    path: str | Path,
    task: str | None = None,
    length: int | None = None,
    report: Report = print_problem,
) -> list[Cell]:
    """All cells of a prediction file, or of a folder of them, ours or others'; `task`, `length`
    overrule its name.

    Of a folder, files of ours (those with a record beside them), `pred/*.jsonl` and
    `samples_*.jsonl` at any depth are read; failing these, the `.jsonl` files in it. Of a folder, a
    damaged file is left out and told to `report`. Raises UserError for a path without predictions,
    a row without a usable one (file and line are named), and a task or length that cannot be told
    from the names.
    """
    path = Path(path)
    if not path.exists():
        raise UserError(
            f"no predictions at {path}: no such file or folder; give a .jsonl file or a folder of "
            "them"
        )
    if path.is_dir():
        ours, files = read_cells(path, strict=False, report=report), _foreign_files(path)
        files = files or ([] if ours else sorted(path.glob("*.jsonl")))
    elif path.with_suffix(".json").is_file():
        ours, files = read_cells(path), []
    else:
        ours, files = [], [path]
    parts: dict[tuple[str, ...], Cell] = {}
    wrong: UserError | None = None
    for file in files:
        try:
            for cell in list(_read(file, task, length)):
                _join(parts, cell)
        except UserError as error:
            if len(files) == 1 and not ours:
                raise
            report(f"left out: {error}")
            wrong = wrong or error
    if wrong and not ours and not parts:
        raise wrong
    if not ours and not parts:
        raise UserError(
            f"no predictions in {path}: no .jsonl file of ours, pred/*.jsonl or samples_*.jsonl in "
            "it"
        )
    return ours + list(parts.values())


def _foreign_files(folder: Path) -> list[Path]:
    files = {*folder.rglob("pred/*.jsonl"), *folder.rglob("samples_*.jsonl")}
    if folder.name == "pred":
        files.update(folder.glob("*.jsonl"))
    return sorted(file for file in files if not file.with_suffix(".json").is_file())


def _join(parts: dict[tuple[str, ...], Cell], cell: Cell) -> None:
    """Add a cell; the parts of one task (task-0, task-1, ...) in one folder are one cell, numbered
    on."""
    result = cell.record["result"]
    whole = f"{cell.path.parent}" if _PART.search(cell.path.stem) else f"{cell.path}"
    key = (whole, result["task"]["name"], str(result["length"]))
    if key in parts:
        first = parts[key]
        first.rows.extend(
            [{**row, "index": len(first.rows) + n} for n, row in enumerate(cell.rows)]
        )
        first.record["num_examples"] = len(first.rows)
    else:
        parts[key] = cell


def _read(file: Path, task: str | None, length: int | None) -> Iterator[Cell]:
    """One cell per nominal length in the file."""
    samples = _SAMPLES.fullmatch(file.stem) if file.name.startswith("samples_") else None
    name = _told_task(file, task or (samples[1] if samples else _PART.sub("", file.stem)))
    by_length: dict[int, list[dict[str, Any]]] = {}
    seen: dict[Any, str] = {}
    for line, row in json_lines(file):
        row = _from_harness(row) if "doc" in row else row
        _check(file, line, row)
        # with several filters every document is listed once for each: the first one is read
        if seen.setdefault(row.get("doc_id", f"line {line}"), row.get("filter", "")) != row.get(
            "filter", ""
        ):
            continue
        rows = by_length.setdefault(length or row.get("max_length") or told_length(file), [])
        known: dict[str, Any] = {
            name: row[name]
            for name in ("finish_reason", "num_prompt_tokens", "digest")
            if name in row
        }
        rows.append(
            {
                "index": len(rows),
                "pred": row["pred"],
                "outputs": row["outputs"],
                "line": line,
                **known,
            }
        )
    if not by_length:
        raise UserError(f"{file} holds no predictions: it is empty; answer the task again")
    for budget, rows in by_length.items():
        yield Cell(
            file, _record(file, name, budget, len(rows), "lm-eval" if samples else "upstream"), rows
        )


def _told_task(file: Path, name: str) -> str:
    try:
        return task_name(name)
    except UserError as error:
        raise UserError(f"{file}: {error}") from None


def told_length(file: Path) -> int:
    """The nearest folder above the file whose name is a length."""
    lengths = (_length(folder.name) for folder in file.resolve().parents)
    if length := next((length for length in lengths if length >= _SHORTEST), 0):
        return length
    raise UserError(
        f"{file}: no folder above it is named by a length (as in 4096/pred/vt.jsonl); give --length"
    )


def _length(folder: str) -> int:
    """The length that a folder's name gives, 0 where it gives none."""
    with suppress(UserError):
        return parse_length(folder)
    return 0


def _told_model(file: Path) -> str:
    """`<model>/<benchmark>/<length>/pred/` in upstream's tree, else the nearest folder that names
    no length."""
    folders = list(file.resolve().parents)
    if folders[0].name == "pred" and len(folders) > 4:
        return folders[3].name
    return next(
        (f.name for f in folders if f.name not in ("", "pred") and not _length(f.name)), "unnamed"
    )


def _check(file: Path, line: int, row: dict[str, Any]) -> None:
    """Raise UserError where a row has no prediction or references; a single reference becomes a
    list."""
    if isinstance(row.get("outputs"), str):
        row["outputs"] = [row["outputs"]]
    try:
        check_schema(_Row, row)
    except ValueError as error:
        raise UserError(
            f"{file}, line {line}: {error}; rows need `pred`, a text, and `outputs`, a list of "
            "texts: answer the example "
            "again, or take the line out"
        ) from None


def json_lines(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines file with their line numbers; anything else is a `UserError`."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(
            f"{file} cannot be read ({error}): give a text file of JSON lines"
        ) from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            raise UserError(
                f"{file}, line {number}: not JSON ({first_line(error)}); repair or remove the line"
            ) from None
        if not isinstance(row, dict):
            raise UserError(
                f"{file}, line {number}: a {type(row).__name__} where a JSON object is expected"
            )
        yield number, row


def _from_harness(row: dict[str, Any]) -> dict[str, Any]:
    """The same row with upstream's fields."""
    doc = row["doc"] if isinstance(row["doc"], dict) else {}
    answer = row.get("filtered_resps") or row.get("resps")
    while isinstance(answer, list) and answer:
        answer = answer[0]
    return {
        **row,
        "pred": answer,
        "outputs": doc.get("outputs"),
        "max_length": doc.get("max_length"),
    }


def _record(file: Path, task: str, length: int, num_examples: int, run: str) -> dict[str, Any]:
    model = _told_model(file)
    kind = category(task)
    settings = {"name": task, "category": kind, "match": "part" if kind == "qa" else "all"}
    return {
        "result": {"task": settings, "length": length, "model": {"name": model, "engine": ""}},
        "num_examples": num_examples,
        "label": model,
        "claimed_length": None,
        "aligned": "chat",
        "run": run,
    }


_CHUNK = 16
"""How many examples a worker makes at a time."""


@dataclass(frozen=True)
class Order:
    """A cell to be written: what `generate` takes, in a form that travels to other processes."""

    task: Task
    length: int
    num_examples: int
    seed: int
    tokenizer: str
    template: str

    def examples(self) -> Examples:
        """The examples of this cell."""
        return generate(
            self.task,
            self.length,
            self.num_examples,
            self.seed,
            _format(self.tokenizer, self.template),
        )


def to_json(example: Example) -> dict[str, Any]:
    """One line of upstream's JSONL (`index, input, outputs, length, answer_prefix`) with a few
    fields more."""
    return {
        "index": example.index,
        "input": example.input,
        "outputs": list(example.references),
        "length": example.num_tokens + example.max_new_tokens,
        "answer_prefix": example.answer_prefix,
        "context": example.context_text,
        "question": example.text_of("question"),
        "task": example.task,
        "max_new_tokens": example.max_new_tokens,
    }


def write_grid(
    orders: Sequence[Order], paths: Sequence[Path], workers: int = 1, progress: bool = True
) -> None:
    """Write each cell to its file, whole or not at all, with `workers` processes; the files do not
    depend on how many."""
    from tqdm import tqdm

    if workers < 1:
        raise UserError(f"workers is {workers}: it must be 1 or more")
    for order in orders:
        order.examples()[0]  # what does not fit is said before anything is written
    total = sum(order.num_examples for order in orders)
    spawned = (
        ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
        if workers > 1
        else nullcontext()
    )
    with (
        spawned as pool,
        tqdm(total=total, unit=" examples", disable=None if progress else True) as bar,
    ):
        chunks = [
            (o, i, min(i + _CHUNK, o.num_examples))
            for o in orders
            for i in range(0, o.num_examples, _CHUNK)
        ]
        made = (
            _in_order(pool, chunks, 4 * workers) if pool else (_lines(*chunk) for chunk in chunks)
        )
        for order, path in zip(orders, paths, strict=True):
            _write(path, islice(made, -(-order.num_examples // _CHUNK)), bar)


def _in_order(pool: ProcessPoolExecutor, chunks: Iterable[Any], ahead: int) -> Iterator[list[str]]:
    """The chunks' lines in order, a bounded number of chunks under way."""
    waiting: list[Any] = []
    for chunk in chunks:
        waiting.append(pool.submit(_lines, *chunk))
        if len(waiting) >= ahead:
            yield waiting.pop(0).result()
    yield from (future.result() for future in waiting)


def _lines(order: Order, start: int, stop: int) -> list[str]:
    examples = order.examples()
    return [json.dumps(to_json(examples[i]), ensure_ascii=False) + "\n" for i in range(start, stop)]


def _write(path: Path, chunks: Iterable[list[str]], bar: Any) -> None:
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("w", encoding="utf-8", errors="surrogatepass") as file:
            for lines in chunks:
                file.writelines(lines)
                bar.update(len(lines))
        part.replace(path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; choose another --output"
        ) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)


@lru_cache(maxsize=4)
def _format(tokenizer: str, template: str) -> PromptFormat:
    from rulerkit.tokenizers import load_tokenizer

    return PromptFormat(load_tokenizer(tokenizer), template=template)

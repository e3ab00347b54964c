"""Rows of data and predictions, whoever wrote them, as the audit looks at them: what each file
tells, nothing added."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.foreign import json_lines as json_lines
from rulerkit.foreign import told_length as told_length
from rulerkit.inference.cells import load_cell
from rulerkit.scoring import task_name
from rulerkit.tasks import TASKS, Task, family_of
from rulerkit.tokenizers import Tokenizer

_MOST_COUNTED = 60  # rows whose tokens are counted: half a second each at 128K


@dataclass(frozen=True)
class Row:
    """One example as a file tells it; None for what it does not."""

    line: int
    index: int | None
    input: str | None
    prefix: str | None
    """The answer prefix where it is a field of its own."""
    references: tuple[str, ...]
    prediction: str | None
    length: int | None
    """Prompt and answer in tokens, as the file counts them."""
    prompt_tokens: int | None
    max_new_tokens: int | None
    depth: float | None
    score: float | None

    @property
    def text(self) -> str | None:
        """The prompt, as far as the file tells it."""
        return None if self.input is None else self.input + (self.prefix or "")

    @property
    def name(self) -> str:
        """How a reader of the file finds this row."""
        return f"line {self.line}" + (f", index {self.index}" if self.index is not None else "")


@dataclass(frozen=True)
class Audited:
    """The rows of one task at one length in one file, and the tokenizer that counts them."""

    path: Path
    task: str
    length: int
    rows: tuple[Row, ...]
    wanted: int | None
    tokenizer: Tokenizer

    @property
    def family(self) -> type[Task]:
        """The family, by the task's name."""
        return family_of(self.task)

    @property
    def texts(self) -> list[tuple[Row, str]]:
        """The rows whose prompt is in the file."""
        return [(row, row.text) for row in self.rows if row.text is not None]

    @cached_property
    def counted(self) -> list[tuple[Row, int]]:
        """Rows, at most 60 spread evenly, with the tokens of prompt and answer together."""
        step = max(1, -(-len(self.rows) // _MOST_COUNTED))
        found = []
        for row in self.rows[::step]:
            tokens = row.prompt_tokens if row.text is None else self._count(row.text)
            if tokens is not None:
                found.append((row, tokens + (row.max_new_tokens or self.answer_tokens)))
        return found

    @property
    def answer_tokens(self) -> int:
        """The benchmark's number of tokens for an answer."""
        return (TASKS.get(self.task) or self.family(name=self.task)).answer_tokens

    def _count(self, text: str) -> int:
        token = self.tokenizer
        added = token.bos_id is not None and not text.startswith(token.bos_token or "\0")
        return token.count(text) + added


def read_rows(
    path: Path, tokenizer: Tokenizer, task: str | None = None, length: int | None = None
) -> list[Audited]:
    """The rows of a file, by nominal length; data without predictions may stand there as well.

    Raises UserError for a file that is no JSON lines, and where neither names nor arguments tell
    task and length.
    """
    if not path.is_file():
        raise UserError(f"no file {path}: give a file of JSON lines, data or predictions")
    if path.with_suffix(".json").is_file() and (cell := load_cell(path)):
        rows = tuple(_ours(line, row) for line, row in json_lines(path))
        return [Audited(path, cell.task, cell.length, rows, cell.wanted, tokenizer)]
    name = _told_task(path, task)
    by_length: dict[int, list[Row]] = {}
    seen: dict[Any, str] = {}
    for line, row in json_lines(path):
        if "doc" in row and seen.setdefault(
            row.get("doc_id", line), row.get("filter", "")
        ) != row.get("filter", ""):
            continue
        nominal = length or (row["doc"] if isinstance(row.get("doc"), dict) else row).get(
            "max_length"
        )
        nominal = int(nominal) if nominal else told_length(path)
        by_length.setdefault(nominal, []).append(_row(line, row, nominal))
    if not by_length:
        raise UserError(f"{path} is empty: give a file of JSON lines, data or predictions")
    return [
        Audited(path, name, n, tuple(rows), None, tokenizer)
        for n, rows in sorted(by_length.items())
    ]


def _told_task(path: Path, task: str | None) -> str:
    """By argument, the harness' `samples_<task>_<time>`, upstream's `<task>.jsonl` or
    `<task>/validation.jsonl`."""
    stem = re.sub(r"^samples_|_\d{4}-\d\d-\d\dT.*$|-\d+$", "", path.stem)
    try:
        return task_name(
            task
            or (path.resolve().parent.name if stem in ("validation", "test", "train") else stem)
        )
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def _row(line: int, row: dict[str, Any], nominal: int) -> Row:
    """A row of upstream's data or predictions, or of the harness' samples."""
    doc = row["doc"] if isinstance(row.get("doc"), dict) else row
    outputs = doc.get("outputs")
    answer = row.get("filtered_resps") or row.get("resps") or row.get("pred")
    while isinstance(answer, list) and answer:
        answer = answer[0]
    scores = [row.get(key) for key in (str(nominal), "score")]
    return Row(
        line=line,
        index=_whole(doc.get("index")),
        input=_text(doc.get("input")),
        prefix=_text(doc.get("answer_prefix")) or _text(doc.get("gen_prefix")),
        references=tuple(
            o
            for o in ([outputs] if isinstance(outputs, str) else outputs or ())
            if isinstance(o, str)
        ),
        prediction=_text(answer),
        length=_whole(doc.get("length")),
        prompt_tokens=_whole(row.get("num_prompt_tokens")),
        max_new_tokens=_whole(doc.get("max_new_tokens")),
        depth=None,
        score=next((float(s) for s in scores if isinstance(s, int | float) and s >= 0), None),
    )


def _ours(line: int, row: dict[str, Any]) -> Row:
    """A row of our own predictions, which hold no prompt."""
    known, depths = _row(line, row, 0), row.get("depths") or [None]
    prompt, whole = known.prompt_tokens, known.length
    room = whole - prompt if whole is not None and prompt is not None else None
    return Row(**(vars(known) | {"max_new_tokens": room, "depth": depths[0]}))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None

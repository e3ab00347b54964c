"""Faults in files of data or predictions, whoever wrote them.

Each audit looks at one row, or at all rows of one task at one length, and says what it saw and what
that does to scores. It does not judge what a file does not say.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict

from rulerkit.analysis.other_formats import DataRow, json_lines, read_rows
from rulerkit.batch.checks import (
    BY_DESIGN,
    NOTE,
    CheckResult,
    Checks,
    Finding,
    judge_tokens,
    run_checks,
)
from rulerkit.common.errors import UserError
from rulerkit.generation.tasks import TASKS, Task, family_of
from rulerkit.generation.tasks.base import PROTOCOLS
from rulerkit.generation.tokenizers import Tokenizer
from rulerkit.scoring.scores import clean, string_match_all
from rulerkit.store.cells import load_cell

MIN_ROWS = 8
"""Rows from which on places are compared with one another."""
_MOST_COUNTED = 60  # rows whose tokens are counted: half a second each at 128K
_PREFIX_WITHIN = (
    600  # characters at the end of a prompt in which the answer prefix is searched
)
_BOS = (
    *("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<BOS_TOKEN>"),
    "<｜begin▁of▁sentence｜>",
)
_NO_WORDS = {"yes", "no", "noanswer"}  # answers that stand in no document


class Row(DataRow):
    """One example as a file describes it, with upstream's field names; None for what it omits.
    `length` is that of prompt and answer in tokens, as the file counts them."""

    model_config = ConfigDict(strict=True, extra="allow")

    line: int = 0
    index: int | None = None
    input: str | None = None
    answer_prefix: str | None = None
    gen_prefix: str | None = None
    outputs: list[str] | None = None
    pred: str | None = None
    length: int | None = None
    max_new_tokens: int | None = None

    @property
    def where(self) -> str:
        """How a reader of the file finds the row."""
        return f"line {self.line}" + (
            f", index {self.index}" if self.index is not None else ""
        )

    @property
    def prefix(self) -> str:
        """The answer prefix where it is a field of its own."""
        return self.answer_prefix or self.gen_prefix or ""

    @property
    def text(self) -> str:
        """The prompt; empty where the file does not hold it."""
        return self.input + self.prefix if self.input else ""

    @property
    def references(self) -> list[str]:
        return self.outputs or []


@dataclass(frozen=True)
class FileCell:
    """The rows of one task at one length in one file, and the tokenizer that counts them; `wanted`
    is the number of examples that were asked for, where that is known."""

    task: Task
    length: int
    rows: list[Row]
    tokenizer: Tokenizer
    wanted: int | None = None


def read_file(
    path: Path, tokenizer: Tokenizer, task: str | None = None, length: int | None = None
) -> list[FileCell]:
    """The rows of a file of data or predictions, by nominal length; `task` and `length` where its
    name does not tell them.

    Raises UserError for a file that is no JSON lines, and where neither names nor arguments tell
    task and length.
    """
    if not path.is_file():
        raise UserError(
            f"no file {path}: give a file of JSON lines, data or predictions; a "
            "model is named by -y 'model: NAME'"
        )
    family, wanted = "", None
    if path.with_suffix(".json").is_file() and (cell := load_cell(path)):
        _ = cell.present  # raises where a row is damaged
        name, wanted, result = cell.task, cell.wanted, cell.record["result"]
        family, protocol = result["task"].get("family", ""), result.get("protocol")
        by_length = {
            cell.length: [row | {"line": line} for line, row in json_lines(path)]
        }
    else:
        name, by_length = read_rows(path, task, length, Row)
        protocol = next(iter(by_length.values()))[0].get(
            "protocol"
        )  # in files of `generate`
    asked = TASKS.get(name) or family_of(name, family)(name=name)
    if str(protocol) in PROTOCOLS:
        asked = asked.with_protocol(protocol)
    return [
        FileCell(asked, budget, [Row(**row) for row in rows], tokenizer, wanted)
        for budget, rows in sorted(by_length.items())
    ]


def audit(cell: FileCell) -> Iterator[Finding]:
    """All findings on the rows of one task at one length."""
    yield from run_checks(CELL_AUDITS, "", cell)
    for number, row in enumerate(cell.rows):
        if number < _MOST_COUNTED:
            yield from run_checks({"budget": budget}, row.where, row, cell)
        yield from run_checks(ROW_AUDITS, row.where, row, cell)
        if row.text:
            yield from run_checks(TEXT_AUDITS, row.where, row, cell)


# --- all rows of a cell ---------------------------------------------------------------------------


def indices(cell: FileCell) -> CheckResult:
    """Every example once."""
    counts = Counter(row.index for row in cell.rows if row.index is not None)
    repeated = [index for index, count in counts.items() if count > 1]
    if not counts:
        return None
    if repeated:
        seen = f"{len(counts)} distinct indices in {len(cell.rows)} rows (repeated: {repeated[0]})"
        effect = "who keys rows by index drops or mixes examples (upstream's 2025 niah files do this): key by line"
        return Finding(seen, effect)
    wanted = range(cell.wanted or max(counts) + 1)
    if missing := sorted({*wanted} - {*counts}):
        seen = f"{len(missing)} of {len(wanted)} missing (first: {missing[0]})"
        return Finding(
            seen, "the mean is over other examples than it says: answer them"
        )
    return f"{len(counts)}, each once"


def prompts(cell: FileCell) -> CheckResult:
    """No prompt twice."""
    texts = [row.text for row in cell.rows if row.text]
    distinct = len({*texts})
    if distinct < len(texts):
        seen = f"{distinct} different ones in {len(texts)} rows"
        return Finding(seen, "fewer examples than rows: intervals are too narrow")
    return f"{distinct}, all different" if texts else None


def positions(cell: FileCell) -> CheckResult:
    """The answer stands somewhere else in every example, by the family's rule."""
    matches = (
        cell.task.place(row.text, row.references) for row in cell.rows if row.text
    )
    places = Counter(place for place in matches if place)
    count = places.total()
    if count < MIN_ROWS:
        return None
    ((usual, same),) = places.most_common(1)
    if same > count / 2:
        seen = f"the answer at {usual} in {same} of {count} rows"
        if cell.task.protocol == "paper":
            return Finding(seen, BY_DESIGN, NOTE)
        return Finding(
            seen, "a model that only reads there scores as well: shuffle per example"
        )
    return f"{len(places)} places in {count} rows"


# --- one row --------------------------------------------------------------------------------------


def budget(row: Row, cell: FileCell) -> CheckResult:
    """Prompt and answer stay within the length and fill it."""
    used, tokenizer = row.length, cell.tokenizer
    if row.text:
        bos = "" if tokenizer.bos_id is None else tokenizer.bos_token or "\0"
        answer = row.max_new_tokens or cell.task.answer_tokens
        used = tokenizer.count(row.text) + (not row.text.startswith(bos)) + answer
    return judge_tokens(used, cell.length, cell.task) if used else None


def prediction(row: Row, cell: FileCell) -> CheckResult:
    """The answer is there, and is no copy of the prompt."""
    if row.pred is None:
        return None
    if row.text and row.text[:200] in row.pred:
        return Finding("the prompt itself", "echoes score 100: take the new text alone")
    if not row.pred.strip():
        effect = (
            "it scores 0: was this a refusal, a time-out or a prompt that did not fit?"
        )
        return Finding("nothing", effect, NOTE)
    return "new text"


def own_score(row: Row, cell: FileCell) -> CheckResult:
    """The score in the file is ours: question answering counts any reference, not the mean."""
    extra = row.model_extra or {}
    values = [extra.get(str(cell.length)), extra.get("score")]
    scores = [
        value for value in values if isinstance(value, int | float) and value >= 0
    ]
    if row.pred is None or not scores:
        return None
    score, answer, wanted = scores[0], clean(row.pred), row.references or [""]
    lost = cell.task.score(answer, wanted) - score
    if abs(lost) < 1e-6:
        return "as we score"
    if (
        cell.task.match == "part"
        and abs(string_match_all(answer, wanted) - score) < 1e-6
    ):
        seen = f"the mean over references, {100 * lost:.1f} points too low"
        return Finding(seen, "score it anew (`rulerkit score`)")
    return Finding(
        f"{score:g}, not ours", "do not compare the file's scores with others'"
    )


# --- the text of a prompt -------------------------------------------------------------------------


def references(row: Row, cell: FileCell) -> CheckResult:
    """What is asked for stands in the context."""
    text, part = row.text.lower(), cell.task.match == "part"
    wanted = {reference.lower() for reference in row.references}
    present = {reference for reference in wanted if reference in text}
    known = present or wanted & _NO_WORDS if part else wanted and present == wanted
    if known:
        return "in the context"
    effect = (
        "nobody can find them: the row scores 0, or rewards what a model knew before"
    )
    return Finding("not in the context", effect, *([NOTE] if part else []))


def demonstration(row: Row, cell: FileCell) -> CheckResult:
    """Variable tracking and common words come with a solved example."""
    opening = cell.task.demonstration_opening.strip()
    if not opening:
        return None
    if row.text.count(opening) > 1:
        return "there"
    return Finding(
        "none", "base models score far lower without one: compare with nobody's numbers"
    )


def answer_prefix(row: Row, cell: FileCell) -> CheckResult:
    """The answer prefix ends the prompt, once, with its blanks."""
    ending = row.text[-_PREFIX_WITHIN:].rpartition("?")[2]
    prefixes = list(re.finditer(cell.task.answer_prefix_form, ending))
    if not prefixes:
        return Finding(
            "none at the end", "chat models then explain and are cut: scores fall"
        )
    if len(prefixes) > 1:
        effect = "whoever adds `answer_prefix` to `input` repeats it: drop one"
        return Finding("there twice", effect)
    if row.prefix[:1] not in ("", " ") or "" in prefixes[0].groups():
        return Finding(
            "without its blank", "the first token of the answer is another one", NOTE
        )
    return "at the end, once"


def bos_text(row: Row, cell: FileCell) -> CheckResult:
    """No beginning-of-sequence token stands in the text, where an engine adds one."""
    marks = (*_BOS, cell.tokenizer.bos_token or _BOS[0])
    if not any(mark in row.text[:300] for mark in marks):
        return "none"
    effect = "an engine that adds its own sends two (VT at 128K moved by 17 points): switch add_special_tokens off"
    return Finding("written out", effect)


CELL_AUDITS: Checks = {"indices": indices, "prompts": prompts, "positions": positions}
ROW_AUDITS: Checks = {"predictions": prediction, "own scores": own_score}
TEXT_AUDITS: Checks = {
    "references": references,
    "demonstration": demonstration,
    "answer prefix": answer_prefix,
    "BOS text": bos_text,
}

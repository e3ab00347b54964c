"""Faults in files of data or predictions, whoever wrote them.

Each audit looks at all rows of one task at one length and says what it saw, in how many rows, where
first, and what that does to scores. It does not judge what a file does not say.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from pydantic import ConfigDict

from rulerkit.checks import FAIL, LEAST_FILL, NOTE, OK, Finding
from rulerkit.errors import UserError
from rulerkit.other_formats import DataRow, json_lines, read_rows
from rulerkit.scoring import clean, string_match_all, string_match_part
from rulerkit.store import load_cell
from rulerkit.tasks import TASKS, Task, family_of
from rulerkit.tokenizers import Tokenizer

MIN_ROWS = 8
"""Rows from which on places and layouts are compared with one another."""
_MOST_COUNTED = 60  # rows whose tokens are counted: half a second each at 128K
_POOR_FILL = 0.9
_SAME = 0.5  # share of rows with the needle at one place from which on that place is fixed
_BOS = (
    *("<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<BOS_TOKEN>"),
    "<｜begin▁of▁sentence｜>",
)
_NO_WORDS = ("yes", "no", "noanswer")  # answers that stand in no document


class Row(DataRow):
    """One example as a file describes it, with upstream's field names; None for what it omits."""

    model_config = ConfigDict(strict=True, extra="allow")

    line: int
    index: int | None = None
    input: str | None = None
    answer_prefix: str | None = None
    gen_prefix: str | None = None
    outputs: list[str] | None = None
    pred: str | None = None
    length: int | None = None
    """Prompt and answer in tokens, as the file counts them."""
    num_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    depths: list[float] | None = None

    @property
    def prefix(self) -> str:
        """The answer prefix where it is a field of its own."""
        return self.answer_prefix or self.gen_prefix or ""

    @property
    def text(self) -> str | None:
        """The prompt, where the file holds it."""
        return None if self.input is None else self.input + self.prefix

    @property
    def references(self) -> list[str]:
        return self.outputs or []

    @property
    def name(self) -> str:
        """How a reader of the file finds this row."""
        return f"line {self.line}" + (f", index {self.index}" if self.index is not None else "")


@dataclass(frozen=True)
class FileCell:
    """The rows of one task at one length in one file, and the tokenizer that counts them."""

    task: str
    length: int
    rows: list[Row]
    tokenizer: Tokenizer
    wanted: int | None = None
    protocol: str = "clean"

    @property
    def family(self) -> type[Task]:
        """The family, by the task's name."""
        return family_of(self.task)

    @cached_property
    def texts(self) -> list[tuple[Row, str]]:
        """The rows whose prompt is in the file."""
        return [(row, row.text) for row in self.rows if row.text is not None]

    @cached_property
    def counted(self) -> list[tuple[Row, int]]:
        """Rows, at most 60 spread evenly, with the tokens of prompt and answer together."""
        answer = (TASKS.get(self.task) or self.family(name=self.task)).answer_tokens
        counted = []
        for row in self.rows[:: max(1, -(-len(self.rows) // _MOST_COUNTED))]:
            tokens = row.num_prompt_tokens
            if row.text is not None:
                bos = self.tokenizer.bos_token or "\0"
                adds_bos = self.tokenizer.bos_id is not None and not row.text.startswith(bos)
                tokens = self.tokenizer.count(row.text) + adds_bos
            if tokens is not None:
                counted.append((row, tokens + (row.max_new_tokens or answer)))
        return counted


def read_file(
    path: Path, tokenizer: Tokenizer, task: str | None = None, length: int | None = None
) -> list[FileCell]:
    """The rows of a file of data or predictions, by nominal length; `task` and `length` where its
    name does not tell them.

    Raises UserError for a file that is no JSON lines, and where neither names nor arguments tell
    task and length.
    """
    if not path.is_file():
        raise UserError(f"no file {path}: give a file of JSON lines, data or predictions")
    if path.with_suffix(".json").is_file() and (cell := load_cell(path)):
        _ = cell.present  # raises where a row is damaged
        rows = [_our_row(line, row) for line, row in json_lines(path)]
        protocol = cell.record["result"].get("protocol", "clean")
        return [FileCell(cell.task, cell.length, rows, tokenizer, cell.wanted, protocol)]
    name, by_length = read_rows(path, task, length, Row)
    return [
        FileCell(name, budget, [Row(**row) for row in rows], tokenizer)
        for budget, rows in sorted(by_length.items())
    ]


def _our_row(line: int, row: dict[str, Any]) -> Row:
    """A row of our predictions, which hold no prompt."""
    return Row(
        line=line,
        index=row["index"],
        outputs=row["outputs"],
        pred=row["pred"],
        num_prompt_tokens=row["num_prompt_tokens"],
        max_new_tokens=row["length"] - row["num_prompt_tokens"],
        depths=row["depths"],
    )


def audit(cell: FileCell) -> list[Finding]:
    """All findings on the rows of one task at one length."""
    return [finding for check in AUDITS if (finding := check(cell))]


def _finding(
    name: str, what: str, bad: Sequence[Row], of: int, effect: str, level: str = FAIL
) -> Finding:
    """A finding on rows: how many of how many, and the first of them."""
    return Finding(level, name, f"{what} in {len(bad)} of {of} rows (first: {bad[0].name})", effect)


def _layout_finding(
    cell: FileCell, name: str, what: str, bad: list[Row], of: int, effect: str
) -> Finding:
    """A finding that the protocol `paper` causes by design."""
    if cell.protocol == "paper":
        effect = "by design: the protocol paper keeps one layout for all examples, as upstream does"
    level = NOTE if cell.protocol == "paper" else FAIL
    return _finding(name, what, bad, of, effect, level)


# --- rows -----------------------------------------------------------------------------------------


def indices(cell: FileCell) -> Finding | None:
    """Every example once."""
    count = Counter(row.index for row in cell.rows if row.index is not None)
    if not count:
        return None
    wanted = range(cell.wanted or max(count) + 1)
    if twice := [row for row in cell.rows if count[row.index or 0] > 1 and row.index is not None]:
        effect = "who keys rows by index drops or mixes examples (upstream's 2025 niah files do this): key by line"
        return _finding("indices", f"{len(count)} distinct indices", twice, len(cell.rows), effect)
    if missing := [index for index in wanted if index not in count]:
        seen = f"{len(missing)} of {len(wanted)} missing (first: {missing[0]})"
        return Finding(
            FAIL, "indices", seen, "the mean is over other examples than it says: answer them"
        )
    return Finding(OK, "indices", f"{len(count)}, each once")


def repeats(cell: FileCell) -> Finding | None:
    """No prompt twice."""
    first: dict[str, Row] = {}
    twice = [row for row, text in cell.texts if first.setdefault(text, row) is not row]
    if twice:
        effect = "fewer examples than rows: intervals are too narrow"
        return _finding("prompts", "the same prompt again", twice, len(cell.rows), effect)
    return Finding(OK, "prompts", f"{len(first)}, all different") if first else None


def predictions(cell: FileCell) -> Finding | None:
    """Answers are there, and are no copies of the prompt."""
    if not (answered := [row for row in cell.rows if row.pred is not None]):
        return None
    if echoed := [row for row in answered if row.input and row.input[:200] in (row.pred or "")]:
        effect = "echoes score 100: take the new text alone"
        return _finding("predictions", "the prompt itself", echoed, len(answered), effect)
    if empty := [row for row in answered if not (row.pred or "").strip()]:
        effect = "they score 0: were these refusals, time-outs or prompts that did not fit?"
        return _finding("predictions", "nothing", empty, len(answered), effect, NOTE)
    return Finding(OK, "predictions", f"{len(answered)}")


def own_scores(cell: FileCell) -> Finding | None:
    """Scores in the file agree with ours: question answering counts any reference, not the mean."""
    part = cell.family.match == "part"
    judge = string_match_part if part else string_match_all
    scored, off = 0, list[tuple[Row, float, float, float]]()
    for row in cell.rows:
        fields = row.model_extra or {}
        values = [fields.get(str(cell.length)), fields.get("score")]
        value = next((v for v in values if isinstance(v, int | float) and v >= 0), None)
        if value is not None and row.pred is not None:
            scored += 1
            text = clean(row.pred)
            if row.references and abs(value - (ours := judge(text, row.references))) > 1e-6:
                off.append((row, value, ours, string_match_all(text, row.references)))
    if not off:
        return Finding(OK, "own scores", f"{scored} as we score") if scored else None
    what, effect = "another score than ours", "do not compare them with others'"
    if part and all(abs(value - share) < 1e-6 for _, value, _, share in off):
        what, lost = "the mean over references", sum(ours - value for _, value, ours, _ in off)
        effect = f"the file's score is {100 * lost / scored:.1f} points too low: score it anew (`rulerkit score`)"
    return _finding("own scores", what, [row for row, *_ in off], scored, effect)


# --- length ---------------------------------------------------------------------------------------


def budget(cell: FileCell) -> Finding | None:
    """Prompt and answer stay within the length."""
    if not cell.counted:
        return None
    largest, most = max(cell.counted, key=lambda counted: counted[1])
    if over := [row for row, tokens in cell.counted if tokens > cell.length]:
        effect = f"up to {most - cell.length} tokens are cut, or the engine refuses them: generate with this tokenizer"
        return _finding(
            "budget", f"more than {cell.length} tokens", over, len(cell.counted), effect
        )
    return Finding(OK, "budget", f"at most {most} of {cell.length} tokens ({largest.name})")


def fill(cell: FileCell) -> Finding | None:
    """The length is filled."""
    if not cell.counted:
        return None
    low = [row for row, tokens in cell.counted if tokens / cell.length < LEAST_FILL]
    average = mean(tokens / cell.length for _, tokens in cell.counted)
    if not low:
        return Finding(OK, "fill", f"{100 * average:.1f} % on average")
    what = f"{100 * average:.1f} % filled on average, less than {100 * LEAST_FILL:.0f} %"
    effect = "a score says less about this length than its name"
    if average >= _POOR_FILL and cell.protocol != "paper":
        return _finding("fill", what, low, len(cell.counted), effect, NOTE)
    return _layout_finding(cell, "fill", what, low, len(cell.counted), effect)


def capped_list(cell: FileCell) -> Finding | None:
    """The list of common words goes on to the end of the length."""
    lists = [
        (row, words)
        for row, tokens in cell.counted
        if tokens < _POOR_FILL * cell.length
        and re.search(r"(^|\n)1\. ", row.text or "")
        and (words := cell.family.listed_words(row.text or ""))
    ]
    if not lists:
        return None
    what = f"a list that ends early ({max(len(words) for _, words in lists)} entries)"
    effect = "longer lengths are no harder: this list stopped growing"
    return _finding("capped list", what, [row for row, _ in lists], len(cell.counted), effect)


def file_count(cell: FileCell) -> Finding | None:
    """The file's own token counts are those of this tokenizer."""
    counts = [
        (row, tokens, row.length)
        for row, tokens in cell.counted
        if row.length and row.text is not None
    ]
    if off := [
        row for row, tokens, length in counts if abs(tokens - length) > max(3, tokens / 100)
    ]:
        effect = (
            "it was made for another tokenizer or template: lengths are not what their names say"
        )
        what = f"not those of {cell.tokenizer.name}"
        return _finding("token counts", what, off, len(counts), effect, NOTE)
    return Finding(OK, "token counts", "the file's are this tokenizer's") if counts else None


# --- what is asked --------------------------------------------------------------------------------


def references(cell: FileCell) -> Finding | None:
    """What is asked for stands in the context."""
    part = cell.family.match == "part"
    bad = []
    for row, text in cell.texts:
        wanted, low = [reference.lower() for reference in row.references], text.lower()
        found = [reference in low for reference in wanted]
        if part and any(reference in _NO_WORDS for reference in wanted):
            continue
        if not (any(found) if part else found and all(found)):
            bad.append(row)
    if bad:
        effect = "nobody can find them: these rows score 0, or reward what a model knew before"
        level = NOTE if part else FAIL
        return _finding("references", "not in the context", bad, len(cell.texts), effect, level)
    return Finding(OK, "references", "all in the context") if cell.texts else None


def demonstration(cell: FileCell) -> Finding | None:
    """Variable tracking and common words come with a solved example."""
    opening = cell.family.demonstration_opening.strip()
    if not opening or not cell.texts:
        return None
    if bare := [row for row, text in cell.texts if text.count(opening) < 2]:
        effect = "base models score far lower without one: compare with nobody's numbers"
        return _finding("demonstration", "none", bare, len(cell.texts), effect)
    return Finding(OK, "demonstration", "in every row")


_PREFIX_FAULTS = {
    "no answer prefix at the end": (FAIL, "chat models then explain and are cut: scores fall"),
    "the answer prefix twice": (
        FAIL,
        "whoever adds `answer_prefix` to `input` repeats it: drop one",
    ),
    "the answer prefix without its blank": (NOTE, "the first token of the answer is another one"),
}


def prefix(cell: FileCell) -> Finding | None:
    """The answer prefix ends the prompt, once, with its blanks."""
    bad: dict[str, list[Row]] = {fault: [] for fault in _PREFIX_FAULTS}
    lost, twice, stripped = bad.values()
    for row, text in cell.texts:
        closing = text[-cell.family.answer_prefix_within :].rpartition("?")[2]
        found = list(re.finditer(cell.family.answer_prefix_form, closing))
        if not found:
            lost.append(row)
        elif len(found) > 1:
            twice.append(row)
        elif (row.prefix and row.prefix[0] != " ") or "" in found[0].groups():
            stripped.append(row)
    for fault, rows in bad.items():
        if rows:
            level, effect = _PREFIX_FAULTS[fault]
            return _finding("answer prefix", fault, rows, len(cell.texts), effect, level)
    return Finding(OK, "answer prefix", "at the end, once") if cell.texts else None


def bos_text(cell: FileCell) -> Finding | None:
    """No beginning-of-sequence token stands in the text, where an engine adds one."""
    marks = {*_BOS, cell.tokenizer.bos_token or _BOS[0]}
    if bad := [row for row, text in cell.texts if any(mark in text[:300] for mark in marks)]:
        effect = "an engine that adds its own sends two (VT at 128K moved by 17 points): switch add_special_tokens off"
        return _finding("BOS text", "a BOS written out", bad, len(cell.texts), effect)
    return Finding(OK, "BOS text", "none") if cell.texts else None


# --- layout ---------------------------------------------------------------------------------------


def positions(cell: FileCell) -> Finding | None:
    """The answer stands somewhere else in every example."""
    places = list(_places(cell))
    if len(places) < MIN_ROWS:
        return None
    values = [value for _, value, _ in places]
    (usual, name), count = Counter((value, name) for _, value, name in places).most_common(1)[0]
    if count > _SAME * len(places) or pstdev(values) < 1:
        effect = "a model that only reads there scores as well: shuffle per example"
        same = [row for row, value, _ in places if value == usual]
        return _layout_finding(
            cell, "positions", f"the answer at {name}", same, len(places), effect
        )
    return Finding(OK, "positions", f"{len(set(values))} places in {len(places)} rows")


def _places(cell: FileCell) -> Iterator[tuple[Row, float, str]]:
    """Where the answers stand, by the family's rule; in our predictions, which hold no prompt, the
    depth of the needle."""
    for row in cell.rows:
        if row.text is not None:
            if place := cell.family.place(row.text, tuple(row.references)):
                yield row, *place
        elif row.depths and cell.family.place is Task.place:
            yield row, round(row.depths[0]), f"{row.depths[0]:.0f} % of the context"


def layouts(cell: FileCell) -> Finding | None:
    """Lists are shuffled anew in every example."""
    listed = [(row, cell.family.listed_words(text)) for row, text in cell.texts]
    patterns = [(row, _layout(words)) for row, words in listed if words is not None]
    if len(patterns) < MIN_ROWS:
        return None
    count = Counter(pattern for _, pattern in patterns)
    if len(count) > len(patterns) / 2:
        return Finding(OK, "layouts", f"{len(count)} in {len(patterns)} rows")
    again = [row for row, pattern in patterns if count[pattern] > 1]
    effect = (
        "the same order again and again: so many rows are one example, and intervals are too narrow"
    )
    what = f"only {len(count)} orders of words"
    return _layout_finding(cell, "layouts", what, again, len(patterns), effect)


def _layout(words: list[str]) -> tuple[int, ...]:
    """The order of a list whatever its words are: for each entry when its word first came."""
    first: dict[str, int] = {}
    return tuple(first.setdefault(word, len(first)) for word in words[:400])


AUDITS: tuple[Callable[[FileCell], Finding | None], ...] = (
    indices,
    repeats,
    budget,
    fill,
    capped_list,
    file_count,
    references,
    demonstration,
    prefix,
    bos_text,
    positions,
    layouts,
    predictions,
    own_scores,
)

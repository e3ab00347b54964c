"""Faults in files of data or predictions, whoever wrote them.

Each audit looks at all rows of one task at one length and says what it saw, in how many rows, where
first, and what that does to scores. It does not judge what a file does not say.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from pydantic import ConfigDict

from rulerkit.checks import FAIL, LEAST_FILL, NOTE, Finding, Seen, named
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
    return [named(name, seen) for name, check in AUDITS.items() if (seen := check(cell))]


def _judged(
    rows: Iterable[tuple[Row, bool]], what: str, effect: str, fine: str = "", level: str = FAIL
) -> Seen:
    """A finding on the rows that are wrong: how many of how many, and the first of them. Where none
    is wrong, what is fine; None without rows."""
    rows = list(rows)
    if wrong := [row for row, is_wrong in rows if is_wrong]:
        seen = f"{what} in {len(wrong)} of {len(rows)} rows (first: {wrong[0].name})"
        return Finding(seen, effect, level)
    return fine if rows else None


def _judged_layout(
    cell: FileCell, rows: Iterable[tuple[Row, bool]], what: str, effect: str, fine: str = ""
) -> Seen:
    """As `_judged`, where the protocol `paper` is the cause by design."""
    if cell.protocol != "paper":
        return _judged(rows, what, effect, fine)
    effect = "by design: the protocol paper keeps one layout for all examples, as upstream does"
    return _judged(rows, what, effect, fine, NOTE)


# --- rows -----------------------------------------------------------------------------------------


def indices(cell: FileCell) -> Seen:
    """Every example once."""
    count = Counter(row.index for row in cell.rows if row.index is not None)
    if not count:
        return None
    repeated = [(row, row.index is not None and count[row.index] > 1) for row in cell.rows]
    effect = "who keys rows by index drops or mixes examples (upstream's 2025 niah files do this): key by line"
    if twice := _judged(repeated, f"{len(count)} distinct indices", effect):
        return twice
    wanted = range(cell.wanted or max(count) + 1)
    if missing := [index for index in wanted if index not in count]:
        seen = f"{len(missing)} of {len(wanted)} missing (first: {missing[0]})"
        return Finding(seen, "the mean is over other examples than it says: answer them")
    return f"{len(count)}, each once"


def repeats(cell: FileCell) -> Seen:
    """No prompt twice."""
    first: dict[str, Row] = {}
    repeated = [(row, first.setdefault(text, row) is not row) for row, text in cell.texts]
    effect = "fewer examples than rows: intervals are too narrow"
    return _judged(repeated, "the same prompt again", effect, f"{len(first)}, all different")


def predictions(cell: FileCell) -> Seen:
    """Answers are there, and are no copies of the prompt."""
    answered = [(row, row.pred) for row in cell.rows if row.pred is not None]
    echoed = [(row, bool(row.input and row.input[:200] in pred)) for row, pred in answered]
    empty = [(row, not pred.strip()) for row, pred in answered]
    effect = "they score 0: were these refusals, time-outs or prompts that did not fit?"
    return _judged(
        echoed, "the prompt itself", "echoes score 100: take the new text alone"
    ) or _judged(empty, "nothing", effect, f"{len(answered)}", NOTE)


def own_scores(cell: FileCell) -> Seen:
    """Scores in the file agree with ours: question answering counts any reference, not the mean."""
    part = cell.family.match == "part"
    judge = string_match_part if part else string_match_all
    scored, off = list[tuple[Row, bool]](), list[tuple[float, float, float]]()
    for row in cell.rows:
        fields = row.model_extra or {}
        values = [fields.get(str(cell.length)), fields.get("score")]
        value = next((v for v in values if isinstance(v, int | float) and v >= 0), None)
        if value is not None and row.pred is not None:
            text, references = clean(row.pred), row.references
            ours = judge(text, references) if references else value
            scored.append((row, abs(value - ours) > 1e-6))
            if scored[-1][1]:
                off.append((value, ours, string_match_all(text, references)))
    what, effect = "another score than ours", "do not compare them with others'"
    if off and part and all(abs(value - share) < 1e-6 for value, _, share in off):
        what, lost = "the mean over references", sum(ours - value for value, ours, _ in off)
        effect = f"the file's score is {100 * lost / len(scored):.1f} points too low: score it anew (`rulerkit score`)"
    return _judged(scored, what, effect, f"{len(scored)} as we score")


# --- length ---------------------------------------------------------------------------------------


def budget(cell: FileCell) -> Seen:
    """Prompt and answer stay within the length."""
    if not cell.counted:
        return None
    largest, most = max(cell.counted, key=lambda counted: counted[1])
    return _judged(
        [(row, tokens > cell.length) for row, tokens in cell.counted],
        f"more than {cell.length} tokens",
        f"up to {most - cell.length} tokens are cut, or the engine refuses them: generate with this tokenizer",
        f"at most {most} of {cell.length} tokens ({largest.name})",
    )


def fill(cell: FileCell) -> Seen:
    """The length is filled."""
    if not cell.counted:
        return None
    low = [(row, tokens / cell.length < LEAST_FILL) for row, tokens in cell.counted]
    average = mean(tokens / cell.length for _, tokens in cell.counted)
    what = f"{100 * average:.1f} % filled on average, less than {100 * LEAST_FILL:.0f} %"
    effect = "a score says less about this length than its name"
    fine = f"{100 * average:.1f} % on average"
    if average >= _POOR_FILL and cell.protocol != "paper":
        return _judged(low, what, effect, fine, NOTE)
    return _judged_layout(cell, low, what, effect, fine)


def capped_list(cell: FileCell) -> Seen:
    """The list of common words goes on to the end of the length."""
    lists = []
    for row, tokens in cell.counted:
        text, short = row.text or "", tokens < _POOR_FILL * cell.length
        numbered = short and re.search(r"(^|\n)1\. ", text)
        lists.append((row, numbered and cell.family.listed_words(text)))
    longest = max((len(words) for _, words in lists if words), default=0)
    what = f"a list that ends early ({longest} entries)"
    effect = "longer lengths are no harder: this list stopped growing"
    return _judged([(row, bool(words)) for row, words in lists], what, effect)


def file_count(cell: FileCell) -> Seen:
    """The file's own token counts are those of this tokenizer."""
    return _judged(
        [
            (row, abs(tokens - row.length) > max(3, tokens / 100))
            for row, tokens in cell.counted
            if row.length and row.text is not None
        ],
        f"not those of {cell.tokenizer.name}",
        "it was made for another tokenizer or template: lengths are not what their names say",
        "the file's are this tokenizer's",
        NOTE,
    )


# --- what is asked --------------------------------------------------------------------------------


def references(cell: FileCell) -> Seen:
    """What is asked for stands in the context."""
    part = cell.family.match == "part"
    absent = []
    for row, text in cell.texts:
        wanted, low = [reference.lower() for reference in row.references], text.lower()
        stands = [reference in low for reference in wanted]
        known = any(stands) or bool(set(_NO_WORDS) & set(wanted))
        absent.append((row, not (known if part else stands and all(stands))))
    effect = "nobody can find them: these rows score 0, or reward what a model knew before"
    level = NOTE if part else FAIL
    return _judged(absent, "not in the context", effect, "all in the context", level)


def demonstration(cell: FileCell) -> Seen:
    """Variable tracking and common words come with a solved example."""
    if not (opening := cell.family.demonstration_opening.strip()):
        return None
    bare = [(row, text.count(opening) < 2) for row, text in cell.texts]
    effect = "base models score far lower without one: compare with nobody's numbers"
    return _judged(bare, "none", effect, "in every row")


def prefix(cell: FileCell) -> Seen:
    """The answer prefix ends the prompt, once, with its blanks."""
    form, within = cell.family.answer_prefix_form, cell.family.answer_prefix_within
    ends = [
        (row, list(re.finditer(form, text[-within:].rpartition("?")[2])))
        for row, text in cell.texts
    ]
    lost = [(row, not matches) for row, matches in ends]
    twice = [(row, len(matches) > 1) for row, matches in ends]
    stripped = [
        (row, len(m) == 1 and (row.prefix[:1] not in ("", " ") or "" in m[0].groups()))
        for row, m in ends
    ]
    return (
        _judged(
            lost,
            "no answer prefix at the end",
            "chat models then explain and are cut: scores fall",
        )
        or _judged(
            twice,
            "the answer prefix twice",
            "whoever adds `answer_prefix` to `input` repeats it: drop one",
        )
        or _judged(
            stripped,
            "the answer prefix without its blank",
            "the first token of the answer is another one",
            "at the end, once",
            NOTE,
        )
    )


def bos_text(cell: FileCell) -> Seen:
    """No beginning-of-sequence token stands in the text, where an engine adds one."""
    marks = {*_BOS, cell.tokenizer.bos_token or _BOS[0]}
    written = [(row, any(mark in text[:300] for mark in marks)) for row, text in cell.texts]
    effect = "an engine that adds its own sends two (VT at 128K moved by 17 points): switch add_special_tokens off"
    return _judged(written, "a BOS written out", effect, "none")


# --- layout ---------------------------------------------------------------------------------------


def positions(cell: FileCell) -> Seen:
    """The answer stands somewhere else in every example."""
    places = list(_places(cell))
    if len(places) < MIN_ROWS:
        return None
    values = [value for _, value, _ in places]
    (usual, name), count = Counter((value, name) for _, value, name in places).most_common(1)[0]
    if count > _SAME * len(places) or pstdev(values) < 1:
        same = [(row, value == usual) for row, value, _ in places]
        effect = "a model that only reads there scores as well: shuffle per example"
        return _judged_layout(cell, same, f"the answer at {name}", effect)
    return f"{len(set(values))} places in {len(places)} rows"


def _places(cell: FileCell) -> Iterator[tuple[Row, float, str]]:
    """Where the answers stand, by the family's rule; in our predictions, which hold no prompt, the
    depth of the needle."""
    for row in cell.rows:
        if row.text is not None:
            if place := cell.family.place(row.text, tuple(row.references)):
                yield row, *place
        elif row.depths and cell.family.place is Task.place:
            yield row, round(row.depths[0]), f"{row.depths[0]:.0f} % of the context"


def layouts(cell: FileCell) -> Seen:
    """Lists are shuffled anew in every example."""
    lists = [(row, cell.family.listed_words(text)) for row, text in cell.texts]
    patterns = [(row, _layout(words)) for row, words in lists if words is not None]
    if len(patterns) < MIN_ROWS:
        return None
    count = Counter(pattern for _, pattern in patterns)
    if len(count) > len(patterns) / 2:
        return f"{len(count)} in {len(patterns)} rows"
    again = [(row, count[pattern] > 1) for row, pattern in patterns]
    effect = (
        "the same order again and again: so many rows are one example, and intervals are too narrow"
    )
    return _judged_layout(cell, again, f"only {len(count)} orders of words", effect)


def _layout(words: list[str]) -> tuple[int, ...]:
    """The order of a list whatever its words are: for each entry when its word first came."""
    first: dict[str, int] = {}
    return tuple(first.setdefault(word, len(first)) for word in words[:400])


AUDITS: dict[str, Callable[[FileCell], Seen]] = {
    "indices": indices,
    "prompts": repeats,
    "budget": budget,
    "fill": fill,
    "capped list": capped_list,
    "token counts": file_count,
    "references": references,
    "demonstration": demonstration,
    "answer prefix": prefix,
    "BOS text": bos_text,
    "positions": positions,
    "layouts": layouts,
    "predictions": predictions,
    "own scores": own_scores,
}
"""Name -> audit, in the order in which they are printed."""

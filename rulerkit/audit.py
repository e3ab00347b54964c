"""Rows of data and predictions, whoever wrote them, as the audit looks at them: what each file
tells, nothing added."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

from rulerkit.checks import FAIL, LEAST_FILL, NOTE, OK, Finding
from rulerkit.errors import UserError
from rulerkit.other_formats import json_lines, told_length
from rulerkit.scoring import clean, string_match_all, string_match_part, task_name
from rulerkit.store import load_cell
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


MIN_ROWS = 8
"""Rows from which on places and layouts are compared with one another."""
_POOR_FILL = 0.9
_SAME = 0.5  # share of rows with the needle at one place from which on that place is fixed
_BOS = (
    "<s>",
    "<bos>",
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<BOS_TOKEN>",
    "<｜begin▁of▁sentence｜>",
)
_NO_WORDS = ("yes", "no", "noanswer")  # answers that stand in no document


def audit_file(
    path: Path, tokenizer: Tokenizer, task: str | None = None, length: int | None = None
) -> list[Finding]:
    """The findings on a file of data or predictions; `task` and `length` where its name does not
    tell them."""
    return [finding for cell in read_rows(path, tokenizer, task, length) for finding in audit(cell)]


def audit(cell: Audited) -> list[Finding]:
    """All findings on the rows of one task at one length."""
    found = [look(cell) for look in AUDITS]
    return [finding for finding in found if finding]


def _finding(
    name: str, what: str, bad: Sequence[Row], of: int, effect: str, level: str = FAIL
) -> Finding:
    """A finding on rows: how many of how many, and the first of them."""
    return Finding(level, name, f"{what} in {len(bad)} of {of} rows (first: {bad[0].name})", effect)


# --- rows -----------------------------------------------------------------------------------------


def indices(cell: Audited) -> Finding | None:
    """Every example once."""
    told = [row for row in cell.rows if row.index is not None]
    if not told:
        return None
    count = Counter(row.index for row in told)
    wanted = range(cell.wanted or max(i for i in count if i is not None) + 1)
    twice = [row for row in told if count[row.index] > 1]
    missing = [i for i in wanted if i not in count]
    if twice:
        effect = "who keys rows by index drops or mixes examples (upstream's 2025 niah files do this): key by line"
        return _finding("indices", f"{len(count)} distinct indices", twice, len(cell.rows), effect)
    if missing:
        seen = f"{len(missing)} of {len(wanted)} missing (first: {missing[0]})"
        return Finding(
            FAIL, "indices", seen, "the mean is over other examples than it says: answer them"
        )
    return Finding(OK, "indices", f"{len(told)}, each once")


def repeats(cell: Audited) -> Finding | None:
    """No prompt twice."""
    first: dict[str, Row] = {}
    twice = [row for row, text in cell.texts if first.setdefault(text, row) is not row]
    if not twice:
        return Finding(OK, "prompts", f"{len(first)}, all different") if first else None
    return _finding(
        "prompts",
        "the same prompt again",
        twice,
        len(cell.rows),
        "fewer examples than rows: intervals lie",
    )


def predictions(cell: Audited) -> Finding | None:
    """Answers are there, and are no copies of the prompt."""
    if not (told := [row for row in cell.rows if row.prediction is not None]):
        return None
    echoed = [r for r in told if r.input and r.prediction and r.input[:200] in r.prediction]
    if echoed:
        return _finding(
            "predictions",
            "the prompt itself",
            echoed,
            len(told),
            "echoes score 100: take the new text alone",
        )
    if silent := [row for row in told if not (row.prediction or "").strip()]:
        effect = "they score 0: were these refusals, time-outs or prompts that did not fit?"
        return _finding("predictions", "nothing", silent, len(told), effect, NOTE)
    return Finding(OK, "predictions", f"{len(told)}")


def own_scores(cell: Audited) -> Finding | None:
    """Question answering is scored by any reference, not by the mean over them; scores in the file
    agree with ours."""
    told = [
        (r, r.score, clean(r.prediction))
        for r in cell.rows
        if r.score is not None and r.prediction is not None
    ]
    if not told:
        return None
    right = string_match_part if cell.family.match == "part" else string_match_all
    off = [
        (row, s, said)
        for row, s, said in told
        if row.references and abs(s - right(said, row.references)) > 1e-6
    ]
    if not off:
        return Finding(OK, "own scores", f"{len(told)} as we score")
    rows = [row for row, _, _ in off]
    averaged = all(abs(s - string_match_all(said, row.references)) < 1e-6 for row, s, said in off)
    if cell.family.match == "part" and averaged:
        lost = sum(right(said, row.references) - s for row, s, said in off) / len(told)
        effect = (
            f"the file's score is {100 * lost:.1f} points too low: score it anew (`rulerkit score`)"
        )
        return _finding("own scores", "the mean over references", rows, len(told), effect)
    return _finding(
        "own scores", "another score than ours", rows, len(told), "do not compare them with others'"
    )


# --- room -----------------------------------------------------------------------------------------


def budget(cell: Audited) -> Finding | None:
    """Prompt and answer stay within the length."""
    if not cell.counted:
        return None
    largest, most = max(cell.counted, key=lambda counted: counted[1])
    over = [row for row, tokens in cell.counted if tokens > cell.length]
    if over:
        effect = f"up to {most - cell.length} tokens are cut, or the engine refuses them: generate with this tokenizer"
        return _finding(
            "budget", f"more than {cell.length} tokens", over, len(cell.counted), effect
        )
    return Finding(OK, "budget", f"at most {most} of {cell.length} tokens ({largest.name})")


def fill(cell: Audited) -> Finding | None:
    """The length is filled."""
    if not cell.counted:
        return None
    shares = [tokens / cell.length for _, tokens in cell.counted]
    low = [row for (row, _), share in zip(cell.counted, shares, strict=True) if share < LEAST_FILL]
    if not low:
        return Finding(OK, "fill", f"{100 * mean(shares):.1f} % on average")
    level = FAIL if mean(shares) < _POOR_FILL else NOTE
    what = f"{100 * mean(shares):.1f} % filled on average, less than {100 * LEAST_FILL:.0f} %"
    return _finding(
        "fill", what, low, len(shares), "a score says less about this length than its name", level
    )


def capped_list(cell: Audited) -> Finding | None:
    """The list of common words goes on to the end of the length."""
    short = [
        row
        for row, tokens in cell.counted
        if tokens < _POOR_FILL * cell.length and _is_numbered(cell, row.text)
    ]
    if not short:
        return None
    entries = max(len(cell.family.listed_words(row.text or "") or ()) for row in short)
    effect = "longer lengths are no harder: this list stopped growing"
    return _finding(
        "capped list",
        f"a list that ends early ({entries} entries)",
        short,
        len(cell.counted),
        effect,
    )


def _is_numbered(cell: Audited, text: str | None) -> bool:
    return bool(text and cell.family.listed_words(text) and re.search(r"(^|\n)1\. ", text))


def file_count(cell: Audited) -> Finding | None:
    """The file's own token counts are those of this tokenizer."""
    told = [
        (row, tokens, row.length)
        for row, tokens in cell.counted
        if row.length and row.text is not None
    ]
    off = [row for row, tokens, length in told if abs(tokens - length) > max(3, 0.01 * tokens)]
    if not told:
        return None
    if not off:
        return Finding(OK, "token counts", "the file's are this tokenizer's")
    effect = "it was made for another tokenizer or template: lengths are not what they are called"
    return _finding(
        "token counts", f"not those of {cell.tokenizer.name}", off, len(told), effect, NOTE
    )


# --- what is asked --------------------------------------------------------------------------------


def references(cell: Audited) -> Finding | None:
    """What is asked for stands in the context."""
    part = cell.family.match == "part"
    bad = []
    for row, text in cell.texts:
        low = text.lower()
        there = [ref.lower() in low for ref in row.references]
        plain = part and any(ref.lower() in _NO_WORDS for ref in row.references)
        if not plain and not (any(there) if part else all(there) and there):
            bad.append(row)
    if not cell.texts:
        return None
    if bad:
        effect = "nobody can find them: these rows score 0, or reward what a model knew before"
        return _finding(
            "references", "not in the context", bad, len(cell.texts), effect, NOTE if part else FAIL
        )
    return Finding(OK, "references", "all in the context")


def demonstration(cell: Audited) -> Finding | None:
    """Variable tracking and common words come with a solved example."""
    opening = cell.family.demonstration_opening.strip()
    if not opening or not cell.texts:
        return None
    if bare := [row for row, text in cell.texts if text.count(opening) < 2]:
        effect = "base models score far lower without one: compare with nobody's numbers"
        return _finding("demonstration", "none", bare, len(cell.texts), effect)
    return Finding(OK, "demonstration", "in every row")


def prefix(cell: Audited) -> Finding | None:
    """The answer prefix ends the prompt, once, with its blanks."""
    lost, twice, stripped = [], [], []
    for row, text in cell.texts:
        closing = text[-cell.family.answer_prefix_within :].rpartition("?")[2]
        prefixes = list(re.finditer(cell.family.answer_prefix_form, closing))
        if not prefixes:
            lost.append(row)
        elif len(prefixes) > 1:
            twice.append(row)
        elif (row.prefix and row.prefix[0] != " ") or "" in prefixes[0].groups():
            stripped.append(row)
    for rows, what, effect, level in (
        (
            lost,
            "no answer prefix at the end",
            "chat models then explain and are cut: scores fall",
            FAIL,
        ),
        (
            twice,
            "the answer prefix twice",
            "whoever adds `answer_prefix` to `input` repeats it: drop one",
            FAIL,
        ),
        (
            stripped,
            "the answer prefix without its blank",
            "the first token of the answer is another one",
            NOTE,
        ),
    ):
        if rows:
            return _finding("answer prefix", what, rows, len(cell.texts), effect, level)
    return Finding(OK, "answer prefix", "at the end, once") if cell.texts else None


def bos_text(cell: Audited) -> Finding | None:
    """No beginning-of-sequence token stands in the text, where an engine adds one."""
    marks = {*_BOS, cell.tokenizer.bos_token} - {None}
    bad = [row for row, text in cell.texts if any(str(mark) in text[:300] for mark in marks)]
    if not bad:
        return Finding(OK, "BOS text", "none") if cell.texts else None
    effect = "an engine that adds its own sends two (VT at 128K moved by 17 points): switch add_special_tokens off"
    return _finding("BOS text", "a BOS written out", bad, len(cell.texts), effect)


# --- how it is laid out ---------------------------------------------------------------------------


def positions(cell: Audited) -> Finding | None:
    """The answer stands somewhere else in every example."""
    places = [(row, place) for row in cell.rows if (place := _place(cell, row)) is not None]
    if len(places) < MIN_ROWS:
        return None
    values = [value for _, (value, _) in places]
    (usual, name), count = Counter(place for _, place in places).most_common(1)[0]
    same = [row for row, (value, _) in places if value == usual]
    if count > _SAME * len(places) or pstdev(values) < 1:
        effect = "a model that only reads there scores as well: shuffle per example"
        return _finding("positions", f"the answer at {name}", same, len(places), effect)
    return Finding(OK, "positions", f"{len(set(values))} places in {len(places)} rows")


def _place(cell: Audited, row: Row) -> tuple[float, str] | None:
    """Where the answer stands, as its family tells it; in our predictions, which hold no prompt,
    the depth of a needle."""
    if row.text is not None:
        return cell.family.place(row.text, row.references)
    if row.depth is None or cell.family.place is not Task.place:
        return None
    return round(row.depth), f"{row.depth:.0f} % of the context"


def layouts(cell: Audited) -> Finding | None:
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
    return _finding("layouts", f"only {len(count)} orders of words", again, len(patterns), effect)


def _layout(words: list[str]) -> tuple[int, ...]:
    """The order of a list whatever its words are: for each entry when its word first came."""
    first: dict[str, int] = {}
    return tuple(first.setdefault(word, len(first)) for word in words[:400])


AUDITS: tuple[Callable[[Audited], Finding | None], ...] = (
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

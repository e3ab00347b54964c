"""Faults in files of data or predictions, whoever wrote them.

Each audit looks at all rows of one task at one length and says what it saw, in how many rows, where
first, and what that does to scores. It does not judge what a file does not say.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ConfigDict

from rulerkit.checks import FAIL, LEAST_FILL, NOTE, Finding, Seen, named
from rulerkit.errors import UserError
from rulerkit.other_formats import DataRow, json_lines, read_rows
from rulerkit.scoring import clean, string_match_all, string_match_part
from rulerkit.settings import JSON
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
_NO_WORDS = {"yes", "no", "noanswer"}  # answers that stand in no document


class Row(DataRow):
    """One example as a file describes it, with upstream's field names; None for what it omits.
    `length` is that of prompt and answer in tokens, as the file counts them."""

    model_config = ConfigDict(strict=True, extra="allow")

    index: int | None = None
    input: str | None = None
    answer_prefix: str | None = None
    gen_prefix: str | None = None
    outputs: list[str] | None = None
    pred: str | None = None
    length: int | None = None
    num_prompt_tokens: int | None = None
    max_new_tokens: int | None = None
    depths: list[float] | None = None


@dataclass(frozen=True)
class FileCell:
    """The rows of one task at one length in one file, and the tokenizer that counts them.

    `rows` has the fields of `Row`, `prefix` (the answer prefix where it is a field of its own),
    `text` (the prompt, where the file holds it) and `references`; its index says how a reader of
    the file finds a row.
    """

    task: str
    length: int
    rows: "pd.DataFrame"
    tokenizer: Tokenizer
    wanted: int | None = None
    protocol: str = "clean"

    @property
    def family(self) -> type[Task]:
        """The family, by the task's name."""
        return family_of(self.task)

    @cached_property
    def texts(self) -> "pd.DataFrame":
        """The rows whose prompt is in the file."""
        return self.rows.dropna(subset="text")

    @cached_property
    def counted(self) -> "pd.Series[int]":
        """The tokens of prompt and answer together, of at most 60 rows spread evenly."""
        rows = self.rows[:: max(1, -(-len(self.rows) // _MOST_COUNTED))]
        tokenizer = self.tokenizer
        bos = "" if tokenizer.bos_id is None else tokenizer.bos_token or "\0"
        tokens = [
            known if text is None else tokenizer.count(text) + (not text.startswith(bos))
            for known, text in rows[["num_prompt_tokens", "text"]].itertuples(index=False)
        ]
        answer = (TASKS.get(self.task) or self.family(name=self.task)).answer_tokens
        answers = rows["max_new_tokens"].astype(float).fillna(answer)
        return pd.Series(tokens, rows.index, float).add(answers).dropna().astype(int)


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
        rows = [row | {"line": line} for line, row in json_lines(path)]
        for row in rows:  # `length` counts the answer as long as it may be
            row["max_new_tokens"] = row.pop("length") - row["num_prompt_tokens"]
        protocol = cell.record["result"].get("protocol", "clean")
        return [FileCell(cell.task, cell.length, _table(rows), tokenizer, cell.wanted, protocol)]
    name, by_length = read_rows(path, task, length, Row)
    return [
        FileCell(name, budget, _table(rows), tokenizer)
        for budget, rows in sorted(by_length.items())
    ]


def _table(rows: list[JSON]) -> "pd.DataFrame":
    records, names = [], []
    for given in rows:
        row = dict.fromkeys(Row.model_fields) | given
        prefix, text = row["answer_prefix"] or row["gen_prefix"] or "", row["input"]
        shown = {"prefix": prefix, "text": None if text is None else text + prefix}
        records.append(row | shown | {"references": row["outputs"] or []})
        number = "" if row["index"] is None else f", index {row['index']}"
        names.append(f"line {row['line']}{number}")
    return pd.DataFrame(records, names, dtype=object)


def audit(cell: FileCell) -> list[Finding]:
    """All findings on the rows of one task at one length."""
    return [named(name, seen) for name, check in AUDITS.items() if (seen := check(cell))]


def _judged(
    rows: Any, wrong: Iterable[bool], what: str, effect: str, fine: str = "", level: str = FAIL
) -> Seen:
    """A finding on the rows that are wrong: how many of how many, and the first of them. Where none
    is wrong, what is fine; None without rows."""
    flags = pd.Series(list(wrong), rows.index, dtype=bool)
    if flags.any():
        seen = f"{what} in {flags.sum()} of {len(flags)} rows (first: {flags.idxmax()})"
        return Finding(seen, effect, level)
    return fine if len(flags) else None


def _judged_layout(
    cell: FileCell, rows: Any, wrong: Iterable[bool], what: str, effect: str, fine: str = ""
) -> Seen:
    """As `_judged`, where the protocol `paper` is the cause by design."""
    if cell.protocol != "paper":
        return _judged(rows, wrong, what, effect, fine)
    effect = "by design: the protocol paper keeps one layout for all examples, as upstream does"
    return _judged(rows, wrong, what, effect, fine, NOTE)


# --- rows -----------------------------------------------------------------------------------------


def indices(cell: FileCell) -> Seen:
    """Every example once."""
    index = cell.rows["index"]
    count, repeated = index.nunique(), index.notna() & index.duplicated(keep=False)
    if not count:
        return None
    wanted = range(cell.wanted or max(index.dropna()) + 1)
    if (missing := sorted({*wanted} - {*index})) and not repeated.any():
        seen = f"{len(missing)} of {len(wanted)} missing (first: {missing[0]})"
        return Finding(seen, "the mean is over other examples than it says: answer them")
    effect = "who keys rows by index drops or mixes examples (upstream's 2025 niah files do this): key by line"
    return _judged(index, repeated, f"{count} distinct indices", effect, f"{count}, each once")


def repeats(cell: FileCell) -> Seen:
    """No prompt twice."""
    texts, what = cell.texts["text"], "the same prompt again"
    effect, fine = (
        "fewer examples than rows: intervals are too narrow",
        f"{texts.nunique()}, all different",
    )
    return _judged(texts, texts.duplicated(), what, effect, fine)


def predictions(cell: FileCell) -> Seen:
    """Answers are there, and are no copies of the prompt."""
    rows = cell.rows.dropna(subset="pred")
    echoed = (
        bool(text) and text[:200] in pred
        for text, pred in zip(rows["input"], rows["pred"], strict=True)
    )
    empty = (not pred.strip() for pred in rows["pred"])
    effect = "they score 0: were these refusals, time-outs or prompts that did not fit?"
    copied = _judged(rows, echoed, "the prompt itself", "echoes score 100: take the new text alone")
    return copied or _judged(rows, empty, "nothing", effect, f"{len(rows)}", NOTE)


def own_scores(cell: FileCell) -> Seen:
    """Scores in the file agree with ours: question answering counts any reference, not the mean."""
    part, seen = cell.family.match == "part", {}
    for name, row in cell.rows.dropna(subset="pred").iterrows():
        values = row.get(str(cell.length)), row.get("score")
        value = next((v for v in values if isinstance(v, int | float) and v >= 0), None)
        if value is not None:
            text, wanted = clean(row["pred"]), row["references"] or [""]
            share = string_match_all(text, wanted)
            seen[name] = value, string_match_part(text, wanted) if part else share, share
    scores = pd.DataFrame.from_dict(seen, "index", columns=["file", "ours", "share"], dtype=float)
    lost = scores["ours"] - scores["file"]
    wrong = lost.abs() > 1e-6
    what, effect = "another score than ours", "do not compare them with others'"
    if part and wrong.any() and ((scores["file"] - scores["share"])[wrong].abs() < 1e-6).all():
        what = "the mean over references"
        effect = f"the file's score is {100 * lost.mean():.1f} points too low: score it anew (`rulerkit score`)"
    return _judged(scores, wrong, what, effect, f"{len(scores)} as we score")


# --- length ---------------------------------------------------------------------------------------


def budget(cell: FileCell) -> Seen:
    """Prompt and answer stay within the length."""
    tokens, length = cell.counted, cell.length
    if tokens.empty:
        return None
    most = max(tokens)
    return _judged(
        tokens,
        tokens > length,
        f"more than {length} tokens",
        f"up to {most - length} tokens are cut, or the engine refuses them: generate with this tokenizer",
        f"at most {most} of {length} tokens ({tokens.idxmax()})",
    )


def fill(cell: FileCell) -> Seen:
    """The length is filled."""
    shares = cell.counted / cell.length
    low, average = shares < LEAST_FILL, shares.mean()
    what = f"{100 * average:.1f} % filled on average, less than {100 * LEAST_FILL:.0f} %"
    effect = "a score says less about this length than its name"
    fine = f"{100 * average:.1f} % on average"
    if average >= _POOR_FILL and cell.protocol != "paper":
        return _judged(shares, low, what, effect, fine, NOTE)
    return _judged_layout(cell, shares, low, what, effect, fine)


def file_count(cell: FileCell) -> Seen:
    """The file's own token counts are those of this tokenizer."""
    known = cell.texts["length"].replace(0, None).dropna()
    tokens = cell.counted[cell.counted.index.intersection(known.index)]
    return _judged(
        tokens,
        (tokens - known[tokens.index]).abs() > (tokens / 100).clip(3),
        f"not those of {cell.tokenizer.name}",
        "it was made for another tokenizer or template: lengths are not what their names say",
        "the file's are this tokenizer's",
        NOTE,
    )


# --- what is asked --------------------------------------------------------------------------------


def references(cell: FileCell) -> Seen:
    """What is asked for stands in the context."""
    part, absent = cell.family.match == "part", []
    for text, wanted in zip(cell.texts["text"].str.lower(), cell.texts["references"], strict=True):
        lower = {reference.lower() for reference in wanted}
        stands = [reference in text for reference in lower]
        known = any(stands) or lower & _NO_WORDS if part else stands and all(stands)
        absent.append(not known)
    effect = "nobody can find them: these rows score 0, or reward what a model knew before"
    level = NOTE if part else FAIL
    return _judged(cell.texts, absent, "not in the context", effect, "all in the context", level)


def demonstration(cell: FileCell) -> Seen:
    """Variable tracking and common words come with a solved example."""
    if not (opening := cell.family.demonstration_opening.strip()):
        return None
    bare = (text.count(opening) < 2 for text in cell.texts["text"])
    effect = "base models score far lower without one: compare with nobody's numbers"
    return _judged(cell.texts, bare, "none", effect, "in every row")


def prefix(cell: FileCell) -> Seen:
    """The answer prefix ends the prompt, once, with its blanks."""
    form, within = cell.family.answer_prefix_form, cell.family.answer_prefix_within
    ends = [
        list(re.finditer(form, text[-within:].rpartition("?")[2])) for text in cell.texts["text"]
    ]
    stripped = [
        field[:1] not in ("", " ") or any("" in match.groups() for match in end)
        for field, end in zip(cell.texts["prefix"], ends, strict=True)
    ]
    effect = "chat models then explain and are cut: scores fall"
    again = "whoever adds `answer_prefix` to `input` repeats it: drop one"
    what, other = (
        "the answer prefix without its blank",
        "the first token of the answer is another one",
    )
    return (
        _judged(cell.texts, (not end for end in ends), "no answer prefix at the end", effect)
        or _judged(cell.texts, (len(end) > 1 for end in ends), "the answer prefix twice", again)
        or _judged(cell.texts, stripped, what, other, "at the end, once", NOTE)
    )


def bos_text(cell: FileCell) -> Seen:
    """No beginning-of-sequence token stands in the text, where an engine adds one."""
    marks = {*_BOS, cell.tokenizer.bos_token or _BOS[0]}
    written = (any(mark in text[:300] for mark in marks) for text in cell.texts["text"])
    effect = "an engine that adds its own sends two (VT at 128K moved by 17 points): switch add_special_tokens off"
    return _judged(cell.texts, written, "a BOS written out", effect, "none")


# --- layout ---------------------------------------------------------------------------------------


def positions(cell: FileCell) -> Seen:
    """The answer stands somewhere else in every example: by the family's rule or, in our
    predictions, which hold no prompt, by the depth of the needle."""
    found: dict[Any, tuple[float, str]] = {}
    for row, (text, wanted, depths) in cell.rows[["text", "references", "depths"]].iterrows():
        if text is not None:
            place = cell.family.place(text, tuple(wanted))
        else:
            single = depths and cell.family.place is Task.place
            place = (round(depths[0]), f"{depths[0]:.0f} % of the context") if single else None
        if place:
            found[row] = place
    if len(found) < MIN_ROWS:
        return None
    places = pd.DataFrame.from_dict(found, "index", columns=["value", "name"])
    counts = places.value_counts()
    (usual, name), count = counts.index[0], counts.iloc[0]
    if count > _SAME * len(places) or places["value"].std(ddof=0) < 1:
        effect = "a model that only reads there scores as well: shuffle per example"
        same = places["value"] == usual
        return _judged_layout(cell, places, same, f"the answer at {name}", effect)
    return f"{places['value'].nunique()} places in {len(places)} rows"


def layouts(cell: FileCell) -> Seen:
    """Lists are shuffled anew in every example. The order of a list is told whatever its words are:
    for each entry when its word first came."""
    lists = cell.texts["text"].map(cell.family.listed_words).dropna()
    orders = lists.map(lambda words: (*pd.factorize(pd.Series(words[:400]))[0],))
    count = orders.nunique()
    if len(orders) < MIN_ROWS:
        return None
    if count > len(orders) / 2:
        return f"{count} in {len(orders)} rows"
    effect = (
        "the same order again and again: so many rows are one example, and intervals are too narrow"
    )
    again = orders.duplicated(keep=False)
    return _judged_layout(cell, orders, again, f"only {count} orders of words", effect)


AUDITS: dict[str, Callable[[FileCell], Seen]] = {
    "indices": indices,
    "prompts": repeats,
    "budget": budget,
    "fill": fill,
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

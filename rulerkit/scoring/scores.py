"""Judging: one row per example, by the match rule of its task and by a strict score beside it.

A score is a number from 0 to 1 here and in every row; tables multiply by 100, in one place
(`summary`).
"""

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rulerkit.common.errors import UserError, listed, remark, shortened
from rulerkit.common.plugins import source_digest
from rulerkit.common.settings import JSON
from rulerkit.generation import answers, match_rules, thoughts
from rulerkit.generation.tasks import CATEGORIES as CATEGORIES
from rulerkit.generation.tasks import THIRTEEN as THIRTEEN
from rulerkit.generation.tasks import base, family_of, judge_of
from rulerkit.store.cells import (
    Cell,
    Report,
    failure_counts,
    load_cell,
    stamp,
)
from rulerkit.store.files import write_whole
from rulerkit.store.places import AND, TAKES, as_cells, check_columns, is_table

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[Any]  # ROW_COLUMNS of the examples of a cell, by index

_MOST_NAMED = 20  # files in one line
_CONTROL = re.compile(r"\r\n|[\x00-\x1f]")


def category(task: str) -> str:
    """The category of a task by the first letters of its name, so that variants have one too; ''
    where they tell none."""
    with suppress(UserError):
        return family_of(task).category
    return ""


def clean(prediction: str) -> str:
    """The prediction as it is judged: stripped, control characters as newlines, stripped again."""
    # Upstream replaces control characters before it matches. Few answers have any, and
    # the replacement takes longer than the question whether it is needed.
    text = prediction.strip()
    return text if text.isprintable() else _CONTROL.sub("\n", text).strip()


def answer_of(prediction: str, record: Mapping[str, Any], prefix: str = "") -> tuple[str, bool]:
    """What of a prediction is judged, and whether a thought was cut: of a model that thinks only
    what follows its thought, nothing where the thought never ended. `record` is the cell's.

    `prefix` is the answer prefix where it is a part of the answer; silence behind it is silence.
    """
    text, unfinished = _without_thought(prediction, record)
    return (clean(prefix + text) if prefix and text else text), unfinished


def judged_text(row: Mapping[str, Any], record: Mapping[str, Any]) -> tuple[str, bool]:
    """As `answer_of`, of a row of predictions with the answer prefix that it holds."""
    return answer_of(row["pred"], record, row.get("answer_prefix", ""))


def _without_thought(prediction: str, record: Mapping[str, Any]) -> tuple[str, bool]:
    form = record["result"]["prompt_format"]
    marks = form.get("thinking_marks")
    own = tuple(marks) if marks else None

    # Some models think though nobody asked them to: then only what certainly is a thought counts.
    if not form["thinking_tokens"]:
        ended = thoughts.ends_thought(prediction, own)
        if not ended and not thoughts.begins_with_thought(prediction):
            return clean(prediction), False

    # A needle that is only named inside the thought was not given as the answer.
    opened = thoughts.opens_thought(form["after"], own)
    answer = thoughts.without_thought(prediction, opened, own)
    return clean(answer or ""), answer is None


_CELL = {
    "run": "name of the run, the folder in outputs/predictions",
    "model": "name of the model, its folder in the run",
    "label": "what tables and figures call the model, with its name where two share a label",
    "aligned": "chat or base; it chooses the threshold",
    "claimed_length": "tokens that the model claims to take; NaN where nobody says",
    "task": "name of the task or variant",
    "family": "name of the task's family; '' where the file does not name it",
    "category": "niah, vt, aggregation, qa, or that of a family of your own",
    "suite": "ruler, small or one of a plug-in's; no mean is over two of them",
    "length": "tokens: template, prompt and answer together",
}
_ROW = {
    "index": "number of the example, from 0; the same question at every length",
    "score": "0 to 1: the share of references found, or whether any is (qa)",
    "strict": "0 to 1: F1 over all items that the prediction names",
    "exact": "1 where everything is right and nothing else is named, else 0; of the rules ratio "
    "and count the score",
    "other_form": "whether all references stand at the end of the prediction, in a form that is "
    "not judged as right: only where the family judges a last line",
    "empty": "whether the prediction is empty",
    "cut_off": "whether the prediction ended at the room for the answer",
    "cut_thought": "whether a thinking model never ended its thought",
    "is_copy": "whether the prediction begins as the context does; of cwe and fwe",
    "copied": "0 to 1: the score of the beginning of the context, copied; of cwe and fwe, else NaN",
    "num_prompt_tokens": "tokens of the prompt as it was sent",
    "digest": "digest of the prompt; pairs examples of two models",
    "group": "number of the article that questions share; NaN for other tasks",
    "reasoning_tokens": "tokens of the model's thought, by the server or counted; 0 without one",
    "cached_tokens": "tokens of the prompt that the server had cached, by its own count",
    "cost": "dollars, by the server's counts and the `prices`; 0 without prices",
}
_PROTOCOL = {
    "wanted": "examples that the cell was to have",
    "failed": "examples whose requests failed",
    "failed_refused": "failed examples that the service refused",
    "adaptive": "question and limits of an adaptive run, as JSON; '' for a fixed number of "
    "examples",
    "own_threshold": "percent that the family brings for its effective length; NaN where it brings "
    "none",
    "max_failures": "share or number of failures with which a mean is taken over the rest",
    "stand_in": "whether a corpus was a stand-in, so that scores are not comparable with the "
    "paper's",
    "texts": "corpora that the examples are made from, each with the digest of its content",
    "engine": "what ran the model",
    "seed": "seed of the examples",
    "prompt_version": "version of the prompts",
    "tokenizer": "name of the tokenizer that lengths are counted with",
    "template": "name of the prompt format",
    "protocol": "clean, paper or upstream; '' where the file does not say",
    "knobs": "settings of the task, as JSON",
    "note": "protocol, substitute corpora and files of one's own, in words",
    "path": "file of the predictions, or several with ' + ' between",
}
_NAMED = ("name", "family", "category")
COLUMNS = _CELL | _ROW | _PROTOCOL
"""The columns of `score` and what they mean. Those of a cell are the same in all its rows."""
_COUNTED = ["length", "index", "score", "strict", "exact", "empty", "wanted", "own_threshold"]
"""Columns of numbers that stand in all tables of rows."""
_TEXTS = ["adaptive", "note", "protocol", "texts"]
"""The columns of texts that may be empty."""
CELL_COLUMNS, ROW_COLUMNS, PROTOCOL_COLUMNS = (list(_CELL), list(_ROW), list(_PROTOCOL))


def describe(cell: Cell) -> JSON:
    """What a cell's record says of all its rows: CELL_COLUMNS and PROTOCOL_COLUMNS."""
    # Both are what the record beside the predictions says: how the cell was asked.
    about, result = cell.about, cell.about.result
    task, sources = result.task, result.sources.values()

    texts = {f"{source.name} {source.fingerprint}" for source in sources}
    # What a table must say below it, each line once however many sources say it.
    notes = {source.note for source in sources if source.note}
    if about.protocol_note:
        # Semicolons stand between notes.
        notes.add(about.protocol_note.replace(";", ",").rstrip("."))
    protocol = result.protocol or ""

    if protocol == "paper":
        notes.add("Protocol paper: prompts and layouts of upstream at the time of the paper")
    if protocol == "upstream":
        notes.add("Protocol upstream: prompts and layouts of upstream since 2025")

    # The settings of variants differ by family, so they are one column of JSON.
    settings = cell.record["result"]["task"].items()
    return {
        "run": cell.run,
        "model": cell.model,
        "label": about.label or cell.model,
        "aligned": about.aligned,
        "claimed_length": float(about.claimed_length or "nan"),
        "task": cell.task,
        "family": task.family,
        "category": task.category,
        "suite": about.suite,
        "length": cell.length,
        "wanted": cell.wanted,
        "failed": len(cell.failures),
        "failed_refused": sum(f.refused for f in cell.failures.values()),
        "adaptive": _as_json(about.adaptive) if about.adaptive else "",
        "own_threshold": np.nan if about.threshold is None else about.threshold,
        "max_failures": float(about.max_failures),
        "stand_in": any(source.stand_in for source in sources),
        "texts": ", ".join(sorted(texts)),
        "engine": result.model.engine,
        "seed": result.seed,
        "prompt_version": result.prompt_version,
        "tokenizer": result.tokenizer.name,
        "template": result.prompt_format.template,
        "protocol": protocol,
        "knobs": _as_json({name: value for name, value in settings if name not in _NAMED}),
        "note": "; ".join(sorted(notes)),
        "path": AND.join(map(str, (cell.path, *cell.others))),
    }


def _as_json(settings: JSON) -> str:
    """Settings as a text that does not depend on the order of the lines of a record."""
    return json.dumps(settings, sort_keys=True)


def as_scores(given: Any, who: str, report: Report | None = None) -> "pd.DataFrame":
    """The rows of `score` that are given, or those of the cells or places that are given, for the
    function `who`. Raises UserError for a table of other rows."""
    if is_table(given):
        check_columns(given, COLUMNS, who, TAKES)
        _check_numbers(given, who)
        scores: pd.DataFrame = given
        # A CSV file does not tell an empty text from a missing one.
        for name in _TEXTS:
            if name in scores and scores[name].isna().any():
                texts = scores[name].astype(object).fillna("")
                scores = scores.assign(**{name: texts})
        return scores
    return score(as_cells(given, who), report)


def _check_numbers(rows: Any, who: str) -> None:
    """Raise UserError where columns that means are taken of hold texts, or scores that are none."""
    for name in _COUNTED:
        values = rows[name]
        if len(values) and isinstance(values.iloc[0], str):
            raise UserError(
                f"{who}: the column {name} holds {shortened(values.iloc[0])}, and numbers are "
                "meant: read a file with pd.read_csv(path) alone, which finds the types"
            )
    scores = rows["score"]
    wrong = scores[~scores.between(0, 1 + 1e-9)]  # a mean of ones may be a hair above 1
    if len(wrong):
        raise UserError(
            f"{who}: the column score holds {wrong.iloc[0]:g}, and scores of rows are 0 to 1: "
            "tables multiply by 100"
        )


def score(
    cells: "Cell | str | Path | Iterable[Cell | str | Path] | pd.DataFrame",
    report: Report | None = None,
    max_failures: float | None = None,
) -> "pd.DataFrame":
    """Judge predictions: a DataFrame with one row per example, in the order of the cells.

    `cells` are those of `evaluate`, or places as `load` takes them: `score("outputs")`; rows of
    `load` keep their scores. Cells whose files did not change since they were judged are read from
    `outputs/cache`, which may be deleted at any time.

    COLUMNS says what the columns mean. `attrs["empty_cells"]` describes the cells without a row.
    `max_failures` overrides the records.

    Raises UserError where a row is damaged, has no references or an empty one, or is another answer
    to an example that has one (with `report`, leaves the cell out and calls it), and where two
    cells are the same one.
    """
    import pandas as pd

    if is_table(cells):
        # These rows were judged before; any others that a file may hold are left out.
        scores = as_scores(cells, "score").reindex(columns=list(COLUMNS))
        return scores if max_failures is None else scores.assign(max_failures=max_failures)
    cells = as_cells(cells, "score", report or remark)

    # A cell that stands in two files would count twice in every mean.
    by_cell: dict[tuple[Any, ...], tuple[JSON, Rows]] = {}
    left_out: dict[str, list[Cell]] = {}
    for cell in cells:
        try:
            rows, about = judged(cell), describe(cell)
        except UserError as error:
            if not report:
                raise
            left_out.setdefault(str(error), []).append(cell)
            # No later line about this cell needs its files.
            cell.present, cell.failures, cell.wanted = [], {}, 0
            continue
        if max_failures is not None:
            about["max_failures"] = max_failures
        key = cell.run, cell.model, cell.task, cell.length
        if key in by_cell:
            raise UserError(
                f"{cell.path}: run {cell.run!r}, model {cell.model!r}, task {cell.task!r} at "
                f"length {cell.length} is also in {by_cell[key][0]['path']}; a cell can be counted "
                "once: give both places to rk.load, which puts them together, or name one file"
            )
        by_cell[key] = about, rows
    for problem, cells_of in left_out.items():
        names = listed((cell.path for cell in cells_of), _MOST_NAMED)
        # A problem of a file names it, or the one beside the rows.
        is_named = str(cells_of[0].path.with_suffix("")) in problem
        assert report
        report(f"left out: {problem if is_named else f'{names}: {problem}'}")
    if not by_cell:
        return pd.DataFrame(columns=list(COLUMNS))
    return _table_of(list(by_cell.values()))


def lacking_line(cells: Iterable[Cell]) -> str:
    """One line that names the files that lack answers; "" where nothing is lacking.

    A file that was cut at the end of a line is as one whose run was stopped: only this line tells
    where a number would have come from.
    """
    lacking = []
    for cell in cells:
        have = len(cell.present)
        if have < cell.wanted:
            failures = cell.failures.values()
            refused = sum(failure.refused for failure in failures)
            counts = [f"{have} of {cell.wanted} examples"]
            counts += filter(None, [failure_counts(len(failures), refused)])
            lacking.append(f"{cell.path} ({', '.join(counts)})")

    return f"incomplete: {listed(lacking, _MOST_NAMED)}" if lacking else ""


def _table_of(cells: list[tuple[JSON, Rows]]) -> "pd.DataFrame":
    """The table of `score`, from the description and the judged rows of each cell."""
    import pandas as pd

    # Facts of a cell are the same in all its rows: they are made once per cell and
    # repeated as whole columns, which is faster than a dictionary per row.
    descriptions, arrays = zip(*cells, strict=True)
    counts = [len(rows) for rows in arrays]
    columns = pd.DataFrame(np.concatenate(arrays))
    columns["digest"] = columns["digest"].str.decode("ascii")
    if columns["num_prompt_tokens"].notna().all():
        columns = columns.astype({"num_prompt_tokens": int})

    # Labels must tell models apart in the whole table, not only inside a cell.
    table = pd.DataFrame(descriptions, columns=CELL_COLUMNS + PROTOCOL_COLUMNS)
    table["label"] = own_labels(table, "label")
    table = table.take(np.repeat(np.arange(len(counts)), counts)).reset_index(drop=True)
    table = table.join(columns)
    table = table[list(COLUMNS)]
    table.attrs["empty_cells"] = [about for about, rows in cells if not len(rows)]
    return table


def own_labels(frame: "pd.DataFrame", column: str) -> "pd.Series[str]":
    """The labels in a column; `LABEL [NAME]` where models of several names share one."""
    # A checkpoint of yesterday and one of today often have the same label.
    models = frame[[column, "model"]].drop_duplicates()
    shared = frame[column].isin(models.loc[models[column].duplicated(), column])
    return frame[column].mask(shared, frame[column] + " [" + frame["model"] + "]")


# --- judged cells on disk -------------------------------------------------------------------------


def judged(cell: Cell) -> Rows:
    """The judged rows of a cell, from the cache where its files did not change."""
    # The stamp is taken before the file is read: rows that are appended meanwhile make
    # the cache stale, never wrong.
    now = stamp(cell.path)
    known = _read_cache(cell)
    if known is not None:
        return known

    rows = _judged(cell)
    cell.present = rows["index"].tolist()
    file = _cache_file(cell)
    if not file:
        return rows

    # Beside the rows the cache holds what reading the file would have said of the cell.
    about = (cell.warnings, sorted(cell.snapshots), rows.dtype.descr, len(rows))
    head = json.dumps([_cache_key(cell, now), *about]).encode()
    content = head + b"\n" + rows.tobytes()
    with suppress(UserError):
        write_whole(file, _checksum(content) + b"\n" + content)
    return rows


def _cache_key(cell: Cell, now: list[list[int]]) -> list[Any]:
    """What the judged rows of a cell were made from: the code, the cell, the state of its files."""
    place = [cell.run, cell.model, cell.task, cell.length, cell.result]
    return [_code_version(cell), place, now]


def _checksum(content: bytes) -> bytes:
    return sha256(content).hexdigest()[:16].encode()


def _cache_file(cell: Cell) -> Path | None:
    """`outputs/cache/scores/RUN/MODEL/TASK/LENGTH.rows`; only files in `outputs/predictions` have a
    cache."""
    # A cell lies at <predictions>/<run>/<model>/<task>/<length>.jsonl.
    predictions = cell.path.parent.parent.parent.parent
    if predictions.name != "predictions" or not cell.about.format or cell.others:
        return None
    cache = predictions.parent / "cache" / "scores"
    return cache / cell.path.relative_to(predictions).with_suffix(".rows")


def _read_cache(cell: Cell) -> Rows | None:
    """The judged rows of a cell, which then is as if its file had been read; None where the cache
    is damaged, or of other code or an earlier state of the files."""
    if not (file := _cache_file(cell)):
        return None
    with suppress(OSError, ValueError, TypeError):
        checksum, _, content = file.read_bytes().partition(b"\n")
        # A damaged score would be a score like any other.
        if checksum != _checksum(content):
            return None
        head, _, body = content.partition(b"\n")
        key, warnings, snapshots, kinds, count = json.loads(head)
        if key == _cache_key(cell, stamp(cell.path)):
            # np.load takes eight times as long
            rows = np.frombuffer(body, [tuple(kind) for kind in kinds], count)
            cell.present = rows["index"].tolist()
            cell.warnings, cell.snapshots = warnings, set(snapshots)
            return rows
    return None


def _code_version(cell: Cell) -> str:
    """A digest of the code that judges a cell: what other code judged is judged again."""
    task = cell.record["result"]["task"]
    if not task.get("judges"):
        return code_version()
    # A score that nobody can compute again is not shown from the cache either.
    judge_of(task)
    return code_version() + source_digest(task["module"])


@cache
def code_version() -> str:
    """A digest of the package's own code that judges."""
    # The rules of judging stand in these files and in those of the tasks.
    modules = (answers.__file__, match_rules.__file__, thoughts.__file__)
    of_tasks = sorted(Path(base.__file__).parent.rglob("*.py"))
    files = (Path(__file__), *map(Path, modules), *of_tasks)
    return sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def _judged(cell: Cell) -> Rows:
    task = cell.record["result"]["task"]
    judge = judge_of(task)
    if task.get("judges"):
        now = source_digest(task["module"])
        if cell.about.family_source not in ("", now):
            _say_once(
                f"{task['module']} has changed since {cell.model} answered {cell.task}: its "
                "answers are judged by the code of today"
            )

    can_judge = judge.rule.can_judge
    rows = list[Any]()
    for row in cell.stream():
        raw: Any = row.get("pred")
        references: Any = row.get("outputs")
        if not isinstance(raw, str) or not can_judge(references):
            raise _cannot_judge(cell, row)
        # The rule of the task gives the score; the strict one stands beside it.
        text, unfinished = judged_text(row, cell.record)
        strict = judge.strict(text, references)
        # What the server counted, where the row has it.
        usage = row.get("usage") or {}
        rows.append(
            (
                row["index"],
                judge.score(text, references),
                strict.f1,
                strict.exact,
                judge.in_another_form(text, references),
                not text and not unfinished,
                row.get("finish_reason") == "length" or unfinished,
                unfinished,
                row.get("is_copy", False),
                row.get("copied"),
                row.get("num_prompt_tokens"),
                row.get("digest", "").encode("ascii", "backslashreplace"),
                row.get("group"),
                usage.get("reasoning_tokens") or 0,
                usage.get("cached_tokens") or 0,
                usage.get("cost") or 0,
            )
        )

    # Nobody knows which of two answers the model gave.
    if cell.other_answers:
        raise UserError(
            f"{cell.other_answers[0]}: keep one of the two, or evaluate again with fresh=True "
            "(--fresh)"
        )

    # A structured array holds a million rows in a tenth of the memory of tuples.
    longest = max((len(row[ROW_COLUMNS.index("digest")]) for row in rows), default=0)
    kinds: JSON = dict.fromkeys(ROW_COLUMNS, float) | {"index": int, "digest": f"S{longest or 1}"}
    kinds |= dict.fromkeys(["other_form", "empty", "cut_off", "cut_thought", "is_copy"], bool)
    judged_rows = np.array(rows, list(kinds.items()))
    return judged_rows[np.argsort(judged_rows["index"], kind="stable")]


_say_once = cache(remark)


def _cannot_judge(cell: Cell, row: JSON) -> UserError:
    lacking = "an empty reference" if row.get("outputs") else "no references"
    if not isinstance(row.get("pred"), str):
        lacking = "no prediction"
    return UserError(
        f"{cell.path}: example {row.get('index')} has {lacking}, and no score can be given; take "
        "the row out of the file, or evaluate it again"
    )


# --- completeness ---------------------------------------------------------------------------------


class Completeness(NamedTuple):
    """How many of the examples asked for have an answer, and what is wrong, if anything."""

    have: int
    problem: str = ""


def completeness(path: Path, wanted: int) -> Completeness:
    """How far a cell is towards `wanted` examples.

    `status`, `batch`, `report` and `score` share this count. A cell that did not change is not read
    again, nor one that was judged.
    """
    return _completeness(path, wanted, str(stamp(path)))


@lru_cache(maxsize=100_000)
def _completeness(path: Path, wanted: int, _: str) -> Completeness:
    try:
        # A cell that cannot be read counts as not answered, with the reason.
        cell = load_cell(path)
        if not cell:
            return Completeness(0)
        _read_cache(cell)
        have = sum(index < wanted for index in cell.present)
    except UserError as error:
        return Completeness(0, str(error))

    # One warning is enough to look at the file; all of them would fill the table.
    problems = cell.warnings[:1]
    if failed := [failure for index, failure in cell.failures.items() if index < wanted]:
        refused = sum(failure.refused for failure in failed)
        problems.append(f"{failure_counts(len(failed), refused)}: {failed[0].reason}")
    return Completeness(have, "; ".join(problems))

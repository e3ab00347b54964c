"""Judging: one row per example, by the match rule of its task.

A score is a number from 0 to 1 here and in every row; tables multiply by 100, in one place
(`summary`).
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rulerkit.common.errors import UserError, listed, remark
from rulerkit.common.settings import JSON
from rulerkit.generation.prompt_format import opens_thought, without_thought
from rulerkit.generation.tasks import CATEGORIES as CATEGORIES
from rulerkit.generation.tasks import THIRTEEN as THIRTEEN
from rulerkit.generation.tasks import Task, recorded_task
from rulerkit.generation.tasks import task as make_task
from rulerkit.generation.tasks.base import score_of
from rulerkit.store.cells import Cell, Report
from rulerkit.store.places import TAKES, as_cells, check_columns, is_table

if TYPE_CHECKING:
    import pandas as pd

Rows = NDArray[Any]  # what _ROW says of the examples of a cell, by index

_MOST_NAMED = 20  # files in one line
_CONTROL = re.compile(r"\r\n|[\x00-\x1f]")


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
    form = record["result"]["prompt_format"]
    marks = form.get("thinking_marks")
    own = tuple(marks) if marks else None
    asked = form["thinking_tokens"] > 0
    opened = asked and opens_thought(form["after"], own)

    # A needle that is only named inside the thought was not given as the answer.
    answer = without_thought(prediction, opened, own, asked)
    text = clean(answer or "")
    return (clean(prefix + text) if prefix and text else text), answer is None


def judge(
    task: str | JSON | Task, answer: str, references: Sequence[str], prefix: str = ""
) -> float:
    """The score of one answer, 0 to 1, as `score` gives it to a row: without blanks around it and
    without the thought that it begins with, by the match rule of the task.

    `prefix` is the answer prefix of the prompt, for tasks that judge it as a part of the answer.
    Raises UserError where there is no reference, or an empty one.
    """
    rule = make_task(task)
    text = clean(without_thought(answer, asked=False) or "")
    if text and rule.judges_prefix:
        text = clean(prefix + text)
    return score_of(rule, text, references)


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
    "wanted": "examples that the cell was to have",
    "failed": "examples whose requests failed",
    "failed_refused": "failed examples that the service refused",
    "adaptive": "question and limits of an adaptive run, as JSON; '' for a fixed number of "
    "examples",
    "own_threshold": "percent that the family brings for its effective length; NaN where it brings "
    "none",
    "max_failures": "share or number of failures with which a mean is taken over the rest",
    "stand_in": "whether a corpus was synthetic, so that scores are not comparable with the "
    "paper's",
    "texts": "corpora that the examples are made from, each with the digest of its content",
    "engine": "what ran the model",
    "seed": "seed of the examples",
    "prompt_version": "version of the prompts",
    "tokenizer": "name of the tokenizer that lengths are counted with",
    "template": "name of the prompt format",
    "protocol": "clean, paper or upstream; '' where the file does not say",
    "settings": "settings of the task, as JSON",
    "note": "protocol, substitute corpora and files of one's own, in words",
    "path": "file of the predictions, or several with ' + ' between",
}
_ROW = {
    "index": "number of the example, from 0; the same question at every length",
    "score": "0 to 1: the share of references found, or whether any is (qa)",
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
}
_KINDS: JSON = dict.fromkeys(_ROW, float) | {"index": int, "digest": object}
_KINDS |= dict.fromkeys(["other_form", "empty", "cut_off", "cut_thought", "is_copy"], bool)
COLUMNS = _CELL | _ROW
"""The columns of `score` and what they mean. Those of a cell are the same in all its rows."""
_TEXTS = ["adaptive", "note", "protocol", "texts"]
"""The columns of texts that may be empty."""
_AS_RECORDED = ["run", "model", "aligned", "task", "family", "category", "suite", "length"]
_AS_RECORDED += ["engine", "seed", "prompt_version", "tokenizer", "template"]
"""The columns that hold what the record has under the same name."""
CELL_COLUMNS = list(_CELL)
_PROTOCOL_NOTES = {
    "paper": "Protocol paper: prompts and layouts of upstream at the time of the paper",
    "upstream": "Protocol upstream: prompts and layouts of upstream since 2025",
}
"""What is said of the scores of a protocol."""


def describe(cell: Cell) -> JSON:
    """What a cell's record says of all its rows: CELL_COLUMNS."""
    about, failures = cell.about, cell.coverage.failed.values()
    sources = about.sources.values()

    texts = {f"{source['name']} {source['fingerprint']}" for source in sources}
    # What a table must say below it, each line once however many sources say it.
    notes = {source["note"] for source in sources if source["note"]}
    if about.protocol_note:
        # Semicolons stand between notes.
        notes.add(about.protocol_note.replace(";", ",").rstrip("."))
    protocol = about.protocol or ""
    if protocol in _PROTOCOL_NOTES:
        notes.add(_PROTOCOL_NOTES[protocol])

    # The settings of variants differ by family, so they are one column of JSON.
    settings = dict(cell.record["result"]["task"])
    for name in ("name", "family", "category"):
        settings.pop(name, None)
    return {
        **{name: getattr(about, name) for name in _AS_RECORDED},
        "label": about.label or cell.model,
        "claimed_length": float(about.claimed_length or "nan"),
        "wanted": cell.wanted,
        "failed": len(failures),
        "failed_refused": sum(failure.refused for failure in failures),
        "adaptive": json.dumps(about.adaptive, sort_keys=True) if about.adaptive else "",
        "own_threshold": np.nan if about.threshold is None else about.threshold,
        "max_failures": float(about.max_failures),
        "stand_in": any(source["stand_in"] for source in sources),
        "texts": ", ".join(sorted(texts)),
        "protocol": protocol,
        "settings": json.dumps(settings, sort_keys=True),
        "note": "; ".join(sorted(notes)),
        "path": cell.files,
    }


def as_scores(given: Any, who: str, report: Report | None = None) -> "pd.DataFrame":
    """The rows of `score` that are given, or those of the cells or places that are given, for the
    function `who`. Raises UserError for a table of other rows."""
    if not is_table(given):
        return score(as_cells(given, who), report)

    check_columns(given, COLUMNS, who, TAKES)
    for name in ("length", "index", "score"):
        for value in given[name].iloc[:1]:
            if isinstance(value, str):
                raise UserError(f"{who}: the column {name} holds {value!r}, and a number is meant")
    # A mean of ones may be above 1.
    wrong = given["score"][~given["score"].between(0, 1 + 1e-9)]
    if len(wrong):
        raise UserError(
            f"{who}: the column score holds {wrong.iloc[0]:g}, and scores of rows are 0 to 1: "
            "tables multiply by 100"
        )

    # A CSV file does not tell an empty text from a missing one.
    scores: pd.DataFrame = given
    for name in _TEXTS:
        if scores[name].isna().any():
            scores = scores.assign(**{name: scores[name].astype(object).fillna("")})
    return scores


def score(
    cells: "Cell | str | Path | Iterable[Cell | str | Path] | pd.DataFrame",
    report: Report | None = None,
) -> "pd.DataFrame":
    """Judge predictions: a DataFrame with one row per example, in the order of the cells.

    `cells` are those of `evaluate`, or places as `load` takes them: `score("outputs")`; rows of
    `load` keep their scores.

    COLUMNS says what the columns mean. `attrs["empty_cells"]` describes the cells without a row.

    Raises UserError where a row is damaged, has no references or an empty one, or is another answer
    to an example that has one (with `report`, leaves the cell out and calls it), and where two
    cells are the same one.
    """
    import pandas as pd

    if is_table(cells):
        # These rows were judged before; any others that a file may hold are left out.
        return as_scores(cells, "score").reindex(columns=list(COLUMNS))
    described, of_cells, empty = list[JSON](), list[Rows](), list[JSON]()
    for about, rows in judged_cells(as_cells(cells, "score", report or remark), report):
        described.append(about)
        of_cells.append(rows)
        if not len(rows):
            empty.append(about)
    if not of_cells:
        return pd.DataFrame(columns=list(COLUMNS))

    table = pd.DataFrame(np.concatenate(of_cells))
    if table["num_prompt_tokens"].notna().all():
        table["num_prompt_tokens"] = table["num_prompt_tokens"].astype(int)

    # Labels must tell models apart in the whole table, not only inside a cell.
    facts = pd.DataFrame(described)
    facts["label"] = own_labels(facts)
    # Facts of a cell are repeated as whole columns, which is faster than a dictionary per row.
    facts = facts.loc[np.repeat(facts.index, [len(rows) for rows in of_cells])]
    table = pd.concat([table, facts.set_axis(table.index)], axis=1)[list(COLUMNS)]
    table.attrs["empty_cells"] = empty
    return table


def judged_cells(
    cells: Iterable[Cell], report: Report | None = None
) -> Iterator[tuple[JSON, Rows]]:
    """What the record of each cell says, and its judged rows. A cell that cannot be judged is left
    out and passed to `report`; without `report` its UserError is raised, as always where two cells
    are the same one."""
    # A cell that stands in two files would count twice in every mean.
    found: dict[tuple[Any, ...], Path] = {}
    for cell in cells:
        try:
            rows, about = judged(cell), describe(cell)
        except UserError as error:
            if not report:
                raise
            # A problem of a file names it, or the one beside the rows.
            is_named = str(cell.path.with_suffix("")) in str(error)
            report(f"left out: {error}" if is_named else f"left out: {cell.path}: {error}")
            continue
        key = cell.run, cell.model, cell.task, cell.length
        if key in found:
            raise UserError(
                f"{cell.path}: run {cell.run!r}, model {cell.model!r}, task {cell.task!r} at "
                f"length {cell.length} is also in {found[key]}; a cell can be counted once: give "
                "both places to rk.load, which puts them together, or name one file"
            )
        found[key] = cell.path
        yield about, rows


def lacking_line(cells: Iterable[Cell]) -> str:
    """One line that names the files that lack answers; "" where nothing is lacking.

    A file that was cut at the end of a line is as one whose run was stopped: only this line tells
    where a number would have come from.
    """
    lacking = [f"{cell.path} ({cell.coverage})" for cell in cells if cell.coverage.missing]
    return f"incomplete: {listed(lacking, _MOST_NAMED)}" if lacking else ""


def own_labels(frame: "pd.DataFrame") -> "pd.Series[str]":
    """The labels of rows; `LABEL [NAME]` where models of several names share one."""
    # A checkpoint of yesterday and one of today often have the same label.
    label = frame["label"]
    models = frame[["label", "model"]].drop_duplicates()
    shared = label.isin(models.loc[models["label"].duplicated(), "label"])
    return label.mask(shared, label + " [" + frame["model"] + "]")


def judged(cell: Cell) -> Rows:
    """The judged rows of a cell, by index."""
    judge = recorded_task(cell.record["result"]["task"])
    rows = list[Any]()
    for row in cell.stream():
        raw: Any = row.get("pred")
        references: Any = row.get("outputs")
        if not isinstance(raw, str) or not judge.can_judge(references):
            lacking = "no references, or an empty one" if isinstance(raw, str) else "no prediction"
            raise UserError(
                f"{cell.path}: example {row.get('index')} has {lacking}, and no score can be "
                "given; take the row out of the file, or evaluate it again"
            )
        text, unfinished = answer_of(row["pred"], cell.record, row.get("answer_prefix", ""))
        # What the server counted, where the row has it.
        usage = row.get("usage") or {}
        rows.append(
            (
                row["index"],
                score_of(judge, text, references),
                judge.in_another_form(text, references),
                not text and not unfinished,
                row.get("finish_reason") == "length" or unfinished,
                unfinished,
                row.get("is_copy", False),
                row.get("copied"),
                row.get("num_prompt_tokens"),
                row.get("digest", ""),
                row.get("group"),
                usage.get("reasoning_tokens") or 0,
            )
        )

    # A structured array holds a million rows in a tenth of the memory of tuples.
    judged_rows = np.array(rows, list(_KINDS.items()))
    return judged_rows[np.argsort(judged_rows["index"], kind="stable")]

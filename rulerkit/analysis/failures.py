"""What went wrong, counted (Section 5 of the paper): a label for each answer, from the example's
pieces and the answer.

`label` gives each answer its label, `shares` counts them, `samples` shows some. The rules stand in
`failure_rules`; `remake` generates the examples again, which needs their tokenizer and corpora.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from rulerkit.analysis.failure_rules import definitions as definitions
from rulerkit.analysis.failure_rules import find_label
from rulerkit.analysis.remake import remaker
from rulerkit.common.errors import shorten
from rulerkit.common.progress import progress_bar
from rulerkit.evaluation.study import Study
from rulerkit.generation.example import Example
from rulerkit.generation.tasks import by_name, recorded_task
from rulerkit.generation.tasks.base import JudgedAnswer
from rulerkit.generation.tasks.niah import NEAR as NEAR
from rulerkit.scoring import scores as scoring
from rulerkit.scoring.statistics import wilson
from rulerkit.scoring.summary import texts_words
from rulerkit.store.cells import Cell
from rulerkit.store.places import as_cells, check_columns, only_rows

_CELL = ["run", "model", "name", "engine", "task", "category", "suite", "length"]
COLUMNS = [*_CELL, "index", "label", "detail", "depth", "score", "pred", "references"]
_TEXTS = ["asked", "written", "detail"]
_SAMPLE_COLUMNS = ["label", "definition", "model", "task", "length", "index", *_TEXTS]
NoContext = Mapping[tuple[str, str, int, int], str]
"""(model, data set, seed, index) -> what was answered to the question alone."""


def with_baselines(study: Study, wanted: bool = True) -> Study:
    """The study with the baselines of its tasks: common words without the demonstration, questions
    without context."""
    tasks = list(study.tasks)
    if wanted:
        for task in study.tasks:
            # The variant differs in one setting, so a difference in score is its effect.
            if task.baseline and getattr(task, task.baseline[0]) != task.baseline[1]:
                setting, value = task.baseline
                changed: Any = {setting: value, "name": f"{task.name}-{setting}_{value}"}
                tasks.append(replace(task, **changed))
    # a baseline may be a task of the study already
    return replace(study, tasks=tuple(by_name(tasks).values()))


# --- labels ---------------------------------------------------------------------------------------


def label(
    cells: Any, no_context: NoContext | None = None, made: dict[str, Example] | None = None
) -> pd.DataFrame:
    """A row per answer of cells, places or rows, as `score` takes them: COLUMNS. `name` is the
    model's label in tables; `depth` is that of the first needle missed (0 to 100), NaN where a task
    has none; `detail` says what was seen.

    Answers without context are taken from the cells themselves (tasks with `context: none`) unless
    they are given. `made` keeps the examples by their digest, for the next cells of the same ones.
    Raises UserError where the examples of a cell with failures cannot be made
    again.
    """
    given, cells = cells, as_cells(cells, "label", in_part=True)
    if no_context is None:
        no_context = no_context_answers(cells)

    rows: list[dict[Any, Any]] = []
    for cell in progress_bar(cells, "cells", delay=3):
        rows += _label_cell(cell, no_context, {} if made is None else made)
    labels = only_rows(pd.DataFrame(rows, columns=COLUMNS), given)
    labels = labels.assign(name=scoring.own_labels(labels, "name"))
    about = pd.DataFrame([scoring.describe(cell) for cell in cells])
    labels.attrs["texts"] = texts_words(about)
    return labels


def no_context_answers(cells: Iterable[Cell]) -> NoContext:
    """What each model answered to questions alone, from the cells of tasks with `context: none`."""
    answers = {}
    for cell in cells:
        result = cell.record["result"]
        if result["task"].get("context") != "none":
            continue
        dataset = str(result["task"]["dataset"])
        seed = int(result["seed"])
        for row in cell.rows:
            text, _ = scoring.answer_of(row["pred"], cell.record)
            answers[cell.model, dataset, seed, int(row["index"])] = text
    return answers


def _label_cell(
    cell: Cell, no_context: NoContext, made: dict[str, Example]
) -> Iterator[dict[Any, Any]]:
    """COLUMNS of each answer of a cell, and what else `score` says of it."""
    result = cell.record["result"]
    settings = result["task"]
    dataset = str(settings.get("dataset", ""))
    seed = int(result["seed"] or 0)

    remake, judge = remaker(cell, made), recorded_task(settings)
    scored_rows = scoring.score([cell]).to_dict("records")
    for row, scored in zip(cell.rows, scored_rows, strict=True):
        text, in_thought = scoring.answer_of(row["pred"], cell.record, row.get("answer_prefix", ""))
        question = (cell.model, dataset, seed, row["index"])
        answer = JudgedAnswer(
            text=text,
            references=tuple(row["outputs"]),
            score=scored["score"],
            finish_reason=row.get("finish_reason", ""),
            in_thought=in_thought,
            settings=settings,
            judge=judge,
            make=partial(remake, row),
            without_context=no_context.get(question),
        )
        # A wrong answer needs its example, also where the first rule that fits does not look at it:
        # else it would depend on the answers whether a cell of another tokenizer is refused.
        if answer.score < 1 and answer.text:
            _ = answer.example

        kind, detail = find_label(answer)
        yield {
            **scored,
            "name": scored["label"],
            "label": kind,
            "detail": detail,
            "depth": _depth(answer, row.get("depths", ())),
            "pred": row["pred"],
            "references": answer.references,
        }


def _depth(answer: JudgedAnswer, depths: Sequence[float]) -> float:
    """Where the first needle missed stands; the first needle, where there is one or all were
    found."""
    if not depths:
        return float("nan")
    first = float(depths[0])
    # of gold documents nobody knows which one was missed
    is_document = answer.judge.any_is_enough
    if len(depths) == 1 or answer.score == 1 or is_document:
        return first

    needles = [block for block in answer.example.context_blocks if block.role == "needle"]
    for needle, depth in zip(needles, depths, strict=False):
        # a chain asks for keys, other tasks for values
        if not {needle.key, needle.value}.isdisjoint(answer.missing):
            return float(depth)
    return first


# --- counts and examples --------------------------------------------------------------------------


def shares(labels: pd.DataFrame) -> pd.DataFrame:
    """How often each label came up: a row per run, model, task, length and label that occurs in
    `labels`, with count, n, share, low and high (0..1, Wilson's 95 % interval); labels that a cell
    has none of count 0."""
    check_columns(labels, [*_CELL, "label"], "shares")
    occurring = set(labels["label"])
    kinds = [kind for kind in definitions() if kind in occurring]

    rows = []
    for key, of_cell in labels.groupby(_CELL, sort=False)["label"]:
        n = len(of_cell)
        for kind in kinds:
            count = (of_cell == kind).sum()
            share = count / n
            low, high = wilson(share, n)
            rows.append((*key, kind, count, n, share, low, high))
    columns = [*_CELL, "label", "count", "n", "share", "low", "high"]
    counts = pd.DataFrame(rows, columns=columns)
    counts.attrs = labels.attrs
    return counts


def samples(labels: pd.DataFrame, per_label: int = 2, width: int = 100) -> pd.DataFrame:
    """A few answers of each label but `complete`, from different tasks where there are some: label,
    definition, model, task, length, index, asked (references), written, detail; texts cut at
    `width` characters."""
    failed = labels[labels["label"] != "complete"]
    failed = failed.assign(
        definition=failed["label"].map(definitions()),
        asked=failed["references"].map(", ".join),
        written=failed["pred"],
        order=failed["label"].map(list(definitions()).index),
        turn=failed.groupby(["label", "task"]).cumcount(),
    )
    failed[_TEXTS] = failed[_TEXTS].map(shorten, most=width)

    # the first answer of each task, then the second of each: so the first few are of other tasks
    failed = failed.sort_values(["order", "turn"], kind="stable")
    rows = failed.groupby("order").head(per_label)
    return rows[_SAMPLE_COLUMNS].reset_index(drop=True)

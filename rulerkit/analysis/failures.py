"""What went wrong, counted (Section 5 of the paper): a label for each answer, from the example's
pieces and the answer.

`rk.answers_of(scores, labels=True)` gives each answer its label, `shares` counts them, `samples`
shows some. The rules stand in `failure_rules`; `remake` generates the examples again, which needs
their tokenizer and corpora.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from rulerkit.analysis.failure_rules import definitions as definitions
from rulerkit.analysis.failure_rules import find_label
from rulerkit.analysis.remake import remaker
from rulerkit.common.errors import shorten
from rulerkit.evaluation.study import Study
from rulerkit.generation.example import Example
from rulerkit.generation.tasks import each_once, recorded_task
from rulerkit.generation.tasks.base import JudgedAnswer
from rulerkit.scoring import scores as scoring
from rulerkit.scoring.statistics import wilson
from rulerkit.scoring.summary import texts_words
from rulerkit.store.cells import Cell
from rulerkit.store.places import check_columns

_CELL = ["run", "model", "label", "engine", "task", "category", "suite", "length"]
_TEXTS = ["asked", "written", "failure_detail"]
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
    return replace(study, tasks=each_once(tasks))


# --- labels ---------------------------------------------------------------------------------------


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


def label_answers(
    cell: Cell, no_context: NoContext, made: dict[str, Example]
) -> dict[int, tuple[str, str, float]]:
    """Index -> the label of the answer, what was seen, and the depth of the first needle missed (0
    to 100), NaN where a task has none. `made` keeps the examples by their digest, for the next
    cells of the same ones. Raises UserError where the examples cannot be made again."""
    result = cell.record["result"]
    settings = result["task"]
    dataset = str(settings.get("dataset", ""))
    seed = int(result["seed"] or 0)

    remake, judge = remaker(cell, made), recorded_task(settings)
    scores = scoring.score([cell])["score"]
    labels = {}
    for row, score in zip(cell.rows, scores, strict=True):
        text, in_thought = scoring.answer_of(row["pred"], cell.record, row.get("answer_prefix", ""))
        question = (cell.model, dataset, seed, row["index"])
        answer = JudgedAnswer(
            text=text,
            references=tuple(row["outputs"]),
            score=score,
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

        label, detail = find_label(answer)
        labels[row["index"]] = (label, detail, _depth(answer, row.get("depths", ())))
    return labels


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


def shares(answers: pd.DataFrame) -> pd.DataFrame:
    """How often each label came up in rows of `rk.answers_of(scores, labels=True)`: a row per run,
    model, task, length and label that occurs, with failure, count, n, share, low and high (0..1,
    Wilson's 95 % interval); labels that a cell has none of count 0."""
    check_columns(answers, [*_CELL, "failure"], "shares")
    labelled = answers[answers["failure"].notna()]
    occurring = set(labelled["failure"])
    kinds = [kind for kind in definitions() if kind in occurring]

    rows = []
    for key, of_cell in labelled.groupby(_CELL, sort=False)["failure"]:
        n = len(of_cell)
        for kind in kinds:
            count = (of_cell == kind).sum()
            share = count / n
            low, high = wilson(share, n)
            rows.append((*key, kind, count, n, share, low, high))
    columns = [*_CELL, "failure", "count", "n", "share", "low", "high"]
    counts = pd.DataFrame(rows, columns=columns)
    counts.attrs = {"texts": texts_words(answers)}
    return counts


def samples(answers: pd.DataFrame, per_label: int = 2, width: int = 100) -> pd.DataFrame:
    """A few answers of each label but `complete`, from different tasks where there are some:
    failure, definition, model, task, length, index, asked (references), written, failure_detail;
    texts cut at `width` characters."""
    check_columns(answers, [*_CELL, "index", "references", "prediction", "failure"], "samples")
    failed = answers[answers["failure"].notna() & (answers["failure"] != "complete")]
    failed = failed.assign(
        definition=failed["failure"].map(definitions()),
        asked=failed["references"].map(", ".join),
        written=failed["prediction"],
        order=failed["failure"].map(list(definitions()).index),
        turn=failed.groupby(["failure", "task"]).cumcount(),
    )
    failed[_TEXTS] = failed[_TEXTS].map(shorten, most=width)

    # the first answer of each task, then the second of each: so the first few are of other tasks
    failed = failed.sort_values(["order", "turn"], kind="stable")
    rows = failed.groupby("order").head(per_label)
    place = ["failure", "definition", "model", "task", "length", "index"]
    return rows[[*place, *_TEXTS]].reset_index(drop=True)

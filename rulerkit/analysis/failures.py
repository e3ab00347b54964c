"""What went wrong, counted (Section 5 of the paper): a label for each answer, from the example's
pieces and the answer.

`rk.answers_of(scores, labels=True)` gives each answer its label, `shares` counts them. The rules
stand in `failure_rules`; `remake` generates the examples again, which needs their tokenizer and
corpora.
"""

from collections.abc import Iterable, Mapping
from functools import partial

import pandas as pd

from rulerkit.analysis.failure_rules import definitions as definitions
from rulerkit.analysis.failure_rules import find_label
from rulerkit.analysis.remake import remaker
from rulerkit.common.settings import JSON
from rulerkit.generation.example import Example
from rulerkit.generation.tasks import recorded_task
from rulerkit.generation.tasks.base import JudgedAnswer
from rulerkit.scoring import scores as scoring
from rulerkit.scoring.statistics import wilson
from rulerkit.scoring.summary import texts_words
from rulerkit.store.cells import Cell
from rulerkit.store.places import check_columns

_CELL = ["run", "model", "label", "engine", "task", "category", "suite", "length"]
NoContext = Mapping[tuple[str, str, int, int], str]
"""(model, data set, seed, index) -> what was answered to the question alone."""


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
) -> dict[int, tuple[str, str]]:
    """Index -> the label of the answer, and what was seen. `made` keeps the examples by their
    digest, for the next cells of the same ones. Raises UserError where the examples cannot be made
    again."""
    result = cell.record["result"]
    settings = result["task"]
    dataset = str(settings.get("dataset", ""))
    seed = int(result["seed"] or 0)

    remake, judge = remaker(cell), recorded_task(settings)

    def example_of(row: JSON) -> Example:
        # rows of other programs have no digest
        digest = row.get("digest", "")
        if digest not in made:
            made[digest] = remake(row)
        return made[digest]

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
            make=partial(example_of, row),
            without_context=no_context.get(question),
        )
        # A wrong answer needs its example, also where the first rule that fits does not look at it:
        # else it would depend on the answers whether a cell of another tokenizer is refused.
        if answer.score < 1 and answer.text:
            _ = answer.example

        labels[row["index"]] = find_label(answer)
    return labels


# --- counts ---------------------------------------------------------------------------------------


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

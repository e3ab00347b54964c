"""What went wrong, counted (Section 5 of the paper): a label for each answer, from the example's
pieces and the answer.

`examples_of` generates the examples of a cell again from its record, which needs its tokenizer and
corpora. An answer gets one label, the first that fits in the order of LABELS.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pandas as pd

from rulerkit.common.errors import UserError, shorten
from rulerkit.common.progress import with_progress
from rulerkit.evaluation.study import Study
from rulerkit.generation.example import Example
from rulerkit.generation.generate import PROMPT_VERSION, Examples
from rulerkit.generation.prompt_format import SETTINGS, PromptFormat
from rulerkit.generation.tasks import FAMILIES, by_name, read_prompt
from rulerkit.generation.tasks.base import JudgedAnswer, Rule
from rulerkit.generation.tasks.niah import NEAR as NEAR
from rulerkit.scoring import scores as scoring
from rulerkit.scoring.statistics import wilson
from rulerkit.store.cells import Cell

_SHORTEST_COPY = 20
_COPIED_WORDS, _FEWEST_WORDS = 8, 4
_BEGINNING = 200
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "the a an and or of to in on at by for from with as is are was were be been it its this "
        "that these those he she they we you i not no yes so if but there here his her their our "
        "your my me him them us do does did has have had will",
    )
)
_DECLINED = re.compile(
    r"\bnot (?:found|mentioned|provided|given|stated|contained|available|specified)\b"
    r"|\b(?:cannot|can't|could not|couldn't|unable to) (?:find|answer|determine|provide)"
    r"|\bno (?:information|answer|mention|such)\b|\bdo(?:es)? not (?:know|mention|contain|provide)|\bdon't know\b",
    re.IGNORECASE,
)

_CELL = ["run", "model", "name", "engine", "task", "category", "length"]
COLUMNS = [*_CELL, "index", "label", "detail", "depth", "score", "pred", "references"]
NoContext = Mapping[tuple[str, str, int, int], str]
"""(model, data set, seed, index) -> what was answered to the question alone."""


def with_baselines(study: Study, wanted: bool = True) -> Study:
    """The study with the baselines of its tasks: common words without the demonstration, questions
    without context."""
    baselines = (
        [variant for task in study.tasks for variant in task.baselines()]
        if wanted
        else []
    )
    return replace(study, tasks=tuple(by_name([*study.tasks, *baselines]).values()))


def label(cells: Iterable[Cell], no_context: NoContext | None = None) -> pd.DataFrame:
    """A row per answer: COLUMNS. `name` is the model's label in tables; `depth` is that of the
    first needle missed (0 to 100), NaN where a task has none; `detail` says what was seen.

    Answers without context are taken from the cells themselves (tasks with `context: none`) unless
    they are given. Raises UserError where the examples of a cell with failures cannot be made
    again.
    """
    cells = list(cells)
    alone = no_context_answers(cells) if no_context is None else no_context
    rows = [
        row
        for cell in with_progress(cells, "cells")
        for row in _label_cell(cell, alone)
    ]
    labels = pd.DataFrame(rows, columns=COLUMNS)
    return labels.assign(name=scoring.own_labels(labels, "name"))


def no_context_answers(cells: Iterable[Cell]) -> NoContext:
    """What each model answered to questions alone, from the cells of tasks with `context: none`."""
    answers = {}
    for cell in cells:
        result = cell.record["result"]
        if result["task"].get("context") == "none":
            asked = (cell.model, str(result["task"]["dataset"]), int(result["seed"]))
            for row in cell.rows:
                text, _ = scoring.answer_of(row["pred"], cell.record)
                answers[*asked, int(row["index"])] = text
    return answers


def shares(labels: pd.DataFrame) -> pd.DataFrame:
    """How often each label came up: a row per run, model, task, length and label that occurs in
    `labels`, with count, n, share, low and high (0..1, Wilson's 95 % interval); labels that a cell
    has none of count 0."""
    kinds = [kind for kind in LABELS if kind in set(labels["label"])]
    rows = []
    for key, of_cell in labels.groupby(_CELL, sort=False)["label"]:
        n = len(of_cell)
        for kind in kinds:
            count = (of_cell == kind).sum()
            rows.append((*key, kind, count, n, count / n, *wilson(count / n, n)))
    return pd.DataFrame(
        rows, columns=[*_CELL, "label", "count", "n", "share", "low", "high"]
    )


def samples(labels: pd.DataFrame, per_label: int = 2, width: int = 100) -> pd.DataFrame:
    """A few answers of each label but `complete`, from different tasks where there are some: label,
    definition, model, task, length, index, asked (references), written, detail; texts cut at
    `width` characters."""
    failed = labels[labels["label"] != "complete"]
    failed = failed.assign(
        turn=failed.groupby(["label", "task"]).cumcount(),
        order=failed["label"].map(list(LABELS).index),
        definition=failed["label"].map(LABELS),
        asked=failed["references"].map(", ".join),
        written=failed["pred"],
    )
    texts = ["asked", "written", "detail"]
    failed[texts] = failed[texts].map(shorten, most=width)
    rows = (
        failed.sort_values(["order", "turn"], kind="stable")
        .groupby("order")
        .head(per_label)
    )
    about = ["label", "definition", "model", "task", "length", "index"]
    return rows[[*about, *texts]].reset_index(drop=True)


# --- rules ----------------------------------------------------------------------------------------


def _refused(answer: JudgedAnswer) -> str | None:
    match = _DECLINED.search(answer.text) if answer.score == 0 else None
    return match[0] if match else None


def _demonstration(answer: JudgedAnswer) -> str | None:
    if not answer.settings.get("demonstration"):
        return None
    shown = answer.example.text_of("demonstration")
    written = _squeezed(answer.text)
    stretch = len(written) >= _SHORTEST_COPY and written in _squeezed(shown)
    if stretch and written not in _squeezed(
        answer.example.context_text
    ):  # noise stands in both
        return written
    reading = read_prompt(answer.example.prompt)
    shown_answer = reading.demonstration.lower() if reading else ""
    items = {*re.findall(r"[^\W\d]\w*(?:-\w+)*", shown_answer)}
    copied = [word for word in dict.fromkeys(answer.words) if word in items]
    least = max(2, len(items) / 2) if len(items) > 1 else 1
    return " ".join(copied) if len(copied) >= least else None


def _beginning(answer: JudgedAnswer) -> str | None:
    words = _squeezed(answer.text).split()[:_COPIED_WORDS]
    quotes = (
        answer.settings.get("match") == "part"
    )  # an answer may be a few words of the text
    if len(words) < (_COPIED_WORDS if quotes else _FEWEST_WORDS):
        return None
    context = answer.example.context_text[: 20 * _BEGINNING]
    inputs = (answer.example.text_of("demonstration", "instruction") + context, context)
    beginnings = (_squeezed(" ".join(text.split()[:_BEGINNING])) for text in inputs)
    text = " ".join(words)
    return text if any(text in beginning for beginning in beginnings) else None


def _parametric(answer: JudgedAnswer) -> str | None:
    words = [word for word in answer.words if not word.isdigit()]
    known = all(
        word in _FUNCTION_WORDS or (len(word) == 1 and word.isalpha()) for word in words
    )
    return " ".join(dict.fromkeys(words)) if words and known else None


def _duplicated(answer: JudgedAnswer) -> str | None:
    if answer.settings.get("match") == "part" or len(answer.references) < 2:
        return None
    for reference in answer.references:
        if (
            len(
                re.findall(
                    rf"(?<!\w){re.escape(reference)}(?!\w)", answer.text, re.IGNORECASE
                )
            )
            > 1
        ):
            return reference
    return None


def _partial(answer: JudgedAnswer) -> str | None:
    written = len(answer.references) - len(answer.missing)
    return f"{written} of {len(answer.references)}" if written > 0 else None


def _squeezed(text: str) -> str:
    return " ".join(text.lower().split())


_FIRST_RULES = (
    Rule(
        "complete",
        "Everything asked for was written.",
        lambda answer: "" if answer.score == 1 else None,
    ),
    Rule(
        "cut in its thought",
        "The thought of a thinking model never ended, so there is no answer.",
        lambda answer: "" if answer.in_thought else None,
    ),
    Rule(
        "empty", "Nothing was written.", lambda answer: "" if not answer.text else None
    ),
    Rule(
        "refused", "The model declined, or said that the answer is not there.", _refused
    ),
    Rule(
        "copied demonstration",
        "The answer of the solved example, at least half of its items, or another stretch of it "
        "word for word.",
        _demonstration,
    ),
    Rule(
        "copied beginning",
        f"Its first {_COPIED_WORDS} words stand together in the first {_BEGINNING} words of the "
        "input or of its context.",
        _beginning,
    ),
    Rule(
        "parametric words",
        "Nothing but function words (the, an, a) or letters of the alphabet.",
        _parametric,
    ),
    Rule(
        "duplicated values",
        "A right answer stands there twice while another one is missing.",
        _duplicated,
    ),
)
_LAST_RULES = (
    Rule(
        "cut off",
        "The answer was cut at its last token, and none of the labels above fits.",
        lambda answer: "" if answer.finish_reason == "length" else None,
    ),
    Rule(
        "partial",
        "A part of what was asked for, and nothing wrong that is recognised.",
        _partial,
    ),
    Rule(
        "nothing recognised",
        "Nothing of what was asked for, and nothing that is recognised.",
        lambda answer: "",
    ),
)

_FAMILIES = {family.family: family for family in FAMILIES}
_FAMILY_RULES = [rule for family in FAMILIES for rule in family.failure_rules]
LABELS: dict[str, str] = {
    rule.label: rule.definition
    for rule in (*_FIRST_RULES, *_FAMILY_RULES, *_LAST_RULES)
}
"""Every label with its definition: those of all families, those of one family, and what is left."""


def find_label(answer: JudgedAnswer) -> tuple[str, str]:
    """The label of an answer, the first that fits, and what was seen."""
    family = _FAMILIES.get(answer.settings["family"])
    rules = (*_FIRST_RULES, *(family.failure_rules if family else ()), *_LAST_RULES)
    tests = ((rule.label, rule.test(answer)) for rule in rules)
    return next((label, detail) for label, detail in tests if detail is not None)


# --- one cell -------------------------------------------------------------------------------------


def examples_of(cell: Cell) -> Examples:
    """The examples of a cell, generated again from its record.

    Raises UserError where the record does not say all, or the tokenizer or a corpus is not here.
    """
    result = cell.record["result"]
    try:
        stored = result["prompt_format"]
        settings = {name: stored[name] for name in SETTINGS if name in stored}
        form = PromptFormat(result["tokenizer"]["name"], **settings)
        knobs = result["task"] | {"protocol": result["protocol"]}
        family = _FAMILIES[knobs["family"]]
        task = family(
            **{knob: knobs.get(knob) for knob in ("name", "protocol", *family.knobs())}
        )
        return Examples(
            task, int(result["length"]), cell.wanted, int(result["seed"]), form
        )
    except (KeyError, TypeError) as error:
        reason = f"the record does not say all ({type(error).__name__}: {error})"
        raise _not_generated(cell, reason) from error


def remaker(cell: Cell) -> Callable[[Mapping[str, Any]], Example]:
    """A function from a row of a cell to the example that it answers; raises UserError where its
    prompt comes out differently."""
    examples = cache(partial(examples_of, cell))

    def remake(row: Mapping[str, Any]) -> Example:
        example = examples()[row["index"]]
        if example.digest != row["digest"]:
            raise _not_generated(
                cell,
                f"the prompt of example {row['index']} comes out differently, so this rulerkit "
                f"(prompt version {PROMPT_VERSION}, the cell's "
                f"{cell.about.result.prompt_version}), the tokenizer or a corpus is not "
                "the one of then",
            )
        return example

    return remake


def _not_generated(cell: Cell, reason: str) -> UserError:
    return UserError(
        f"{cell.path}: its examples cannot be generated again to see what went wrong: {reason}; "
        "label it where it was made"
    )


def _label_cell(cell: Cell, alone: NoContext) -> Iterator[dict[Any, Any]]:
    """COLUMNS of each answer of a cell, and what else `score` says of it."""
    result = cell.record["result"]
    settings = result["task"]
    asked = (cell.model, str(settings.get("dataset", "")), int(result["seed"] or 0))
    remake, scores = remaker(cell), scoring.score([cell])
    for row, scored in zip(cell.rows, scores.to_dict("records"), strict=True):
        references = tuple(row["outputs"])
        text, is_cut = scoring.answer_of(row["pred"], cell.record)
        answer = JudgedAnswer(
            text,
            references,
            scored["score"],
            row.get("finish_reason", ""),
            is_cut,
            settings,
            partial(remake, row),
            alone.get((*asked, row["index"])),
        )
        if answer.score < 1 and answer.text:
            _ = (
                answer.example
            )  # raises where it cannot be generated, whichever rule fits
        kind, detail = find_label(answer)
        seen = {"name": scored["label"], "label": kind, "detail": detail}
        seen |= {"depth": _depth(answer, row.get("depths", ()))}
        yield scored | seen | {"pred": row["pred"], "references": references}


def _depth(answer: JudgedAnswer, depths: Sequence[float]) -> float:
    """Where the first needle missed stands; the first needle, where there is one or all were
    found."""
    if not depths:
        return float("nan")
    if len(depths) == 1 or answer.score == 1 or answer.settings.get("match") == "part":
        return float(depths[0])
    needles = [
        block for block in answer.example.context_blocks if block.role == "needle"
    ]
    for needle, depth in zip(needles, depths, strict=False):
        if needle.key in answer.missing or needle.value in answer.missing:
            return float(depth)
    return float(depths[0])

"""What went wrong, counted (Section 5 of the paper): a label for each answer, from the example's pieces and the answer.

Examples are functions, not files: `examples_of` makes those of a cell again from its record, where the tokenizer and the
corpora are at hand. An answer gets one label, the first that fits in the order of LABELS.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rulerkit import scoring
from rulerkit.errors import UserError
from rulerkit.failures.rules import RULES, Case, find
from rulerkit.generation import PROMPT_VERSION, Examples
from rulerkit.inference.cells import Cell
from rulerkit.prompt_format import PromptFormat
from rulerkit.statistics import wilson
from rulerkit.studies import Study
from rulerkit.tasks import FAMILIES, Task
from rulerkit.tasks.common_words import CommonWords
from rulerkit.tasks.question_answering import QuestionAnswering
from rulerkit.tokenizers import load_tokenizer

if TYPE_CHECKING:
    import pandas as pd

LABELS: dict[str, str] = {rule.label: rule.definition for rule in RULES}
"""Every label with its definition, in the order in which they are tried."""

COLUMNS = [
    *("run", "model", "name", "engine", "task", "category", "length", "index"),
    *("label", "detail", "depth", "score", "pred", "references"),
]
NoContext = Mapping[tuple[str, str, int, int], str]
"""(model, data set, seed, index) -> what was answered to the question alone."""


def with_baselines(study: Study, wanted: bool = True) -> Study:
    """The study with each common words task asked without its demonstration too, and each question without context."""
    tasks = list(study.tasks)
    for task in study.tasks if wanted else ():
        if isinstance(task, CommonWords) and task.demonstration:
            tasks.append(replace(task, demonstration=False, name=f"{task.name}-demonstration_False"))
        if isinstance(task, QuestionAnswering) and task.context != "none":
            tasks.append(replace(task, context="none", name=f"{task.name}-context_none"))
    return replace(study, tasks=tuple({task.name: task for task in tasks}.values()))


def label(cells: Iterable[Cell], no_context: NoContext | None = None) -> "pd.DataFrame":
    """A row per answer: COLUMNS. `name` is the model's label in tables; `depth` is that of the first needle missed (0 to
    100), NaN where a task has none; `detail` says what was seen.

    Answers without context are taken from the cells themselves (tasks with `context: none`) unless they are given.
    Raises UserError where the examples of a cell with failures cannot be made again.
    """
    import pandas as pd

    cells = list(cells)
    alone = no_context_answers(cells) if no_context is None else no_context
    rows = [row for cell in cells for row in _label_cell(cell, alone)]
    return pd.DataFrame(rows, columns=COLUMNS)


def no_context_answers(cells: Iterable[Cell]) -> NoContext:
    """What each model answered to questions alone, from the cells of tasks with `context: none`."""
    found = {}
    for cell in cells:
        task = cell.record["result"]["task"]
        if task.get("context") == "none":
            for row in cell.rows:
                text = scoring.clean(row["pred"], _thinking(cell))
                found[cell.model, str(task["dataset"]), int(cell.record["result"]["seed"]), int(row["index"])] = text
    return found


def shares(labels: "pd.DataFrame", confidence: float = 0.95) -> "pd.DataFrame":
    """How often each label came up: a row per run, model, task, length and label that occurs in `labels`, with count, n,
    share, low and high (0..1, Wilson's interval); labels that a cell has none of count 0."""
    import pandas as pd

    kinds = [kind for kind in LABELS if kind in set(labels["label"])]
    rows = []
    for key, own in labels.groupby(_CELL, sort=False):
        for kind in kinds:
            count, n = int((own["label"] == kind).sum()), len(own)
            rows.append((*key, kind, count, n, count / n, *wilson(count / n, n, confidence)))
    return pd.DataFrame(rows, columns=[*_CELL, "label", "count", "n", "share", "low", "high"])


def samples(labels: "pd.DataFrame", per_label: int = 2, width: int = 100) -> "pd.DataFrame":
    """A few answers of each label but `complete`, from different tasks where there are some: label, definition, model,
    task, length, index, asked (references), written, detail; texts cut at `width` characters."""
    import pandas as pd

    failed = labels[labels["label"] != "complete"]
    failed = failed.assign(turn=failed.groupby(["label", "task"]).cumcount())
    chosen = [failed[failed["label"] == kind].sort_values("turn", kind="stable").head(per_label) for kind in LABELS]
    rows = pd.concat(chosen)
    return pd.DataFrame(
        {
            "label": rows["label"],
            "definition": rows["label"].map(LABELS),
            **{column: rows[column] for column in ("model", "task", "length", "index")},
            "asked": [_short(", ".join(texts), width) for texts in rows["references"]],
            "written": [_short(text, width) for text in rows["pred"]],
            "detail": [_short(text, width) for text in rows["detail"]],
        }
    ).reset_index(drop=True)


_CELL = ["run", "model", "name", "engine", "task", "category", "length"]


# --- examples again ---------------------------------------------------------------------------------------------------


def examples_of(cell: Cell) -> Examples:
    """The examples of a cell, made again from its record.

    Raises UserError where prompts were made by another version, or the tokenizer or a corpus is not at hand or another.
    """
    result = cell.record["result"]
    if result.get("prompt_version") != PROMPT_VERSION:
        raise _lost(
            cell, f"its prompts are of version {result.get('prompt_version')}, this rulerkit makes {PROMPT_VERSION}"
        )
    try:
        tokenizer = load_tokenizer(result["tokenizer"]["name"])
        if tokenizer.fingerprint != result["tokenizer"]["fingerprint"]:
            raise _lost(cell, f"the tokenizer {tokenizer.name} is another one now")
        known = [each.name for each in fields(PromptFormat) if each.name != "tokenizer"]
        settings = {name: value for name, value in result["prompt_format"].items() if name in known}
        task = _task(result["task"] | {"protocol": result.get("protocol", "clean")})
        form = PromptFormat(tokenizer, **settings)
        examples = Examples(task, int(result["length"]), cell.wanted, int(result["seed"]), form)
        now = {knob: source.fingerprint for knob, source in task.sources().items()}
    except (KeyError, TypeError) as error:
        raise _lost(cell, f"its record does not say all ({type(error).__name__}: {error})") from error
    then = {knob: source["fingerprint"] for knob, source in result["sources"].items()}
    if changed := [knob for knob in then if now.get(knob) != then[knob]]:
        raise _lost(cell, f"the corpus of {', '.join(changed)} is another one now")
    if cell.rows and examples[cell.rows[0]["index"]].digest != cell.rows[0]["digest"]:
        raise _lost(cell, f"the prompt of example {cell.rows[0]['index']} comes out differently")
    return examples


def _task(settings: Mapping[str, Any]) -> Task:
    family = next((each for each in FAMILIES if each.family == settings["family"]), None)
    if family is None:
        raise KeyError(f"family {settings['family']!r}")
    knobs = [each.name for each in fields(family)]
    return family(**{knob: settings[knob] for knob in knobs})


def _lost(cell: Cell, why: str) -> UserError:
    return UserError(
        f"{cell.path}: its examples cannot be made again to see what went wrong: {why}; label it where it was made"
    )


# --- one cell ---------------------------------------------------------------------------------------------------------


class _Maker:
    """Makes the examples of a cell when the first of them is asked for."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.examples: Examples | None = None

    def __call__(self, index: int) -> Any:
        if self.examples is None:
            self.examples = examples_of(self.cell)
        return self.examples[index]


def _label_cell(cell: Cell, alone: NoContext) -> list[list[Any]]:
    about = scoring.describe(cell)
    judged = scoring.score([cell])
    result, make = cell.record["result"], _Maker(cell)
    dataset, seed = str(result["task"].get("dataset", "")), int(result.get("seed") or 0)
    settings = {"family": "", **result["task"]}
    head = [about[key] for key in ("run", "model", "label", "engine", "task", "category", "length")]
    rows = []
    for row, value in zip(cell.rows, judged["score"], strict=True):
        index = int(row["index"])
        case = Case(
            scoring.clean(row["pred"], _thinking(cell)),
            tuple(row["outputs"]),
            float(value),
            row["finish_reason"],
            _thinking(cell) and scoring.cut_thought(row["pred"]),
            settings,
            partial(make, index),
            alone.get((cell.model, dataset, seed, index)),
        )
        if case.score < 1 and case.text:
            _ = case.example  # so that what cannot be made again is said whatever rule would have needed it
        kind, detail = find(case)
        rows.append([*head, index, kind, detail, _depth(case, row), case.score, row["pred"], case.references])
    return rows


def _depth(case: Case, row: Mapping[str, Any]) -> float:
    """Where the first needle missed stands; the first needle, where there is one or all were found."""
    depths = row["depths"]
    if not depths:
        return float("nan")
    if len(depths) == 1 or case.score == 1 or case.family == "question_answering":
        return float(depths[0])
    blocks = [b for b in case.example.blocks[slice(*case.example.context)] if b.role == "needle"]
    missed = (d for b, d in zip(blocks, depths, strict=False) if {b.key, b.value} & {*case.missing})
    return float(next(missed, depths[0]))


def _thinking(cell: Cell) -> bool:
    return bool(cell.record["result"].get("prompt_format", {}).get("thinking_tokens", 0) > 0)


def _short(text: str, width: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"

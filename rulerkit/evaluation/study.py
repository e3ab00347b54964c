"""Studies: what is asked of which models, read from YAML files, papermill or a notebook's first
cells and checked once.

Top-level keys are notebook parameters, as papermill takes them with `-f`; several files compose,
later ones win. A model file holds one key, `model:`. Unknown keys, and strings where lists belong,
are errors.
"""

import ast
import json
import math
import os
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.common.errors import UserError, check_known, listed, remark, shortened
from rulerkit.common.escape import csv_text, latex_text
from rulerkit.common.paths import cell_file, home, project_files, resolve, resolve_file
from rulerkit.common.settings import JSON, Parameters, Spec, check, read_spec, read_yaml
from rulerkit.generation.corpora import choices, refresh
from rulerkit.generation.tasks import THIRTEEN, Task, by_name
from rulerkit.generation.tasks import task as make_task
from rulerkit.generation.tasks.base import PROTOCOLS
from rulerkit.inference.model import Model
from rulerkit.scoring.stopping import StoppingRule, threshold_of
from rulerkit.store.files import disk

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BATCH_KEYS = {"notebooks", "together"}
"""The keys of a batch file by which one is told from other parameter files."""
DEFAULT_EXAMPLES = 20
"""Of each cell, where a study cannot be adaptive."""
_LONGEST_TITLE = 80


@dataclass(frozen=True)
class Study:
    """The checked parameters of one notebook or one call of `rulerkit evaluate`."""

    notebook: str
    models: tuple[JSON | Model, ...]
    tasks: tuple[Task, ...]
    lengths: tuple[int, ...]
    num_examples: int
    """Of each cell; of an adaptive run at most."""
    seed: int
    run: str
    corpora: str
    """`builtin` or `original`: the corpora that are no files of the user's."""
    protocol: str
    outputs: Path
    repeat: int = 1
    """How many times each model answers everything; a greedy model that is batched need not say the
    same twice."""
    max_failures: float = 0
    """How many examples of a cell, as a share below 1 or a number, may fail so that a mean is taken
    over the rest."""
    soft: bool = False
    """Whether the probability of the right answer is stored too."""
    adaptive: StoppingRule | None = None
    """Gives each cell only the examples that its question needs."""
    ask: bool = True
    """Whether models may be asked; else `evaluate` returns what is stored."""

    @property
    def folders(self) -> list[Path]:
        """Where the predictions of each repetition lie: `<run>`, `<run>-repeat2`, ..."""
        repeats = ["", *(f"-repeat{number}" for number in range(2, self.repeat + 1))]
        return [Path(f"{self.predictions}{repeat}") for repeat in repeats]

    @property
    def predictions(self) -> Path:
        """Where the predictions of this run lie: one folder per model below it."""
        return self.outputs / "predictions" / self.run

    def cells(self) -> Iterator["StudyCell"]:
        """Every cell that the study asks for: by length, repetition, model and task."""
        for length, folder, model, task in product(
            self.lengths, self.folders, self.models, self.tasks
        ):
            name = name_of(model)
            path = cell_file(folder, name, task.name, length)
            yield StudyCell(name, path, task, length)

    @cached_property
    def title(self) -> str:
        """The names of the models, fit for a file name: of many the first, and a digest of all."""
        joined = "+".join(name_of(model) for model in self.models)
        if len(joined) <= _LONGEST_TITLE:
            return joined
        first = joined[: _LONGEST_TITLE - 10]
        first = first.rpartition("+")[0] or first
        return f"{first}+etc-{sha256(joined.encode()).hexdigest()[:5]}"

    def save_table(
        self,
        table: "str | pd.DataFrame",
        name: str = "",
        suffix: str = ".md",
        latex: "pd.DataFrame | None" = None,
        notes: Iterable[str] = (),
    ) -> Path:
        """Write a table; the file is named after the models it shows, and `name`.

        A DataFrame is written without its index as CSV and, where it has rows, as LaTeX (booktabs)
        with `notes` below: whole, or what of it is fit to print, `latex`.
        """
        if not isinstance(table, str):
            if table.empty:  # an older one would be of other data
                self._place("tables", name, ".tex").unlink(missing_ok=True)
            else:
                text = latex_text(table if latex is None else latex, notes)
                self.save_table(text, name, ".tex")
            table, suffix = csv_text(table), ".csv"
        path = self._place("tables", name, suffix)
        with disk(path):
            path.write_text(table, encoding="utf-8", errors="backslashreplace")
        return path

    def save_figure(self, figure: "Figure | Axes", name: str = "") -> list[Path]:
        """Write a figure as PDF and PNG (200 dots an inch); takes a figure or one of its axes."""
        whole: Any = getattr(figure, "figure", figure)
        paths = [self._place("figures", name, suffix) for suffix in (".pdf", ".png")]
        for path in paths:
            with disk(path):
                whole.savefig(path, dpi=200)
        return paths

    def _place(self, kind: str, name: str, suffix: str) -> Path:
        file = "-".join(part for part in (self.title, name) if part) + suffix
        folder = self.outputs / kind / self.run / (self.notebook or "evaluate")
        with disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder / file


class StudyCell(NamedTuple):
    """One model on one task at one length, and the file of its answers."""

    model: str
    path: Path
    task: Task
    length: int


class Bill(NamedTuple):
    """What all prompts of one length cost, at most: tokens, and dollars where prices are known."""

    length: int
    prompt_tokens: int
    answer_tokens: int
    dollars: float | None


def bills(study: Study, spec: Spec) -> list[Bill]:
    """A bill for each length that a model takes: every prompt fills its length, every answer and
    thought is as long as it may be, and nothing is cached.

    `spec` is the model's mapping; `prices` in it are dollars for a million tokens.
    """
    prices = spec.get("prices")
    examples_of_task = study.num_examples * study.repeat
    num_examples = examples_of_task * len(study.tasks)
    answers = examples_of_task * sum(task.answer_tokens for task in study.tasks)
    thoughts = num_examples * spec.get("thinking_tokens", 0)

    # Answers are inside the length, and thoughts only where the model's file says so.
    inside = answers
    if spec.get("thinking_room") == "inside":
        inside += thoughts

    rows = []
    for length in study.lengths:
        if length > spec.get("max_length", math.inf):
            continue
        prompts = num_examples * length - inside
        written = answers + thoughts
        dollars = None
        if prices:
            cost = prompts * prices["prompt"] + written * prices["completion"]
            dollars = cost / 1e6
        rows.append(Bill(length, prompts, written, dollars))
    return rows


def study(
    source: Spec | None = None,
    notebook: str = "",
    complete: bool | None = None,
    **parameters: Any,
) -> Study:
    """The study that parameters describe.

    `complete`: cells need all their examples, which is so in a notebook unless it says otherwise;
    then, and where the tasks have no effective length, an adaptive run becomes one of
    `DEFAULT_EXAMPLES`.

    `source` is a notebook's `globals()` or a dict of parameters; `parameters` win over it. In a
    notebook only known names are read, and what papermill injected beside them is an error that
    lists the known ones.
    """
    source = source or {}
    in_notebook = (
        "In" in source and "get_ipython" in source
    )  # beside much that is no parameter
    _check_names([*(_injected(source["In"]) if in_notebook else source), *parameters])
    given = dict(source) | parameters
    values = check(
        Parameters,
        {name: given[name] for name in Parameters.model_fields if name in given},
    )
    models = values.models or ([] if given.get("model", "") is None else [values.model])
    tasks = [
        _task_of_study(spec, values).with_corpora(values.corpora)
        for spec in values.tasks or THIRTEEN
    ]
    for task in tasks:
        for kind, knob in task.corpora:
            refresh(kind, getattr(task, knob))
    adaptive, num_examples = None, values.num_examples
    if num_examples == "adaptive":
        asked = (
            {}
            if values.question == "effective length"
            else values.question.model_dump()
        )
        reason = ""
        if complete or (complete is None and notebook):
            reason = f"{notebook or 'this study'} compares complete cells"
        elif not asked and threshold_of({task.name for task in tasks}, "chat") is None:
            reason = (
                "these tasks have no effective length, which needs the thirteen, a category or the "
                "small protocol (question: {average: 2} asks for another thing)"
            )
        num_examples = DEFAULT_EXAMPLES if reason else values.max_examples
        if reason:
            remark(
                f"num_examples: adaptive becomes {num_examples} for each cell: {reason}"
            )
        else:
            adaptive = StoppingRule(values.confidence, values.max_examples, **asked)
    return Study(
        notebook=notebook,
        models=_checked_models(expand(models)),
        tasks=tuple(by_name(tasks).values()),
        lengths=tuple(sorted(set(values.lengths))),
        outputs=resolve(values.outputs),
        corpora=choices(values.corpora)["base"],
        num_examples=int(num_examples),
        adaptive=adaptive,
        **values.model_dump(
            include={"seed", "run", "protocol", "repeat", "max_failures", "soft", "ask"}
        ),
    )


def check_lists(known: Collection[str] = (), **values: Any) -> None:
    """Raises UserError for a parameter of a notebook's own that should be a list and is none: of a
    text a cell would take the letters one by one. `known`: what may stand in it."""
    for name, value in values.items():
        if not isinstance(value, list | tuple):
            raise UserError(
                f"{name}: {shortened(value)} is not allowed; it takes a list in brackets, such as "
                f"`{name}: [FIRST, SECOND]`"
            )
        for entry in value if known else ():
            check_known(f"entry of {name}", entry, known)


def _task_of_study(spec: Any, values: Parameters) -> Task:
    """A task under the study's protocol. Its own edition must be that of the protocol, or the
    study's `edition`."""
    edition = values.edition or PROTOCOLS[values.protocol]
    if isinstance(spec, Task):
        usual = spec.edition == PROTOCOLS[spec.protocol]
        made = spec.with_protocol(values.protocol, edition if usual else spec.edition)
    else:
        made = make_task(spec, values.protocol, values.edition)
    if made.edition != edition:
        raise UserError(
            f"the task {made.name} has edition {made.edition}, the study {edition} (protocol "
            f"{values.protocol}): one study has one edition; set `edition: {made.edition}` for all "
            "its tasks, or leave the task's edition out"
        )
    return made


def _checked_models(specs: list[Any]) -> tuple[JSON | Model, ...]:
    """Checked specs, and models that were made in Python; each has another name."""
    models = [spec if isinstance(spec, Model) else read_spec(spec) for spec in specs]
    names = [name_of(model) for model in models]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UserError(
            f"models: {', '.join(sorted(repeated))} named twice: give each another `name:`"
        )
    return tuple(models)


def load_files(files: Iterable[str | Path]) -> JSON:
    """The parameters of several YAML files, later ones over earlier ones."""
    merged: JSON = {}
    for name in files:
        content = read_yaml(resolve_file(name))
        _check_names(content, str(name))
        merged |= content
    return merged


def expand(models: Iterable[Any]) -> list[Any]:
    """Names, paths and mappings of models, with each glob replaced by the folders and model files
    that it matches: `checkpoints/*`, or the `path` of a mapping, whose other keys each of them
    gets."""
    specs: list[Any] = []
    for spec in models:
        pattern = spec.get("path") if isinstance(spec, dict) else spec
        if not isinstance(pattern, str) or not re.search(r"[*?\[]", pattern):
            specs.append(spec)
            continue
        files = (".yaml", ".yml") if pattern is spec else (".pth",)
        chosen, others = list[str](), list[str]()
        for path in sorted(glob(str(resolve(pattern)))):
            is_model = os.path.isdir(path) or path.endswith(files)
            (chosen if is_model else others).append(path)
        if not chosen:
            raise UserError(
                f"models: nothing matches {pattern!r} below {home()} that could be a model; give a "
                "name, a path or another pattern"
            )
        if others:
            names = listed(map(os.path.basename, others), 5)
            remark(f"models: {pattern} leaves out {names}: no model folder")
        specs += (
            chosen if pattern is spec else [{**spec, "path": path} for path in chosen]
        )
    return specs


def known_names() -> list[str]:
    """The parameters that some notebook or `evaluate` knows: those of `settings` and of all
    notebooks here."""
    names = dict.fromkeys(Parameters.model_fields)
    for path in project_files("notebooks", ".ipynb").values():
        names |= dict.fromkeys(notebook_parameters(path))
    return list(names)


class NotebookCell(NamedTuple):
    """The source of a code cell, and its tags."""

    source: str
    tags: tuple[str, ...]

    def has(self, tag: str) -> bool:
        return tag in self.tags


def read_notebook(path: Path) -> list[NotebookCell]:
    """The code cells of a notebook."""
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        return [
            NotebookCell(
                "".join(cell["source"]), tuple(cell.get("metadata", {}).get("tags", []))
            )
            for cell in cells
            if cell["cell_type"] == "code"
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} cannot be read as a notebook: {error}; repair it, move it out of {path.parent}, "
            "or, where it has another name now, let `rulerkit batch` plan it again"
        ) from error


def notebook_parameters(path: Path) -> list[str]:
    """The names that the cell tagged `parameters` of a notebook sets."""
    names = []
    for cell in read_notebook(path):
        if not cell.has("parameters"):
            continue
        try:
            names += _assigned(cell.source)
        except SyntaxError as error:
            raise UserError(
                f"{path}: the cell tagged `parameters` must hold `name = value` lines: line "
                f"{error.lineno}: {error.msg}"
            ) from error
    return names


def _check_names(names: Collection[str], where: str = "") -> None:
    if not BATCH_KEYS.isdisjoint(names):
        raise UserError(
            f"{where or 'this'} is a batch file: `rulerkit batch FILE` runs it, `rulerkit batch FILE "
            "--dry-run` lists what it asks; files of parameters are taken here, such as -f "
            "params/models/llama-3.1-8b.yaml -f params/sizes/paper.yaml"
        )
    allowed = known_names()
    for name in names:
        check_known(f"parameter{' in ' + where if where else ''}", name, allowed)


def _injected(cells: list[str]) -> list[str]:
    """The names that papermill set: those of the executed cells that it marks with `#
    Parameters`."""
    return [
        name
        for cell in cells
        if cell.startswith("# Parameters\n")
        for name in _assigned(cell)
    ]


def _assigned(source: str) -> list[str]:
    """The names that lines such as `a = 1` and `a: int = 1` set."""
    names = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return [name.id for name in names if isinstance(name.ctx, ast.Store)]


def name_of(model: Any) -> str:
    """The name of a model, made or described."""
    return str(model["name"] if isinstance(model, dict) else model.name)

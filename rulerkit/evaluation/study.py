"""Studies: what is asked of which models, read from YAML files, papermill or a notebook's first
cells, and checked once. `study` makes a `Study`.

Top-level keys are notebook parameters, as papermill takes them with `-f`; several files compose,
later ones win. A model file holds one key, `model:`. Unknown keys, and strings where lists belong,
are errors.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.common.errors import UserError, check_known, remark, shortened, unknown
from rulerkit.common.json_text import digest
from rulerkit.common.model_files import read_spec
from rulerkit.common.paths import cell_file, resolve, resolve_file
from rulerkit.common.plugins import load_plugins
from rulerkit.common.settings import JSON, Parameters, Spec, check
from rulerkit.common.yaml_files import read_yaml
from rulerkit.generation.corpora import KINDS, load
from rulerkit.generation.tasks import Task, each_once, without_suites
from rulerkit.generation.tasks import task as make_task
from rulerkit.inference.model import Model, with_server
from rulerkit.scoring.effective_length import threshold_of
from rulerkit.store.files import disk

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rulerkit.scoring.adaptive import StoppingRule

DEFAULT_EXAMPLES = 20
"""Of each cell, where a study cannot be adaptive."""
BATCH_KEYS = {"notebooks", "together"}
"""The keys of a batch file by which one is told from other parameter files."""
_LONGEST_TITLE = 40
_WHO_ANSWERS = {"base", "engine", "path", "entry", "window"}
"""Keys of which the mapping of a model has one."""


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
    outputs: Path
    max_failures: float = 0
    """How many examples of a cell, as a share below 1 or a number, may fail so that a mean is taken
    over the rest."""
    adaptive: "StoppingRule | None" = None
    """Gives each cell only the examples that its effective length needs."""
    ask: bool = True
    """Whether models may be asked; else `evaluate` returns what is stored."""
    plugins: tuple[str, ...] = ()
    """The modules that bring tasks or engines, where they were named."""

    @property
    def predictions(self) -> Path:
        """Where the predictions of this run lie: one folder per model below it."""
        return self.outputs / "predictions" / self.run

    def cells(self) -> Iterator["StudyCell"]:
        """Every cell that the study asks for: by length, model and task."""
        predictions = self.predictions
        for length, model, task in product(self.lengths, self.models, self.tasks):
            name = name_of(model)
            yield StudyCell(name, cell_file(predictions, name, task.name, length), task, length)

    @cached_property
    def title(self) -> str:
        """The names of the models, fit for a file name: of many the first, and a digest of all."""
        names = [name_of(model) for model in self.models]
        joined = "+".join(names)
        if len(joined) <= _LONGEST_TITLE or len(names) == 1:
            return joined
        return f"{names[0]}+etc-{digest(joined)[:5]}"

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
        with `notes`: whole, or what of it is fit to print, `latex`. LaTeX is two files, the table
        and its notes.
        """
        from rulerkit.common.escape import csv_text
        from rulerkit.common.render import render, table_files

        if not isinstance(table, str):
            # An older one would be of other data.
            for old in table_files(self._place("tables", name, ".tex"), ""):
                old.unlink(missing_ok=True)
            if not table.empty:
                text = render(table if latex is None else latex, "latex", list(notes))
                self.save_table(text, name, ".tex")
            table, suffix = csv_text(table), ".csv"
        path = self._place("tables", name, suffix)
        for file, text in table_files(path, table).items():
            with disk(file):
                file.write_text(text, encoding="utf-8", errors="backslashreplace")
        return path

    def save_figure(self, figure: "Figure | Axes", name: str = "") -> list[Path]:
        """Write a figure as PDF and PNG (200 dots an inch), and its caption as plain text and
        LaTeX; takes a figure or one of its axes. What it was made from stands in the files too:
        notebook, models, run, date and version."""
        from rulerkit import __version__
        from rulerkit.common.escape import latex

        whole: Any = getattr(figure, "figure", figure)
        labels = []
        for model in self.models:
            given = model.get("label") if isinstance(model, dict) else model.label
            labels.append(given or name_of(model))
        # `01_main_results` and `tasks` are "Main results, tasks".
        names = [re.sub(r"^\d+_", "", self.notebook), name]
        words = ", ".join(one.replace("_", " ") for one in names if one)
        title = ": ".join(filter(None, [words[:1].upper() + words[1:], ", ".join(labels)]))
        made = f"run {self.run}, {datetime.now(UTC):%Y-%m-%d}, rulerkit {__version__}"
        notes = whole.get_supxlabel().replace("\n", " ")
        caption = f"{title}. {notes[:1].upper()}{notes[1:]}{'.' if notes else ''}".strip()

        pdf, png, txt, tex = (
            self._place("figures", name, suffix) for suffix in (".pdf", ".png", ".txt", ".tex")
        )
        about = {"Title": title, "Subject": made}
        with disk(pdf):
            whole.savefig(pdf, dpi=200, metadata=about)
            whole.savefig(png, dpi=200, metadata=about)
            txt.write_text(caption + "\n", encoding="utf-8")
            tex.write_text(latex(caption) + "\n", encoding="utf-8")
        return [pdf, png]

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


def study(
    source: Any = None, notebook: str = "", complete: bool | None = None, **parameters: Any
) -> Study:
    """The study that parameters describe, or that of a model: `study("reader-4096", tasks=["vt"])`.

    `complete`: cells need all their examples, which is so in a notebook unless it says otherwise;
    then, and where the tasks have no effective length, an adaptive run becomes one of
    `DEFAULT_EXAMPLES`.

    `source` is a notebook's `globals()`, a dict of parameters, or a model or a list of
    models, as `model` and `models` take them; `parameters` win over it. In a notebook
    only known names are read, and what papermill injected beside them is an error that lists the
    known ones.
    """
    given = _with_source(source, parameters)
    check_used(parameters, given, Parameters.model_fields, "a study")
    known = {name: given[name] for name in Parameters.model_fields if name in given}
    values = check(Parameters, known)
    load_plugins(values.plugins)

    # `model: null` and no `models` is a study of tasks alone.
    models = values.models or [values.model]
    if not values.models and "model" in given and given["model"] is None:
        models = []
    checked = [spec if isinstance(spec, Model) else read_spec(with_server(spec)) for spec in models]
    names = [name_of(model) for model in checked]
    if repeated := {name for name in names if names.count(name) > 1}:
        raise UserError(
            f"models: {', '.join(sorted(repeated))} named twice: give each another `name:`"
        )

    named = [values.tasks] if isinstance(values.tasks, str) else values.tasks
    tasks = each_once(
        make_task(spec, values.protocol).with_corpora(values.corpora)
        for spec in without_suites(named or ["ruler"])
    )
    for task in tasks:
        for kind, setting in task.corpora:
            name = getattr(task, setting)
            if name not in KINDS[kind]:
                load(kind, name)  # what is wrong with the user's files is said first

    rule, num_examples = None, values.num_examples
    if num_examples == "adaptive":
        rule = _adaptive_rule(values, tasks, notebook, complete)
        num_examples = values.max_examples if rule else DEFAULT_EXAMPLES
    return Study(
        notebook=notebook,
        models=tuple(checked),
        tasks=tasks,
        lengths=tuple(sorted(set(values.lengths))),
        num_examples=num_examples,
        seed=values.seed,
        run=values.run,
        outputs=resolve(values.outputs),
        max_failures=values.max_failures,
        adaptive=rule,
        ask=values.ask,
        plugins=tuple(values.plugins),
    )


def _with_source(source: Any, parameters: JSON) -> JSON:
    """The parameters over those that stand before them: a mapping of parameters, or the name of a
    model, a model or a list of these."""
    if source is None:
        return parameters
    if isinstance(source, Mapping) and not _is_model(source):
        names: Collection[str] = source
        # The names of a notebook, or of a script that was one, are many: of those only what
        # papermill set is checked.
        if "__name__" in source:
            from rulerkit.evaluation.notebook import injected_names

            names = injected_names(source.get("In", []))
        check_names(names)
        return dict(source) | parameters

    if {"model", "models"} & parameters.keys():
        raise UserError(
            f"two models are named: {shortened(source)}, and one as model= or models=: leave one "
            "of the two out"
        )
    if isinstance(source, list | tuple | Iterator):
        return {"models": list(source), **parameters}
    return {"model": source, **parameters}


def _is_model(source: Spec) -> bool:
    """Whether a mapping describes a model: it says who answers, and is no notebook's names."""
    says_who = not _WHO_ANSWERS.isdisjoint(source)
    return says_who and {"__name__", *Parameters.model_fields}.isdisjoint(source)


def _adaptive_rule(
    values: Parameters, tasks: tuple[Task, ...], notebook: str, complete: bool | None
) -> "StoppingRule | None":
    """The rule of an adaptive run; None for a study that cannot be adaptive, and stderr says
    why."""
    from rulerkit.scoring.adaptive import StoppingRule

    names = tuple(task.name for task in tasks)
    own_thresholds = {task.threshold for task in tasks}
    own_threshold = own_thresholds.pop() if len(own_thresholds) == 1 else None
    threshold = threshold_of(names, "chat", own_threshold)
    reason = ""
    if complete or (complete is None and notebook):
        reason = f"{notebook or 'this study'} compares complete cells"
    elif threshold is None:
        reason = (
            "these tasks have no common threshold: the thirteen have one, each of their "
            "categories, and families that bring their own"
        )
    if reason:
        remark(f"num_examples: adaptive becomes {DEFAULT_EXAMPLES} for each cell: {reason}")
        return None
    return StoppingRule(max_examples=values.max_examples, tasks=names, own_threshold=own_threshold)


def load_files(files: str | Path | Iterable[str | Path]) -> JSON:
    """The parameters of a YAML file, or of several, later ones over earlier ones."""
    merged: JSON = {}
    for name in [files] if isinstance(files, str | Path) else files:
        content = read_yaml(resolve_file(name))
        check_names(content, str(name))
        merged |= content
    return merged


def name_of(model: Any) -> str:
    """The name of a model, made or described."""
    return str(model["name"] if isinstance(model, dict) else model.name)


# --- names of parameters --------------------------------------------------------------------------


def check_names(names: Collection[str], where: str = "") -> None:
    """Raise a `UserError` for a name that is no parameter of a study or of a notebook, and for a
    batch file given as parameters. `where` is the file that holds the names, for the message."""
    if not BATCH_KEYS.isdisjoint(names):
        raise UserError(
            f"{where or 'this'} is a batch file: `rulerkit batch FILE` runs it, `rulerkit batch "
            "FILE --dry-run` lists what it asks; files of parameters are taken here, such as -f "
            "params/models/llama-3.1-8b.yaml -f params/sizes/paper.yaml"
        )
    others = [name for name in names if name not in Parameters.model_fields]
    if not others:
        return

    # Notebooks are read only where a name is none of a study's.
    from rulerkit.evaluation.notebook import known_names

    known = known_names()
    for name in others:
        if name not in known:
            # Those of single notebooks are many: of them the likeliest is named.
            near = get_close_matches(name, known, n=1)
            what = f"parameter in {where}" if where else "parameter"
            hint = "Notebooks take further ones: docs/reference.md lists all"
            raise unknown(what, name, dict.fromkeys([*near, *Parameters.model_fields]), hint)


def check_used(given: Spec, values: Spec, uses: Collection[str], who: str, also: str = "") -> None:
    """Raise a `UserError` for a parameter among those `given` that `who`, a command or a function,
    does not use. `uses` are those that it does; `values` are all that hold there, also those of
    files, which may be shared by several commands. `also` is what else it takes, in words."""
    for name in given:
        check_known("parameter", name, uses, f"{who[:1].upper()}{who[1:]} uses these{also}")
    if given.get("max_examples") is not None and values.get("num_examples") != "adaptive":
        raise UserError(
            "max_examples is for adaptive runs, and the number of examples is fixed here: give "
            "`num_examples: adaptive` too, or leave it out"
        )

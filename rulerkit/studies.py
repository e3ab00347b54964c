"""The checked parameters of one question, and where its results lie."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rulerkit.errors import UserError
from rulerkit.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rulerkit.models import Model

_LONGEST_TITLE = 80


@dataclass(frozen=True)
class Study:
    """The checked parameters of one notebook or one call of `rulerkit evaluate`."""

    notebook: str
    models: tuple["dict[str, Any] | Model", ...]
    tasks: tuple[Task, ...]
    lengths: tuple[int, ...]
    num_examples: int
    seed: int
    run: str
    corpora: str
    outputs: Path
    repeat: int = 1
    """How many times each model answers everything; a greedy model that is batched need not say the same twice."""

    @property
    def folders(self) -> list[Path]:
        """Where the predictions of each repetition lie: `<run>`, `<run>-repeat2`, ..."""
        first = self.predictions
        return [first, *(first.with_name(f"{first.name}-repeat{i}") for i in range(2, self.repeat + 1))]

    @property
    def predictions(self) -> Path:
        """Where the predictions of this run lie: one folder per model below it."""
        return self.outputs / "predictions" / self.run

    def cells(self) -> Iterator[tuple[str, Path, Task, int]]:
        """Every cell that the study asks for: the model's name, the file of its answers, its task and length."""
        for length, folder, model, each in product(self.lengths, self.folders, self.models, self.tasks):
            yield name_of(model), folder / name_of(model) / each.name / f"{length}.jsonl", each, length

    @cached_property
    def title(self) -> str:
        """The names of the models, fit for a file name."""
        joined = "+".join(name_of(model) for model in self.models)
        return joined if len(joined) <= _LONGEST_TITLE else f"{joined[: _LONGEST_TITLE - 4]}+etc"

    def save_table(self, text: str, name: str = "", suffix: str = ".md") -> Path:
        """Write a table; the file is named after the models it shows, and `name`."""
        path = self._place("tables", name, suffix)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise _unwritable(path, error) from error
        return path

    def save_figure(self, figure: "Figure | Axes", name: str = "") -> list[Path]:
        """Write a figure as PDF and PNG (200 dots an inch); takes a figure or one of its axes."""
        whole: Any = getattr(figure, "figure", figure)
        paths = [self._place("figures", name, suffix) for suffix in (".pdf", ".png")]
        for path in paths:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                whole.savefig(path, dpi=200)
            except OSError as error:
                raise _unwritable(path, error) from error
        return paths

    def _place(self, kind: str, name: str, suffix: str) -> Path:
        file = "-".join(part for part in (self.title, name) if part) + suffix
        return self.outputs / kind / self.run / (self.notebook or "evaluate") / file


def name_of(model: Any) -> str:
    """The name of a model, made or described."""
    return str(model["name"] if isinstance(model, dict) else model.name)


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}; choose another folder with `outputs:`")

"""Is B worse than A? Two models, two checkpoints or two set-ups of one model, on the same examples.

Differences are B - A in points (0..100), each with an interval for pairs (`paired`). A verdict is about the mean over
the lengths of the means over tasks. With margin M in points and the interval from low to high:

- *not worse*, by more than the margin: low > -M, whatever lies below 0 in it;
- *worse*: high < 0 and low <= -M, so B is below A for certain, and may be so by more than the margin;
- *cannot tell*: low <= -M and high >= 0. It says how many examples per task and length would end the doubt if the
  differences stayed as they are (`paired.factor_needed`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rulerkit.compare.paired import Cells, Difference, factor_needed
from rulerkit.compare.sides import Side, choose, find, paired, same_model, side, sides
from rulerkit.errors import UserError
from rulerkit.scoring import THIRTEEN

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Chosen = NDArray[np.bool_]

NOT_WORSE, WORSE, CANNOT_TELL = "not worse", "worse", "cannot tell"
EXIT = {NOT_WORSE: 0, WORSE: 1, CANNOT_TELL: 3}
"""Exit statuses for scripts; 2 is a `UserError`'s."""


class Verdict(NamedTuple):
    """One of the three words, a sentence with the numbers, and the examples needed per task and length (else None)."""

    word: str
    text: str
    needed: int | None = None

    @property
    def status(self) -> int:
        return EXIT[self.word]


@dataclass(frozen=True)
class Comparison:
    """Two models on the same examples.

    `rows`: level ('cell', 'length', 'task', 'all'), task, category, length (0 where it is a mean over lengths), n
    (pairs), a, b, difference, low, high (points), better, worse (examples with a higher and a lower score). Means are
    of the cells that both have, each length weighing the same. `flips`: a row per example whose score differs: task,
    length, index, digest, a, b (0..1), difference (points).
    """

    a: Side
    b: Side
    margin: float
    confidence: float
    by: str
    rows: "pd.DataFrame"
    flips: "pd.DataFrame"
    overall: Difference
    notes: tuple[str, ...]

    @property
    def same_model(self) -> bool:
        """Both sides are one model, served alike: the differences are the noise floor of serving it."""
        return same_model(self.a, self.b)

    @property
    def verdict(self) -> Verdict:
        """Whether B is worse than A by more than the margin."""
        value, low, high = (100 * each for each in self.overall[:3])
        seen = f"{value:+.2f} points [{low:+.2f}, {high:+.2f}]"
        margin = f"{self.margin:g} point{'s' if self.margin != 1 else ''}"
        if low > -self.margin:
            below = ", though it is below for certain" if high < 0 else ""
            return Verdict(
                NOT_WORSE, f"{self.b.name} is not worse than {self.a.name} by more than {margin}{below}: {seen}"
            )
        if high < 0:
            more = "by more than" if high < -self.margin else "for certain, perhaps not by more than"
            return Verdict(WORSE, f"{self.b.name} is worse than {self.a.name}, {more} {margin}: {seen}")
        cells = self.rows.loc[self.rows["level"] == "cell", "n"]
        needed = math.ceil(float(cells.median()) * factor_needed(self.overall, self.margin / 100, self.confidence))
        text = f"cannot tell whether {self.b.name} is worse than {self.a.name} by more than {margin}: {seen}"
        return Verdict(CANNOT_TELL, f"{text}; would need about {needed} examples per task and length", needed)


def compare(
    a: "str | Path | Side",
    b: "str | Path | Side",
    margin: float = 1.0,
    by: str = "digest",
    confidence: float = 0.95,
    outputs: str | Path = "outputs",
    **grid: Any,
) -> Comparison:
    """Compare two models on the examples that both answered; `margin` in points.

    Each side is a `Side`, a folder of predictions, `run/model`, or a model's name in `outputs/predictions`. `by='index'`
    pairs examples whose prompts differ. `grid` is what `choose` takes: tasks, lengths, num_examples.
    """
    if not margin > 0:
        raise UserError(f"margin is {margin!r}: it must be a number of points above 0, such as 1.0")
    first, second = (
        each if isinstance(each, Side) else side(choose(find(each, outputs), **grid), str(each)) for each in (a, b)
    )
    pairs, notes = paired(first, second, by)
    rows, overall = _differences(pairs, confidence)
    flips = pairs[pairs["difference"] != 0].drop(columns="category")
    flips = flips.assign(difference=100 * flips["difference"]).reset_index(drop=True)
    return Comparison(first, second, margin, confidence, by, rows, flips, overall, tuple(notes))


def compare_study(study: Any, cells: Sequence[Any], margin: float = 1.0, by: str = "digest") -> Comparison:
    """Compare the two models of a study, or its one model that answered twice, on what the study asks."""
    wanted = {"tasks": [task.name for task in study.tasks], "lengths": study.lengths}
    first, second = sides(choose(cells, **wanted, num_examples=study.num_examples))
    return compare(first, second, margin, by)


def asked(model_a: Any, model_b: Any = None) -> dict[str, Any]:
    """The parameters of a study of two models; without a second one, of one model that answers twice."""
    if isinstance(model_a, list | tuple) or isinstance(model_b, list | tuple) or model_a is None:
        raise UserError(f"model_a is {model_a!r}, model_b is {model_b!r}: each is one model; only model_b may be None")
    twice = model_b is None or model_b == model_a
    return {"models": [model_a], "repeat": 2} if twice else {"models": [model_a, model_b], "repeat": 1}


def _differences(pairs: "pd.DataFrame", confidence: float) -> tuple["pd.DataFrame", Difference]:
    import pandas as pd

    kinds = dict(zip(pairs["task"].astype(str), pairs["category"].astype(str), strict=True))
    tasks = [task for task in THIRTEEN if task in kinds] + [task for task in kinds if task not in THIRTEEN]
    lengths = sorted(int(n) for n in pairs["length"].unique())
    blocks = []
    for task in tasks:
        own = pairs[pairs["task"] == task].pivot(index="index", columns="length", values="difference")
        blocks.append(own.reindex(columns=lengths).to_numpy(dtype=float))
    cells = Cells(blocks, confidence)
    have = cells.counts > 0
    scores = pairs.groupby(["task", "length"])[["a", "b"]].mean()
    rows, overall = [], None
    for level, task, length, chosen in _levels(tasks, lengths, have):
        members = np.argwhere(chosen)
        own = pairs
        own = own[own["task"] == task] if task else own
        own = own[own["length"] == length] if length else own
        weights = _weights(chosen)
        found = cells.mean(weights)
        means = [(weights[i, j], scores.loc[(tasks[i], lengths[j])]) for i, j in members]
        rows.append(
            {
                "level": level,
                "task": task,
                "category": kinds.get(task, ""),
                "length": length,
                "n": len(own),
                "a": 100 * sum(w * each["a"] for w, each in means),
                "b": 100 * sum(w * each["b"] for w, each in means),
                **{name: 100 * getattr(found, of) for name, of in _LIMITS.items()},
                "better": int((own["difference"] > 0).sum()),
                "worse": int((own["difference"] < 0).sum()),
            }
        )
        overall = found if level == "all" else overall
    if overall is None:
        raise UserError("nothing to compare: no example was answered by both")
    return pd.DataFrame(rows), overall


_LIMITS = {"difference": "value", "low": "low", "high": "high"}


def _levels(tasks: list[str], lengths: list[int], have: "Chosen") -> "list[tuple[str, str, int, Chosen]]":
    """What is averaged: level, task ('' for all), length (0 for all), and which of the cells (tasks, lengths)."""
    found = []
    for i, task in enumerate(tasks):
        found += [("cell", task, length, _only(have, i, j)) for j, length in enumerate(lengths) if have[i, j]]
    found += [("task", task, 0, _only(have, i, None)) for i, task in enumerate(tasks)]
    found += [("length", "", length, _only(have, None, j)) for j, length in enumerate(lengths)]
    return [*found, ("all", "", 0, have)]


def _only(have: "Chosen", row: int | None, column: int | None) -> "Chosen":
    kept = np.zeros_like(have)
    place = (slice(None) if row is None else row, slice(None) if column is None else column)
    kept[place] = have[place]
    return kept


def _weights(chosen: "Chosen") -> "Floats":
    """Each length weighs the same, and in it each task that is there."""
    columns = chosen.sum(axis=0)
    return np.asarray(chosen / np.where(columns, columns, 1) / (columns > 0).sum())


def labels(found: Comparison) -> tuple[str, str]:
    """What to call A and B in a figure: their labels, or names where they share one."""
    one, other = found.a.label, found.b.label
    return (one, other) if one != other else (found.a.name, found.b.name)

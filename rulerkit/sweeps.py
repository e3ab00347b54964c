"""What Figures 2 and 3 vary: a series of tasks for each panel, from the values of one knob.

A value whose setting is one of the eighteen named tasks is that task, so that configurations which several panels share
(vanilla NIAH is one key, one value and one query) are asked once.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.errors import UserError, unknown
from rulerkit.tasks import Task, task

if TYPE_CHECKING:
    import pandas as pd

Spec = str | dict[str, Any]
_VANILLA = "niah_single_2"
_KINDS: dict[str, Spec] = {
    "passkey": "niah_single_1",
    "vanilla": _VANILLA,
    "word-uuid": "niah_single_3",
    "word-word": "niah_single_words",
    "uuid-uuid": {"base": _VANILLA, "key": "uuids", "value": "uuids", "name": "niah_single_uuids"},
}
_FULL: dict[Any, Spec] = {"full": "niah_multikey_2", "full uuid-uuid": "niah_multikey_3"}
_QA: dict[str, str] = {"SQuAD": "qa_1", "HotpotQA": "qa_2"}


class Series(NamedTuple):
    """One line of a panel."""

    panel: str
    label: str
    task: Task
    value: Any


class Sweep(NamedTuple):
    """One panel: its title, the paper's values, and how a value becomes a task and a label."""

    title: str
    values: tuple[Any, ...]
    spec: Callable[[Any], Spec | None]
    label: Callable[[Any], str]


def _named(names: Mapping[Any, Spec], base: str, *knobs: str) -> Callable[[Any], Spec | None]:
    """A task by value: a named one, else the base with its knobs set to the value."""

    def spec(value: Any) -> Spec | None:
        if value in names:
            return names[value]
        return {"base": base, **dict.fromkeys(knobs, value)} if isinstance(value, int | float) else None

    return spec


SWEEPS: dict[str, Sweep] = {
    "needles": Sweep("Needle types (key-value)", tuple(_KINDS), lambda value: _KINDS.get(value), str),
    "keys": Sweep(
        "Distractors (number of keys)",
        (1, 4, 8, *_FULL),
        _named({1: _VANILLA, 4: "niah_multikey_1", **_FULL}, "niah_multikey_1", "num_keys"),
        lambda value: f"#K = {value}".replace("full", "FULL"),
    ),
    "values": Sweep(
        "Values for each key",
        (1, 2, 4, 8),
        _named({1: _VANILLA, 2: "niah_multivalue_2", 4: "niah_multivalue"}, "niah_multivalue", "num_values"),
        "#V = {}".format,
    ),
    "queries": Sweep(
        "Queries",
        (1, 2, 4, 8),
        _named(
            {1: _VANILLA, 2: "niah_multiquery_2", 4: "niah_multiquery"}, "niah_multiquery", "num_keys", "num_queries"
        ),
        "#Q = {}".format,
    ),
    "hops": Sweep("Variable tracking: hops", (4, 6, 10), _named({4: "vt"}, "vt", "num_hops"), "{} hops".format),
    "chains": Sweep(
        "Variable tracking: chains",
        (2, 4, 8),
        _named({2: "vt_2_chains"}, "vt_2_chains", "num_chains"),
        "{} chains".format,
    ),
    "alphas": Sweep(
        "Frequent words extraction",
        (3.5, 2.0, 1.5, 1.3, 1.2),
        _named({3.5: "fwe_3.5", 2.0: "fwe"}, "fwe", "alpha"),
        "α = {}".format,
    ),
    "questions": Sweep("Question answering", tuple(_QA), lambda value: _QA.get(value), str),
    "questions alone": Sweep(
        "Question answering",
        tuple(_QA),
        lambda value: {"base": _QA[value], "context": "none"} if value in _QA else None,
        "{}, no context".format,
    ),
}
"""By the name of what is varied; the paper's values, those of EXPERIMENTS, are the defaults."""


def sweep(name: str, values: Sequence[Any] | None = None) -> list[Series]:
    """The series of one panel; `values` None takes the paper's. Raises UserError for a value that makes no task."""
    if name not in SWEEPS:
        raise unknown("sweep", name, SWEEPS)
    each = SWEEPS[name]
    if values is None:
        values = each.values
    if not isinstance(values, list | tuple) or not values:
        raise UserError(f"{name} is {values!r}: it must be a list, such as `{name}: {list(each.values)}`")
    found = []
    for value in values:
        spec = each.spec(value)
        if spec is None:
            raise unknown(f"value of {name}", str(value), map(str, each.values))
        found.append(Series(each.title, each.label(value), task(spec), value))
    return found


def tasks_of(series: Iterable[Series]) -> list[Task]:
    """The tasks of several series, each once."""
    return list({each.task.name: each.task for each in series}.values())


def by_series(cells: "pd.DataFrame", series: Sequence[Series]) -> "pd.DataFrame":
    """`Summary.cells` with two columns before them, panel and series: a row per model, series and length.

    A task that stands in several panels has rows in each.
    """
    import pandas as pd

    frames = []
    for each in series:
        own = cells[cells["task"] == each.task.name].copy()
        own.insert(0, "panel", each.panel)
        own.insert(1, "series", each.label)
        frames.append(own)
    return pd.concat(frames, ignore_index=True)


def score_table(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Scores with their intervals as text, a row per line of a figure and a column per length, for reading."""
    from rulerkit.lengths import length_name

    index = [name for name in ("label", "panel", "series") if name in frame and frame[name].nunique() > 1]
    text = [
        f"{score:.1f} [{low:.1f}, {high:.1f}]" if score == score else str(have)
        for score, low, high, have in zip(frame["score"], frame["low"], frame["high"], frame["have"], strict=True)
    ]
    index = index or ["label"]
    lines = frame[index].astype(str).agg(" · ".join, axis=1)
    wide = frame.assign(text=text, line=lines).pivot_table(
        index="line", columns="length", values="text", aggfunc="first", sort=False
    )
    wide = wide[sorted(wide.columns)].fillna("")
    wide.columns = [length_name(int(n)) for n in wide.columns]
    return wide.rename_axis(None)

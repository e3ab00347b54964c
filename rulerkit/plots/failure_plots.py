"""The figure of what went wrong: shares of labels over length, stacked, a panel per model and
task."""

from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rulerkit.errors import UserError
from rulerkit.failures import LABELS
from rulerkit.lengths import length_name
from rulerkit.plots.style import COLORS, DOUBLE, SINGLE, note_below, style, subplots

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLUMNS, _TITLE = 4, 26
_BLUE, _RED, _GREEN, _PINK, _ORANGE, _SKY, _BLACK, _GREY = COLORS
_PLAIN, _LINES, _DOTS = "", "/////", "...."
_LOOKS = {  # what is alike in kind shares a colour
    "complete": ("#E9EDF0", _PLAIN),
    "cut in its thought": (_BLACK, _PLAIN),
    "empty": (_GREY, _PLAIN),
    "refused": (_GREY, _LINES),
    "copied demonstration": (_RED, _PLAIN),
    "copied beginning": (_RED, _LINES),
    "parametric words": (_PINK, _PLAIN),
    "duplicated values": (_ORANGE, _LINES),
    "near distractor": (_BLUE, _PLAIN),
    "other key": (_BLUE, _LINES),
    "incomplete uuid": (_SKY, _PLAIN),
    "wrong chain": (_GREEN, _PLAIN),
    "less frequent word": (_GREEN, _LINES),
    "no-context answer": (_PINK, _LINES),
    "other document": (_GREEN, _DOTS),
    "cut off": (_BLACK, _LINES),
    "partial": (_ORANGE, _PLAIN),
    "nothing recognised": (_GREY, _DOTS),
}


_OTHER_LOOK = (_SKY, _LINES)
"""How the labels of further families look."""


def failures_by_length(shares: "pd.DataFrame", note: str = "") -> "list[Axes]":
    """What became of the answers at each length, in percent, complete ones below; a panel per model
    and task.

    `shares` is `failures.shares`. A label looks the same in every figure.
    """
    models = [own for _, own in shares.groupby(["run", "model"], sort=False)]
    if not models:
        raise UserError("no labels to draw; label the cells of a run that has some")
    kinds = [kind for kind in LABELS if shares.loc[shares["label"] == kind, "count"].sum()]
    most = max(own["task"].nunique() for own in models)
    deep = -(-most // _COLUMNS)  # rows per model: each begins a new one
    columns = -(-most // deep)
    rows = deep * len(models)
    drawn = []
    with style():
        height = 0.45 + (1.35 if len(models) == 1 else 1.5) * rows
        figure, grid = subplots(
            rows, columns, SINGLE if columns == 1 else DOUBLE, max(1.9, height), sharey=True
        )
        for number, model in enumerate(models):
            places = grid[number * deep * columns : (number + 1) * deep * columns]
            tasks = list(dict.fromkeys(model["task"]))
            for i, (panel, task) in enumerate(zip(places, tasks, strict=False)):
                _stack(panel, model[model["task"] == task], kinds)
                above = wrap(str(model["name"].iloc[0]), _TITLE) if len(models) > 1 else []
                panel.set_title("\n".join([*above, *wrap(task, _TITLE)]), fontsize=6)
                panel.set_ylabel("Answers (%)" if i % columns == 0 else "")
                last = number == len(models) - 1 and i + columns >= len(tasks)
                panel.set_xlabel("Sequence length (tokens)" if last else "")
            for panel in places[len(tasks) :]:
                panel.remove()
            drawn += places[: len(tasks)]
        handles = [_patch(kind) for kind in reversed(kinds)]
        figure.legend(
            handles=handles, loc="outside right upper", handlelength=1.2, handleheight=1.0
        )
        if len(models) == 1:
            figure.suptitle(str(shares.iloc[0]["name"]), fontsize=7)
        note_below(figure, note)
    return drawn


def remarks(labels: "pd.DataFrame") -> str:
    """What the figure must say on its face."""
    return "reference readers" if (labels["engine"] == "reader").any() else ""


def _stack(panel: "Axes", own: "pd.DataFrame", kinds: list[str]) -> None:
    lengths = sorted(int(n) for n in own["length"].unique())
    table = (
        own.pivot(index="length", columns="label", values="share")
        .reindex(index=lengths, columns=kinds)
        .fillna(0)
    )
    bottom = [0.0] * len(lengths)
    for kind in kinds:
        heights = [100 * float(value) for value in table[kind]]
        panel.bar(range(len(lengths)), heights, bottom=bottom, width=0.82, **_look(kind))
        bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
    panel.set_xticks(range(len(lengths)), [length_name(n) for n in lengths])
    panel.tick_params(axis="x", length=0)
    panel.set_ylim(0, 100)
    panel.set_xlim(-0.6, max(1.4, len(lengths) - 0.4))


def _look(kind: str) -> dict[str, Any]:
    color, hatch = _LOOKS.get(kind, _OTHER_LOOK)
    return {"facecolor": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0.3}


def _patch(kind: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=kind, **_look(kind))

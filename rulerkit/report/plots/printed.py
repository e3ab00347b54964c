"""Printed scores behind measured ones: in grey, so that nobody takes one for the other."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.transforms import offset_copy

from rulerkit.report.plots.canvas import GREY_LINE, NARROW, letters_in, look_of

Printed = Mapping[str, Mapping[int, float]]
"""Scores by length of each model, as `paper.published_scores` gives them."""
_MOST_GREY = 8  # printed lines in one panel, beyond which they are a band


def lines_and_band(printed: Printed, lines: Collection[str]) -> tuple[Printed, Printed]:
    """The printed scores that are drawn as lines, and those that are in the band."""
    named = [name for name in printed if name in lines]
    if not lines:
        # Those at equal steps of the order at their longest length are far apart.
        order = sorted(printed, key=lambda name: list(printed[name].values())[-1])
        steps = np.linspace(0, len(order) - 1, min(len(order), _MOST_GREY))
        named = [order[i] for i in steps.round().astype(int)]
    return (
        {name: printed[name] for name in printed if name in named},
        {name: printed[name] for name in printed if name not in named},
    )


def grey_lines(axes: Axes, named: Printed, band: Printed, height: float | None) -> None:
    """Printed scores: thin and grey, so that they are not taken for measured ones. Lines are named
    at their ends, in narrow axes in the legend. `height` of the axes is in inches."""
    if band:
        scores = pd.DataFrame(band).sort_index()
        low, high = scores.min(axis=1), scores.max(axis=1)
        color: Any = {"color": GREY_LINE, "alpha": 0.15, "linewidth": 0}
        axes.fill_between(scores.index, low, high, zorder=0.5, **color)

    thin = {"color": GREY_LINE, "markersize": 2.5, "linewidth": 0.6}
    has_room = letters_in(axes) >= NARROW
    ends: list[tuple[float, float]] = []
    for name, printed in named.items():
        x, y = [float(n) for n in printed], list(printed.values())
        label = "_nolegend_" if has_room else name
        axes.plot(x, y, label=label, zorder=1.5, **(look_of(name) | thin))
        ends.append((x[-1], y[-1]))
    if not named or not has_room:
        return

    # Names at the ends of lines are moved apart, and a thin line leads to each.
    figure: Any = axes.figure
    inches = height or axes.get_window_extent().height / figure.dpi
    gap = 102 * 1.25 * matplotlib.rcParams["font.size"] / 72 / inches
    places = _apart([y for _, y in ends], gap, 102)
    beside = offset_copy(axes.transData, figure, 9, 0, "points")
    leader: Any = {"arrowstyle": "-", "linewidth": 0.4, "color": GREY_LINE}
    leader |= {"shrinkA": 0, "shrinkB": 2, "relpos": (0, 0.5)}
    text: Any = {"textcoords": beside, "va": "center", "fontsize": "medium"}
    for name, end, place in zip(named, ends, places, strict=True):
        axes.annotate(name, end, (end[0], place), arrowprops=leader, **text)


def _apart(values: Sequence[float], gap: float, top: float) -> list[float]:
    """Values moved as little as needed to be at least `gap` apart, above 0 and up to `top` where
    they fit, in the order given."""
    order = np.argsort(values, kind="stable")
    steps = gap * np.arange(len(values))

    # Without the steps the moved values must not fall: means over blocks that would.
    blocks: list[list[float]] = []
    for value in np.asarray(values)[order] - steps:
        blocks.append([float(value)])
        while len(blocks) > 1 and np.mean(blocks[-2]) > np.mean(blocks[-1]):
            last = blocks.pop()
            blocks[-1] += last
    means = [np.mean(block) for block in blocks for _ in block]
    lowest = gap / 2
    moved = np.clip(means, lowest, max(lowest, top - steps[-1])) + steps
    places = np.empty(len(values))
    places[order] = moved
    return places.tolist()

"""What others have published, over time."""

from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from rulerkit.report.plots.canvas import (
    GREY_LINE,
    Panels,
    add_legend,
    draw_in,
    length_ticks,
    properties_of,
    set_title,
)
from rulerkit.report.plots.lines import line_with_bars, mean_words, means_of
from rulerkit.report.published import (
    KINDS,
    SECOND_HAND,
    SERIES,
    numbered_sources,
    published_rows,
    series_name,
    sources_note,
)
from rulerkit.scoring.summary import texts_words


def published_since(
    lengths: "pd.DataFrame | None" = None,
    kinds: Sequence[str] = KINDS,
    note: str = "",
    ax: "Panels" = None,
) -> "list[Axes]":
    """What others have published since the paper, in grey with its source, a panel per kind of
    model; yours in colour in front, in the panel of their kind.

    `lengths` is `Summary.lengths` of the thirteen tasks. A model of which two sources speak has two
    lines. No line goes over a length that was not published; second-hand figures are hollow.
    """
    rows = pd.concat([published_rows(kind) for kind in kinds])
    own = None if lengths is None else means_of(lengths, "all", "published_since")
    most = max(len(of_kind.groupby(SERIES)) for _, of_kind in rows.groupby("aligned"))

    notes = [sources_note(rows), note]
    if own is not None:
        notes += [mean_words(own), texts_words(own)]
    numbers = numbered_sources(rows)
    height = 0.13 * most + 0.6
    with draw_in(len(kinds), 1, height, ax, *notes, series=9) as panels:
        for axes, kind in zip(panels, kinds, strict=True):
            of_kind = rows[rows["aligned"] == kind]
            for i, (key, line) in enumerate(of_kind.groupby(SERIES, sort=False)):
                name = series_name(key, numbers[str(line["source"].iloc[0])])
                _published_line(axes, line, name, i)
            mine: Any = []
            if own is not None:
                mine = own[own["aligned"] == kind].groupby("name", sort=False)
            for i, (name, line) in enumerate(mine):
                line_with_bars(axes, line["length"], line, str(name), properties_of(i))
            _length_axis(axes, {*rows["length"], *(() if own is None else own["length"])})
            add_legend(axes)
            set_title(axes, _KINDS[kind], loc="left")
    return panels


_KINDS = {
    "base": "Base models",
    "chat": "Chat models",
    "unknown": "Base or chat: the source does not say",
}


def _published_line(axes: Axes, rows: "pd.DataFrame", name: str, i: int) -> None:
    """One model of one source: connected only where a length and its double were published."""
    # Lengths between that were not published become gaps of the line.
    scores = rows.set_index("length")["score"].astype(float).sort_index()
    doubled = [scores.index[0]]
    while doubled[-1] < scores.index[-1]:
        doubled.append(2 * doubled[-1])
    scores = scores.reindex(sorted({*doubled, *scores.index}))

    is_second = rows["checked"].str.startswith(SECOND_HAND).any()
    shape: Any = properties_of(i) | {
        "color": GREY_LINE,
        "linewidth": 0.6,
        "markersize": 2.8,
        "markeredgewidth": 0.6,
    }
    if is_second:
        shape["markerfacecolor"] = axes.get_facecolor()
    axes.plot(scores.index, scores, label=name, zorder=1.5, **shape)


def _length_axis(axes: Axes, lengths: Collection[int]) -> None:
    """Lengths on a log scale with their names, scores in percent."""
    ticks = sorted(lengths)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, length_ticks(axes, ticks))
    axes.minorticks_off()
    axes.set(ylim=(0, 102), xlim=(ticks[0] / 1.3, 1.3 * ticks[-1]))
    axes.set(xlabel="Sequence length (tokens)", ylabel="Score (%)")

"""What all figures share: style, widths, colours, and the parts that several of them draw.

Widths are those of a two-column paper: `SINGLE` and `DOUBLE` inches. Colours are Okabe and Ito's,
which colour-blind readers can tell apart; markers and dashes say the same again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rulerkit.lengths import length_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SINGLE, DOUBLE = 3.35, 6.9
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
"""Okabe and Ito's palette, its yellow (too pale for a line on white) replaced by a grey."""

_MARKERS, _DASHES = "osD^vPX*", ("-", (0, (4, 1.5)), (0, (1, 1)))
SMALL = 6.0
_MOST_LABELS = 14
_STYLE: dict[str, Any] = {
    "pdf.fonttype": 42,  # TrueType, whole: what publishers ask for, and text stays text
    "ps.fonttype": 42,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so a figure looks the same everywhere
    "font.size": 7,
    "axes.labelsize": 7,
    "axes.titlesize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.2,
    "text.parse_math": False,  # a dollar in a model's name is a dollar
    "figure.dpi": 160,
    "savefig.dpi": 200,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
}


@contextmanager
def style() -> Iterator[None]:
    """The common style as a context: all figures here are drawn in it, and saved in it, whoever
    saves them.

    Puts back what it set and no more, unlike matplotlib's `rc_context`: in a notebook the first
    figure also switches on that figures are shown, and that must last.
    """
    import matplotlib

    current: Any = matplotlib.rcParams
    before = {key: current[key] for key in _STYLE}
    current.update(_STYLE)
    try:
        yield
    finally:
        current.update(before)


def subplots(
    rows: int, columns: int, width: float, height: float, **kwargs: Any
) -> "tuple[Figure, list[Axes]]":
    """An empty figure, inches, and its panels row by row; how fonts are embedded is decided when a
    figure is saved."""
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    class PrintFigure(Figure):
        def savefig(self, *args: Any, **kwargs: Any) -> None:
            with style():
                super().savefig(*args, **kwargs)

    size = (width, height)
    figure, grid = plt.subplots(
        rows, columns, figsize=size, squeeze=False, FigureClass=PrintFigure, **kwargs
    )
    return figure, list(grid.flat)


def look(i: int) -> dict[str, Any]:
    """Colour, marker and dashes of series i: the colours recur after eight, with other dashes."""
    return {
        "color": COLORS[i % 8],
        "marker": _MARKERS[i % 8],
        "linestyle": _DASHES[i // 8 % 3],
        "markeredgewidth": 0,
    }


def length_axis(axes: "Axes", lengths: Sequence[int]) -> None:
    """A log-2 axis of sequence lengths, labelled 4K, 8K ..."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(lengths), [length_name(length) for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("Sequence length (tokens)")
    if len(lengths) == 1:
        axes.set_xlim(lengths[0] / 2, lengths[0] * 2)


def draw_thresholds(axes: "Axes", threshold: float | Mapping[str, float] | None) -> None:
    """A thin dashed line, with its name, for each threshold."""
    if threshold is None:
        return
    from matplotlib.patheffects import withStroke

    named = threshold if isinstance(threshold, Mapping) else {"threshold": threshold}
    for name, value in named.items():
        axes.axhline(value, color="0.35", linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
        axes.annotate(
            f"{name}: {value:g}",
            (1.0, value),
            xycoords=("axes fraction", "data"),
            xytext=(-1, 1.5),
            textcoords="offset points",
            ha="right",
            fontsize=SMALL,
            color="0.35",
            path_effects=[withStroke(linewidth=1.5, foreground="white")],
            zorder=4,
        )


def label_ends(
    axes: "Axes", ends: Sequence[tuple[float, float, int]], names: Sequence[str]
) -> None:
    """Each line's name at its right end, moved apart where they would overlap; a legend where they
    are too many."""
    if len(ends) > _MOST_LABELS:
        handles = axes.get_lines()[: len(names)]
        axes.legend(handles, names, loc="center left", bbox_to_anchor=(1.02, 0.5))
        return
    bottom, top = axes.get_ylim()
    figure: Any = axes.figure
    place: Any = axes.get_subplotspec()
    rows = place.get_gridspec().nrows if place else 1
    points = (
        72 * 0.78 * figure.get_figheight() / rows
    )  # the axes' height, before the layout is known
    gap = (top - bottom) * (SMALL * 1.35) / points
    order = sorted(ends, key=lambda end: (end[1], -end[2]))
    right = axes.get_xlim()[1]
    for (x, y, i), height in zip(
        order, spread([y for _, y, _ in order], gap, bottom, top), strict=True
    ):
        axes.annotate(
            names[i],
            (x, y),
            xytext=(1.04, (height - bottom) / (top - bottom)),
            textcoords="axes fraction",
            fontsize=SMALL,
            color=COLORS[i % 8],
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": COLORS[i % 8],
                "linewidth": 0.4,
                "shrinkA": 1,
                "shrinkB": 2,
                "relpos": (0, 0.5),
            },
        )
    axes.set_xlim(right=right)


def spread(values: Sequence[float], gap: float, bottom: float, top: float) -> list[float]:
    """Rising values moved as little as it takes to stand `gap` apart between `bottom` and `top`.

    Values that collide form a group around their mean; where there is no room for all, the gap
    shrinks.
    """
    if len(values) > 1:
        gap = min(gap, (top - bottom) / (len(values) - 1))
    groups: list[list[float]] = []
    for value in values:
        groups.append([value])
        while (
            len(groups) > 1
            and _low(groups[-1], gap, bottom, top) < _high(groups[-2], gap, bottom, top) + gap
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [_low(group, gap, bottom, top) + gap * k for group in groups for k in range(len(group))]


def _low(group: Sequence[float], gap: float, bottom: float, top: float) -> float:
    width = gap * (len(group) - 1)
    return min(max(sum(group) / len(group) - width / 2, bottom), top - width)


def _high(group: Sequence[float], gap: float, bottom: float, top: float) -> float:
    return _low(group, gap, bottom, top) + gap * (len(group) - 1)


def note_below(figure: "Figure", note: str) -> None:
    """A small line below the figure, inside its layout."""
    if note:
        figure.supxlabel(note, fontsize=SMALL, x=0.99, ha="right", color="0.35", style="italic")

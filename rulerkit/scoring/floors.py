"""Floors: which scores say nothing, because an answer without reading reaches them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def above_floor(
    score: "pd.Series[float]", floor: "pd.Series[float]", full: float = 1.0
) -> "pd.Series[float]":
    """Scores with their floor taken off: 0 at the floor, `full` for a full score, below 0 below the
    floor; NaN where none is known or the floor is full."""
    return full * (score - floor) / (full - floor).where(floor < full)


def not_above(cells: "pd.DataFrame") -> "pd.Series[bool]":
    """Which cells of a summary have a score that is not above a floor of at least 1 percent; False
    where none is known.

    A full score never counts as that: where few examples put the floor at 100 as well, nothing
    could be above it.
    """
    floor = cells["floor"] if "floor" in cells else cells["score"] * float("nan")
    score = cells["score"]
    return (floor >= 1) & (score <= floor) & (score < 100)

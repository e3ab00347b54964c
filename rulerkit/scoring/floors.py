"""Floors: which scores say nothing, because an answer without reading reaches them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def not_above(cells: "pd.DataFrame") -> "pd.Series[bool]":
    """Which cells of a summary have a score that is not above a floor of at least 1 percent; False
    where none is known."""
    floor = cells["floor"] if "floor" in cells else cells["score"] * float("nan")
    return (floor >= 1) & (cells["score"] <= floor)

"""Figures that plug-ins bring."""

from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.common.plugins import capability
from rulerkit.scoring.scores import as_scores


def of_suite(scores: Any, suite: str, ax: Any = None) -> Any:
    """The figure that a plug-in brings for a suite of tasks, from rows of `score`, cells or places.

    Raises UserError where none brings one.
    """
    shown = capability(suite)
    if shown is None or shown.figure is None:
        raise UserError(f"no plug-in brings a figure of the suite {suite} (docs/extend.md)")
    return shown.figure(as_scores(scores, "of_suite"), ax=ax)

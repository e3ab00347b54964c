"""The figures: one function each, from a DataFrame to matplotlib Axes, fit for a page in print.
Scores are percent.

Every function draws into `ax` where it is given (one Axes, or a list of them where a figure has
several panels), else into a figure of its own, and returns what it drew into. A figure of yours
needs `layout="constrained"`, which makes room for names and notes. `note` stands small below the
figure: see `remarks`. Figures are as wide as one or both columns of a two-column paper,
and all text on them is readable in print: 7 points, with a contrast of at least 4.5 to 1. Fonts,
colours and line widths are those of `style`; markers and dashes differ too.

A module holds the figures of one subject, `canvas` what all of them share.
"""

from rulerkit.report.plots.canvas import DOUBLE, SINGLE, Panels, PrintFigure, Threshold, style
from rulerkit.report.plots.comparisons import differences_by_task
from rulerkit.report.plots.depth import depth_map, recall_by_depth
from rulerkit.report.plots.failures import failures_by_length
from rulerkit.report.plots.grids import correlation_heatmap, tasks_by_length
from rulerkit.report.plots.lengths import claimed_and_effective
from rulerkit.report.plots.lines import (
    by_label,
    score_by_length,
    scores_over_models,
    series_by_length,
    series_table,
    thresholds,
    training_lengths,
)
from rulerkit.report.plots.plugins import of_suite
from rulerkit.report.plots.words import word_counts, word_frequencies
from rulerkit.report.tables.notes import remarks

__all__ = [
    "DOUBLE",
    "SINGLE",
    "Panels",
    "PrintFigure",
    "Threshold",
    "by_label",
    "claimed_and_effective",
    "correlation_heatmap",
    "depth_map",
    "differences_by_task",
    "failures_by_length",
    "of_suite",
    "recall_by_depth",
    "remarks",
    "score_by_length",
    "scores_over_models",
    "series_by_length",
    "series_table",
    "style",
    "tasks_by_length",
    "thresholds",
    "training_lengths",
    "word_counts",
    "word_frequencies",
]

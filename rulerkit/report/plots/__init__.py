"""The figures: one function each, from a DataFrame to matplotlib Axes, fit for a page in print.
Scores are percent.

Every function draws a figure and returns its Axes; one of one panel draws into `ax` where it is
given, in a figure with `layout="constrained"`, which makes room for names and notes. `note` stands
small below: see `remarks`. Figures are as wide as one or both columns of a two-column paper, and
all text on them is readable in print: 7 points, with a contrast of at least 4.5 to 1. Fonts,
colours and line widths are those of `style`; markers and dashes differ too.

A module holds the figures of one subject, `canvas` what all of them share.
"""

from rulerkit.report.plots.canvas import DOUBLE as DOUBLE
from rulerkit.report.plots.canvas import SINGLE as SINGLE
from rulerkit.report.plots.canvas import PrintFigure as PrintFigure
from rulerkit.report.plots.canvas import style as style
from rulerkit.report.plots.depth import depth_map as depth_map
from rulerkit.report.plots.failures import failures_by_length as failures_by_length
from rulerkit.report.plots.grids import correlation_heatmap as correlation_heatmap
from rulerkit.report.plots.grids import tasks_by_length as tasks_by_length
from rulerkit.report.plots.lengths import claimed_and_effective as claimed_and_effective
from rulerkit.report.plots.lines import by_label as by_label
from rulerkit.report.plots.lines import score_by_length as score_by_length
from rulerkit.report.plots.lines import series_by_length as series_by_length
from rulerkit.report.plots.lines import series_table as series_table
from rulerkit.report.plots.lines import thresholds as thresholds
from rulerkit.report.plots.lines import training_lengths as training_lengths
from rulerkit.report.plots.plugins import of_suite as of_suite
from rulerkit.report.plots.words import word_counts as word_counts
from rulerkit.report.plots.words import word_frequencies as word_frequencies
from rulerkit.report.tables.notes import remarks as remarks

"""What the lines of a figure over length are: tasks by their labels, models by training length."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from rulerkit.analysis.selection import model_rows
from rulerkit.common.lengths import parse_length
from rulerkit.generation.tasks import task


def by_label(frame: "pd.DataFrame", tasks: Mapping[str, Any], panel: str = "") -> "pd.DataFrame":
    """The rows of some tasks (label to task, as `rk.task` takes it), with the columns `panel` and
    `series`, the label, as `series_by_length` takes them."""
    parts = []
    for label, spec in tasks.items():
        of_task = frame[frame["task"] == task(spec).name]
        parts.append(of_task.assign(panel=panel, series=label))

    rows = pd.concat(parts or [frame[:0]], ignore_index=True)
    return rows.reindex(columns=["panel", "series", *frame.columns])


def training_lengths(
    rows: "pd.DataFrame", given: Mapping[str, Any] | None = None
) -> dict[str, float]:
    """Training length in tokens by label, past which a line is dashed: `given` by name or label,
    else what the model claims; unknown ones left out.

    Raises UserError where `given` names a model that is not shown.
    """
    claimed = rows.groupby("label", sort=False)["claimed_length"]
    trained = claimed.max().astype(float)
    for name, length in (given or {}).items():
        label = model_rows(rows, name)["label"].iloc[0]
        trained[label] = parse_length(length)
    known = trained.dropna()
    return {str(label): length for label, length in known.items()}

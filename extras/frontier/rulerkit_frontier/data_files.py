"""The suite's own data."""

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@cache
def read_data(name: str) -> Any:
    """What a YAML file of the suite says."""
    import yaml

    return yaml.safe_load(files("rulerkit_frontier").joinpath("data", name).read_text("utf-8"))


def published_rows() -> "pd.DataFrame":
    """Scores that others have printed for benchmarks of the same capabilities, with their source.

    `benchmark` and `variant` together name the data: OpenAI's MRCR v2 has other prompts than
    Google's, and "1M" of GraphWalks has several meanings. `score` is a text, as printed, in the
    unit that `measure` names; `lengths` is the printed length, `length` its tokens, empty where
    several are put together. None of them is comparable with scores of this suite.
    """
    import pandas as pd

    file = files("rulerkit_frontier").joinpath("data", "published.csv")
    with file.open(encoding="utf-8") as lines:
        return pd.read_csv(lines, dtype=str, keep_default_na=False)

"""The suite's own data."""

from functools import cache
from importlib.resources import files
from typing import Any


@cache
def read_data(name: str) -> Any:
    """What a YAML file of the suite says."""
    import yaml

    return yaml.safe_load(files("rulerkit_frontier").joinpath("data", name).read_text("utf-8"))

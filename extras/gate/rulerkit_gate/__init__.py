"""The gate: whether one model is worse than another, as a plug-in."""

from typing import Any

families: list[Any] = []

"""The frontier suite: harder tasks than RULER's, as a plug-in."""

from typing import Any

families: list[Any] = []

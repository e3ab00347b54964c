"""RULER as a task of inspect_ai, and a reader of its logs for rulerkit."""

from typing import Any

__all__ = ["readers", "ruler"]

readers = "rulerkit_inspect.logs:readers"


def __getattr__(name: str) -> Any:
    # inspect_ai takes a second to import, and rulerkit imports this module at every command.
    if name == "ruler":
        from rulerkit_inspect.tasks import ruler

        return ruler
    raise AttributeError(name)

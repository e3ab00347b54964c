"""RULER as a task of inspect_ai, and a reader of its logs for rulerkit."""

from pathlib import Path
from typing import Any

__all__ = ["readers", "ruler"]


def _read_log(path: Path, report: Any) -> list[Any]:
    from rulerkit_inspect.logs import read_log

    return read_log(path, report)


readers = {"*.eval": _read_log}


def __getattr__(name: str) -> Any:
    # inspect_ai takes a second to import, and rulerkit imports this module at every command.
    if name == "ruler":
        from rulerkit_inspect.tasks import ruler

        return ruler
    raise AttributeError(name)

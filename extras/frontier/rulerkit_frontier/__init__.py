"""The frontier suite: eight families of harder tasks, as a plug-in of rulerkit.

`rulerkit evaluate MODEL --tasks frontier` asks its tasks; `rulerkit_frontier.frontier(scores)`
summarizes the answers.
"""

from pathlib import Path
from typing import Any

import lazy_loader

from rulerkit.common.plugins import Capability

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

families = "rulerkit_frontier.tasks:FAMILIES"
project = Path(__file__).parent / "project"


def _table(*args: Any, **kwargs: Any) -> str:
    from rulerkit_frontier.table import table

    return table(*args, **kwargs)


def _figure(*args: Any, **kwargs: Any) -> Any:
    from rulerkit_frontier.figures import figure

    return figure(*args, **kwargs)


capabilities = {"frontier": Capability(_table, _figure)}

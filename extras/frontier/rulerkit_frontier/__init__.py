"""The frontier suite: eight families of harder tasks, as a plug-in of rulerkit.

`rulerkit evaluate MODEL --tasks frontier` asks its tasks; `rulerkit_frontier.frontier(scores)`
summarizes the answers.
"""

from pathlib import Path

import lazy_loader

from rulerkit.common.plugins import Capability

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

families = "rulerkit_frontier.tasks:FAMILIES"
capabilities = {
    "frontier": Capability("rulerkit_frontier.table:table", "rulerkit_frontier.figures:figure")
}
project = Path(__file__).parent / "project"

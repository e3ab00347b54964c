"""What people look at: tables, figures, the paper's numbers, pages.

Open `tables` first."""

import lazy_loader

_FOR_USERS = ("comparison", "leaderboard", "paper", "plots", "tables")
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=_FOR_USERS)

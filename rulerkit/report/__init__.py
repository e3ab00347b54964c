"""What people look at: tables, figures, the paper's numbers, pages.

Open `tables` first."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submodules=[
        "browser",
        "comparison",
        "leaderboard",
        "paper",
        "plots",
        "tables",
        "verdicts",
        "view",
    ],
)

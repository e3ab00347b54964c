"""What results say beyond the summary: comparisons, claims, failures, depth, correlation.

Open `results` first."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, submodules=["claims", "correlation", "depth", "failures"]
)

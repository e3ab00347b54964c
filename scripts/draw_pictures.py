"""Draws the pictures of README.md and docs/ that need no language model again.

    python scripts/draw_pictures.py
    python scripts/draw_pictures.py table_3

The first draws docs/effective_length.png, in seconds; the second docs/table_3.png and .pdf.
"""

import sys
from pathlib import Path

import rulerkit as rk

DOCS = Path(__file__).resolve().parent.parent / "docs"


def effective_length() -> None:
    """Claimed and effective length of the models with published scores."""
    panels = rk.plots.claimed_and_effective()
    panels[0].figure.savefig(DOCS / "effective_length.png")


def table_3() -> None:
    """The models of the paper's Table 3 in grey, and a reference reader in front."""
    study = rk.study(
        model="reader-32768",
        lengths=["4K", "8K", "16K", "32K", "64K", "128K"],
        num_examples=10,
        run="pictures",
    )
    summary = rk.summarize(rk.score(rk.evaluate(study)))
    axes = rk.plots.score_by_length(
        summary.lengths,
        rk.plots.thresholds(summary.models),
        rk.plots.remarks(summary.cells),
        published="all",
    )
    axes.figure.savefig(DOCS / "table_3.png")
    axes.figure.savefig(DOCS / "table_3.pdf", metadata={"CreationDate": None})


PICTURES = {"effective_length": effective_length, "table_3": table_3}

if __name__ == "__main__":
    for name in sys.argv[1:] or ["effective_length"]:
        PICTURES[name]()

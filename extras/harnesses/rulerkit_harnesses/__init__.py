"""Other harnesses, a plug-in of rulerkit: their files are read, their scorers judge stored answers,
and scores are written as the Hugging Face hub shows them.

`files` reads predictions of RULER and lm-evaluation-harness, `rules` has the scorers, `judged` the
table of `rulerkit report --as`, and `hub` what `report --format hf` writes.
"""

from typing import Any

__all__ = ["formats", "readers", "score_as", "scorers"]

readers = "rulerkit_harnesses.files:readers"
scorers = "rulerkit_harnesses.judged:scorers"
formats = "rulerkit_harnesses.hub:formats"


def __getattr__(name: str) -> Any:
    # rulerkit imports this module at many commands, most of which need none of it.
    if name == "score_as":
        from rulerkit_harnesses.rules import score_as

        return score_as
    raise AttributeError(name)

"""How often the words of an example stand in it (Figure 1)."""

import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from rulerkit.generation.example import Example
from rulerkit.report.plots.canvas import color_of, draw_in, properties_of


def word_counts(example: Example) -> "pd.DataFrame":
    """How often each word stands in an example's list or coded text: columns word, role, count,
    rank (from 1).

    Words are the pieces of the context, without the number of a numbered list; the most frequent
    come first.
    """
    pieces = [piece for block in example.blocks[slice(*example.context)] for piece in block.pieces]
    counts = Counter((re.sub(r"^\d+\. ", "", p.text.strip()), p.role) for p in pieces)
    rows = [(word, role, count) for (word, role), count in counts.most_common()]
    frame = pd.DataFrame(rows, columns=["word", "role", "count"])
    return frame.assign(rank=range(1, len(frame) + 1))


def word_frequencies(
    cwe: "pd.DataFrame",
    fwe: Mapping[float, "pd.DataFrame"],
    num_types: int = 40,
    note: str = "",
) -> "list[Axes]":
    """Figure 1 of the paper: how often the words of the aggregation tasks stand in their contexts.

    Left: the first `num_types` words of a common words list (`word_counts` of an example). Right:
    coded texts by alpha, natural logarithms of rank and frequency, with the law they follow, rank
    to the power of -alpha, as a thin line.
    """
    with draw_in(2, 2, 1.8, note) as panels:
        left, right = panels

        # The paper shows the first words only: the list has hundreds.
        shown = cwe.head(num_types)
        for i, (role, name) in enumerate({"needle": "common", "haystack": "uncommon"}.items()):
            rows = shown[shown["role"] == role]
            left.bar(rows["rank"], rows["count"], color=color_of(4 - 4 * i), label=f"{name} words")
        of_all = f"Word type, by frequency (first {len(shown)} of {len(cwe)})"
        left.set(xlabel=of_all, ylabel="Frequency")
        left.set_title("Common words extraction", loc="left")

        # On logarithmic axes the law is a straight line through the most frequent word.
        for i, (alpha, counts) in enumerate(sorted(fwe.items())):
            x, y = np.log(counts[["rank", "count"]].to_numpy(dtype=float)).T
            right.plot(x, y[0] - alpha * x, color=color_of(i), linewidth=0.5, alpha=0.7)
            properties = properties_of(i) | {"linestyle": "", "markersize": 2.4}
            right.plot(x, y, label=f"α = {float(alpha)}", clip_on=False, **properties)
        right.set(xlabel="ln (word rank)", ylabel="ln (frequency)", xlim=(0, None), ylim=(0, None))
        right.set_title("Frequent words extraction", loc="left")
        for axes in panels:
            axes.legend(loc="upper right")
    return panels

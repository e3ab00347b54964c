"""Effective length: which lengths a model's scores call effective (Section 4 of the paper)."""

import math
from collections.abc import Collection, Mapping
from itertools import groupby

from rulerkit.common.lengths import length_name
from rulerkit.common.paths import package_data
from rulerkit.generation.tasks import THIRTEEN, category_of

THRESHOLDS: dict[str, dict[str, float]] = package_data("thresholds.yaml")
"""Llama2-7B at 4K, percent, as printed. The paper contradicts itself here (its chat categories
average to 87.2, its base ones to 79.2), so whoever shows an effective length shows the threshold
that it was judged by."""
PAPERS_THRESHOLD = "Llama2-7B at 4K"
OWN_THRESHOLD = "the threshold of its family"
"""Whose score a threshold is that a family of tasks brings."""


def effective_length(
    scores: Mapping[int, float], threshold: float, claimed: float | None = None
) -> str:
    """The longest tested length whose score is at least the threshold, as the paper prints it.

    Shorter lengths may fail: this rule alone reproduces all 205 printed values. Scores are percent
    and compared rounded to one decimal; NaN is a length without a complete score. '<4K' is below
    the shortest tested length, '>128K' says that the longest tested one passed and that the model
    claims more, or does not say what it claims. '>=16K' says that a longer length has no complete
    score yet; '' that nothing is known.
    """
    best = longest_above(scores, threshold)

    # A length without a complete score can neither pass nor fail; only one that is longer than the
    # longest passing length could still change the answer.
    if any(math.isnan(score) for length, score in scores.items() if length > best):
        return f">={length_name(best)}" if best else ""
    return _answer_name(best, sorted(scores), claimed)


def longest_above(scores: Mapping[int, float], threshold: float) -> int:
    """The longest length, in tokens, whose score (percent, NaN where there is none) is at least the
    threshold, rounded to one decimal; 0 for none. Shorter lengths may fail, as in the paper."""
    return max(
        (length for length, score in scores.items() if round(score, 1) >= threshold), default=0
    )


def effective_set(
    intervals: Mapping[int, tuple[float, float]], threshold: float, claimed: float | None = None
) -> str:
    """The effective lengths that the data cannot rule out, given the interval of each length's
    score in percent.

    Neighbours are written '4K..16K', a gap '4K, 16K'.
    """
    # Neighbouring lengths that are all possible are written as a range.
    lengths, texts = sorted(intervals), []
    possible = possible_lengths(intervals, threshold)
    for is_possible, neighbours in groupby([0, *lengths], possible.__contains__):
        if is_possible:
            names = [_answer_name(length, lengths, claimed) for length in neighbours]
            texts.append(names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}")
    return ", ".join(texts)


def possible_lengths(intervals: Mapping[int, tuple[float, float]], threshold: float) -> list[int]:
    """The effective lengths that the data cannot rule out; 0 is below the shortest.

    A length can be the answer if its upper limit reaches the threshold and the lower limit of every
    longer one stays below it; NaN limits rule out nothing.
    """
    # From the longest down: a length whose lower limit passes rules out all shorter ones.
    possible = []
    for length in sorted(intervals, reverse=True):
        low, high = (round(limit, 1) for limit in intervals[length])
        if not high < threshold:
            possible.append(length)
        if low >= threshold:
            return possible
    return [*possible, 0]


def _answer_name(best: int, lengths: list[int], claimed: float | None) -> str:
    if not best:
        return f"<{length_name(lengths[0])}"

    # A model that claims more than was tested may be better still.
    more = claimed is None or math.isnan(claimed) or claimed > best
    return (">" if best == lengths[-1] and more else "") + length_name(best)


def threshold_of(
    tasks: Collection[str], aligned: str, own_threshold: float | None = None
) -> float | None:
    """The threshold in percent of a mean over these tasks; None where there is none.
    `own_threshold` is what their family brings."""
    if own_threshold is not None:
        return own_threshold
    for name, threshold in THRESHOLDS[aligned].items():
        if {task for task in THIRTEEN if name in ("all", category_of(task))} == set(tasks):
            return threshold
    return None

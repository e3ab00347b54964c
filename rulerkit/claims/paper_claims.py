"""The claims of the paper's Sections 5 and 6, by notebook: what it says, where, and how we judge it.

Where the paper speaks of one model (Yi-34B in Figures 2 and 3), what it says of the task is judged for any model, and
the numbers that it gives for that model only for it. `paper_verdicts` holds them against data.
"""

from typing import TYPE_CHECKING, Any, NamedTuple

from rulerkit.errors import unknown
from rulerkit.tables import show

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler


class Claim(NamedTuple):
    """What the paper says and where; `reading` is how we judge it, where its words leave that open."""

    text: str
    where: str
    reading: str


CLAIMS: dict[str, dict[str, Claim]] = {
    "02_needle_types": {
        "perfect": Claim(
            "Almost perfect with word keys and number values, in passkey and in vanilla NIAH",
            "Section 5, Figure 2 left",
            "the mean of both over all lengths is at least 95",
        ),
        "degrade": Claim(
            "Other needle forms degrade", "Section 5, Figure 2 left", "each is below vanilla NIAH, mean over lengths"
        ),
        "uuids": Claim(
            "The largest degradation is in retrieving UUIDs",
            "Section 5, Figure 2 left",
            "word-uuid is below every other form with word keys, mean over lengths",
        ),
    },
    "03_distractors": {
        "steady": Claim(
            "More distractor needles steadily lower the score",
            "Section 5, Figure 2",
            "lower at the end of the row than at its start, no step up, not all in one step, mean over lengths",
        ),
        "forty": Claim(
            "Yi-34B: about 40 points lower at 256K with the haystack full of distractors",
            "Section 5, Figure 2",
            "against one key at the same length; 30 to 50 points",
        ),
    },
    "04_multiple_needles": {
        "queries": Claim(
            "More queries lower the score", "Section 5, Figure 2 right", "most against one, mean over lengths"
        ),
        "fifteen": Claim(
            "Yi-34B: from 1 to 8 queries the score drops by about 15 points",
            "Section 5, Figure 2 right",
            "at the longest length; 10 to 20 points",
        ),
        "values": Claim(
            "With more values the answers are not the complete set",
            "Section 5, Figure 2 right",
            "the score with most values is below that with one, mean over lengths",
        ),
    },
    "05_variable_tracking": {
        "hops": Claim(
            "More hops: the score falls steadily with the length",
            "Section 5, Figure 3",
            "with every number of hops lower at the longest length, no step up, and not all in one step",
        ),
        "chains": Claim(
            "More chains: the fall is largest beyond 128K",
            "Section 5, Figure 3",
            "the fall per doubling past the length `beyond` is greater than the mean fall before, mean over chains",
        ),
    },
    "06_frequent_words": {
        "alpha": Claim(
            "A lower alpha gives a lower score",
            "Section 5, Figure 3",
            "lower at the end of the row than at its start, and no step up, mean over lengths",
        ),
    },
    "07_question_answering": {
        "approaches": Claim(
            "Approaches the no-context baseline as the context grows",
            "Section 5, Figure 3 right",
            "the gap to the baseline is smaller at the longest length than at the shortest",
        ),
        "same": Claim(
            "Some predictions equal the answers that are given without any context",
            "Section 5",
            "at the longest length some wrong predictions are the answer to the question alone",
        ),
    },
    "08_training_length": {
        "larger": Claim(
            "A larger training length is better overall",
            "Section 6, Figure 4",
            "models in the order of training length, mean over all lengths: higher at the end, and no step down",
        ),
        "order": Claim(
            "For long inputs the ranking is not that of the training lengths",
            "Section 6, Figure 4",
            "at the longest length some model is below one that was trained on less",
        ),
        "lwm": Claim("LWM-1M is worse than LWM-512K at 256K", "Section 6, Figure 4", "the chat models, at 256K"),
        "abrupt": Claim(
            "An abrupt drop past the training length",
            "Section 6, Figure 4",
            "for every model: the fall per doubling past it is greater than the mean fall before",
        ),
        "linear": Claim(
            "Within the training length almost linear in the log of the length",
            "Section 6, Figure 4",
            "for every model: no length is more than 5 points from the line",
        ),
    },
    "09_model_size": {
        "short": Claim(
            "The largest model is better than the smallest at the shortest length",
            "Section 6, Figure 4 (Yi-34B and Yi-6B at 4K)",
            "last model of the list against the first",
        ),
        "relative": Claim(
            "The largest model degrades less than the smallest, relative to its start",
            "Section 6, Figure 4 (Yi-34B and Yi-6B)",
            "what is kept at the longest length, as a share of the shortest",
        ),
    },
    "10_architectures": {
        "degrade": Claim(
            "RWKV and Mamba degrade significantly from 4K to 8K",
            "Section 6, Figure 4 right",
            "every model but the reference: lower at the length after its edge",
        ),
        "margins": Claim(
            "Both are below Llama2-7B by large margins up to 4K",
            "Section 6, Figure 4 right",
            "every other model is lower than the reference at each length up to its edge",
        ),
        "extrapolates": Claim(
            "Llama2-7B extrapolates poorly past 4K",
            "Section 6, Figure 4 right",
            "the reference: the fall per doubling past its edge is greater than the mean fall before",
        ),
    },
    "11_task_correlation": {
        "clusters": Claim(
            "The tasks of each of the four categories form a cohesive cluster",
            "Section 6, Figure 5",
            "the dendrogram cut into as many clusters as there are categories gives the categories",
        ),
        "redundant": Claim(
            "The removed tasks correlate highly with a kept one of the same category",
            "Section 6, Figure 5",
            "each with a coefficient of at least 0.8, by its interval",
        ),
        "moderate": Claim(
            "Certain tasks correlate only moderately with others",
            "Section 6, Figure 5",
            "some pair's interval lies below 0.8",
        ),
    },
}


def stated(notebook: str) -> "Styler":
    """What the paper says, as a table for the notebook, before any figure."""
    import pandas as pd

    if notebook not in CLAIMS:
        raise unknown("notebook with claims", notebook, CLAIMS)
    table = pd.DataFrame(list(CLAIMS[notebook].values()))
    table.columns = ["the paper says", "where", "judged by"]
    left: list[Any] = [{"selector": "td, th", "props": "text-align: left; vertical-align: top; max-width: 28em"}]
    return show(table).set_table_styles(left)

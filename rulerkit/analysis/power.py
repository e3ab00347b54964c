"""The power of a comparison before it is run: how many examples it needs, and what loss they show.

The numbers are arithmetic; no model answers. `rulerkit plan --compare` prints them.
"""

import math
from bisect import bisect_left

from rulerkit.analysis.differences import check_margin, losses_text, smallest_loss
from rulerkit.common.errors import UserError, counted, points_text
from rulerkit.scoring.statistics import critical_value

_MOST_EXAMPLES = 10**15  # where the search for a number of examples ends


def power_text(
    num_tasks: int, num_lengths: int, num_examples: int, margin: float = 1.0, flips: float = 0.02
) -> str:
    """How many examples a comparison of equal models needs, and what it sees, in words.

    `flips` is the assumed share of answers that change each way by chance. The mean of equal models
    then lies within the margin with a chance of 90 %. Raises UserError for impossible values.
    """
    check_margin(margin)
    if not 0 <= flips <= 0.5:
        raise UserError(
            f"flips is {flips!r}: it must be the share of answers that change each way, 0 to 0.5"
        )

    num_cells = num_tasks * num_lengths
    z = critical_value(0.95)
    z_of_nine_in_ten = critical_value(0.8)  # 10 % lie below the lower end of 80 %

    def is_enough(examples: int) -> bool:
        """Whether gains and losses, as many as are expected of equal models, with Wilson's limits
        and a difference that 9 of 10 exceed, leave the mean within the margin."""
        pairs = examples * num_cells
        flipped = 2 * flips * pairs
        by_chance = z_of_nine_in_ten * math.sqrt(flipped)
        half_interval = math.sqrt(z**2 * flipped + z**4)
        return by_chance + half_interval < margin / 100 * pairs

    needed = 1 + bisect_left(range(1, _MOST_EXAMPLES), True, key=is_enough)

    # Holm's method counts every test: each cell, task and length, and the mean. A mean over one
    # task, or over one length, is no test of its own.
    rows_of_tasks = num_tasks + 1 if num_tasks > 1 else num_tasks
    rows_of_lengths = num_lengths + 1 if num_lengths > 1 else num_lengths
    num_tests = rows_of_tasks * rows_of_lengths
    # A question is the same at every length, so a task with all its lengths has no more of them
    # than a cell: in the order of LEVELS.
    tasks_of_levels = (1, 1, num_tasks, num_tasks)
    smallest = [smallest_loss(num_examples * tasks, num_tests, margin) for tasks in tasks_of_levels]

    return (
        f"{counted(num_tasks, 'task')} at {counted(num_lengths, 'length')}, "
        f"margin {points_text(margin)}, 95 % intervals:\n"
        f"- needs {needed} examples per task and length (now {num_examples}) "
        f"for the mean, where {100 * flips:g} % of the answers of equal models flip each way: then "
        "9 of 10 comparisons of equals end with 'not worse'\n"
        f"- the smallest loss that {num_examples} examples show to be more than the margin, where "
        "nothing else flips and each question is lost at all its lengths: "
        f"{losses_text(smallest)}"
    )

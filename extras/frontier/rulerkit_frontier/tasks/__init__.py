"""The frontier suite: eight families of tasks that still separate models which RULER no longer
separates.

`base.py` holds what all of them share. A family is one file and one entry of FAMILIES; a task is
one line of TASKS. None of it enters a mean, a table or a threshold of RULER.
"""

from rulerkit.generation.tasks.base import Task
from rulerkit_frontier.tasks.absent import Absent
from rulerkit_frontier.tasks.base import FrontierTask
from rulerkit_frontier.tasks.count import Count
from rulerkit_frontier.tasks.graph import Graph
from rulerkit_frontier.tasks.latent import Latent
from rulerkit_frontier.tasks.missing import Missing
from rulerkit_frontier.tasks.order import Order
from rulerkit_frontier.tasks.ordinal_copy import OrdinalCopy
from rulerkit_frontier.tasks.state import State

FAMILIES: tuple[type[FrontierTask], ...] = (
    Graph,
    OrdinalCopy,
    Count,
    Absent,
    State,
    Latent,
    Missing,
    Order,
)

TASKS: tuple[Task, ...] = (
    Graph(name="graph_parents", operation="parents"),
    Graph(name="graph_bfs_2"),
    Graph(name="graph_bfs_4", depth=4, width=4),
    OrdinalCopy(name="ordinal_copy_2", num_replies=2),
    OrdinalCopy(name="ordinal_copy_8"),
    Count(name="count_64"),
    Count(name="count_distinct_32", ask="people", most=32),
    Absent(name="absent_4"),
    State(name="state_4"),
    State(name="state_16", num_operations=16),
    Latent(name="latent_3"),
    Missing(name="missing_8"),
    Order(name="order_8"),
)

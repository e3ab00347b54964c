"""The frontier suite: eight families of tasks that still separate models which RULER no longer
separates.

`base.py` holds what all of them share. A family is one file and one entry of FAMILIES; a task is
one line of TASKS. None of it enters a mean, a table or a threshold of RULER.
"""

from rulerkit.generation.tasks.base import Task

FAMILIES: tuple[type[Task], ...] = ()

TASKS: tuple[Task, ...] = ()

FRONTIER: tuple[str, ...] = tuple(task.name for task in TASKS)
"""The names of the suite's tasks."""

"""What a notebook asks, before it runs: the studies of its cell tagged `study`.

Planning runs the cells tagged `parameters` and `study` in a fresh namespace, and no other cell.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.evaluation.notebook import read_notebook
from rulerkit.evaluation.study import Study


def studies_of(notebook: Path, parameters: Mapping[str, Any]) -> list[Study]:
    """What a notebook asks under these parameters: the studies that its cell tagged `study` assigns
    to the name `study`. [] where no cell is tagged so: then nobody knows before it runs.

    Raises `UserError` for a wrong parameter, and for cells that need others.
    """
    cells = read_notebook(notebook)
    if not any(cell.has("study") for cell in cells):
        return []

    names: dict[str, Any] = {
        # By these two names `rk.study(globals())` knows that it is in a notebook, and which
        # parameters were given from outside.
        "In": ["# Parameters\n" + "".join(f"{name} = None\n" for name in parameters)],
        "get_ipython": lambda: None,
        "__name__": "__main__",
    }
    try:
        for cell in cells:
            if cell.has("parameters") or cell.has("study"):
                exec(compile(cell.source, str(notebook), "exec"), names)
            if cell.has("parameters"):
                names |= parameters
    except UserError as error:
        raise UserError(f"{notebook.stem}: {error}") from error
    except Exception as error:
        raise UserError(
            f"{notebook.stem} cannot be planned ({type(error).__name__}: "
            f"{' '.join(str(error).split())}): its cells tagged `parameters` and `study` are run "
            "alone, so they must not need other cells"
        ) from error

    assigned = names.get("study")
    studies = [assigned] if isinstance(assigned, Study) else assigned
    if not isinstance(studies, list | tuple) or not all(isinstance(one, Study) for one in studies):
        raise UserError(
            f"{notebook.stem}: its cell tagged `study` must assign `study`, such as "
            f"`study = rk.study(globals(), notebook={notebook.stem!r})`, or a list of them"
        )
    return list(studies)

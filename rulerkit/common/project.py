"""The project root, and the kit's own params/ and notebooks/."""

import os
from pathlib import Path

FOLDERS = ("params", "notebooks")
"""What makes a folder a project, and what the kit brings along."""


def _is_project(folder: Path) -> bool:
    return all((folder / name).is_dir() for name in FOLDERS)


PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _is_project(PACKAGE.parent)
KIT = PACKAGE.parent if _CHECKOUT else PACKAGE / "data/project"
"""The folder of the kit's own params/ and notebooks/: the checkout, or inside the installed
package."""


def home() -> Path:
    """The project root, where results go: RULERKIT_HOME, else the nearest folder from the working
    directory upward that has `params/` and `notebooks/`, else the working directory. It is never
    the checkout that merely holds this package."""
    if root := os.environ.get("RULERKIT_HOME"):
        return Path(root).expanduser().resolve()
    here = Path.cwd()
    return next(filter(_is_project, (here, *here.parents)), here)

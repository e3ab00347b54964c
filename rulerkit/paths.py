"""Where things lie: one project root, whatever the working directory."""

import os
from pathlib import Path


def home() -> Path:
    """The project root: RULERKIT_HOME, else the checkout that holds this package, else the nearest
    folder above the working directory with `params/` and `notebooks/`, else the working directory
    itself."""
    if root := os.environ.get("RULERKIT_HOME"):
        return Path(root).expanduser().resolve()
    places = [Path(__file__).resolve().parent.parent, Path.cwd(), *Path.cwd().parents]
    return next(
        (p for p in places if (p / "params").is_dir() and (p / "notebooks").is_dir()), Path.cwd()
    )


def resolve(path: str | Path) -> Path:
    """An absolute path; relative ones count from `home()`, so that a notebook may run from any
    folder."""
    return home() / os.path.expanduser(path)


def resolve_file(name: str | Path) -> Path:
    """A file that a user names on the command line: from the working directory, else from the
    project root."""
    path = Path(os.path.expanduser(name))
    return path.absolute() if path.exists() else resolve(path)


def cell_file(predictions: Path, model: str, task: str, length: int) -> Path:
    """Where the answers of one model to one task at one length lie; `predictions` is the folder of
    a run."""
    return predictions / model / task / f"{length}.jsonl"


def cache_dir() -> Path:
    """The folder of downloads: $RULERKIT_CACHE, else the platform's cache folder."""
    if folder := os.environ.get("RULERKIT_CACHE"):
        return Path(folder).expanduser()
    import pooch

    return Path(pooch.os_cache("rulerkit"))

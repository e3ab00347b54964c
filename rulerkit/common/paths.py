"""Where files lie: one project root, whatever the working directory.

Every command imports this module: what it seldom needs is imported inside its functions, as that
took a fifth of the time of `rulerkit --help`.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from rulerkit.common.plugins import brought
from rulerkit.common.project import FOLDERS, PACKAGE
from rulerkit.common.project import KIT as KIT
from rulerkit.common.project import home as home


def package_text(name: str) -> str:
    """A file of the package's own data."""
    return (PACKAGE / "data" / name).read_text(encoding="utf-8")


@cache
def package_data(name: str) -> Any:
    """What a YAML file of the package's own data says."""
    import yaml

    return yaml.safe_load((PACKAGE / "data" / name).read_text(encoding="utf-8"))


def package_version(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return None


def install_command(extra: str) -> str:
    """The command that installs an extra of this package."""
    return f"pip install 'rulerkit[{extra}]'"


def holds_checkpoint(folder: Path) -> bool:
    """Whether a folder is that of a model."""
    return (folder / "config.json").exists()


def home_text() -> str:
    """The project root and what makes it one, in words; empty where it is the working
    directory."""
    root = home()
    if root == Path.cwd():
        return ""
    reason = "the nearest folder with params/ and notebooks/"
    if os.environ.get("RULERKIT_HOME"):
        reason = "RULERKIT_HOME"
    return f"project root: {root} ({reason})"


def roots() -> list[Path]:
    """The folders of notebooks/ and params/: the project's, those that plug-ins bring, the kit's.
    Of two files of one name the first one counts."""
    brought_along = [Path(folder) for _, folder in brought("project")]
    return [home(), *reversed(brought_along), KIT]


def project_files(folder: str, suffix: str) -> dict[str, Path]:
    """Name -> file of a folder such as `params/models`."""
    files = dict[str, Path]()
    for root in reversed(roots()):
        files |= {path.stem: path for path in sorted((root / folder).glob(f"*{suffix}"))}
    return files


def project_file(folder: str, name: str, suffix: str) -> Path | None:
    """One of `project_files` by its name; the folders are not listed."""
    path = resolve(f"{folder}/{name}{suffix}")
    return path if "/" not in name and os.path.isfile(path) else None


def resolve(path: str | Path) -> Path:
    """An absolute path; relative ones count from `home()`, so that a notebook may run from any
    folder. What is not there may be a part of the package, such as `rulerkit/data/small/llama`, or
    of the params/ and notebooks/ of plug-ins and of the kit."""
    path = Path(os.path.expanduser(path))
    places = [home() / path]
    first = path.parts[0] if path.parts else ""
    if first == PACKAGE.name:
        places.append(PACKAGE.parent / path)
    elif first in FOLDERS and not os.path.exists(places[0]):
        places = [root / path for root in roots()]
    return next(filter(os.path.exists, places), places[0])


def resolve_file(name: str | Path) -> Path:
    """A file or folder that a user names, as an absolute path: from the working directory, else the
    project root, else params/ and notebooks/ of the kit and of plug-ins."""
    here = resolve(Path.cwd() / os.path.expanduser(name))
    # Of a name that is too long for the system, too, it says that nothing is there.
    return here if os.path.exists(here) else resolve(name)


def cell_file(predictions: Path, model: str, task: str, length: int) -> Path:
    """The file of a model's answers to one task at one length, in the predictions of a run."""
    return predictions.joinpath(model, task, f"{length}.jsonl")


def cache_dir() -> Path:
    """The folder of downloads: $RULERKIT_CACHE, else the platform's cache folder."""
    if folder := os.environ.get("RULERKIT_CACHE"):
        return Path(folder).expanduser()
    import pooch

    return Path(pooch.os_cache("rulerkit"))


@contextmanager
def completed(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place when it is complete: readers never see
    half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.{socket.gethostname()}-{os.getpid()}{path.suffix}")
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)

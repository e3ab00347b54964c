"""Where files lie: one project root, whatever the working directory."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

_FOLDERS = ("params", "notebooks")
"""What makes a folder a project, and what the kit brings along."""


def _is_project(folder: Path) -> bool:
    return all((folder / name).is_dir() for name in _FOLDERS)


_PACKAGE = Path(__file__).resolve().parents[1]
_CHECKOUT = _is_project(_PACKAGE.parent)
KIT = _PACKAGE.parent if _CHECKOUT else _PACKAGE / "data/project"
"""The folder of the kit's own params/ and notebooks/: the checkout, or inside the installed
package."""


def package_text(name: str) -> str:
    """A file of the package's own data."""
    return (_PACKAGE / "data" / name).read_text(encoding="utf-8")


@cache
def package_data(name: str) -> Any:
    """What a YAML file of the package's own data says."""
    return yaml.safe_load(package_text(name))


def package_version(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def home() -> Path:
    """The project root: RULERKIT_HOME, else the nearest folder above the working directory with
    `params/` and `notebooks/`, else the checkout that holds this package, else the working
    directory itself."""
    if root := os.environ.get("RULERKIT_HOME"):
        return Path(root).expanduser().resolve()
    here = Path.cwd()
    return next(
        filter(_is_project, (here, *here.parents)), KIT if _CHECKOUT else here
    )


def project_files(folder: str, suffix: str) -> dict[str, Path]:
    """Name -> file of a folder such as `params/models`: those of the kit, then those of the
    project, which win."""
    files = [
        path
        for root in (KIT, home())
        for path in sorted((root / folder).glob(f"*{suffix}"))
    ]
    return {path.stem: path for path in files}


def resolve(path: str | Path) -> Path:
    """An absolute path; relative ones count from `home()`, so that a notebook may run from any
    folder. What is not there may be a part of the package, such as `rulerkit/data/small/llama`, or
    of the kit's params/ and notebooks/."""
    place = home() / os.path.expanduser(path)
    first = Path(path).parts[:1]
    if first == (_PACKAGE.name,):
        ours = _PACKAGE.parent / path
    elif first and first[0] in _FOLDERS:
        ours = KIT / path
    else:
        return place
    return ours if ours.exists() and not place.exists() else place


def resolve_file(name: str | Path) -> Path:
    """A file or folder that a user names, as an absolute path: from the working directory, else the
    project root, else the kit's params/ and notebooks/."""
    path = Path(os.path.expanduser(name))
    return path.absolute() if path.exists() else resolve(path)


def cell_file(predictions: Path, model: str, task: str, length: int) -> Path:
    """The file of a model's answers to one task at one length, in the predictions of a run."""
    return predictions / model / task / f"{length}.jsonl"


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
    part = path.with_name(
        f".{path.stem}.{socket.gethostname()}-{os.getpid()}{path.suffix}"
    )
    try:
        yield part
        part.replace(path)
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)

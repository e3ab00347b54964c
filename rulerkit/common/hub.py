"""The Hugging Face hub: files of a repository in the local cache, downloaded where they are not
there."""

import os
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.common.paths import resolve


def is_hub_id(name: str) -> bool:
    """Whether a name reads `org/name`; `runs/x` where `runs` is a folder of this project is a
    path."""
    is_id = re.fullmatch(r"\w[\w.-]*/[\w.-]+", name) is not None
    return is_id and not os.path.isdir(resolve(name.partition("/")[0]))


def download(who: str, path: str, revision: str | None, patterns: Iterable[str]) -> Path:
    """The folder in the hub's cache that holds the files of a repository that match `patterns`.

    Only what the cache lacks is downloaded; an interrupted download resumes. Raises `UserError`,
    which begins with `who`: why the download failed, and what to do.
    """
    from huggingface_hub import constants, snapshot_download

    # The error of the HTTP client in use.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]
    from tqdm.auto import tqdm

    bar: Any = partial(tqdm, delay=1, disable=None)  # none for small files, none in logs
    try:
        return Path(
            snapshot_download(
                path,
                revision=revision,
                allow_patterns=list(patterns),
                tqdm_class=bar,
                # Before 2.0 it asks for the list of files even where it may not.
                local_files_only=constants.is_offline_mode(),
            )
        )
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        if constants.is_offline_mode():
            raise UserError(
                f"{who}: HF_HUB_OFFLINE is set and {constants.HF_HUB_CACHE} does not hold it: "
                f"unset it, or download it on a machine with a network (hf download {path})"
            ) from error
        # It says whether the name is wrong, its terms are to be accepted or `hf auth login` helps.
        reason = " ".join(str(error).split())
        raise UserError(
            f"{who}: {path} cannot be downloaded from {constants.ENDPOINT} ({reason}): run the "
            "same command again; complete files are kept"
        ) from error

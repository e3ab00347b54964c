"""The environment in which rows are made: versions, commit, host."""

import platform
import socket
import subprocess
from functools import cache
from pathlib import Path

from rulerkit.common.paths import home, package_version
from rulerkit.common.settings import JSON

PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "vllm", "sentencepiece", "tiktoken")


def machine(extra: JSON) -> JSON:
    """What rows are made with: versions (nothing is imported for them), commit, host, and what the
    model adds."""
    packages = {name: package_version(name) for name in PACKAGES} | extra.get("packages", {})
    return {
        "rulerkit": package_version("rulerkit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "git": _commit(home()),
        "host": socket.gethostname(),
        "gpu": None,
        **extra,
        "packages": {name: number for name, number in packages.items() if number},
    }


@cache
def _commit(root: Path) -> str | None:
    """The commit of a checkout, with `-dirty` where files differ from it; None without git."""
    call = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            call, capture_output=True, encoding="utf-8", errors="replace", timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None

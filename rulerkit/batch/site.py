"""What a lab says once of its Slurm cluster, in params/site.yaml: where jobs go, and what they need before they start."""

import shlex
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError, unknown
from rulerkit.params import read_yaml
from rulerkit.paths import home


@dataclass(frozen=True)
class Site:
    """A cluster; every key may be left out."""

    partition: str | None = None
    """Where jobs with GPUs go."""
    account: str | None = None
    options: tuple[str, ...] = ()
    """Further options of sbatch for every job, such as --qos=long or --constraint=a100."""
    gpu_options: tuple[str, ...] = ("--gres=gpu:{gpus}",)
    """How GPUs are asked for; {gpus} is their number on each node, such as in --gpus-per-node=h100:{gpus}."""
    cpu_options: tuple[str, ...] = ()
    """Options for jobs without GPUs, such as --partition=cpu; they win over partition."""
    whole_nodes: int | None = None
    """The number of GPUs of a node, where jobs must take whole nodes: each job then shares its node out among models."""
    hours: float = 24.0
    """The time limit of models that do not name their own."""
    signal_before: int = 300
    """Seconds before the time limit at which a job goes back into the queue; at most half of the limit."""
    setup: tuple[str, ...] = ()
    """Lines of shell before anything else, such as `module load cuda` or `export NCCL_SOCKET_IFNAME=ib0`."""
    launcher: str = ""
    """What goes before python, as the shell reads it, such as `apptainer exec --nv rulerkit.sif`."""
    python: str = shlex.quote(sys.executable)
    """The interpreter on the nodes, as the shell reads it."""
    offline: bool = True
    """Whether jobs must do without a network; `rulerkit fetch -f BATCH.yaml` gets what they need."""


_READ: dict[str, tuple[Any, str]] = {
    "partition": (str, "a name"),
    "account": (str, "a name"),
    "launcher": (str, "a command, on one line, its quotes closed"),
    "python": (str, "a command, on one line, its quotes closed"),
    "hours": ((int, float), "a number of hours above 0, at most 744"),
    "signal_before": (int, "a number of seconds from 1 to 65535"),
    "whole_nodes": (int, "the number of GPUs of a node"),
    "offline": (bool, "true or false"),
    **dict.fromkeys(("options", "cpu_options", "setup"), (list, "a list of texts, each on one line")),
    "gpu_options": (list, "a list of texts, each on one line, in which {gpus} stands for the number of GPUs"),
}
_MOST = {"hours": 744, "signal_before": 65535}


def read_site(path: Path | None = None) -> Site:
    """The site file; without one, plain sbatch with the cluster's defaults."""
    named = path or home() / "params" / "site.yaml"
    if path is None and not named.exists():
        return Site()
    given: dict[str, Any] = {}
    for key, value in read_yaml(named).items():
        if key not in _READ:
            raise unknown(f"key in {named}", key, [field.name for field in fields(Site)])
        if value is not None and not _is_right(key, value):
            raise UserError(f"{key} in {named} is {value!r}: it must be {_READ[key][1]}")
        if value is not None:
            given[key] = tuple(value) if isinstance(value, list) else value
    return Site(**given)


def _is_right(key: str, value: Any) -> bool:
    kind = _READ[key][0]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        return False
    if kind is list:
        texts = [each.replace("{gpus}", "") for each in value if isinstance(each, str) and "\n" not in each.strip()]
        return len(texts) == len(value) and not (key == "gpu_options" and any("{" in text for text in texts))
    if key in ("launcher", "python"):
        return "\n" not in value.strip() and _is_closed(value)
    return kind in (str, bool) or 0 < value <= _MOST.get(key, value)


def _is_closed(command: str) -> bool:
    """Whether every quote of a command is closed."""
    try:
        shlex.split(command)
    except ValueError:
        return False
    return True

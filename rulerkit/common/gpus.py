"""The GPUs of this machine; torch and its memory, for the engines that compute in this process."""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from rulerkit.common.errors import UserError, first_line, shortened
from rulerkit.common.paths import install_command, package_version


def visible_gpus() -> list[str]:
    """The GPUs that this process may use: CUDA_VISIBLE_DEVICES, else what nvidia-smi lists, else
    what torch sees, which may be AMD's."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        named = os.environ.get("HIP_VISIBLE_DEVICES")
    if named is None:
        if shutil.which("nvidia-smi") is None:
            return [str(number) for number in range(_torch_gpus())]
        return _nvidia_gpus()
    return [gpu for part in named.split(",") if (gpu := part.strip()) not in ("", "-1")]


@cache
def _torch_gpus() -> int:
    """How many GPUs torch sees; 0 without torch. Its builds for CPUs, which see none, are not
    imported for this: that takes seconds."""
    version = package_version("torch")
    if version is None or "+cpu" in version or sys.platform == "darwin":
        return 0
    try:
        return int(torch_module().cuda.device_count())
    except (UserError, RuntimeError, OSError):
        # A driver that does not fit, or a library of it that is absent.
        return 0


def _nvidia_gpus() -> list[str]:
    """The numbers of the GPUs that nvidia-smi lists; none where there is no driver."""
    call = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(call, capture_output=True, encoding="utf-8", timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split()


# --- torch ----------------------------------------------------------------------------------------


def torch_module(engine: str = "transformers") -> Any:
    """torch, or the `UserError` that says how to get it, and with it the rest of an engine."""
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"the {engine} engine is not installed, as torch is not: {install_command(engine)}"
        ) from error
    return torch


def gpu_name(device: str) -> str | None:
    """The name of a GPU; None where the device is no GPU."""
    cuda = torch_module().cuda
    return (
        str(cuda.get_device_name(device))
        if device.startswith("cuda") and cuda.is_available()
        else None
    )


@contextmanager
def loading(who: str, path: object, overrides: object = None) -> Iterator[None]:
    """Turns what may go wrong when weights are loaded into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    # A checkpoint's own code, torch and optional packages raise anything
    except Exception as error:
        # The two most frequent causes have a way out of their own.
        reason = f"{type(error).__name__}: {first_line(error)}"
        if isinstance(error, torch_module().OutOfMemoryError):
            reason += (
                "; use a larger GPU, `device: spread`, or for rwkv a `strategy` such "
                "as `cuda fp16 *20 -> cpu fp32`"
            )
        if "ignore_mismatched_sizes" in reason:
            reason = "its weights do not have the shapes that its config.json describes"
        given = f" with hf_overrides {shortened(overrides)}" if overrides else ""
        raise UserError(f"model {who}: {path} cannot be loaded{given}: {reason}") from error


def free_memory() -> None:
    """Returns unused memory to the GPU."""
    torch = torch_module()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

"""The GPUs of this machine; torch and its memory, for the engines that compute in this process."""

import gc
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from rulerkit.common.errors import UserError, first_line, shortened
from rulerkit.common.paths import install_command


def visible_gpus() -> list[str]:
    """The GPUs that this process may use: CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES (AMD's), else
    what nvidia-smi lists."""
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        if name in os.environ:
            parts = [part.strip() for part in os.environ[name].split(",")]
            return [part for part in parts if part not in ("", "-1")]

    call = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    try:
        done = subprocess.run(call, capture_output=True, encoding="utf-8", timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split()


# --- torch ----------------------------------------------------------------------------------------


def needed(module: str, engine: str) -> Any:
    """A module that an engine needs, or the `UserError` that says how to install it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UserError(
            f"the {engine} engine needs {error.name or module}: {install_command(engine)}"
        ) from error


def torch_module(engine: str = "transformers") -> Any:
    """torch, which an engine needs."""
    return needed("torch", engine)


def gpu_name(device: str) -> str | None:
    """The name of a GPU; None where the device is no GPU."""
    cuda = torch_module().cuda
    is_gpu = device.startswith("cuda") and cuda.is_available()
    return str(cuda.get_device_name(device)) if is_gpu else None


@contextmanager
def loading(who: str, path: object, overrides: object = None) -> Iterator[None]:
    """Turns what may go wrong when weights are loaded into a `UserError`."""
    try:
        yield
    except UserError:
        raise
    # A checkpoint's own code, torch and optional packages raise anything
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        given = f" with hf_overrides {shortened(overrides)}" if overrides else ""
        raise UserError(f"model {who}: {path} cannot be loaded{given}: {reason}") from error


def free_memory() -> None:
    """Returns unused memory to the GPU."""
    torch = torch_module()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

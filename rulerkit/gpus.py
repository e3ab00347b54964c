"""The GPUs of this machine."""

import os
import subprocess


def visible_gpus() -> list[str]:
    """The GPUs that this process may use: CUDA_VISIBLE_DEVICES, else what nvidia-smi lists."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [line.strip() for line in nvidia_smi("index")]
    return [gpu for part in named.split(",") if (gpu := part.strip()) not in ("", "-1")]


def nvidia_smi(fields: str) -> list[str]:
    """A line for each GPU; none where there is no driver."""
    call = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        return subprocess.run(call, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []

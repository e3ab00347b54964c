"""What identifies the weights of a model: digests of weight files and of models in memory.

A record holds `fingerprint` (the rule of 21 November: the edges of files, which misses most
changes) and, beside it, `weights`: a mapping from the name of a newer rule to its digest. Two
records are compared by the rules that both hold.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.paths import cache_dir

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")

_EDGE = 1 << 20  # bytes at either end of a file that the rule of 21 November reads
_TENSOR_EDGE = 4096  # bytes at either end of a tensor that the rule `tensors` reads
_LONGEST_HEADER = 100_000_000  # bytes of a safetensors header, as the format allows
_TRAINING = re.compile(r"(optimizer|scheduler|scaler|rng_state|training_args).*")


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder, without those in which a training run keeps its state."""
    files = sorted(path for pattern in WEIGHTS for path in folder.glob(pattern))
    return [path for path in files if not _TRAINING.fullmatch(path.name)]


def weights_digests(files: Iterable[Path], full: bool = False) -> dict[str, str]:
    """Rule -> 16 hex digits over weight files: `tensors`, and with `full` also `full`.

    `tensors`: of a safetensors file the names, dtypes, shapes and sizes of all tensors and the
    first and last 4 KB of each. It sees every tensor that a fine-tune changed as a whole; it does
    not see a change that leaves both ends of a tensor alone, such as one row of an embedding. Of
    other formats it reads the whole file. `full` reads every file whole.

    Raises:
        UserError: a file cannot be read, or is cut short.
    """
    tensors, whole = hashlib.sha256(), hashlib.sha256()
    for path in files:
        try:
            ends = (
                _tensor_ends(path) if path.suffix == ".safetensors" else file_digest(path).encode()
            )
            tensors.update(f"{path.name}\n".encode() + ends)
            if full:
                whole.update(f"{path.name}\n{file_digest(path)}\n".encode())
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise UserError(
                f"the weights in {path} cannot be read ({error}): copy or download them again"
            ) from error
    digests = {"tensors": tensors.hexdigest()[:16]}
    return digests | {"full": whole.hexdigest()[:16]} if full else digests


def _tensor_ends(path: Path) -> bytes:
    """The digest of a safetensors file's header and of the ends of its tensors."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if length > min(size - 8, _LONGEST_HEADER):
            raise ValueError("it is no safetensors file, or is cut short")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        for name in sorted(header):
            start, end = header[name]["data_offsets"]
            if not 0 <= start <= end <= size - 8 - length:
                raise ValueError(f"the tensor {name} ends beyond the file, which is cut short")
            digest.update(
                f"{name} {header[name]['dtype']} {header[name]['shape']} {end - start}\n".encode()
            )
            file.seek(8 + length + start)
            digest.update(file.read(min(_TENSOR_EDGE, end - start)))
            file.seek(8 + length + max(start, end - _TENSOR_EDGE))
            digest.update(file.read(min(_TENSOR_EDGE, end - start)))
    return digest.digest()


def file_digest(path: Path) -> str:
    """The sha256 of a file, 64 hex digits; the cache keeps it under the file's path, size and times
    of change."""
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
    cached = cache_dir() / "digests" / hashlib.sha256(key.encode()).hexdigest()
    with suppress(OSError):
        if re.fullmatch("[0-9a-f]{64}", digest := cached.read_text()):
            return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError):  # a cache that cannot be written only costs time
        cached.parent.mkdir(parents=True, exist_ok=True)
        part = cached.with_name(f"{cached.name}.{os.getpid()}.part")
        part.write_text(digest)
        part.replace(cached)
    return digest


def loaded_digests(network: Any) -> dict[str, str]:
    """The rule `tensors` for a torch model in memory: name, dtype, shape and both ends of every
    weight."""
    import torch

    digest = hashlib.sha256()
    for name, weight in network.named_parameters():
        flat = weight.detach().reshape(-1)
        count = max(1, _TENSOR_EDGE // flat.element_size())
        ends = torch.cat([flat[:count], flat[-count:]]).cpu().view(torch.uint8)
        digest.update(
            f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode() + ends.numpy().tobytes()
        )
    return {"tensors": digest.hexdigest()[:16]}


# --- the rule of 21 November, by which older records are compared ---------------------------------


def file_edges(path: Path) -> bytes:
    """The size of a file, and its first and last MiB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(_EDGE)
        file.seek(max(0, size - _EDGE))
        return f"{size}\n".encode() + first + file.read(_EDGE)


def loaded_fingerprint(network: Any) -> str:
    """16 hex digits over the configuration of a model in memory and the shape and first values of
    every weight."""
    digest = hashlib.sha256(
        f"{type(network).__qualname__}\n{network.config.to_json_string(use_diff=False)}".encode()
    )
    for name, weight in network.named_parameters():
        first = weight.detach().reshape(-1)[:16].float().cpu().tolist()
        digest.update(f"{name} {tuple(weight.shape)} {first}\n".encode())
    return digest.hexdigest()[:16]

"""Fingerprints: what tells one checkpoint from another. `loaded_network` does the same for one in
memory, `user_code` for functions.

A record holds a `fingerprint`, over the configuration and the ends of the weight files, and
`weights`: a mapping from the name of a rule, `tensors` or `full`, to its digest. Of `weights` the
rules that both records hold are compared.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from contextlib import suppress
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.common.paths import cache_dir, completed

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


_TRAINING = re.compile(r"(optimizer|scheduler|scaler|rng_state|training_args).*")
"""The files among them in which a training run keeps its state."""


_END = 1 << 20  # bytes at either end of a file that a fingerprint reads


TENSOR_END = 4096  # bytes at either end of a tensor that the rule `tensors` reads


def is_training_state(path: Path) -> bool:
    """Whether a file holds the state of a training run, such as an optimizer's."""
    return _TRAINING.fullmatch(path.name) is not None


def short(digest: Any) -> str:
    """The 16 hex digits of a hash that stand in records."""
    return str(digest.hexdigest()[:16])


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
        name = f"{path.name}\n".encode()
        try:
            if path.suffix == ".safetensors":
                tensors.update(name + _tensor_ends(path))
            else:
                tensors.update(name + file_digest(path).encode())
            if full:
                whole.update(name + f"{file_digest(path)}\n".encode())
        except Exception as error:
            # A damaged file raises anything.
            raise UserError(
                f"the weights in {path} cannot be read ({error}): copy or download them again"
            ) from error

    digests = {"tensors": short(tensors)}
    if full:
        digests["full"] = short(whole)
    return digests


def _tensor_ends(path: Path) -> bytes:
    """The digest of a safetensors file's header and of the ends of its tensors."""
    digest = hashlib.sha256()
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
        first = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:first])
        for name in sorted(header.keys() - {"__metadata__"}):
            start, end = header[name]["data_offsets"]
            if not 0 <= start <= end <= len(data) - first:
                raise ValueError(f"the tensor {name} ends beyond the file, which is cut short")
            size = min(TENSOR_END, end - start)
            about = f"{name} {header[name]['dtype']} {header[name]['shape']} {end - start}\n"
            digest.update(about.encode() + data[first + start : first + start + size])
            digest.update(data[first + end - size : first + end])
    return digest.digest()


def file_digest(path: Path) -> str:
    """The sha256 of a file, 64 hex digits; the cache holds it under the file's path, size and times
    of change."""
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
    cached = cache_dir() / "digests" / hashlib.sha256(key.encode()).hexdigest()
    with suppress(OSError):
        digest = cached.read_text(encoding="utf-8")
        if len(digest) == 64:
            return digest

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # Where the cache cannot be written, only time is lost.
    with suppress(OSError), completed(cached) as part:
        part.write_text(digest, encoding="utf-8")
    return digest


def file_ends(path: Path) -> bytes:
    """The size of a file, and its first and last MiB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(_END)
        file.seek(max(0, size - _END))
        return f"{size}\n".encode() + first + file.read(_END)

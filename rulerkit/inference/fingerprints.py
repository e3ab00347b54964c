"""Fingerprints: what tells one checkpoint, one loaded network, one function from another.

A record holds a `fingerprint`, over the configuration and the ends of the weight files, and
`weights`: a mapping from the name of a rule, `tensors` or `full`, to its digest. Of `weights` the
rules that both records hold are compared, and so is `code`, of functions and of networks in memory.
"""

import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dis import get_instructions
from functools import partial
from inspect import getclosurevars
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from rulerkit.common.errors import UserError
from rulerkit.common.paths import cache_dir, completed
from rulerkit.common.settings import JSON, Spec

WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")


_TRAINING = re.compile(r"(optimizer|scheduler|scaler|rng_state|training_args).*")
"""The files among them in which a training run keeps its state."""


_END = 1 << 20  # bytes at either end of a file that a fingerprint reads


_TENSOR_END = (
    4096  # bytes at either end of a tensor that the rule `tensors` reads
)


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
    with (
        path.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as data,
    ):
        first = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:first])
        for name in sorted(header.keys() - {"__metadata__"}):
            start, end = header[name]["data_offsets"]
            if not 0 <= start <= end <= len(data) - first:
                raise ValueError(
                    f"the tensor {name} ends beyond the file, which is cut short"
                )
            size = min(_TENSOR_END, end - start)
            about = f"{name} {header[name]['dtype']} {header[name]['shape']} {end - start}\n"
            digest.update(
                about.encode() + data[first + start : first + start + size]
            )
            digest.update(data[first + end - size : first + end])
    return digest.digest()


def file_digest(path: Path) -> str:
    """The sha256 of a file, 64 hex digits; the cache holds it under the file's path, size and times
    of change."""
    stat = path.stat()
    key = f"{path.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"
    cached = cache_dir() / "digests" / hashlib.sha256(key.encode()).hexdigest()
    with suppress(OSError):
        digest = cached.read_text()
        if len(digest) == 64:
            return digest

    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    # Where the cache cannot be written, only time is lost.
    with suppress(OSError), completed(cached) as part:
        part.write_text(digest)
    return digest


def file_ends(path: Path) -> bytes:
    """The size of a file, and its first and last MiB."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(_END)
        file.seek(max(0, size - _END))
        return f"{size}\n".encode() + first + file.read(_END)


def loaded_identity(network: Any) -> JSON:
    """What identifies a torch model in memory: `loaded`, its configuration and the shape and first
    values of every weight; `weights`, the rule `tensors`; and `code`, its kind of attention and
    what `forward` of each module and its `generate` do."""
    import torch

    config = network.config.to_json_string(use_diff=False)
    loaded = hashlib.sha256(f"{type(network).__qualname__}\n{config}".encode())
    tensors = hashlib.sha256()
    for name, weight in network.named_parameters():
        flat, shape = weight.detach().reshape(-1), tuple(weight.shape)
        first_values = flat[:16].float().cpu().tolist()
        loaded.update(f"{name} {shape} {first_values}\n".encode())

        # The same rule as for files: both ends of every tensor.
        count = max(1, _TENSOR_END // flat.element_size())
        ends = torch.cat([flat[:count], flat[-count:]]).cpu().view(torch.uint8)
        head = f"{name} {weight.dtype} {shape}\n"
        tensors.update(head.encode() + ends.numpy().tobytes())

    forwards = []
    for name, module in network.named_modules():
        # accelerate's hooks replace `forward` and keep it under this name.
        forwards.append((name, getattr(module, "_old_forward", module.forward)))
    code = {
        "attention": getattr(network.config, "_attn_implementation", None),
        **code_digest((*forwards, network.generate)),
    }
    return {
        "loaded": short(loaded),
        "weights": {"tensors": short(tensors)},
        "code": code,
    }


_INSTALLED = (
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)


def code_digest(value: Any) -> dict[str, str]:
    """The version of Python -> 16 hex digits of what functions do: their bytecode, which each
    version writes in its own way, constants, defaults and simple values of the closure, and the
    functions that they name. Functions of installed packages count by name; line numbers, file
    names, other values of globals and what lies in objects do not count."""
    digest = hashlib.sha256()
    seen = set[FunctionType]()
    # Each part with the globals of the function around it, in which its names are looked up.
    waiting: list[tuple[Any, Spec]] = [(value, {})]
    while waiting:
        part, names = waiting.pop()
        part = getattr(part, "__func__", part)  # the function of a method

        inner: list[Any] = []
        if isinstance(part, partial):
            inner = [part.func, part.args, *sorted(part.keywords.items())]
        elif isinstance(part, tuple):
            inner = list(part)
        elif isinstance(part, frozenset):
            inner = sorted(part, key=repr)
        elif isinstance(part, CodeType):
            digest.update(repr((part.co_code, part.co_names)).encode())
            named = [names.get(name) for name in part.co_names]
            called = [one for one in named if isinstance(one, FunctionType)]
            inner = [*part.co_consts, *called]
        elif _is_new_function(part, seen):
            seen.add(part)
            names = part.__globals__
            options = (part.__kwdefaults__ or {}).items()
            inner = [
                part.__code__,
                part.__defaults__,
                *options,
                *closure_values(part),
            ]
        elif callable(part) and isinstance(type(part).__call__, FunctionType):
            inner = [type(part).__call__]
        elif isinstance(part, str | bytes | int | float | complex | None):
            digest.update(repr(part).encode())
        else:
            owner = part if hasattr(part, "__qualname__") else type(part)
            digest.update(f"{owner.__module__}.{owner.__qualname__}".encode())
        waiting += [(one, names) for one in inner]

    # Each version of Python writes bytecode in its own way.
    version = f"bytecode{sys.version_info[0]}.{sys.version_info[1]}"
    return {version: short(digest)}


def _is_new_function(part: Any, seen: set[FunctionType]) -> bool:
    """Whether a part is a function whose code counts and was not read yet."""
    if not isinstance(part, FunctionType) or part in seen:
        return False
    return not _is_installed(part)


def _is_installed(function: FunctionType) -> bool:
    return str(function.__globals__.get("__file__")).startswith(_INSTALLED)


def global_values(function: FunctionType) -> list[Any]:
    """The values of the globals that a function names, unless it belongs to an installed
    package."""
    if _is_installed(function):
        return []
    values = getclosurevars(function).globals
    return [values[name] for name in sorted(values)]


def closure_values(function: FunctionType) -> list[Any]:
    """The values of a closure, without counters, which its calls change."""
    rebound = {
        step.argval
        for step in get_instructions(function)
        if step.opname == "STORE_DEREF"
    }
    values = getclosurevars(function).nonlocals
    return [values[name] for name in sorted(values.keys() - rebound)]

"""Checkpoints of the Hugging Face layout, in a folder or on the hub: what their small files say, and
what identifies their weights.

A record holds a `fingerprint`, over the configuration and the ends of the weight files, and
`weights`: a mapping from the name of a rule, `tensors` or `full`, to its digest. Of `weights` the
rules that both records hold are compared, and so is `code`, of functions and of networks in memory.
"""

import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dis import get_instructions
from functools import cached_property, partial
from inspect import getclosurevars
from mmap import ACCESS_READ, mmap
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from rulerkit.common.errors import UserError, first_line
from rulerkit.common.hub import download, is_hub_id
from rulerkit.common.paths import cache_dir, completed, resolve
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.tokenizers import ON_HUB


class Checkpoint:
    """A folder with a `config.json`, or a repository of the Hugging Face hub at one revision."""

    def __init__(
        self, who: str, path: str, revision: str | None = None, full: bool = False
    ) -> None:
        """`full`: every weight file is read whole to tell checkpoints apart."""
        self.who, self.path, self.revision, self.full = who, path, revision, full
        place = resolve(path)
        self.folder: Path | None = place if place.is_dir() else None
        if not self.folder and not is_hub_id(path):
            raise UserError(
                f"model {who}: no folder {place}; give a folder with a config.json, or a hub id "
                "(org/name)"
            )
        if self.folder and revision:
            raise UserError(
                f"model {who}: {place} is a folder, which has no revision {revision}: leave it out "
                "(over a base, `revision: null`)"
            )
        if self.folder:
            _ = self.config  # raises where there is none

    def file(self, name: str) -> Path | None:
        """One file, downloaded into the hub's cache where needed; None if the checkpoint has no
        such file."""
        path = (self.folder or self._download(self.commit, "config.json", name)) / name
        return path if path.is_file() else None

    @cached_property
    def config(self) -> JSON:
        """`config.json`."""
        if not self.file("config.json"):
            raise UserError(
                f"model {self.who}: {self.path} is no model: there is no config.json in it"
            )
        config = self._json("config.json")
        if "d_model" in config and "ssm_cfg" in config and "model_type" not in config:
            converted = (
                "state-spaces/mamba-2.8b-hf" if self.folder else f"{self.path}-hf"
            )
            raise UserError(
                f"model {self.who}: {self.path} has the layout of the mamba_ssm package, which "
                "transformers does not read: take the converted checkpoint, on the hub with -hf "
                f"at the end of its name, such as path: {converted}"
            )
        return config

    @property
    def vocab_size(self) -> int | None:
        """How many ids the model knows, as `config.json` says."""
        size: int | None = (self.config.get("text_config") or self.config).get(
            "vocab_size"
        )
        return size

    @cached_property
    def commit(self) -> str | None:
        """The commit of the hub that a revision stands for; None for a folder."""
        return (
            None if self.folder else self._download(self.revision, "config.json").name
        )

    def tokenizer_spec(self) -> str:
        """What `load_tokenizer` takes to read this checkpoint's own tokenizer, at the same
        commit."""
        if self.folder or self.revision is None:
            return self.path
        return str(self._download(self.commit, *ON_HUB))

    @cached_property
    def identity(self) -> JSON:
        """What identifies this checkpoint: the hub id and its commit, or the fingerprints of a
        folder."""
        if not self.folder:
            return {"path": self.path, "revision": self.commit}
        digest = hashlib.sha256()  # the same wherever the folder lies
        for name in ("config.json", "generation_config.json"):
            if path := self.file(name):
                digest.update(f"{name}\n".encode() + path.read_bytes())
        files = sorted(
            path for pattern in _WEIGHTS for path in self.folder.glob(pattern)
        )
        for path in files:
            digest.update(f"{path.name} ".encode() + file_ends(path))
        weights = [path for path in files if not _TRAINING.fullmatch(path.name)]
        return {
            "fingerprint": short(digest),
            "weights": weights_digests(weights, self.full),
        }

    def stop_ids(self) -> set[int]:
        """The ids that end an answer, as generation_config.json and config.json name them."""
        ids: set[int | None] = set()
        for settings in (self._json("generation_config.json"), self.config):
            value = settings.get("eos_token_id")
            ids.update(value if isinstance(value, list) else [value])
        return {token for token in ids if token is not None}

    @cached_property
    def special_ids(self) -> set[int]:
        """The ids that are no part of a text. The marks of a thought are: scoring removes the
        thought by them."""
        return {
            entry["id"]
            for entry in self._json("tokenizer.json").get("added_tokens") or []
            if entry.get("special") and "think" not in entry["content"]
        }

    def _download(self, revision: str | None, *patterns: str) -> Path:
        who = f"model {self.who}: there is no folder {resolve(self.path)}; as a hub id"
        return download(who, self.path, revision, patterns)

    def _json(self, name: str) -> JSON:
        path = self.file(name)
        try:
            return dict(json.loads(path.read_bytes())) if path else {}
        except (ValueError, TypeError) as error:
            raise UserError(
                f"model {self.who}: {path} cannot be read as JSON: {first_line(error)}"
            ) from error


# --- config.json ----------------------------------------------------------------------------------


def merge_config(config: Spec, overrides: Spec) -> JSON:
    """A configuration with the values of `overrides`; mappings are merged key by key.

    `rope_scaling` with `type` is the older name of `rope_parameters` with `rope_type`; the result
    holds the newer ones.
    """
    merged = newer_rope(config)
    for key, value in newer_rope(overrides).items():
        nested = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_config(merged[key], value) if nested else value
    return merged


def newer_rope(config: Spec) -> JSON:
    """A configuration with its RoPE parameters under their newer names."""
    renamed = dict(config)
    rope = renamed.pop("rope_scaling", None) or renamed.get("rope_parameters")
    if isinstance(rope, Mapping):
        rope = {
            "rope_type" if key == "type" else key: value for key, value in rope.items()
        }
    if "rope_scaling" in config or rope:
        renamed["rope_parameters"] = rope or None
    return renamed


_POSITIONS = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len")


def max_positions(config: Spec, yarn: bool = True) -> int | None:
    """The tokens that a configuration allows for prompt and answer together; None where nothing
    limits them.

    Position scaling by a plain factor (linear, dynamic, and `yarn`) counts; other kinds state the
    scaled number themselves.
    """
    config = newer_rope(config.get("text_config") or config)
    limit = next((config[name] for name in _POSITIONS if config.get(name)), None)
    if not limit:
        return None
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type") in ("linear", "dynamic", "yarn" if yarn else None):
        original = rope.get("original_max_position_embeddings") or limit
        limit = max(limit, original * (rope.get("factor") or 1))
    return int(limit)


# --- weights --------------------------------------------------------------------------------------

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_TRAINING = re.compile(r"(optimizer|scheduler|scaler|rng_state|training_args).*")
"""The files among them in which a training run keeps its state."""

_END = 1 << 20  # bytes at either end of a file that a fingerprint reads
_TENSOR_END = 4096  # bytes at either end of a tensor that the rule `tensors` reads


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
    tensors, full_digest = hashlib.sha256(), hashlib.sha256()
    for path in files:
        try:
            safe = path.suffix == ".safetensors"
            ends = _tensor_ends(path) if safe else file_digest(path).encode()
            tensors.update(f"{path.name}\n".encode() + ends)
            if full:
                full_digest.update(f"{path.name}\n{file_digest(path)}\n".encode())
        except Exception as error:  # a damaged file raises anything
            raise UserError(
                f"the weights in {path} cannot be read ({error}): copy or download them again"
            ) from error
    return {"tensors": short(tensors), **({"full": short(full_digest)} if full else {})}


def _tensor_ends(path: Path) -> bytes:
    """The digest of a safetensors file's header and of the ends of its tensors."""
    digest = hashlib.sha256()
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
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
        if len(digest := cached.read_text()) == 64:
            return digest
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    with (
        suppress(OSError),
        completed(cached) as part,
    ):  # without the file, only time is lost
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
    values of every weight; `weights`, the rule `tensors`; and `code`, its kind of attention and what
    `forward` of each module and its `generate` do."""
    import torch

    config = network.config.to_json_string(use_diff=False)
    loaded = hashlib.sha256(f"{type(network).__qualname__}\n{config}".encode())
    tensors = hashlib.sha256()
    for name, weight in network.named_parameters():
        flat, shape = weight.detach().reshape(-1), tuple(weight.shape)
        loaded.update(f"{name} {shape} {flat[:16].float().cpu().tolist()}\n".encode())
        count = max(1, _TENSOR_END // flat.element_size())
        ends = torch.cat([flat[:count], flat[-count:]]).cpu().view(torch.uint8)
        tensors.update(
            f"{name} {weight.dtype} {shape}\n".encode() + ends.numpy().tobytes()
        )
    forwards = [
        (
            name,
            getattr(module, "_old_forward", module.forward),
        )  # which accelerate's hooks replaced
        for name, module in network.named_modules()
    ]
    code = {
        "attention": getattr(network.config, "_attn_implementation", None),
        **code_digest((*forwards, network.generate)),
    }
    return {
        "loaded": short(loaded),
        "weights": {"tensors": short(tensors)},
        "code": code,
    }


# --- code -----------------------------------------------------------------------------------------

_INSTALLED = (
    *map(sysconfig.get_path, ("stdlib", "purelib", "platlib")),
    str(Path(__file__).parents[1]),
)


def code_digest(value: Any) -> dict[str, str]:
    """The version of Python -> 16 hex digits of what functions do: their bytecode, which each
    version writes in its own way, constants, defaults and simple values of the closure, and the
    functions that they name. Functions of installed packages count by name; line numbers, file
    names, other values of globals and what lies in objects do not count."""
    digest, seen = hashlib.sha256(), set()
    waiting: list[tuple[Any, Spec]] = [
        (value, {})
    ]  # with the globals of the function around it
    while waiting:
        part, names = waiting.pop()
        part = getattr(part, "__func__", part)  # of a method
        parts: Iterable[Any] = ()
        if isinstance(part, partial):
            parts = part.func, part.args, *sorted(part.keywords.items())
        elif isinstance(part, tuple | frozenset):
            parts = sorted(part, key=repr) if isinstance(part, frozenset) else part
        elif isinstance(part, CodeType):
            digest.update(repr((part.co_code, part.co_names)).encode())
            called = [names.get(name) for name in part.co_names]
            parts = [
                *part.co_consts,
                *(one for one in called if isinstance(one, FunctionType)),
            ]
        elif (
            isinstance(part, FunctionType)
            and part not in seen
            and not _is_installed(part)
        ):
            seen.add(part)
            names, options = part.__globals__, part.__kwdefaults__ or {}
            parts = [
                part.__code__,
                part.__defaults__,
                *options.items(),
                *_closure(part),
            ]
        elif callable(part) and isinstance(type(part).__call__, FunctionType):
            parts = [type(part).__call__]
        elif isinstance(part, str | bytes | int | float | complex | None):
            digest.update(repr(part).encode())
        else:
            named = part if hasattr(part, "__qualname__") else type(part)
            digest.update(f"{named.__module__}.{named.__qualname__}".encode())
        waiting += [(inner, names) for inner in parts]
    return {f"bytecode{sys.version_info[0]}.{sys.version_info[1]}": short(digest)}


def _is_installed(function: FunctionType) -> bool:
    return str(function.__globals__.get("__file__")).startswith(_INSTALLED)


def _closure(function: FunctionType) -> list[Any]:
    """The values of a closure, without counters, which its calls change."""
    rebound = {
        step.argval
        for step in get_instructions(function)
        if step.opname == "STORE_DEREF"
    }
    values = getclosurevars(function).nonlocals
    return [values[name] for name in sorted(values.keys() - rebound)]

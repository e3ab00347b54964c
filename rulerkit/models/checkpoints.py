"""The files of a checkpoint, in a folder or on the hub: what it is, how long a prompt it takes, where it stops.

Reads the small JSON files only; weights are fingerprinted, never loaded. For every engine that runs checkpoints.
"""

import hashlib
import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.paths import home, resolve
from rulerkit.tokenizers import ON_HUB

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf")
_EDGE = 1 << 20  # bytes read at either end of a weight file for the fingerprint


class Checkpoint:
    """A folder with a `config.json`, or a repository of the Hugging Face hub at one revision."""

    def __init__(self, who: str, path: str, revision: str | None = None) -> None:
        self.who, self.path, self.revision = who, path, revision
        place = resolve(path)
        self.folder: Path | None = place if place.is_dir() else None
        if self.folder and not (self.folder / "config.json").is_file():
            raise UserError(f"model {who}: the folder {self.folder} is no model: there is no config.json in it")
        if not self.folder and (not re.fullmatch(r"[\w.-]+/[\w.-]+", path) or (home() / path.split("/")[0]).is_dir()):
            raise UserError(f"model {who}: no folder {place}; give a folder with a config.json, or a hub id (org/name)")

    def file(self, name: str) -> Path | None:
        """One small file, downloaded into the hub's cache where needed; None if the checkpoint has none such."""
        if self.folder:
            return self.folder / name if (self.folder / name).is_file() else None
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError, HFValidationError, HTTPError  # type: ignore[attr-defined]  # that of the httpx it uses

        try:
            # all files at the commit of the first, which the cache then answers without the network
            revision = self.revision if name == "config.json" else self.commit
            return Path(hf_hub_download(self.path, name, revision=revision))
        except EntryNotFoundError as error:
            if name != "config.json":
                return None
            reason: Exception = error
        except (HTTPError, HFValidationError, OSError) as failure:
            reason = failure
        raise UserError(
            f"model {self.who}: {self.path} is neither a folder under {home()} nor to be had from the hub or its local "
            f"cache ({first_line(reason)}); name a folder, download it first (hf download {self.path}), or log in "
            "(hf auth login) if it is gated"
        ) from reason

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.json`."""
        return self._json("config.json")

    @property
    def commit(self) -> str | None:
        """The commit of the hub that a revision stands for; None for a folder."""
        return None if self.folder else self._config_file.parent.name

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over config.json, generation_config.json and the name, size, first and last MiB of every
        weight file: another checkpoint has another one, a moved folder has not."""
        assert self.folder
        digest = hashlib.sha256()
        for name in ("config.json", "generation_config.json"):
            if path := self.file(name):
                digest.update(f"{name}\n".encode() + path.read_bytes())
        for path in sorted(path for pattern in _WEIGHTS for path in self.folder.glob(pattern)):
            size = path.stat().st_size
            digest.update(f"{path.name} {size}\n".encode())
            with path.open("rb") as file:
                digest.update(file.read(_EDGE))
                file.seek(max(0, size - _EDGE))
                digest.update(file.read(_EDGE))
        return digest.hexdigest()[:16]

    def tokenizer_spec(self) -> str:
        """What `load_tokenizer` takes to read this checkpoint's own tokenizer, at the same commit."""
        if self.folder or self.revision is None:
            return self.path
        from huggingface_hub import snapshot_download

        self.file("config.json")  # says in one line what is wrong with the name or the network
        return snapshot_download(self.path, revision=self.commit, allow_patterns=ON_HUB)

    def identity(self) -> dict[str, Any]:
        """What tells this checkpoint from another: the hub id and its commit, or a folder's fingerprint."""
        if self.folder:
            return {"fingerprint": self.fingerprint}
        return {"path": self.path, "revision": self.commit}

    def stop_ids(self, eos_token: str | None) -> list[int]:
        """The ids that end an answer: those of generation_config.json and config.json, and the tokenizer's own."""
        found: set[int] = set()
        for settings in (self._generation, self.config):
            ids = settings.get("eos_token_id")
            found.update(ids if isinstance(ids, list) else [] if ids is None else [ids])
        found.update(entry["id"] for entry in self._added if entry["content"] == eos_token)
        return sorted(found)

    def special_ids(self) -> set[int]:
        """The ids that are no part of a text. The marks of a thought are: scoring cuts it off by them."""
        return {entry["id"] for entry in self._added if entry.get("special") and "think" not in entry["content"]}

    @cached_property
    def _generation(self) -> dict[str, Any]:
        return self._json("generation_config.json")

    @cached_property
    def _added(self) -> list[dict[str, Any]]:
        return list(self._json("tokenizer.json").get("added_tokens") or [])

    @cached_property
    def _config_file(self) -> Path:
        path = self.file("config.json")
        assert path
        return path

    def _json(self, name: str) -> dict[str, Any]:
        path = self._config_file if name == "config.json" else self.file(name)
        try:
            return dict(json.loads(path.read_text(encoding="utf-8"))) if path else {}
        except ValueError as error:
            raise UserError(f"model {self.who}: {path} cannot be read as JSON: {first_line(error)}") from error


def max_positions(config: dict[str, Any]) -> int | None:
    """The tokens that a configuration allows for prompt and answer together; None where nothing limits them.

    Position scaling by a plain factor (linear, dynamic, YaRN) counts; other kinds state the scaled number themselves.
    """
    config = config.get("text_config") or config
    limit = config.get("max_position_embeddings") or config.get("n_positions")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if limit and (rope.get("rope_type") or rope.get("type")) in ("linear", "dynamic", "yarn"):
        original = rope.get("original_max_position_embeddings") or limit
        limit = max(limit, int(original * (rope.get("factor") or 1)))
    return int(limit) if limit else None


def first_line(error: BaseException) -> str:
    """What a library says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


def fingerprint_loaded(network: Any) -> str:
    """16 hex digits over the configuration of a model in memory and the shape and first values of every weight."""
    digest = hashlib.sha256(f"{type(network).__qualname__}\n{network.config.to_json_string(use_diff=False)}".encode())
    for name, weight in network.named_parameters():
        first = weight.detach().reshape(-1)[:16].float().cpu().tolist()
        digest.update(f"{name} {tuple(weight.shape)} {first}\n".encode())
    return digest.hexdigest()[:16]

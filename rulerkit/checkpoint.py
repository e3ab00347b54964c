"""Checkpoints of the Hugging Face layout, in a folder or on the hub: their small files and what
these say."""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from rulerkit.errors import UserError, first_line
from rulerkit.fingerprints import WEIGHTS, file_edges, weight_files, weights_digests
from rulerkit.hub import download, is_hub_id
from rulerkit.paths import resolve
from rulerkit.settings import JSON, Spec
from rulerkit.tokenizers import ON_HUB


class Checkpoint:
    """A folder with a `config.json`, or a repository of the Hugging Face hub at one revision."""

    def __init__(
        self, who: str, path: str, revision: str | None = None, full: bool = False
    ) -> None:
        """`full`: every weight file is read whole to tell checkpoints apart."""
        self.who, self.path, self.revision, self.full = who, path, revision, full
        place = resolve(path)
        self.folder: Path | None = place if place.is_dir() else None
        if self.folder and not (place / "config.json").is_file():
            raise UserError(
                f"model {who}: the folder {place} is no model: there is no config.json in it"
            )
        if not self.folder and not is_hub_id(path):
            raise UserError(
                f"model {who}: no folder {place}; give a folder with a config.json, or a hub id "
                "(org/name)"
            )

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
                f"model {self.who}: {self.path} has no config.json: name a checkpoint that has one"
            )
        return self._json("config.json")

    @cached_property
    def commit(self) -> str | None:
        """The commit of the hub that a revision stands for; None for a folder."""
        return None if self.folder else self._download(self.revision, "config.json").name

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over config.json, generation_config.json and the name, size, first and last
        MiB of every weight file: the rule of 21 November. It stays the same when the folder
        moves."""
        assert self.folder
        digest = hashlib.sha256()
        for name in ("config.json", "generation_config.json"):
            if path := self.file(name):
                digest.update(f"{name}\n".encode() + path.read_bytes())
        for path in sorted(path for pattern in WEIGHTS for path in self.folder.glob(pattern)):
            digest.update(f"{path.name} ".encode() + file_edges(path))
        return digest.hexdigest()[:16]

    @cached_property
    def weights(self) -> dict[str, str]:
        """The digests of a folder's weight files by rule."""
        assert self.folder
        return weights_digests(weight_files(self.folder), self.full)

    def tokenizer_spec(self) -> str:
        """What `load_tokenizer` takes to read this checkpoint's own tokenizer, at the same
        commit."""
        return (
            self.path
            if self.folder or self.revision is None
            else str(self._download(self.commit, *ON_HUB))
        )

    def identity(self) -> JSON:
        """What identifies this checkpoint: the hub id and its commit, or the fingerprints of a
        folder."""
        if not self.folder:
            return {"path": self.path, "revision": self.commit}
        return {"fingerprint": self.fingerprint, "weights": self.weights}

    def stop_ids(self, eos_token: str | None) -> list[int]:
        """The ids that end an answer: those of generation_config.json and config.json, and the
        tokenizer's own."""
        ids = {entry["id"] for entry in self._added if entry["content"] == eos_token}
        for settings in (self._json("generation_config.json"), self.config):
            value = settings.get("eos_token_id")
            ids.update(value if isinstance(value, list) else [value])
        return sorted(ids - {None})

    def special_ids(self) -> set[int]:
        """The ids that are no part of a text. The marks of a thought are: scoring removes the
        thought by them."""
        return {
            entry["id"]
            for entry in self._added
            if entry.get("special") and "think" not in entry["content"]
        }

    @cached_property
    def _added(self) -> list[JSON]:
        return list(self._json("tokenizer.json").get("added_tokens") or [])

    def _download(self, revision: str | None, *patterns: str) -> Path:
        return download(f"model {self.who}", self.path, revision, patterns)

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
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_config(merged[key], value) if both else value
    return merged


def newer_rope(config: Spec) -> JSON:
    """A configuration with its RoPE parameters under their newer names."""
    renamed = dict(config)
    rope = renamed.pop("rope_scaling", None) or renamed.get("rope_parameters")
    if isinstance(rope, Mapping):
        rope = {"rope_type" if key == "type" else key: value for key, value in rope.items()}
    if "rope_scaling" in config or rope:
        renamed["rope_parameters"] = rope or None
    return renamed


def max_positions(config: Spec, yarn: bool = True) -> int | None:
    """The tokens that a configuration allows for prompt and answer together; None where nothing
    limits them.

    Position scaling by a plain factor (linear, dynamic, and `yarn`) counts; other kinds state the
    scaled number themselves.
    """
    config = newer_rope(config.get("text_config") or config)
    limit, rope = (
        config.get("max_position_embeddings") or config.get("n_positions"),
        config.get("rope_parameters") or {},
    )
    if not limit:
        return None
    if rope.get("rope_type") in ("linear", "dynamic", "yarn" if yarn else None):
        original = rope.get("original_max_position_embeddings") or limit
        limit = max(limit, original * (rope.get("factor") or 1))
    return int(limit)

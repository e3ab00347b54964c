"""Checkpoints in a folder or on the hub: their small files, and what the engines share that run them.

A checkpoint's configuration is its config.json with the spec's `hf_overrides` merged in. It gives the limit of prompt and
answer together, unless the spec gives `max_length`.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from rulerkit.errors import TooLong, UserError, first_line
from rulerkit.example import Example
from rulerkit.fingerprints import WEIGHTS, file_edges, weight_files, weights_digests
from rulerkit.gpus import torch_module
from rulerkit.hub import download, is_hub_id
from rulerkit.models import Answer, Engine
from rulerkit.paths import resolve
from rulerkit.settings import JSON, Spec
from rulerkit.tokenizers import ON_HUB, Tokenizer, load_tokenizer


class Checkpoint:
    """A folder with a `config.json`, or a repository of the Hugging Face hub at one revision."""

    def __init__(self, who: str, path: str, revision: str | None = None, full: bool = False) -> None:
        """`full`: every weight file is read whole to tell checkpoints apart."""
        self.who, self.path, self.revision, self.full = who, path, revision, full
        place = resolve(path)
        self.folder: Path | None = place if place.is_dir() else None
        if self.folder and not (place / "config.json").is_file():
            raise UserError(f"model {who}: the folder {place} is no model: there is no config.json in it")
        if not self.folder and not is_hub_id(path):
            raise UserError(f"model {who}: no folder {place}; give a folder with a config.json, or a hub id (org/name)")

    def file(self, name: str) -> Path | None:
        """One file, downloaded into the hub's cache where needed; None if the checkpoint has no such file."""
        path = (self.folder or self._download(self.commit, "config.json", name)) / name
        return path if path.is_file() else None

    @cached_property
    def config(self) -> JSON:
        """`config.json`."""
        if not self.file("config.json"):
            raise UserError(f"model {self.who}: {self.path} has no config.json: name a checkpoint that has one")
        return self._json("config.json")

    @cached_property
    def commit(self) -> str | None:
        """The commit of the hub that a revision stands for; None for a folder."""
        return None if self.folder else self._download(self.revision, "config.json").name

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over config.json, generation_config.json and the name, size, first and last MiB of every weight
        file: the rule of 21 November. It stays the same when the folder moves."""
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
        """What `load_tokenizer` takes to read this checkpoint's own tokenizer, at the same commit."""
        return self.path if self.folder or self.revision is None else str(self._download(self.commit, *ON_HUB))

    def identity(self) -> JSON:
        """What identifies this checkpoint: the hub id and its commit, or the fingerprints of a folder."""
        if not self.folder:
            return {"path": self.path, "revision": self.commit}
        return {"fingerprint": self.fingerprint, "weights": self.weights}

    def stop_ids(self, eos_token: str | None) -> list[int]:
        """The ids that end an answer: those of generation_config.json and config.json, and the tokenizer's own."""
        ids = {entry["id"] for entry in self._added if entry["content"] == eos_token}
        for settings in (self._json("generation_config.json"), self.config):
            value = settings.get("eos_token_id")
            ids.update(value if isinstance(value, list) else [value])
        return sorted(ids - {None})

    def special_ids(self) -> set[int]:
        """The ids that are no part of a text. The marks of a thought are: scoring removes the thought by them."""
        return {entry["id"] for entry in self._added if entry.get("special") and "think" not in entry["content"]}

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
            raise UserError(f"model {self.who}: {path} cannot be read as JSON: {first_line(error)}") from error


class CheckpointEngine(Engine):
    """What the engines share that run a checkpoint."""

    checkpoint: Checkpoint
    modifiers: ClassVar[tuple[str, ...]]
    """The keys that change how a checkpoint computes: each belongs to the identity where it is given."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(spec)
        if "path" in spec:
            self.checkpoint = Checkpoint(self.name, spec["path"], spec.get("revision"), "fingerprint" in spec)

    def identity(self) -> JSON:
        """Hub id and commit, or the fingerprint of a folder; the dtype; the modifiers given."""
        given = {key: self.spec[key] for key in self.modifiers if key in self.spec}
        return {"engine": self.engine, **self.checkpoint.identity(), "dtype": self.dtype(), **given}

    def device(self) -> str:
        """Where it computes: `cpu`, `cuda`, or a name that the engine gives it."""
        return "cuda" if torch_module().cuda.is_available() else "cpu"

    def tokenizer(self) -> Tokenizer:
        """The spec's tokenizer, else the checkpoint's at the same revision."""
        return super().tokenizer() if "tokenizer" in self.spec else load_tokenizer(self.checkpoint.tokenizer_spec())

    @cached_property
    def config(self) -> JSON:
        """config.json with `hf_overrides` merged in."""
        return merge_config(self.checkpoint.config, self.spec.get("hf_overrides", {}))

    def dtype(self) -> str:
        """The spec's number format; for `auto` float32 on a CPU, else bfloat16."""
        wanted = str(self.spec.get("dtype", "auto"))
        return wanted if wanted != "auto" else "float32" if self.device() == "cpu" else "bfloat16"

    def limit(self) -> int | None:
        """The tokens allowed for prompt and answer together: `max_length`, else the positions of the configuration."""
        if "max_length" in self.spec:
            return int(self.spec["max_length"])
        try:
            return max_positions(self.config)
        except (AttributeError, TypeError, ValueError) as error:
            raise UserError(
                f"model {self.name}: its config.json or hf_overrides state no usable limit: max_position_embeddings is "
                "a number, rope_parameters a mapping"
            ) from error

    def too_long(self, length: int) -> str | None:
        """Whether a length exceeds `limit`."""
        limit = self.limit()
        if limit is None or length <= limit:
            return None
        return (
            f"its limit is {limit} tokens (max_position_embeddings); `hf_overrides` with RoPE scaling, or "
            f"`max_length: {length}`, goes beyond"
        )

    def check_fits(self, example: Example) -> None:
        """Raises `TooLong` for an example whose length, or prompt and answer, exceed the limit."""
        need = example.num_tokens + self.most_tokens(example)
        if reason := self.too_long(max(need, example.length)):
            raise TooLong(f"model {self.name}: example {example.index} of {example.task} needs {need} tokens: {reason}")

    def vllm_overrides(self) -> JSON:
        """`hf_overrides` for vLLM, with max_position_embeddings raised to `limit` where vLLM would refuse it.

        The factor of YaRN counts for both engines, as the cards of many models give it without the positions.
        transformers computes beyond max_position_embeddings; vLLM refuses, and multiplies only other factors into them.
        YaRN must still scale from the original positions.
        """
        given: JSON = self.spec.get("hf_overrides", {})
        limit, allowed = self.limit(), max_positions(self.config, yarn=False)
        if limit is None or allowed is None or limit <= allowed:
            return given
        added: JSON = {"max_position_embeddings": limit}
        config = newer_rope(self.config.get("text_config") or self.config)
        rope = config.get("rope_parameters") or {}
        if rope.get("rope_type") == "yarn":  # vLLM replaces the whole mapping, so it must be complete
            older = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
            added["rope_parameters"] = {"original_max_position_embeddings": allowed, **older, **rope}
        return merge_config(given, {"text_config": added} if "text_config" in self.config else added)

    @cached_property
    def stop_ids(self) -> list[int]:
        """The ids that end an answer: those of the checkpoint's files, else the end token of the tokenizer."""
        tokenizer = self.prompt_format.tokenizer
        if ids := self.checkpoint.stop_ids(tokenizer.eos_token):
            return ids
        ids = tokenizer.encode(tokenizer.eos_token).tolist() if tokenizer.eos_token else []
        return ids if len(ids) == 1 else []

    def read_ids(self, ids: list[int], finish: str = "length", usage: Spec | None = None) -> Answer:
        """The answer in the ids that were generated: the text before the first stop token, without special tokens.

        `finish` is the reason for its end where no stop token is among them.
        """
        end = next((i for i, token in enumerate(ids) if token in self.stop_ids), None)
        special = self.checkpoint.special_ids()
        text = self.prompt_format.tokenizer.decode([token for token in ids[:end] if token not in special])
        return Answer(text, finish if end is None else "stop", len(ids[:end]), usage)


def merge_config(config: Spec, overrides: Spec) -> JSON:
    """A configuration with the values of `overrides`; mappings are merged key by key.

    `rope_scaling` with `type` is the older name of `rope_parameters` with `rope_type`; the result holds the newer ones.
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
    """The tokens that a configuration allows for prompt and answer together; None where nothing limits them.

    Position scaling by a plain factor (linear, dynamic, and `yarn`) counts; other kinds state the scaled number themselves.
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

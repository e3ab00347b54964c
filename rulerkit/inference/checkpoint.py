"""Checkpoints of the Hugging Face layout, in a folder or on the hub: what their small files say.

What identifies their weights is computed in `fingerprints`.
"""

import hashlib
import json
from functools import cached_property
from pathlib import Path

from rulerkit.common.errors import UserError, first_line
from rulerkit.common.hub import download, is_hub_id
from rulerkit.common.paths import resolve
from rulerkit.common.settings import JSON
from rulerkit.generation.tokenizers import ON_HUB
from rulerkit.inference.fingerprints import (
    WEIGHTS,
    file_ends,
    is_training_state,
    short,
    weights_digests,
)


class Checkpoint:
    """A folder with a `config.json`, or a repository of the Hugging Face hub at one revision."""

    def __init__(
        self, who: str, path: str, revision: str | None = None, full: bool = False
    ) -> None:
        """`full`: every weight file is read whole to tell checkpoints apart."""
        self.who, self.path, self.revision, self.full = who, path, revision, full
        folder = resolve(path)
        self.folder: Path | None = folder if folder.is_dir() else None
        if not self.folder and not is_hub_id(path):
            raise UserError(
                f"model {who}: no folder {folder}; give a folder with a config.json, or a hub id "
                "(org/name)"
            )
        if self.folder and revision:
            raise UserError(
                f"model {who}: {folder} is a folder, which has no revision {revision}: leave "
                "it out "
                "(over a base, `revision: null`)"
            )
        if self.folder:
            # A folder without a configuration is refused here; a hub id needs a network first.
            _ = self.config

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
            # Nothing says what a folder was copied from: name a repository that exists.
            converted = f"{self.path}-hf"
            if self.folder:
                converted = "state-spaces/mamba-2.8b-hf"
            raise UserError(
                f"model {self.who}: {self.path} has the layout of the mamba_ssm package, which "
                "transformers does not read: take the converted checkpoint, on the hub with -hf "
                f"at the end of its name, such as path: {converted}"
            )
        return config

    @property
    def vocab_size(self) -> int | None:
        """How many ids the model knows, as `config.json` says."""
        of_text = self.config.get("text_config") or self.config
        size: int | None = of_text.get("vocab_size")
        return size

    @cached_property
    def commit(self) -> str | None:
        """The commit of the hub that a revision stands for; None for a folder."""
        if self.folder:
            return None
        # The hub's cache names folders by commits.
        return self._download(self.revision, "config.json").name

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

        # The same wherever the folder lies.
        digest = hashlib.sha256()
        for name in ("config.json", "generation_config.json"):
            path = self.file(name)
            if path:
                digest.update(f"{name}\n".encode() + path.read_bytes())
        files: list[Path] = []
        for pattern in WEIGHTS:
            files += self.folder.glob(pattern)
        files.sort()
        for path in files:
            digest.update(f"{path.name} ".encode() + file_ends(path))
        weights = [path for path in files if not is_training_state(path)]
        return {"fingerprint": short(digest), "weights": weights_digests(weights, self.full)}

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


# --- weights --------------------------------------------------------------------------------------


# --- code -----------------------------------------------------------------------------------------

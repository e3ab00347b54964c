"""Tokenizers of every kind behind one small class: text to token ids and back, without a beginning-of-sequence token.

`load_tokenizer` takes a Hugging Face name or folder, a `tokenizer.json`, a SentencePiece `.model`, a Tekken JSON, a
tiktoken ranks file or encoding name, the RWKV vocabulary, or `builtin`. The files are read in `vocabularies.py`; how texts
are cut into pieces whose ids can be joined is the matter of `pieces.py`.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rulerkit.errors import UserError
from rulerkit.paths import resolve
from rulerkit.tokenizers import vocabularies

Ids = np.ndarray
"""Token ids: a one-dimensional int32 array."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Token ids of a text and back.

    `encode` adds no beginning-of-sequence token; special tokens that stand in the text (chat templates) become their
    ids. `bos_id` is the token the model was trained to see first, or None. `fingerprint` identifies the vocabulary.
    """

    name: str
    fingerprint: str
    encode_many: Callable[[Sequence[str]], Sequence[Sequence[int]]] = field(repr=False)
    decode_ids: Callable[[list[int]], str] = field(repr=False)
    bos_id: int | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    chat_template: str | None = field(default=None, repr=False)

    def encode(self, text: str) -> Ids:
        """The ids of one text, int32, shape (tokens,)."""
        return np.asarray(self.encode_many([text])[0], dtype=np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of many texts, each encoded on its own."""
        return [np.asarray(ids, dtype=np.int32) for ids in self.encode_many(texts)] if texts else []

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; a character cut in half at either end becomes U+FFFD."""
        return self.decode_ids(np.asarray(ids).tolist())

    def count(self, text: str) -> int:
        """How many tokens a text has when encoded on its own."""
        return len(self.encode_many([text])[0])


@cache
def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that `spec` names.

    `builtin`; a folder or file (relative ones count from the project root); a tiktoken encoding name such as
    `cl100k_base`; or a Hugging Face name such as `Qwen/Qwen2.5-7B`. A ranks file that is not known by its checksum needs
    its split pattern behind a `#`: `my.tiktoken#cl100k_base`, or the pattern itself.
    """
    if not isinstance(spec, str) or not spec.strip():
        raise UserError(f"tokenizer is {spec!r}: it must be `builtin`, a file, a folder or a name")
    if spec == "builtin":
        return Tokenizer(spec, _fingerprint(vocabularies.BUILTIN.pattern.encode()), *vocabularies.builtin())
    path_text, _, pattern = spec.partition("#")
    path = resolve(path_text)
    if path.is_dir():
        return _from_folder(spec, path)
    if path.is_file():
        return _from_file(spec, path, pattern)
    import tiktoken

    if spec in tiktoken.list_encoding_names():
        encoding, identity = vocabularies.encoding_by_name(spec)
        return Tokenizer(spec, _fingerprint(identity), *encoding)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", spec):
        return _from_hub(spec)
    raise UserError(
        f"no tokenizer {spec!r}: neither a file or folder here, nor a tiktoken encoding, nor a hub name (org/name); "
        "`builtin` needs no download"
    )


# --- folders and files ------------------------------------------------------------------------------------------------

ON_HUB = ["*token*", "tekken.json", "*.tiktoken", "chat_template*", "rwkv_vocab*"]
"""The files of a repository that a tokenizer may need."""

IN_FOLDER = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken*.json",
    "*.tiktoken",
    "*tokenizer.model*",
    "*tokenizer*.json",
    "rwkv_vocab*.txt",
)


def _from_folder(spec: str, folder: Path) -> Tokenizer:
    """The first file of a folder that is a vocabulary, in the order of `IN_FOLDER`, with the settings beside it."""
    for pattern in IN_FOLDER:
        for path in sorted(folder.glob(pattern)):
            if path.name not in ("tokenizer_config.json", "special_tokens_map.json"):
                return _from_file(spec, path, "")
    raise UserError(f"no tokenizer in the folder {folder}: none of {', '.join(IN_FOLDER)} is there")


def _from_file(spec: str, path: Path, pattern: str) -> Tokenizer:
    data = path.read_bytes()
    digest = _fingerprint(data + pattern.encode())  # another pattern is another tokenizer
    settings = {} if path.suffix == ".txt" else _settings(path.parent)
    try:
        if path.suffix == ".txt":
            found = vocabularies.rwkv(data)
        elif path.suffix == ".json" and b'"token_bytes"' in data[:4096]:
            found = vocabularies.tekken(data)
        elif path.suffix == ".json":
            found = vocabularies.hugging_face(path, settings)
        elif re.match(rb"[A-Za-z0-9+/=]+ \d+\n", data):
            found = vocabularies.ranks_file(spec, data, pattern)
        else:
            found = vocabularies.sentencepiece(path)
    except (ValueError, KeyError, RuntimeError, SyntaxError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a tokenizer that can be read: {error}") from error
    return Tokenizer(spec, digest, *found, chat_template=settings.get("chat_template"))


def _fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` of a folder, with the chat template of `chat_template.jinja` where that is a file."""
    path = folder / "tokenizer_config.json"
    try:
        settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(settings, dict):
        raise UserError(f"{path} holds a {type(settings).__name__}: it must hold a JSON object")
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        try:
            named = {entry["name"]: entry["template"] for entry in template}
        except (KeyError, TypeError) as error:
            raise UserError(f"{path}: each of several chat templates needs `name` and `template`") from error
        settings["chat_template"] = named.get("default", next(iter(named.values()), None))
    if (file := folder / "chat_template.jinja").is_file():
        settings["chat_template"] = file.read_text(encoding="utf-8")
    return settings


def _from_hub(name: str) -> Tokenizer:
    """The tokenizer files of a Hugging Face repository, from the local cache or downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError  # type: ignore[attr-defined]  # that of the httpx it uses

    try:
        folder = snapshot_download(name, allow_patterns=ON_HUB)
    except (HTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the tokenizer of {name} is neither in the local cache nor to be had from the hub ({reason}): "
            "log in with `hf auth login` if the repository is gated, or name a folder"
        ) from error
    return _from_folder(name, Path(folder))

"""Tokenizers of every kind behind one small class: text to token ids and back, without a
beginning-of-sequence token.

`load_tokenizer` takes a Hugging Face name or folder, a `tokenizer.json`, a SentencePiece `.model`,
a Tekken JSON, a tiktoken ranks file or encoding name, the RWKV vocabulary, or `builtin`. The files
are read in `vocabularies.py`; how texts are cut into pieces whose ids can be joined is the matter
of `pieces.py`.
"""

import fnmatch
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rulerkit.errors import UserError, first_line
from rulerkit.hub import download, is_hub_id
from rulerkit.paths import resolve
from rulerkit.tokenizers import vocabularies

Ids = np.ndarray
"""Token ids: a one-dimensional int32 array."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Token ids of a text and back.

    `encode` adds no beginning-of-sequence token; special tokens that stand in the text (chat
    templates) become their ids. `bos_id` is the token the model was trained to see first, or None.
    `fingerprint` identifies the vocabulary.
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

    `builtin`; a folder or file (relative ones count from the project root); a tiktoken encoding
    name such as `cl100k_base`; or a Hugging Face name such as `Qwen/Qwen2.5-7B`. A ranks file that
    is not known by its checksum needs its split pattern behind a `#`: `my.tiktoken#cl100k_base`, or
    the pattern itself.
    """
    kind = tokenizer_kind(spec)
    if kind == "builtin":
        return Tokenizer(
            spec, _fingerprint(vocabularies.BUILTIN.pattern.encode()), *vocabularies.builtin()
        )
    if kind == "tiktoken":
        encoding, identity = vocabularies.encoding_by_name(spec)
        return Tokenizer(spec, _fingerprint(identity), *encoding)
    if kind == "hub":
        return _from_folder(spec, download(f"tokenizer {spec}", spec, None, ON_HUB))
    name, _, pattern = spec.partition("#")
    path = resolve(name)
    return _from_folder(spec, path) if path.is_dir() else _from_file(spec, path, pattern)


def tokenizer_kind(spec: str) -> str:
    """What `load_tokenizer` reads for a name: `builtin`, `path`, `tiktoken` or `hub`. Raises
    `UserError` for other names."""
    if not isinstance(spec, str) or not spec.strip():
        raise UserError(f"tokenizer is {spec!r}: it must be `builtin`, a file, a folder or a name")
    if spec == "builtin":
        return spec
    path = resolve(spec.partition("#")[0])
    with suppress(OSError):  # such as a name too long for a file
        if path.is_dir() or path.is_file():
            return "path"
    import tiktoken

    if spec in tiktoken.list_encoding_names():
        return "tiktoken"
    if is_hub_id(spec):
        return "hub"
    raise UserError(
        f"tokenizer {spec!r}: there is no such file or folder, and it is neither a tiktoken "
        "encoding nor a hub name "
        "(org/name); `builtin` needs no download"
    )


# --- folders and files ----------------------------------------------------------------------------

ON_HUB = ("*token*", "tekken*.json", "*.tiktoken", "chat_template*", "rwkv_vocab*")
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


def vocabulary_file(names: Iterable[str]) -> str | None:
    """Which of the files of a folder is read as its vocabulary, by the order of `IN_FOLDER`; None
    where none is."""
    names = sorted(
        {name for name in names if "/" not in name}
        - {"tokenizer_config.json", "special_tokens_map.json"}
    )
    return next((name for pattern in IN_FOLDER for name in fnmatch.filter(names, pattern)), None)


def _from_folder(spec: str, folder: Path) -> Tokenizer:
    """The vocabulary of a folder, with the settings beside it."""
    try:
        name = vocabulary_file(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise UserError(
            f"tokenizer {spec}: the folder {folder} cannot be read: {first_line(error)}"
        ) from error
    if name is None:
        raise UserError(
            f"no tokenizer in the folder {folder}: none of {', '.join(IN_FOLDER)} is there"
        )
    return _from_file(spec, folder / name, "")


def _from_file(spec: str, path: Path, pattern: str) -> Tokenizer:
    try:
        data = path.read_bytes()
        settings = _settings(path.parent)
        if path.suffix == ".txt":
            vocabulary = vocabularies.rwkv(data)
        elif path.suffix == ".json" and b'"token_bytes"' in data[:4096]:
            vocabulary = vocabularies.tekken(data)
        elif path.suffix == ".json":
            vocabulary = vocabularies.hugging_face(path, settings)
        elif re.match(rb"[A-Za-z0-9+/=]+ \d+\n", data):
            vocabulary = vocabularies.ranks_file(spec, data, pattern)
        else:
            vocabulary = vocabularies.sentencepiece(path)
    except (
        OSError,
        ValueError,
        LookupError,
        RuntimeError,
        SyntaxError,
        TypeError,
        AttributeError,
    ) as error:
        raise UserError(
            f"{path} is not a tokenizer that can be read: {first_line(error)}"
        ) from error
    digest = _fingerprint(data + pattern.encode())  # another pattern is another tokenizer
    return Tokenizer(spec, digest, *vocabulary, chat_template=settings.get("chat_template"))


def _fingerprint(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` of a folder, with its chat template.

    The template of `chat_template.jinja` comes first, then that of `tokenizer_config.json`, then
    that of `chat_template.json`; of several named templates the one called `default` is taken.
    """
    settings = _json(folder / "tokenizer_config.json")
    template = settings.get("chat_template") or _json(folder / "chat_template.json").get(
        "chat_template"
    )
    if isinstance(template, list):
        try:
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{folder}: each of several chat templates needs `name` and `template`"
            ) from error
    if (file := folder / "chat_template.jinja").is_file():
        template = file.read_text(encoding="utf-8")
    if not isinstance(template, str | None):
        raise UserError(
            f"{folder}: its chat template is a {type(template).__name__}: it must be a text"
        )
    return settings | {"chat_template": template}


def _json(path: Path) -> dict[str, Any]:
    """A file that holds a JSON object; empty where there is no file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}: it must hold a JSON object")
    return content

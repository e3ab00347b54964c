"""Tokenizers of every kind behind one small class: text to token ids and back, without a beginning-of-sequence token.

`load_tokenizer` takes a Hugging Face name or folder, a `tokenizer.json`, a SentencePiece `.model`, a Tekken JSON, a
tiktoken ranks file or encoding name, the RWKV vocabulary, or `builtin`. How texts are cut into pieces whose ids can be
joined is the matter of `pieces.py`.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rulerkit.errors import UserError
from rulerkit.paths import resolve

Ids = np.ndarray
"""Token ids: a one-dimensional int32 array."""

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
PATTERNS = {
    "cl100k_base": _LLAMA3,
    "llama-3": _LLAMA3,
    "qwen": _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"),
    "o200k_base": rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
PATTERNS["llama-4"] = PATTERNS["o200k_base"]
"""The patterns by which byte-pair tokenizers split a text before merging, by the vocabulary's name."""

_RANKS_FILES = {  # sha256 of the ranks file, first 16 hex digits -> name, special tokens, BOS
    "223921b76ee99bde": ("cl100k_base", {"<|endoftext|>": 100257}, None),
    "446a9538cb6c348e": ("o200k_base", {"<|endoftext|>": 199999}, None),
    "82e9d31979e92ab9": (
        "llama-3",
        {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|start_header_id|>": 128006}
        | {"<|end_header_id|>": 128007, "<|eot_id|>": 128009},
        "<|begin_of_text|>",
    ),
    "d0bdbaf59b0762c8": (
        "llama-4",
        {"<|begin_of_text|>": 200000, "<|end_of_text|>": 200001, "<|header_start|>": 200005}
        | {"<|header_end|>": 200006, "<|eot|>": 200008},
        "<|begin_of_text|>",
    ),
    "b2b1b8dfb5cc5f02": ("qwen", {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}, None),
}


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

    @cached_property
    def pieces(self) -> Any:
        """This tokenizer's `pieces.PieceEncoder`, made at first use and kept with its memory of counts."""
        from rulerkit.pieces import PieceEncoder

        return PieceEncoder(self)


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
        return _builtin()
    path_text, _, pattern = spec.partition("#")
    path = resolve(path_text)
    if path.is_dir():
        return _from_folder(spec, path)
    if path.is_file():
        return _from_file(spec, path, pattern)
    import tiktoken

    if spec in tiktoken.list_encoding_names():
        return _from_encoding_name(spec)
    if re.fullmatch(r"[\w.-]+/[\w.-]+", spec):
        return _from_hub(spec)
    raise UserError(
        f"no tokenizer {spec!r}: neither a file or folder here, nor a tiktoken encoding, nor a hub name (org/name); "
        "`builtin` needs no download"
    )


# --- folders and files ------------------------------------------------------------------------------------------------

_IN_FOLDER = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken*.json",
    "*.tiktoken",
    "*tokenizer.model*",
    "*tokenizer*.json",
    "rwkv_vocab*.txt",
)


def _from_folder(spec: str, folder: Path) -> Tokenizer:
    """The first file of a folder that is a vocabulary, in the order of `_IN_FOLDER`, with the settings beside it."""
    for pattern in _IN_FOLDER:
        for path in sorted(folder.glob(pattern)):
            if path.name not in ("tokenizer_config.json", "special_tokens_map.json"):
                return _from_file(spec, path, "")
    raise UserError(f"no tokenizer in the folder {folder}: none of {', '.join(_IN_FOLDER)} is there")


def _from_file(spec: str, path: Path, pattern: str) -> Tokenizer:
    data = path.read_bytes()
    digest = hashlib.sha256(data).hexdigest()[:16]
    try:
        if path.suffix == ".txt":
            return _rwkv(spec, digest, data)
        if path.suffix == ".json":
            return _tekken(spec, digest, data) if b'"token_bytes"' in data[:4096] else _hugging_face(spec, path, digest)
        if re.match(rb"[A-Za-z0-9+/=]+ \d+\n", data):
            return _ranks(spec, digest, data, pattern)
        return _sentencepiece(spec, path, digest)
    except (ValueError, KeyError, RuntimeError, SyntaxError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not a tokenizer that can be read: {error}") from error


def _settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` of a folder, with the chat template of `chat_template.jinja` where that is a file."""
    path = folder / "tokenizer_config.json"
    settings: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    template = settings.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = {entry["name"]: entry["template"] for entry in template}
        settings["chat_template"] = named.get("default", next(iter(named.values()), None))
    if (file := folder / "chat_template.jinja").is_file():
        settings["chat_template"] = file.read_text(encoding="utf-8")
    return settings


def _token_text(token: Any) -> str | None:
    text: str | None = token["content"] if isinstance(token, dict) else token
    return text


def _hugging_face(spec: str, path: Path, digest: str) -> Tokenizer:
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for a file that it cannot parse
        raise ValueError(str(error).splitlines()[0]) from error
    backend.no_truncation()
    backend.no_padding()
    settings = _settings(path.parent)
    bos_token, bos_id = _token_text(settings.get("bos_token")), None
    if settings.get("add_bos_token", True):
        plain = backend.encode("x", add_special_tokens=False).ids
        framed = backend.encode("x", add_special_tokens=True).ids
        if len(framed) > len(plain) and framed[0] != plain[0]:
            bos_id = framed[0]
        elif settings.get("add_bos_token") and bos_token:
            bos_id = backend.token_to_id(bos_token)
    if bos_id is not None:
        bos_token = bos_token or backend.id_to_token(bos_id)

    def encode_many(texts: Sequence[str]) -> list[Sequence[int]]:
        return [e.ids for e in backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    return Tokenizer(
        spec,
        digest,
        encode_many,
        lambda ids: backend.decode(ids, skip_special_tokens=False),
        bos_id,
        bos_token,
        _token_text(settings.get("eos_token")),
        settings.get("chat_template"),
    )


def _sentencepiece(spec: str, path: Path, digest: str) -> Tokenizer:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(path))
    settings = _settings(path.parent) if path.name == "tokenizer.model" else {}
    control = {model.id_to_piece(i): i for i in range(model.get_piece_size()) if model.is_control(i)}
    splitter = (
        re.compile("(" + "|".join(map(re.escape, sorted(control, key=len, reverse=True))) + ")") if control else None
    )

    def encode_many(texts: Sequence[str]) -> Sequence[Sequence[int]]:
        if splitter is None or not any(splitter.search(text) for text in texts):
            found: list[list[int]] = model.encode(list(texts))
            return found
        return [[i for part in splitter.split(text) if part for i in encode_part(part)] for text in texts]

    def encode_part(part: str) -> list[int]:
        return [control[part]] if part in control else list(model.encode(part))

    bos = model.bos_id() if model.bos_id() >= 0 else None
    return Tokenizer(
        spec,
        digest,
        encode_many,
        model.decode,
        bos,
        model.id_to_piece(bos) if bos is not None else None,
        model.id_to_piece(model.eos_id()) if model.eos_id() >= 0 else None,
        settings.get("chat_template"),
    )


def _byte_pair(
    spec: str,
    digest: str,
    pattern: str,
    ranks: dict[bytes, int],
    special: dict[str, int],
    bos: str | None,
    first: int = 0,
) -> Tokenizer:
    """A tokenizer run by tiktoken. `first` is what is added to every rank to make the id (Tekken keeps 1000 free)."""
    import tiktoken

    encoding = tiktoken.Encoding(digest, pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)

    def encode_many(texts: Sequence[str]) -> list[Sequence[int]]:
        found = encoding.encode_batch(list(texts), num_threads=2, allowed_special="all")
        return [[i + first for i in ids] for ids in found] if first else found  # type: ignore[return-value]

    return Tokenizer(
        spec,
        digest,
        encode_many,
        lambda ids: encoding.decode([i - first for i in ids if i >= first]),
        special[bos] + first if bos in special else (1 if bos else None),
        bos,
    )


def _ranks(spec: str, digest: str, data: bytes, pattern: str) -> Tokenizer:
    name, special, bos = _RANKS_FILES.get(digest, ("", {}, None))
    pattern = PATTERNS.get(pattern or name, pattern)
    if not pattern:
        raise UserError(
            f"the ranks file {spec} is not known by its checksum: name its split pattern as "
            f"{spec}#PATTERN, a regular expression or one of {', '.join(PATTERNS)}"
        )
    lines = (line.split() for line in data.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    if not all(bytes([byte]) in ranks for byte in range(256)):
        raise ValueError("some single bytes have no rank; was the file cut short?")
    return _byte_pair(spec, digest, pattern, ranks, special, bos)


def _tekken(spec: str, digest: str, data: bytes) -> Tokenizer:
    """Mistral's Tekken: byte pairs in JSON; the first 1000 ids are special, `<s>` is 1."""
    file = json.loads(data)
    config = file["config"]
    special = config["default_num_special_tokens"]
    vocabulary = file["vocab"][: config["default_vocab_size"] - special]
    ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in vocabulary}
    return _byte_pair(spec, digest, config["pattern"], ranks, {}, "<s>", first=special)


def _from_encoding_name(name: str) -> Tokenizer:
    import tiktoken

    try:
        encoding = tiktoken.get_encoding(name)
    except OSError as error:
        raise UserError(
            f"the tiktoken encoding {name} is not on this machine and cannot be downloaded: name a ranks file instead, "
            f"such as {name}.tiktoken"
        ) from error
    digest = hashlib.sha256(repr(sorted(encoding._mergeable_ranks.items())).encode()).hexdigest()[:16]
    return Tokenizer(
        name,
        digest,
        lambda texts: encoding.encode_batch(list(texts), num_threads=2, allowed_special="all"),
        encoding.decode,
    )


def _from_hub(name: str) -> Tokenizer:
    """The tokenizer files of a Hugging Face repository, from the local cache or downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        wanted = ["tokenizer*", "tekken.json", "*.tiktoken", "chat_template*", "special_tokens_map.json", "rwkv_vocab*"]
        folder = snapshot_download(name, allow_patterns=wanted)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"the tokenizer of {name} is neither in the local cache nor to be had from the hub ({reason}): "
            "log in with `hf auth login` if the repository is gated, or name a folder"
        ) from error
    return _from_folder(name, Path(folder))


# --- vocabularies of our own reading ----------------------------------------------------------------------------------


def _rwkv(spec: str, digest: str, data: bytes) -> Tokenizer:
    """RWKV World: `id repr length` a line; the longest token that matches is taken, byte by byte."""
    from ast import literal_eval

    trie: dict[int, Any] = {}
    tokens: dict[int, bytes] = {}
    if data.count(b"\n") < 256:
        raise ValueError("it has fewer than 256 lines")
    for line in data.decode("utf-8").splitlines():
        number, _, rest = line.partition(" ")
        token = literal_eval(rest.rpartition(" ")[0])
        token = token.encode() if isinstance(token, str) else token
        tokens[int(number)] = token
        node = trie
        for byte in token:
            node = node.setdefault(byte, {})
        node[-1] = int(number)

    def encode(text: str) -> list[int]:
        raw, at, ids = text.encode("utf-8"), 0, []
        while at < len(raw):
            node, ahead, token, end = trie, at, 0, at + 1
            while ahead < len(raw) and (node := node.get(raw[ahead], {})):
                ahead += 1
                if -1 in node:
                    token, end = node[-1], ahead
            ids.append(token)
            at = end
        return ids

    def decode(ids: list[int]) -> str:
        return b"".join(tokens.get(i, b"") for i in ids).decode("utf-8", "replace")

    return Tokenizer(spec, digest, lambda texts: [encode(text) for text in texts], decode)


_BUILTIN = re.compile(r"\n| ?[^\W\d_]+| ?\d{1,3}| ?[^\w\s]+|_|[^\S\n]")


@cache
def _builtin() -> Tokenizer:
    """Words, groups of digits and runs of punctuation, each with the blank before it: no vocabulary, no download.

    Ids are given out in order of first sight, so they mean something within one process only; counts are stable.
    """
    texts: list[str] = []
    known: dict[str, int] = {}

    def number(token: str) -> int:
        if token not in known:
            known[token] = len(texts)
            texts.append(token)
        return known[token]

    return Tokenizer(
        "builtin",
        hashlib.sha256(_BUILTIN.pattern.encode()).hexdigest()[:16],
        lambda batch: [[number(token) for token in _BUILTIN.findall(text)] for text in batch],
        lambda ids: "".join([texts[i] for i in ids]),
    )

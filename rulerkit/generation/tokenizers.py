"""Tokenizers of every kind behind one small class: text to token ids and back, without a
beginning-of-sequence token.

`load_tokenizer` takes a Hugging Face name or folder, a `tokenizer.json`, a SentencePiece `.model`,
a Tekken JSON, a tiktoken ranks file or encoding name, the RWKV vocabulary, or `builtin`. The files
are read here; `pieces.py` cuts texts into pieces whose ids can be joined.
"""

import base64
import fnmatch
import itertools
import json
import os
import re
from ast import literal_eval
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from rulerkit.common.errors import UserError, first_line, shorten
from rulerkit.common.hub import download, is_hub_id
from rulerkit.common.paths import cache_dir, package_data, resolve

Ids = np.ndarray
"""Token ids: a one-dimensional int32 array."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Token ids of a text and back.

    `encode` adds no beginning-of-sequence token; special tokens that stand in the text (chat
    templates) become their ids. `bos_id` is the token the model was trained to see first, or None.
    `fingerprint` identifies the vocabulary.
    """

    encode_many: Callable[[Sequence[str]], Sequence[Sequence[int]]] = field(
        repr=False
    )
    decode_ids: Callable[[list[int]], str] = field(repr=False)
    bos_id: int | None = None
    bos_token: str | None = None
    eos_token: str | None = None
    name: str = ""
    fingerprint: str = ""
    chat_template: str | None = field(default=None, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process loads it again by its name."""
        return load_tokenizer, (self.name,)

    def encode(self, text: str) -> Ids:
        """The ids of one text, int32, shape (tokens,)."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """The ids of many texts, each encoded on its own."""
        return (
            [np.asarray(ids, dtype=np.int32) for ids in self.encode_many(texts)]
            if texts
            else []
        )

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; a character cut in half at either end becomes U+FFFD."""
        # Models with a padded vocabulary may write an id that no text belongs to.
        row = np.asarray(ids).tolist()
        try:
            return self.decode_ids(row)
        except (IndexError, KeyError) as error:
            raise UserError(
                f"tokenizer {self.name}: it has no text for an id (the highest is "
                f"{max(row)}): name "
                "the model's own"
            ) from error

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
    # `tokenizer_kind` tells them apart without reading anything.
    kind = tokenizer_kind(spec)
    if kind == "builtin":
        return _builtin()
    if kind == "tiktoken":
        return encoding_by_name(spec)
    if kind == "hub":
        who = f"tokenizer {spec}: there is no folder {resolve(spec)}; as a hub id"
        return _from_folder(spec, download(who, spec, None, ON_HUB))

    # A file of ranks may be followed by its split pattern.
    name, _, pattern = spec.partition("#")
    path = resolve(name)
    return (
        _from_folder(spec, path)
        if path.is_dir()
        else _from_file(spec, path, pattern)
    )


def tokenizer_kind(spec: str) -> str:
    """What `load_tokenizer` reads for a name: `builtin`, `path`, `tiktoken` or `hub`. Raises
    `UserError` for other names."""
    if not isinstance(spec, str) or not spec.strip():
        raise UserError(
            f"tokenizer is {spec!r}: it must be `builtin`, a file, a folder or a name"
        )

    # What lies on this disk comes before what could be downloaded under the same name.
    if spec == "builtin":
        return spec
    with suppress(OSError):  # such as a name too long for a file
        if resolve(spec.partition("#")[0]).exists():
            return "path"
    import tiktoken

    if spec in tiktoken.list_encoding_names():
        return "tiktoken"
    if is_hub_id(spec):
        return "hub"
    raise UserError(
        f"tokenizer {spec!r}: there is no such file or folder, and it is neither a tiktoken "
        "encoding nor a hub name (org/name); `builtin` needs no download"
    )


# --- folders and files ----------------------------------------------------------------------------

ON_HUB = (
    "*token*",
    "tekken*.json",
    "*.tiktoken",
    "chat_template*",
    "rwkv_vocab*",
)
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
    # These two describe a tokenizer, and are none.
    others = {"tokenizer_config.json", "special_tokens_map.json"}
    names = sorted({name for name in names if "/" not in name} - others)
    return next(
        (
            name
            for pattern in IN_FOLDER
            for name in fnmatch.filter(names, pattern)
        ),
        None,
    )


def _from_folder(spec: str, folder: Path) -> Tokenizer:
    """The vocabulary of a folder, with the settings beside it."""
    # A folder may hold several vocabularies; the order of IN_FOLDER says which one is
    # read.
    name = vocabulary_file(
        path.name for path in folder.iterdir() if path.is_file()
    )
    if name is None:
        raise UserError(
            f"no tokenizer in the folder {folder}: none of {', '.join(IN_FOLDER)} is there"
        )
    return _from_file(spec, folder / name, "")


def _from_file(spec: str, path: Path, pattern: str) -> Tokenizer:
    try:
        data = path.read_bytes()
        settings = _settings(path.parent)

        # The content decides where a suffix is shared: Tekken's files and those of
        # tokenizers both end in .json.
        if path.suffix == ".txt":
            tokenizer = _rwkv(data)
        elif path.suffix == ".json" and b'"token_bytes"' in data[:4096]:
            tokenizer = _tekken(data)
        elif path.suffix == ".json":
            tokenizer = _hugging_face(path, settings)
        elif re.match(rb"[A-Za-z0-9+/=]+ \d+\n", data):
            tokenizer = _ranks_file(spec, data, pattern)
        else:
            tokenizer = _sentencepiece(path)
    except UserError:
        raise
    except Exception as error:  # a damaged file raises anything, the libraries' bare Exception too
        raise UserError(
            f"{path} and the settings beside it are no tokenizer that can be read: "
            f"{first_line(error)}"
        ) from error
    digest = _fingerprint(
        data + pattern.encode()
    )  # another pattern is another tokenizer

    template = settings["chat_template"]
    return replace(
        tokenizer, name=spec, fingerprint=digest, chat_template=template
    )


def _fingerprint(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


def _settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` of a folder, with its chat template.

    The template of `chat_template.jinja` comes first, then that of `tokenizer_config.json`, then
    that of `chat_template.json`; of several named templates the one called `default` is taken.
    """
    # Both files may be missing: then there are no settings.
    files = (
        folder / name for name in ("tokenizer_config.json", "chat_template.json")
    )
    content: list[dict[str, Any]] = [
        json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        for file in files
    ]
    settings, beside = content

    # Three places have held the template over the years; the newest one wins.
    template = settings.get("chat_template") or beside.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get(
            "default"
        )
    if (file := folder / "chat_template.jinja").is_file():
        template = file.read_text(encoding="utf-8")

    # What is no text would only fail when the first prompt is made.
    if not isinstance(template, str | None):
        raise ValueError(
            f"the chat template is a {type(template).__name__}, not a text"
        )
    return settings | {"chat_template": template}


# --- vocabulary files -----------------------------------------------------------------------------


def _hugging_face(path: Path, settings: dict[str, Any]) -> Tokenizer:
    """A `tokenizer.json`; its post-processor, or `tokenizer_config.json`, says whether a BOS is
    added."""
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_file(str(path))

    # Settings for training would cut long prompts or fill up short ones.
    backend.no_truncation()
    backend.no_padding()

    # Whether a BOS is added is tried out, because post-processors say it in many ways.
    bos_token, bos_id = _token_text(settings.get("bos_token")), None
    if settings.get("add_bos_token", True):
        plain = backend.encode("x", add_special_tokens=False).ids
        framed = backend.encode("x", add_special_tokens=True).ids
        if len(framed) > len(plain) and framed[0] != plain[0]:
            bos_id = framed[0]
        elif settings.get("add_bos_token") and bos_token:
            bos_id = backend.token_to_id(bos_token)

    # The text of the BOS, where only its id is known, so that a template's own can be
    # seen.
    if bos_id is not None:
        bos_token = bos_token or backend.id_to_token(bos_id)

    def encode_many(texts: Sequence[str]) -> list[Sequence[int]]:
        return [
            e.ids
            for e in backend.encode_batch_fast(
                list(texts), add_special_tokens=False
            )
        ]

    return Tokenizer(
        encode_many,
        lambda ids: backend.decode(ids, skip_special_tokens=False),
        bos_id,
        bos_token,
        _token_text(settings.get("eos_token")),
    )


def _token_text(token: Any) -> str | None:
    """A token's text, as `tokenizer_config.json` writes it: plain or as a mapping with
    `content`."""
    return str(token["content"]) if isinstance(token, dict) else token


def _sentencepiece(path: Path) -> Tokenizer:
    """A SentencePiece model; control tokens that stand in a text become their ids."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(path))

    # SentencePiece never reads control tokens in a text; chat templates are made of
    # them.
    control = {
        model.id_to_piece(i): [i]
        for i in range(model.get_piece_size())
        if model.is_control(i)
    }

    # A token may begin with another one.
    longest_first = sorted(control, key=len, reverse=True)
    splitter = re.compile(
        f"({'|'.join(map(re.escape, longest_first))})" if control else "(?!)"
    )

    def encode(text: str) -> list[int]:
        parts = [part for part in splitter.split(text) if part]
        return [
            i for part in parts for i in control.get(part) or model.encode(part)
        ]

    # A vocabulary without such a token gives -1.
    bos = model.bos_id()
    names = {i: model.id_to_piece(i) for i in (bos, model.eos_id()) if i >= 0}
    return Tokenizer(
        lambda texts: [encode(text) for text in texts],
        model.decode,
        bos if bos in names else None,
        names.get(bos),
        names.get(model.eos_id()),
    )


def _tiktoken(encoding: Any, **more: Any) -> Tokenizer:
    """An encoding of tiktoken."""

    def encode_many(texts: Sequence[str]) -> Sequence[Sequence[int]]:
        return list(
            encoding.encode_batch(
                list(texts), num_threads=2, allowed_special="all"
            )
        )

    return Tokenizer(encode_many, **{"decode_ids": encoding.decode, **more})


def _byte_pairs(
    pattern: str, ranks: dict[bytes, int], special: dict[str, int]
) -> Any:
    """Byte pairs merged by tiktoken."""
    import tiktoken

    # Every single byte must have a rank, or some texts could not be encoded at all.
    if not all(bytes([byte]) in ranks for byte in range(256)):
        raise ValueError(
            "some single bytes have no rank; was the file cut short?"
        )
    return tiktoken.Encoding(
        "ranks", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special
    )


def _ranks_file(name: str, content: bytes, pattern: str) -> Tokenizer:
    """A tiktoken ranks file; its split pattern is known by the file's checksum, or given."""
    # A ranks file does not hold the pattern by which text is split, nor its special
    # tokens: two models with the same ranks may differ in both.
    known = package_data("ranks_files.yaml")
    file = known["files"].get(_fingerprint(content), {"special": {}})
    pattern = known["patterns"].get(pattern or file.get("pattern"), pattern)
    if not pattern:
        raise UserError(
            f"the ranks file {name} is not known by its checksum: name its split pattern as "
            f"{name}#PATTERN, a regular expression or one of {', '.join(known['patterns'])}"
        )

    # Each line is a token in base64, and its rank.
    lines = (line.split() for line in content.splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    encoding, bos = _byte_pairs(pattern, ranks, file["special"]), file.get("bos")
    return _tiktoken(encoding, bos_id=file["special"].get(bos), bos_token=bos)


def _tekken(data: bytes) -> Tokenizer:
    """Mistral's Tekken: byte pairs in JSON; the first 1000 ids are special, `<s>` is 1."""
    file = json.loads(data)
    config = file["config"]
    special = config["default_num_special_tokens"]

    # Ordinary tokens come behind the special ones.
    vocabulary = file["vocab"][: config["default_vocab_size"] - special]
    ranks = {
        base64.b64decode(entry["token_bytes"]): entry["rank"] + special
        for entry in vocabulary
    }

    # Special tokens have no text of their own.
    encoding = _byte_pairs(config["pattern"], ranks, {})

    def decode(ids: list[int]) -> str:
        return str(encoding.decode([i for i in ids if i >= special]))

    return _tiktoken(encoding, decode_ids=decode, bos_id=1, bos_token="<s>")


def tiktoken_dir() -> Path:
    """Where tiktoken's files are: as its own variables say, else in our cache, since its default is
    each node's /tmp."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get(
        "DATA_GYM_CACHE_DIR"
    )
    return Path(folder) if folder else cache_dir() / "tiktoken"


def encoding_by_name(name: str) -> Tokenizer:
    """A tiktoken encoding by its name, downloaded or cached by tiktoken."""
    import tiktoken

    # All nodes of a cluster read the same files.
    os.environ["TIKTOKEN_CACHE_DIR"] = str(tiktoken_dir())
    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"tokenizer {name} (tiktoken) is not on this machine and cannot be downloaded "
            f"({shorten(first_line(error))}): fetch it again, or name a ranks file instead, "
            "such as "
            f"{name}.tiktoken"
        ) from error

    # The name of an encoding could be given to other ranks; the digest is over the
    # ranks.
    ranks = repr(sorted(encoding._mergeable_ranks.items()))
    return _tiktoken(
        encoding, name=name, fingerprint=_fingerprint(ranks.encode())
    )


def _rwkv(data: bytes) -> Tokenizer:
    """RWKV World: `id repr length` a line; the longest token that matches is taken, byte by
    byte."""
    # A token is written as a Python literal, of text or of bytes.
    tokens: dict[int, bytes] = {}
    for line in data.decode("utf-8").splitlines():
        entry = re.fullmatch(r"(\d+) (.+) (\d+)", line)
        if entry is None:
            raise ValueError(f"{shorten(line)} is no entry of a vocabulary")
        number, token, _ = entry.groups()
        text = literal_eval(token)
        tokens[int(number)] = text.encode() if isinstance(text, str) else text
    if len(tokens) < 256:
        raise ValueError("it has fewer than 256 tokens")

    # A longer token is looked for only as long as something begins with what was read.
    numbers = {token: number for number, token in tokens.items()}
    beginnings = {
        token[:size] for token in numbers for size in range(1, len(token) + 1)
    }

    def encode(text: str) -> list[int]:
        raw, start, ids = text.encode("utf-8"), 0, []
        while start < len(raw):
            token, stop = raw[start : start + 1], start + 1
            while (
                stop <= len(raw) and (beginning := raw[start:stop]) in beginnings
            ):
                token = beginning if beginning in numbers else token
                stop += 1
            ids.append(numbers.get(token, 0))
            start += len(token)
        return ids

    def decode(ids: list[int]) -> str:
        return b"".join(tokens.get(i, b"") for i in ids).decode(
            "utf-8", "replace"
        )

    return Tokenizer(lambda texts: [encode(text) for text in texts], decode)


BUILTIN = re.compile(r"\n| ?[^\W\d_]+| ?\d{1,3}| ?[^\w\s]+|_|[^\S\n]")


def _builtin() -> Tokenizer:
    """Words, groups of digits and runs of punctuation, each with the blank before it: no
    vocabulary, no download.

    Ids are given out in order of first sight, so they mean something within one process only;
    counts are stable.
    """
    # Two rows, from text to id and back, that grow as words are seen.
    texts: dict[int, str] = {}
    ids: dict[str, int] = {}
    unused = itertools.count()

    def number(token: str) -> int:
        if token not in ids:
            place = next(
                unused
            )  # answers are read in another thread: no number is given out twice
            texts[place] = token
            ids[token] = place
        return ids[token]

    return Tokenizer(
        lambda batch: [
            [number(token) for token in BUILTIN.findall(text)] for text in batch
        ],
        lambda row: "".join([texts[i] for i in row]),
        name="builtin",
        fingerprint=_fingerprint(BUILTIN.pattern.encode()),
    )

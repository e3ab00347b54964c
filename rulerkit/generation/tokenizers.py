"""Tokenizers of every kind behind one small class: text to token ids and back, without the tokens
that a tokenizer puts around a text.

`load_tokenizer` takes a Hugging Face name or folder, a `tokenizer.json`, a SentencePiece `.model`,
the name of a tiktoken encoding, the RWKV vocabulary, or `builtin`. The files are read here;
`pieces.py` cuts texts into pieces whose ids can be joined.
"""

import fnmatch
import itertools
import json
import os
import re
from ast import literal_eval
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rulerkit.common.errors import UserError, first_line, shorten
from rulerkit.common.hub import download, is_hub_id
from rulerkit.common.json_text import digest
from rulerkit.common.paths import cache_dir, resolve

Ids = np.ndarray
"""Token ids: a one-dimensional int32 array."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Token ids of a text and back.

    `encode` adds nothing; special tokens that stand in the text (chat templates) become their ids.
    `leading_ids` are what the model was trained to see before a text: a BOS, `[gMASK] <sop>`, or
    nothing; `leading_tokens` are their texts. What a tokenizer puts behind a text for training is
    never part of a prompt. `bos_token` and `eos_token` are the texts that chat templates know by
    these names. `fingerprint` identifies the vocabulary.
    """

    encode_many: Callable[[Sequence[str]], Sequence[Sequence[int]]] = field(repr=False)
    decode_ids: Callable[[list[int]], str] = field(repr=False)
    leading_ids: tuple[int, ...] = ()
    leading_tokens: tuple[str, ...] = ()
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
        return np.asarray(self.encode_many([text])[0], dtype=np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; a character cut in half at either end becomes U+FFFD."""
        # Models with a padded vocabulary may write an id that no text belongs to.
        row = np.asarray(ids).tolist()
        try:
            return self.decode_ids(row)
        except (IndexError, KeyError) as error:
            raise UserError(
                f"tokenizer {self.name}: it has no text for an id (the highest is {max(row)}): "
                "name the model's own"
            ) from error

    def count(self, text: str) -> int:
        """How many tokens a text has when encoded on its own."""
        return len(self.encode_many([text])[0])


@cache
def load_tokenizer(spec: str) -> Tokenizer:
    """The tokenizer that `spec` names.

    `builtin`; a folder or file (relative ones count from the project root); a tiktoken encoding
    name such as `cl100k_base`; or a Hugging Face name such as `Qwen/Qwen2.5-7B`, which is
    downloaded where it is not in the hub's cache.
    """
    if spec == "builtin":
        return _builtin()

    # What lies on this disk comes before what could be downloaded under the same name.
    path = resolve(spec)
    if os.path.exists(path):
        return _read(spec, path)

    import tiktoken

    if spec in tiktoken.list_encoding_names():
        return _tiktoken(spec)
    if is_hub_id(spec):
        who = f"tokenizer {spec}: there is no folder {path}; as a hub id"
        return _read(spec, download(who, spec, None, ON_HUB))
    raise UserError(
        f"tokenizer {spec!r}: there is no such file or folder, and it is neither a tiktoken "
        "encoding nor a hub name (org/name); `builtin` needs no download"
    )


# --- folders and files ----------------------------------------------------------------------------

ON_HUB = ("*token*", "chat_template*", "rwkv_vocab*")
"""The files of a repository that a tokenizer may need."""

_IN_FOLDER = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken*.json",
    "*.tiktoken",
    "tiktoken.model",
    "*tokenizer.model*",
    "*tokenizer*.json",
    "rwkv_vocab*.txt",
)
"""Where a folder has its vocabulary: the first of these that is there. Tekken and ranks files lack
the rules by which a text is split: they are refused, and no older file is read in their place."""

_COMPLETE = (
    "name as `tokenizer` a folder or a hub id (org/name) whose tokenizer.json has the model's "
    "vocabulary, such as AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER) writes"
)


def _read(spec: str, path: Path) -> Tokenizer:
    """The tokenizer of a file or a folder, with the settings beside its vocabulary."""
    folder = path if path.is_dir() else path.parent
    if path.is_dir():
        names = {file.name for file in path.iterdir() if file.is_file()}
        names -= {"tokenizer_config.json", "special_tokens_map.json"}
        found = [name for each in _IN_FOLDER for name in fnmatch.filter(sorted(names), each)]
        path = folder / (found[0] if found else "tokenizer.json")

    try:
        data = path.read_bytes()
        settings = _settings(folder)
        if path.suffix == ".txt":
            tokenizer = _rwkv(data)
        elif path.suffix == ".json":
            tokenizer = _hugging_face(data, settings)
        else:
            tokenizer = _sentencepiece(data, settings)
    except Exception as error:  # a damaged file raises anything, the libraries' bare Exception too
        raise UserError(
            f"tokenizer {spec}: {path} and the settings beside it are no tokenizer that can be "
            f"read ({first_line(error)}): {_COMPLETE}"
        ) from error
    # A reader names what else its ids depend on.
    fingerprint = digest(data + tokenizer.fingerprint.encode())
    template = settings["chat_template"]
    return replace(tokenizer, name=spec, fingerprint=fingerprint, chat_template=template)


def _settings(folder: Path) -> dict[str, Any]:
    """What the files beside a vocabulary say: `tokenizer_config.json` over
    `special_tokens_map.json`, with the texts of its `bos_token` and `eos_token`, of all its
    `special_tokens`, and of its `chat_template`: of several named ones that called `default`."""
    settings = _json(folder / "special_tokens_map.json")
    for key, value in _json(folder / "tokenizer_config.json").items():
        if value is not None:
            settings[key] = value

    # Three places have held the template over the years; the newest one wins.
    template = settings.get("chat_template")
    template = template or _json(folder / "chat_template.json").get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if (file := folder / "chat_template.jinja").is_file():
        template = file.read_text(encoding="utf-8")
    # What is no text would only fail when the first prompt is made.
    if not isinstance(template, str | None):
        raise ValueError(f"the chat template is a {type(template).__name__}, not a text")

    # A token is a text, or a mapping with `content`.
    tokens: list[Any] = [*_json(folder / "added_tokens.json")]
    tokens += settings.get("added_tokens_decoder", {}).values()
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.get(key, [])
        tokens += more.values() if isinstance(more, dict) else more
    for key in ("bos_token", "eos_token"):
        token = settings.get(key)
        settings[key] = str(token["content"]) if isinstance(token, dict) else token
        tokens.append(settings[key])
    texts = [token["content"] if isinstance(token, dict) else token for token in tokens]
    special = [str(text) for text in texts if text]
    return settings | {"chat_template": template, "special_tokens": special}


def _json(file: Path) -> dict[str, Any]:
    """A mapping in a file; empty where there is no file."""
    if not file.is_file():
        return {}
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content


# --- vocabulary files -----------------------------------------------------------------------------


def _hugging_face(data: bytes, settings: dict[str, Any]) -> Tokenizer:
    """A `tokenizer.json`. Its post-processor says what is put around a text: as in transformers,
    `add_bos_token` beside it says nothing."""
    from tokenizers import Tokenizer as Backend

    # Settings for training would cut long prompts or fill up short ones.
    backend = Backend.from_buffer(data)
    backend.no_truncation()
    backend.no_padding()
    for token in settings["special_tokens"]:
        if backend.token_to_id(token) is None:
            raise ValueError(f"it lacks {token}, which the files beside it name")

    # What is put around a text is tried out, because files say it in many ways.
    plain = backend.encode("x", add_special_tokens=False).ids
    framed = backend.encode("x", add_special_tokens=True).ids
    start = 0
    while framed[start : start + len(plain)] != plain:
        start += 1
        if start > len(framed):
            raise ValueError("its post-processor changes the ids of a text")
    leading = framed[:start]
    leading_tokens = [str(backend.id_to_token(number)) for number in leading]

    # Without settings, the only token before a text is what templates call BOS.
    bos_token = settings["bos_token"]
    if bos_token is None and len(leading) == 1:
        bos_token = leading_tokens[0]

    def encode_many(texts: Sequence[str]) -> list[Sequence[int]]:
        return [e.ids for e in backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    return Tokenizer(
        encode_many,
        lambda ids: backend.decode(ids, skip_special_tokens=False),
        leading_ids=tuple(leading),
        leading_tokens=tuple(leading_tokens),
        bos_token=bos_token,
        eos_token=settings["eos_token"],
    )


def _sentencepiece(data: bytes, settings: dict[str, Any]) -> Tokenizer:
    """A SentencePiece model; special tokens that stand in a text become their ids."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_proto=data)
    pieces = {model.id_to_piece(i): i for i in range(model.get_piece_size())}
    for token in settings["special_tokens"]:
        if token not in pieces:
            raise ValueError(f"it lacks {token}, which the files beside it name")
    if settings.get("legacy") is False:
        raise ValueError("`legacy: false` beside it changes the blanks behind a token")

    # SentencePiece never reads control tokens in a text; chat templates are made of them.
    control = {text: i for text, i in pieces.items() if model.is_control(i)}
    numbers = control | {text: pieces[text] for text in settings["special_tokens"]}

    # A token may begin with another one.
    longest_first = sorted(numbers, key=len, reverse=True)
    splitter = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for part in splitter.split(text):
            if part in numbers:
                ids.append(numbers[part])
            elif part:
                ids += model.encode(part)
        return ids

    # The files beside the model may name others than it does.
    bos, eos = settings["bos_token"], settings["eos_token"]
    if bos is None and model.bos_id() >= 0:
        bos = model.id_to_piece(model.bos_id())
    if eos is None and model.eos_id() >= 0:
        eos = model.id_to_piece(model.eos_id())
    leading = [bos] if bos and settings.get("add_bos_token", True) else []
    others = sorted(numbers.keys() - control.keys())
    return Tokenizer(
        lambda texts: list(map(encode, texts)),
        model.decode,
        leading_ids=tuple(numbers[token] for token in leading),
        leading_tokens=tuple(leading),
        bos_token=bos,
        eos_token=eos,
        fingerprint=repr(others) if others else "",
    )


def _tiktoken(name: str) -> Tokenizer:
    """A tiktoken encoding by its name, downloaded or cached by tiktoken."""
    import tiktoken

    # All nodes of a cluster read the same files: tiktoken's default is each node's /tmp.
    os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(cache_dir() / "tiktoken"))
    try:
        encoding = tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:
        raise UserError(
            f"tokenizer {name} (tiktoken) is not on this machine and cannot be downloaded "
            f"({shorten(first_line(error))}): fetch it again, or point TIKTOKEN_CACHE_DIR at a "
            "folder that has it"
        ) from error

    # The name of an encoding could be given to other ranks; the digest is over the ranks.
    ranks = repr(sorted(encoding._mergeable_ranks.items()))

    def encode_many(texts: Sequence[str]) -> Sequence[Sequence[int]]:
        return list(encoding.encode_batch(list(texts), num_threads=2, allowed_special="all"))

    return Tokenizer(encode_many, encoding.decode, name=name, fingerprint=digest(ranks))


def _rwkv(data: bytes) -> Tokenizer:
    """RWKV World: `id repr length` a line; the longest token that matches is taken, byte by
    byte."""
    # A token is written as a Python literal, of text or of bytes.
    tokens: dict[int, bytes] = {}
    for line in data.decode("utf-8").splitlines():
        number, entry = line.split(" ", maxsplit=1)
        text = literal_eval(entry.rpartition(" ")[0])
        tokens[int(number)] = text.encode() if isinstance(text, str) else text
    if len(tokens) < 256:
        raise ValueError("it has fewer than 256 tokens")

    # A longer token is looked for only as long as something begins with what was read.
    numbers = {token: number for number, token in tokens.items()}
    beginnings = {token[:size] for token in numbers for size in range(1, len(token) + 1)}

    def encode(text: str) -> list[int]:
        raw, start, ids = text.encode("utf-8"), 0, []
        while start < len(raw):
            token, stop = raw[start : start + 1], start + 1
            while stop <= len(raw) and (beginning := raw[start:stop]) in beginnings:
                token = beginning if beginning in numbers else token
                stop += 1
            ids.append(numbers.get(token, 0))
            start += len(token)
        return ids

    def decode(ids: list[int]) -> str:
        return b"".join(tokens.get(i, b"") for i in ids).decode("utf-8", "replace")

    return Tokenizer(lambda texts: list(map(encode, texts)), decode)


BUILTIN = re.compile(r"\n| ?[^\W\d_]+| ?\d{1,3}| ?[^\w\s]+|_|[^\S\n]")


def _builtin() -> Tokenizer:
    """Words, groups of digits and runs of punctuation, each with the blank before it. Ids are given
    out in order of first sight: they mean something within one process only; counts are stable."""
    # A word gets its number in one step of the interpreter, since answers are read in another
    # thread.
    numbers: dict[str, int] = defaultdict(itertools.count().__next__)

    def decode(ids: list[int]) -> str:
        words = list(numbers)
        return "".join([words[number] for number in ids])

    def encode_many(texts: Sequence[str]) -> list[list[int]]:
        return [list(map(numbers.__getitem__, BUILTIN.findall(text))) for text in texts]

    return Tokenizer(encode_many, decode, name="builtin", fingerprint=digest(BUILTIN.pattern))

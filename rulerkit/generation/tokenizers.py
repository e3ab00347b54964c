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
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rulerkit.common.errors import UserError, first_line, shorten
from rulerkit.common.hub import download, is_hub_id
from rulerkit.common.paths import cache_dir, resolve

Ids = np.ndarray
"""Token ids: a one-dimensional int32 array."""


@dataclass(frozen=True, eq=False)
class Tokenizer:
    """Token ids of a text and back.

    `encode` adds nothing; special tokens that stand in the text (chat templates) become their ids.
    `leading_ids` are what the model was trained to see before a text: a BOS, `[gMASK] <sop>`, or
    nothing; `leading_tokens` are their texts. `closing_ids` are what the tokenizer puts behind a
    text for training; they are never part of a prompt. `bos_token` and `eos_token` are the texts
    that chat templates know by these names. `fingerprint` identifies the vocabulary.
    """

    encode_many: Callable[[Sequence[str]], Sequence[Sequence[int]]] = field(repr=False)
    decode_ids: Callable[[list[int]], str] = field(repr=False)
    leading_ids: tuple[int, ...] = ()
    leading_tokens: tuple[str, ...] = ()
    closing_ids: tuple[int, ...] = ()
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
        return [np.asarray(ids, dtype=np.int32) for ids in self.encode_many(texts)] if texts else []

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
    name such as `cl100k_base`; or a Hugging Face name such as `Qwen/Qwen2.5-7B`.
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

    path = resolve(spec)
    return _from_folder(spec, path) if path.is_dir() else _from_file(spec, path)


def tokenizer_kind(spec: str) -> str:
    """What `load_tokenizer` reads for a name: `builtin`, `path`, `tiktoken` or `hub`. Raises
    `UserError` for other names."""
    if not isinstance(spec, str) or not spec.strip():
        raise UserError(f"tokenizer is {spec!r}: it must be `builtin`, a file, a folder or a name")

    # What lies on this disk comes before what could be downloaded under the same name.
    if spec == "builtin":
        return spec
    with suppress(OSError):  # such as a name too long for a file
        if resolve(spec).exists():
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

ON_HUB = ("*token*", "chat_template*", "rwkv_vocab*")
"""The files of a repository that a tokenizer may need."""

_INCOMPLETE = ("tekken*.json", "*.tiktoken", "tiktoken.model")
"""Vocabularies without the rules by which a tokenizer splits a text, so that none is read."""

_IN_FOLDER = (
    "tokenizer.json",
    "tokenizer.model",
    *_INCOMPLETE,
    "*tokenizer.model*",
    "*tokenizer*.json",
    "rwkv_vocab*.txt",
)


def vocabulary_file(names: Iterable[str]) -> str | None:
    """Which of the files of a folder holds its vocabulary, read or not: the first one in the order
    of `_IN_FOLDER`."""
    # These two describe a tokenizer, and are none.
    others = {"tokenizer_config.json", "special_tokens_map.json"}
    names = sorted({name for name in names if "/" not in name} - others)
    for pattern in _IN_FOLDER:
        for name in fnmatch.filter(names, pattern):
            return name
    return None


def is_complete(vocabulary: str | None) -> bool:
    """Whether a vocabulary file is there, and has a name under which a whole tokenizer stands."""
    return vocabulary is not None and not any(
        fnmatch.fnmatch(vocabulary, pattern) for pattern in _INCOMPLETE
    )


def _from_folder(spec: str, folder: Path) -> Tokenizer:
    """The vocabulary of a folder, with the settings beside it."""
    name = vocabulary_file(path.name for path in folder.iterdir() if path.is_file())
    if name is None:
        raise UserError(
            f"tokenizer {spec}: no tokenizer in the folder {folder}, neither tokenizer.json nor "
            f"tokenizer.model: {_TAKES}"
        )
    return _from_file(spec, folder / name)


_TAKES = (
    "name as `tokenizer` a folder, a file or a hub id (org/name) whose tokenizer.json has the "
    "model's vocabulary"
)


def _from_file(spec: str, path: Path) -> Tokenizer:
    try:
        data = path.read_bytes()
        settings = _settings(path.parent)
        marks = _marks_beside(path.parent, settings)

        # The content decides, since other kinds of files share these names.
        if path.suffix == ".txt":
            tokenizer = _rwkv(data)
        elif b'"token_bytes"' in data[:4096]:
            raise _incomplete(spec, path, "Tekken file")
        elif path.suffix == ".json":
            tokenizer = _hugging_face(data, settings, marks)
        elif re.match(rb"[A-Za-z0-9+/=]+ \d+\r?\n", data):
            raise _incomplete(spec, path, "ranks file of tiktoken")
        else:
            tokenizer = _sentencepiece(data, settings, marks)
    except UserError:
        raise
    except Exception as error:  # a damaged file raises anything, the libraries' bare Exception too
        raise UserError(
            f"{path} and the settings beside it are no tokenizer that can be read: "
            f"{first_line(error)}"
        ) from error
    # A reader names what else its ids depend on.
    digest = _fingerprint(data + tokenizer.fingerprint.encode())
    template = settings["chat_template"]
    return replace(tokenizer, name=spec, fingerprint=digest, chat_template=template)


def _incomplete(spec: str, path: Path, kind: str) -> UserError:
    """A vocabulary without the rules by which its model's tokenizer splits a text."""
    hint = " (tiktoken's own encodings go by name, such as cl100k_base)"
    return UserError(
        f"tokenizer {spec}: {path.name} is a {kind}, which does not hold all that a tokenizer "
        f"does: {_TAKES}{hint if 'tiktoken' in kind else ''}"
    )


def _fingerprint(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


def _settings(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` of a folder, over `special_tokens_map.json`, with its chat template.

    The template of `chat_template.jinja` comes first, then that of `tokenizer_config.json`, then
    that of `chat_template.json`; of several named templates the one called `default` is taken.
    """
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
    return settings | {"chat_template": template}


def _json(file: Path) -> dict[str, Any]:
    """A mapping in a file; empty where there is no file."""
    if not file.is_file():
        return {}
    content = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} holds no mapping")
    return content


class Mark(NamedTuple):
    """A special token that the files beside a vocabulary name: its id (None: the next one behind
    the vocabulary), whether it swallows the blanks before and behind it, and whether it is one
    between blanks only."""

    text: str
    id: int | None = None
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
"""The tokens that have a name in the settings, in the order in which they get their ids."""


def _marks_beside(folder: Path, settings: dict[str, Any]) -> list[Mark]:
    """The special tokens that the files beside a vocabulary name: those with an id in its order,
    then the others."""
    marks: dict[str, Mark] = {}
    for text, number in _json(folder / "added_tokens.json").items():
        marks[text] = Mark(text, int(number))
    for number, token in settings.get("added_tokens_decoder", {}).items():
        text = token["content"]
        if text in marks and marks[text].id != int(number):
            raise ValueError(
                f"added_tokens.json gives {text} the id {marks[text].id}, tokenizer_config.json "
                f"{number}"
            )
        marks[text] = Mark(
            text,
            int(number),
            lstrip=bool(token.get("lstrip")),
            rstrip=bool(token.get("rstrip")),
            single_word=bool(token.get("single_word")),
        )

    tokens = [settings.get(f"{role}_token") for role in _ROLES]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.get(key, [])
        tokens += more.values() if isinstance(more, dict) else more
    for token in tokens:
        name = _token_text(token)
        if name is not None and name not in marks:
            marks[name] = Mark(name)
    found = [mark for mark in marks.values() if mark.text]
    return sorted(found, key=lambda mark: inf if mark.id is None else mark.id)


# --- vocabulary files -----------------------------------------------------------------------------


def _hugging_face(data: bytes, settings: dict[str, Any], marks: list[Mark]) -> Tokenizer:
    """A `tokenizer.json`. Its post-processor says what is put around a text: as in transformers,
    `add_bos_token` beside it says nothing."""
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_buffer(data)

    # Settings for training would cut long prompts or fill up short ones.
    backend.no_truncation()
    backend.no_padding()

    added = _added(backend, marks)
    leading, closing = _around(backend)
    leading_tokens = [str(backend.id_to_token(number)) for number in leading]

    # Without settings, the only token before a text is what templates call BOS.
    bos_token = _token_text(settings.get("bos_token"))
    if bos_token is None and len(leading) == 1:
        bos_token = leading_tokens[0]

    def encode_many(texts: Sequence[str]) -> list[Sequence[int]]:
        return [e.ids for e in backend.encode_batch_fast(list(texts), add_special_tokens=False)]

    return Tokenizer(
        encode_many,
        lambda ids: backend.decode(ids, skip_special_tokens=False),
        leading_ids=tuple(leading),
        leading_tokens=tuple(leading_tokens),
        closing_ids=tuple(closing),
        bos_token=bos_token,
        eos_token=_token_text(settings.get("eos_token")),
        fingerprint=repr(added) if added else "",
    )


def _added(backend: Any, marks: list[Mark]) -> list[Mark]:
    """The tokens that stand only beside a `tokenizer.json`, added behind its own."""
    from tokenizers import AddedToken

    added = []
    for mark in marks:
        if backend.token_to_id(mark.text) is not None:
            continue
        token = AddedToken(
            mark.text, lstrip=mark.lstrip, rstrip=mark.rstrip, single_word=mark.single_word
        )
        backend.add_special_tokens([token])
        place = backend.token_to_id(mark.text)
        if mark.id not in (None, place):
            raise ValueError(
                f"the token {mark.text} is to have the id {mark.id}, and the next one behind "
                f"tokenizer.json is {place}; add it to that file"
            )
        added.append(mark)
    return added


def _around(backend: Any) -> tuple[list[int], list[int]]:
    """The ids that a post-processor puts before a text and behind it; tried out, because they say
    it in many ways."""
    plain = backend.encode("x", add_special_tokens=False).ids
    framed = backend.encode("x", add_special_tokens=True).ids
    start = 0
    while framed[start : start + len(plain)] != plain:
        start += 1
        if start > len(framed):
            raise ValueError("its post-processor changes the ids of a text")
    return framed[:start], framed[start + len(plain) :]


def _token_text(token: Any) -> str | None:
    """A token's text, as `tokenizer_config.json` writes it: plain or as a mapping with
    `content`."""
    return str(token["content"]) if isinstance(token, dict) else token


_NO_FIRST_BLANK = b"\x1a\x02\x18\x00"
"""Behind a SentencePiece model, a protocol buffer, this sets normalizer_spec.add_dummy_prefix to
false."""


def _sentencepiece(data: bytes, settings: dict[str, Any], marks: list[Mark]) -> Tokenizer:
    """A SentencePiece model; control tokens that stand in a text, and the tokens that the files
    beside it add, become their ids."""
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_proto=data)
    control, added = _numbered(model, marks)
    numbers = control | added

    # Behind a token a text gets a blank of its own unless `legacy` is false.
    behind = model
    if settings.get("legacy") is False:
        behind = SentencePieceProcessor(model_proto=data + _NO_FIRST_BLANK)
    splitter = _splitter(numbers, marks)

    def encode(text: str) -> list[int]:
        ids: list[int] = []
        for place, part in enumerate(splitter.split(text)):
            if part in numbers:
                ids.append(numbers[part])
            elif part:
                ids += (behind if place else model).encode(part)
        return ids

    texts = {number: text for text, number in added.items()}

    def decode(ids: list[int]) -> str:
        text, encoder = "", model
        for is_added, run in itertools.groupby(ids, texts.__contains__):
            if is_added:
                text += "".join(texts[number] for number in run)
                encoder = behind
            else:
                text += encoder.decode(list(run))
        return text

    # The files beside the model may name others than it does.
    named = {number: text for text, number in numbers.items()}
    bos = _token_text(settings.get("bos_token")) or named.get(model.bos_id())
    eos = _token_text(settings.get("eos_token")) or named.get(model.eos_id())
    leads = bos in numbers and settings.get("add_bos_token", True)
    closes = eos in numbers and settings.get("add_eos_token", False)
    strips = [mark for mark in marks if mark.lstrip or mark.rstrip]
    others = (added, strips, behind is not model)
    return Tokenizer(
        lambda texts: [encode(text) for text in texts],
        decode,
        leading_ids=(numbers[bos],) if bos and leads else (),
        leading_tokens=(bos,) if bos and leads else (),
        closing_ids=(numbers[eos],) if eos and closes else (),
        bos_token=bos,
        eos_token=eos,
        fingerprint=repr(others) if any(others) else "",
    )


def _numbered(model: Any, marks: list[Mark]) -> tuple[dict[str, int], dict[str, int]]:
    """The ids of the special tokens of a SentencePiece model, and of those that the files beside it
    add: their own, or the next one behind its pieces and the others."""
    # SentencePiece never reads control tokens in a text; chat templates are made of them.
    pieces = [model.id_to_piece(i) for i in range(model.get_piece_size())]
    control = {text: i for i, text in enumerate(pieces) if model.is_control(i)}
    numbers: dict[str, int] = {}
    for mark in marks:
        place = mark.id
        if place is None and mark.text in pieces:
            place = pieces.index(mark.text)
        if place is None:
            place = len(pieces) + sum(n >= len(pieces) for n in numbers.values())
        if place in numbers.values():
            raise ValueError(f"{mark.text} has the id {place} of another token")
        if mark.single_word:
            raise ValueError(
                f"{mark.text} is a token between blanks only, which is read from a "
                "tokenizer.json alone"
            )
        numbers[mark.text] = place
    added = {text: number for text, number in numbers.items() if control.get(text) != number}
    return control, added


def _splitter(numbers: Iterable[str], marks: list[Mark]) -> re.Pattern[str]:
    """What splits a text at the special tokens, which become every second part, with the blanks
    that they swallow."""
    # A token may begin with another one.
    longest_first = sorted(numbers, key=len, reverse=True)
    if not longest_first:
        return re.compile("((?!))")
    pattern = f"({'|'.join(map(re.escape, longest_first))})"
    before = "|".join(re.escape(mark.text) for mark in marks if mark.lstrip)
    behind = "|".join(rf"(?<={re.escape(mark.text)})\s+" for mark in marks if mark.rstrip)
    if before:
        pattern = rf"(?:\s+(?={before}))?{pattern}"
    if behind:
        pattern += f"(?:{behind})?"
    return re.compile(pattern)


def tiktoken_dir() -> Path:
    """Where tiktoken's files are: as its own variables say, else in our cache, since its default is
    each node's /tmp."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
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
            f"({shorten(first_line(error))}): fetch it again, or point TIKTOKEN_CACHE_DIR at a "
            "folder that has it"
        ) from error

    # The name of an encoding could be given to other ranks; the digest is over the
    # ranks.
    ranks = repr(sorted(encoding._mergeable_ranks.items()))

    def encode_many(texts: Sequence[str]) -> Sequence[Sequence[int]]:
        return list(encoding.encode_batch(list(texts), num_threads=2, allowed_special="all"))

    return Tokenizer(
        encode_many, encoding.decode, name=name, fingerprint=_fingerprint(ranks.encode())
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
            place = next(unused)  # answers are read in another thread: no number is given out twice
            texts[place] = token
            ids[token] = place
        return ids[token]

    return Tokenizer(
        lambda batch: [[number(token) for token in BUILTIN.findall(text)] for text in batch],
        lambda row: "".join([texts[i] for i in row]),
        name="builtin",
        fingerprint=_fingerprint(BUILTIN.pattern.encode()),
    )

"""The schemas of records, of rows and of the lines beside them; their digests; how JSON is read.

What makes a score look better has no default: a record or a row that lacks such a field is refused.
"""

import json
import platform
import re
import socket
import zlib
from codecs import BOM_UTF8
from functools import cache
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import (
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import from_json
from typing_extensions import TypedDict

from rulerkit.common.errors import shortened
from rulerkit.common.json_text import digest
from rulerkit.common.paths import package_version
from rulerkit.common.settings import JSON


def plain(value: JSON) -> JSON:
    """A mapping as JSON gives it back: tuples become lists."""
    read: JSON = json.loads(json.dumps(value))
    return read


FORMAT = 4
"""The number of the format of records, rows and the files beside them."""

Seed = Annotated[int, Field(ge=0, lt=2**63)]
Whole = Annotated[int, Field(ge=0, le=10**9)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, le=10**12)]
Value = TypeVar("Value")
_SCHEMA = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

# --- records --------------------------------------------------------------------------------------


def _at(*place: str) -> Any:
    """A field that stands deeper in a record."""
    return Field(validation_alias=AliasPath(*place))


@with_config(_SCHEMA)
class Source(TypedDict):
    """A corpus that examples were made from."""

    name: str
    fingerprint: str
    stand_in: bool
    note: str


class Record(BaseModel):
    """How the rows of a cell were made, as far as it is read: the record's `result` defines them,
    the rest describes them.

    Of files of other programs `format`, `seed`, `prompt_version` and `protocol` are None.
    """

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    format: Literal[4] | None
    run: str
    num_examples: Count
    label: str | None
    claimed_length: Count | None
    aligned: Literal["chat", "base"]
    suite: str
    threshold: Annotated[float, Field(ge=0, le=100)] | None
    """Percent that the task's family brings itself."""
    max_failures: Annotated[float, Field(ge=0, le=10**9)]
    adaptive: JSON | None
    protocol_note: str | None = None
    """How the model reads prompts, where it does so in a way of its own."""
    packages: dict[str, str] = _at("environment", "packages")

    task: str = _at("result", "task", "name")
    family: str = _at("result", "task", "family")
    category: str = _at("result", "task", "category")
    model: str = _at("result", "model", "name")
    engine: str = _at("result", "model", "engine")
    length: Count = _at("result", "length")
    seed: Seed | None = _at("result", "seed")
    prompt_version: Whole | None = _at("result", "prompt_version")
    protocol: str | None = _at("result", "protocol")
    sources: dict[str, Source] = _at("result", "sources")
    tokenizer: str = _at("result", "tokenizer", "name")
    template: str = _at("result", "prompt_format", "template")
    after: str = _at("result", "prompt_format", "after")
    thinking_tokens: Whole = _at("result", "prompt_format", "thinking_tokens")


RECORD = TypeAdapter(Record)


def parse_record(text: bytes) -> JSON:
    """The record in a file; ValueError where it is none, or one of another format."""
    # Half a surrogate, which an answer may hold, has no place in a record.
    record: JSON = from_json(text.removeprefix(BOM_UTF8), allow_inf_nan=False)
    found = record.get("format") if isinstance(record, dict) else None
    if found != FORMAT:
        raise ValueError(
            f"it has the format {shortened(found)}, and this version of rulerkit reads {FORMAT}"
        )
    return record


_FREE = re.compile(
    r"tokenizer\.name|sources\..*\.(note|stand_in)|task\.(essays|dataset|words|module)"
)
_is_free = cache(_FREE.fullmatch)
"""Whether a field of a result may differ: of corpora fingerprints are compared instead, and where
the code of a family lies does not change what it asks."""
OPTIONAL = ("model.weights", "model.code", "model.server")
"""What such fields of a result begin with as count only where both of two results have them:
digests of one model by several rules, and what its server lists of it."""


def defining(result: JSON, prefix: str = "") -> JSON:
    """The values of a result that make its rows what they are, by field: `task.num_hops`."""
    values: JSON = {}
    for key, value in result.items():
        if isinstance(value, dict):
            values |= defining(value, f"{prefix}{key}.")
        elif not _is_free(prefix + key):
            values[prefix + key] = value
    return values


def result_digest(result: JSON) -> str:
    """The 16 hex digits that stand for a result in the checks of its rows.

    Fields that may differ between machines that answer one cell do not enter: its rows stay of one
    kind when a run is resumed elsewhere, or put together from several.
    """
    values = defining(result)
    return digest({field: values[field] for field in values if not field.startswith(OPTIONAL)})


# --- environments ---------------------------------------------------------------------------------

PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "vllm", "sentencepiece", "tiktoken")


def machine(extra: JSON) -> JSON:
    """What rows are made with: versions (nothing is imported for them), host, and what the model
    adds."""
    packages = {name: package_version(name) for name in PACKAGES} | extra.get("packages", {})
    return {
        "rulerkit": package_version("rulerkit"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        **extra,
        "packages": {name: number for name, number in packages.items() if number},
    }


# --- rows -----------------------------------------------------------------------------------------


@with_config(_SCHEMA)
class Usage(TypedDict, total=False):
    """What an engine says beside the text, as far as it is read."""

    prompt_tokens: Amount | None
    completion_tokens: Amount | None
    cached_tokens: Amount | None
    reasoning_tokens: Amount | None
    seconds: Amount | None
    attempts: Amount | None
    server_model: str | None
    system_fingerprint: str | None


@with_config(_SCHEMA)
class Row(TypedDict):
    """The answer to one example."""

    index: Whole
    pred: str
    outputs: list[str]
    length: Whole
    task: str
    digest: str
    num_prompt_tokens: Whole
    finish_reason: str
    depths: list[Annotated[float, Field(ge=0, le=100)]]
    group: NotRequired[Whole]
    usage: NotRequired[Usage]
    answer_prefix: NotRequired[str]
    copied: NotRequired[Share]
    is_copy: NotRequired[bool]


ROW: TypeAdapter[Any] = TypeAdapter(Row)

_CHECK = b', "check": "'


def row_line(row: JSON, result: str) -> bytes:
    """A row as a line of ASCII that ends with its `check`: the CRC-32 of the digest of the record's
    result and the row. It fits neither a damaged row nor another record.

    A model may write half a surrogate or a line separator: in ASCII both come back unchanged.
    """
    text = json.dumps(row).encode()
    return b'%s%s%08x"}\n' % (text[:-1], _CHECK, zlib.crc32(text, zlib.crc32(result.encode())))


def checked_text(line: bytes, seed: int) -> bytes:
    """The row of a line without its `check`; ValueError where the check is missing or wrong."""
    text, mark, check = line.rpartition(_CHECK)
    if not mark:
        raise ValueError("it has no check")
    text += b"}"
    if check != b'%08x"}' % zlib.crc32(text, seed):
        raise ValueError(
            "its check is wrong: it is damaged, or was made under another record than the one "
            "beside it"
        )
    return text


def checked(schema: TypeAdapter[Value], value: Any) -> Value:
    """A value by a schema; ValueError, with the first wrong field, where it does not follow it."""
    try:
        return schema.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}, found {shortened(first['input'])}") from None

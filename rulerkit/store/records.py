"""The schemas of records, of rows and of the lines beside them; their digests; how JSON is read.

What makes a score look better has no default: a record or a row that lacks such a field is refused.
"""

import json
import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Annotated, Any, Literal, NotRequired, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
    with_config,
)
from typing_extensions import TypedDict

from rulerkit.common.errors import shorten
from rulerkit.common.json_text import parse_json as parse_json
from rulerkit.common.settings import JSON


def plain(value: JSON) -> JSON:
    """A mapping as JSON gives it back: tuples become lists."""
    read: JSON = json.loads(json.dumps(value))
    return read


FORMAT = 3
"""The number of the format of records, rows and the files beside them."""

Schema = TypeVar("Schema", bound=BaseModel)


Seed = Annotated[int, Field(ge=0, lt=2**63)]
Whole = Annotated[int, Field(ge=0, le=10**9)]


Count = Annotated[int, Field(ge=1, le=10**9)]


Share = Annotated[float, Field(ge=0, le=1)]


Amount = Annotated[float, Field(ge=0, le=10**12)]


# --- records --------------------------------------------------------------------------------------


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Task(_Part):
    name: str
    family: str
    category: str
    match: str


class _Model(_Part):
    name: str
    engine: str


class _Source(_Part):
    name: str
    fingerprint: str
    stand_in: bool
    note: str


class _Tokenizer(_Part):
    name: str
    fingerprint: str


class _PromptFormat(_Part):
    template: str
    after: str
    thinking_tokens: Whole
    thinking_room: str | None = None
    """Only of a model that thinks."""
    thinking_marks: Annotated[list[str], Field(min_length=2, max_length=2)] | None = None
    """Only where the model's parameters name them."""


class _Result(_Part):
    task: _Task
    model: _Model
    length: Count
    seed: Seed | None
    prompt_version: Whole | None
    protocol: str | None
    sources: dict[str, _Source]
    tokenizer: _Tokenizer
    prompt_format: _PromptFormat

    @model_validator(mode="before")
    @classmethod
    def _as_of_today(cls, result: Any) -> Any:
        return with_one_protocol(result)


class _Server(_Part):
    counts: bool = True
    """Whether its replies count tokens."""


class _Environment(_Part):
    packages: dict[str, str]
    git: str | None = None
    device: str | None = None
    server: _Server | None = None


class Record(_Part):
    """How the rows of a cell were made: `result` defines them, the rest describes them.

    Of files of other programs `format`, `seed`, `prompt_version` and `protocol` are None.
    """

    format: Literal[3] | None
    result: _Result
    num_examples: Count
    run: str
    label: str | None
    claimed_length: Count | None
    aligned: Literal["chat", "base"]
    suite: str
    threshold: Annotated[float, Field(ge=0, le=100)] | None
    """Percent that the task's family brings itself."""
    family_source: str = ""
    """A digest of the module of a family from outside the package."""
    max_failures: Annotated[float, Field(ge=0, le=10**9)]
    adaptive: JSON | None
    protocol_note: str | None = None
    """How the model reads prompts, where it does so in a way of its own."""
    environment: _Environment
    """That of the last writer."""
    environments: list[_Environment] = []
    """All of them, where they changed."""


def record_text(record: JSON) -> str:
    """A record as it stands on disk: with a checksum of what it says."""
    whole = {**record, "checksum": digest_of_json(record)}
    return json.dumps(whole, indent=2) + "\n"


def parse_record(text: bytes) -> JSON:
    """The record in a file, without its checksum; ValueError where it is not as it was written."""
    record = parse_json(text)
    if not isinstance(record, dict):
        raise ValueError("it is no mapping")
    if record.get("format") != FORMAT:
        raise ValueError(
            f"it has the format {shorten(repr(record.get('format')))}, and this version of "
            f"rulerkit reads and writes {FORMAT}"
        )
    checksum = record.pop("checksum", None)
    if checksum is None:
        raise ValueError("it has no checksum")
    if checksum != digest_of_json(record):
        raise ValueError("its checksum is wrong")
    return record


def digest_of_json(value: Any) -> str:
    """16 hex digits over what a JSON value says."""
    text = json.dumps(value, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


# --- what defines rows ----------------------------------------------------------------------------

_FREE = r"tokenizer\.name|sources\..*\.(note|stand_in)|task\.(essays|dataset|words|module|judges)"
"""Fields of a result that may differ: of corpora fingerprints are compared instead, and where the
code of a family lies does not change what it asks."""


def result_values(result: JSON, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Each value of a result with its field, such as `task.num_hops`."""
    for key, value in result.items():
        if isinstance(value, dict):
            yield from result_values(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def with_one_protocol(result: JSON) -> JSON:
    """A result whose protocol says all of its prompts. Until November 2026 a task also named the
    `edition` of upstream's: of 2025 under the protocol `paper` it made what is `upstream` now."""
    task = result.get("task") if isinstance(result, dict) else None
    if not isinstance(task, dict) or "edition" not in task:
        return result
    task = dict(task)
    protocol, edition = result.get("protocol"), task.pop("edition")
    if (protocol, edition) == ("paper", "2025"):
        protocol = "upstream"
    if (protocol, edition) == ("clean", "2024"):
        protocol = "clean with the prompts of 2024"
    return {**result, "task": task, "protocol": protocol}


def is_optional(field: str) -> bool:
    """Whether a field counts only where both of two results have it: digests of one model by
    several rules, and what its server lists of it."""
    return field.startswith(("model.weights", "model.code", "model.server"))


def makes_other_results(field: str) -> bool:
    """Whether rows are others where a field of the result differs."""
    return not re.fullmatch(_FREE, field)


def result_digest(result: JSON) -> str:
    """The 16 hex digits by which rows name the result that they were made under.

    Fields that may differ between machines that answer one cell do not enter: its rows stay of one
    kind when a run is resumed elsewhere, or put together from several.
    """
    defining = {
        field: value
        for field, value in result_values(result)
        if makes_other_results(field) and not is_optional(field)
    }
    return digest_of_json(defining)


# --- rows -----------------------------------------------------------------------------------------

_LINE = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


@with_config(_LINE)
class _Usage(TypedDict, total=False):
    """What an engine says beside the text, as far as it is read."""

    prompt_tokens: Amount | None
    completion_tokens: Amount | None
    cached_tokens: Amount | None
    reasoning_tokens: Amount | None
    cost: Amount | None
    seconds: Amount | None
    server_model: str | None
    system_fingerprint: str | None


@with_config(_LINE)
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
    usage: NotRequired[_Usage]
    answer_prefix: NotRequired[str]
    copied: NotRequired[Share]
    is_copy: NotRequired[bool]


@with_config(_LINE)
class FailedAttempt(TypedDict):
    """A request that failed."""

    index: Whole
    time: str
    reason: str
    refused: bool


ROW = TypeAdapter(Row)
FAILED_ATTEMPT = TypeAdapter(FailedAttempt)


def check_line(schema: TypeAdapter[Any], row: Any) -> JSON:
    """A line of a file by its schema, unchanged; ValueError, with the first wrong field, where it
    does not follow it."""
    try:
        schema.validate_python(row)
    except ValidationError as error:
        raise ValueError(_first_error(error)) from None
    checked: JSON = row
    return checked


def check_schema(schema: type[Schema], value: Any) -> Schema:
    """A value by a schema; ValueError, with the first wrong field, where it does not follow it."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        raise ValueError(_first_error(error)) from None


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}, found {shorten(repr(first['input']))}"

"""The schemas of rows and records, and how JSON is read."""

import json
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from rulerkit.common.errors import shorten
from rulerkit.common.settings import JSON


def parse_json(text: bytes) -> Any:
    """The value of a JSON text; ValueError for anything else, NaN, or lists nested too deeply."""
    try:
        return from_json(text, allow_inf_nan=False)
    except (
        ValueError
    ):  # only the standard library reads half a surrogate, which a model may write
        try:
            return json.loads(text, parse_constant=_not_a_number)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def plain(value: JSON) -> JSON:
    """A mapping as JSON gives it back: tuples become lists."""
    read: JSON = json.loads(json.dumps(value))
    return read


Schema = TypeVar("Schema", bound=BaseModel)


Whole = Annotated[int, Field(ge=0, le=10**9)]


Count = Annotated[int, Field(ge=1, le=10**9)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class Row(_Part):
    """One example with its answer."""

    index: Whole
    pred: str
    outputs: Annotated[list[str], Field(min_length=1)]
    length: Whole
    task: str
    digest: str
    num_prompt_tokens: Whole
    finish_reason: str
    depths: list[float]
    group: int | None = None
    """What several examples share, such as the article of a question."""
    usage: JSON = {}


class _Task(_Part):
    name: str
    family: str = ""
    category: str | None = None
    match: str | None = None
    edition: str | None = None


class _Model(_Part):
    name: str
    engine: str = ""


class _Source(_Part):
    stand_in: bool = False
    note: str | None = None


class _Tokenizer(_Part):
    name: str = ""


class _PromptFormat(_Part):
    template: str = ""
    thinking_tokens: Whole = 0
    thinking_room: str = "inside"


class _Result(_Part):
    task: _Task
    model: _Model
    length: Count
    seed: int | None = None
    prompt_version: int | None = None
    protocol: str | None = None
    sources: dict[str, _Source] = {}
    tokenizer: _Tokenizer = _Tokenizer()
    prompt_format: _PromptFormat = _PromptFormat()


class _Environment(_Part):
    packages: JSON = {}


class Record(_Part):
    """How the rows of a cell were made: `result` defines them, the rest describes them. Files of
    other programs have no format."""

    format: Literal[1, 2] | None = None
    result: _Result
    num_examples: Count
    run: str
    label: str | None = None
    claimed_length: Count | None = None
    aligned: Literal["chat", "base"] = "chat"
    max_failures: Annotated[float, Field(ge=0)] = 0
    adaptive: JSON | None = None
    floors: dict[str, float] = {}
    environment: _Environment = _Environment()
    environments: list[_Environment] = []


def check_schema(schema: type[Schema], value: Any) -> Schema:
    """A value by a schema; ValueError, with the first wrong field, where it does not follow it."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        seen = shorten(repr(first["input"]))
        raise ValueError(f"{place}: {first['msg']}, found {seen}") from None

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
    except ValueError:  # only the standard library reads half a surrogate, which a model may write
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


class _Task(_Part):
    name: str
    family: str
    category: str
    match: str
    edition: str | None


class _Model(_Part):
    name: str
    engine: str = ""
    """A model made in Python need not name one."""


class _Source(_Part):
    stand_in: bool
    note: str


class _Tokenizer(_Part):
    name: str


class _PromptFormat(_Part):
    template: str
    after: str
    thinking_tokens: Whole
    thinking_room: str | None = None
    """Only of a model that thinks."""
    thinking_marks: (
        Annotated[list[str], Field(min_length=2, max_length=2)] | None
    ) = None
    """Only where the model's parameters name them."""


class _Result(_Part):
    task: _Task
    model: _Model
    length: Count
    seed: int | None
    prompt_version: int | None
    protocol: str | None
    sources: dict[str, _Source]
    tokenizer: _Tokenizer
    prompt_format: _PromptFormat


class _Environment(_Part):
    packages: JSON


class Record(_Part):
    """How the rows of a cell were made: `result` defines them, the rest describes them.

    Of files of other programs `format`, `seed`, `prompt_version` and `protocol` are None.
    """

    format: Literal[2] | None
    result: _Result
    num_examples: Count
    run: str
    label: str | None
    claimed_length: Count | None
    aligned: Literal["chat", "base"]
    suite: str = "ruler"
    threshold: float | None = None
    """Percent that the task's family brings itself."""
    max_failures: Annotated[float, Field(ge=0)]
    adaptive: JSON | None
    floors: dict[str, float]
    environment: _Environment
    """That of the last writer."""
    environments: list[_Environment] = []
    """All of them, where they changed."""


def check_schema(schema: type[Schema], value: Any) -> Schema:
    """A value by a schema; ValueError, with the first wrong field, where it does not follow it."""
    try:
        return schema.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        seen = shorten(repr(first["input"]))
        raise ValueError(f"{place}: {first['msg']}, found {seen}") from None

"""One reply of a server as data: the answer, the server's own counts, and why a request has none.

Servers write the same things in several forms; whatever a field holds, it costs one request at
most.
"""

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    Field,
    field_validator,
    model_validator,
)

from rulerkit.common.errors import shortened
from rulerkit.common.settings import JSON
from rulerkit.inference.access import count_in
from rulerkit.inference.refusals import SERVER_WORDS, RequestError

# --- the text, in its many forms ------------------------------------------------------------------

_THOUGHTS = ("thinking", "reasoning", "thought")
# Names under which a part holds its words.
_WORDS = ("text", "value", "content", "refusal", "summary", *_THOUGHTS)


def _words_of(value: Any) -> str:
    """The words of a part, however deep they lie; "" where it has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_words_of(one) for one in value)
    if isinstance(value, dict):
        for name in _WORDS:
            if name in value:
                return _words_of(value[name])
    return ""


def _read_content(value: Any, field: str) -> dict[str, str]:
    """The `text`, the `thought` and the `refusal` in the content of a message: a text, a part or a
    list of parts. ValueError, with the name of the field, for what is none of these."""
    if value is None:
        return {}
    if not isinstance(value, str | dict | list):
        raise ValueError(f"{field} is {shortened(value)}, and no text")

    read: dict[str, str] = {}
    for part in value if isinstance(value, list) else [value]:
        kind = str(part.get("type") or "text") if isinstance(part, dict) else "text"
        if any(name in kind for name in _THOUGHTS):
            kind = "thought"
        elif "text" in kind:
            kind = "text"
        # Neither is an image and its like.
        if kind in ("text", "thought", "refusal"):
            read[kind] = read.get(kind, "") + _words_of(part)
    return read


# --- the reply ------------------------------------------------------------------------------------


class Choice(BaseModel):
    """An answer; the ids are vLLM's."""

    content: str | None = None
    text: str | None = None
    refusal: str | None = None
    thought: str = ""
    """What it thought before, where the server tells that apart."""
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, choice: Any) -> Any:
        """The fields of a choice, in whichever form a server writes them. ValueError for an answer
        that is no text; other fields of a wrong type are taken as left out."""
        if not isinstance(choice, dict):
            raise ValueError(f"choices holds {shortened(choice)}")
        message = choice.get("message")
        if not isinstance(message, dict):
            message = {}
        content = _read_content(message.get("content"), "message.content")
        text = _read_content(choice.get("text"), "text")

        thought = _words_of(message.get("reasoning_content")) or content.get("thought", "")
        for name in ("reasoning", "reasoning_details"):
            thought = thought or _words_of(message.get(name))
        # Some say that they did not decline, with false or an empty text.
        refusal = message.get("refusal")
        refusal = "it gives no reason" if refusal is True else _words_of(refusal)

        values: JSON = {
            "content": content.get("text"),
            "text": text.get("text"),
            "refusal": refusal or content.get("refusal"),
            "thought": thought,
        }
        finish = choice.get("finish_reason")
        if isinstance(finish, dict):
            finish = finish.get("type")
        if isinstance(finish, str):
            values["finish_reason"] = finish
        for name in ("token_ids", "prompt_token_ids"):
            given = choice.get(name)
            if isinstance(given, list) and all(type(one) is int for one in given):
                values[name] = given
        return values


def _at(*path: str) -> Any:
    """Where a value stands in the JSON of a reply; it is None where there is none."""
    return Field(default=None, validation_alias=AliasPath(*path))


_Count = Annotated[int | None, BeforeValidator(count_in)]
# A server that does not count says that a prompt has 0 tokens.
_PromptCount = Annotated[_Count, AfterValidator(lambda count: count or None)]
_Name = Annotated[str | None, BeforeValidator(lambda name: name if type(name) is str else None)]


class Reply(BaseModel):
    """What a server answered, as far as it is read: the answer, its own counts of tokens, its names
    for the model."""

    choice: Choice = Field(validation_alias="choices")
    prompt_tokens: _PromptCount = _at("usage", "prompt_tokens")
    completion_tokens: _Count = _at("usage", "completion_tokens")
    cached_tokens: _Count = Field(
        default=None,
        validation_alias=AliasChoices(
            AliasPath("usage", "prompt_tokens_details", "cached_tokens"),
            AliasPath("usage", "prompt_cache_hit_tokens"),
            AliasPath("usage", "cached_tokens"),
            AliasPath("timings", "cache_n"),  # llama.cpp
        ),
    )
    reasoning_tokens: _Count = _at("usage", "completion_tokens_details", "reasoning_tokens")
    server_model: _Name = _at("model")
    system_fingerprint: _Name = None
    seconds: float = 0.0
    """How long it took, without waiting for a turn."""

    @field_validator("choice", mode="before")
    @classmethod
    def _first(cls, choices: Any) -> Any:
        """The choice whose `index` is 0, wherever it stands; a choice alone needs no index."""
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"choices is {shortened(choices)}")
        if len(choices) == 1:
            return choices[0]
        for place, choice in enumerate(choices):
            # Some servers write "0", or null in place of it.
            index = choice.get("index") if isinstance(choice, dict) else -1
            if str(place if index is None else index) == "0":
                return choice
        raise ValueError("choices has none with the index 0")

    def about(self) -> JSON:
        """The server's counts, its names for the end and for the model, and seconds."""
        # Only what the server said: a count that it left out is not a zero.
        values = self.model_dump(exclude={"choice"}, exclude_none=True)
        if self.choice.finish_reason is not None:
            values["server_finish_reason"] = self.choice.finish_reason
        return values

    def finish(self) -> str:
        """`stop` or `length`; `RequestError` where the answer ended for another reason or none."""
        # Servers use several words for the same two ends of an answer.
        reason = str(self.choice.finish_reason)
        for finish in ("stop", "length"):
            if reason.lower() in SERVER_WORDS[finish]:
                return finish
        raise RequestError(f"the server broke off (finish_reason {reason})", "temporary")

"""One reply of a server as data: the answer, and the server's own counts and names.

Servers write the same things in several forms; whatever a field holds, it costs one request at
most.
"""

from dataclasses import asdict, dataclass
from typing import Any

from rulerkit.common.errors import shortened
from rulerkit.common.settings import JSON
from rulerkit.inference.access import count_in
from rulerkit.inference.refusals import SERVER_WORDS, RequestError

_THOUGHTS = ("thinking", "reasoning", "thought")
# Names under which a part of a message holds its words.
_WORDS = ("text", "content", "refusal", "summary", *_THOUGHTS)


@dataclass
class Reply:
    """What a server answered, as far as it is read."""

    text: str | None = None
    thought: str = ""
    """What it thought before, where the server tells that apart."""
    refusal: str = ""
    token_ids: list[int] | None = None
    """Of the answer; vLLM's."""
    prompt_token_ids: list[int] | None = None
    server_finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    server_model: str | None = None
    system_fingerprint: str | None = None
    seconds: float = 0.0
    """How long it took, without waiting for a turn."""

    def about(self) -> JSON:
        """The server's counts, its names for the end and for the model, and seconds."""
        told = asdict(self)
        for name in ("text", "thought", "refusal", "token_ids", "prompt_token_ids"):
            del told[name]
        # Only what the server said: a count that it left out is not a zero.
        return {name: value for name, value in told.items() if value is not None}

    def finish(self) -> str:
        """`stop` or `length`; `RequestError` where the answer ended for another reason or none."""
        # Servers use several words for the same two ends of an answer.
        reason = str(self.server_finish_reason)
        for finish in ("stop", "length"):
            if reason.lower() in SERVER_WORDS[finish]:
                return finish
        raise RequestError(f"the server broke off (finish_reason {reason})", "temporary")


def read_reply(content: JSON) -> Reply:
    """The reply in the JSON of a completion. ValueError for an answer that is no text; other fields
    of a wrong type are taken as left out."""
    choices = content.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        seen = "choices is " + shortened(choices)
        if "choices" not in content:
            seen = f"it has no choices, but {', '.join(map(str, content))}"
        raise ValueError(seen)
    # One answer is asked for: the first by its number, should a server send several.
    choice = choices[0]
    for other in choices:
        if isinstance(other, dict) and other.get("index") == 0:
            choice = other
            break
    message = _mapping(choice, "message")
    said = _read_content(message.get("content", choice.get("text")))
    thought = _words_of(message.get("reasoning_content")) or _words_of(message.get("reasoning"))

    usage = _mapping(content, "usage")
    cached = [
        _mapping(usage, "prompt_tokens_details").get("cached_tokens"),
        usage.get("prompt_cache_hit_tokens"),  # DeepSeek
        _mapping(content, "timings").get("cache_n"),  # llama.cpp
    ]
    known = [count_in(count) for count in cached if count_in(count) is not None]
    thought_details = _mapping(usage, "completion_tokens_details")
    return Reply(
        text=said.get("text"),
        thought=thought or said.get("thought", ""),
        refusal=_words_of(message.get("refusal")) or said.get("refusal", ""),
        token_ids=_ids(choice.get("token_ids")),
        prompt_token_ids=_ids(choice.get("prompt_token_ids")),
        server_finish_reason=_name(choice.get("finish_reason")),
        # A server that does not count says that a prompt has 0 tokens.
        prompt_tokens=count_in(usage.get("prompt_tokens")) or None,
        completion_tokens=count_in(usage.get("completion_tokens")),
        cached_tokens=known[0] if known else None,
        reasoning_tokens=count_in(thought_details.get("reasoning_tokens")),
        server_model=_name(content.get("model")),
        system_fingerprint=_name(content.get("system_fingerprint")),
    )


def _read_content(value: Any) -> dict[str, str]:
    """The `text`, the `thought` and the `refusal` in the content of a message: a text or a list of
    parts. ValueError for what is neither."""
    if value is None or isinstance(value, str):
        return {} if value is None else {"text": value}
    if not isinstance(value, list):
        raise ValueError(f"its content is {shortened(value)}, and no text")

    read: dict[str, str] = {}
    for part in value:
        kind = str(part.get("type", "text") if isinstance(part, dict) else "text")
        if any(name in kind for name in _THOUGHTS):
            kind = "thought"
        elif "text" in kind:
            kind = "text"
        # Others are images and their like.
        if kind in ("text", "thought", "refusal"):
            read[kind] = read.get(kind, "") + _words_of(part)
    return read


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


def _mapping(content: JSON, name: str) -> JSON:
    value = content.get(name)
    return value if isinstance(value, dict) else {}


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _ids(value: Any) -> list[int] | None:
    is_ids = isinstance(value, list) and all(type(one) is int for one in value)
    return value if is_ids else None

"""One reply of a server as data: the answer, and the server's own counts and names.

Servers write the same things in several forms; whatever a field holds, it costs one request at
most.
"""

from dataclasses import dataclass, field
from typing import Any

from rulerkit.common.errors import shortened
from rulerkit.common.json_text import at
from rulerkit.common.settings import JSON
from rulerkit.inference.access import count_in
from rulerkit.inference.refusals import SERVER_WORDS, RequestError

# Names under which a part of a message holds its words.
_WORDS = ("text", "content", "refusal", "summary", "thinking", "reasoning", "thought")


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
    reason: str = ""
    """The server's word for the end of the answer, in small letters."""
    usage: JSON = field(default_factory=dict)
    """What the server said of its counts and of itself, and the seconds that it took, as they stand
    in a row. What it left out is missing: a count that is not said is not a zero."""

    def finish(self) -> str:
        """`stop` or `length`; `RequestError` where the answer ended for another reason or none."""
        # Servers use several words for the same two ends of an answer.
        for finish in ("stop", "length"):
            if self.reason in SERVER_WORDS[finish]:
                return finish
        raise RequestError(f"the server broke off (finish_reason {self.reason})", "temporary")


def read_reply(content: Any) -> Reply:
    """The reply in the JSON of a completion. ValueError for an answer that is no text; other fields
    of a wrong type are taken as left out."""
    choices = at(content, "choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        raise ValueError(f"the server sent {shortened(content)}")
    choice = choices[0]
    message = choice.get("message")
    written = at(message, "content")
    said = _read_content(choice.get("text") if written is None else written)
    thought = at(message, "reasoning_content") or at(message, "reasoning")
    reason = _name(choice.get("finish_reason"))

    counted = at(content, "usage")
    # A server that does not count says that a prompt has 0 tokens.
    prompt_tokens = count_in(at(counted, "prompt_tokens")) or None
    cached = count_in(at(counted, "prompt_tokens_details", "cached_tokens"))
    # Some services count apart what they had cached.
    if prompt_tokens and cached and cached > prompt_tokens:
        prompt_tokens += cached
    usage = {
        "server_finish_reason": reason,
        "prompt_tokens": prompt_tokens,
        "completion_tokens": count_in(at(counted, "completion_tokens")),
        "cached_tokens": cached,
        "reasoning_tokens": count_in(at(counted, "completion_tokens_details", "reasoning_tokens")),
        "server_model": _name(content.get("model")),
        "system_fingerprint": _name(content.get("system_fingerprint")),
    }
    return Reply(
        text=said.get("text"),
        thought=_words_of(thought) or said.get("thought", ""),
        refusal=_words_of(at(message, "refusal")) or said.get("refusal", ""),
        token_ids=choice.get("token_ids"),
        prompt_token_ids=choice.get("prompt_token_ids"),
        reason=str(reason).lower(),
        usage={name: value for name, value in usage.items() if value is not None},
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
        kind = str(at(part, "type") or "text")
        if kind != "refusal":
            # Thoughts have several names; images and their like have no words.
            kind = "text" if kind in ("text", "output_text") else "thought"
        read[kind] = read.get(kind, "") + _words_of(part)
    return read


def _words_of(value: Any) -> str:
    """The words of a part, however deep they lie; "" where it has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_words_of(one) for one in value)
    for name in _WORDS:
        if at(value, name):
            return _words_of(value[name])
    return ""


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) else None

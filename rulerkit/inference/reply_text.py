"""The text of a reply, in the forms in which servers write it: a text, or a list of parts, of which
some are thoughts or a refusal."""

from typing import Any, NamedTuple

from rulerkit.common.errors import shortened

_THOUGHTS = ("thinking", "reasoning", "thought")
_WORDS = (
    "text",
    "value",
    "content",
    "refusal",
    "summary",
    "message",
    "reason",
    "output_text",
    *_THOUGHTS,
)
"""Names under which a part holds its words."""


class Content(NamedTuple):
    """What stands in a field for the answer; None where it is left out."""

    text: str | None = None
    thought: str | None = None
    refusal: str | None = None


def read_content(value: Any, field: str) -> Content:
    """The content of a message: a text, a part or a list of parts. ValueError, with the name of the
    field, for what is none of these."""
    if value is None:
        return Content()
    if isinstance(value, str):
        return Content(value)
    parts = [value] if isinstance(value, dict) else value
    if not isinstance(parts, list):
        raise ValueError(f"{field} is {shortened(value)}, and no text")

    texts: dict[str, list[str]] = {"text": [], "thought": [], "refusal": []}
    for part in parts:
        kind, words = _kind_of(part), words_of(part)
        if kind and (words or kind == "text"):
            texts[kind].append(words)
    joined = {name: "".join(of) for name, of in texts.items() if of}
    return Content(**joined)


def _kind_of(part: Any) -> str:
    """What a part is: `text`, `thought`, `refusal`, or "" for an image and its like."""
    if isinstance(part, str):
        return "text"
    if not isinstance(part, dict):
        return ""
    kind = str(part.get("type") or "text")
    is_thought = any(name in kind for name in _THOUGHTS)
    # Gemini marks a thought by a value beside its text.
    if is_thought or part.get("thought") is True:
        return "thought"
    if kind == "refusal":
        return "refusal"
    return "text" if "text" in kind or "text" in part else ""


def read_refusal(value: Any) -> str | None:
    """Why a service declined; None where it did not, which some say with false or an empty text."""
    if value is True:
        return "it gives no reason"
    return words_of(value) or None


def words_of(value: Any) -> str:
    """The words of a part, however deep they lie; "" where it has none."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(words_of(one) for one in value)
    if isinstance(value, dict):
        for name in _WORDS:
            if name in value and not isinstance(value[name], bool):
                return words_of(value[name])
    return ""

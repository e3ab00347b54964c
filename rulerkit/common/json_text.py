"""How JSON that others wrote is read, and the digest of a value."""

import json
from codecs import BOM_UTF8
from hashlib import sha256
from typing import Any

from pydantic_core import from_json


def parse_json(text: bytes, any_number: bool = False) -> Any:
    """The value of a JSON text; ValueError for anything else, NaN (but with `any_number`), or lists
    nested too deeply."""
    # Some servers and editors put a mark in front that says that it is UTF-8.
    text = text.removeprefix(BOM_UTF8)
    try:
        return from_json(text, allow_inf_nan=any_number)
    except ValueError:
        # Only the standard library reads half a surrogate, which a model may write.
        if b"\\ud" not in text.lower():
            raise
        try:
            return json.loads(text, parse_constant=_not_a_number)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def at(value: Any, *names: str) -> Any:
    """What lies in mappings under these names, one within the other; None where there is none."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def digest(value: Any) -> str:
    """16 hex digits of the SHA-256 of bytes, of a text, or of what any other JSON value says,
    whatever the order of its keys."""
    if not isinstance(value, bytes):
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
        value = text.encode("utf-8", "surrogatepass")
    return sha256(value).hexdigest()[:16]


def _not_a_number(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")

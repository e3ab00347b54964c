"""What `/v1/models` says: the models of a server, and what tells two of one name apart."""

import math
import os.path
import re
from itertools import islice
from typing import Any

from rulerkit.common.errors import UserError, shorten
from rulerkit.common.json_text import parse_json
from rulerkit.common.lengths import parse_length
from rulerkit.common.settings import JSON
from rulerkit.inference.refusals import SERVER_WORDS

_MOST_VALUES = 30
_LARGEST = 10**9
_PASSING = {*SERVER_WORDS["passing"], *SERVER_WORDS["sizes"]}


def parse_models(text: str) -> list[JSON]:
    """The models in the text of a server, each once, with an `id` and, where it says a number of
    tokens, a `max_model_len`; ValueError where the text is no such list."""
    content = parse_json(text.encode("utf-8", "surrogatepass"), any_number=True)
    entries = content.get("data") if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise ValueError("it has no list of models")
    models: dict[str, JSON] = {}
    for entry in entries:
        name = entry.get("id") if isinstance(entry, dict) else None
        if type(name) is int:
            name = str(name)
        if isinstance(name, str) and name:
            limit = _limit(entry.get("max_model_len"))
            models.setdefault(name, {**entry, "id": name, "max_model_len": limit})
    return list(models.values())


def _limit(value: Any) -> int | None:
    """A number of tokens, also as a text such as 131072 or 128K; None for what is none."""
    if isinstance(value, str):
        try:
            return parse_length(re.sub(r"[,_ ]|\.0+$", "", value))
        except UserError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    is_count = 0 < value <= _LARGEST and value == int(value)
    return int(value) if is_count else None


def about_model(entry: JSON) -> JSON:
    """What a server says of a model that tells it from another one of its name, such as `root` and
    `parent`: plain values, but no times, states, prices and limits."""
    values: JSON = {}
    for name, value in islice(_values(entry, ""), _MOST_VALUES):
        if isinstance(value, str):
            # A folder is the same with a slash behind it.
            if "/" in value and "://" not in value:
                value = os.path.normpath(value)
            value = shorten(value, 200)
        values[name] = value
    return values


def _values(entry: JSON, prefix: str) -> Any:
    for name, value in entry.items():
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)
        is_passing = {word.lower() for word in words} & _PASSING
        if is_passing or value is None or value == "":
            continue
        if isinstance(value, list) and value and all(isinstance(one, str | int) for one in value):
            # Such as the other names of a model, in any order.
            value = ", ".join(sorted(map(str, value)))
        if isinstance(value, dict):
            if prefix.count(".") < 2:
                yield from _values(value, f"{prefix}{name}.")
        elif isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
            yield prefix + name, value

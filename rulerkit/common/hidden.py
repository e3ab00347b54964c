"""What others may see of parameters and addresses: no keys."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_NAME = re.compile(r"(api.?key(_env)?|authorization|password|headers)$", re.IGNORECASE)
"""The names whose values are secret."""


def hide(value: Any) -> Any:
    """A value of a parameter file as messages may show it: values of api_key, authorization,
    password and headers are ***, and so are user and query of an address.

    >>> hide({"base_url": "https://me:pw@host/v1?code=1", "extra_body": {"api_key": "a"}})
    {'base_url': 'https://***@host/v1?***', 'extra_body': {'api_key': '***'}}
    """
    if isinstance(value, Mapping):
        return {key: "***" if _NAME.search(str(key)) else hide(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [hide(item) for item in value]
    return hide_address(value) if isinstance(value, str) else value


def hide_address(text: str) -> str:
    """An address without its user and what follows `?`; any other text as it is."""
    if "://" not in text:
        return text
    address, mark, _ = text.partition("?")
    return re.sub(r"//[^/@]+@", "//***@", address) + ("?***" if mark else "")


def secrets_in(value: Any) -> Iterator[str]:
    """The words under secret names in a value: a server may repeat them anywhere."""
    if isinstance(value, list):
        value = dict(enumerate(value))
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(item, str) and _NAME.search(str(key)):
                yield from item.split()
            yield from secrets_in(item)

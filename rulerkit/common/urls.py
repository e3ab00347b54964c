"""Addresses of servers, as people write them."""

import re
from urllib.parse import urlsplit

from rulerkit.common.errors import UserError
from rulerkit.common.hidden import hide_address

_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_WITHOUT_SCHEME = re.compile(
    r"(localhost|(\[[\da-f:.]+\]|[a-z\d][\w.-]*):\d{1,5})(/.*)?", re.IGNORECASE
)


def is_address(text: object) -> bool:
    """Whether a text is the address of a server: with http:// or https://, or a host and a port,
    such as localhost:8000.

    >>> is_address("HTTP://host"), is_address("gpu-1:8000"), is_address("org/name")
    (True, True, False)
    """
    if not isinstance(text, str):
        return False
    return bool(_SCHEME.match(text) or _WITHOUT_SCHEME.fullmatch(text))


def url_of(text: str) -> str:
    """The URL that an address means: with a scheme, and no slash at its end. Raises `UserError`
    where it is none.

    >>> url_of("localhost:8000/v1/")
    'http://localhost:8000/v1'
    """
    url = text if _SCHEME.match(text) else f"http://{text}"
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        is_whole = is_address(text) and parts.hostname and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or re.search(r"\s", text):
        raise UserError(
            f"{hide_address(text)} is no address: write http://HOST:PORT/v1, such as "
            "http://localhost:8000/v1"
        )
    return url.rstrip("/")


def is_on_this_machine(url: str) -> bool:
    """Whether a URL leads to this machine, so that no proxy stands between."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "0.0.0.0", "::1")

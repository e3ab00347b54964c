"""Addresses of servers, as people write them."""

import os
import re
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit

from rulerkit.common.errors import UserError
from rulerkit.common.hidden import hide_address

_SCHEME = re.compile(r"https?://", re.IGNORECASE)
_WITHOUT_SCHEME = re.compile(
    r"(localhost|(\[[\da-f:.]+\]|[a-z\d][\w.-]*):\d{1,5})([/?#].*)?", re.IGNORECASE
)
_PAGES = re.compile(r"/(chat/completions|completions|responses|models)$")
"""Pages of OpenAI's protocol that are pasted with the address."""


def is_address(text: object) -> bool:
    """Whether a text is the address of a server: with http:// or https://, or a host and a port,
    such as localhost:8000, where no file or folder has this name.

    >>> is_address("HTTP://host"), is_address("gpu-1:8000"), is_address("org/name")
    (True, True, False)
    """
    if not isinstance(text, str):
        return False
    text = text.strip()
    if _SCHEME.match(text):
        return True
    return bool(_WITHOUT_SCHEME.fullmatch(text)) and not os.path.exists(text)


def url_of(text: str) -> str:
    """The URL that an address means: with a scheme, host in small letters, and without a page of
    the protocol at its end. Raises `UserError` where it is none.

    >>> url_of("LOCALHOST:8000/v1/chat/completions/")
    'http://localhost:8000/v1'
    """
    text = text.strip()
    if not _SCHEME.match(text):
        host = re.split("[/?#]", text)[0]
        scheme = "https" if host.endswith(":443") else "http"
        text = f"{scheme}://{text}"
    try:
        parts = urlsplit(text)
        # Reading the port checks it.
        is_whole = parts.hostname and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or re.search(r"\s", text):
        raise UserError(
            f"{hide_address(text)} is no address: write http://HOST:PORT/v1, such as "
            "http://localhost:8000/v1"
        )
    user, at, host = parts.netloc.rpartition("@")
    path = _PAGES.sub("", parts.path.rstrip("/")).rstrip("/")
    place = user + at + host.lower()
    return urlunsplit((parts.scheme.lower(), place, path, parts.query, parts.fragment))


def is_on_this_machine(url: str) -> bool:
    """Whether a URL leads to this machine, so that no proxy stands between."""
    host = urlsplit(url).hostname or ""
    with suppress(ValueError):
        ip = ip_address(host)
        return ip.is_loopback or ip.is_unspecified
    return host == "localhost" or host.endswith(".localhost")


def origin_of(address: object) -> str:
    """Scheme, host and port, which say to whom a key goes; empty for what is no address."""
    if not is_address(address):
        return ""
    parts = urlsplit(url_of(str(address)))
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return f"{parts.scheme}://{parts.hostname}:{port}"

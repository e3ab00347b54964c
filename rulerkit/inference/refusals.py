"""Requests without an answer: the kinds of them, what each costs, and why a server gives none, in
one line that says what to do."""

import re
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from rulerkit.common.errors import shorten
from rulerkit.common.json_text import at
from rulerkit.common.paths import package_data

SERVER_WORDS: dict[str, Any] = package_data("server_words.yaml")
"""The words of servers for the two ways in which an answer ends, for a prompt that they decline,
and for an account without money; and our messages for failures that end a run."""

KINDS = {
    "temporary": ("again", "again"),  # busy or broken for now, or its reply is none
    "late": ("again", "again"),  # not in time: it is given more
    "unreachable": ("again", "again"),  # there is no connection
    "declined": ("fails", "fails"),  # this prompt: an answer of its own kind
    "rejected": ("fails", "fails"),  # this request is wrong, such as one that is too long
    # A gateway refuses for a moment while it changes its routes.
    "forbidden": ("ends", "again"),  # whoever asks: another key, an unknown model or page
    "cut": ("ends", "fails"),  # it read only a part of the prompt
    "misread": ("ends", "fails"),  # it read other ids than it was sent
    "thinks": ("ends", "fails"),  # it answers with a thought alone
    "closed": ("ends", "ends"),  # an account without money, or a wait of hours
    "storm": ("ends", "ends"),  # many requests in a row had no answer
}
"""What a server did -> what follows until it has answered a prompt, and afterwards: the request is
sent *again* while attempts are left, after a pause; it *fails*, as its example does; or, as every
other request would fail, too, it *ends* the work of the model."""


class RequestError(Exception):
    """A request without an answer: why, one of `KINDS`, and for how many seconds the server asks
    to wait. `ends` says that nothing more is asked of the model."""

    def __init__(self, reason: str, kind: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.wait = reason.rstrip("."), kind, wait
        self.ends = False


def why_unreachable(url: str, error: BaseException) -> str:
    """Why there is no connection to a URL, and what to do: nobody there, TLS, a proxy."""
    words = shorten(str(error) or type(error).__name__, 160)
    words += "; start the server (such as `vllm serve MODEL`), or correct the address (`base_url`)"
    # What hangs up may have expected TLS.
    if "SSL" in words or "Connect" not in type(error).__name__:
        words += (
            "; with TLS an address begins with https:// (SSL_CERT_FILE names the file of a "
            "server's own certificate), without it with http://"
        )
    if getproxies():
        words += f"; NO_PROXY={urlsplit(url).hostname} leads around a proxy"
    return words


def status_words(status: int, message: str) -> str:
    """`HTTP 502: Bad Gateway`: a status and what came with it, without the tags of a page."""
    if message.lstrip().startswith("<"):
        message = f"an HTML page, {re.sub('<[^>]*>', ' ', message)}"
    return f"HTTP {status}: {shorten(message, 300).rstrip('.')}"


def message_in(error: Any) -> str:
    """The words in an error, which servers send as a text or as a mapping."""
    for name in ("error", "message", "detail"):
        if at(error, name):
            return message_in(error[name])
    return str(error)


def fatal_words(address: Any, kind: str, reason: str) -> str:
    """A failure that holds for all requests to an `Address`, with what to do."""
    # By what is wrong, such as `cut`, or by the status, such as `HTTP 401`.
    messages = SERVER_WORDS["fatal"]
    status = reason[:8]
    if status in ("HTTP 401", "HTTP 403"):
        kind = "key" if address.key_from else "no key"
    message: str = messages.get(kind) or messages.get(status) or messages["other"]
    return message.format(address=address, reason=reason, key_from=address.key_from)

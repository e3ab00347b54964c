"""Requests without an answer: the kinds of them, what each costs, and why a server gives none, in
one line that says what to do."""

import re
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from rulerkit.common.errors import shorten
from rulerkit.common.paths import package_data

SERVER_WORDS: dict[str, Any] = package_data("server_words.yaml")
"""The words of servers for the two ways in which an answer ends, for a prompt that they decline,
and for an account without money; a pattern for prompts that are too long; and our messages for
failures that end a run."""


SENT_AGAIN = ("temporary", "late", "unreachable")
"""Kinds of failed requests that are sent again while attempts are left, after a pause."""
ENDS_MODEL = ("forbidden", "closed", "cut", "misread", "thinks", "storm")
"""Kinds that every other request would share, so that nothing more is asked of the model. Any other
failure is that of its example."""


class RequestError(Exception):
    """A request without an answer. `wait` is how many seconds the server asks to wait; `kind` says
    what the server did:

    - `temporary`: it is busy or broken for now, or its reply is none;
    - `late`: it did not answer in time, and is given more;
    - `unreachable`: there is no connection;
    - `declined`: it declines this prompt, which is an answer of its own kind;
    - `rejected`: this request is wrong, such as one that is too long;
    - `forbidden`: it refuses whoever asks: another key, an unknown model or page;
    - `closed`: an account without money, or a wait of hours;
    - `cut`: it read only a part of the prompt;
    - `misread`: it read other ids than it was sent;
    - `thinks`: it answers with a thought alone;
    - `storm`: many requests in a row had no answer.
    """

    def __init__(self, reason: str, kind: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.wait = reason.rstrip("."), kind, wait


# --- why there is no connection -------------------------------------------------------------------


def why_unreachable(url: str, error: BaseException) -> str:
    """Why there is no connection to a URL, and what to do: TLS, a proxy, the name, nobody there."""
    words = shorten(str(error) or type(error).__name__, 160)
    ways_out = [
        "start the server (such as `vllm serve MODEL`), or correct the address (`base_url`)"
    ]
    if "Timeout" in type(error).__name__:
        ways_out.append("is it still loading, or is a firewall between?")
    # What hangs up may have expected TLS.
    if "SSL" in words or "Connect" not in type(error).__name__:
        ways_out.append("with TLS an address begins with https://, without it with http://")
    if "CERTIFICATE" in words:
        ways_out.append("SSL_CERT_FILE names the file of a server's own certificate")
    if getproxies():
        ways_out.append(f"NO_PROXY={urlsplit(url).hostname} leads around a proxy")
    return "; ".join([words, *ways_out])


def status_words(status: int, message: str) -> str:
    """`HTTP 502: Bad Gateway`: a status and what came with it, without the tags of a page."""
    if re.match(r"\s*<(!doctype|html|\?xml|head|body)", message, re.IGNORECASE):
        text = re.sub(r"(?is)<(style|script).*?</\1>|<[^>]*>", " ", message)
        message = f"an HTML page, {shorten(text) or 'empty'}"
    return f"HTTP {status}: {shorten(message, 300).rstrip('.')}"


def message_in(error: Any) -> Any:
    """The words in an error, which servers send as a text or as a mapping."""
    if not isinstance(error, dict):
        return error
    inner = error.get("error")
    if inner:
        return message_in(inner)
    return error.get("message") or error.get("detail") or error


def fatal_words(address: Any, kind: str, reason: str, path: str = "") -> str:
    """A failure that holds for all requests to an `Address`, with what to do."""
    # By what is wrong, such as `cut`, or by the status, such as `HTTP 401`.
    messages = SERVER_WORDS["fatal"]
    status = reason[:8]
    if status in ("HTTP 401", "HTTP 403"):
        kind = "key" if address.key_from else "no key"
    message = messages.get(kind) or messages.get(status) or messages["other"]
    filled: str = message.format(
        address=address, reason=reason, path=path, key_from=address.key_from
    )
    return filled

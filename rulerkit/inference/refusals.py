"""Requests without an answer: the kinds of them, what each costs, and why a server gives none, in
one line that says what to do."""

import re
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rulerkit.common.descriptors import describe_lack, is_lacking
from rulerkit.common.errors import shorten
from rulerkit.common.hidden import hide_address
from rulerkit.common.paths import package_data
from rulerkit.common.urls import is_on_this_machine

SERVER_WORDS: dict[str, Any] = package_data("server_words.yaml")
"""The words of servers for the two ways in which an answer ends, for a prompt that they decline,
and for an account without money; a pattern for prompts that are too long; and our messages for
failures that end a run."""


class Kind(NamedTuple):
    """What a kind of failed request costs."""

    is_sent_again: bool
    """While attempts are left, after a pause."""
    ends: Literal["example", "model"]
    """What has no answer then: its example, or, as every other request would fail alike, all that
    the model has not answered yet."""


KINDS = {
    # The server is busy or broken for now, or its reply is none.
    "temporary": Kind(True, "example"),
    # It did not answer in time, and is given more.
    "late": Kind(True, "example"),
    # There is no connection.
    "unreachable": Kind(True, "example"),
    # The service declines this prompt: an answer of its own kind.
    "declined": Kind(False, "example"),
    # This request is wrong, such as one that is too long.
    "rejected": Kind(False, "example"),
    # It refuses whoever asks: another key, an unknown model or page.
    "forbidden": Kind(False, "model"),
    # An account without money, or a wait of hours.
    "closed": Kind(False, "model"),
    # It answered another prompt: one that it cut, one with other ids, or with a thought alone.
    "cut": Kind(False, "model"),
    "misread": Kind(False, "model"),
    "thinks": Kind(False, "model"),
    # Many requests in a row had no answer.
    "storm": Kind(False, "model"),
}
"""What the server did -> whether the request is sent again, and what fails in the end. A server
that works may be wrong once: `Connection._second_look`."""
OTHER_PROMPT = ("cut", "misread", "thinks")


class RequestError(Exception):
    """A request without an answer, of one of `KINDS`. `wait` is how many seconds the server asks to
    wait."""

    def __init__(self, reason: str, kind: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.wait = reason.rstrip("."), kind, wait


def is_too_long(reason: str) -> bool:
    """Whether a server's words are about a prompt that is too long for it."""
    return bool(re.search(SERVER_WORDS["too_long"], reason, re.IGNORECASE))


# --- why there is no connection -------------------------------------------------------------------

_NO_TLS = "WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|UNEXPECTED_EOF|HTTP_REQUEST"
"""Names of errors where something else than TLS came back."""
_LOST: dict[type[BaseException], str] = {
    ConnectionRefusedError: "connection refused",
    ConnectionResetError: "connection reset",
    socket.gaierror: "unknown host",
}
"""What two kinds of clients call otherwise."""
_NO_ACCESS = {403, 407, 502, 503, 504}  # statuses that a proxy gives too


def why_unreachable(url: str, error: BaseException) -> str:
    """Why there is no connection to a URL: TLS, a proxy, the name, nobody there, or it hung up."""
    if is_lacking(error):
        return describe_lack()
    causes = list(_causes(error))
    host = urlsplit(url).hostname or ""
    is_tls = url.startswith("https:")
    words = shorten(str(error) or type(error).__name__, 160)
    for kind, said in _LOST.items():
        if any(isinstance(cause, kind) for cause in causes):
            words = said
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"its certificate is refused ({cause.verify_message.rstrip('.')}): set "
                "SSL_CERT_FILE to a file with the server's certificate, or correct the host"
            )
        if isinstance(cause, ssl.SSLError):
            if re.search(_NO_TLS, str(cause)):
                return (
                    f"no TLS at this port ({cause.reason or words}): write http:// in place of "
                    "https://"
                )
            return f"TLS fails ({words})"

    proxy = proxy_of(url)
    if proxy:
        return (
            f"no way through {proxy} ({words}): correct the proxy, or set NO_PROXY={host} to "
            "connect without it"
        )
    if any(isinstance(cause, socket.gaierror) for cause in causes):
        return f"the host name {host} is unknown: correct the address (`base_url`)"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return (
            "connection refused: start the server (such as `vllm serve MODEL`), or correct the "
            "address (`base_url`)"
        )
    if any("Timeout" in type(cause).__name__ for cause in causes):
        return (
            f"no answer in time ({type(error).__name__}): is it still loading, or is a firewall "
            "between?"
        )
    names = ("ReadError", "RemoteProtocolError", "WriteError")
    if type(error).__name__ in names and not is_tls:
        return f"it closed the connection ({words}): write https:// if it uses TLS"
    return f"no connection ({words}): start the server, or correct the address (`base_url`)"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it, and what caused that."""
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                yield from _causes(one)
        error = error.__cause__ or error.__context__


def proxy_of(url: str) -> str:
    """The proxy through which a URL is reached, and the variable that names it; empty for none."""
    parts = urlsplit(url)
    if is_on_this_machine(url) or proxy_bypass(parts.hostname or ""):
        return ""
    proxies = getproxies()
    for name in (parts.scheme, "all"):
        if proxies.get(name):
            return f"the proxy {hide_address(proxies[name])} of {name.upper()}_PROXY"
    return ""


def status_words(url: str, status: int, message: str) -> str:
    """`HTTP 502: Bad Gateway`: a status and what came with it, without the tags of a page."""
    if re.match(r"\s*<(!doctype|html|\?xml|head|body)", message, re.IGNORECASE):
        text = re.sub(r"(?is)<(style|script).*?</\1>|<[^>]*>", " ", message)
        message = f"an HTML page, {shorten(text) or 'empty'}"
    words = f"HTTP {status}: {shorten(message, 300).rstrip('.')}"
    proxy = proxy_of(url) if status in _NO_ACCESS else ""
    if proxy:
        words += f" (through {proxy}; NO_PROXY leads around it)"
    return words


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

"""Kinds of faulty replies, as servers and what stands before them send them: each says what becomes
of one request. A kind is a reaction of tests/text_server.py, made from the right answer."""

import json
import socket
import struct
import time
from email.utils import formatdate

HTML = "<html><head><title>504 Gateway Time-out</title></head><body>nginx</body></html>"


def deep(levels):
    """Nested brackets."""
    return "[" * levels + "]" * levels


def _changed(answer, **choice):
    """The right answer with other values in its choice."""
    first = {**answer["choices"][0], **choice}
    return 200, {}, {**answer, "choices": [first]}


def _counted(answer, **usage):
    """The right answer with other counts."""
    return 200, {}, {**answer, "usage": {**answer["usage"], **usage}}


def _typed(text, kind="application/json", status=200):
    return status, {"Content-Type": kind}, text


def _error(status, message="no", headers=None, **more):
    return status, headers or {}, {"error": {"message": message, **more}}


def _raw(*parts, pause=0.0, reset=False):
    """Bytes written to the connection, which then closes."""

    def write(handler):
        for part in parts:
            handler.wfile.write(part)
            handler.wfile.flush()
            time.sleep(pause)
        if reset:
            linger = struct.pack("ii", 1, 0)
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            handler.connection.close()

    return write


def _head(*lines):
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "", ""]).encode()


def _endless(chunk, pause):
    """A chunked body without an end, until the client hangs up."""
    head = _head("Transfer-Encoding: chunked", "Content-Type: application/json")
    part = f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n"

    def write(handler):
        handler.wfile.write(head)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            handler.wfile.write(part)
            handler.wfile.flush()
            time.sleep(pause)

    return write


def _hangs(handler):
    """No reply, until the client hangs up."""
    handler.connection.settimeout(60)
    handler.connection.recv(1)


def _whole(answer):
    return json.dumps(answer).encode()


HALF = _head("Content-Length: 900")


def _trickle(answer):
    head = _head(f"Content-Length: {len(_whole(answer))}")
    return _raw(head, *[bytes([byte]) for byte in _whole(answer)], pause=0.2)


KINDS = {
    # The connection.
    "reset before the reply": lambda a: _raw(),
    "reset within the body": lambda a: _raw(HALF, _whole(a)[:20], reset=True),
    "cut in the middle": lambda a: _raw(HALF, _whole(a)[:20]),
    "content length too short": lambda a: _raw(
        _head(f"Content-Length: {len(_whole(a)) - 9}"), _whole(a)
    ),
    "no HTTP": lambda a: _raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "a chunk that ends early": lambda a: _raw(
        _head("Transfer-Encoding: chunked"), b"400\r\n", _whole(a)[:30]
    ),
    "chunks without an end": lambda a: _endless(b" " * 64, 0.02),
    "a slow trickle": _trickle,
    "no reply": lambda a: _hangs,
    "gzip that is none": lambda a: (200, {"Content-Encoding": "gzip"}, json.dumps(a)),
    # Statuses.
    "429": lambda a: _error(429, "slow down"),
    "429 with seconds": lambda a: _error(429, headers={"Retry-After": "0.5"}),
    "429 with a date": lambda a: _error(429, headers={"Retry-After": formatdate(usegmt=True)}),
    "429 with nonsense": lambda a: _error(429, headers={"Retry-After": "soon"}),
    "502 with HTML": lambda a: _typed(HTML, "text/html", 502),
    "503": lambda a: _error(503, "overloaded"),
    "404 once": lambda a: _error(404, "no such route"),
    "401 once": lambda a: _error(401, "unauthorized"),
    "400": lambda a: _error(400, "bad request"),
    "redirect to itself": lambda a: (307, {"Location": "completions"}, ""),
    "redirect without a place": lambda a: (301, {}, ""),
    # What stands in a reply.
    "HTML in place of JSON": lambda a: _typed(HTML, "text/html"),
    "half of a JSON": lambda a: _typed(json.dumps(a)[:-12]),
    "null": lambda a: _typed("null"),
    "a list": lambda a: (200, {}, [a]),
    "an error with 200": lambda a: _error(200, "engine died"),
    "an event stream": lambda a: _typed(
        f"data: {json.dumps(a)}\n\ndata: [DONE]\n\n", "text/event-stream"
    ),
    "100,000 nested brackets": lambda a: _typed(deep(100_000)),
    "bytes that are no text": lambda a: _raw(
        _head("Content-Type: application/json"), b'{"choices": [{"text": "\xff\xfe'
    ),
    "no choices": lambda a: (200, {}, {**a, "choices": []}),
    "a text that is null": lambda a: _changed(a, text=None),
    "a text that is a number": lambda a: _changed(a, text=4812093),
    "an empty text of no tokens": lambda a: _changed(_counted(a, completion_tokens=0)[2], text=""),
    "an end that is unknown": lambda a: _changed(a, finish_reason="magic"),
    "an end in an error": lambda a: _changed(a, finish_reason="error"),
    "counts below 0": lambda a: _counted(a, prompt_tokens=-1, completion_tokens=-5),
    "huge counts": lambda a: _counted(a, completion_tokens=10**400),
    "counts that are NaN": lambda a: _counted(
        a, prompt_tokens=float("nan"), completion_tokens=float("inf")
    ),
    "a prompt that was cut": lambda a: _counted(a, prompt_tokens=512),
    "ids that do not match the text": lambda a: _changed(
        a, token_ids=[1, 2, 3], prompt_token_ids=[5]
    ),
    "keys that stand twice": lambda a: _typed('{"choices": [], ' + json.dumps(a)[1:]),
    "lone surrogates": lambda a: _typed(json.dumps({**a, "note": "\ud800"})),
}
"""Name -> what is sent in place of the right answer, once."""

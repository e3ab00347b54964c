"""What the tests of damaged input share. `RULERKIT_FAULTS` is the number of cases of each property
(default: few)."""

import os
import signal
from contextlib import contextmanager

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rulerkit.common.errors import UserError

SECONDS = 60

cases = settings(
    max_examples=int(os.environ.get("RULERKIT_FAULTS", "15")),
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
"""How each property of this folder is tried."""


@contextmanager
def time_limit(seconds=SECONDS):
    """Raises `TimeoutError` in what hangs."""

    def stop(*_):
        raise TimeoutError(f"nothing came within {seconds} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def result_or_line(function, *arguments):
    """What a function returns, or the `UserError` that it raises: one line that can be read."""
    try:
        with time_limit():
            return function(*arguments)
    except UserError as error:
        line = error
    assert "\n" not in str(line)
    assert 10 < len(str(line)) < 2000, str(line)[:300]
    return line


DEEP = b"[" * 100_000
BYTES = st.sampled_from(
    [b"", b"\n", b"\0", b"\0\0\0", b"{", b"}", b'"', b"NaN", b"1e999", b"\xff", b"9" * 5000, DEEP]
)


@st.composite
def damaged(draw, text):
    """A file with a stretch of it replaced."""
    start = draw(st.integers(0, len(text)))
    stop = draw(st.integers(start, min(len(text), start + 30)))
    return text[:start] + draw(BYTES | st.binary(max_size=8)) + text[stop:]

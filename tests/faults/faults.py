"""What the tests of damaged input share. `RULERKIT_FAULTS` is the number of cases of each property
(default: few)."""

import os
import signal
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

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

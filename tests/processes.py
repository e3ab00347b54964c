"""The processes of this machine that a test has started, by a text in their command line or
environment."""

import os
import signal
import time
from pathlib import Path


def processes(mark, file="cmdline"):
    """Number and command line of the processes that have a text in a file of /proc: `cmdline` or
    `environ`."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / file).read_bytes() and int(folder.name) != os.getpid():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
        except (OSError, ValueError):
            pass
    return found


def gone_within(seconds, mark, file="cmdline"):
    """Whether all of them have ended by then."""
    until = time.monotonic() + seconds
    while processes(mark, file) and time.monotonic() < until:
        time.sleep(0.1)
    return not processes(mark, file)


def hear_signals():
    """A shell in the background, and nohup, have their children ignore these."""
    for each in (signal.SIGINT, signal.SIGHUP):
        signal.signal(each, signal.SIG_DFL)

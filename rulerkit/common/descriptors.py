"""How many files and connections this process may have open at a time."""

import errno
import os
import socket
from contextlib import suppress
from itertools import chain

MOST = 2**20  # more than any run needs; some programs go through all descriptors
RESERVE = 128  # for files: a cell has a lock, its rows and a list of failures
ADVICE = "raise it (`ulimit -n 4096`, or LimitNOFILE of the service)"


def raise_limit() -> int:
    """Raise the soft limit of this process to its hard one; returns what holds then."""
    try:
        import resource  # not on Windows, which sets no such limit
    except ImportError:
        return MOST

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST
    if hard != resource.RLIM_INFINITY:
        wanted = min(hard, MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else MOST

    # Some systems allow less than they say.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def left_for_connections() -> int:
    """How many connections this process may open beside its files; at least one."""
    limit = raise_limit()
    is_open = 64
    with suppress(OSError):
        is_open = len(os.listdir("/dev/fd"))
    left = max(2, limit - is_open)
    return left - min(RESERVE, left // 2)


def is_lacking(error: BaseException | None) -> bool:
    """Whether an error comes from a lack of descriptors, in this process or on this machine."""
    seen = set[int]()
    errors = [error]
    while errors:
        one = errors.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, OSError) and one.errno in (errno.EMFILE, errno.ENFILE):
            return True
        # A name is looked up in files and by sockets, whose errors are not told.
        if isinstance(one, socket.gaierror) and not _can_open():
            return True
        several = one.exceptions if isinstance(one, BaseExceptionGroup) else ()
        errors += chain((one.__cause__, one.__context__), several)
    return False


def _can_open() -> bool:
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True


def describe_lack() -> str:
    """What the limit is, and how it is raised."""
    soft = raise_limit()
    return f"this process may have {soft} files and connections open at a time: {ADVICE}"

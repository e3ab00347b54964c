"""How many files and connections this process may have open at a time."""

import errno
import os
from contextlib import suppress

MOST = 2**20  # more than any run needs; some programs go through all descriptors
RESERVE = 128  # for files: a cell has a lock, its rows and a list of failures


def raise_limit() -> int:
    """Raise the soft limit of this process to its hard one; returns what holds then."""
    try:
        import resource  # not on Windows, which sets no such limit
    except ImportError:
        return MOST

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [MOST if limit == resource.RLIM_INFINITY else limit for limit in (soft, hard)]
    wanted = min(MOST, max(limits))
    # Some systems allow less than they say.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return limits[0]


def left_for_connections() -> int:
    """How many connections this process may open beside its files; at least one."""
    is_open = 64
    with suppress(OSError):
        is_open = len(os.listdir("/dev/fd"))
    left = max(2, raise_limit() - is_open)
    return left - min(RESERVE, left // 2)


def is_lacking(error: BaseException | None) -> bool:
    """Whether an error comes from a lack of descriptors, in this process or on this machine."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_lacking, error.exceptions))
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    return False


def describe_lack() -> str:
    """What the limit is, and how it is raised."""
    return (
        f"this process may have {raise_limit()} files and connections open at a time: raise it "
        "(`ulimit -n 4096`, or LimitNOFILE of the service)"
    )

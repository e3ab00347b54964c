"""Runs a command, and ends it with all its processes once the process that asked for it is gone.

    python guard.py PARENT COMMAND ...

Standard input is a pipe that the parent holds open: its end, or another parent than the process
PARENT, means that the parent has ended, even by SIGKILL. Ends with the exit status of the command.
Imports nothing but the standard library.
"""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

GRACE = 10.0  # seconds that a server has to end by itself before it is killed


def main(parent: int, command: list[str]) -> int:
    """Run the command in a process group of its own; returns its exit status, as a shell would."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, lambda *_: None)  # the end of the pipe says when to end
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    while child.poll() is None:
        readable = select.select([0], [], [], 0.5)[0]
        if (readable and not os.read(0, 1)) or os.getppid() != parent:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(GRACE)
            break
    with suppress(ProcessLookupError):  # nothing is left of the group
        os.killpg(child.pid, signal.SIGKILL)
    status = child.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

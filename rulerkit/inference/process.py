"""Processes that end with the one that started them, and servers among them.

A process runs under this file as a script, which ends it with all its children once the process
that started it is gone, even by SIGKILL:

    python process.py PARENT COMMAND ...

So only the standard library is imported at the top. A started server listens on the loopback
address and takes only requests with a random key.
"""

import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rulerkit.inference.access import Address

START_TIMEOUT = 3600.0  # seconds in which a server must answer
GRACE = 10.0  # seconds that a server has to end by itself before it is killed


def start_guarded(
    command: Sequence[str], out: IO[Any], environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a command that ends, with all its processes, when this process does or closes its
    standard input; `out` receives all that it writes."""
    return subprocess.Popen(
        [sys.executable, "-P", __file__, str(os.getpid()), *command],
        stdin=subprocess.PIPE,
        stdout=out,
        stderr=subprocess.STDOUT,
        # All that is written to `out` is UTF-8, whatever the locale.
        env={"PYTHONIOENCODING": "utf-8:backslashreplace", **environment},
        start_new_session=True,  # a terminal's Ctrl-C is for this process alone
    )


class ServerProcess:
    """A server that this process started."""

    def __init__(
        self,
        name: str,
        command: "Callable[[Address], Sequence[str]]",
        variables: Mapping[str, str],
    ) -> None:
        """`command` gives the command line of a server that listens at an address."""
        from rulerkit.inference.access import Address

        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.name = name
        self.address = Address(f"http://127.0.0.1:{port}/v1", secrets.token_hex(16))
        self._is_ready = self._failed = False
        self._deadline, self._next_check = time.monotonic() + START_TIMEOUT, 0.0
        key = {"VLLM_API_KEY": self.address.key}  # never on the command line
        environment = {**os.environ, **variables, **key}
        with tempfile.NamedTemporaryFile(
            prefix=f"rulerkit-{name}-", suffix=".log", delete=False
        ) as log:
            self._process = start_guarded(command(self.address), log, environment)
        self.log = Path(log.name)

    def is_ready(self) -> bool:
        """Whether it answers; `UserError` where it has ended, or does not answer in time."""
        from rulerkit.common.errors import UserError

        status, now, problem = self._process.poll(), time.monotonic(), ""
        if status is not None:
            log = self.log.read_bytes()[-200_000:].decode(errors="replace")
            what = "ended" if self._is_ready else "did not start"
            error = last_error(self.address.without_secrets(log))
            problem = f"{what} (exit status {status}): {error}"
        elif not self._is_ready and now > self._next_check:
            self._is_ready, self._next_check = self.address.healthy(), now + 0.5
            if not self._is_ready and now > self._deadline:
                problem = (
                    f"did not get healthy within {START_TIMEOUT:g} s (`/v1/models` does not answer)"
                )
        if problem:
            self._failed = True
            self.close()
            raise UserError(
                f"model {self.name}: its server {problem}; its log is {self.log}; answers so far "
                "are kept"
            )
        return self._is_ready

    def close(self) -> None:
        """End the server and all its processes. Its log is deleted unless it failed."""
        # It ends once its standard input is closed.
        with suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=GRACE + 5)
        self._process.kill()
        self._process.wait()
        if not self._failed:
            self.log.unlink(missing_ok=True)


_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit): .*")
"""What stands in a line behind the time, level and process that vLLM and torch put before it."""
_CONSEQUENCE = re.compile("root cause|onnection (was likely )?(reset|closed)|remote process exit")
"""What an error says that another one caused."""


def last_error(log: str) -> str:
    """The last error in a log that is no consequence of another, with the line behind it, where
    pydantic says what is wrong; else the last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    text = lines[-1] if lines else "it wrote nothing"
    for line, following in pairwise([*lines, ""]):
        error = _ERROR.search(line)
        if error and not _CONSEQUENCE.search(line):
            text = f"{error[0]} {following}" if "validation error" in line else error[0]
    return text[:500].rstrip(". ")


# --- the script -----------------------------------------------------------------------------------


def guard(parent: int, command: list[str]) -> int:
    """Run a command in a process group of its own until it ends, or until the process `parent` is
    gone: standard input is a pipe that the parent holds open. Returns the exit status, as a shell
    would."""
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
    sys.exit(guard(int(sys.argv[1]), sys.argv[2:]))

"""Servers on this machine: started, waited for, watched and stopped, or found where one runs
already.

A started server runs under `guard.py`, so that nothing is left behind when this process ends,
however it ends. It listens on the loopback address and takes requests with a random key only.
`rulerkit serve` writes down where its servers listen, in a folder that only its user can read;
every other process of that user finds them there.
"""

import atexit
import json
import os
import re
import secrets
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError, redact
from rulerkit.models import guard
from rulerkit.models.client import Address

START_TIMEOUT = 1800.0  # seconds in which a server must answer
_LOOK = 0.5  # seconds between two looks at a server that loads


Command = Callable[[Address], Sequence[str]]
"""The command line of a server that is to listen at an address."""


class ServerProcess:
    """A server that this process started; `poll` tells when it is ready, and that it has ended."""

    def __init__(
        self,
        name: str,
        command: Command,
        environment: Mapping[str, str],
        timeout: float | None = None,
    ) -> None:
        self.name, self.timeout = name, timeout or START_TIMEOUT
        self.address = Address(f"http://127.0.0.1:{_free_port()}/v1", secrets.token_hex(16))
        self.ready = False
        self._failed = False
        self._start = self._last_look = time.monotonic()
        descriptor, log = tempfile.mkstemp(prefix=f"rulerkit-{name}-", suffix=".log")
        self.log = Path(log)
        call = [sys.executable, "-P", str(guard.__file__), str(os.getpid()), *command(self.address)]
        with open(descriptor, "wb") as out:
            self._process = subprocess.Popen(
                call,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    **environment,
                    "VLLM_API_KEY": self.address.key,
                },  # never on the command line
                start_new_session=True,  # a terminal's Ctrl-C is for this process alone
            )
        self.pid = self._process.pid  # the guard's, which is that of the server's session
        atexit.register(self.close)

    def poll(self) -> None:
        """See whether the server is healthy by now; `UserError` where it has ended, or does not get
        healthy in time."""
        status, now = self._process.poll(), time.monotonic()
        if status is not None:
            self._fail(
                f"{'ended' if self.ready else 'did not start'} (exit status {status}): "
                f"{last_error(self._text())}; its log is "
                f"{self.log}; answers so far are kept"
            )
        elif not self.ready and now > self._last_look + _LOOK:
            self.ready, self._last_look = self.address.healthy(), now
            if not self.ready and now > self._start + self.timeout:
                self._fail(
                    f"did not get healthy within {self.timeout:g} s (`/health` and `/v1/models` do "
                    "not answer 200); it said "
                    f"last: {self.progress() or 'nothing'}; its log is {self.log}; `start_timeout: "
                    "SECONDS` waits longer"
                )

    def _fail(self, reason: str) -> None:
        self._failed = True
        raise UserError(f"model {self.name}: its server {reason}")

    def close(self) -> None:
        """End the server and all its processes; returns once they are gone. The log goes too, but
        for that of a failure."""
        atexit.unregister(self.close)
        if self._process.stdin:
            with suppress(OSError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(guard.GRACE + 5)
        self._process.kill()
        self._process.wait()
        if not self._failed:
            self.log.unlink(missing_ok=True)

    def progress(self) -> str:
        """The last line of the log, which tells what is being loaded."""
        return next(
            (
                line
                for line in reversed(log_lines(self._text(last=4000)))
                if not _WARNING.search(line)
            ),
            "",
        )

    def _text(self, last: int = 200_000) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - last))
            return str(redact(file.read().decode(errors="replace")))


_WARNING = re.compile(r"warn|^@|^[\w.]+ = |\($")
_STAMP = re.compile(r"^(\([^)]*\) )?([A-Z]+:? +([\d-]+ [\d:]+ )?(\[[^]]*\] )?)?(\[rank\d+\]:)? *")
_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit)\b")
_CONSEQUENCE = re.compile("root cause|onnection (was likely )?(reset|closed)|remote process exit")
"""What stands in an error that another one caused."""


def log_lines(log: str) -> list[str]:
    """The lines of a log that say something, without the time and level that vLLM puts before
    them."""
    return [said for line in re.split(r"[\r\n]", log) if (said := _STAMP.sub("", line).strip())]


def last_error(log: str) -> str:
    """The last error in a log, else its last lines."""
    lines = log_lines(log)
    errors = [line for line in lines if _ERROR.match(line) and not _CONSEQUENCE.search(line)]
    text = (
        errors[-1].partition(" Try increasing")[0]
        if errors
        else " | ".join(lines[-3:]) or "it wrote nothing"
    )
    return (text if len(text) <= 500 else f"{text[:497]}...").rstrip(".")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


# --- servers that other processes run -------------------------------------------------------------


def _entry(about: Any, folder: Path) -> Path:
    """The file in which the servers of a model are written down, named by a digest of all that
    decides their answers."""
    return (
        folder
        / f"{sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:16]}.json"
    )


def _registry() -> Path:
    """The folder of these files, which only this user can read; `UserError` where others can."""
    folder = (
        Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
        / f"rulerkit-servers-{os.getuid()}"
    )
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise UserError(
            f"{folder} is not a folder of this user alone: remove it, or set XDG_RUNTIME_DIR to "
            "another place"
        )
    return folder


@contextmanager
def registered(about: Any, addresses: Sequence[Address]) -> Iterator[None]:
    """Within, other processes of this user find these servers."""
    file = _entry(about, _registry())
    file.touch(mode=0o600)
    file.write_text(json.dumps([os.getpid(), *addresses]))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def find_servers(about: Callable[[], Any]) -> list[Address]:
    """The healthy servers that `rulerkit serve` runs for a model; `about`, what decides their
    answers, is asked for only where any server is written down."""
    with suppress(UserError, OSError, ValueError, TypeError):
        if any((folder := _registry()).iterdir()):
            process, *addresses = json.loads(_entry(about(), folder).read_text())
            os.kill(process, 0)  # a `ProcessLookupError` where it was killed
            return [address for each in addresses if (address := Address(*each)).healthy()]
    return []

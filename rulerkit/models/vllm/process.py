"""The process of a vLLM engine as its parent sees it: started, asked, listened to and ended."""

import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rulerkit.errors import UserError
from rulerkit.models.vllm.child import GRACE, Asked, Ready, Said, main
from rulerkit.tokenizers import Ids


def engine_process(
    module: str, function: str, line: int, log: int, environment: Mapping[str, str]
) -> "subprocess.Popen[bytes]":
    """A new Python that runs a function of this package on a socket's descriptor, in a session of its own.

    `log`, another descriptor, takes all that it writes and is closed here.
    """
    root = str(Path(__file__).resolve().parents[3])  # this package, wherever the parent found it
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with open(log, "wb") as out:
        return subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import {function}; {function}({line})"],
            pass_fds=[line],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


class Child:
    """An engine in a process of its own, in a session of its own: a terminal's Ctrl-C is the parent's alone.

    Threads read and write the socket, so that an interrupted parent never leaves half a message behind.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.name = name
        self.ready: Ready | None = None
        self.idle = 0.0  # seconds in which the engine had nothing to do, after its first request
        self._round = self._number = 0
        self._keep_log = False
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        descriptor, log = tempfile.mkstemp(prefix=f"rulerkit-vllm-{name}-", suffix=".log")
        self.log = Path(log)
        self._socket, theirs = socket.socketpair()
        with theirs:
            self.process = engine_process(main.__module__, "main", theirs.fileno(), descriptor, environment)
        self._line = Connection(os.dup(self._socket.fileno()))
        self._threads = [threading.Thread(target=target, daemon=True) for target in (self._read, self._write)]
        for thread in self._threads:
            thread.start()
        self._outbox.put(dict(settings))

    def ask(self, ids: Ids, most: int, stop: list[int]) -> int:
        """Send a request; returns the number under which its answer comes."""
        self._number += 1
        self._outbox.put(Asked(self._number, ids, most, stop))
        return self._number

    def abort(self) -> None:
        """Take all requests back; answers that are on their way are passed over."""
        self._round = self._number
        self._outbox.put(None)

    def has_news(self) -> bool:
        """Whether `news` would return at once."""
        return not self._inbox.empty()

    def news(self) -> list[Said]:
        """Wait for the next message: answers, or none where the engine tells that it is ready.

        Raises `UserError` with the engine's last words where it ended.
        """
        message = self._inbox.get()
        if message is None:
            self._inbox.put(None)
            raise UserError(self._last_words())
        if isinstance(message, Ready):
            self.ready = message
            return []
        self.idle, said = message
        return [one for one in said if one.number > self._round]

    def close(self) -> None:
        """End the engine and all its processes; returns once they are gone."""
        with suppress(OSError):  # the other end is gone already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._outbox.put(...)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        with suppress(ProcessLookupError):  # what is left of the group; nothing after an orderly end
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for thread in self._threads:
            thread.join()
        self._line.close()
        self._socket.close()
        if not self._keep_log:
            self.log.unlink(missing_ok=True)

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(self._line.recv())
        except (EOFError, OSError):
            pass
        finally:
            self._inbox.put(None)

    def _write(self) -> None:
        with suppress(OSError):  # the child is gone, as the other thread finds out
            while (message := self._outbox.get()) is not ...:
                self._line.send(message)

    def _last_words(self) -> str:
        """Why the engine ended, in one line, with what helps where memory was short; the log is kept."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE)
        self._keep_log = True
        log = self.log.read_text(encoding="utf-8", errors="replace")
        did = "ended" if self.ready else "did not start"
        advice = f". {MORE_MEMORY}" if re.search(_NO_MEMORY, log) else ""
        return (
            f"model {self.name}: vLLM {did} (exit status {self.process.poll()}): {reason(log).rstrip('.')}{advice}; its log is "
            f"{self.log}; answers so far are kept"
        )


MORE_MEMORY = (
    "`tensor_parallel_size`, `kv_cache_dtype: fp8`, `quantization`, `gpu_memory_utilization` nearer to 1 or a smaller "
    "`max_length` make room"
)
_NO_MEMORY = r"KV cache is needed|No available memory for the cache|[Oo]ut ?[Oo]f ?[Mm]emory|less than desired"
_STAMP = re.compile(r"^(\([^)]*\) )?([A-Z]+ [\d-]+ [\d:]+ \[[^]]*\] )?(\[rank\d+\]:)? *")
_ASIDE = re.compile(r"^(\([^)]*\) )?(DEBUG|INFO|WARNING) ")
_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit)\b|Worker proc ")
_ECHO = re.compile(r"root cause|^Worker proc |onnection (was likely )?(reset|closed)|remote process exit")


def reason(log: str) -> str:
    """The last error of a log that is no mere consequence of another one, with what it adds; else the last lines."""
    whole = [line for line in log.splitlines() if line.strip() and "[shutdown]" not in line]
    lines = [_STAMP.sub("", line).strip() for line in whole if not _ASIDE.match(line)]
    errors = [at for at, line in enumerate(lines) if _ERROR.match(line)]
    causes = [at for at in errors if not _ECHO.search(lines[at])]
    if errors:
        at = (causes or errors)[-1]
        alone = at + 1 in errors or lines[at].startswith("FollowerError")  # which is one line, whatever comes behind
        found = " ".join(lines[at:][: 1 if alone else 2]).partition(" Try increasing")[0]
    else:
        found = " | ".join(_STAMP.sub("", line).strip() for line in whole[-3:]) or "it left no word"
    return found if len(found) <= 500 else f"{found[:497]}..."

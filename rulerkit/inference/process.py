"""Servers on this machine: started, watched and stopped, or found where `rulerkit serve` runs them.

A server runs under this file as a script, which ends it with all its processes once the process
that started it is gone, even by SIGKILL:

    python process.py PARENT COMMAND ...

So only the standard library is imported at the top. A started server listens on the loopback
address and takes only requests with a random key. `rulerkit serve` writes down where its servers
listen, in a folder that only its user can read; every other process of that user finds them there.
"""

import atexit
import json
import os
import re
import secrets
import select
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

START_TIMEOUT = 1800.0  # seconds in which a server must answer
GRACE = 10.0  # seconds that a server has to end by itself before it is killed


class Address(NamedTuple):
    """Where a server listens, such as http://127.0.0.1:8000/v1, the key that it asks for ("" for
    none), what else of a request is secret, and further headers. `key_from` names the environment
    variables of key and headers."""

    url: str
    key: str
    others: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    key_from: str = ""

    def __str__(self) -> str:
        """The URL as messages and records show it."""
        from rulerkit.common.hidden import hide_address

        return hide_address(self.url)

    def without_secrets(self, text: str) -> str:
        """What a server wrote, without the key, the user and the query that it was sent."""
        import httpx2

        url = httpx2.URL(self.url)
        user = b64encode(f"{url.username}:{url.password}".encode()).decode()
        secrets = {self.key, url.password, user, *url.params.values()}
        for secret in sorted({*secrets, *self.others}, key=len, reverse=True):
            # Shorter ones are parts of words.
            if len(secret) > 6:
                text = text.replace(secret, "***")
        return text

    @property
    def port(self) -> str:
        """The port of a server on this machine."""
        return self.url.removesuffix("/v1").rpartition(":")[2]

    def client(
        self,
        kind: Any,
        on_request: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> Any:
        """A client of httpx2 (`kind`), which sends the key and the headers to this server alone,
        and goes through no proxy to this machine. `UserError` where a proxy cannot be used."""
        import httpx2

        from rulerkit.common.errors import UserError, first_line
        from rulerkit.common.urls import is_on_this_machine

        headers = dict(self.headers)
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        hooks = {"request": [on_request or self.keep_from_others]}
        is_local = is_on_this_machine(self.url)
        try:
            return kind(
                headers=headers,
                event_hooks=hooks,
                trust_env=not is_local,
                # Without the environment it would not read SSL_CERT_FILE.
                verify=httpx2.create_ssl_context() if is_local else True,
                **options,
            )
        except ImportError:
            raise UserError(
                "a SOCKS proxy (ALL_PROXY) needs the package socksio: pip install socksio, or "
                f"leave the proxy out with NO_PROXY={httpx2.URL(self.url).host}"
            ) from None
        except (ValueError, httpx2.InvalidURL) as error:
            raise UserError(
                f"a proxy of the environment cannot be used ({first_line(error)}): HTTP_PROXY, "
                "HTTPS_PROXY and ALL_PROXY take http://, https:// or socks5://HOST:PORT"
            ) from None

    def keep_from_others(self, request: Any) -> None:
        """Take key and headers off a request that a redirect leads to another server."""
        from rulerkit.common.urls import origin_of

        here, there = origin_of(self.url), origin_of(str(request.url))
        # From http:// to https:// at the usual ports it is the same one.
        upgraded = here.replace("http:", "https:").replace(":80", ":443")
        if there not in (here, upgraded):
            for name in ("Authorization", *dict(self.headers)):
                request.headers.pop(name, None)

    def page(self, name: str) -> Any:
        """The URL of a page: below the address, but for a server's own pages, such as `/health`,
        which lie beside its `/v1`."""
        import httpx2

        url = httpx2.URL(self.url)
        path = url.path.rstrip("/")
        if name.startswith(("/health", "/metrics", "/inference/")):
            path = path.removesuffix("/v1")
        return url.copy_with(path=path + name)

    def get(self, name: str, timeout: float = 2.0) -> tuple[int, str]:
        """The status and the text of a page; 0, and why, where nothing answers."""
        import httpx2

        from rulerkit.inference.refusals import why_unreachable

        try:
            with self.client(httpx2.Client, follow_redirects=True) as client:
                reply = client.get(self.page(name), timeout=timeout)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = why_unreachable(self.url, error)
            return 0, self.without_secrets(reason)
        return reply.status_code, self.without_secrets(reply.text)

    def models(self) -> list[dict[str, Any]]:
        """The models that the server lists (`listing.parse_models`); none where it has no list."""
        from rulerkit.inference.listing import parse_models

        try:
            return parse_models(self.get("/models", 30)[1])
        except (ValueError, RecursionError):
            return []

    def healthy(self) -> bool:
        """Whether `/health` answers 200, or, where there is no such page, `/v1/models`."""
        status = self.get("/health")[0]
        return status == 200 or (400 <= status < 500 and self.get("/models")[0] == 200)


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
    """A server that this process started; `poll` sees whether it is ready, or has ended."""

    def __init__(
        self,
        name: str,
        command: Callable[[Address], Sequence[str]],
        variables: Mapping[str, str],
        timeout: float = START_TIMEOUT,
    ) -> None:
        """`command` gives the command line of a server that listens at an address."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.name, self.timeout = name, timeout
        self.address = Address(f"http://127.0.0.1:{port}/v1", secrets.token_hex(16))
        self.ready = self._failed = False
        self._deadline, self._next_check = time.monotonic() + timeout, 0.0
        key = {"VLLM_API_KEY": self.address.key}  # never on the command line
        environment = {**os.environ, **variables, **key}
        with tempfile.NamedTemporaryFile(
            prefix=f"rulerkit-{name}-", suffix=".log", delete=False
        ) as log:
            self._process = start_guarded(command(self.address), log, environment)
        self.log = Path(log.name)
        atexit.register(self.close)

    def poll(self) -> None:
        """Update `ready`; `UserError` where the server has ended, or is not healthy in time."""
        from rulerkit.common.errors import UserError

        status, now, reason = self._process.poll(), time.monotonic(), ""
        if status is not None:
            what = "ended" if self.ready else "did not start"
            reason = (
                f"{what} (exit status {status}): {last_error(self._log_text(200_000))}; its log is "
                f"{self.log}; answers so far are kept"
            )
        elif not self.ready and now > self._next_check:
            self.ready, self._next_check = self.address.healthy(), now + 0.5
            if not self.ready and now > self._deadline:
                reason = (
                    f"did not get healthy within {self.timeout:g} s (`/health` and `/v1/models` do "
                    f"not answer 200); it said last: {self.progress() or 'nothing'}; its log is "
                    f"{self.log}; `start_timeout: SECONDS` waits longer"
                )
        if reason:
            self._failed = True
            raise UserError(f"model {self.name}: its server {reason}")

    def close(self) -> None:
        """End the server and all its processes. Its log is deleted unless it failed."""
        atexit.unregister(self.close)
        if self._process.stdin:
            with suppress(OSError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE + 5)
        self._process.kill()
        self._process.wait()
        if not self._failed:
            self.log.unlink(missing_ok=True)

    def progress(self) -> str:
        """The last line of the log that is no warning: it says what is being loaded."""
        lines = log_lines(self._log_text(4000))
        return next((line for line in reversed(lines) if not _WARNING.search(line)), "")

    def _log_text(self, size: int) -> str:
        return self.address.without_secrets(self.log.read_bytes()[-size:].decode(errors="replace"))


_STAMP = re.compile(r"^(\([^)]*\) )?([A-Z]+:? +([\d-]+ [\d:]+ )?(\[[^]]*\] )?)?(\[rank\d+\]:)? *")
"""The time, level and process that vLLM and torch put before a line."""
_WARNING = re.compile(r"warn|^@|^[\w.]+ = |\($")
_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit)\b")
_CONSEQUENCE = re.compile("root cause|onnection (was likely )?(reset|closed)|remote process exit")
"""What an error says that another one caused."""


def log_lines(log: str) -> list[str]:
    """The lines of a log that are not empty, without their stamps."""
    lines = (_STAMP.sub("", line).strip() for line in log.splitlines())
    return [line for line in lines if line]


def last_error(log: str) -> str:
    """The last error in a log, else its last lines."""
    lines = log_lines(log)
    text = " | ".join(lines[-3:]) or "it wrote nothing"
    for line, following in pairwise([*lines, ""]):
        if _ERROR.match(line) and not _CONSEQUENCE.search(line):
            # pydantic says what is wrong in the next line
            text = f"{line} {following}" if "validation error" in line else line
    return text.partition(" Try increasing")[0][:500].rstrip(". ")


# --- servers that other processes run -------------------------------------------------------------


def _registry() -> Path:
    """The folder in which servers are written down; `UserError` where others than this user can
    use it."""
    from rulerkit.common.errors import UserError

    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"rulerkit-servers-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise UserError(
            f"{folder} is not a folder of this user alone: remove it, or set XDG_RUNTIME_DIR to "
            "another place"
        )
    return folder


def _entry(description: Any) -> Path:
    """The file of a model's servers, named by a digest of all that decides their answers."""
    text = json.dumps(description, sort_keys=True, default=str)
    return _registry() / f"{sha256(text.encode()).hexdigest()[:16]}.json"


@contextmanager
def registered(description: Any, addresses: Sequence[Address]) -> Iterator[None]:
    """Within, other processes of this user find these servers."""
    entry = _entry(description)
    entry.touch(mode=0o600)
    entry.write_text(json.dumps(addresses), encoding="utf-8")
    try:
        yield
    finally:
        entry.unlink(missing_ok=True)


def find_servers(describe: Callable[[], Any]) -> list[Address]:
    """The healthy servers that `rulerkit serve` runs for a model.

    `describe` gives what decides their answers; it may be slow, and is called only where servers
    are written down.
    """
    from rulerkit.common.errors import UserError

    addresses: list[Address] = []
    with suppress(UserError, OSError, ValueError, TypeError):
        if any(_registry().iterdir()):
            addresses += [
                Address(*entry)
                for entry in json.loads(_entry(describe()).read_text(encoding="utf-8"))
            ]
    return [address for address in addresses if address.healthy()]


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

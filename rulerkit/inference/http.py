"""Requests to a server: what is sent, what is sent again, and what fails.

`_attempts` is the loop over the attempts of one request, `_try` one attempt; `refusals.KINDS` says
what follows a failure.
"""

import asyncio
import itertools
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from typing import Any

import httpx2

from rulerkit.common.errors import UserError, shorten
from rulerkit.common.json_text import at, parse_json
from rulerkit.common.settings import Spec
from rulerkit.inference.access import Address
from rulerkit.inference.refusals import (
    KINDS,
    SERVER_WORDS,
    RequestError,
    message_in,
    status_words,
    why_unreachable,
)
from rulerkit.inference.reply import Reply, read_reply

FIRST_WAIT = 1.0  # seconds before the second attempt; doubled each time
LONGEST_WAIT = 60.0  # seconds between attempts, unless the server asks for more
PATIENCE = 900.0  # seconds that a server may ask us to wait
_KIND_OF_STATUS = {
    401: "forbidden",
    402: "closed",
    403: "forbidden",
    404: "forbidden",
    408: "temporary",
    409: "temporary",
    425: "temporary",
    429: "temporary",
    501: "rejected",
}
"""Any other from 300 to 399 is `forbidden`, from 400 to 499 `rejected`, the rest `temporary`."""
_MOST_FILES = 2**16  # connections and files that may be open, where the system allows it


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """An event loop in a thread of its own: a notebook has a running loop already, which cannot be
    waited for."""
    # Hundreds of connections may be more than a shell allows by default.
    with suppress(ImportError, ValueError, OSError):
        import resource  # not on Windows, which sets no such limit

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _MOST_FILES)), hard))

    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rulerkit-requests", daemon=True).start()
    return loop


class Connection:
    """The connection to a server, which is sent `concurrency` requests at a time.

    Requests and replies are plain JSON: the types of openai's client take seconds for the 128K
    token ids of a prompt, and its retries hide what a server asks for after a 429, so that no other
    request could wait with it.
    """

    def __init__(self, address: Address, concurrency: int, retries: int) -> None:
        self.address, self.concurrency = address, concurrency
        self.room: int | None = None
        """The tokens of a prompt and its answer that fit, once a server of vLLM has said so."""
        self._retries = retries
        self._silent = 0  # requests in a row
        self._has_answered = False  # a prompt of a task
        self._quiet_until = 0.0  # the server asked for no request before
        limits = httpx2.Limits(max_connections=concurrency)
        self._http = address.client(httpx2.AsyncClient, timeout=None, limits=limits)

    def close(self) -> None:
        """Close the connections."""
        asyncio.run_coroutine_threadsafe(self._http.aclose(), event_loop()).result()

    def send(
        self, body: Spec, timeout: float, read: Callable[[Reply], Any], is_probe: bool = False
    ) -> "Future[Any]":
        """Ask for a completion; for one of a chat where `body` has `messages`.

        The result is that of `read`, which is called with the reply; a `RequestError` where there
        is none. Of a probe, a tiny request, a lost connection and a timeout are the last word.
        """
        attempts = self._attempts(body, timeout, read, is_probe)
        return asyncio.run_coroutine_threadsafe(attempts, event_loop())

    async def _attempts(
        self, body: Spec, timeout: float, read: Callable[[Reply], Any], is_probe: bool
    ) -> Any:
        for attempt in itertools.count(1):
            while (quiet := self._quiet_until - time.monotonic()) > 0:
                await asyncio.sleep(quiet)
            try:
                # Each attempt has more time than the one before.
                result = await self._try(body, attempt, attempt * timeout, read)
            except RequestError as error:
                failure = error
            else:
                self._silent = 0
                self._has_answered |= not is_probe
                return result

            follows = KINDS[failure.kind][self._has_answered]
            is_last_word = is_probe and failure.kind in ("late", "unreachable")
            if follows == "again" and (is_last_word or attempt > self._retries):
                follows = "fails"

            # A declined prompt is an answer of a server that works; a row of silent failures is
            # not, and hours of waiting for each request would help nobody.
            if failure.kind == "declined":
                self._silent = 0
            elif follows == "fails" or failure.kind == "late":
                self._silent += 1
            if self._silent >= 2 * self.concurrency + 2:
                reason = f"{self._silent} requests to {self.address} in a row had no answer"
                failure = RequestError(f"{reason} ({failure.reason})", "storm")
                follows = "ends"
            if follows != "again":
                failure.ends = follows == "ends"
                raise failure

            # Twice as long each time; the server's own wish holds for all requests to it.
            self._quiet_until = max(self._quiet_until, time.monotonic() + failure.wait)
            pause = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
            await asyncio.sleep(random.uniform(0.5, 1.5) * pause)

    async def _try(
        self, body: Spec, attempt: int, timeout: float, read: Callable[[Reply], Any]
    ) -> Any:
        """What `read` makes of the reply to one attempt; whatever goes wrong, and whatever a reply
        holds, is a `RequestError`."""
        page = "/chat/completions" if "messages" in body else "/completions"
        start = time.perf_counter()
        try:
            async with asyncio.timeout(timeout):
                response = await self._http.post(self.address.page(page), json=body)
            reply = self._parse(response)
            reply.usage["seconds"] = round(time.perf_counter() - start, 3)
            if attempt > 1:
                reply.usage["attempts"] = attempt
            return read(reply)
        except (RequestError, UserError):
            raise
        except TimeoutError:
            raise RequestError(f"no answer within {timeout:.4g} s", "late") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = self.address.without_secrets(why_unreachable(self.address.url, error))
            raise RequestError(reason, "unreachable") from None
        except Exception as error:
            what = shorten(f"{type(error).__name__}: {error}", 120)
            raise RequestError(f"an answer that cannot be read ({what})", "temporary") from error

    def _parse(self, response: Any) -> Reply:
        """The reply in a response; `RequestError` for an error and for what is no reply."""
        # A server may repeat our key anywhere.
        text = self.address.without_secrets(response.content.decode("utf-8", "replace"))
        content: Any = text[:2000]
        with suppress(ValueError):
            content = parse_json(text.encode(), any_number=True)

        # Some servers send an error with the status 200.
        error = at(content, "error")
        if not response.is_success or error:
            raise self._error(response, error or content)
        try:
            return read_reply(content)
        except ValueError as problem:
            seen = shorten(problem, 160)
            raise RequestError(f"an answer without a completion ({seen})", "temporary") from None

    def _error(self, response: Any, error: Any) -> RequestError:
        """The failure that a reply stands for, with the server's own words."""
        status = response.status_code
        code = at(error, "code")
        # Again, where the JSON had escaped it.
        reason = status_words(status, self.address.without_secrets(message_in(error)))
        wait = 0.0
        with suppress(ValueError):
            wait = float(response.headers.get("retry-after", ""))
        if wait > PATIENCE:
            reason += f" (it asks to wait {wait:.0f} s)"
            return RequestError(reason, "closed")

        if code in SERVER_WORDS["refused"]:
            kind = "declined"
        elif code in SERVER_WORDS["spent"]:
            kind = "closed"
        else:
            of_class = {3: "forbidden", 4: "rejected"}.get(status // 100, "temporary")
            kind = _KIND_OF_STATUS.get(status, of_class)
        return RequestError(reason, kind, wait)

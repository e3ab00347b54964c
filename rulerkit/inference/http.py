"""Requests to a server: retries, and what a failure means."""

import asyncio
import itertools
import random
import re
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2
from pydantic import ValidationError

from rulerkit.common.descriptors import describe_lack, is_lacking
from rulerkit.common.errors import UserError, shorten
from rulerkit.common.json_text import parse_json
from rulerkit.common.settings import Spec
from rulerkit.generation.example import Example
from rulerkit.inference.access import Address
from rulerkit.inference.coroutines import event_loop
from rulerkit.inference.refusals import SERVER_WORDS, message_in, status_words, why_unreachable
from rulerkit.inference.reply import Reply, RequestError

# vLLM's page that takes token ids and gives token ids, and gives the prompt back only where it is
# asked to.
GENERATE = "/inference/v1/generate"
FIRST_WAIT = 1.0  # seconds before the second attempt; doubled each time
LONGEST_WAIT = 60.0  # seconds between attempts, unless the server asks for more
PATIENCE = 900.0  # seconds that a server may ask us to wait
LARGEST_REPLY = 2**28  # bytes of one reply
OTHER_PROMPT = ("cut", "misread", "thinks")  # kinds: the server did not answer what it was sent

_TEMPORARY = {408, 409, 425, 429}  # statuses that may be over soon, beside 5xx
_FATAL = {401, 402, 403, 404}  # statuses that hold for every other request too
# Those of them that a server which has answered gives by mistake: while a gateway changes its
# routes, or a service of keys is away.
_SOON_OVER = _FATAL - {402}
_MOST_IN_A_ROW = 3  # such replies, or prompts that are cut or misread: the server means it


class Connection:
    """The connection to a server, which is sent `concurrency` requests at a time.

    Requests and replies are plain JSON: the types of openai's client take seconds for the 128K
    token ids of a prompt, and its retries hide what a server asks for after a 429, so that no other
    request could wait with it.
    """

    def __init__(self, address: Address, concurrency: int, retries: int) -> None:
        self.address, self.concurrency = address, concurrency
        self.last: Example | None = None  # the example that was sent last
        self.num_sent = 0  # examples, however often each
        self._retries = retries
        self._failures = self._cuts = self._refusals = 0  # each in a row
        self._has_answered = False  # a prompt of a task, not only a tiny request
        self._takes_requests = False  # a tiny request, at least
        self._quiet_until = 0.0  # the server asked for no request before
        limits = httpx2.Limits(max_connections=concurrency)
        self._http = address.client(httpx2.AsyncClient, timeout=None, limits=limits)

    def close(self) -> None:
        """Close the connections."""
        asyncio.run_coroutine_threadsafe(self._http.aclose(), event_loop("requests")).result()

    def send(
        self, body: Spec, timeout: float, read: Callable[[Reply], Any], patient: bool = True
    ) -> "Future[Any]":
        """Ask for a completion; for one of a chat where `body` has `messages`.

        The result is that of `read`, which is called with the reply; a `RequestError` where there
        is none. What may succeed later is tried again, with more time; without `patient`, a lost
        connection and a timeout are not.
        """
        return asyncio.run_coroutine_threadsafe(
            self._send(body, timeout, read, patient), event_loop("requests")
        )

    async def _send(
        self, body: Spec, timeout: float, read: Callable[[Reply], Any], patient: bool
    ) -> Any:
        kinds = ("temporary", "unreachable", "later") if patient else ("temporary",)
        for attempt in itertools.count(1):
            while (quiet := self._quiet_until - time.monotonic()) > 0:
                await asyncio.sleep(quiet)
            try:
                result = self._read(read, await self._try(body, attempt * timeout))
                self._failures = self._cuts = self._refusals = 0
                self._has_answered |= patient
                self._takes_requests = True
                return result
            except RequestError as error:
                failure = self._second_look(error) if patient else error
                again = failure.kind in kinds and attempt <= self._retries

                # A refused prompt is an answer of a server that works; a row of silent failures is
                # not, and hours of waiting for each request would help nobody.
                if failure.kind == "refused":
                    self._failures = 0
                elif failure.kind == "later" or not (
                    again or failure.kind in ("fatal", "local", *OTHER_PROMPT)
                ):
                    self._failures += 1
                if self._failures >= 2 * self.concurrency + 2:
                    reason = f"{self._failures} requests to {self.address} in a row had no answer"
                    raise RequestError(f"{reason} ({failure.reason})", "storm") from None
                if not again:
                    raise failure from None

                # Twice as long each time; the server's own wish holds for all requests to it.
                pause = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
                if failure.wait is not None:
                    self._quiet_until = max(self._quiet_until, time.monotonic() + failure.wait)
                    pause = 0.1 * FIRST_WAIT
            await asyncio.sleep(random.uniform(0.5, 1.5) * pause)

    def _second_look(self, failure: RequestError) -> RequestError:
        """A refusal of a server that has answered may be over soon."""
        if failure.status not in _SOON_OVER or not self._takes_requests:
            return failure
        self._refusals += 1
        if not self._has_answered and self._refusals >= _MOST_IN_A_ROW:
            return failure
        return RequestError(failure.reason, "temporary", failure.wait)

    def _read(self, read: Callable[[Reply], Any], reply: Reply) -> Any:
        """What `read` makes of a reply. Whatever a reply holds, it costs one request at most: a
        prompt that was cut ends the run only where the server answers none."""
        try:
            return read(reply)
        except RequestError as failure:
            is_other = failure.kind in OTHER_PROMPT
            self._cuts = self._cuts + 1 if is_other else 0
            if not self._has_answered or not 0 < self._cuts < _MOST_IN_A_ROW:
                raise
            raise RequestError(failure.reason, "final") from None
        except UserError:
            raise
        except Exception as error:
            raise _unreadable(error) from error

    async def _try(self, body: Spec, timeout: float) -> Reply:
        """The reply to one attempt; whatever goes wrong is a `RequestError`."""
        start = time.perf_counter()
        try:
            response = await self._post(body, timeout)
            reply = self._parse(response)
        except RequestError:
            raise
        except TimeoutError:
            raise RequestError(f"no answer within {timeout:.4g} s", "later") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = why_unreachable(self.address.url, error)
            raise RequestError(self._quote(reason), "unreachable") from None
        except Exception as error:
            raise _unreadable(error) from error
        reply.seconds = round(time.perf_counter() - start, 3)
        return reply

    async def _post(self, body: Spec, timeout: float) -> Any:
        """The response to a request, which waits while this process has no descriptor left."""
        page = "/chat/completions" if "messages" in body else "/completions"
        url = self.address.page(GENERATE if "token_ids" in body else page)
        until = time.monotonic() + PATIENCE
        while True:
            try:
                async with (
                    asyncio.timeout(timeout),
                    self._http.stream("POST", url, json=body) as response,
                ):
                    return await _whole(response)
            except httpx2.HTTPError as error:
                if not is_lacking(error):
                    raise
                if time.monotonic() > until:
                    raise RequestError(describe_lack(), "local") from None
            # Other requests end, and give theirs back.
            await asyncio.sleep(random.uniform(0.5, 1.5) * FIRST_WAIT)

    def _parse(self, response: Any) -> Reply:
        """The reply in a response; `RequestError` for an error and for what is no reply."""
        # A server may repeat the key in an answer, which is stored.
        text = self.address.without_secrets(response.text)
        try:
            content = parse_json(text.encode("utf-8", "surrogatepass"), any_number=True)
        except ValueError:
            content = text[:2000]

        # Some servers send an error with the status 200.
        words = content.get("error") if isinstance(content, dict) else None
        if isinstance(words, dict) and not any(words.values()):
            words = None
        if response.is_error or words:
            raise self._error(response, words or content)
        if isinstance(content, str) and re.match(r"\s*(data|event|id):", content):
            raise RequestError(
                "an answer in pieces, though it was not asked to stream (perhaps it takes "
                "-y 'extra_body: {stream: false}')",
                "temporary",
            )
        if not isinstance(content, dict):
            seen = status_words(self.address.url, response.status_code, text)
            raise RequestError(
                f"an answer that is no completion: {self._quote(seen)[:160]} (does `base_url` end "
                "where it should, mostly in /v1?)",
                "temporary",
            )
        try:
            return Reply.model_validate(content)
        except ValidationError as error:
            wrong = error.errors()[0]["msg"].removeprefix("Value error, ")
            if "choices" not in content:
                wrong = f"it has no choices, but {', '.join(map(str, content))}"
            reason = f"an answer without a completion ({self._quote(wrong)[:160]})"
            raise RequestError(reason, "temporary") from None

    def _error(self, response: Any, error: Any) -> RequestError:
        """The failure that a reply stands for, with the server's own words."""
        words = error if isinstance(error, dict) else {"message": error}
        status, code = response.status_code, str(words.get("code") or "")
        message = message_in(error)
        reason = status_words(self.address.url, status, self._quote(message))
        if is_too_long(reason):
            reason += "; set `max_length` in the model's file, or give the server a larger context"

        wait = _seconds(response.headers.get("retry-after", ""))
        if wait is not None and wait > PATIENCE:
            reason += f" (it asks to wait {wait:.0f} s)"

        # What kind of failure it is decides whether it is sent again, and whether the run goes on.
        if code in SERVER_WORDS["refused"]:
            return RequestError(reason, "refused")
        if code in SERVER_WORDS["spent"] or (wait or 0) > PATIENCE:
            return RequestError(reason, "fatal")
        if status in _FATAL:
            return RequestError(reason, "fatal", wait, status)
        temporary = status in _TEMPORARY or status < 400 or (status >= 500 and status != 501)
        return RequestError(reason, "temporary" if temporary else "final", wait)

    def _quote(self, message: object) -> str:
        """A server's words in one short line, without our key."""
        words = self.address.without_secrets(str(message)) or type(message).__name__
        return shorten(words, 300)


def is_too_long(reason: str) -> bool:
    """Whether a server's words are about a prompt that is too long for it."""
    return bool(re.search(SERVER_WORDS["too_long"], reason, re.IGNORECASE))


async def _whole(response: Any) -> Any:
    """A response with its body. One without an end would take all memory before its time is up."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > LARGEST_REPLY:
            raise RequestError(f"an answer of more than {LARGEST_REPLY} bytes", "temporary")
    # What was packed is unpacked by now.
    headers = [
        (name, value)
        for name, value in response.headers.items()
        if name.lower() not in ("content-encoding", "content-length")
    ]
    return httpx2.Response(
        response.status_code, headers=headers, content=b"".join(parts), request=response.request
    )


def _seconds(wait: str) -> float | None:
    """The seconds of a `Retry-After`, which may be a date; None where it is neither."""
    with suppress(ValueError):
        return max(0.0, float(wait))
    with suppress(ValueError):
        until = parsedate_to_datetime(wait)
        if until.tzinfo is None:
            until = until.replace(tzinfo=UTC)
        return max(0.0, (until - datetime.now(UTC)).total_seconds())
    return None


def _unreadable(error: Exception) -> RequestError:
    """The failure of a request whose reply nobody foresaw."""
    what = shorten(f"{type(error).__name__}: {error}", 120)
    return RequestError(f"an answer that cannot be read ({what})", "temporary")

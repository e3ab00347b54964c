"""Requests to an OpenAI-compatible server: many at once, sent again where that helps, and every failure named.

A thread of its own runs the openai client, so that examples are made while the server answers, in a notebook too. What
has timed out comes back to the caller, who decides when it is sent again.
"""

import asyncio
import json
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any, NamedTuple, Self

from rulerkit.errors import UserError

FIRST_WAIT = 1.0  # seconds before the second attempt; doubled each time
LONGEST_WAIT = 60.0  # seconds between attempts, unless the server asks for more
PATIENCE = 900.0  # seconds that a server may ask us to wait
_PASSING = {408, 409, 425, 429}  # what may be over soon, beside 5xx
_FOR_ALL = {401, 402, 403, 404}  # what holds for every other request too
_SPENT = {"insufficient_quota", "billing_hard_limit_reached"}


class Reply(NamedTuple):
    """What a server answered, as JSON, and how long it took (seconds, without waiting for a turn)."""

    body: dict[str, Any]
    seconds: float


class NoAnswerError(Exception):
    """A request without an answer: `kind` is `late` (no answer in time), `away` (no connection), `passing` (gone on too
    long), `for all` (the next would fail alike) or `final` (this request's own fault)."""

    def __init__(self, reason: str, kind: str, code: str = "", wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.code, self.wait = reason, kind, code, wait


class Line:
    """A connection to one server, open within `with`; at most `concurrency` requests are under way."""

    def __init__(self, base_url: str, key: str, concurrency: int, retries: int) -> None:
        self.base_url, self.concurrency, self.retries = base_url, concurrency, retries
        self._key = key
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rulerkit-openai", daemon=True)
        self._quiet_until = 0.0  # no request is sent before, by the server's own wish

    def __enter__(self) -> Self:
        openai = openai_module()
        self._client = openai.AsyncOpenAI(base_url=self.base_url, api_key=self._key, max_retries=0)
        self._slots = asyncio.Semaphore(self.concurrency)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Drops what is under way: the server sees the connection close, and stops."""
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, body: Mapping[str, Any], timeout: float, patient: bool = True) -> "Future[Reply]":
        """A completion; one of a chat where `body` has `messages`. `patient`: a lost connection is tried again."""
        return asyncio.run_coroutine_threadsafe(self._send(dict(body), timeout, patient), self._loop)

    def models(self, timeout: float) -> list[dict[str, Any]]:
        """What the server says it serves; raises `NoAnswerError`."""
        return asyncio.run_coroutine_threadsafe(self._models(timeout), self._loop).result()

    async def _send(self, body: dict[str, Any], timeout: float, patient: bool) -> Reply:
        chat = "messages" in body
        create = self._client.chat.completions.create if chat else self._client.completions.create
        # All of it goes as extra_body: the client walks through its own parameters, 1.3 s for 128K token ids.
        given: dict[str, Any] = {"messages": []} if chat else {"prompt": ""}
        given |= {"model": body.pop("model"), "extra_body": body}
        async with self._slots:
            for attempt in range(self.retries + 1):
                while (wait := self._quiet_until - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                start = time.perf_counter()
                try:
                    return Reply(_body(await self._call(create, timeout, **given)), _since(start))
                except NoAnswerError as failure:
                    again = failure.kind == "passing" or (failure.kind == "away" and patient)
                    if not again or attempt == self.retries:
                        raise
                    wait = self._wait(failure, attempt)
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _models(self, timeout: float) -> list[dict[str, Any]]:
        # unparsed, since the client stumbles over what is no list of models
        raw = await self._call(self._client.models.with_raw_response.list, timeout)
        try:
            found = json.loads(raw.text)["data"]
        except (ValueError, KeyError, TypeError):
            return []
        return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []

    async def _call(self, call: Any, timeout: float, **given: Any) -> Any:
        """One attempt; whatever goes wrong is a `NoAnswerError`."""
        openai = openai_module()
        try:
            async with asyncio.timeout(timeout):
                return await call(timeout=timeout, **given)
        except (openai.APITimeoutError, TimeoutError):
            raise NoAnswerError(f"no answer within {timeout:.4g} s", "late") from None
        except openai.APIConnectionError as error:
            raise NoAnswerError(self._clean(error.__cause__ or error), "away") from None
        except openai.APIStatusError as error:
            raise self._named(error) from None
        except (openai.APIResponseValidationError, json.JSONDecodeError) as error:
            raise NoAnswerError(f"an answer that is not JSON ({self._clean(error)})", "passing") from None

    def _named(self, error: Any) -> NoAnswerError:
        """The failure that an HTTP status stands for, with the server's own words."""
        status, body = error.status_code, error.body if isinstance(error.body, Mapping) else {}
        said = body.get("message") or body.get("detail") or error.body or error.message
        code, reason = str(body.get("code") or ""), f"HTTP {status}: {self._clean(said)}"
        wait = retry_after(error.response.headers)
        if status in _FOR_ALL or code in _SPENT:
            kind = "for all"
        elif status in _PASSING or (status >= 500 and status != 501):
            kind = "passing"
        else:
            kind = "final"
        if wait is not None and wait > PATIENCE:
            kind, reason = "for all", f"{reason} (it asks to wait {wait:.0f} s)"
        return NoAnswerError(reason, kind, code, wait)

    def _wait(self, failure: NoAnswerError, attempt: int) -> float:
        """Seconds until the next attempt: what the server asks for, all others waiting too, else ever longer."""
        if failure.wait is not None:
            self._quiet_until = max(self._quiet_until, time.monotonic() + failure.wait)
            return random.uniform(0, 0.1 * FIRST_WAIT)
        return random.uniform(0.5, 1.5) * min(LONGEST_WAIT, FIRST_WAIT * 2.0**attempt)

    def _clean(self, said: object) -> str:
        """A server's words in one short line, without our key."""
        words = " ".join(str(said).split()) or type(said).__name__
        words = words.replace(self._key, "***") if len(self._key) > 6 else words
        return words if len(words) <= 300 else f"{words[:297]}..."

    async def _hang_up(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._client.close()


def openai_module() -> Any:
    """The openai client, or the `UserError` that says how to get it."""
    try:
        import openai
    except ImportError as error:
        raise UserError("the openai engine needs the openai client: pip install 'rulerkit[openai]'") from error
    return openai


def client_version() -> str:
    """The version of the openai client."""
    openai_module()
    return version("openai")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks to wait, given as milliseconds, seconds or a date; None where it does not."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        if (value := headers.get(name)) is None:
            continue
        try:
            return max(0.0, float(value) / unit)
        except ValueError:
            pass
        try:
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
        except ValueError:
            pass
    return None


def _body(answer: Any) -> dict[str, Any]:
    """The JSON of an answer; a `NoAnswerError` where it holds no choice, as that of a web page or an error sent as 200."""
    body: dict[str, Any] = answer.to_dict() if hasattr(answer, "to_dict") else {}
    if body.get("choices"):
        return body
    error = body.get("error")
    seen = (error.get("message") if isinstance(error, Mapping) else error) or str(body or answer)[:80]
    raise NoAnswerError(f"an answer without a completion: {' '.join(str(seen).split())}", "passing")


def _since(start: float) -> float:
    return round(time.perf_counter() - start, 3)

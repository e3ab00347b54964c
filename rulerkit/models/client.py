"""Requests to an OpenAI-compatible server: many at once, repeated where that helps, and every failure named.

A thread of its own sends them, so that examples are made while the server answers, in a notebook too. A request that timed
out comes back to the caller, who decides when it is sent again. Requests and replies are plain JSON: the types of openai's
client take seconds for the 128K token ids of a prompt, and its retries hide what a server asks for after a 429, so that no
other request could wait with it.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Self

import httpx2

from rulerkit.models import Answer
from rulerkit.models.process import Address
from rulerkit.prompt_format import PromptFormat

FIRST_WAIT = 1.0  # seconds before the second attempt; doubled each time
LONGEST_WAIT = 60.0  # seconds between attempts, unless the server asks for more
PATIENCE = 900.0  # seconds that a server may ask us to wait
_TEMPORARY = {408, 409, 425, 429}  # what may be over soon, beside 5xx
_FOR_ALL = {401, 402, 403, 404}  # what holds for every other request too
_SPENT = {"insufficient_quota", "billing_hard_limit_reached"}


class Reply(NamedTuple):
    """What a server answered, as JSON, and how long it took (seconds, without waiting for a turn)."""

    body: dict[str, Any]
    seconds: float


class RequestError(Exception):
    """A request without an answer.

    `kind` is `late` (no answer in time), `unreachable` (no connection), `ended` (the server's process is gone),
    `temporary` (failed too often), `for all` (the next request would fail alike) or `final` (this request's own fault).
    """

    def __init__(self, reason: str, kind: str, code: str = "", wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.code, self.wait = reason, kind, code, wait


class Client:
    """A connection to one server, open within `with`; at most `concurrency` requests are under way.

    `ended` tells whether the server's process is known to be gone, so that no request is repeated.
    """

    def __init__(
        self, address: Address, concurrency: int, retries: int, ended: Callable[[], bool] = lambda: False
    ) -> None:
        self.address, self.retries, self.ended = address, retries, ended
        self._slots = asyncio.Semaphore(concurrency)
        self._quiet_until = 0.0  # no request is sent before, by the server's own wish
        self._http = httpx2.AsyncClient(
            timeout=None, follow_redirects=True, limits=httpx2.Limits(max_connections=None), **address.options
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rulerkit-client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Drop what is under way: the server sees the connection close, and stops."""
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, body: Mapping[str, Any], timeout: float, patient: bool = True) -> "Future[Reply]":
        """A completion; one of a chat where `body` has `messages`. `patient`: a lost connection is tried again."""
        return asyncio.run_coroutine_threadsafe(self._send(body, timeout, patient), self._loop)

    async def _send(self, body: Mapping[str, Any], timeout: float, patient: bool) -> Reply:
        url = f"{self.address.url}/{'chat/' if 'messages' in body else ''}completions"
        async with self._slots:
            for attempt in range(self.retries + 1):
                while (wait := self._quiet_until - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                start = time.perf_counter()
                try:
                    reply = await self._try(url, body, timeout)
                    return Reply(reply, round(time.perf_counter() - start, 3))
                except RequestError as failure:
                    if failure.kind in ("unreachable", "temporary") and self.ended():
                        raise RequestError(failure.reason, "ended") from None
                    again = failure.kind == "temporary" or (failure.kind == "unreachable" and patient)
                    if not again or attempt == self.retries:
                        raise
                    wait = random.uniform(0.5, 1.5) * min(LONGEST_WAIT, FIRST_WAIT * 2.0**attempt)
                    if failure.wait is not None:  # what the server asks for; all other requests wait too
                        self._quiet_until = max(self._quiet_until, time.monotonic() + failure.wait)
                        wait = random.uniform(0, 0.1 * FIRST_WAIT)
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _try(self, url: str, body: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """The JSON of one attempt; whatever goes wrong is a `RequestError`."""
        try:
            async with asyncio.timeout(timeout):
                response = await self._http.post(url, json=body)
        except TimeoutError:
            raise RequestError(f"no answer within {timeout:.4g} s", "late") from None
        except httpx2.HTTPError as error:
            raise RequestError(self._clean(error), "unreachable") from None
        try:
            reply = response.json()
        except ValueError:
            reply = response.text[:80]
        if response.is_error:
            raise self._named(response, reply)
        choices = reply.get("choices") if isinstance(reply, dict) else None
        if isinstance(choices, list) and choices and isinstance(choices[0], dict):
            return dict(reply)
        sent = reply.get("error") if isinstance(reply, dict) else None  # some send it as a success
        seen = (sent.get("message") if isinstance(sent, dict) else sent) or reply
        raise RequestError(f"an answer without a completion: {self._clean(seen)[:80]}", "temporary")

    def _named(self, response: Any, reply: Any) -> RequestError:
        """The failure that an HTTP status stands for, with the server's own words."""
        error = reply.get("error", reply) if isinstance(reply, dict) else reply
        words = error if isinstance(error, dict) else {"message": error}
        status, code = response.status_code, str(words.get("code") or "")
        reason = f"HTTP {status}: {self._clean(words.get('message') or words.get('detail') or reply)}"
        wait = retry_after(response.headers)
        if wait is not None and wait > PATIENCE:
            return RequestError(f"{reason} (it asks to wait {wait:.0f} s)", "for all", code)
        if status in _FOR_ALL or code in _SPENT:
            return RequestError(reason, "for all", code)
        temporary = status in _TEMPORARY or (status >= 500 and status != 501)
        return RequestError(reason, "temporary" if temporary else "final", code, wait)

    def _clean(self, said: object) -> str:
        """A server's words in one short line, without our key."""
        words = " ".join(str(said).split()) or type(said).__name__
        words = words.replace(self.address.key, "***") if len(self.address.key) > 6 else words
        return words if len(words) <= 300 else f"{words[:297]}..."

    async def _hang_up(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._http.aclose()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks to wait, given as milliseconds, seconds or a date; None where it does not."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        with suppress(KeyError, ValueError):
            return max(0.0, float(headers[name]) / unit)
    with suppress(KeyError, ValueError):
        return max(0.0, parsedate_to_datetime(headers["retry-after"]).timestamp() - time.time())
    return None


# --- a reply as an answer ---------------------------------------------------------------------------------------------

REFUSED = {"content_filter", "content_policy_violation", "safety", "recitation", "refusal", "prohibited_content"}
"""The words, as an answer's end or an error's code, by which services decline."""
_CUT = {"length", "max_tokens", "max_output_tokens", "model_length"}
_ENDED = {"stop", "eos", "end_turn", "stop_sequence", "eos_token"}


def read_reply(reply: Reply, form: PromptFormat, most: int, prices: Mapping[str, float] | None = None) -> Answer:
    """The text, why it ended, its tokens (the server's count, else ours) and what it took.

    `most` is how many tokens were asked for, `prices` are dollars per million tokens. Raises `RequestError` where the
    reply is no answer: no text, or an end that is neither the model's own nor the limit.
    """
    choice, usage = reply.body["choices"][0], read_usage(reply, prices)
    message = choice.get("message") or {}
    text, declined = message.get("content", choice.get("text")), message.get("refusal")
    said = str(choice.get("finish_reason") or "").lower()
    thought = message.get("reasoning_content") or message.get("reasoning")
    if thought and form.thinking_tokens:  # as a model writes it where the server does not take it apart
        text = f"<think>{thought}</think>{text}" if text else f"<think>{thought}"
    if said in REFUSED or declined:
        return Answer(text or declined or "", "refused", usage.get("completion_tokens", 0), usage)
    if not isinstance(text, str):
        raise RequestError(f"an answer without text (finish_reason {said or 'none'})", "late")
    counted = usage.get("completion_tokens")
    num_tokens = form.tokenizer.count(text) if counted is None else int(counted)
    if said in _CUT or (not said and num_tokens >= most):
        return Answer(text, "length", num_tokens, usage)
    if said in _ENDED or (not said and text):
        return Answer(text, "stop", num_tokens, usage)
    raise RequestError(f"the server broke off (finish_reason {said or 'none'})", "late")


def read_usage(reply: Reply, prices: Mapping[str, float] | None = None) -> dict[str, Any]:
    """The server's own counts, the seconds it took, and dollars where prices are given."""
    usage = reply.body.get("usage") or {}
    counts = {
        "prompt_tokens": usage.get("prompt_tokens"),
        "completion_tokens": usage.get("completion_tokens"),
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens"),
        "reasoning_tokens": (usage.get("completion_tokens_details") or {}).get("reasoning_tokens"),
    }
    known: dict[str, Any] = {key: value for key, value in counts.items() if value is not None}
    if prices and {"prompt_tokens", "completion_tokens"} <= known.keys():
        cached = known.get("cached_tokens", 0)
        cost = (known["prompt_tokens"] - cached) * prices["prompt"] + cached * prices.get("cached", prices["prompt"])
        known["cost"] = round((cost + known["completion_tokens"] * prices["completion"]) / 1e6, 8)
    return known | {"seconds": reply.seconds}

"""Requests to servers: one reply as data, retries, and what a failure means."""

import asyncio
import itertools
import random
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Annotated, Any

import httpx2
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    BaseModel,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from rulerkit.common.descriptors import describe_lack, is_lacking
from rulerkit.common.errors import UserError, shorten, shortened
from rulerkit.common.json_text import parse_json
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.example import Example
from rulerkit.inference.coroutines import event_loop
from rulerkit.inference.model import Answer
from rulerkit.inference.process import Address, ServerProcess
from rulerkit.inference.prompt_queue import _num_tokens
from rulerkit.inference.refusals import SERVER_WORDS as _SERVER_WORDS
from rulerkit.inference.refusals import message_in, status_words, why_unreachable
from rulerkit.inference.reply_text import read_content, read_refusal, words_of


def _at(*path: str) -> Any:
    """Where a value stands in the JSON of a reply; it is None where there is none."""
    return Field(default=None, validation_alias=AliasPath(*path))


_LARGEST_COUNT = 10**9


def _as_count(value: object) -> int | None:
    """A count of tokens; what can be none, such as -1, is taken as left out."""
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value[:20])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Some servers write 12.0.
    is_count = 0 <= value <= _LARGEST_COUNT and value == int(value)
    return int(value) if is_count else None


_Count = Annotated[int | None, BeforeValidator(_as_count)]
# A server that does not count says that a prompt has 0 tokens.
_PromptCount = Annotated[_Count, AfterValidator(lambda count: count or None)]
_Name = Annotated[str | None, BeforeValidator(lambda name: name if type(name) is str else None)]


GENERATE = "/inference/v1/generate"
"""vLLM's page that takes token ids and gives token ids, and gives the prompt back only where it is
asked to."""


class Choice(BaseModel):
    """An answer; the ids are vLLM's."""

    content: str | None = None
    text: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, choice: Any) -> Any:
        """The fields of a choice, in whichever form a server writes them. ValueError for an answer
        that is no text; other fields of a wrong type are taken as left out."""
        if not isinstance(choice, dict):
            raise ValueError(f"choices holds {shortened(choice)}")
        message = choice.get("message")
        if not isinstance(message, dict):
            message = {}
        content = read_content(message.get("content"), "message.content")
        text = read_content(choice.get("text"), "text")
        thought = words_of(message.get("reasoning_content"))
        ids = {}
        for name in ("token_ids", "prompt_token_ids"):
            given = choice.get(name)
            if isinstance(given, list) and all(type(one) is int for one in given):
                ids[name] = given
        finish = choice.get("finish_reason")
        if isinstance(finish, dict):
            finish = finish.get("type")
        return {
            "content": content.text,
            "text": text.text,
            "refusal": read_refusal(message.get("refusal")) or content.refusal,
            "reasoning": (
                words_of(message.get("reasoning"))
                or words_of(message.get("reasoning_details"))
                or None
            ),
            "reasoning_content": thought or content.thought or None,
            "finish_reason": finish if isinstance(finish, str) else None,
            **ids,
        }


class Reply(BaseModel):
    """What a server answered, as far as it is read: the answer, its own counts of tokens, its names
    for the model."""

    choice: Choice = Field(validation_alias="choices")
    prompt_tokens: _PromptCount = _at("usage", "prompt_tokens")
    completion_tokens: _Count = _at("usage", "completion_tokens")
    cached_tokens: _Count = Field(
        default=None,
        validation_alias=AliasChoices(
            AliasPath("usage", "prompt_tokens_details", "cached_tokens"),
            AliasPath("usage", "prompt_cache_hit_tokens"),
            AliasPath("usage", "cached_tokens"),
        ),
    )
    reasoning_tokens: _Count = _at("usage", "completion_tokens_details", "reasoning_tokens")
    server_model: _Name = _at("model")
    system_fingerprint: _Name = None
    seconds: float = 0.0
    """How long it took, without waiting for a turn."""

    @field_validator("choice", mode="before")
    @classmethod
    def _first(cls, choices: Any) -> Any:
        """The choice whose `index` is 0, wherever it stands; a choice alone needs no index."""
        if not isinstance(choices, list) or not choices:
            raise ValueError(f"choices is {shortened(choices)}")
        if len(choices) == 1:
            return choices[0]
        for place, choice in enumerate(choices):
            # Some servers write "0", or null in place of it.
            index = choice.get("index") if isinstance(choice, dict) else -1
            if str(place if index is None else index) == "0":
                return choice
        raise ValueError("choices has none with the index 0")

    def about(self, prices: Mapping[str, float] | None = None) -> JSON:
        """The server's counts, its names for the end and for the model, seconds and dollars."""
        # Only what the server said: a count that it left out is not a zero.
        values = self.model_dump(exclude={"choice"}, exclude_none=True)
        if self.choice.finish_reason is not None:
            values["server_finish_reason"] = self.choice.finish_reason

        # Dollars, from the server's own counts and the prices of a million tokens.
        if prices and "prompt_tokens" in values and "completion_tokens" in values:
            price, cached = prices["prompt"], self.cached_tokens or 0
            read = (values["prompt_tokens"] - cached) * price
            read += cached * prices.get("cached", price)
            written = values["completion_tokens"] * prices["completion"]
            values["cost"] = round((read + written) / 1e6, 8)
        return values

    def finish(self) -> str:
        """`stop` or `length`; `RequestError` where the answer ended for another reason or none."""
        # Servers use several words for the same two ends of an answer.
        reason = str(self.choice.finish_reason)
        for finish in ("stop", "length"):
            if reason.lower() in _SERVER_WORDS[finish]:
                return finish
        raise RequestError(f"the server broke off (finish_reason {reason})", "temporary")


FIRST_WAIT = 1.0  # seconds before the second attempt; doubled each time


LONGEST_WAIT = 60.0  # seconds between attempts, unless the server asks for more


PATIENCE = 900.0  # seconds that a server may ask us to wait


LARGEST_REPLY = 2**28  # bytes of one reply


_TEMPORARY = {408, 409, 425, 429}  # statuses that may be over soon, beside 5xx


_FATAL = {401, 402, 403, 404}  # statuses that hold for every other request too


_SOON_OVER = _FATAL - {402}
"""Those of them that a server which has answered gives by mistake: while a gateway changes its
routes, or a service of keys is away."""


_MOST_REFUSALS = 3
"""Such replies in a row, of a server that has answered tiny requests alone: it means them."""


_MOST_CUTS = 3  # prompts in a row that a server cuts or misreads: it does so with all
OTHER_PROMPT = ("cut", "misread", "thinks")


class RequestError(Exception):
    """A request without an answer.

    `kind` is `temporary`, `later` (no answer in time) or `unreachable` (no connection), which are
    sent again; `refused` (the service declines this prompt) or `final` (this request's own fault);
    `local` (this process has no descriptor left, which says nothing about the server); `fatal`,
    `cut`, `misread` or `thinks` (every other request would fail alike: the server refuses, cuts
    prompts, reads other ones, or spends its answers on thoughts) or `storm` (many failed in a row).
    `wait` is how many seconds the server asks to wait; `status` that of its reply where it refuses.
    """

    def __init__(
        self, reason: str, kind: str, wait: float | None = None, status: int | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.wait = reason.rstrip("."), kind, wait
        self.status = status


class Replica:
    """One of the servers that answer for a model: a process of ours, or one that runs elsewhere.

    It is sent `concurrency` requests at a time. Requests and replies are plain JSON: the types of
    openai's client take seconds for the 128K token ids of a prompt, and its retries hide what a
    server asks for after a 429, so that no other request could wait with it.
    """

    def __init__(
        self,
        address: Address,
        concurrency: int,
        retries: int,
        number: int = 0,
        process: ServerProcess | None = None,
    ) -> None:
        """`number` counts from 1 where there are several."""
        self.address, self.number, self.process = address, number, process
        self.concurrency = concurrency
        self.under_way: dict[Future[Answer], Example] = {}
        self.num_sent = 0  # examples, however often each
        self.last: Example | None = None  # the example that it was sent last
        # prompt tokens that are sent ahead of its answers; of more it would choose its own order
        self.most_tokens = 4 * 2**20
        self.longest: int | None = None  # tokens of one request, once it was asked
        self._retries = retries
        self._failures = 0  # in a row
        self._cuts = 0  # in a row
        self._refusals = 0  # in a row
        self._has_answered = False  # a prompt of a task, not only a tiny request
        self._takes_requests = False  # a tiny request, at least
        self._quiet_until = 0.0  # the server asked for no request before
        self._http = address.client(
            httpx2.AsyncClient,
            on_request=self._keep_from_others,
            timeout=None,
            follow_redirects=True,
            limits=httpx2.Limits(max_connections=concurrency),
        )

    async def _keep_from_others(self, request: Any) -> None:
        self.address.keep_from_others(request)

    @property
    def loading(self) -> bool:
        """Whether it is a process that is not healthy yet."""
        return self.process is not None and not self.process.ready

    @property
    def tokens(self) -> int:
        """The tokens of the prompts under way."""
        return _num_tokens(self.under_way.values())

    def drop(self) -> None:
        """Give up what is under way: the server sees the connections close, and stops."""
        for future in self.under_way:
            future.cancel()
        self.under_way.clear()

    def close(self) -> None:
        """Close the connections, and end the server if it is a process of ours."""
        self.drop()
        asyncio.run_coroutine_threadsafe(self._http.aclose(), event_loop("requests")).result()
        if self.process:
            self.process.close()

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

                # A refused prompt is an answer of a server that works; a row of silent
                # failures is not.
                if failure.kind == "refused":
                    self._failures = 0
                elif failure.kind == "later" or not (
                    again or failure.kind in ("fatal", "local", *OTHER_PROMPT)
                ):
                    self._failures += 1

                # Many failures in a row: the server is gone, and hours of waiting for
                # each request would help nobody.
                if self._failures >= 2 * self.concurrency + 2:
                    reason = f"{self._failures} requests to {self.address} in a row had no answer"
                    raise RequestError(f"{reason} ({failure.reason})", "storm") from None
                if not again:
                    raise failure from None

                # Twice as long each time; the server's own wish holds for all requests
                # to it.
                pause = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1))
                if failure.wait is not None:  # all other requests wait too
                    self._quiet_until = max(self._quiet_until, time.monotonic() + failure.wait)
                    pause = 0.1 * FIRST_WAIT
            await asyncio.sleep(random.uniform(0.5, 1.5) * pause)

    def _second_look(self, failure: RequestError) -> RequestError:
        """A refusal of a server that has answered may be over soon."""
        if failure.status not in _SOON_OVER or not self._takes_requests:
            return failure
        self._refusals += 1
        if not self._has_answered and self._refusals >= _MOST_REFUSALS:
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
            if not self._has_answered or not 0 < self._cuts < _MOST_CUTS:
                raise
            raise RequestError(failure.reason, "final") from None
        except UserError:
            raise
        except Exception as error:
            raise _unreadable(error) from error

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

    async def _try(self, body: Spec, timeout: float) -> Reply:
        """The reply to one attempt; whatever goes wrong is a `RequestError`."""
        start = time.perf_counter()
        try:
            response = await self._post(body, timeout)
        except TimeoutError:
            raise RequestError(f"no answer within {timeout:.4g} s", "later") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = why_unreachable(self.address.url, error)
            raise RequestError(self._quote(reason), "unreachable") from None
        try:
            reply = self._parse(response)
        except RequestError:
            raise
        except Exception as error:
            raise _unreadable(error) from error
        reply.seconds = round(time.perf_counter() - start, 3)
        return reply

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

        # What kind of failure it is decides whether it is sent again, and whether the
        # run goes on.
        if code in _SERVER_WORDS["refused"]:
            return RequestError(reason, "refused")
        if code in _SERVER_WORDS["spent"] or (wait or 0) > PATIENCE:
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
    return bool(re.search(_SERVER_WORDS["too_long"], reason, re.IGNORECASE))


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

"""Requests to an OpenAI-compatible server: many at once, repeated where that helps, and every
failure named.

A thread of its own sends them, so that examples are made while the server answers, in a notebook
too. A request that timed out comes back to the caller, who decides when it is sent again. Requests
and replies are plain JSON: the types of openai's client take seconds for the 128K token ids of a
prompt, and its retries hide what a server asks for after a 429, so that no other request could wait
with it.
"""

import asyncio
import json
import random
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Annotated, Any, NamedTuple

import httpx2
from pydantic import AliasPath, BaseModel, Field, ValidationError

from rulerkit.errors import redact
from rulerkit.models import Answer
from rulerkit.prompt_format import PromptFormat
from rulerkit.settings import JSON, Spec

FIRST_WAIT = 1.0  # seconds before the second attempt; doubled each time
LONGEST_WAIT = 60.0  # seconds between attempts, unless the server asks for more
PATIENCE = 900.0  # seconds that a server may ask us to wait
_TEMPORARY = {408, 409, 425, 429}  # what may be over soon, beside 5xx
_FOR_ALL = {401, 402, 403, 404}  # what holds for every other request too
_SPENT = {"insufficient_quota", "billing_hard_limit_reached"}


class Address(NamedTuple):
    """Where a server listens, such as http://127.0.0.1:8000/v1, and the key that it asks for."""

    url: str
    key: str

    def __str__(self) -> str:
        """The URL as messages and records show it."""
        return str(redact(self.url))

    @property
    def port(self) -> str:
        """The port of a server on this machine."""
        return self.url.removesuffix("/v1").rpartition(":")[2]

    @property
    def options(self) -> JSON:
        """How it is asked: with its key, and without a proxy where it is on this machine."""
        local = self.url.startswith(("http://127.", "http://localhost", "http://[::1]"))
        return {"headers": {"Authorization": f"Bearer {self.key}"}, "trust_env": not local}

    def get(self, page: str, timeout: float = 2.0) -> tuple[int, str]:
        """The status and the text of a page beside `/v1`; status 0 where nothing answers."""
        try:
            url = httpx2.URL(self.url)
            path = url.path.rstrip("/").removesuffix("/v1") + page
            reply = httpx2.get(url.copy_with(path=path), timeout=timeout, **self.options)
        except (httpx2.HTTPError, httpx2.InvalidURL):
            return 0, ""
        return reply.status_code, reply.text

    def models(self) -> list[JSON]:
        """What the server says it serves, each with its `id`; nothing where it has no such list."""
        try:
            entries = json.loads(self.get("/v1/models", 30)[1])["data"]
            return [entry for entry in entries if isinstance(entry["id"], str)]
        except (ValueError, KeyError, TypeError):
            return []

    def healthy(self) -> bool:
        """Whether `/health` answers 200, or, where there is no such page, `/v1/models`."""
        status = self.get("/health")[0]
        return status == 200 or (400 <= status < 500 and self.get("/v1/models")[0] == 200)


class Message(BaseModel):
    """The message of a chat's answer."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class Choice(BaseModel):
    """An answer: of a chat its message, else its text; the last two are vLLM's."""

    text: str | None = None
    message: Message | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Usage(BaseModel):
    """A server's own counts of tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = Field(
        default=None, validation_alias=AliasPath("prompt_tokens_details", "cached_tokens")
    )
    reasoning_tokens: int | None = Field(
        default=None, validation_alias=AliasPath("completion_tokens_details", "reasoning_tokens")
    )

    def cost(self, prices: Mapping[str, float]) -> float | None:
        """Dollars at `prices` per million tokens."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        cached = self.cached_tokens or 0
        read = (self.prompt_tokens - cached) * prices["prompt"] + cached * prices.get(
            "cached", prices["prompt"]
        )
        return round((read + self.completion_tokens * prices["completion"]) / 1e6, 8)


class Reply(BaseModel):
    """What a server answered, as far as it is read."""

    choices: Annotated[list[Choice], Field(min_length=1)]
    usage: Usage | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    seconds: float = 0.0
    """How long it took, without waiting for a turn."""


class RequestError(Exception):
    """A request without an answer.

    `kind` is `late` (no answer in time), `unreachable` (no connection), `temporary` (failed too
    often), `for all` (every other request would fail alike), `refused` (the service declines this
    prompt) or `final` (this request's own fault). `wait` is how many seconds the server asks to
    wait.
    """

    def __init__(self, reason: str, kind: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.kind, self.wait = reason.rstrip("."), kind, wait


class Client:
    """Sends requests to one server, at most `concurrency` at a time, until `close`."""

    def __init__(self, address: Address, concurrency: int, retries: int) -> None:
        self.address, self.retries = address, retries
        self._slots = asyncio.Semaphore(concurrency)
        self._quiet_until = 0.0  # no request is sent before, by the server's own wish
        self._http = httpx2.AsyncClient(
            timeout=None,
            follow_redirects=True,
            limits=httpx2.Limits(max_connections=None),
            **address.options,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="rulerkit-client", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Drop what is under way: the server sees the connection close, and stops."""
        asyncio.run_coroutine_threadsafe(self._hang_up(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def send(self, body: Spec, timeout: float, patient: bool = True) -> "Future[Reply]":
        """A completion; one of a chat where `body` has `messages`. `patient`: a lost connection is
        tried again."""
        return asyncio.run_coroutine_threadsafe(self._send(body, timeout, patient), self._loop)

    async def _send(self, body: Spec, timeout: float, patient: bool) -> Reply:
        again = ("temporary", "unreachable") if patient else ("temporary",)
        async with self._slots:
            for attempt in range(self.retries + 1):
                while (wait := self._quiet_until - time.monotonic()) > 0:
                    await asyncio.sleep(wait)
                start = time.perf_counter()
                try:
                    reply = await self._try(body, timeout)
                    reply.seconds = round(time.perf_counter() - start, 3)
                    return reply
                except RequestError as failure:
                    if failure.kind not in again or attempt == self.retries:
                        raise
                    wait = random.uniform(0.5, 1.5) * min(LONGEST_WAIT, FIRST_WAIT * 2.0**attempt)
                    if (
                        failure.wait is not None
                    ):  # what the server asks for; all other requests wait too
                        self._quiet_until = max(self._quiet_until, time.monotonic() + failure.wait)
                        wait = random.uniform(0, 0.1 * FIRST_WAIT)
                await asyncio.sleep(wait)
        raise AssertionError("unreachable")

    async def _try(self, body: Spec, timeout: float) -> Reply:
        """The reply to one attempt; whatever goes wrong is a `RequestError`."""
        try:
            url = httpx2.URL(self.address.url)
            page = "/chat/completions" if "messages" in body else "/completions"
            async with asyncio.timeout(timeout):
                response = await self._http.post(
                    url.copy_with(path=url.path.rstrip("/") + page), json=body
                )
        except TimeoutError:
            raise RequestError(f"no answer within {timeout:.4g} s", "late") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise RequestError(self._clean(error), "unreachable") from None
        try:
            reply = response.json()
        except ValueError:
            reply = response.text[:80]
        said = reply.get("error") if isinstance(reply, dict) else None  # some send one as a success
        if response.is_error or said:
            raise self._named(response, said or reply)
        try:
            return Reply.model_validate(reply)
        except ValidationError:
            raise RequestError(
                f"an answer without a completion: {self._clean(reply)[:80]}", "temporary"
            ) from None

    def _named(self, response: Any, said: Any) -> RequestError:
        """The failure that a reply stands for, with the server's own words."""
        words = said if isinstance(said, dict) else {"message": said}
        status, code = response.status_code, str(words.get("code") or "")
        reason = (
            f"HTTP {status}: {self._clean(words.get('message') or words.get('detail') or said)}"
        )
        wait = retry_after(response.headers)
        if code in REFUSED:
            return RequestError(reason, "refused")
        if wait is not None and wait > PATIENCE:
            return RequestError(f"{reason} (it asks to wait {wait:.0f} s)", "for all")
        if status in _FOR_ALL or code in _SPENT:
            return RequestError(reason, "for all")
        temporary = status in _TEMPORARY or status < 400 or (status >= 500 and status != 501)
        return RequestError(reason, "temporary" if temporary else "final", wait)

    def _clean(self, said: object) -> str:
        """A server's words in one short line, without our keys."""
        words = " ".join(str(redact(said)).split()) or type(said).__name__
        words = words.replace(self.address.key, "***") if len(self.address.key) > 6 else words
        return words if len(words) <= 300 else f"{words[:297]}..."

    async def _hang_up(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._http.aclose()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a server asks to wait; None where it gives no number of them."""
    try:
        return max(0.0, float(headers.get("retry-after", "")))
    except ValueError:
        return None


# --- a reply as an answer -------------------------------------------------------------------------

REFUSED = {
    "content_filter",
    "content_policy_violation",
    "safety",
    "recitation",
    "refusal",
    "prohibited_content",
}
"""The words, as an answer's end or an error's code, by which services decline."""
_ENDS = {
    **dict.fromkeys(("stop", "eos", "end_turn", "stop_sequence", "eos_token"), "stop"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_length"), "length"),
}
"""The words of servers for the two ways in which an answer ends."""


def read_reply(
    reply: Reply, form: PromptFormat, prices: Mapping[str, float] | None = None
) -> Answer:
    """The text, why it ended, its tokens (the server's count, else ours) and what it took.

    `prices` are dollars per million tokens. Raises `RequestError` where the service declined, and
    where the reply is no answer: no text, an empty one for which nothing was generated, or an end
    that is neither the model's own nor the limit.
    """
    choice, usage = reply.choices[0], read_usage(reply, prices)
    message = choice.message or Message(content=choice.text)
    said = str(choice.finish_reason).lower()
    if said in REFUSED or message.refusal:
        raise RequestError(f"the service declined ({message.refusal or said})"[:300], "refused")
    text, thought = message.content, message.reasoning_content or message.reasoning
    if (
        thought and form.thinking_tokens
    ):  # as a model writes it where the server does not take it apart
        text = f"<think>{thought}</think>{text}" if text else f"<think>{thought}"
    finish, written = read_finish(choice), usage.get("completion_tokens")
    if text is None or (not text and (finish != "stop" or written == 0)):
        raise RequestError(f"an answer without text (finish_reason {said})", "late")
    return Answer(text, finish, form.tokenizer.count(text) if written is None else written, usage)


def read_finish(choice: Choice) -> str:
    """`stop` or `length`; a `RequestError` where the server gives another reason for the end of an
    answer, or none."""
    if finish := _ENDS.get(str(choice.finish_reason).lower()):
        return finish
    raise RequestError(f"the server broke off (finish_reason {choice.finish_reason})", "late")


def read_usage(reply: Reply, prices: Mapping[str, float] | None = None) -> JSON:
    """The server's counts, its name for the model and for the end, the seconds it took, and dollars
    where there are prices."""
    usage = reply.usage or Usage()
    known = {
        **usage.model_dump(),
        "cost": usage.cost(prices) if prices else None,
        "server_finish_reason": reply.choices[0].finish_reason,
        "server_model": reply.model,
        "system_fingerprint": reply.system_fingerprint,
        "seconds": reply.seconds,
    }
    return {key: value for key, value in known.items() if value is not None}

"""Prompt forms as a running vLLM renders them: a check of the forms that are rendered here.

`/v1/chat/completions/render` gives the token ids of a chat and computes nothing, so a server
without a GPU will do: `vllm launch render MODEL`. A server that also answers has the page where it
was started with `--enable-scale-out`.
"""

import json
from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

import httpx2

from rulerkit.common.errors import UserError, shorten
from rulerkit.common.settings import JSON, Spec
from rulerkit.generation.prompt_format import THE_DAY, PromptFormat
from rulerkit.generation.tokenizers import Tokenizer
from rulerkit.inference.access import Address
from rulerkit.inference.refusals import fatal_words, why_unreachable

RENDER = "/chat/completions/render"
_TIMEOUT = 60.0  # seconds
_NO_PAGE = (404, 405)  # what servers other than vLLM answer
PROBES = ("Which number is written above? Say: 4812093.", "Ünïcödé, 東京; 1. apple 2. banana")
"""Messages whose surroundings must be alike. Neither begins or ends with a blank, which templates
may strip."""
_AROUND = 24  # characters that are shown on both sides of a difference


class NoRendererError(UserError):
    """A server that has no page that renders chats."""


def rendered_ids(
    address: Address,
    served_as: str,
    content: str,
    values: Mapping[str, Any],
    system: str | None = None,
    extra: Spec | None = None,
) -> list[int]:
    """The token ids of a chat of one message, as a server renders it with these values of its
    template; `extra` goes into the request as it is. Raises `UserError` where it has no such page
    or refuses."""
    messages = [{"role": "user", "content": content}]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    body: JSON = {"model": served_as, "messages": messages, **(extra or {})}
    if values:
        body["chat_template_kwargs"] = dict(values)
    try:
        with address.client(httpx2.Client, timeout=_TIMEOUT) as client:
            reply = client.post(address.page(RENDER), json=body)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        reason = why_unreachable(address.url, error)
        raise UserError(fatal_words(address, "unreachable", reason)) from None

    # What a server says may hold anything, our key too.
    text = address.without_secrets(reply.text)
    try:
        ids = json.loads(text)["token_ids"]
        if ids and all(isinstance(one, int) for one in ids):
            return list(ids)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    kind = NoRendererError if reply.status_code in _NO_PAGE else UserError
    raise kind(
        f"{address} does not render chats (HTTP {reply.status_code}: {shorten(text, 160)}): "
        "`vllm launch render MODEL` does, and so does `vllm serve` with --enable-scale-out and a "
        "tokenizer"
    )


def compare_with_server(
    form: PromptFormat, address: Address, served_as: str, extra: Spec | None = None
) -> str:
    """How the ids of a form differ from those that a server renders, as text; empty where they are
    equal, but for the date that a template prints: ours stands still."""
    values = form.template_values
    # The server may be in another time zone.
    today = date.today()
    days = (THE_DAY, *(today + timedelta(days=n) for n in (0, -1, 1)))
    arounds = list(dict.fromkeys(form.around_on(day) for day in days))
    for probe in PROBES:
        theirs = rendered_ids(address, served_as, probe, values, form.system_prompt, extra)
        ours = [
            [*form.bos, *form.tokenizer.encode(before + probe + after).tolist()]
            for before, after in arounds
        ]
        if theirs not in ours:
            return difference(ours[0], theirs, form.tokenizer)
    return ""


def difference(ours: list[int], theirs: list[int], tokenizer: Tokenizer) -> str:
    """The first place where two lists of ids differ, as text with what stands around it."""
    place = 0
    while ours[place : place + 1] == theirs[place : place + 1] != []:
        place += 1
    before = tokenizer.decode(ours[:place])[-_AROUND:]
    ends = [
        tokenizer.decode(ids[place:])[:_AROUND] if ids[place:] else "" for ids in (ours, theirs)
    ]
    return (
        f"{len(ours)} ids here, {len(theirs)} there; behind {before!r} stands here {ends[0]!r}, "
        f"there {ends[1]!r}"
    )
